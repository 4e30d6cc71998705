"""The recipe of a command line: options such as `--max_steps 1000`, and a choice by the size of the text."""

import math
import os
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import print_error

from .recipe import Recipe, load_recipe

# Typer's settings of a command that takes the keys of a recipe.
RECIPE_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
Config = Annotated[
    str | None,
    typer.Option(
        help="A recipe: the name of one in the package, or a YAML file; default: fine_tune with --initial_weights, "
        "else chosen by the number of pairs."
    ),
]


class Size(NamedTuple):
    """A recipe for any text of a certain size."""

    recipe: str
    most_pairs: float
    written_for: int  # number of pairs that its `max_steps` is meant for


# Where one recipe ends and the next begins is our judgement: Wu et al. 2021 and fairseq chose the sizes of `tiny` and
# `small` for 29,000 and 160,000 pairs, the paper those of `base` and `big` for 4.5 and 36 million.
SIZES = (
    Size("tiny", 50_000, 29_000),
    Size("small", 1_000_000, 160_000),
    Size("base", 10_000_000, 4_500_000),
    Size("big", math.inf, 36_000_000),
)
FINE_TUNING = "fine_tune"


def read_command(config: str | None, words: list[str]) -> Recipe:
    """Return the recipe of a command with --config and these further words.

    Without --config, initial weights get the recipe for them; else a recipe is chosen by the number of training pairs,
    unless a preset is given.
    """
    options = parse_options(words)
    if config is None and {"initial_weights", "initial-weights"} & options.keys():
        config = FINE_TUNING
        say_once(f"initial_weights: recipe {FINE_TUNING}; choose another with --config NAME, or set single keys")
    if config is None and "preset" not in options:
        return choose_recipe(options)
    return load_recipe(config, options)


def say_once(text: str) -> None:
    """Write a line on stderr; one of several processes does."""
    if os.environ.get("RANK", "0") == "0":
        print_error(text)


def choose_recipe(options: dict[str, str | None]) -> Recipe:
    """Count the training pairs, choose one of SIZES, scale its steps and vocabulary to the pairs, and say so."""
    from .parallel_text import count_pairs, open_texts

    text = load_recipe(SIZES[0].recipe, options).settings().text
    if text.dataset is not None and not Path(text.dataset).is_dir():
        raise InputError(
            f"dataset {text.dataset} is on the Hub, where its pairs cannot be counted; name a recipe with --config: "
            f"{', '.join(size.recipe for size in SIZES)}"
        )
    pairs = count_pairs(open_texts(text, text.train))
    if not pairs:
        raise InputError(f"train: there are no pairs in {', '.join(text.train)}; give a text that has some")
    size = next(size for size in SIZES if pairs <= size.most_pairs)
    given = {key.replace("-", "_") for key in options}
    steps = load_recipe(size.recipe, options).max_steps if "max_steps" in given else None
    chosen = {key: value for key, value in scale(size, pairs, steps).items() if key not in given}
    values = "".join(f", {key} {value:,}" for key, value in chosen.items())
    range_of_size = f"up to {size.most_pairs:,.0f}" if math.isfinite(size.most_pairs) else "more than 10,000,000"
    say_once(
        f"{pairs:,} pairs: recipe {size.recipe} (for {range_of_size}){values}; choose another with --config NAME "
        "(`vaswani-transformer recipes` lists them), or set single keys"
    )
    return load_recipe(size.recipe, {key: str(value) for key, value in chosen.items()} | options)


def scale(size: Size, pairs: int, steps: int | None = None) -> dict[str, float]:
    """Return the keys of a size's recipe that depend on the number of pairs. steps: None to choose their number, too

    The number of epochs stays the same, between a third of the recipe's steps and twice as many. The warm-up takes a
    quarter of the steps at most; the learning rate then rises as fast as in the recipe, to a lower peak. (When it rose
    40 times as fast, in 45 steps, the loss of `tiny` stayed at 6.6.) The vocabulary of a short text is smaller, since
    rare entries are not learnt.
    """
    recipe = load_recipe(size.recipe)
    assert recipe.max_steps is not None
    if steps is None:
        steps = 100 * round(recipe.max_steps * min(2, max(1 / 3, pairs / size.written_for)) / 100)
    warmup_steps = min(recipe.warmup_steps, max(1, steps // 4))
    vocab_size = min(recipe.vocab_size, max(300, min(1000, 2 * pairs), pairs // 3))
    keys: dict[str, float] = {"max_steps": steps, "warmup_steps": warmup_steps, "vocab_size": vocab_size}
    if recipe.learning_rate is not None:  # the paper's formula depends on the warm-up itself
        keys["learning_rate"] = float(f"{recipe.learning_rate * warmup_steps / recipe.warmup_steps:.2g}")
    return keys


def parse_options(words: list[str]) -> dict[str, str | None]:
    """Parse `--key value` and `--key=value` into {key: value}; a bare `--key` has the value None."""
    options: dict[str, str | None] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise InputError(f"{word!r} is not an option; write `--key value`, such as --data FOLDER")
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


def read_processes(words: list[str]) -> int | None:
    """Return the number of processes that a command line asks for, for a launcher.

    Without --config, `read_command` chooses a recipe later, with which other keys are checked.
    """
    options = parse_options(words)
    config = options.pop("config", None)
    if config is None:
        options = {key: text for key, text in options.items() if key == "processes"}
    return load_recipe(config, options).processes
