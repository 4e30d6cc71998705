"""Run independent trainings in parallel processes."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from vaswani_transformer.errors import UnavailableError
from vaswani_transformer.exit import print_error


def run_in_processes(calls: Sequence[tuple[Path, Callable[[], Any]]], jobs: int) -> list[Any]:
    """Run (log, function) calls, `jobs` at a time, and return their results in order.

    Each function's stderr goes to its log. The processes share the cores: two small models train faster side by side
    with one thread each than one after the other with two. The first error stops all processes.
    """
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), set_up_process, (threads,)) as pool:
        futures = {pool.submit(call_logged, log, function): log for log, function in calls}
        try:
            for future in as_completed(futures):
                future.result()
                print_error(f"{futures[future].stem}: done")
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                logs = calls[0][0].parent
                raise UnavailableError(f"a training process was killed (out of memory?); see {logs}/*.log") from error
            raise
    return [future.result() for future in futures]


def set_up_process(threads: int) -> None:
    """Set the number of threads, and leave the terminal's process group.

    Ctrl-C then reaches the trainings once, as the parent's SIGTERM; a second signal would end them without saving.
    """
    os.setpgid(0, 0)
    torch.set_num_threads(threads)


def call_logged(log: Path, function: Callable[[], Any]) -> Any:
    """Return function(), with the process's stderr appended to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    return function()
