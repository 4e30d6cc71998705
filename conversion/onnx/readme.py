"""Write the README.md of an export."""

import json
from collections.abc import Mapping
from pathlib import Path
from string import Template

import numpy as np

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.beam_search import source_length_offset
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

HERE = Path(__file__).parent


def readme(
    model: Model,
    precision: str,
    settings: Mapping[str, np.ndarray],
    folder: Path,
    attention: bool = False,
    text: bool = False,
) -> str:
    """Return README.md for an exported folder.

    settings: required inputs with example values;  folder: the export, complete except for this file
    """
    has_file = {
        name: (folder / name).exists() for name in ("model.onnx.data", "model_text.onnx.data", TARGET_TOKENIZER)
    }
    tokenizer_settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    typed_text = "tokenizer.encode_special_tokens = True  # a typed </s> is text\n"
    limit = f"its source tokens + {source_length_offset(model)}"
    if model.config.max_position_embeddings is not None:
        limit += f" and at most {model.config.max_position_embeddings - 1}"
    cuda = "ONNX Runtime's CUDA provider supports all operators of this file."
    if precision == "int8":
        cuda = "But CUDA cannot multiply unsigned with signed bytes: for a GPU, export with `--precision fp16`."
    target_tokenizer = f'tokenizers.Tokenizer.from_file("{TARGET_TOKENIZER}/tokenizer.json")'
    weights = " Its weights are in `model.onnx.data`, which must be in the same folder."
    # model_text.onnx returns only the best translation.
    text_settings = {name: value for name, value in settings.items() if name != "num_return_sequences"}
    values = {
        "define_settings": as_python(settings),
        "define_text_settings": as_python(text_settings),
        "settings": ", **settings" if settings else "",
        # Before the session is created: it warns about every input with a default.
        "quiet": "" if settings else "onnxruntime.set_default_logger_severity(3)\n",
        "typed_text": typed_text if tokenizer_settings.get("split_special_tokens") else "",
        "pad": model.config.pad_token_id,
        "weights": weights if has_file["model.onnx.data"] else "",
        "other_file": "only `model_text.onnx.data` beside it" if has_file["model_text.onnx.data"] else "no other file",
        "scalar": "scalar" if settings else "scalar, optional",
        "target_tokenizer": target_tokenizer if has_file[TARGET_TOKENIZER] else "tokenizer",
        "limit": limit,
        "cuda": cuda,
    }
    parts = ["", *([".text"] if text else []), *([".attention"] if attention else [])]
    templates = (Template((HERE / f"README{part}.template").read_text(encoding="utf-8")) for part in parts)
    return "".join(template.substitute(values) for template in templates)


def as_python(settings: Mapping[str, np.ndarray]) -> str:
    """Return a line of Python that defines the settings, or nothing without settings."""
    values = ", ".join(f'"{name}": np.array({value[()]!s}, np.{value.dtype})' for name, value in settings.items())
    return f"settings = {{{values}}}\n" if settings else ""
