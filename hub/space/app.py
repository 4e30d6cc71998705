"""A Space that translates a text and shows the hypotheses of the beam search and the attention weights.

It works with any Vaswani Transformer on the Hub, loaded with transformers and `trust_remote_code`:

    MODEL_ID=owner/name python app.py

`vaswani-transformer space` writes a Space for a model, with model.json in place of MODEL_ID.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr  # pyright: ignore[reportMissingImports]  (installed only in the Space's own environment)
import numpy as np
import torch
from attention import KINDS, Attention, compute_attention
from equation import equation
from heat_map import MEAN, diverging, heat_map
from huggingface_hub import ModelCard, constants
from transformers import pipeline
from transformers.utils.hub import cached_file

HERE = Path(__file__).parent
CHOSEN = json.loads((HERE / "model.json").read_text(encoding="utf-8")) if (HERE / "model.json").is_file() else {}
MODEL_ID = os.environ.get("MODEL_ID") or CHOSEN.get("id")
# A commit or tag, None: the newest. That of model.json is one of its own model.
REVISION = os.environ.get("MODEL_REVISION") or (CHOSEN.get("revision") if MODEL_ID == CHOSEN.get("id") else None)
MAX_CHARACTERS = os.environ.get("MAX_CHARACTERS", "5000")  # per text; a Space translates about 100 a second
if not MODEL_ID:
    sys.exit("error: MODEL_ID is not set; name a model on the Hub, as in MODEL_ID=owner/name (Settings, Variables)")
if not MAX_CHARACTERS.isdecimal():
    sys.exit(f"error: MAX_CHARACTERS is {MAX_CHARACTERS!r}; it must be a whole number, such as 5000")
MAX_CHARACTERS = int(MAX_CHARACTERS)
MAX_TOKENS = 120  # a larger heat map is unreadable
EXAMPLES = [  # for a model whose card has none
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two young dogs are running through the deep snow.",
    "A little girl climbs into a wooden playhouse.",
]

# The model's own pipeline, from its repository. Eager, because the other attention implementations return no weights.
translator: Any = pipeline(
    "translation",
    model=MODEL_ID,
    revision=REVISION,
    trust_remote_code=True,
    device="cpu",
    model_kwargs={"attn_implementation": "eager"},
)
model = translator.model
config = model.config
# Language tokens such as >>deu<<, in models with several target languages.
known = getattr(translator, "languages", None)  # the code of older models has none
LANGUAGES = dict(zip(known.names, known.tokens, strict=True)) if known else {}
# transformers' defaults for what generation_config.json leaves out.
BEAMS = model.generation_config.num_beams or 1
ALPHA = 1.0 if model.generation_config.length_penalty is None else model.generation_config.length_penalty
IS_OF_TRANSFORMERS = getattr(model.generation_config, "beam_search", None) == "transformers"
PENALTY = "length^α" if IS_OF_TRANSFORMERS else "((5 + length) / 6)^α"
# The cross-attention head that is shown first, counted from 1: the one by which words are aligned, if it was chosen.
ALIGNMENT_HEADS = getattr(model.generation_config, "alignment_heads", None)
LAYER, HEAD = (number + 1 for number in ALIGNMENT_HEADS[0][:2]) if ALIGNMENT_HEADS else (config.decoder_layers, MEAN)


def card_examples() -> list[str]:
    """Return the sentences of the model card's widget, or EXAMPLES, without language tokens: visitors choose one."""
    card = cached_file(MODEL_ID, "README.md", revision=REVISION, _raise_exceptions_for_missing_entries=False)
    widget = ModelCard.load(card, ignore_metadata_errors=True).data.get("widget") if card else None
    texts = [example["text"] for example in widget or [] if example.get("text")][:5]
    starts = [next(filter(text.startswith, LANGUAGES.values()), "") for text in texts]
    return [text.removeprefix(start).lstrip() for text, start in zip(texts, starts, strict=True)] or EXAMPLES


# ---- translation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hypotheses:
    """The hypotheses of a sentence, best first.

    source: (1, source) ids; targets: ids, ending in </s>; scores: log P(Y | X) / length penalty
    separator: what is copied in front of the sentence
    ending: what is copied after the last sentence
    """

    source: torch.Tensor
    targets: list[list[int]]
    texts: list[str]
    scores: list[float]
    separator: str
    ending: str = ""


def translate(
    text: str,
    beams: int = BEAMS,
    alpha: float = ALPHA,
    whole: bool = False,
    language: str | None = None,
    track: Callable[[list[Any]], Iterable[Any]] = iter,
) -> list[Hypotheses]:
    """Translate the sentences of a text one by one, as the model was trained; `whole` cuts only what is too long.

    language: the token of the target language, for a text that does not begin with one
    track: wraps the list of sentences to show the progress
    """
    chosen = {"target_language": language} if language else {}
    split = partial(translator.preprocess, text, split_sentences=not whole, **chosen)
    parts = list(split())
    if any(part["input_ids"].shape[1] > MAX_TOKENS for part in parts):
        parts = list(split(max_source_length=MAX_TOKENS))
    search = {"num_beams": beams, "num_return_sequences": beams, "length_penalty": alpha}
    sentences = []
    for part in track([part for part in parts if not part["is_blank"]]):
        output = translator.forward(part, return_scores=True, **search)
        found = translator.postprocess(
            [output | {"separator": ""}], return_tensors=True, return_text=True, return_scores=True
        )
        targets = [hypothesis["translation_token_ids"].tolist() for hypothesis in found]
        texts, scores = ([hypothesis[key] for hypothesis in found] for key in ("translation_text", "score"))
        ending = parts[-1]["separator"] if parts[-1]["is_blank"] and part is parts[-2] else ""
        sentences.append(Hypotheses(part["input_ids"], targets, texts, scores, part["separator"], ending))
    return sentences


def join_sentences(sentences: list[Hypotheses]) -> str:
    """Join the best translations as the model's pipeline does."""
    parts = [
        {"sequences": torch.tensor([sentence.targets[:1]]), "separator": sentence.separator, "is_blank": False}
        for sentence in sentences
    ]
    ending = {"separator": sentences[-1].ending, "is_blank": True}
    (translation,) = translator.postprocess([*parts, ending])
    return translation["translation_text"]


def within_limit(text: str) -> tuple[str, list[int]]:
    """Return the text without the lines with which it would exceed MAX_CHARACTERS, and their numbers."""
    left, kept, omitted = MAX_CHARACTERS, [], []
    for number, line in enumerate(io.StringIO(text), start=1):
        if len(line) > left:
            omitted.append(number)
            line = "\n"
        else:
            left -= len(line)
        kept.append(line)
    return "".join(kept), omitted


def too_long(omitted: list[int]) -> str:
    """Return the warning about omitted lines."""
    lines = ", ".join(map(str, omitted[:5])) + (" ..." if len(omitted) > 5 else "")
    plural = "s" * (len(omitted) > 1)
    return f"Left out: line{plural} {lines}. The limit is {MAX_CHARACTERS:,} characters; shorten the text."


# ---- positional encoding -------------------------------------------------------------------------------------------


@torch.inference_mode()
def positional_encoding(length: int) -> str:
    """Draw the encoding of the first `length` positions: red above zero, blue below."""
    length = min(length, config.max_position_embeddings)
    encoding = model.model.encoder.positional_encoding(0, length, torch.device("cpu"))  # (length, d_model)
    encoding = encoding.float().numpy()
    largest = float(np.abs(encoding).max())
    learned = config.position_embedding_type == "learned"
    kind = "learned" if learned else "sines (even dimensions) and cosines (odd dimensions)"
    return (
        f'<figure class="positions"><div class="down">position 0 to {length - 1}</div>'
        f'<img src="{diverging(encoding, largest)}" '
        f'alt="Heat map of the positional encoding, {length} positions of {config.d_model} dimensions: {kind}.">'
        f'<div class="across">dimension 0 to {config.d_model - 1}</div></figure>'
        f'<p class="legend">−{largest:.2f} <span class="scale diverging"></span> {largest:.2f}</p>'
    )


# ---- the page ------------------------------------------------------------------------------------------------------


def on_translate(
    text: str,
    beams: int,
    alpha: float,
    whole: bool,
    language: str | None,
    kind: str,
    layer: int,
    head: int | str,
    progress: gr.Progress = gr.Progress(),  # noqa: B008 - Gradio recognises it by its default
):
    text, omitted = within_limit(text)
    if omitted:
        gr.Warning(too_long(omitted))
    elif not text.strip():
        gr.Warning("There is nothing to translate yet: type a sentence.", title="Empty")
    sentences = translate(text, beams, alpha, whole, language, partial(progress.tqdm, unit="sentences"))
    if not sentences:
        return gr.skip()  # keeps the last translation
    return join_sentences(sentences), chooser(sentences), sentences, *on_sentence(sentences, 0, kind, layer, head)


def on_sentence(sentences: list[Hypotheses], number: int, kind: str, layer: int, head: int | str):
    return gr.Radio(label_with_scores(sentences[number]), value=0), *on_choose(sentences, number, 0, kind, layer, head)


def on_choose(sentences: list[Hypotheses], number: int, choice: int, kind: str, layer: int, head: int | str):
    attention = compute_attention(translator, sentences[number].source, sentences[number].targets[choice])
    return attention, heat_map(attention, kind, layer, head)


def api_translate(
    text: str, beams: int = BEAMS, alpha: float = ALPHA, whole: bool = False, language: str | None = None
) -> str:
    """Translate a text, sentence by sentence unless `whole`; beams: beam size, alpha: length penalty; language: of a
    model with several, such as deu."""
    if len(text) > MAX_CHARACTERS:
        raise gr.Error(
            f"The text has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}.", print_exception=False
        )
    language = language or first_language()
    return join_sentences(sentences) if (sentences := translate(text, beams, alpha, whole, language)) else text


def on_kind(attention: Attention, kind: str, layer: int, head: int | str):
    """Update the choices of layer and head: encoder and decoder may differ in their numbers."""
    layers, heads = layers_and_heads(kind)
    layer = min(layer, layers[-1])
    head = head if head in heads else MEAN
    return gr.Radio(layers, value=layer), gr.Radio(heads, value=head), heat_map(attention, kind, layer, head)


def layers_and_heads(kind: str) -> tuple[list[int], list[int | str]]:
    stack = "encoder" if KINDS[kind][0] == "encoder" else "decoder"
    layers, heads = (getattr(config, f"{stack}_{name}") for name in ("layers", "attention_heads"))
    return list(range(1, layers + 1)), [MEAN, *range(1, heads + 1)]


def first_language() -> str | None:
    """Return the token that is chosen at first, None for a model without language tokens."""
    return next(iter(LANGUAGES.values()), None)


def label_with_scores(hypotheses: Hypotheses) -> list[tuple[str, int]]:
    pairs = zip(hypotheses.texts, hypotheses.scores, strict=True)
    return [(f"{text} ({score:.3f})".replace("(-", "(−"), index) for index, (text, score) in enumerate(pairs)]


def chooser(sentences: list[Hypotheses]) -> gr.Dropdown:
    """Return the choice of the sentence whose hypotheses and attention are shown."""
    texts = [f"{number}. {sentence.texts[0]}" for number, sentence in enumerate(sentences, start=1)]
    return gr.Dropdown(
        [(text, index) for index, text in enumerate(texts)],
        value=0,
        label="Sentence",
        visible=len(sentences) > 1,
        elem_id="chosen-sentence",
    )


def page() -> gr.Blocks:
    # Translate once before the page opens, so that it is not empty and the first visitor does not wait for torch.
    examples = card_examples()
    first = translate(examples[0], language=first_language())
    first_attention = compute_attention(translator, first[0].source, first[0].targets[0])
    kinds = list(KINDS)
    layers, heads = layers_and_heads(kinds[0])
    with gr.Blocks(title="Attention at work", analytics_enabled=False, fill_width=True) as blocks:
        gr.Markdown(introduction())
        sentences, attention = gr.State(first), gr.State(first_attention)
        with gr.Row(elem_id="columns"):
            with gr.Column(min_width=0):
                text = gr.Textbox(examples[0], label="Text", lines=2, max_lines=8, elem_id="text")
                language = gr.Dropdown(
                    list(LANGUAGES.items()),
                    value=first_language(),
                    label="Language of the translation",
                    visible=len(LANGUAGES) > 1,
                    elem_id="language",
                )
                button = gr.Button("Translate", variant="primary", elem_id="translate")
                translation = gr.Textbox(
                    join_sentences(first), label="Translation", interactive=False, elem_id="translation"
                )
                number = chooser(first)
                title = "Hypotheses of the beam search, with scores"
                choice = gr.Radio(label_with_scores(first[0]), value=0, label=title, elem_id="hypotheses")
                clicked = gr.Examples(examples, text, label="Examples", preload=False).load_input_event
                with gr.Accordion("Search", open=False):
                    search = search_settings()
            with gr.Column(min_width=0):
                kind = gr.Radio(kinds, value=kinds[0], label="Attention", elem_id="kind")
                with gr.Row():
                    layer = gr.Radio(layers, value=LAYER, label="Layer", scale=0, min_width=200, elem_id="layer")
                    head = gr.Radio(heads, value=HEAD, label="Head", min_width=240, elem_id="head")
                picture = gr.HTML(
                    heat_map(first_attention, kinds[0], LAYER, HEAD),
                    js_on_load=(HERE / "heat_map.js").read_text(encoding="utf-8"),
                    apply_default_css=False,
                    elem_id="heat-map",
                )
        with gr.Accordion("Equation (1), step by step", open=False, elem_id="equation"):
            walk = gr.HTML(equation(first_attention, kinds[0], LAYER, HEAD), apply_default_css=False)
        with gr.Accordion("Positional encoding", open=False, elem_id="encoding"):
            show_positions()

        view = [kind, layer, head]
        private = {"api_visibility": "private"}
        hidden = private | {"show_progress": "hidden"}
        translating = {
            "fn": on_translate,
            "inputs": [text, *search, language, *view],
            "outputs": [translation, number, sentences, choice, attention, picture],
            "show_progress_on": translation,
        }
        gr.on([button.click, text.submit], **translating, **private)
        clicked.then(**translating, **private)
        number.input(on_sentence, [sentences, number, *view], [choice, attention, picture], **hidden)
        choice.input(on_choose, [sentences, number, choice, *view], [attention, picture], **private)
        kind.input(on_kind, [attention, *view], [layer, head, picture], **hidden)
        gr.on([layer.input, head.input], heat_map, [attention, *view], picture, **hidden)
        picture.change(equation, [attention, *view], walk, **hidden)
        gr.api(api_translate, api_name="translate")
    return blocks


def search_settings() -> tuple[gr.Slider, gr.Slider, gr.Checkbox]:
    """Return the inputs for beam size and length penalty, and whether to translate the text as a whole."""
    return (
        gr.Slider(1, max(16, BEAMS), BEAMS, step=1, label="Beam size"),
        gr.Slider(min(0, ALPHA), max(2, ALPHA), ALPHA, step=0.1, label="Length penalty α", info=PENALTY),
        gr.Checkbox(label="Do not split the text into sentences"),
    )


def introduction() -> str:
    is_folder = Path(MODEL_ID).is_dir()
    link = Path(MODEL_ID).name if is_folder else f"[{MODEL_ID}]({constants.ENDPOINT}/{MODEL_ID})"
    return (
        "## Attention at work\n"
        "The Transformer of [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762) translates a sentence "
        f"and shows what it attended to. The model is {link}, with {model.num_parameters():,} parameters."
    )


def show_positions() -> None:
    """Add the picture of the positional encoding, and the slider for its length."""
    gr.Markdown(
        "Attention ignores word order. The encoding of each position is added to the word's embedding (Section 3.5)."
    )
    length = gr.Slider(10, 200, 60, step=10, label="Positions")
    positions = gr.HTML(positional_encoding(60), apply_default_css=False, elem_id="positions")
    length.change(positional_encoding, length, positions, show_progress="hidden", api_visibility="private")


# System fonts, because the theme fetches its own from another server; darker colours, for a contrast of 4.5 to 1.
THEME = gr.themes.Default(
    primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
).set(
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_dark="*primary_700",
    block_info_text_color="*neutral_600",
    block_info_text_color_dark="*neutral_300",
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_300",
    checkbox_background_color_selected="*primary_700",
    checkbox_border_color_selected="*primary_700",
    checkbox_border_color_dark="*neutral_400",
)

if __name__ == "__main__":
    page().launch(theme=THEME, css_paths=HERE / "style.css", js=(HERE / "radios.js").read_text(encoding="utf-8"))
