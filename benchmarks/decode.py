"""Compares decoding speed of torch, ONNX Runtime, transformers' Marian and CTranslate2 with the same weights.

    python -m benchmarks.decode MODEL --source test.en --reference test.de --system onnx=ONNX_FOLDER
        --system ctranslate2-float32=CT2_FOLDER --system marian=MARIAN_FOLDER

MODEL is measured with generate() and with the search in tensors. All systems translate the same batches of token ids,
sorted by length, in interleaved rounds; the fastest round counts. On a busy machine, compare CPU seconds: --clock cpu
--threads 1. results/README.md shows how to create the folders of the other systems from MODEL.

For each system, a separate process measures the time to load it, the time to translate a first sentence, and the peak
memory while translating the batch with the longest sentences; it does not import the libraries of the other systems.
With --reference, --record also plots BLEU against speed.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import read_lines

from .shared.decode_plot import draw
from .shared.decode_systems import SYSTEMS, Sources, System
from .shared.harness import BATCH_SIZES, BatchSizes, ClockName, Record, Rounds, Row, Threads, clock, race, report, run

NOT_MEASURED = dict.fromkeys(("load_seconds", "first_seconds", "peak_megabytes"), "")


def compare(
    model: Annotated[str, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="A UTF-8 text file, one sentence per line.")],
    reference: Annotated[str | None, typer.Option(help="Its translation, for BLEU.")] = None,
    others: Annotated[
        list[str] | None,
        typer.Option("--system", help=f"KIND=FOLDER with the same weights; repeatable. Kinds: {', '.join(SYSTEMS)}."),
    ] = None,
    batch_size: BatchSizes = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Then also batches of this many tokens.")] = None,
    standalone: Annotated[bool, typer.Option(help="Also measure the loading and memory of each system.")] = True,
    sentences: Annotated[int, typer.Option(min=1, help="Use this many lines of the source.")] = 200,
    num_beams: int = 4,
    threads: Threads = 1,
    rounds: Rounds = 3,
    clock_name: ClockName = "wall",
    record: Record = None,
) -> None:
    """Compare decoding speed."""
    from vaswani_transformer.loading import load_tokenizer

    now = clock(clock_name)
    lines, references = read_pairs(source, reference, sentences)
    tokenizer = load_tokenizer(model)
    encoded: Sources = tokenizer(lines, verbose=False)["input_ids"]
    folders = [("generate", model), ("search", model), *map(parse_system, others or [])]
    systems = load(folders, threads)
    settings = {"sentences": len(lines), "num_beams": num_beams, "threads": threads, "clock": clock_name}
    rows: list[Row] = []
    for name, batches in batchings(encoded, batch_size or BATCH_SIZES, batch_tokens).items():
        order = [i for batch in batches for i in batch]
        sources = [[encoded[i] for i in batch] for batch in batches]
        measured = [measure_standalone(*each, threads, num_beams, sources[-1]) for each in folders if standalone]
        for system in systems:
            system.translate(sources[0], num_beams)  # warm up
        tasks = {system.name: partial(translate_all, system, sources, num_beams) for system in systems}
        best = race(tasks, rounds, now)
        for system, columns in zip(systems, measured or [NOT_MEASURED] * len(systems), strict=True):
            translations = best[system.name][1]
            row = {"batch": name, "system": system.name, **speeds(system.name, best)}
            row["bleu"] = bleu(translations, references, order, tokenizer) if references else "-"
            rows.append(settings | row | columns | {"file_megabytes": round(system.megabytes, 1)})
    report(rows, record)
    if record and references:
        unit = "CPU" if clock_name == "cpu" else "wall-clock"
        title = f"{Path(model).name}: {len(lines)} sentences, beam {num_beams}, {threads} thread(s), {unit} time"
        ours = {system.name for system, (kind, _) in zip(systems, folders, strict=True) if SYSTEMS[kind].ours}
        draw(rows, ours, title, record.with_name(f"{record.stem}-{Path(model).name}-{threads}.png"))


def parse_system(option: str) -> tuple[str, str]:
    """Return kind and folder of a --system. Raises InputError."""
    kind, equals, folder = option.partition("=")
    if not equals or kind not in SYSTEMS:
        raise InputError(f"--system {option!r}: it must be KIND=FOLDER, with a KIND of {', '.join(SYSTEMS)}")
    return kind, folder


def load(folders: list[tuple[str, str]], threads: int) -> list[System]:
    """Load the systems, each by its kind and folder. Raises InputError if two have the same name."""
    systems = [SYSTEMS[kind].load(Path(folder), threads) for kind, folder in folders]
    names = [system.name for system in systems]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--system: two systems have the name {twice[0]!r}; ONNX files are named after their folders")
    return systems


def read_pairs(source: str, reference: str | None, sentences: int) -> tuple[list[str], list[str] | None]:
    lines = list(read_lines(source))
    references = list(read_lines(reference)) if reference else None
    if references is not None and len(references) != len(lines):
        raise InputError(f"{source} has {len(lines)} lines and {reference} has {len(references)}")
    return lines[:sentences], references[:sentences] if references else None


def batchings(encoded: Sources, sizes: list[int], tokens: int | None) -> dict[str, Sequence[Sequence[int]]]:
    """Return the batches by their name: indices of sentences, shortest sentences first."""
    from vaswani_transformer.text_translator import batches_by_length

    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    found: dict[str, Sequence[Sequence[int]]] = {
        str(size): [order[i : i + size] for i in range(0, len(order), size)] for size in sizes
    }
    if tokens is not None:
        found[f"{tokens} tokens"] = list(batches_by_length([len(ids) for ids in encoded], tokens))[::-1]
    return found


def translate_all(system: System, batches: list[Sources], beams: int) -> Sources:
    return [ids for batch in batches for ids in system.translate(batch, beams)]


def speeds(name: str, best: dict[str, tuple[float, Sources]]) -> Row:
    """Return a system's speed, also relative to its peers; a name with "int8" is compared with CTranslate2's int8."""
    seconds, translations = best[name]
    peers = {
        "speedup_vs_generate": "torch generate()",
        "speedup_vs_marian": "transformers Marian",
        "speedup_vs_ctranslate2": f"ctranslate2 {'int8' if 'int8' in name else 'float32'}",
    }
    speedups = {column: f"{best[peer][0] / seconds:.2f}" if peer in best else "-" for column, peer in peers.items()}
    return {"seconds": round(seconds, 3), "tokens_per_second": round(sum(map(len, translations)) / seconds), **speedups}


def bleu(translations: Sources, references: list[str], order: list[int], tokenizer: Any) -> str:
    """Return BLEU with one decimal. order: the index of the sentence that each translation belongs to"""
    import sacrebleu

    texts = {i: tokenizer.decode(ids, skip_special_tokens=True) for i, ids in zip(order, translations, strict=True)}
    return f"{sacrebleu.corpus_bleu([texts[i] for i in range(len(texts))], [references]).score:.1f}"


def measure_standalone(kind: str, folder: str, threads: int, beams: int, sources: Sources) -> Row:
    """Return the seconds and memory of a process that loads only this system and translates one batch."""
    blocked = "" if SYSTEMS[kind].needs_torch else "torch,transformers"
    command = [sys.executable, "-m", "benchmarks.shared.decode_alone", kind, folder, str(threads), str(beams), blocked]
    done = subprocess.run(command, input=json.dumps(sources), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    run(compare)
