"""Rewrites of ONNX graphs give cheaper operators and the same results."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from searches import session_of

from conversion.onnx.graph_builder import GraphBuilder, tensor_type
from conversion.onnx.rewrite import simplify, walk_graphs

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def operators(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


@pytest.mark.parametrize("hoist", [True, False])
def test_loop_invariants_move_out_and_constants_stay(hoist: bool) -> None:
    """x <- x * (a + a) * 3 * 4 while n > 1: only a + a is computed before the loop."""
    op = GraphBuilder("outside.")
    body = GraphBuilder("inside.", op)
    product = body.Mul("x.now", body.Add("a", "a"))
    product = body.Mul(product, body.Mul(np.float32(3), np.float32(4)))
    n = body.Sub("n.now", 1)
    condition = body.Greater(n, 0)
    variables = {"x.now": "x", "n.now": "n"}
    if hoist:
        op.nodes += body.hoist_loop_invariants(variables)
    x, _ = op.loop(body, variables, [tensor_type(FLOAT, 0), tensor_type(INT64, 0)], condition, [product, n])
    op.Identity(x, name="result")
    inputs = [
        helper.make_tensor_value_info(name, kind, []) for name, kind in (("x", FLOAT), ("a", FLOAT), ("n", INT64))
    ]
    graph = op.model("loop", inputs, [helper.make_tensor_value_info("result", FLOAT, [])])
    inner, outer = walk_graphs(graph.graph)
    in_body = ["Mul", "Mul", "Mul", "Sub", "Greater"]
    assert operators(inner) == (in_body if hoist else ["Add", *in_body])
    assert operators(outer) == [*(["Add"] if hoist else []), "Loop", "Identity"]
    numbers: dict[str, Any] = {"x": np.float32(1), "a": np.float32(0.5), "n": np.int64(3)}
    assert session_of(graph).run(None, {name: np.array(value) for name, value in numbers.items()})[0] == 12**3


def row_index(op: GraphBuilder) -> str:
    """index (b, r) -> (b, r, w), as torch exports `gather` of rows"""
    return op.Expand(op.Unsqueeze("index", [2]), op.Concat(op.Shape("index"), op.Shape("x", start=2), axis=0))


# (sentence, row): the number of the sentence is the sum of the ones before it.
PAIRS = ["Shape x", "Shape index", "Concat numbers.0", "ConstantOfShape numbers.4", "CumSum numbers.6"]
PAIRS += ["Unsqueeze index", "Concat numbers.8"]
CASES = {
    # Equal symbols of input and output become 0, the remaining size -1.
    "Reshape": (
        lambda op: op.Reshape("x", op.Concat(op.Shape("x", end=1), [-1], axis=0), name="result"),
        ["b", "rw"],
        ["Reshape x"],
    ),
    "GatherElements": (
        lambda op: op.GatherElements("x", row_index(op), axis=1, name="result"),
        ["b", "r", "w"],
        [*PAIRS, "GatherND x"],
    ),
    "GatherElements with a shared index": (
        lambda op: op.Add(*(op.GatherElements("x", index, axis=1) for index in [row_index(op)] * 2), name="result"),
        ["b", "r", "w"],
        [*PAIRS, "GatherND x", "GatherND x", "Add op.10"],
    ),
    "GatherND": (lambda op: op.GatherND("x", op.Unsqueeze("first", [1]), name="result"), ["n", "s", "w"], ["Gather x"]),
    "Gather": (
        lambda op: op.Gather("x", op.Reshape("first", [-1]), axis=0, name="result"),
        ["n", "s", "w"],
        ["Gather x"],
    ),
    # `y` has the same symbol for its first size as `x`, which comes first.
    "Shape": (lambda op: op.Shape("y", start=0, end=1, name="result"), [1], ["Shape x"]),
}


@pytest.mark.parametrize("case", CASES)
def test_operators_for_dynamic_shapes_become_cheaper(case: str) -> None:
    build, shape, expected = CASES[case]
    op = GraphBuilder("op.")
    build(op)
    shapes = {"x": (FLOAT, ["b", "s", "w"]), "y": (FLOAT, ["b", "s"]), "index": (INT64, ["b", "r"])}
    shapes["first"] = (INT64, ["n"])
    inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in shapes.items()]
    result = helper.make_tensor_value_info("result", INT64 if case == "Shape" else FLOAT, shape)
    graph = op.model("part", inputs, [result])
    shaped = onnx.shape_inference.infer_shapes(graph, data_prop=True)
    generator = np.random.default_rng(0)
    arrays = {"x": generator.standard_normal((2, 3, 5)).astype(np.float32), "y": np.zeros((2, 3), np.float32)}
    arrays |= {"index": generator.integers(0, 3, (2, 4)), "first": np.array([1, 0, 1])}
    (before,) = session_of(graph).run(None, arrays)
    simplify(shaped.graph)
    assert [f"{node.op_type} {node.input[0]}" for node in shaped.graph.node] == expected
    (after,) = session_of(shaped).run(None, arrays)
    np.testing.assert_array_equal(after, before)
