"""Texts -> padded token ids by operators that every ONNX Runtime has: the byte-level BPE of `tokenization.py`.

Each step of `token_ids` works on all characters of all texts at once, in one row, with a mark after each text that
becomes `</s>` in the end:

    code_points       characters -> numbers
    lower_cased       on request
    word_starts       the beginnings of words, which no merge crosses
    symbols_of_bytes  characters -> the ids of their bytes
    merge_pairs       ids -> fewer ids
    in_batch          one row -> a padded row for each text

ONNX has no operator that gives the code point of a character. ONNX Runtime has two that help: `Tokenizer` divides
strings into characters, and `MurmurHash3` makes numbers of them. For up to four bytes of known count that hash is a
bijection, so it can be inverted. The count is unknown, but two hashes agree on exactly one count for each character.
"""

import numpy as np
from onnx import TensorProto

from ..graph_builder import GraphBuilder, tensor_type
from .bpe import SPELLING, ByteLevelBPE
from .ops import MARK, as_int, in_batch, looked_up, repeated, selected, shifted
from .tables import ALONE, SPACE, character_classes, lower_case, merge_table, python_spaces


def token_ids(op: GraphBuilder, texts: str, bpe: ByteLevelBPE, pad: int) -> tuple[str, str, str]:
    """texts: strings (batch,);  returns input_ids, attention_mask, (batch, source), and whether each is only space"""
    marked = op.StringConcat(texts, MARK)
    characters = op.Tokenizer(
        marked, domain="com.microsoft", separators=[""], mark=0, mincharnum=1, pad_value=""
    )  # (batch, longest)
    exists = op.Not(op.Equal(characters, b""))
    # The last character of a row is the mark.
    is_text = op.And(exists, op.Slice(op.Pad(exists, [0, 0, 0, 1]), [1], [2**31], [1]))
    codes = code_points(op, characters)
    blank = op.Or(op.Not(is_text), op.Cast(looked_up(op, python_spaces(), codes), to=TensorProto.BOOL))
    only_space = op.Not(op.Cast(op.ReduceMax(as_int(op, op.Not(blank)), [1], keepdims=0), to=TensorProto.BOOL))
    rows = op.Expand(op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(texts)), 1), [1]), op.Shape(codes))

    # From here on all characters are in one row, which is never empty since it includes the marks.
    codes, is_text, rows = (selected(op, values, exists) for values in (codes, is_text, rows))
    if bpe.lowercase:
        codes, is_text, rows = lower_cased(op, codes, is_text, rows)
    classes = op.Where(is_text, looked_up(op, character_classes(bpe.split_digits), codes), np.uint8(ALONE))
    words = op.Sub(op.CumSum(as_int(op, word_starts(op, codes, classes)), 0), 1)
    symbols, is_byte = symbols_of_bytes(op, codes, is_text, bpe)
    words, rows = (repeated(op, values, is_byte) for values in (words, rows))
    ids, rows = merge_pairs(op, selected(op, symbols, is_byte), words, rows, bpe)
    ids, mask = in_batch(op, ids, rows, op.Shape(texts), pad)
    return ids, mask, only_space


def code_points(op: GraphBuilder, characters: str) -> str:
    """Strings of one character each -> int32 in the same shape; an empty string gives any number"""
    flat = op.Reshape(characters, [-1])
    seeds = (0, 1)
    hashes = [
        op.Unsqueeze(op.MurmurHash3(flat, domain="com.microsoft", positive=1, seed=seed), [0, 1]) for seed in seeds
    ]
    hash = op.Concat(*hashes, axis=0)  # (seeds, 1, characters)

    def xor_shifted(value: str, *shifts: int) -> str:
        for right in [op.BitShift(value, np.uint32(shift), direction="RIGHT") for shift in shifts]:
            value = op.BitwiseXor(value, right)
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
    bits = op.BitwiseAnd(op.Mul(first, op.Cast(is_it, to=TensorProto.UINT32)), free)
    number = op.Mul(op.BitwiseAnd(bits, np.uint32(255)), np.array([[1], [64], [64**2], [64**3]], np.uint32))
    for byte, factors in ((1, [0, 1, 64, 64**2]), (2, [0, 0, 1, 64]), (3, [0, 0, 0, 1])):
        six = op.BitwiseAnd(op.BitShift(bits, np.uint32(8 * byte), direction="RIGHT"), np.uint32(63))
        number = op.Add(number, op.Mul(six, np.array(factors, np.uint32).reshape(4, 1)))
    numbers = op.ReduceSum(op.Cast(number, to=TensorProto.INT32), [0], keepdims=0)
    return op.Reshape(numbers, op.Shape(characters))


def lower_cased(op: GraphBuilder, codes: str, is_text: str, rows: str) -> tuple[str, str, str]:
    """Return the three rows with lower-case letters, of which one character may have two."""
    distance, second = (looked_up(op, table, codes) for table in lower_case())
    both = op.Concat(op.Unsqueeze(op.Add(codes, distance), [1]), op.Unsqueeze(second, [1]), axis=1)
    exists = op.Or(op.Greater(both, np.int32(0)), np.array([[True, False]]))
    return selected(op, both, exists), repeated(op, is_text, exists), repeated(op, rows, exists)


def word_starts(op: GraphBuilder, codes: str, classes: str) -> str:
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


def symbols_of_bytes(op: GraphBuilder, codes: str, is_text: str, bpe: ByteLevelBPE) -> tuple[str, str]:
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


def merge_pairs(op: GraphBuilder, symbols: str, words: str, rows: str, bpe: ByteLevelBPE) -> tuple[str, str]:
    """BPE: merge the pair of the lowest rank in each word, the leftmost of equal ones, until no pair is left.

    One iteration merges all equal pairs of a word, if no merge can produce a pair of lower rank.
    """
    if not bpe.merges:
        return symbols, rows
    table = merge_table(bpe)
    never = np.int64(2**62)
    empty = op.Expand(never, op.Add(op.Gather(words, [-1]), 1))  # (words,)
    body = GraphBuilder("text.merge.", op)
    names = [f"text.merge.{name}" for name in ("symbols", "words", "rows")]
    symbols_now, words_now, rows_now = names
    next_word = shifted(body, words_now, -1, -1)
    place = body.Add(
        body.Gather(table.first, symbols_now),
        shifted(body, body.Cast(symbols_now, to=TensorProto.INT32), -1, np.int32(0)),
    )
    is_pair = body.Equal(body.Cast(body.Gather(table.owner, place), to=TensorProto.INT64), symbols_now)
    is_pair = body.And(is_pair, body.Equal(words_now, next_word))
    rank = body.Cast(body.Gather(table.rank, place), to=TensorProto.INT64)
    places = body.Range(0, body.Squeeze(body.Shape(symbols_now)), 1)
    # If a merge could produce a pair of lower rank, only the leftmost pair is merged.
    order = rank if bpe.in_order() else body.Add(body.Mul(rank, body.Shape(symbols_now)), places)
    key = body.Where(is_pair, order, never)
    best = body.ScatterElements(empty, words_now, key, reduction="min")
    chosen = body.And(is_pair, body.Equal(key, body.Gather(best, words_now)))
    # In a run of equal symbols, every other pair from the left.
    begins = body.And(chosen, body.Not(shifted(body, chosen, 1, False)))
    run = body.CumSum(as_int(body, begins), 0)
    run_start = body.Gather(body.Concat([0], body.Compress(places, begins), axis=0), run)
    is_even = body.Equal(body.BitwiseAnd(body.Sub(places, run_start), 1), 0)
    chosen = body.And(chosen, is_even)
    symbols_after = body.Where(chosen, body.Gather(table.product, body.Where(is_pair, rank, 0)), symbols_now)
    stays = body.Not(shifted(body, chosen, 1, False))
    after = [body.Compress(values, stays) for values in (symbols_after, words_now, rows_now)]
    condition = body.Cast(body.ReduceMax(as_int(body, chosen), keepdims=0), to=TensorProto.BOOL)
    first = dict(zip(names, (symbols, words, rows), strict=True))
    ids, _, rows = op.loop(body, first, [tensor_type(TensorProto.INT64)] * 3, condition, after)
    return ids, rows
