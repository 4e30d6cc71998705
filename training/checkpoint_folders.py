"""Checkpoints that survive a kill at any instant: each folder is complete or absent.

    output_dir/checkpoints/step-1500/   model.safetensors, config.json, ..., optimizer.safetensors,
                                        trainer_state.json, and manifest.json with every file's size and sha256
    output_dir/checkpoints/latest       the name of the newest one
    output_dir/checkpoints/best         the name of the one with the lowest validation loss

A checkpoint is renamed to its final name when all files are on disk, the manifest last. Older checkpoints are removed
only after that.

Written    every `save_every` steps, at a new best validation loss, at the end of the run, and on a signal (train.py)
Kept       the newest, the best, and the newest `keep` of those at multiples of `save_every` (`prune`)
Averaged   the newest `average_last` of those at multiples of `save_every`, and the last of the run (`regular`)
Resumed    the newest that matches its manifest (`newest_intact`)
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vaswani_transformer.atomic import atomic_file, atomic_folder
from vaswani_transformer.errors import BrokenFileError, UnavailableError
from vaswani_transformer.model_folder import MANIFEST, file_sha256, read_json_object, verify_manifest, write_json

STATE = "trainer_state.json"


def save_checkpoint(root: Path, step: int, write: Callable[[Path], None], bytes_needed: int = 0) -> None:
    """Create root/step-N from the files that `write(folder)` puts into an empty folder.

    bytes_needed: estimate of the size, compared with the free space beforehand.
    Raises UnavailableError (disk full, read-only); earlier checkpoints are not affected.
    """
    final = root / f"step-{step}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if bytes_needed > shutil.disk_usage(root).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with atomic_folder(final) as folder:
            write(folder)
            write_manifest(folder, [path for path in folder.rglob("*") if path.is_file()], step=step)
        _write_pointer(root / "latest", final.name)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnavailableError(
            f"checkpoint {final} cannot be written: {reason} (about {bytes_needed} bytes needed, "
            f"{shutil.disk_usage(root if root.exists() else root.parent).free} free); the previous one is intact"
        ) from error


def write_manifest(folder: Path, files: Iterable[Path], **about: Any) -> None:
    """Write manifest.json with name, size and sha256 of these files."""
    entries = [
        {"name": path.relative_to(folder).as_posix(), "size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(files)
    ]
    write_json(folder / MANIFEST, {**about, "files": entries})


def mark_best(root: Path, step: int) -> None:
    """Point `best` at the checkpoint of this step."""
    _write_pointer(root / "best", f"step-{step}")


def prune(root: Path, keep: int, every: int) -> None:
    """Remove all checkpoints but the newest, the best, and the newest `keep` whose step is a multiple of `every`.

    Checkpoints that a signal made in between do not displace those that are averaged into the final model.
    """
    kept = {folder.name for folder in regular(root, every)[:keep]} | {_read_pointer(root / "best")}
    for folder in checkpoints(root)[1:]:
        if folder.name not in kept:
            temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")  # never half removed under its final name
            os.replace(folder, temporary)
            shutil.rmtree(temporary, ignore_errors=True)


def checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints in root, newest first."""
    found = [path for path in root.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(found, key=step_of, reverse=True)


def regular(root: Path, every: int, last: int | None = None) -> list[Path]:
    """Return the checkpoints whose step is `last` or a multiple of `every`, newest first."""
    return [f for f in checkpoints(root) if (step := step_of(f)) % every == 0 or step == last]


def regular_of_run(run: Path) -> list[Path]:
    """Return the newest checkpoint of a run and those that its recipe's save_every made, newest first.

    Not the best one if it was saved in between: the run's own average leaves it out, too.
    """
    root = run / "checkpoints"
    recorded = read_json_object(run / "run.json") if (run / "run.json").is_file() else {}
    every = recorded.get("recipe", {}).get("save_every", 1)
    return regular(root, every, last=max(map(step_of, checkpoints(root)), default=None))


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def progress_of(run: Path) -> dict[str, Any]:
    """Return the progress that the newest checkpoint in a run's folder records, or {} if there is none."""
    folders = checkpoints(run / "checkpoints")
    return read_json_object(folders[0] / STATE, "progress").get("progress", {}) if folders else {}


def newest_intact(root: Path, say: Callable[[str], None]) -> Path | None:
    """Return the newest checkpoint that matches its manifest, and point `latest` at it.

    Damaged checkpoints are reported and renamed to *.broken. Raises BrokenFileError if there have been checkpoints and
    all are damaged: training never restarts from step 0 by itself.
    """
    for folder in intact(checkpoints(root), say):
        if _read_pointer(root / "latest") != folder.name:  # killed before it was written, or its folder is damaged
            _write_pointer(root / "latest", folder.name)
        return folder
    if broken := len([*root.glob("step-*.broken")]):
        raise BrokenFileError(f"{root}: all {broken} checkpoints are damaged; start again with --overwrite true")
    if (newest := _read_pointer(root / "latest")) is not None:
        raise BrokenFileError(f"{root}: {newest} is missing; restore it, or start again with --overwrite true")
    return None


def intact(folders: list[Path], say: Callable[[str], None]) -> Iterator[Path]:
    """Yield the checkpoints that match their manifests; report the others and rename them to *.broken."""
    for folder in folders:
        try:
            if not verify_manifest(folder, optimizer=True):
                raise BrokenFileError(f"{folder / MANIFEST} is missing or lists no files")
        except BrokenFileError as error:
            aside = folder.with_name(f"{folder.name}.broken")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(folder, aside)
            say(f"{error}; falling back to the previous checkpoint ({folder.name} is now {aside.name})")
        else:
            yield folder


def _write_pointer(pointer: Path, name: str) -> None:
    with atomic_file(pointer) as file:
        file.write(f"{name}\n".encode())


def _read_pointer(pointer: Path) -> str | None:
    return pointer.read_text().strip() if pointer.is_file() else None
