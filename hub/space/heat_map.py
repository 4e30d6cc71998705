"""The heat map of one attention head as an HTML table, which heat_map.js makes navigable by keyboard and pointer."""

import base64
import html
import io

import numpy as np
from attention import KINDS, Attention
from PIL import Image

MEAN = "mean"  # chosen in place of a head
RED, BLUE, WHITE, GREY = (np.array(colour) for colour in ((178, 24, 43), (33, 102, 172), (255, 255, 255), (160,) * 3))


def heat_map(attention: Attention, title: str, layer: int, head: int | str) -> str:
    """Return the weights of one head, or the mean of all heads of the layer, as HTML.

    title: a key of KINDS.  layer, head: counted from 1
    """
    kind, explanation = KINDS[title]
    layer_weights = attention.weights[kind][layer - 1]
    weights = layer_weights.mean(axis=0) if head == MEAN else layer_weights[int(head) - 1]  # (rows, columns)
    row_labels = [html.escape(label) for label in attention.rows[kind]]
    column_labels = [html.escape(label) for label in attention.columns[kind]]
    # Colours are relative to the largest weight shown, which is seldom near 1.
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
        '<p class="readout" aria-hidden="true">Point at a word or a cell, or use Tab and the arrow keys.</p>'
        f'<div class="maps"><div class="scroll"><table role="grid" aria-label="{name}">'
        f"<thead><tr><td></td>{columns}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<div class="heads" aria-hidden="true">{thumbnails(layer_weights, head)}</div></div>'
        f'<p class="legend">0 <span class="scale"></span> {largest:.2f}</p>'
    )


def thumbnails(weights: np.ndarray, chosen: int | str) -> str:
    """Return a small clickable picture of each head of a layer. weights: (heads, rows, columns)"""
    shares = weights / weights.max(axis=(1, 2), keepdims=True)
    # style.css gives the colours, which depend on the theme; the pictures are their opacity.
    pictures = [png(np.stack((np.zeros_like(share), share * 255), axis=-1), "LA") for share in shares]
    return "".join(
        f'<figure data-head="{head}"{" class=chosen" * (head == chosen)}>'
        f"<span style=\"--weights:url('{picture}')\"></span><figcaption>head {head}</figcaption></figure>"
        for head, picture in enumerate(pictures, start=1)
    )


# ---- matrices as pictures -------------------------------------------------------------------------------------------


def png(pixels: np.ndarray, mode: str) -> str:
    """Return pixels, (height, width, channels of PIL's mode) from 0 to 255, as a data: URL."""
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8), mode).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def diverging(values: np.ndarray, largest: float) -> str:
    """Return a matrix as a data: URL of a picture: `largest` is red, zero white, -largest blue, -infinity grey."""
    share = np.where(np.isfinite(values), values / largest, 0)[..., None]
    pixels = WHITE + np.abs(share) * (np.where(share > 0, RED, BLUE) - WHITE)
    return png(np.where(np.isfinite(values)[..., None], pixels, GREY), "RGB")
