"""Equation (1) of the paper step by step: every intermediate value of one attention head as a picture."""

import html
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from images import diverging

# Values of Q, K and V by the kind of attention: for each layer a dictionary of (heads, positions, d_k or d_v).
Projections = dict[str, list[dict[str, np.ndarray]]]
ROWS_ARE_KEYS = ("K", "V")
MASKED = "future positions masked"


@contextmanager
def recorded_projections(model: Any) -> Iterator[Projections]:
    """Record what the projections of every attention return in a pass over one sentence."""
    encoder, decoder = model.model.encoder.layers, model.model.decoder.layers
    modules = {
        "encoder": [layer.self_attn for layer in encoder],
        "decoder": [layer.self_attn for layer in decoder],
        "cross": [layer.cross_attn for layer in decoder],
    }
    found: Projections = {kind: [{} for _ in attentions] for kind, attentions in modules.items()}
    handles = []
    for kind, attentions in modules.items():
        for attention, values in zip(attentions, found[kind], strict=True):
            for name, size in (("q", attention.d_k), ("k", attention.d_k), ("v", attention.d_v)):

                def record(_module: Any, _inputs: Any, output: torch.Tensor, values=values, name=name, size=size):
                    values[name.upper()] = output[0].unflatten(-1, (-1, size)).transpose(0, 1).float().numpy()

                handles.append(getattr(attention, f"{name}_proj").register_forward_hook(record))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def steps(query: np.ndarray, key: np.ndarray, value: np.ndarray, causal: bool) -> dict[str, np.ndarray]:
    """Return the values of Equation (1), each (queries, ...) but K and V.

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

    queries, keys: labels of the positions;  name: of the head
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
