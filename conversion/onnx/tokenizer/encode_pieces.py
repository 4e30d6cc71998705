"""Encode characters as the ids of a unigram model: the pieces whose scores have the highest sum.

    normalize_spaces    the charsmap; then `▁` for spaces, and spaces around runs of unknown characters
    find_pieces         the piece of each length that ends at each character
    find_best_paths     which of them is the last one of the best path to each character
    follow_paths        the characters at which the pieces of the best paths end

A path is a sequence of pieces without a gap. The model decides character by character; here, all characters find their
best path at once, by what is known of the paths before, until nothing changes.
"""

from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from ..graph_builder import (
    TO_THE_END,
    GraphBuilder,
    cast_to_int,
    find_ends,
    look_up,
    repeat,
    select,
    shift,
    tensor_type,
)
from .characters import list_unknown
from .trie import build_trie
from .unigram import SPACE, Unigram


class Pieces(NamedTuple):
    """The pieces that end at each character, (longest, characters): in row n, those of n + 1 characters.

    An unknown character, an end of a text and a symbol are a piece of one character without an id.
    """

    ids: str  # int32; -1 for none
    scores: str  # float64; -inf if there is no piece
    starts: str  # int64, of the pieces; 0 where a piece would begin before the first character


def encode_pieces(op: GraphBuilder, codes: str, is_text: str, rows: str, model: Unigram) -> tuple[str, str]:
    """Return the ids of all texts, and their rows.  codes, is_text, rows: (characters,)"""
    if model.charsmap is not None:
        codes, is_text, rows = model.charsmap.normalize(op, codes, is_text, rows)
    codes, is_text, rows = normalize_spaces(op, codes, is_text, rows, model)
    pieces, begins = find_pieces(op, codes, is_text, model)
    row = find_best_paths(op, pieces, begins)
    start, id = (op.Squeeze(op.GatherElements(values, row, axis=0), [0]) for values in (pieces.starts, pieces.ids))
    is_end = follow_paths(op, start, begins)
    is_unknown = op.And(is_text, op.Or(op.Less(id, np.int32(0)), op.Equal(id, np.int32(model.unknown))))
    own = op.Gather(model.list_ids_of_codes(), op.Where(is_text, np.int32(0), codes))
    ids = op.Where(is_text, op.Where(is_unknown, model.unknown, op.Cast(id, to=TensorProto.INT64)), own)
    # Of adjacent unknown pieces, the first one stands for all.
    after_unknown = op.Gather(shift(op, is_unknown, 1, False), start)
    is_kept = op.And(is_end, op.Not(op.And(op.And(is_unknown, after_unknown), op.Not(op.Gather(begins, start)))))
    return select(op, ids, is_kept), select(op, rows, is_kept)


def normalize_spaces(op: GraphBuilder, codes: str, is_text: str, rows: str, model: Unigram) -> tuple[str, str, str]:
    """Return the three vectors after the steps of the normalizer that follow the charsmap."""
    is_space = op.And(is_text, op.Equal(codes, np.int32(ord(" "))))
    codes = op.Where(is_space, np.int32(ord(SPACE)), codes)
    if model.removes_extra_spaces:
        after_space = op.And(is_space, shift(op, is_space, 1, False))
        keep = op.Not(op.Or(after_space, find_ends(op, is_space, is_text)))
        codes, is_text, rows = (select(op, values, keep) for values in (codes, is_text, rows))

    if model.adds_prefix:
        is_first = op.And(is_text, op.Not(shift(op, is_text, 1, False)))
        codes, is_text, rows = surround(op, (codes, is_text, rows), SPACE, is_first)
    if model.unknown_characters is not None:
        is_unknown = op.And(is_text, look_up(op, list_unknown(model.unknown_characters), codes))
        begins = op.And(is_unknown, op.Not(shift(op, is_unknown, 1, False)))
        ends = op.And(is_unknown, op.Not(shift(op, is_unknown, -1, False)))
        codes, is_text, rows = surround(op, (codes, is_text, rows), " ", begins, "  ", ends)
    return codes, is_text, rows


def surround(
    op: GraphBuilder, vectors: tuple[str, str, str], before: str, has_before: str, after: str = "", has_after: str = ""
) -> tuple[str, str, str]:
    """Return the three vectors with letters before and after those characters whose flags are true."""
    codes, is_text, rows = vectors
    letters = np.array([[ord(letter) for letter in f"{before}\0{after}"]], np.int32)
    flags = [*[has_before] * len(before), op.Equal(codes, codes), *[has_after] * len(after)]
    exists = op.Concat(*(op.Unsqueeze(flag, [1]) for flag in flags), axis=1)
    codes = select(op, op.Where(letters == 0, op.Unsqueeze(codes, [1]), letters), exists)
    return codes, repeat(op, is_text, exists), repeat(op, rows, exists)


def find_pieces(op: GraphBuilder, codes: str, is_text: str, model: Unigram) -> tuple[Pieces, str]:
    """Return the pieces that end at each character, and the characters at which a part of a text begins.

    No piece reaches from one part into the next one.
    """
    size = len(model.pieces)
    # The strings that are split have the numbers after those of the pieces. Such a string is no piece.
    strings = [(piece, id) for id, (piece, _) in enumerate(model.pieces)]
    strings += [(string, size) for string in model.split]
    found = build_trie(strings).find(op, codes, is_text)  # where pieces begin
    is_split = op.ReduceMax(cast_to_int(op, op.Equal(found, np.int32(size))), [0], keepdims=0)
    is_split = op.Cast(is_split, to=TensorProto.BOOL)
    inside = op.And(is_text, shift(op, is_text, 1, False))
    begins = op.Or(op.Or(is_split, shift(op, is_split, 1, False)), op.Not(inside))
    part = op.CumSum(cast_to_int(op, begins), 0)

    longest, characters = (op.Squeeze(op.Shape(found, start=axis, end=axis + 1)) for axis in (0, 1))
    row = op.Unsqueeze(op.Range(0, longest, 1), [1])
    start = op.Sub(op.Range(0, characters, 1), row)  # (longest, characters)
    is_inside = op.GreaterOrEqual(start, 0)
    start = op.Max(start, 0)
    ids = op.GatherElements(found, start, axis=1)
    is_piece = op.And(op.And(op.GreaterOrEqual(ids, np.int32(0)), op.Less(ids, np.int32(size))), is_inside)
    is_piece = op.And(is_piece, op.Equal(op.Gather(part, start), part))
    ids = op.Where(is_piece, ids, np.int32(-1))
    unknown = op.Where(op.Equal(row, 0), np.float64(model.unknown_score), np.float64(-np.inf))
    scores = np.array([score for _, score in model.pieces])
    return Pieces(ids, op.Where(is_piece, op.Gather(scores, op.Max(ids, np.int32(0))), unknown), start), begins


def find_best_paths(op: GraphBuilder, pieces: Pieces, begins: str) -> str:
    """Return the row of the last piece of the best path to each character, (1, characters).

    Scores are added in the order of the library, because the order decides between paths that differ in it alone, such
    as `..` `.` and `.` `..`. Of equally good paths, it keeps the one whose last piece is the longest.
    """

    def add_up(op: GraphBuilder, best: str) -> str:
        before = op.Where(begins, np.float64(0), shift(op, best, 1, np.float64(0)))
        return op.Add(op.Gather(before, pieces.starts), pieces.scores)

    body, known = GraphBuilder("text.paths.", op), "text.paths.known"
    better = body.ReduceMax(add_up(body, known), [0], keepdims=0)
    changes = body.ReduceMax(cast_to_int(body, body.Not(body.Equal(better, known))), keepdims=0)
    condition = body.Cast(changes, to=TensorProto.BOOL)
    nothing = op.Expand(np.float64(-np.inf), op.Shape(begins))
    (best,) = op.loop(body, {known: nothing}, [tensor_type(TensorProto.DOUBLE, 1)], condition, [better])
    return op.ArgMax(add_up(op, best), axis=0, keepdims=1, select_last_index=1)


def follow_paths(op: GraphBuilder, start: str, begins: str) -> str:
    """Return the characters at which a piece of the best paths ends, bool (characters,).

    start: that of the last piece of the best path to each character

    A place is in front of a character, or after the last one. In each iteration, twice as many pieces are followed.
    """
    body = GraphBuilder("text.ends.", op)
    names = known, back = "text.ends.known", "text.ends.back"
    nothing = op.Expand(0, op.Add(op.Shape(start), 1))
    reached = body.ScatterElements(nothing, back, known, reduction="max")
    after = body.Max(known, reached)
    changes = body.ReduceMax(body.Sub(after, known), keepdims=0)
    condition = body.Cast(changes, to=TensorProto.BOOL)
    places = op.Concat(cast_to_int(op, begins), [1], axis=0), op.Concat([0], start, axis=0)
    types = [tensor_type(TensorProto.INT64, 1)] * 2
    following = [after, body.Gather(back, back)]
    places, _ = op.loop(body, dict(zip(names, places, strict=True)), types, condition, following)
    return op.Cast(op.Slice(places, [1], TO_THE_END, [0]), to=TensorProto.BOOL)
