"""What all tests share: their order and environment, one thread per worker, waiting, reading and writing lines."""

import atexit
import csv
import gc
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

gc.disable()  # until the tests are collected; imports leave no garbage
atexit.register(gc.freeze)  # at the end, what is left need not be collected

# nohup and background jobs of a shell ignore these signals, and so would the child processes to which tests send them.
# A Python handler is not inherited: the tests keep ignoring the signal, their children do not.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# pytest-xdist runs a worker per core: more threads would only compete.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # and so would those of the processes that tests start

# The tests run on the CPU, on a machine with a GPU as well: `make gpu` compares the two.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Of processes that tests start: nothing else of this process's environment.
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
ENVIRONMENT |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

# Files with fixtures, some of which import torch.
FIXTURES = ["disks", "tiny_models", "training_runs", "saved_model"]

# transformers' own tests need its sdist and another environment: `make test-hf`.
collect_ignore = ["hf"]

# Run first, so that the workers, which take a file at a time, end at about the same time. While one worker exports the
# models that files share (test_onnx.py), the other has files that do not wait for them.
FIRST = [
    "test_onnx.py",
    "test_search.py",
    "test_training_resume.py",
    "test_onnx_translator.py",
    "test_cli.py",
    "test_package.py",
    "test_translator.py",
    "test_serve.py",
    "test_translate_file.py",
]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import the fixtures where tests run: pytest-xdist's workers start only after the first process has done this."""
    plugins = session.config.pluginmanager
    if not plugins.hasplugin("dsession"):  # of pytest-xdist, which gives the files to its workers
        for name in FIXTURES:
            plugins.import_plugin(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # a collection would visit every object of the imported modules and of the collected tests


def one_fast_in(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrization; every `step`-th runs with the fast tests, the others are slow."""
    marks: Any = pytest.mark.slow
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks if number % step else [])
        for number, case in enumerate(cases)
    ]


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition. The limit only ends a test that hangs: it allows for busy machines."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """refused(main, arguments, code=2, out="") -> the error with which a command ends, without a traceback"""

    def run(main: Callable[[list[str]], object], arguments: Iterable[object], code: int = 2, out: str = "") -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert (stopped.value.code, printed.out) == (code, out) and "Traceback" not in printed.err, printed
        return printed.err

    return run


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_rows(table: Path) -> list[dict[str, Any]]:
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
