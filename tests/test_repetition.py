"""`no_repeat_ngram_size` and `repetition_penalty` in generate(), Translator and ONNX give the same translations.

test_search.py compares the search with brute force.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from conftest import one_fast_in, write_lines
from saved_model import ENGLISH, GERMAN, change_json, trained_tokenizer
from searches import batch_for, by_generate, by_graph, by_search, check_same, session_of, stripped
from tiny_models import ModelMaker

from conversion.onnx.export import export_single_folder
from conversion.onnx.rewrite import walk_graphs
from vaswani_transformer import Translator
from vaswani_transformer.cli import main
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import load_model
from vaswani_transformer.onnx_translator import OnnxTranslator
from vaswani_transformer.search_vaswani_transformer import REPETITION
from vaswani_transformer.torch_translator import TorchTranslator

pytestmark = pytest.mark.timeout(1200)  # an export takes 20 seconds of an idle processor, and minutes of a busy one
SETTINGS: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "min_new_tokens": 12},
]


def repeats(tokens: list[int], size: int) -> bool:
    """Return whether an n-gram occurs twice."""
    ngrams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return len({*ngrams}) < len(ngrams)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_ngram_occurs_twice_in_a_hypothesis(lively_model: ModelMaker, size: int) -> None:
    """The model never ends a sentence: without the setting, most hypotheses have n-grams that occur twice."""
    model = lively_model(1, vocab_size=60)
    with torch.no_grad():
        model.lm_head.bias[2] = -1e4
    batch, limit = batch_for(model, 1), 40
    for find in (by_generate, by_search):
        on, off = (find(model, batch, 4, 0.6, max_new_tokens=limit, no_repeat_ngram_size=n) for n in (size, 0))
        hypotheses = [[0, *tokens] for sentence in on.tokens for tokens in sentence]  # the start token counts
        assert len(hypotheses) == 36 and all(len(tokens) == limit + 1 for tokens in hypotheses)
        assert not any(repeats(tokens, size) for tokens in hypotheses)
        assert np.mean([repeats(tokens, size) for sentence in off.tokens for tokens in sentence]) > 0.5


@pytest.mark.parametrize(
    "changes", one_fast_in(3, [{}, {"decoder_start_token_id": 2}, {"decoder_start_token_id": 1}]), ids=str
)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_forbidden_tokens_and_other_start_tokens(
    lively_model: ModelMaker, changes: dict[str, Any], settings: dict[str, Any]
) -> None:
    """A start token that is also </s> is penalised wherever the translation may end."""
    model, limits = lively_model(1, vocab_size=24, **changes), {"extra_length": 15}
    model.generation_config.suppress_tokens = [*model.generation_config.suppress_tokens, 7, 8, 9]
    for beams in (1, 4):
        ours = by_search(model, batch_for(model, 5), beams, 0.6, **limits, **settings)
        assert check_same(ours, by_generate(model, batch_for(model, 5), beams, 0.6, **limits, **settings)) >= 9
        tokens = {token for sentence in ours.tokens for row in sentence for token in row}
        assert 2 in tokens and not {7, 8, 9} & tokens


def test_numbers_may_be_numpys_or_integers(lively_model: ModelMaker) -> None:
    """transformers alone refuses both."""
    model = lively_model(1)
    batch = batch_for(model, 1)
    expected = by_generate(model, batch, 4, 0.6, no_repeat_ngram_size=2, repetition_penalty=2.0)
    for penalty in (2, np.float32(2)):
        settings = {"no_repeat_ngram_size": np.int64(2), "repetition_penalty": penalty}
        assert by_generate(model, batch, 4, 0.6, **settings).tokens == expected.tokens
        assert by_search(model, batch, 4, 0.6, **settings).tokens == expected.tokens


def test_settings_of_the_file_can_be_switched_off(folder: Path) -> None:
    translator = Translator.from_pretrained(folder, device="cpu")
    expected = translator.translate(ENGLISH)
    change_json(folder / "generation_config.json", no_repeat_ngram_size=1, repetition_penalty=2.0)
    changed = Translator.from_pretrained(folder, device="cpu")
    assert changed.search.repetition == {"no_repeat_ngram_size": 1, "repetition_penalty": 2.0}
    assert changed.translate(ENGLISH, **REPETITION) == expected != changed.translate(ENGLISH)


def test_the_command_line_has_both(folder: Path, tmp_path: Path) -> None:
    words = ["translate", folder, "--input", write_lines(tmp_path / "in", ENGLISH), "--output"]
    main([*map(str, words), str(tmp_path / "out"), "--no-repeat-ngram-size", "1", "--repetition-penalty", "1.5"])
    expected = Translator.from_pretrained(folder).translate(ENGLISH, no_repeat_ngram_size=1, repetition_penalty=1.5)
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == expected


# ---- ONNX ------------------------------------------------------------------------------------------------------


def test_an_export_without_them_computes_nothing_for_them(exported: Path) -> None:
    """A step with two layers has as many operators as conversion/onnx/rewrite.py says."""
    graph = onnx.load(exported / "onnx" / "model.onnx").graph
    steps, *_ = walk_graphs(graph)
    assert len(steps.node) == 136
    assert not REPETITION.keys() & {value.name for value in graph.input}
    assert not any("history" in value.name for value in steps.input)


def test_an_export_without_them_refuses_them(exported: Path, tmp_path: Path, refused) -> None:
    translator = OnnxTranslator.from_pretrained(exported / "onnx", device="cpu")
    assert translator.translate(ENGLISH, **REPETITION) == translator.translate(ENGLISH)
    said = (
        r"no_repeat_ngram_size is 3, but .* was exported without inputs for repetitions; export it again with "
        "--repetition, or set no_repeat_ngram_size 0$"
    )
    with pytest.raises(InputError, match=said):
        translator.translate(ENGLISH, no_repeat_ngram_size=3)
    words = ["translate", exported / "onnx", "--backend", "onnx", "--repetition-penalty", "1.3"]
    words += ["--input", write_lines(tmp_path / "in", ENGLISH)]
    error = refused(main, words)
    assert error.startswith("error: repetition_penalty is 1.3, but ") and error.count("\n") == 1
    copy = Path(shutil.copytree(exported / "onnx", tmp_path / "copy"))
    change_json(copy / "generation_config.json", no_repeat_ngram_size=3)
    with pytest.raises(InputError, match=said):
        OnnxTranslator.from_pretrained(copy, device="cpu")


@pytest.mark.slow
def test_the_graph_gives_every_hypothesis_of_generate(exported_with_repetition: Path) -> None:
    model = load_model(exported_with_repetition / "model")
    session, count = session_of(str(exported_with_repetition / "onnx" / "model.onnx")), 0
    off = {"no_repeat_ngram_size": 0, "repetition_penalty": 1.0}
    for seed, settings in enumerate([*SETTINGS, {"no_repeat_ngram_size": 1}, {"repetition_penalty": 0.7}, off]):
        for beams in (1, 3, 4):
            batch = batch_for(model, seed)
            given = {"extra_length": 12, "num_return_sequences": beams} | settings
            ours = by_graph(session, batch, num_beams=beams, length_penalty=0.6, early_stopping="never", **given)
            count += check_same(ours, by_generate(model, batch, beams, 0.6, **given))
    assert count >= 400


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_generate_and_both_translators_give_the_same_tokens(exported_with_repetition: Path, beams: int) -> None:
    """400 sentences of random words, which the model translates with many repetitions, with four settings.

    Some of them have beams that tie in float32, of which rounding drops one; torch compares in float64.
    """
    chance, words = random.Random(beams), " ".join(ENGLISH + GERMAN).split()
    texts = [" ".join(chance.choices(words, k=chance.randint(2, 12))) for _ in range(400)]
    model, tokenizer = load_model(exported_with_repetition / "model"), trained_tokenizer()
    by_torch = TorchTranslator(model.double(), tokenizer)
    by_onnx = Translator.from_pretrained(exported_with_repetition / "onnx", backend="onnx", device="cpu")
    whole: dict[str, Any] = {"num_beams": beams, "split_sentences": False, "max_source_length": 1000}
    without = [best.tokens for (best,) in by_torch.find_hypotheses(texts, **whole)]
    for settings in SETTINGS:
        expected = []
        for first in range(0, len(texts), 50):
            batch = tokenizer(texts[first : first + 50], return_tensors="pt", padding=True)
            expected += map(stripped, model.generate(**batch, num_beams=beams, **settings)[:, 1:].tolist())
        for translator, ties in ((by_torch, 0), (by_onnx, len(texts) // 100)):
            found = [best.tokens for (best,) in translator.find_hypotheses(texts, **whole, **settings)]
            assert sum(a != b for a, b in zip(found, expected, strict=True)) <= ties, settings
        assert sum(a != b for a, b in zip(expected, without, strict=True)) > 100, settings


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_one_file_gives_the_same_search_everywhere(
    exported_with_repetition: Path, tmp_path: Path, backend: Any
) -> None:
    shutil.copytree(exported_with_repetition / ("onnx" if backend == "onnx" else "model"), tmp_path / "copy")
    change_json(tmp_path / "copy" / "generation_config.json", **SETTINGS[-1])
    model, tokenizer = load_model(exported_with_repetition / "model"), trained_tokenizer()
    batch = tokenizer(ENGLISH, return_tensors="pt", padding=True)
    expected = tokenizer.batch_decode(model.generate(**batch, **SETTINGS[-1]), skip_special_tokens=True)
    assert Translator.from_pretrained(tmp_path / "copy", backend=backend, device="cpu").translate(ENGLISH) == expected


@pytest.mark.slow
def test_a_file_of_texts_has_them_as_inputs(exported_with_repetition: Path) -> None:
    folder = exported_with_repetition / "onnx"
    session = session_of(str(folder / "model_text.onnx"))
    translator = OnnxTranslator.from_pretrained(folder, device="cpu")
    inputs = {"text": np.array(ENGLISH, object), "repetition_penalty": np.array(1.5, np.float32)}
    found = session.run(["translations"], inputs | {"no_repeat_ngram_size": np.array(1)})[0].tolist()
    settings = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 1, "split_sentences": False}
    assert found == translator.translate(ENGLISH, **settings) != translator.translate(ENGLISH, split_sentences=False)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "| `repetition_penalty` | float32 | scalar, optional |" in readme
    assert "`min_new_tokens`, `no_repeat_ngram_size`, `repetition_penalty` |" in readme


@pytest.mark.slow
def test_an_export_of_a_model_that_sets_one_has_them(folder: Path, tmp_path: Path) -> None:
    """In half precision, too, where the check of the export scores the graph's translations with torch."""
    change_json(folder / "generation_config.json", no_repeat_ngram_size=2, repetition_penalty=1.3, num_beams=1)
    lines = write_lines(tmp_path / "in", ENGLISH + GERMAN)
    export_single_folder(folder, tmp_path / "onnx", "fp16", defaults=False, sentences=lines)
    translator = OnnxTranslator.from_pretrained(tmp_path / "onnx", device="cpu")
    assert translator.search.repetition == {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3}
    assert "scalar, optional" not in (tmp_path / "onnx" / "README.md").read_text(encoding="utf-8")
    assert json.loads((folder / "generation_config.json").read_text())["num_beams"] == 1
    assert all(translator.translate(ENGLISH))
