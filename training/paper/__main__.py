"""`vaswani-transformer paper table3 --output FOLDER`: the paper's tables, figures and claims, one command each."""

from pathlib import Path
from typing import Annotated

import typer

from vaswani_transformer.errors import InputError, exit_cleanly

from ..__main__ import RECIPE_OPTIONS, parse_options

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Reproduce the paper's tables, figures and claims at a small scale.",
)

Output = Annotated[Path, typer.Option(help="A folder for the row files, pictures and Markdown tables.")]
Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas.")]


@app.callback()
def paper() -> None:
    pass


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Train the rows of Table 3 and judge its directions. Other options are keys of the recipe multi30k_table3: "
    "--data FOLDER, --max_steps 5000. The same command resumes.",
)
def table3(
    context: typer.Context,
    output: Output,
    rows: Annotated[
        str | None, typer.Option(help="Rows, separated by commas, such as base,A-h1; default: all.")
    ] = None,
    seeds: Seeds = "1,2,3",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
) -> None:
    options = parse_options(context.args)
    from . import table3 as module

    module.table3(output, rows.split(",") if rows else module.ROWS, numbers(seeds), jobs, options)


def numbers(seeds: str) -> list[int]:
    try:
        return [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds {seeds}: must be whole numbers separated by commas, such as 1,2,3") from None


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer paper")


if __name__ == "__main__":
    main()
