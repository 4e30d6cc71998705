"""Files and folders that get their names when they are whole; until then they are `.NAME.PID.unfinished` beside them.

However the process ends, nothing else stays: an error, Ctrl-C, SIGTERM and a terminal that closes remove what is
unfinished, and what SIGKILL or a power cut leaves is removed by the next process that writes the same name.
"""

import itertools
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

# Python turns SIGINT into an exception by itself. Windows has no SIGHUP.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
UMASK = os.umask(0o077)  # it can only be read by being set
os.umask(UMASK)
# What is being written, and by which process: a fork inherits the list.
writing: dict[Path, int] = {}


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder that takes the name of `path`, a new or empty folder, at the end, and is gone if something fails."""
    path = path.resolve()  # a link to an empty folder stays one
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
    unfinished = next(file for name in names if not (file := path.with_name(name)).exists())
    # Who has another handler decides what a signal does; and only the main thread may set one.
    in_main_thread = threading.current_thread() is threading.main_thread()
    ours = [number for number in ENDING if in_main_thread and signal.getsignal(number) == signal.SIG_DFL]
    writing[unfinished] = os.getpid()
    for number in ours:
        signal.signal(number, remove_and_end)
    try:
        yield unfinished
    finally:
        remove(unfinished)
        del writing[unfinished]
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


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
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
