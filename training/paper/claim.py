"""What a claim is measured on, and what measuring it gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaswani_transformer.pictures import RESOLUTION, figure_class

from ..test_sets import TestSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Setting:
    """What the claims are measured on: a trained run with its checkpoints, a development set, seeds, row files."""

    run: Path
    development: TestSet
    seeds: list[int]
    output: Path
    seconds: float  # to measure one speed
    options: Mapping[str, str | None]  # of training, for the claims that train models


Result = tuple[dict[str, Any], "Figure | None"]


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, log: tuple[str, str] = ("log", "log")
) -> "Figure":
    figure = figure_class()(figsize=(7, 4), layout="constrained", dpi=RESOLUTION)
    axis = figure.subplots()
    for label, points in series.items():
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    axis.set(xlabel=x, ylabel=y, xscale=log[0], yscale=log[1])
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return figure


def intervals(values: Mapping[str, tuple[float, float | None]], y: str, x: str = "") -> "Figure":
    """Draw a point for each mean, with the half width of its interval if it has one."""
    figure = figure_class()(figsize=(7, 4), layout="constrained", dpi=RESOLUTION)
    axis = figure.subplots()
    means, halves = zip(*values.values(), strict=True)
    axis.errorbar(list(values), means, yerr=[half or 0 for half in halves], fmt="o", capsize=4)
    axis.set(xlabel=x, ylabel=y)
    axis.margins(x=0.2)
    axis.grid(alpha=0.3)
    return figure
