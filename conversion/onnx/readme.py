"""Write the README.md beside an exported graph."""

import json
from pathlib import Path
from string import Template

import numpy as np

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from .traced import source_length_offset

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
    tokenizer_settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    beside = {name: (folder / f"{name}.data").exists() for name in ("model.onnx", "model_text.onnx")}
    limit = f"its source tokens + {source_length_offset(model)}"
    if model.config.max_position_embeddings is not None:
        limit += f" and at most {model.config.max_position_embeddings - 1}"
    is_text = tokenizer_settings.get("split_special_tokens")
    filled_in = {
        "define_settings": spelled(settings),
        # model_text.onnx returns the best translation alone.
        "define_text_settings": spelled({name: x for name, x in settings.items() if name != "num_return_sequences"}),
        "settings": ", **settings" if settings else "",
        # Before the session: it would warn about every input with a default.
        "quiet": "" if settings else "onnxruntime.set_default_logger_severity(3)\n",
        "typed_text": "tokenizer.encode_special_tokens = True  # a typed </s> is text\n" if is_text else "",
        "pad": model.config.pad_token_id,
        "weights": (
            " Its weights are in `model.onnx.data`, which must be in the same folder." if beside["model.onnx"] else ""
        ),
        "other_file": "only `model_text.onnx.data` beside it" if beside["model_text.onnx"] else "no other file",
        "scalar": "scalar" if settings else "scalar, optional",
        "target_tokenizer": (
            f'tokenizers.Tokenizer.from_file("{TARGET_TOKENIZER}/tokenizer.json")'
            if (folder / TARGET_TOKENIZER).is_dir()
            else "tokenizer"
        ),
        "limit": limit,
        "cuda": (
            "But CUDA cannot multiply unsigned with signed bytes: for a GPU, export with `--precision fp16`."
            if precision == "int8"
            else "ONNX Runtime's CUDA provider has all operators of this file."
        ),
    }
    parts = [
        "README.template",
        *(["README.text.template"] if text else []),
        *(["README.attention.template"] * attention),
    ]
    return "".join(Template((HERE / part).read_text(encoding="utf-8")).substitute(filled_in) for part in parts)


def spelled(settings: dict[str, np.ndarray]) -> str:
    """Return a line of Python that defines the settings, if there are any."""
    values = ", ".join(f'"{name}": np.array({value[()]!s}, np.{value.dtype})' for name, value in settings.items())
    return f"settings = {{{values}}}\n" if settings else ""
