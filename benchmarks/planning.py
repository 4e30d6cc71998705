"""What does a corpus of WMT's size cost before the first step? Time and memory of tokenising and of planning an epoch.

    python -m benchmarks.planning data/multi30k --pairs 5000000

Tokenising is measured on Multi30k's pairs repeated to --tokenise of them, each with a number of its own at the end, and
compared with its ceiling: `encode_batch_fast` of the tokenizers library on the same sentences, already in memory, its
results thrown away. The large corpus is the tokenised one repeated to --pairs, up to three tokens cut off each sentence
by chance, in files of the same format. Planning is what happens at the start of training (lengths to
micro-batches) and of each epoch (their order). Memory is that of this process: `anonymous` is its own, `file` are
pages of the memory-mapped corpus, which the system takes back when it needs them.
"""

import itertools
import json
import re
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani_transformer.errors import exit_cleanly
from vaswani_transformer.lines import read_lines

from .record import append, command

app = typer.Typer(add_completion=False, rich_markup_mode=None)
COLUMNS = (
    "date", "commit", "command", "hardware", "pairs", "tokenised_pairs",
    "tokenise_pairs_per_second", "ceiling_pairs_per_second",
    "tokenise_pairs_per_cpu_second", "ceiling_pairs_per_cpu_second", "plan_cpu_seconds", "epoch_cpu_seconds",
    "planning_megabytes", "batches_cpu_seconds", "anonymous_megabytes", "file_megabytes", "steps_per_epoch", "padding",
)  # fmt: skip


@app.command(help="Measure what a large corpus costs.")
def main_command(
    data: Annotated[Path, typer.Argument(help="A folder with train.en and train.de (.gz too), such as Multi30k's.")],
    pairs: Annotated[int, typer.Option(min=1)] = 5_000_000,
    tokenise: Annotated[int, typer.Option(min=1)] = 100_000,
    vocab_size: Annotated[int, typer.Option(min=300)] = 8000,
    tokens: Annotated[int, typer.Option(help="Source + target tokens of a micro-batch.")] = 6250,
    steps: Annotated[int, typer.Option(min=1, help="Steps whose batches are read from the corpus.")] = 1000,
    folder: Annotated[Path | None, typer.Option(help="Where text and cache may lie; default: a temporary one.")] = None,
    record: Annotated[Path | None, typer.Option(help="Append the result to this CSV file.")] = None,
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        row = measure(data, pairs, tokenise, vocab_size, tokens, steps, Path(work))
    for name, value in row.items():
        typer.echo(f"{name:<32}{value:>14,}")
    if record is not None:
        from training.record import commit, hardware

        about = {"date": date.today().isoformat(), "commit": commit(), "hardware": hardware()}
        about["command"] = command("planning")
        append(record, COLUMNS, [about | row])


def measure(
    data: Path, pairs: int, tokenise: int, vocab_size: int, tokens: int, steps: int, work: Path
) -> dict[str, Any]:
    from training.batches import Epoch, plan_batches
    from training.corpus import CHUNK, load_corpus, parallel_texts, text_lines
    from training.model import load_or_train_tokenizer
    from training.recipe import load_recipe

    for language in ("en", "de"):
        name = f"train.{language}"
        lines = list(read_lines(data / name if (data / name).is_file() else data / f"{name}.gz"))
        with (work / name).open("w", encoding="utf-8") as file:
            file.writelines(f"{line} {number}\n" for number, line in zip(range(tokenise), itertools.cycle(lines)))
        (work / f"small.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    flags = {"data": str(work), "vocab_size": str(vocab_size), "max_length": "256"}
    recipe = load_recipe(None, flags)
    small = parallel_texts(recipe, ["small"])
    tokenizer = load_or_train_tokenizer(recipe, work, small, lambda _: None)

    ceiling = Clock()
    tokenizer.backend_tokenizer.encode_special_tokens = True
    for sentences in chunks(text_lines(parallel_texts(recipe, ["train"])), 2 * CHUNK):
        ceiling.start()
        tokenizer.backend_tokenizer.encode_batch_fast(sentences)
        ceiling.stop(len(sentences) // 2)
    ours = Clock()
    ours.start()
    tokenised = load_corpus(parallel_texts(recipe, ["train"]), tokenizer, recipe, work / "cache", lambda _: None)
    ours.stop(len(tokenised))
    (work / "large").mkdir()
    corpus = repeated(tokenised, pairs, work / "large")

    before = memory()["RssAnon"]
    planning, ordering, reading = Clock(), Clock(), Clock()
    planning.start()
    plan = plan_batches(corpus.source_lengths, corpus.target_lengths, tokens, 8)
    planning.stop(1)
    ordering.start()
    epoch = Epoch(plan, seed=1, epoch=0)
    ordering.stop(1)
    peak = memory()
    reading.start()
    for step in range(min(steps, plan.steps_per_epoch)):
        for batch in epoch.step(step):
            corpus.sources(batch, 1)
            corpus.targets(batch, 1)
    reading.stop(1)
    after = memory()
    return {
        "pairs": len(corpus),
        "tokenised_pairs": len(tokenised),
        "tokenise_pairs_per_second": round(ours.pairs / ours.wall),
        "ceiling_pairs_per_second": round(ceiling.pairs / ceiling.wall),
        "tokenise_pairs_per_cpu_second": round(ours.pairs / ours.cpu),
        "ceiling_pairs_per_cpu_second": round(ceiling.pairs / ceiling.cpu),
        "plan_cpu_seconds": round(planning.cpu, 2),
        "epoch_cpu_seconds": round(ordering.cpu, 2),
        "planning_megabytes": peak["VmHWM"] - before,
        "batches_cpu_seconds": round(reading.cpu, 2),
        "anonymous_megabytes": after["RssAnon"],
        "file_megabytes": after["RssFile"],
        "steps_per_epoch": plan.steps_per_epoch,
        "padding": round(plan.padding(), 4),
    }


def repeated(corpus: Any, pairs: int, folder: Path) -> Any:
    """The corpus as often as it takes to have that many pairs, each sentence cut by up to three tokens by chance."""
    import numpy as np

    from training.corpus import open_corpus

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
                for tokens in range(1, 4):  # those before </s>
                    kept[ends[:number][cut >= tokens] - 1 - tokens] = False
                ids_file.write(part := ids[: len(kept)][kept].tobytes())
                lengths_file.write((lengths[:number] - cut).astype(np.int32).tobytes())
                counts[name] += len(part) // ids.itemsize
    (folder / "pairs.hash").write_bytes(generator.integers(0, 2**63, pairs, dtype=np.uint64).tobytes())
    about = {**corpus.about, "pairs": pairs, "tokens": counts}
    (folder / "corpus.json").write_text(json.dumps(about))
    return open_corpus(folder)


class Clock:
    """CPU and wall seconds, and how many pairs they went into."""

    cpu = wall = 0.0
    pairs = 0

    def start(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def stop(self, pairs: int) -> None:
        self.cpu += time.process_time() - self._cpu
        self.wall += time.perf_counter() - self._wall
        self.pairs += pairs


def chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(itertools.islice(lines, size)):
        yield chunk


def memory() -> dict[str, int]:
    """Megabytes of this process: RssAnon and RssFile now; VmHWM, the most that was resident since the last call."""
    status = Path("/proc/self/status").read_text()
    found = {
        name: int(size) // 1024 for name, size in re.findall(r"^(RssAnon|RssFile|VmHWM):\s+(\d+) kB", status, re.M)
    }
    found["VmHWM"] -= found["RssFile"]
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): begins VmHWM anew
    return found


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="planning")


if __name__ == "__main__":
    main()
