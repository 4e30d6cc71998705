"""A row of training/results/*.csv: model, data, command, hardware and scores."""

import csv
import io
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from vaswani_transformer import __version__
from vaswani_transformer.atomic import append_whole
from vaswani_transformer.errors import InputError, UnavailableError, name_in_errors
from vaswani_transformer.model_folder import hash_weights, verify_manifest, weight_files
from vaswani_transformer.training_run import RESULT_COLUMNS, format_hours, read_progress, read_run

from .evaluate import EvaluationText

SCORES = ("bleu", "bleu_lowercase", "bleu_tokenised", "bleu_compound_split", "chrf", "chrf_plus_plus", "exact_match")


def append_row(
    path: Path, model: Path, test: EvaluationText, result: dict[str, Any], device: torch.device, weights: str
) -> None:
    """Append a row to a results file, and one for each kind of sentence; training/results/README.md has the columns.

    result: the scores, with the beam size and alpha that they were measured with
    device: the device of the model.  weights: `hash_weights` from before the model was loaded
    Raises InputError if the weights in the folder have changed since, as at the end of a training run.
    """
    if hash_weights(model) != weights:
        raise InputError(f"--record {path}: the weights in {model} changed during the evaluation; evaluate them again")
    is_of_run = verify_manifest(model)  # else run.json may describe weights that others have replaced
    progress = read_progress(model) if is_of_run else {}
    values: dict[str, Any] = {
        **result,
        "date": date.today().isoformat(),
        "commit": commit(),
        "command": read_run(model).get("command", "") if is_of_run else "",
        "hardware": hardware(device),
        "hours": format_hours(progress["seconds"]) if "seconds" in progress else "",
        "cpu_hours": format_hours(progress["cpu_seconds"]) if "cpu_seconds" in progress else "",
        "steps": progress.get("step", ""),
        "parameters": parameters(model),
        "data": test.data,
        "test": test.name,
        "weights_sha256": weights,
    }
    # A kind of sentence has a row of its own, which repeats what it was measured with but not the other scores.
    others = {name: None for name in SCORES} | {name: None for name in values if name.endswith("_signature")}
    others["bleu_signature"] = values["bleu_signature"]
    by_kind = result.get("by_kind", {})
    rows = [values] + [values | others | part | {"test": f"{test.name}, {kind}"} for kind, part in by_kind.items()]
    for row in rows:
        row |= {name: round(row[name], 2) for name in SCORES if row[name] is not None}
    append_rows(path, RESULT_COLUMNS, [{name: row.get(name) for name in RESULT_COLUMNS} for row in rows])


def append_rows(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to a CSV file, all or none; a new file begins with the columns.

    Raises InputError if the file has other columns.
    """
    check_columns(path, columns)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    try:
        with path.open("ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                writer.writeheader()
            elif os.pread(file.fileno(), 1, size - 1) != b"\n":  # an editor has left it out: the rows would be one
                text.write(writer.writer.dialect.lineterminator)
            writer.writerows(rows)
            append_whole(file, text.getvalue().encode())
    except OSError as error:
        raise UnavailableError(f"--record {path} cannot be written: {error.strerror}") from error


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raise InputError unless `path` is a CSV file with these columns, or can become one."""
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise InputError(f"--record {path}: give the name of a file in an existing folder")
    if not path.exists():
        return
    try:
        with path.open("r+", newline="", encoding="utf-8", errors="replace") as file:
            header = file.readline(10_000)  # a foreign file may be a single long line
    except OSError as error:
        raise UnavailableError(f"--record {path} cannot be written: {error.strerror}") from error
    if header and next(csv.reader([header])) != list(columns):
        raise InputError(f"--record {path}: its columns are not {','.join(columns)}; choose a new file")


def parameters(model: Path) -> int:
    total = 0
    for path in weight_files(model):
        with name_in_errors(path), safe_open(path, framework="pt") as file:
            total += sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118
    return total


def commit() -> str:
    """Return the git revision of the clone, with + if it has changes; of an installed package, the version."""
    if __package__ != "training":  # it may be installed inside a clone of another project
        return __version__
    command = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return __version__


def hardware(device: torch.device | None = None) -> str:
    """Return the GPUs of this machine, or its CPU if it has none. With a device, only the hardware that it names."""
    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        count = torch.cuda.device_count() if device is None else 1
        return f"{count} x {torch.cuda.get_device_name(device)}"
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return name  # not Linux
    return f"{os.cpu_count()} cores of {name}"
