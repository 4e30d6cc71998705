"""Runs all measurements on a GPU, one after the other; `make gpu` calls it.

    python -m benchmarks.gpu --data data/multi30k --output gpu
    python -m benchmarks.gpu --data data/multi30k --output trial --device cpu --small    # minutes, to try it

A measurement is one or more commands, in subprocesses, with a limit of nine minutes together. It writes
OUTPUT/MEASUREMENT.log, and rows in OUTPUT/BENCHMARK.csv, whose columns the benchmark explains. The most important
measurements come first. Finished ones are skipped: run the same command again to resume.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Annotated, Any

import torch
import typer

from vaswani_transformer.errors import InputError, UnavailableError

from .harness import Device, run

TIME_LIMIT = 540  # seconds of a measurement
FULL = {
    "sizes": ["base", "big"],
    "train": "--system marian+bf16 --system ours+bf16 --system ours+bf16+compile --system ours --tokens 50000",
    "seeds": [1, 2, 3, 4, 5],
    "multi30k": "",
    "decode": "",
    "scaling": "",
    "claims": ["training_without_the_factor", "warm_up", "small_data"],
    "claim options": "",
}
SMALL = {
    "sizes": ["tiny"],
    "train": "--system marian --system ours --tokens 2000 --vocab-size 500 --rounds 1",
    "seeds": [1],
    "multi30k": "--vocab_size 500 --max_steps 8 --save_every 4 --validate_every 8 --bleu_every null --average_last 2 "
    "--warmup_steps 2",
    "decode": "--small --torch --batch-size 2 --rounds 1",
    "scaling": "--small --processes 2",
    "claims": ["training_without_the_factor"],
    "claim options": "--vocab_size 500 --max_steps 4 --warmup_steps 2",
}


def measure(
    data: Annotated[Path, typer.Option(help="The folder of Multi30k.")],
    output: Annotated[Path, typer.Option(help="A folder for rows, logs and models.")],
    device: Device = "cuda",
    small: Annotated[bool, typer.Option("--small", help="Tiny models and few steps, to try the command.")] = False,
    only: Annotated[str | None, typer.Option(help="Measurements, separated by commas; default: all.")] = None,
) -> None:
    """Measure everything on a GPU. Run the same command again to resume."""
    all_measurements = measurements(str(data.resolve()), output.resolve(), device, SMALL if small else FULL)
    names = only.split(",") if only else list(all_measurements)
    if unknown := [name for name in names if name not in all_measurements]:
        raise InputError(f"--only {unknown[0]}: not a measurement; measurements: {', '.join(all_measurements)}")
    output.mkdir(parents=True, exist_ok=True)
    failed = [name for name in names if not run_measurement(output, name, all_measurements[name], device)]
    if failed:
        raise UnavailableError(
            f"measurements that failed: {', '.join(failed)}; see {output}/MEASUREMENT.log, then run the command again"
        )


def measurements(data: str, output: Path, device: str, options: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Return the commands of each measurement, as arguments of Python, in order. options: SMALL or FULL."""

    def benchmark(name: str, *words: str) -> list[str]:
        return ["-m", f"benchmarks.{name}", *words, "--device", device, "--record", f"{output}/{name}.csv"]

    found = {"checks": [benchmark("gpu_checks")]}
    for size in options["sizes"]:
        words = ["--size", size, *options["train"].split()]
        found[f"train-{size}"] = [benchmark("train_throughput", data, *words)]
    for seed in options["seeds"]:  # Transformer-Tiny on lower-cased Multi30k: 40 BLEU on CPUs
        model = f"{output}/multi30k-{seed}"
        train = ["-m", "training", "--config", "multi30k_tiny_en_de", "--data", data, "--seed", str(seed)]
        train += ["--output_dir", model, "--mixed_precision", "bf16", *options["multi30k"].split()]
        evaluate = ["-m", "training.evaluate", model, "--data", data, "--device", device]
        found[f"multi30k-{seed}"] = [train, [*evaluate, "--record", f"{output}/multi30k.csv"]]
    found["decode"] = [benchmark("decode_base_size", *options["decode"].split())]
    if device == "cpu" or torch.cuda.device_count() > 1:
        found["scaling"] = [benchmark("scaling", data, *options["scaling"].split())]
    claims = ["-m", "training.paper", "claims", "--run", f"{output}/multi30k-1", "--data", data]
    claims += ["--seconds", "0.2", "--output", f"{output}/paper"]
    found["claims"] = [[*claims, "--only", "training_speed,decoding_speed,memory_of_attention"]]
    for name in options["claims"]:
        found[f"claim-{name}"] = [[*claims, "--seeds", "1", *options["claim options"].split(), "--only", name]]
    return found


def run_measurement(output: Path, name: str, commands: list[list[str]], device: str) -> bool:
    """Run a measurement unless the same commands have finished before; return whether it has finished."""
    marker, expected = output / f"{name}.finished", json.dumps(commands)
    if marker.exists() and marker.read_text(encoding="utf-8") == expected:
        typer.echo(f"{name}: finished before")
        return True
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}
    started = time.perf_counter()
    with (output / f"{name}.log").open("ab") as log:
        for words in commands:
            problem = run_command(
                [sys.executable, *words], log, environment, TIME_LIMIT - (time.perf_counter() - started)
            )
            if problem:
                typer.echo(f"{name}: {problem} after {time.perf_counter() - started:.0f} s, see {log.name}")
                return False
    marker.write_text(expected, encoding="utf-8")
    typer.echo(f"{name}: {time.perf_counter() - started:.0f} s")
    return True


def run_command(command: list[str], log: IO[bytes], environment: dict[str, str], seconds: float) -> str:
    """Run a command; return "" or what went wrong. After the time limit, its processes are ended.

    `accelerate launch` ends its processes on SIGTERM; they are not in its group.
    """
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        code = process.wait(seconds)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return "time limit exceeded"
        raise
    return f"exit code {code}" if code else ""


if __name__ == "__main__":
    run(measure)
