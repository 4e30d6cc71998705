"""The paper's numbers, result files, Markdown tables, intervals and verdicts of the tables, figures and claims."""

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.model_folder import write_json

from ..result_row import commit, hardware

PAPER: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))

# 97.5 % quantiles of Student's t by degrees of freedom; above, nearly the normal distribution's 1.96.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
HOLDS, FAILS, UNSURE = "holds", "does not hold here", "not sure"
Interval = tuple[float, float | None]  # a mean and the half width of its interval


def command_line(command: str, options: Mapping[str, object], keys: Mapping[str, str | None] | None = None) -> str:
    """Return the command that makes a result file, without the folders of this machine.

    options: those with the value None are left out, and a path is written as its last part
    keys: of a recipe
    """
    words = ["vaswani-transformer", *command.split()]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", value.name if isinstance(value, Path) else str(value)]
    return shlex.join([*words, *(f"--{key}={value}" for key, value in portable(keys or {}).items())])


def portable(keys: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the keys of a recipe without those that only say where a machine keeps its files."""
    return {key: value for key, value in keys.items() if key not in ("data", "cache")}


def provenance(command: str, seeds: list[int], seconds: float) -> dict[str, Any]:
    """Return the fields that record how a result file was made."""
    return {
        "command": command,
        "date": date.today().isoformat(),
        "commit": commit(),
        "hardware": hardware(),
        "seeds": seeds,
        "seconds": round(seconds, 1),
    }


def write_table(output: Path, name: str, result: dict[str, Any], table: str) -> None:
    """Write NAME.json and NAME.md."""
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / f"{name}.json", result)
    with atomic_file(output / f"{name}.md") as file:
        file.write(table.encode())


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean and the half width of its 95 % interval (Student's t); None for a single value."""
    if len(values) < 2:
        return values[0], None
    quantile = STUDENT.get(len(values) - 1, 2.0)
    return statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


def verdict(difference: Interval, sign: int, margin: float = 0.0) -> str:
    """Return whether a mean difference has this sign, judged by its 95 % interval.

    sign: +1 or -1; 0 if there should be no difference larger than `margin`
    """
    mean, half = difference
    if half is None:
        return UNSURE
    low, high = mean - half, mean + half
    if sign == 0:
        return HOLDS if -margin <= low and high <= margin else FAILS if high < -margin or low > margin else UNSURE
    if sign < 0:
        low, high = -high, -low
    return HOLDS if low > 0 else FAILS if high < 0 else UNSURE


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def plus_minus(interval: Interval, digits: int = 2, signed: bool = False) -> str:
    """Format a mean and its interval, as `5.21 ± 0.10`."""
    mean, half = interval
    return f"{mean:{'+' if signed else ''}.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def with_interval(values: Sequence[float], digits: int = 2, signed: bool = False) -> str:
    """Format the mean of the values and its interval."""
    return plus_minus(mean_interval(values), digits, signed)


def duration(seconds: float) -> str:
    """Write a time as `2 h 28 min`, `15 min 27 s` or `16 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def markdown(rows: Sequence[Mapping[str, object]], headings: Mapping[str, str] | None = None) -> str:
    """Return a Markdown table of rows with the same columns.

    headings: of columns that are not headed by their names
    """
    if not rows:
        return ""
    head = [(headings or {}).get(name, name) for name in rows[0]]
    lines = [head, ["---"] * len(head), *(map(str, row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
