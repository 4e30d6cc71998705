"""`python -m paper figure1` to `figure5`, `walk` and `heads`: the running model, and searches for planted heads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from saved_model import ENGLISH, GERMAN, saved_model, trained_model
from tiny_models import tiny_config

from paper.__main__ import main
from paper.figures.architecture import draw_figure1, draw_figure2, record_calls, record_operations
from paper.figures.head_figures import (
    WordMaps,
    find_anaphora,
    find_different_tasks,
    find_long_distance,
    group_tokens,
    join_words,
)
from paper.heads import measure_heads
from paper.walk import Head, compute_walk
from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.attention_maps import attention_maps
from vaswani_transformer.errors import InputError

WORDS: list[str] = [*"A man is throwing the red ball to his dog .".split()]


def texts(figure: Any) -> str:
    return "\n".join(text.get_text() for axis in figure.axes for text in axis.texts)


# ---- figures 1 and 2 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", ["post", "pre"])
def test_figure_1_shows_every_parameter_of_the_running_model(position):
    final = {"encoder_final_norm": position == "pre", "decoder_final_norm": position == "pre"}
    model = VaswaniTransformerForConditionalGeneration(tiny_config(norm_position=position, **final))
    calls = record_calls(model)
    once = {call.name: call for call in calls if call.name not in ("model.decoder.embed_tokens", "lm_head")}  # tied
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sum(call.parameters for call in once.values()) == total
    shown = texts(draw_figure1(model))
    assert f"{total:,} parameters; the embeddings and Linear are one matrix" in shown
    assert "decoder.layers.0-2.cross_attn (1, 6, 16)" in shown and "2×" in shown and "3×" in shown
    assert ("Add & Norm" in shown) == (position == "post") and ("final_norm" in shown) == (position == "pre")


def test_figure_2_shows_the_operations_that_run():
    model = trained_model()
    attention: Any = model.model.encoder.layers[0].self_attn
    operations = record_operations(attention, heads=4, length=7)
    assert [name for name, _ in operations] == ["Scale", "MatMul", "Mask (opt.)", "SoftMax", "MatMul"]
    assert operations[1][1] == (4, 7, 7) and operations[-1][1] == (4, 7, 8)
    assert "q_proj (32, 32)\n1,024" in texts(draw_figure2(model)) and "d_k = 8" in texts(draw_figure2(model))


# ---- figures 3 to 5 ------------------------------------------------------------------------------------------------


def test_tokens_are_joined_to_words():
    labels = ["A", "▁m", "an", "'s", "▁d", "og", "▁", ".", "!", "</s>"]
    assert group_tokens(labels) == [[0], [1, 2, 3], [4, 5], [6, 7], [8], [9]]


def test_the_weights_of_words_still_sum_to_one(translator):
    maps = attention_maps(translator.model, translator.tokenizer, ENGLISH[1], GERMAN[1])
    words = join_words(maps)
    assert words.words == [*ENGLISH[1].removesuffix(".").split(), ".", "</s>"]
    torch.testing.assert_close(words.weights.sum(-1), torch.ones(words.weights.shape[:-1]))


def planted(**links: tuple[int, int, str, str]) -> WordMaps:
    """Return uniform attention of 2 layers with 3 heads, but for links (layer, head, query, key) of 0.9."""
    count = len(WORDS)
    weights = torch.full((2, 3, count, count), 1 / count)
    for layer, head, query, key in links.values():
        row = weights[layer - 1, head - 1, WORDS.index(query)]
        row.fill_(0.1 / (count - 1))
        row[WORDS.index(key)] = 0.9
    return WordMaps(WORDS, weights)


def test_the_search_finds_a_distant_link():
    found = find_long_distance(planted(near=(1, 1, "red", "ball"), far=(2, 3, "dog", "throwing")))
    assert (found.layer, WORDS[found.query or 0], WORDS[found.key or 0]) == (2, "dog", "throwing")


def test_the_search_finds_the_noun_of_a_pronoun():
    found = find_anaphora(planted(verb=(1, 1, "his", "throwing"), noun=(2, 2, "his", "man")))
    assert (found.layer, found.heads[0], WORDS[found.query or 0], WORDS[found.key or 0]) == (2, 2, "his", "man")
    with pytest.raises(InputError, match="has no pronoun with a noun before it"):
        find_anaphora(WordMaps(["A", "man", "."], torch.ones(1, 1, 3, 3) / 3))


def test_the_search_finds_two_heads_with_different_tasks():
    count = len(WORDS)
    weights = torch.full((2, 3, count, count), 1 / count)
    weights[0, 2] = torch.eye(count).roll(-1, 0)  # every word looks at the next one
    weights[1, 0] = torch.eye(count)[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    by_distance, by_content = find_different_tasks(WordMaps(WORDS, weights))
    assert (by_distance.layer, by_distance.heads) == (1, [3]) and (by_content.layer, by_content.heads) == (2, [1])


def test_known_heads_have_the_expected_measures():
    uniform, shifted = torch.full((5, 5), 0.2), torch.eye(5).roll(1, 1)
    first, second = measure_heads("encoder", torch.stack((uniform, shifted))[None])[0]
    assert first[0] == pytest.approx(torch.tensor(5.0).log()) and second[0] == 0
    assert first[1] == pytest.approx(1.6) and second[1] == pytest.approx((4 * 1 + 4) / 5)
    assert first[2] == pytest.approx(0.2) and second[2] == pytest.approx(0.8) and first[4].isnan()
    assert (measure_heads("cross", shifted[None, None])[0, 0, 4]) == 1


# ---- the walk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_the_walk_arrives_at_the_weights_of_the_model(translator, kind):
    values, maps = compute_walk(translator, ENGLISH[1], GERMAN[1], Head(kind, layer=1, head=2))
    torch.testing.assert_close(values["softmax"], getattr(maps, kind)[0, 1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(values["softmax V"], values["softmax"] @ values["V"])
    d_k = values["Q"].shape[1]
    torch.testing.assert_close(values["Q K^T / sqrt(d_k)"], values["Q"] @ values["K"].T / d_k**0.5)
    assert values["mask"].isinf().any() == (kind == "decoder")


# ---- the commands --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(scope="module")
def where(folder) -> list[str]:
    return ["--model", str(saved_model(folder / "model")), "--output", str(folder / "paper")]


@pytest.mark.slow
def test_the_commands_write_pictures_and_results(where, folder):
    output = folder / "paper"
    (folder / "text.en").write_text("\n".join([*ENGLISH[:2], "", ""]))
    main(["figure4", *where, "--source", " ".join(WORDS)])
    main(["walk", *where, "--kind", "decoder", "--target", GERMAN[0]])
    main(["heads", *where, "--text", str(folder / "text.en")])
    for name in ("figure4", "walk"):
        with Image.open(output / f"{name}.png") as picture:
            assert picture.width > 500
    for name in ("figure4", "walk", "heads"):
        result = json.loads((output / f"{name}.json").read_text())
        assert result["command"].startswith(f"python -m paper {name} --model model")
        assert result.keys() >= {"date", "commit", "hardware", "seeds", "seconds"}
    assert len(json.loads((output / "heads.json").read_text())["heads"]) == 1 * 4 + 2 * (2 + 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["figure4", "--source", "Two dogs run ."], "no pronoun"),
        (["walk", "--layer", "3"], "--layer 3: must be 1 to 1"),
        (["walk", "--kind", "both"], "'both' is not one of 'encoder', 'decoder', 'cross'"),
        (["figure1", "--model", "absent"], "absent: no such folder"),
    ],
)
def test_wrong_options_are_refused(words, said, where, refused):
    assert said in refused(main, [words[0], *where, *words[1:]])
