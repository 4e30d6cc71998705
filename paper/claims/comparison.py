"""Train the models that a claim compares, variations of Table 3's recipe, with every seed."""

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from training.recipe import TEXT_KEYS, Recipe, load_recipe
from training.train import train
from vaswani_transformer import TorchTranslator
from vaswani_transformer.errors import InputError

from ..parallel import run_in_processes
from ..table3 import RECIPE
from .claim import Measurements, Setting

# Training steps. With these and one seed, all claims together take less than half an hour on two cores.
SHORT_STEPS, LONG_STEPS = 300, 800
Kind = TypeVar("Kind", bound=Hashable)
Change = Callable[[Any], None]  # of a model's computation, in place; see `train`


class Variant(NamedTuple):
    """A model to train and measure."""

    folder: str
    keys: Mapping[str, str]  # recipe keys that differ from Table 3's recipe
    measure: Callable[[Recipe], Measurements]  # trains the model and returns measurements by name


def train_models(setting: Setting, models: Mapping[Kind, Variant], steps: int) -> Measurements:
    """Train each kind of model with each seed, several in parallel.

    steps: default for the option --max_steps
    Returns {"steps": number of steps, name of a measurement: {kind: [value for each seed]}, ...}.
    Raises InputError if an option sets a key that the claim sets.
    """
    options = {"max_steps": str(steps), "validate_every": str(steps), **setting.options}
    given = {key.replace("-", "_") for key in setting.options} - TEXT_KEYS  # which make_setting adds
    kinds, calls = [], []
    for kind, model in models.items():
        for key in {*model.keys, "seed"} & given:
            raise InputError(f"--{key} cannot be given: the claim sets it")
        for seed in setting.seeds:
            keys = {**model.keys, "seed": str(seed)}
            folder = setting.runs / f"{model.folder}-seed{seed}"
            recipe = load_recipe(RECIPE, {**options, **keys, "output_dir": str(folder)})
            kinds.append(kind)
            calls.append((Path(f"{folder}.log"), partial(model.measure, recipe)))
    measurements: Measurements = {"steps": load_recipe(RECIPE, options).max_steps}
    for kind, result in zip(kinds, run_in_processes(calls, setting.jobs), strict=True):
        for name, value in result.items():
            measurements.setdefault(name, {}).setdefault(kind, []).append(value)
    return measurements


def train_and_load(recipe: Recipe, change: Change | None = None) -> TorchTranslator:
    """Train a model, or resume or load it if it exists. Raises InputError if it was trained with another recipe."""
    train(recipe, change)
    translator = TorchTranslator.from_pretrained(Path(recipe.output_dir))
    if change is not None:
        change(translator.model)
    return translator
