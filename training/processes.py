"""The processes of a run: set them up, wait for them, and describe what affects bit-exact results."""

import sys
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, DynamoBackend, InitProcessGroupKwargs, LoggerType
from torch import distributed

from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.model_folder import read_json_object

from . import checkpoint_folders, machine
from .recipe import Recipe, nearest

COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # a process that hangs in a step ends the run
MAIN_PROCESS_TIMEOUT = timedelta(hours=12)  # while the main process reads the text or measures BLEU


def make_accelerator(recipe: Recipe, output: Path) -> Accelerator:
    for name in recipe.trackers:  # Accelerate skips trackers whose packages are missing without a warning
        if name not in (known := [kind.value for kind in LoggerType]):
            raise InputError(f"trackers: {name!r} is unknown to Accelerate{nearest(name, known)}")
        if name in LOGGER_TYPE_TO_CLASS and LoggerType(name) not in get_available_trackers():
            raise UnavailableError(f"trackers: {name} is not installed; pip install {name}")
    try:
        return Accelerator(
            # Explicit, or Accelerate starts several processes without a GPU as independent runs.
            cpu=not torch.accelerator.is_available(),
            mixed_precision=machine.choose_precision(recipe.mixed_precision, saved_choices(recipe, output)),
            log_with=[LoggerType(name) for name in recipe.trackers] or None,
            project_dir=output,
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT),
                DistributedDataParallelKwargs(gradient_as_bucket_view=True),
            ],
        )
    except ValueError as error:
        raise InputError(f"mixed_precision or trackers: {' '.join(str(error).split())}") from error


def saved_choices(recipe: Recipe, output: Path) -> dict[str, Any]:
    """Return the choices recorded in the newest checkpoint (precision, ...), or {} for a new run."""
    for folder in [] if recipe.overwrite else checkpoint_folders.checkpoints(output / "checkpoints"):
        try:
            state = read_json_object(folder / checkpoint_folders.STATE, "environment", "identity")
            return state["environment"] | state["identity"]
        except (BrokenFileError, KeyError, TypeError):
            continue  # a damaged checkpoint is reported when the run is resumed
    return {}


def new_cpu_group(processes: int) -> distributed.ProcessGroup | None:
    """Return a gloo group of all processes, in which they wait for each other; None for a single process."""
    if processes == 1:
        return None
    return cast(distributed.ProcessGroup, distributed.new_group(timeout=MAIN_PROCESS_TIMEOUT, backend="gloo"))


def wait_for_all(group: distributed.ProcessGroup | None) -> None:
    """Wait for the other processes of a `cpu_group`, for up to MAIN_PROCESS_TIMEOUT."""
    if group is not None:
        distributed.barrier(group)


def describe_environment(accelerator: Accelerator, shard_weights: bool) -> dict[str, Any]:
    """Return what affects bit-exact results: hardware, libraries, and automatic choices."""
    environment: dict[str, Any] = {
        "python": sys.version.split()[0],
        **{name: version(name) for name in ("torch", "numpy", "transformers", "tokenizers")},
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if accelerator.device.type == "cuda" else accelerator.device.type,
        "mixed_precision": str(accelerator.mixed_precision),
    }
    compiler: Any = accelerator.state.dynamo_plugin
    if compiler.backend != DynamoBackend.NO:
        environment["compiler"] = compiler.backend.value.lower()
    if torch.are_deterministic_algorithms_enabled():
        environment["algorithms"] = "deterministic"
    if shard_weights:
        environment["weights"] = "split by FSDP"
    return environment
