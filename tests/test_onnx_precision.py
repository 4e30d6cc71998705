"""int8 and fp16 graphs: smaller, close to float32, and a sentence does not depend on its neighbours."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from saved_model import ENGLISH, GERMAN, already_exported
from searches import matrices_of, session_of

from conversion.onnx.__main__ import main
from conversion.onnx.export import export_single_folder
from conversion.onnx.graph_builder import GraphBuilder
from conversion.onnx.quantize import quantize
from conversion.onnx.rewrite import walk_graphs
from conversion.onnx.verify import verify
from vaswani_transformer import Translator
from vaswani_transformer.errors import ProofError
from vaswani_transformer.loading import load_model
from vaswani_transformer.onnx_translator import OnnxTranslator

pytestmark = pytest.mark.timeout(1200)  # an export takes 20 seconds of an idle processor, and minutes of a busy one
EIGHT_BITS = ("int8", "int8-weights")
SENTENCES = [*ENGLISH, *GERMAN]


@pytest.fixture(scope="module")
def model(exported: Path) -> Path:
    return exported / "model"


@pytest.fixture(scope="module")
def folders(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An export in each precision, which the check has accepted."""
    found = {"fp32": exported / "onnx"}
    for precision in EIGHT_BITS:
        found[precision] = tmp_path_factory.mktemp("onnx") / precision
        with already_exported(exported / "onnx"):
            export_single_folder(exported / "model", found[precision], precision)
    return found


def initializers(folder: Path) -> dict[str, np.ndarray]:
    tensors = [tensor for body in walk_graphs(onnx.load(folder / "model.onnx").graph) for tensor in body.initializer]
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}


def check_same_hypotheses(ours: list[Any], theirs: list[Any], tolerance: float = 1e-5) -> None:
    assert [hypothesis.tokens for hypothesis in ours] == [hypothesis.tokens for hypothesis in theirs]
    assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=tolerance)


@pytest.mark.parametrize("precision", EIGHT_BITS)
def test_the_check_detects_a_wrong_scale(folders: dict[str, Path], model: Path, tmp_path: Path, precision: str) -> None:
    graph = onnx.load(folders[precision] / "model.onnx")
    scales = [t for body in walk_graphs(graph.graph) for t in body.initializer if t.name.endswith(".scale")]
    largest = max(scales, key=lambda tensor: tensor.dims[0])  # of the tied matrix
    largest.raw_data = (numpy_helper.to_array(largest) * np.float32(1.3)).tobytes()
    onnx.save(graph, tmp_path / "model.onnx")
    with pytest.raises(ProofError):
        verify(tmp_path / "model.onnx", load_model(model), precision)


@pytest.mark.parametrize("precision", EIGHT_BITS)
def test_every_matrix_is_stored_once_in_eight_bits(folders: dict[str, Path], precision: str) -> None:
    """This includes the tied matrix: lookup and projection read the same bytes."""
    graph = onnx.load(folders[precision] / "model.onnx").graph
    large = matrices_of(graph)
    assert large and {tensor.data_type for tensor in large} == {TensorProto.INT8}
    readers = [
        (node.op_type, name)
        for body in walk_graphs(graph)
        for node in body.node
        for name in node.input
        if name in {tensor.name for tensor in large}
    ]
    (tied,) = {name for kind, name in readers if kind == "Transpose"}
    assert {kind for kind, name in readers if name == tied} == {"Gather", "Transpose"}
    assert not [node for body in walk_graphs(graph) for node in body.node if node.op_type == "Gemm"]


@pytest.mark.parametrize("precision", ["fp32", *EIGHT_BITS])
def test_translations_do_not_depend_on_their_batch(folders: dict[str, Path], precision: str) -> None:
    """In int8 each row has its own scale, and sums of integers are exact; padding changes nothing."""
    translator = OnnxTranslator.from_pretrained(folders[precision])
    together = translator.find_hypotheses(SENTENCES, num_return_sequences=4)
    for text, hypotheses in zip(SENTENCES, together, strict=True):
        (alone,) = translator.find_hypotheses([text], num_return_sequences=4)
        check_same_hypotheses(alone, hypotheses)


def two_products(first: np.ndarray, second: np.ndarray) -> onnx.ModelProto:
    """rows -> relu(rows x first) x second, as the feed-forward network has it"""
    op = GraphBuilder("products.")
    op.MatMul(op.Relu(op.MatMul("rows", "first")), "second", name="result")
    rows, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in ("rows", "result"))
    weights = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")]
    return op.model("two products", [rows], [result], weights)


def test_the_error_of_a_row_is_bounded_by_its_scale(tmp_path: Path) -> None:
    """Covers large and small rows, a row of zeros, and a row that the ReLU sets to zero."""
    generator = np.random.default_rng(0)
    first, second = (generator.standard_normal(shape).astype(np.float32) for shape in ((16, 32), (32, 8)))
    first[:, 3] = 0  # a column of zeros
    first[0] = np.abs(first[0])
    rows = generator.standard_normal((6, 16)).astype(np.float32) * np.array([[1e-3], [1], [1e3], [1], [0], [1]], "f")
    rows[5] = 0
    rows[5, 0] = -1  # the ReLU sets it to zero
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3  # it warns that an optimised model is made for this machine
    graph = quantize(two_products(first, second)).SerializeToString()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    exact = np.maximum(rows @ first, 0) @ second
    found = np.asarray(session.run(None, {"rows": rows})[0])
    # Half a step of the row at each of 16 and 32 places, and half a step of the matrix's columns, in both products.
    inner_error = np.abs(rows).max(1) * np.abs(first).max() * 16 / 127
    inner = np.maximum(rows @ first, 0).max(1) + inner_error
    bound = 32 * np.abs(second).max() * (inner_error + inner * (0.5 / 255 + 0.5 / 127))
    assert (np.abs(found - exact).max(1) <= bound).all()
    assert np.abs(found[2] - exact[2]).max() < 0.05 * np.abs(exact[2]).max()
    assert not found[4:].any()
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 2, "ONNX Runtime fuses scale and product"


def computed(graph: onnx.ModelProto, rows: np.ndarray) -> np.ndarray:
    return session_of(graph).run(None, {"rows": rows})[0]


@pytest.mark.parametrize("size", [1, 2, 33, 512])
def test_no_sum_of_products_saturates(size: int) -> None:
    """The largest weights and rows: without VNNI, neighbours are added in 16 bits."""
    rows, first = np.ones((3, size), np.float32), np.ones((size, 4), np.float32)
    rows[1] = -1
    first[:, 1] *= -1
    first[1::2, 2] = -1
    graph = quantize(two_products(first, np.eye(4, dtype=np.float32)))
    np.testing.assert_allclose(computed(graph, rows), np.maximum(rows @ first, 0), rtol=0.01, atol=0.01 * size**0.5)
    weights = next(numpy_helper.to_array(t) for t in graph.graph.initializer if t.name == "first.int8")
    sums = np.add.reduceat(weights.astype(int), range(0, size, 2), axis=0)
    assert np.abs(sums).max() <= 128


def test_the_output_of_a_relu_has_all_255_steps() -> None:
    """Rows and columns that int8 holds exactly, and a second product that changes nothing: one rounding remains."""
    generator = np.random.default_rng(0)
    rows, first = (generator.integers(-127, 128, shape).astype(np.float32) / 127 for shape in ((6, 16), (16, 32)))
    first[1::2] = 0  # neighbours would make the scale larger
    rows[:, 0] = first[0] = 1
    exact = np.maximum(rows @ first, 0)
    found = computed(quantize(two_products(first, np.eye(32, dtype=np.float32))), rows)
    assert (np.abs(found - exact) <= exact.max(axis=1, keepdims=True) * 0.501 / 255).all()


@pytest.mark.slow
def test_float16_has_half_the_bytes_and_float32_scores(model: Path, tmp_path: Path) -> None:
    main([str(model), str(tmp_path / "fp16"), "--precision", "fp16"])
    graph = onnx.load(tmp_path / "fp16" / "model.onnx").graph
    large = matrices_of(graph)
    assert large and {tensor.data_type for tensor in large} == {TensorProto.FLOAT16}
    for body in walk_graphs(graph):
        kinds = {name: "LogSoftmax" for node in body.node if node.op_type == "LogSoftmax" for name in node.input}
        casts = [node for node in body.node if node.output[0] in kinds]
        assert all(node.op_type == "Cast" and node.attribute[0].i == TensorProto.FLOAT for node in casts)
    expected = Translator.from_pretrained(model, device="cpu").find_hypotheses(ENGLISH)
    found = OnnxTranslator.from_pretrained(tmp_path / "fp16").find_hypotheses(ENGLISH)
    for ours, theirs in zip(found, expected, strict=True):
        check_same_hypotheses(ours, theirs, tolerance=0.01)


def dequantised(folder: Path) -> dict[str, np.ndarray]:
    """Return each matrix by name."""
    tensors, matrices = initializers(folder), {}
    for name, array in tensors.items():
        if name.endswith(".int8"):
            scale = tensors[f"{name.removesuffix('.int8')}.scale"]
            by_row = len(scale) == array.shape[0] != array.shape[1]  # the embedding
            matrices[name.removesuffix(".int8")] = array * np.expand_dims(scale, 1 if by_row else 0)
    return matrices


def test_weight_only_int8_computes_in_float32(folders: dict[str, Path], tmp_path: Path) -> None:
    """The float32 graph with the rounded weights gives the same scores."""
    small, rounded, replaced = dequantised(folders["int8-weights"]), onnx.load(folders["fp32"] / "model.onnx"), 0
    for tensor in (tensor for body in walk_graphs(rounded.graph) for tensor in body.initializer):
        if tensor.name in small:
            tensor.raw_data = small[tensor.name].astype(np.float32).tobytes()
            replaced += 1
    assert replaced >= 10
    shutil.copytree(folders["fp32"], tmp_path / "rounded")
    onnx.save(rounded, tmp_path / "rounded" / "model.onnx")
    (tmp_path / "rounded" / "export.json").unlink()  # which records another graph
    expected, found = (
        OnnxTranslator.from_pretrained(folder).find_hypotheses([*ENGLISH, *GERMAN, "a"], num_return_sequences=4)
        for folder in (tmp_path / "rounded", folders["int8-weights"])
    )
    for ours, theirs in zip(found, expected, strict=True):
        check_same_hypotheses(ours, theirs)
