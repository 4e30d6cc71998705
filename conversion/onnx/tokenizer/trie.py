"""Sparse tables of integers, and tries of strings: built at export, looked up by operators."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from ..graph_builder import GraphBuilder, cast_to_int, look_up, shift, tensor_type
from .characters import UNICODE

WINDOW = 1024  # offsets that are tried at once
NOWHERE, ROOT = 0, 1  # nodes


class SparseTable(NamedTuple):
    """A sparse matrix. Entry (row, column) is at position first[row] + column if the owner of this position is row."""

    first: np.ndarray  # (rows,)
    owner: np.ndarray  # (positions,); -1 if the position is free
    value: np.ndarray  # (positions,)

    def look_up(self, op: GraphBuilder, rows: str, columns: str) -> tuple[str, str]:
        """Return the entries, and which of them exist.  rows, columns: int32 vectors"""
        position = op.Add(op.Gather(self.first, rows), columns)
        return op.Gather(self.value, position), op.Equal(op.Gather(self.owner, position), rows)


def build_sparse_table(entries: Mapping[tuple[int, int], int], rows: int, columns: int) -> SparseTable:
    """Store a sparse matrix by row displacement: overlay its rows, fullest first, each at an offset where it fits."""
    columns_of: dict[int, list[int]] = {}
    for row, column in entries:
        columns_of.setdefault(row, []).append(column)
    first = np.zeros(rows, np.int32)
    taken = np.zeros(2 * len(entries) + columns + WINDOW, bool)  # doubled if too small
    offset = size = 0
    # Rows of one entry fill the holes: from the right end of the columns, the places that they try only ascend.
    for row, of_row in sorted(columns_of.items(), key=lambda item: (-len(item[1]), -item[1][0])):
        offset = offset if size == len(of_row) else 0
        size = len(of_row)
        while True:
            if offset + columns + WINDOW > len(taken):
                taken = np.concatenate((taken, np.zeros(len(taken), bool)))
            clash = np.zeros(WINDOW, bool)
            for column in of_row:
                clash |= taken[offset + column : offset + column + WINDOW]
            if not clash.all():
                break
            offset += WINDOW
        offset += int(clash.argmin())
        first[row] = offset
        taken[[offset + column for column in of_row]] = True
    owner = np.full(int(first.max()) + columns, -1, np.int32)
    value = np.zeros_like(owner)
    for (row, column), number in entries.items():
        owner[first[row] + column], value[first[row] + column] = row, number
    return SparseTable(first, owner, value)


class Trie(NamedTuple):
    """Strings with their numbers."""

    columns: np.ndarray  # (UNICODE,), the column of each character in the table; 0 if no string has it
    table: SparseTable  # (node, column) -> node
    number: np.ndarray  # (nodes,), of the string that ends at this node; -1 if none does

    def find(self, op: GraphBuilder, codes: str, is_text: str) -> str:
        """Return the numbers of the strings that begin at each character, by their length.

        codes, is_text: (characters,)
        Returns int32 (longest, characters): in row n, those of n + 1 characters; -1 for none.
        """
        columns = op.Where(is_text, look_up(op, self.columns, codes), np.int32(0))
        nodes = op.Expand(np.int32(ROOT), op.Shape(columns))
        body = GraphBuilder(f"{op.new_name()}.", op)
        names = node, column = f"{body.prefix}node", f"{body.prefix}column"
        entry, exists = self.table.look_up(body, node, column)
        entry = body.Where(exists, entry, np.int32(NOWHERE))
        number = body.Gather(self.number, entry)
        any_left = body.Cast(body.ReduceMax(entry, keepdims=0), to=TensorProto.BOOL)
        types = [tensor_type(TensorProto.INT32, 1)] * 2
        following = [entry, shift(body, column, -1, np.int32(0))]
        initial = dict(zip(names, (nodes, columns), strict=True))
        *_, numbers = op.loop(body, initial, types, any_left, following, {number: types[0]})
        return numbers

    def find_longest(self, op: GraphBuilder, codes: str, is_text: str) -> tuple[str, str]:
        """Return the length of the longest string that begins at each character, int64, and its number."""
        numbers = self.find(op, codes, is_text)
        lengths = op.Unsqueeze(op.Range(1, op.Add(op.Squeeze(op.Shape(numbers, end=1)), 1), 1), [1])
        found = op.Mul(cast_to_int(op, op.GreaterOrEqual(numbers, np.int32(0))), lengths)
        length, row = op.ReduceMax(found, [0], keepdims=0), op.ArgMax(found, axis=0, keepdims=1)
        return length, op.Squeeze(op.GatherElements(numbers, row, axis=0), [0])


def build_trie(strings: Iterable[tuple[str, int]]) -> Trie:
    """Build the trie of strings with their numbers; of equal strings, the last number counts."""
    numbers = {string: number for string, number in strings if string}
    # Frequent characters have the lowest columns, so that rows are short.
    frequency = Counter(letter for string in numbers for letter in string)
    column_of = {letter: column for column, (letter, _) in enumerate(frequency.most_common(), start=1)}
    entries: dict[tuple[int, int], int] = {}
    number_of: dict[int, int] = {}
    nodes = ROOT + 1
    for string, number in numbers.items():
        node = ROOT
        for letter in string:
            node = entries.setdefault((node, column_of[letter]), nodes)
            nodes = max(nodes, node + 1)
        number_of[node] = number
    columns = np.zeros(UNICODE, np.int32)
    columns[[ord(letter) for letter in column_of]] = list(column_of.values())
    number = np.full(nodes, -1, np.int32)
    number[list(number_of)] = list(number_of.values())
    return Trie(columns, build_sparse_table(entries, nodes, len(column_of) + 1), number)
