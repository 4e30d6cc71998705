"""Heat maps: who attends to whom (Figures 3 to 5 of the paper), and the positional encoding (section 3.5); and the
curve of a training run.

`attention_maps` computes, `attention_figure`, `positional_encoding_figure` and `curve_figure` draw; a figure saves
itself: `attention_figure(maps).savefig("attention.png")`. matplotlib is only needed for drawing.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .errors import BrokenFileError, InputError, UnavailableError
from .modeling_vaswani_transformer import (
    VaswaniTransformerForConditionalGeneration,
    sinusoidal_positional_encoding,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "cross": "Cross-attention: each target token reads the source",
    "encoder": "Encoder self-attention: each source token reads the source",
    "decoder": "Decoder self-attention: each target token reads those before it",
}
LONGEST_SENTENCE = 120  # tokens; more rows than that nobody can read
RESOLUTION = 150  # dots per inch


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one sentence pair; every row sums to 1.

    source: labels of the source tokens, </s> last.  target: labels of the decoder's inputs, <s> first.
    predicted: labels of what the decoder says at each of its inputs, </s> last.
    cross: (decoder_layers, heads, target, source);  encoder: (encoder_layers, heads, source, source)
    decoder: (decoder_layers, heads, target, target)
    """

    source: list[str]
    target: list[str]
    predicted: list[str]
    cross: Tensor
    encoder: Tensor
    decoder: Tensor


@torch.inference_mode()
def attention_maps(
    model: VaswaniTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    source: str,
    target: str | None = None,
    target_tokenizer: PreTrainedTokenizerFast | None = None,
) -> AttentionMaps:
    """The attention weights of a sentence and its translation; target None: the model's own.

    target_tokenizer: of the decoder's vocabulary, where it is not the encoder's
    Raises InputError if a sentence is empty or has more than 120 tokens.
    """
    if not source.strip():
        raise InputError("the source is empty: there is nothing to attend to")
    target_tokenizer = target_tokenizer or tokenizer
    encoding = tokenizer([source], return_tensors="pt", verbose=False).to(model.device)
    source_ids, source_mask = cast(Tensor, encoding["input_ids"]), cast(Tensor, encoding["attention_mask"])
    check_length("source", source_ids.shape[1])
    if target is None:
        generated = cast(Tensor, model.generate(input_ids=source_ids, attention_mask=source_mask))
        labels = generated[:, 1:]
    else:
        labels = cast(Tensor, target_tokenizer(text_target=[target], return_tensors="pt", verbose=False)["input_ids"])
        labels = labels.to(model.device)
    check_length("target", labels.shape[1])

    # Only the eager attention hands its weights out.
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        outputs = model(
            input_ids=source_ids,
            attention_mask=source_mask,
            decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
            output_attentions=True,
            use_cache=False,
        )
    finally:
        model.set_attn_implementation(attention or "eager")
    predicted = token_labels(target_tokenizer, labels[0].tolist())
    start = target_tokenizer.convert_ids_to_tokens(model.config.decoder_start_token_id)
    return AttentionMaps(
        source=token_labels(tokenizer, source_ids[0].tolist()),
        target=[str(start), *predicted[:-1]],
        predicted=predicted,
        cross=torch.cat(outputs.cross_attentions).float().cpu(),
        encoder=torch.cat(outputs.encoder_attentions).float().cpu(),
        decoder=torch.cat(outputs.decoder_attentions).float().cpu(),
    )


def attention_figure(
    maps: AttentionMaps, kind: str = "cross", layer: int | None = None, head: int | None = None
) -> "Figure":
    """Attention weights as heat maps, one per head. Layers and heads count from 1.

    kind: "cross", "encoder" or "decoder".  layer: None for the last one; 0 for all, a row of heads each.
    head: None for all; 0 for their mean.  Raises InputError for a layer or head that the model lacks.
    """
    if kind not in KINDS:
        raise InputError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    weights = cast(Tensor, getattr(maps, kind))  # (layers, heads, query, key)
    layers, heads = weights.shape[:2]
    layer = layers if layer is None else layer
    check_choice("layer", layer, layers, "all layers")
    check_choice("head", head, heads, "their mean")
    rows = list(range(layers)) if layer == 0 else [layer - 1]
    if head == 0:
        weights, columns, titles = weights.mean(dim=1, keepdim=True), [0], ["mean of the heads"]
    else:
        columns = list(range(heads)) if head is None else [head - 1]
        titles = [f"head {column + 1}" for column in columns]
    # Keys along the top are what is read; queries down the side are named by what the decoder says there.
    keys = maps.target if kind == "decoder" else maps.source
    queries = maps.source if kind == "encoder" else maps.predicted

    panels = [(row, column) for row in rows for column in columns]
    across = len(columns) if layer == 0 else min(len(columns), 4)
    down = -(-len(panels) // across)
    cell = min(0.6, max(0.24, 4.5 / max(len(keys), len(queries))))  # inches
    wide, high = cell * len(keys), cell * len(queries)
    key_room, query_room = label_inches(keys), label_inches(queries)
    figure = figure_class()(
        figsize=(
            max(6.0, across * (wide + 0.3) + query_room + 1.6),
            down * (high + key_room + 0.4) + 1.0,
        ),
        layout="compressed",
        dpi=RESOLUTION,
    )
    where = "all layers" if layer == 0 else f"layer {layer} of {layers}"
    figure.suptitle(f"{KINDS[kind]}\n{where}", fontsize=12)
    axes = figure.subplots(down, across, squeeze=False)
    # White is no attention; the darkest is the largest weight on show, which is seldom near 1.
    darkest = max(float(weights[row, column].max()) for row, column in panels)
    image = None
    for place, axis in enumerate(axes.flat):
        if place >= len(panels):
            axis.set_visible(False)
            continue
        row, column = panels[place]
        image = axis.imshow(weights[row, column].numpy(), cmap="Blues", vmin=0.0, vmax=darkest)
        title = titles[columns.index(column)]
        axis.set_title(f"layer {row + 1}, {title}" if layer == 0 else title, fontsize=9)
        axis.xaxis.tick_top()
        axis.set_xticks(range(len(keys)), drawable(keys), rotation=90, fontsize=8, parse_math=False)
        first = place % across == 0
        axis.set_yticks(
            range(len(queries)), drawable(queries) if first else [""] * len(queries), fontsize=8, parse_math=False
        )
        axis.tick_params(length=0)
    if image is not None:
        figure.colorbar(image, ax=axes, label="attention weight", shrink=0.7, aspect=25, pad=0.02)
    return figure


def positional_encoding_figure(length: int = 100, d_model: int = 128, base: float = 10000.0) -> "Figure":
    """PE(pos, i) of section 3.5 as a heat map: positions down, dimensions across."""
    if not 1 <= length <= 10_000 or d_model < 2 or d_model % 2 or d_model > 65_536:
        raise InputError(
            f"length {length} and d_model {d_model}: 1 to 10000 positions, and an even number of dimensions"
        )
    encoding = sinusoidal_positional_encoding(length, d_model, base)
    figure = figure_class()(figsize=(9, 5), layout="constrained", dpi=RESOLUTION)
    axis = figure.subplots()
    image = axis.imshow(encoding.numpy(), cmap="RdBu_r", vmin=-1.0, vmax=1.0, aspect="auto", interpolation="nearest")
    axis.set_title(
        f"Positional encoding, {length} positions of {d_model} dimensions\n"
        r"$PE_{(pos,\,2i)}=\sin(pos/10000^{2i/d_{model}})$,   "
        r"$PE_{(pos,\,2i+1)}=\cos(pos/10000^{2i/d_{model}})$".replace("10000", f"{base:g}"),
        fontsize=12,
    )
    axis.set_xlabel("dimension (even: sine, odd: cosine)")
    axis.set_ylabel("position")
    figure.colorbar(image, ax=axis, label="value", aspect=25, pad=0.02)
    return figure


# What a run's log calls it -> what the picture calls it.
CURVES = {
    "loss": "training, smoothed",
    "validation_loss": "validation",
    "validation_bleu": "BLEU of the validation text",
}


def curves_of(metrics: Path) -> dict[str, dict[int, float]]:
    """The curves in a run's metrics.jsonl: {"loss": {step: value}, "validation_loss": ..., "validation_bleu": ...}

    A step that was done again after an interruption counts once, the last time.
    """
    curves: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    try:
        lines = metrics.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"{metrics}: no such file; a folder that was trained has one") from None
    for number, line in enumerate(lines, start=1):
        try:
            record: dict[str, Any] = json.loads(line)
            for name in CURVES:
                if record.get(name) is not None:  # a loss that was no number
                    curves[name][int(record["step"])] = float(record[name])
        except (ValueError, TypeError, KeyError) as error:
            raise BrokenFileError(f"{metrics} line {number} is not a record of training ({error!r})") from error
    return curves


def curve_figure(curves: dict[str, dict[int, float]]) -> "Figure":
    """The losses of a run, in nats a target token, and its BLEU where it was measured, over the steps."""
    has_bleu = bool(curves["validation_bleu"])
    if not any(curves.values()):
        raise InputError("the run has logged no loss yet: there is no curve to draw")
    figure = figure_class()(figsize=(9, 6 if has_bleu else 4), layout="constrained", dpi=RESOLUTION)
    axes = figure.subplots(2 if has_bleu else 1, sharex=True, squeeze=False)[:, 0]
    for name in ("loss", "validation_loss"):
        if curves[name]:
            few = {"marker": "o"} if len(curves[name]) < 40 else {}
            axes[0].plot(*zip(*sorted(curves[name].items()), strict=True), label=CURVES[name], markersize=3, **few)
    axes[0].set_ylabel("loss, nats a token")
    axes[0].legend()
    if has_bleu:
        points = sorted(curves["validation_bleu"].items())
        axes[1].plot(*zip(*points, strict=True), marker="o", markersize=3, color="C2")
        axes[1].set_ylabel(CURVES["validation_bleu"])
    for axis in axes:
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("step")
    return figure


def token_labels(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[str]:
    """A readable label for each token: its text, `▁` for a space; a character's bytes count themselves, `ü 1/2`."""
    tokens = [str(token) for token in cast(list[str], tokenizer.convert_ids_to_tokens(ids))]
    special = set(tokenizer.all_special_ids)
    letters = byte_of_letter()
    labels: list[str] = []
    place = 0
    while place < len(tokens):
        if ids[place] in special or not all(letter in letters for letter in tokens[place]):
            labels.append(tokens[place])
            place += 1
            continue
        # The fewest tokens whose bytes are whole characters; one alone if four are not.
        for count in (1, 2, 3, 4):
            raw = bytes(
                letters[letter] for token in tokens[place : place + count] for letter in token if letter in letters
            )
            try:
                text = raw.decode("utf-8")
                break
            except UnicodeDecodeError:
                continue
        else:
            count, text = 1, "�"
        count = min(count, len(tokens) - place)
        text = text.replace(" ", "▁")
        labels += [text] if count == 1 else [f"{text} {part}/{count}" for part in range(1, count + 1)]
        place += count
    return labels


@cache
def byte_of_letter() -> dict[str, int]:
    """The byte that each letter of a ByteLevel token stands for.

    GPT-2's table: printable bytes stand for themselves, the others for U+0100 and up, in their order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def drawable(labels: list[str]) -> list[str]:
    """The labels, with U+XXXX for letters that matplotlib's font cannot draw and for control characters."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    glyphs = get_font(findfont(FontProperties())).get_charmap()
    return [
        "".join(
            letter if letter.isprintable() and ord(letter) in glyphs else f"U+{ord(letter):04X}" for letter in label
        )
        for label in labels
    ]


def label_inches(labels: list[str]) -> float:
    """Room for the longest label at 8 points."""
    return 0.075 * max(map(len, labels)) + 0.1


def figure_class() -> type["Figure"]:
    """matplotlib's Figure. Raises UnavailableError if it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnavailableError(
            f'pictures need matplotlib, which cannot be imported ({error}): pip install "vaswani-transformer[viz]"'
        ) from None
    return Figure


def check_length(kind: str, tokens: int) -> None:
    if tokens > LONGEST_SENTENCE:
        raise InputError(f"the {kind} has {tokens} tokens; a heat map shows at most {LONGEST_SENTENCE}")


def check_choice(name: str, choice: int | None, most: int, zero: str) -> None:
    if choice is not None and not 0 <= choice <= most:
        raise InputError(f"{name} is {choice}; the model has {name}s 1 to {most} (0: {zero})")
