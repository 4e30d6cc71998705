"""What the exporter writes for any tensor, written for those that are there: fewer operators in every step.

A reshape whose sizes are computed while the graph runs has the same sizes as its input where torch has the same
symbol for both, and ONNX can say that with a constant. A gather along the second axis whose index is the same for the
whole last axis fetches rows.
"""

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper


def simplify(graph: GraphProto) -> None:
    """In place; the graph's inputs, outputs and values_info have the symbols that torch has for sizes."""
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[1] not in constants:
            sizes = constant_shape(shapes.get(node.input[0]), shapes.get(node.output[0]))
            if sizes is not None:
                name = f"{node.output[0]}.shape"
                graph.initializer.append(numpy_helper.from_array(np.array(sizes), name))
                node.input[1] = name
                for attribute in [a for a in node.attribute if a.name == "allowzero"]:
                    node.attribute.remove(attribute)
        elif node.op_type == "GatherElements":
            index = row_index(node, made_by, shapes)
            if index is not None:
                node.op_type = "GatherND"
                node.input[1] = index
                del node.attribute[:]
                node.attribute.append(helper.make_attribute("batch_dims", 1))
    remove_unread(graph)


def constant_shape(before: list | None, after: list | None) -> list[int] | None:
    """The sizes as ONNX's Reshape reads them: 0 where input and output agree, -1 for the one that is left."""
    if not before or not after:
        return None
    sizes = [
        0 if axis < len(before) and size == before[axis] and not isinstance(size, int) else size
        for axis, size in enumerate(after)
    ]
    unknown = [axis for axis, size in enumerate(sizes) if not isinstance(size, int)]
    if len(unknown) > 1:
        return None
    return [-1 if axis in unknown else size for axis, size in enumerate(sizes)]


def row_index(node: NodeProto, made_by: dict[str, NodeProto], shapes: dict[str, list]) -> str | None:
    """What a gather's index was before it was repeated over the last of three axes: (batch, rows, 1)."""
    expand = made_by.get(node.input[1])
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    if expand is None or expand.op_type != "Expand" or axis != 1:
        return None
    before, after = shapes.get(expand.input[0], []), shapes.get(node.input[1], [])
    return expand.input[0] if len(before) == 3 and before[2] == 1 and before[:2] == after[:2] else None


def remove_unread(graph: GraphProto) -> None:
    """Nodes whose outputs nobody reads, and the constants that only they read."""
    read = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if read & set(node.output):
            kept.append(node)
            read |= set(node.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
