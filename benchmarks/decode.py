"""How fast is translating? Torch, ONNX Runtime, Marian of transformers and CTranslate2, with the same weights.

    python -m benchmarks.decode MODEL --source test.en --reference test.de --onnx ONNX_FOLDER
        --ctranslate2 CT2_FOLDER --marian MARIAN_FOLDER

All systems take turns at the same batches of token ids, sorted by length; the best round counts. On a machine that is
busy with other work compare CPU seconds: --clock cpu --threads 1. results/README.md says how to make the folders of the
other systems from MODEL.

Time to load, time for a first sentence and peak memory are those of a separate process that loads one system, without
the libraries of the others, and translates the batch with the longest sentences. --record also draws BLEU against
speed.
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
from .shared.harness import BatchSizes, ClockName, Record, Rounds, Row, Threads, clock, race, report, run

NOT_MEASURED = dict.fromkeys(("load_seconds", "first_seconds", "peak_megabytes"), "")


def compare(
    model: Annotated[str, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="A UTF-8 text file, one sentence per line.")],
    reference: Annotated[str | None, typer.Option(help="Its translation, for BLEU.")] = None,
    onnx: Annotated[list[str] | None, typer.Option(help="A folder with model.onnx; repeatable.")] = None,
    ctranslate2: Annotated[str | None, typer.Option(help="The same weights as a CTranslate2 folder.")] = None,
    marian: Annotated[str | None, typer.Option(help="The same weights as a MarianMTModel of transformers.")] = None,
    batch_size: BatchSizes = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Then also batches of this many tokens.")] = None,
    bfloat16: Annotated[bool, typer.Option("--bfloat16", help="Also our torch search in bfloat16.")] = False,
    alone: Annotated[bool, typer.Option(help="Measure each system's loading and memory, too.")] = True,
    sentences: Annotated[int, typer.Option(min=1, help="Use this many lines of the source.")] = 200,
    num_beams: int = 4,
    threads: Threads = 1,
    rounds: Rounds = 3,
    clock_name: ClockName = "wall",
    record: Record = None,
) -> None:
    """Compare the speed of translating."""
    from vaswani_transformer.loading import load_tokenizer

    now = clock(clock_name)
    lines, references = read_pairs(source, reference, sentences)
    tokenizer = load_tokenizer(model)
    encoded: Sources = tokenizer(lines, verbose=False)["input_ids"]
    folders = [("generate", model), ("search", model)]
    folders += [("search-bfloat16", model)] if bfloat16 else []
    folders += [("marian", marian)] if marian else []
    folders += [("onnx", folder) for folder in onnx or []]
    folders += [(kind, ctranslate2) for kind in ("ctranslate2-float32", "ctranslate2-int8") if ctranslate2]
    systems = load(folders, threads)
    about = {"sentences": len(lines), "num_beams": num_beams, "threads": threads, "clock": clock_name}
    rows: list[Row] = []
    for name, batches in batchings(encoded, batch_size or [1, 16, 64], batch_tokens).items():
        order = [i for batch in batches for i in batch]
        work = [[encoded[i] for i in batch] for batch in batches]
        needs = [measure_alone(*each, threads, num_beams, work[-1]) if alone else NOT_MEASURED for each in folders]
        for system in systems:
            system.translate(work[0], num_beams)  # warm up
        works = {system.name: partial(translate_all, system, work, num_beams) for system in systems}
        best = race(works, rounds, now)
        for system, needed in zip(systems, needs, strict=True):
            translations = best[system.name][1]
            row = {"batch": name, "system": system.name, **speeds(system.name, best)}
            row["bleu"] = bleu(translations, references, order, tokenizer) if references else "-"
            rows.append(about | row | needed | {"file_megabytes": round(system.megabytes, 1)})
    report(rows, record)
    if record and references:
        unit = "CPU" if clock_name == "cpu" else "wall-clock"
        title = f"{Path(model).name}: {len(lines)} sentences, beam {num_beams}, {threads} thread(s), {unit} time"
        draw(rows, title, record.with_name(f"{record.stem}-{Path(model).name}-{threads}.png"))


def load(folders: list[tuple[str, str]], threads: int) -> list[System]:
    """Load the systems, each by its kind and folder. Raises InputError if two have the same name."""
    systems = [SYSTEMS[kind](Path(folder), threads) for kind, folder in folders]
    if len({system.name for system in systems}) < len(systems):
        raise InputError("--onnx: two folders have the same name; rename one, because rows are named after folders")
    return systems


def read_pairs(source: str, reference: str | None, sentences: int) -> tuple[list[str], list[str] | None]:
    lines = list(read_lines(source))
    references = list(read_lines(reference)) if reference else None
    if references is not None and len(references) != len(lines):
        raise InputError(f"{source} has {len(lines)} lines and {reference} has {len(references)}")
    return lines[:sentences], references[:sentences] if references else None


def batchings(encoded: Sources, sizes: list[int], tokens: int | None) -> dict[str, Sequence[Sequence[int]]]:
    """Return the batches by their name: indices of sentences, shortest sentences first."""
    from vaswani_transformer.text_translator import batches_of_equal_length

    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    found: dict[str, Sequence[Sequence[int]]] = {
        str(size): [order[i : i + size] for i in range(0, len(order), size)] for size in sizes
    }
    if tokens is not None:
        found[f"{tokens} tokens"] = list(batches_of_equal_length([len(ids) for ids in encoded], tokens))[::-1]
    return found


def translate_all(system: System, work: list[Sources], beams: int) -> Sources:
    return [ids for batch in work for ids in system.translate(batch, beams)]


def speeds(name: str, best: dict[str, tuple[float, Sources]]) -> Row:
    """Compare the best seconds of a system with the others; int8 files with CTranslate2's int8."""
    seconds, translations = best[name]
    peers = {
        "times_generate": "torch generate()",
        "times_marian": "transformers Marian",
        "times_ctranslate2": f"ctranslate2 {'int8' if 'int8' in name else 'float32'}",
    }
    times = {column: f"{best[peer][0] / seconds:.2f}" if peer in best else "-" for column, peer in peers.items()}
    return {"seconds": round(seconds, 3), "tokens_per_second": round(sum(map(len, translations)) / seconds), **times}


def bleu(translations: Sources, references: list[str], order: list[int], tokenizer: Any) -> str:
    """order: the sentence of each translation."""
    import sacrebleu

    texts = {i: tokenizer.decode(ids, skip_special_tokens=True) for i, ids in zip(order, translations, strict=True)}
    return f"{sacrebleu.corpus_bleu([texts[i] for i in range(len(texts))], [references]).score:.1f}"


def measure_alone(kind: str, folder: str, threads: int, beams: int, sources: Sources) -> Row:
    """Return the seconds and memory of a process that loads only this system and translates one batch."""
    command = [sys.executable, "-m", "benchmarks.shared.decode_alone", kind, folder, str(threads), str(beams)]
    done = subprocess.run(command, input=json.dumps(sources), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    run(compare)
