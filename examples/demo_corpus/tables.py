"""Read the tables in data/, tab-separated files whose first line names the columns."""

import csv
from pathlib import Path


def read_table(name: str) -> list[dict[str, str]]:
    with (Path(__file__).parent / "data" / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
