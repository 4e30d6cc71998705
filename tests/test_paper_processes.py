"""Independent trainings of the paper's commands run in processes of their own."""

import time
from functools import partial
from pathlib import Path

import pytest

from training.paper.parallel import in_processes
from vaswani_transformer.errors import InputError


def touch(path: Path, seconds: float) -> str:
    time.sleep(seconds)
    path.touch()
    return path.name


def fail_at_first(number: int) -> None:
    if number == 0:
        raise InputError("the first is wrong")
    time.sleep(60)


def test_results_keep_the_order_of_the_calls(tmp_path):
    calls = [(tmp_path / f"{n}.log", partial(touch, tmp_path / f"{n}", 0.3 * (n == 0))) for n in range(3)]
    assert in_processes(calls, jobs=2) == ["0", "1", "2"]


def test_the_first_error_stops_all_processes(tmp_path):
    calls = [(tmp_path / f"{n}.log", partial(fail_at_first, n)) for n in range(5)]
    begun = time.monotonic()
    with pytest.raises(InputError, match="the first is wrong"):
        in_processes(calls, jobs=2)
    assert time.monotonic() - begun < 55  # the others would sleep for 60 seconds each
