"""Runs all measurements on a GPU, one after the other; `make gpu` calls it.

    python -m benchmarks.gpu --data data/multi30k --debian data/debian --output gpu
    python -m benchmarks.gpu --data data/multi30k --output trial --device cpu --small    # minutes, to try it

A measurement is one or more commands, in subprocesses, with a limit of nine minutes together. It writes
OUTPUT/MEASUREMENT.log, and rows in OUTPUT/BENCHMARK.csv, whose columns the benchmark explains. The most important
measurements come first. Finished ones are skipped: run the same command again to resume.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Annotated, Any

import torch
import typer

from vaswani_transformer.errors import InputError, UnavailableError

from .harness import run
from .options import Device

TIME_LIMIT = 540  # seconds of a measurement
FULL = {
    "sizes": ["base", "big"],
    "train": "--system marian+bf16 --system ours+bf16 --system ours+bf16+compile --system ours --tokens 50000",
    "seeds": [1, 2, 3, 4, 5],
    "multi30k": "",
    "debian": "",
    "table3": "--seeds 1,2 --jobs 12",
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
    "debian": "--vocab_size 500 --max_steps 8 --save_every 4 --validate_every 8 --bleu_every null --average_last 2 "
    "--warmup_steps 2 --model.d_model 64 --model.encoder_ffn_dim 64 --model.decoder_ffn_dim 64",
    "table3": "--rows base,A-h1 --seeds 1 --jobs 2 --vocab_size 500 --max_steps 4 --warmup_steps 2",
    "decode": "--small --torch --batch-size 2 --rounds 1",
    "scaling": "--small --processes 2",
    "claims": ["training_without_the_factor"],
    "claim options": "--vocab_size 500 --max_steps 4 --warmup_steps 2",
}


def measure(
    data: Annotated[Path, typer.Option(help="The folder of Multi30k.")],
    output: Annotated[Path, typer.Option(help="A folder for rows, logs and models.")],
    debian: Annotated[
        Path | None, typer.Option(help="The folder of Debian's text, for the measurement `debian`; none: without it.")
    ] = None,
    device: Device = "cuda",
    small: Annotated[bool, typer.Option("--small", help="Tiny models and few steps, to try the command.")] = False,
    only: Annotated[str | None, typer.Option(help="Measurements, separated by commas; default: all.")] = None,
) -> None:
    """Measure everything on a GPU. Run the same command again to resume."""
    # Of the test set, which may be compressed; its absence is named when it is read.
    source = min(data.glob("test_2016_flickr.en*"), default=data / "test_2016_flickr.en")
    text, source_text, debian_text, results = (
        shlex.quote(str(path.resolve())) if path else "" for path in (data, source, debian, output)
    )
    commands = measurements(text, source_text, debian_text, results, device, SMALL if small else FULL)
    names = only.split(",") if only else list(commands)
    if unknown := [name for name in names if name not in commands]:
        raise InputError(f"--only {unknown[0]}: not a measurement; measurements: {', '.join(commands)}")
    output.mkdir(parents=True, exist_ok=True)
    failed = [name for name in names if not run_measurement(output, name, commands[name], device)]
    if failed:
        raise UnavailableError(
            f"measurements that failed: {', '.join(failed)}; see {output}/MEASUREMENT.log, then run the command again"
        )


def measurements(
    data: str, source: str, debian: str, output: str, device: str, options: dict[str, Any]
) -> dict[str, list[str]]:
    """Return the commands of each measurement, in order, without `python`.

    data, debian, output: folders, quoted for a shell; debian may be "".  source: a text file in data
    options: FULL or SMALL
    """

    def benchmark(name: str, words: str = "") -> str:
        return f"-m benchmarks.{name} {words} --device {device} --record {output}/{name}.csv"

    found = {"checks": [benchmark("gpu_checks")]}
    for size in options["sizes"]:
        found[f"train-{size}"] = [benchmark("train_throughput", f"{data} --size {size} {options['train']}")]
    for seed in options["seeds"]:  # Transformer-Tiny on lower-cased Multi30k: 40 BLEU on CPUs
        model = f"{output}/multi30k-{seed}"
        found[f"multi30k-{seed}"] = [
            f"-m training --config multi30k_tiny_en_de --data {data} --seed {seed} --output_dir {model} "
            f"--mixed_precision bf16 {options['multi30k']}",
            f"-m training.evaluate {model} --data {data} --device {device} --record {output}/multi30k.csv",
        ]
    if debian:
        found["debian"] = [
            f"-m training --config debian_gpu_en_de --data {debian} --output_dir {output}/debian {options['debian']}",
            f"-m training.evaluate {output}/debian --data {debian} --device {device} --record {output}/debian.csv",
        ]
    found["table3"] = [f"-m paper table3 --data {data} --output {output}/paper {options['table3']}"]
    found["decode"] = [benchmark("decode_base_size", options["decode"])]
    model = f"{output}/multi30k-{options['seeds'][0]}"
    for precision in ("fp32", "fp16"):
        onnx, words = f"{output}/onnx-{precision}", f"--source {source} --sentences 64 --batch-size 64"
        found[f"export-{precision}"] = [f"-m vaswani_transformer export onnx {model} {onnx} --precision {precision}"]
        found[f"profile-{precision}"] = [benchmark("decode_profile", f"{onnx} {words}")]
    if device == "cpu" or torch.cuda.device_count() > 1:
        found["scaling"] = [benchmark("scaling", f"{data} {options['scaling']}")]
    claims = f"-m paper claims --run {output}/multi30k-1 --data {data} --seconds 0.2 --output {output}/paper"
    found["claims"] = [f"{claims} --only training_speed,decoding_speed,memory_of_attention"]
    for name in options["claims"]:
        found[f"claim-{name}"] = [f"{claims} --seeds 1 {options['claim options']} --only {name}"]
    return found


def run_measurement(output: Path, name: str, commands: list[str], device: str) -> bool:
    """Run a measurement unless the same commands have finished before; return whether it has finished."""
    marker, expected = output / f"{name}.finished", "\n".join(commands)
    if marker.exists() and marker.read_text(encoding="utf-8") == expected:
        typer.echo(f"{name}: finished before")
        return True
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}
    started = time.perf_counter()
    with (output / f"{name}.log").open("ab") as log:
        for command in commands:
            words = [sys.executable, *shlex.split(command)]
            problem = run_command(words, log, environment, TIME_LIMIT - (time.perf_counter() - started))
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
