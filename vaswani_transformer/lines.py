"""Read and write lines of UTF-8 text, in files and pipes, independently of the locale.

A line ends at `\\n`. A `\\r` before it and a byte order mark at the start of the file are dropped.
"""

import gzip
import io
import os
import re
import select
import sys
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count, groupby, pairwise
from pathlib import Path
from typing import BinaryIO, cast

from .atomic import atomic_file
from .errors import FULL_DISK, BrokenFileError, InputError
from .sentences_vaswani_transformer import SEPARATOR, closing_fence, is_underline

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def decode_line(raw: bytes, name: str, number: int) -> str:
    """Decode line `number` (from 1) of the file `name`. Raises InputError naming the line and the byte's column."""
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


def check_file(path: str | Path) -> Path:
    """Return the path of an existing file. Raises InputError if it is missing or a folder."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a text file")
    return path


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, and decompress it if its name ends in .gz. Raises BrokenFileError."""
    try:
        if path.suffix == ".gz" and path.is_file() and path.stat().st_size == 0:
            raise EOFError("it is empty")
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except PermissionError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BrokenFileError(f"{path} is not a complete gzip file ({error}); download or copy it again") from None


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a text file (.gz too), or of stdin for "-". Raises InputError."""
    is_stdin = str(path) == "-"
    with open_stdin() if is_stdin else open_text(check_file(path)) as stream:
        for number, raw in enumerate(stream, start=1):
            yield decode_line(raw, "stdin" if is_stdin else str(path), number)


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
    numbers, rest = count(1), b""
    with open_stdin() as stream:
        while part := stream.read1():
            *complete, rest = (rest + part).split(b"\n")
            for raw in complete:
                lines.append(decode_line(raw, "stdin", next(numbers)))
                if len(lines) == most:
                    yield lines
                    lines = []
            if lines and not select.select([stream], [], [], 0.02)[0]:
                yield lines
                lines = []
    if rest:
        lines.append(decode_line(rest, "stdin", next(numbers)))
    if lines:
        yield lines


@contextmanager
def open_output(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary stream to a file that appears only when it is complete; "-" is stdout. Raises InputError.

    A symbolic link is kept and its target written; devices and named pipes are written directly.
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
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        try:
            with path.open("wb") as stream:
                yield stream
        except BrokenPipeError:
            raise InputError(f"{path}: the reader closed the pipe before everything was written") from None
        except OSError as error:
            if error.filename is None and error.errno in FULL_DISK:
                error.filename = str(path)
            raise
        return
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if not target.parent.is_dir():
        raise InputError(f"{path}: the folder {target.parent} does not exist")
    with atomic_file(target) as stream:
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


def count_lines(texts: list[str]) -> int:
    """Return how many lines texts have: a block of code has several."""
    return len(texts) + sum(text.count("\n") for text in texts)


# A list item, heading, table, command, image, definition, field or speaker begins a line of its own.
NEW_LINE = re.compile(
    r"""\s*(?:[-*+•‣◦·–—#|♪:]+\s|(?:\d{1,3}|[ivx]{2,4})[.)]\s|[A-Za-z]\)\s|\((?:\d{1,3}|[a-z]|[ivx]{2,4})\)\s|\||\$\s|>>>\s|\.\.\s
    |\[?!\[|\[[^\[\]]{1,100}\](?::\s|\s*\Z)|:\w[\w ]*:\s|[A-Z][A-Za-z-]{1,20}:\s)""",
    re.VERBOSE,
)
QUOTE = re.compile(r"(?:[ \t]{0,3}>)*")  # of an e-mail, or of Markdown
LINE_BREAK = ("  ", "\\")  # of Markdown, at the end of a line
# A heading, a row of a table, and the title of a box of GitHub are no part of a paragraph.
ALONE = re.compile(r"\s*(?:[#|]|(?:>\s*)*\[!\w+\]\s*\Z)")
CODE_INDENTATION = 4


def unwrap_lines(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of a hard-wrapped text into one line for each paragraph; blank lines stay.

    A block of code between fences is one text, with its line breaks; the lines of indented code stay apart. List items,
    headings, other quotations, lines after a line break of Markdown, and lines without a letter begin a line of their
    own, and so does a line that is indented otherwise than the line before, if that had room for its first word: below
    a heading of a manual page.
    """
    width = 0
    for block in split_into_blocks(lines):
        width = max(width, *(len(line.rstrip()) for line in block))
        if find_fence(block[0]):
            yield "\n".join(block)
        elif len(block) == 1:
            yield block[0]
        else:
            yield from join_paragraphs(block, width)


def split_into_blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield blocks of code with their fences, runs of lines that have words, and each other line."""
    rest, block = iter(lines), list[str]()
    unclosed = dict[str, int]()  # lengths of fences that nothing closes
    while (line := next(rest, None)) is not None:
        fence = "" if block and is_underline(line, block[-1]) else find_fence(line)
        code = [line]
        if fence and len(fence) < unclosed.get(fence[0], len(line) + 1):
            closing = closing_fence(fence)
            for code_line in rest:
                code.append(code_line)
                if closing.fullmatch(code_line):
                    break
            else:
                unclosed[fence[0]] = len(fence)
                code, rest = [line], iter(code[1:])
        if fence or is_copied(line) or ALONE.match(line) or not any(letter.isalpha() for letter in line):
            if block:
                yield block
            yield code
            block = []
        else:
            block.append(line)
    if block:
        yield block


def find_fence(line: str) -> str:
    """Return the characters of the fence with which a line opens a block of code, or ""."""
    found = SEPARATOR.match(line)
    return (found["fence"] or found["tildes"] or "") if found else ""


def is_copied(line: str) -> bool:
    """Return whether a line, such as the times of a subtitle, is copied as a whole."""
    found = SEPARATOR.match(line)
    return found is not None and found["line"] is not None


def find_code(block: list[str]) -> list[bool]:
    """Return which lines of a block are code: indented, and half of them end where the next word had room.

    No program has wrapped these.
    """
    found = []
    for indent, lines in groupby(block, indentation):
        run = list(lines)
        width = max(len(line.rstrip()) for line in run)
        had_room = [not NEW_LINE.match(second) and has_room(first, second, width) for first, second in pairwise(run)]
        found += [indent >= CODE_INDENTATION and 2 * sum(had_room) >= max(len(had_room), 1)] * len(run)
    return found


def has_room(line: str, following: str, width: int) -> bool:
    """Return whether the first word of the following line would have fit at the end of the line."""
    return len(line.rstrip()) + 1 + len(following.split(maxsplit=1)[0]) <= width


def join_paragraphs(block: list[str], width: int) -> Iterator[str]:
    """Yield a line for each paragraph of a block.  width: of the text, at which it was wrapped"""
    paragraph, before, quote_before = "", "", ""
    for line, is_code in zip(block, find_code(block), strict=True):
        quote = QUOTE.match(line)[0]  # pyright: ignore[reportOptionalSubscript]
        text = line[len(quote) :]
        is_indented = indentation(text) != indentation(before) and not NEW_LINE.match(before)
        begins = is_code or NEW_LINE.match(text) or (is_indented and has_room(quote_before + before, text, width))
        begins = begins or quote.count(">") > 2 or quote.split() != quote_before.split()  # >>> is also Python's prompt
        end = "  " if line.endswith("  ") else ""
        if paragraph and not (begins or paragraph.endswith(LINE_BREAK)):
            paragraph = join_wrapped(paragraph, text.strip()) + end
        else:
            if paragraph:
                yield paragraph
            paragraph = line.rstrip() + end
        before, quote_before = text, quote
    yield paragraph


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def join_wrapped(first: str, second: str) -> str:
    """Join two lines of a paragraph: by a space, unless a hyphen ends the first, or the script has no spaces."""
    if first.endswith("\xad"):
        return first[:-1] + second
    is_hyphen = first[-1] == "-" and first[-2:-1].isalpha() and second[0].islower()
    has_no_spaces = all(unicodedata.east_asian_width(letter) in "WF" for letter in (first[-1], second[0]))
    return first + second if is_hyphen or has_no_spaces else f"{first} {second}"
