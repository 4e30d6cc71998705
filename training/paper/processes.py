"""Runs independent trainings in processes of their own."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from vaswani_transformer.errors import UnavailableError, tell


def in_processes(function: Callable[..., Any], cases: Sequence[tuple[Path, tuple[Any, ...]]], jobs: int) -> list[Any]:
    """Return function(*arguments) for each (log, arguments), `jobs` at a time; messages go to the case's log.

    The processes divide the cores among them: two small models train faster side by side with a thread each than one
    after the other with two. The first error stops the other processes; a training by `train` keeps its last
    checkpoint.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, len(os.sched_getaffinity(0)) // jobs))
    results: list[Any] = [None] * len(cases)
    numbers, running = iter(range(len(cases))), dict[Future, int]()
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        try:
            # Only as many as can run: the pool would start those that wait in it after an error as well.
            while True:
                for number in islice(numbers, jobs - len(running)):
                    log, arguments = cases[number]
                    running[pool.submit(logged, log, function, arguments)] = number
                if not running:
                    return results
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    results[number] = future.result()
                    tell(f"{cases[number][0].stem}: done")
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                logs = cases[0][0].parent
                raise UnavailableError(
                    f"a training was killed, perhaps for lack of memory; see {logs}/*.log"
                ) from error
            raise


def logged(log: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    return function(*arguments)
