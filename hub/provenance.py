"""Reads the training record and evaluation results of a model from files.

The folder of a model trained here has run.json (command and recipe) and metrics.jsonl; that of a converted one has
conversion.json and CONVERSION.md. Scores are rows of results files. The folder may be somebody else's: every field that
the card reads has the type that is checked here, and no local folder is named.
"""

import csv
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.files import CONVERSION_NOTES, read_json_object
from vaswani_transformer.languages import read_languages
from vaswani_transformer.lines import check_file, read_lines
from vaswani_transformer.model_folder import CONVERSION_RECORD, verify_manifest
from vaswani_transformer.training_run import (
    METRICS,
    RECORD,
    RESULT_COLUMNS,
    check_types,
    read_curves,
    read_metrics,
    read_run,
    read_training,
)

REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)  # the name of one on the Hub
# What options of `push` may be: the card would leave out another dataset or language.
LANGUAGE = r"[a-z]{2,3}([_-]\w+)*", "a language code, such as en"
STATED = {
    "source_language": LANGUAGE,
    "target_language": LANGUAGE,
    "dataset": (REPOSITORY.pattern, "a name on the Hub, such as owner/name"),
    "license": (r"[a-z0-9][a-z0-9.+-]*", "a license name of the Hub, such as apache-2.0 or other"),
}
# Beside the programs, in a clone and in the wheel.
SHIPPED_RESULTS = Path(__file__).resolve().parents[1] / "training" / "results"
RECIPE_TYPES = {
    "source_language": str, "target_language": str, "dataset": str, "data": str, "initial_weights": str,
    "lowercase": bool, "max_length": int,
}  # fmt: skip


class Provenance:
    """The training record and evaluation results of a model.

    run, conversion: the content of run.json and conversion.json, {} if there is no such file
    curves: by name, the values by step in metrics.jsonl.  progress: `step`, `tokens` and `seconds` of the training
    environment: versions and device of the training.  notes: CONVERSION.md below its heading
    results: the rows of results files that measured these weights
    stated: values of `push` options, which take precedence over recorded ones
    source, target: the codes of the languages, None if they are unknown
    targets: the languages of the tokens of a model with several, else the target, if it is known
    """

    def __init__(
        self,
        folder: Path,
        weights_sha256: str,
        results: Sequence[Path],
        stated: dict[str, str | None],
        targets: Sequence[str] = (),
    ):
        """Read the record from the folder of a model and from results files.

        weights_sha256: the hash that its rows must have.  results: CSV files in addition to the shipped ones
        targets: the languages of the model's tokens
        Raises InputError for a results file without a row of this model and for a run that goes on; BrokenFileError
        for the files of the folder.
        """
        is_of_run = verify_manifest(folder)  # else run.json may describe weights that others have replaced
        self.run = read_run(folder) if is_of_run else {}
        check_types(folder / RECORD, self.recipe, RECIPE_TYPES)
        train = self.recipe.get("train") or []
        self.splits = [train] if isinstance(train, str) else train
        if not isinstance(self.splits, list) or not all(isinstance(split, str) for split in self.splits):
            raise BrokenFileError(f"{folder / RECORD}: train is {train!r:.80}; it must be a list of strings")
        record, log, notes = folder / CONVERSION_RECORD, folder / METRICS, folder / CONVERSION_NOTES
        self.conversion = read_json_object(record, "options") if record.is_file() else {}
        check_types(record, self.conversion, {"toolkit": str, "file": str})
        check_types(record, self.conversion.get("options", {}), {"source_lang": str, "target_lang": str})
        self.curves = read_curves(log) if is_of_run and log.is_file() else {}
        training = read_training(folder) if is_of_run else {}
        self.progress, self.environment = training.get("progress", {}), training.get("environment", {})
        records = read_metrics(log) if self.curves else []
        steps = [record["step"] for record in records if isinstance(record.get("step"), int)]
        last = steps[-1] if steps else 0  # not the largest: a killed run may have resumed before it
        if last > (step := self.progress.get("step", last)):
            raise InputError(
                f"{folder}: its model is of step {step}, and {METRICS} goes on to step {last}: the run was continued; "
                "push when its training has ended, or push one of its checkpoints"
            )
        self.notes = list(read_lines(notes))[2:] if notes.is_file() else []
        self.results = self.matching_rows(weights_sha256, results)
        for name, (pattern, kind) in STATED.items():
            if (value := stated.get(name)) is not None and not re.fullmatch(pattern, value, re.ASCII):
                raise InputError(f"--{name.replace('_', '-')} {value!r} is not {kind}")
        self.stated = stated
        source, target = map(last_component, read_languages(folder) or ("", ""))
        self.source = stated.get("source_language") or source or None
        self.target = stated.get("target_language") or target or None
        self.targets = list(targets) or ([self.target] if self.target else [])

    def matching_rows(self, weights_sha256: str, results: Sequence[Path]) -> list[dict[str, str]]:
        """Return the rows of these weights in the shipped results files and in `results`, each of which must have one.

        The hash is the only evidence: models of the same size and of the same command have different scores.
        """
        rows = []
        for path in [*sorted(SHIPPED_RESULTS.glob("*.csv")), *results]:
            found = [row for row in read_results(path) if row["weights_sha256"] == weights_sha256]
            if not found and path in results:
                raise InputError(
                    f"--results {path}: no row matches this model (weights_sha256 {weights_sha256[:12]}...); "
                    f"`vaswani-transformer evaluate MODEL --record FILE` records one"
                )
            for row in found:
                check_scores(path, row, self.scores)
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
    def dataset(self) -> str | None:
        """The training dataset on the Hub; None if the recipe names a local one."""
        name = str(self.stated.get("dataset") or self.recipe.get("dataset") or "")
        return name if REPOSITORY.fullmatch(name) else None

    @property
    def base(self) -> str | None:
        """The name of the model that was fine-tuned, if it was one."""
        weights = self.recipe.get("initial_weights")
        return self.stated.get("base_model") or (last_component(weights) if weights else None)

    @property
    def corpus(self) -> str | None:
        """The name of the training text, without its folder."""
        name = self.dataset or self.recipe.get("dataset") or self.recipe.get("data")
        return last_component(str(name)) if name else None

    def missing(self) -> list[str]:
        """Return the options of `push` that would supply missing information."""
        # `initial_weights` and converted checkpoints may be local folders, so they do not name the base model.
        has_base = self.recipe.get("initial_weights") or self.conversion
        known = {
            "--source-language": self.source,
            "--target-language": self.targets,
            "--dataset": self.corpus or (self.conversion and not self.run),
            "--base-model": self.stated.get("base_model") or not has_base,
            "--license": self.stated.get("license"),
            "--results": self.results,
        }
        return [option for option, value in known.items() if not value]


# ---- rows of results files, which `evaluate --record` wrote ------------------------------------------------------


def read_results(path: Path) -> list[dict[str, str]]:
    """Read a results file. Raises InputError if it is not one."""
    with check_file(path).open(newline="", encoding="utf-8-sig") as file:  # Excel adds a byte order mark
        try:
            reader = csv.DictReader(file, strict=True)
            if missing := [name for name in RESULT_COLUMNS if name not in (reader.fieldnames or ())]:
                raise InputError(
                    f"{path} is not a results file of this version: it lacks the column {', '.join(missing)}; "
                    "`evaluate --record` writes a new one"
                )
            return [{key: value or "" for key, value in row.items() if key} for row in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not a results file ({error})") from None


def check_scores(path: Path, row: dict[str, str], columns: Iterable[str]) -> None:
    """Raise InputError naming a score that is not a number between 0 and 100."""
    for column in columns:
        try:
            is_score = 0 <= float(row[column]) <= 100
        except ValueError:
            is_score = False
        if not is_score:
            raise InputError(f"{path}: a row of this model has {column} {row[column]!r}; it must be a number up to 100")


# ---- without local folders ---------------------------------------------------------------------------------------

# Options and keys whose value may be the name of a repository, owner/name.
REPOSITORIES = ("dataset",)


def public_command(command: str) -> str:
    """Return a command with only the last component of each path; run.json may have been edited."""
    try:
        words = shlex.split(command)
    except ValueError:  # an unclosed quotation mark
        words = command.split()
    public, option = [], ""
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            public.append(option + equals + public_value(value, option))
        else:
            public.append(public_value(word, option))
    return shlex.join(public)


def public_value(word: str, option: str) -> str:
    """Return the value of an option, which may be a list or an object in JSON, without folders."""
    try:
        value = json.loads(word) if word.startswith(("[", "{")) else word
    except (ValueError, RecursionError):
        value = word
    public = public_recipe(value, option.removeprefix("--"))
    return public if isinstance(public, str) else json.dumps(public, ensure_ascii=False)


def public_recipe(value: Any, key: str = "") -> Any:
    """Return the recipe in run.json, or the value of a key, with only the last component of each path."""
    if isinstance(value, str):
        return value if key in REPOSITORIES and REPOSITORY.fullmatch(value) else last_component(value)
    if isinstance(value, dict):
        return {last_component(name): public_recipe(entry, name) for name, entry in value.items()}
    return [public_recipe(entry, key) for entry in value] if isinstance(value, list) else value


def last_component(path: str) -> str:
    """Return the last component of a path, of Windows too; of an address without its user and password."""
    if re.match(r"https?://", path, re.IGNORECASE):
        return re.sub(r"//[^/]*@", "//", path)
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
