"""The types of a claim: its inputs, its measurement and its verdict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from training.evaluate import EvaluationText

Measurements = dict[str, Any]  # what the result file stores; the docstring of each measure_x says what that is


@dataclass(frozen=True)
class Setting:
    """The inputs of the measurements: a trained run with its checkpoints, a development set, seeds."""

    run: Path
    development: EvaluationText
    seeds: list[int]
    output: Path
    seconds: float  # per speed measurement
    jobs: int  # models to train in parallel
    options: Mapping[str, str | None]  # keys of the recipe multi30k_table3, for the claims that train models
    command: str  # reproduces the measurements with `--only NAME`

    @property
    def runs(self) -> Path:
        """The folder of the models that the claims train."""
        return self.output / "claims" / "runs"


class Judgement(NamedTuple):
    """The verdict on a claim, with the measurements and the figure that support it."""

    verdict: str
    evidence: str  # a clause with the measurements on which the verdict rests
    figure: Figure
    table: str = ""  # in Markdown


class Claim(NamedTuple):
    """A statement, the function that measures it and the function that judges the measurements."""

    text: str
    measure: Callable[[Setting], Measurements]
    judge: Callable[[Measurements], Judgement]
    uses_seeds: bool = True  # False: does not depend on --seeds, so the result file names none
    in_paper: bool = True  # False: what people say about Transformers
