"""Rows of a CSV file in `results/`, and the command that made them."""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def append(path: Path, columns: Iterable[str], rows: list[dict[str, Any]]) -> None:
    """Append rows; a new file begins with the columns."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        if new:
            writer.writeheader()
        writer.writerows(rows)


def command(benchmark: str) -> str:
    """What was typed, with the last part alone of every path."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return " ".join([f"python -m benchmarks.{benchmark}", *words])
