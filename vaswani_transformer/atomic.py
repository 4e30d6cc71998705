"""Write files and folders so that they appear under their names only when they are complete and on disk.

Until then they are in a folder `.NAME.MACHINE-RANDOM.tmp` beside the final name, which their writer keeps locked. An
error, an interrupt or SIGTERM removes it; the leftovers of a process that a signal killed are removed by the next
process that writes the same name.
"""

import errno
import fcntl
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from .errors import ENVIRONMENT_ERRNOS, InputError, UnavailableError, name_in_errors

LONGEST_KEPT = 230  # bytes of a name that the name of its temporary folder contains
ABANDONED = 24 * 3600  # seconds without a change, if a lock proves nothing
# What file systems (FAT, SMB, FUSE, NFS, object storage) answer if they have no locks, permissions or fsync of folders.
UNSUPPORTED = {
    errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ENOLCK, errno.EBADF, errno.ENOTTY
}  # fmt: skip

unfinished: set[Path] = set()  # the temporary folders that this process is writing


def check_new_folder(path: str | Path) -> Path:
    """Return the path of a folder to create, with its parents. Raises InputError unless it is absent, or empty and
    replaceable."""
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
    above = next(parent for parent in target.parents if os.path.lexists(parent))
    if not above.is_dir():
        raise InputError(f"{path}: {above} is not a folder; give a name in a folder")
    if not os.access(above, os.W_OK | os.X_OK, effective_ids=True):
        raise InputError(f"{path}: you may not write in {above}; give a name in a folder of your own")
    return path


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder that is renamed to `path` (absent or an empty folder) when the block succeeds.

    The parents of `path` are created.
    """
    path = Path(os.path.realpath(path))  # a symbolic link to an empty folder is kept
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_path(path) as folder:
        folder.mkdir()
        yield folder
        for item in [*folder.rglob("*"), folder]:
            if item.suffix == ".safetensors":  # safetensors always creates its files with mode 0600
                set_mode(item, folder.stat().st_mode & 0o666)  # `mkdir` has applied the umask to the folder
            sync(item)
        try:
            os.replace(folder, path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # it was absent or empty at the start
                reason = "another program wrote it in the meantime, and it is kept; give the name of a new folder"
                raise OSError(error.errno, reason, str(path)) from None
            raise
        sync(path.parent)


def append_whole(file: FileIO, content: bytes) -> None:
    """Append all of the content or, on a full disk, nothing: a later line would continue an incomplete one."""
    size = os.fstat(file.fileno()).st_size
    try:
        while content:
            content = content[file.write(content) :]
    except OSError:
        with suppress(OSError):  # a device
            file.truncate(size)
        raise


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary stream to a new file that is renamed to `path` when the block succeeds; permissions are kept."""
    with temporary_path(path) as file:
        with file.open("wb") as stream:
            if path.is_file():
                set_mode(file, stat.S_IMODE(path.stat().st_mode))
            yield stream
        sync(file)
        os.replace(file, path)
        sync(path.absolute().parent)


@contextmanager
def temporary_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path on the same disk. Disk errors are raised again with `path` as their file name."""
    path = path.absolute()
    remove_stale(path)
    temporary, descriptor = path, None
    try:
        while descriptor is None:
            temporary = path.with_name(f".{short_name(path)}.{machine_id()}-{secrets.token_hex(4)}.tmp")
            unfinished.add(temporary)
            temporary.mkdir()
            descriptor = lock_new_folder(temporary)
        yield temporary / path.name
    except Exception as error:
        if (number := disk_error(error, temporary)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    finally:
        if temporary in unfinished:
            remove(temporary)
            unfinished.discard(temporary)
        if descriptor is not None:
            os.close(descriptor)


def disk_error(error: BaseException, temporary: Path) -> int | None:
    """Return the errno if writing `temporary` failed, also where the error names no file, else None."""
    if hasattr(error, "exit_code"):  # a class of errors.py, which has its own message
        return None
    while not isinstance(error, OSError) and isinstance(error.__context__, Exception):
        error = error.__context__  # torch.save raises a RuntimeError on top of the OSError
    if isinstance(error, OSError):
        names = [name for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]  # a copy has two
        if any(Path(os.fsdecode(name)).is_relative_to(temporary) for name in names):
            return error.errno
        return error.errno if not names and error.errno in ENVIRONMENT_ERRNOS else None
    number = re.search(r"\(os error (\d+)\)", str(error))  # from safetensors and tokenizers, written in Rust
    is_ours = number is not None and (int(number[1]) in ENVIRONMENT_ERRNOS or str(temporary) in str(error))
    return int(number[1]) if number and is_ours else None


def remove_stale(path: Path) -> None:
    """Remove temporary folders of `path` whose writers have ended.

    A free lock proves this for writers on the same machine, in whatever container. File systems may not pass locks on
    to other machines, or have none; a folder is then removed if nothing in it has changed for a day.
    """
    path = path.absolute()
    if not path.parent.is_dir():
        return
    pattern = re.compile(rf"\.{re.escape(short_name(path))}\.(\w+)-\w+\.tmp")
    for name in os.listdir(path.parent):
        match, temporary = pattern.fullmatch(name), path.parent / name
        if match is None:
            continue
        with suppress(OSError):  # it is in use, or another process has just removed it
            descriptor = os.open(temporary, os.O_RDONLY | os.O_NONBLOCK)
            try:
                has_ended = lock(descriptor) and match[1] == machine_id()
                last_change = max(part.lstat().st_mtime for part in (temporary, *temporary.rglob("*")))
                if has_ended or time.time() - last_change > ABANDONED:
                    remove(temporary)
            finally:
                os.close(descriptor)


def short_name(path: Path) -> str:
    """Return the name of a path, or its hash if the name of the temporary folder would be longer than 255 bytes."""
    name = os.fsencode(path.name)
    return path.name if len(name) <= LONGEST_KEPT else hashlib.sha256(name).hexdigest()


def machine_id() -> str:
    """Return an id of the running system, which its containers share and which changes when it is started again."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not Linux
        name = platform.node()
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def lock_new_folder(folder: Path) -> int | None:
    """Lock a folder that this process has just created, until the returned descriptor is closed or the process ends.

    Returns None if another process took the folder for a leftover in between.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(BlockingIOError), name_in_errors(folder):
        lock(descriptor)
        if folder.exists():
            return descriptor
    os.close(descriptor)
    return None


def lock(descriptor: int) -> bool:
    """Lock an open file or folder. Return False if the file system has no locks.

    Raises BlockingIOError if another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return False
        raise
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):  # Path.is_dir() fails for a name that is too long
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        path.unlink(missing_ok=True)


def remove_folder(folder: Path, remedy: str) -> None:
    """Remove a folder, if it exists, or the link to it. Raises UnavailableError if it cannot be removed, such as that
    of another user."""
    try:
        with suppress(FileNotFoundError):  # or another process is removing it
            if folder.is_symlink():  # to another disk
                folder.unlink()
            else:
                shutil.rmtree(folder)
    except OSError as error:
        raise UnavailableError(f"{folder} cannot be removed: {error.strerror}; {remedy}") from error


def move_files(names: Iterable[str], source: Path, target: Path) -> None:
    """Move files from one folder to another, in this order; each appears when it is on disk."""
    for name in names:
        (target / name).parent.mkdir(exist_ok=True)
        sync(source / name)
        os.replace(source / name, target / name)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk, so that a power failure cannot lose them.

    Not every file system can do so, above all for folders; the rest of what this module promises needs no fsync.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def set_mode(path: Path, mode: int) -> None:
    """Set the permissions of a file, where the file system has any."""
    try:
        path.chmod(mode)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
