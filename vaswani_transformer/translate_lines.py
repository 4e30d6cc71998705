"""Translate numbered lines of text into lines of output, and list the translations that a reader should look at.

`translate` in cli.py reads chunks of lines. `number_chunks` numbers them, `Translator.find_in_chunks` translates them,
`OutputColumns.format` makes the lines of output; cli.py writes these to a stream, or translate_file.py to a file.
"""

from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from .atomic import append_whole
from .doubts import Doubt
from .errors import InputError, name_in_errors
from .lines import remove_line_breaks
from .translator import Hypothesis, MissingLanguageError, NotFiniteError, Translator, as_texts
from .unwrap import Copied

NumberedLines = tuple[list[str], list[int]]  # and the number of each line in the output


@dataclass(frozen=True)
class OutputColumns:
    """What a line of output holds besides the translation, separated by tabs.

    numbers: the number of the line, in front.  scores: the score, in front of the translation
    alignments: the word alignment, behind it
    """

    numbers: bool = False
    scores: bool = False
    alignments: bool = False

    @property
    def are_none(self) -> bool:
        """Whether the translation is alone; code in a document then keeps its line breaks."""
        return not (self.numbers or self.scores or self.alignments)

    def format(self, line: str, hypothesis: Hypothesis, number: int) -> bytes:
        """Return the line of output for the translation of a line.  number: of the line of output"""
        text = line if isinstance(line, Copied) else remove_line_breaks(hypothesis.text)
        if self.are_none:
            return f"{text}\n".encode()
        columns = [str(number)] if self.numbers else []
        columns += [f"{hypothesis.score:.6f}"] if self.scores else []
        columns.append(remove_line_breaks(text).replace("\t", " "))
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
        columns: OutputColumns,
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
        pending: deque[NumberedLines] = deque()  # the chunks that have begun
        doubts: list[Doubt] = []

        def texts() -> Iterator[list[str]]:
            for lines, numbers in chunks:
                pending.append((lines, numbers))
                yield [self._check(line, number) for line, number in zip(lines, numbers, strict=True)]

        try:
            options = {"look_ahead": look_ahead, "doubts": doubts, "alignments": self.columns.alignments}
            with closing(self.translator.find_in_chunks(texts(), **options, **self.options)) as found:
                for translations in found:
                    lines, numbers = pending.popleft()
                    self._report(doubts, numbers)
                    doubts.clear()
                    yield [
                        self.columns.format(line, each, number)
                        for line, number, hypotheses in zip(lines, numbers, translations, strict=True)
                        for each in hypotheses
                    ]
        except NotFiniteError as error:
            number = pending[0][1][error.index]  # found at the end of the oldest chunk
            raise NotFiniteError(error.index, f"line {number}") from None
        except MissingLanguageError as error:
            number = pending[-1][1][error.index]  # found at the beginning of the newest chunk
            raise MissingLanguageError(error.index, f"line {number}", error.reason) from None

    def _check(self, line: str, number: int) -> str:
        """Return what is translated of a line. Raises InputError."""
        if isinstance(line, Copied):
            return ""
        if self.max_characters is not None and len(line) > self.max_characters:
            raise InputError(
                f"line {number} has {len(line):,} characters; --max-characters is {self.max_characters:,}: split the "
                "line or raise the limit"
            )
        return as_texts(line, "line", number)[0]

    def number_chunks(self, chunks: Iterable[list[str]]) -> Iterator[NumberedLines]:
        """Yield chunks of lines with their numbers, from 1; a line of code has line breaks in the output, too."""
        first = 1
        for lines in chunks:
            lengths = (1 + line.count("\n") if self.columns.are_none else 1 for line in lines)
            *numbers, first = accumulate(lengths, initial=first)
            yield lines, numbers

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
    with name_in_errors(path), path.open("ab", buffering=0) as file:
        append_whole(file, content.encode())


def split_into_chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    lines = iter(lines)
    while chunk := list(islice(lines, size)):
        yield chunk
