"""Replace what torch's exporter writes for tensors of any shape by cheaper operators.

* A Reshape whose sizes are computed at run time gets constant ones, where torch has the same symbol for a size of input
  and output.
* GatherElements along the second axis, with one index for the whole last axis, becomes GatherND, which copies rows.
* GatherND along the first axis becomes Gather, and a Gather reads an index that has one axis without reshaping it.
* A size is read from the first input that has it: inputs that change in every step of a loop come last.
"""

from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from .subgraphs import remove_unused

Shapes = dict[str, list]  # of each value: the sizes, a number or torch's symbol


def simplify(graph: GraphProto) -> None:
    """Simplify in place. The graph's inputs, outputs and value_info must have torch's symbols for sizes."""
    shapes: Shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    made_by = {name: node for node in graph.node for name in node.output}
    # The first input with each size comes last here and so remains.
    names = [value.name for value in graph.input]
    inputs = {size: (name, axis) for name in reversed(names) for axis, size in enumerate(shapes[name])}
    for node in graph.node:
        index = made_by.get(node.input[1], NodeProto()) if len(node.input) > 1 else NodeProto()
        if node.op_type == "Reshape" and index.op_type and (sizes := constant_shape(node, shapes)):
            graph.initializer.append(numpy_helper.from_array(np.array(sizes), f"{node.output[0]}.shape"))
            replace(node, "Reshape", [node.input[0], f"{node.output[0]}.shape"])
        elif node.op_type == "GatherElements" and is_row_index(node, index, shapes):
            replace(node, "GatherND", [node.input[0], index.input[0]], batch_dims=1)
        elif node.op_type == "GatherND" and is_index_of_first_axis(node, index, shapes):
            replace(node, "Gather", [node.input[0], index.input[0]], axis=0)
        elif node.op_type == "Gather" and index.op_type == "Reshape" and len(shapes.get(index.input[0], "  ")) == 1:
            node.input[1] = index.input[0]
        elif node.op_type == "Shape" and (source := inputs.get(one_size(node, shapes))):
            name, axis = source
            replace(node, "Shape", [name], start=axis, end=axis + 1)
    remove_unused(graph)


def settings(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def replace(node: NodeProto, kind: str, inputs: list[str], **attributes: Any) -> None:
    """Make another operator of the node, in place; its outputs keep their names."""
    node.CopyFrom(helper.make_node(kind, inputs, node.output, name=node.name, **attributes))


def constant_shape(reshape: NodeProto, shapes: Shapes) -> list[int] | None:
    """Return the sizes that Reshape takes, 0 for the input's size and -1 for a remaining one; None if more remain."""
    before, after = shapes.get(reshape.input[0]), shapes.get(reshape.output[0])
    if not before or not after:
        return None
    sizes = [
        size if isinstance(size, int) else 0 if [size] == before[axis : axis + 1] else -1
        for axis, size in enumerate(after)
    ]
    return sizes if sizes.count(-1) <= 1 else None


def is_index_of_first_axis(node: NodeProto, index: NodeProto, shapes: Shapes) -> bool:
    one = shapes.get(node.input[1], [0])[-1] == 1
    return one and index.op_type == "Unsqueeze" and not settings(node).get("batch_dims")


def one_size(node: NodeProto, shapes: Shapes) -> int | str | None:
    """Return the size that a Shape node returns, or None if it returns several or the size is not known."""
    start, end = (settings(node).get(name) for name in ("start", "end"))
    known = shapes.get(node.input[0])
    return known[start] if known and start is not None and end == start + 1 else None


def is_row_index(node: NodeProto, index: NodeProto, shapes: Shapes) -> bool:
    """Whether the index, (batch, rows, 1), was expanded over the last of three axes."""
    if index.op_type != "Expand" or settings(node).get("axis", 0) != 1:
        return False
    before, after = shapes.get(index.input[0], []), shapes.get(node.input[1], [])
    return len(before) == 3 and before[2] == 1 and before[:2] == after[:2]
