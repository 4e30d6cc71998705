"""Training runs in child processes, forked from a server that has imported torch, so that starting many is cheap."""

import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["training.train", "training.__main__", "training.translate", "training_child", "torch.profiler"]
    + ["matplotlib.backends.backend_agg", "matplotlib.figure", "typer.testing"]
)


OF_ALL_RANKS = ("slow text", "hang")  # faults that concern several processes; the others happen to the first


def in_new_process(function: Callable[..., object], *arguments: object) -> None:
    """Run a function of a test module in a process with another hash seed, which has imported torch."""
    process = _context.Process(target=function, args=arguments)
    process.start()
    process.join(200)
    assert process.exitcode == 0


def child(
    arguments: list[str], log: str, environment: dict[str, str], fault: tuple[str, Any] | None, program: str
) -> None:
    """Run a module of the training program. fault: ("kill", n): SIGKILL at the n-th call that changes the disk;
    ("term", n), ("int", n), ("term twice", n): SIGTERM or SIGINT before the n-th backward pass; ("nan", n): its loss is
    NaN; ("file size", n): no file may grow beyond n bytes; ("disk full", n): the n-th query of the free space
    returns 0; ("read-only", folder): nothing can be written there; ("stderr", "full" or "closed"): stderr cannot be
    written; ("slow text", n): the main process takes n seconds to read its text, and collectives may take n / 2;
    ("hang", n): the other processes stop in their third backward pass, and collectives may take n seconds;
    ("threads", 0): no fault, but the threads that remain after the process group has ended are printed."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # nohup and background jobs ignore some of them
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.update(environment)
    gc.freeze()  # a collection would visit every object of the preloaded modules
    import torch

    torch.set_num_threads(1)
    if fault is not None and fault[0] == "kill":
        _kill_at_disk_call(fault[1])
    if fault is not None and fault[0] in ("term", "int", "term twice"):
        which = signal.SIGINT if fault[0] == "int" else signal.SIGTERM
        _at_backward(fault[1], lambda loss: _send(which, 2 if "twice" in fault[0] else 1) or loss)
    if fault is not None and fault[0] == "nan":
        _at_backward(fault[1], lambda loss: loss * torch.nan)
    if fault is not None and fault[0] == "file size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault[1], fault[1]))
    if fault is not None and fault[0] == "disk full":
        _no_space_at_look(fault[1])
    if fault is not None and fault[0] == "stderr":
        os.dup2(os.open("/dev/full", os.O_WRONLY) if fault[1] == "full" else _pipe_without_reader(), 2)
        sys.stderr = open(2, "w", buffering=1, closefd=False)
    if fault is not None and fault[0] == "threads":
        _name_threads_at_end()
    if fault is not None and fault[0] == "slow text":
        _read_text_slowly(int(fault[1]))
        _allow_collectives(int(fault[1]) / 2)
    if fault is not None and fault[0] == "hang":
        _allow_collectives(int(fault[1]))
        if environment["RANK"] != "0":
            _at_backward(3, lambda _: time.sleep(1000))
    if fault is not None and fault[0] == "read-only":
        _make_read_only(fault[1])
    main = importlib.import_module(f"training.{program}").main

    try:
        main(arguments)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _kill_at_disk_call(number: int) -> None:
    calls = 0

    def wrapped(function: Any) -> Any:
        def run(*arguments: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)

        return run

    for name in ("fsync", "replace", "mkdir", "unlink", "rmdir", "open"):
        setattr(os, name, wrapped(getattr(os, name)))


def _at_backward(number: int, change: Callable[[Any], Any]) -> None:
    import torch

    calls = 0
    backward = torch.Tensor.backward

    def run(loss: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        return backward(change(loss) if calls == number else loss, *arguments, **keywords)

    torch.Tensor.backward = run  # type: ignore[method-assign]


def _send(which: int, times: int) -> None:
    for _ in range(times):
        os.kill(os.getpid(), which)


def _no_space_at_look(number: int) -> None:
    calls = 0
    disk_usage = shutil.disk_usage

    def run(path: Any) -> Any:
        nonlocal calls
        calls += 1
        usage = disk_usage(path)
        return usage._replace(free=0) if calls == number else usage

    shutil.disk_usage = run


def _pipe_without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _name_threads_at_end() -> None:
    from accelerate import Accelerator

    end_training = Accelerator.end_training

    def run(accelerator: Accelerator) -> None:
        end_training(accelerator)
        print("threads:", *(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")), flush=True)

    Accelerator.end_training = run  # type: ignore[method-assign]


def _read_text_slowly(seconds: int) -> None:
    from training import prepare

    read_text = prepare.read_text

    def run(*arguments: Any) -> Any:
        if os.environ["RANK"] == "0":
            time.sleep(seconds)
        return read_text(*arguments)

    prepare.read_text = run


def _allow_collectives(seconds: float) -> None:
    from training import prepare

    prepare.COLLECTIVE_TIMEOUT = timedelta(seconds=seconds)


def _make_read_only(folder: str) -> None:
    """Change permissions or, for root, who ignores them, mount a read-only folder in this process."""
    if os.geteuid() != 0:
        os.chmod(folder, 0o500)
        return
    new_namespace = 0x00020000  # CLONE_NEWNS
    if ctypes.CDLL(None, use_errno=True).unshare(new_namespace) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for words in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "ro", "tmpfs", folder]):
        subprocess.run(["mount", *words], check=True)


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
    ):
        arguments = flags
        if isinstance(flags, dict):
            arguments = [word for key, value in flags.items() for word in (f"--{key}", json.dumps(value))]
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
            target = _context.Process(target=child, args=(arguments, str(log), environment, own, program))
            target.start()
            self.ranks.append(target)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
        self.wait()

    def wait(self, seconds: float = 100) -> int:
        """Return the first rank's exit code (-9 if killed); if it fails, kill the other ranks."""
        self.ranks[0].join(seconds)
        assert self.ranks[0].exitcode is not None, f"still running: {self.said()}"
        for rank in self.ranks[1:]:
            if self.ranks[0].exitcode != 0:
                rank.kill()  # as torchrun does
            rank.join(seconds)
        return self.ranks[0].exitcode

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""
