"""Decode token ids with standard operators: concatenate the bytes of all tokens, with U+FFFD for invalid UTF-8.

A line feed ends every text, so that no row is empty and no character continues in the next row. Intermediate strings
hold one byte each; strings that leave the graph are valid UTF-8.
"""

import numpy as np
from onnx import TensorProto

from vaswani_transformer.attention_maps import BYTE_OF_LETTER

from ..graph_builder import TO_THE_END, GraphBuilder, cast_to_int, pad_rows, shift, tensor_type
from .bpe import END_OF_TEXT, ByteLevelBPE

REPLACEMENT, DROPPED = 256, 257  # pieces of text besides the 256 bytes: U+FFFD, and nothing


def decode_texts(op: GraphBuilder, ids: str, bpe: ByteLevelBPE, vocabulary: int) -> str:
    """Decode ids (batch, length), all below `vocabulary`. Return strings (batch,) without control tokens."""
    bytes, rows, is_end = spell_tokens(op, ids, bpe, vocabulary)
    pieces = op.Where(is_end, DROPPED, replace_invalid_bytes(op, bytes))
    by_row, _ = pad_rows(op, pieces, rows, op.Shape(ids, end=1), DROPPED)
    return concatenate_rows(op, by_row)


def spell_tokens(op: GraphBuilder, ids: str, bpe: ByteLevelBPE, vocabulary: int) -> tuple[str, str, str]:
    """Return the bytes of all tokens, int64 (bytes,), the row of each, and whether it is an end of text."""
    spelled = {id: spelling for spelling, id in bpe.vocabulary.items() if id not in bpe.control}
    spelled |= {id: symbol for symbol, id in bpe.symbols.items()}
    tokens = [*(to_bytes(spelled.get(id, "")) for id in range(vocabulary)), END_OF_TEXT]
    lengths = np.array([len(token) for token in tokens])
    starts = np.cumsum(lengths) - lengths
    ended = op.Pad(ids, [0, 0, 0, 1], vocabulary)
    flat = op.Reshape(ended, [-1])
    rows = op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(ids, end=1)), 1), [1])
    rows = op.Reshape(op.Expand(rows, op.Shape(ended)), [-1])
    not_empty = op.Greater(op.Gather(lengths, flat), 0)
    flat, rows = op.Compress(flat, not_empty), op.Compress(rows, not_empty)
    # Repeat each token once per byte.
    length = op.Gather(lengths, flat)
    begin = op.CumSum(length, 0, exclusive=1)
    total = op.ReduceSum(length)
    first = op.ScatterElements(op.Expand(0, total), begin, op.Expand(1, op.Shape(flat)))
    token = op.Sub(op.CumSum(first, 0), 1)
    within = op.Sub(op.Range(0, op.Squeeze(total), 1), op.Gather(begin, token))
    table = np.frombuffer(b"".join(tokens), np.uint8)
    id = op.Gather(flat, token)
    found = op.Gather(table, op.Add(op.Gather(starts, id), within))
    return op.Cast(found, to=TensorProto.INT64), op.Gather(rows, token), op.Equal(id, vocabulary)


def to_bytes(spelling: str) -> bytes:
    """Return the bytes of a token as the ByteLevel decoder does: a letter is a byte, unless a letter is none."""
    if all(letter in BYTE_OF_LETTER for letter in spelling):
        return bytes(BYTE_OF_LETTER[letter] for letter in spelling)
    return spelling.encode()


def replace_invalid_bytes(op: GraphBuilder, bytes: str) -> str:
    """Replace the bytes of invalid characters by REPLACEMENT or DROPPED, and keep the others.

    As in tokenizers' ByteLevel decoder, one U+FFFD replaces the longest beginning of a character (The Unicode Standard,
    3.9, table 3-8) or any other invalid byte.
    """
    more, lowest, highest = np.zeros(256, np.int64), np.full(256, 0x80), np.full(256, 0xBF)
    more[0xC2:0xE0], more[0xE0:0xF0], more[0xF0:0xF5] = 1, 2, 3
    lowest[0xE0], highest[0xED], lowest[0xF0], highest[0xF4] = 0xA0, 0x9F, 0x90, 0x8F
    begins = np.ones(256, bool)
    begins[0x80:0xC2], begins[0xF5:] = False, False
    second, third, fourth = (shift(op, bytes, -by, 0) for by in (1, 2, 3))  # if a character begins here

    def continues(byte: str) -> str:
        return op.Equal(op.BitwiseAnd(byte, 0xC0), 0x80)

    expected = op.Gather(more, bytes)  # continuation bytes
    in_range = op.And(
        op.GreaterOrEqual(second, op.Gather(lowest, bytes)), op.LessOrEqual(second, op.Gather(highest, bytes))
    )
    # Whether at least one, two and three of them are valid.
    one = op.And(in_range, op.GreaterOrEqual(expected, 1))
    two = op.And(op.And(one, continues(third)), op.GreaterOrEqual(expected, 2))
    three = op.And(op.And(two, continues(fourth)), op.GreaterOrEqual(expected, 3))
    found = op.Add(op.Add(cast_to_int(op, one), cast_to_int(op, two)), cast_to_int(op, three))
    is_complete = op.And(op.Equal(found, expected), op.Gather(begins, bytes))

    def reached_by(flags: tuple[str, ...]) -> str:
        """Return which bytes continue a character that begins before them."""
        first, *others = (shift(op, flag, by, False) for by, flag in enumerate(flags, start=1))
        for other in others:
            first = op.Or(first, other)
        return first

    kept = op.Or(is_complete, reached_by(tuple(op.And(flag, is_complete) for flag in (one, two, three))))
    dropped = reached_by(tuple(op.And(flag, op.Not(is_complete)) for flag in (one, two, three)))
    return op.Where(kept, bytes, op.Where(dropped, DROPPED, REPLACEMENT))


def concatenate_rows(op: GraphBuilder, pieces: str) -> str:
    """Concatenate the pieces (batch, width) of each row into one string, halving the width in each iteration."""
    strings = np.array([*(bytes([byte]) for byte in range(256)), "\ufffd".encode(), b""], object)
    powers = 2 ** np.arange(40)
    width = op.Shape(pieces, start=1)
    power = op.Gather(powers, op.ReduceSum(cast_to_int(op, op.Less(powers, width)), keepdims=1))
    padding = op.Concat([0, 0, 0], op.Sub(power, width), axis=0)
    columns = op.Gather(strings, op.Pad(pieces, padding, DROPPED))
    body = GraphBuilder("text.join.", op)
    current = "text.join.columns"
    even, odd = (body.Slice(current, [first], TO_THE_END, [1], [2]) for first in (0, 1))
    # If there is only one column, append nothing to it.
    missing = body.Slice(body.Expand(b"", body.Shape(even)), body.Shape(odd, start=1), TO_THE_END, [1])
    together = body.StringConcat(even, body.Concat(odd, missing, axis=1))
    condition = body.Greater(body.Squeeze(body.Shape(together, start=1)), 1)
    (columns,) = op.loop(body, {current: columns}, [tensor_type(TensorProto.STRING)], condition, [together])
    return op.Squeeze(columns, [1])
