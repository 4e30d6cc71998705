"""Does the library find the ends of sentences as well as libraries that were made for it?

    python -m benchmarks.sentences test.en.gz en

Row:  a system; the text is the sentences of FILE, joined by spaces three at a time.
Unit: precision, recall and F1 of the ends between them, and seconds.
Peers: sentencex, pysbd and syntok (pip install sentencex pysbd syntok), which are told the language.

A line counts as a sentence if it begins with a capital, ends in . ! or ? and has at least four words. Some lines are
several sentences, whose inner ends count as errors of every system alike.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from vaswani_transformer.lines import read_lines
from vaswani_transformer.sentences_vaswani_transformer import sentence_spans

from .harness import Row, report, run
from .options import Record

JOINED = 3  # sentences in a text

# Returns the character at which each sentence of a text ends.
Splitter = Callable[[str], list[int]]


def compare(
    file: Annotated[Path, typer.Argument(help="A sentence per line.")],
    language: Annotated[str, typer.Argument(help="Code of its language, for the peers.")],
    record: Record = None,
) -> None:
    """Compare systems that split texts into sentences."""
    lines = [line for line in read_lines(file) if line[0:1].isupper() and line[-1:] in ".!?" and len(line.split()) > 3]
    texts = [lines[start : start + JOINED] for start in range(0, len(lines), JOINED)]
    expected = [
        ends_between(" ".join(sentences), lambda text, sentences=sentences: find_ends(text, sentences))
        for sentences in texts
    ]
    rows: list[Row] = []
    for system, split in make_splitters(language).items():
        begin = time.perf_counter()
        found = [ends_between(" ".join(sentences), split) for sentences in texts]
        seconds = time.perf_counter() - begin
        hits = sum(len(a & b) for a, b in zip(found, expected, strict=True))
        precision, recall = hits / sum(map(len, found)), hits / sum(map(len, expected))
        rows.append(
            {
                "file": file.name,
                "sentences": len(lines),
                "system": system,
                "precision": round(precision, 4),
                "recall": round(recall, 4),
                "f1": round(2 * precision * recall / (precision + recall), 4),
                "seconds": round(seconds, 2),
            }
        )
    report(rows, record)


def make_splitters(language: str) -> dict[str, Splitter]:
    """Return this library and its peers by name."""
    import pysbd  # pyright: ignore[reportMissingImports]
    import sentencex  # pyright: ignore[reportMissingImports]
    from syntok import segmenter  # pyright: ignore[reportMissingImports]

    golden_rules = pysbd.Segmenter(language=language, clean=False)

    def split_by_syntok(text: str) -> list[int]:
        ends = [sentence[-1] for paragraph in segmenter.process(text) for sentence in paragraph]
        return [token.offset + len(token.value) for token in ends]

    return {
        "vaswani-transformer": lambda text: [stop for _, stop in sentence_spans(text)],
        "sentencex": lambda text: find_ends(text, sentencex.segment(language, text)),
        "pysbd": lambda text: find_ends(text, golden_rules.segment(text)),
        "syntok": split_by_syntok,
    }


def find_ends(text: str, sentences: Iterable[str]) -> list[int]:
    """Return the character at which each of the sentences ends."""
    ends = [0]
    for sentence in map(str.strip, sentences):
        ends.append(text.index(sentence, ends[-1]) + len(sentence))
    return ends[1:]


def ends_between(text: str, split: Splitter) -> set[int]:
    """Return the ends that a splitter finds, without that of the text."""
    return {*split(text)} - {len(text)}


if __name__ == "__main__":
    run(compare)
