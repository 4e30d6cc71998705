"""Parallel text of a `datasets` id, or of a folder made by `save_to_disk`."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, cast

from vaswani_transformer.errors import InputError, UnavailableError

from .recipe import Recipe
from .text_files import CHUNK, Chunk


def load_split(recipe: Recipe, split: str) -> tuple[Any, str]:
    """Return the split, and a fingerprint of its text."""
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise UnavailableError("dataset: needs the package `datasets` (pip install datasets)") from error
    name = cast(str, recipe.dataset)
    fingerprint = ""
    try:
        if Path(name).is_dir() and any((Path(name) / f).exists() for f in ("dataset_dict.json", "state.json")):
            loaded: Any = datasets.load_from_disk(name)  # without a copy
        elif recipe.streaming:
            builder = datasets.load_dataset_builder(name, recipe.dataset_config)
            loaded = builder.as_streaming_dataset()
            # The builder's hash covers the files: their times on disk or their commit on the Hub.
            fingerprint = f"{name} {builder.config_id} {builder.hash} {split}"
        else:
            loaded = datasets.load_dataset(name, recipe.dataset_config)
    except (OSError, ValueError, DatasetsError) as error:
        raise UnavailableError(f"dataset {name} cannot be loaded: {' '.join(str(error).split())}") from error
    if isinstance(loaded, dict):
        if split not in loaded:
            raise InputError(f"dataset {name} has no split {split!r}; splits: {', '.join(loaded)}")
        loaded = loaded[split]
    elif split != str(loaded.split) and split not in recipe.train:
        raise InputError(f"dataset {name} is one split ({loaded.split}), without {split!r}; save a DatasetDict of both")
    return loaded, fingerprint or f"{loaded._fingerprint} {len(loaded)}"


def dataset_chunks(recipe: Recipe, split: str) -> tuple[Callable[[], Iterator[Chunk]], str]:
    """Open a split of a `datasets` id or of a folder made by `save_to_disk`; `streaming` keeps no copy of it.

    Returns a function that yields its chunks, and a fingerprint of text and direction.
    """
    loaded, fingerprint = load_split(recipe, split)
    from datasets.exceptions import DatasetsError

    where = f"dataset {recipe.dataset}, split {split}"

    def batches() -> Iterator[dict[str, list[Any]]]:
        try:
            yield from loaded.iter(batch_size=CHUNK)
        except (OSError, ValueError, DatasetsError) as error:  # a stream may break off
            problem = " ".join(str(error.__cause__ or error).split())
            raise UnavailableError(f"{where}, cannot be read: {problem}") from error

    def chunks() -> Iterator[Chunk]:
        first = 1
        for batch in batches():
            columns: dict[str, list[Any]] = batch
            if nested := "translation" in batch:
                rows = [row or {} for row in batch["translation"]]
                columns = {key: [row.get(key) for row in rows] for key in dict.fromkeys(chain.from_iterable(rows))}
            sides: list[list[str | None]] = []
            for language in recipe.languages:
                if language not in columns:
                    what = "translation has no language" if nested else "there is no column 'translation' and no column"
                    raise InputError(f"{where}: {what} {language!r}; available: {', '.join(columns)}")
                sides.append([text or "" for text in columns[language]])
                for number, text in enumerate(sides[-1], first):
                    if not isinstance(text, str):
                        raise InputError(
                            f"{where}, row {number}: {language!r} holds {type(text).__name__}, must be text"
                        )
            yield Chunk(first, *sides)
            first += len(sides[0])

    return chunks, f"{fingerprint} {recipe.languages}"
