"""Filter and tokenise parallel text, chunk by chunk."""

import hashlib
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from vaswani_transformer.errors import InputError

from .parallel_text import ParallelText
from .recipe import Recipe
from .text_files import Chunk

Log = Callable[[str], None]

# Drop lines with more characters per allowed token before tokenising them: they must cost neither time nor memory.
CHARACTERS_PER_TOKEN = 32


@dataclass
class Dropped:
    """The number of pairs that a filter dropped, and the lines of the first five."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        self.count += 1
        if len(self.first) < 5:
            self.first.append(where)

    def __str__(self) -> str:
        return f"lines {', '.join(self.first)}{', ...' if self.count > 5 else ''}"


def tokenise(
    texts: list[ParallelText], tokenizers: list[Any], recipe: Recipe, folder: Path, log: Log
) -> dict[str, Any]:
    """Write the usable pairs to `folder` and return what corpus.json records of them.

    tokenizers: of the source and of the target
    """
    backends = [tokenizer.backend_tokenizer for tokenizer in tokenizers]
    for backend in backends:  # control tokens in the text are text
        backend.encode_special_tokens = True
    dtype = np.dtype(np.uint16 if max(map(len, tokenizers)) <= 1 << 16 else np.uint32)
    name = " + ".join(text.name for text in texts)
    dropped = {reason: Dropped() for reason in ("not UTF-8", "empty", "too long", "length ratio")}
    digest = hashlib.sha256()
    read, kept, tokens, told = 0, 0, [0, 0], 0
    with ExitStack() as stack:
        ids_files, length_files = (
            [stack.enter_context((folder / f"{side}.{kind}").open("wb")) for side in ("source", "target")]
            for kind in ("ids", "lengths")
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
            for pair in compress(pairs, keep):
                hash_file.write(hashlib.blake2b("\t".join(pair).encode(), digest_size=8).digest())
            kept += int(keep.sum())
            if read // 1_000_000 > told:
                told = read // 1_000_000
                log(f"{name}: {told} million pairs tokenised")
    report = "".join(f"; dropped {d.count} {reason} ({d})" for reason, d in dropped.items() if d.count)
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
        "dropped": {reason: asdict(d) for reason, d in dropped.items()},
    }


def _usable_text(chunk: Chunk, recipe: Recipe, dropped: dict[str, Dropped], prefix: str):
    """Return the pairs of a chunk that are worth tokenising, and their line numbers."""
    longest = CHARACTERS_PER_TOKEN * recipe.max_length
    pairs, lines = [], []
    for number, (source, target) in enumerate(zip(chunk.sources, chunk.targets, strict=True), chunk.first_line):
        where = f"{prefix}{number}"
        if source is None or target is None:
            dropped["not UTF-8"].add(where)
            continue
        # A sentence does not include surrounding spaces and line ends.
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
    """Return a mask of the pairs within the limits. lengths: (2, pairs)"""
    too_long = lengths.max(0) > recipe.max_length
    # Without </s>, so that the ratio means the same for short sentences.
    words = np.maximum(lengths - 1, 1)
    lopsided = ~too_long & (words.max(0) > (recipe.max_length_ratio or math.inf) * words.min(0))
    for reason, mask in (("too long", too_long), ("length ratio", lopsided)):
        for i in np.flatnonzero(mask):
            dropped[reason].add(lines[i])
    return ~(too_long | lopsided)
