"""Table 2: the paper's rows as quoted, and ours from the results of the package with their training cost.

FLOPs are given twice: counted (products of the model times steps), and by the paper's formula, training time times
sustained FLOP/s, for which this machine's rate of large float32 products stands.
"""

import csv
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vaswani_transformer.errors import InputError

from ..__main__ import parse_options
from ..cost import product_rate
from ..dry_run import estimate
from ..recipe import load_recipe, shipped_recipes
from ..result_row import hardware
from .results import PAPER, markdown, origin, write_table

RESULTS = Path(__file__).parent.parent / "results" / "multi30k.csv"


def table2(output: Path, command: str, results: Path, where: Mapping[str, str]) -> None:
    """Write table2.json and table2.md. where: options that say where a recipe's text is."""
    started = time.perf_counter()
    try:
        with results.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise InputError(f"--results {results}: {error.strerror}") from error
    rate = product_rate(torch.device("cpu"), torch.float32, 2)
    plans: dict[str, float] = {}
    ours = [our_row(row, rate, plans, where) for row in rows]
    about = {"quoted": PAPER["table2"], "sustained_flop_per_second": rate, "rows": ours}
    about |= origin(command, [1], time.perf_counter() - started)
    write_table(output, "table2", about, as_markdown(ours))


def our_row(row: dict[str, str], rate: float, plans: dict[str, float], where: Mapping[str, str]) -> dict[str, Any]:
    """Return the scores of a row of results and its training FLOPs; counted ones only for recipes of the package."""
    options = parse_options([word for word in shlex.split(row["command"])[3:]])
    name = str(options.pop("config"))
    if name in shipped_recipes() and row["command"] not in plans:
        recipe = load_recipe(name, {**options, **where})
        plans[row["command"]] = estimate(recipe, seconds=0)["flop_per_step"]
    per_step = plans.get(row["command"])
    return {
        "model": name.removesuffix(".yaml"),
        "changes": shlex.join(f"--{key}={value}" for key, value in options.items() if key != "output-dir"),
        "test": row["test"],
        "beam": int(row["beam"]),
        "alpha": float(row["alpha"]),
        **{key: float(row[key]) for key in ("bleu", "bleu_compound_split", "bleu_lowercase", "cpu_hours")},
        "bleu_signature": row["bleu_signature"],
        "parameters": int(row["parameters"]),
        "hardware": row["hardware"],
        "flops_counted": None if per_step is None else per_step * int(row["steps"]),
        # The rate is this machine's.
        "flops_by_formula": 3600 * float(row["cpu_hours"]) * rate if row["hardware"] == hardware() else None,
    }


def as_markdown(ours: list[dict[str, Any]]) -> str:
    quoted = [
        [
            name,
            *(str(row.get(f"en-{to}", "")) for to in ("de", "fr")),
            *(scientific(row.get(f"en-{to} flops")) for to in ("de", "fr")),
        ]
        for name, row in PAPER["table2"].items()
    ]
    head = "model (quoted from the paper)|BLEU en-de|BLEU en-fr|FLOPs en-de|FLOPs en-fr"
    lines = [
        [
            row["model"], changes_of(row), f"{row['beam']}, {row['alpha']}",
            *(f"{row[key]:.2f}" for key in ("bleu", "bleu_compound_split", "bleu_lowercase")),
            f"{row['parameters'] / 1e6:.2f} M", f"{row['cpu_hours']:.2f}",
            scientific(row["flops_counted"]), scientific(row["flops_by_formula"]),
        ]
        for row in ours
    ]  # fmt: skip
    ours_head = (
        "recipe (ours, Multi30k)|changes|beam, alpha|sacreBLEU|compounds split|sacreBLEU, lower-cased|parameters"
    )
    ours_head += "|CPU hours|FLOPs, counted|FLOPs, time × rate"
    return markdown(head.split("|"), quoted) + "\n" + markdown(ours_head.split("|"), lines)


def scientific(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def changes_of(row: dict[str, Any]) -> str:
    """Return the options of a training that are not about its files."""
    options = (word.removeprefix("--").split("=", 1) for word in shlex.split(row["changes"]))
    return ", ".join(f"{key} {value}" for key, value in options if key not in ("data", "output_dir", "allow_changed"))
