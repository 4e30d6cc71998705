"""`accelerate launch -m training --config recipe.yaml [--key value ...]`, and the same with `python -m`."""

from typing import Annotated

import typer

from vaswani_transformer.errors import InputError, exit_cleanly

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Train a model. Every key of a recipe is a flag as well: --max_steps 1000, --model.dropout 0.3.",
)
def train(
    context: typer.Context,
    config: Annotated[str | None, typer.Option(help="A recipe: a YAML file, or the name of a shipped one.")] = None,
) -> None:
    from .recipe import load_recipe

    recipe = load_recipe(config, flags_of(context.args))
    from .train import train as run

    run(recipe)


def flags_of(words: list[str]) -> dict[str, str]:
    """--key value, --key=value and a bare --key (true) as {key: text}."""
    flags: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise InputError(f"{word!r} is not a flag; flags are `--key value`")
        key, equals, value = word[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if key in flags:
            raise InputError(f"--{key} is given twice; several names are one list: --{key} '[{flags[key]}, {value}]'")
        flags[key] = value
    return flags


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="train")


if __name__ == "__main__":
    main()
