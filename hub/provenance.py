"""Reads the training record and evaluation results of a model from files.

The folder of a model trained here has run.json (command and recipe) and metrics.jsonl; that of a converted one has
conversion.json and CONVERSION.md. Scores are rows of results files.
"""

import csv
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import check_file
from vaswani_transformer.model_folder import CONVERSION_NOTES, read_json_object
from vaswani_transformer.training_run import (
    METRICS,
    RESULT_COLUMNS,
    format_hours,
    read_metrics,
    read_progress,
    read_run,
    read_state,
)

# Beside the programs, in a clone and in the wheel.
SHIPPED_RESULTS = Path(__file__).resolve().parents[1] / "training" / "results"
# Options of a training command that name folders. They do not affect the result, and published rows leave them out.
FOLDER_OPTIONS = ("--data", "--output-dir", "--output_dir", "--cache")


class Provenance:
    """The training record and evaluation results of a model.

    run, conversion: the content of run.json and conversion.json, {} if there is no such file
    metrics: the lines of metrics.jsonl.  progress: `step`, `tokens` and `seconds` of the training
    environment: versions and device of the training.  notes: CONVERSION.md below its heading
    results: the rows of results files that belong to this model
    stated: values of `push` options, which take precedence over recorded ones
    """

    def __init__(self, folder: Path, parameters: int, results: Sequence[Path], stated: dict[str, str | None]):
        """Read the record from the folder of a model and from results files.

        parameters: the number that its rows must have.  results: CSV files in addition to the shipped ones
        Raises InputError for a results file without a row of this model; BrokenFileError for the files of the folder.
        """
        self.run = read_run(folder)
        conversion, log = folder / "conversion.json", folder / METRICS
        self.conversion = read_json_object(conversion, "options") if conversion.is_file() else {}
        self.metrics = read_metrics(log) if log.is_file() else []
        self.progress, self.environment = read_progress(folder), read_state(folder).get("environment", {})
        notes = folder / CONVERSION_NOTES
        self.notes = notes.read_text(encoding="utf-8").splitlines()[2:] if notes.is_file() else []
        self.results = self.matching_rows(parameters, results)
        self.stated = stated

    def matching_rows(self, parameters: int, results: Sequence[Path]) -> list[dict[str, str]]:
        """Return the rows of this model in the shipped results files and in `results`, each of which must have one."""
        command, rows = str(self.run.get("command", "")), []
        # Without a command and its progress, a row may belong to another model.
        shipped = sorted(SHIPPED_RESULTS.glob("*.csv")) if command and self.progress else []
        for path in [*shipped, *results]:
            found = select_rows_of_run(path, command, parameters, self.progress)
            if not found and path in results:
                wanted = f"{parameters:,} parameters"
                wanted += ", its command, steps and hours" if self.run else " and no command"
                raise InputError(f"--results {path}: no row matches this model ({wanted})")
            rows += found
        return [row for n, row in enumerate(rows) if row not in rows[:n]]

    @property
    def recipe(self) -> dict[str, Any]:
        return self.run.get("recipe", {})

    @property
    def scores(self) -> dict[str, str]:
        """The score columns and their names. Models trained on lowercased text report lowercased BLEU."""
        return {"bleu_lowercase": "BLEU"} if self.recipe.get("lowercase") else {"bleu": "BLEU", "chrf": "chrF"}

    @property
    def languages(self) -> tuple[str, str] | None:
        """The codes of source and target language: stated, from the recipe, or from the converted checkpoint."""
        options = self.conversion.get("options", {})
        source, target = (
            self.stated.get(f"{side}_language") or self.recipe.get(f"{side}_language") or options.get(f"{side}_lang")
            for side in ("source", "target")
        )
        return (str(source), str(target)) if source and target else None

    @property
    def dataset(self) -> str | None:
        """The training dataset on the Hub; None if the recipe names a local one."""
        name = str(self.stated.get("dataset") or self.recipe.get("dataset") or "")
        return name if re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name) else None

    @property
    def corpus(self) -> str | None:
        """The name of the training text, without its folder."""
        name = self.dataset or self.recipe.get("dataset") or self.recipe.get("data")
        return last_component(str(name)) if name else None

    def missing(self) -> list[str]:
        """Return the options of `push` that would supply missing information."""
        # `initial_weights` may be a local folder, so it does not name the base model.
        known = {
            "--source-language": self.languages,
            "--target-language": self.languages,
            "--dataset": self.corpus,
            "--base-model": self.stated.get("base_model") or not self.recipe.get("initial_weights"),
            "--license": self.stated.get("license"),
            "--results": self.results,
        }
        return [option for option, value in known.items() if not value]


# ---- rows of results files, which `evaluate --record` wrote ------------------------------------------------------


def select_rows_of_run(path: Path, command: str, parameters: int, progress: dict[str, Any]) -> list[dict[str, str]]:
    """Return the rows of a results file whose command, parameters, steps and hours are those of a run."""
    expected = {"parameters": str(parameters)}
    if progress:  # two runs of the same command differ in these
        expected |= {"steps": str(progress["step"]), "hours": format_hours(progress["seconds"])}
        if "cpu_seconds" in progress:
            expected["cpu_hours"] = format_hours(progress["cpu_seconds"])
    same = [row for row in read_results(path) if all(row.get(key) == value for key, value in expected.items())]
    return [row for row in same if drop_folders(row["command"]) == drop_folders(command)]


def read_results(path: Path) -> list[dict[str, str]]:
    """Read a results file. Raises InputError if it is not one."""
    with check_file(path).open(newline="", encoding="utf-8") as file:
        try:
            reader = csv.DictReader(file, strict=True)
            if missing := [name for name in RESULT_COLUMNS if name not in (reader.fieldnames or ())]:
                raise InputError(f"{path} is not a results file: it lacks the column {', '.join(missing)}")
            return [{key: value or "" for key, value in row.items() if key} for row in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not a results file ({error})") from None


def drop_folders(command: str) -> list[str]:
    """Return the words of a training command that affect its result.

    Older runs and rows record it as `python -m training`.
    """
    words, kept = iter(split_command(command.replace("python -m training", "vaswani-transformer train", 1))), []
    for word in words:
        if word in FOLDER_OPTIONS:
            next(words, None)
        elif word.partition("=")[0] not in FOLDER_OPTIONS:
            kept.append(word)
    return kept


def split_command(command: str) -> list[str]:
    """Return the words of a command; run.json and results files may have been edited."""
    try:
        return shlex.split(command)
    except ValueError:  # an unclosed quotation mark
        return command.split()


# ---- without local folders ---------------------------------------------------------------------------------------


def public_command(command: str) -> str:
    """Return a command with only the last component of each absolute path."""
    return shlex.join(map(last_component, split_command(command)))


def public_recipe(value: Any) -> Any:
    """Return the recipe in run.json, or a value of it, with only the last component of each absolute path."""
    if isinstance(value, str):
        return last_component(value)
    if isinstance(value, dict):
        return {key: public_recipe(entry) for key, entry in value.items()}
    return [public_recipe(entry) for entry in value] if isinstance(value, list) else value


def last_component(word: str) -> str:
    """Return the last component of an absolute path, also in --option=PATH; other words as they are."""
    option, equals, value = word.partition("=")
    if equals and option.startswith("--"):
        return f"{option}={last_component(value)}"
    return Path(word).name if Path(word).is_absolute() or word.startswith("~") else word
