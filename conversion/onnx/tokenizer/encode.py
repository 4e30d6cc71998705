"""Encode texts as token ids with operators of every ONNX Runtime.

`encode_texts` processes all characters of all texts as one flat tensor. A line feed after each text marks its end and
becomes `</s>`.

    find_code_points        characters -> Unicode code points
    clean_characters        as `clean_text`
    mark_symbols            the characters of a symbol -> one character
    encode_bytes            characters -> ids of a byte-level BPE; see encode_bytes.py
    encode_pieces           characters -> ids of a unigram model; see encode_pieces.py
    batch_rows              flat tensor -> a padded row for each text

No ONNX operator returns the code point of a character. Two operators of ONNX Runtime help: `Tokenizer` splits strings
into characters, and `MurmurHash3` hashes them to 32-bit integers. For up to four bytes of known number the hash is a
bijection, so it can be inverted. The number of bytes is unknown, but two hashes with different seeds agree on exactly
one number for each character.
"""

from typing import Any

import numpy as np
from onnx import TensorProto

from ..graph_builder import (
    TO_THE_END,
    GraphBuilder,
    batch_rows,
    cast_to_int,
    find_ends,
    has_flag,
    look_up,
    nearest_values,
    select,
    shift,
    tensor_type,
)
from .bpe import ByteLevelBPE
from .characters import IS_BLANK, IS_INVISIBLE, IS_JOINED, IS_JOINER, IS_WHITE_SPACE, IS_WORD, list_flags
from .encode_bytes import convert_to_lower_case, encode_bytes
from .encode_pieces import encode_pieces
from .source import END_OF_TEXT, FIRST_SYMBOL, SourceTokenizer
from .trie import build_trie
from .unigram import Unigram


def encode_texts(op: GraphBuilder, texts: str, tokenizer: SourceTokenizer, pad: int) -> tuple[str, str, str]:
    """Tokenize strings (batch,).

    Return input_ids and attention_mask, (batch, source), and whether each text has no letter or digit.
    """
    ended = op.StringConcat(texts, END_OF_TEXT)
    characters = op.Tokenizer(
        ended, domain="com.microsoft", separators=[""], mark=0, mincharnum=1, pad_value=""
    )  # (batch, longest)
    exists = op.Not(op.Equal(characters, b""))
    # The last character of a row is the end of its text.
    is_text = op.And(exists, op.Slice(op.Pad(exists, [0, 0, 0, 1]), [1], TO_THE_END, [1]))
    codes = find_code_points(op, characters)
    flags = look_up(op, list_flags(tokenizer.clean), codes)
    is_word = op.And(is_text, has_flag(op, flags, IS_WORD))
    is_blank = op.Not(op.Cast(op.ReduceMax(cast_to_int(op, is_word), [1], keepdims=0), to=TensorProto.BOOL))
    rows = op.Expand(op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(texts)), 1), [1]), op.Shape(codes))

    # Flatten. The tensor is never empty, because it includes the ends of texts.
    codes, is_text, rows, flags = (select(op, values, exists) for values in (codes, is_text, rows, flags))
    codes, is_text, rows = clean_characters(op, codes, is_text, rows, flags)
    if isinstance(tokenizer, ByteLevelBPE) and tokenizer.lowercase:
        codes, is_text, rows = convert_to_lower_case(op, codes, is_text, rows)
    if tokenizer.symbols:
        codes, is_text, rows = mark_symbols(op, codes, is_text, rows, tokenizer)
    if isinstance(tokenizer, ByteLevelBPE):
        ids, rows = encode_bytes(op, codes, is_text, rows, tokenizer)
    else:
        assert isinstance(tokenizer, Unigram)
        ids, rows = encode_pieces(op, codes, is_text, rows, tokenizer)
    ids, mask = batch_rows(op, ids, rows, op.Shape(texts), pad)
    return ids, mask, is_blank


def find_code_points(op: GraphBuilder, characters: str) -> str:
    """Return the code points of strings of one character each, int32; an empty string gives any number.

    ONNX has no operator for this. Two hashes of a character with different seeds are inverted for each possible length;
    the length for which both give the same bytes, and a lead byte of UTF-8 that fits, is the right one.
    """
    candidates = invert_hashes(op, characters)
    first, second = op.Gather(candidates, 0, axis=0), op.Gather(candidates, 1, axis=0)  # (lengths, characters)
    payload_mask = np.array([0x0000007F, 0x00003F1F, 0x003F3F0F, 0x3F3F3F07], np.uint32).reshape(4, 1)
    lead_bits = np.array([0x00000000, 0x000080C0, 0x008080E0, 0x808080F0], np.uint32).reshape(4, 1)
    matches = op.And(op.Equal(first, second), op.Equal(op.BitwiseAnd(first, ~payload_mask), lead_bits))
    bits = op.BitwiseAnd(op.Mul(first, op.Cast(matches, to=TensorProto.UINT32)), payload_mask)
    number = op.Mul(op.BitwiseAnd(bits, np.uint32(255)), np.array([[1], [64], [64**2], [64**3]], np.uint32))
    for byte, factors in ((1, [0, 1, 64, 64**2]), (2, [0, 0, 1, 64]), (3, [0, 0, 0, 1])):
        six_bits = op.BitwiseAnd(op.BitShift(bits, np.uint32(8 * byte), direction="RIGHT"), np.uint32(63))
        number = op.Add(number, op.Mul(six_bits, np.array(factors, np.uint32).reshape(4, 1)))
    numbers = op.ReduceSum(op.Cast(number, to=TensorProto.INT32), [0], keepdims=0)
    return op.Reshape(numbers, op.Shape(characters))


def invert_hashes(op: GraphBuilder, characters: str) -> str:
    """Invert MurmurHash3_x86_32 (Austin Appleby, public domain) of each character, for two seeds and four lengths.

    Return the bytes of the characters, (seeds, lengths, characters), uint32, the first byte lowest.
    """
    flat = op.Reshape(characters, [-1])
    seeds = (0, 1)
    hashes = [
        op.Unsqueeze(op.MurmurHash3(flat, domain="com.microsoft", positive=1, seed=seed), [0, 1]) for seed in seeds
    ]
    hash = op.Concat(*hashes, axis=0)  # (seeds, 1, characters)

    def xor_shift(value: str, *distances: int) -> str:
        for right in [op.BitShift(value, np.uint32(by), direction="RIGHT") for by in distances]:
            value = op.BitwiseXor(value, right)
        return value

    def times_inverse(value: str, factor: int) -> str:
        return op.Mul(value, np.uint32(pow(factor, -1, 2**32)))

    def rotate_right(value: str, by: int) -> str:
        right = op.BitShift(value, np.uint32(by), direction="RIGHT")
        return op.BitwiseOr(right, op.BitShift(value, np.uint32(32 - by), direction="LEFT"))

    # First the final mix, ...
    hash = times_inverse(xor_shift(hash, 16), 0xC2B2AE35)
    hash = xor_shift(times_inverse(xor_shift(hash, 13, 26), 0x85EBCA6B), 16)
    # ... then, for each length of a character, a tail of one to three bytes or a block of four, ...
    tail = op.BitwiseXor(hash, np.array([1, 2, 3], np.uint32).reshape(1, 3, 1))
    block = op.Sub(op.BitwiseXor(hash, np.uint32(4)), np.uint32(0xE6546B64))
    hash = op.Concat(tail, rotate_right(times_inverse(block, 5), 13), axis=1)  # (seeds, lengths, characters)
    hash = op.BitwiseXor(hash, np.array(seeds, np.uint32).reshape(-1, 1, 1))
    # ... and the mix of the block or tail.
    return times_inverse(rotate_right(times_inverse(hash, 0x1B873593), 15), 0xCC9E2D51)


def clean_characters(op: GraphBuilder, codes: str, is_text: str, rows: str, flags: str) -> tuple[str, str, str]:
    """Return the first three vectors for cleaned texts: see `clean_text`.

    flags: those of `list_flags`
    """
    vectors = (codes, is_text, rows, flags)

    def drop(dropped: str) -> tuple[Any, ...]:
        return tuple(select(op, values, op.Not(dropped)) for values in vectors)

    vectors = codes, is_text, rows, flags = drop(op.And(is_text, has_flag(op, flags, IS_INVISIBLE)))
    is_kept = has_flag(op, shift(op, flags, 1, np.uint8(0)), IS_JOINED)
    codes, is_text, rows, flags = drop(op.And(has_flag(op, flags, IS_JOINER), op.Not(is_kept)))
    is_space = op.And(is_text, has_flag(op, flags, IS_WHITE_SPACE))
    is_blank = op.And(is_text, has_flag(op, flags, IS_BLANK))
    vectors = (op.Where(is_space, np.int32(ord(" ")), codes), is_text, rows)
    after_space = op.And(is_space, shift(op, is_space, 1, False))
    return drop(op.Or(after_space, find_ends(op, is_blank, is_text)))


def mark_symbols(
    op: GraphBuilder, codes: str, is_text: str, rows: str, tokenizer: SourceTokenizer
) -> tuple[str, str, str]:
    """Return the three vectors with one character per symbol, which is not text and has the code FIRST_SYMBOL + n.

    Of symbols that overlap in a text, the leftmost is found, and of those that begin together the longest.
    """
    trie = build_trie((symbol, number) for number, symbol in enumerate(tokenizer.symbols))
    longest = max(map(len, tokenizer.symbols))
    length, number = trie.find_longest(op, codes, is_text)
    # Until no two overlap: a symbol that no other reaches stays, and those that it reaches are dropped.
    body, left = GraphBuilder("text.symbols.", op), "text.symbols.length"
    first = body.Where(is_reached(body, left, longest), 0, left)
    kept = body.Where(is_reached(body, first, longest), 0, left)
    condition = body.Not(body.Equal(body.ReduceSum(kept, keepdims=0), body.ReduceSum(left, keepdims=0)))
    (length,) = op.loop(body, {left: length}, [tensor_type(TensorProto.INT64)], condition, [kept])
    begins, keep = op.Greater(length, 0), op.Not(is_reached(op, length, longest))
    marks = op.Add(number, np.int32(FIRST_SYMBOL))
    codes, is_text = op.Where(begins, marks, codes), op.And(is_text, op.Not(begins))
    codes, is_text, rows = (select(op, values, keep) for values in (codes, is_text, rows))
    if tokenizer.strips_after_symbols:
        is_blank = op.And(is_text, has_flag(op, look_up(op, list_flags(tokenizer.clean), codes), IS_BLANK))
        is_mark = op.And(op.Not(is_text), op.GreaterOrEqual(codes, np.int32(FIRST_SYMBOL)))
        after_mark, _ = nearest_values(op, is_mark, is_blank)
        keep = op.Not(op.And(is_blank, after_mark))
        codes, is_text, rows = (select(op, values, keep) for values in (codes, is_text, rows))
    return codes, is_text, rows


def is_reached(op: GraphBuilder, lengths: str, longest: int) -> str:
    """Return which characters belong to a symbol that begins before them, bool (characters,)."""
    reached = op.Less(lengths, 0)  # none
    for by in range(1, longest):
        reached = op.Or(reached, op.Greater(shift(op, lengths, by, 0), by))
    return reached
