"""Lines of UTF-8 text, in from files and pipes and out again, whatever the locale says.

A line ends at `\\n`; a `\\r` before it and a byte order mark at the start of the file do not belong to the text.
"""

import gzip
import io
import os
import queue
import re
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import BrokenFileError, InputError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def decode_line(raw: bytes, name: str, number: int) -> str:
    """One line of a file as text. `number` counts from 1; InputError names file, line and byte column."""
    if number == 1:
        raw = raw.removeprefix(BYTE_ORDER_MARK)
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        looks_like = "UTF-16" if number == 1 and raw.startswith(UTF_16_MARKS) else "Latin-1"
        raise InputError(
            f"{name} line {number}: byte 0x{raw[error.start]:02x} at column {error.start + 1} is not UTF-8; "
            f"if the file is {looks_like}, convert it: iconv -f {looks_like} -t UTF-8"
        ) from None


def decode_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """The lines of an open binary stream, one at a time."""
    for number, raw in enumerate(stream, start=1):
        yield decode_line(raw, name, number)


def existing_file(path: str | Path) -> Path:
    """The path of a file that is there. Raises InputError if it is not, or is a folder."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a text file")
    return path


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked where its name ends in .gz. BrokenFileError where that is not whole."""
    try:
        if path.suffix == ".gz" and path.is_file() and path.stat().st_size == 0:
            raise EOFError("it is empty")
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except PermissionError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BrokenFileError(f"{path} is not a whole gzip file ({error}); fetch it again") from None


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text file (.gz too), or of stdin for "-", one at a time. InputError if it cannot be read."""
    if str(path) == "-":
        with stdin() as stream:
            yield from decode_lines(stream, "stdin")
        return
    path = existing_file(path)
    with opened(path) as stream:
        yield from decode_lines(stream, str(path))


def stdin() -> BinaryIO:
    """A stream of its own, of stdin: Python cannot end while a thread holds sys.stdin. InputError where it is closed.

    Where whoever started us has made it non-blocking, Python would take a pause for the end of the text.
    """
    try:
        os.set_blocking(0, True)
        return open(os.dup(0), "rb")
    except OSError as error:
        raise InputError(f"stdin cannot be read ({error.strerror}); give a file") from None


def arriving_lines(most: int) -> Iterator[list[str]]:
    """The lines of stdin in lists of at most `most`: many from a file, one when somebody types and waits for it."""
    arrived: queue.Queue[str | Exception | None] = queue.Queue(maxsize=2 * most)
    source = stdin()

    def read() -> None:
        with source:
            try:
                for line in decode_lines(source, "stdin"):
                    arrived.put(line)
                arrived.put(None)
            except Exception as error:  # raised below, in the thread that asked
                arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        lines: list[str] = []
        end: Exception | None = None
        try:
            while len(lines) < most:
                line = arrived.get(timeout=0.02 if lines else None)
                if not isinstance(line, str):
                    end = line or EOFError()
                    break
                lines.append(line)
        except queue.Empty:
            pass  # nobody has sent more for a while: answer what there is
        if lines:
            yield lines
        if isinstance(end, EOFError):
            return
        if end is not None:
            raise end


@contextmanager
def open_output(path: str | Path) -> Iterator[BinaryIO]:
    """A binary stream to a file that appears under its name only when everything has been written; "-" is stdout.

    A link stays one, and what it leads to is written; a device or a pipe stays one, too, and is written as it comes.
    """
    if str(path) == "-":
        if sys.stdout is None:
            raise InputError("stdout is closed; give --output FILE")
        stream = sys.stdout.buffer
        if isinstance(stream, io.RawIOBase):  # PYTHONUNBUFFERED: its write() may take a part, and nobody looks
            os.set_blocking(stream.fileno(), True)
            with open(stream.fileno(), "wb", closefd=False) as stream:
                yield stream
        else:
            yield stream
            stream.flush()
        return
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        try:
            with path.open("wb") as stream:
                yield stream
        except BrokenPipeError:
            raise InputError(f"{path}: who reads this pipe has gone before everything was written") from None
        return
    target = followed(path) if path.is_symlink() else path
    if not target.parent.is_dir():
        raise InputError(f"{path}: there is no folder {target.parent}")
    with atomic_file(target) as stream:
        yield stream


def followed(path: Path) -> Path:
    """Where links lead. InputError for one that leads to itself."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise InputError(f"{path} is a link that leads to itself; remove it")
    return target


def check_new_folder(path: str | Path) -> Path:
    """The path of a folder to be made. InputError if it is a file, holds something or cannot be replaced."""
    path = Path(path)
    target = followed(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; give the name of a new folder")
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} is not empty; give a new folder, so that nothing in it is lost")
    # The finished folder takes the place of an empty one, and a shell inside the old one would not see it.
    if path.is_dir() and (target.is_mount() or target == Path.cwd()):
        state = "a mount point" if target.is_mount() else "the current folder"
        raise InputError(f"{path} is {state}, which the finished folder cannot replace; give a new folder inside it")
    return path


def in_one_line(text: str) -> str:
    """The text with a space for each run of line breaks: one line in is one line out."""
    return re.sub(r"[\r\n]+", " ", text)
