"""Token ids -> texts by standard operators: the bytes of all tokens, joined, with U+FFFD for invalid UTF-8.

A mark ends every text, so that no row is empty and characters do not continue in the next row. The strings that are
joined hold one byte each, but no string that leaves the graph is invalid UTF-8.
"""

import numpy as np
from onnx import TensorProto

from .byte_level_bpe import SPELLING, ByteLevelBPE
from .operators import Operators, tensor_type
from .text_to_ids import END, MARK, as_int, padded, row_numbers, selected, shifted

REPLACEMENT, NOTHING = 256, 257  # pieces of text beside the 256 bytes
BYTES = {spelling: byte for byte, spelling in SPELLING.items()}


def texts_of(op: Operators, ids: str, bpe: ByteLevelBPE, vocabulary: int) -> str:
    """ids: (batch, length), below `vocabulary` -> strings (batch,), without control tokens."""
    spelled = {id: spelling for spelling, id in bpe.vocabulary.items() if id not in bpe.control}
    tokens = [bytes(BYTES[letter] for letter in spelled.get(id, "")) for id in range(vocabulary)] + [MARK]
    lengths = np.array([len(token) for token in tokens])
    starts = np.cumsum(lengths) - lengths
    marked = op.Unsqueeze(op.Pad(ids, [0, 0, 0, 1], vocabulary), [2])
    length = op.Gather(lengths, marked)
    place = op.Range(0, op.ReduceMax(length, keepdims=0), 1)
    is_byte = op.Less(place, length)  # (batch, length + 1, longest token)
    found = selected(op, op.Add(op.Gather(starts, marked), place), is_byte)
    found_bytes = op.Cast(op.Gather(np.frombuffer(b"".join(tokens), np.uint8), found), to=TensorProto.INT64)
    pieces = op.Where(op.Equal(found, starts[-1]), NOTHING, valid_pieces(op, found_bytes))
    by_row, _ = padded(op, pieces, row_numbers(op, is_byte), op.Shape(ids, end=1), NOTHING)
    return joined(op, by_row)


def valid_pieces(op: Operators, bytes: str) -> str:
    """(bytes,) -> (bytes,): the byte itself in a valid character; REPLACEMENT and NOTHING elsewhere

    As in tokenizers' ByteLevel decoder, one U+FFFD replaces the longest beginning of a character (The Unicode Standard,
    3.9, table 3-8) or any other invalid byte.
    """
    # By the first byte of a character: how many more it has, and the range of the second.
    more, lowest, highest = np.zeros(256, np.int64), np.full(256, 0x80), np.full(256, 0xBF)
    more[0x80:0xC2], more[0xC2:0xE0], more[0xE0:0xF0], more[0xF0:0xF5], more[0xF5:] = -1, 1, 2, 3, -1
    lowest[0xE0], highest[0xED], lowest[0xF0], highest[0xF4] = 0xA0, 0x9F, 0x90, 0x8F
    second, third, fourth = (shifted(op, bytes, -by, 0) for by in (1, 2, 3))

    def continues(byte: str) -> str:
        return op.Equal(op.BitwiseAnd(byte, 0xC0), 0x80)

    wanted = op.Gather(more, bytes)
    is_above = op.GreaterOrEqual(second, op.Gather(lowest, bytes))
    in_range = op.And(is_above, op.LessOrEqual(second, op.Gather(highest, bytes)))
    one = op.And(in_range, op.GreaterOrEqual(wanted, 1))
    two = op.And(op.And(one, continues(third)), op.GreaterOrEqual(wanted, 2))
    three = op.And(op.And(two, continues(fourth)), op.GreaterOrEqual(wanted, 3))
    got = op.Add(op.Add(as_int(op, one), as_int(op, two)), as_int(op, three))
    is_complete = op.Equal(got, wanted)

    def continued(begins: str) -> str:
        """Return which bytes continue a character that `begins` before them."""
        first, *others = (
            shifted(op, op.And(flag, begins), by, False) for by, flag in enumerate((one, two, three), start=1)
        )
        return op.Or(op.Or(first, others[0]), others[1])

    kept = op.Or(is_complete, continued(is_complete))
    return op.Where(kept, bytes, op.Where(continued(op.Not(is_complete)), NOTHING, REPLACEMENT))


def joined(op: Operators, pieces: str) -> str:
    """(batch, width) of pieces -> strings (batch,); neighbouring columns are joined until one is left"""
    strings = np.array([*(bytes([byte]) for byte in range(256)), "\ufffd".encode(), b""], object)
    empty = op.Expand(b"", op.Concat(op.Shape(pieces, end=1), [1], axis=0))  # joins a last column without a neighbour
    body, now = Operators("text.join.", op), "text.join.columns"
    even = body.Slice(now, [0], END, [1], [2])
    odd = body.Slice(body.Concat(now, empty, axis=1), [1], END, [1], [2])
    together = body.StringConcat(even, odd)
    go_on = body.Greater(body.Squeeze(body.Shape(together, start=1)), 1)
    (columns,) = op.loop(body, {now: op.Gather(strings, pieces)}, [tensor_type(TensorProto.STRING)], go_on, [together])
    return op.Squeeze(columns, [1])
