"""Read and write lines of UTF-8 text, in files and pipes, independently of the locale.

A line ends at `\\n`. A `\\r` before it and a byte order mark at the start of the file are dropped.
"""

import gzip
import io
import os
import re
import select
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from .atomic import atomic_file
from .errors import BrokenFileError, InputError, name_in_errors

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
COMPRESSED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}  # by their first bytes
COMPRESSED |= {b"BZh%d1AY&SY" % level: "bzip2" for level in range(1, 10)}
# PAR1 alone may be a text's first word: it is the name of a gene.
BINARY = {b"PK\3\4": "a workbook or a zip archive", b"\xd0\xcf\x11\xe0": "a workbook", b"PAR1\x15": "Parquet"}
# Bytes. A small .gz may hold gigabytes, which are one line if they have no line breaks.
LONGEST_LINE = 20_000_000


def decode_line(raw: bytes, name: str, number: int) -> str:
    """Decode line `number` (from 1) of the file `name`. Raises InputError naming the line and the byte's column."""
    if number == 1:
        check_first_line(raw, name)
        raw = raw.removeprefix(BYTE_ORDER_MARK)
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} line {number}: byte 0x{raw[error.start]:02x} at column {error.start + 1} is not UTF-8; "
            "if the file is CP1252 or Latin-1, convert it: iconv -f CP1252 -t UTF-8"
        ) from None


def check_first_line(raw: bytes, name: str) -> None:
    """Raise InputError if a file is compressed, no text, UTF-16, or has carriage returns as its only line ends.

    raw: its first line
    """
    if kind := next((BINARY[mark] for mark in BINARY if raw.startswith(mark)), None):
        raise InputError(
            f"{name} is {kind}, not text; export it in UTF-8 with a sentence on each line, or for `train` as CSV or "
            "JSON lines"
        )
    if kind := next((COMPRESSED[mark] for mark in COMPRESSED if raw.startswith(mark)), None):
        raise InputError(f"{name} is compressed by {kind}; decompress it, or compress it by gzip as NAME.gz")
    if raw.startswith(UTF_16_MARKS) or raw.count(0) > max(1, len(raw) // 4):
        raise InputError(f"{name} line 1: not UTF-8, looks like UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
    returns = raw.rstrip(b"\r").count(b"\r")
    if returns and not raw.endswith(b"\n"):
        raise InputError(f"{name} has {returns} carriage returns and no line feed; convert it: tr '\\r' '\\n'")


def check_file(path: str | Path) -> Path:
    """Return the path of an existing file. Raises InputError if it is missing or a folder."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a text file; name a file in it")
    return path


def refuse_same_file(option: str, output: object, *others: object) -> None:
    """Raise InputError if an output is a file that the command also reads or writes, which it would replace."""
    path = Path(str(output))
    for other in (Path(str(other)) for other in others if other is not None):
        is_same = path.samefile(other) if path.exists() and other.exists() else path.absolute() == other.absolute()
        if is_same and str(output) != "-" and (path.is_file() or not path.exists()):
            raise InputError(f"{option} {output} is the same file as {other}; give another name")


def check_output(path: str | Path) -> Path:
    """Return the path to write for an output, the target of a symbolic link. Raises InputError; "-" is stdout."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
    if path.suffix in (".bz2", ".xz", ".zst", ".zip"):
        raise InputError(f"{path}: compressed outputs end in .gz; give another name")
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if not target.parent.is_dir():
        raise InputError(f"{path}: the folder {target.parent} does not exist")
    return target


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, and decompress it if its name ends in .gz. Raises BrokenFileError."""
    try:
        if path.suffix == ".gz" and path.is_file() and path.stat().st_size == 0:
            raise EOFError("it is empty")
        with name_in_errors(path), gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except PermissionError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problem = error.args[0]  # without the name that str(error) has
        raise BrokenFileError(
            f"{path} is not a complete gzip file ({problem}); copy it again, or rename it if it is plain text"
        ) from None


def split_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the lines of the stream `name`. Raises InputError if one is longer than LONGEST_LINE."""
    for number, raw in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), start=1):
        check_length(raw, name, number)
        yield raw


def check_length(raw: bytes, name: str, number: int) -> None:
    """Raise InputError if line `number` (from 1) of the file `name` is longer than LONGEST_LINE."""
    if len(raw) > LONGEST_LINE:
        raise InputError(f"{name} line {number} is longer than {LONGEST_LINE:,} bytes; write a sentence on each line")


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a text file (.gz too), or of stdin for "-". Raises InputError."""
    is_stdin = str(path) == "-"
    with open_stdin() if is_stdin else open_text(check_file(path)) as stream:
        name = "stdin" if is_stdin else str(path)
        for number, raw in enumerate(split_lines(stream, name), start=1):
            yield decode_line(raw, name, number)


def read_parallel_lines(source: str | Path, target: str | Path) -> tuple[list[str], list[str]]:
    """Read the lines of two files as `read_lines` does. Raises InputError if their numbers differ."""
    sources, targets = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(targets):
        raise InputError(
            f"{source} has {len(sources)} lines, {target} has {len(targets)}: line n of one must be the translation of "
            "line n of the other"
        )
    return sources, targets


def open_stdin() -> io.BufferedReader:
    """Open stdin for reading bytes. Raises InputError."""
    if sys.stdin is None:
        raise InputError("stdin is closed; give a file")
    try:
        os.set_blocking(0, True)  # an inherited stdin may be non-blocking; Python then takes a pause for end of file
        return io.BufferedReader(io.FileIO(0, closefd=False), 1 << 16)
    except OSError as error:
        raise InputError(f"stdin cannot be read ({error.strerror}); give a file") from None


def read_arriving_lines(most: int) -> Iterator[list[str]]:
    """Yield the lines of stdin in lists of at most `most`: long lists from a file, single lines from a terminal.

    A list ends when nothing arrives for 20 ms, so that a typed line is translated at once.
    """
    lines: list[str] = []
    number, rest = 0, b""
    with open_stdin() as stream:
        while part := stream.read1():
            *complete, rest = (rest + part).split(b"\n")
            for raw in complete:
                number += 1
                lines.append(decode_line(raw + b"\n", "stdin", number))
                if len(lines) == most:
                    yield lines
                    lines = []
            check_length(rest, "stdin", number + 1)
            if lines and not select.select([stream], [], [], 0.02)[0]:
                yield lines
                lines = []
    if rest:
        lines.append(decode_line(rest, "stdin", number + 1))
    if lines:
        yield lines


@contextmanager
def open_output(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary stream to a file that appears only when it is complete; "-" is stdout. Raises InputError.

    A file whose name ends in .gz is compressed, with the same bytes each time. A symbolic link is kept and its target
    written; devices and named pipes are written directly.
    """
    if str(path) == "-":
        if sys.stdout is None:
            raise InputError("stdout is closed; give --output FILE")
        stream = sys.stdout.buffer
        if isinstance(stream, io.RawIOBase):  # with PYTHONUNBUFFERED; its write() may write only a part
            os.set_blocking(stream.fileno(), True)
            stream = open(stream.fileno(), "wb", closefd=False)
        yield stream
        stream.flush()
        return
    path, target = Path(path), check_output(path)
    if path.exists() and not path.is_file():
        try:
            with name_in_errors(path), path.open("wb") as stream:
                yield stream
        except BrokenPipeError:  # on stdout, it would be no error
            raise InputError(f"{path}: the reader closed the pipe before everything was written") from None
        return
    with atomic_file(target) as stream:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as compressed:
                yield cast(BinaryIO, compressed)
        else:
            yield stream


def check_unicode(text: str, name: str) -> None:
    """Raise InputError if the text has a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        character = f"the lone surrogate {ascii(text[error.start])} at character {error.start + 1}"
        raise InputError(f"{name}: {character} is not Unicode text") from None


def remove_line_breaks(text: str) -> str:
    """Replace each run of line breaks by a space, so that one input line gives one output line."""
    return re.sub(r"[\r\n]+", " ", text)
