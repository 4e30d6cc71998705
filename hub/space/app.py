"""A Space: a sentence, its translation, the other hypotheses of the search, and what the model attended to.

Shows any Vaswani Transformer of the Hub, loaded as anybody would load it, with transformers and `trust_remote_code`:

    MODEL_ID=owner/name python app.py
"""

import base64
import html
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
import numpy as np
import torch
from huggingface_hub import constants
from PIL import Image
from tokenizers.decoders import ByteLevel
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import has_file

MODEL_ID = os.environ.get("MODEL_ID") or sys.exit(
    "error: MODEL_ID is not set; it names a model of the Hub, as in MODEL_ID=owner/name (a Space: Settings, Variables)"
)
REVISION = os.environ.get("MODEL_REVISION")  # a commit or tag; None: the newest
EXAMPLES = [
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two young dogs are running through the deep snow.",
    "A little girl climbs into a wooden playhouse.",
]
LONGEST = 120  # tokens; a heat map of more rows nobody can read

tokenizer = AutoTokenizer.from_pretrained(MODEL_ID, revision=REVISION, trust_remote_code=True)
# Where source and target have a vocabulary each, the target's tokenizer lies in a folder of its own.
target_tokenizer = tokenizer
if has_file(MODEL_ID, "target_tokenizer/tokenizer.json", revision=REVISION):
    target_tokenizer = AutoTokenizer.from_pretrained(
        MODEL_ID, revision=REVISION, subfolder="target_tokenizer", trust_remote_code=True
    )
# Eager: the other implementations of attention do not hand out their weights.
model = AutoModelForSeq2SeqLM.from_pretrained(
    MODEL_ID, revision=REVISION, trust_remote_code=True, attn_implementation="eager"
).eval()
config, search = model.config, model.generation_config
# What generation_config.json leaves out is transformers' own; a model without that file has the paper's, written out.
BEAMS = search.num_beams or 1
ALPHA = 1.0 if search.length_penalty is None else search.length_penalty

KINDS = {
    "Cross-attention": ("cross", "each word of the translation (down) reads the sentence (across)"),
    "Encoder self-attention": ("encoder", "each word of the sentence (down) reads the sentence (across)"),
    "Decoder self-attention": ("decoder", "each word of the translation (down) reads what came before it (across)"),
}
MEAN = "mean"


# ---- translation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """The hypotheses of a sentence, best first. source: (1, source) ids; targets: ids, ending in </s>."""

    source: torch.Tensor
    targets: list[list[int]]
    texts: list[str]
    scores: list[float]


@torch.inference_mode()
def translated(sentence: str, beams: int = BEAMS, alpha: float = ALPHA) -> Found:
    """Beam search of Section 6.1; score = log P(Y | X) / ((5 + |Y|) / 6)^alpha. gr.Error says what is not accepted."""
    if not sentence.strip():
        raise gr.Error("There is nothing to translate yet: type a sentence.", print_exception=False)
    source = tokenizer(sentence, return_tensors="pt", verbose=False)["input_ids"]
    limit = min(LONGEST, config.max_position_embeddings or LONGEST)
    if source.shape[1] > limit:
        message = f"The sentence has {source.shape[1]} tokens; the pictures show up to {limit}: shorten it."
        raise gr.Error(message, print_exception=False)
    found = model.generate(
        source,
        attention_mask=torch.ones_like(source),
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=alpha,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=beams == 1,
    )
    # The start token and padding are not the translation's.
    targets = [[token for token in row if token != config.pad_token_id] for row in found.sequences[:, 1:].tolist()]
    if beams == 1:  # greedy search: transformers gives no scores
        log_probabilities = torch.cat(found.logits).float().log_softmax(dim=-1)  # (target, V)
        total = log_probabilities[torch.arange(len(targets[0])), targets[0]].sum()
        scores = [float(total) / ((5 + len(targets[0])) / 6) ** alpha]
    else:
        scores = found.sequences_scores.tolist()
    finished = [place for place, score in enumerate(scores) if score > -1e8]  # below: an empty slot of the search
    return Found(
        source,
        [targets[place] for place in finished],
        [target_tokenizer.decode(targets[place], skip_special_tokens=True) for place in finished],
        [scores[place] for place in finished],
    )


# ---- attention -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Maps:
    """Attention weights of a sentence and a translation: (layers, heads, down, across); every row sums to 1."""

    weights: dict[str, np.ndarray]
    across: dict[str, list[str]]
    down: dict[str, list[str]]


@torch.inference_mode()
def attended(found: Found, choice: int) -> Maps:
    """The attention weights of one of the hypotheses, given all at once to the decoder."""
    target = torch.tensor([found.targets[choice]])
    inputs = torch.cat((torch.tensor([[config.decoder_start_token_id]]), target[:, :-1]), dim=1)
    outputs = model(found.source, decoder_input_ids=inputs, output_attentions=True, use_cache=False)
    source = labels(tokenizer, found.source[0].tolist())
    said, read = (labels(target_tokenizer, ids[0].tolist()) for ids in (target, inputs))
    return Maps(
        {
            "cross": torch.cat(outputs.cross_attentions).numpy(),
            "encoder": torch.cat(outputs.encoder_attentions).numpy(),
            "decoder": torch.cat(outputs.decoder_attentions).numpy(),
        },
        across={"cross": source, "encoder": source, "decoder": read},
        # A row of the decoder is named by the word that it says.
        down={"cross": said, "encoder": source, "decoder": said},
    )


def labels(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[str]:
    """A readable label for each token, `▁` for a space; the bytes of one character count themselves, `ü 1/2`."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    if not isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):
        return tokens
    byte_level, found = ByteLevel(), []
    while len(found) < len(tokens):
        place = len(found)
        # The fewest tokens whose bytes are whole characters; one alone if four are not.
        for count in range(1, 5):
            text = byte_level.decode(tokens[place : place + count])
            if "\ufffd" not in text:
                break
        else:
            count, text = 1, "\ufffd"
        count = min(count, len(tokens) - place)
        text = text.replace(" ", "▁")
        found += [text] if count == 1 else [f"{text} {part}/{count}" for part in range(1, count + 1)]
    return found


def heat_map(maps: Maps, title: str, layer: int, head: int | str) -> str:
    """One head's weights as an HTML table; heat_map.js lets keys and pointer walk over it."""
    kind, explanation = KINDS[title]
    weights = maps.weights[kind][layer - 1]
    weights = weights.mean(axis=0) if head == MEAN else weights[int(head) - 1]  # (down, across)
    across, down = ([html.escape(label) for label in row[kind]] for row in (maps.across, maps.down))
    # The darkest cell is the largest weight on show, which is seldom near 1.
    largest = float(weights.max())
    name = f"{title}, layer {layer}, {'mean of the heads' if head == MEAN else f'head {head}'}"
    rows = "".join(
        f'<tr><th scope="row">{label}</th>'
        + "".join(
            f'<td tabindex="-1" style="--weight:{weight / largest:.3f}" data-weight="{weight:.3f}"'
            f' aria-label="{label} reads {key}: {weight:.3f}"></td>'
            for key, weight in zip(across, row, strict=True)
        )
        + "</tr>"
        for label, row in zip(down, weights.tolist(), strict=True)
    )
    columns = "".join(f'<th scope="col"><span>{label}</span></th>' for label in across)
    return (
        f'<p class="caption"><b>{name}</b>: {explanation}.</p>'
        '<p class="readout" aria-hidden="true">Point at a cell, or tab to the map and use the arrow keys.</p>'
        f'<div class="maps"><div class="scroll"><table role="grid" aria-label="{name}">'
        f"<thead><tr><td></td>{columns}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<div class="heads" aria-hidden="true">{small_maps(maps.weights[kind][layer - 1], head)}</div></div>'
        f'<p class="legend">0 <span class="scale"></span> {largest:.2f}</p>'
    )


def small_maps(weights: np.ndarray, chosen: int | str) -> str:
    """All heads of a layer side by side; to be seen, and to be clicked at. weights: (heads, down, across)"""
    white, darkest = np.array([247, 250, 253]), np.array([8, 48, 107])
    shares = (weights / weights.max(axis=(1, 2), keepdims=True))[..., None]
    pictures = (png(white + share * (darkest - white)) for share in shares)
    return "".join(
        f'<figure data-head="{head}"{" class=chosen" * (head == chosen)}><img src="{picture}" alt="">'
        f"<figcaption>head {head}</figcaption></figure>"
        for head, picture in enumerate(pictures, start=1)
    )


def png(pixels: np.ndarray) -> str:
    """(height, width, 3), 0 to 255, as a data address"""
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


# ---- positional encoding -------------------------------------------------------------------------------------------


@torch.inference_mode()
def positional_encoding(length: int) -> str:
    """What is added to the embeddings at the first `length` positions, red above zero and blue below."""
    length = min(length, config.max_position_embeddings or length)
    encoding = (
        model.model.encoder.positional_encoding(0, length, torch.device("cpu")).float().numpy()
    )  # (length, d_model)
    largest = float(np.abs(encoding).max())
    share = (encoding / largest)[..., None]
    red, blue, white = np.array([178, 24, 43]), np.array([33, 102, 172]), np.array([255, 255, 255])
    pixels = white + np.abs(share) * (np.where(share > 0, red, blue) - white)
    kind = (
        "sines (even dimensions) and cosines (odd ones)" if config.position_embedding_type != "learned" else "learned"
    )
    return (
        '<figure class="positions"><div class="down">position 0 to '
        f'{length - 1}</div><img src="{png(pixels)}" '
        f'alt="Heat map of the positional encoding, {length} positions of {config.d_model} dimensions: {kind}.">'
        f'<div class="across">dimension 0 to {config.d_model - 1}</div></figure>'
        f'<p class="legend">−{largest:.2f} <span class="scale diverging"></span> {largest:.2f}</p>'
    )


# ---- the page ------------------------------------------------------------------------------------------------------


def on_translate(sentence: str, beams: int, alpha: float, kind: str, layer: int, head: int | str):
    found = translated(sentence, beams, alpha)
    maps = attended(found, 0)
    return found.texts[0], gr.Radio(scored(found), value=0), found, maps, heat_map(maps, kind, layer, head)


def on_choose(found: Found, choice: int, kind: str, layer: int, head: int | str):
    maps = attended(found, choice)
    return maps, heat_map(maps, kind, layer, head)


def on_kind(maps: Maps, kind: str, layer: int, head: int | str):
    """Encoder and decoder need not have as many layers and heads as each other."""
    layers, heads = layers_and_heads(kind)
    layer = min(layer, layers[-1])
    head = head if head in heads else MEAN
    return gr.Radio(layers, value=layer), gr.Radio(heads, value=head), heat_map(maps, kind, layer, head)


def layers_and_heads(kind: str) -> tuple[list[int], list[int | str]]:
    stack = "encoder" if KINDS[kind][0] == "encoder" else "decoder"
    layers, heads = config.to_dict()[f"{stack}_layers"], config.to_dict()[f"{stack}_attention_heads"]
    return list(range(1, layers + 1)), [MEAN, *range(1, heads + 1)]


def scored(found: Found) -> list[tuple[str, int]]:
    pairs = zip(found.texts, found.scores, strict=True)
    return [(f"{text} ({score:.3f})".replace("(-", "(−"), place) for place, (text, score) in enumerate(pairs)]


def link() -> str:
    if Path(MODEL_ID).is_dir():
        return Path(MODEL_ID).name
    return f"[{MODEL_ID}]({constants.ENDPOINT}/{MODEL_ID})"


def page() -> gr.Blocks:
    # The first translation is made here, so that nobody waits for torch to warm up and the page is never empty.
    first = translated(EXAMPLES[0])
    first_maps = attended(first, 0)
    kinds = list(KINDS)
    layers, heads = layers_and_heads(kinds[0])
    with gr.Blocks(title="Attention, at work", analytics_enabled=False) as blocks:
        gr.Markdown(
            "# Attention, at work\n"
            "The Transformer of [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762) translates a sentence "
            f"and shows what it looked at. The model is {link()}, {model.num_parameters():,} parameters."
        )
        found, maps = gr.State(first), gr.State(first_maps)
        sentence = gr.Textbox(EXAMPLES[0], label="Sentence", lines=1, max_lines=6, elem_id="sentence")
        gr.Examples(EXAMPLES, sentence, label="For example")
        with gr.Accordion("Search", open=False):
            beams = gr.Slider(1, max(16, BEAMS), BEAMS, step=1, label="Beam size")
            alpha = gr.Slider(
                min(0, ALPHA), max(2, ALPHA), ALPHA, step=0.1, label="Length penalty α", info="((5 + length) / 6)^α"
            )
        button = gr.Button("Translate", variant="primary")
        translation = gr.Textbox(first.texts[0], label="Translation", interactive=False, elem_id="translation")
        hypotheses = gr.Radio(
            scored(first),
            value=0,
            label="What the search found, with scores",
            info="The chosen one is pictured below.",
            elem_id="hypotheses",
        )
        gr.Markdown("## What it looked at")
        kind = gr.Radio(kinds, value=kinds[0], label="Attention", elem_id="kind")
        with gr.Row():
            layer = gr.Radio(layers, value=layers[-1], label="Layer", min_width=280, elem_id="layer")
            head = gr.Radio(heads, value=MEAN, label="Head", min_width=280, elem_id="head")
        picture = gr.HTML(
            heat_map(first_maps, kinds[0], layers[-1], MEAN),
            js_on_load=Path(__file__).with_name("heat_map.js").read_text(encoding="utf-8"),
            apply_default_css=False,
            elem_id="heat-map",
        )
        gr.Markdown(
            "## Where a word stands\n"
            "Attention does not see order. What tells the model the position is added to the embeddings (Section 3.5)."
        )
        length = gr.Slider(10, 200, 60, step=10, label="Positions")
        positions = gr.HTML(positional_encoding(60), apply_default_css=False, elem_id="positions")

        show = [kind, layer, head]
        gr.on(
            [button.click, sentence.submit],
            on_translate,
            [sentence, beams, alpha, *show],
            [translation, hypotheses, found, maps, picture],
        )
        hypotheses.input(on_choose, [found, hypotheses, *show], [maps, picture])
        kind.input(on_kind, [maps, *show], [layer, head, picture], show_progress="hidden")
        gr.on([layer.input, head.input], heat_map, [maps, *show], picture, show_progress="hidden")
        length.change(positional_encoding, length, positions, show_progress="hidden")
    return blocks


# System fonts: the theme's own would be fetched from another server. Darker than the theme's own, for contrast:
# white on the button and grey on white have 4.5 to 1 and more.
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
    here = Path(__file__).parent
    page().launch(theme=THEME, css_paths=here / "style.css", js=(here / "radios.js").read_text(encoding="utf-8"))
