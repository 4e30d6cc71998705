"""Attention maps and figures: weights of the forward pass, a label for every token, and readable images."""

import io
import re
from typing import Any, cast

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from saved_model import ENGLISH, GERMAN, trained_model, trained_tokenizer

from vaswani_transformer import sinusoidal_positional_encoding
from vaswani_transformer.attention_maps import AttentionMaps, attention_maps, eager_copy, token_labels
from vaswani_transformer.errors import InputError
from vaswani_transformer.pictures import attention_figure, positional_encoding_figure
from vaswani_transformer.sentences_vaswani_transformer import clean_text

SOURCE, TARGET = ENGLISH[1], GERMAN[1]  # zwölf, Äpfel, möchten


@pytest.fixture(scope="module")
def maps() -> AttentionMaps:
    return attention_maps(trained_model(), trained_tokenizer(), SOURCE, TARGET)


def opened(figure: Figure) -> Image.Image:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return Image.open(stream)


def labels(figure: Figure) -> list[tuple[list[str], list[str], np.ndarray]]:
    """Return (column labels, row labels, values) of every visible heat map."""
    shown = []
    for axis in figure.axes:
        if axis.images and axis.get_visible():
            top, side = axis.get_xticklabels(), axis.get_yticklabels()
            values = np.asarray(axis.images[0].get_array())
            shown.append(([label.get_text() for label in top], [label.get_text() for label in side], values))
    return shown


def test_weights_equal_the_forward_pass(maps):
    model, tokenizer = trained_model(), trained_tokenizer()
    assert model.config._attn_implementation == "sdpa"
    ids = torch.tensor([tokenizer(SOURCE)["input_ids"]])
    attention = cast(Any, model.model.encoder.layers[0]).self_attn
    x = model.model.encoder.embed(ids, None)  # the input of the first layer
    heads = [projection(x).unflatten(-1, (4, 8)).transpose(1, 2) for projection in (attention.q_proj, attention.k_proj)]
    expected = torch.softmax(heads[0] @ heads[1].transpose(-1, -2) / 8**0.5, dim=-1)
    torch.testing.assert_close(maps.encoder[0], expected[0], atol=1e-5, rtol=1e-5)


def test_another_thread_may_translate_with_the_model_meanwhile():
    """Its weights are neither copied nor changed, and it keeps its own implementation of attention."""
    model = trained_model()
    copied = eager_copy(model)
    assert (copied.config._attn_implementation, model.config._attn_implementation) == ("eager", "sdpa")
    assert model.model.encoder.config._attn_implementation == "sdpa"
    ours, theirs = dict(model.named_parameters()), dict(copied.named_parameters())
    assert ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)


def test_the_default_target_is_the_translation():
    translated = attention_maps(trained_model(), trained_tokenizer(), ENGLISH[0])
    batch = trained_tokenizer()([ENGLISH[0]], return_tensors="pt")
    ids = trained_model().generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    assert translated.predicted == token_labels(trained_tokenizer(), ids[0, 1:].tolist())
    assert translated.target == ["<s>", *translated.predicted[:-1]]


@pytest.mark.parametrize("text", ["Äpfel für zwölf Euro", "日本語 🙂", "a </s> $x^2$", "", "naïve\u0301"])
def test_labels_concatenate_to_the_text(text):
    tokenizer = trained_tokenizer()
    ids = tokenizer(text)["input_ids"]
    shown = token_labels(tokenizer, ids)
    assert len(shown) == len(ids) and shown[-1] == "</s>"
    # Each byte of a character repeats the character; count it once.
    once = [re.sub(r" 1/\d$", "", label) for label in shown[:-1] if not re.search(r" [2-4]/\d$", label)]
    assert "".join(once) == clean_text(text).replace(" ", "▁")


def test_bytes_of_one_character_are_numbered():
    tokenizer = trained_tokenizer()
    ids = tokenizer("🙂", add_special_tokens=False)["input_ids"]
    assert token_labels(tokenizer, ids) == [f"🙂 {part}/4" for part in (1, 2, 3, 4)]
    assert token_labels(tokenizer, ids[:2]) == ["�", "�"]  # a model may stop in the middle of a character


def test_a_figure_shows_every_head_with_token_labels(maps):
    figure = attention_figure(maps)
    shown = labels(figure)
    assert len(shown) == 2
    for head, (top, side, numbers) in enumerate(shown):
        assert top == maps.source
        np.testing.assert_array_equal(numbers, maps.cross[-1, head].numpy())
        assert side == (maps.predicted if head == 0 else [""] * len(maps.predicted))
    assert {"▁zw", "ö"} <= set(maps.predicted)
    image = opened(figure)
    width, height = (figure.get_size_inches() * figure.dpi).round().astype(int)
    assert image.size == (width, height) and min(image.size) > 500
    assert len(np.unique(np.asarray(image.convert("L")))) > 50  # not an empty canvas


@pytest.mark.parametrize(
    "kind, layer, head, panels",
    [("cross", 0, 0, 2), ("cross", 0, None, 4), ("cross", 1, 2, 1), ("encoder", None, None, 4), ("decoder", 2, 0, 1)],
)
def test_layers_and_heads_can_be_chosen(maps, kind, layer, head, panels):
    shown = labels(attention_figure(maps, kind, layer, head))
    assert len(shown) == panels
    weights = getattr(maps, kind)
    expected = weights[(layer or weights.shape[0] if layer != 0 else 1) - 1]
    expected = expected.mean(0) if head == 0 else expected[(head or 1) - 1]
    np.testing.assert_allclose(shown[0][2], expected.numpy(), atol=1e-6)


def test_characters_without_a_glyph_are_shown_as_code_points():
    figure = attention_figure(attention_maps(trained_model(), trained_tokenizer(), "日 $x_1$", "本"))
    top, side, _ = labels(figure)[0]
    assert top[0] == "U+65E5 1/3" and "$" in "".join(top) and side[0] == "U+672C 1/3"
    opened(figure)


def test_the_positional_encoding_figure_shows_the_formula():
    figure = positional_encoding_figure(50, 64)
    (axis,) = (axis for axis in figure.axes if axis.images)
    np.testing.assert_array_equal(axis.images[0].get_array(), sinusoidal_positional_encoding(50, 64).numpy())
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("dimension (even: sine, odd: cosine)", "position")
    assert "50 positions of 64 dimensions" in axis.get_title()
    assert min(opened(figure).size) > 500


def test_invalid_choices_are_refused_with_the_limit(maps):
    model, tokenizer = trained_model(), trained_tokenizer()
    for refused, named in [
        (lambda: attention_figure(maps, "crosswise"), "cross, encoder, decoder"),
        (lambda: attention_figure(maps, layer=3), "layer is 3; the model has layers 1 to 2"),
        (lambda: attention_figure(maps, head=-1), "head is -1"),
        (lambda: attention_maps(model, tokenizer, " "), "source is empty"),
        (lambda: attention_maps(model, tokenizer, "a" * 200), "at most 120"),
        (lambda: attention_maps(model, tokenizer, "a", "a" * 200), "target has 201 tokens"),
        (lambda: positional_encoding_figure(0, 64), "length 0"),
        (lambda: positional_encoding_figure(10, 63), "d_model 63"),
    ]:
        with pytest.raises(InputError, match=named):
            refused()
