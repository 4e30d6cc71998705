"""`accelerate launch -m training --config recipe.yaml [--key value ...]`, or the same with `python -m`."""

from typing import Annotated

import typer

from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly

from .recipe import Recipe, describe_keys, load_recipe

# Keys of a recipe are options as well.
RECIPE_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
Config = Annotated[str | None, typer.Option(help="A recipe: a YAML file, or the name of a shipped one.")]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Train a model. Every key of a recipe is an option as well: --max_steps 1000, --model.dropout 0.3.",
    epilog=describe_keys(),
)
def train(context: typer.Context, config: Config = None) -> None:
    recipe = load_recipe(config, parse_options(context.args))
    from .train import train as run

    run(recipe)


def parse_options(words: list[str]) -> dict[str, str | None]:
    """Parse `--key value` and `--key=value` into {key: value}; a bare `--key` has the value None."""
    options: dict[str, str | None] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise InputError(f"{word!r} is not an option; write `--key value`")
        key, equals, text = word[2:].partition("=")
        value = text if equals else rest.pop(0) if rest and not rest[0].startswith("--") else None
        if key in options:
            raise InputError(f"--{key} is given twice; several names are one list: --{key} '[{options[key]}, {value}]'")
        options[key] = value
    return options


def parse_recipe(arguments: list[str]) -> Recipe:
    """Return the recipe of a command line, for a launcher that needs to know `processes` beforehand."""
    options = parse_options(arguments)
    return load_recipe(options.pop("config", None), options)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer train")


if __name__ == "__main__":
    main()
