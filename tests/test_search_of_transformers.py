"""`beam_search: transformers`: all three searches translate as the class of transformers that a model comes from."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_model import ENGLISH, change_json, saved_model, untrained_model
from searches import batch_for, by_generate, by_graph, by_search, check_same, found, session_of
from tiny_models import ModelMaker
from transformers import MarianMTModel
from transformers import pipeline as typed_pipeline

from conversion.__main__ import main
from conversion.onnx.as_marian import arrange_as_marian
from conversion.onnx.export import export_single_folder
from conversion.onnx.single_graph import export_single_graph
from vaswani_transformer import Translator
from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.loading import load_model

pytestmark = pytest.mark.timeout(1200)  # as in test_repetition.py
pipeline: Any = typed_pipeline  # typed for the tasks of transformers only
# Length penalty, early_stopping, max_new_tokens.
SETTINGS = list(product((0.0, 1.0, -0.5), (False, True, "never"), (5, 14)))


def as_transformers(lively_model: ModelMaker, seed: int, folder: Path) -> tuple[Any, Any]:
    """Return a model with this search, and the same model as a MarianMTModel.

    That class ties the output layer to the embedding, so the output layer is put in after the conversion, which
    reorders the columns of both: its sinusoids are in another order.
    """
    model = lively_model(seed, vocab_size=30, layer_norm_eps=1e-5)
    model.generation_config.beam_search, model.generation_config.max_new_tokens = "transformers", 14
    tied: Any = type(model)(type(model.config)(**model.config.to_dict() | {"tie_word_embeddings": True}))
    tied.model.load_state_dict(model.model.state_dict())
    tied.save_pretrained(folder / "ours")
    main(["--to", "hf-marian", str(folder / "ours"), str(folder / "theirs")])
    theirs: Any = MarianMTModel.from_pretrained(folder / "theirs").eval()
    ours, others = tied.lm_head.weight, theirs.model.shared.weight
    order = [int((ours == column[:, None]).all(dim=0).nonzero()) for column in others.T]
    theirs.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach()[:, order])
    theirs.final_logits_bias = model.lm_head.bias.detach()[None]
    return model, theirs


def by_marian(theirs: Any, batch: dict[str, Any], beams: int, alpha: float, **settings: Any) -> Any:
    output = theirs.generate(
        **batch,
        num_beams=beams,
        length_penalty=alpha,
        num_return_sequences=beams,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    scores = output.sequences_scores.unflatten(0, (-1, beams)).numpy()
    return found(output.sequences[:, 1:].unflatten(0, (-1, beams)), scores)


def test_both_searches_of_torch_are_those_of_marian(lively_model: ModelMaker, tmp_path: Path) -> None:
    """Also where hypotheses reach the limit, and for lists of the best ones."""
    hypotheses = 0
    models = {seed: as_transformers(lively_model, seed, tmp_path / str(seed)) for seed in (1, 2)}
    for (seed, (model, theirs)), (alpha, rule, most) in product(models.items(), SETTINGS):
        settings: dict[str, Any] = {"early_stopping": rule, "max_new_tokens": most}
        batch = batch_for(model, seed)
        expected = by_marian(theirs, batch, 4, alpha, **settings)
        check_same(by_generate(model, batch, 4, alpha, **settings, extra_length=None), expected)
        hypotheses += check_same(by_search(model, batch, 4, alpha, **settings), expected)
    assert hypotheses > 1000


@pytest.mark.slow
def test_the_graphs_search_is_that_of_marian(lively_model: ModelMaker, tmp_path: Path) -> None:
    model, theirs = as_transformers(lively_model, 1, tmp_path)
    batch, session = batch_for(model, 1), session_of(export_single_graph(model))
    for alpha, rule, most in SETTINGS:
        settings: dict[str, Any] = {"early_stopping": rule, "max_new_tokens": most}
        expected = by_marian(theirs, batch, 4, alpha, **settings)
        given = settings | {"num_beams": 4, "length_penalty": alpha, "num_return_sequences": 4}
        check_same(by_graph(session, batch, **given), expected)


def test_the_papers_search_is_another(lively_model: ModelMaker, tmp_path: Path) -> None:
    """Only the best `beam` continuations finish in transformers, and short sentences do not wait for each other."""
    differ = 0
    for seed in range(3):
        model, theirs = as_transformers(lively_model, seed, tmp_path / str(seed))
        batch, settings = batch_for(model, seed), {"early_stopping": "never", "max_new_tokens": 14}
        expected = by_marian(theirs, batch, 2, 0.0, **settings)
        model.generation_config.beam_search = None
        paper = by_search(model, batch, 2, 0.0, **settings)
        assert paper.scores is not None
        assert (paper.scores[:, 0] >= expected.scores[:, 0] - 1e-4).all()
        differ += sum(ours[0] != theirs[0] for ours, theirs in zip(paper.tokens, expected.tokens, strict=True))
    assert differ > 0


def test_one_result_does_not_end_a_search_sooner(lively_model: ModelMaker, tmp_path: Path) -> None:
    model, theirs = as_transformers(lively_model, 1, tmp_path)
    batch, settings = batch_for(model, 1), {"early_stopping": False, "max_new_tokens": 14}
    every = by_marian(theirs, batch, 4, 1.0, **settings)
    one = by_search(model, batch, 4, 1.0, num_return_sequences=1, **settings)
    assert [rows[0] for rows in one.tokens] == [rows[0] for rows in every.tokens]
    with torch.inference_mode():
        output = model.generate(**batch, num_beams=4, length_penalty=1.0, **settings)
    assert found(output[:, None, 1:], None).tokens == one.tokens


@pytest.mark.slow
def test_one_file_gives_the_same_translations_everywhere(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "model")
    change_json(folder / "generation_config.json", beam_search="transformers", length_penalty=1.0)
    export_single_folder(folder, tmp_path / "onnx", "int8")
    torch_search: Any = Translator.from_pretrained(folder, device="cpu")
    graph: Any = Translator.from_pretrained(tmp_path / "onnx", backend="onnx", device="cpu")
    assert torch_search.translate(ENGLISH) == graph.translate(ENGLISH)


def test_the_pipelines_scores_are_those_of_the_search(tmp_path: Path) -> None:
    folder, texts = saved_model(tmp_path / "model"), ENGLISH[:3]
    change_json(folder / "generation_config.json", beam_search="transformers", length_penalty=1.0)
    translator: Any = Translator.from_pretrained(folder, device="cpu")
    translate = pipeline("translation", model=str(folder), device="cpu")
    found = translate(texts, return_scores=True)
    for (best,), result in zip(translator.find_hypotheses(texts), found, strict=True):
        assert result["score"] == pytest.approx(best.score, abs=1e-4)


@pytest.mark.parametrize("value", ["fairseq", True, 4, ["transformers"]])
def test_an_unknown_search_is_named(value: object, tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "model")
    change_json(folder / "generation_config.json", beam_search=value)
    said = "generation_config.json: beam_search is .*; it must be 'tensor2tensor' or 'transformers'"
    with pytest.raises(BrokenFileError, match=said):
        Translator.from_pretrained(folder, device="cpu")


def test_transformers_gets_its_own_settings_back(tmp_path: Path) -> None:
    untrained_model(layer_norm_eps=1e-5).save_pretrained(tmp_path / "ours")
    main(["--to", "hf-marian", str(tmp_path / "ours"), str(tmp_path / "theirs")])
    theirs: Any = MarianMTModel.from_pretrained(tmp_path / "theirs")
    theirs.generation_config.update(num_beams=6, length_penalty=1.3, early_stopping=True)
    theirs.save_pretrained(tmp_path / "marian")
    main([str(tmp_path / "marian"), str(tmp_path / "converted")])
    main(["--to", "hf-marian", str(tmp_path / "converted"), str(tmp_path / "back")])
    written = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert (written["num_beams"], written["length_penalty"], written["early_stopping"]) == (6, 1.3, True)
    main([str(tmp_path / "marian"), str(tmp_path / "paper"), "--paper-search"])
    paper = json.loads((tmp_path / "paper" / "generation_config.json").read_text())
    assert paper.get("beam_search") is None and paper["length_penalty"] == 0.6


def test_greedy_exports_have_no_settings_of_beam_search(tmp_path: Path) -> None:
    """Of which transformers warns each time that it loads them, as in Optimum."""
    folder = saved_model(tmp_path / "model")
    change_json(folder / "generation_config.json", beam_search="transformers", length_penalty=1.3, early_stopping=True)
    arrange_as_marian(folder, load_model(folder, "cpu"), "fp32", "optimum")
    written = json.loads((folder / "generation_config.json").read_text())
    assert written["num_beams"] == 1 and not written.keys() & {"length_penalty", "early_stopping"}
