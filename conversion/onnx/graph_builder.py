"""Build ONNX graphs by calls: `op.Add(x, 1)` appends an Add node and returns the name of its output."""

import hashlib
from collections import ChainMap
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

OPSET = 20
# Smaller tensors are constants of the operators, not weights.
SMALLEST_WEIGHT = 1024


class GraphBuilder:
    """The nodes of a graph, in the order of the calls, and its tensors, each stored once.

    The graph of a loop or branch reads the tensors of the graphs around it and does not store them again. Constants
    are stored in the outermost graph.
    """

    def __init__(self, prefix: str, outer: "GraphBuilder | None" = None):
        """prefix: of all names, unique in the file;  outer: the graph that contains this loop or branch"""
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        # By content: the first map is this graph's, the last one the outermost graph's.
        self.stored: ChainMap[tuple, TensorProto] = outer.stored.new_child() if outer else ChainMap()
        self.numbers = outer.numbers if outer else count()

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        """Return a function that appends a node of this kind and returns its output, with `num_outputs` a list.

        Arguments that are not names become constants. The keyword `name` sets the output's name.
        """

        def append(*inputs: Any, name: str | None = None, **attributes: Any) -> str | list[str]:
            names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
            outputs = [name or self.new_name() for _ in range(attributes.get("num_outputs", 1))]
            self.nodes.append(helper.make_node(kind, names, outputs, name=self.new_name(), **attributes))
            return outputs if "num_outputs" in attributes else outputs[0]

        return append

    def new_name(self) -> str:
        return f"{self.prefix}{next(self.numbers)}"

    @property
    def tensors(self) -> list[TensorProto]:
        return list(self.stored.maps[0].values())

    def constant(self, value: int | bytes | list | np.generic | np.ndarray, prefix: str | None = None) -> str:
        """Return the name of a constant. int is int64, bytes is a string."""
        array = np.asarray(value, dtype=object if isinstance(value, bytes) else None)
        constants, content = self.stored.maps[-1], content_of(array)
        if content not in constants:
            name = f"{self.prefix if prefix is None else prefix}constant.{len(constants)}"
            if array.dtype == object:  # onnx's own functions cut strings at U+0000
                strings = array.flatten().tolist()
                tensor = TensorProto(name=name, data_type=TensorProto.STRING, dims=array.shape, string_data=strings)
            else:
                tensor = numpy_helper.from_array(array, name)
            constants[content] = tensor
        return constants[content].name

    def store_tensors(self, graph: GraphProto) -> list[NodeProto]:
        """Store the tensors of another graph and return its nodes, which now read the stored ones.

        A matrix whose transpose is stored already is transposed by a node, which comes first: with tied weights the
        embedding is (V, d_model) and the output matrix (d_model, V).
        """
        replaced, nodes = {}, []
        outputs = {value.name for value in graph.output}
        for tensor in graph.initializer:
            array, is_output = numpy_helper.to_array(tensor), tensor.name in outputs
            stored, transposed = self.stored.get(content_of(array)), None
            if array.ndim == 2 and array.size >= SMALLEST_WEIGHT:
                transposed = self.stored.get(content_of(array.T))
            if stored and is_output:
                nodes.append(helper.make_node("Identity", [stored.name], [tensor.name]))
            elif stored:
                replaced[tensor.name] = stored.name
            elif array.size == 1 and not is_output:
                replaced[tensor.name] = self.constant(array, "number.")
            elif transposed:
                nodes.append(helper.make_node("Transpose", [transposed.name], [tensor.name], perm=[1, 0]))
            else:
                self.stored[content_of(array)] = tensor
        for node in graph.node:
            node.input[:] = [replaced.get(value, value) for value in node.input]
        return [*nodes, *graph.node]

    def inline(
        self, graph: GraphProto, prefix: str, inputs: list[str], outputs: list[str], owner: "GraphBuilder | None" = None
    ) -> list[str]:
        """Append the nodes of another graph, with other names for its inputs and outputs; returns `outputs`.

        owner: stores its tensors, a graph around this one; None for this one
        """
        rename(graph, prefix, inputs, outputs)
        self.nodes += (owner or self).store_tensors(graph)
        return outputs

    def take_loop_invariants(self, variables: Iterable[str]) -> list[NodeProto]:
        """Remove and return the nodes of this loop body whose results are the same in every iteration.

        Nodes that read stored tensors alone stay: the runtime computes them when it loads the file.
        variables: the body's names of the loop's variables
        """
        stored = {tensor.name for tensor in self.stored.values()}
        changing, stays, taken = {*variables, *(tensor.name for tensor in self.tensors)}, [], []
        for node in self.nodes:
            if changing & set(node.input) or stored >= set(node.input):
                changing |= set(node.output)
                stays.append(node)
            else:
                taken.append(node)
        self.nodes = stays
        return taken

    def loop(
        self, body: "GraphBuilder", first: dict[str, str], types: list[TypeProto], condition: str, after: list[str]
    ) -> list[str]:
        """Run the body at least once, and again while `condition` is true at its end; returns the final values.

        first: the body's names of the loop's variables, with their first values;  types: of the variables
        condition, after: the body's names of the condition and of the variables' next values
        """
        flag = tensor_type(TensorProto.BOOL, 0)
        counter = {self.new_name(): tensor_type(TensorProto.INT64, 0), self.new_name(): flag}
        inputs = counter | dict(zip(first, types, strict=True))
        outputs = {condition: flag} | dict(zip(after, types, strict=True))
        graph = body.graph(outputs, inputs)
        final = [self.new_name() for _ in first]
        self.nodes.append(helper.make_node("Loop", ["", self.constant(True), *first.values()], final, body=graph))
        return final

    def graph(self, outputs: dict[str, TypeProto], inputs: dict[str, TypeProto] | None = None) -> GraphProto:
        """Return the body of a loop or branch."""
        given = [ValueInfoProto(name=name, type=type) for name, type in (inputs or {}).items()]
        results = [ValueInfoProto(name=name, type=type) for name, type in outputs.items()]
        return helper.make_graph(self.nodes, f"{self.prefix}graph", given, results, self.tensors)

    def model(
        self,
        name: str,
        inputs: Iterable[ValueInfoProto],
        outputs: Iterable[ValueInfoProto],
        defaults: Iterable[TensorProto] = (),
    ) -> ModelProto:
        """Return a complete file;  defaults: values of optional inputs"""
        graph = helper.make_graph(self.nodes, name, [*inputs], [*outputs], [*self.tensors, *defaults])
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


def content_of(array: np.ndarray) -> tuple:
    if array.dtype == object:
        return "bytes", array.shape, tuple(array.flat)
    return array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def tensor_type(kind: int, rank: int | None = None) -> TypeProto:
    """Return a tensor of any size;  rank: None for any"""
    return helper.make_tensor_type_proto(kind, None if rank is None else [None] * rank)
