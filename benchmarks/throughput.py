"""How many sentences per second does each system translate on all cores?

    python -m benchmarks.throughput --model MODEL --source test.en --reference test.de --torch --record throughput.csv
    python -m benchmarks.throughput --record throughput.csv
    python -m benchmarks.throughput --tokens-only --record throughput.csv

Row:   a system at one precision, and a way to use the cores: one batch after another on one thread or on all threads
       (`intra`), or several batches at the same time on one thread each (`workers`, CTranslate2's `inter`).
Unit:  sentences per second, from texts to texts; with --tokens-only, from token ids to token ids.
Peer:  CTranslate2 at the same precision, with its fastest way and batch size.

`busy_cores` is CPU time per second. If it is not nearly 2 for `workers 2` and `inter 2`, other work took the cores, and
the speedups say little.

Without --model, the model has the paper's base size and random weights; sources then have 25 tokens and outputs exactly
28, which gives all systems the same work. All ways take turns in every round; a speedup is the median of the rounds'
ratios, beside the smallest and the largest. The exports are made in a temporary folder.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer

from conversion.convert import export_checkpoint
from conversion.onnx.export import export_single_folder
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import ModelFolder
from vaswani_transformer.onnx_translator import OnnxTranslator
from vaswani_transformer.tokenization import SPECIAL_TOKENS
from vaswani_transformer.torch_translator import TorchTranslator
from vaswani_transformer.translator import BATCH_TOKENS, batches_by_length, divide_evenly
from vaswani_transformer.workers import Workers, count_cores

from .decode import read_pairs
from .decode_base_size import FULL, OUTPUT_LENGTH, SMALL, SOURCE_LENGTH, save_random_model
from .harness import Row, report, run, take_turns, timed
from .options import Record, Rounds
from .systems.decoding import LOOKAHEAD, import_ctranslate2

CTRANSLATE2_BATCHES = (32, 64)  # sentences; CTranslate2 has no default that occupies several workers
ALPHA = 0.6  # of both length penalties; with a model's larger one, the search takes more steps
PRECISIONS = {"float32": "fp32", "int8": "int8"}


class Way(NamedTuple):
    system: str
    precision: str
    name: str
    translate: Callable[[], list[str]]  # all texts, or with --tokens-only nothing but the search

    @property
    def label(self) -> str:
        return f"{self.system} {self.precision} {self.name}"


class Work(NamedTuple):
    """Texts, and the search that all systems do."""

    texts: list[str]
    beams: int
    length: int | None  # of all outputs, in tokens
    tokens_only: bool


def compare(
    model: Annotated[Path | None, typer.Option(help="A model folder; default: random weights of base size.")] = None,
    source: Annotated[str | None, typer.Option(help="For --model: a UTF-8 text file, one sentence per line.")] = None,
    reference: Annotated[str | None, typer.Option(help="Its translation, for BLEU.")] = None,
    small: Annotated[bool, typer.Option("--small", help="A tiny random model, to try the program.")] = False,
    sentences: Annotated[int | None, typer.Option(min=1, help="Default: 1000 of --source, else 160.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Default: all cores.")] = None,
    num_beams: int = 4,
    tokens_only: Annotated[bool, typer.Option("--tokens-only", help="Without tokenising and splitting.")] = False,
    with_torch: Annotated[bool, typer.Option("--torch", help="Also measure TorchTranslator, from texts.")] = False,
    rounds: Rounds = 3,
    record: Record = None,
) -> None:
    """Compare the speed of translating a text on all cores."""
    if (model is None) != (source is None):
        raise InputError("--model and --source come together")
    cores = cores or count_cores()
    references = None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if model is None or source is None:
            model, length = folder / "model", OUTPUT_LENGTH
            save_random_model(model, SMALL if small else FULL)
            texts = make_texts(ModelFolder(model).config["vocab_size"], sentences or 160)
        else:
            length = None
            texts, references = read_pairs(source, reference, sentences or 1000)
        work = Work(texts, num_beams, length, tokens_only)
        export_checkpoint(model, folder / "ctranslate2", "ctranslate2")
        ways = list(torch_ways(model, cores, work)) if with_torch else []
        for precision, name in PRECISIONS.items():
            export_single_folder(model, folder / name, name)
            ways += our_ways(folder / name, precision, cores, work)
            ways += ctranslate2_ways(folder / "ctranslate2", ModelFolder(model), precision, cores, work)
        translations = {way.label: way.translate() for way in ways}  # warm up
        turns = take_turns({way.label: partial(measure, way.translate) for way in ways}, rounds)
    settings = {
        "model": "base, random" if length else model.resolve().name,
        "unit": "tokens" if tokens_only else "texts",
        "sentences": len(texts),
        "num_beams": num_beams,
        "cores": cores,
        "rounds": rounds,
    }
    rows = [settings | row for row in describe(ways, turns)]
    for row, way in zip(rows, ways, strict=True):
        row["bleu"] = bleu(translations[way.label], references) if references and not tokens_only else ""
    report(rows, record)


def measure(task: Callable[[], object]) -> tuple[float, float]:
    """Return the elapsed seconds and the CPU seconds of a task."""
    cpu, (elapsed, _) = time.process_time(), timed(task, time.perf_counter)
    return elapsed, time.process_time() - cpu


def describe(ways: list[Way], turns: dict[str, list[tuple[float, float]]]) -> Iterator[Row]:
    """Yield a row for each way: its speed, relative to the system on one thread and to CTranslate2's fastest way."""
    seconds = {label: [elapsed for elapsed, _ in measured] for label, measured in turns.items()}
    for way in ways:
        same = [other for other in ways if other.precision == way.precision]
        one = next(other for other in same if (other.system, other.name) == (way.system, "one thread"))
        peers = [other for other in same if other.system == "ctranslate2"]
        peer = min(peers, key=lambda other: statistics.median(seconds[other.label]))
        yield {
            "system": way.system,
            "precision": way.precision,
            "way": way.name,
            "seconds": round(statistics.median(seconds[way.label]), 2),
            "busy_cores": f"{statistics.median(cpu / elapsed for elapsed, cpu in turns[way.label]):.2f}",
            **ratios("vs_one_thread", seconds[one.label], seconds[way.label]),
            **ratios("vs_ctranslate2", seconds[peer.label], seconds[way.label]),
            "fastest_of_ctranslate2": peer.name,
        }


def ratios(suffix: str, peer: list[float], own: list[float]) -> Row:
    """Return the median, smallest and largest speedup over the rounds."""
    found = [theirs / ours for theirs, ours in zip(peer, own, strict=True)]
    columns = {"": statistics.median(found), "_min": min(found), "_max": max(found)}
    return {f"speedup_{suffix}{which}": f"{value:.2f}" for which, value in columns.items()}


def bleu(translations: list[str], references: list[str]) -> str:
    from sacrebleu import corpus_bleu

    return f"{corpus_bleu(translations, [references]).score:.1f}"


def make_texts(vocabulary: int, count: int) -> list[str]:
    """Return texts of random words, of SOURCE_LENGTH tokens with </s>."""
    ids = np.random.default_rng(0).integers(len(SPECIAL_TOKENS), vocabulary, (count, SOURCE_LENGTH - 1))
    return [" ".join(f"token{id}" for id in row) for row in ids.tolist()]


# ---- systems -----------------------------------------------------------------------------------------------------


def our_search(work: Work) -> dict[str, Any]:
    """Return the settings of our search."""
    limits = {"min_new_tokens": work.length - 1, "max_new_tokens": work.length} if work.length else {}
    return {"num_beams": work.beams, "length_penalty": ALPHA, "early_stopping": LOOKAHEAD, **limits}


def torch_ways(folder: Path, cores: int, work: Work) -> Iterator[Way]:
    """Yield the ways of TorchTranslator."""
    translator = TorchTranslator.from_pretrained(folder, "cpu", "float32")

    def translate(threads: int, workers: int) -> list[str]:
        torch.set_num_threads(threads)
        try:
            return translator.translate(work.texts, workers=workers, batch_tokens=BATCH_TOKENS, **our_search(work))
        finally:
            torch.set_num_threads(1)

    for name, threads, workers in our_threads(cores):
        yield Way("torch", "float32", name, partial(translate, threads, workers))


def our_threads(cores: int) -> list[tuple[str, int, int]]:
    """Return the name, threads and workers of our ways."""
    return [("one thread", 1, 1), (f"intra {cores}", cores, 1), (f"workers {cores}", cores, cores)]


def our_ways(folder: Path, precision: str, cores: int, work: Work) -> Iterator[Way]:
    """Yield the ways of OnnxTranslator: both numbers of threads, and workers."""
    search = our_search(work)

    def translate(translator: OnnxTranslator, workers: int) -> list[str]:
        return translator.translate(work.texts, workers=workers, batch_tokens=BATCH_TOKENS, **search)

    def search_tokens(translator: OnnxTranslator, sources: list[list[int]], workers: int) -> list[str]:
        lengths = [len(source) * work.beams for source in sources]
        batches = batches_by_length(lengths, divide_evenly(sum(lengths), BATCH_TOKENS))
        open_search = partial(translator._open_search, translator.change_search(**search), False)
        with Workers(open_search, workers) as pool:
            for _ in pool.start([[sources[i] for i in batch] for batch in batches]):
                pass
        return []

    for name, threads, workers in our_threads(cores):
        translator = OnnxTranslator.from_pretrained(folder, "cpu", threads)
        sources = [translator._encode(text)[0] for text in work.texts]
        tokens = partial(search_tokens, translator, sources, workers)
        yield Way("onnx", precision, name, tokens if work.tokens_only else partial(translate, translator, workers))


def ctranslate2_ways(folder: Path, model: ModelFolder, precision: str, cores: int, work: Work) -> Iterator[Way]:
    """Yield the ways of CTranslate2, with each size of batches, and with the tokenizer of the model."""
    library, tokenizer = import_ctranslate2(), model.tokenizer
    names: list[str] = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    ids = {token: id for id, token in enumerate(names)}
    limits = {"max_decoding_length": work.length or 256, "min_decoding_length": work.length or 1}

    def tokenize(texts: list[str]) -> list[list[str]]:
        return [[names[id] for id in encoding.ids] for encoding in tokenizer.encode_batch(texts)]

    def search(translator: Any, sources: list[list[str]], size: int) -> Any:
        options = {"beam_size": work.beams, "length_penalty": ALPHA, "max_batch_size": size, **limits}
        return translator.translate_batch(sources, **options)

    def translate(translator: Any, size: int) -> list[str]:
        found = search(translator, tokenize(work.texts), size)
        return tokenizer.decode_batch([[ids[token] for token in result.hypotheses[0]] for result in found])

    tokenized = tokenize(work.texts)
    for name, inter, intra in (("one thread", 1, 1), (f"intra {cores}", 1, cores), (f"inter {cores}", cores, 1)):
        translator = library.Translator(
            str(folder), device="cpu", compute_type=precision, inter_threads=inter, intra_threads=intra
        )
        for size in CTRANSLATE2_BATCHES[:1] if name == "one thread" else CTRANSLATE2_BATCHES:
            label = name if name == "one thread" else f"{name}, batches of {size}"
            if work.tokens_only:
                yield Way("ctranslate2", precision, label, lambda t=translator, s=size: search(t, tokenized, s) and [])
            else:
                yield Way("ctranslate2", precision, label, partial(translate, translator, size))


if __name__ == "__main__":
    run(compare)
