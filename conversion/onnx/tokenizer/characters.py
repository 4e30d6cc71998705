"""Tables of all characters. Those of the tokenizers library come from it at export, so that the graph classifies
characters as it does.
"""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from tokenizers import Regex, normalizers, pre_tokenizers

from vaswani_transformer.sentences_vaswani_transformer import (
    INVISIBLE,
    JOINED,
    JOINERS,
    WHITE_SPACE,
    list_characters,
)

from ..graph_builder import BLOCK

UNICODE = 0x110000  # code points
OTHER, LETTER, NUMBER, SPACE, SINGLE_DIGIT = range(5)
# Flags of characters: letters and digits, without which a text is copied; what cleaning does with it; white space.
IS_WORD, IS_INVISIBLE, IS_JOINER, IS_JOINED, IS_WHITE_SPACE, IS_BLANK = (1 << bit for bit in range(6))
# Flags of characters: whether a grapheme goes on with it, goes on after it, and always ends before and after it.
EXTENDS, PREPENDS, IS_CONTROL = (1 << bit for bit in range(3))


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
def list_flags(clean: Callable[[str], str]) -> np.ndarray:
    """Return what cleaning a text needs to know of each character, a sum of the flags IS_..., (UNICODE,).

    clean: `clean_text`, or a function that leaves some characters of its sets as they are
    """
    flags = np.array([IS_WORD * chr(code).isalnum() for code in range(UNICODE)], np.uint8)
    for flag, inside in {IS_JOINED: JOINED, IS_BLANK: WHITE_SPACE}.items():
        flags[[ord(character) for character in list_characters(inside)]] += flag
    for flag, inside, cleaned in (
        (IS_INVISIBLE, INVISIBLE, "ab"),
        (IS_JOINER, JOINERS, "ab"),
        (IS_WHITE_SPACE, WHITE_SPACE, "a b"),
    ):
        found = [letter for letter in list_characters(inside) if clean(f"a{letter}{letter}b") == cleaned]
        flags[[ord(letter) for letter in found]] += flag
    return flags


def list_unknown(pattern: str) -> np.ndarray:
    """Return which characters match a pattern of single characters, bool (UNICODE,)."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    unknown = np.ones(UNICODE, bool)
    for first, block in iterate_unicode():
        for _, (start, stop) in split.pre_tokenize_str(block):
            unknown[first + start : first + stop] = False
    return unknown


@cache
def list_joins() -> np.ndarray:
    """Return how each character joins its neighbours to a grapheme, a sum of flags, uint8 (UNICODE,).

    The library looks up whole graphemes of less than six bytes, so one of the following texts tells how it divides it:
    its result has one character less if the mark at the end was in the same grapheme as the letter that is replaced.
    """
    mark, wide = "\u0301", "\u0344"
    joins = np.zeros(UNICODE, np.uint8)
    for flag, before, after, replaced, length in (
        (EXTENDS, "a", "", "a", 1),
        (PREPENDS, "", "a" + mark, "a", 3),
        (IS_CONTROL, "", wide + mark, wide, 2),
    ):
        normalize = normalizers.Precompiled(make_charsmap(replaced)).normalize_str
        for first, block in iterate_unicode():
            if first == 0:
                results = [normalize(before + letter + after) for letter in block]
            else:  # graphemes end at a control character
                results = normalize("\x01".join(before + letter + after for letter in block)).split("\x01")
            joins[first : first + BLOCK] += np.array([flag * (len(result) == length) for result in results], np.uint8)
    return joins


def make_charsmap(letter: str) -> bytes:
    """Return a SentencePiece charsmap that replaces this character by `b`, see `read_charsmap`."""
    units = np.zeros(256 * 8, "<u4")
    node = 256
    units[0] = node << 10
    *others, last = letter.encode()
    for number, byte in enumerate((*others, last)):
        following = 256 * (number + 2)
        units[node ^ byte] = byte | ((number == len(others)) << 8) | ((node ^ byte ^ following) << 10)
        node = following
    return np.uint32(units.nbytes).tobytes() + units.tobytes() + b"b\0"


def iterate_unicode() -> Iterator[tuple[int, str]]:
    """Yield the first code point and the characters of each block, except for surrogates."""
    for first in range(0, UNICODE, BLOCK):
        if not 0xD800 <= first < 0xE000:
            yield first, "".join(map(chr, range(first, first + BLOCK)))
