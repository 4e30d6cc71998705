"""Tables of the tokenizer's operators: properties of characters, and merges of pairs of tokens.

The properties come from the tokenizers library at export, so that the graph classifies characters as it does.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from tokenizers import Regex, normalizers, pre_tokenizers

from .bpe import ByteLevelBPE

UNICODE = 0x110000  # code points
BLOCK = 256
OTHER, LETTER, NUMBER, SPACE, SINGLE_DIGIT = range(5)


@cache
def character_classes(split_digits: bool) -> np.ndarray:
    """Return the class of each character in ByteLevel's expression, (UNICODE,); SINGLE_DIGIT for digits to split."""
    # Replace each character by a letter for its class.
    replacements = [(r"\p{L}", "L"), (r"\p{N}", "1"), (r"\s", " "), (r"[^L1 ]", "?")]
    replace = normalizers.Sequence([normalizers.Replace(Regex(kind), letter) for kind, letter in replacements])
    class_of = {"?": OTHER, "L": LETTER, "1": NUMBER, " ": SPACE}
    digits = pre_tokenizers.Digits(individual_digits=True)
    classes = np.full(UNICODE, OTHER, np.uint8)
    for first, block in blocks_of_unicode():
        classes[first : first + BLOCK] = [class_of[letter] for letter in replace.normalize_str(block)]
        if split_digits:
            # With a letter before each character, only digits are pieces that begin at odd positions.
            pieces = digits.pre_tokenize_str("".join("a" + character for character in block))
            digit_codes = [first + start // 2 for _, (start, _) in pieces if start % 2]
            classes[digit_codes] = SINGLE_DIGIT
    return classes


@cache
def lower_case() -> tuple[np.ndarray, np.ndarray]:
    """Return the distance to the lower-case letter, and a code point after it (U+0130: a dot) or 0, (UNICODE,) each."""
    distance, second = np.zeros(UNICODE, np.int32), np.zeros(UNICODE, np.int32)
    for first, block in blocks_of_unicode():
        lowered = normalizers.Lowercase().normalize_str("\n".join(block)).split("\n")
        if first == 0:  # the line feed itself became two empty strings
            lowered[ord("\n") : ord("\n") + 2] = ["\n"]
        for code, letters in enumerate(lowered, start=first):
            assert 1 <= len(letters) <= 2, f"U+{code:04X} has {len(letters)} lower-case letters"
            distance[code], second[code] = ord(letters[0]) - code, ord(letters[1]) if letters[1:] else 0
    return distance, second


@cache
def python_spaces() -> np.ndarray:
    """Return `str.isspace` of each character, (UNICODE,): texts of white space have empty translations."""
    return np.array([chr(code).isspace() for code in range(UNICODE)], np.uint8)


def blocks_of_unicode() -> Iterator[tuple[int, str]]:
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


def merge_table(bpe: ByteLevelBPE) -> MergeTable:
    """Store the sparse matrix of ranks by row displacement: overlay its rows, fullest first, each at the first offset
    where it fits."""
    id_of = bpe.vocabulary
    size = max(max(id_of.values()), *bpe.control) + 1
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
