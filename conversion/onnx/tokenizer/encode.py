"""Encode texts as token ids with operators of every ONNX Runtime: the byte-level BPE of `tokenization.py`.

`encode_texts` processes all characters of all texts as one flat tensor. A line feed after each text marks its end and
becomes `</s>`.

    find_code_points        characters -> Unicode code points
    convert_to_lower_case   if the tokenizer does so
    mark_symbols            the characters of a symbol -> one character
    find_word_starts        the beginnings of words; no merge crosses them
    find_byte_symbols       characters -> the ids of their bytes
    merge_pairs             ids -> fewer ids
    pad_rows                flat tensor -> a padded row for each text

No ONNX operator returns the code point of a character. Two operators of ONNX Runtime help: `Tokenizer` splits strings
into characters, and `MurmurHash3` hashes them to 32-bit integers. For up to four bytes of known number the hash is a
bijection, so it can be inverted. The number of bytes is unknown, but two hashes with different seeds agree on exactly
one number for each character.
"""

import numpy as np
from onnx import TensorProto

from ..graph_builder import TO_THE_END, GraphBuilder, cast_to_int, pad_rows, shift, tensor_type
from .bpe import (
    BLOCK,
    END_OF_TEXT,
    IS_INVISIBLE,
    IS_JOINED,
    IS_JOINER,
    IS_WHITE_SPACE,
    IS_WORD,
    SINGLE_DIGIT,
    SPACE,
    SPELLING,
    ByteLevelBPE,
    build_merge_table,
    classify_characters,
    list_flags,
    list_lower_case,
)

BOUNDARY = SINGLE_DIGIT  # the ends of texts and symbols, too, are words by themselves
FIRST_SYMBOL = 256  # codes of what is not text: 10 is the end of a text, those from here on are symbols


def encode_texts(op: GraphBuilder, texts: str, bpe: ByteLevelBPE, pad: int) -> tuple[str, str, str]:
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
    flags = look_up(op, list_flags(), codes)
    is_word = op.And(is_text, has_flag(op, flags, IS_WORD))
    is_blank = op.Not(op.Cast(op.ReduceMax(cast_to_int(op, is_word), [1], keepdims=0), to=TensorProto.BOOL))
    rows = op.Expand(op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(texts)), 1), [1]), op.Shape(codes))

    # Flatten. The tensor is never empty, because it includes the ends of texts.
    codes, is_text, rows, flags = (select(op, values, exists) for values in (codes, is_text, rows, flags))
    codes, is_text, rows = clean_characters(op, codes, is_text, rows, flags)
    if bpe.lowercase:
        codes, is_text, rows = convert_to_lower_case(op, codes, is_text, rows)
    if bpe.symbols:
        codes, is_text, rows = mark_symbols(op, codes, is_text, rows, bpe)
    classes = op.Where(is_text, look_up(op, classify_characters(bpe.split_digits), codes), np.uint8(BOUNDARY))
    words = op.Sub(op.CumSum(cast_to_int(op, find_word_starts(op, codes, classes)), 0), 1)
    symbols, is_byte = find_byte_symbols(op, codes, is_text, bpe)
    words, rows = (repeat(op, values, is_byte) for values in (words, rows))
    ids, rows = merge_pairs(op, select(op, symbols, is_byte), words, rows, bpe)
    ids, mask = pad_rows(op, ids, rows, op.Shape(texts), pad)
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


def has_flag(op: GraphBuilder, flags: str, flag: int) -> str:
    return op.Cast(op.BitwiseAnd(flags, np.uint8(flag)), to=TensorProto.BOOL)


def clean_characters(op: GraphBuilder, codes: str, is_text: str, rows: str, flags: str) -> tuple[str, str, str]:
    """Return the first three vectors for cleaned texts: see `clean_text`.

    flags: those of `list_flags`
    """
    vectors = (codes, is_text, rows, flags)

    def drop(dropped: str) -> tuple[str, ...]:
        return tuple(select(op, values, op.Not(dropped)) for values in vectors)

    vectors = codes, is_text, rows, flags = drop(op.And(is_text, has_flag(op, flags, IS_INVISIBLE)))
    is_kept = has_flag(op, shift(op, flags, 1, np.uint8(0)), IS_JOINED)
    codes, is_text, rows, flags = drop(op.And(has_flag(op, flags, IS_JOINER), op.Not(is_kept)))
    is_space = op.And(is_text, has_flag(op, flags, IS_WHITE_SPACE))
    vectors = (op.Where(is_space, np.int32(ord(" ")), codes), is_text, rows, is_space)
    # A space stays if it is not the first character of its text, nor follows another space; then if it is not the last.
    after_space = op.Or(shift(op, is_space, 1, False), op.Not(shift(op, is_text, 1, False)))
    vectors = codes, is_text, rows, is_space = drop(op.And(is_space, after_space))
    codes, is_text, rows, _ = drop(op.And(is_space, op.Not(shift(op, is_text, -1, False))))
    return codes, is_text, rows


def convert_to_lower_case(op: GraphBuilder, codes: str, is_text: str, rows: str) -> tuple[str, str, str]:
    """Return the three vectors for lower-case letters; a character may become two."""
    distance, second = (look_up(op, table, codes) for table in list_lower_case())
    both = op.Concat(op.Unsqueeze(op.Add(codes, distance), [1]), op.Unsqueeze(second, [1]), axis=1)
    exists = op.Or(op.Greater(both, np.int32(0)), np.array([[True, False]]))
    return select(op, both, exists), repeat(op, is_text, exists), repeat(op, rows, exists)


def mark_symbols(op: GraphBuilder, codes: str, is_text: str, rows: str, bpe: ByteLevelBPE) -> tuple[str, str, str]:
    """Return the three vectors with one character per symbol, which is not text and has the code FIRST_SYMBOL + n.

    Of symbols that overlap in a text, the leftmost is found, and of those that begin together the longest.
    """
    symbols = list(bpe.symbols)
    longest = max(map(len, symbols))
    wanted = np.zeros((1, len(symbols), longest), np.int32)
    for number, symbol in enumerate(symbols):
        wanted[0, number, : len(symbol)] = [ord(character) for character in symbol]
    text_codes = op.Where(is_text, codes, np.int32(-1))
    following = [text_codes, *(shift(op, text_codes, -by, np.int32(-1)) for by in range(1, longest))]
    windows = op.Concat(*(op.Unsqueeze(codes, [1, 2]) for codes in following), axis=2)
    equal = op.Or(op.Equal(windows, wanted), wanted == 0)  # (characters, symbols, longest)
    is_symbol = op.ReduceMin(op.Cast(equal, to=TensorProto.INT8), [2], keepdims=0)
    lengths = op.Mul(cast_to_int(op, is_symbol), np.array([len(symbol) for symbol in symbols]))
    length, number = op.ReduceMax(lengths, [1], keepdims=0), op.ArgMax(lengths, axis=1, keepdims=0)
    # Until no two overlap: a symbol that no other reaches stays, and those that it reaches are dropped.
    body, left = GraphBuilder("text.symbols.", op), "text.symbols.length"
    first = body.Where(is_reached(body, left, longest), 0, left)
    kept = body.Where(is_reached(body, first, longest), 0, left)
    condition = body.Not(body.Equal(body.ReduceSum(kept, keepdims=0), body.ReduceSum(left, keepdims=0)))
    (length,) = op.loop(body, {left: length}, [tensor_type(TensorProto.INT64)], condition, [kept])
    begins, keep = op.Greater(length, 0), op.Not(is_reached(op, length, longest))
    marks = op.Cast(op.Add(number, FIRST_SYMBOL), to=TensorProto.INT32)
    codes, is_text = op.Where(begins, marks, codes), op.And(is_text, op.Not(begins))
    codes, is_text, rows = (select(op, values, keep) for values in (codes, is_text, rows))
    return codes, is_text, rows


def is_reached(op: GraphBuilder, lengths: str, longest: int) -> str:
    """Return which characters belong to a symbol that begins before them, bool (characters,)."""
    reached = op.Less(lengths, 0)  # none
    for by in range(1, longest):
        reached = op.Or(reached, op.Greater(shift(op, lengths, by, 0), by))
    return reached


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
    own = np.full(FIRST_SYMBOL + len(bpe.symbols), bpe.end)
    own[FIRST_SYMBOL:] = list(bpe.symbols.values())
    own = op.Gather(own, op.Where(is_text, np.int32(0), codes))
    code = op.Unsqueeze(op.Where(is_text, codes, np.int32(0)), [1])
    limits = np.array([0x80, 0x800, 0x10000], np.int32)
    more = op.ReduceSum(op.Cast(op.GreaterOrEqual(code, limits), to=TensorProto.INT32), [1], keepdims=1)
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
    table = build_merge_table(bpe)
    never = np.int64(2**62)
    empty = op.Expand(never, op.Add(op.Gather(words, [-1]), 1))  # (words,)
    body = GraphBuilder("text.merge.", op)
    names = [f"text.merge.{name}" for name in ("symbols", "words", "rows")]
    current_symbols, current_words, current_rows = names
    next_word = shift(body, current_words, -1, -1)
    entry = body.Add(
        body.Gather(table.first, current_symbols),
        shift(body, body.Cast(current_symbols, to=TensorProto.INT32), -1, np.int32(0)),
    )
    is_pair = body.Equal(body.Cast(body.Gather(table.owner, entry), to=TensorProto.INT64), current_symbols)
    is_pair = body.And(is_pair, body.Equal(current_words, next_word))
    rank = body.Cast(body.Gather(table.rank, entry), to=TensorProto.INT64)
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
    merged = body.Where(chosen, body.Gather(table.product, body.Where(is_pair, rank, 0)), current_symbols)
    keep = body.Not(shift(body, chosen, 1, False))
    after = [body.Compress(values, keep) for values in (merged, current_words, current_rows)]
    condition = body.Cast(body.ReduceMax(cast_to_int(body, chosen), keepdims=0), to=TensorProto.BOOL)
    initial_values = dict(zip(names, (symbols, words, rows), strict=True))
    ids, _, rows = op.loop(body, initial_values, [tensor_type(TensorProto.INT64)] * 3, condition, after)
    return ids, rows


def select(op: GraphBuilder, values: str, flags: str) -> str:
    """Return the values whose flags are true, (n,);  values and flags have the same shape"""
    return op.Compress(op.Reshape(values, [-1]), op.Reshape(flags, [-1]))


def repeat(op: GraphBuilder, values: str, flags: str) -> str:
    """Repeat each value once per true flag;  values: (n,), flags: (n, k)"""
    return select(op, op.Expand(op.Unsqueeze(values, [1]), op.Shape(flags)), flags)


def look_up(op: GraphBuilder, table: np.ndarray, codes: str) -> str:
    """Return table[codes], and store equal blocks of the table once."""
    blocks: dict[bytes, int] = {}
    rows = table.reshape(-1, BLOCK)
    starts = [blocks.setdefault(row.tobytes(), len(blocks) * BLOCK) for row in rows]
    start = op.Gather(np.array(starts, np.int32), op.Div(codes, np.int32(BLOCK)))
    stored = np.frombuffer(b"".join(blocks), table.dtype)
    return op.Gather(stored, op.Add(start, op.BitwiseAnd(codes, np.int32(BLOCK - 1))))
