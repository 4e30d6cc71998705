"""Loop invariants are computed before the loop."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from searches import session_of

from conversion.onnx.graph_builder import GraphBuilder, tensor_type
from conversion.onnx.rewrite import walk_graphs

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
