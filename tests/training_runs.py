"""Fixtures for tests that train: a small recipe, its text, and runs in child processes."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import write_lines
from safetensors.torch import load_file
from training_child import TrainingProcess

ROOT = Path(__file__).parent.parent
STEPS = 24
COMPILED = (("ACCELERATE_DYNAMO_BACKEND", "eager"),)  # set by `accelerate launch --dynamo_backend eager`
FSDP = (("ACCELERATE_USE_FSDP", "true"),)  # set by `accelerate launch` with training/accelerate/fsdp.yaml
# Five steps per epoch: every run crosses several epochs, accumulates, validates, prunes and averages.
SMALL = {
    "preset": "base",
    "model": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "dropout": 0.2,
    },
    "vocab_size": 270,
    "max_length": 40,
    "tokens_per_step": 800,
    "micro_batches": 4,
    "learning_rate": 0.01,
    "warmup_steps": 5,
    "max_steps": STEPS,
    "save_every": 5,
    "keep": 2,
    "average_last": 2,
    "validate_every": 6,
    "log_every": 6,
}


def write_in_capitals(folder: Path, name: str, lines: list[str]) -> None:
    """Write sentence pairs whose target is the source in capitals."""
    write_lines(folder / f"{name}.en", lines)
    write_lines(folder / f"{name}.de", map(str.upper, lines))


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """A folder of such pairs, for training and validation."""
    folder = tmp_path_factory.mktemp("text")
    generator = random.Random(0)
    for name, count in (("train", 120), ("val", 20)):
        lines = ["".join(generator.choice("abcdefgh") for _ in range(generator.randint(2, 14))) for _ in range(count)]
        write_in_capitals(folder, name, lines)
    return folder


@pytest.fixture
def start(text, tmp_path):
    """start(output=..., ranks=1, fault=None, variables=None, of_others=None, **keys) -> a running TrainingProcess"""
    running = []

    def run(output: str = "run", ranks: int = 1, fault=None, variables=None, of_others=None, **keys) -> TrainingProcess:
        options = SMALL | {"data": str(text), "output_dir": str(tmp_path / output)} | keys
        process = TrainingProcess(options, tmp_path / f"{output}.log", ranks, fault, "__main__", variables, of_others)
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()


@pytest.fixture(scope="session")
def uninterrupted(text, tmp_path_factory):
    """uninterrupted(processes, variables=()) -> the folder of an uninterrupted run, and its seconds."""
    made = {}

    def run(processes: int, variables: tuple[tuple[str, str], ...] = ()) -> tuple[Path, float]:
        key = (processes, variables)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"uninterrupted-{processes}")
            options = SMALL | {"data": str(text), "output_dir": str(folder / "run")}
            TrainingProcess({"max_steps": 0}, folder / "imports").wait()  # the first process waits for the imports
            started = time.monotonic()
            process = TrainingProcess(options, folder / "log", processes, variables=dict(variables))
            assert process.wait() == 0, process.said()
            made[key] = folder / "run", time.monotonic() - started
        return made[key]

    return run


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_bit_identical(one: Path, other: Path) -> None:
    """Compare the models' weights, and the newest checkpoints' weights and moments."""
    checkpoint = f"checkpoints/step-{STEPS}"
    for name in ("model.safetensors", f"{checkpoint}/model.safetensors", f"{checkpoint}/optimizer.safetensors"):
        a, b = load_file(one / name), load_file(other / name)
        assert a.keys() == b.keys() and len(a) > 5
        for key in a:
            assert torch.equal(a[key], b[key]), f"{name}: {key}"


def assert_same_losses(one: Path, other: Path, tolerance: float = 1e-3) -> None:
    records = [records_of(folder) for folder in (one, other)]
    assert any("validation_loss" in record for record in records[0])
    for a, b in zip(*records, strict=True):
        assert a["step"] == b["step"] and a.get("tokens") == b.get("tokens")
        for key in ("loss", "validation_loss", "gradient_norm"):
            assert (key in a) == (key in b)
            if key in a:
                assert a[key] == pytest.approx(b[key], rel=tolerance)


def kill_and_resume(
    start, tmp_path, reference: Path, seconds: float, kills: int, seed: int, processes: int, variables=None
) -> None:
    """Kill a run `kills` times, alternately at a random instant and at a random change to the disk; resume and compare.

    If a run ends before it is killed, compare it too and start another one.
    """
    generator = random.Random(seed)
    hits = 0
    while hits < kills:
        fault = ("kill", generator.randint(1, 150)) if hits % 2 else None
        process = start(ranks=processes, fault=fault, variables=variables)
        if fault is None:
            time.sleep(generator.uniform(0.1, 0.5 * seconds))
            process.kill()
        if process.wait() == -9:
            hits += 1
            continue
        assert process.wait() == 0, process.said()
        assert_bit_identical(reference, tmp_path / "run")
        shutil.rmtree(tmp_path / "run")
    process = start(ranks=processes, variables=variables)
    assert process.wait() == 0, process.said()
    assert_bit_identical(reference, tmp_path / "run")
    assert [p.name for p in (tmp_path / "run").rglob("*.tmp")] == []


def options_of(keys: dict[str, Any]) -> list[str]:
    """Return the keys of a recipe as command-line arguments."""
    return [word for key, value in keys.items() for word in (f"--{key}", json.dumps(value, ensure_ascii=False))]


def launch(text: Path, folder: Path, *how: str, **keys: Any) -> subprocess.Popen[bytes]:
    """Start `accelerate launch HOW -m training` with the small recipe in folder/run; its output goes to folder/log."""
    options = SMALL | {"data": str(text), "output_dir": str(folder / "run")} | keys
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines"]
    command += ["1", "--mixed_precision", "no", "--dynamo_backend", "no", *how, "-m", "training", *options_of(options)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
