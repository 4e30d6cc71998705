"""What does a WMT-size corpus cost before the first step? Time and memory of tokenising and of planning an epoch.

    python -m benchmarks.planning data/multi30k --pairs 5000000

Tokenising: Multi30k's pairs are repeated to --tokenise pairs, each with a different number at its end. The ceiling is
`encode_batch_fast` of the tokenizers library on the same sentences in memory, with its results discarded.
Planning: the lengths of the tokenised pairs are repeated to --pairs, minus up to three tokens at random, in files of
the same format. Measured are the start of training (lengths to micro-batches) and of each epoch (their order).
Memory is that of this process: `anonymous` memory, and `file` pages of the memory-mapped corpus, which the system
reclaims when it needs them.
"""

import itertools
import json
import re
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .harness import DataFolder, Record, Row, VocabularySize, load_recipe, report, run, timed, training_lines


def measure(
    data: DataFolder,
    pairs: Annotated[int, typer.Option(min=1)] = 5_000_000,
    tokenise: Annotated[int, typer.Option(min=1)] = 100_000,
    vocab_size: VocabularySize = 8000,
    tokens: Annotated[int, typer.Option(help="Source + target tokens of a micro-batch.")] = 6250,
    steps: Annotated[int, typer.Option(min=1, help="Steps whose batches are read from the corpus.")] = 1000,
    folder: Annotated[Path | None, typer.Option(help="Where to put text and cache; default: the system's.")] = None,
    record: Record = None,
) -> None:
    """Measure the cost of a large corpus."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        tokenised, row = measure_tokenising(data, tokenise, vocab_size, work)
        (work / "large").mkdir()
        row |= measure_planning(repeat(tokenised, pairs, work / "large"), tokens, steps)
    report([{"pairs": pairs} | row], record)


def measure_tokenising(data: Path, pairs: int, vocab_size: int, work: Path) -> tuple[Any, Row]:
    """Return the tokenised corpus and the speeds."""
    from training.corpus import load_corpus
    from training.model import load_or_train_tokenizer
    from training.parallel_text import parallel_texts, text_lines
    from training.text_files import CHUNK

    for language in ("en", "de"):
        lines = training_lines(data, language)
        with (work / f"train.{language}").open("w", encoding="utf-8") as file:
            file.writelines(f"{line} {number}\n" for number, line in zip(range(pairs), itertools.cycle(lines)))
        (work / f"small.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    recipe = load_recipe({"data": str(work), "vocab_size": vocab_size, "max_length": 256})
    tokenizer = load_or_train_tokenizer(recipe, work, parallel_texts(recipe, ["small"]), lambda _: None)

    def encode(sentences: list[str]) -> None:
        tokenizer.backend_tokenizer.encode_batch_fast(sentences)

    tokenizer.backend_tokenizer.encode_special_tokens = True
    texts = parallel_texts(recipe, ["train"])
    lines, ceiling = text_lines(texts), np.zeros(2)
    while sentences := list(itertools.islice(lines, 2 * CHUNK)):
        ceiling += timed(partial(encode, sentences), cpu_and_wall)[0]
    ceiling_cpu, ceiling_wall = ceiling
    load = partial(load_corpus, texts, tokenizer, recipe, work / "cache", lambda _: None)
    (our_cpu, our_wall), corpus = timed(load, cpu_and_wall)
    return corpus, {
        "tokenised_pairs": len(corpus),
        "tokenise_pairs_per_second": round(len(corpus) / our_wall),
        "ceiling_pairs_per_second": round(pairs / ceiling_wall),
        "tokenise_pairs_per_cpu_second": round(len(corpus) / our_cpu),
        "ceiling_pairs_per_cpu_second": round(pairs / ceiling_cpu),
    }


def cpu_and_wall() -> np.ndarray:
    """Return the seconds of both clocks."""
    return np.array([time.process_time(), time.perf_counter()])


def measure_planning(corpus: Any, tokens: int, steps: int) -> Row:
    from training.batches import Epoch, plan_batches

    def read_batches() -> None:
        for step in range(min(steps, plan.steps_per_epoch)):
            for batch in epoch.step(step):
                corpus.sources(batch, 1)
                corpus.targets(batch, 1)

    before = memory()["RssAnon"]
    lengths = corpus.source_lengths, corpus.target_lengths
    planning, plan = timed(partial(plan_batches, *lengths, tokens, 8), time.process_time)
    ordering, epoch = timed(partial(Epoch, plan, seed=1, epoch=0), time.process_time)
    peak = memory()
    reading, _ = timed(read_batches, time.process_time)
    after = memory()
    return {
        "plan_cpu_seconds": round(planning, 2),
        "epoch_cpu_seconds": round(ordering, 2),
        "planning_megabytes": peak["VmHWM"] - before,
        "batches_cpu_seconds": round(reading, 2),
        "anonymous_megabytes": after["RssAnon"],
        "file_megabytes": after["RssFile"],
        "steps_per_epoch": plan.steps_per_epoch,
        "padding": round(plan.padding(), 4),
    }


def repeat(corpus: Any, pairs: int, folder: Path) -> Any:
    """Write a corpus of this many pairs: lengths repeated, minus up to three tokens at random; ids repeated."""
    from training.corpus import open_corpus
    from training.parallel_text import files_sha256

    generator = np.random.default_rng(0)
    sides = {
        "source": (corpus.source_ids, corpus.source_lengths),
        "target": (corpus.target_ids, corpus.target_lengths),
    }
    tokens = {}
    for name, (ids, lengths) in sides.items():
        before = np.resize(lengths, pairs)
        after = np.maximum(before - generator.integers(0, 4, pairs), np.minimum(before, 2)).astype(np.int32)
        after.tofile(folder / f"{name}.lengths")
        tokens[name] = int(after.sum())
        with (folder / f"{name}.ids").open("wb") as file:
            for first in range(0, tokens[name], len(ids)):
                ids[: tokens[name] - first].tofile(file)
    generator.integers(0, 2**63, pairs, dtype=np.uint64).tofile(folder / "pairs.hash")
    files = {name: files_sha256(folder / name) for name in corpus.about["files"]}
    about = {**corpus.about, "pairs": pairs, "tokens": tokens, "files": files}
    (folder / "corpus.json").write_text(json.dumps(about))
    return open_corpus(folder)


def memory() -> dict[str, int]:
    """Return this process's megabytes: RssAnon and RssFile now; VmHWM, the peak since the last call."""
    status = Path("/proc/self/status").read_text()
    sizes = re.findall(r"^(RssAnon|RssFile|VmHWM):\s+(\d+) kB", status, re.M)
    found = {name: int(size) // 1024 for name, size in sizes}
    found["VmHWM"] -= found["RssFile"]
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
    return found


if __name__ == "__main__":
    run(measure)
