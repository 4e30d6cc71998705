"""A dry run: what a recipe will cost, before it costs it."""

import json
from typing import Annotated

import typer

from vaswani_transformer.errors import exit_cleanly

from .__main__ import flags_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="A dry run of a recipe: parameters, FLOPs, memory, steps an epoch, projected time. Flags as for training.",
)
def plan(
    context: typer.Context,
    config: Annotated[str | None, typer.Option(help="A recipe: a YAML file, or the name of a shipped one.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="How long to measure the speed; 0: not at all.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    from .dry_run import make_plan, show
    from .recipe import load_recipe

    result = make_plan(load_recipe(config, flags_of(context.args)), seconds)
    typer.echo(json.dumps(result, indent=1) if as_json else show(result))


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="plan")


if __name__ == "__main__":
    main()
