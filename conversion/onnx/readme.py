"""The README.md beside an exported graph, whose lines of Python run as they stand there."""

from pathlib import Path
from string import Template

import numpy as np

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.texts import TARGET_TOKENIZER

from .single_graph import source_length_offset

HERE = Path(__file__).parent


def readme(
    model: VaswaniTransformerForConditionalGeneration,
    precision: str,
    settings: dict[str, np.ndarray],
    two_tokenizers: bool = False,
    attention: bool = False,
    text: bool = False,
) -> str:
    """settings: the inputs that have no values of their own, and good ones for them;  two_tokenizers: one a language"""
    limit = f"its source tokens + {source_length_offset(model)}"
    if model.config.max_position_embeddings is not None:
        limit += f" and at most {model.config.max_position_embeddings - 1}"
    filled_in = {
        "define_settings": spelled(settings),
        # The file with the tokenizer inside gives the best translation alone.
        "define_text_settings": spelled({name: x for name, x in settings.items() if name != "num_return_sequences"}),
        "settings": ", **settings" if settings else "",
        "scalar": "scalar" if settings else "scalar, optional",
        "target_tokenizer": (
            f'tokenizers.Tokenizer.from_file("{TARGET_TOKENIZER}/tokenizer.json")' if two_tokenizers else "tokenizer"
        ),
        "limit": limit,
        "cuda": (
            "But CUDA has no products of unsigned with signed bytes: there, export with `--precision fp16`."
            if precision == "int8"
            else "CUDA has all operators of this file, by ONNX Runtime's list of them."
        ),
    }
    parts = [
        "README.template",
        *(["README.text.template"] if text else []),
        *(["README.attention.template"] * attention),
    ]
    return "".join(Template((HERE / part).read_text(encoding="utf-8")).substitute(filled_in) for part in parts)


def spelled(settings: dict[str, np.ndarray]) -> str:
    """A line of Python, or none."""
    values = ", ".join(f'"{name}": np.array({value[()]!s}, np.{value.dtype})' for name, value in settings.items())
    return f"settings = {{{values}}}\n" if settings else ""
