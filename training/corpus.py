"""Filter and tokenise the text of a recipe into a cache, and memory-map it.

A corpus is a folder `<key>/` with source.ids, target.ids (all tokens in a row), source.lengths, target.lengths,
pairs.hash and corpus.json. The key hashes the text, the tokenizer and the filters. corpus.json also has a sha256 of the
token ids and lengths, which a resumed run compares.
"""

import gc
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vaswani_transformer.atomic import atomic_folder, remove_folder
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError, name_in_errors
from vaswani_transformer.files import combine_sha256, files_sha256, read_json_object, write_json
from vaswani_transformer.sentences_vaswani_transformer import choose_cleaning, cleans_itself
from vaswani_transformer.tokenizer_files import panics_as_errors
from vaswani_transformer.translator import take_ahead

from .parallel_text import (
    CHUNK,
    HELD_OUT_EVERY,
    HELD_OUT_MOST,
    Pair,
    ParallelText,
    fingerprints,
    holds_out_validation,
    join_lines,
    open_texts,
    open_training_and_validation,
    read_sentences,
    refuse_changed,
)
from .recipe import TextSettings, TokenizerSettings
from .tokenizer import load_tokenizers, tokenizer_sha256

FORMAT = 3
VALIDATION_SHA256 = "validation sha256"  # in the state of a checkpoint
# The files with their types, in the order of Corpus's fields; ids have the smallest type that the vocabulary allows.
FILES = {
    "source.ids": None, "target.ids": None, "source.lengths": "int32", "target.lengths": "int32", "pairs.hash": "uint64"
}  # fmt: skip
# Drop lines with more characters per allowed token before tokenising them, to save time and memory.
CHARACTERS_PER_TOKEN = 32
MOST_COPIES = 0.1  # the share of pairs with the same text twice above which a warning is due


@dataclass(frozen=True)
class Corpus:
    """Tokenised pairs, memory-mapped. Lengths include the final </s>."""

    source_ids: np.ndarray
    target_ids: np.ndarray
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    pair_hashes: np.ndarray
    about: dict[str, Any]

    @cached_property
    def _ends(self) -> list[np.ndarray]:
        return [np.cumsum(lengths, dtype=np.int64) for lengths in (self.source_lengths, self.target_lengths)]

    def __len__(self) -> int:
        return len(self.source_lengths)

    @property
    def sha256(self) -> str:
        """Hash of the tokens: the same for texts that differ in line ends, a byte order mark or a final newline."""
        return self.about["sha256"]

    @property
    def mean_lengths(self) -> tuple[float, float]:
        return float(self.source_lengths.mean()), float(self.target_lengths.mean())

    def sources(self, pairs: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Return padded source ids and a mask of the real ones, both (batch, source)."""
        return _pad(self.source_ids, self._ends[0], self.source_lengths, pairs, pad)

    def targets(self, pairs: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Return padded target ids and a mask of the real ones, both (batch, target)."""
        return _pad(self.target_ids, self._ends[1], self.target_lengths, pairs, pad)


def _pad(
    ids: np.ndarray, ends: np.ndarray, all_lengths: np.ndarray, pairs: np.ndarray, pad: int
) -> tuple[np.ndarray, np.ndarray]:
    lengths = all_lengths[pairs].astype(np.int64)
    columns = np.arange(lengths.max())
    real = columns < lengths[:, None]
    padded = np.full(real.shape, pad, dtype=np.int64)
    padded[real] = ids[((ends[pairs] - lengths)[:, None] + columns)[real]]
    return padded, real


class Corpora(NamedTuple):
    """The text of a run, tokenised."""

    tokenizer: Any
    target_tokenizer: Any  # None if the languages share one
    training: Corpus
    validation: Corpus | None
    validation_sentences: tuple[list[str], list[str]]  # sources and references; empty unless asked for

    def sha256s(self) -> dict[str, Any]:
        """Return hashes of the texts and the tokenizers, by name."""
        hashes: dict[str, Any] = {"corpus sha256": self.training.sha256}
        hashes["tokenizer sha256"] = tokenizer_sha256(self.tokenizer)
        hashes[VALIDATION_SHA256] = None if self.validation is None else self.validation.sha256
        if self.target_tokenizer is not None:
            hashes["target tokenizer sha256"] = tokenizer_sha256(self.target_tokenizer)
        return hashes


def read_corpora(
    text: TextSettings,
    tokenizer_settings: TokenizerSettings,
    initial_weights: str | None,
    output: Path,
    say: Callable[[str], None],
    sentences: bool = False,
) -> Corpora:
    """Read, tokenise and cache the text; warn about pairs of the validation and test texts that are trained on.

    initial_weights: a model folder or repository, whose tokenizer is used if the settings name none
    output: the folder of a newly trained tokenizer, and of the cache if the settings name none
    sentences: also read the validation text as sentences, to measure BLEU
    """
    training_texts, validation_texts = open_training_and_validation(text)
    if holds_out_validation(text):
        say(
            f"no validation text {' + '.join(text.validation)}: every {HELD_OUT_EVERY}th training pair is held out, "
            f"at most {HELD_OUT_MOST:,} (--validation NAME uses a text of your own, --validation '[]' disables "
            "validation)"
        )
    tokenizer, target_tokenizer = load_tokenizers(tokenizer_settings, initial_weights, output, training_texts, say)
    cache = Path(text.cache) if text.cache else output / "corpus"
    load = partial(
        load_corpus, tokenizer=tokenizer, settings=text, cache=cache, say=say, target_tokenizer=target_tokenizer
    )
    # The short texts first, so that their errors do not wait for the training text.
    validation = load(validation_texts) if validation_texts else None
    test = None
    try:
        if test_texts := open_texts(text, text.test):
            test = load(test_texts)
    except (InputError, BrokenFileError, UnavailableError) as error:  # training needs no test set
        say(
            f"warning: {error}; training continues and does not check whether test pairs are in the training text "
            "(--test '[]' skips the check)"
        )
    training = load(training_texts)
    for name, other in (("validation", validation), ("test", test)):
        if other is not None and (common := count_overlap(training, other)):
            say(f"warning: {common} of {len(other)} {name} pairs are also in the training text")
    read = read_sentences(validation_texts if sentences else [])
    return Corpora(tokenizer, target_tokenizer, training, validation, read)


def load_corpus(
    texts: list[ParallelText],
    tokenizer: Any,
    settings: TextSettings,
    cache: Path,
    say: Callable[[str], None],
    target_tokenizer: Any = None,
) -> Corpus:
    """Load the tokenised corpus of these texts from the cache; tokenise them first if it is missing or damaged.

    target_tokenizer: for target texts with a separate vocabulary
    Dropped pairs are reported by reason. Raises InputError when no pair is left.
    """
    rules = {
        "format": FORMAT,
        "tokenizer": tokenizer_sha256(tokenizer),
        "max_length": settings.max_length,
        "max_length_ratio": settings.max_length_ratio,
        "texts": fingerprints(texts),
    }
    if target_tokenizer is not None:
        rules["target tokenizer"] = tokenizer_sha256(target_tokenizer)
    key = hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:16]
    folder = cache / key
    while folder.exists():
        with suppress(FileNotFoundError):  # another run may remove it meanwhile
            found = folder.stat()
            try:
                return open_corpus(folder)
            except BrokenFileError as error:
                say(f"{error}; tokenising again")
                now = folder.stat()
                # Not the one that a run that shares the cache has put in its place, perhaps with the same inode.
                if (found.st_ino, found.st_ctime_ns) == (now.st_ino, now.st_ctime_ns):
                    remove_folder(folder, "ask its owner to remove it, or choose another --cache")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as temporary:
            about = tokenise(texts, [tokenizer, target_tokenizer or tokenizer], settings, temporary, say)
            refuse_changed(texts, rules["texts"])
            files = {name: files_sha256(temporary / name) for name in FILES}
            about["sha256"] = combine_sha256(files[name] for name in FILES if name != "pairs.hash")
            write_json(temporary / "corpus.json", {**rules, **about, "files": files})
    except OSError:
        if not folder.exists():  # a run that shares the cache may have created it first
            raise
    return open_corpus(folder)


@dataclass
class Lines:
    """The number of pairs with something in common, such as why they were dropped, and the lines of the first five."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        self.count += 1
        if len(self.first) < 5:
            self.first.append(line)

    def __str__(self) -> str:
        return f"lines {', '.join(self.first)}{', ...' if self.count > 5 else ''}"


@dataclass
class Findings:
    """What was found in the pairs of a text, besides those that are used without a change."""

    read: int = 0
    dropped: dict[str, Lines] = field(
        default_factory=lambda: {reason: Lines() for reason in ("empty", "missing", "too long", "length ratio")}
    )
    same: Lines = field(default_factory=Lines)  # kept pairs with the same text on both sides

    def __str__(self) -> str:
        return "".join(f"; dropped {d.count} {reason} ({d})" for reason, d in self.dropped.items() if d.count)


class Part(NamedTuple):
    """The pairs of a chunk to tokenise, cleaned, and where each is."""

    pairs: list[tuple[str, str]]
    lines: list[str]
    same: list[int]  # indices of the pairs with the same text on both sides


def tokenise(
    texts: list[ParallelText], tokenizers: list[Any], settings: TextSettings, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Write the usable pairs to `folder` and return their entries for corpus.json.

    tokenizers: the source's and the target's
    """
    backends = [tokenizer.backend_tokenizer for tokenizer in tokenizers]
    for backend in backends:  # control tokens in the text are ordinary text
        backend.encode_special_tokens = True
    # The texts that the Translator gives the tokenizer. One that this package has trained cleans them itself.
    cleaners = [None if cleans_itself(each.normalizer) else choose_cleaning(each.normalizer) for each in backends]
    # A text of invisible characters has no other tokens.
    nothing = np.array([len(backend.encode("").ids) for backend in backends])
    dtype = np.dtype(np.uint16 if max(map(len, tokenizers)) <= 1 << 16 else np.uint32)
    name = " + ".join(text.name for text in texts)
    findings, written = Findings(), Counter()

    def select_parts() -> Iterator[Part]:
        for text in texts:
            pairs, prefix = text.pairs(), f"{text.name}:" if len(texts) > 1 else ""
            while chunk := list(islice(pairs, CHUNK)):
                findings.read += len(chunk)
                if findings.read % 1_000_000 < len(chunk):
                    say(f"{name}: {findings.read // 1_000_000} million pairs read")
                yield _select_pairs(chunk, settings, findings, prefix)

    def encode(part: Part) -> list[list[list[int]]]:
        ids = []
        for side, (backend, clean) in enumerate(zip(backends, cleaners, strict=True)):
            text = [pair[side] if clean is None else clean(pair[side]) for pair in part.pairs]
            ids.append([encoded.ids for encoded in backend.encode_batch_fast(text)])
        return ids

    with panics_as_errors(None), ExitStack() as stack:
        if gc.isenabled():  # the lists of ids would make it run often, and visit the loaded modules each time
            gc.disable()
            stack.callback(gc.enable)
        files = {file: stack.enter_context((folder / file).open("wb")) for file in FILES}
        # The next part is encoded while this one is written: the tokenizers library releases Python's lock.
        executor = stack.enter_context(ThreadPoolExecutor(1))
        for part, encoding in take_ahead((part, executor.submit(encode, part)) for part in select_parts()):
            ids = encoding.result()
            lengths = np.array([[len(row) for row in rows] for rows in ids], dtype=np.int32)  # (2, pairs)
            keep = _within_limits(lengths, nothing, part.lines, settings, findings)
            for place in part.same:
                if keep[place]:
                    findings.same.add(part.lines[place])
            for file, array in _file_parts(part.pairs, ids, lengths, keep, dtype).items():
                files[file].write(array.tobytes())
                written[file] += len(array)
            gc.collect(1)  # what readers have left
    kept, source_tokens, target_tokens = (written[file] for file in ("pairs.hash", "source.ids", "target.ids"))
    read, same = findings.read, findings.same
    if not kept:
        raise InputError(f"{name}: none of {read} pairs can be used{findings}")
    say(f"{name}: {read} pairs read, {kept} kept, {source_tokens} source and {target_tokens} target tokens{findings}")
    if same.count > kept * MOST_COPIES:
        say(
            f"warning: {name}: source and target are the same text in {same.count} of {kept} pairs ({same}), so the "
            "model learns to copy; check the columns and the file names, or remove these pairs"
        )
    return {
        "name": name,
        "read": read,
        "pairs": kept,
        "tokens": {"source": source_tokens, "target": target_tokens},
        "dtype": dtype.name,
        "dropped": {reason: asdict(lines) for reason, lines in findings.dropped.items()},
    }


def _select_pairs(chunk: list[Pair], settings: TextSettings, findings: Findings, prefix: str) -> Part:
    """Return the pairs of a chunk to tokenise, and add the dropped ones to the findings.

    prefix: of line numbers
    """
    dropped, longest = findings.dropped, CHARACTERS_PER_TOKEN * settings.max_length
    pairs, lines, same = [], [], []
    for number, source, target in chunk:
        line = f"{prefix}{number}"
        if source is None or target is None:
            dropped["missing"].add(line)
            continue
        source, target = join_lines(source), join_lines(target)
        if not source or not target:
            dropped["empty"].add(line)
            continue
        if len(source) > longest or len(target) > longest:
            dropped["too long"].add(line)
            continue
        if source == target:
            same.append(len(pairs))
        pairs.append((source, target))
        lines.append(line)
    return Part(pairs, lines, same)


def _within_limits(
    lengths: np.ndarray, nothing: np.ndarray, lines: list[str], settings: TextSettings, findings: Findings
) -> np.ndarray:
    """Return a mask of the pairs within the limits, and add the others to the findings.

    lengths: (2, pairs);  nothing: (2,), lengths of empty texts
    """
    empty = (lengths <= nothing[:, None]).any(0)
    too_long = lengths.max(0) > settings.max_length
    # Without </s>, which would bring the ratio of short sentences closer to 1.
    words = np.maximum(lengths - 1, 1)
    lopsided = ~too_long & ~empty & (words.max(0) > (settings.max_length_ratio or math.inf) * words.min(0))
    for reason, mask in (("empty", empty), ("too long", too_long), ("length ratio", lopsided)):
        for i in np.flatnonzero(mask):
            findings.dropped[reason].add(lines[i])
    return ~(empty | too_long | lopsided)


def _file_parts(
    pairs: list[tuple[str, str]], ids: list[list[list[int]]], lengths: np.ndarray, keep: np.ndarray, dtype: np.dtype
) -> dict[str, np.ndarray]:
    """Return what the kept pairs add to each of FILES."""
    parts = {}
    for side, language in enumerate(("source", "target")):
        parts[f"{language}.ids"] = np.fromiter(chain.from_iterable(compress(ids[side], keep)), dtype)
        parts[f"{language}.lengths"] = lengths[side][keep]
    hashes = [hashlib.blake2b("\t".join(pair).encode(), digest_size=8).digest() for pair in compress(pairs, keep)]
    return parts | {"pairs.hash": np.frombuffer(b"".join(hashes), np.uint64)}


def open_corpus(folder: Path) -> Corpus:
    """Open a tokenised corpus. Raises BrokenFileError naming a file whose hash or size differs from the record."""
    try:
        about = read_json_object(folder / "corpus.json", "files", "tokens")
        pairs, tokens = about["pairs"], about["tokens"]
        sizes = dict(zip(FILES, (tokens["source"], tokens["target"], pairs, pairs, pairs), strict=True))
        arrays = []
        for name, kind in FILES.items():
            path, dtype = folder / name, np.dtype(kind or about["dtype"])
            if files_sha256(path) != about["files"][name]:
                raise BrokenFileError(f"{path} has been altered (its sha256 differs from corpus.json)")
            if (found := path.stat().st_size) != sizes[name] * dtype.itemsize:
                raise BrokenFileError(f"{path} has {found} bytes, not the {sizes[name]} {dtype}s of corpus.json")
            with name_in_errors(path):
                arrays.append(np.memmap(path, dtype=dtype, mode="r"))
    except (FileNotFoundError, KeyError, TypeError) as error:
        raise BrokenFileError(f"{folder}: not a complete tokenised corpus ({error!r})") from error
    return Corpus(*arrays, about=about)


def count_overlap(train: Corpus, held_out: Corpus) -> int:
    """Return the number of held-out pairs that are also in the training corpus, compared by their text."""
    return int(np.isin(held_out.pair_hashes, train.pair_hashes).sum())
