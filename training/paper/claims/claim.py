"""A claim about the paper's model: what it is measured on, and what follows from the measurements."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ...evaluation_text import EvaluationText

Measurements = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """The inputs of the measurements: a trained run with its checkpoints, a development set, seeds."""

    run: Path
    development: EvaluationText
    seeds: list[int]
    output: Path
    seconds: float  # to measure one speed
    jobs: int  # trainings at a time
    options: Mapping[str, str | None]  # keys of the recipe multi30k_table3, for the claims that train models


class Finding(NamedTuple):
    """The verdict on a claim, with the measurements and the figure that support it."""

    verdict: str
    evidence: str  # a clause with the measurements on which the verdict rests
    figure: Figure


class Claim(NamedTuple):
    text: str
    measure: Callable[[Setting], Measurements]
    judge: Callable[[Measurements], Finding]
