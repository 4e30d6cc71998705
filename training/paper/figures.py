"""Writes the pictures and row files of figures 1 to 5, of the report on heads and of the walk through attention.

The walk shows every intermediate value of one head for one sentence, as numbers and as a picture.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from vaswani_transformer import Translator
from vaswani_transformer.attention import AttentionMaps, attention_maps
from vaswani_transformer.errors import InputError
from vaswani_transformer.modeling_vaswani_transformer import scaled_dot_product_attention, split_heads
from vaswani_transformer.pictures import RESOLUTION, drawable, figure_class

from ..json_files import write_json
from . import architecture, heads
from .results import origin, save, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(translator: Translator, number: int, source: str, output: Path, command: str) -> Path:
    """Write figureN.png and figureN.json, and return the path of the picture."""
    started, model = time.perf_counter(), translator.model
    if number <= 2:
        picture = (architecture.figure1, architecture.figure2)[number - 1](model)
        found: dict[str, Any] = {"parameters": sum(each.numel() for each in model.parameters())}
    else:
        maps = heads.word_maps(attention_maps(model, translator.tokenizer, source))
        picture, found = heads.figure_of(maps, number)
    path = output / f"figure{number}.png"
    save(picture, path)
    write_json(path.with_suffix(".json"), found | origin(command, [], time.perf_counter() - started))
    return path


def report_heads(translator: Translator, sentences: list[str], output: Path, command: str) -> None:
    """Write heads.json and heads.md."""
    started = time.perf_counter()
    rows = heads.head_report(translator, sentences)
    about = {"sentences": len(sentences), "heads": rows} | origin(command, [], time.perf_counter() - started)
    write_table(output, "heads", about, heads.heads_table(rows))


# ---- the walk ------------------------------------------------------------------------------------------------------


def draw_walk(
    translator: Translator,
    source: str,
    target: str | None,
    kind: str,
    layer: int,
    head: int,
    output: Path,
    command: str,
) -> None:
    """Write walk.png and walk.json, which holds all numbers."""
    started = time.perf_counter()
    values, maps = walk(translator, source, target, kind, layer, head)
    save(walk_figure(values, maps, kind, layer, head), output / "walk.png")
    # JSON has no infinity: null where attending is not allowed.
    numbers = {
        name: [[round(x, 5) if x > -1e30 else None for x in row] for row in tensor.tolist()]
        for name, tensor in values.items()
    }
    labels = {"source": maps.source, "target": maps.target, "kind": kind, "layer": layer, "head": head}
    write_json(output / "walk.json", labels | numbers | origin(command, [], time.perf_counter() - started))


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
