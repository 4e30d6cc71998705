"""A Space that translates a sentence and shows the other hypotheses of the beam search and the attention weights.

It works with any Vaswani Transformer on the Hub, loaded with transformers and `trust_remote_code`:

    MODEL_ID=owner/name python app.py
"""

import base64
import html
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr  # pyright: ignore[reportMissingImports]  (installed only in the Space's own environment)
import numpy as np
import torch
from huggingface_hub import constants
from PIL import Image
from tokenizers.decoders import ByteLevel
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils.hub import has_file

HERE = Path(__file__).parent
MODEL_ID = os.environ.get("MODEL_ID") or sys.exit(
    "error: MODEL_ID is not set; name a model on the Hub, as in MODEL_ID=owner/name (in a Space: Settings, Variables)"
)
REVISION = os.environ.get("MODEL_REVISION")  # a commit or tag; None: the newest
EXAMPLES = [
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two young dogs are running through the deep snow.",
    "A little girl climbs into a wooden playhouse.",
]
MAX_TOKENS = 120  # a larger heat map is unreadable
CHARACTERS_PER_TOKEN = 32  # longer texts are refused before they are tokenised

tokenizer = AutoTokenizer.from_pretrained(MODEL_ID, revision=REVISION, trust_remote_code=True)
# A model with two vocabularies has the target's tokenizer in a folder of its own.
target_tokenizer = tokenizer
if has_file(MODEL_ID, "target_tokenizer/tokenizer.json", revision=REVISION):
    target_tokenizer = AutoTokenizer.from_pretrained(
        MODEL_ID, revision=REVISION, subfolder="target_tokenizer", trust_remote_code=True
    )
# Eager, because the other attention implementations do not return the weights.
model = AutoModelForSeq2SeqLM.from_pretrained(
    MODEL_ID, revision=REVISION, trust_remote_code=True, attn_implementation="eager"
).eval()
config, search = model.config, model.generation_config
# transformers' defaults for what generation_config.json leaves out.
BEAMS = search.num_beams or 1
ALPHA = 1.0 if search.length_penalty is None else search.length_penalty

KINDS = {
    "Cross-attention": ("cross", "each word of the translation (rows) attends to the sentence (columns)"),
    "Encoder self-attention": ("encoder", "each word of the sentence (rows) attends to the sentence (columns)"),
    "Decoder self-attention": (
        "decoder",
        "each word of the translation (rows) attends to the words before it (columns)",
    ),
}
MEAN = "mean"


# ---- translation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hypotheses:
    """The hypotheses of a sentence, best first. source: (1, source) ids; targets: ids, ending in </s>."""

    source: torch.Tensor
    targets: list[list[int]]
    texts: list[str]
    scores: list[float]


@torch.inference_mode()
def translate(sentence: str, beams: int = BEAMS, alpha: float = ALPHA) -> Hypotheses:
    """Beam search, Section 6.1; score = log P(Y | X) / ((5 + |Y|) / 6)^alpha. Raises gr.Error for unusable input."""
    source = encode(sentence)
    output = model.generate(
        source,
        attention_mask=torch.ones_like(source),
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=alpha,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=beams == 1,
    )
    # Without the start token and padding.
    targets = [[token for token in row if token != config.pad_token_id] for row in output.sequences[:, 1:].tolist()]
    if beams == 1:  # transformers returns no scores for greedy search
        log_probabilities = torch.cat(output.logits).float().log_softmax(dim=-1)  # (target, V)
        total = log_probabilities[torch.arange(len(targets[0])), targets[0]].sum()
        scores = [float(total) / ((5 + len(targets[0])) / 6) ** alpha]
    else:
        scores = output.sequences_scores.tolist()
    finished = [index for index, score in enumerate(scores) if score > -1e8]  # lower scores mark empty slots
    targets = [targets[index] for index in finished]
    texts = [target_tokenizer.decode(target, skip_special_tokens=True) for target in targets]
    return Hypotheses(source, targets, texts, [scores[index] for index in finished])


def encode(sentence: str) -> torch.Tensor:
    """Return the sentence's ids, (1, source). Raises gr.Error if it is empty or too long."""
    if not sentence.strip():
        raise gr.Error("There is nothing to translate yet: type a sentence.", print_exception=False)
    limit = min(MAX_TOKENS, config.max_position_embeddings or MAX_TOKENS)
    length = f"{len(sentence)} characters"
    if len(sentence) <= limit * CHARACTERS_PER_TOKEN:
        source = tokenizer(sentence, return_tensors="pt", verbose=False)["input_ids"]
        if source.shape[1] <= limit:
            return source
        length = f"{source.shape[1]} tokens"
    raise gr.Error(f"The sentence has {length}, and the limit is {limit} tokens; shorten it.", print_exception=False)


# ---- attention -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """Attention weights, (layers, heads, rows, columns), and the labels of rows and columns, by kind."""

    weights: dict[str, np.ndarray]
    rows: dict[str, list[str]]
    columns: dict[str, list[str]]


@torch.inference_mode()
def attention_of(hypotheses: Hypotheses, choice: int) -> Attention:
    """Return the attention weights of one hypothesis, from one pass over all its tokens."""
    target = torch.tensor([hypotheses.targets[choice]])
    inputs = torch.cat((torch.tensor([[config.decoder_start_token_id]]), target[:, :-1]), dim=1)
    outputs = model(hypotheses.source, decoder_input_ids=inputs, output_attentions=True, use_cache=False)
    source = labels(tokenizer, hypotheses.source[0].tolist())
    predicted, read = (labels(target_tokenizer, ids[0].tolist()) for ids in (target, inputs))
    return Attention(
        {
            "cross": torch.cat(outputs.cross_attentions).numpy(),
            "encoder": torch.cat(outputs.encoder_attentions).numpy(),
            "decoder": torch.cat(outputs.decoder_attentions).numpy(),
        },
        # A row of the decoder is labelled with the token that it predicts.
        rows={"cross": predicted, "encoder": source, "decoder": predicted},
        columns={"cross": source, "encoder": source, "decoder": read},
    )


def labels(tokenizer: Any, ids: list[int]) -> list[str]:
    """Return a readable label per token: `▁` for a space, `ü 1/2` for a token that is part of a character."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    if not isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):
        return tokens
    byte_level, result = ByteLevel(), []
    while len(result) < len(tokens):
        start = len(result)
        # The fewest tokens that form complete characters; a single token if four do not.
        for count in range(1, 5):
            text = byte_level.decode(tokens[start : start + count])
            if "\ufffd" not in text:
                break
        else:
            count, text = 1, "\ufffd"
        count = min(count, len(tokens) - start)
        text = text.replace(" ", "▁")
        result += [text] if count == 1 else [f"{text} {part}/{count}" for part in range(1, count + 1)]
    return result


def heat_map(attention: Attention, title: str, layer: int, head: int | str) -> str:
    """Return one head's weights as an HTML table, which heat_map.js makes navigable by keyboard and pointer."""
    kind, explanation = KINDS[title]
    layer_weights = attention.weights[kind][layer - 1]
    weights = layer_weights.mean(axis=0) if head == MEAN else layer_weights[int(head) - 1]  # (rows, columns)
    row_labels = [html.escape(label) for label in attention.rows[kind]]
    column_labels = [html.escape(label) for label in attention.columns[kind]]
    # The darkest cell is the largest weight shown, which is seldom near 1.
    largest = float(weights.max())
    name = f"{title}, layer {layer}, {'mean of the heads' if head == MEAN else f'head {head}'}"
    rows = "".join(
        f'<tr><th scope="row">{row}</th>'
        + "".join(
            f'<td tabindex="-1" style="--weight:{weight / largest:.3f}" data-weight="{weight:.3f}"'
            f' aria-label="{row} attends to {column}: {weight:.3f}"></td>'
            for column, weight in zip(column_labels, row_weights, strict=True)
        )
        + "</tr>"
        for row, row_weights in zip(row_labels, weights.tolist(), strict=True)
    )
    columns = "".join(f'<th scope="col"><span>{label}</span></th>' for label in column_labels)
    return (
        f'<p class="caption"><b>{name}</b>: {explanation}.</p>'
        '<p class="readout" aria-hidden="true">Point at a cell, or tab to the map and use the arrow keys.</p>'
        f'<div class="maps"><div class="scroll"><table role="grid" aria-label="{name}">'
        f"<thead><tr><td></td>{columns}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<div class="heads" aria-hidden="true">{thumbnails(layer_weights, head)}</div></div>'
        f'<p class="legend">0 <span class="scale"></span> {largest:.2f}</p>'
    )


def thumbnails(weights: np.ndarray, chosen: int | str) -> str:
    """Return a small clickable picture of each head of a layer. weights: (heads, rows, columns)"""
    white, darkest = np.array([247, 250, 253]), np.array([8, 48, 107])
    shares = (weights / weights.max(axis=(1, 2), keepdims=True))[..., None]
    return "".join(
        f'<figure data-head="{head}"{" class=chosen" * (head == chosen)}>'
        f'<img src="{png(white + share * (darkest - white))}" alt=""><figcaption>head {head}</figcaption></figure>'
        for head, share in enumerate(shares, start=1)
    )


def png(pixels: np.ndarray) -> str:
    """Return pixels, (height, width, 3) from 0 to 255, as a data: URL."""
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


# ---- positional encoding -------------------------------------------------------------------------------------------


@torch.inference_mode()
def positional_encoding(length: int) -> str:
    """Draw what is added to the embeddings at the first `length` positions: red above zero, blue below."""
    length = min(length, config.max_position_embeddings or length)
    encoding = model.model.encoder.positional_encoding(0, length, torch.device("cpu"))  # (length, d_model)
    encoding = encoding.float().numpy()
    largest = float(np.abs(encoding).max())
    share = (encoding / largest)[..., None]
    red, blue, white = np.array([178, 24, 43]), np.array([33, 102, 172]), np.array([255, 255, 255])
    pixels = white + np.abs(share) * (np.where(share > 0, red, blue) - white)
    learned = config.position_embedding_type == "learned"
    kind = "learned" if learned else "sines (even dimensions) and cosines (odd dimensions)"
    return (
        f'<figure class="positions"><div class="down">position 0 to {length - 1}</div><img src="{png(pixels)}" '
        f'alt="Heat map of the positional encoding, {length} positions of {config.d_model} dimensions: {kind}.">'
        f'<div class="across">dimension 0 to {config.d_model - 1}</div></figure>'
        f'<p class="legend">−{largest:.2f} <span class="scale diverging"></span> {largest:.2f}</p>'
    )


# ---- the page ------------------------------------------------------------------------------------------------------


def on_translate(sentence: str, beams: int, alpha: float, kind: str, layer: int, head: int | str):
    hypotheses = translate(sentence, beams, alpha)
    attention = attention_of(hypotheses, 0)
    choices = gr.Radio(scored(hypotheses), value=0)
    return hypotheses.texts[0], choices, hypotheses, attention, heat_map(attention, kind, layer, head)


def on_choose(hypotheses: Hypotheses, choice: int, kind: str, layer: int, head: int | str):
    attention = attention_of(hypotheses, choice)
    return attention, heat_map(attention, kind, layer, head)


def on_kind(attention: Attention, kind: str, layer: int, head: int | str):
    """Encoder and decoder may differ in their numbers of layers and heads."""
    layers, heads = layers_and_heads(kind)
    layer = min(layer, layers[-1])
    head = head if head in heads else MEAN
    return gr.Radio(layers, value=layer), gr.Radio(heads, value=head), heat_map(attention, kind, layer, head)


def layers_and_heads(kind: str) -> tuple[list[int], list[int | str]]:
    stack = "encoder" if KINDS[kind][0] == "encoder" else "decoder"
    layers, heads = config.to_dict()[f"{stack}_layers"], config.to_dict()[f"{stack}_attention_heads"]
    return list(range(1, layers + 1)), [MEAN, *range(1, heads + 1)]


def scored(hypotheses: Hypotheses) -> list[tuple[str, int]]:
    pairs = zip(hypotheses.texts, hypotheses.scores, strict=True)
    return [(f"{text} ({score:.3f})".replace("(-", "(−"), index) for index, (text, score) in enumerate(pairs)]


def page() -> gr.Blocks:
    # Translate once before the page opens, so that it is not empty and the first visitor does not wait for torch.
    first = translate(EXAMPLES[0])
    first_attention = attention_of(first, 0)
    kinds = list(KINDS)
    layers, heads = layers_and_heads(kinds[0])
    with gr.Blocks(title="Attention, at work", analytics_enabled=False) as blocks:
        gr.Markdown(introduction())
        hypotheses, attention = gr.State(first), gr.State(first_attention)
        sentence = gr.Textbox(EXAMPLES[0], label="Sentence", lines=1, max_lines=6, elem_id="sentence")
        gr.Examples(EXAMPLES, sentence, label="Examples")
        with gr.Accordion("Search", open=False):
            beams = gr.Slider(1, max(16, BEAMS), BEAMS, step=1, label="Beam size")
            alpha = gr.Slider(
                min(0, ALPHA), max(2, ALPHA), ALPHA, step=0.1, label="Length penalty α", info="((5 + length) / 6)^α"
            )
        button = gr.Button("Translate", variant="primary")
        translation = gr.Textbox(first.texts[0], label="Translation", interactive=False, elem_id="translation")
        choice = gr.Radio(
            scored(first),
            value=0,
            label="Hypotheses of the beam search, with scores",
            info="The selected one is shown below.",
            elem_id="hypotheses",
        )
        gr.Markdown("## Attention")
        kind = gr.Radio(kinds, value=kinds[0], label="Attention", elem_id="kind")
        with gr.Row():
            layer = gr.Radio(layers, value=layers[-1], label="Layer", min_width=280, elem_id="layer")
            head = gr.Radio(heads, value=MEAN, label="Head", min_width=280, elem_id="head")
        picture = gr.HTML(
            heat_map(first_attention, kinds[0], layers[-1], MEAN),
            js_on_load=(HERE / "heat_map.js").read_text(encoding="utf-8"),
            apply_default_css=False,
            elem_id="heat-map",
        )
        show_positions()

        view = [kind, layer, head]
        gr.on(
            [button.click, sentence.submit],
            on_translate,
            [sentence, beams, alpha, *view],
            [translation, choice, hypotheses, attention, picture],
        )
        choice.input(on_choose, [hypotheses, choice, *view], [attention, picture])
        kind.input(on_kind, [attention, *view], [layer, head, picture], show_progress="hidden")
        gr.on([layer.input, head.input], heat_map, [attention, *view], picture, show_progress="hidden")
    return blocks


def introduction() -> str:
    is_folder = Path(MODEL_ID).is_dir()
    link = Path(MODEL_ID).name if is_folder else f"[{MODEL_ID}]({constants.ENDPOINT}/{MODEL_ID})"
    return (
        "# Attention, at work\n"
        "The Transformer of [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762) translates a sentence "
        f"and shows what it attended to. The model is {link}, with {model.num_parameters():,} parameters."
    )


def show_positions() -> None:
    gr.Markdown(
        "## Positional encoding\n"
        "Attention ignores word order. The encoding of each position is added to the word's embedding (Section 3.5)."
    )
    length = gr.Slider(10, 200, 60, step=10, label="Positions")
    positions = gr.HTML(positional_encoding(60), apply_default_css=False, elem_id="positions")
    length.change(positional_encoding, length, positions, show_progress="hidden")


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
