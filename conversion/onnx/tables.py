"""Tables for the tokenizer's operators: properties of all characters, and the ranks of pairs of tokens.

They are read from the tokenizers library at export, so that the graph classifies characters in the same way.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from tokenizers import Regex, normalizers, pre_tokenizers

UNICODE = 0x110000  # code points
BLOCK = 256
OTHER, LETTER, NUMBER, SPACE, ALONE = range(5)


@cache
def character_classes(split_digits: bool) -> np.ndarray:
    """(UNICODE,): OTHER, LETTER, NUMBER and SPACE as in ByteLevel's expression; ALONE for digits that are split"""
    if split_digits:
        classes = character_classes(False).copy()
        digits = pre_tokenizers.Digits(individual_digits=False)
        for first, block in blocks_of_unicode():
            for piece, (start, end) in digits.pre_tokenize_str(block):
                # Digits are separated from a letter before them: two pieces.
                if len(digits.pre_tokenize_str("a" + piece[0])) == 2:
                    classes[first + start : first + end] = ALONE
        return classes
    classes = np.full(UNICODE, OTHER, np.uint8)
    runs = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}+|\s+"), "isolated")
    kinds = {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s"}
    tests = [(kind, pre_tokenizers.Split(Regex(expression), "removed")) for kind, expression in kinds.items()]
    for first, block in blocks_of_unicode():
        for piece, (start, end) in runs.pre_tokenize_str(block):
            kind = next((kind for kind, test in tests if not test.pre_tokenize_str(piece[0])), OTHER)
            classes[first + start : first + end] = kind
    return classes


@cache
def lower_case() -> tuple[np.ndarray, np.ndarray]:
    """(UNICODE,) each: the distance to the lower-case letter, and a code point that follows it (U+0130: a dot) or 0"""
    distance, second = np.zeros(UNICODE, np.int32), np.zeros(UNICODE, np.int32)
    for first, block in blocks_of_unicode():
        lowered = normalizers.Lowercase().normalize_str("\n".join(block)).split("\n")
        if first == 0:  # the line feed itself
            lowered[ord("\n") : ord("\n") + 2] = ["\n"]
        for code, letters in enumerate(lowered, start=first):
            assert 1 <= len(letters) <= 2, f"U+{code:04X} has {len(letters)} lower-case letters"
            distance[code], second[code] = ord(letters[0]) - code, ord(letters[1]) if letters[1:] else 0
    return distance, second


@cache
def python_spaces() -> np.ndarray:
    """(UNICODE,): `str.isspace`, by which the Translator recognises an empty text"""
    return np.array([chr(code).isspace() for code in range(UNICODE)], np.uint8)


def blocks_of_unicode() -> Iterator[tuple[int, str]]:
    """Yield the first code point and the characters of each block, without the surrogates."""
    for first in range(0, UNICODE, BLOCK):
        if not 0xD800 <= first < 0xE000:
            yield first, "".join(map(chr, range(first, first + BLOCK)))


@dataclass(frozen=True)
class PairTable:
    """Pairs of ids -> ranks. The pair (a, b) is at place first[a] + b, if the owner of that place is a."""

    first: np.ndarray  # (vocabulary,)
    owner: np.ndarray  # (places,); -1 for a free place
    rank: np.ndarray  # (places,)

    @classmethod
    def of(cls, pairs: dict[tuple[int, int], int], vocabulary: int) -> "PairTable":
        """Overlay the rows of a sparse matrix, the fullest first, each at the first offset where it fits."""
        rows: dict[int, list[int]] = {}
        for left, right in pairs:
            rows.setdefault(left, []).append(right)
        first = np.zeros(vocabulary, np.int32)
        taken = np.zeros(2 * (len(pairs) + vocabulary), bool)  # doubled where that is too small
        for left, rights in sorted(rows.items(), key=lambda row: -len(row[1])):
            while True:
                clash = np.zeros(len(taken) - vocabulary, bool)
                for right in rights:
                    clash |= taken[right : right + len(clash)]
                if not clash.all():
                    break
                taken = np.concatenate((taken, np.zeros(len(taken), bool)))
            first[left] = int(clash.argmin())
            taken[[first[left] + right for right in rights]] = True
        owner = np.full(int(first.max()) + vocabulary, -1, np.int32)
        rank = np.zeros_like(owner)
        for (left, right), number in pairs.items():
            owner[first[left] + right], rank[first[left] + right] = left, number
        return cls(first, owner, rank)
