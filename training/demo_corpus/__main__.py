"""`python -m training.demo_corpus FOLDER`: write the corpus as parallel text, one sentence per line.

For each of train, validation and test it writes SPLIT.en, SPLIT.de and the kinds of the pairs, SPLIT.kinds.
"""

from pathlib import Path
from typing import Annotated

import typer

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly

from . import SPLITS, load

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def write_parallel_text(folder: Path) -> list[Path]:
    """Write every split into the folder, create it if necessary, and return the paths. InputError if it is a file."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder; choose a new or existing folder for the corpus")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for split in SPLITS:
        columns = zip(*load(split), strict=True)
        for suffix, lines in zip(("kinds", "en", "de"), columns, strict=True):
            path = folder / f"{split}.{suffix}"
            with atomic_file(path) as file:
                file.writelines(f"{line}\n".encode() for line in lines)
            written.append(path)
    return written


@app.command()
def write(
    folder: Annotated[Path, typer.Argument(help="Where to write train.en, train.de, ..., test.kinds.")],
) -> None:
    """Write the embedded English-German corpus as plain parallel text files."""
    written = write_parallel_text(folder)
    counts = ", ".join(f"{split} {len(load(split)):,}" for split in SPLITS)
    typer.echo(f"{folder}: {len(written)} files; pairs: {counts}")


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, "python -m training.demo_corpus")


if __name__ == "__main__":
    main()
