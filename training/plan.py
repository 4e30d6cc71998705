"""The `plan` command: estimate the cost of a recipe."""

import json
from typing import Annotated

import typer

from vaswani_transformer.exit import exit_cleanly

from .recipe import describe_keys
from .recipe_options import RECIPE_OPTIONS, Config, read_command

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Estimate a recipe's parameters, FLOPs, memory, steps per epoch and training time. "
    "Takes the options of `train`.",
    epilog=describe_keys(),
)
def plan(
    context: typer.Context,
    config: Config = None,
    seconds: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds to measure the speed for; 0: do not measure.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    recipe = read_command(config, context.args)
    measured = f", then measuring the speed for {seconds:g} s" if seconds else ""
    typer.echo(f"reading the text and building the model{measured} ...", err=True)
    from .estimate import estimate, format_estimate

    result = estimate(recipe, seconds)
    typer.echo(json.dumps(result, indent=1) if as_json else format_estimate(result))


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer plan")
