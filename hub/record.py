"""What is known about how a model came to be, and how good it is: nothing here is guessed.

From the model's folder: run.json (command and recipe) and metrics.jsonl of a model that was trained here, or
conversion.json and CONVERSION.md of one that was converted. From training/results/*.csv: its scores.
"""

import csv
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.lines import existing_file
from vaswani_transformer.model_folder import read_json_object

# Beside the programs, in a clone and in the wheel.
SHIPPED_RESULTS = Path(__file__).resolve().parents[1] / "training" / "results"
WHERE = ("--data", "--output-dir", "--output_dir", "--cache")
NEEDED_COLUMNS = ("date", "commit", "command", "hardware", "hours", "parameters", "data", "test", "sentences", "beam",
                  "alpha", "bleu", "bleu_signature", "bleu_lowercase", "bleu_lowercase_signature", "chrf",
                  "chrf_signature")  # fmt: skip


@dataclass(frozen=True)
class Record:
    """run, conversion: the files' content, {} where there is none.  metrics: the lines of metrics.jsonl.
    progress: `step`, `tokens`, `seconds` of the whole training.  environment: versions and device that trained.
    notes: what a conversion says about the model.  results: the rows of results files that are this model's.
    """

    run: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    progress: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    conversion: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    results: list[dict[str, str]] = field(default_factory=list)

    @property
    def recipe(self) -> dict[str, Any]:
        return self.run.get("recipe", {})

    @property
    def scores(self) -> dict[str, str]:
        """The columns of results that say something of this model, and their names: case is not in small letters."""
        return {"bleu_lowercase": "BLEU"} if self.recipe.get("lowercase") else {"bleu": "BLEU", "chrf": "chrF"}

    @property
    def languages(self) -> tuple[str, str] | None:
        """The codes of source and target language, as the recipe or the converted checkpoint names them."""
        options = self.conversion.get("options", {})
        pairs = (
            (self.recipe.get("source_language"), self.recipe.get("target_language")),
            (options.get("source_lang"), options.get("target_lang")),
        )
        return next(((str(a), str(b)) for a, b in pairs if a and b), None)


def read_record(folder: Path, parameters: int, results: Sequence[Path]) -> Record:
    """parameters: of the model, by which its rows are known.  results: CSV files beside the shipped ones.

    Raises InputError for a results file that is none, or has no row of this model; BrokenFileError for the others.
    """
    run = read_json_object(folder / "run.json") if (folder / "run.json").is_file() else {}
    metrics = read_metrics(folder / "metrics.jsonl") if (folder / "metrics.jsonl").is_file() else []
    progress, environment = read_state(folder, metrics)
    converted, notes = folder / "conversion.json", folder / "CONVERSION.md"
    record = Record(
        run=run,
        metrics=metrics,
        progress=progress,
        environment=environment,
        conversion=read_json_object(converted) if converted.is_file() else {},
        # Below its heading.
        notes=notes.read_text(encoding="utf-8").splitlines()[2:] if notes.is_file() else [],
    )
    rows = []
    if run.get("command") and progress:  # without both a row may be another model's
        shipped = sorted(SHIPPED_RESULTS.glob("*.csv")) if SHIPPED_RESULTS.is_dir() else []
        rows += [row for path in shipped for row in rows_of_the_model(path, record, parameters)]
    for path in results:
        found = rows_of_the_model(path, record, parameters)
        if not found:
            raise InputError(
                f"--results {path} has no row of this model: none has its {parameters:,} parameters"
                + (", its command, steps and hours" if run else " and no training command")
            )
        rows += found
    distinct = [row for number, row in enumerate(rows) if row not in rows[:number]]
    return replace(record, results=distinct)


def read_state(folder: Path, metrics: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Progress and environment: of the last checkpoint, or else of the last line of the log that counts them."""
    found = folder.glob("checkpoints/step-*/trainer_state.json")
    states = {int(path.parent.name[5:]): path for path in found if path.parent.name[5:].isdecimal()}
    if states:
        state = read_json_object(states[max(states)])
        return state.get("progress", {}), state.get("environment", {})
    return next((line for line in reversed(metrics) if {"step", "seconds", "tokens"} <= line.keys()), {}), {}


def rows_of_the_model(path: Path, record: Record, parameters: int) -> list[dict[str, str]]:
    """The rows of a results file whose command, parameters, steps and hours are those of the model's own log."""
    with existing_file(path).open(newline="", encoding="utf-8") as file:
        try:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in NEEDED_COLUMNS if name not in (reader.fieldnames or ())]
            rows = [{key: value for key, value in row.items() if key} for row in reader if not missing]
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not a table of results ({error})") from None
    if missing:
        raise InputError(f"{path} is not a table of results: it has no column {', '.join(missing)}")
    progress = record.progress
    expected = {"parameters": str(parameters)}
    if progress:
        # Two runs of one command differ here.
        expected |= {"steps": str(progress["step"]), "hours": hours(progress["seconds"])}
        if "cpu_seconds" in progress:
            expected["cpu_hours"] = hours(progress["cpu_seconds"])
    ours = what_it_computes(str(record.run.get("command", "")))
    same = [row for row in rows if what_it_computes(row["command"] or "") == ours]
    return [row for row in same if all(row.get(key) == value for key, value in expected.items())]


def what_it_computes(command: str) -> list[str]:
    """The words of a training command without those that say where things are: published rows leave them out."""
    words, left = split_words(command), []
    while words:
        word = words.pop(0)
        if word in WHERE and words:
            words.pop(0)
        elif word.partition("=")[0] not in WHERE:
            left.append(word)
    return left


def split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an unclosed quote, where somebody has edited the file
        return command.split()


def hours(seconds: float) -> str:
    """As the results files write them."""
    return str(round(seconds / 3600, 3))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl. Raises BrokenFileError naming the line; a last one that is cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    read = []
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise BrokenFileError(f"{path} line {number} is not JSON ({error})") from None
        read.append(fields)
    return read


def without_places(command: str) -> str:
    """A command without this machine's folders: of an absolute path its last name alone is anybody's business."""
    return shlex.join(map(last_name, split_words(command)))


def last_name(word: str) -> str:
    option, equals, value = word.partition("=")
    if equals and option.startswith("--"):
        return f"{option}={last_name(value)}"
    return Path(word).name if Path(word).is_absolute() or word.startswith("~") else word


def public(value: Any) -> Any:
    """A recipe's value without this machine's folders."""
    if isinstance(value, str):
        return last_name(value)
    if isinstance(value, dict):
        return {key: public(entry) for key, entry in value.items()}
    return [public(entry) for entry in value] if isinstance(value, Iterable) else value
