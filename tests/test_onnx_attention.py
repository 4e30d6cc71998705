"""The single graph with attention: the weights with which each token of the best translation attends to the source."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from saved_model import ENGLISH, already_exported
from searches import (
    EXPORTED,
    MANY_AT_ONCE,
    OFFSET,
    PAD,
    SWITCHES,
    batch_for,
    check_every_weight_once,
    matrices_of,
    session_of,
)
from tiny_models import ModelMaker

from conversion.onnx.__main__ import main
from conversion.onnx.export import export_single_folder
from conversion.onnx.rewrite import walk_graphs
from conversion.onnx.single_graph import export_single_graph
from conversion.onnx.torch_export import CrossAttentions
from conversion.onnx.verify import cross_attentions
from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.beam_search import SettingTensors, start
from vaswani_transformer.errors import InputError, ProofError
from vaswani_transformer.loading import load_model
from vaswani_transformer.model_folder import AlignmentHead
from vaswani_transformer.onnx_translator import OnnxTranslator
from vaswani_transformer.torch_translator import TorchTranslator

pytestmark = pytest.mark.timeout(1200)  # an export takes 20 seconds of an idle processor, and minutes of a busy one
CONFIGURATIONS = {"many at once": MANY_AT_ONCE} | {name: SWITCHES[name] for name in EXPORTED}


def expected_of(
    model: VaswaniTransformerForConditionalGeneration, batch: dict[str, Any], best: np.ndarray
) -> np.ndarray:
    """transformers' `output_attentions` for these translations, (batch, layers, heads, length, source), 0 at padding"""
    decoder_inputs = model.prepare_decoder_input_ids_from_labels(torch.from_numpy(best))
    weights = np.stack(cross_attentions(model, batch, decoder_inputs), axis=1)
    return weights * (best != PAD)[:, None, None, :, None]


def compared_with_torch(model: VaswaniTransformerForConditionalGeneration, session: Any, seed: int) -> int:
    """Check that the weights equal those of torch; return the number of tokens."""
    count, batch = 0, batch_for(model, seed)
    inputs = {name: tensor.numpy() for name, tensor in batch.items()}
    no_token = inputs["attention_mask"][:, None, None, None] == 0
    for settings in (
        {"num_beams": 1},
        {"num_beams": 4, "num_return_sequences": 1},
        {"num_beams": 3},
        {"max_new_tokens": 1},
    ):
        given = inputs | {name: np.array(value) for name, value in settings.items()}
        sequences, _, weights = session.run(None, given)
        expected = expected_of(model, batch, sequences[:, 0])
        assert weights.shape == expected.shape
        np.testing.assert_allclose(weights, expected, atol=1e-5)
        assert not weights[np.broadcast_to(no_token, weights.shape)].any()
        count += int((sequences[:, 0] != PAD).sum())
    return count


@pytest.mark.parametrize("switches", CONFIGURATIONS)
@pytest.mark.parametrize("length", [1, 6])
def test_attention_of_a_full_pass_equals_torch(lively_model: ModelMaker, switches: str, length: int) -> None:
    """Tests the cached decoder on all tokens of a translation, without an export."""
    model = lively_model(1, **CONFIGURATIONS[switches])
    batch = batch_for(model, 0, count=4)
    best = torch.randint(3, 7, (4, length), generator=torch.Generator().manual_seed(0))
    best[1, length // 2 + 1 :] = PAD
    settings = SettingTensors(*map(torch.tensor, (0.6, 5, OFFSET, 0, 0)))
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        memory, constants, _ = start(model, ids, mask, settings, beams=2, longest=ids.shape[1] + OFFSET)
        found = CrossAttentions(model)(memory, constants.positional_encoding, best[:, None]).numpy()
    np.testing.assert_allclose(found, expected_of(model, batch, best.numpy()), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("switches", CONFIGURATIONS)
def test_attention_of_the_best_translation_equals_torch(lively_model: ModelMaker, switches: str) -> None:
    """The models end sentences and switch beams; weights after </s> and on padding are zero."""
    model = lively_model(1, **CONFIGURATIONS[switches])
    model.generation_config.extra_length = OFFSET
    graph = export_single_graph(model, attention=True)
    onnx.checker.check_model(graph)
    session = session_of(graph)
    assert sum(compared_with_torch(model, session, seed) for seed in range(2)) >= 100


@pytest.fixture(scope="module")
def folder(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model, exported with attention."""
    output = tmp_path_factory.mktemp("onnx") / "attention"
    main([str(exported / "model"), str(output), "--attention"])
    return output


@pytest.mark.slow
def test_weights_are_stored_once_inside_their_loops(exported: Path, folder: Path) -> None:
    """ONNX Runtime packs a matrix for the steps only if their loop or the one directly around it owns it."""
    graph = onnx.load(folder / "model.onnx")
    model: Any = load_model(exported / "model")
    check_every_weight_once(graph.graph, model)
    outside = sum(np.prod(tensor.dims) for tensor in graph.graph.initializer if len(tensor.dims) == 2)
    before_the_loops = [*model.model.encoder.parameters()]
    for layer in model.model.decoder.layers:
        before_the_loops += [layer.cross_attn.k_proj.weight, layer.cross_attn.v_proj.weight]
    assert outside == sum(parameter.numel() for parameter in before_the_loops if parameter.dim() == 2)


@pytest.mark.slow
def test_attention_outputs_do_not_change_translations(exported: Path, folder: Path) -> None:
    folders = folder, exported / "onnx"
    names = [[value.name for value in onnx.load(path / "model.onnx").graph.output] for path in folders]
    assert names == [["sequences", "scores", "cross_attentions"], ["sequences", "scores"]]
    found, expected = (
        OnnxTranslator.from_pretrained(path).find_hypotheses([*ENGLISH, "a"], num_return_sequences=3)
        for path in folders
    )
    assert found == expected
    assert "cross_attentions" not in (exported / "onnx" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("heads", [None, [[0, 1, 0], [1, 0, 1]]])
def test_alignments_equal_those_of_torch(exported: Path, folder: Path, heads: list[list[int]] | None) -> None:
    texts = [*ENGLISH, " ".join(ENGLISH), "* The house\t is small.\n---", "a", ""]
    translators = TorchTranslator.from_pretrained(exported / "model"), OnnxTranslator.from_pretrained(folder)
    chosen = None if heads is None else [AlignmentHead(*head) for head in heads]
    for translator in translators:
        translator.alignment_heads = chosen
    found, expected = (translator.find_hypotheses(texts, alignments=True) for translator in translators)
    for (ours,), (theirs,) in zip(found, expected, strict=True):
        assert ours.text == theirs.text and ours.alignment is not None and theirs.alignment is not None
        assert len(ours.alignment) == len(theirs.alignment) == len(ours.text.split())
        for words, same in zip(ours.alignment, theirs.alignment, strict=True):
            assert words == pytest.approx(same, abs=1e-4)


@pytest.mark.slow
def test_alignments_need_a_graph_with_attention(exported: Path, folder: Path) -> None:
    with pytest.raises(InputError, match="export onnx MODEL NEW_FOLDER --attention"):
        OnnxTranslator.from_pretrained(exported / "onnx").find_hypotheses("a", alignments=True)
    with pytest.raises(
        InputError, match="num_return_sequences is 2, but an ONNX graph returns the attention of the best"
    ):
        OnnxTranslator.from_pretrained(folder).find_hypotheses("a", alignments=True, num_return_sequences=2)


@pytest.mark.slow
def test_the_readme_code_prints_the_attention(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join((blocks[0], blocks[-1])), {})
    translation, *lines = printed.getvalue().splitlines()
    assert translation == "Das Haus ist klein."
    found = [re.fullmatch(r"(\S+) <- (\S+) [01]\.\d\d", line) for line in lines]
    assert all(found)
    assert "".join(match[1] for match in found if match).replace("Ġ", " ") == "Das Haus ist klein.</s>"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8", "int8-weights"])
def test_the_other_precisions_are_checked(exported: Path, folder: Path, tmp_path: Path, precision: str) -> None:
    with contextlib.nullcontext() if precision == "fp16" else already_exported(folder):
        report = export_single_folder(exported / "model", tmp_path / "out", precision, attention=True)
    assert "attention weights differ by at most" in report
    large = matrices_of(onnx.load(tmp_path / "out" / "model.onnx").graph)
    kind = onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.INT8
    assert large and {tensor.data_type for tensor in large} == {kind}


@pytest.mark.slow
def test_an_export_with_wrong_attention_leaves_no_files(exported: Path, folder: Path, tmp_path: Path) -> None:
    """Tokens attend to later ones only in the attention pass, so translations stay right."""

    def attend_to_later_tokens(graph: onnx.GraphProto) -> None:
        (chosen,) = (node for body in walk_graphs(graph) for node in body.node if node.op_type == "If")
        (branch,) = (attribute.g for attribute in chosen.attribute if attribute.name == "else_branch")
        (causal,) = (node for node in branch.node if node.op_type == "LessOrEqual")
        causal.input[0] = causal.input[1]

    wrong = pytest.raises(ProofError, match="attention weights differ by")
    with already_exported(folder, attend_to_later_tokens), wrong:
        export_single_folder(exported / "model", tmp_path / "new", attention=True)
    assert not list(tmp_path.iterdir())
