"""Tables of text: the columns of both languages, by labels or the keys of an object; quotes in TSV and CSV files.

>>> find_columns(["id", "text_de", "English"], ("en", "de")).texts
(2, 1)
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from vaswani_transformer.errors import InputError
from vaswani_transformer.languages import ROLES
from vaswani_transformer.languages_vaswani_transformer import NAMES, find_language, split_code
from vaswani_transformer.lines import BYTE_ORDER_MARK, open_text, split_lines

# What the labels of columns add to a language or a role: text_de, translation.de, "German sentence", source_text
WORDS = re.compile(r"^(?:text|sentence|segment|translation)[ _.-]+|[ _.-]+(?:text|sentence|segment)$", re.IGNORECASE)
LANGUAGE_OF_ROLE = re.compile(r"(source|src|target|tgt|trg)[ _.-]?(?:lang|language)", re.IGNORECASE)


def find_languages(names: Iterable[str], languages: Sequence[str]) -> list[int | None]:
    """Return the position of each language, see `find_language`."""
    names = list(names)
    return [find_language(names, language) for language in languages]


class Columns(NamedTuple):
    """The positions of both texts in a row, and of the columns that name their languages, such as `src_lang`."""

    texts: Sequence[int]
    languages: Sequence[int | None]


def find_columns(labels: Iterable[str], languages: Sequence[str]) -> Columns | None:
    """Return the columns of the source and the target, or None if the labels do not name both.

    A label names a language (`de`, `text_de`, `German sentence`) or, if none of them do, a role (`source`, `tgt`).
    """
    names = shorten_labels(labels)
    texts = find_languages(names, languages)
    if None in texts:
        texts = find_roles(names)
    source, target = texts
    if source is None or target is None:
        return None
    roles = [match[1] if (match := LANGUAGE_OF_ROLE.fullmatch(name)) else "" for name in names]
    return Columns((source, target), find_roles(roles))


def find_roles(names: list[str]) -> list[int | None]:
    return [next((names.index(role) for role in roles if role in names), None) for roles in ROLES]


def shorten_labels(labels: Iterable[str]) -> list[str]:
    return [WORDS.sub("", label.strip()).casefold() for label in labels]


def missing_language(labels: Iterable[str], languages: Sequence[str]) -> str:
    """Return the first of the languages that no label names, to report labels in which `find_columns` finds nothing."""
    positions = find_languages(shorten_labels(labels), languages)
    return next(language for language, position in zip(languages, positions, strict=True) if position is None)


def is_language(name: str) -> bool:
    return split_code(name)[0] in NAMES


@cache
def is_name_of(name: str, language: str) -> bool:
    return find_language([name], language) is not None


# ---- TSV and CSV files -----------------------------------------------------------------------------------------------

Row = tuple[int, list[str]]  # the number of its first line, and its cells

# A file whose cells are quoted where needed, as pandas and spreadsheets write it: every `"` fits into such a row.
QUOTED_CELL = rb'"(?:[^"]|"")*"'
QUOTED_ROW = re.compile(rb'(?:[^"\t]*|%b)(?:\t(?:[^"\t]*|%b))*' % (QUOTED_CELL, QUOTED_CELL))
NEEDS_QUOTES = re.compile(rb'(?:^|\t)"(?:[^"]|"")*?(?:""|[\t\r\n])')
# Labels of columns that are no language: blank, `unnamed: 0` or words such as `id`, `score`, `text_a` and `Text 1`.
LABEL = re.compile(r"unnamed: 0||[a-z][a-z0-9_.-]*[a-z0-9_](?: \d+)?")
# Numbers, ids, scores and addresses: a word of ASCII with a digit, or an address.
NO_TEXT = re.compile(r"[!-~]*(?:\d|://)[!-~]*")
EXCEL_DELIMITER = re.compile("sep=.?", re.IGNORECASE)  # the first line of some CSV files, which Excel reads
SAMPLE = 1000  # rows
LONGEST_QUOTED = 1 << 17  # bytes of a row of a quoted TSV with line breaks inside quotes
# Not csv's 131,072 letters: the corpus drops long texts and counts them, as those of other formats.
csv.field_size_limit(10_000_000)


class Table(NamedTuple):
    """How to read a table: its delimiter, whether cells are quoted, and where each row has its texts."""

    delimiter: str
    quoted: bool
    labels: list[str]  # of the columns
    header: int  # the number of the line with the labels; 0 if there is none
    columns: Columns


def read_rows(lines: Iterable[str], path: Path, delimiter: str, quoted: bool) -> Iterator[Row]:
    """Yield the rows of a table.  lines: of the file"""
    if not quoted:
        yield from ((number, line.split(delimiter)) for number, line in enumerate(lines, start=1))
        return
    rows = csv.reader(
        (line.removesuffix("\r").replace("\r", " ") + "\n" for line in lines),
        delimiter=delimiter,
        strict=True,
        skipinitialspace=True,
    )
    number = 1
    try:
        for cells in rows:
            if number > 1 or not cells or not EXCEL_DELIMITER.fullmatch(cells[0]) or any(cells[1:]):
                yield number, cells
            number = rows.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path} line {number}: its quotes do not fit together ({error}); quote a text that contains quotes, and "
            'double each of them: "a ""b"""'
        ) from None


def have_columns(rows: Iterable[Row]) -> bool:
    """Return whether the first rows have the same number of columns, more than one."""
    try:
        sizes = {len(cells) for _, cells in islice(rows, SAMPLE) if any(cells)}
    except InputError:
        return False
    return len(sizes) == 1 and sizes != {1}


def describe_table(rows: Iterable[Row], languages: tuple[str, str], path: Path, delimiter: str, quoted: bool) -> Table:
    """Find the columns of both languages by the first rows.

    A header gives their order, or else a name such as `train.en-de.tsv`; without either, the first column is the
    source. Columns that no header names must be text in at least one of the first rows: a pandas index or a score is
    not, nor a column of a few words that return, such as a domain. Raises InputError, also for a header that does not
    name both.
    """
    rows = [row for row in islice(rows, SAMPLE) if any(map(str.strip, row[1]))]
    line, first = rows[0] if rows else (1, [])
    labels = [cell.strip(" \"'") for cell in first]
    if len(labels) < 2:
        raise InputError(f"{path} line {line}: {len(labels)} columns, expected source{_show(delimiter)}target")
    others = [cells for _, cells in rows[1:]]
    columns = find_columns(labels, languages)
    places = columns.texts if columns else (0, 1)
    repeated = others != [] and all(first[place : place + 1] == others[0][place : place + 1] for place in places)
    if columns is not None and not repeated:  # repeated: the columns name languages, as in eng, deu, source, target
        for position in columns.texts:
            if labels.count(labels[position]) > 1:
                raise InputError(f"{path} line {line}: two columns are called {labels[position]}; rename one of them")
        return Table(delimiter, quoted, labels, line, columns)
    example = _show(delimiter).join(("id", *languages)[-len(labels) :])
    if others and not repeated and _are_labels(labels) and not any(map(_are_labels, others)):
        raise InputError(
            f"{path} line {line}: no column {missing_language(labels, languages)!r}; columns: "
            f"{', '.join(label or 'unnamed' for label in labels)}. Name them in the first line, such as {example}"
        )
    samples = [[cells[column].strip() for _, cells in rows if len(cells) == len(labels)] for column in (0, 1)]
    if (column := _find_column_without_text(samples, may_repeat=len(labels) == 2)) is not None:
        raise InputError(
            f"{path}: column {column + 1} has no text ({', '.join(samples[column][:3])}); name the columns in a first "
            f"line, such as {example}"
        )
    backwards = re.search(rf"(^|[._-]){re.escape('-'.join(languages[::-1]))}[._-]", path.name)
    texts = (1, 0) if backwards else (0, 1)
    return Table(delimiter, quoted, [f"column {n}" for n in range(1, len(labels) + 1)], 0, Columns(texts, (None, None)))


def _find_column_without_text(samples: list[list[str]], may_repeat: bool) -> int | None:
    """Return the first column with nothing but numbers, ids, codes and languages, or else with a few words that return.

    samples: some cells of each column;  may_repeat: whether a text may consist of a few words
    """
    for column, cells in enumerate(samples):
        if all(not cell or NO_TEXT.fullmatch(cell) or is_language(cell) for cell in cells):
            return column
    if not may_repeat and len(samples[0]) > 4:
        words = [sum(map(len, map(str.split, cells))) / len(cells) for cells in samples]
        for column, cells in enumerate(samples):  # codes of letters beside sentences
            if words[1 - column] > 2 and all(re.fullmatch("[!-~]*", cell) for cell in cells):
                return column
    for column, cells in enumerate(samples):
        if not may_repeat and len(cells) > 2 and 10 * len(set(cells)) <= max(10, len(cells)):
            return column
    return None


def _are_labels(cells: list[str]) -> bool:
    if [cell for cell in cells if cell] == [str(n) for n in range(sum(map(bool, cells)))] and any(cells):
        return True  # of a table of pandas without names
    return all(is_language(cell) or LABEL.fullmatch(cell.casefold()) for cell in cells)


def _show(delimiter: str) -> str:
    return " TAB " if delimiter == "\t" else delimiter


def is_quoted(path: Path) -> bool:
    """Return whether the quotes of a TSV belong to the format, as those of pandas do.

    They do if all rows fit the format and either a text needs its quotes or every cell has them. Many tools of machine
    translation write TSV without quoting; their quotes are text.
    """
    needed, everywhere, row = False, True, b""
    with open_text(path) as file:
        for line in split_lines(file, str(path)):
            if not row and b'"' not in line:
                everywhere = everywhere and not line.strip()
                continue
            row += line
            if row.count(b'"') % 2:  # a line break inside quotes
                if len(row) > LONGEST_QUOTED:
                    return False
                continue
            row = row.removeprefix(BYTE_ORDER_MARK).removesuffix(b"\n").removesuffix(b"\r")
            if not QUOTED_ROW.fullmatch(row):
                return False
            needed = needed or NEEDS_QUOTES.search(row) is not None
            everywhere = everywhere and row.startswith(b'"') and row.endswith(b'"')
            row = b""
    return not row and (needed or everywhere)
