"""Rewrite graphs: visit those of loops and branches, remove what is unused, and make torch's operators cheaper.

`simplify` replaces operators that torch's exporter emits for dynamic shapes:

* A Reshape with computed sizes gets constant sizes, where torch uses the same symbol for a size of input and output.
* GatherElements along the second axis, with one index per row, becomes GatherND, which copies rows. Its indices are
  pairs (sentence, row), because onnxruntime's symbolic shape inference ignores the attribute batch_dims.
* GatherND along the first axis becomes Gather, and Gather uses a 1-D index directly instead of a reshaped one.
* A size is read from the first input that has it: inputs that change in every step of a loop come last.

With two layers a step of the search has 136 operators instead of 156. Together with loop invariants and other changes,
fewer operators made the search 1.06 times as fast at batch 1 (benchmarks/results/LOG.md, 2026-11-23). The optimizers of
onnxscript and ONNX Runtime remove none of these 20: they do not know which sizes are equal.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from .graph_builder import GraphBuilder

Shapes = dict[str, list]  # by value: the sizes, each a number or torch's symbol


def walk_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield the graphs of loops and branches in a graph, innermost first, and then the graph itself."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from walk_graphs(attribute.g)
    yield graph


def remove_unused(graph: GraphProto) -> None:
    """Remove unused nodes and initializers from a graph and its subgraphs."""
    bodies = list(walk_graphs(graph))
    reads = Counter(name for body in bodies for node in body.node for name in node.input)
    reads.update(value.name for values in (graph.input, *(body.output for body in bodies)) for value in values)
    for body in bodies:  # inner ones first
        for index, node in reversed(list(enumerate(body.node))):
            if not any(reads[name] for name in node.output):
                reads.subtract(node.input)
                del body.node[index]
        for index, tensor in reversed(list(enumerate(body.initializer))):
            if not reads[tensor.name]:
                del body.initializer[index]


def simplify(graph: GraphProto) -> None:
    """Simplify in place. The graph's inputs, outputs and value_info must have torch's symbols for sizes."""
    shapes: Shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    made_by = {name: node for node in graph.node for name in node.output}
    # Reversed, so that the first input with a size overwrites the others.
    names = [value.name for value in graph.input]
    inputs = {size: (name, axis) for name in reversed(names) for axis, size in enumerate(shapes[name])}
    op = GraphBuilder("numbers.")
    pairs: set[str] = set()  # indices of GatherND, which several nodes may share
    for node in graph.node:
        index = made_by.get(node.input[1], NodeProto()) if len(node.input) > 1 else NodeProto()
        if node.op_type == "Reshape" and index.op_type and (sizes := find_constant_shape(node, shapes)):
            graph.initializer.append(numpy_helper.from_array(np.array(sizes), f"{node.output[0]}.shape"))
            replace_node(node, "Reshape", [node.input[0], f"{node.output[0]}.shape"])
        elif node.op_type == "GatherElements" and (node.input[1] in pairs or is_row_index(node, index, shapes)):
            if node.input[1] not in pairs:
                sentences = number_sentences(op, [inputs[size] for size in shapes[index.input[0]][:2]])
                replace_node(index, "Concat", [sentences, index.input[0]], axis=2)
                pairs.add(node.input[1])
            replace_node(node, "GatherND", node.input[:2])
        elif node.op_type == "GatherND" and is_index_of_first_axis(node, index, shapes):
            replace_node(node, "Gather", [node.input[0], index.input[0]], axis=0)
        elif node.op_type == "Gather" and index.op_type == "Reshape" and len(shapes.get(index.input[0], [])) == 1:
            node.input[1] = index.input[0]
        elif node.op_type == "Shape" and (source := inputs.get(find_single_size(node, shapes))):
            name, axis = source
            replace_node(node, "Shape", [name], start=axis, end=axis + 1)
    nodes = [*op.nodes, *graph.node]  # they read only inputs
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(op.own_initializers)
    remove_unused(graph)


def read_attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def replace_node(node: NodeProto, op_type: str, inputs: list[str], **attributes: Any) -> None:
    """Turn the node into another operator in place; its outputs keep their names."""
    node.CopyFrom(helper.make_node(op_type, inputs, node.output, name=node.name, **attributes))


def find_constant_shape(reshape: NodeProto, shapes: Shapes) -> list[int] | None:
    """Return constant sizes for a Reshape: 0 keeps an input size, -1 is inferred; None if two would be inferred."""
    before, after = shapes.get(reshape.input[0]), shapes.get(reshape.output[0])
    if not before or not after:
        return None
    sizes = [
        size if isinstance(size, int) else 0 if [size] == before[axis : axis + 1] else -1
        for axis, size in enumerate(after)
    ]
    return sizes if sizes.count(-1) <= 1 else None


def is_index_of_first_axis(node: NodeProto, index: NodeProto, shapes: Shapes) -> bool:
    """Return whether a GatherND has an index (..., 1), made by Unsqueeze, and no batch dimensions."""
    has_one_index = shapes.get(node.input[1], [])[-1:] == [1]
    return has_one_index and index.op_type == "Unsqueeze" and not read_attributes(node).get("batch_dims")


def find_single_size(node: NodeProto, shapes: Shapes) -> int | str | None:
    """Return the size that a Shape node returns, or None if it returns several sizes or an unknown one."""
    start, end = (read_attributes(node).get(name) for name in ("start", "end"))
    known = shapes.get(node.input[0])
    return known[start] if known and start is not None and end == start + 1 else None


def is_row_index(node: NodeProto, index: NodeProto, shapes: Shapes) -> bool:
    """Return whether a GatherElements has an index (batch, rows, 1) that was expanded over the last axis."""
    if index.op_type != "Expand" or read_attributes(node).get("axis", 0) != 1:
        return False
    before, after = shapes.get(index.input[0], []), shapes.get(node.input[1], [])
    return len(before) == 3 and before[2] == 1 and before[:2] == after[:2]


def number_sentences(op: GraphBuilder, sizes: list[tuple[str, int]]) -> str:
    """Return the number of the sentence of each row, (batch, rows, 1).

    sizes: an input and its axis that has the size of the batch, and those with the number of rows
    """
    shape = op.Concat(*(op.Shape(name, start=axis, end=axis + 1) for name, axis in sizes), [1], axis=0)
    ones = op.ConstantOfShape(shape, value=helper.make_tensor("", TensorProto.INT64, [1], [1]))
    return op.CumSum(ones, 0, exclusive=1)
