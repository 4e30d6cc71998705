"""How fast is training text read and tokenised, compared with the tokenizers library alone?

    python -m benchmarks.tokenising data/debian --tokenizer runs/debian_en_de --record tokenising.csv

Ours: training.corpus.tokenise, from text files to a tokenised corpus: it reads, checks and tokenises the pairs, counts
      what it drops, and writes token ids, lengths and hashes.
Peer: the library's encode_batch_fast on lists of lines, and the ids of its results. Not timed: reading the lines.
Unit: pairs per second, on all cores. `ratio` is ours relative to the peer in the same round.

The text of the folder is repeated, with the number of the repetition behind every line, until it has --pairs pairs.
The garbage collector is switched off for both, as `tokenise` does it. `peak_megabytes` is the memory of the process
after `tokenise` has run for the first time.
"""

import gc
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import typer

from training.corpus import tokenise
from training.parallel_text import CHUNK, ParallelText, open_texts
from training.recipe import load_recipe
from training.tokenizer import load_for_training
from vaswani_transformer.lines import read_lines

from .harness import report, run, take_turns, timed
from .options import DataFolder, Record, Rounds


def compare(
    data: DataFolder,
    tokenizer: Annotated[Path, typer.Option(help="Folder with tokenizer.json.")],
    pairs: Annotated[int, typer.Option(min=1, help="Pairs to tokenise.")] = 5_000_000,
    rounds: Rounds = 1,
    record: Record = None,
) -> None:
    """Compare the speed of tokenising training text with that of the tokenizers library."""
    with tempfile.TemporaryDirectory() as temporary:
        for language in ("en", "de"):
            repeat_lines(data / f"train.{language}", Path(temporary, f"train.{language}"), pairs)
        settings = load_recipe(None, {"data": temporary}).settings().text
        [text] = open_texts(settings, ["train"])
        loaded = load_for_training(tokenizer, of_targets=True)
        peaks: list[int] = []  # KiB

        def ours() -> float:
            with tempfile.TemporaryDirectory() as corpus:
                task = partial(tokenise, [text], [loaded, loaded], settings, Path(corpus), typer.echo)
                seconds, _ = timed(task, time.perf_counter)
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            return seconds

        systems = {"ours": ours, "tokenizers": partial(tokenise_alone, text, loaded.backend_tokenizer)}
        seconds = take_turns(systems, rounds)
    ratios = [peer / own for own, peer in zip(seconds["ours"], seconds["tokenizers"], strict=True)]
    row = {
        "pairs": pairs,
        "rounds": rounds,
        "pairs_per_second": round(pairs / statistics.median(seconds["ours"])),
        "tokenizers_pairs_per_second": round(pairs / statistics.median(seconds["tokenizers"])),
        "ratio": f"{statistics.median(ratios):.2f}",
        "ratio_min": f"{min(ratios):.2f}",
        "ratio_max": f"{max(ratios):.2f}",
        "peak_megabytes": peaks[0] * 1024 // 10**6,
    }
    report([row], record)


def repeat_lines(source: Path, target: Path, lines: int) -> None:
    """Write a text, or its .gz file, again and again, with the number of the repetition behind every line."""
    source = source if source.is_file() else Path(f"{source}.gz")
    text = (f"{line} {repetition}\n" for repetition in count() for line in read_lines(source))
    with target.open("w", encoding="utf-8") as file:
        file.writelines(islice(text, lines))


def tokenise_alone(text: ParallelText, tokenizer: Any) -> float:
    """Return the seconds that the library takes for both sides of the text."""
    seconds = 0.0
    gc.disable()
    pairs = text.pairs()
    while chunk := list(islice(pairs, CHUNK)):
        _, *sides = zip(*chunk, strict=True)
        for lines in sides:
            elapsed, _ = timed(partial(encode, tokenizer, list(lines)), time.perf_counter)
            seconds += elapsed
    gc.enable()
    return seconds


def encode(tokenizer: Any, lines: Sequence[str | None]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(lines)]


if __name__ == "__main__":
    run(compare)
