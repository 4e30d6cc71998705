"""Files and folders that appear under their names only when they are complete and on disk.

Until then they are called `.NAME.PID.tmp` and lie beside the final name. An error or an interrupt removes them; what a
killed process leaves behind is removed by the next process that writes the same name.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vaswani_transformer.errors import disk_error

UMASK = os.umask(0o077)  # it can only be read by being set
os.umask(UMASK)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A new folder that is renamed to `path` (which must not exist, or be empty) when the block succeeds."""
    path = Path(os.path.realpath(path))  # a link to an empty folder stays a link
    with temporary_path(path) as folder:
        folder.mkdir()
        yield folder
        for item in [*folder.rglob("*"), folder]:
            if item.suffix == ".safetensors":  # safetensors makes its files readable by their owner alone
                item.chmod(0o666 & ~UMASK)
            sync(item)
        os.replace(folder, path)
        sync(path.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary stream to a new file that is renamed to `path` when the block succeeds; permissions are kept."""
    with temporary_path(path) as file:
        with file.open("wb") as stream:
            if path.is_file():
                file.chmod(stat.S_IMODE(path.stat().st_mode))
            yield stream
        sync(file)
        os.replace(file, path)
        sync(path.absolute().parent)


@contextmanager
def temporary_path(path: Path) -> Iterator[Path]:
    """The temporary name of `path`. Errors of the disk name `path`, which the user knows."""
    remove_stale(path)
    temporary = temporary_name(path)
    try:
        yield temporary
    except Exception as error:
        if (number := disk_error(error, temporary)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    finally:
        remove(temporary)


def temporary_name(path: Path) -> Path:
    path = path.absolute()
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_stale(path: Path) -> None:
    """Remove the temporary files and folders of `path` whose processes are dead, or were this one."""
    path = path.absolute()
    if not path.parent.is_dir():
        return
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d{{1,9}})\.tmp")
    for name in os.listdir(path.parent):
        match = pattern.fullmatch(name)
        if match and (int(match[1]) == os.getpid() or not is_running(int(match[1]))):
            remove(path.parent / name)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on disk: a power cut then cannot lose them."""
    if os.name == "nt" and path.is_dir():  # Windows does not open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
