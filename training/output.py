"""output_dir: whose it is, and whether the run that it holds is this one."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import remove_stale
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from . import checkpoint
from .corpus import parallel_texts
from .model import model_config
from .recipe import Recipe
from .report import Reporter

# Folders of an earlier run that a new one removes.
TAKEN_AWAY = ("checkpoints", "corpus", TARGET_TOKENIZER)


def claim_output(recipe: Recipe, output: Path, reporter: Reporter) -> None:
    """Make output_dir this run's: new, or one of the same recipe. Never someone else's folder."""
    record = output / "run.json"
    foreign = [path.name for path in output.iterdir() if not path.name.startswith((".lock", "run.json.tmp-"))]
    if record.exists():
        before = recipe.identity() if recipe.overwrite else identity_in(record)
        if recipe.overwrite or (before != recipe.identity() and not has_begun(output)):
            refuse_to_remove(recipe, output)
            remove_run(output)
        else:
            refuse_changes(before, recipe.identity(), recipe, reporter)
    elif foreign:
        raise InputError(
            f"output_dir {output} is not empty ({', '.join(sorted(foreign)[:3])}) and no run of ours; name another"
        )
    try:
        command = shlex.join(["python", "-m", "training", *sys.argv[1:]])
        checkpoint.write_json(
            record, {"command": command, "identity": recipe.identity(), "recipe": recipe.model_dump()}
        )
        for folder in (output, output / "checkpoints"):
            checkpoint.remove_unfinished(folder)
        for path in (output / "corpus").glob(".*.tmp"):  # .KEY.PID.tmp; another run may share the cache
            remove_stale(path.with_name(path.name.split(".")[1]))
    except OSError as error:
        raise UnavailableError(f"output_dir {output} cannot be written: {error.strerror}") from error


def identity_in(record: Path) -> dict[str, Any]:
    try:
        return checkpoint.read_json(record)["identity"]
    except KeyError as error:
        raise BrokenFileError(f"{record} is not the record of a run") from error


def has_begun(output: Path) -> bool:
    """Whether a run has saved anything there that another one could lose."""
    return (output / "model.safetensors").exists() or any((output / "checkpoints").glob("*"))


def refuse_to_remove(recipe: Recipe, output: Path) -> None:
    """Raises InputError for what could not be trained afterwards: before, and not after, the old run is gone."""
    for field in ("initial_weights", "tokenizer"):
        value = getattr(recipe, field)
        if value is not None and Path(value).resolve().is_relative_to(output.resolve()):
            raise InputError(
                f"{field} {value} lies in output_dir {output}, which a new run overwrites; name another output_dir"
            )
    for name in TAKEN_AWAY:
        if recipe.data is not None and Path(recipe.data).resolve().is_relative_to((output / name).resolve()):
            raise InputError(f"data {recipe.data} lies in {output / name}, which a new run removes; move it")
    for names in (recipe.train, recipe.validation, recipe.test):
        parallel_texts(recipe, names)
    model_config(recipe, recipe.vocab_size if recipe.initial_weights is None else 0)


def remove_run(output: Path) -> None:
    for name in TAKEN_AWAY:
        shutil.rmtree(output / name, ignore_errors=True)
    for name in (
        "run.json",
        "metrics.jsonl",
        "curve.png",
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        (output / name).unlink(missing_ok=True)


def refuse_changes(before: dict[str, Any], now: dict[str, Any], recipe: Recipe, reporter: Reporter) -> None:
    """Raises InputError naming what is not as it was, unless the recipe allows it."""
    changes = [
        f"{key} was {before.get(key)}, is {now.get(key)}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if not changes:
        return
    if not recipe.allow_changed:
        raise InputError(
            f"output_dir {recipe.output_dir} holds a run that differs: {'; '.join(changes)}. Restore it, name another "
            f"output_dir, go on nevertheless with --allow_changed true, or start again with --overwrite true"
        )
    reporter.say(f"going on with a changed run: {'; '.join(changes)}")
