"""Quantize the weights of a float32 graph to int8.

These are all matrices that a MatMul multiplies by or a Gather reads, such as tables of learned positions. Biases, norms
and the products of attention stay in float32.

Matrices get one scale per output column, the tied embedding one per token, so that lookup and projection share the same
bytes. Activations are quantized dynamically with one scale per row, so that a sentence does not depend on the rest of
its batch. One scale per tensor, as in onnxruntime's quantize_dynamic, is 1.1 times as fast, but an outlier in one
sentence makes the steps of all sentences coarser: the divergence from float32's probabilities doubles. The output of a
ReLU is never negative and uses all 255 steps.

On x86 without VNNI, ONNX Runtime adds pairs of uint8 x int8 products in 16 bits (vpmaddubsw). They saturate at 32,767,
and a pair can reach 255 * (127 + 127) = 64,770. Therefore the scale of a column is large enough that the weights of a
pair add up to at most 128 (255 * 128 = 32,640): sums are exact on every processor, and a file gives the same
translations everywhere. onnxruntime's `reduce_range`, for the same purpose, gives up one bit of every weight; this
costs 0.4 bits for normally distributed weights.

Without quantized activations, weights are converted to float32 before the products: a small file with the speed and
almost the translations of float32. Cast and Mul convert them, which ONNX Runtime folds at load time. DequantizeLinear
would be equivalent, but ONNX Runtime 1.31 computes it in every call (base model, one sentence: 3 times as slow) and, in
a loop, fuses it into an operator whose weights it then does not find.
"""

from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from .graph_builder import GraphBuilder
from .rewrite import remove_unused, walk_graphs

SMALLEST_SCALE = 1e-20  # of a column of zeros


class RowScale(NamedTuple):
    """How activations are stored in uint8, for a row whose largest absolute value is 1."""

    zero_point: np.uint8
    scale: np.float32
    # `scale` as the output of a node: ONNX Runtime fuses the product only if a scale is not a constant.
    computed_scale: str


class QuantizedRows(NamedTuple):
    """The names of activations in uint8, and of the largest absolute value of each row."""

    values: str
    largest: str
    scale: RowScale


def quantize(model: ModelProto, activations: bool = True) -> ModelProto:
    """Quantize in place: int8 weights, and products of uint8 rows with int8 columns, summed in int32.

    activations: False for float32 rows and products
    """
    graph = model.graph
    quantizer = Quantizer(graph, activations)
    for body in list(walk_graphs(graph)):  # innermost first: rewriting a graph copies its subgraphs
        quantizer.rewrite(body)
    nodes = [*quantizer.op.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(quantizer.op.own_initializers)
    remove_unused(graph)
    return model


class Quantizer:
    """Rewrites a graph and its subgraphs, which share matrices and a few nodes of the outermost graph."""

    def __init__(self, graph: GraphProto, activations: bool):
        self.graph, self.activations = graph, activations
        bodies = list(walk_graphs(graph))
        # The float matrices by name, each with the axis along which products are summed.
        self.matrices = {
            tensor.name: (tensor, 0)
            for body in bodies
            for tensor in body.initializer
            if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2
        }
        # The tied matrix is an embedding; its transpose is the output projection.
        self.matrices |= {
            node.output[0]: (self.matrices[node.input[0]][0], 1)
            for body in bodies
            for node in body.node
            if node.op_type == "Transpose" and node.input[0] in self.matrices
        }
        self.quantized: set[str] = set()
        self.op = GraphBuilder("int8.")  # adds nodes to the outermost graph
        # For `RowScale.computed_scale`: the number one, computed from an input.
        size = self.op.Size(graph.input[0].name)
        one = self.op.Cast(self.op.Equal(size, size), to=TensorProto.FLOAT)
        scale = np.float32(1 / 127), np.float32(1 / 255)
        self.symmetric = RowScale(np.uint8(128), scale[0], self.op.Mul(one, scale[0]))
        self.non_negative = RowScale(np.uint8(0), scale[1], self.op.Mul(one, scale[1]))

    def rewrite(self, body: GraphProto) -> None:
        """Replace MatMul with matrices and Gather from matrices."""
        op = GraphBuilder("int8.", self.op)
        relu_outputs = {node.output[0] for node in body.node if node.op_type == "Relu"}
        quantized_rows: dict[str, QuantizedRows] = {}  # several products may share their rows
        for node in body.node:
            first, second, *_ = [*node.input, "", ""]
            if node.op_type == "MatMul" and second in self.matrices:
                columns, column_scale = self.quantize_factor(op, second)
                if self.activations:
                    if first not in quantized_rows:
                        row_scale = self.non_negative if first in relu_outputs else self.symmetric
                        quantized_rows[first] = quantize_rows(op, first, row_scale)
                    multiply_integers(op, quantized_rows[first], columns, column_scale, name=node.output[0])
                else:
                    columns = op.Mul(op.Cast(columns, to=TensorProto.FLOAT), column_scale)
                    op.MatMul(first, columns, name=node.output[0])
            elif node.op_type == "Gather" and first in self.matrices:
                table, scale = self.quantize_weight(self.matrices[first][0], axis=1)
                found = op.Cast(op.Gather(table, second, axis=0), to=TensorProto.FLOAT)
                op.Mul(found, op.Unsqueeze(op.Gather(scale, second, axis=0), [-1]), name=node.output[0])
            else:
                op.nodes.append(node)
        del body.node[:]
        body.node.extend(op.nodes)

    def quantize_factor(self, op: GraphBuilder, matrix: str) -> tuple[str, str]:
        """Return the int8 matrix with products along its first axis, and the scales of its columns."""
        tensor, axis = self.matrices[matrix]
        stored, scale = self.quantize_weight(tensor, axis)
        return op.Transpose(stored, perm=[1, 0]) if axis == 1 else stored, scale

    def quantize_weight(self, tensor: TensorProto, axis: int) -> tuple[str, str]:
        """Store a matrix in int8. Return its name and that of its scales;  axis: along which products are summed"""
        name, names = tensor.name, (f"{tensor.name}.int8", f"{tensor.name}.scale")
        if name not in self.quantized:
            self.quantized.add(name)
            array = numpy_helper.to_array(tensor)
            scale = np.maximum(self.find_column_limits(array, axis), SMALLEST_SCALE).astype(np.float32) / 127
            rounded = np.rint(array / np.expand_dims(scale, axis)).astype(np.int8)
            # Store it beside the float matrix, so that ONNX Runtime prepacks it (see single_graph.py). Search for
            # its graph each time, because rewriting a graph copies its subgraphs.
            bodies = walk_graphs(self.graph)
            owner = next(body for body in bodies if name in {tensor.name for tensor in body.initializer})
            owner.initializer.extend(map(numpy_helper.from_array, (rounded, scale), names))
        return names

    def find_column_limits(self, array: np.ndarray, axis: int) -> np.ndarray:
        """Return the value that maps to 127 in each column.

        It is the column's largest absolute weight or, with quantized activations, its largest absolute sum of rows 2i
        and 2i + 1. Rounding adds at most 1/2 to each of the two, so their sum is at most 128.
        """
        largest = np.abs(array).max(axis=axis)
        if not self.activations:
            return largest
        sums = np.add.reduceat(array, range(0, array.shape[axis], 2), axis=axis)
        return np.maximum(largest, np.abs(sums).max(axis=axis))


def quantize_rows(op: GraphBuilder, rows: str, scale: RowScale) -> QuantizedRows:
    """Divide each row by its largest absolute value and quantize it."""
    largest = op.ReduceMax(op.Abs(rows) if scale.zero_point else rows, [-1], keepdims=1)
    # In a row of zeros, 0 / 0 may become any byte, which is then multiplied by 0.
    return QuantizedRows(op.QuantizeLinear(op.Div(rows, largest), scale.scale, scale.zero_point), largest, scale)


def multiply_integers(op: GraphBuilder, rows: QuantizedRows, columns: str, column_scale: str, name: str) -> None:
    """Multiply uint8 rows with int8 columns, and convert the int32 sums to float32."""
    sums = op.Cast(op.MatMulInteger(rows.values, columns, rows.scale.zero_point), to=TensorProto.FLOAT)
    scales = op.Mul(rows.scale.computed_scale, column_scale)
    op.Mul(op.Mul(sums, scales), rows.largest, name=name)
