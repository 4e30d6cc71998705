"""Edit ONNX graphs: rename values, store each tensor once, drop unused nodes."""

import hashlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

OPSET = 20
# Smaller tensors are constants of the operators, not weights.
SMALLEST_WEIGHT = 1024


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield the graphs of loops and branches inside a graph, innermost first, and the graph itself last."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)
    yield graph


def model_of(graph: GraphProto) -> ModelProto:
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10, producer_name="vaswani-transformer")


def rename(graph: GraphProto, prefix: str, inputs: list[str], outputs: list[str]) -> None:
    """Rename every value in place: inputs and outputs as given, the others by a prefix."""
    assert len(graph.input) == len(inputs) and len(graph.output) == len(outputs), "the exporter dropped an input"
    names = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    duplicates = []  # outputs that are inputs or other outputs as well
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


class Tensors:
    """The tensors of a graph, each stored once: those of the graphs around it are not stored again."""

    def __init__(self, outer: "Tensors | None" = None):
        self.outer = outer
        self.by_content: dict[tuple, TensorProto] = {}

    def find(self, content: tuple) -> str | None:
        if content in self.by_content:
            return self.by_content[content].name
        return self.outer.find(content) if self.outer else None

    def constant(self, value: int | bytes | list | np.generic | np.ndarray, prefix: str = "") -> str:
        """Return the name of a constant, stored in the outermost graph. int is int64, bytes is a string."""
        if self.outer:
            return self.outer.constant(value, prefix)
        array = np.asarray(value, dtype=object if isinstance(value, bytes) else None)
        content = content_of(array)
        if content not in self.by_content:
            name = f"{prefix}constant.{len(self.by_content)}"
            if array.dtype == object:  # onnx's own functions cut strings at U+0000
                strings = array.flatten().tolist()
                tensor = TensorProto(name=name, data_type=TensorProto.STRING, dims=array.shape, string_data=strings)
            else:
                tensor = numpy_helper.from_array(array, name)
            self.by_content[content] = tensor
        return self.by_content[content].name

    def take(self, graph: GraphProto) -> list[NodeProto]:
        """Store the graph's tensors and return its nodes, which now read the stored ones.

        A matrix whose transpose is stored already is transposed by a node, which comes first: with tied weights the
        embedding is (V, d_model) and the output matrix (d_model, V).
        """
        replaced, nodes = {}, []
        outputs = {value.name for value in graph.output}
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            stored, transposed = self.find(content_of(array)), None
            if array.ndim == 2 and array.size >= SMALLEST_WEIGHT:
                transposed = self.find(content_of(array.T))
            if stored and tensor.name in outputs:
                nodes.append(helper.make_node("Identity", [stored], [tensor.name]))
            elif stored:
                replaced[tensor.name] = stored
            elif array.size == 1 and tensor.name not in outputs:
                replaced[tensor.name] = self.constant(array, "number.")
            elif transposed:
                nodes.append(helper.make_node("Transpose", [transposed], [tensor.name], perm=[1, 0]))
            else:
                self.by_content[content_of(array)] = tensor
        for node in graph.node:
            node.input[:] = [replaced.get(value, value) for value in node.input]
        return [*nodes, *graph.node]

    def names(self) -> set[str]:
        """Return the names of these tensors and of those of the graphs around."""
        return {tensor.name for tensor in self} | (self.outer.names() if self.outer else set())

    def __iter__(self) -> Iterator[TensorProto]:
        return iter(self.by_content.values())


def content_of(array: np.ndarray) -> tuple:
    if array.dtype == object:
        return "bytes", array.shape, tuple(array.flat)
    return array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def remove_unused(graph: GraphProto) -> None:
    """Remove nodes and tensors that nothing reads, also from the graphs of loops and branches inside."""
    bodies = list(graphs_of(graph))
    reads = Counter(name for body in bodies for node in body.node for name in node.input)
    reads.update(value.name for values in (graph.input, *(body.output for body in bodies)) for value in values)
    for body in bodies:  # inner ones first
        for place, node in reversed(list(enumerate(body.node))):
            if not any(reads[name] for name in node.output):
                reads.subtract(node.input)
                del body.node[place]
        for place, tensor in reversed(list(enumerate(body.initializer))):
            if not reads[tensor.name]:
                del body.initializer[place]
