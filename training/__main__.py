"""`accelerate launch -m training --config recipe.yaml [--key value ...]`, or the same with `python -m`."""

import typer

from vaswani_transformer.exit import exit_cleanly

from .recipe import describe_keys
from .recipe_options import RECIPE_OPTIONS, Config, read_command

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Train a model. Every key of a recipe is an option as well: --max_steps 1000, --model.dropout 0.3.",
    epilog=describe_keys(),
)
def train(context: typer.Context, config: Config = None) -> None:
    recipe = read_command(config, context.args)
    from .train import train as run

    run(recipe)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer train")


if __name__ == "__main__":
    main()
