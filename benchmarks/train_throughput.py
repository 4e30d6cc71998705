"""How fast is training, compared with transformers?

    python -m benchmarks.train_throughput data/multi30k --size tiny --system ours --system marian --system trainer

Row:   a system; all its steps in several interleaved rounds. Each system runs in a process of its own.
Unit:  source and target tokens per second, without padding: the median of the rounds.
Peers: `marian`, transformers' Marian in a plain loop over our batches, and `trainer`, Seq2SeqTrainer with its own
       batches of the same corpus. `speedup` compares with the first --system in the same round.

`ours` is a step of the training program, from the order of the batches to Adam. Options are joined with "+":
bf16 (autocast), highest (ours: float32 matrix products at torch's default precision), compile (ours and marian), group
(the Trainer's group_by_length). The Trainer's batches have the same mean number of tokens as ours.

`fraction_of_peak` is the rate of a system's useful operations relative to that of large matrix products at its
precision (`gflops_*`). On a busy machine, compare CPU seconds: --clock cpu.
"""

import os
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from training.cost import training_flops
from training.machine import has_bfloat16
from training.model import model_config
from training.parallel_text import open_texts, read_sentences
from training.recipe import Recipe, load_recipe

from .harness import PeakRates, Row, clock, report, run, take_turns
from .options import DataFolder, Device, Record, Rounds, Threads
from .systems.training_loops import Settings, TrainingProcess, Turn

TINY = {
    "d_model": 128, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
}  # fmt: skip
# Keys of a recipe. Base and big have the paper's output layer, and sentences of about the paper's length.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"preset": "base", "model": {"vocab_size": 8000, **TINY}, "tokens_per_step": 8192},
    "base": {"preset": "base", "model": {"vocab_size": 37000}, "tokens_per_step": 3000},
    "big": {"preset": "big", "model": {"vocab_size": 37000}, "tokens_per_step": 3000},
}
DEFAULT_SYSTEMS = ["marian", "ours", "ours+highest", "marian+bf16", "ours+bf16", "trainer", "trainer+group"]


def compare(
    data: DataFolder,
    size: Annotated[Literal["tiny", "base", "big"], typer.Option(help="Model size.")] = "tiny",
    system: Annotated[
        list[str] | None,
        typer.Option(help="ours, marian or trainer, with options: ours+bf16. Repeatable; the first is the baseline."),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Source + target tokens per step, padded.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Tokens of the tokenizer, and of the output layer.")] = None,
    rounds: Rounds = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps per round.")] = 4,
    warmup: Annotated[int, typer.Option(min=1, help="Steps before the first round.")] = 3,
    threads: Threads = 1,
    clock_name: Annotated[
        Literal["cpu", "wall"] | None,
        typer.Option("--clock", help="Default: cpu on a CPU; on a GPU it is wall, for elapsed seconds."),
    ] = None,
    device: Device = "cpu",
    record: Record = None,
) -> None:
    """Compare training throughput."""
    clock_name = clock_name or ("cpu" if device == "cpu" else "wall")
    clock(clock_name, device)  # raises for --clock cpu on a GPU before any work
    os.environ |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # All systems use the same device: no GPU that was not requested, and only one.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0") if device != "cpu" else ""
    with tempfile.TemporaryDirectory() as folder:
        write_text(data, Path(folder), joined=1 if size == "tiny" else 2)
        settings = Settings(make_recipe(size, folder, tokens, vocab_size), folder, threads, device, clock_name)
        # The first use of the text, which tokenises it for all systems.
        operations = training_operations_per_token(settings)
        systems = system or [name for name in DEFAULT_SYSTEMS if "bf16" not in name or has_bfloat16()]
        turns, peaks = measure(systems, settings, warmup, steps, rounds)
    rows = list(table(turns, operations, peaks))
    shared = {"size": size, "tokens_per_step": settings.recipe.tokens_per_step, "threads": threads, "clock": clock_name}
    rates = {f"gflops_{name}": round(rate / 1e9) for name, rate in peaks.best.items()}
    report([shared | row | rates for row in rows], record)


def write_text(data: Path, folder: Path, joined: int) -> None:
    """Write train.en and train.de to the folder. joined: sentences of the data per sentence"""
    recipe = load_recipe(None, {"data": str(data)})
    texts = read_sentences(open_texts(recipe, recipe.train))
    for language, lines in zip(recipe.languages, texts, strict=True):
        long = [" ".join(lines[i : i + joined]) for i in range(0, len(lines) - joined + 1, joined)]
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in long), encoding="utf-8")


def make_recipe(size: str, folder: str, tokens: int | None, vocab_size: int | None) -> Recipe:
    """Return a recipe that trains a model of this size on the text in the folder."""
    keys = SIZES[size] | {
        "data": folder,
        "validation": [],
        "cache": f"{folder}/cache",
        "tokenizer": folder,
        "vocab_size": vocab_size or 8000,
        "micro_batches": 1,
        "max_length": 256,
    }
    keys["model"] = keys["model"] | {"dropout": 0.1}
    if vocab_size is not None:
        keys["model"]["vocab_size"] = vocab_size
    if tokens is not None:
        keys["tokens_per_step"] = tokens
    return Recipe(**keys)


def measure(
    names: list[str], settings: Settings, warmup: int, steps: int, rounds: int
) -> tuple[dict[TrainingProcess, list[Turn]], PeakRates]:
    """Start the systems and time them in interleaved rounds; measure peak rates before and after each round."""
    peaks = PeakRates(clock(settings.clock, settings.device))
    systems: list[TrainingProcess] = []
    try:
        for name in names:
            systems.append(TrainingProcess(name, settings))
            systems[-1].run(warmup)
        tasks = {each.name: partial(each.run, steps) for each in systems}
        turns = take_turns(tasks, rounds, partial(measure_peaks, peaks, settings))
    finally:
        for each in systems:
            each.process.shutdown(cancel_futures=True)
    return {each: turns[each.name] for each in systems}, peaks


def measure_peaks(peaks: PeakRates, settings: Settings) -> None:
    """Measure large matrix products by precision: no training step can exceed their rate.

    "highest" is float32 at torch's default precision, "medium" what our float32 steps use. Their ratio is the most that
    float32 training can gain from faster matrix products on this machine.
    """
    torch.set_num_threads(settings.threads)
    size = 1024 if settings.device == "cpu" else 8192
    for name, dtype in (("highest", torch.float32), ("medium", torch.float32), ("bf16", torch.bfloat16)):
        torch.set_float32_matmul_precision("medium" if name == "medium" else "highest")
        left, right = (torch.randn(size, size, device=settings.device, dtype=dtype) for _ in range(2))
        peaks.measure(name, partial(torch.matmul, left, right), 2 * size**3)


def table(turns: dict[TrainingProcess, list[Turn]], operations: float, peaks: PeakRates) -> Iterator[Row]:
    """Yield a row per system; speedups are relative to the first system in the same round. operations: per token"""
    baseline = next(iter(turns.values()))
    for system, measured in turns.items():
        speedups = [a.speed / b.speed for a, b in zip(measured, baseline, strict=True)]
        speed = statistics.median(turn.speed for turn in measured)
        steps = [turn.steps for turn in measured]
        yield {
            "system": system.name,
            "parameters": system.parameters,
            "tokens_per_second": round(speed),
            "speedup": round(statistics.median(speedups), 3),
            "speedup_min": round(min(speedups), 3),
            "speedup_max": round(max(speedups), 3),
            "fraction_of_peak": peaks.fraction(system.precision, speed * operations),
            "padding": round(1 - sum(s.tokens for s in steps) / sum(s.positions for s in steps), 4),
            "peak_megabytes": max(turn.peak_megabytes for turn in measured),
        }


def training_operations_per_token(settings: Settings) -> float:
    """Return the floating-point operations of a step per source or target token; the same for all systems."""
    corpus = settings.corpora().training
    sources, targets = corpus.source_lengths, corpus.target_lengths
    config = model_config(settings.recipe, settings.recipe.vocab_size)
    total = training_flops(config, int(sources.sum()), int(targets.sum()), sources.mean(), targets.mean())
    return total / int(sources.sum() + targets.sum())


if __name__ == "__main__":
    run(compare)
