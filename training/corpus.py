"""Parallel text -> checked, tokenised once, memory-mapped.

A tokenised corpus is a folder `<key>/` with source.ids, target.ids (all tokens in a row), source.lengths,
target.lengths, pairs.hash and corpus.json. The key is a hash of the text, the tokenizer and the filters.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from vaswani_transformer.atomic import atomic_folder
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.lines import BYTE_ORDER_MARK, UTF_16_MARKS, decode_line, opened

from . import demo_corpus
from .json_files import write_json
from .recipe import EMBEDDED, Recipe

Log = Callable[[str], None]

FORMAT = 1
CHUNK = 8192  # Pairs in memory at a time.
# A line with more characters per allowed token than this is too long before it is tokenised: a line of ten
# million characters must cost neither time nor memory.
CHARACTERS_PER_TOKEN = 32


# --- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of a text; None stands for a line that was not UTF-8 (encoding_errors: skip)."""

    first_line: int
    sources: list[str | None]
    targets: list[str | None]


@dataclass(frozen=True)
class ParallelText:
    """A text in two languages that can be read from its start as often as needed."""

    name: str
    chunks: Callable[[], Iterator[Chunk]]
    fingerprint: Callable[[], str]


def parallel_texts(recipe: Recipe, names: list[str]) -> list[ParallelText]:
    """The corpora that a recipe's `train`, `validation` or `test` names. Raises InputError for what is not there."""
    if recipe.dataset is not None:
        return [_from_dataset(recipe, split) for split in names]
    if recipe.data == EMBEDDED:
        return [_from_embedded(split, (recipe.source_language, recipe.target_language)) for split in names]
    folder = Path(recipe.data) if recipe.data is not None else Path()
    if recipe.data is not None and not folder.is_dir():
        raise InputError(f"data: there is no folder {recipe.data}; --data names the folder of the text files")
    return [_from_files(folder, name, recipe) for name in names]


def _from_files(folder: Path, name: str, recipe: Recipe) -> ParallelText:
    languages = (recipe.source_language, recipe.target_language)
    plain = name.removesuffix(".gz")
    if plain.endswith((".tsv", ".jsonl")):
        path = _existing(folder, name)
        read = _read_tsv if plain.endswith(".tsv") else _read_jsonl
        return ParallelText(
            name,
            lambda: read(path, languages, recipe.encoding_errors),
            # The same file is another corpus the other way round.
            lambda: f"{files_sha256(path)} {languages if read is _read_jsonl else ''}",
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
        lambda: _read_two_files(source, target, recipe.encoding_errors),
        lambda: files_sha256(source, target),
    )


def _from_embedded(split: str, languages: tuple[str, str]) -> ParallelText:
    """A split of the demo's corpus, which lies inside this program."""
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


def _existing(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise InputError(f"{folder / name}: no such file (nor {name}.gz)")


def files_sha256(*paths: Path) -> str:
    """Of the files' own hashes, in this order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _line_blocks(path: Path) -> Iterator[list[bytes]]:
    """The file's lines as bytes, CHUNK at a time, byte order mark removed."""
    with opened(path) as file:
        first = True
        while block := list(islice(file, CHUNK)):
            if first:
                if block[0].startswith(UTF_16_MARKS) or block[0].count(0) > len(block[0]) // 4:
                    raise InputError(f"{path} line 1: not UTF-8, looks like UTF-16; convert it with iconv")
                block[0] = block[0].removeprefix(BYTE_ORDER_MARK)
                first = False
            yield block
        if first:
            raise InputError(f"{path} is empty")


def _decoded(block: list[bytes], first_line: int, path: Path, encoding_errors: str) -> list[str | None]:
    """The lines of a block as text. Lines end at \\n alone: U+2028 and the like are text."""
    try:
        lines = b"".join(block).decode("utf-8").split("\n")
        return cast(list[str | None], lines[: len(block)])
    except UnicodeDecodeError:
        return [_decoded_line(raw, first_line + i, path, encoding_errors) for i, raw in enumerate(block)]


def _decoded_line(raw: bytes, line: int, path: Path, encoding_errors: str) -> str | None:
    try:
        return decode_line(raw, str(path), line)
    except InputError as error:
        if encoding_errors == "skip":
            return None
        raise InputError(f"{error}; --encoding-errors skip drops such pairs") from None


def _read_two_files(source: Path, target: Path, encoding_errors: str) -> Iterator[Chunk]:
    blocks = [_line_blocks(source), _line_blocks(target)]
    read = 0
    while True:
        pair = [next(side, []) for side in blocks]
        if len(pair[0]) != len(pair[1]):
            counts = [read + len(block) + sum(map(len, side)) for block, side in zip(pair, blocks, strict=True)]
            raise InputError(
                f"{source} has {counts[0]} lines, {target} has {counts[1]}: line n of one must be the translation "
                f"of line n of the other"
            )
        if not pair[0]:
            return
        sides = [
            _decoded(block, read + 1, path, encoding_errors) for block, path in zip(pair, (source, target), strict=True)
        ]
        yield Chunk(read + 1, *sides)
        read += len(pair[0])


def _read_tsv(path: Path, languages: tuple[str, str], encoding_errors: str) -> Iterator[Chunk]:
    """Source TAB target; further columns are left to whoever wrote them."""
    first_line = 1
    for block in _line_blocks(path):
        sources: list[str | None] = []
        targets: list[str | None] = []
        for number, line in enumerate(_decoded(block, first_line, path, encoding_errors), first_line):
            columns = [None, None] if line is None else line.split("\t")
            if len(columns) < 2:
                raise InputError(f"{path} line {number}: {len(columns)} column, must be source TAB target")
            sources.append(columns[0])
            targets.append(columns[1])
        yield Chunk(first_line, sources, targets)
        first_line += len(block)


def _read_jsonl(path: Path, languages: tuple[str, str], encoding_errors: str) -> Iterator[Chunk]:
    """Lines of {"translation": {"en": ..., "de": ...}} or of the inner object alone."""
    first_line = 1
    for block in _line_blocks(path):
        sides: tuple[list[str | None], list[str | None]] = ([], [])
        for number, line in enumerate(_decoded(block, first_line, path, encoding_errors), first_line):
            for side, text in zip(sides, _json_pair(line, path, number, languages), strict=True):
                side.append(text)
        yield Chunk(first_line, *sides)
        first_line += len(block)


def _json_pair(line: str | None, path: Path, number: int, languages: tuple[str, str]) -> list[str | None]:
    if line is None:
        return [None, None]
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of more than 4,300 digits is a ValueError
        raise InputError(f"{path} line {number}: not JSON ({error})") from error
    if isinstance(record, dict) and "translation" in record:
        record = record["translation"]
    if not isinstance(record, dict):
        raise InputError(f'{path} line {number}: must be {{"translation": {{...}}}}, found {type(record).__name__}')
    texts = []
    for language in languages:
        if language not in record:
            keys = ", ".join(map(str, record)) or "none"
            raise InputError(f"{path} line {number}: key {language!r} is missing; keys there: {keys}")
        text = record[language]
        if not isinstance(text, str):
            found = "null" if text is None else type(text).__name__
            raise InputError(f"{path} line {number}: {language!r} is {found}, must be a text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"{path} line {number}: {language!r} has a lone surrogate U+{ord(text[error.start]):04X} at character "
                f"{error.start + 1}, which is no text"
            ) from error
        texts.append(text.replace("\n", " "))
    return texts


def _from_dataset(recipe: Recipe, split: str) -> ParallelText:
    """A split of a `datasets` id or of a folder made by `save_to_disk`; with `streaming` no copy of it is kept."""
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise UnavailableError("dataset: needs the package `datasets` (pip install datasets)") from error
    name = cast(str, recipe.dataset)
    fingerprint = None
    try:
        if Path(name).is_dir() and any((Path(name) / f).exists() for f in ("dataset_dict.json", "state.json")):
            loaded: Any = datasets.load_from_disk(name)  # Nothing of it is copied.
        elif recipe.streaming:
            builder = datasets.load_dataset_builder(name, recipe.dataset_config)
            loaded = builder.as_streaming_dataset()
            # Of the files by name, place and state: their times on disk, their commit on the Hub.
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
    languages = (recipe.source_language, recipe.target_language)

    def batches() -> Iterator[dict[str, list[Any]]]:
        try:
            yield from loaded.iter(batch_size=CHUNK)
        except (OSError, ValueError, DatasetsError) as error:  # A stream may break off.
            problem = " ".join(str(error.__cause__ or error).split())
            raise UnavailableError(f"dataset {name}, split {split}, cannot be read: {problem}") from error

    def chunks() -> Iterator[Chunk]:
        first = 1
        for batch in batches():
            columns: dict[str, list[Any]] = batch
            if nested := "translation" in batch:
                rows = [row or {} for row in batch["translation"]]
                columns = {key: [row.get(key) for row in rows] for key in dict.fromkeys(chain.from_iterable(rows))}
            for language in languages:
                if language not in columns:
                    what = "translation has no language" if nested else "there is no column 'translation' and no column"
                    raise InputError(f"dataset {name}: {what} {language!r}; available: {', '.join(columns)}")
            sides: list[list[str | None]] = [[text or "" for text in columns[language]] for language in languages]
            for language, texts in zip(languages, sides, strict=True):
                for number, text in enumerate(texts, first):
                    if not isinstance(text, str):
                        raise InputError(
                            f"dataset {name}, split {split}, row {number}: {language!r} holds {type(text).__name__}, "
                            "must be text"
                        )
            yield Chunk(first, *sides)
            first += len(sides[0])

    return ParallelText(
        f"{name}/{split}",
        chunks,
        lambda: f"{fingerprint or f'{loaded._fingerprint} {len(loaded)}'} {languages}",
    )


def text_lines(texts: list[ParallelText]) -> Iterator[str]:
    """Both sides of all pairs, for training a tokenizer on them."""
    for text in texts:
        for chunk in text.chunks():
            for line in chain(chunk.sources, chunk.targets):
                if line is not None and (stripped := line.strip()):
                    yield stripped


# --- tokenised corpora -------------------------------------------------------------------------------------------


@dataclass
class Dropped:
    """How many pairs a filter dropped, and the first five of them by line."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        self.count += 1
        if len(self.first) < 5:
            self.first.append(where)


@dataclass(frozen=True)
class Corpus:
    """Tokenised pairs; the tokens stay in the file. Lengths count the final </s>."""

    source_ids: np.ndarray
    target_ids: np.ndarray
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    pair_hashes: np.ndarray
    about: dict[str, Any]

    @cached_property
    def _source_ends(self) -> np.ndarray:
        return np.cumsum(self.source_lengths, dtype=np.int64)

    @cached_property
    def _target_ends(self) -> np.ndarray:
        return np.cumsum(self.target_lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.source_lengths)

    @property
    def sha256(self) -> str:
        """Of the tokens: equal for texts that differ in line ends, a byte order mark or a final newline."""
        return self.about["sha256"]

    def sources(self, pairs: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Padded source ids (batch, source) and which of them are real (batch, source)."""
        return _padded(self.source_ids, self._source_ends, self.source_lengths, pairs, pad)

    def targets(self, pairs: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Padded target ids (batch, target) and which of them are real (batch, target)."""
        return _padded(self.target_ids, self._target_ends, self.target_lengths, pairs, pad)


def _padded(ids, ends, all_lengths, pairs, pad):
    lengths = all_lengths[pairs].astype(np.int64)
    columns = np.arange(lengths.max())
    real = columns < lengths[:, None]
    padded = np.full(real.shape, pad, dtype=np.int64)
    padded[real] = ids[((ends[pairs] - lengths)[:, None] + columns)[real]]
    return padded, real


def load_corpus(
    texts: list[ParallelText],
    tokenizer: Any,
    recipe: Recipe,
    cache: Path,
    log: Log,
    target_tokenizer: Any = None,
) -> Corpus:
    """The tokenised corpus of these texts, from the cache or made there now.

    target_tokenizer: of the target texts, where they have a vocabulary of their own

    Every row that is dropped is counted by reason and logged. Raises InputError when nothing is left.
    """
    rules = {
        "format": FORMAT,
        "tokenizer": tokenizer_sha256(tokenizer),
        "max_length": recipe.max_length,
        "max_length_ratio": recipe.max_length_ratio,
        "encoding_errors": recipe.encoding_errors,
        "texts": [text.fingerprint() for text in texts],
    }
    if target_tokenizer is not None:
        rules["target tokenizer"] = tokenizer_sha256(target_tokenizer)
    key = hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:16]
    folder = cache / key
    if folder.exists():
        try:
            return open_corpus(folder)
        except BrokenFileError as error:
            log(f"{error}; tokenising again")
            shutil.rmtree(folder)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as temporary:
            about = _tokenise(texts, [tokenizer, target_tokenizer or tokenizer], recipe, temporary, log)
            write_json(temporary / "corpus.json", {**rules, **about})
    except OSError as error:
        if not folder.exists():  # Another run that shares the cache may have been the first to make it.
            raise UnavailableError(f"{cache}: the tokenised corpus cannot be written: {error.strerror}") from error
    return open_corpus(folder)


def open_corpus(folder: Path) -> Corpus:
    """A tokenised corpus as it lies on disk. Raises BrokenFileError when a file has not its size."""
    try:
        about = json.loads((folder / "corpus.json").read_text())
        pairs, tokens = about["pairs"], about["tokens"]
        shapes = {
            "source.ids": (about["dtype"], tokens["source"]),
            "target.ids": (about["dtype"], tokens["target"]),
            "source.lengths": ("int32", pairs),
            "target.lengths": ("int32", pairs),
            "pairs.hash": ("uint64", pairs),
        }
        for name, (dtype, count) in shapes.items():
            size = (folder / name).stat().st_size
            if size != count * np.dtype(dtype).itemsize:
                raise BrokenFileError(f"{folder / name} has {size} bytes, not those of {count} numbers")
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, BrokenFileError):
            raise
        raise BrokenFileError(f"{folder}: not a whole tokenised corpus ({error})") from error
    arrays = [np.memmap(folder / name, dtype=dtype, mode="r") for name, (dtype, _) in shapes.items()]
    return Corpus(*arrays, about=about)


def tokenizer_sha256(tokenizer: Any) -> str:
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def overlap(train: Corpus, held_out: Corpus) -> int:
    """How many held-out pairs (by their text) are also in the training corpus."""
    return int(np.isin(held_out.pair_hashes, train.pair_hashes).sum())


def _tokenise(
    texts: list[ParallelText], tokenizers: list[Any], recipe: Recipe, folder: Path, log: Log
) -> dict[str, Any]:
    """tokenizers: of the source and of the target"""
    backends = [tokenizer.backend_tokenizer for tokenizer in tokenizers]
    for backend in backends:  # Whatever looks like a control token in the text is text.
        backend.encode_special_tokens = True
    dtype = np.dtype(np.uint16 if max(map(len, tokenizers)) <= 1 << 16 else np.uint32)
    name = " + ".join(text.name for text in texts)
    dropped = {reason: Dropped() for reason in ("not UTF-8", "empty", "too long", "length ratio")}
    digest = hashlib.sha256()
    read, kept, tokens, told = 0, 0, [0, 0], 0
    with ExitStack() as stack:
        ids_files, length_files = (
            [stack.enter_context((folder / f"{side}.{what}").open("wb")) for side in ("source", "target")]
            for what in ("ids", "lengths")
        )
        hash_file = stack.enter_context((folder / "pairs.hash").open("wb"))
        for text, chunk in ((each, chunk) for each in texts for chunk in each.chunks()):
            read += len(chunk.sources)
            pairs, lines = _usable_text(chunk, recipe, dropped, f"{text.name}:" if len(texts) > 1 else "")
            sides = [
                [encoded.ids for encoded in backend.encode_batch_fast([pair[side] for pair in pairs])]
                for side, backend in enumerate(backends)
            ]
            lengths = np.array([[len(ids) for ids in side] for side in sides], dtype=np.int32)
            keep = _within_limits(lengths, lines, recipe, dropped)
            for i, side in enumerate(sides):
                flat = np.fromiter(chain.from_iterable(compress(side, keep)), dtype=dtype)
                for data, file in ((flat, ids_files[i]), (lengths[i][keep], length_files[i])):
                    digest.update(raw := data.tobytes())
                    file.write(raw)
                tokens[i] += len(flat)
            hash_file.write(b"".join(_pair_hash(pair) for pair in compress(pairs, keep)))
            kept += int(keep.sum())
            if read // 1_000_000 > told:
                told = read // 1_000_000
                log(f"{name}: {told} million pairs tokenised")
        for file in (*ids_files, *length_files, hash_file):
            file.flush()
            os.fsync(file.fileno())
    report = "".join(
        f"; dropped {d.count} {reason} (lines {', '.join(d.first)}{', ...' if d.count > 5 else ''})"
        for reason, d in dropped.items()
        if d.count
    )
    if not kept:
        raise InputError(f"{name}: none of {read} pairs can be used{report}")
    log(f"{name}: {read} pairs read, {kept} kept, {tokens[0]} source and {tokens[1]} target tokens{report}")
    return {
        "name": name,
        "read": read,
        "pairs": kept,
        "tokens": {"source": tokens[0], "target": tokens[1]},
        "dtype": dtype.name,
        "sha256": digest.hexdigest(),
        "dropped": {reason: {"count": d.count, "first": d.first} for reason, d in dropped.items()},
    }


def _pair_hash(pair: tuple[str, str]) -> bytes:
    return hashlib.blake2b("\t".join(pair).encode(), digest_size=8).digest()


def _usable_text(chunk: Chunk, recipe: Recipe, dropped: dict[str, Dropped], prefix: str):
    """The pairs of a chunk that are worth tokenising, and where they came from."""
    longest = CHARACTERS_PER_TOKEN * recipe.max_length
    pairs, lines = [], []
    for number, (source, target) in enumerate(zip(chunk.sources, chunk.targets, strict=True), chunk.first_line):
        where = f"{prefix}{number}"
        if source is None or target is None:
            dropped["not UTF-8"].add(where)
            continue
        # Line ends (CRLF) and blanks around a sentence are not part of it.
        source, target = source.strip(), target.strip()
        if not source or not target:
            dropped["empty"].add(where)
        elif len(source) > longest or len(target) > longest:
            dropped["too long"].add(where)
        else:
            pairs.append((source, target))
            lines.append(where)
    return pairs, lines


def _within_limits(lengths: np.ndarray, lines: list[str], recipe: Recipe, dropped: dict[str, Dropped]) -> np.ndarray:
    """Which pairs keep the limits; lengths: (2, pairs)."""
    too_long = lengths.max(0) > recipe.max_length
    for i in np.flatnonzero(too_long):
        dropped["too long"].add(lines[i])
    keep = ~too_long
    if recipe.max_length_ratio is not None:
        # Without </s>, so that a ratio of two means twice the words also for short sentences.
        words = np.maximum(lengths - 1, 1)
        lopsided = keep & (words.max(0) > recipe.max_length_ratio * words.min(0))
        for i in np.flatnonzero(lopsided):
            dropped["length ratio"].add(lines[i])
        keep &= ~lopsided
    return keep
