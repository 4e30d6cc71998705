"""The harness of all benchmarks: the command, clocks, interleaved rounds, peak rates and rows of results."""

import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer

from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly

Result = TypeVar("Result")
Row = dict[str, Any]  # column -> value


def run(benchmark: Callable[..., None]) -> None:
    """Run a benchmark's function as a command: its parameters are the options, its docstring is the help."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(benchmark)
    exit_cleanly(app, name=program_name())


def program_name() -> str:
    return f"python -m benchmarks.{Path(sys.argv[0]).stem}"


def command() -> str:
    """Return the command that is running, without the folders of its paths."""
    words = [re.sub("[^=]*/", "", word.rstrip("/")) for word in sys.argv[1:]]  # onnx=a/b -> onnx=b
    return " ".join([program_name(), *words])


# ---- clocks and rounds -------------------------------------------------------------------------------------------


def clock(name: str, device: str = "cpu") -> Callable[[], float]:
    """Return a clock in seconds. On a GPU, it waits for all kernels first."""
    if name == "cpu" and device != "cpu":
        raise InputError("--clock cpu is not supported on a GPU; use --clock wall")
    seconds = time.process_time if name == "cpu" else time.perf_counter

    def synchronised() -> float:
        torch.accelerator.synchronize()
        return seconds()

    return seconds if device == "cpu" else synchronised


def timed(task: Callable[[], Result], now: Callable[[], float]) -> tuple[float, Result]:
    """Return the seconds that the task took, and its result."""
    begun = now()
    result = task()
    return now() - begun, result


def take_turns(
    systems: Mapping[str, Callable[[], Result]], rounds: int, between: Callable[[], object] = lambda: None
) -> dict[str, list[Result]]:
    """Run each system once per round; return the results of all rounds by system.

    Background load affects all systems alike, because they alternate. The order is reversed every other round.
    between: runs before the first and after each round
    """
    results: dict[str, list[Result]] = {name: [] for name in systems}
    order = list(systems)
    between()
    for _ in range(rounds):
        for name in order:
            results[name].append(systems[name]())
        order.reverse()
        between()
    return results


def race(
    systems: Mapping[str, Callable[[], Result]],
    rounds: int,
    now: Callable[[], float],
    between: Callable[[], object] = lambda: None,
) -> dict[str, tuple[float, Result]]:
    """Time the systems in turns; return the seconds and the result of each system's fastest round."""
    turns = take_turns({name: partial(timed, task, now) for name, task in systems.items()}, rounds, between)
    return {name: min(measured, key=itemgetter(0)) for name, measured in turns.items()}


def speedups(name: str, peers: Mapping[str, str | None], best: Mapping[str, tuple[float, Any]]) -> Row:
    """Return columns with a system's speed relative to its peers, "" without a peer.

    peers: column suffix -> name of the peer system.  best: what `race` returned
    """
    return {
        f"speedup_vs_{suffix}": "" if peer is None else f"{best[peer][0] / best[name][0]:.2f}"
        for suffix, peer in peers.items()
    }


class PeakRates:
    """The highest rates, in operations per second, at which this machine ran reference tasks, by name."""

    def __init__(self, now: Callable[[], float]):
        self.now = now
        self.best: dict[str, float] = {}

    def measure(self, name: str, task: Callable[[], object], operations: float) -> None:
        task()  # warm up
        attempts = [operations / timed(task, self.now)[0] for _ in range(5)]
        self.best[name] = max(*attempts, self.best.get(name, 0.0))

    def fraction(self, name: str, rate: float) -> float | str:
        """Return a rate as a fraction of a peak.

        "" above 1, which means that the peak was measured on a busy machine, and "" without a peak of that name.
        """
        peak = self.best.get(name, 0.0)
        return round(rate / peak, 3) if rate <= peak else ""


# ---- rows of results ---------------------------------------------------------------------------------------------


def report(rows: list[Row], path: Path | None) -> None:
    """Print the rows, and append them to a CSV file if one is given; a new file begins with the columns.

    In the file, each row begins with the metadata below. Raises InputError if the file has other columns.
    """
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        typer.echo("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    if path is None:
        return
    # Not imported above: training sets environment variables of OpenMP and oneDNN, and decode measures without them.
    from training.result_row import append_rows, commit, hardware

    metadata = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "command": command(),
        "hardware": hardware(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    append_rows(path, [*metadata, *rows[0]], [metadata | row for row in rows])
