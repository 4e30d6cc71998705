"""Arrange the split layout as transformers.js loads it.

transformers.js chooses its code by `model_type`. Its Marian does what this model needs: an encoder, a merged decoder
with a cache, and greedy search. It reads no `suppress_tokens`, but `bad_words_ids`; and in a batch it keeps
decoding finished sentences until the last one finishes. Therefore the decoders exported for it repeat `</s>`, which
decoding skips.
"""

from pathlib import Path

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from ..toolkits.hf_marian import generation_settings, write_json

# transformers.js finds the file of a `dtype` by the end of its name.
FILES = ("encoder_model", "decoder_model_merged")
SUFFIXES = {"fp32": "", "fp16": "_fp16", "int8": "_int8", "int8-weights": "_quantized"}


def check_for_javascript(model: Model, source: Path) -> None:
    """Raises InputError naming what transformers.js's Marian cannot represent."""
    config = model.config
    if (config.d_k, config.d_v) != (None, None):
        raise InputError(f"{source / 'config.json'}: transformers.js takes d_k and d_v to be d_model / heads")
    if (source / TARGET_TOKENIZER).is_dir() or not (source / "tokenizer.json").exists():
        raise InputError(f"{source}: transformers.js needs one tokenizer.json for both languages")


def arrange_for_javascript(folder: Path, model: Model, precision: str) -> None:
    """Rename the files of a complete split layout, and write the settings that transformers.js reads."""
    (folder / "onnx").mkdir()
    for name in FILES:
        (folder / f"{name}.onnx").rename(folder / "onnx" / f"{name}{SUFFIXES[precision]}.onnx")
    for unused in folder.glob("*.onnx"):
        unused.unlink()
    settings = read_json_object(folder / "config.json")
    write_json(settings | {"model_type": "marian", "architectures": ["MarianMTModel"]}, folder / "config.json")
    write_json(generation_settings(model.config) | {"num_beams": 1}, folder / "generation_config.json")
