"""Write the README.md beside an exported graph."""

import json
from pathlib import Path
from string import Template

import numpy as np

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from .torch_export import source_length_offset

HERE = Path(__file__).parent


def readme(
    model: Model,
    precision: str,
    settings: dict[str, np.ndarray],
    folder: Path,
    attention: bool = False,
    text: bool = False,
) -> str:
    """settings: the required settings, with good values;  folder: has all the other files"""
    has_file = {
        name: (folder / name).exists() for name in ("model.onnx.data", "model_text.onnx.data", TARGET_TOKENIZER)
    }
    tokenizer_settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    typed_text = "tokenizer.encode_special_tokens = True  # a typed </s> is text\n"
    limit = f"its source tokens + {source_length_offset(model)}"
    if model.config.max_position_embeddings is not None:
        limit += f" and at most {model.config.max_position_embeddings - 1}"
    cuda = "ONNX Runtime's CUDA provider has all operators of this file."
    if precision == "int8":
        cuda = "But CUDA cannot multiply unsigned with signed bytes: for a GPU, export with `--precision fp16`."
    target_tokenizer = f'tokenizers.Tokenizer.from_file("{TARGET_TOKENIZER}/tokenizer.json")'
    weights = " Its weights are in `model.onnx.data`, which must be in the same folder."
    filled_in = {
        "define_settings": spelled(settings),
        # model_text.onnx returns the best translation alone.
        "define_text_settings": spelled({name: x for name, x in settings.items() if name != "num_return_sequences"}),
        "settings": ", **settings" if settings else "",
        # Before the session: it would warn about every input with a default.
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
    return "".join(template.substitute(filled_in) for template in templates)


def spelled(settings: dict[str, np.ndarray]) -> str:
    """Return a line of Python that defines the settings, if there are any."""
    values = ", ".join(f'"{name}": np.array({value[()]!s}, np.{value.dtype})' for name, value in settings.items())
    return f"settings = {{{values}}}\n" if settings else ""
