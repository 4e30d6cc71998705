"""Readers of parallel text files: two files, TSV, JSON lines. Faults are named by file and line."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import cast

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import BYTE_ORDER_MARK, UTF_16_MARKS, decode_line, opened

CHUNK = 8192  # pairs in memory at a time


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of a text; None marks a line that is not UTF-8 (encoding_errors: skip)."""

    first_line: int
    sources: list[str | None]
    targets: list[str | None]


def read_two_files(source: Path, target: Path, encoding_errors: str) -> Iterator[Chunk]:
    blocks = [_line_blocks(source), _line_blocks(target)]
    read = 0
    while True:
        pair = [next(side, []) for side in blocks]
        if len(pair[0]) != len(pair[1]):
            counts = [read + len(block) + sum(map(len, side)) for block, side in zip(pair, blocks, strict=True)]
            raise InputError(
                f"{source} has {counts[0]} lines, {target} has {counts[1]}: line n of one must be the translation "
                f"of line n of the other"
            )
        if not pair[0]:
            return
        sides = [
            _decoded(block, read + 1, path, encoding_errors) for block, path in zip(pair, (source, target), strict=True)
        ]
        yield Chunk(read + 1, *sides)
        read += len(pair[0])


def read_tsv(path: Path, languages: tuple[str, str], encoding_errors: str) -> Iterator[Chunk]:
    """Read the two columns of `tsv_columns`; further columns are ignored."""
    source, target, header = tsv_columns(path, languages)
    first_line = 1
    for block in _line_blocks(path):
        lines = _decoded(block, first_line, path, encoding_errors)
        skipped = int(header and first_line == 1)
        sides: tuple[list[str | None], list[str | None]] = ([], [])
        for number, line in enumerate(lines[skipped:], first_line + skipped):
            cells = [None] * (max(source, target) + 1) if line is None else line.split("\t")
            if len(cells) <= max(source, target):
                raise InputError(f"{path} line {number}: {len(cells)} column, must be source TAB target")
            sides[0].append(cells[source])
            sides[1].append(cells[target])
        yield Chunk(first_line + skipped, *sides)
        first_line += len(block)


def tsv_columns(path: Path, languages: tuple[str, str]) -> tuple[int, int, bool]:
    """Return the columns of source and target, and whether the first line is a header.

    A header that contains both language codes decides, or else a name such as `train.en-de.tsv`; without either, the
    first column is the source.
    """
    with opened(path) as file:
        header = file.readline().removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").strip().split("\t")
    if languages[0] != languages[1] and set(languages) <= set(header):
        return header.index(languages[0]), header.index(languages[1]), True
    reversed_name = re.compile(rf"(^|[._-]){re.escape('-'.join(languages[::-1]))}[._-]")
    return (1, 0, False) if reversed_name.search(path.name) else (0, 1, False)


def read_jsonl(path: Path, languages: tuple[str, str], encoding_errors: str) -> Iterator[Chunk]:
    """Read lines of {"translation": {"en": ..., "de": ...}} or of the inner object."""
    first_line = 1
    for block in _line_blocks(path):
        sides: tuple[list[str | None], list[str | None]] = ([], [])
        for number, line in enumerate(_decoded(block, first_line, path, encoding_errors), first_line):
            for side, text in zip(sides, _json_pair(line, path, number, languages), strict=True):
                side.append(text)
        yield Chunk(first_line, *sides)
        first_line += len(block)


def _json_pair(line: str | None, path: Path, number: int, languages: tuple[str, str]) -> list[str | None]:
    if line is None:
        return [None, None]
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of more than 4,300 digits is a ValueError
        raise InputError(f"{path} line {number}: not JSON ({error})") from error
    if isinstance(record, dict) and "translation" in record:
        record = record["translation"]
    if not isinstance(record, dict):
        raise InputError(f'{path} line {number}: must be {{"translation": {{...}}}}, found {type(record).__name__}')
    texts = []
    for language in languages:
        if language not in record:
            keys = ", ".join(map(str, record)) or "none"
            raise InputError(f"{path} line {number}: key {language!r} is missing; keys there: {keys}")
        text = record[language]
        if not isinstance(text, str):
            found = "null" if text is None else type(text).__name__
            raise InputError(f"{path} line {number}: {language!r} is {found}, must be text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"{path} line {number}: {language!r} has a lone surrogate U+{ord(text[error.start]):04X} at character "
                f"{error.start + 1}, which is not text"
            ) from error
        texts.append(text.replace("\n", " "))
    return texts


def _line_blocks(path: Path) -> Iterator[list[bytes]]:
    """Yield the file's lines as bytes, CHUNK at a time, without the byte order mark."""
    with opened(path) as file:
        first = True
        while block := list(islice(file, CHUNK)):
            if first:
                if block[0].startswith(UTF_16_MARKS) or block[0].count(0) > len(block[0]) // 4:
                    raise InputError(f"{path} line 1: not UTF-8, looks like UTF-16; convert it with iconv")
                block[0] = block[0].removeprefix(BYTE_ORDER_MARK)
                first = False
            yield block
        if first:
            raise InputError(f"{path} is empty")


def _decoded(block: list[bytes], first_line: int, path: Path, encoding_errors: str) -> list[str | None]:
    """Decode the lines of a block. Lines end at \\n only; U+2028 and the like are text."""
    try:
        lines = b"".join(block).decode("utf-8").split("\n")
        return cast(list[str | None], lines[: len(block)])
    except UnicodeDecodeError:
        return [_decoded_line(raw, first_line + i, path, encoding_errors) for i, raw in enumerate(block)]


def _decoded_line(raw: bytes, line: int, path: Path, encoding_errors: str) -> str | None:
    try:
        return decode_line(raw, str(path), line)
    except InputError as error:
        if encoding_errors == "skip":
            return None
        raise InputError(f"{error}; --encoding-errors skip drops such pairs") from None
