"""What all tokenizers of sources have in common, and what tokenizer.json says of it.

Fields are checked one by one, not compared with the JSON of an untrained tokenizer: converted tokenizers spell a
missing suffix as "" or null, leave out defaults, and may have options without effect.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vaswani_transformer.errors import InputError
from vaswani_transformer.files import read_json_object
from vaswani_transformer.tokenizer_files import keep_symbols, read_tokenizer_settings

END_OF_TEXT = b"\n"  # appended to each text
FIRST_SYMBOL = 256  # codes of what is not text: 10 is the end of a text, those from here on are symbols


@dataclass(frozen=True, kw_only=True)
class SourceTokenizer:
    clean: Callable[[str], str]  # what happens to each text before tokenizer.json applies
    symbols: dict[str, int]  # added tokens that stay whole
    strips_after_symbols: bool = False  # whether white space after a symbol is part of it
    end: int  # id of </s>, which ends each text

    def list_ids_of_codes(self) -> np.ndarray:
        """Return the ids of what is not text, by its code."""
        return np.array([self.end] * FIRST_SYMBOL + list(self.symbols.values()))


def read_tokenizer_json(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return tokenizer.json as the library uses it, and tokenizer_config.json. Raises BrokenFileError."""
    content, settings = (read_json_object(folder / name) for name in ("tokenizer.json", "tokenizer_config.json"))
    keep_symbols(content, read_tokenizer_settings(folder))
    return content, settings


def list_symbols(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [token for token in content.get("added_tokens", []) if not token["special"]]


def list_unsupported_ends(content: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Return the fields that the operators do not support, of those that do not depend on the kind of model."""
    after = content.get("post_processor") or {}
    flags = ("single_word", "lstrip")
    found = [
        f"added_tokens {t['content']!r} with {flag}" for t in list_symbols(content) for flag in flags if t.get(flag)
    ]
    if read_type(after) != "TemplateProcessing" or len(find_end(after)) != 1:
        found.append(f"post_processor {read_type(after)} that is not a text followed by one token")
    if not settings.get("split_special_tokens"):
        found.append("split_special_tokens false (tokenizer_config.json), which turns typed text into control tokens")
    return found


def refuse_unsupported(folder: Path, found: list[str]) -> None:
    """Raise InputError naming the fields that the operators do not support, if any were found."""
    if found:
        raise InputError(
            f"{folder / 'tokenizer.json'}: --text needs a byte-level BPE as `vaswani-transformer tokenizer` trains it, "
            f"or a unigram model of SentencePiece as `convert` writes it; this one has {'; '.join(found)}"
        )


def find_end(template: dict[str, Any]) -> list[int]:
    """Return the ids that follow a text, or none if the template is not a text and one special token."""
    single = template["single"]
    if [list(part) for part in single] != [["Sequence"], ["SpecialToken"]]:
        return []
    return template["special_tokens"][single[1]["SpecialToken"]["id"]]["ids"]


def list_parts(component: Any, name: str) -> list[Any]:
    """Return the parts of a normalizer or the like, which may be a Sequence or missing.

    name: of the parts in a Sequence
    """
    if read_type(component) == "Sequence":
        return component.get(name, [])
    return [] if component is None else [component]


def read_type(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else part
