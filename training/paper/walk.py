"""The walk through attention: every intermediate value of one head for one sentence, as numbers and as a picture."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from vaswani_transformer import Translator
from vaswani_transformer.attention import AttentionMaps, attention_maps
from vaswani_transformer.errors import InputError
from vaswani_transformer.modeling_vaswani_transformer import scaled_dot_product_attention, split_heads
from vaswani_transformer.pictures import RESOLUTION, drawable, figure_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"mask": "masked: -∞ where attending is not allowed", "softmax V": "(softmax) V"}
ATTENTION = {"encoder": "self_attn", "decoder": "self_attn", "cross": "cross_attn"}


def walk(
    translator: Translator, source: str, target: str | None, kind: str, layer: int, head: int
) -> tuple[dict[str, Tensor], AttentionMaps]:
    """Return the values of Equation (1) by name, each (query, ...), and the labels of the sentence.

    kind: encoder, decoder (masked) or cross;  layer, head: counted from 1
    """
    model: Any = translator.model
    stack = model.model.encoder if kind == "encoder" else model.model.decoder
    check("layer", layer, len(stack.layers))
    attention = getattr(stack.layers[layer - 1], ATTENTION[kind])
    check("head", head, attention.q_proj.out_features // attention.d_k)
    seen: dict[nn.Module, Tensor] = {}
    projections = [getattr(attention, f"{name}_proj") for name in "qkv"]
    # The last forward pass is the one over the whole sentence.
    with register_module_forward_hook(lambda module, _inputs, output: seen.update({module: output})):
        maps = attention_maps(model, translator.tokenizer, source, target, translator.target_tokenizer)
    sizes = (attention.d_k, attention.d_k, attention.d_v)
    query, key, value = (
        split_heads(seen[each], size)[0, head - 1].float().cpu() for each, size in zip(projections, sizes, strict=True)
    )
    allowed = torch.ones(len(query), len(key), dtype=torch.bool)
    if kind == "decoder":
        allowed = allowed.tril()
    scores = query @ key.T
    output, weights = scaled_dot_product_attention(query, key, value, allowed)
    scaled = scores * attention.scaling
    values = {
        "Q": query, "K": key, "V": value, "Q K^T": scores, "Q K^T / sqrt(d_k)": scaled,
        "mask": scaled.masked_fill(~allowed, -torch.inf), "softmax": weights, "softmax V": output,
    }  # fmt: skip
    return values, maps


def check(name: str, choice: int, most: int) -> None:
    if not 1 <= choice <= most:
        raise InputError(f"--{name} {choice}: the model has {name}s 1 to {most} there")


def walk_figure(values: dict[str, Tensor], maps: AttentionMaps, kind: str, layer: int, head: int) -> "Figure":
    """Draw the values as heat maps in the order of Equation (1); red is positive, blue negative, grey masked."""
    queries = drawable(maps.source if kind == "encoder" else maps.target)
    keys = drawable(maps.target if kind == "decoder" else maps.source)
    height = 1.3 + 0.17 * max(len(queries), len(keys))
    figure = figure_class()(figsize=(10, 4 * height), layout="constrained", dpi=RESOLUTION)
    for axis, (name, tensor) in zip(figure.subplots(4, 2).flat, values.items(), strict=True):
        bound = float(tensor[tensor.isfinite()].abs().max())
        scale = {"cmap": "Reds", "vmin": 0, "vmax": 1} if name == "softmax" else {
            "cmap": "RdBu_r", "vmin": -bound, "vmax": bound
        }  # fmt: skip
        image = axis.imshow(tensor.masked_fill(~tensor.isfinite(), torch.nan).numpy(), aspect="auto", **scale)
        axis.set_facecolor("lightgrey")
        axis.set_title(f"{TITLES.get(name, name)}   {tuple(tensor.shape)}", fontsize=10, parse_math=False)
        rows = keys if name in ("K", "V") else queries
        axis.set_yticks(range(len(rows)), rows, fontsize=8, parse_math=False)
        if name in ("Q", "K", "V", "softmax V"):
            axis.set_xlabel("dimension", fontsize=8)
        else:
            axis.set_xticks(range(len(keys)), keys, fontsize=8, rotation=90, parse_math=False)
        figure.colorbar(image, ax=axis, shrink=0.8)
    figure.suptitle(
        f"Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V: {kind}, layer {layer}, head {head}", parse_math=False
    )
    return figure
