"""Rows of a CSV file in `results/`, and the command that made them."""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vaswani_transformer.errors import InputError


def append(path: Path, columns: Iterable[str], rows: list[dict[str, Any]]) -> None:
    """Append rows; a new file begins with the columns. InputError if an old one has others."""
    new, columns = not path.exists(), list(columns)
    if not new:
        with path.open(newline="", encoding="utf-8") as file:
            if next(csv.reader(file), None) != columns:
                raise InputError(f"--record {path}: its columns are not {','.join(columns)}; name a new file")
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def command(benchmark: str) -> str:
    """What was typed, with the last part alone of every path."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return " ".join([f"python -m benchmarks.{benchmark}", *words])
