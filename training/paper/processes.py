"""Runs independent trainings in processes of their own."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from vaswani_transformer.errors import UnavailableError
from vaswani_transformer.exit import print_error


def in_processes(calls: Sequence[tuple[Path, Callable[[], Any]]], jobs: int) -> list[Any]:
    """Return the results of calls (log, function), `jobs` at a time; messages of a function go to its log.

    The processes divide the cores among them: two small models train faster side by side with a thread each than one
    after the other with two. The first error stops the other processes; a training by `train` keeps its last
    checkpoint.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, len(os.sched_getaffinity(0)) // jobs))
    results: list[Any] = [None] * len(calls)
    waiting, running = deque(range(len(calls))), dict[Future, int]()
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        try:
            while waiting or running:
                # Only as many as can run: after an error, the pool would still start calls that it has queued.
                while waiting and len(running) < jobs:
                    number = waiting.popleft()
                    running[pool.submit(logged, *calls[number])] = number
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    results[number] = future.result()
                    print_error(f"{calls[number][0].stem}: done")
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                logs = calls[0][0].parent
                raise UnavailableError(
                    f"a training was killed, perhaps for lack of memory; see {logs}/*.log"
                ) from error
            raise
    return results


def logged(log: Path, function: Callable[[], Any]) -> Any:
    """Return function(), with the process's standard error appended to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    return function()
