"""Claim output_dir for a run, and check that it holds no other run."""

import os
import shlex
import shutil
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from vaswani_transformer.atomic import lock, remove_folder, remove_stale
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.files import CONVERSION_NOTES, check_inside, read_json_object, write_json
from vaswani_transformer.hub_files import find_folder
from vaswani_transformer.model_folder import CONVERSION_RECORD, MANIFEST, ORIGINALS, SETTINGS_FILES, WEIGHTS
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.tokenizer_files import TOKENIZER_FILES
from vaswani_transformer.training_run import METRICS, RECORD, read_progress

from .model import model_config
from .parallel_text import open_training_and_validation
from .recipe import Recipe, RunSettings, Settings, differences

FOLDERS = ("checkpoints", "corpus", TARGET_TOKENIZER, ORIGINALS)
FILES = (RECORD, METRICS, "curve.png", MANIFEST, WEIGHTS, CONVERSION_NOTES, CONVERSION_RECORD, *SETTINGS_FILES)


def open_in_place(path: str | Path, flags: int) -> int:
    """Open a file to change it in place; like os.open, but only for regular files. Raises BrokenFileError.

    A received folder may hold a link, or a named pipe, where a program expects its own file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if os.path.islink(path):
            raise BrokenFileError(f"{path} is a symbolic link, which is not written through; remove it") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BrokenFileError(f"{path} is not a regular file; remove it")
    return descriptor


def lock_run(output_dir: Path, say: Callable[[str], None]) -> BinaryIO:
    """Lock output_dir for this process until the returned file is closed; the system releases it on any exit.

    Raises InputError naming the process holding the lock, UnavailableError if the folder cannot be written.
    """

    def open_or_create(path: str, flags: int) -> int:
        return open_in_place(path, flags | os.O_CREAT)

    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        while True:
            file = open(output_dir / ".lock", "r+b", buffering=0, opener=open_or_create)
            try:
                locked = lock(file.fileno())
            except BlockingIOError as error:
                holder = file.read().decode(errors="replace").strip() or "another process"
                file.close()
                raise InputError(
                    f"output_dir {output_dir} is in use by {holder}; wait for it, stop it, or choose another folder"
                ) from error
            names = os.fstat(file.fileno()).st_nlink
            if names == 1:
                break
            if names > 1:  # a hard link, such as that of a backup, keeps its content
                (output_dir / ".lock").unlink()
            file.close()
        if not locked:
            say(f"warning: {output_dir} is on a file system without locks; do not start a second run in this folder")
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"output_dir {output_dir} is not a folder; choose another") from error
    except OSError as error:
        raise UnavailableError(f"output_dir {output_dir} cannot be written: {error.strerror}") from error
    return file


def describe_run(recipe: Recipe) -> dict[str, Any]:
    """Return the content of run.json: the command and the recipe, and those of its keys that must not change.

    A run that begins with the weights of another run also records how long that one was, for the model's card.
    """
    command = shlex.join(["vaswani-transformer", "train", *sys.argv[1:]])
    record = {"command": command, "fixed_keys": recipe.fixed_keys(), "recipe": recipe.model_dump()}
    if recipe.initial_weights and (earlier := read_progress(Path(recipe.initial_weights))):
        record["earlier_training"] = {name: earlier[name] for name in ("step", "tokens") if name in earlier}
    return record


def claim_output(output: Path, record: dict[str, Any], settings: Settings, say: Callable[[str], None]) -> None:
    """Prepare `output`, which must be empty or hold a run of the same recipe.

    A run of another recipe is replaced if it has no checkpoint yet, and any run with `overwrite`. The folder of another
    program that writes a run.json is refused. A run with checkpoints keeps its record until they are accepted.
    """
    path = output / RECORD
    folders = [output / name for name in FOLDERS]
    for place in (*folders, *(path for folder in folders[:2] for path in folder.glob("*"))):
        if place.is_symlink():
            raise BrokenFileError(
                f"{place} is a symbolic link; a run writes and removes files in its own folder only. Put the folder "
                "there, or make output_dir itself a link"
            )
    for folder in (output, output / "checkpoints", output / "corpus"):
        for unfinished in folder.glob(".*.*.tmp"):  # of processes that were killed
            remove_stale(unfinished.with_name(unfinished.name[1:].rsplit(".", 2)[0]))
    begun = (output / "model.safetensors").exists() or any((output / "checkpoints").glob("*"))
    if not path.exists():
        if names := sorted(p.name for p in output.iterdir() if not p.name.startswith((".lock", f".{RECORD}."))):
            raise InputError(
                f"output_dir {output} is not empty ({', '.join(names[:3])}) and holds no training run; choose another"
            )
    else:
        before = read_json_object(path, "fixed_keys").get("fixed_keys")
        if before is None:
            raise BrokenFileError(f"{path} is not the record of a training run; choose another output_dir")
        if begun and not settings.run.overwrite:
            check_unchanged(before, record["fixed_keys"], settings.run, say)
        elif before != record["fixed_keys"] or settings.run.overwrite:
            remove_run(output, settings)
            begun = False
    if not begun:
        for name in TOKENIZER_FILES:  # a start that was interrupted may have trained it on another text
            (output / name).unlink(missing_ok=True)
        write_json(path, record)
        if settings.model.initial_weights is not None and settings.tokenizer.tokenizer is None:  # that of the weights
            copy_conversion(find_folder(settings.model.initial_weights), output)


def copy_conversion(folder: Path, output: Path) -> None:
    """Copy the records of the conversion that wrote a model folder, if one did: its languages, and the way back.

    Converting a fine-tuned model back to its toolkit needs them.
    """
    for path in (folder / CONVERSION_NOTES, folder / CONVERSION_RECORD, *(folder / ORIGINALS).rglob("*")):
        check_inside(path, folder)  # the content that a link leads to would be copied
    for name in (CONVERSION_NOTES, CONVERSION_RECORD):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, output / name)
    if (folder / ORIGINALS).is_dir():
        shutil.copytree(folder / ORIGINALS, output / ORIGINALS, dirs_exist_ok=True)


def remove_run(output: Path, settings: Settings) -> None:
    """Remove the files of a run, and no others. Raises InputError beforehand if the new run's recipe has a problem."""
    weights, tokenizer = settings.model.initial_weights, settings.tokenizer
    for key, value in (("initial_weights", weights), ("tokenizer", tokenizer.tokenizer)):
        if value is not None and Path(value).resolve().is_relative_to(output.resolve()):
            raise InputError(
                f"{key} {value} is inside {output}, which a new run removes; move it, or choose another output_dir"
            )
    open_training_and_validation(settings.text)
    model_config(settings.model, tokenizer.vocab_size if weights is None else 0)
    for name in FOLDERS:
        remove_folder(output / name, "ask its owner to remove it, or choose another output_dir")
    for path in (*(output / name for name in FILES), *output.glob("*_vaswani_transformer.py")):
        path.unlink(missing_ok=True)


def check_unchanged(
    before: dict[str, Any], now: dict[str, Any], settings: RunSettings, say: Callable[[str], None]
) -> None:
    """Raise InputError listing the differences, unless the settings allow them."""
    changes = "; ".join(differences(before, now))
    if changes and not settings.allow_changed:
        raise InputError(
            f"output_dir {settings.output_dir} holds a run that differs: {changes}. Restore it, choose another "
            "output_dir, resume anyway with --allow_changed true, or start again with --overwrite true"
        )
    if changes:
        say(f"resuming a changed run: {changes}")
