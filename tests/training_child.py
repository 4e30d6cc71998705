"""Training runs in child processes, forked from a server that has imported torch, so that starting many is cheap."""

import gc
import importlib
import itertools
import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["training.train", "training.__main__", "training_child", "torch.profiler"]
    + ["matplotlib.backends.backend_agg", "matplotlib.figure", "typer.testing"]
)


def in_new_process(function: Callable[..., object], *arguments: object) -> None:
    """Run a function of a test module in a process with another hash seed, which has imported torch."""
    process = _context.Process(target=function, args=arguments)
    process.start()
    process.join(200)
    assert process.exitcode == 0


def child(
    arguments: list[str], log: str, environment: dict[str, str], fault: tuple[str, Any] | None, program: str
) -> None:
    """Run a module of the training program with one of FAULTS, by name and value."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # nohup and background jobs ignore some of them
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.update(environment)
    gc.freeze()  # a collection would visit every object of the preloaded modules
    import torch

    torch.set_num_threads(1)
    if fault is not None:
        FAULTS[fault[0]](fault[1])
    main = importlib.import_module(f"training.{program}").main

    try:
        main(arguments)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _at_call(number: int, owner: Any, names: tuple[str, ...], instead: Callable[..., Any]) -> None:
    """Replace the number-th call of these functions, counted together, by `instead(function, *arguments)`."""
    calls = itertools.count(1)

    def wrapped(function: Any) -> Any:
        def run(*arguments: Any, **keywords: Any) -> Any:
            if next(calls) == number:
                return instead(function, *arguments, **keywords)
            return function(*arguments, **keywords)

        return run

    for name in names:
        setattr(owner, name, wrapped(getattr(owner, name)))


def _at_backward(number: int, change: Callable[[Any], Any]) -> None:
    import torch

    def run(backward: Any, loss: Any, *arguments: Any, **keywords: Any) -> Any:
        return backward(change(loss), *arguments, **keywords)

    _at_call(number, torch.Tensor, ("backward",), run)


def _signal_at_backward(number: int, *signals: int) -> None:
    def send(loss: Any) -> Any:
        for each in signals:
            os.kill(os.getpid(), each)
        return loss

    _at_backward(number, send)


def _break_stderr(state: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(os.open("/dev/full", os.O_WRONLY) if state == "full" else writer, 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)


def _name_threads_at_end(_: int) -> None:
    from accelerate import Accelerator

    def run(end_training: Any, accelerator: Accelerator) -> None:
        end_training(accelerator)
        print("threads:", *(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")), flush=True)

    _at_call(1, Accelerator, ("end_training",), run)


def _read_text_slowly(seconds: int) -> None:
    from training import processes, train

    def run(read_text: Any, *arguments: Any) -> Any:
        if os.environ["RANK"] == "0":
            time.sleep(seconds)
        return read_text(*arguments)

    _at_call(1, train, ("read_corpora",), run)
    processes.COLLECTIVE_TIMEOUT = timedelta(seconds=seconds / 2)


def _hang(seconds: int) -> None:
    from training import processes

    processes.COLLECTIVE_TIMEOUT = timedelta(seconds=seconds)
    if os.environ["RANK"] != "0":
        _at_backward(3, lambda _: time.sleep(1000))


def _see_another_disk(root: str) -> None:
    from training import checkpoints

    if os.environ["RANK"] != "0":
        _at_call(1, checkpoints, ("broadcast_object_list",), lambda f, folders: [Path(root) / f(folders)[0].name])


DISK_CALLS = ("fsync", "replace", "mkdir", "unlink", "rmdir", "open")
OF_ALL_RANKS = ("slow text", "hang", "other disk")  # the other faults happen to the first process only
FAULTS: dict[str, Callable[[Any], None]] = {
    # SIGKILL at the n-th call that changes the disk
    "kill": lambda n: _at_call(n, os, DISK_CALLS, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)),
    # before the n-th backward pass
    "term": lambda n: _signal_at_backward(n, signal.SIGTERM),
    "int": lambda n: _signal_at_backward(n, signal.SIGINT),
    "hup": lambda n: _signal_at_backward(n, signal.SIGHUP),
    "term twice": lambda n: _signal_at_backward(n, signal.SIGTERM, signal.SIGTERM),
    "nan": lambda n: _at_backward(n, lambda loss: loss * float("nan")),
    # no file may grow beyond n bytes
    "file size": lambda n: resource.setrlimit(resource.RLIMIT_FSIZE, (n, n)),
    # the n-th query of the free space returns 0
    "disk full": lambda n: _at_call(n, shutil, ("disk_usage",), lambda usage, path: usage(path)._replace(free=0)),
    # stderr is "full" or "closed"
    "stderr": _break_stderr,
    # the main process takes n seconds to read its text, and collectives may take n / 2
    "slow text": _read_text_slowly,
    # the other processes stop in their third backward pass, and collectives may take n seconds
    "hang": _hang,
    # the other processes find the checkpoints of this folder
    "other disk": _see_another_disk,
    # no fault, but the threads that remain after the process group has ended are printed
    "threads": _name_threads_at_end,
}


class TrainingProcess:
    """One or several ranks of a training run."""

    def __init__(
        self,
        flags: dict[str, Any] | list[str],
        log: Path,
        processes: int = 1,
        fault: tuple[str, Any] | None = None,
        program: str = "__main__",
        variables: dict[str, str] | None = None,
        of_others: dict[str, Any] | None = None,
    ):
        """of_others: flags that differ on all ranks but the first"""
        self.log = log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.ranks = []
        for rank in range(processes):
            environment = {}
            if processes > 1:  # as torchrun sets them
                environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
                environment = {key: str(value) for key, value in environment.items()}
                environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment |= variables or {}
            own = fault if rank == 0 or (fault is not None and fault[0] in OF_ALL_RANKS) else None
            arguments = flags
            if isinstance(flags, dict):
                own_flags = flags if rank == 0 else flags | (of_others or {})
                arguments = [word for key, value in own_flags.items() for word in (f"--{key}", json.dumps(value))]
            target = _context.Process(target=child, args=(arguments, str(log), environment, own, program))
            target.start()
            self.ranks.append(target)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
        self.wait()

    def wait(self, seconds: float = 250) -> int:
        """Return the first rank's exit code (-9 if killed); if it fails, kill the other ranks."""
        self.ranks[0].join(seconds)
        assert self.ranks[0].exitcode is not None, f"still running: {self.said()}"
        for rank in self.ranks[1:]:
            if self.ranks[0].exitcode != 0:
                rank.kill()  # as torchrun does
            rank.join(seconds)
        return self.ranks[0].exitcode

    def ends(self, code: int = 0, *messages: str) -> str:
        """Wait for this exit code of the first rank and return the output, which must contain the messages."""
        assert self.wait() == code, self.said()
        for message in messages:
            assert message in self.said()
        return self.said()

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""
