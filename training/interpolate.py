"""Sequence-level interpolation (Kim and Rush 2016, section 3.3): a model's translations nearest to the references.

    vaswani-transformer translate --model MODEL --input train.en --num-beams 8 --n-best 8 --output best.tsv
    python -m training.interpolate best.tsv train.fr --output nearest.fr

Text that a model would write itself and that says what the reference says, to train on beside the references.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from vaswani_transformer.errors import InputError, exit_cleanly
from vaswani_transformer.lines import read_lines, written_whole

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Of the n best translations of each line, write the one that is nearest its reference.")
def main_command(
    translations: Annotated[str, typer.Argument(help="What `translate --n-best` wrote.")],
    references: Annotated[str, typer.Argument(help="A UTF-8 text file (.gz too), one reference a line.")],
    output: Annotated[str, typer.Option(help="A file, or - for stdout.")] = "-",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Capital letters make no difference.")] = False,
) -> None:
    from sacrebleu.metrics import BLEU

    bleu = BLEU(lowercase=lowercase, effective_order=True)
    candidates = n_best(Path(translations))
    with written_whole(output) as out:
        number = 0
        for number, reference in enumerate(read_lines(references), start=1):
            line, texts = next(candidates, (None, []))
            if line != number:
                raise InputError(f"{translations} has no translation of line {number} of {references} in its place")
            # The first of equals, which the model likes best.
            nearest = max(texts, key=lambda text: bleu.sentence_score(text, [reference]).score)
            out.write(f"{nearest}\n".encode())
        if next(candidates, None):
            raise InputError(f"{translations} has more lines than {references}, which has {number}")


def n_best(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each line's number, from 1, and its translations, best first.

    Raises InputError for a line that is not a number, a score and a text with tabs between them.
    """

    def fields() -> Iterator[tuple[int, str]]:
        for place, line in enumerate(read_lines(path), start=1):
            columns = line.split("\t", 2)
            if len(columns) != 3 or not columns[0].isdecimal():
                raise InputError(f"{path} line {place}: not a line of `translate --n-best`: {line[:60]!r}")
            yield int(columns[0]), columns[2]

    for number, group in groupby(fields(), key=lambda field: field[0]):
        yield number, [text for _, text in group]


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="python -m training.interpolate")


if __name__ == "__main__":
    main()
