"""Saves a run's checkpoints in the background, and restores the newest one."""

import copy
import dataclasses
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from accelerate.utils import broadcast_object_list
from pydantic import TypeAdapter, ValidationError

from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from . import checkpoint, tensors
from .json_files import read_json, write_json
from .output import refuse_changes
from .prepare import Prepared
from .progress import Progress


class Background:
    """A thread that runs one task at a time while training continues."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._running: Future[None] | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Start a task when the previous one is done. Raises the error of the previous one."""
        self.wait()
        self._running = self._thread.submit(task)

    def raise_if_failed(self) -> None:
        """Raise the error of a finished task; return at once if the task is still running."""
        if self._running is not None and self._running.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the running task. Raises its error."""
        running, self._running = self._running, None
        if running is not None:
            running.result()


class Checkpointer:
    """Saves and restores the state between two steps."""

    def __init__(self, prepared: Prepared, root: Path):
        self.prepared, self.root = prepared, root
        self.background = Background()

    def save(self, progress: Progress) -> None:
        """Copy the state now and write it while training continues; all processes must call this together."""
        prepared = self.prepared
        parameters = dict(prepared.model.named_parameters())
        moments = tensors.optimizer_tensors(prepared.model, prepared.optimizer.optimizer)
        if not prepared.accelerator.is_main_process:
            tensors.copies(parameters | moments, keep=False)
            return
        started, step, best_step = time.perf_counter(), progress.step, progress.best_step
        self.finish_writing()  # one at a time: there may be no memory for a second copy
        scaler = prepared.accelerator.scaler
        state = {
            "progress": dataclasses.asdict(progress),
            "gradient_scaler": copy.deepcopy(scaler.state_dict()) if scaler else None,
            "identity": prepared.identity,
            "environment": prepared.environment,
        }
        weights, moments = tensors.copies(parameters), tensors.copies(moments)
        if (name := tensors.not_finite(weights | moments)) is not None:
            raise InputError(
                f"step {step}: {name} contains NaN or infinity, so it is not saved; try a lower learning rate or a "
                "larger adam_epsilon. Earlier checkpoints are intact"
            )

        def write(folder: Path) -> None:
            prepared.model.save_pretrained(folder, state_dict=weights)
            prepared.tokenizer.save_pretrained(folder)
            if prepared.target_tokenizer is not None:
                prepared.target_tokenizer.save_pretrained(folder / TARGET_TOKENIZER)
            tensors.save_tensors(moments, folder / tensors.OPTIMIZER)
            write_json(folder / checkpoint.STATE, state)

        def save() -> None:
            size = sum(tensor.nbytes for tensor in (*weights.values(), *moments.values()))
            checkpoint.save_checkpoint(self.root, step, write, size)
            try:
                if best_step == step:
                    checkpoint.mark_best(self.root, step)
                checkpoint.prune(self.root, prepared.recipe.keep, prepared.recipe.save_every)
            except OSError as error:
                raise UnavailableError(f"{self.root} cannot be written: {error.strerror}") from error

        self.background.start(save)
        stall = time.perf_counter() - started
        prepared.reporter.write({"event": "checkpoint", "step": step, "stall_seconds": stall})

    def finish_writing(self) -> None:
        """Wait until the last checkpoint is on disk. Raises UnavailableError if it failed, unless keep_going is set."""
        self._report_failure(self.background.wait)

    def raise_if_failed(self) -> None:
        """Raise UnavailableError if a checkpoint could not be written, unless keep_going is set. Does not wait."""
        self._report_failure(self.background.raise_if_failed)

    def _report_failure(self, check: Callable[[], None]) -> None:
        try:
            check()
        except UnavailableError as error:
            if not self.prepared.recipe.keep_going:
                raise
            self.prepared.reporter.say(f"{error}; training continues")

    def restore(self) -> Progress:
        """Load the newest intact checkpoint into the model and the optimizer; return where its run was."""
        accelerator, reporter = self.prepared.accelerator, self.prepared.reporter
        chosen: list[str | None] = [None]
        if accelerator.is_main_process and (newest := checkpoint.newest_intact(self.root, reporter.say)):
            chosen = [str(newest)]
        (newest_of_main,) = broadcast_object_list(chosen)
        if newest_of_main is None:
            return Progress()
        folder = Path(newest_of_main)
        progress = self._restore_state(folder)
        tensors.restore_model(self.prepared.model, folder)
        stepped = progress.step > progress.skipped_steps
        tensors.restore_optimizer(self.prepared.model, self.prepared.optimizer.optimizer, folder, stepped)
        if accelerator.is_main_process and progress.best_step == progress.step:
            checkpoint.mark_best(self.root, progress.step)  # a kill may have come just before that
        reporter.say(f"resuming from {folder.name}")
        return progress

    def _restore_state(self, folder: Path) -> Progress:
        prepared, path = self.prepared, folder / checkpoint.STATE
        state = read_json(path, "progress", "identity", "environment")
        try:
            saved = state["progress"]  # the oldest checkpoints lack two fields
            progress = Progress(**{"validated_step": saved["step"], "wall_seconds": saved["seconds"], **saved})
            TypeAdapter(Progress).validate_json(json.dumps(dataclasses.asdict(progress)), strict=True)
            identity, environment, scaler = state["identity"], state["environment"], state["gradient_scaler"]
        except (KeyError, TypeError) as error:
            raise BrokenFileError(f"{path} lacks {error}; the run cannot be resumed exactly") from error
        except ValidationError as error:
            first = error.errors()[0]
            message = f"{path}: progress.{first['loc'][0]} is {first['input']!r}, {first['msg']}"
            raise BrokenFileError(message) from error
        refuse_changes(identity, prepared.identity, prepared.recipe, prepared.reporter)
        for key in sorted(environment.keys() | prepared.environment.keys()):
            if environment.get(key) != prepared.environment.get(key):
                prepared.reporter.say(
                    f"warning: {key} was {environment.get(key)}, is {prepared.environment.get(key)}: the last bits of "
                    "the weights may differ from an uninterrupted run"
                )
        if prepared.accelerator.scaler is not None and scaler is not None:
            try:
                prepared.accelerator.scaler.load_state_dict(scaler)
            except (KeyError, TypeError, RuntimeError, AttributeError) as error:
                raise BrokenFileError(f"{path}: gradient_scaler is {scaler!r}, which torch refuses") from error
        return progress
