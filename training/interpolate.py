"""Sequence-level interpolation: training text close to both the model's translations and the references.

For each training sentence, keeps the n-best translation that is closest to the reference (Kim and Rush 2016, section
3.3).

    vaswani-transformer translate --model MODEL --input train.en --n-best 6 --num-beams 6 --output n-best.tsv
    python -m training.interpolate n-best.tsv --reference train.fr --output interpolated.fr
"""

from collections.abc import Iterator
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import Annotated, cast

import typer

from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.lines import open_output, read_lines

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    help="Write the translation of every line that is closest to the reference (sentence BLEU) among the n best."
)
def interpolate(
    n_best: Annotated[
        list[Path], typer.Argument(help="Output of `translate --n-best` for the same lines, from one or more models.")
    ],
    reference: Annotated[Path, typer.Option(help="The reference of every line (.gz too).")],
    output: Annotated[str, typer.Option(help="A file, or - for stdout.")] = "-",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
) -> None:
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(lowercase=lowercase, effective_order=True)  # ignore n-grams longer than the sentence
    with open_output(output) as out:
        files = [reference, *n_best]
        for number, row in enumerate(zip_longest(read_lines(reference), *map(lists_of, n_best)), start=1):
            ended = [found is None for found in row]
            if any(ended):
                longer, shorter = files[ended.index(False)], files[ended.index(True)]
                raise InputError(f"{longer} has a line {number}, {shorter} ends before; they must be parallel")
            line, lists = cast(str, row[0]), cast(tuple[list[str], ...], row[1:])
            # max() keeps the first of equally close translations: the one with the highest score.
            closest = max(chain(*lists), key=lambda text, line=line: bleu.sentence_score(text, [line]).score)
            out.write(f"{closest}\n".encode())


def lists_of(path: Path) -> Iterator[list[str]]:
    """Yield each line's translations from the output of `translate --n-best`. Raises InputError naming the line."""

    def numbered() -> Iterator[tuple[int, str]]:
        for row, line in enumerate(read_lines(path), start=1):
            number, *rest = line.split("\t")
            if len(rest) != 2 or not number.isdecimal():
                raise InputError(f"{path} line {row}: expected line number TAB score TAB text")
            yield int(number), rest[1]

    for expected, (number, rows) in enumerate(groupby(numbered(), key=lambda row: row[0]), start=1):
        if number != expected:
            raise InputError(f"{path}: expected translations of line {expected}, found line {number}")
        yield [text for _, text in rows]


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="python -m training.interpolate")


if __name__ == "__main__":
    main()
