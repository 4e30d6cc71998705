"""Table 1: counts operations, sequential steps and path lengths of four kinds of layers while they run.

Operations come from torch's FLOP counter. Sequential steps are the longest chain of matrix products in the autograd
graph. The path length is the number of products between the first input position and the last output position, through
as many stacked layers as the signal (the derivative) needs to get there.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from vaswani_transformer.modeling_vaswani_transformer import scaled_dot_product_attention

from .plots import make_panels, plot_curves, save_picture
from .result_files import PAPER, describe_origin, format_table, write_result
from .verdicts import fit_exponents

LENGTHS, WIDTHS = (16, 32, 64, 128, 256, 512, 1024), (64, 128, 256, 512)
PRODUCTS = ("MmBackward", "AddmmBackward", "BmmBackward", "ConvolutionBackward")

# A layer maps n positions, each (1, d), to n positions; `depth` is its index in the stack. Positions are separate
# tensors so that the autograd graph records which output depends on which input.
Layer = Callable[[Sequence[Tensor], int], Sequence[Tensor]]


def attend(positions: Sequence[Tensor], depth: int) -> Sequence[Tensor]:
    """Apply the attention function of the model, without projections, as in the paper's count."""
    x = torch.cat(tuple(positions))[None]
    return scaled_dot_product_attention(x, x, x)[0][0].split(1)


def recur(positions: Sequence[Tensor], depth: int) -> Sequence[Tensor]:
    """Apply a recurrent layer with tanh."""
    d = positions[0].shape[1]
    cell = torch.nn.RNNCell(d, d, bias=False, dtype=positions[0].dtype).requires_grad_(False)
    torch.nn.init.orthogonal_(cell.weight_hh)  # keeps the norm of the signal roughly constant
    states = [torch.zeros_like(positions[0])]
    for position in positions:
        states.append(cell(position, states[-1]))
    return states[1:]


def convolve(positions: Sequence[Tensor], depth: int, kernel: int) -> Sequence[Tensor]:
    """Apply a causal convolution, dilated by 1, k, k^2, ... as in ByteNet: log_k n layers see all n positions."""
    x = torch.cat(tuple(positions))
    d, dilation = x.shape[1], kernel**depth
    weight = torch.randn(d, d, kernel, dtype=x.dtype) / math.sqrt(d * kernel)
    padded = F.pad(x.T[None], (dilation * (kernel - 1), 0))
    return F.conv1d(padded, weight, dilation=dilation)[0].T.split(1)


def attend_nearby(positions: Sequence[Tensor], depth: int, neighbourhood: int) -> Sequence[Tensor]:
    """Attend from each position to the `neighbourhood` positions around it; positions beyond the ends are masked."""
    before = neighbourhood // 2
    after = neighbourhood - 1 - before

    def windows(x: Tensor) -> Tensor:  # (length, d) -> (length, neighbourhood, d)
        return F.pad(x, (0, 0, before, after)).unfold(0, neighbourhood, 1).transpose(1, 2)

    x = torch.cat(tuple(positions))
    near, exists = windows(x), windows(x.new_ones(len(x), 1))
    output, _ = scaled_dot_product_attention(x[:, None], near, near, exists.transpose(1, 2) > 0)
    return output[:, 0].split(1)


# The layers of each kind by their size besides n and d (the kernel k or the neighbourhood r), and the symbols of all
# sizes.
KINDS: dict[str, tuple[dict[tuple[int, ...], Layer], str]] = {
    "self-attention": ({(): attend}, "n d"),
    "recurrent": ({(): recur}, "n d"),
    "convolutional": ({(k,): partial(convolve, kernel=k) for k in (3, 5, 9)}, "n d k"),
    "restricted self-attention": (
        {(r,): partial(attend_nearby, neighbourhood=r) for r in (8, 16, 32)},
        "n d r",
    ),
}


# ---- counting ------------------------------------------------------------------------------------------------------


def measure_layers(lengths: tuple[int, ...], widths: tuple[int, ...]) -> dict[str, Any]:
    """Return all measurements and the fitted exponents of each kind of layer."""
    measured = {}
    for kind, (layers, symbols) in KINDS.items():
        work = [
            (n, d, *size, count_flops(layer, n, d)) for size, layer in layers.items() for d in widths for n in lengths
        ]
        small = widths[0]  # steps and paths do not depend on d, and steps not on k or r
        steps = [(n, count_steps(next(iter(layers.values())), n, small)) for n in lengths]
        paths = [(n, *size, measure_path(layer, n, small)) for size, layer in layers.items() for n in lengths]
        measured[kind] = {
            "symbols": symbols.split(),
            "flops": work,
            "flops_exponents": fit_exponents(work),
            "steps": steps,
            "steps_exponent": fit_exponents(steps)[0],
            "paths": paths,
            "path_exponents": fit_exponents(paths),
        }
        if kind == "convolutional":
            logarithms, longest = zip(*((math.log(n, k), length) for n, k, length in paths), strict=True)
            measured[kind]["path_per_log_k_n"] = linear_regression(logarithms, longest).slope
    return measured


def count_flops(layer: Layer, length: int, d: int) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.randn(length, d).split(1), 0)
    return counter.get_total_flops()


def count_products(output: Tensor, select: Callable[[Iterable[int]], int]) -> int:
    """Return the number of products on the longest (select=max) or shortest (min) path from an output to a leaf."""
    count: dict[Any, int] = {}
    stack: list[Any] = [output.grad_fn]
    while stack:
        node = stack[-1]
        inputs = [function for function, _ in node.next_functions if function is not None]
        if missing := [function for function in inputs if function not in count]:
            stack += missing
            continue
        stack.pop()
        count[node] = select([count[function] for function in inputs] or [0]) + node.name().startswith(PRODUCTS)
    return count[output.grad_fn]


def count_steps(layer: Layer, length: int, d: int) -> int:
    return count_products(layer(torch.randn(length, d, requires_grad=True).split(1), 0)[-1], max)


def measure_path(layer: Layer, length: int, d: int) -> int:
    """Return the number of products between the first input position and the last output position."""
    positions = (1e-3 * torch.randn(length, d, dtype=torch.float64)).split(1)  # small: tanh must not saturate
    first = positions[0].clone().requires_grad_()
    with forward_ad.dual_level():
        positions, layers = [forward_ad.make_dual(first, torch.ones_like(first)), *positions[1:]], 0
        while (tangent := forward_ad.unpack_dual(positions[-1]).tangent) is None or not tangent.any():
            positions, layers = layer(positions, layers), layers + 1
    return count_products(positions[-1], min)


def write_table1(output: Path) -> str:
    """Write table1.json and table1.png, and return the table in Markdown."""
    torch.manual_seed(1)
    started = time.perf_counter()
    layers = measure_layers(LENGTHS, WIDTHS)
    result = {"layers": layers} | describe_origin("python -m paper table1", [1], time.perf_counter() - started)
    write_result(output / "table1.json", result)
    save_picture(draw_curves(layers), output / "table1.png")
    return format_result(result)


# ---- the table and its plot ----------------------------------------------------------------------------------------


def format_result(result: dict[str, Any]) -> str:
    """Return the table in Markdown. result: the content of table1.json"""
    layers = result["layers"]
    n, _ = layers["recurrent"]["steps"][-1]
    rows = []
    for kind, ours in layers.items():
        paper, symbols = PAPER["table1"][kind], ours["symbols"]
        paths = []
        for length, *extra, path in ours["paths"]:
            if length == n:
                paths.append(f"{path} ({symbols[2]} = {extra[0]})" if extra else str(path))
        growth = format_powers(["n", *symbols[2:]], ours["path_exponents"])
        if "path_per_log_k_n" in ours:
            growth = f"{ours['path_per_log_k_n']:.2f} log_k n"
        rows.append(
            {
                "layer": kind,
                "operations, paper": paper["operations"],
                "ours, fitted growth": format_powers(symbols, ours["flops_exponents"]),
                "steps, paper": paper["steps"],
                "steps, ours": f"{ours['steps'][-1][1]}; {format_powers(['n'], [ours['steps_exponent']])}",
                "path, paper": paper["path"],
                "path, ours": f"{', '.join(paths)}; {growth}",
            }
        )
    return format_table(rows, dict.fromkeys(("steps, ours", "path, ours"), f"ours at n = {n}; fitted growth"))


def format_powers(symbols: list[str], exponents: list[float]) -> str:
    """Format exponents as `n^2.00 d^1.00`; + 0.0 turns a rounded -0.0 into 0.0."""
    return " ".join(f"{symbol}^{round(power, 2) + 0.0:.2f}" for symbol, power in zip(symbols, exponents, strict=True))


def draw_curves(layers: dict[str, Any]) -> Figure:
    """Draw operations, sequential steps and path lengths against the sentence length."""
    d = max(point[1] for point in layers["recurrent"]["flops"])
    operations, steps, paths = {}, {}, {}
    for kind, ours in layers.items():
        largest = list(ours["flops"][-1][2:-1])  # k or r, if the kind has it
        label = kind + "".join(f", {ours['symbols'][2]} = {value}" for value in largest)
        operations[label] = [(n, count) for n, width, *extra, count in ours["flops"] if width == d and extra == largest]
        steps[label] = ours["steps"]
        paths[label] = [(n, length) for n, *extra, length in ours["paths"] if extra == largest]
    figure, axes = make_panels(3)
    quantities = {f"FLOPs, d = {d}": operations, "sequential steps": steps, "maximum path length": paths}
    for axis, (y, series) in zip(axes, quantities.items(), strict=True):
        plot_curves(axis, series, "sentence length n", y, log_x=True)
        axis.set_yscale("log")
        for number, line in enumerate(axis.lines):
            line.set_linewidth(3.5 - 0.8 * number)  # some curves coincide
        if axis is not axes[0] and (legend := axis.get_legend()):
            legend.remove()
    axes[0].set_ylim(top=1e11)  # room for the legend
    return figure
