"""Equation (1) of the paper step by step: every intermediate value of one attention head as a picture."""

import html

import numpy as np
from attention import KINDS, Attention
from heat_map import MEAN, diverging

ROWS_ARE_KEYS = ("K", "V")
MASKED = "future positions masked"


def equation(attention: Attention, title: str, layer: int, head: int | str) -> str:
    """Draw Equation (1) step by step for one head; the first one if the mean of the heads is chosen."""
    kind, _ = KINDS[title]
    chosen = 1 if head == MEAN else int(head)
    query, key, value = (attention.projections[kind][layer - 1][name][chosen - 1] for name in "QKV")
    # The queries of the decoder are the words that it has read, not those that it predicts.
    queries = attention.columns["decoder" if kind == "cross" else kind]
    values = steps(query, key, value, causal=kind == "decoder")
    page = steps_as_html(values, queries, attention.columns[kind], f"{title}, layer {layer}, head {chosen}")
    return page if head != MEAN else f"<p>The mean of the heads has no Q, K and V of its own: this is head 1.</p>{page}"


def steps(query: np.ndarray, key: np.ndarray, value: np.ndarray, causal: bool) -> dict[str, np.ndarray]:
    """Return every intermediate value of Equation (1), in the order of computation.

    query, key: (positions, d_k);  value: (positions, d_v);  causal: mask future positions
    """
    scores = query @ key.T
    scaled = scores / np.sqrt(query.shape[-1])
    masked = np.where(np.tri(*scores.shape, dtype=bool), scaled, -np.inf) if causal else scaled
    exponentials = np.exp(masked - masked.max(-1, keepdims=True))
    weights = exponentials / exponentials.sum(-1, keepdims=True)
    values = {"Q": query, "K": key, "V": value, "Q Kᵀ": scores, "Q Kᵀ / √d_k": scaled}
    if causal:
        values[MASKED] = masked
    return values | {"softmax": weights, "softmax · V": weights @ value}


def steps_as_html(values: dict[str, np.ndarray], queries: list[str], keys: list[str], name: str) -> str:
    """Draw the steps; each row of a picture stands beside the word it belongs to.

    queries, keys: labels of the positions;  name: the layer and the head, for the caption
    """
    figures = []
    for title, matrix in values.items():
        largest = float(np.abs(matrix[np.isfinite(matrix)]).max()) or 1.0
        words = "".join(f"<span>{html.escape(word)}</span>" for word in (keys if title in ROWS_ARE_KEYS else queries))
        size = f"{matrix.shape[0]} × {matrix.shape[1]}"
        figures.append(
            f'<figure style="--rows: {len(matrix)}">'
            f"<figcaption><b>{title}</b> {size}, up to ±{largest:.2f}</figcaption>"
            f'<div class="words" aria-hidden="true">{words}</div>'
            f'<img src="{diverging(matrix, largest)}" alt="{title}, {size}, {name}"></figure>'
        )
    return (
        f'<p class="caption"><b>{name}</b>: Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V. Q, K, V and the result have a '
        "column for each dimension of the head, the others a column for each key. Decoder rows are labelled "
        "with the input token, not with the predicted one.</p>"
        f'<div class="steps">{"".join(figures)}</div>'
        '<p class="legend">below zero <span class="scale diverging"></span> above'
        f"{'; grey: masked' if MASKED in values else ''}</p>"
    )
