"""What does a WMT-size corpus cost before the first step? Time and memory of tokenising and of planning an epoch.

    python -m benchmarks.planning data/multi30k --pairs 5000000

Tokenising: Multi30k's pairs are repeated to --tokenise pairs, each with a different number at its end. The ceiling is
`encode_batch_fast` of the tokenizers library on the same sentences in memory, with its results discarded.
Planning: the tokenised pairs are repeated to --pairs, with up to three tokens removed from each sentence at random, in
files of the same format. Measured are the start of training (lengths to micro-batches) and of each epoch (their order).
Memory is that of this process: `anonymous` memory, and `file` pages of the memory-mapped corpus, which the system
reclaims when it needs them.
"""

import itertools
import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from vaswani_transformer.errors import exit_cleanly

from .harness import DataFolder, Record, VocabularySize, program, report, training_lines

app = program()


@app.command(help="Measure the cost of a large corpus.")
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
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        tokenised, row = measure_tokenising(data, tokenise, vocab_size, work)
        (work / "large").mkdir()
        row |= measure_planning(repeat(tokenised, pairs, work / "large"), tokens, steps)
    report([{"pairs": pairs} | row], record, "planning")


def measure_tokenising(data: Path, pairs: int, vocab_size: int, work: Path) -> tuple[Any, dict[str, Any]]:
    """Return the tokenised corpus and the speeds."""
    from training.corpus import load_corpus
    from training.model import load_or_train_tokenizer
    from training.parallel_text import parallel_texts, text_lines
    from training.recipe import load_recipe
    from training.text_files import CHUNK

    for language in ("en", "de"):
        lines = training_lines(data, language)
        with (work / f"train.{language}").open("w", encoding="utf-8") as file:
            file.writelines(f"{line} {number}\n" for number, line in zip(range(pairs), itertools.cycle(lines)))
        (work / f"small.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    recipe = load_recipe(None, {"data": str(work), "vocab_size": str(vocab_size), "max_length": "256"})
    tokenizer = load_or_train_tokenizer(recipe, work, parallel_texts(recipe, ["small"]), lambda _: None)

    ceiling = Stopwatch()
    tokenizer.backend_tokenizer.encode_special_tokens = True
    for sentences in chunks(text_lines(parallel_texts(recipe, ["train"])), 2 * CHUNK):
        with ceiling:
            tokenizer.backend_tokenizer.encode_batch_fast(sentences)
    with Stopwatch() as ours:
        corpus = load_corpus(parallel_texts(recipe, ["train"]), tokenizer, recipe, work / "cache", lambda _: None)
    return corpus, {
        "tokenised_pairs": len(corpus),
        "tokenise_pairs_per_second": round(len(corpus) / ours.wall),
        "ceiling_pairs_per_second": round(pairs / ceiling.wall),
        "tokenise_pairs_per_cpu_second": round(len(corpus) / ours.cpu),
        "ceiling_pairs_per_cpu_second": round(pairs / ceiling.cpu),
    }


def measure_planning(corpus: Any, tokens: int, steps: int) -> dict[str, Any]:
    from training.batches import Epoch, plan_batches

    before = memory()["RssAnon"]
    with Stopwatch() as planning:
        plan = plan_batches(corpus.source_lengths, corpus.target_lengths, tokens, 8)
    with Stopwatch() as ordering:
        epoch = Epoch(plan, seed=1, epoch=0)
    peak = memory()
    with Stopwatch() as reading:
        for step in range(min(steps, plan.steps_per_epoch)):
            for batch in epoch.step(step):
                corpus.sources(batch, 1)
                corpus.targets(batch, 1)
    after = memory()
    return {
        "plan_cpu_seconds": round(planning.cpu, 2),
        "epoch_cpu_seconds": round(ordering.cpu, 2),
        "planning_megabytes": peak["VmHWM"] - before,
        "batches_cpu_seconds": round(reading.cpu, 2),
        "anonymous_megabytes": after["RssAnon"],
        "file_megabytes": after["RssFile"],
        "steps_per_epoch": plan.steps_per_epoch,
        "padding": round(plan.padding(), 4),
    }


def repeat(corpus: Any, pairs: int, folder: Path) -> Any:
    """Repeat the corpus to that many pairs, and remove up to three tokens from each sentence at random."""
    from training.corpus import open_corpus
    from training.parallel_text import files_sha256

    generator = np.random.default_rng(0)
    sides = (corpus.source_ids, corpus.source_lengths), (corpus.target_ids, corpus.target_lengths)
    counts = {}
    for name, (ids, lengths) in zip(("source", "target"), sides, strict=True):
        ends = np.cumsum(lengths, dtype=np.int64)
        counts[name] = 0
        with (folder / f"{name}.ids").open("wb") as ids_file, (folder / f"{name}.lengths").open("wb") as lengths_file:
            for first in range(0, pairs, len(corpus)):
                number = min(len(corpus), pairs - first)
                cut = np.minimum(generator.integers(0, 4, number), lengths[:number] - 2).clip(0)
                kept = np.ones(int(ends[number - 1]), dtype=bool)
                for tokens in range(1, 4):  # the tokens before </s>
                    kept[ends[:number][cut >= tokens] - 1 - tokens] = False
                ids_file.write(part := ids[: len(kept)][kept].tobytes())
                lengths_file.write((lengths[:number] - cut).astype(np.int32).tobytes())
                counts[name] += len(part) // ids.itemsize
    (folder / "pairs.hash").write_bytes(generator.integers(0, 2**63, pairs, dtype=np.uint64).tobytes())
    files = {name: files_sha256(folder / name) for name in corpus.about["files"]}
    (folder / "corpus.json").write_text(json.dumps({**corpus.about, "pairs": pairs, "tokens": counts, "files": files}))
    return open_corpus(folder)


class Stopwatch:
    """Add up the CPU and wall seconds of `with` blocks."""

    cpu = wall = 0.0

    def __enter__(self) -> "Stopwatch":
        self.begun = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self.begun[0]
        self.wall += time.perf_counter() - self.begun[1]


def chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(itertools.islice(lines, size)):
        yield chunk


def memory() -> dict[str, int]:
    """Return this process's megabytes: RssAnon and RssFile now; VmHWM, the peak since the last call."""
    status = Path("/proc/self/status").read_text()
    sizes = re.findall(r"^(RssAnon|RssFile|VmHWM):\s+(\d+) kB", status, re.M)
    found = {name: int(size) // 1024 for name, size in sizes}
    found["VmHWM"] -= found["RssFile"]
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
    return found


if __name__ == "__main__":
    exit_cleanly(app, name="python -m benchmarks.planning")
