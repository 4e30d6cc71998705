"""tokenizer.json and tokenizer_config.json: read and checked here, so that all runtimes use the same tokenizer."""

import json
import os
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BrokenFileError, InputError, one_line
from .files import CONVERSION_NOTES, check_readable, read_json_object
from .sentences_vaswani_transformer import LANGUAGE_TOKEN
from .tokenizer_steps import check_growth, check_patterns

if TYPE_CHECKING:  # imported where it is used, so that --help is fast
    from tokenizers import Tokenizer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
RARE_TEXT = "\u0378 \u4dc0 \U0001fae0"  # an unassigned character, a hexagram and an emoji
MOST_TOKENS_OF_A_LETTER = 100  # the letter itself, and what a post-processor puts around each sentence


def read_tokenizer(folder: Path, vocabulary: int | None = None, size_field: str = "vocab_size") -> "Tokenizer":
    """Read tokenizer.json, and set it up as transformers does with tokenizer_config.json.

    vocabulary: the size that its ids must be below;  size_field: the field of config.json that it comes from
    Raises BrokenFileError, and InputError for a converted model whose checkpoint came without its vocabulary.
    """
    from tokenizers import Tokenizer

    path, notes = folder / "tokenizer.json", folder / CONVERSION_NOTES
    if notes.exists() and not path.exists():
        raise InputError(
            f"{folder} has no tokenizer.json: the converted checkpoint came without the files of its vocabulary "
            f"(see {notes}); put them beside it and convert it again"
        )
    settings = read_tokenizer_settings(folder)
    check_readable(path)
    with tokenizer_errors(path):
        tokenizer = Tokenizer.from_file(str(path))
        check_growth(path, tokenizer)
        check_patterns(path, tokenizer)
        control = {settings.get(name) for name in SPECIAL_TOKENS}
        if any(t.special and t.content not in control for t in tokenizer.get_added_tokens_decoder().values()):
            content = json.loads(tokenizer.to_str())
            if keep_symbols(content, settings):
                tokenizer = Tokenizer.from_str(json.dumps(content))
        # transformers saves truncation and padding as its last call set them, and applies neither after loading.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        ids = tokenizer.encode("a").ids  # a pre-tokenizer or post-processor may panic here
        tokenizer.encode(RARE_TEXT)  # fails without a token for unknown text
        known = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
        tokenizer.decode(known)  # a decoder may panic, too
    for name in SPECIAL_TOKENS:
        if name in settings and tokenizer.token_to_id(settings[name]) is None:
            file = folder / "tokenizer_config.json"
            raise BrokenFileError(f"{file}: {name} is {settings[name]!r:.80}, which tokenizer.json does not have")
    if len(ids) > MOST_TOKENS_OF_A_LETTER:
        raise BrokenFileError(f"{path} makes {len(ids):,} tokens of one letter; its post_processor adds too many")
    # Those of a post-processor are not necessarily in the vocabulary.
    largest = max([*known, *ids], default=-1)
    if vocabulary is not None and largest >= vocabulary:
        raise BrokenFileError(
            f"{path} has ids up to {largest}, but config.json has {size_field} {vocabulary}: "
            "tokenizer and model do not belong together"
        )
    # Special tokens in a user's text are plain text, also without tokenizer_config.json, as in some ONNX folders.
    tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", not settings))
    return tokenizer


def keep_symbols(content: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Make added tokens of tokenizer.json, except control tokens, stay whole in any text. Return whether any changed.

    `add_special_tokens` of transformers adds tags and language codes as special tokens, which `split_special_tokens`
    would split like a typed </s>. Symbols that are not special are found in the normalised text, as `train_tokenizer`
    adds them.
    """
    control = {settings[name] for name in SPECIAL_TOKENS if name in settings}
    if not control:  # no tokenizer_config.json
        special = (token["content"] for token in content.get("added_tokens", []) if token["special"])
        control = {token for token in special if not LANGUAGE_TOKEN.fullmatch(token)}
    control |= set(find_texts(content.get("post_processor")))  # [CLS]
    changed = False
    for token in content.get("added_tokens", []):
        if token["special"] and token["content"] not in control:
            token |= {"special": False, "normalized": True}
            changed = True
    return changed


def find_texts(part: Any) -> Iterator[str]:
    """Yield all strings and keys in a part of a JSON file."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict | list):
        for inner in part:
            yield from find_texts(inner)
        if isinstance(part, dict):
            yield from find_texts(list(part.values()))


def plain_tokenizer(path: Path) -> bytes:
    """Return the content of tokenizer.json without truncation and padding, which `Tokenizer.from_file` would apply."""
    content = read_json_object(path) | {"truncation": None, "padding": None}
    return json.dumps(content, indent=2, ensure_ascii=False).encode()  # formatted as tokenizers does


# ---- tokenizer_config.json -------------------------------------------------------------------------------------------

# Entries of tokenizer_config.json that are read and published, each with a test of its value, and what that must be.
# Others name files or code, or add tokens that tokenizer.json and the model do not have.
TOKENIZER_SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(SPECIAL_TOKENS, (lambda value: isinstance(value, str), "a string")),
    **dict.fromkeys(("padding_side", "truncation_side"), (lambda value: value in ("left", "right"), "left or right")),
    "clean_up_tokenization_spaces": (lambda value: isinstance(value, bool), "true or false"),
    "split_special_tokens": (lambda value: isinstance(value, bool), "true or false"),
    "model_max_length": (lambda value: type(value) in (int, float) and value > 0, "a number above 0"),
    "model_input_names": (
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value), "a list of strings"
    ),
}  # fmt: skip


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read the entries of tokenizer_config.json that are used, {} if there is no such file. Raises BrokenFileError."""
    path = folder / "tokenizer_config.json"
    if not os.path.lexists(path):
        return {}
    content = read_json_object(path)
    settings = {name: content[name] for name in TOKENIZER_SETTINGS if content.get(name) is not None}
    for name, value in settings.items():
        if name in SPECIAL_TOKENS and isinstance(value, dict):  # an AddedToken, as older transformers saved it
            value = settings[name] = value.get("content")
        fits, kind = TOKENIZER_SETTINGS[name]
        if not fits(value):
            raise BrokenFileError(f"{path}: {name} is {reprlib.repr(value)}; it must be {kind}")
    return settings


# ---- errors of the tokenizers library --------------------------------------------------------------------------------


@contextmanager
def tokenizer_errors(path: Path) -> Iterator[None]:
    """Raise errors and panics of the tokenizers library as BrokenFileError."""
    try:
        with silence_stderr():
            yield
    except (KeyboardInterrupt, SystemExit, BrokenFileError):
        raise
    except BaseException as error:  # tokenizers raises Exception, and for a panic in Rust a subclass of BaseException
        read_json_object(path)  # which says more about a file that is missing, or no JSON
        raise BrokenFileError(
            f"{path} is not a tokenizer ({one_line(str(error))}); copy or download it again"
        ) from None


@contextmanager
def panics_as_errors(folder: Path | None) -> Iterator[None]:
    """Raise a panic of the tokenizers library about a text, as of a pattern that backtracks, as BrokenFileError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3's, which cannot be imported
            raise
        raise BrokenFileError(
            f"{'tokenizer.json' if folder is None else folder / 'tokenizer.json'} fails on a text "
            f"({one_line(str(error))}); its patterns do not suit the text: use the tokenizer of another model"
        ) from None


@contextmanager
def silence_stderr() -> Iterator[None]:
    """Discard what code outside of Python prints on stderr: where Rust panics, it does so besides raising an error."""
    try:
        kept = os.dup(2)
    except OSError:  # closed
        yield
        return
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
