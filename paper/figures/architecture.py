"""Figures 1 and 2, drawn from a running model with the names, shapes, operations and parameters of its modules."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.modeling_vaswani_transformer import (
    FeedForward,
    MultiHeadAttention,
    PositionalEncoding,
    scaled_dot_product_attention,
)
from vaswani_transformer.pictures import RESOLUTION

# The colours of the paper's Figure 1.
COLOURS = {
    nn.Embedding: "#fce0e1", PositionalEncoding: "#ffffff", MultiHeadAttention: "#ffe2bb", FeedForward: "#c2e8f7",
    nn.LayerNorm: "#f2f4c1", nn.Linear: "#dddfef",
}  # fmt: skip
# Operations of the attention function and their names in the paper.
OPERATIONS = {"bmm": "MatMul", "mul": "Scale", "masked_fill": "Mask (opt.)", "_softmax": "SoftMax"}
OPERATION_COLOURS = {"MatMul": "#e2d5ee", "Scale": "#fbf3c6", "Mask (opt.)": "#fde0e3", "SoftMax": "#d5eeca"}


@dataclass(frozen=True)
class Call:
    """A call of a module: the module's name, kind and parameters, and the shape of the output."""

    name: str
    kind: type[nn.Module]
    shape: tuple[int, ...]
    parameters: int


def record_calls(model: VaswaniTransformerForConditionalGeneration) -> list[Call]:
    """Return the calls of the modules that Figure 1 shows, in the order of one forward pass."""
    calls: list[Call] = []
    # Modules inside these are not drawn: the projections of attention, the matrices of the feed-forward layer.
    detail = re.compile(r"(_attn|feed_forward|positional_encoding)\.")
    names = {
        module: name for name, module in model.named_modules() if type(module) in COLOURS and not detail.search(name)
    }

    def record(module: nn.Module, _inputs: Any, output: Any) -> None:
        if module in names:
            shape = tuple((output[0] if isinstance(output, tuple) else output).shape)
            parameters = sum(weight.numel() for weight in module.parameters())
            calls.append(Call(names[module], type(module), shape, parameters))

    with torch.inference_mode(), register_module_forward_hook(record):
        ids = torch.full((1, 13), 4, device=model.device)  # 7 source and 6 target tokens
        model(input_ids=ids[:, :7], decoder_input_ids=ids[:, 7:], use_cache=False)
    return calls


def draw_figure1(model: VaswaniTransformerForConditionalGeneration) -> Figure:
    """Draw the model's architecture: boxes from bottom to top in the order of their calls."""
    calls, config = record_calls(model), model.config
    figure = Figure(figsize=(9, 11), dpi=RESOLUTION)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    # The first layer of a stack represents all of its layers.
    calls = [call for call in calls if not re.search(r"layers\.[1-9]", call.name)]
    encoder = [call for call in calls if ".encoder." in call.name]
    decoder = [call for call in calls if ".decoder." in call.name or call.name == "lm_head"]
    draw_stack(axis, encoder, 0.27, config.encoder_layers, "Inputs")
    draw_stack(axis, decoder, 0.73, config.decoder_layers, "Outputs (shifted right)")
    height = max(len(encoder), len(decoder)) + 1.5
    axis.set(xlim=(0, 1), ylim=(-1.3, height))
    top = len(encoder) - 0.35
    (cross,) = (n for n, call in enumerate(decoder) if call.name.endswith("cross_attn"))
    axis.plot([0.27, 0.27, 0.5, 0.5], [top - 0.1, top + 0.25, top + 0.25, cross], color="black", linewidth=1)
    axis.annotate("", (0.73 - 0.17, cross), (0.5, cross), arrowprops={"arrowstyle": "->"})
    is_tied = model.model.encoder.embed_tokens.weight.data_ptr() == model.lm_head.weight.data_ptr()
    shared = "; the embeddings and Linear are one matrix" if is_tied else ""
    title = f"{model.num_parameters():,} parameters{shared}\nshapes: (batch, length, width)"
    axis.text(0.04, height - 0.3, title, va="top", fontsize=9)
    return figure


def draw_stack(axis: Axes, calls: list[Call], x: float, layers: int, inputs: str) -> None:
    """Draw one stack as a column of boxes, a frame around the repeated layer, and its residual connections.

    The box of call n has its centre at (x, n) and is 0.6 high. Residual connections run on the outer side.
    """
    axis.text(x, -0.95, inputs, ha="center", fontsize=11)
    outwards = 1 if x > 0.5 else -1
    inner = [n for n, call in enumerate(calls) if ".layers." in call.name]
    norm_first = calls[inner[0]].kind is nn.LayerNorm
    for n, call in enumerate(calls):
        title, details = name_call(call, norm_first), describe_call(call, layers)
        draw_box(axis, x, n, 0.34, COLOURS[call.kind], title, details, n - 0.7)
    low, high = inner[0] - 0.56, inner[-1] + 0.52
    axis.plot([x - 0.2, x + 0.2, x + 0.2, x - 0.2, x - 0.2], [low, low, high, high, low], color="grey", linewidth=1)
    axis.text(x + 0.225 * outwards, (low + high) / 2, f"{layers}×", ha="center", va="center", fontsize=13)
    for n in inner:
        if calls[n].kind in (MultiHeadAttention, FeedForward):  # the residual connection around it
            start, end = (n - 1.48, n + 0.44) if norm_first else (n - 0.48, n + 1)
            side, edge = x + 0.187 * outwards, x + (0 if norm_first else 0.17 * outwards)
            axis.plot([x, side, side], [start, start, end], color="black", linewidth=0.8)
            axis.annotate("", (edge, end), (side, end), arrowprops={"arrowstyle": "->", "linewidth": 1})
    if calls[-1].name == "lm_head":
        draw_box(axis, x, len(calls), 0.34, "#d5eeca", "Softmax", f"{calls[-1].shape}", len(calls) - 0.7)
        axis.text(x, len(calls) + 0.5, "Output Probabilities", ha="center", fontsize=11)


def draw_box(
    axis: Axes, x: float, y: float, width: float, colour: str, title: str, below: str, arrow_from: float | None = None
) -> None:
    """Draw a box around (x, y) with a title and a text below it; arrow_from: height at which an arrow to it starts."""
    style = "round,pad=0.0,rounding_size=0.01"
    axis.add_patch(
        FancyBboxPatch((x - width / 2, y - 0.3), width, 0.6, boxstyle=style, facecolor=colour, edgecolor="black")
    )
    axis.text(x, y + 0.11, title, ha="center", va="center", fontsize=10)
    axis.text(x, y - 0.14, below, ha="center", va="center", fontsize=6.5, family="monospace")
    if arrow_from is not None:
        draw_arrow(axis, x, arrow_from, y - 0.3)


def name_call(call: Call, norm_first: bool) -> str:
    """Return the paper's name for a module."""
    words = {
        nn.Embedding: "Embedding, × √d_model", PositionalEncoding: "+ Positional Encoding", nn.Linear: "Linear",
        FeedForward: "Feed Forward", nn.LayerNorm: "Norm" if norm_first else "Add & Norm",
    }  # fmt: skip
    if call.kind is MultiHeadAttention:
        masked = call.name.startswith("model.decoder") and call.name.endswith("self_attn")
        return "Masked Multi-Head Attention" if masked else "Multi-Head Attention"
    return words[call.kind]


def describe_call(call: Call, layers: int) -> str:
    name = call.name.removeprefix("model.")
    if ".layers.0." in name:
        return f"{name.replace('.0.', f'.0-{layers - 1}.')} {call.shape}\n{layers} × {call.parameters:,} parameters"
    return f"{name} {call.shape}\n{call.parameters:,} parameters"


# ---- Figure 2 ------------------------------------------------------------------------------------------------------


class OperationRecorder(TorchDispatchMode):
    """Records the tensor operations that Figure 2 shows, with the shapes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name in OPERATIONS:
            self.operations.append((OPERATIONS[name], tuple(result.shape)))
        return result


def record_operations(attention: MultiHeadAttention, heads: int, length: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the operations of the model's attention function on random masked inputs, in order."""
    query, key = (torch.randn(heads, length, attention.d_k) for _ in range(2))
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    with OperationRecorder() as recorder:
        scaled_dot_product_attention(query, key, torch.randn(heads, length, attention.d_v), mask)
    return recorder.operations


def draw_figure2(model: VaswaniTransformerForConditionalGeneration) -> Figure:
    """Draw scaled dot-product attention (left) and multi-head attention (right) of the first encoder layer."""
    attention: Any = model.model.encoder.layers[0].self_attn
    heads, length = model.config.encoder_attention_heads, 7
    figure = Figure(figsize=(11, 7), layout="constrained", dpi=RESOLUTION)
    left, right = figure.subplots(1, 2)
    for axis, title in ((left, "Scaled Dot-Product Attention"), (right, "Multi-Head Attention")):
        axis.set_axis_off()
        axis.set_title(title)
        axis.set(xlim=(0, 1), ylim=(-1, TOP + 0.4))
    draw_operations(left, attention, heads, length)
    draw_projections(right, attention, heads, length)
    return figure


INPUTS, TOP = -0.48, 6.1  # heights at which the arrows start and end


def draw_operations(axis: Axes, attention: MultiHeadAttention, heads: int, length: int) -> None:
    """Draw the operations from bottom to top; Scale comes first and applies only to the queries."""
    operations = record_operations(attention, heads, length)
    for name, x, wide in (("Q", 0.2, attention.d_k), ("K", 0.5, attention.d_k), ("V", 0.86, attention.d_v)):
        axis.text(x, -0.75, f"{name}\n({heads}, {length}, {wide})", ha="center", va="center", fontsize=9)
    products = [n for n, (name, _) in enumerate(operations) if name == "MatMul"]
    heights = [0.6 + 1.1 * n for n in range(len(operations))]
    below = INPUTS
    for n, ((name, shape), height) in enumerate(zip(operations, heights, strict=True)):
        centre, width = (0.2, 0.28) if n < products[0] else (0.6, 0.78) if n == products[1] else (0.36, 0.5)
        draw_box(axis, centre, height, width, OPERATION_COLOURS[name], name, str(shape))
        draw_arrow(axis, 0.2 if n <= products[0] else 0.36, below, height - 0.3)
        below = height + 0.3
    draw_arrow(axis, 0.5, INPUTS, heights[products[0]] - 0.3)
    draw_arrow(axis, 0.86, INPUTS, heights[products[1]] - 0.3)
    draw_arrow(axis, 0.6, below, TOP)
    axis.text(0.6, TOP + 0.1, str(operations[-1][1]), ha="center", fontsize=9)


def draw_projections(axis: Axes, attention: Any, heads: int, length: int) -> None:
    d_model = attention.q_proj.in_features

    def describe_projection(name: str) -> tuple[str, str]:
        weight = getattr(attention, name).weight
        return "Linear", f"{name} {tuple(weight.shape)}\n{weight.numel():,} parameters"

    for x, letter, name in ((0.17, "V", "v_proj"), (0.5, "K", "k_proj"), (0.83, "Q", "q_proj")):
        axis.text(x, -0.75, f"{letter}\n(1, {length}, {d_model})", ha="center", va="center", fontsize=9)
        draw_box(axis, x, 1, 0.3, COLOURS[nn.Linear], *describe_projection(name), INPUTS)
        draw_arrow(axis, x, 1.3, 2.2)
    sizes = f"h = {heads} heads, d_k = {attention.d_k}, d_v = {attention.d_v}"
    draw_box(axis, 0.5, 2.5, 0.96, "#e2d5ee", "Scaled Dot-Product Attention", sizes)
    draw_box(axis, 0.5, 3.8, 0.4, "#fbf3c6", "Concat", f"(1, {length}, {heads * attention.d_v})", 2.8)
    draw_box(axis, 0.5, 5.1, 0.4, COLOURS[nn.Linear], *describe_projection("out_proj"), 4.1)
    draw_arrow(axis, 0.5, 5.4, TOP)
    axis.text(0.5, TOP + 0.1, f"(1, {length}, {d_model})", ha="center", fontsize=9)


def draw_arrow(axis: Axes, x: float, low: float, high: float) -> None:
    axis.annotate("", (x, high), (x, low), arrowprops={"arrowstyle": "->", "linewidth": 1, "shrinkA": 0, "shrinkB": 0})
