"""Write files and folders so that they appear under their names only when they are complete and on disk.

Until then they are named `.NAME.PID.tmp`, in the same folder. An error, an interrupt or SIGTERM removes them; the
leftovers of a process that a signal killed are removed by the next process that writes the same name.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import FULL_DISK, InputError

unfinished: set[Path] = set()  # the temporary files and folders that this process is writing


def check_new_folder(path: str | Path) -> Path:
    """Return the path of a folder to create. Raises InputError unless it is absent, or empty and replaceable."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; give the name of a new folder")
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} is not empty; give the name of a new folder")
    # atomic_folder renames the finished folder over an empty one: a mount point cannot be replaced, and a shell in the
    # old folder would not see the new one.
    target = Path(os.path.realpath(path))
    if path.is_dir() and (target.is_mount() or target == Path.cwd()):
        state = "a mount point" if target.is_mount() else "the current folder"
        raise InputError(f"{path} is {state}, which cannot be replaced; give the name of a new folder inside it")
    return path


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder that is renamed to `path` (absent or an empty folder) when the block succeeds."""
    path = Path(os.path.realpath(path))  # a symbolic link to an empty folder is kept
    with temporary_path(path) as folder:
        folder.mkdir()
        yield folder
        for item in [*folder.rglob("*"), folder]:
            if item.suffix == ".safetensors":  # safetensors always creates its files with mode 0600
                item.chmod(folder.stat().st_mode & 0o666)  # `mkdir` has applied the umask to the folder
            sync(item)
        os.replace(folder, path)
        sync(path.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary stream to a new file that is renamed to `path` when the block succeeds; permissions are kept."""
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
    """Yield the temporary name of `path`. Disk errors are raised again with `path` as their file name."""
    remove_stale(path)
    path = path.absolute()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.add(temporary)
    try:
        yield temporary
    except Exception as error:
        if (number := disk_error(error, temporary)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    finally:
        remove(temporary)
        unfinished.discard(temporary)


def disk_error(error: BaseException, temporary: Path) -> int | None:
    """Return the errno if writing `temporary` failed or the disk is full, else None."""
    if hasattr(error, "exit_code"):  # a class of errors.py, which has its own message
        return None
    while not isinstance(error, OSError) and isinstance(error.__context__, Exception):
        error = error.__context__  # torch.save raises a RuntimeError on top of the OSError
    if isinstance(error, OSError):
        names = [name for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]  # a copy has two
        if any(Path(os.fsdecode(name)).is_relative_to(temporary) for name in names):
            return error.errno
        return error.errno if not names and error.errno in FULL_DISK else None
    number = re.search(r"\(os error (\d+)\)\W*$", str(error))  # from safetensors and tokenizers, written in Rust
    return int(number[1]) if number and int(number[1]) in FULL_DISK else None


def remove_stale(path: Path) -> None:
    """Remove temporary files and folders of `path` left by processes that have ended.

    This process's own PID counts as ended, too: in a container, a program often gets the same PID at each start.
    """
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
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # PermissionError: it belongs to another user
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):  # Path.is_dir() fails for a name that is too long
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        path.unlink(missing_ok=True)


def move_files(names: Iterable[str], source: Path, target: Path) -> None:
    """Move files from one folder to another, in this order; each appears when it is on disk."""
    for name in names:
        (target / name).parent.mkdir(exist_ok=True)
        sync(source / name)
        os.replace(source / name, target / name)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk, so that a power failure cannot lose them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
