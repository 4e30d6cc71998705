"""The record of a training run: run.json, metrics.jsonl, its progress, its curve, its results.

training/ writes these files (metrics.jsonl in report.py); everything else reads them with this module.
"""

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BrokenFileError, InputError
from .files import read_json_object
from .model_folder import MANIFEST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORD, METRICS, STATE = "run.json", "metrics.jsonl", "trainer_state.json"
# The columns of training/results/*.csv, in their order.
RESULT_COLUMNS = (
    "date", "commit", "command", "hardware", "hours", "cpu_hours", "steps", "parameters", "data", "test", "sentences",
    "beam", "alpha", "bleu", "bleu_signature", "bleu_lowercase", "bleu_lowercase_signature", "bleu_tokenised",
    "bleu_compound_split", "chrf", "chrf_signature", "chrf_plus_plus", "exact_match",
    "weights_sha256",
)  # fmt: skip
# The types of the entries that are read of a record; each may be missing or null.
RUN_TYPES = {"command": str, "recipe": dict, "fixed_keys": dict, "earlier_training": dict}
PROGRESS_TYPES = {"step": int, "tokens": int, "seconds": float, "cpu_seconds": float}
ENVIRONMENT_TYPES = {"torch": str, "transformers": str, "mixed_precision": str, "device": str}
TYPE_NAMES = {
    str: "a string", bool: "true or false", dict: "an object", int: "an integer of 0 or more",
    float: "a number of 0 or more",
}  # fmt: skip
LARGEST_NUMBER = 10**18
POINTERS = ("latest", "best")  # files in checkpoints/
# Name in metrics.jsonl: label in the figure
CURVES = {
    "loss": "training, smoothed",
    "validation_loss": "validation",
    "validation_bleu": "BLEU of the validation text",
}


def read_run(run: Path) -> dict[str, Any]:
    """Read run.json: the command and the recipe of a run; {} if there is no such file. Raises BrokenFileError."""
    if not (run / RECORD).is_file():
        return {}
    record = check_types(run / RECORD, read_json_object(run / RECORD, "recipe", "fixed_keys"), RUN_TYPES)
    check_types(run / RECORD, record.get("earlier_training") or {}, PROGRESS_TYPES)
    return record


def check_types(
    place: object, fields: dict[str, Any], types: Mapping[str, type], required: bool = False
) -> dict[str, Any]:
    """Return the fields of a record. Raises BrokenFileError naming one that is not of its type.

    place: where the record is, for the error
    types: the type by field; int and float stand for numbers between 0 and LARGEST_NUMBER
    required: no field may be missing or null
    """
    for name, kind in types.items():
        value: Any = fields.get(name)
        if value is None and not required:
            continue
        if kind in (int, float):
            fits = isinstance(value, int | float) and type(value) in (int, kind) and 0 <= value <= LARGEST_NUMBER
        else:
            fits = isinstance(value, kind)
        if not fits:
            found = reprlib.repr(value) if name in fields else "missing"
            raise BrokenFileError(f"{place}: {name} is {found}; it must be {TYPE_NAMES[kind]}")
    return fields


def list_checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints in root, newest first."""
    found = [path for path in root.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(found, key=parse_step, reverse=True)


def parse_step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def read_pointer(pointer: Path) -> str | None:
    """Return the name of the checkpoint that `latest` or `best` beside it points to, None if there is no such file."""
    return pointer.read_text(errors="replace").strip() if pointer.is_file() else None


def follow_pointer(path: Path) -> Path:
    """Return the checkpoint that `checkpoints/latest` or `checkpoints/best` of a run names, or the path itself."""
    if path.name not in POINTERS or path.parent.name != "checkpoints":
        return path
    named = [folder for folder in list_checkpoints(path.parent) if folder.name == read_pointer(path)]
    return named[0] if named else path


def read_training(model: Path) -> dict[str, dict[str, Any]]:
    """Return the "progress" and the "environment" of the training that ended with a run's model, from its manifest.

    Either is {} if the manifest does not have it, as in a checkpoint. Raises BrokenFileError.
    """
    path = model / MANIFEST
    manifest = read_json_object(path, "progress", "environment") if path.is_file() else {}
    progress, environment = manifest.get("progress", {}), manifest.get("environment", {})
    check_types(path, progress, PROGRESS_TYPES, required=bool(progress))
    return {"progress": progress, "environment": check_types(path, environment, ENVIRONMENT_TYPES)}


def read_progress(model: Path) -> dict[str, Any]:
    """Return `step`, `tokens`, `seconds` and `cpu_seconds` of the training of a run's model, {} if it has no record."""
    return read_training(model)["progress"]


def format_hours(seconds: float) -> str:
    """Format a duration as the results files do."""
    return str(round(seconds / 3600, 3))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the records of metrics.jsonl, except an incomplete last line: a killed run may leave one, without a newline.

    Raises InputError if there is no such file; BrokenFileError naming a line that is not a JSON object.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give the output folder of a training run") from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise TypeError("it must be an object")
        except (ValueError, TypeError, RecursionError) as error:
            if number == len(lines):  # empty after a final newline, else incomplete
                break
            raise BrokenFileError(f"{path} line {number} is not a record of training ({error!r})") from error
        records.append(check_types(f"{path} line {number}", record, {"step": int}, required=True))
    return records


def read_curves(metrics: Path) -> dict[str, dict[int, float]]:
    """Read the curves of a run from its metrics.jsonl: {"loss": {step: value}, ...} with the names of `CURVES`.

    The last record counts for a step that was repeated after an interruption.
    """
    curves: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    for number, record in enumerate(read_metrics(metrics), start=1):
        check_types(f"{metrics} line {number}", record, dict.fromkeys(CURVES, float))
        for name in CURVES:
            if record.get(name) is not None:  # null for a loss that was not finite
                curves[name][record["step"]] = record[name]
    return curves


def curve_figure(curves: dict[str, dict[int, float]]) -> "Figure":
    """Draw the losses of a run, in nats per target token, and BLEU if it was measured, against the step."""
    from .pictures import new_figure

    has_bleu = bool(curves["validation_bleu"])
    if not any(curves.values()):
        raise InputError("the run has logged no loss yet; draw its curve later")
    figure = new_figure(figsize=(9, 6 if has_bleu else 4), layout="constrained")
    axes = figure.subplots(2 if has_bleu else 1, sharex=True, squeeze=False)[:, 0]
    for name in ("loss", "validation_loss"):
        if curves[name]:
            few = {"marker": "o"} if len(curves[name]) < 40 else {}
            axes[0].plot(*zip(*sorted(curves[name].items()), strict=True), label=CURVES[name], markersize=3, **few)
    axes[0].set_ylabel("loss, nats a token")
    axes[0].legend()
    if has_bleu:
        points = sorted(curves["validation_bleu"].items())
        axes[1].plot(*zip(*points, strict=True), marker="o", markersize=3, color="C2")
        axes[1].set_ylabel(CURVES["validation_bleu"])
    for axis in axes:
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("step")
    return figure
