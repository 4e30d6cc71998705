"""Translate numbered lines of text into lines of output, and list the translations that a reader should look at."""

from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from .doubts import Doubt
from .errors import InputError
from .lines import count_lines, remove_line_breaks
from .translator import Hypothesis, MissingLanguageError, NotFiniteError, Translator, as_texts

NumberedLines = tuple[list[str], int]  # and the number of the first line


@dataclass(frozen=True)
class Columns:
    """What a line of output holds besides the translation, separated by tabs.

    numbers: the number of the input line, in front.  scores: the score, in front of the translation
    alignments: the word alignment, behind it.  keep_breaks: the translation keeps its line breaks, if it stands alone
    """

    numbers: bool = False
    scores: bool = False
    alignments: bool = False
    keep_breaks: bool = False

    def format(self, hypothesis: Hypothesis, number: int) -> bytes:
        """Return the line of one translation.  number: of the input line"""
        if not (self.numbers or self.scores or self.alignments):
            return f"{hypothesis.text if self.keep_breaks else remove_line_breaks(hypothesis.text)}\n".encode()
        columns = [str(number)] if self.numbers else []
        columns += [f"{hypothesis.score:.6f}"] if self.scores else []
        columns.append(remove_line_breaks(hypothesis.text).replace("\t", " "))
        if self.alignments:
            from .alignments import format_links

            columns.append(format_links(hypothesis.links))
        return ("\t".join(columns) + "\n").encode()


class LineTranslator:
    """Translates chunks of lines, and counts and lists the doubtful translations.

    options: of `Translator.find_in_chunks`.  max_characters: of a line
    report: the file to which doubtful translations are appended
    """

    def __init__(
        self,
        translator: Translator,
        columns: Columns,
        options: dict[str, Any],
        max_characters: int | None = None,
        report: Path | None = None,
    ):
        self.translator, self.columns, self.options = translator, columns, options
        self.max_characters, self.report = max_characters, report
        self.counts: Counter[str] = Counter()  # of doubtful translations, by reason

    def translate(self, chunks: Iterable[NumberedLines], look_ahead: bool) -> Generator[list[bytes]]:
        """Yield the output of each chunk. Raises an error that names the line.

        look_ahead: read a chunk before the previous one is yielded; False for text that is still being written
        """
        numbers: deque[list[int]] = deque()  # of the lines of the chunks that are being translated
        doubts: list[Doubt] = []

        def texts() -> Iterator[list[str]]:
            for lines, first in chunks:
                checked = as_texts(lines, "line", self.max_characters, first)
                numbers.append(number_lines(checked, first))
                yield checked

        try:
            options = {"look_ahead": look_ahead, "doubts": doubts, "alignments": self.columns.alignments}
            with closing(self.translator.find_in_chunks(texts(), **options, **self.options)) as found:
                for translations in found:
                    of_chunk = numbers.popleft()
                    self._report(doubts, of_chunk)
                    doubts.clear()
                    numbered = zip(of_chunk, translations, strict=True)
                    yield [self.columns.format(each, number) for number, hypotheses in numbered for each in hypotheses]
        except NotFiniteError as error:
            raise NotFiniteError(0, "line", numbers[0][error.index]) from None
        except MissingLanguageError as error:
            raise MissingLanguageError(0, "line", error.reason, numbers[-1][error.index]) from None

    def _report(self, doubts: list[Doubt], numbers: list[int]) -> None:
        self.counts.update(doubt.reason.split(" has ")[0] for doubt in doubts)
        if self.report is not None:
            append_report(self.report, doubts, numbers)

    def summary(self) -> str | None:
        """Return a sentence on the doubtful translations, None if there are none."""
        if not self.counts:
            return None
        reasons = "; ".join(f"{reason} ({count})" for reason, count in self.counts.most_common())
        return f"doubtful translations: {reasons}; {self.report or '--report FILE'} lists them"


def append_report(path: Path, doubts: list[Doubt], numbers: list[int]) -> None:
    """Append doubtful translations to the report.  numbers: of the lines of the texts"""
    rows = [(str(numbers[doubt.text_index]), doubt.reason, doubt.source, doubt.translation) for doubt in doubts]
    content = "".join("\t".join(" ".join(column.split()) for column in row) + "\n" for row in rows)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(content)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"--report {path}: {error.strerror}; name a file in an existing folder") from None
    except OSError as error:  # a full disk
        error.filename = str(path)
        raise


def split_into_chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    lines = iter(lines)
    while chunk := list(islice(lines, size)):
        yield chunk


def number_chunks(chunks: Iterable[list[str]]) -> Iterator[NumberedLines]:
    """Yield chunks of lines, each with the number of its first line."""
    first = 1
    for lines in chunks:
        yield lines, first
        first += count_lines(lines)


def number_lines(texts: list[str], first: int) -> list[int]:
    """Return the number of the first line of each text."""
    return list(accumulate((count_lines([text]) for text in texts[:-1]), initial=first))
