"""Texts -> padded token ids by operators that every ONNX Runtime has: the byte-level BPE of `tokenization.py`.

Each step works on all characters of all texts at once, in one row, with a mark after each text: characters, their code
points, the beginnings of words, bytes, merges. In the end the marks become `</s>`.
"""

from typing import Any

import numpy as np
from onnx import TensorProto

from .byte_level_bpe import SPELLING, ByteLevelBPE
from .characters import ALONE, SPACE, character_classes, code_points, looked_up, lower_case, visible
from .operators import Operators, tensor_type

MARK = b"\n"  # after each text
END = [2**31]  # of a slice
NEVER = 2**31  # the rank of two tokens that are no pair


def token_ids(op: Operators, texts: str, bpe: ByteLevelBPE, pad: int) -> tuple[str, str, str]:
    """texts: strings (batch,);  returns input_ids, attention_mask, (batch, source), and whether each is only space"""
    marked = op.StringConcat(texts, MARK)
    characters = op.Tokenizer(
        marked, domain="com.microsoft", separators=[""], mark=0, mincharnum=1, pad_value=""
    )  # (batch, longest)
    exists = op.Not(op.Equal(characters, b""))
    # The last character of a row is the mark.
    is_text = op.And(exists, op.Slice(op.Pad(exists, [0, 0, 0, 1]), [1], END, [1]))
    codes = code_points(op, characters)
    is_visible = op.And(is_text, looked_up(op, visible(), codes))
    only_space = op.Not(op.ReduceMax(is_visible, [1], keepdims=0))

    # From here on all characters are in one row, which is never empty since it includes the marks.
    codes, is_text, rows = selected(op, codes, exists), selected(op, is_text, exists), row_numbers(op, exists)
    if bpe.lowercase:
        codes, is_text, rows = lowered(op, codes, is_text, rows)
    classes = op.Where(is_text, looked_up(op, character_classes(bpe.split_digits), codes), np.uint8(ALONE))
    words = op.Sub(op.CumSum(as_int(op, word_starts(op, codes, classes)), 0), 1)
    symbols, is_byte = symbols_of_bytes(op, codes, is_text, bpe)
    words, rows = (repeated(op, values, is_byte) for values in (words, rows))
    ids, rows = merged(op, selected(op, symbols, is_byte), words, rows, bpe)
    ids, mask = padded(op, ids, rows, op.Shape(texts), pad)
    return ids, mask, only_space


def selected(op: Operators, values: str, flags: str) -> str:
    """Return the values where flags, of the same shape, are true: (n,)"""
    return op.Compress(values, op.Reshape(flags, [-1]))


def row_numbers(op: Operators, flags: str) -> str:
    """Return the place along the first axis of each flag that is true: (n,)"""
    return op.Gather(op.NonZero(flags), 0)


def repeated(op: Operators, values: str, flags: str) -> str:
    """values: (n,), flags: (n, k);  returns each value as often as its flags are true"""
    return op.Gather(values, row_numbers(op, flags))


def lowered(op: Operators, codes: str, is_text: str, rows: str) -> tuple[str, str, str]:
    """Return the three rows with lower-case letters, of which one character may have two."""
    distance, second = (looked_up(op, table, codes) for table in lower_case())
    both = op.Concat(op.Unsqueeze(op.Add(codes, distance), [1]), op.Unsqueeze(second, [1]), axis=1)
    exists = op.Or(op.Greater(both, np.int32(0)), np.array([[True, False]]))
    return selected(op, both, exists), repeated(op, is_text, exists), repeated(op, rows, exists)


def word_starts(op: Operators, codes: str, classes: str) -> str:
    """Return where a match of ByteLevel's expression begins, bool (characters,):

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
    """

    def is_class(values: str, kind: int) -> str:
        return op.Equal(values, np.uint8(kind))

    def is_character(values: str, characters: str) -> str:
        found = op.Equal(values, np.int32(ord(characters[0])))
        for character in characters[1:]:
            found = op.Or(found, op.Equal(values, np.int32(ord(character))))
        return found

    before, after = shifted(op, classes, 1, np.uint8(ALONE)), shifted(op, classes, -1, np.uint8(ALONE))
    is_space, is_alone = is_class(classes, SPACE), is_class(classes, ALONE)
    # Runs of one class; characters that are ALONE are runs by themselves.
    starts = op.Or(op.Not(op.Equal(classes, before)), is_alone)
    # A blank belongs to the run after it.
    after_blank = is_character(shifted(op, codes, 1, np.int32(0)), " ")
    after_blank = op.And(after_blank, is_class(before, SPACE))
    starts = op.And(starts, op.Not(op.And(after_blank, op.Not(op.Or(is_space, is_alone)))))
    # The last one of several spaces before a word is separate: (?!\S).
    word_follows = op.Not(op.Or(is_class(after, SPACE), is_class(after, ALONE)))
    starts = op.Or(starts, op.And(op.And(is_space, is_class(before, SPACE)), word_follows))
    # 's and the other contractions, where a match begins.
    second, third = shifted(op, codes, -1, np.int32(0)), shifted(op, codes, -2, np.int32(0))
    apostrophe = op.And(op.And(is_character(codes, "'"), starts), op.Not(is_alone))
    short = op.And(apostrophe, is_character(second, "stmd"))
    with_e = op.And(is_character(second, "rv"), is_character(third, "e"))
    long = op.And(apostrophe, op.Or(with_e, op.And(is_character(second, "l"), is_character(third, "l"))))
    starts = op.And(starts, op.Not(shifted(op, op.Or(short, long), 1, False)))
    return op.Or(op.Or(starts, shifted(op, short, 2, False)), shifted(op, long, 3, False))


def shifted(op: Operators, values: str, by: int, filler: Any) -> str:
    """(n,) -> (n,), the value `by` places before each, or after if `by` is negative"""
    padding = [filler] * abs(by)
    if by > 0:
        return op.Slice(op.Concat(padding, values, axis=0), [0], [-by], [0])
    return op.Slice(op.Concat(values, padding, axis=0), [-by], END, [0])


def symbols_of_bytes(op: Operators, codes: str, is_text: str, bpe: ByteLevelBPE) -> tuple[str, str]:
    """Return the ids of the characters' bytes in UTF-8, (characters, 4), and which of the four exist.

    A mark has one byte, whose id is that of `</s>`.
    """
    code = op.Unsqueeze(codes, [1])
    limits = np.array([0x80, 0x800, 0x10000], np.int32)
    more = op.ReduceSum(op.Cast(op.GreaterOrEqual(code, limits), to=TensorProto.INT32), [1], keepdims=1)
    place = np.arange(4, dtype=np.int32)
    is_byte = op.LessOrEqual(place, more)
    # The first byte has the highest bits below a length prefix, the others have six each.
    shift = op.Mul(op.Max(op.Sub(more, place), np.int32(0)), np.int32(6))
    bits = op.BitShift(op.Cast(code, to=TensorProto.UINT32), op.Cast(shift, to=TensorProto.UINT32), direction="RIGHT")
    bits = op.Cast(bits, to=TensorProto.INT32)
    lead = op.Add(bits, op.Gather(np.array([0, 0xC0, 0xE0, 0xF0], np.int32), more))
    bytes = op.Where(place == 0, lead, op.Add(op.BitwiseAnd(bits, np.int32(63)), np.int32(0x80)))
    ids = np.array([bpe.vocabulary[SPELLING[byte]] for byte in range(256)])
    symbols = op.Gather(ids, op.BitwiseAnd(bytes, np.int32(255)))
    return op.Where(op.Unsqueeze(is_text, [1]), symbols, bpe.end), is_byte


def merged(op: Operators, symbols: str, words: str, rows: str, bpe: ByteLevelBPE) -> tuple[str, str]:
    """BPE: in each word at once, merge the leftmost pair of the lowest rank, until no pair is left."""
    if not bpe.merges:
        return symbols, rows
    ids, size = bpe.vocabulary, max(*bpe.vocabulary.values(), *bpe.control) + 1
    ranks = {ids[left] * size + ids[right]: rank for rank, (left, right) in enumerate(bpe.merges)}
    products = np.array([ids[left + right] for left, right in bpe.merges])
    none = op.Expand(2**62, op.Add(op.Gather(words, [-1]), 1))  # (words,)
    body = Operators("text.merge.", op)
    names = symbols_now, words_now, rows_now = [f"text.merge.{name}" for name in ("symbols", "words", "rows")]
    rank = body.LabelEncoder(
        body.Add(body.Mul(symbols_now, size), shifted(body, symbols_now, -1, 0)),
        domain="ai.onnx.ml",
        keys_int64s=list(ranks),
        values_int64s=list(ranks.values()),
        default_int64=NEVER,
    )
    rank = body.Where(body.Equal(words_now, shifted(body, words_now, -1, -1)), rank, NEVER)
    count = body.Shape(symbols_now)
    order = body.Add(body.Mul(rank, count), body.Range(0, body.Squeeze(count), 1))
    best = body.ScatterElements(none, words_now, order, reduction="min")
    chosen = body.And(body.Less(rank, NEVER), body.Equal(order, body.Gather(best, words_now)))
    symbols_after = body.Where(chosen, body.Gather(products, body.Where(chosen, rank, 0)), symbols_now)
    stays = body.Not(shifted(body, chosen, 1, False))
    after = [body.Compress(values, stays) for values in (symbols_after, words_now, rows_now)]
    variables = dict(zip(names, (symbols, words, rows), strict=True))
    go_on = body.ReduceMax(chosen, keepdims=0)
    symbols, _, rows = op.loop(body, variables, [tensor_type(TensorProto.INT64)] * 3, go_on, after)
    return symbols, rows


def padded(op: Operators, ids: str, rows: str, batch: str, filler: int) -> tuple[str, str]:
    """Distribute ids to the rows of the batch, padded; returns (batch, longest), and the mask in the same shape."""
    ones = op.Expand(1, op.Shape(ids))
    lengths = op.ScatterElements(op.Expand(0, batch), rows, ones, reduction="add")
    mask = op.Less(op.Range(0, op.ReduceMax(lengths, keepdims=0), 1), op.Unsqueeze(lengths, [1]))
    values = op.ScatterND(op.Expand(filler, op.Shape(mask)), op.Transpose(op.NonZero(mask)), ids)
    return values, as_int(op, mask)


def as_int(op: Operators, flags: str) -> str:
    return op.Cast(flags, to=TensorProto.INT64)
