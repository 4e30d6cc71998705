"""Table 2: the paper's rows, and our models with their training cost.

FLOPs are given twice: counted (FLOPs per step times steps), and estimated as in the paper (CPU time times the measured
FLOP/s of large matrix products).
"""

import csv
import shlex
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

from training.estimate import estimate
from training.metrics import matmul_flop_rate
from training.recipe import load_recipe, shipped_recipes
from training.recipe_options import parse_options
from training.result_row import hardware
from vaswani_transformer.errors import InputError

from .result_files import PAPER, describe_origin, format_table, write_result

RESULTS = Path(__file__).parents[1] / "training" / "results" / "multi30k.csv"
# Options that change neither the model nor its training.
NOT_A_CHANGE = ("data", "output_dir", "allow_changed")


def write_table2(output: Path, results: Path, data: str) -> str:
    """Write table2.json and return the table in Markdown.

    results: a CSV file of `evaluate --record`;  data: folder of the recipes' text
    """
    started = time.perf_counter()
    try:
        with results.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise InputError(f"--results {results}: {error.strerror}") from error
    # cpu_hours is summed over threads, so the rate is per second of CPU time too.
    rate = matmul_flop_rate(torch.device("cpu"), torch.float32, 2, time.process_time)
    ours = [make_row(row, rate, data) for row in rows]
    result = {"flop_per_cpu_second": rate, "rows": ours}
    result |= describe_origin("python -m paper table2", [1], time.perf_counter() - started)
    write_result(output / "table2.json", result)
    return format_result(result)


def make_row(row: dict[str, str], rate: float, data: str) -> dict[str, Any]:
    """Return the scores of a row of results and its training FLOPs. rate: FLOP per second of CPU time"""
    program, *words = shlex.split(row["command"])
    # Older rows begin with `python -m training`, others with `vaswani-transformer train`.
    options = parse_options(words[2:] if program == "python" else words[1:])
    name = str(options.pop("config"))
    flops = None
    if name in shipped_recipes():
        flops = count_flops_per_step(name, tuple((options | {"data": data}).items())) * int(row["steps"])
    return {
        "model": name.removesuffix(".yaml"),
        "changes": {key: value for key, value in options.items() if key.replace("-", "_") not in NOT_A_CHANGE},
        "test": row["test"],
        "beam": int(row["beam"]),
        "alpha": float(row["alpha"]),
        **{key: float(row[key]) for key in ("bleu", "bleu_compound_split", "bleu_lowercase", "cpu_hours")},
        "bleu_signature": row["bleu_signature"],
        "parameters": int(row["parameters"]),
        "hardware": row["hardware"],
        "flops_counted": flops,
        "flops_estimated": 3600 * float(row["cpu_hours"]) * rate if row["hardware"] == hardware() else None,
    }


@cache  # several rows can be scores of one model
def count_flops_per_step(recipe: str, options: tuple[tuple[str, str | None], ...]) -> float:
    return estimate(load_recipe(recipe, dict(options)), seconds=0)["flop_per_step"]


def format_result(result: dict[str, Any]) -> str:
    """Return the table in Markdown. result: the content of table2.json"""
    quoted = [
        {
            "model (quoted from the paper)": name,
            "BLEU en-de": row.get("en-de", ""),
            "BLEU en-fr": row.get("en-fr", ""),
            "FLOPs en-de": format_scientific(row.get("en-de flops")),
            "FLOPs en-fr": format_scientific(row.get("en-fr flops")),
        }
        for name, row in PAPER["table2"].items()
    ]
    measured = [
        {
            "recipe (ours, Multi30k)": row["model"],
            "changes": ", ".join(f"{key} {value}" for key, value in row["changes"].items()),
            "beam, alpha": f"{row['beam']}, {row['alpha']}",
            "sacreBLEU": f"{row['bleu']:.2f}",
            "compounds split": f"{row['bleu_compound_split']:.2f}",
            "sacreBLEU, lower-cased": f"{row['bleu_lowercase']:.2f}",
            "parameters": f"{row['parameters'] / 1e6:.2f} M",
            "CPU hours": f"{row['cpu_hours']:.2f}",
            "FLOPs, counted": format_scientific(row["flops_counted"]),
            "FLOPs, estimated": format_scientific(row["flops_estimated"]),
        }
        for row in result["rows"]
    ]
    return format_table(quoted) + "\n" + format_table(measured)


def format_scientific(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
