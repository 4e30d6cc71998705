"""Tokenised corpora in a cache, memory-mapped.

A corpus is a folder `<key>/` with source.ids, target.ids (all tokens in a row), source.lengths, target.lengths,
pairs.hash and corpus.json. The key is a hash of the text, the tokenizer and the filters.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vaswani_transformer.atomic import atomic_folder
from vaswani_transformer.errors import BrokenFileError, UnavailableError

from .json_files import read_json, write_json
from .parallel_text import ParallelText, files_sha256
from .recipe import Recipe
from .tokenise import Log, tokenise

FORMAT = 1


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
    def _source_ends(self) -> np.ndarray:
        return np.cumsum(self.source_lengths, dtype=np.int64)

    @cached_property
    def _target_ends(self) -> np.ndarray:
        return np.cumsum(self.target_lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.source_lengths)

    @property
    def sha256(self) -> str:
        """Hash of the tokens: the same for texts that differ in line ends, a byte order mark or a final newline."""
        return self.about["sha256"]

    def sources(self, pairs: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Return padded source ids and a mask of the real ones, both (batch, source)."""
        return _padded(self.source_ids, self._source_ends, self.source_lengths, pairs, pad)

    def targets(self, pairs: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Return padded target ids and a mask of the real ones, both (batch, target)."""
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
    """Load the tokenised corpus of these texts from the cache; tokenise them first if it is missing or damaged.

    target_tokenizer: for target texts with a separate vocabulary
    Dropped pairs are counted by reason and logged. Raises InputError when no pair is left.
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
            about = tokenise(texts, [tokenizer, target_tokenizer or tokenizer], recipe, temporary, log)
            write_json(temporary / "corpus.json", {**rules, **about, "files": file_hashes(temporary)})
    except OSError as error:
        if not folder.exists():  # a run that shares the cache may have created it first
            raise UnavailableError(f"{cache}: the tokenised corpus cannot be written: {error.strerror}") from error
    return open_corpus(folder)


def open_corpus(folder: Path) -> Corpus:
    """Open a tokenised corpus. Raises BrokenFileError that names a file with another size or hash than recorded."""
    try:
        about = read_json(folder / "corpus.json", "files", "tokens")
        if "files" not in about:
            raise BrokenFileError(f"{folder / 'corpus.json'} has no hashes (an earlier version wrote it)")
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
                raise BrokenFileError(f"{folder / name} has {size} bytes, must have {count * np.dtype(dtype).itemsize}")
            if files_sha256(folder / name) != about["files"][name]:
                raise BrokenFileError(f"{folder / name} has been altered (its sha256 differs from corpus.json)")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, BrokenFileError):
            raise
        raise BrokenFileError(f"{folder}: not a complete tokenised corpus ({error!r})") from error
    arrays = [np.memmap(folder / name, dtype=dtype, mode="r") for name, (dtype, _) in shapes.items()]
    return Corpus(*arrays, about=about)


def file_hashes(folder: Path) -> dict[str, str]:
    return {path.name: files_sha256(path) for path in sorted(folder.iterdir())}


def tokenizer_sha256(tokenizer: Any) -> str:
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def overlap(train: Corpus, held_out: Corpus) -> int:
    """Return how many held-out pairs, compared by their text, are also in the training corpus."""
    return int(np.isin(held_out.pair_hashes, train.pair_hashes).sum())
