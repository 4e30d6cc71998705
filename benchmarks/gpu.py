"""Everything that is measured on a GPU, in one command that can be repeated: `make gpu`.

    python -m benchmarks.gpu --data data/multi30k --output gpu
    python -m benchmarks.gpu --data data/multi30k --output trial --device cpu --small    # minutes, to try it

Each piece is a process of at most nine minutes that leaves OUTPUT/PIECE.log and rows in OUTPUT/*.csv. Pieces that have
finished are skipped: run the same command again to resume. The most important pieces come first.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import torch
import typer

from vaswani_transformer.errors import InputError, UnavailableError

from .harness import Device, run

SECONDS = 540  # of a piece


@dataclass(frozen=True)
class Setting:
    data: Path
    output: Path
    device: str
    small: bool

    def benchmark(self, name: str, *words: str) -> list[str]:
        """Return the arguments of Python that run a benchmark on the device and record its rows."""
        where = ["--device", self.device, "--record", str(self.output / f"{name}.csv")]
        return ["-m", f"benchmarks.{name}", *words, *where]


def pieces(setting: Setting) -> dict[str, list[list[str]]]:
    """Return the commands of each piece, as arguments of Python, in their order."""
    data, small = str(setting.data), setting.small
    found = {"checks": [setting.benchmark("gpu_checks")]}
    for size in ["tiny"] if small else ["base", "big"]:
        systems = ["marian", "ours"] if small else ["marian+bf16", "ours+bf16", "ours+bf16+compile", "ours"]
        words = ["--size", size, "--clock", "cpu" if setting.device == "cpu" else "wall"]
        words += [word for system in systems for word in ("--system", system)]
        words += ["--tokens", "2000", "--vocab-size", "500", "--rounds", "1"] if small else ["--tokens", "50000"]
        found[f"train-{size}"] = [setting.benchmark("train_throughput", data, *words)]
    for seed in [1] if small else [1, 2, 3, 4, 5]:
        found[f"multi30k-{seed}"] = multi30k(setting, seed)
    words = ["--small", "--batch-size", "2", "--rounds", "1"] if small else []
    found["decode"] = [setting.benchmark("gpu_decode", *words)]
    if setting.device == "cpu" or torch.cuda.device_count() > 1:
        found["scaling"] = [setting.benchmark("scaling", data, *(["--small", "--processes", "2"] if small else []))]
    words = ["-m", "training.paper", "claims", "--run", str(setting.output / "multi30k-1"), "--data", data]
    words += ["--seconds", "0.2", "--output", str(setting.output / "paper")]
    found["claims"] = [[*words, "--only", "throughput,decoding_throughput,memory_of_attention"]]
    words += ["--seeds", "1"]
    words += ["--vocab_size", "500", "--max_steps", "4", "--warmup_steps", "2"] if small else []
    trained_claims = ["training_without_the_factor", "warm_up", "small_data"]
    for name in trained_claims[:1] if small else trained_claims:
        found[f"claim-{name}"] = [[*words, "--only", name]]
    return found


def multi30k(setting: Setting, seed: int) -> list[list[str]]:
    """Train Transformer-Tiny on lower-cased Multi30k (40 BLEU on CPUs), and evaluate it."""
    model, data = str(setting.output / f"multi30k-{seed}"), ["--data", str(setting.data)]
    train = ["-m", "training", "--config", "multi30k_tiny_en_de", *data, "--seed", str(seed), "--output_dir", model]
    train += ["--mixed_precision", "bf16"]
    if setting.small:
        train += ["--vocab_size", "500", "--max_steps", "8", "--save_every", "4", "--validate_every", "8"]
        train += ["--bleu_every", "null", "--average_last", "2", "--warmup_steps", "2"]
    record = str(setting.output / "multi30k.csv")
    evaluate = ["-m", "training.evaluate", model, *data, "--device", setting.device, "--record", record]
    return [train, evaluate]


def measure(
    data: Annotated[Path, typer.Option(help="The folder of Multi30k.")],
    output: Annotated[Path, typer.Option(help="A folder for rows, logs and models.")],
    device: Device = "cuda",
    small: Annotated[bool, typer.Option("--small", help="Tiny models and few steps, to try the command.")] = False,
    only: Annotated[str | None, typer.Option(help="Pieces, separated by commas; default: all.")] = None,
) -> None:
    """Measure everything on a GPU. Run the same command again to resume."""
    all_pieces = pieces(Setting(data.resolve(), output.resolve(), device, small))
    names = only.split(",") if only else list(all_pieces)
    if unknown := [name for name in names if name not in all_pieces]:
        raise InputError(f"--only {unknown[0]}: not a piece; pieces: {', '.join(all_pieces)}")
    output.mkdir(parents=True, exist_ok=True)
    failed = [name for name in names if not run_piece(output, name, all_pieces[name], device)]
    if failed:
        raise UnavailableError(f"pieces that failed: {', '.join(failed)}; see {output}/PIECE.log, and run it again")


def run_piece(output: Path, name: str, commands: list[list[str]], device: str) -> bool:
    """Run a piece unless the same commands have finished before; return whether they have."""
    marker, expected = output / f"{name}.finished", json.dumps(commands)
    if marker.exists() and marker.read_text(encoding="utf-8") == expected:
        typer.echo(f"{name}: finished before")
        return True
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}
    started = time.perf_counter()
    with (output / f"{name}.log").open("ab") as log:
        for words in commands:
            problem = run_command([sys.executable, *words], log, environment, SECONDS - (time.perf_counter() - started))
            if problem:
                typer.echo(f"{name}: {problem} after {time.perf_counter() - started:.0f} s, see {log.name}")
                return False
    marker.write_text(expected, encoding="utf-8")
    typer.echo(f"{name}: {time.perf_counter() - started:.0f} s")
    return True


def run_command(command: list[str], log: IO[bytes], environment: dict[str, str], seconds: float) -> str:
    """Run a command; returns "" or what went wrong. When it takes too long, its own processes end with it.

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
            return "too long"
        raise
    return f"exit code {code}" if code else ""


if __name__ == "__main__":
    run(measure)
