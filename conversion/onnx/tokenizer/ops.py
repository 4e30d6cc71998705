"""Operations on flat tensors that both halves of the tokenizer use."""

from typing import Any

import numpy as np
from onnx import TensorProto

from ..graph_builder import GraphBuilder
from .tables import BLOCK

END_OF_TEXT = b"\n"  # appended to each text
TO_THE_END = [2**31]  # of a Slice: larger than any size


def selected(op: GraphBuilder, values: str, flags: str) -> str:
    """Return the values whose flags are true, (n,);  values and flags have the same shape"""
    return op.Compress(op.Reshape(values, [-1]), op.Reshape(flags, [-1]))


def repeated(op: GraphBuilder, values: str, flags: str) -> str:
    """Repeat each value once per true flag;  values: (n,), flags: (n, k)"""
    return selected(op, op.Expand(op.Unsqueeze(values, [1]), op.Shape(flags)), flags)


def looked_up(op: GraphBuilder, table: np.ndarray, codes: str) -> str:
    """Return table[codes], and store equal blocks of the table once."""
    blocks: dict[bytes, int] = {}
    rows = table.reshape(-1, BLOCK)
    starts = [blocks.setdefault(row.tobytes(), len(blocks) * BLOCK) for row in rows]
    start = op.Gather(np.array(starts, np.int32), op.Div(codes, np.int32(BLOCK)))
    stored = np.frombuffer(b"".join(blocks), table.dtype)
    return op.Gather(stored, op.Add(start, op.BitwiseAnd(codes, np.int32(BLOCK - 1))))


def shifted(op: GraphBuilder, values: str, by: int, filler: Any) -> str:
    """Shift a vector right by `by` (left if negative) and fill with `filler`."""
    padding = [filler] * abs(by)
    longer = op.Concat(*([padding, values] if by > 0 else [values, padding]), axis=0)
    return op.Slice(longer, [0], [-by], [0]) if by > 0 else op.Slice(longer, [-by], TO_THE_END, [0])


def in_batch(op: GraphBuilder, ids: str, rows: str, batch: str, filler: int) -> tuple[str, str]:
    """Distribute ids to the rows of a padded batch. Return the batch and its mask, both (batch, longest).

    rows: the row of each id, ascending;  batch: (1,), the number of rows
    """
    ones = op.Expand(1, op.Shape(ids))
    lengths = op.ScatterElements(op.Expand(0, batch), rows, ones, reduction="add")
    longest = op.ReduceMax(lengths, keepdims=0)
    begins = op.CumSum(lengths, 0, exclusive=1)
    columns = op.Sub(op.Range(0, op.Squeeze(op.Shape(ids)), 1), op.Gather(begins, rows))
    shape = op.Concat(batch, op.Unsqueeze(longest, [0]), axis=0)
    positions = op.Concat(op.Unsqueeze(rows, [1]), op.Unsqueeze(columns, [1]), axis=1)
    values = op.ScatterND(op.Expand(filler, shape), positions, ids)
    mask = op.Less(op.Range(0, longest, 1), op.Unsqueeze(lengths, [1]))
    return values, as_int(op, mask)


def as_int(op: GraphBuilder, flags: str) -> str:
    return op.Cast(flags, to=TensorProto.INT64)
