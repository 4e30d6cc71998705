"""Normalise characters as SentencePiece does: the normalizer `Precompiled` of the tokenizers library.

A charsmap is a trie of strings with their replacements; that of NFKC has 225,000. The library looks up whole graphemes
if they have less than six bytes, and otherwise single characters. It takes the shortest string with which the grapheme
begins, and replaces the whole grapheme by it. So it never finds most strings, among them the letters of Hangul.
"""

from typing import NamedTuple

import numpy as np

from ..graph_builder import GraphBuilder, cast_to_int, has_flag, look_up, shift, spread
from .characters import EXTENDS, IS_CONTROL, PREPENDS, UNICODE, list_joins
from .trie import build_trie

LONGEST_GRAPHEME = 5  # bytes, of those that are looked up


class Charsmap(NamedTuple):
    """The strings that can be found, with their replacements."""

    replacements: dict[str, str]

    @classmethod
    def read(cls, content: bytes) -> "Charsmap":
        """Read a precompiled charsmap: the size of the trie, a double array as of Darts-clone, and the replacements.

        A unit of the trie has the byte that leads to it (bits 0 to 7 and 31), whether a string ends there (8), and the
        distance of the following units (10 to 30, times 256 if bit 9 is set).
        """
        size = int.from_bytes(content[:4], "little")
        units, texts = np.frombuffer(content[4 : 4 + size], "<u4").tolist(), content[4 + size :]
        replacements: dict[str, str] = {}

        def following(place: int) -> int:
            unit = units[place]
            return place ^ ((unit >> 10) << (8 if unit & (1 << 9) else 0))

        def walk(place: int, string: bytes) -> None:
            for byte in range(1, 256):
                unit = units[place ^ byte] if place ^ byte < len(units) else 0
                if unit & (1 << 31 | 0xFF) != byte:
                    continue
                inner, longer = following(place ^ byte), string + bytes([byte])
                if unit & (1 << 8):  # of the strings that begin with this one, none is found
                    start = units[inner] & (1 << 31) - 1
                    replacements[longer.decode()] = texts[start:].split(b"\0", 1)[0].decode()
                elif len(longer) < LONGEST_GRAPHEME:
                    walk(inner, longer)

        walk(following(0), b"")
        return cls(replacements)

    def normalize(self, op: GraphBuilder, codes: str, is_text: str, rows: str) -> tuple[str, str, str]:
        """Return the three vectors, (characters,) each, for normalised characters."""
        texts = ["\0", *dict.fromkeys(self.replacements.values())]  # number 0 is the character itself
        number_of = {string: texts.index(text, 1) for string, text in self.replacements.items()}
        single = np.zeros(UNICODE, np.int32)
        for string, number in number_of.items():
            if len(string) == 1:
                single[ord(string)] = number
        number = op.Where(is_text, look_up(op, single, codes), np.int32(0))
        is_joined, more = find_graphemes(op, codes, is_text)
        if longer := [(string, number) for string, number in number_of.items() if len(string) > 1]:
            found = build_trie(longer).find(op, codes, is_text)  # (longest, characters)
            place = op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(found, end=1)), 1), [1])
            inside = op.Where(op.LessOrEqual(place, more), found, np.int32(0))
            number = op.Max(number, op.ReduceMax(inside, [0], keepdims=0))
        # All of a short grapheme is replaced, or its characters one by one.
        is_whole = op.And(op.Greater(number, np.int32(0)), op.Greater(more, 0))
        second, third = (
            shift(op, is_whole, 1, False),
            op.And(shift(op, is_joined, 1, False), shift(op, is_whole, 2, False)),
        )
        is_dropped = op.And(is_joined, op.Or(second, third))
        lengths = np.array([len(text) for text in texts])
        item, within = spread(op, op.Where(is_dropped, 0, op.Gather(lengths, number)))
        number, codes = op.Gather(number, item), op.Gather(codes, item)
        letters = np.array([ord(letter) for text in texts for letter in text], np.int32)
        letter = op.Gather(letters, op.Add(op.Gather(np.cumsum(lengths) - lengths, number), within))
        codes = op.Where(op.Equal(number, np.int32(0)), codes, letter)
        return codes, op.Gather(is_text, item), op.Gather(rows, item)


def find_graphemes(op: GraphBuilder, codes: str, is_text: str) -> tuple[str, str]:
    """Return which characters are in the grapheme of the one before, and the number of those that follow the first
    character of a short grapheme, int64; 0 for all other characters.

    Where Unicode joins characters for other reasons (Hangul, flags, emoji, conjuncts), graphemes are not short.
    """
    joins = op.Where(is_text, look_up(op, list_joins(), codes), np.uint8(IS_CONTROL))
    before = shift(op, joins, 1, np.uint8(IS_CONTROL))
    is_joined = op.Or(has_flag(op, joins, EXTENDS), has_flag(op, before, PREPENDS))
    is_joined = op.And(is_joined, op.Not(has_flag(op, op.BitwiseOr(joins, before), IS_CONTROL)))
    size = total = count_bytes(op, codes)
    # A further character of a grapheme has two bytes at least.
    second = shift(op, is_joined, -1, False)
    third = op.And(second, shift(op, is_joined, -2, False))
    fourth = op.And(third, shift(op, is_joined, -3, False))
    more = op.Add(cast_to_int(op, second), cast_to_int(op, third))
    for by, is_inside in enumerate((second, third), start=1):
        total = op.Add(total, op.Where(is_inside, shift(op, size, -by, 0), 0))
    is_short = op.And(op.LessOrEqual(total, LONGEST_GRAPHEME), op.Not(op.Or(is_joined, fourth)))
    return is_joined, op.Where(is_short, more, 0)


def count_bytes(op: GraphBuilder, codes: str) -> str:
    """Return the number of bytes of each character in UTF-8, int64."""
    limits = np.array([0, 0x80, 0x800, 0x10000], np.int32)
    return op.ReduceSum(cast_to_int(op, op.GreaterOrEqual(op.Unsqueeze(codes, [-1]), limits)), [-1], keepdims=0)
