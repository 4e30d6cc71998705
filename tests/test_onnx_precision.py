"""int8 and fp16 graphs: smaller, close to float32, and a sentence still does not depend on its neighbours."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from saved_model import ENGLISH, GERMAN, saved_model

from conversion.onnx.__main__ import export_folder
from conversion.onnx.quantize import graphs_of, quantized
from vaswani_transformer.onnx_translator import OnnxTranslator

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def int8(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "int8"
    export_folder(model, folder, "int8")
    return folder


def test_every_matrix_is_stored_once_in_eight_bits(int8: Path) -> None:
    """The tied one too: lookup and projection read the same bytes."""
    graph = onnx.load(int8 / "model.onnx").graph
    large = [
        tensor
        for body in graphs_of(graph)
        for tensor in body.initializer
        if len(tensor.dims) == 2 and np.prod(tensor.dims) >= 1024
    ]
    assert large and {tensor.data_type for tensor in large} == {TensorProto.INT8}
    readers = [
        (node.op_type, name)
        for body in graphs_of(graph)
        for node in body.node
        for name in node.input
        if name in {tensor.name for tensor in large}
    ]
    (tied,) = {name for kind, name in readers if kind == "Transpose"}
    assert {kind for kind, name in readers if name == tied} == {"Gather", "Transpose"}
    assert not [node for body in graphs_of(graph) for node in body.node if node.op_type == "Gemm"]


def test_int8_translates_a_trained_model_as_float32_does(model: Path, int8: Path) -> None:
    from vaswani_transformer import Translator

    expected = Translator.from_pretrained(model, device="cpu").translate([*ENGLISH, *GERMAN], return_scores=True)
    found = OnnxTranslator.from_pretrained(int8).translate([*ENGLISH, *GERMAN], return_scores=True)
    same = [ours[0].text == theirs[0].text for ours, theirs in zip(found, expected, strict=True)]
    assert sum(same) >= 6
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[0].score == pytest.approx(theirs[0].score, abs=0.1)


def test_in_int8_a_translation_does_not_depend_on_its_batch(int8: Path) -> None:
    """Rows have scales of their own and integers have no rounding: the scores are the same, bit by bit."""
    translator = OnnxTranslator.from_pretrained(int8)
    together = translator.translate([*ENGLISH, *GERMAN], n_best=4, return_scores=True)
    for text, hypotheses in zip([*ENGLISH, *GERMAN], together, strict=True):
        (alone,) = translator.translate([text], n_best=4, return_scores=True)
        assert [hypothesis.tokens for hypothesis in alone] == [hypothesis.tokens for hypothesis in hypotheses]
        assert [h.score for h in alone] == pytest.approx([h.score for h in hypotheses], abs=1e-5)


def test_float16_has_half_the_bytes_and_float32_scores(model: Path, tmp_path: Path) -> None:
    from vaswani_transformer import Translator

    export_folder(model, tmp_path / "fp16", "fp16")
    graph = onnx.load(tmp_path / "fp16" / "model.onnx").graph
    large = [
        tensor
        for body in graphs_of(graph)
        for tensor in body.initializer
        if len(tensor.dims) == 2 and np.prod(tensor.dims) >= 1024
    ]
    assert large and {tensor.data_type for tensor in large} == {TensorProto.FLOAT16}
    for body in graphs_of(graph):
        kinds = {name: "LogSoftmax" for node in body.node if node.op_type == "LogSoftmax" for name in node.input}
        casts = [node for node in body.node if node.output[0] in kinds]
        assert all(node.op_type == "Cast" and node.attribute[0].i == TensorProto.FLOAT for node in casts)
    expected = Translator.from_pretrained(model, device="cpu").translate(ENGLISH, return_scores=True)
    found = OnnxTranslator.from_pretrained(tmp_path / "fp16").translate(ENGLISH, return_scores=True)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[0].text == theirs[0].text
        assert ours[0].score == pytest.approx(theirs[0].score, abs=0.01)


def test_quantized_weights_are_within_half_a_step_of_the_others(int8: Path, tmp_path: Path, model: Path) -> None:
    """One step is a 127th of the largest value of the column, or of the token's row in the embedding."""
    from conversion.onnx.single_graph import export_single_graph
    from vaswani_transformer.loading import load_model

    plain = export_single_graph(load_model(model))

    def weights(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
        tensors = [tensor for body in graphs_of(graph) for tensor in body.initializer]
        return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}

    floats, small = weights(plain.graph), weights(quantized(plain).graph)
    checked = 0
    for name, array in small.items():
        if name.endswith(".int8"):
            name = name.removesuffix(".int8")
            whole, scale = floats[name], small[f"{name}.scale"]
            axis = 1 if scale.shape[0] == whole.shape[0] and np.allclose(scale, np.abs(whole).max(axis=1) / 127) else 0
            restored = array * np.expand_dims(scale, axis)
            assert (np.abs(restored - whole) <= np.expand_dims(scale, axis) * 0.5001).all()
            checked += whole.size
    assert checked >= 30_000
