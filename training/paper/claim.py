"""A claim about the paper's model: what it is measured on, what follows from the numbers, and how it is drawn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vaswani_transformer.pictures import RESOLUTION, figure_class

from ..test_sets import TestSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Setting:
    """The inputs of the measurements: a trained run with its checkpoints, a development set, seeds, row files."""

    run: Path
    development: TestSet
    seeds: list[int]
    output: Path
    seconds: float  # to measure one speed
    jobs: int  # trainings at a time
    options: Mapping[str, str | None]  # of training, for the claims that train models


Numbers = dict[str, Any]


class Finding(NamedTuple):
    """The verdict on a claim, with the numbers and the figure that support it."""

    verdict: str
    number: str  # a clause with the numbers on which the verdict rests
    figure: "Figure"


class Claim(NamedTuple):
    text: str
    measure: Callable[[Setting], Numbers]
    judge: Callable[[Numbers], Finding]


# ---- drawing -------------------------------------------------------------------------------------------------------


def panels(count: int = 1) -> tuple["Figure", Sequence["Axes"]]:
    figure = figure_class()(figsize=(7 if count == 1 else 5 * count, 4), layout="constrained", dpi=RESOLUTION)
    return figure, figure.subplots(1, count, squeeze=False)[0]


def curves(
    axis: "Axes", series: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, log_x: bool = False
) -> None:
    for label, points in series.items():
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    axis.set(xlabel=x, ylabel=y)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    if log_x:
        measured_ticks(axis, {point[0] for points in series.values() for point in points})


def measured_ticks(axis: "Axes", values: set[float]) -> None:
    """Put the ticks of a logarithmic x axis at the measured values, as plain numbers."""
    axis.set_xscale("log")
    axis.set_xticks(sorted(values), [f"{value:,g}" for value in sorted(values)])
    axis.minorticks_off()


def plain_y(axis: "Axes") -> None:
    """Make the y axis logarithmic, with plain numbers as its labels."""
    from matplotlib.ticker import LogLocator

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.minorticks_off()


def intervals(axis: "Axes", values: Mapping[str, tuple[float, float | None]], y: str, zero: bool = False) -> None:
    """Draw a point for each mean, with its interval if it has one. zero: draw a line there, for differences."""
    means, halves = zip(*values.values(), strict=True)
    axis.errorbar(list(values), means, yerr=[half or 0 for half in halves], fmt="o", capsize=4)
    axis.set(ylabel=y)
    axis.margins(x=0.2)
    axis.grid(alpha=0.3)
    if zero:
        axis.axhline(0, color="grey", linewidth=1)
