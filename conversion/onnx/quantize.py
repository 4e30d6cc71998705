"""Store the weights of a float32 graph in eight bits, each once.

Every matrix gets one scale per output column. The embedding, which is also the output matrix, gets one per token:
lookup and projection read the same bytes. Activations are quantised at run time, each row by its own largest value, so
that a sentence does not depend on its neighbours. One scale per tensor, as in onnxruntime's quantize_dynamic, is 1.1
times as fast, but an outlier in one sentence makes all others coarser: twice the divergence from float32's
probabilities. The output of a ReLU is never negative and uses all 255 steps.

On x86 without VNNI, ONNX Runtime adds the products of two neighbouring unsigned and signed bytes in 16 bits, where
255 * (127 + 127) saturates. So a column's scale is as large as needed for two neighbours to add up to at most 128: sums
are then exact everywhere, and a file translates alike on every processor. onnxruntime's `reduce_range`, for the same
purpose, gives away one bit of every weight; this costs 0.4 bits when they are normally distributed.

Without quantised activations, the weights become float32 again before the products: a small file, float32's speed and
almost its translations. The graph has Cast and Mul for that, which ONNX Runtime computes once, when it loads the file.
DequantizeLinear would be the same, but ONNX Runtime 1.31 computes it in every call (base model, one sentence: 3 times
as slow) and, in a loop, fuses it into an operator whose weights it then does not find.
"""

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from .graph_builder import GraphBuilder
from .subgraphs import graphs_of, remove_unused

SMALLEST_SCALE = 1e-20  # of a column of zeros


def quantized(model: ModelProto, activations: bool = True) -> ModelProto:
    """Quantise in place: weights int8, products of uint8 rows with int8 columns, summed in int32.

    activations: False for float32 rows and products
    """
    graph = model.graph
    quantizer = Quantizer(graph, activations)
    for body in list(graphs_of(graph)):  # inner ones first: rewriting a graph copies those inside it
        quantizer.rewrite(body)
    nodes = [*quantizer.op.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(quantizer.op.tensors)
    remove_unused(graph)
    return model


class Quantizer:
    """The matrices of a graph and of its loops, and the nodes that all of them need."""

    def __init__(self, graph: GraphProto, activations: bool):
        self.graph, self.activations = graph, activations
        bodies = list(graphs_of(graph))
        # The float matrices by name, each with the axis along which products are summed.
        self.matrices = {
            tensor.name: (tensor, 0)
            for body in bodies
            for tensor in body.initializer
            if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2
        }
        # The tied matrix is an embedding, and its transpose is the output matrix.
        self.matrices |= {
            node.output[0]: (self.matrices[node.input[0]][0], 1)
            for body in bodies
            for node in body.node
            if node.op_type == "Transpose" and node.input[0] in self.matrices
        }
        self.quantised: set[str] = set()
        self.op = GraphBuilder("int8.")  # of the outermost graph
        # ONNX Runtime fuses MatMulInteger, Cast and the product with two scales, unless both scales are constants,
        # which it multiplies first. So one of them is computed from an input.
        size = self.op.Size(graph.input[0].name)
        one = self.op.Cast(self.op.Equal(size, size), to=TensorProto.FLOAT)
        # The byte that stands for 0, and the size of a step in a row whose largest value is 1: as it is, and computed.
        signed, positive = np.float32(1 / 127), np.float32(1 / 255)
        self.signed = np.uint8(128), signed, self.op.Mul(one, signed)
        self.positive = np.uint8(0), positive, self.op.Mul(one, positive)

    def rewrite(self, body: GraphProto) -> None:
        """Replace the products with matrices and the lookups in them."""
        op = GraphBuilder("int8.", self.op)
        never_negative = {node.output[0] for node in body.node if node.op_type == "Relu"}
        quantised_rows: dict[str, tuple[str, str]] = {}  # several products may have the same rows
        for node in body.node:
            first, second, *_ = [*node.input, "", ""]
            if node.op_type == "MatMul" and second in self.matrices:
                columns, scale = self.columns(op, second)
                if self.activations:
                    zero, step, computed_step = self.positive if first in never_negative else self.signed
                    if first not in quantised_rows:
                        quantised_rows[first] = quantise_rows(op, first, step, zero)
                    rows, largest = quantised_rows[first]
                    sums = op.Cast(op.MatMulInteger(rows, columns, zero), to=TensorProto.FLOAT)
                    op.Mul(op.Mul(sums, op.Mul(computed_step, scale)), largest, name=node.output[0])
                else:
                    op.MatMul(first, op.Mul(op.Cast(columns, to=TensorProto.FLOAT), scale), name=node.output[0])
            elif node.op_type == "Gather" and first in self.matrices:
                table, scale = self.weight(self.matrices[first][0], axis=1)
                found = op.Cast(op.Gather(table, second, axis=0), to=TensorProto.FLOAT)
                op.Mul(found, op.Unsqueeze(op.Gather(scale, second, axis=0), [-1]), name=node.output[0])
            else:
                op.nodes.append(node)
        del body.node[:]
        body.node.extend(op.nodes)

    def columns(self, op: GraphBuilder, matrix: str) -> tuple[str, str]:
        """Return a matrix in int8 and the scales of its columns."""
        tensor, axis = self.matrices[matrix]
        stored, scale = self.weight(tensor, axis)
        return op.Transpose(stored, perm=[1, 0]) if axis == 1 else stored, scale

    def weight(self, tensor: TensorProto, axis: int) -> tuple[str, str]:
        """Return the names of a matrix in int8 and of its scales;  axis: along which the products are summed"""
        name, names = tensor.name, (f"{tensor.name}.int8", f"{tensor.name}.scale")
        if name not in self.quantised:
            self.quantised.add(name)
            array = numpy_helper.to_array(tensor)
            scale = np.maximum(self.largest(array, axis), SMALLEST_SCALE).astype(np.float32) / 127
            rounded = np.rint(array / np.expand_dims(scale, axis)).astype(np.int8)
            # In the same graph as the float matrix: ONNX Runtime packs those that a loop owns.
            owner = next(body for body in graphs_of(self.graph) if name in {tensor.name for tensor in body.initializer})
            owner.initializer.extend(map(numpy_helper.from_array, (rounded, scale), names))
        return names

    def largest(self, array: np.ndarray, axis: int) -> np.ndarray:
        """Return what becomes 127: the largest weight of each column, or sum of two neighbours where these are added in
        16 bits. Rounding adds at most 1/2 to each of the two, so the sum stays within 128."""
        largest = np.abs(array).max(axis=axis)
        if not self.activations:
            return largest
        sums = np.add.reduceat(array, range(0, array.shape[axis], 2), axis=axis)
        return np.maximum(largest, np.abs(sums).max(axis=axis))


def quantise_rows(op: GraphBuilder, rows: str, step: np.float32, zero: np.uint8) -> tuple[str, str]:
    """Divide each row by its largest absolute value; returns the rows in uint8, and these values.

    step, zero: size of a step, and the byte that stands for 0; in rows that are never negative that is 0
    """
    largest = op.ReduceMax(op.Abs(rows) if zero else rows, [-1], keepdims=1)
    # A row of zeros becomes 0 / 0, which is any byte, and then that byte times 0.
    return op.QuantizeLinear(op.Div(rows, largest), step, zero), largest
