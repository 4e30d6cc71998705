"""The keys of a recipe as options of a command: `--max_steps 1000`, `--model.dropout=0.3`."""

from typing import Annotated

import typer

from vaswani_transformer.errors import InputError

from .recipe import Recipe, load_recipe

# Typer's settings of a command that takes the keys of a recipe.
RECIPE_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
Config = Annotated[str | None, typer.Option(help="A recipe: a YAML file, or the name of a shipped one.")]


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
        for other, before in options.items():
            if other.replace("-", "_") == key.replace("-", "_"):
                field = Recipe.model_fields.get(key)
                one_list = field is not None and field.annotation == list[str]
                remedy = f"several names are one list: --{key} '[{before}, {value}]'" if one_list else "give it once"
                raise InputError(f"--{key} is given twice; {remedy}")
        options[key] = value
    return options


def parse_recipe(arguments: list[str]) -> Recipe:
    """Return the recipe of a command line, for a launcher that needs to know `processes` beforehand."""
    options = parse_options(arguments)
    return load_recipe(options.pop("config", None), options)
