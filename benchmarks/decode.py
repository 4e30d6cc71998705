"""How fast does each system translate real sentences?

    python -m benchmarks.decode MODEL --source test.en --reference test.de --system onnx=ONNX_FOLDER
        --system ctranslate2-float32=CT2_FOLDER --system marian=MARIAN_FOLDER --record decode.csv

Row:   a system and a batch size; its fastest of several interleaved rounds over the same token ids.
Unit:  output tokens per second, from token ids to token ids: without tokenisation.
Peers: transformers' Marian with generate(), and CTranslate2, both with the weights of MODEL.

MODEL itself is measured with generate() and with the search in tensors. Sentences are sorted by length. A separate
process measures the time to load each system, the time to translate a first sentence, and the peak memory while
translating the batch with the longest sentences. On a busy machine, compare CPU seconds: --clock cpu --threads 1.
With --reference, --record also plots BLEU against speed. results/README.md shows how to make the folders from MODEL.
"""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import read_lines
from vaswani_transformer.loading import load_tokenizer
from vaswani_transformer.pictures import new_figure
from vaswani_transformer.translator import batches_by_length

from .harness import Row, clock, race, report, run, speedups
from .options import BATCH_SIZES, BatchSizes, ClockName, Record, Rounds, Threads
from .systems.decoding import NEEDS_TORCH, OURS, SYSTEMS, System, TokenIds, find_peers


def compare(
    model: Annotated[str, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="A UTF-8 text file, one sentence per line.")],
    reference: Annotated[str | None, typer.Option(help="Its translation, for BLEU.")] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(help=f"KIND=FOLDER with the same weights; repeatable. KIND: {', '.join(SYSTEMS)}."),
    ] = None,
    batch_size: BatchSizes = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Then also batches of this many tokens.")] = None,
    sentences: Annotated[int, typer.Option(min=1, help="Use this many lines of the source.")] = 200,
    num_beams: int = 4,
    threads: Threads = 1,
    rounds: Rounds = 3,
    clock_name: ClockName = "wall",
    record: Record = None,
) -> None:
    """Compare decoding speed on real sentences."""
    now = clock(clock_name)
    lines, references = read_pairs(source, reference, sentences)
    tokenizer = load_tokenizer(model)
    encoded: TokenIds = tokenizer(lines, verbose=False)["input_ids"]
    chosen = [("generate", model), ("search", model), *map(parse_system, system or [])]  # (kind, folder)
    systems = load_systems(chosen, threads)
    settings = {"sentences": len(lines), "num_beams": num_beams, "threads": threads, "clock": clock_name}
    rows: list[Row] = []
    for name, batches in batchings(encoded, batch_size or BATCH_SIZES, batch_tokens).items():
        sources = [[encoded[i] for i in batch] for batch in batches]
        expected = [references[i] for batch in batches for i in batch] if references else None
        standalone = [measure_standalone(kind, folder, threads, num_beams, sources[-1]) for kind, folder in chosen]
        for each in systems:
            each.translate(sources[0], num_beams)  # warm up
        best = race({each.name: partial(translate_all, each, sources, num_beams) for each in systems}, rounds, now)
        for each, standalone_columns in zip(systems, standalone, strict=True):
            seconds, translations = best[each.name]
            row = {
                "batch": name,
                "system": each.name,
                "seconds": round(seconds, 3),
                "tokens_per_second": round(sum(map(len, translations)) / seconds),
                **speedups(each.name, peers_of(each, systems), best),
                "bleu": bleu(translations, expected, tokenizer) if expected else "",
                **standalone_columns,
                "file_megabytes": round(each.megabytes, 1),
            }
            rows.append(settings | row)
    report(rows, record)
    if record and references:
        unit = "CPU" if clock_name == "cpu" else "wall-clock"
        title = f"{Path(model).name}: {len(lines)} sentences, beam {num_beams}, {threads} thread(s), {unit} time"
        plot(systems, rows, title, record.with_name(f"{record.stem}-{Path(model).name}-{threads}.png"))


# ---- text and systems --------------------------------------------------------------------------------------------


def read_pairs(source: str, reference: str | None, sentences: int) -> tuple[list[str], list[str] | None]:
    """Return the first lines of both files. Raises InputError if their numbers of lines differ."""
    lines = list(read_lines(source))
    references = list(read_lines(reference)) if reference else None
    if references is not None and len(references) != len(lines):
        raise InputError(f"{source} has {len(lines)} lines and {reference} has {len(references)}")
    return lines[:sentences], references[:sentences] if references else None


def batchings(encoded: TokenIds, sizes: list[int], tokens: int | None = None) -> dict[str, list[list[int]]]:
    """Return batches of each size, as indices of sentences, the shortest sentences first.

    tokens: also batches of at most this many tokens, padding included
    """
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    found = {str(size): [order[i : i + size] for i in range(0, len(order), size)] for size in sizes}
    if tokens is not None:
        found[f"{tokens} tokens"] = list(batches_by_length([len(ids) for ids in encoded], tokens))[::-1]
    return found


def parse_system(option: str) -> tuple[str, str]:
    """Return kind and folder of a --system. Raises InputError."""
    kind, equals, folder = option.partition("=")
    if not equals or kind not in SYSTEMS:
        raise InputError(f"--system {option!r}: it must be KIND=FOLDER, with a KIND of {', '.join(SYSTEMS)}")
    return kind, folder


def load_systems(chosen: list[tuple[str, str]], threads: int) -> list[System]:
    """Load the systems, each by its kind and folder. Raises InputError if two have the same name."""
    systems = [SYSTEMS[kind](Path(folder), threads) for kind, folder in chosen]
    names = [system.name for system in systems]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--system: two systems have the name {twice[0]!r}; ONNX files are named after their folders")
    return systems


# ---- measurements ------------------------------------------------------------------------------------------------


def measure_standalone(kind: str, folder: str, threads: int, beams: int, sources: TokenIds) -> Row:
    """Return the seconds and memory of a process that loads only this system and translates one batch."""
    blocked = [] if kind in NEEDS_TORCH else ["torch", "transformers"]
    module = [sys.executable, "-m", "benchmarks.systems.standalone"]
    command = [*module, kind, folder, str(threads), str(beams), *blocked]
    done = subprocess.run(command, input=json.dumps(sources), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def translate_all(system: System, batches: list[TokenIds], beams: int) -> TokenIds:
    return [ids for batch in batches for ids in system.translate(batch, beams)]


def peers_of(system: System, systems: list[System]) -> dict[str, str | None]:
    """Return the names of the systems that a system is compared with: for int8, CTranslate2's int8."""
    ctranslate2 = "int8" if system.precision == "int8" else "float32"
    return find_peers(systems, {"generate": "float32", "marian": "float32", "ctranslate2": ctranslate2})


def bleu(translations: TokenIds, references: list[str], tokenizer: Any) -> str:
    from sacrebleu import corpus_bleu

    texts = tokenizer.batch_decode(translations, skip_special_tokens=True)
    return f"{corpus_bleu(texts, [references]).score:.1f}"


# ---- the plot ----------------------------------------------------------------------------------------------------


def plot(systems: list[System], rows: list[Row], title: str, path: Path) -> None:
    """Plot BLEU against speed: a line for each system (dashed for other programs) and a point for each batch size."""
    figure = new_figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    for system in systems:
        points = sorted(
            (row["sentences"] / row["seconds"], float(row["bleu"]), row["batch"].removesuffix(" tokens"))
            for row in rows
            if row["system"] == system.name
        )
        style = "o-" if system.engine in OURS else "s--"
        speeds, scores = [x for x, _, _ in points], [y for _, y, _ in points]
        (line,) = axis.plot(speeds, scores, style, label=system.name, markersize=5)
        for n, (speed, score, batch) in enumerate(points):
            # Close points have their labels above and below the line in turn.
            place = {"xytext": (0, 4 if n % 2 else -11), "textcoords": "offset points", "ha": "center"}
            axis.annotate(batch, (speed, score), fontsize=7, color=line.get_color(), **place)
    axis.set(xscale="log", xlabel="sentences per second (numbers: sentences or tokens per batch)", ylabel="BLEU")
    axis.set_title(title, fontsize=10)
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.xaxis.set_minor_formatter("{x:.0f}")
    low, high = axis.get_ylim()
    axis.set_ylim((low + high - max(high - low, 3)) / 2, (low + high + max(high - low, 3)) / 2)  # 0.1 BLEU is noise
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
    with atomic_file(path) as file:
        figure.savefig(file, format="png")


if __name__ == "__main__":
    run(compare)
