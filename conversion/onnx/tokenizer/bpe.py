"""A byte-level BPE as `vaswani-transformer tokenizer` trains it, and the tables that its operators need.

Other tokenizers are refused. Fields are checked one by one, not compared with the JSON of an untrained tokenizer:
converted tokenizers spell a missing suffix as "" or null, leave out defaults, and may have options without effect.

The properties of characters come from the tokenizers library at export, so that the graph classifies characters as it
does.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import keep_symbols, read_json_object, read_tokenizer_settings
from vaswani_transformer.sentences_vaswani_transformer import (
    INVISIBLE,
    JOINED,
    JOINERS,
    WHITE_SPACE,
    list_characters,
)
from vaswani_transformer.tokenization import make_normalizer

END_OF_TEXT = b"\n"  # appended to each text
SPELLING = bytes_to_unicode()  # byte -> the character that stands for it in byte-level BPE
# Fields of tokenizer.json's model that the operators do not support.
NOT_SUPPORTED = "dropout unk_token continuing_subword_prefix end_of_word_suffix byte_fallback ignore_merges".split()
MOST_SYMBOLS = 500
UNICODE = 0x110000  # code points
BLOCK = 256
OTHER, LETTER, NUMBER, SPACE, SINGLE_DIGIT = range(5)
# Flags of characters: letters and digits, without which a text is copied, and the sets of `clean_text`.
IS_WORD, IS_INVISIBLE, IS_JOINER, IS_JOINED, IS_WHITE_SPACE = (1 << bit for bit in range(5))


@dataclass(frozen=True)
class ByteLevelBPE:
    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]
    end: int  # id of </s>, which ends each text
    control: frozenset[int]
    symbols: dict[str, int]  # added tokens that stay whole, as they are in normalised text
    lowercase: bool
    split_digits: bool

    @classmethod
    def read(cls, folder: Path) -> "ByteLevelBPE":
        """Read the tokenizer of a folder. Raises InputError naming everything that the operators do not support."""
        content, settings = (read_json_object(folder / name) for name in ("tokenizer.json", "tokenizer_config.json"))
        keep_symbols(content, read_tokenizer_settings(folder))
        if found := list_unsupported(content, settings):
            raise InputError(
                f"{folder / 'tokenizer.json'}: --text needs a byte-level BPE as `vaswani-transformer tokenizer` trains "
                f"it; this one has {'; '.join(found)}"
            )
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else merge for merge in content["model"]["merges"]]
        return cls(
            content["model"]["vocab"],
            [(left, right) for left, right in merges],
            find_end(content["post_processor"])[0],
            frozenset(token["id"] for token in content.get("added_tokens", []) if token["special"]),
            find_symbols(content),
            "Lowercase" in json.dumps(content.get("normalizer")),
            "Digits" in [step["type"] for step in list_steps(content["pre_tokenizer"])],
        )

    def is_in_order(self) -> bool:
        """Return whether no merge needs the product of a later one, as in every trained tokenizer."""
        made = {left + right: rank for rank, (left, right) in enumerate(self.merges)}
        return all(max(made.get(part, -1) for part in pair) < rank for rank, pair in enumerate(self.merges))


def list_unsupported(content: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Return the fields of tokenizer.json and tokenizer_config.json that the operators do not support."""
    model, after = content.get("model") or {}, content.get("post_processor") or {}
    if read_type(model) != "BPE":
        return [f"model {read_type(model)}"]
    found = [f"model.{field} {json.dumps(model[field])}" for field in NOT_SUPPORTED if model.get(field)]
    if missing := [byte for byte, spelling in SPELLING.items() if spelling not in model["vocab"]]:
        found.append(f"model.vocab without {len(missing)} of the 256 bytes")
    if content.get("normalizer") not in list_normalizers():
        found.append(f"normalizer {read_type(content['normalizer'])} that does not clean texts as `clean_text`")
    steps = list_steps(content.get("pre_tokenizer") or {})
    if len(steps) == 2 and steps[0] == {"type": "Digits", "individual_digits": True}:
        steps = steps[1:]
    is_byte_level = [read_type(step) for step in steps] == ["ByteLevel"]
    if not is_byte_level or steps[0].get("add_prefix_space") or not steps[0].get("use_regex", True):
        found.append(f"pre_tokenizer {json.dumps(content.get('pre_tokenizer'))}")
    if read_type(content.get("decoder")) != "ByteLevel":
        found.append(f"decoder {read_type(content.get('decoder'))}")
    if read_type(after) != "TemplateProcessing" or len(find_end(after)) != 1:
        found.append(f"post_processor {read_type(after)} that is not a text followed by one token")
    found += list_unsupported_symbols(content)
    if not settings.get("split_special_tokens"):
        found.append("split_special_tokens false (tokenizer_config.json), which turns typed text into control tokens")
    if settings.get("clean_up_tokenization_spaces"):
        found.append("clean_up_tokenization_spaces true (tokenizer_config.json)")
    return found


def find_symbols(content: dict[str, Any]) -> dict[str, int]:
    """Return the symbols of tokenizer.json with their ids, as they are in normalised text."""
    symbols = {token["content"]: token["id"] for token in content.get("added_tokens", []) if not token["special"]}
    if "Lowercase" not in json.dumps(content.get("normalizer")):
        return symbols
    return {normalizers.Lowercase().normalize_str(symbol): id for symbol, id in symbols.items()}


def list_unsupported_symbols(content: dict[str, Any]) -> list[str]:
    """Return the symbols that the operators do not find as the library does."""
    tokens = [token for token in content.get("added_tokens", []) if not token["special"]]
    flags = ("single_word", "lstrip", "rstrip")
    found = [f"added_tokens {t['content']!r} with {flag}" for t in tokens for flag in flags if t.get(flag)]
    if content.get("normalizer") is not None:
        found += [f"added_tokens {t['content']!r} that is not normalized" for t in tokens if not t.get("normalized")]
    symbols = list(find_symbols(content))
    if len(symbols) > MOST_SYMBOLS:
        found.append(f"{len(symbols)} added_tokens, more than {MOST_SYMBOLS}")
    found += [f"added_tokens {symbol!r} with a line feed or NUL" for symbol in symbols if set(symbol) & set("\n\0")]
    return found


def list_normalizers() -> list[Any]:
    """Return the supported normalizers, as in tokenizer.json: those of trained tokenizers, and of earlier ones."""
    trained = [make_normalizer(lowercase, keep_invisible=False) for lowercase in (False, True)]
    return [None, {"type": "Lowercase"}, *(json.loads(normalizer.__getstate__()) for normalizer in trained)]


def read_type(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else part


def list_steps(before: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a pre_tokenizer, which may be a Sequence."""
    return before.get("pretokenizers", []) if read_type(before) == "Sequence" else [before]


def find_end(template: dict[str, Any]) -> list[int]:
    """Return the ids that follow a text, or none if the template is not a text and one special token."""
    single = template["single"]
    if [list(part) for part in single] != [["Sequence"], ["SpecialToken"]]:
        return []
    return template["special_tokens"][single[1]["SpecialToken"]["id"]]["ids"]


# ---- tables -------------------------------------------------------------------------------------------------------


@cache
def classify_characters(split_digits: bool) -> np.ndarray:
    """Return the class of each character in ByteLevel's expression, (UNICODE,); SINGLE_DIGIT for digits to split."""
    # Replace each character by a letter for its class.
    replacements = [(r"\p{L}", "L"), (r"\p{N}", "1"), (r"\s", " "), (r"[^L1 ]", "?")]
    replace = normalizers.Sequence([normalizers.Replace(Regex(kind), letter) for kind, letter in replacements])
    class_of = {"?": OTHER, "L": LETTER, "1": NUMBER, " ": SPACE}
    digits = pre_tokenizers.Digits(individual_digits=True)
    classes = np.full(UNICODE, OTHER, np.uint8)
    for first, block in iterate_unicode():
        classes[first : first + BLOCK] = [class_of[letter] for letter in replace.normalize_str(block)]
        if split_digits:
            # With a letter before each character, only digits are pieces that begin at odd positions.
            pieces = digits.pre_tokenize_str("".join("a" + character for character in block))
            digit_codes = [first + start // 2 for _, (start, _) in pieces if start % 2]
            classes[digit_codes] = SINGLE_DIGIT
    return classes


@cache
def list_lower_case() -> tuple[np.ndarray, np.ndarray]:
    """Return the distance to the lower-case letter, and a code point after it (U+0130: a dot) or 0, (UNICODE,) each."""
    distance, second = np.zeros(UNICODE, np.int32), np.zeros(UNICODE, np.int32)
    for first, block in iterate_unicode():
        lowered = normalizers.Lowercase().normalize_str("\n".join(block)).split("\n")
        if first == 0:  # the line feed itself became two empty strings
            lowered[ord("\n") : ord("\n") + 2] = ["\n"]
        for code, letters in enumerate(lowered, start=first):
            assert 1 <= len(letters) <= 2, f"U+{code:04X} has {len(letters)} lower-case letters"
            distance[code], second[code] = ord(letters[0]) - code, ord(letters[1]) if letters[1:] else 0
    return distance, second


@cache
def list_flags() -> np.ndarray:
    """Return what cleaning a text needs to know of each character, a sum of the flags IS_..., (UNICODE,)."""
    flags = np.array([IS_WORD * chr(code).isalnum() for code in range(UNICODE)], np.uint8)
    sets = {IS_INVISIBLE: INVISIBLE, IS_JOINER: JOINERS, IS_JOINED: JOINED, IS_WHITE_SPACE: WHITE_SPACE}
    for flag, inside in sets.items():
        flags[[ord(character) for character in list_characters(inside)]] += flag
    return flags


def iterate_unicode() -> Iterator[tuple[int, str]]:
    """Yield the first code point and the characters of each block, except for surrogates."""
    for first in range(0, UNICODE, BLOCK):
        if not 0xD800 <= first < 0xE000:
            yield first, "".join(map(chr, range(first, first + BLOCK)))


class MergeTable(NamedTuple):
    """The merges of a BPE. The pair of ids (a, b) is at position first[a] + b if the owner of this position is a."""

    first: np.ndarray  # (vocabulary,)
    owner: np.ndarray  # (positions,); -1 if the position is free
    rank: np.ndarray  # (positions,)
    product: np.ndarray  # (merges,), by rank, the id of the merged token


def build_merge_table(bpe: ByteLevelBPE) -> MergeTable:
    """Store the sparse matrix of ranks by row displacement: overlay its rows, fullest first, each at the first offset
    where it fits."""
    id_of = bpe.vocabulary
    size = max(*id_of.values(), *bpe.control, *bpe.symbols.values()) + 1
    rank_of = {(id_of[left], id_of[right]): rank for rank, (left, right) in enumerate(bpe.merges)}
    rows: dict[int, list[int]] = {}
    for left, right in rank_of:
        rows.setdefault(left, []).append(right)
    first = np.zeros(size, np.int32)
    taken = np.zeros(2 * (len(rank_of) + size), bool)  # doubled if too small
    for left, rights in sorted(rows.items(), key=lambda row: -len(row[1])):
        while True:
            clash = np.zeros(len(taken) - size, bool)
            for right in rights:
                clash |= taken[right : right + len(clash)]
            if not clash.all():
                break
            taken = np.concatenate((taken, np.zeros(len(taken), bool)))
        first[left] = int(clash.argmin())
        taken[[first[left] + right for right in rights]] = True
    owner = np.full(int(first.max()) + size, -1, np.int32)
    rank = np.zeros_like(owner)
    for (left, right), number in rank_of.items():
        owner[first[left] + right], rank[first[left] + right] = left, number
    return MergeTable(first, owner, rank, np.array([id_of[left + right] for left, right in bpe.merges]))
