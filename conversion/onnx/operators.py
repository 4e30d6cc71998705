"""Graphs written as calls: `op.Add(x, 1)` appends an Add and gives the name of what it computes."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, ValueInfoProto, helper, numpy_helper

from .single_graph import content_of


class Operators:
    """Operators in the order of the calls. What is no name is a constant: int is int64, bytes is a string."""

    def __init__(self, prefix: str, parent: "Operators | None" = None):
        """prefix: of all names, unique in the file;  parent: of the graph that this one, a loop's, lies in"""
        self.prefix = prefix
        self.nodes: list = []
        self.tensors: dict[tuple, TensorProto] = parent.tensors if parent else {}
        self.numbers = parent.numbers if parent else count()

    def __getattr__(self, kind: str) -> Callable[..., str]:
        def append(*inputs: Any, **attributes: Any) -> str:
            names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
            output = f"{self.prefix}{next(self.numbers)}"
            self.nodes.append(helper.make_node(kind, names, [output], name=output, **attributes))
            return output

        return append

    def constant(self, value: Any) -> str:
        array = np.asarray(value, dtype=object if isinstance(value, bytes) else None)
        content = ("bytes", array.shape, tuple(array.flat)) if array.dtype == object else content_of(array)
        if content not in self.tensors:
            name = f"{self.prefix}{next(self.numbers)}"
            if array.dtype == object:  # onnx's own functions lose U+0000
                strings = array.flatten().tolist()
                tensor = TensorProto(name=name, data_type=TensorProto.STRING, dims=array.shape, string_data=strings)
            else:
                tensor = numpy_helper.from_array(array, name)
            self.tensors[content] = tensor
        return self.tensors[content].name

    def repeated(
        self, body: "Operators", given: dict[str, str], kinds: list[int], go_on: str, after: list[str]
    ) -> list:
        """What the values are when `go_on` is false at the end of a round; at least one round.

        body: operators of a round;  given: its names of the values -> what they are at first
        kinds: their types;  go_on, after: in the round's names, whether there is another, and the values then
        """
        flag = helper.make_tensor_value_info
        inputs = [
            flag(f"{self.prefix}{next(self.numbers)}", TensorProto.INT64, []),
            flag(f"{self.prefix}{next(self.numbers)}", TensorProto.BOOL, []),
            *(ValueInfoProto(name=name, type=unshaped(kind)) for name, kind in zip(given, kinds, strict=True)),
        ]
        outputs = [
            flag(go_on, TensorProto.BOOL, []),
            *(ValueInfoProto(name=name, type=unshaped(kind)) for name, kind in zip(after, kinds, strict=True)),
        ]
        graph = GraphProto(name=f"{self.prefix}round", node=body.nodes, input=inputs, output=outputs)
        ends = [f"{self.prefix}{next(self.numbers)}" for _ in given]
        self.nodes.append(helper.make_node("Loop", ["", self.constant(True), *given.values()], ends, body=graph))
        return ends


def unshaped(kind: int):
    return helper.make_tensor_type_proto(kind, None)
