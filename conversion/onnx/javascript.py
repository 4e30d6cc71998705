"""Arrange the split layout as a folder that transformers.js loads.

transformers.js chooses its code by `model_type`. Its Marian does what this model needs: an encoder, a merged decoder
with a cache, and greedy search. It reads no `suppress_tokens`, but `bad_words_ids`; and in a batch it goes on with
sentences that have ended until the last one ends. Therefore the exported decoders repeat `</s>`, which decoding skips.
"""

import json
from pathlib import Path

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from ..toolkits.hf_marian import generation_settings, write_json
from .split import FILES

# Ends of file names by which transformers.js finds a `dtype`.
SUFFIXES = {"fp32": "", "fp16": "_fp16", "int8": "_int8", "int8-weights": "_quantized"}


def check_javascript(model: Model, source: Path) -> None:
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
        if name in ("encoder_model", "decoder_model_merged"):
            (folder / f"{name}.onnx").rename(folder / "onnx" / f"{name}{SUFFIXES[precision]}.onnx")
        else:
            (folder / f"{name}.onnx").unlink()
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(settings | {"model_type": "marian", "architectures": ["MarianMTModel"]}, folder / "config.json")
    write_json(generation_settings(model.config) | {"num_beams": 1}, folder / "generation_config.json")
