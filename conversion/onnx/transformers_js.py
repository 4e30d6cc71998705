"""Arrange the split layout as transformers.js loads it.

transformers.js selects its implementation by `model_type`; `marian` fits: encoder, merged decoder with cache, greedy
search. It ignores `suppress_tokens` but supports `bad_words_ids`, and it keeps decoding finished sentences until the
whole batch is finished. So these decoders predict `</s>` after `</s>`, which decoding removes.
"""

from pathlib import Path

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from ..folder import write_toolkit_json
from ..toolkits.hf_marian import generation_settings

# transformers.js finds the file of a `dtype` by its suffix.
KEPT_FILES = ("encoder_model", "decoder_model_merged")
SUFFIXES = {"fp32": "", "fp16": "_fp16", "int8": "_int8", "int8-weights": "_quantized"}


def check_for_javascript(model: Model, model_folder: Path) -> None:
    """Raise InputError if transformers.js's Marian does not support the model."""
    config = model.config
    if (config.d_k, config.d_v) != (None, None):
        raise InputError(
            f"{model_folder / 'config.json'}: transformers.js assumes d_k = d_v = d_model / heads; this model sets d_k "
            "or d_v"
        )
    if (model_folder / TARGET_TOKENIZER).is_dir() or not (model_folder / "tokenizer.json").exists():
        raise InputError(f"{model_folder}: transformers.js needs one tokenizer.json for both languages")


def arrange_for_javascript(folder: Path, model: Model, precision: str) -> None:
    """Move and rename the files of a complete split layout, and write the settings that transformers.js reads."""
    (folder / "onnx").mkdir()
    for name in KEPT_FILES:
        (folder / f"{name}.onnx").rename(folder / "onnx" / f"{name}{SUFFIXES[precision]}.onnx")
    for unused in folder.glob("*.onnx"):
        unused.unlink()
    settings = read_json_object(folder / "config.json")
    write_toolkit_json(settings | {"model_type": "marian", "architectures": ["MarianMTModel"]}, folder / "config.json")
    write_toolkit_json(generation_settings(model.config) | {"num_beams": 1}, folder / "generation_config.json")
