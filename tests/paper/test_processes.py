"""Independent trainings of the paper's commands run in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from paper.parallel import run_in_processes
from training.stopping import Signals
from vaswani_transformer.errors import InputError

pytestmark = pytest.mark.slow  # starts processes that import torch


def touch(path: Path, seconds: float) -> str:
    time.sleep(seconds)
    path.touch()
    return path.name


def fail_if_first(path: Path) -> None:
    if path.name == "0":
        raise InputError("the first is wrong")
    touch(path, 60)


def test_results_keep_the_order_of_the_calls(tmp_path):
    calls = [(tmp_path / f"{n}.log", partial(touch, tmp_path / f"{n}", 0.3 * (n == 0))) for n in range(3)]
    assert run_in_processes(calls, jobs=2) == ["0", "1", "2"]


def test_the_first_error_stops_all_processes(tmp_path):
    calls = [(tmp_path / f"{n}.log", partial(fail_if_first, tmp_path / f"{n}")) for n in range(5)]
    with pytest.raises(InputError, match="the first is wrong"):
        run_in_processes(calls, jobs=2)
    assert not any((tmp_path / f"{n}").exists() for n in range(5))  # `run_in_processes` has waited for them to end


def save_on_signal(path: Path) -> None:
    signals = Signals()
    with signals.handle():
        path.touch()
        while not signals.received:
            time.sleep(0.05)
        time.sleep(0.5)  # a second signal would end the process here
        path.write_text(signals.received.name)


def stop_in_processes(path: Path) -> None:
    run_in_processes([(path.with_suffix(".log"), partial(save_on_signal, path))], jobs=1)


def test_ctrl_c_lets_a_training_save(tmp_path):
    program = "import pathlib, sys, test_processes as t; t.stop_in_processes(pathlib.Path(sys.argv[1]))"
    path, tests = tmp_path / "saved", Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{tests.parents[1]}{os.pathsep}{tests}"}
    command = [sys.executable, "-c", program, path]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        process.wait(60)
    assert path.read_text() == "SIGTERM"
