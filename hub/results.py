"""The rows of results files that `evaluate --record` wrote about a model."""

import csv
import shlex
from pathlib import Path
from typing import Any

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import existing_file

COLUMNS = ("date", "commit", "command", "hardware", "hours", "parameters", "data", "test", "sentences", "beam",
           "alpha", "bleu", "bleu_signature", "bleu_lowercase", "bleu_lowercase_signature", "chrf",
           "chrf_signature")  # fmt: skip
# Options of a training command that name folders; published rows leave them out.
FOLDER_OPTIONS = ("--data", "--output-dir", "--output_dir", "--cache")


def read_results(path: Path) -> list[dict[str, str]]:
    """Read a results file. Raises InputError if it is not one."""
    with existing_file(path).open(newline="", encoding="utf-8") as file:
        try:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            rows = [{key: value or "" for key, value in row.items() if key} for row in reader if not missing]
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not a results file ({error})") from None
    if missing:
        raise InputError(f"{path} is not a results file: it has no column {', '.join(missing)}")
    return rows


def rows_of_run(
    rows: list[dict[str, str]], command: str, parameters: int, progress: dict[str, Any]
) -> list[dict[str, str]]:
    """Return the rows whose command, parameters, steps and hours are those of a run."""
    expected = {"parameters": str(parameters)}
    if progress:  # two runs of the same command differ in these
        expected |= {"steps": str(progress["step"]), "hours": hours(progress["seconds"])}
        if "cpu_seconds" in progress:
            expected["cpu_hours"] = hours(progress["cpu_seconds"])
    words = words_without_folders(command)
    same = [row for row in rows if words_without_folders(row["command"]) == words]
    return [row for row in same if all(row.get(key) == value for key, value in expected.items())]


def words_without_folders(command: str) -> list[str]:
    """Return the words of a training command that decide what it computes."""
    words, kept = iter(command_words(command)), []
    for word in words:
        if word in FOLDER_OPTIONS:
            next(words, None)
        elif word.partition("=")[0] not in FOLDER_OPTIONS:
            kept.append(word)
    return kept


def command_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an unclosed quote in a file that was edited by hand
        return command.split()


def hours(seconds: float) -> str:
    """Format a duration as the results files do."""
    return str(round(seconds / 3600, 3))
