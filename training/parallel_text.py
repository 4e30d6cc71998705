"""Find the text that a recipe names: files, a dataset, or the demo's embedded corpus."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from vaswani_transformer.errors import InputError

from . import demo_corpus
from .dataset_text import dataset_chunks
from .recipe import EMBEDDED, FORMATS, HELD_OUT_EVERY, HELD_OUT_MOST, Recipe
from .text_files import Chunk, read_jsonl, read_tsv, read_two_files, tsv_columns


@dataclass(frozen=True)
class ParallelText:
    """A text in two languages that can be read repeatedly."""

    name: str
    chunks: Callable[[], Iterator[Chunk]]
    fingerprint: Callable[[], str]


def parallel_texts(recipe: Recipe, names: list[str]) -> list[ParallelText]:
    """Return the corpora named by a recipe's `train`, `validation` or `test`. Raises InputError for missing ones."""
    if recipe.dataset is not None:
        return [_from_dataset(recipe, split) for split in names]
    if recipe.data == EMBEDDED:
        return [_from_embedded(split, (recipe.source_language, recipe.target_language)) for split in names]
    folder = Path(recipe.data) if recipe.data is not None else Path()
    if recipe.data is not None and not folder.is_dir():
        raise InputError(f"data: there is no folder {recipe.data}; set --data to the folder of the text files")
    return [_from_files(folder, name, recipe) for name in names]


def train_and_validation_texts(recipe: Recipe) -> tuple[list[ParallelText], list[ParallelText], bool]:
    """Return the texts to train on and to validate with, and whether the latter are a part of the former.

    They are if the recipe has the default name for them and neither language has such a file.
    """
    texts = parallel_texts(recipe, recipe.train)
    files = recipe.dataset is None and recipe.data != EMBEDDED
    if files and recipe.validation == Recipe.model_fields["validation"].default:
        languages = recipe.source_language, recipe.target_language
        names = [f"{name}.{language}" for name in recipe.validation for language in languages]
        if not any(_files_named(Path(recipe.data or ""), name) for name in names):
            return [_part(text, False) for text in texts], [_part(text, True) for text in texts], True
    return texts, parallel_texts(recipe, recipe.validation), False


def _part(text: ParallelText, held_out: bool) -> ParallelText:
    """Return every HELD_OUT_EVERY-th pair of a text, at most HELD_OUT_MOST of them, or all other pairs."""

    def chunks() -> Iterator[Chunk]:
        index = 0
        for chunk in text.chunks():
            count = len(chunk.sources)
            rows = [row for row in range(count) if is_held_out(index + row)]
            gaps = zip([0, *(row + 1 for row in rows)], [*rows, count], strict=True)
            for start, end in ((row, row + 1) for row in rows) if held_out else gaps:
                yield Chunk(chunk.first_line + start, chunk.sources[start:end], chunk.targets[start:end])
            index += count
            if held_out and index >= HELD_OUT_EVERY * HELD_OUT_MOST:
                return

    kind = "only" if held_out else "without"
    return ParallelText(text.name, chunks, lambda: f"{text.fingerprint()} {kind} every {HELD_OUT_EVERY}th pair")


def is_held_out(number: int) -> bool:
    return number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 and number < HELD_OUT_EVERY * HELD_OUT_MOST


def _from_files(folder: Path, name: str, recipe: Recipe) -> ParallelText:
    languages = (recipe.source_language, recipe.target_language)
    plain = name.removesuffix(".gz")
    if plain.endswith(".csv") or name == "-":
        raise InputError(f"{name!r} is not a text that can be read: {FORMATS}")
    if plain.endswith(".tsv"):
        path = _existing(folder, name)
        columns = tsv_columns(path, languages)
        return ParallelText(
            name,
            lambda: read_tsv(path, languages, recipe.encoding_errors),
            lambda: f"{files_sha256(path)} {'' if columns == (0, 1, False) else columns}",
        )
    if plain.endswith(".jsonl"):
        path = _existing(folder, name)
        return ParallelText(
            name,
            lambda: read_jsonl(path, languages, recipe.encoding_errors),
            lambda: f"{files_sha256(path)} {languages}",  # the other direction is another corpus
        )
    if "," in name:
        stems = [part.strip() for part in name.split(",")]
        if len(stems) != 2:
            raise InputError(f"corpus {name!r} names {len(stems)} files, must be source,target")
    else:
        stems = [name.replace("{language}", x) if "{language}" in name else f"{name}.{x}" for x in languages]
    source, target = (_existing(folder, stem) for stem in stems)
    return ParallelText(
        name,
        lambda: read_two_files(source, target, recipe.encoding_errors),
        lambda: files_sha256(source, target),
    )


def _from_embedded(split: str, languages: tuple[str, str]) -> ParallelText:
    """Return a split of the demo's corpus."""
    if split not in demo_corpus.SPLITS:
        raise InputError(f"the embedded corpus has no split {split!r}; splits: {', '.join(demo_corpus.SPLITS)}")
    if sorted(languages) != ["de", "en"]:
        raise InputError(f"the embedded corpus is English and German (en, de), not {' to '.join(languages)}")

    def chunks() -> Iterator[Chunk]:
        texts: dict[str, list[str | None]] = {"en": [], "de": []}
        for _, english, german in demo_corpus.load(split):
            texts["en"].append(english)
            texts["de"].append(german)
        yield Chunk(1, *(texts[language] for language in languages))

    return ParallelText(split, chunks, lambda: f"{split} {languages} {files_sha256(demo_corpus.PATH)}")


def _from_dataset(recipe: Recipe, split: str) -> ParallelText:
    chunks, fingerprint = dataset_chunks(recipe, split)
    return ParallelText(f"{recipe.dataset}/{split}", chunks, lambda: fingerprint)


def _existing(folder: Path, name: str) -> Path:
    if found := _files_named(folder, name):
        return found[0]
    raise InputError(
        f"{folder / name}: no such file (nor {name}.gz); --train, --validation and --test name texts: {FORMATS}"
    )


def _files_named(folder: Path, name: str) -> list[Path]:
    return [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]


def files_sha256(*paths: Path) -> str:
    """Return a hash over the hashes of the files, in this order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def text_lines(texts: list[ParallelText]) -> Iterator[str]:
    """Yield both sides of all pairs, to train a tokenizer on."""
    for text in texts:
        for chunk in text.chunks():
            for line in chain(chunk.sources, chunk.targets):
                if line is not None and (stripped := line.strip()):
                    yield stripped
