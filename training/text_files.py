"""Readers of parallel text files: two files, TSV, JSON lines. Errors name the file and the line."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import BYTE_ORDER_MARK, UTF_16_MARKS, decode_line, open_text

CHUNK = 8192  # pairs in memory at a time; a corpus' sha256 depends on it


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of a text; None marks a line that is not UTF-8 (encoding_errors: skip)."""

    first_line: int
    sources: list[str | None]
    targets: list[str | None]


def read_two_files(source: Path, target: Path, encoding_errors: str) -> Iterator[Chunk]:
    blocks = [_blocks(path, encoding_errors) for path in (source, target)]
    read = 0
    for pair in zip_longest(*blocks, fillvalue=[]):
        if len(pair[0]) != len(pair[1]):
            counts = [read + len(block) + sum(map(len, rest)) for block, rest in zip(pair, blocks, strict=True)]
            raise InputError(
                f"{source} has {counts[0]} lines, {target} has {counts[1]}: line n of one must be the translation "
                f"of line n of the other"
            )
        yield Chunk(read + 1, *pair)
        read += len(pair[0])


def read_tsv(path: Path, columns: tuple[int, int, bool], encoding_errors: str) -> Iterator[Chunk]:
    """Read the two columns that `tsv_columns` found; further columns are ignored."""
    source, target, header = columns

    def pair_of(line: str, place: str) -> tuple[str, str]:
        cells = line.split("\t")
        if len(cells) <= max(source, target):
            raise InputError(f"{place}: {len(cells)} columns, expected source TAB target")
        return cells[source], cells[target]

    return _read_pairs(path, pair_of, encoding_errors, skip=int(header))


def tsv_columns(path: Path, languages: tuple[str, str]) -> tuple[int, int, bool]:
    """Return the columns of source and target, and whether the first line is a header.

    A header that contains both language codes decides, or else a name such as `train.en-de.tsv`; without either, the
    first column is the source.
    """
    with open_text(path) as file:
        header = file.readline().removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").strip().split("\t")
    if set(languages) <= set(header):
        return header.index(languages[0]), header.index(languages[1]), True
    reversed_name = re.compile(rf"(^|[._-]){re.escape('-'.join(languages[::-1]))}[._-]")
    return (1, 0, False) if reversed_name.search(path.name) else (0, 1, False)


def read_jsonl(path: Path, languages: tuple[str, str], encoding_errors: str) -> Iterator[Chunk]:
    """Read lines of {"translation": {"en": ..., "de": ...}} or of the inner object."""

    def pair_of(line: str, place: str) -> tuple[str, str]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # a number of more than 4,300 digits is a ValueError
            raise InputError(f"{place}: not JSON ({error})") from error
        if isinstance(record, dict) and "translation" in record:
            record = record["translation"]
        if not isinstance(record, dict):
            raise InputError(f'{place}: must be {{"translation": {{...}}}}, found {type(record).__name__}')
        source, target = (_json_text(record, language, place) for language in languages)
        return source, target

    return _read_pairs(path, pair_of, encoding_errors)


def _json_text(record: dict, language: str, place: str) -> str:
    if language not in record:
        raise InputError(f"{place}: key {language!r} is missing; keys there: {', '.join(record) or 'none'}")
    text = record[language]
    if not isinstance(text, str):
        raise InputError(f"{place}: {language!r} is {'null' if text is None else type(text).__name__}, must be text")
    if surrogate := re.search("[\ud800-\udfff]", text):
        raise InputError(
            f"{place}: {language!r} has a lone surrogate U+{ord(surrogate[0]):04X} at character "
            f"{surrogate.start() + 1}, which is not text"
        )
    return text.replace("\n", " ")


def _read_pairs(
    path: Path, pair_of: Callable[[str, str], tuple[str, str]], encoding_errors: str, skip: int = 0
) -> Iterator[Chunk]:
    """Yield the pairs that `pair_of(line, place)` finds in the lines of a file, without the first `skip` lines."""
    first_line = 1
    for block in _blocks(path, encoding_errors):
        pairs = [
            (None, None) if line is None else pair_of(line, f"{path} line {number}")
            for number, line in enumerate(block, first_line)
            if number > skip
        ]
        yield Chunk(max(first_line, skip + 1), [source for source, _ in pairs], [target for _, target in pairs])
        first_line += len(block)


def _blocks(path: Path, encoding_errors: str) -> Iterator[list[str | None]]:
    """Yield the file's lines, CHUNK at a time. Lines end at \\n only; U+2028 and the like are text."""
    read = 0
    with open_text(path) as file:
        while block := list(islice(file, CHUNK)):
            if read == 0:
                if block[0].startswith(UTF_16_MARKS) or block[0].count(0) > len(block[0]) // 4:
                    raise InputError(f"{path} line 1: not UTF-8, looks like UTF-16; convert it with iconv")
                block[0] = block[0].removeprefix(BYTE_ORDER_MARK)
            try:
                yield [*b"".join(block).decode("utf-8").split("\n")[: len(block)]]
            except UnicodeDecodeError:
                yield [_decoded(raw, line, path, encoding_errors) for line, raw in enumerate(block, read + 1)]
            read += len(block)
    if read == 0:
        raise InputError(f"{path} is empty")


def _decoded(raw: bytes, line: int, path: Path, encoding_errors: str) -> str | None:
    try:
        return decode_line(raw, str(path), line)
    except InputError as error:
        if encoding_errors == "skip":
            return None
        raise InputError(f"{error}; --encoding-errors skip drops such pairs") from None
