"""Training, resuming and decoding on a pretended GPU, where mixing devices raises and waits are counted.

torch gets a device "cuda" from a C++ extension (tests/pretend_cuda). It shows neither speed nor the rounding of CUDA's
kernels, and since every kernel and every exchange between processes has ended when it returns, no missing wait of one
stream for another.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import write_lines
from safetensors.torch import load_file
from saved_model import ENGLISH

HERE = Path(__file__).parent / "pretend_cuda"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.version.cuda is not None or shutil.which("g++") is None, reason="CPU-only torch and g++"),
]
SMALL = {
    "max_steps": 8, "save_every": 4, "log_every": 4, "validate_every": 4, "bleu_every": 8, "average_last": 1,
    "vocab_size": 400, "model.d_model": 32, "max_cpu_seconds": None, "max_epochs": None, "mixed_precision": "no",
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the extension."""
    from torch.utils.cpp_extension import include_paths, library_paths

    path = tmp_path_factory.mktemp("pretend") / "_pretend.so"
    includes = [f"-I{folder}" for folder in (*include_paths(), sysconfig.get_paths()["include"])]
    options = "-O1 -std=c++20 -shared -fPIC -DTORCH_EXTENSION_NAME=_pretend -DTORCH_API_INCLUDE_EXTENSION_H".split()
    libraries = [f"-L{folder}" for folder in library_paths()] + "-ltorch -ltorch_cpu -lc10 -ltorch_python".split()
    rpath = [f"-Wl,-rpath,{folder}" for folder in library_paths()]
    subprocess.run(
        ["g++", *options, *includes, str(HERE / "pretend.cpp"), "-o", str(path), *libraries, *rpath], check=True
    )
    return path


def start(library: Path, program: str, *arguments: str, **variables: str) -> subprocess.Popen:
    environment = os.environ | {"PRETEND_CUDA": str(library), "PYTHONPATH": str(Path(__file__).parents[1])} | variables
    pipe = subprocess.PIPE
    command = [sys.executable, str(HERE / program), *arguments]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def result(process: subprocess.Popen) -> tuple[Any, str]:
    """Return the JSON object that the program printed, and its stderr."""
    printed, said = process.communicate()
    assert process.returncode == 0, said
    return json.loads(printed.splitlines()[-1]), said


def start_training(library: Path, output: Path, keys: dict[str, Any], **variables: str) -> subprocess.Popen:
    return start(library, "count_training.py", json.dumps({**SMALL, "output_dir": str(output), **keys}), **variables)


def trained(library: Path, output: Path, **keys: Any) -> tuple[list[dict[str, int]], str]:
    """Train; return the waits of each step, and stderr."""
    waits, said = result(start_training(library, output, keys))
    assert "on pretended GPU" in said and "validation loss" in said
    return waits, said


def trained_by_two(library: Path, output: Path, variables: dict[str, str], **keys: Any) -> list[dict[str, int]]:
    """Train in two processes with a pretended GPU each; return the waits of each step of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    address |= {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} | variables
    both = [start_training(library, output, keys, RANK=rank, **address) for rank in ("0", "1")]
    (waits, said), (other_waits, _) = map(result, both)
    assert "2 processes on pretended GPU" in said and ("split by FSDP" in said) == bool(variables)
    assert waits[1:] == other_waits[1:]
    return waits


def skipped_steps(run: Path) -> list[int]:
    """Return how many steps the lines of the run's metrics say were skipped."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["skipped_steps"] for record in records if "skipped_steps" in record]


@pytest.mark.parametrize("keys", [{}, {"mixed_precision": None, "max_gradient_norm": 0.5}])
def test_training_never_waits_between_log_lines(library: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    waits, said = trained(library, tmp_path / "run", **keys)
    assert f"precision {'bf16' if keys else 'no'}" in said
    assert waits[1:] == [{}] * 7  # log lines and saves are outside of steps; the first step warms up


def test_a_step_without_finite_gradient_is_skipped_on_the_device(library: Path, tmp_path: Path) -> None:
    waits, said = trained(library, tmp_path / "run", broken_step=3)
    assert waits[2] == {} and "step 3: the gradient is not finite, step skipped" in said
    assert skipped_steps(tmp_path / "run") == [1, 1]
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "run/model.safetensors").values())


@pytest.mark.parametrize("keys", [{}, {"deterministic": True}, {"micro_batches": "auto", "max_length": 60}])
def test_a_resumed_run_has_the_same_weights(library: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    trained(library, tmp_path / "whole", **keys)
    assert len(trained(library, tmp_path / "run", max_tokens=5000, **keys)[0]) < 8
    assert trained(library, tmp_path / "run", **keys)[0]
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


@pytest.mark.parametrize("variables", [{}, {"ACCELERATE_USE_FSDP": "true"}], ids=["DDP", "FSDP"])
def test_two_gpus_never_wait_and_train_the_same_model(library: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    """One step has no finite gradient."""
    keys = {"micro_batches": 2, "max_gradient_norm": 0.5, "broken_step": 3, "log_every": 8}
    trained(library, tmp_path / "one", **keys)
    waits = trained_by_two(library, tmp_path / "two", variables, **keys)
    assert waits[1:] == [{}] * 7
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-6, rtol=1e-4)
    assert skipped_steps(tmp_path / "two") == [1]


@pytest.fixture(scope="module")
def decoded(library: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    text = write_lines(tmp_path_factory.mktemp("decoding") / "text", ENGLISH)
    return result(start(library, "count_decoding.py", str(model_folder), str(text)))[0]


def test_decoding_waits_once_a_step_and_equals_the_cpu(decoded: dict[str, Any]) -> None:
    """The program compares the results; this counts the waits."""
    in_steps = {where: count for where, count in decoded["waits"].items() if count > 4}
    assert decoded["device"] == "cuda:0" and decoded["steps"] > 4
    assert list(in_steps.values()) == [decoded["steps"]], in_steps
    # In generate(), transformers' loop asks after every step whether to go on.
    often = {where: count for where, count in decoded["waits_of_generate"].items() if count > 4}
    assert len(often) == 1 and "_beam_search_has_unfinished_sequences" in next(iter(often)), often


def test_evaluation_equals_the_cpu(decoded: dict[str, Any]) -> None:
    gpu, cpu = decoded["evaluations"]
    assert gpu.pop("waits") > cpu.pop("waits") == 0
    assert gpu == cpu and cpu["beam"] == 4
