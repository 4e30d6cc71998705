"""Parallel text in several formats: FORMATS lists them. Errors name the file and the line."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, cast
from zlib import crc32

from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.files import files_sha256
from vaswani_transformer.languages_vaswani_transformer import split_code
from vaswani_transformer.lines import (
    BYTE_ORDER_MARK,
    check_first_line,
    check_unicode,
    decode_line,
    open_text,
    split_lines,
)

from . import demo_corpus
from .recipe import EMBEDDED, TextSettings
from .tables import (
    Columns,
    Row,
    describe_table,
    find_columns,
    find_languages,
    have_columns,
    is_name_of,
    is_quoted,
    missing_language,
    read_rows,
)
from .tmx import read_units

CHUNK = 8192  # pairs in memory at a time
HELD_OUT_EVERY, HELD_OUT_MOST = 50, 2000  # pairs, if there is no validation text


# The number of its first line, source and target as they are in the file, see `join_lines`; None is no text.
Pair = tuple[int, str | None, str | None]


@dataclass(frozen=True)
class ParallelText:
    """A text in two languages that can be read repeatedly.

    fingerprint: returns what determines the pairs: the sha256 of the files and, where the files leave it open, which
        texts are read, such as "9f86d081... ('en', 'de')"; load_corpus caches the tokenised text by it
    files: the user's, which no output may replace
    """

    name: str
    pairs: Callable[[], Iterator[Pair]]
    fingerprint: Callable[[], str]
    files: tuple[Path, ...] = ()


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
        training, validation = ([_part(text, held_out) for text in texts] for held_out in (False, True))
    else:
        training, validation = texts, open_texts(settings, settings.validation)
    if settings.capitals:
        training = [_with_capitals(text, settings.capitals, settings.languages) for text in training]
    return training, validation


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

    def pairs() -> Iterator[Pair]:
        for index, pair in enumerate(islice(text.pairs(), end if held_out else None)):
            if is_held_out(index) == held_out:
                yield pair

    kind = "only" if held_out else "without"
    return replace(text, pairs=pairs, fingerprint=lambda: f"{text.fingerprint()} {kind} every {HELD_OUT_EVERY}th pair")


def _with_capitals(text: ParallelText, share: float, languages: tuple[str, str]) -> ParallelText:
    """Return a text with copies of some pairs in capitals, and of some in title case.

    Without them a model translates headlines badly; OpusTrainer makes them for Firefox's models. The choice depends on
    the pair alone, so that runs with other seeds share the tokenised text. A source that does not change has no copy.
    """
    parts = {b"capitals": WHOLE, b"title case": FIRST_LETTER}

    def pairs() -> Iterator[Pair]:
        for pair in text.pairs():
            yield pair
            line, source, target = pair[0], *map(join_lines, pair[1:])
            for name, part in parts.items():
                if crc32(f"{source}\t{target}".encode(), crc32(name)) < share * 2**32:
                    copy = change_case(source, part, languages[0])
                    if target and copy != source:
                        yield line, copy, change_case(target, part, languages[1])

    name = f"{text.name} and {share:g} in capitals"
    return ParallelText(name, pairs, lambda: f"{text.fingerprint()} capitals {share} {languages}")


# Words with these characters are tags, placeholders or addresses: <2de>, {name}, __NUM__, a.b@c.org, https://a.org
UNCHANGED = re.compile(r"\S*[<>{}_@\\/]\S*")
WORD = re.compile(r"\S+")
WHOLE, FIRST_LETTER = re.compile(r".+"), re.compile(r"^\W*\w")
WITH_DOTTED_I = ("az", "tr")


def change_case(text: str, part: re.Pattern[str], language: str) -> str:
    """Write each word in capitals (part: WHOLE), or its FIRST_LETTER as in headlines, except tags and addresses."""
    is_dotted = split_code(language)[0] in WITH_DOTTED_I

    def change(word: re.Match[str]) -> str:
        if UNCHANGED.fullmatch(word[0]):
            return word[0]
        return part.sub(lambda match: (match[0].replace("i", "İ") if is_dotted else match[0]).upper(), word[0], count=1)

    return WORD.sub(change, text)


def join_lines(text: str | None) -> str:
    """Return a text of any format without surrounding white space, and with a space for a line break inside it."""
    text = (text or "").strip()
    if "\n" not in text and "\r" not in text:
        return text
    return " ".join(filter(None, map(str.strip, re.split(r"[\r\n]", text))))


def read_sentences(texts: Iterable[ParallelText]) -> tuple[list[str], list[str]]:
    """Read the sources and targets of parallel texts, cleaned, without the pairs that lack one, as in training."""
    pairs = [tuple(map(join_lines, pair)) for text in texts for _, *pair in text.pairs()]
    complete = [pair for pair in pairs if all(pair)]
    return [source for source, _ in complete], [target for _, target in complete]


def fingerprints(texts: Iterable[ParallelText]) -> list[str]:
    return [text.fingerprint() for text in texts]


def refuse_changed(texts: Sequence[ParallelText], before: list[str]) -> None:
    """Raise InputError if the texts, which have been read, no longer have the fingerprints of before."""
    if fingerprints(texts) != before:
        names = " + ".join(text.name for text in texts)
        raise InputError(f"{names}: the text changed while it was being read; run the command again")


def count_pairs(texts: Iterable[ParallelText]) -> int:
    return sum(1 for text in texts for _ in text.pairs())


def text_lines(texts: list[ParallelText]) -> Iterator[str]:
    """Yield both sides of all pairs, as training text for a tokenizer."""
    for text in texts:
        for _, *pair in text.pairs():
            yield from filter(None, map(join_lines, pair))


# ---- text files --------------------------------------------------------------------------------------------------


def open_two_files(settings: TextSettings, name: str) -> ParallelText:
    """Open two files whose lines n are translations of each other."""
    if "," in name:
        names = [part.strip() for part in name.split(",")]
        if len(names) != 2:
            raise InputError(f"corpus {name!r} names {len(names)} files; write source,target")
    else:
        pattern = name if "{language}" in name else f"{name}.{{language}}"
        names = [pattern.replace("{language}", language) for language in settings.languages]
        if (others := _files_named(settings, name)) and not _files_named(settings, names[0]):
            if (corpus := _corpus_name(settings, name)) != name:
                raise InputError(f"{others[0]} is one of two files; give {corpus}, which names both")
            raise InputError(f"{others[0]} is in no format that training reads by its name: {FILE_FORMATS}")
    source, target = (_existing(settings, each) for each in names)
    files = source, target
    return ParallelText(name, lambda: _read_two_files(*files), lambda: files_sha256(*files), files)


def _read_two_files(source: Path, target: Path) -> Iterator[Pair]:
    blocks = [_blocks(path) for path in (source, target)]
    read = 0
    for pair in zip_longest(*blocks, fillvalue=[]):
        if len(pair[0]) != len(pair[1]):
            counts = [read + len(block) + sum(map(len, rest)) for block, rest in zip(pair, blocks, strict=True)]
            raise InputError(
                f"{source} has {counts[0]} lines, {target} has {counts[1]}: line n of one must be the translation "
                f"of line n of the other"
            )
        yield from zip(count(read + 1), *pair)
        read += len(pair[0])


def open_jsonl(settings: TextSettings, name: str) -> ParallelText:
    """Open a file of lines {"translation": {"en": ..., "de": ...}}, or of the inner object."""
    path = _existing(settings, name)

    def read_pairs() -> Iterator[Pair]:
        columns: dict[tuple[str, ...], Columns] = {}  # by the keys of a line
        for number, line in enumerate(chain.from_iterable(_blocks(path)), start=1):
            place = f"{path} line {number}"
            record = _parse_line(line, place)
            if not record:
                yield number, None, None
                continue
            if (keys := tuple(record)) not in columns:
                if (found := find_columns(keys, settings.languages)) is None:
                    missing = missing_language(keys, settings.languages)
                    raise InputError(f"{place}: key {missing!r} is missing; keys there: {', '.join(keys)}")
                columns[keys] = found
            yield number, *_pick_texts(list(record.values()), keys, columns[keys], settings.languages, place)

    return ParallelText(name, read_pairs, lambda: f"{files_sha256(path)} {settings.languages}", (path,))


JSON_LINES = "write one object on each line; of an array: jq -c '.[]'"


def _parse_line(line: str, place: str) -> dict[str, Any]:
    """Return the object of a line of JSON, or the one inside its "translation"; {} for a blank line or null."""
    if not line.strip():
        return {}
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        problem = str(error).replace("line 1 column", "column")  # of the JSON
        raise InputError(f"{place}: not JSON ({problem}); {JSON_LINES}") from error
    if isinstance(record, dict) and isinstance(record.get("translation"), dict | None):
        record = record.get("translation", record)
    if not isinstance(record, dict | None):
        raise InputError(f'{place}: must be {{"translation": {{...}}}}, found {type(record).__name__}; {JSON_LINES}')
    return record or {}


def _pick_texts(
    row: Sequence[Any], labels: Sequence[str], columns: Columns, languages: Sequence[str], place: str
) -> tuple[str | None, str | None]:
    """Return the source and the target of a row. Raises InputError if they are no text, or named as other languages."""
    for position in columns.texts:
        if not isinstance(row[position], str | None):
            raise InputError(f"{place}: {labels[position]!r} is {type(row[position]).__name__}; it must be text")
        check_unicode(row[position] or "", f"{place}: {labels[position]!r}")
    for position, language in zip(columns.languages, languages, strict=True):
        if position is not None and row[position] not in (None, "") and not is_name_of(str(row[position]), language):
            raise InputError(
                f"{place}: {labels[position]} is {row[position]!r}, but the recipe's language there is {language!r}; "
                "keep the lines of one direction, and set source_language and target_language to it"
            )
    return row[columns.texts[0]], row[columns.texts[1]]


def open_tmx(settings: TextSettings, name: str) -> ParallelText:
    """Open a translation memory. Units without a text in one of the languages are pairs with None."""
    path, languages = _existing(settings, name), settings.languages

    def read_pairs() -> Iterator[Pair]:
        positions: dict[tuple[str, ...], list[int | None]] = {}  # by the languages of a unit
        for line, texts in read_units(path, settings.keep_codes):
            names = tuple(texts)
            if names not in positions:
                positions[names] = find_languages(names, languages)
            source, target = (None if p is None else texts[names[p]] for p in positions[names])
            yield line, source, target
        if not positions:
            raise InputError(f"{path} has no translation units")
        for side, language in enumerate(languages):
            if all(found[side] is None for found in positions.values()):
                available = ", ".join(sorted({name or "none" for names in positions for name in names})) or "none"
                raise InputError(f"{path}: no unit has a text in {language!r}; languages there: {available}")

    return ParallelText(
        name,
        read_pairs,
        lambda: f"{files_sha256(path)} {languages} {'with codes' if settings.keep_codes else ''}",
        (path,),
    )


def _blocks(path: Path) -> Iterator[list[str]]:
    """Yield the file's lines, CHUNK at a time. Lines end at \\n only; U+2028 and the like are text."""
    read = 0
    with open_text(path) as file:
        lines = split_lines(file, str(path))
        while block := list(islice(lines, CHUNK)):
            if read == 0:
                check_first_line(block[0], str(path))
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
        data = Path(settings.data)
        remedy = "set --data to the folder of the text files"
        if data.is_file():
            remedy = f"use --data {data.parent} --train {_corpus_name(settings, data.name)}"
        raise InputError(f"data: there is no folder {data}; {remedy}")
    if found := _files_named(settings, name):
        return found[0]
    remedy = "" if settings.data else "give --data FOLDER; "
    raise InputError(
        f"{Path(settings.data or '') / name}: no such file (nor {name}.gz); {remedy}--train, --validation and --test "
        f"name texts: {FILE_FORMATS}"
    )


def _corpus_name(settings: TextSettings, file: str) -> str:
    """Return the name of the corpus in a file: that of a language's file ends before the language."""
    corpus, _, extension = file.removesuffix(".gz").rpartition(".")
    return (corpus or "{language}") if extension in settings.languages else file


def _files_named(settings: TextSettings, name: str) -> list[Path]:
    """Return the files of this name, plain and .gz. Raises InputError for a pipe (`<(...)`) or a device."""
    paths = [Path(settings.data or "", each) for each in (name, f"{name}.gz")]
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(f"{path} is a pipe or a device, which cannot be read several times; write it to a file")
    return [path for path in paths if path.is_file()]


# ---- tables -----------------------------------------------------------------------------------------------------


def open_tsv(settings: TextSettings, name: str) -> ParallelText:
    """Open a file of lines `source TAB target`. Quotes are text, unless the whole file is quoted as a CSV file is."""
    path = _existing(settings, name)
    return _open_table(settings, name, path, "\t", is_quoted(path))


def open_csv(settings: TextSettings, name: str) -> ParallelText:
    """Open a CSV file with commas, or with semicolons or tabs as spreadsheets write them in many languages."""
    path = _existing(settings, name)
    delimiter = next((each for each in ",;\t" if have_columns(_rows(path, each, True))), ",")
    return _open_table(settings, name, path, delimiter, True)


def _open_table(settings: TextSettings, name: str, path: Path, delimiter: str, quoted: bool) -> ParallelText:
    languages = settings.languages
    table = describe_table(_rows(path, delimiter, quoted), languages, path, delimiter, quoted)
    source, target = table.columns.texts
    names = [table.labels[source], table.labels[target]] if table.header else list(languages)

    def read_pairs() -> Iterator[Pair]:
        for number, cells in _rows(path, delimiter, quoted):
            place = f"{path} line {number}"
            if number == table.header:
                continue
            elif not any(map(str.strip, cells)):
                yield number, None, None
            elif len(cells) != len(table.labels):
                raise InputError(
                    f"{place}: {len(cells)} columns, but the first line has {len(table.labels)}; a text with "
                    f"{'a tab' if delimiter == chr(9) else repr(delimiter)} or a line break must be in quotes"
                )
            elif [cells[source], cells[target]] == names:  # the header again, where tables were joined
                yield number, None, None
            elif {*names} <= {*cells}:
                raise InputError(
                    f"{place}: a header with another order of columns ({', '.join(cells)}); a header must be the first "
                    "line, and tables with other columns need files of their own"
                )
            else:
                yield number, *_pick_texts(cells, table.labels, table.columns, languages, place)

    return ParallelText(name, read_pairs, lambda: f"{files_sha256(path)} {languages} {tuple(table)}", (path,))


def _rows(path: Path, delimiter: str, quoted: bool) -> Iterator[Row]:
    return read_rows(chain.from_iterable(_blocks(path)), path, delimiter, quoted)


# ---- the demo's corpus -------------------------------------------------------------------------------------------


def open_embedded(settings: TextSettings, split: str) -> ParallelText:
    """Open a split of the demo's corpus."""
    languages = settings.languages
    if split not in demo_corpus.SPLITS:
        raise InputError(f"the embedded corpus has no split {split!r}; splits: {', '.join(demo_corpus.SPLITS)}")
    if sorted(languages) != ["de", "en"]:
        raise InputError(f"the embedded corpus is English and German (en, de), not {' to '.join(languages)}")

    def pairs() -> Iterator[Pair]:
        for number, (_, english, german) in enumerate(demo_corpus.load(split), start=1):
            yield (number, english, german) if languages[0] == "en" else (number, german, english)

    return ParallelText(split, pairs, lambda: f"{split} {languages} {files_sha256(demo_corpus.PATH)}")


# ---- datasets ----------------------------------------------------------------------------------------------------


def open_dataset(settings: TextSettings, split: str) -> ParallelText:
    """Open a split of a `datasets` id, or of a folder made by `save_to_disk`."""
    from datasets import ClassLabel

    where, languages = f"dataset {settings.dataset}, split {split}", settings.languages
    loaded, fingerprint, files = _load_split(settings, split)

    def read_pairs() -> Iterator[Pair]:
        plain = loaded.with_format(None)  # it may have been saved with the format "pandas"
        table = _without_other_columns(plain, languages)
        batches, number = table.iter(batch_size=CHUNK), 0
        features = table.features or {}
        names = {label: each.names for label, each in features.items() if isinstance(each, ClassLabel)}
        while True:
            try:
                batch = next(batches, None)
            except Exception as error:  # a stream may fail midway
                raise UnavailableError(f"{where}, cannot be read: {_explain(error)}") from error
            if batch is None:
                return
            for label in names:  # numbers, and -1 or None where there is none
                batch[label] = [None if n is None or n < 0 else names[label][n] for n in batch[label]]
            missing = "no column 'translation' holds objects, and there is no column"
            rows = [row or {} for row in batch.get("translation", [])]
            if "translation" in batch and all(isinstance(row, dict) for row in rows):
                missing = "translation has no language"
                batch = {key: [row.get(key) for row in rows] for key in dict.fromkeys(chain.from_iterable(rows))}
            labels = list(batch)
            if (columns := find_columns(labels, languages)) is None:
                language = missing_language(labels, languages)
                raise InputError(
                    f"{where}: {missing} {language!r}; available: {', '.join(labels)}. Rename the columns with "
                    f"`rename_columns` of datasets: to {', '.join(languages)}, or to source, target"
                )
            for row in zip(*batch.values(), strict=True):
                number += 1
                yield number, *_pick_texts(row, labels, columns, languages, f"{where}, row {number}")

    name = f"{settings.dataset}/{split}"
    return ParallelText(name, read_pairs, lambda: f"{fingerprint} {files_sha256(*files)} {languages}", files)


def _without_other_columns(loaded: Any, languages: Sequence[str]) -> Any:
    """Return the split without pictures, sounds and the like, which datasets would download and decode."""
    from datasets import Value

    labels = loaded.column_names or []  # None: those of a stream without a list of types, none of which is decoded
    if "translation" in labels and not isinstance(loaded.features["translation"], Value):
        return loaded.select_columns(["translation"])
    if (columns := find_columns(labels, languages)) is None:
        return loaded
    read = {labels[position] for position in (*columns.texts, *columns.languages) if position is not None}
    return loaded.select_columns([label for label in labels if label in read])


def _load_split(settings: TextSettings, split: str) -> tuple[Any, str, tuple[Path, ...]]:
    """Return the split, a fingerprint of its text, and its files if the user has saved them, who may replace them."""
    import datasets

    name = cast(str, settings.dataset)
    config, revision = settings.dataset_config, settings.dataset_revision
    is_saved = Path(name).is_dir() and any((Path(name) / f).exists() for f in ("dataset_dict.json", "state.json"))
    if is_saved and config is not None:
        raise InputError(f"dataset_config: {name} was made by save_to_disk and has no configurations; set it to null")
    if Path(name).is_dir() and revision is not None:
        raise InputError(f"dataset_revision: {name} is a folder, and only the Hub has revisions; set it to null")
    fingerprint = ""
    try:
        if is_saved:
            loaded: Any = datasets.load_from_disk(name)  # without a copy
        else:
            builder = datasets.load_dataset_builder(name, config, revision=revision)
            if not Path(name).is_dir():  # the other splits are read at the same commit, also if there is a newer one
                settings.dataset_revision = builder.hash
            if settings.streaming:
                loaded = builder.as_streaming_dataset()
                # The builder's hash covers the files: their times on disk or their commit on the Hub.
                fingerprint = f"{name} {builder.config_id} {builder.hash} {split}"
            else:
                builder.download_and_prepare()
                loaded = builder.as_dataset()
    except Exception as error:
        raise UnavailableError(f"dataset {name} cannot be loaded: {_explain(error)}") from error
    if isinstance(loaded, dict):
        if split not in loaded:
            raise InputError(f"dataset {name} has no split {split!r}; splits: {', '.join(loaded)}")
        loaded = loaded[split]
    elif split != str(loaded.split) and settings.train != [split]:  # whatever its name; two would be the same text
        raise InputError(f"dataset {name} has only split {loaded.split}, not {split!r}; save a DatasetDict with both")
    files = tuple(Path(file["filename"]) for file in loaded.cache_files) if is_saved else ()
    return loaded, fingerprint or f"{loaded._fingerprint} {len(loaded)}", files


def _explain(error: Exception) -> str:
    """Return the reason for an error of datasets, which is of any class if a repository has unexpected files."""
    from datasets.exceptions import DatasetNotFoundError

    cause = error if isinstance(error, DatasetNotFoundError) else error.__cause__ or error
    return " ".join(str(cause).split()) or type(cause).__name__


# ---- the formats -------------------------------------------------------------------------------------------------


def _ends_with(suffix: str) -> Callable[[TextSettings, str], bool]:
    """Return whether a name ends with a suffix, also before .gz."""
    return lambda _, name: name.removesuffix(".gz").endswith(suffix)


# The first format that fits opens a corpus. To add one, write a function that returns a ParallelText, and a row above
# the last, which fits every name; docs/how-to/train.md, `train` in recipe.py and `tokenizer` in cli.py name formats.
# Compression is no part of one: `open_text` in vaswani_transformer/lines.py decompresses .gz; `_files_named` and
# `_ends_with` here allow for it in names.
FORMATS: dict[str, Format] = {
    "a split of `dataset`": Format(lambda settings, _: settings.dataset is not None, open_dataset),
    "a split of the demo's corpus": Format(lambda settings, _: settings.data == EMBEDDED, open_embedded),
    "NAME.tsv": Format(_ends_with(".tsv"), open_tsv),
    "NAME.csv": Format(_ends_with(".csv"), open_csv),
    "NAME.jsonl": Format(_ends_with(".jsonl"), open_jsonl),
    "NAME.tmx": Format(_ends_with(".tmx"), open_tmx),
    "NAME for the files NAME.en and NAME.de, or 'a.txt,b.txt'": Format(lambda *_: True, open_two_files),
}
FILE_FORMATS = f"{', '.join(name for name in FORMATS if 'NAME' in name)}, each also as .gz"  # in error messages
