"""Build ONNX graphs by calls: `op.Add(x, 1)` appends an Add node and returns the name of its output.

Strings are names of values; other arguments become constants. Inputs are in the order of ONNX's specification:

    op.Slice(x, [0], [2], [1])     x[:, :2]     starts, ends, axes
    op.Unsqueeze(x, [1])           x[:, None]   axes
    op.Gather(x, ids, axis=0)      x[ids]       keywords are attributes
    op.Shape(x, start=1, end=2)    the second size, as a vector (1,)

onnx_ir has a similar builder (`onnx_ir.tape`), but it shares no initializers between nested graphs.
"""

import hashlib
from collections import ChainMap
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

OPSET = 20
# Maximum iterations of a Loop. The input is optional, but onnxruntime's symbolic shape inference fails without it.
NO_TRIP_LIMIT = 2**63 - 1
# Number of elements. Smaller matrices are not weights: they are stored although their transpose is.
SMALLEST_WEIGHT = 1024
BLOCK = 256  # of tables for all characters; equal blocks are stored once
TO_THE_END = [2**31]  # of a Slice: larger than any size


class GraphBuilder:
    """Collects nodes in call order, and initializers, each stored once.

    A subgraph uses the initializers of its outer graphs; constants are stored in the outermost graph.
    """

    def __init__(self, prefix: str, outer: "GraphBuilder | None" = None):
        """Begin a graph.

        prefix: begins every name in this graph, unique in the file
        outer: the graph that contains this loop body or branch
        """
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        # By content. The first map is this graph's, the last one the outermost graph's.
        self.initializers: ChainMap[tuple, TensorProto] = outer.initializers.new_child() if outer else ChainMap()
        self.numbers = outer.numbers if outer else count()

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        """Return a function that appends a node and returns the name of its output, or a list with `num_outputs`.

        The keyword `name` names the output; the other keywords are attributes of the node.
        """

        def append(*inputs: Any, name: str | None = None, **attributes: Any) -> str | list[str]:
            names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
            outputs = [name or self.new_name() for _ in range(attributes.get("num_outputs", 1))]
            self.nodes.append(helper.make_node(op_type, names, outputs, name=self.new_name(), **attributes))
            return outputs if "num_outputs" in attributes else outputs[0]

        return append

    def new_name(self) -> str:
        return f"{self.prefix}{next(self.numbers)}"

    @property
    def own_initializers(self) -> list[TensorProto]:
        return list(self.initializers.maps[0].values())

    def constant(self, value: int | bytes | list | np.generic | np.ndarray) -> str:
        """Store a constant and return its name. An int becomes int64, bytes become a string."""
        array = np.asarray(value, dtype=object if isinstance(value, bytes) else None)
        constants, content = self.initializers.maps[-1], hash_content(array)
        if content not in constants:
            name = f"{self.prefix}constant.{len(constants)}"
            if array.dtype == object:  # onnx's own functions cut strings at U+0000
                strings = array.flatten().tolist()
                tensor = TensorProto(name=name, data_type=TensorProto.STRING, dims=array.shape, string_data=strings)
            else:
                tensor = numpy_helper.from_array(array, name)
            constants[content] = tensor
        return constants[content].name

    def store_initializers(self, graph: GraphProto) -> list[NodeProto]:
        """Store the initializers of another graph and return its nodes, which now read the stored ones.

        If the transpose of a matrix is already stored, the first nodes transpose it: with tied weights the embedding is
        (V, d_model) and the output matrix (d_model, V).
        """
        replaced, nodes = {}, []
        outputs = {value.name for value in graph.output}
        for tensor in graph.initializer:
            array, is_output = numpy_helper.to_array(tensor), tensor.name in outputs
            stored = self.initializers.get(hash_content(array))
            is_weight = array.ndim == 2 and array.size >= SMALLEST_WEIGHT
            if stored and is_output:
                nodes.append(helper.make_node("Identity", [stored.name], [tensor.name]))
            elif stored:
                replaced[tensor.name] = stored.name
            elif array.size == 1 and not is_output:
                replaced[tensor.name] = self.constant(array)
            elif is_weight and (transposed := self.initializers.get(hash_content(array.T))):
                nodes.append(helper.make_node("Transpose", [transposed.name], [tensor.name], perm=[1, 0]))
            else:
                self.initializers[hash_content(array)] = tensor
        for node in graph.node:
            node.input[:] = [replaced.get(value, value) for value in node.input]
        return [*nodes, *graph.node]

    def inline(
        self,
        graph: GraphProto,
        prefix: str,
        inputs: list[str],
        outputs: list[str],
        initializer_graph: "GraphBuilder | None" = None,
    ) -> None:
        """Append the nodes of another graph, which is renamed in place, with these names of inputs and outputs.

        prefix: begins every other name
        initializer_graph: the graph that stores the weights: this one (None) or one around it
        """
        rename_values(graph, prefix, inputs, outputs)
        self.nodes += (initializer_graph or self).store_initializers(graph)

    def hoist_loop_invariants(self, variables: Iterable[str]) -> list[NodeProto]:
        """Remove the nodes of this loop body that compute the same in every iteration, and return them.

        Nodes that read the body's own weights stay, because the weights must, too (see single_graph.py), and so do
        nodes whose inputs are all initializers: ONNX Runtime folds them at load time. With two layers a step of the
        search keeps 136 of 158 operators; for the speed see benchmarks/results/LOG.md, 2026-11-23.

        variables: names of the loop variables in the body
        """
        stored = {tensor.name for tensor in self.initializers.values()}
        varying, kept, hoisted = {*variables, *(tensor.name for tensor in self.own_initializers)}, [], []
        for node in self.nodes:
            if varying & set(node.input) or stored >= set(node.input):
                varying |= set(node.output)
                kept.append(node)
            else:
                hoisted.append(node)
        self.nodes = kept
        return hoisted

    def loop(
        self,
        body: "GraphBuilder",
        initial_values: dict[str, str],
        types: list[TypeProto],
        condition: str,
        next_values: list[str],
        collected: dict[str, TypeProto] | None = None,
    ) -> list[str]:
        """Run the body once, repeat it while `condition` is true at its end, and return the final values.

        initial_values: by name of the loop variable in the body;  types: the types of the loop variables
        condition, next_values: names in the body
        collected: names in the body, with their types, whose values in all iterations are returned as well, stacked
        """
        flag = tensor_type(TensorProto.BOOL, 0)
        counter = {self.new_name(): tensor_type(TensorProto.INT64, 0), self.new_name(): flag}
        inputs = counter | dict(zip(initial_values, types, strict=True))
        outputs = {condition: flag} | dict(zip(next_values, types, strict=True)) | (collected or {})
        graph = body.graph(outputs, inputs)
        final = [self.new_name() for _ in (*initial_values, *(collected or ()))]
        inputs = [self.constant(NO_TRIP_LIMIT), self.constant(True), *initial_values.values()]
        self.nodes.append(helper.make_node("Loop", inputs, final, body=graph))
        return final

    def graph(self, outputs: dict[str, TypeProto], inputs: dict[str, TypeProto] | None = None) -> GraphProto:
        """Return this graph as the body of a loop or branch."""
        given = [ValueInfoProto(name=name, type=type) for name, type in (inputs or {}).items()]
        results = [ValueInfoProto(name=name, type=type) for name, type in outputs.items()]
        return helper.make_graph(self.nodes, f"{self.prefix}graph", given, results, self.own_initializers)

    def model(
        self,
        name: str,
        inputs: Iterable[ValueInfoProto],
        outputs: Iterable[ValueInfoProto],
        defaults: Iterable[TensorProto] = (),
    ) -> ModelProto:
        """Return a complete file;  defaults: values of optional inputs"""
        graph = helper.make_graph(self.nodes, name, [*inputs], [*outputs], [*self.own_initializers, *defaults])
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10, producer_name="vaswani-transformer")


def rename_values(graph: GraphProto, prefix: str, inputs: list[str], outputs: list[str]) -> None:
    """Rename all values in place: inputs and outputs as given, the rest with a prefix."""
    assert len(graph.input) == len(inputs) and len(graph.output) == len(outputs), "the exporter dropped an input"
    names = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    duplicates = []  # outputs that are also inputs or other outputs
    for value, name in zip(graph.output, outputs, strict=True):
        if value.name in names:
            duplicates.append(helper.make_node("Identity", [names[value.name]], [name]))
        else:
            names[value.name] = name
        value.name = name
    for value, name in zip(graph.input, inputs, strict=True):
        value.name = name
    for tensor in graph.initializer:
        tensor.name = names.setdefault(tensor.name, prefix + tensor.name)
    for node in graph.node:
        assert not any(attribute.HasField("g") for attribute in node.attribute), "nested graphs are not renamed"
        node.name = prefix + node.name
        for values in (node.input, node.output):
            values[:] = [names.get(value, prefix + value) if value else "" for value in values]
    graph.node.extend(duplicates)


def hash_content(array: np.ndarray) -> tuple:
    if array.dtype == object:
        return "bytes", array.shape, tuple(array.flat)
    return array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def type_without_sizes(value: ValueInfoProto) -> TypeProto:
    """Return the type of an input or output, for tensors of the same rank and any size."""
    tensor = value.type.tensor_type
    return tensor_type(tensor.elem_type, len(tensor.shape.dim))


def tensor_type(element_type: int, rank: int | None = None) -> TypeProto:
    """Return the type of tensors of any size;  rank: None for any"""
    return helper.make_tensor_type_proto(element_type, None if rank is None else [None] * rank)


# ---- operations on vectors ----------------------------------------------------------------------------------------


def shift(op: GraphBuilder, values: str, by: int, filler: Any) -> str:
    """Shift a vector right by `by` (left if negative) and fill with `filler`."""
    padding = [filler] * abs(by)
    longer = op.Concat(*([padding, values] if by > 0 else [values, padding]), axis=0)
    return op.Slice(longer, [0], [-by], [0]) if by > 0 else op.Slice(longer, [-by], TO_THE_END, [0])


def batch_rows(op: GraphBuilder, ids: str, rows: str, batch: str, filler: int) -> tuple[str, str]:
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
    return values, cast_to_int(op, mask)


def cast_to_int(op: GraphBuilder, flags: str) -> str:
    return op.Cast(flags, to=TensorProto.INT64)


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


def spread(op: GraphBuilder, lengths: str) -> tuple[str, str]:
    """Return, for each element of sequences that are concatenated, its sequence and its place there, from 0.

    lengths: int64 (sequences,), of which one is not 0
    """
    numbers = op.Range(0, op.Squeeze(op.Shape(lengths)), 1)
    is_any = op.Greater(lengths, 0)
    numbers, lengths = op.Compress(numbers, is_any), op.Compress(lengths, is_any)
    begin, total = op.CumSum(lengths, 0, exclusive=1), op.ReduceSum(lengths)
    first = op.ScatterElements(op.Expand(0, total), begin, op.Expand(1, op.Shape(lengths)))
    sequence = op.Sub(op.CumSum(first, 0), 1)
    within = op.Sub(op.Range(0, op.Squeeze(total), 1), op.Gather(begin, sequence))
    return op.Gather(numbers, sequence), within


def nearest_values(op: GraphBuilder, values: str, is_skipped: str) -> tuple[str, str]:
    """Return, for each element of a bool vector, the last value before and the first after it that are not skipped.

    An element that is not skipped is the last one before itself. Beyond both ends, the value is False.
    """
    kept = op.Compress(values, op.Not(is_skipped))
    count = op.CumSum(cast_to_int(op, op.Not(is_skipped)), 0)
    before = op.Gather(op.Concat([False], kept, axis=0), count)
    after = op.Gather(op.Concat(kept, [False], axis=0), count)
    return before, after


def find_ends(op: GraphBuilder, is_blank: str, is_text: str) -> str:
    """Return which blank characters are at the beginning or end of a text."""
    before, after = nearest_values(op, is_text, is_blank)
    return op.And(is_blank, op.Not(op.And(before, after)))


def has_flag(op: GraphBuilder, flags: str, flag: int) -> str:
    """Return which elements of a uint8 tensor have this bit."""
    return op.Cast(op.BitwiseAnd(flags, np.uint8(flag)), to=TensorProto.BOOL)
