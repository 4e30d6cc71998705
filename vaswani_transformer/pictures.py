"""Heat maps of attention (Figures 3 to 5 of the paper) and of the positional encoding (section 3.5).

Each function returns a matplotlib figure: `attention_figure(maps).savefig("attention.png")`. Only drawing needs
matplotlib; `attention_maps` computes the weights.
"""

from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from .attention_maps import AttentionMaps
from .errors import InputError
from .modeling_vaswani_transformer import sinusoidal_positional_encoding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "cross": "Cross-attention: from each target token to the source",
    "encoder": "Encoder self-attention: from each source token to the source",
    "decoder": "Decoder self-attention: from each target token to itself and those before it",
}
RESOLUTION = 150  # dots per inch


def attention_figure(
    maps: AttentionMaps, kind: str = "cross", layer: int | None = None, head: int | None = None
) -> "Figure":
    """Draw attention weights as heat maps, one per head. Layers and heads count from 1.

    kind: "cross", "encoder" or "decoder"
    layer: None for the last one; 0 for all, one row of heads each
    head: None for all; 0 for their mean
    Raises `InputError` for a layer or head that the model does not have.
    """
    if kind not in KINDS:
        raise InputError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    weights = cast(Tensor, getattr(maps, kind))  # (layers, heads, query, key)
    layers, heads = weights.shape[:2]
    layer = layers if layer is None else layer
    check_choice("layer", layer, layers, "all layers")
    check_choice("head", head, heads, "mean of all heads")
    if head == 0:
        columns = {"mean of the heads": weights.mean(dim=1)}  # title: (layers, query, key)
    else:
        columns = {f"head {n}": weights[:, n - 1] for n in (range(1, heads + 1) if head is None else [head])}
    rows = {f"layer {n}, ": n - 1 for n in range(1, layers + 1)} if layer == 0 else {"": layer - 1}
    panels = {row + title: by_layer[index] for row, index in rows.items() for title, by_layer in columns.items()}
    across = len(columns) if layer == 0 else min(len(columns), 4)
    # Queries of the decoder are labelled with the tokens that it predicts there.
    keys = maps.target if kind == "decoder" else maps.source
    queries = maps.source if kind == "encoder" else maps.predicted
    figure = heat_maps(panels, keys, queries, across)
    where = "all layers" if layer == 0 else f"layer {layer} of {layers}"
    figure.suptitle(f"{KINDS[kind]}\n{where}", fontsize=12)
    return figure


def heat_maps(panels: dict[str, Tensor], keys: list[str], queries: list[str], across: int) -> "Figure":
    """Draw one heat map (query, key) for each title, `across` in a row."""
    down = -(-len(panels) // across)
    cell = min(0.6, max(0.24, 4.5 / max(len(keys), len(queries))))  # inches
    width = across * (cell * len(keys) + 0.3) + label_inches(queries) + 1.6
    height = down * (cell * len(queries) + label_inches(keys) + 0.4) + 1.0
    figure = new_figure(figsize=(max(6.0, width), height), layout="compressed")
    axes = figure.subplots(down, across, squeeze=False)
    # White is 0. The darkest blue is the largest weight shown, which is rarely near 1.
    darkest = max(float(weights.max()) for weights in panels.values())
    for index, (axis, (title, weights)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        axis.imshow(weights.numpy(), cmap="Blues", vmin=0.0, vmax=darkest)
        axis.set_title(title, fontsize=9)
        axis.xaxis.tick_top()
        axis.set_xticks(range(len(keys)), drawable(keys), rotation=90, fontsize=8, parse_math=False)
        side = drawable(queries) if index % across == 0 else [""] * len(queries)
        axis.set_yticks(range(len(queries)), side, fontsize=8, parse_math=False)
        axis.tick_params(length=0)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    image = axes[0, 0].images[0]  # all share one scale
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.7, aspect=25, pad=0.02)
    return figure


def positional_encoding_figure(length: int = 100, d_model: int = 128) -> "Figure":
    """Draw PE(pos, i) of section 3.5 as a heat map, with positions down and dimensions across."""
    if not 1 <= length <= 10_000 or d_model < 2 or d_model % 2 or d_model > 65_536:
        raise InputError(
            f"length {length}, d_model {d_model}: give 1 to 10000 positions and 2 to 65536 dimensions, an even number"
        )
    encoding = sinusoidal_positional_encoding(length, d_model)
    figure = new_figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(encoding.numpy(), cmap="RdBu_r", vmin=-1.0, vmax=1.0, aspect="auto", interpolation="nearest")
    axis.set_title(
        f"Positional encoding, {length} positions of {d_model} dimensions\n"
        r"$PE_{(pos,\,2i)}=\sin(pos/10000^{2i/d_{model}})$,   "
        r"$PE_{(pos,\,2i+1)}=\cos(pos/10000^{2i/d_{model}})$",
        fontsize=12,
    )
    axis.set_xlabel("dimension (even: sine, odd: cosine)")
    axis.set_ylabel("position")
    figure.colorbar(image, ax=axis, label="value", aspect=25, pad=0.02)
    return figure


def drawable(labels: list[str]) -> list[str]:
    """Replace characters that matplotlib's font cannot draw, and control characters, by U+XXXX."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    glyphs = get_font(findfont(FontProperties())).get_charmap()
    return [
        "".join(
            letter if letter.isprintable() and ord(letter) in glyphs else f"U+{ord(letter):04X}" for letter in label
        )
        for label in labels
    ]


def label_inches(labels: list[str]) -> float:
    """Return the length of the longest label at 8 points."""
    return 0.075 * max(map(len, labels)) + 0.1


def new_figure(**options: Any) -> "Figure":
    """Return a matplotlib Figure; the import is here because matplotlib is optional."""
    from matplotlib.figure import Figure

    return Figure(**options, dpi=RESOLUTION)


def check_choice(name: str, choice: int | None, most: int, zero: str) -> None:
    if choice is not None and not 0 <= choice <= most:
        raise InputError(f"{name} is {choice}; the model has {name}s 1 to {most} (0: {zero})")
