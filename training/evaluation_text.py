"""The text to evaluate a model on: that of a recipe, of a run, or of text files."""

import json
from dataclasses import dataclass
from pathlib import Path

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import read_lines
from vaswani_transformer.model_folder import read_json_object

from . import demo_corpus
from .parallel_text import holds_out_validation, parallel_texts, sentences_of, train_and_validation_texts
from .recipe import EMBEDDED, Recipe, load_recipe

# Keys of a recipe that locate its text.
TEXT_KEYS = (
    "data", "dataset", "dataset_config", "streaming", "source_language", "target_language",
    "train", "validation", "test",
)  # fmt: skip


@dataclass(frozen=True)
class EvaluationText:
    """Sources with their references, and the kind of each sentence if it is known."""

    name: str
    data: str
    sources: list[str]
    references: list[str]
    kinds: list[str] | None = None
    language: str = "en"


def text_of_recipe(recipe: Recipe) -> EvaluationText:
    """Return the sentences of a recipe's `test` corpora, or of its validation text if it names no test corpus.

    The validation text is what training validates with, also if that is a part of the training text.
    """
    names = recipe.test or recipe.validation
    if not names:
        raise InputError("the recipe has no test corpus; pass --test NAME, or --source and --reference")
    if not recipe.test and holds_out_validation(recipe):
        names = [f"{name} (held out)" for name in recipe.train]
        texts = train_and_validation_texts(recipe).validation
    else:
        texts = parallel_texts(recipe, names)
    sources, references = sentences_of(texts)
    embedded = recipe.data == EMBEDDED
    kinds = [kind for name in names for kind, *_ in demo_corpus.load(name)] if embedded else None
    data = recipe.dataset or recipe.data or "."
    return EvaluationText(" + ".join(names), Path(data).name, sources, references, kinds, recipe.target_language)


def text_of_files(source: Path, reference: Path) -> EvaluationText:
    """Return the text of two parallel files."""
    sources, references = ([line.strip() for line in read_lines(path)] for path in (source, reference))
    if len(sources) != len(references):
        raise InputError(f"{source} has {len(sources)} lines, {reference} has {len(references)}")
    if not sources:
        raise InputError(f"{source} is empty")
    language = reference.name.removesuffix(".gz").rpartition(".")[2]  # test.de
    return EvaluationText(source.stem, source.parent.name, sources, references, language=language)


def recipe_of_run(model: Path, config: str | None = None, data: str | None = None, test: str | None = None) -> Recipe:
    """Load the recipe called `config`, or that of the run in the model's folder. data, test: replace the recipe's."""
    flags = {} if test is None else {"test": test}
    if data is not None:
        flags |= {"data": data, "dataset": "null", "streaming": "false"}
    if config is not None:
        return load_recipe(config, flags)
    if not (model / "run.json").is_file():
        raise InputError(f"{model} has no run.json; pass --config RECIPE, or --source and --reference")
    saved = read_json_object(model / "run.json", "recipe").get("recipe", {})
    # Only these keys: another version may have had other keys.
    texts = {key: json.dumps(saved[key], ensure_ascii=False) for key in TEXT_KEYS if key in saved}
    return load_recipe(None, texts | flags)
