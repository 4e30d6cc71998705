"""A walk through attention: every intermediate value of one head for one sentence, as numbers and as a picture."""

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from vaswani_transformer import TorchTranslator
from vaswani_transformer.attention_maps import AttentionMaps, attention_maps
from vaswani_transformer.errors import InputError
from vaswani_transformer.modeling_vaswani_transformer import scaled_dot_product_attention, split_heads
from vaswani_transformer.pictures import RESOLUTION, drawable

from .plots import save_picture
from .result_files import describe_origin, format_command, write_result

SENTENCE = "A man is throwing a ball to his dog ."


class Head(NamedTuple):
    """The attention head to walk through."""

    kind: str  # encoder, decoder (masked) or cross
    layer: int  # layers and heads are counted from 1
    head: int


def write_walk(output: Path, model: Path, source: str | None, target: str | None, chosen: Head) -> list[Path]:
    """Write walk.png and walk.json, which has all numbers, and return their paths."""
    started = time.perf_counter()
    translator = TorchTranslator.from_pretrained(model, device="cpu", dtype="float32", local_files_only=True)
    values, maps = compute_walk(translator, source or SENTENCE, target, chosen)
    picture, numbers_file = output / "walk.png", output / "walk.json"
    save_picture(draw_walk(values, maps, chosen), picture)
    # JSON has no infinity: null where attending is not allowed.
    numbers = {
        name: [[round(x, 5) if math.isfinite(x) else None for x in row] for row in tensor.tolist()]
        for name, tensor in values.items()
    }
    result = {"source": maps.source, "target": maps.target, **chosen._asdict(), **numbers}
    command = format_command(
        "python -m paper walk", {"model": model, **chosen._asdict(), "source": source, "target": target}
    )
    write_result(numbers_file, result | describe_origin(command, [], time.perf_counter() - started))
    return [picture, numbers_file]


def compute_walk(
    translator: TorchTranslator, source: str, target: str | None, chosen: Head
) -> tuple[dict[str, Tensor], AttentionMaps]:
    """Return the values of Equation (1) by name, each (query or key, ...), and the attention maps with the tokens."""
    model: Any = translator.model
    kind, layer, head = chosen
    stack = model.model.encoder if kind == "encoder" else model.model.decoder
    check_choice("layer", layer, len(stack.layers))
    attention = getattr(stack.layers[layer - 1], "cross_attn" if kind == "cross" else "self_attn")
    check_choice("head", head, attention.q_proj.out_features // attention.d_k)
    weights = [getattr(attention, f"{name}_proj").weight for name in "qkv"]
    seen: dict[Tensor, Tensor] = {}

    def keep(module: nn.Module, _inputs: Any, output: Tensor) -> None:
        # By weight, since a copy of the model computes the maps; of the last pass, the one over the whole sentence.
        if isinstance(module, nn.Linear):
            seen[module.weight] = output

    with register_module_forward_hook(keep):
        maps = attention_maps(model, translator.tokenizer, source, target, translator.target_tokenizer)
    sizes = (attention.d_k, attention.d_k, attention.d_v)
    query, key, value = (
        split_heads(seen[weight], size)[0, head - 1].float().cpu() for weight, size in zip(weights, sizes, strict=True)
    )
    allowed = torch.ones(len(query), len(key), dtype=torch.bool)
    if kind == "decoder":
        allowed = allowed.tril()
    scores = query @ key.T
    scaled = scores * attention.scaling
    output, probabilities = scaled_dot_product_attention(query, key, value, allowed)
    values = {
        "Q": query, "K": key, "V": value, "Q K^T": scores, "Q K^T / sqrt(d_k)": scaled,
        "mask": scaled.masked_fill(~allowed, -torch.inf), "softmax": probabilities, "softmax V": output,
    }  # fmt: skip
    return values, maps


def check_choice(name: str, choice: int, most: int) -> None:
    """Raise InputError unless there is a layer or head of this number."""
    if not 1 <= choice <= most:
        raise InputError(f"--{name} {choice}: must be 1 to {most}")


TITLES = {"mask": "masked: -∞ where attending is not allowed", "softmax V": "(softmax) V"}


def draw_walk(values: dict[str, Tensor], maps: AttentionMaps, chosen: Head) -> Figure:
    """Draw the values as heat maps in the order of Equation (1); red is positive, blue negative, grey masked."""
    kind, layer, head = chosen
    queries = drawable(maps.source if kind == "encoder" else maps.target)
    keys = drawable(maps.target if kind == "decoder" else maps.source)
    height = 1.3 + 0.17 * max(len(queries), len(keys))
    figure = Figure(figsize=(10, 4 * height), layout="constrained", dpi=RESOLUTION)
    for axis, (name, tensor) in zip(figure.subplots(4, 2).flat, values.items(), strict=True):
        bound = float(tensor[tensor.isfinite()].abs().max())
        colours, low, high = ("Reds", 0, 1) if name == "softmax" else ("RdBu_r", -bound, bound)
        finite = tensor.masked_fill(~tensor.isfinite(), torch.nan).numpy()
        image = axis.imshow(finite, aspect="auto", cmap=colours, vmin=low, vmax=high)
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
