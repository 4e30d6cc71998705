"""Shared code of the benchmarks that train: recipes, their text, and models like ours in transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaswani_transformer.lines import read_lines


def marian_like(config: dict[str, Any], **options: Any) -> Any:
    """Return transformers' Marian with the sizes and token ids of a config of ours, and random weights."""
    from transformers import MarianConfig, MarianMTModel

    names = ["vocab_size", "d_model", "activation_function", "dropout"]
    names += ["pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"]
    names += [f"{side}_{name}" for side in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")]
    shared = {name: config[name] for name in names if name in config}
    return MarianMTModel(MarianConfig(**shared, forced_eos_token_id=None, **options))


def training_lines(data: Path, language: str) -> list[str]:
    name = f"train.{language}"
    return list(read_lines(data / name if (data / name).is_file() else data / f"{name}.gz"))


def recipe_words(keys: Mapping[str, Any]) -> list[str]:
    """Return keys of a recipe as arguments of `python -m training`."""
    return [f"--{key}={json.dumps(value)}" for key, value in keys.items()]


def load_recipe(keys: Mapping[str, Any], config: str | None = None) -> Any:
    """Return a recipe (default: the paper's base model) with these keys."""
    from training import recipe

    return recipe.load_recipe(config, {key: json.dumps(value) for key, value in keys.items()})


def tokenised(recipe: Any, folder: Path) -> tuple[Any, Any]:
    """Return the recipe's tokenizer and its tokenised training text; both are made in the folder once."""
    from training.corpus import load_corpus
    from training.model import load_or_train_tokenizer
    from training.parallel_text import parallel_texts

    texts = parallel_texts(recipe, recipe.train)
    tokenizer = load_or_train_tokenizer(recipe, folder, texts, lambda _: None)
    return tokenizer, load_corpus(texts, tokenizer, recipe, folder / "cache", lambda _: None)


def stepper_of(recipe: Any, output: Path) -> Any:
    """Prepare a training run up to its first step; return its Stepper."""
    from training.metrics import Window
    from training.prepare import prepare
    from training.processes import make_accelerator
    from training.progress import Progress, Signals
    from training.report import Reporter
    from training.step import Stepper

    accelerator = make_accelerator(recipe, output)
    prepared = prepare(recipe, output, accelerator, Reporter(False))
    return Stepper(prepared, Progress(), Window(accelerator.device), Signals())
