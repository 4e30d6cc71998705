"""Table 1, counted: operations, sequential steps and path lengths of four kinds of layers while they run.

Operations come from torch's FLOP counter. Sequential steps are the longest chain of products in the autograd graph.
The path length is the number of products between the first input position and the last output position, over as many
stacked layers as the signal (the gradient) needs to get there.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from vaswani_transformer.modeling_vaswani_transformer import scaled_dot_product_attention

from .claim import curves, panels
from .results import PAPER, markdown, origin, save, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

LENGTHS, WIDTHS = (16, 32, 64, 128, 256, 512, 1024), (64, 128, 256, 512)
KERNELS, NEIGHBOURHOODS = (3, 5, 9), (8, 16, 32)
PRODUCTS = ("MmBackward", "AddmmBackward", "BmmBackward", "ConvolutionBackward")

# Positions (1, d) and the number of the layer in a stack -> positions (1, d). They are separate tensors, so that the
# autograd graph knows which of them depends on which.
Layer = Callable[[Sequence[Tensor], int], Sequence[Tensor]]


def self_attention(d: int) -> Layer:
    """The attention function of the model, without projections, as in the paper's count."""

    def run(positions: Sequence[Tensor], depth: int) -> Sequence[Tensor]:
        x = torch.cat(tuple(positions))[None]
        return scaled_dot_product_attention(x, x, x)[0][0].split(1)

    return run


def recurrent(d: int) -> Layer:
    cell = torch.nn.RNNCell(d, d, bias=False).requires_grad_(False)
    torch.nn.init.orthogonal_(cell.weight_hh)  # as far as possible, the signal neither grows nor vanishes

    def run(positions: Sequence[Tensor], depth: int) -> Sequence[Tensor]:
        cell.to(positions[0].dtype)
        states = [torch.zeros_like(positions[0])]
        for position in positions:
            states.append(cell(position, states[-1]))
        return states[1:]

    return run


def convolutional(d: int, kernel: int) -> Layer:
    """Dilated by 1, k, k^2, ... as in ByteNet, and causal: a stack of log_k n layers sees all n positions."""
    weight = torch.randn(d, d, kernel) / math.sqrt(d * kernel)

    def run(positions: Sequence[Tensor], depth: int) -> Sequence[Tensor]:
        x = torch.cat(tuple(positions))
        dilation = kernel**depth
        padded = F.pad(x.T[None], (dilation * (kernel - 1), 0))
        return F.conv1d(padded, weight.to(x.dtype), dilation=dilation)[0].T.split(1)

    return run


def restricted_self_attention(d: int, neighbourhood: int) -> Layer:
    """Each position attends to the `neighbourhood` positions around it; missing ones are masked."""
    before = neighbourhood // 2
    after = neighbourhood - 1 - before

    def windows(x: Tensor) -> Tensor:  # (length, d) -> (length, neighbourhood, d)
        return F.pad(x, (0, 0, before, after)).unfold(0, neighbourhood, 1).transpose(1, 2)

    def run(positions: Sequence[Tensor], depth: int) -> Sequence[Tensor]:
        x = torch.cat(tuple(positions))
        near, there = windows(x), windows(x.new_ones(len(x), 1))
        output, _ = scaled_dot_product_attention(x[:, None], near, near, there.transpose(1, 2) > 0)
        return output[:, 0].split(1)

    return run


def flops(layer: Layer, length: int, d: int) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.randn(length, d).split(1), 0)
    return counter.get_total_flops()


def chain(output: Tensor, select: Callable[[Iterable[int]], int]) -> int:
    """Return the products on the longest (select=max) or shortest (min) way through the autograd graph to a leaf."""
    found: dict[Any, int] = {}
    stack: list[Any] = [output.grad_fn]
    while stack:
        node = stack[-1]
        before = [each for each, _ in node.next_functions if each is not None]
        missing = [each for each in before if each not in found]
        if missing:
            stack += missing
            continue
        found[stack.pop()] = node.name().startswith(PRODUCTS) + select([found[each] for each in before] or [0])
    return found[output.grad_fn]


def sequential_steps(layer: Layer, length: int, d: int) -> int:
    return chain(layer(torch.randn(length, d, requires_grad=True).split(1), 0)[-1], max)


def path_length(layer: Layer, length: int, d: int) -> int:
    """Return the products between the first input and the last output position."""
    positions = (1e-3 * torch.randn(length, d, dtype=torch.float64)).split(1)  # small: tanh must not saturate
    first = positions[0].clone().requires_grad_()
    with forward_ad.dual_level():
        positions, layers = [forward_ad.make_dual(first, torch.ones_like(first)), *positions[1:]], 0
        while (tangent := forward_ad.unpack_dual(positions[-1]).tangent) is None or not tangent.any():
            positions, layers = layer(positions, layers), layers + 1
    return chain(positions[-1], min)


def exponents(points: Sequence[tuple[float, ...]]) -> list[float]:
    """Fit log y = c + sum of a_i log x_i to points (x_1, ..., y) by least squares; return the a_i."""
    table = torch.tensor(points, dtype=torch.float64).log()
    inputs = torch.cat((torch.ones_like(table[:, :1]), table[:, :-1]), dim=1)
    return torch.linalg.lstsq(inputs, table[:, -1:]).solution[1:, 0].tolist()


def count(lengths: tuple[int, ...], widths: tuple[int, ...]) -> dict[str, Any]:
    """Return every measurement and the fitted exponents of each kind of layer."""
    kinds: dict[str, tuple[Callable[..., Layer], tuple[int, ...], str]] = {
        "self-attention": (self_attention, (), "n d"),
        "recurrent": (recurrent, (), "n d"),
        "convolutional": (convolutional, KERNELS, "n d k"),
        "restricted self-attention": (restricted_self_attention, NEIGHBOURHOODS, "n d r"),
    }
    result = {}
    for kind, (make, choices, symbols) in kinds.items():
        extras: list[tuple[int, ...]] = [(choice,) for choice in choices] or [()]
        work = [(n, d, *extra, flops(make(d, *extra), n, d)) for extra in extras for d in widths for n in lengths]
        small = widths[0]  # steps and paths do not depend on d
        steps = [(n, sequential_steps(make(small, *extras[0]), n, small)) for n in lengths]
        paths = [(n, *extra, path_length(make(small, *extra), n, small)) for extra in extras for n in lengths]
        result[kind] = {
            "symbols": symbols.split(),
            "flops": work,
            "flops_exponents": exponents(work),
            "steps": steps,
            "steps_exponent": exponents(steps)[0],
            "paths": paths,
            "path_exponents": exponents(paths),
        }
        if kind == "convolutional":
            logarithms, longest = zip(*((math.log(n, k), length) for n, k, length in paths), strict=True)
            result[kind]["path_per_log_k_n"] = linear_regression(logarithms, longest).slope
    return result


def table1(output: Path, command: str, lengths: tuple[int, ...] = LENGTHS, widths: tuple[int, ...] = WIDTHS) -> None:
    """Write table1.json, table1.md and table1.png."""
    torch.manual_seed(1)
    started = time.perf_counter()
    counted = count(lengths, widths)
    about = {"layers": counted} | origin(command, [1], time.perf_counter() - started)
    write_table(output, "table1", about, as_markdown(counted))
    save(figure_of(counted), output / "table1.png")


def power(symbols: list[str], values: list[float]) -> str:
    return " ".join(f"{symbol}^{round(value, 2) + 0.0:.2f}" for symbol, value in zip(symbols, values, strict=True))


def as_markdown(counted: dict[str, Any]) -> str:
    lines = []
    for kind, ours in counted.items():
        paper, symbols = PAPER["table1"][kind], ours["symbols"]
        longest = [path for path in ours["paths"] if path[0] == ours["steps"][-1][0]]
        paths = ", ".join(
            str(length) + "".join(f" ({symbols[2]} = {extra})" for extra in choice) for _, *choice, length in longest
        )
        growth = power(["n", *symbols[2:]], ours["path_exponents"])
        if "path_per_log_k_n" in ours:
            growth = f"{ours['path_per_log_k_n']:.2f} log_k n"
        steps = ours["steps"][-1][1]
        lines.append(
            [
                kind,
                paper["operations"],
                power(symbols, ours["flops_exponents"]),
                paper["steps"],
                f"{steps}; {power(['n'], [ours['steps_exponent']])}",
                paper["path"],
                f"{paths}; {growth}",
            ]  # fmt: skip
        )
    n = next(iter(counted.values()))["steps"][-1][0]
    at = f"ours at n = {n}; fitted growth"
    head = f"layer|operations, paper|ours, fitted growth|steps, paper|{at}|path, paper|{at}"
    return markdown(head.split("|"), lines)


def figure_of(counted: dict[str, Any]) -> "Figure":
    """Draw operations, sequential steps and path lengths against the sentence length."""
    figure, axes = panels(3)
    d = max(point[1] for point in counted["recurrent"]["flops"])
    series: tuple[dict[str, list[tuple[int, int]]], ...] = ({}, {}, {})
    for kind, ours in counted.items():
        extra = list(ours["flops"][-1][2:-1])
        label = kind + "".join(f", {ours['symbols'][2]} = {value}" for value in extra)
        series[0][label] = [(n, flops) for n, width, *rest, flops in ours["flops"] if width == d and rest == extra]
        series[1][label] = ours["steps"]
        series[2][label] = [(n, length) for n, *rest, length in ours["paths"] if rest == extra]
    for axis, each, y in zip(axes, series, (f"FLOPs, d = {d}", "sequential steps", "maximum path length"), strict=True):
        curves(axis, each, "sentence length n", y, log_x=True)
        axis.set_yscale("log")
        for n, line in enumerate(axis.lines):
            line.set_linewidth(3.5 - 0.8 * n)  # some lie on others
        if axis is not axes[0]:
            cast("Legend", axis.get_legend()).remove()
    axes[0].set_ylim(top=1e11)  # room for the legend
    return figure
