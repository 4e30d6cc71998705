"""Arrange the split layout for libraries that load it as a MarianMTModel: transformers.js and Optimum.

Both select their implementation by `model_type`, and `marian` fits: encoder, decoders with a cache, and a search of the
library. Their length penalties are not the paper's, so the default is greedy search.

transformers.js ignores `suppress_tokens` but supports `bad_words_ids`, and it keeps decoding finished sentences until
the whole batch is finished. So its decoders predict `</s>` after `</s>`, which decoding removes.
"""

from pathlib import Path
from typing import Literal

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.files import read_json_object, write_json
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER

from ..toolkits.hugging_face import make_generation_settings

Library = Literal["transformers.js", "optimum"]

# transformers.js finds the file of a `dtype` by its suffix.
FILES_FOR_JAVASCRIPT = ("encoder_model", "decoder_model_merged")
SUFFIXES = {"fp32": "", "fp16": "_fp16", "int8": "_int8", "int8-weights": "_quantized"}


def check_as_marian(model: Model, model_folder: Path, library: Library) -> None:
    """Raise InputError if the library's Marian does not support the model."""
    config = model.config
    if (config.d_k, config.d_v) != (None, None):
        raise InputError(
            f"{model_folder / 'config.json'}: {library} assumes d_k = d_v = d_model / heads; this model sets d_k or d_v"
        )
    if (model_folder / TARGET_TOKENIZER).is_dir() or not (model_folder / "tokenizer.json").exists():
        raise InputError(f"{model_folder}: {library} needs one tokenizer.json for both languages")


def arrange_as_marian(folder: Path, model: Model, precision: str, library: Library) -> None:
    """Write the settings that the library reads beside a complete split layout; for transformers.js, also move and
    rename its files."""
    if library == "transformers.js":
        (folder / "onnx").mkdir()
        for name in FILES_FOR_JAVASCRIPT:
            (folder / f"{name}.onnx").rename(folder / "onnx" / f"{name}{SUFFIXES[precision]}.onnx")
        for unused in folder.glob("*.onnx"):
            unused.unlink()
    marian = {"model_type": "marian", "architectures": ["MarianMTModel"]}
    # Optimum takes the encoder's number of heads for the decoder's; the encoder's graph needs neither.
    marian["encoder_attention_heads"] = model.config.decoder_attention_heads
    # The class of transformers 5 is unknown to transformers 4. This one would also return token_type_ids.
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    for name, changed in {"config.json": marian, "tokenizer_config.json": tokenizer}.items():
        write_json(folder / name, read_json_object(folder / name) | changed)
    write_json(folder / "generation_config.json", make_generation_settings(model, num_beams=1))
