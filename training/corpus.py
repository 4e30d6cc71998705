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
    def _ends(self) -> list[np.ndarray]:
        return [np.cumsum(lengths, dtype=np.int64) for lengths in (self.source_lengths, self.target_lengths)]

    def __len__(self) -> int:
        return len(self.source_lengths)

    @property
    def sha256(self) -> str:
        """Hash of the tokens: the same for texts that differ in line ends, a byte order mark or a final newline."""
        return self.about["sha256"]

    def sources(self, pairs: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Return padded source ids and a mask of the real ones, both (batch, source)."""
        return _padded(self.source_ids, self._ends[0], self.source_lengths, pairs, pad)

    def targets(self, pairs: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Return padded target ids and a mask of the real ones, both (batch, target)."""
        return _padded(self.target_ids, self._ends[1], self.target_lengths, pairs, pad)


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
            files = {path.name: files_sha256(path) for path in sorted(temporary.iterdir())}
            write_json(temporary / "corpus.json", {**rules, **about, "files": files})
    except OSError as error:
        if not folder.exists():  # a run that shares the cache may have created it first
            raise UnavailableError(f"{cache}: the tokenised corpus cannot be written: {error.strerror}") from error
    return open_corpus(folder)


def open_corpus(folder: Path) -> Corpus:
    """Open a tokenised corpus. Raises BrokenFileError that names a file with another hash than recorded."""
    try:
        about = read_json(folder / "corpus.json", "files", "tokens")
        arrays = []
        for name, dtype in (
            ("source.ids", about["dtype"]),
            ("target.ids", about["dtype"]),
            ("source.lengths", "int32"),
            ("target.lengths", "int32"),
            ("pairs.hash", "uint64"),
        ):
            if files_sha256(folder / name) != about["files"][name]:
                raise BrokenFileError(f"{folder / name} has been altered (its sha256 differs from corpus.json)")
            arrays.append(np.memmap(folder / name, dtype=dtype, mode="r"))
    except (OSError, KeyError, TypeError) as error:
        raise BrokenFileError(f"{folder}: not a complete tokenised corpus ({error!r})") from error
    return Corpus(*arrays, about=about)


def tokenizer_sha256(tokenizer: Any) -> str:
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def overlap(train: Corpus, held_out: Corpus) -> int:
    """Return how many held-out pairs, compared by their text, are also in the training corpus."""
    return int(np.isin(held_out.pair_hashes, train.pair_hashes).sum())
