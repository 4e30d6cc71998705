"""The processes of a run: Accelerate's set-up, and checks that all of them run and do the same."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs, LoggerType, gather_object
from torch import distributed
from torch.distributed import DistError

from vaswani_transformer.errors import InputError, UnavailableError, one_line
from vaswani_transformer.exit import print_error

from .machine import choose_precision, this_device
from .recipe import differences, nearest
from .recipe_options import say_once

COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # a process that hangs in a step ends the run
# By which Accelerate decides whether there are several processes, and those by which torch finds them.
LAUNCHER_VARIABLES = ("WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
MEETING_VARIABLES = ("RANK", "MASTER_ADDR", "MASTER_PORT")
SILENT_WAIT = 5  # seconds; processes of one launcher meet sooner
MAIN_PROCESS_TIMEOUT = timedelta(hours=12)  # while the main process reads the text or measures BLEU


def make_accelerator(
    mixed_precision: str | None, trackers: list[str], output: Path, saved: Mapping[str, Any]
) -> Accelerator:
    """Set up the processes. trackers: names of Accelerate's trackers, which write to `output`"""
    for name in trackers:  # Accelerate skips trackers whose packages are missing without a warning
        if name not in (known := [kind.value for kind in LoggerType]):
            raise InputError(f"trackers: {name!r} is unknown to Accelerate{nearest(name, known)}")
        if name in LOGGER_TYPE_TO_CLASS and LoggerType(name) not in get_available_trackers():
            raise UnavailableError(f"trackers: {name} is not installed; pip install {name}")
    launched = launcher_settings()  # Accelerate sets some of them itself
    chosen = {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")}
    try:
        with name_missing_processes(launched):
            accelerator = Accelerator(
                # Explicit, or Accelerate starts several processes without a GPU as independent runs.
                cpu=not torch.accelerator.is_available(),
                mixed_precision=choose_precision(mixed_precision, saved, say_once),
                log_with=[LoggerType(name) for name in trackers] or None,
                project_dir=output,
                kwargs_handlers=[
                    InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT),
                    DistributedDataParallelKwargs(gradient_as_bucket_view=True),
                ],
            )
    except (ValueError, ImportError, DistError, RuntimeError) as error:
        kind = InputError if isinstance(error, ValueError) else UnavailableError
        variables = show(launched | chosen)
        hint = f", or a variable ({variables}; unset those of another launcher)" if variables else ""
        raise kind(f"mixed_precision, trackers{hint}: {one_line(str(error))}") from error
    if (device := accelerator.device).type not in ("cpu", this_device().type):
        raise UnavailableError(f"ACCELERATE_TORCH_DEVICE is {device}; torch has no such device here: unset it")
    return accelerator


def launcher_settings() -> dict[str, str]:
    """Return the variables by which several processes find each other, if some of them ask for several."""
    if os.environ.keys().isdisjoint(LAUNCHER_VARIABLES):
        return {}
    return {name: os.environ[name] for name in (*LAUNCHER_VARIABLES, *MEETING_VARIABLES) if name in os.environ}


def show(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())


@contextmanager
def name_missing_processes(launched: Mapping[str, str]) -> Iterator[None]:
    """Say which processes this one waits for, if they do not come: torch waits for COLLECTIVE_TIMEOUT in silence.

    launched: variables that may be leftovers of another launcher, as in a shell that a job of a cluster has started
    """
    message = (
        f"waiting for the other processes ({show(launched)}); to train in one process, interrupt this one and unset "
        f"{' '.join(launched)}"
    )
    timer = threading.Timer(SILENT_WAIT, print_error, [message])
    timer.daemon = True
    if launched:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_process_count(wanted: int | None, running: int) -> None:
    """Raise UnavailableError unless as many processes run as the recipe or the launcher asked for.

    On a machine without GPUs `accelerate launch --cpu --num_processes 2` starts a single process without a warning; it
    only sets the address of the process group. Clusters may set this address as well, before the launcher starts.
    """
    launched_as_one_of_several = (
        running == 1
        and {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"} <= os.environ.keys()
        and b"MASTER_ADDR" not in launcher_variables()
    )
    if launched_as_one_of_several or wanted not in (None, running):
        raise UnavailableError(
            f"{running} process{'es' if running > 1 else ''} running, {wanted or 'more'} requested; without GPUs, "
            f"start them with `vaswani-transformer train --processes {wanted or 'N'}`, or with "
            f"`accelerate launch --multi_gpu --num_processes {wanted or 'N'}` (gloo)"
        )


def launcher_variables() -> set[bytes]:
    """Return the names of the environment variables that the parent process was started with; {} if unknown."""
    try:
        environment = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:  # not Linux, or the process of another user
        return set()
    return {variable.partition(b"=")[0] for variable in environment.split(b"\0")}


def check_same_on_all_processes(facts: dict[str, Any]) -> None:
    """Raise InputError on all processes if these facts, by name, differ between them; all must call this together.

    Otherwise each process would train on its own text, or take its own steps, without an error.
    """
    first, *others = gather_object([facts])
    for rank, other in enumerate(others, start=1):
        if changes := differences(first, other, f"{{}} is {{}} on rank 0 and {{}} on rank {rank}"):
            raise InputError(
                f"the processes differ: {'; '.join(changes)}. Give them the same recipe, files and packages"
            )


def new_cpu_group(processes: int) -> distributed.ProcessGroup | None:
    """Return a gloo group of all processes, in which they wait for each other; None for a single process."""
    if processes == 1:
        return None
    return cast(distributed.ProcessGroup, distributed.new_group(timeout=MAIN_PROCESS_TIMEOUT, backend="gloo"))


def wait_for_all(group: distributed.ProcessGroup | None) -> None:
    """Wait for the other processes of a `cpu_group`, for up to MAIN_PROCESS_TIMEOUT."""
    if group is not None:
        distributed.barrier(group)
