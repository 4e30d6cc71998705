"""Characters by operators that every ONNX Runtime has: their code points, and properties of code points.

ONNX has no operator that gives the code point of a character. ONNX Runtime has two that help: `Tokenizer` divides
strings into characters, and `MurmurHash3` makes numbers of them. For up to four bytes of known count that hash is a
bijection, so it can be inverted. The count is unknown, but two hashes agree on exactly one count for each character.

All tables but `visible` are read from the tokenizers library at export, so that the graph classifies characters in the
same way.
"""

from functools import cache

import numpy as np
from onnx import TensorProto
from tokenizers import Regex, normalizers, pre_tokenizers

from .operators import Operators

UNICODE = "".join(chr(code) if not 0xD800 <= code < 0xE000 else "\0" for code in range(0x110000))  # no surrogates
BLOCK = 256
OTHER, LETTER, NUMBER, SPACE, ALONE = range(5)


def codes_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.int32)


@cache
def character_classes(split_digits: bool) -> np.ndarray:
    """Return OTHER, LETTER, NUMBER or SPACE, as in ByteLevel's expression, for each code point; ALONE for digits that
    are split."""
    classes = np.full(len(UNICODE), OTHER, np.uint8)
    for kind, expression in {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s"}.items():
        removed = normalizers.Replace(Regex(expression), "\0").normalize_str(UNICODE)
        classes[codes_of(removed) != codes_of(UNICODE)] = kind
    if split_digits:  # U+0000 is no digit, so every other piece is a run of digits
        for _, (start, end) in pre_tokenizers.Digits(individual_digits=False).pre_tokenize_str(UNICODE)[1::2]:
            classes[start:end] = ALONE
    return classes


@cache
def lower_case() -> tuple[np.ndarray, np.ndarray]:
    """Return the distance of each code point to its lower-case letter, and the code point that follows that letter, 0
    for none. Only U+0130 has two: an i and a dot."""
    lowered = list(map(normalizers.Lowercase().normalize_str, UNICODE))
    assert max(map(len, lowered)) <= 2
    first, second = "".join(letters[0] for letters in lowered), "".join(letters[1:] or "\0" for letters in lowered)
    return codes_of(first) - codes_of(UNICODE), codes_of(second)


@cache
def visible() -> np.ndarray:
    """Return whether each code point is not white space by `str.isspace`, as where the Translator skips empty texts."""
    return np.array([not character.isspace() for character in UNICODE])


def looked_up(op: Operators, table: np.ndarray, codes: str) -> str:
    """Return table[codes]. Equal blocks of the table are stored once."""
    blocks: dict[bytes, int] = {}
    rows = table.reshape(-1, BLOCK)
    starts = [blocks.setdefault(row.tobytes(), len(blocks) * BLOCK) for row in rows]
    start = op.Gather(np.array(starts, np.int32), op.Div(codes, np.int32(BLOCK)))
    stored = np.frombuffer(b"".join(blocks), table.dtype)
    return op.Gather(stored, op.Add(start, op.BitwiseAnd(codes, np.int32(BLOCK - 1))))


def code_points(op: Operators, characters: str) -> str:
    """Strings of one character each -> int32 in the same shape; an empty string gives any number"""
    flat = op.Reshape(characters, [-1])
    seeds = (0, 1)
    hashes = [
        op.Unsqueeze(op.MurmurHash3(flat, domain="com.microsoft", positive=1, seed=seed), [0, 1]) for seed in seeds
    ]
    hash = op.Concat(*hashes, axis=0)  # (seeds, 1, characters)

    def xor_shifted(value: str, *shifts: int) -> str:
        for shifted in [op.BitShift(value, np.uint32(shift), direction="RIGHT") for shift in shifts]:
            value = op.BitwiseXor(value, shifted)
        return value

    def times_inverse(value: str, factor: int) -> str:
        return op.Mul(value, np.uint32(pow(factor, -1, 2**32)))

    def rotated_right(value: str, by: int) -> str:
        right = op.BitShift(value, np.uint32(by), direction="RIGHT")
        return op.BitwiseOr(right, op.BitShift(value, np.uint32(32 - by), direction="LEFT"))

    # MurmurHash3_x86_32 (Austin Appleby, public domain) inverted: the final mix, ...
    hash = times_inverse(xor_shifted(hash, 16), 0xC2B2AE35)
    hash = xor_shifted(times_inverse(xor_shifted(hash, 13, 26), 0x85EBCA6B), 16)
    # ... for each length of a character, a tail of one to three bytes or a block of four, ...
    tail = op.BitwiseXor(hash, np.array([1, 2, 3], np.uint32).reshape(1, 3, 1))
    block = op.Sub(op.BitwiseXor(hash, np.uint32(4)), np.uint32(0xE6546B64))
    hash = op.Concat(tail, rotated_right(times_inverse(block, 5), 13), axis=1)  # (seeds, lengths, characters)
    hash = op.BitwiseXor(hash, np.array(seeds, np.uint32).reshape(-1, 1, 1))
    # ... the mix of the block or the tail; the result is the bytes, the first one lowest.
    bytes = times_inverse(rotated_right(times_inverse(hash, 0x1B873593), 15), 0xCC9E2D51)
    first, second = op.Gather(bytes, 0, axis=0), op.Gather(bytes, 1, axis=0)  # (lengths, characters)
    free = np.array([0x0000007F, 0x00003F1F, 0x003F3F0F, 0x3F3F3F07], np.uint32).reshape(4, 1)
    form = np.array([0x00000000, 0x000080C0, 0x008080E0, 0x808080F0], np.uint32).reshape(4, 1)
    is_it = op.And(op.Equal(first, second), op.Equal(op.BitwiseAnd(first, ~free), form))
    # Each byte's free bits, times 64 for each byte that follows it in a character of this length.
    shifts = np.array([0, 8, 16, 24], np.uint32).reshape(4, 1, 1)
    bits = op.BitwiseAnd(op.BitShift(op.BitwiseAnd(first, free), shifts, direction="RIGHT"), np.uint32(255))
    factors = np.array([[1, 64, 64**2, 64**3], [0, 1, 64, 64**2], [0, 0, 1, 64], [0, 0, 0, 1]], np.int32)[:, :, None]
    numbers = op.Where(is_it, op.Mul(op.Cast(bits, to=TensorProto.INT32), factors), np.int32(0))
    return op.Reshape(op.ReduceSum(numbers, [0, 1], keepdims=0), op.Shape(characters))
