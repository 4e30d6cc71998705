"""`forced_bos_token_id`, with which every translation begins: generate(), Translator and ONNX give the same ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from brute_force import beam_search, full_forward, with_first
from saved_model import ENGLISH, change_json, saved_model
from searches import batch_for, by_generate, by_graph, by_search, check_same, padded, session_of
from tiny_models import ModelMaker, random_sentences
from transformers import pipeline as typed_pipeline

from conversion.onnx.as_marian import arrange_as_marian
from conversion.onnx.export import export_single_folder
from conversion.onnx.single_graph import export_single_graph
from vaswani_transformer import Translator
from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.loading import load_model

pytestmark = pytest.mark.timeout(1200)  # as in test_repetition.py
FORCED = 7
pipeline: Any = typed_pipeline  # typed for the tasks of transformers only


@pytest.mark.parametrize("beams", [1, 2, 4])
def test_the_search_equals_brute_force(lively_model: ModelMaker, beams: int) -> None:
    """The token costs nothing and counts as one of the translation's."""
    for seed in (1, 6):
        model = lively_model(seed, vocab_size=20)
        sentences = random_sentences(seed, count=5, vocab_size=20, longest=7)
        free = by_search(model, padded(sentences), beams, 0.6, extra_length=8)
        model.generation_config.forced_bos_token_id = FORCED
        tensors = by_search(model, padded(sentences), beams, 0.6, extra_length=8)
        check_same(tensors, by_generate(model, padded(sentences), beams, 0.6, extra_length=8))
        assert tensors.scores is not None
        for sentence, rows, scores in zip(sentences, tensors.tokens, tensors.scores.tolist(), strict=True):
            forward = with_first(FORCED, full_forward(model, sentence))
            truth = beam_search(forward, beams=beams, alpha=0.6, limit=len(sentence) + 8)
            assert [row[0] for row in rows if row] == [FORCED] * len(truth.hypotheses)
            assert tuple(rows[0]) == truth.hypotheses[0].tokens
            assert scores[0] == pytest.approx(truth.hypotheses[0].score, abs=1e-5)
        assert tensors.tokens != free.tokens


@pytest.mark.slow
def test_the_graph_begins_with_it_as_well(lively_model: ModelMaker) -> None:
    model = lively_model(1, vocab_size=40)
    model.generation_config.forced_bos_token_id = FORCED
    session = session_of(export_single_graph(model))
    for beams in (1, 4):
        batch, given = batch_for(model, beams), {"extra_length": 12, "num_return_sequences": beams}
        ours = by_graph(session, batch, num_beams=beams, length_penalty=0.6, early_stopping="never", **given)
        assert check_same(ours, by_generate(model, batch, beams, 0.6, **given)) >= 9
        assert {row[0] for sentence in ours.tokens for row in sentence if row} == {FORCED}


@pytest.mark.slow
def test_one_file_gives_the_same_translations_everywhere(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "model")
    change_json(folder / "generation_config.json", forced_bos_token_id=100)
    export_single_folder(folder, tmp_path / "onnx", "int8")
    found = [
        [best.tokens for (best,) in translator.find_hypotheses(ENGLISH)]
        for translator in (
            Translator.from_pretrained(folder, device="cpu"),
            Translator.from_pretrained(tmp_path / "onnx", backend="onnx", device="cpu"),
        )
    ]
    assert {row[0] for rows in found for row in rows} == {100}


def test_the_pipeline_and_forced_decoding_give_the_scores_of_the_search(tmp_path: Path) -> None:
    folder, texts = saved_model(tmp_path / "model"), ENGLISH[:3]
    change_json(folder / "generation_config.json", forced_bos_token_id=100)
    translator: Any = Translator.from_pretrained(folder, device="cpu")
    expected = [best for (best,) in translator.find_hypotheses(texts)]
    translate = pipeline("translation", model=str(folder), device="cpu")
    found = translate(texts, return_scores=True)
    sources = [translator._encode(text)[0] for text in texts]
    forced = translator._log_probabilities(sources, [best.tokens for best in expected])
    for best, result, log_probabilities in zip(expected, found, forced, strict=True):
        assert result["score"] == pytest.approx(best.score, abs=1e-4)
        penalty = ((5 + len(best.tokens)) / 6) ** translator.search.length_penalty
        assert sum(log_probabilities) / penalty == pytest.approx(best.score, abs=1e-4)
        assert log_probabilities[0] == 0 > log_probabilities[1]


@pytest.mark.parametrize(
    ("name", "built_in", "value"),
    [("forced_bos_token_id", "null", 100), ("beam_search", '"tensor2tensor"', "transformers")],
)
def test_a_graph_with_another_setting_built_in_is_refused(
    name: str, built_in: str, value: object, tmp_path: Path, exported: Path
) -> None:
    """The graph cannot change it."""
    folder = Path(shutil.copytree(exported / "onnx", tmp_path / "onnx"))
    change_json(folder / "generation_config.json", **{name: value})
    said = f"exported with {name} {built_in}, but .* has {json.dumps(value)}; export"
    with pytest.raises(BrokenFileError, match=said):
        Translator.from_pretrained(folder, backend="onnx", device="cpu")


def test_libraries_that_load_the_split_layout_get_the_token(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "model")
    change_json(folder / "generation_config.json", forced_bos_token_id=100, suppress_tokens=[0, 1, 9])
    arrange_as_marian(folder, load_model(folder, "cpu"), "fp32", "optimum")
    written = json.loads((folder / "generation_config.json").read_text())
    assert (written["forced_bos_token_id"], written["bad_words_ids"]) == (100, [[0], [1], [9]])


@pytest.mark.parametrize("token", [-1, 10**6, "de", 2.0, True, 2, 1, 9])
def test_an_impossible_token_is_named(token: object, tmp_path: Path) -> None:
    """2 is </s>, 1 the padding, and suppress_tokens forbids 9."""
    folder = saved_model(tmp_path / "model")
    change_json(folder / "generation_config.json", forced_bos_token_id=token, suppress_tokens=[0, 9])
    said = f"generation_config.json: forced_bos_token_id is {json.loads(json.dumps(token))!r}"
    with pytest.raises(BrokenFileError, match=said):
        Translator.from_pretrained(folder, device="cpu")
