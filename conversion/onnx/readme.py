"""Write the README.md of an export."""

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

import numpy as np
from tokenizers import Tokenizer

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.files import read_json_object
from vaswani_transformer.languages import read_languages
from vaswani_transformer.modeling_vaswani_transformer import searches_as_transformers
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER, LanguageTokens

from .single_graph import default_inputs
from .tokenizer import FIXED_INPUT

HERE = Path(__file__).parent
LANGUAGE = re.compile(r"[\w-]+")  # what a stranger's record may put into Markdown
# Of the table of inputs.
REPETITION_ROWS = """
| `no_repeat_ngram_size` | int64 | $scalar | no sequence of this many tokens occurs twice in a translation; 0: off |
| `repetition_penalty` | float32 | $scalar | factor of log P of tokens that the translation already has; 1: off |"""


def write_readme(
    model: Model,
    model_folder: Path,
    precision: str,
    required: Mapping[str, np.ndarray],
    folder: Path,
    attention: bool,
    repetition: bool,
) -> str:
    """Return README.md for an exported folder.

    model_folder: the folder that the model was loaded from
    required: the settings without a default, with example values;  folder: the export, complete except for this file
    attention, repetition: whether the graph has the output cross_attentions and the inputs against repetitions
    """

    def if_exists(name: str, then: str, otherwise: str) -> str:
        return then if (folder / name).exists() else otherwise

    positions = model.config.learned_positions
    defaults = default_inputs(model, repetition)
    cuda = "ONNX Runtime's CUDA provider supports all operators of this file."
    if precision == "int8":
        cuda = "But CUDA cannot multiply unsigned with signed bytes: for a GPU, export with `--precision fp16`."
    typed_text = "tokenizer.encode_special_tokens = True  # a typed </s> is text\n"
    is_text = read_json_object(folder / "tokenizer_config.json").get("split_special_tokens")
    target_tokenizer = f'tokenizers.Tokenizer.from_file("{TARGET_TOKENIZER}/tokenizer.json")'
    weights = " Its weights are in `model.onnx.data`, which must be in the same folder."
    # model_text.onnx returns only the best translation.
    text_settings = {name: value for name, value in required.items() if name != FIXED_INPUT}
    scalar = "scalar" if required else "scalar, optional"
    languages = LanguageTokens(Tokenizer.from_file(str(folder / "tokenizer.json")))
    token = f"{languages.tokens[0]} " if languages.are_needed else ""
    # In front of each sentence; without a token, the graph copies what has no letter or digit.
    tagged = f'[f"{token}{{piece}}" if re.search(r"[^\\W_]", piece) else piece for piece in pieces[::2]]'
    values = {
        "token": token,
        "language_note": describe_tokens(languages),
        "sentences": tagged if token else "pieces[::2]",
        "languages": describe_languages(model_folder),
        "precision": precision,
        "define_settings": write_settings(required),
        "define_text_settings": write_settings(text_settings),
        "settings": ", **settings" if required else "",
        "typed_text": typed_text if is_text else "",
        "pad": model.config.pad_token_id,
        "weights": if_exists("model.onnx.data", weights, ""),
        "other_file": if_exists("model_text.onnx.data", "only `model_text.onnx.data` beside it", "no other file"),
        "scalar": scalar,
        "repetition": Template(REPETITION_ROWS).substitute(scalar=scalar) if repetition else "",
        "text_settings": ", ".join(f"`{name}`" for name in defaults if name != FIXED_INPUT),
        "target_tokenizer": if_exists(TARGET_TOKENIZER, target_tokenizer, "tokenizer"),
        "positions": "" if positions is None else f"; the model has positions for {positions - 1}",
        "penalty": "length^alpha" if searches_as_transformers(model) else "((5 + length) / 6)^alpha",
        "lookahead": defaults["early_stopping"],
        "extra_length": defaults["extra_length"],
        "cuda": cuda,
    }
    names = ["README", if_exists("model_text.onnx", "README.text", ""), "README.attention" if attention else ""]
    templates = (Template((HERE / f"{name}.template").read_text(encoding="utf-8")) for name in names if name)
    return "".join(template.substitute(values) for template in templates)


def describe_tokens(languages: LanguageTokens) -> str:
    """Return a paragraph about the language tokens of the sources, or nothing."""
    if not languages.are_needed:
        return ""
    tokens = ", ".join(f"`{token}`" for token in languages.tokens)
    return (
        "Every sentence begins with a token that names the language of its translation; the tokenizer makes one id of "
        f"it. The model has {tokens}.\n\n"
    )


def describe_languages(model_folder: Path) -> str:
    """Return a sentence about the languages that the model's folder records, or nothing."""
    languages = read_languages(model_folder) or ()
    are_plain = languages and all(map(LANGUAGE.fullmatch, languages))
    return "It translates from `{}` to `{}`. ".format(*languages) if are_plain else ""


def write_settings(settings: Mapping[str, np.ndarray]) -> str:
    """Return a line of Python that defines the settings, or nothing without settings."""
    values = ", ".join(f'"{name}": np.array({value[()]!s}, np.{value.dtype})' for name, value in settings.items())
    return f"settings = {{{values}}}\n" if settings else ""
