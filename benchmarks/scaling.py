"""How does training throughput grow with the number of GPUs?

    python -m benchmarks.scaling data/multi30k --record scaling.csv
    python -m benchmarks.scaling data/multi30k --device cpu --small --processes 2    # gloo, to try it

Row:  a number of processes (1, 2, 4, 8; one per GPU) and a strategy (DDP or FSDP).
Unit: source and target tokens per second of all processes together, without padding.
Peer: the same training in one process (`speedup_vs_one`).

Trains the paper's base model in bfloat16 with 50,000 tokens per step, divided among the processes. The fastest window
between two lines of metrics.jsonl counts, which excludes the first steps: they allocate memory and choose kernels.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer

from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.training_run import METRICS, read_metrics

from .harness import report, run
from .options import DataFolder, Device, Record

ACCELERATE = Path(__file__).parent.parent / "training" / "accelerate"
# Options of `python -m training`.
COMMON = "--preset base --validation [] --validate_every null --average_last 1"
FULL = "--tokens_per_step 50000 --vocab_size 8000 --max_steps 60 --save_every 60 --log_every 15 --mixed_precision bf16"
SMALL = (
    "--model.d_model 64 --model.encoder_ffn_dim 128 --model.decoder_ffn_dim 128 --max_length 60 --tokens_per_step 2000 "
    "--vocab_size 500 --max_steps 6 --save_every 6 --log_every 2 --mixed_precision no"
)


def compare(
    data: DataFolder,
    device: Device = "cuda",
    small: Annotated[bool, typer.Option("--small", help="A tiny model and six steps, to try the program.")] = False,
    processes: Annotated[int | None, typer.Option(min=1, help="The most processes; default: one for each GPU.")] = None,
    record: Record = None,
) -> None:
    """Compare training throughput with several processes."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UnavailableError("--device cuda: there is no GPU; use --device cpu")
    if device == "cpu" and processes is None:
        raise InputError("--device cpu needs --processes")
    most = processes or torch.cuda.device_count()
    options = ["--data", str(data.resolve()), *COMMON.split(), *(SMALL if small else FULL).split()]
    baseline = 0.0  # the speed of one process, which comes first
    with tempfile.TemporaryDirectory() as folder:
        for number in [number for number in (1, 2, 4, 8) if number <= most]:
            for strategy in ["single"] if number == 1 else ["ddp", "fsdp"]:
                speed = tokens_per_second(options, Path(folder), device, number, strategy)
                baseline = baseline or speed
                row = {
                    "device": device,
                    "processes": number,
                    "strategy": strategy,
                    "tokens_per_second": round(speed),
                    "speedup_vs_one": round(speed / baseline, 2),
                }
                report([row], record)  # at once: a later one may exceed the time limit


def tokens_per_second(options: list[str], folder: Path, device: str, processes: int, strategy: str) -> float:
    """Train in this many processes; return the tokens per second of the fastest window."""
    output, tokenizer = folder / f"{processes}-{strategy}", folder / "1-single"
    options = [*options, "--output_dir", str(output), "--cache", str(folder / "cache")]
    options += ["--micro_batches", str(max(2, processes))]
    if processes == 1:
        start = [sys.executable, "-m", "training"]
    else:
        options += ["--tokenizer", str(tokenizer)]
        config = str(ACCELERATE / ("fsdp.yaml" if strategy == "fsdp" else "one_host.yaml"))
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config]
        start = [*launch, "--num_processes", str(processes), "-m", "training"]
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})
    done = subprocess.run([*start, *options], stdout=sys.stderr, env=environment)
    if done.returncode:
        raise UnavailableError(f"training in {processes} processes ended with exit code {done.returncode}, see above")
    records = read_metrics(output / METRICS)
    return max(record["tokens_per_second"] for record in records if "tokens_per_second" in record)


if __name__ == "__main__":
    run(compare)
