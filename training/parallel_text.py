"""Find the text that a recipe names: files, a dataset, or the demo's embedded corpus."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, cast

from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.model_folder import files_sha256

from . import demo_corpus
from .recipe import EMBEDDED, FORMATS, Recipe
from .text_files import CHUNK, Chunk, read_jsonl, read_tsv, read_two_files, tsv_columns

Sentences = tuple[list[str], list[str]]  # sources and targets
HELD_OUT_EVERY, HELD_OUT_MOST = 50, 2000  # pairs, if there is no validation text


@dataclass(frozen=True)
class ParallelText:
    """A text in two languages that can be read repeatedly."""

    name: str
    chunks: Callable[[], Iterator[Chunk]]
    fingerprint: Callable[[], str]


def parallel_texts(recipe: Recipe, names: list[str]) -> list[ParallelText]:
    """Return the corpora named by a recipe's `train`, `validation` or `test`. Raises InputError for missing ones."""
    if recipe.dataset is not None:
        find = _from_dataset
    elif recipe.data == EMBEDDED:
        find = _from_embedded
    elif recipe.data is None or Path(recipe.data).is_dir():
        find = _from_files
    else:
        raise InputError(f"data: there is no folder {recipe.data}; set --data to the folder of the text files")
    return [find(recipe, name) for name in names]


class Texts(NamedTuple):
    """The texts of a run."""

    train: list[ParallelText]
    validation: list[ParallelText]
    held_out: bool  # whether the validation texts are a part of the training texts


def train_and_validation_texts(recipe: Recipe) -> Texts:
    """Return the texts to train on and to validate with."""
    texts = parallel_texts(recipe, recipe.train)
    if holds_out_validation(recipe):
        return Texts([_part(text, False) for text in texts], [_part(text, True) for text in texts], held_out=True)
    return Texts(texts, parallel_texts(recipe, recipe.validation), held_out=False)


def holds_out_validation(recipe: Recipe) -> bool:
    """Return whether to hold out training pairs: the default validation text exists in neither language."""
    if recipe.dataset is not None or recipe.data == EMBEDDED:
        return False
    if recipe.validation != Recipe.model_fields["validation"].default:
        return False
    names = [f"{name}.{language}" for name in recipe.validation for language in recipe.languages]
    return not any(_files_named(recipe, name) for name in names)


def _part(text: ParallelText, held_out: bool) -> ParallelText:
    """Return every HELD_OUT_EVERY-th pair of a text, HELD_OUT_MOST at most, or all other pairs."""
    end = HELD_OUT_EVERY * HELD_OUT_MOST

    def is_held_out(index: int) -> bool:
        return index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 and index < end

    def chunks() -> Iterator[Chunk]:
        read = 0
        for chunk in text.chunks():
            rows = range(len(chunk.sources))
            for wanted, run in groupby(rows, key=lambda row: is_held_out(read + row) == held_out):
                if wanted:
                    consecutive = list(run)
                    part = slice(consecutive[0], consecutive[-1] + 1)
                    yield Chunk(chunk.first_line + part.start, chunk.sources[part], chunk.targets[part])
            read += len(chunk.sources)
            if held_out and read >= end:
                return

    kind = "only" if held_out else "without"
    return ParallelText(text.name, chunks, lambda: f"{text.fingerprint()} {kind} every {HELD_OUT_EVERY}th pair")


def _from_files(recipe: Recipe, name: str) -> ParallelText:
    languages, errors = recipe.languages, recipe.encoding_errors
    plain = name.removesuffix(".gz")
    if plain.endswith(".csv") or name == "-":
        raise InputError(f"{name!r} has an unsupported format; use {FORMATS}")
    if plain.endswith(".tsv"):
        path = _existing(recipe, name)
        columns = tsv_columns(path, languages)
        suffix = "" if columns == (0, 1, False) else str(columns)
        return ParallelText(name, lambda: read_tsv(path, columns, errors), lambda: f"{files_sha256(path)} {suffix}")
    if plain.endswith(".jsonl"):
        path = _existing(recipe, name)
        return ParallelText(
            name,
            lambda: read_jsonl(path, languages, errors),
            lambda: f"{files_sha256(path)} {languages}",  # the reverse direction is another corpus
        )
    if "," in name:
        stems = [part.strip() for part in name.split(",")]
        if len(stems) != 2:
            raise InputError(f"corpus {name!r} names {len(stems)} files; write source,target")
    else:
        stems = [name.replace("{language}", x) if "{language}" in name else f"{name}.{x}" for x in languages]
    source, target = (_existing(recipe, stem) for stem in stems)
    return ParallelText(name, lambda: read_two_files(source, target, errors), lambda: files_sha256(source, target))


def _from_embedded(recipe: Recipe, split: str) -> ParallelText:
    """Return a split of the demo's corpus."""
    languages = recipe.languages
    if split not in demo_corpus.SPLITS:
        raise InputError(f"the embedded corpus has no split {split!r}; splits: {', '.join(demo_corpus.SPLITS)}")
    if sorted(languages) != ["de", "en"]:
        raise InputError(f"the embedded corpus is English and German (en, de), not {' to '.join(languages)}")

    def chunks() -> Iterator[Chunk]:
        _, english, german = zip(*demo_corpus.load(split), strict=True)
        texts = {"en": list(english), "de": list(german)}
        yield Chunk(1, *(texts[language] for language in languages))

    return ParallelText(split, chunks, lambda: f"{split} {languages} {files_sha256(demo_corpus.PATH)}")


def _from_dataset(recipe: Recipe, split: str) -> ParallelText:
    """Open a split of a `datasets` id, or of a folder made by `save_to_disk`."""
    from datasets.exceptions import DatasetsError

    where = f"dataset {recipe.dataset}, split {split}"
    loaded, fingerprint = _load_split(recipe, split)

    def chunks() -> Iterator[Chunk]:
        first = 1
        batches = loaded.iter(batch_size=CHUNK)
        while True:
            try:
                columns = next(batches, None)
            except (OSError, ValueError, DatasetsError) as error:  # a stream may fail midway
                problem = " ".join(str(error.__cause__ or error).split())
                raise UnavailableError(f"{where}, cannot be read: {problem}") from error
            if columns is None:
                return
            sides = [_column(columns, language, where, first) for language in recipe.languages]
            yield Chunk(first, *sides)
            first += len(sides[0])

    # The reverse direction is another corpus.
    return ParallelText(f"{recipe.dataset}/{split}", chunks, lambda: f"{fingerprint} {recipe.languages}")


def _column(columns: dict[str, list[Any]], language: str, where: str, first: int) -> list[str | None]:
    """Return a language's texts, from its own column or from its key in the column `translation`."""
    missing = "there is no column 'translation' and no column"
    if "translation" in columns:
        missing = "translation has no language"
        rows = [row or {} for row in columns["translation"]]
        columns = {key: [row.get(key) for row in rows] for key in dict.fromkeys(chain.from_iterable(rows))}
    if language not in columns:
        raise InputError(f"{where}: {missing} {language!r}; available: {', '.join(columns)}")
    texts = [text or "" for text in columns[language]]
    for number, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputError(f"{where}, row {number}: {language!r} is {type(text).__name__}, must be text")
    return texts


def _load_split(recipe: Recipe, split: str) -> tuple[Any, str]:
    """Return the split, and a fingerprint of its text."""
    import datasets
    from datasets.exceptions import DatasetsError

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
        raise InputError(f"dataset {name} has only split {loaded.split}, not {split!r}; save a DatasetDict with both")
    return loaded, fingerprint or f"{loaded._fingerprint} {len(loaded)}"


def _existing(recipe: Recipe, name: str) -> Path:
    if found := _files_named(recipe, name):
        return found[0]
    raise InputError(
        f"{Path(recipe.data or '') / name}: no such file (nor {name}.gz); --train, --validation and --test name "
        f"texts: {FORMATS}"
    )


def _files_named(recipe: Recipe, name: str) -> list[Path]:
    folder = Path(recipe.data or "")
    return [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]


def sentences_of(texts: Iterable[ParallelText]) -> Sentences:
    """Return the sources and the targets of parallel texts; "" for a line that could not be read."""
    sources, targets = [], []
    for chunk in (chunk for text in texts for chunk in text.chunks()):
        sources += [(line or "").strip() for line in chunk.sources]
        targets += [(line or "").strip() for line in chunk.targets]
    return sources, targets


def text_lines(texts: list[ParallelText]) -> Iterator[str]:
    """Yield both sides of all pairs, as training text for a tokenizer."""
    for text in texts:
        for chunk in text.chunks():
            for line in chain(chunk.sources, chunk.targets):
                if line is not None and (stripped := line.strip()):
                    yield stripped
