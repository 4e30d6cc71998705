"""Plots of the tables and claims."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.pictures import RESOLUTION

from .verdicts import Interval


def make_panels(count: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with `count` plots side by side."""
    figure = Figure(figsize=(7 if count == 1 else 5 * count, 4), layout="constrained", dpi=RESOLUTION)
    return figure, figure.subplots(1, count, squeeze=False)[0]


def save_picture(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        figure.savefig(file, format="png")


def plot_curves(
    axis: Axes, series: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, log_x: bool = False
) -> None:
    """Draw a line through the points (x, y) of each label."""
    for label, points in series.items():
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    label_axes(axis, x, y)
    if log_x:
        set_log_x(axis, {point[0] for points in series.values() for point in points})


def plot_means(
    axis: Axes,
    xs: Sequence[float] | Sequence[str],
    series: Mapping[str, Sequence[Sequence[float]]],
    x: str,
    y: str,
    legend: str | None = None,
) -> None:
    """Draw means over seeds. series: {label: [[value for each x] for each seed]}"""
    for label, seeds in series.items():
        means = [fmean(values) for values in zip(*seeds, strict=True)]
        axis.plot(xs, means, marker="o", label=label)
    label_axes(axis, x, y, legend)


def label_axes(axis: Axes, x: str, y: str, legend: str | None = None) -> None:
    axis.set(xlabel=x, ylabel=y)
    axis.grid(alpha=0.3)
    axis.legend(title=legend, fontsize=8)


def plot_intervals(axis: Axes, values: Mapping[str, Interval], y: str, zero: bool = False) -> None:
    """Draw each mean with its interval. zero: draw a line at zero, for differences"""
    means, halves = zip(*values.values(), strict=True)
    axis.errorbar(list(values), means, yerr=[half or 0 for half in halves], fmt="o", capsize=4)
    axis.set(ylabel=y)
    axis.margins(x=0.2)
    axis.grid(alpha=0.3)
    if zero:
        axis.axhline(0, color="grey", linewidth=1)


def set_log_x(axis: Axes, values: set[float]) -> None:
    """Make the x axis logarithmic, with ticks at the measured values, written as plain numbers."""
    axis.set_xscale("log")
    axis.set_xticks(sorted(values), [f"{value:,g}" for value in sorted(values)])
    axis.minorticks_off()


def set_log_y(axis: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers as its labels."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.minorticks_off()
