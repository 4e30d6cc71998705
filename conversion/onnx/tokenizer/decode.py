"""Decode token ids with standard operators: concatenate the bytes of all tokens, with U+FFFD for invalid UTF-8.

A line feed ends every text, so that no row is empty and no character continues in the next row. Intermediate strings
hold one byte each; strings that leave the graph are valid UTF-8.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import TensorProto
from tokenizers import decoders
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vaswani_transformer.errors import InputError

from ..graph_builder import TO_THE_END, GraphBuilder, batch_rows, cast_to_int, shift, spread, tensor_type
from .source import END_OF_TEXT, read_tokenizer_json, read_type

# The decoder of SentencePiece models, see conversion/sentencepiece_model.py.
STEPS = [decoders.Replace(" ", ""), decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
SENTENCEPIECE = json.loads(decoders.Sequence(STEPS).__getstate__())
# Byte-level tokens write each byte as one letter of GPT-2's table.
BYTE_OF_LETTER = {letter: byte for byte, letter in bytes_to_unicode().items()}
REPLACEMENT, DROPPED = 256, 257  # pieces of text besides the 256 bytes: U+FFFD, and nothing


class Spelling(NamedTuple):
    """The text of each token."""

    tokens: dict[int, bytes]  # without control tokens
    drops_first_space: bool  # of each text

    @classmethod
    def read(cls, folder: Path) -> "Spelling":
        """Read the decoder of a folder's tokenizer. Raises InputError naming what the operators do not support."""
        content, _ = read_tokenizer_json(folder)
        decoder = content.get("decoder")
        is_byte_level = read_type(decoder) == "ByteLevel"
        if not is_byte_level and decoder != SENTENCEPIECE:
            raise InputError(
                f"{folder / 'tokenizer.json'}: --text needs the decoder of a byte-level BPE or of a SentencePiece "
                f"model without byte fallback; this one has decoder {read_type(decoder)}"
            )
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, dict):
            spelled = {id: token for token, id in vocabulary.items()}
        else:
            spelled = {id: token for id, (token, _) in enumerate(vocabulary)}
        for token in content.get("added_tokens", []):
            spelled[token["id"]] = "" if token["special"] else token["content"]
        spell = to_bytes if is_byte_level else to_words
        return cls({id: spell(token) for id, token in spelled.items()}, not is_byte_level)


def to_bytes(spelling: str) -> bytes:
    """Return the bytes of a token as the ByteLevel decoder does: a letter is a byte, unless a letter is none."""
    if all(letter in BYTE_OF_LETTER for letter in spelling):
        return bytes(BYTE_OF_LETTER[letter] for letter in spelling)
    return spelling.encode()


def to_words(piece: str) -> bytes:
    """Return the bytes of a piece of SentencePiece."""
    return piece.replace(" ", "").replace("▁", " ").encode()


def decode_texts(op: GraphBuilder, ids: str, spelling: Spelling, vocabulary: int) -> str:
    """Decode ids (batch, length), all below `vocabulary`. Return strings (batch,) without control tokens."""
    bytes, rows, is_end = spell_tokens(op, ids, spelling, vocabulary)
    pieces = replace_invalid_bytes(op, bytes)
    is_dropped = is_end
    if spelling.drops_first_space:
        is_first = op.Not(op.Equal(rows, shift(op, rows, 1, -1)))
        is_dropped = op.Or(is_end, op.And(is_first, op.Equal(bytes, ord(" "))))
    by_row, _ = batch_rows(op, op.Where(is_dropped, DROPPED, pieces), rows, op.Shape(ids, end=1), DROPPED)
    return concatenate_rows(op, by_row)


def spell_tokens(op: GraphBuilder, ids: str, spelling: Spelling, vocabulary: int) -> tuple[str, str, str]:
    """Return the bytes of all tokens, int64 (bytes,), the row of each, and whether it is an end of text."""
    tokens = [*(spelling.tokens.get(id, b"") for id in range(vocabulary)), END_OF_TEXT]
    lengths = np.array([len(token) for token in tokens])
    ended = op.Pad(ids, [0, 0, 0, 1], vocabulary)
    flat = op.Reshape(ended, [-1])
    rows = op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(ids, end=1)), 1), [1])
    rows = op.Reshape(op.Expand(rows, op.Shape(ended)), [-1])
    token, within = spread(op, op.Gather(lengths, flat))
    id = op.Gather(flat, token)
    table = np.frombuffer(b"".join(tokens), np.uint8)
    found = op.Gather(table, op.Add(op.Gather(np.cumsum(lengths) - lengths, id), within))
    return op.Cast(found, to=TensorProto.INT64), op.Gather(rows, token), op.Equal(id, vocabulary)


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
