"""Write ONNX graphs as calls: `op.Add(x, 1)` appends an Add node and returns the name of its output."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from .graph_surgery import Tensors, rename


class Operators:
    """The nodes of a graph, in the order of the calls. Arguments that are not names become constants."""

    def __init__(self, prefix: str, outer: "Operators | None" = None):
        """prefix: of all names, unique in the file;  outer: the graph that contains this loop or branch"""
        self.prefix = prefix
        self.nodes: list = []
        self.tensors = Tensors(outer.tensors if outer else None)
        self.numbers = outer.numbers if outer else count()

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        """Return a function that appends a node of this kind and returns its output, with `num_outputs` a list.

        The keyword `name` sets the output's name.
        """

        def append(*inputs: Any, name: str | None = None, **attributes: Any) -> str | list[str]:
            names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
            outputs = [name or self.new_name() for _ in range(attributes.get("num_outputs", 1))]
            self.nodes.append(helper.make_node(kind, names, outputs, name=self.new_name(), **attributes))
            return outputs if "num_outputs" in attributes else outputs[0]

        return append

    def new_name(self) -> str:
        return f"{self.prefix}{next(self.numbers)}"

    def constant(self, value: Any) -> str:
        return self.tensors.constant(value, self.prefix)

    def inline(self, graph: GraphProto, prefix: str, inputs: list[str], outputs: list[str]) -> list[str]:
        """Append the nodes of another graph, with other names for its inputs and outputs; returns `outputs`."""
        rename(graph, prefix, inputs, outputs)
        self.nodes += self.tensors.take(graph)
        return outputs

    def take_loop_invariants(self, variables: Iterable[str]) -> list[NodeProto]:
        """Remove and return the nodes of this loop body whose results are the same in every iteration.

        Nodes that read stored tensors alone stay: the runtime computes them when it loads the file.
        variables: the body's names of the loop's variables
        """
        stored, own = self.tensors.names(), {tensor.name for tensor in self.tensors}
        changing, stays, taken = {*variables, *own}, [], []
        for node in self.nodes:
            if changing & set(node.input) or stored >= set(node.input):
                changing |= set(node.output)
                stays.append(node)
            else:
                taken.append(node)
        self.nodes = stays
        return taken

    def graph(self, outputs: dict[str, TypeProto], inputs: Iterable[ValueInfoProto] = ()) -> GraphProto:
        """Return the body of a loop or branch."""
        values = [ValueInfoProto(name=name, type=type) for name, type in outputs.items()]
        name = f"{self.prefix}graph"
        return GraphProto(name=name, node=self.nodes, input=inputs, output=values, initializer=self.tensors)

    def loop(
        self, body: "Operators", first: dict[str, str], types: list[TypeProto], go_on: str, after: list[str]
    ) -> list[str]:
        """Run the body until `go_on` is false at its end, at least once; returns the final values.

        first: the body's names of the loop's variables, with their first values;  types: of the variables
        go_on, after: the body's names of the condition and of the variables' next values
        """
        flag = tensor_type(TensorProto.BOOL, 0)
        counter = {self.new_name(): tensor_type(TensorProto.INT64, 0), self.new_name(): flag}
        variables = counter | dict(zip(first, types, strict=True))
        inputs = [ValueInfoProto(name=name, type=type) for name, type in variables.items()]
        outputs = {go_on: flag} | dict(zip(after, types, strict=True))
        graph = body.graph(outputs, inputs)
        final = [self.new_name() for _ in first]
        self.nodes.append(helper.make_node("Loop", ["", self.constant(True), *first.values()], final, body=graph))
        return final


def tensor_type(kind: int, rank: int | None = None) -> TypeProto:
    """Return a tensor of any size;  rank: None for any"""
    return helper.make_tensor_type_proto(kind, None if rank is None else [None] * rank)
