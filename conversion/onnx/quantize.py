"""A float32 graph -> the same graph with its weights in eight bits, one copy of each.

Every matrix gets one scale per output column, and the embedding, which is also the output matrix, one per token:
lookup and projection read the same bytes. Activations are quantised while the graph runs, each row by its own
largest value, so that a sentence does not depend on its neighbours: a scale per tensor, as onnxruntime's
quantize_dynamic has it, is 1.1 times as fast and lets one sentence's outlier coarsen all others (twice the divergence
from float32's probabilities). What a ReLU gives is never negative and has all 255 steps.

On x86 without VNNI, ONNX Runtime adds products of unsigned with signed bytes in pairs in 16 bits, where large ones
saturate (its documentation on quantization): a file that was proved on VNNI or ARM may score otherwise there.

Or they stay float32, and the weights become float32 again before the products: a small file, float32's speed and
almost its translations. That is spelt Cast and Mul, which ONNX Runtime computes once, when it loads the file.
DequantizeLinear would say the same, but ONNX Runtime 1.31 computes it in every call (base, one sentence: 3 times as
slow) and, within a loop, fuses it into an operator whose weights it then does not find.
"""

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .graph_surgery import graphs_of, remove_unused


def quantized(model: ModelProto, activations: bool = True) -> ModelProto:
    """In place: weights int8, products of uint8 rows with int8 columns, summed in int32. Standard operators.

    activations: False for float32 rows and products
    """
    graph = model.graph
    bodies = list(graphs_of(graph))
    floats = {
        tensor.name: tensor for body in bodies for tensor in body.initializer if tensor.data_type == TensorProto.FLOAT
    }
    # The tied matrix is an embedding whose transpose is the output matrix.
    transposes = {
        node.output[0]: node.input[0]
        for body in bodies
        for node in body.node
        if node.op_type == "Transpose" and node.input[0] in floats
    }
    rewriting = Rewriting(graph, floats, transposes, activations)
    for body in bodies:  # inner ones first: rewriting a graph copies its nodes, with the graphs inside them
        rewriting.rewrite(body)
    rewriting.finish()
    return model


class Rewriting:
    def __init__(
        self, graph: GraphProto, floats: dict[str, TensorProto], transposes: dict[str, str], activations: bool
    ):
        self.graph, self.floats, self.transposes, self.activations = graph, floats, transposes, activations
        self.tables = {
            node.input[0]
            for body in graphs_of(graph)
            for node in body.node
            if node.op_type == "Gather" and node.input[0] in floats
        } | set(transposes.values())
        self.done: set[str] = set()
        graph.initializer.extend(
            [
                numpy_helper.from_array(np.array(128, np.uint8), "int8.middle"),
                numpy_helper.from_array(np.array(0, np.uint8), "int8.lowest"),
                numpy_helper.from_array(np.array(1 / 127, np.float32), "int8.step_from_middle"),
                numpy_helper.from_array(np.array(1 / 255, np.float32), "int8.step_from_lowest"),
                numpy_helper.from_array(np.array([-1]), "int8.last_axis"),
            ]
        )

    def weight(self, name: str, axis: int) -> tuple[str, str]:
        """The names of a matrix in int8 and of its scales; axis: along which the products are summed."""
        if name not in self.done:
            self.done.add(name)
            array = numpy_helper.to_array(self.floats[name])
            scale = np.maximum(np.abs(array).max(axis=axis), 1e-20).astype(np.float32) / 127
            rounded = np.rint(array / np.expand_dims(scale, axis)).astype(np.int8)
            # Where the float matrix was: ONNX Runtime packs a loop's own.
            owner = next(body for body in graphs_of(self.graph) if name in {tensor.name for tensor in body.initializer})
            owner.initializer.extend(
                [numpy_helper.from_array(rounded, f"{name}.int8"), numpy_helper.from_array(scale, f"{name}.scale")]
            )
        return f"{name}.int8", f"{name}.scale"

    def rewrite(self, body: GraphProto) -> None:
        nodes: list[NodeProto] = []
        rows: dict[str, list[str]] = {}
        self.never_negative = {node.output[0] for node in body.node if node.op_type == "Relu"}
        for node in body.node:
            matrix = node.input[1] if node.op_type == "MatMul" else None
            if matrix in self.transposes:
                nodes += self.product(node, rows, *self.weight(self.transposes[matrix], axis=1), transposed=True)
            elif matrix in self.floats:
                nodes += self.product(node, rows, *self.weight(matrix, axis=0), transposed=False)
            elif node.op_type == "Gather" and node.input[0] in self.tables and self.is_matrix(node.input[0]):
                nodes += self.lookup(node, *self.weight(node.input[0], axis=1))
            else:
                nodes.append(node)
        del body.node[:]
        body.node.extend(nodes)

    def is_matrix(self, name: str) -> bool:
        return len(self.floats[name].dims) == 2

    def product(
        self, node: NodeProto, rows: dict[str, list[str]], matrix: str, scale: str, transposed: bool
    ) -> list[NodeProto]:
        """rows (..., in) in uint8 with a scale each, times the columns in int8, times both scales; or in float32"""
        nodes = []
        source, out = node.input[0], node.output[0]
        if transposed:
            nodes.append(helper.make_node("Transpose", [matrix], [f"{out}.matrix"], perm=[1, 0]))
            matrix = f"{out}.matrix"
        if not self.activations:
            return [
                *nodes,
                helper.make_node("Cast", [matrix], [f"{out}.rounded"], to=TensorProto.FLOAT),
                helper.make_node("Mul", [f"{out}.rounded", scale], [f"{out}.columns"]),
                helper.make_node("MatMul", [source, f"{out}.columns"], [out]),
            ]
        zero = "lowest" if source in self.never_negative else "middle"
        if source not in rows:
            largest, relative, rounded = (f"{source}.{part}" for part in ("largest", "relative", "uint8"))
            rows[source] = [rounded, largest]
            absolute = source if source in self.never_negative else f"{source}.absolute"
            if absolute != source:
                nodes.append(helper.make_node("Abs", [source], [absolute]))
            nodes += [
                helper.make_node("ReduceMax", [absolute, "int8.last_axis"], [largest], keepdims=1),
                # A row of zeros becomes 0 / 0 and some byte, and then that times 0.
                helper.make_node("Div", [source, largest], [relative]),
                helper.make_node("QuantizeLinear", [relative, f"int8.step_from_{zero}", f"int8.{zero}"], [rounded]),
            ]
        rounded, largest = rows[source]
        return [
            *nodes,
            helper.make_node("MatMulInteger", [rounded, matrix, f"int8.{zero}"], [f"{out}.int32"]),
            helper.make_node("Cast", [f"{out}.int32"], [f"{out}.float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"int8.scale_from_{zero}", scale], [f"{out}.scale"]),
            helper.make_node("Mul", [f"{out}.float", f"{out}.scale"], [f"{out}.by_column"]),
            helper.make_node("Mul", [f"{out}.by_column", largest], [out]),
        ]

    def lookup(self, node: NodeProto, table: str, scale: str) -> list[NodeProto]:
        ids, out = node.input[1], node.output[0]
        return [
            helper.make_node("Gather", [table, ids], [f"{out}.int8"], axis=0),
            helper.make_node("Cast", [f"{out}.int8"], [f"{out}.float"], to=TensorProto.FLOAT),
            helper.make_node("Gather", [scale, ids], [f"{out}.scales"], axis=0),
            helper.make_node("Unsqueeze", [f"{out}.scales", "int8.last_axis"], [f"{out}.scale"]),
            helper.make_node("Mul", [f"{out}.float", f"{out}.scale"], [out]),
        ]

    def finish(self) -> None:
        """Nothing stays that nobody reads: the float matrices, and the transpose of the tied one."""
        if self.activations:
            # ONNX Runtime makes one operator of MatMulInteger, Cast and the product with two scales, unless it knows
            # both beforehand and makes one constant of these first. So one of them is made of an input.
            one = [
                helper.make_node("Size", [self.graph.input[0].name], ["int8.size"]),
                helper.make_node("Equal", ["int8.size", "int8.size"], ["int8.true"]),
                helper.make_node("Cast", ["int8.true"], ["int8.one"], to=TensorProto.FLOAT),
                *(
                    helper.make_node("Mul", ["int8.one", f"int8.step_from_{zero}"], [f"int8.scale_from_{zero}"])
                    for zero in ("middle", "lowest")
                ),
            ]
            nodes = [*one, *self.graph.node]
            del self.graph.node[:]
            self.graph.node.extend(nodes)
        remove_unused(self.graph)
