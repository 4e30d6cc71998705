"""Encode characters as the ids of a byte-level BPE, as `tokenization.py` trains it.

convert_to_lower_case   if the tokenizer does so
find_word_starts        the beginnings of words; no merge crosses them
find_byte_symbols       characters -> the ids of their bytes
merge_pairs             ids -> fewer ids
"""

import numpy as np
from onnx import TensorProto

from ..graph_builder import GraphBuilder, cast_to_int, look_up, repeat, select, shift, tensor_type
from .bpe import SPELLING, ByteLevelBPE
from .characters import SINGLE_DIGIT, SPACE, classify_characters, list_lower_case
from .charsmap import count_bytes

BOUNDARY = SINGLE_DIGIT  # the ends of texts and symbols, too, are words by themselves


def encode_bytes(op: GraphBuilder, codes: str, is_text: str, rows: str, bpe: ByteLevelBPE) -> tuple[str, str]:
    """Return the ids of all texts, and their rows.  codes, is_text, rows: (characters,)"""
    classes = op.Where(is_text, look_up(op, classify_characters(bpe.split_digits), codes), np.uint8(BOUNDARY))
    words = op.Sub(op.CumSum(cast_to_int(op, find_word_starts(op, codes, classes)), 0), 1)
    symbols, is_byte = find_byte_symbols(op, codes, is_text, bpe)
    words, rows = (repeat(op, values, is_byte) for values in (words, rows))
    return merge_pairs(op, select(op, symbols, is_byte), words, rows, bpe)


def convert_to_lower_case(op: GraphBuilder, codes: str, is_text: str, rows: str) -> tuple[str, str, str]:
    """Return the three vectors for lower-case letters; a character may become two."""
    distance, second = (look_up(op, table, codes) for table in list_lower_case())
    both = op.Concat(op.Unsqueeze(op.Add(codes, distance), [1]), op.Unsqueeze(second, [1]), axis=1)
    exists = op.Or(op.Greater(both, np.int32(0)), np.array([[True, False]]))
    return select(op, both, exists), repeat(op, is_text, exists), repeat(op, rows, exists)


def find_word_starts(op: GraphBuilder, codes: str, classes: str) -> str:
    """Return at which characters a match of ByteLevel's expression begins, bool (characters,):

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
    """

    def is_class(values: str, number: int) -> str:
        return op.Equal(values, np.uint8(number))

    def is_character(values: str, characters: str) -> str:
        found = op.Equal(values, np.int32(ord(characters[0])))
        for character in characters[1:]:
            found = op.Or(found, op.Equal(values, np.int32(ord(character))))
        return found

    before, after = shift(op, classes, 1, np.uint8(BOUNDARY)), shift(op, classes, -1, np.uint8(BOUNDARY))
    is_space, is_boundary = is_class(classes, SPACE), is_class(classes, BOUNDARY)
    # Runs of one class; each BOUNDARY is a run by itself.
    starts = op.Or(op.Not(op.Equal(classes, before)), is_boundary)
    # U+0020 belongs to the run after it.
    after_blank = is_character(shift(op, codes, 1, np.int32(0)), " ")
    after_blank = op.And(after_blank, is_class(before, SPACE))
    starts = op.And(starts, op.Not(op.And(after_blank, op.Not(op.Or(is_space, is_boundary)))))
    # The last of several spaces before a word begins a match: (?!\S).
    word_follows = op.Not(op.Or(is_class(after, SPACE), is_class(after, BOUNDARY)))
    starts = op.Or(starts, op.And(op.And(is_space, is_class(before, SPACE)), word_follows))
    # Contractions such as 's, if a match begins at the apostrophe.
    second, third = shift(op, codes, -1, np.int32(0)), shift(op, codes, -2, np.int32(0))
    apostrophe = op.And(op.And(is_character(codes, "'"), starts), op.Not(is_boundary))
    short = op.And(apostrophe, is_character(second, "stmd"))
    with_e = op.And(is_character(second, "rv"), is_character(third, "e"))
    long = op.And(apostrophe, op.Or(with_e, op.And(is_character(second, "l"), is_character(third, "l"))))
    starts = op.And(starts, op.Not(shift(op, op.Or(short, long), 1, False)))
    return op.Or(op.Or(starts, shift(op, short, 2, False)), shift(op, long, 3, False))


def find_byte_symbols(op: GraphBuilder, codes: str, is_text: str, bpe: ByteLevelBPE) -> tuple[str, str]:
    """Return the ids of the UTF-8 bytes of each character, (characters, 4), and which of the four exist.

    An end of text or a symbol has one byte, with its own id.
    """
    own = op.Gather(bpe.list_ids_of_codes(), op.Where(is_text, np.int32(0), codes))
    code = op.Unsqueeze(op.Where(is_text, codes, np.int32(0)), [1])
    more = op.Cast(op.Sub(count_bytes(op, code), 1), to=TensorProto.INT32)
    index = np.arange(4, dtype=np.int32)
    is_byte = op.LessOrEqual(index, more)
    # The first byte has a length prefix and the highest bits, later bytes have six bits each.
    distance = op.Cast(op.Mul(op.Max(op.Sub(more, index), np.int32(0)), np.int32(6)), to=TensorProto.UINT32)
    bits = op.BitShift(op.Cast(code, to=TensorProto.UINT32), distance, direction="RIGHT")
    bits = op.Cast(bits, to=TensorProto.INT32)
    lead = op.Add(bits, op.Gather(np.array([0, 0xC0, 0xE0, 0xF0], np.int32), more))
    bytes = op.Where(index == 0, lead, op.Add(op.BitwiseAnd(bits, np.int32(63)), np.int32(0x80)))
    ids = np.array([bpe.vocabulary[SPELLING[byte]] for byte in range(256)])
    symbols = op.Gather(ids, op.BitwiseAnd(bytes, np.int32(255)))
    return op.Where(op.Unsqueeze(is_text, [1]), symbols, op.Unsqueeze(own, [1])), is_byte


def merge_pairs(op: GraphBuilder, symbols: str, words: str, rows: str, bpe: ByteLevelBPE) -> tuple[str, str]:
    """Merge the pair of lowest rank in each word, the leftmost of equal pairs, until no pair is left.

    If no merge can produce a pair of lower rank, one iteration merges all equal pairs of a word.
    """
    if not bpe.merges:
        return symbols, rows
    ranks, products = bpe.build_ranks(), np.array([bpe.vocabulary[left + right] for left, right in bpe.merges])
    never = np.int64(2**62)
    empty = op.Expand(never, op.Add(op.Gather(words, [-1]), 1))  # (words,)
    body = GraphBuilder("text.merge.", op)
    names = [f"text.merge.{name}" for name in ("symbols", "words", "rows")]
    current_symbols, current_words, current_rows = names
    next_word = shift(body, current_words, -1, -1)
    left = body.Cast(current_symbols, to=TensorProto.INT32)
    rank, exists = ranks.look_up(body, left, shift(body, left, -1, np.int32(0)))
    is_pair = body.And(exists, body.Equal(current_words, next_word))
    rank = body.Cast(rank, to=TensorProto.INT64)
    positions = body.Range(0, body.Squeeze(body.Shape(current_symbols)), 1)
    # If a merge could produce a pair of lower rank, only the leftmost pair is merged.
    order = rank if bpe.is_in_order() else body.Add(body.Mul(rank, body.Shape(current_symbols)), positions)
    key = body.Where(is_pair, order, never)
    best = body.ScatterElements(empty, current_words, key, reduction="min")
    chosen = body.And(is_pair, body.Equal(key, body.Gather(best, current_words)))
    # In a run of equal symbols, merge every other pair from the left.
    begins = body.And(chosen, body.Not(shift(body, chosen, 1, False)))
    run = body.CumSum(cast_to_int(body, begins), 0)
    run_start = body.Gather(body.Concat([0], body.Compress(positions, begins), axis=0), run)
    is_even = body.Equal(body.BitwiseAnd(body.Sub(positions, run_start), 1), 0)
    chosen = body.And(chosen, is_even)
    merged = body.Where(chosen, body.Gather(products, body.Where(is_pair, rank, 0)), current_symbols)
    keep = body.Not(shift(body, chosen, 1, False))
    after = [body.Compress(values, keep) for values in (merged, current_words, current_rows)]
    condition = body.Cast(body.ReduceMax(cast_to_int(body, chosen), keepdims=0), to=TensorProto.BOOL)
    initial_values = dict(zip(names, (symbols, words, rows), strict=True))
    ids, _, rows = op.loop(body, initial_values, [tensor_type(TensorProto.INT64)] * 3, condition, after)
    return ids, rows
