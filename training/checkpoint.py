"""Checkpoints that survive anything: safetensors and JSON, whole or not there at all.

    output_dir/checkpoints/step-1500/   model.safetensors, config.json, ..., optimizer.safetensors,
                                        trainer_state.json, and manifest.json with every file's size and sha256
    output_dir/checkpoints/latest       the name of the newest one;  best: of the one with the lowest validation loss

A checkpoint is written under another name, flushed to the disk, and renamed when its manifest is complete; older ones
go only then. A process killed at any instant leaves the previous checkpoint as it was.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vaswani_transformer.atomic import UMASK, remove
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError

from . import fsdp

MANIFEST = "manifest.json"
STATE = "trainer_state.json"
OPTIMIZER = "optimizer.safetensors"

Log = Callable[[str], None]


def lock_run(output_dir: Path) -> TextIO:
    """Hold output_dir for this process as long as the returned file is open; the system frees it at any death.

    Raises InputError naming the process that holds it, UnavailableError where the folder cannot be written.
    """
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        file = (output_dir / ".lock").open("a+")
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"output_dir {output_dir} is not a folder; name another") from error
    except OSError as error:
        raise UnavailableError(f"output_dir {output_dir} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise InputError(
            f"output_dir {output_dir} is in use by {holder}; wait for it, stop it, or name another"
        ) from error
    try:
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
    except OSError as error:
        raise UnavailableError(f"output_dir {output_dir} cannot be written: {error.strerror}") from error
    return file


def write_json(path: Path, value: Any) -> None:
    """The value as JSON under `path`, at once or not at all, and on the disk when this returns."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def save_checkpoint(root: Path, step: int, write: Callable[[Path], None], bytes_needed: int = 0) -> Path:
    """Make root/step-N of the files that `write(folder)` puts into an empty folder.

    bytes_needed: about how much it will write, compared with the free space beforehand.
    Raises UnavailableError (disk full, read-only); whatever was there before is untouched then.
    """
    final = root / f"step-{step}"
    temporary = root / f"step-{step}.tmp-{os.getpid()}"
    before: Path | None = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(root).free
        if bytes_needed > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        for path in files:
            _sync_file(path)
        entries = [
            {"name": p.relative_to(temporary).as_posix(), "size": p.stat().st_size, "sha256": _sha256(p)} for p in files
        ]
        write_json(temporary / MANIFEST, {"step": step, "files": entries})
        if final.exists():
            # The same step again, with its validation. A kill here leaves two whole folders, neither by that name:
            # remove_unfinished gives it to one of them.
            before = root / f"{final.name}.tmp-before-{os.getpid()}"
            os.replace(final, before)
        os.replace(temporary, final)
        _sync_folder(root)
        _point(root / "latest", final.name)
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        if before is not None and before.exists():
            remove(before) if final.exists() else os.replace(before, final)
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise UnavailableError(
            f"checkpoint {final} cannot be written: {reason} (about {bytes_needed} bytes needed, "
            f"{shutil.disk_usage(root if root.exists() else root.parent).free} free); the previous one is intact"
        ) from error
    return final


class Background:
    """A thread that writes one thing at a time while training goes on.

    What it writes must be a copy that training does not change. A process that ends by itself, by an error too, waits
    for it; a killed one leaves what a kill inside save_checkpoint leaves.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._writing: Future[None] | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write as soon as what was begun before is done. Raises what went wrong with that."""
        self.wait()
        self._writing = self._thread.submit(write)

    def raise_if_failed(self) -> None:
        """Raises what went wrong since; returns at once while it is still writing."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Return when nothing is being written any more. Raises what went wrong."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def copies(tensors: Mapping[str, torch.Tensor], keep: bool = True) -> dict[str, torch.Tensor]:
    """The tensors as they are now, whole, in this process's own memory: what is written while training goes on.

    keep=False: nothing, on a process that only has to give the others its parts (FSDP)
    """
    kept = {}
    for name, tensor in tensors.items():
        whole = fsdp.whole(tensor.detach())  # One at a time: a GPU need not hold all of them.
        if keep:
            kept[name] = whole.to("cpu", copy=True).contiguous()
    return kept


def not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The name of a tensor with a NaN or an infinity in it; None where there is none."""
    for name, tensor in tensors.items():
        if tensor.numel() and not all(math.isfinite(end) for end in tensor.aminmax()):
            return name
    return None


def mark_best(root: Path, step: int) -> None:
    _point(root / "best", f"step-{step}")


def prune(root: Path, keep: int, every: int) -> None:
    """Remove all but the newest checkpoint, the best, and the newest `keep` of those that lie on a multiple of `every`.

    What a signal made in between does not push out those whose average is the model.
    """
    kept = {folder.name for folder in regular(root, every)[:keep]} | {_pointed(root / "best")}
    for folder in checkpoints(root)[1:]:
        if folder.name not in kept:
            # Renamed first: a checkpoint is never half there under its own name.
            doomed = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
            os.replace(folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def regular(root: Path, every: int, last: int | None = None) -> list[Path]:
    """The checkpoints on a multiple of `every`, and that of step `last`, newest first."""
    return [f for f in checkpoints(root) if (step := step_of(f)) % every == 0 or step == last]


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def checkpoints(root: Path) -> list[Path]:
    """The checkpoints in root, newest first."""
    found = [path for path in root.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return sorted(found, key=step_of, reverse=True)


def remove_unfinished(root: Path) -> None:
    """Remove what processes that were killed have left behind. Only for who holds the run's lock.

    A checkpoint that is whole and whose step has no other gets its name instead.
    """
    for path in sorted(root.glob("*.tmp-*")):
        final = path.with_name(path.name.partition(".tmp-")[0])
        if re.fullmatch(r"step-\d+", final.name) and not final.exists() and _is_whole(path):
            os.replace(path, final)
        else:
            remove(path)


def newest_whole(root: Path, log: Log) -> Path | None:
    """The newest checkpoint whose files are all as its manifest says; names the others and moves them aside.

    Raises BrokenFileError if there have been checkpoints and none is whole: training does not begin anew unasked.
    """
    for folder in whole_ones(checkpoints(root), log):
        return folder
    if broken := len([*root.glob("step-*.broken")]):
        raise BrokenFileError(f"{root}: none of {broken} checkpoints is whole; start again with --overwrite true")
    if (newest := _pointed(root / "latest")) is not None:
        raise BrokenFileError(f"{root}: {newest} is gone; put it back, or start again with --overwrite true")
    return None


def whole_ones(folders: list[Path], log: Log) -> Iterator[Path]:
    """Those of the checkpoints whose files are all as their manifests say; names the others and moves them aside."""
    for folder in folders:
        try:
            verify(folder)
        except BrokenFileError as error:
            aside = folder.with_name(f"{folder.name}.broken")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(folder, aside)
            log(f"{error}; falling back to the checkpoint before it ({folder.name} is now {aside.name})")
        else:
            yield folder


def _is_whole(folder: Path) -> bool:
    try:
        verify(folder)
    except BrokenFileError:
        return False
    return True


def verify(folder: Path) -> None:
    """Raises BrokenFileError naming the first file that is missing, cut off or altered."""
    manifest = read_json(folder / MANIFEST)
    try:
        entries = [(entry["name"], entry["size"], entry["sha256"]) for entry in manifest["files"]]
    except (TypeError, KeyError) as error:
        raise BrokenFileError(f"{folder / MANIFEST} is not a manifest") from error
    for name, size, sha256 in entries:
        path = folder / name
        if not path.is_file():
            raise BrokenFileError(f"{path} is missing")
        if path.stat().st_size != size:
            raise BrokenFileError(f"{path} has {path.stat().st_size} bytes, not {size}")
        if _sha256(path) != sha256:
            raise BrokenFileError(f"{path} has been altered (its sha256 is not the manifest's)")


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state by names of parameters: "exp_avg/model.shared.weight", ..."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{key}/{names[parameter]}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    path.chmod(0o666 & ~UMASK)  # safetensors makes its files readable by their owner alone


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file. Raises BrokenFileError naming it."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise BrokenFileError(f"{path} is not a whole safetensors file ({error})") from error


def restore_model(model: torch.nn.Module, folder: Path) -> None:
    """Put a checkpoint's weights into the model; every name must be there, no other may be."""
    tensors = load_tensors(folder / "model.safetensors")
    parameters = dict(model.named_parameters())  # Tied ones once, as in the file.
    _same_names(parameters, tensors, folder / "model.safetensors")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                raise BrokenFileError(
                    f"{folder / 'model.safetensors'}: {name} is {tuple(tensors[name].shape)}, the model's is "
                    f"{tuple(parameter.shape)}"
                )
            parameter.copy_(fsdp.like(tensors[name], parameter))


def restore_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Put a checkpoint's moments and step counts into the optimizer."""
    tensors = load_tensors(folder / OPTIMIZER)
    if not tensors:
        return  # Adam had not stepped yet: every gradient until then was infinite, as fp16's first ones may be.
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parameters}
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        if name not in states:
            raise BrokenFileError(f"{folder / OPTIMIZER}: {full_name} belongs to no parameter of the model")
        # Adam's step count as well: the optimizer is fused on a GPU.
        states[name][key] = fsdp.like(tensor, parameters[name])
    _same_names(
        {f"exp_avg/{name}": None for name in parameters},
        {k: 0 for k in tensors if k.startswith("exp_avg/")},
        folder / OPTIMIZER,
    )
    for name, parameter in parameters.items():
        optimizer.state[parameter] = states[name]


def _same_names(expected: Iterable[str], found: Iterable[str], path: Path) -> None:
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or extra:
        parts = [f"{what} {', '.join(names[:5])}" for what, names in (("lacks", missing), ("has", extra)) if names]
        raise BrokenFileError(f"{path} does not fit the model: it {' and '.join(parts)}")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises BrokenFileError naming the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BrokenFileError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise BrokenFileError(f"{path} is not whole ({error})") from error


def _point(pointer: Path, name: str) -> None:
    temporary = pointer.with_name(f"{pointer.name}.tmp-{os.getpid()}")
    temporary.write_text(name + "\n")
    _sync_file(temporary)
    os.replace(temporary, pointer)
    _sync_folder(pointer.parent)


def _pointed(pointer: Path) -> str | None:
    return pointer.read_text().strip() if pointer.is_file() else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
