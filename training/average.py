"""The `average` command: average the weights of checkpoints (section 6.1).

The averaging is imported where it is used, so that --help is fast.
"""

from pathlib import Path
from typing import Annotated

import typer

from vaswani_transformer.atomic import atomic_folder, check_new_folder
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.languages import read_languages
from vaswani_transformer.languages_vaswani_transformer import find_language
from vaswani_transformer.training_run import RECORD, follow_pointer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Average the weights of checkpoints into a model folder.")
def average(
    checkpoint: Annotated[list[Path], typer.Argument(help="Model folders, or one run's folder (see --last).")],
    output: Annotated[Path, typer.Option(help="The new model folder.")],
    last: Annotated[
        int | None, typer.Option(min=1, help="Average this many last checkpoints of a run; default: 5.")
    ] = None,
) -> None:
    from vaswani_transformer.loading import load_model

    from .checkpoints import list_regular_checkpoints
    from .final_model import write_model
    from .run_folder import copy_conversion

    check_new_folder(output)
    folders = [follow_pointer(folder) for folder in checkpoint]
    if len(checkpoint) == 1 and (checkpoint[0] / "checkpoints").is_dir():
        last = last or 5
        folders = list_regular_checkpoints(checkpoint[0])[:last][::-1]
        if len(folders) < last:
            typer.echo(f"the run has {len(folders)} checkpoints, fewer than {last}", err=True)
    elif last is not None:
        raise InputError(f"--last {last} counts the checkpoints of one run; give the run's folder, or leave it out")
    if not folders:
        raise InputError(f"{checkpoint[0]}: no checkpoints to average")
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(folders):
        if resolved[number] in resolved[:number]:
            raise InputError(f"{folder} is given twice, and would count twice; name each checkpoint once")
        try:
            load_model(folder, "cpu")  # refuses what no command could load: the average would be no model either
        except BrokenFileError as error:
            raise BrokenFileError(f"{error}; choose checkpoints without {folder.name}") from error
    records = find_records(folders[-1])
    check_languages(folders)
    with atomic_folder(output) as unfinished:
        write_model(folders, unfinished, languages=read_languages(records))
        copy_conversion(records, unfinished)
    typer.echo(f"{output}: the average of {', '.join(folder.name for folder in folders)}")


def find_records(folder: Path) -> Path:
    """Return the folder that records the languages of a model: for a checkpoint, that of its run."""
    checkpoints = folder.resolve().parent
    run = checkpoints.parent
    return run if checkpoints.name == "checkpoints" and (run / RECORD).is_file() else folder


def check_languages(folders: list[Path]) -> None:
    """Raise InputError if the models are known to translate other languages; their tokenizer can be the same."""
    pairs = [(folder, pair) for folder in folders if (pair := read_languages(find_records(folder)))]
    for folder, pair in pairs[:-1]:
        last, expected = pairs[-1]
        if not all(map(mean_the_same, pair, expected)):
            raise InputError(
                f"{folder} translates {' to '.join(pair)}, but {last} {' to '.join(expected)}; such models cannot be "
                "averaged"
            )


def mean_the_same(first: str, second: str) -> bool:
    """Return whether two names can mean the same language: `en` and `en-US`, but not `en-GB` and `en-US`."""
    return find_language([first], second) is not None or find_language([second], first) is not None


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer average")
