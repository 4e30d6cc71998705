"""Files and folders that get their names when they are whole; until then they are `.NAME.PID.unfinished` beside them.

However the process ends, nothing else stays: an error, Ctrl-C, SIGTERM and a terminal that closes remove what is
unfinished, and what SIGKILL or a power cut leaves is removed by the next process that writes the same name.
"""

import errno
import itertools
import os
import re
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

# Python turns SIGINT into an exception by itself. Windows has no SIGHUP.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
# A full disk: its errors name no file.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UMASK = os.umask(0o077)  # it can only be read by being set
os.umask(UMASK)
# What is being written, and by which process: a fork inherits the list.
writing: dict[Path, int] = {}


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder that takes the name of `path`, a new or empty folder, at the end, and is gone if something fails."""
    path = Path(os.path.realpath(path))  # a link to an empty folder stays one
    with hidden(path) as unfinished:
        unfinished.mkdir()
        lock = lock_of(unfinished)
        try:
            yield unfinished
            for file in unfinished.rglob("*.safetensors"):
                as_others_are(file)
            os.replace(unfinished, path)  # over an empty folder, if there was one
        finally:
            if lock is not None:
                os.close(lock)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary stream to a file that takes the name `path` at the end, and is gone if something fails."""
    with hidden(path) as unfinished:
        with unfinished.open("wb") as stream:
            if path.is_file():  # who may read it may, before a word of it is written
                unfinished.chmod(stat.S_IMODE(path.stat().st_mode))
            lock = lock_of(unfinished)
            try:
                yield stream
            finally:
                if lock is not None:
                    os.close(lock)
        os.replace(unfinished, path)


def as_others_are(file: Path) -> None:
    """Who may read it is as of every other file made here: safetensors makes its own for their owner alone."""
    file.chmod(0o666 & ~UMASK)


@contextmanager
def hidden(path: Path) -> Iterator[Path]:
    """The name until `path` is whole; nothing has it at the start, and nothing at the end."""
    remove_abandoned(path)
    path = path.absolute()
    names = (f".{path.name}.{os.getpid()}{f'-{n}' if n else ''}.unfinished" for n in itertools.count())
    # A process of that number may be at work in another container.
    unfinished = next(file for name in names if not os.path.lexists(file := path.with_name(name)))
    # Who has another handler decides what a signal does; and only the main thread may set one.
    in_main_thread = threading.current_thread() is threading.main_thread()
    ours = [number for number in ENDING if in_main_thread and signal.getsignal(number) == signal.SIG_DFL]
    writing[unfinished] = os.getpid()
    for number in ours:
        signal.signal(number, remove_and_end)
    try:
        yield unfinished
    except Exception as error:
        if (number := error_of_writing(error, unfinished)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    finally:
        remove(unfinished)
        del writing[unfinished]
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def error_of_writing(error: Exception, unfinished: Path) -> int | None:
    """The operating system's number of an error that came of writing there, or None: people know the other name.

    safetensors and tokenizers, which are written in Rust, have it at the end of their messages; torch.save has an error
    of its own on top.
    """
    if hasattr(error, "exit_code"):  # ours has said it already
        return None
    while not isinstance(error, OSError) and isinstance(error.__context__, Exception):
        error = error.__context__
    if isinstance(error, OSError):
        named = isinstance(error.filename, (str, bytes))
        here = Path(os.fsdecode(error.filename)).is_relative_to(unfinished) if named else error.errno in NO_SPACE
        return error.errno if here else None
    number = re.search(r"\(os error (\d+)\)\W*$", str(error))
    return int(number[1]) if number and int(number[1]) in NO_SPACE else None


def remove_and_end(number: int, frame: FrameType | None) -> None:
    """End by this signal, as without a handler. No exception: code on the way could catch it, and go on writing."""
    for path, process in writing.items():
        if process == os.getpid():
            remove(path)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def remove_abandoned(path: Path) -> None:
    """Remove what processes that are dead have left of a file or folder of this name."""
    path = path.absolute()
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d{{1,9}})(-\d+)?\.unfinished")
    if not path.parent.is_dir():
        return
    for name in os.listdir(path.parent):
        match = pattern.fullmatch(name)
        if match and is_abandoned(path.parent / name, int(match[1])):
            remove(path.parent / name)


def is_abandoned(unfinished: Path, process: int) -> bool:
    """Nobody holds it, and the process is dead: a container has numbers of its own, a disk processes elsewhere."""
    lock = None if unfinished in writing else lock_of(unfinished)
    if lock is None:
        return False
    os.close(lock)
    return process == os.getpid() or not is_running(process)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True


def lock_of(path: Path) -> int | None:
    """A descriptor that holds a file or folder until it is closed; None if another has it, or it cannot be locked."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def remove(path: Path) -> None:
    if os.path.isdir(path) and not os.path.islink(path):  # Path's own raise what is wrong with a name
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        path.unlink(missing_ok=True)
