"""Parallel text in several formats: FORMATS lists them. Errors name the file and the line."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, cast

from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.lines import BYTE_ORDER_MARK, UTF_16_MARKS, decode_line, open_text
from vaswani_transformer.model_folder import files_sha256

from . import demo_corpus
from .recipe import EMBEDDED, TextSettings

CHUNK = 8192  # pairs in memory at a time; a corpus' sha256 depends on it
HELD_OUT_EVERY, HELD_OUT_MOST = 50, 2000  # pairs, if there is no validation text


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of a text."""

    first_line: int
    sources: list[str]
    targets: list[str]


@dataclass(frozen=True)
class ParallelText:
    """A text in two languages that can be read repeatedly."""

    name: str
    chunks: Callable[[], Iterator[Chunk]]
    fingerprint: Callable[[], str]  # different for another text or direction


class Format(NamedTuple):
    """A format of text: whether it reads a corpus that a recipe names, and how to open one."""

    fits: Callable[[TextSettings, str], bool]
    open: Callable[[TextSettings, str], ParallelText]


def open_texts(settings: TextSettings, names: list[str]) -> list[ParallelText]:
    """Open the corpora named by a recipe's `train`, `validation` or `test`. Raises InputError for missing ones."""
    return [
        next(format for format in FORMATS.values() if format.fits(settings, name)).open(settings, name)
        for name in names
    ]


def open_training_and_validation(settings: TextSettings) -> tuple[list[ParallelText], list[ParallelText]]:
    """Open the texts to train on and to validate with, which may be a part of the training texts."""
    texts = open_texts(settings, settings.train)
    if holds_out_validation(settings):
        return [_part(text, False) for text in texts], [_part(text, True) for text in texts]
    return texts, open_texts(settings, settings.validation)


def holds_out_validation(settings: TextSettings) -> bool:
    """Return whether to hold out training pairs: the default validation text exists in neither language."""
    if settings.dataset is not None or settings.data == EMBEDDED:
        return False
    if settings.validation != TextSettings.model_fields["validation"].default:
        return False
    names = [f"{name}.{language}" for name in settings.validation for language in settings.languages]
    return not any(_files_named(settings, name) for name in names)


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


def read_sentences(texts: Iterable[ParallelText]) -> tuple[list[str], list[str]]:
    """Read all sources and targets of parallel texts, without surrounding spaces."""
    sources, targets = [], []
    for chunk in (chunk for text in texts for chunk in text.chunks()):
        sources += [line.strip() for line in chunk.sources]
        targets += [line.strip() for line in chunk.targets]
    return sources, targets


def count_pairs(texts: Iterable[ParallelText]) -> int:
    return sum(len(chunk.sources) for text in texts for chunk in text.chunks())


def text_lines(texts: list[ParallelText]) -> Iterator[str]:
    """Yield both sides of all pairs, as training text for a tokenizer."""
    for text in texts:
        for chunk in text.chunks():
            for line in chain(chunk.sources, chunk.targets):
                if stripped := line.strip():
                    yield stripped


# ---- text files --------------------------------------------------------------------------------------------------


def open_two_files(settings: TextSettings, name: str) -> ParallelText:
    """Open two files whose lines n are translations of each other."""
    if name == "-" or name.endswith((".csv", ".csv.gz")):
        raise InputError(f"{name!r} has an unsupported format; use {FILE_FORMATS}; not CSV, and not stdin")
    if "," in name:
        names = [part.strip() for part in name.split(",")]
        if len(names) != 2:
            raise InputError(f"corpus {name!r} names {len(names)} files; write source,target")
    else:
        pattern = name if "{language}" in name else f"{name}.{{language}}"
        names = [pattern.replace("{language}", language) for language in settings.languages]
    source, target = (_existing(settings, each) for each in names)
    return ParallelText(name, lambda: _read_two_files(source, target), lambda: files_sha256(source, target))


def _read_two_files(source: Path, target: Path) -> Iterator[Chunk]:
    blocks = [_blocks(path) for path in (source, target)]
    read = 0
    for pair in zip_longest(*blocks, fillvalue=[]):
        if len(pair[0]) != len(pair[1]):
            counts = [read + len(block) + sum(map(len, rest)) for block, rest in zip(pair, blocks, strict=True)]
            raise InputError(
                f"{source} has {counts[0]} lines, {target} has {counts[1]}: line n of one must be the translation "
                f"of line n of the other"
            )
        yield Chunk(read + 1, *pair)
        read += len(pair[0])


def open_tsv(settings: TextSettings, name: str) -> ParallelText:
    """Open a file of lines `source TAB target`; further columns are ignored.

    A header that contains both language codes gives the order of the columns, or else a name such as
    `train.en-de.tsv`; without either, the first column is the source.
    """
    path, languages = _existing(settings, name), settings.languages
    with open_text(path) as file:
        first = file.readline().removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").strip().split("\t")
    source, target, header = 0, 1, set(languages) <= set(first)
    if header:
        source, target = map(first.index, languages)
    elif re.search(rf"(^|[._-]){re.escape('-'.join(languages[::-1]))}[._-]", path.name):
        source, target = 1, 0

    def read_pair(line: str, place: str) -> tuple[str, str]:
        cells = line.split("\t")
        if len(cells) <= max(source, target):
            raise InputError(f"{place}: {len(cells)} columns, expected source TAB target")
        return cells[source], cells[target]

    return ParallelText(
        name, lambda: _read_pairs(path, read_pair, int(header)), lambda: f"{files_sha256(path)} {source} {target}"
    )


def open_jsonl(settings: TextSettings, name: str) -> ParallelText:
    """Open a file of lines {"translation": {"en": ..., "de": ...}}, or of the inner object."""
    path = _existing(settings, name)

    def read_pair(line: str, place: str) -> tuple[str, str]:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"{place}: not JSON ({error})") from error
        if isinstance(record, dict) and "translation" in record:
            record = record["translation"]
        if not isinstance(record, dict):
            raise InputError(f'{place}: must be {{"translation": {{...}}}}, found {type(record).__name__}')
        source, target = (_json_text(record, language, place) for language in settings.languages)
        return source, target

    return ParallelText(
        name, lambda: _read_pairs(path, read_pair), lambda: f"{files_sha256(path)} {settings.languages}"
    )


def _json_text(record: dict, language: str, place: str) -> str:
    if language not in record:
        raise InputError(f"{place}: key {language!r} is missing; keys there: {', '.join(record) or 'none'}")
    text = record[language]
    if not isinstance(text, str):
        raise InputError(f"{place}: {language!r} is {'null' if text is None else type(text).__name__}, must be text")
    return text.replace("\n", " ")


def _read_pairs(path: Path, read_pair: Callable[[str, str], tuple[str, str]], skip: int = 0) -> Iterator[Chunk]:
    """Yield the pairs that `read_pair(line, place)` finds in the lines of a file, without the first `skip` lines."""
    first_line = 1
    for block in _blocks(path):
        pairs = [
            read_pair(line, f"{path} line {number}") for number, line in enumerate(block, first_line) if number > skip
        ]
        yield Chunk(max(first_line, skip + 1), [source for source, _ in pairs], [target for _, target in pairs])
        first_line += len(block)


def _blocks(path: Path) -> Iterator[list[str]]:
    """Yield the file's lines, CHUNK at a time. Lines end at \\n only; U+2028 and the like are text."""
    read = 0
    with open_text(path) as file:
        while block := list(islice(file, CHUNK)):
            if read == 0:
                if block[0].startswith(UTF_16_MARKS) or block[0].count(0) > len(block[0]) // 4:
                    raise InputError(f"{path} line 1: not UTF-8, looks like UTF-16; convert it with iconv")
                block[0] = block[0].removeprefix(BYTE_ORDER_MARK)
            try:
                yield b"".join(block).decode("utf-8").split("\n")[: len(block)]
            except UnicodeDecodeError:
                yield [decode_line(raw, str(path), line) for line, raw in enumerate(block, read + 1)]
            read += len(block)
    if read == 0:
        raise InputError(f"{path} is empty")


def _existing(settings: TextSettings, name: str) -> Path:
    """Return the file of this name, plain or .gz."""
    if settings.data is not None and not Path(settings.data).is_dir():
        raise InputError(f"data: there is no folder {settings.data}; set --data to the folder of the text files")
    if found := _files_named(settings, name):
        return found[0]
    raise InputError(
        f"{Path(settings.data or '') / name}: no such file (nor {name}.gz); --train, --validation and --test name "
        f"texts: {FILE_FORMATS}"
    )


def _files_named(settings: TextSettings, name: str) -> list[Path]:
    folder = Path(settings.data or "")
    return [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]


# ---- the demo's corpus -------------------------------------------------------------------------------------------


def open_embedded(settings: TextSettings, split: str) -> ParallelText:
    """Open a split of the demo's corpus."""
    languages = settings.languages
    if split not in demo_corpus.SPLITS:
        raise InputError(f"the embedded corpus has no split {split!r}; splits: {', '.join(demo_corpus.SPLITS)}")
    if sorted(languages) != ["de", "en"]:
        raise InputError(f"the embedded corpus is English and German (en, de), not {' to '.join(languages)}")

    def chunks() -> Iterator[Chunk]:
        _, english, german = zip(*demo_corpus.load(split), strict=True)
        texts = {"en": list(english), "de": list(german)}
        yield Chunk(1, *(texts[language] for language in languages))

    return ParallelText(split, chunks, lambda: f"{split} {languages} {files_sha256(demo_corpus.PATH)}")


# ---- datasets ----------------------------------------------------------------------------------------------------


def open_dataset(settings: TextSettings, split: str) -> ParallelText:
    """Open a split of a `datasets` id, or of a folder made by `save_to_disk`."""
    from datasets.exceptions import DatasetsError

    where = f"dataset {settings.dataset}, split {split}"
    loaded, fingerprint = _load_split(settings, split)

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
            sides = [_column(columns, language, where, first) for language in settings.languages]
            yield Chunk(first, *sides)
            first += len(sides[0])

    return ParallelText(f"{settings.dataset}/{split}", chunks, lambda: f"{fingerprint} {settings.languages}")


def _column(columns: dict[str, list[Any]], language: str, where: str, first: int) -> list[str]:
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


def _load_split(settings: TextSettings, split: str) -> tuple[Any, str]:
    """Return the split, and a fingerprint of its text."""
    import datasets
    from datasets.exceptions import DatasetsError

    name = cast(str, settings.dataset)
    fingerprint = ""
    try:
        if Path(name).is_dir() and any((Path(name) / f).exists() for f in ("dataset_dict.json", "state.json")):
            loaded: Any = datasets.load_from_disk(name)  # without a copy
        elif settings.streaming:
            builder = datasets.load_dataset_builder(name, settings.dataset_config)
            loaded = builder.as_streaming_dataset()
            # The builder's hash covers the files: their times on disk or their commit on the Hub.
            fingerprint = f"{name} {builder.config_id} {builder.hash} {split}"
        else:
            loaded = datasets.load_dataset(name, settings.dataset_config)
    except (OSError, ValueError, DatasetsError) as error:
        raise UnavailableError(f"dataset {name} cannot be loaded: {' '.join(str(error).split())}") from error
    if isinstance(loaded, dict):
        if split not in loaded:
            raise InputError(f"dataset {name} has no split {split!r}; splits: {', '.join(loaded)}")
        loaded = loaded[split]
    elif split != str(loaded.split) and split not in settings.train:
        raise InputError(f"dataset {name} has only split {loaded.split}, not {split!r}; save a DatasetDict with both")
    return loaded, fingerprint or f"{loaded._fingerprint} {len(loaded)}"


# ---- the formats -------------------------------------------------------------------------------------------------


def _ends_with(suffix: str) -> Callable[[TextSettings, str], bool]:
    """Return whether a name ends with a suffix, also before .gz."""
    return lambda _, name: name.removesuffix(".gz").endswith(suffix)


# The first format that fits opens a corpus. To add one, write a function that returns a ParallelText, and a row above
# the last, which fits every name.
FORMATS: dict[str, Format] = {
    "a split of `dataset`": Format(lambda settings, _: settings.dataset is not None, open_dataset),
    "a split of the demo's corpus": Format(lambda settings, _: settings.data == EMBEDDED, open_embedded),
    "NAME.tsv": Format(_ends_with(".tsv"), open_tsv),
    "NAME.jsonl": Format(_ends_with(".jsonl"), open_jsonl),
    "NAME for the files NAME.en and NAME.de, or 'a.txt,b.txt'": Format(lambda *_: True, open_two_files),
}
FILE_FORMATS = f"{', '.join(name for name in FORMATS if 'NAME' in name)}, each also as .gz"  # in error messages
