"""Saves a run's checkpoints in the background, and restores the newest one."""

import dataclasses
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list

from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.model_folder import read_json_object, write_json
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER

from . import checkpoint_folders, tensors
from .prepare import Prepared
from .progress import Progress
from .run_folder import check_unchanged, differences


class Checkpointer:
    """Saves and restores the state between two steps."""

    def __init__(self, prepared: Prepared, root: Path):
        self.prepared, self.root = prepared, root
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.writing: Future[None] | None = None

    def save(self, progress: Progress) -> None:
        """Copy the state now and write it while training continues; all processes must call this together."""
        prepared = self.prepared
        parameters = dict(prepared.model.named_parameters())
        moments = tensors.optimizer_tensors(prepared.model, prepared.optimizer.optimizer)
        if not prepared.accelerator.is_main_process:
            tensors.cpu_copies(parameters | moments, keep=False)
            return
        started = time.perf_counter()
        self.finish_writing()  # one at a time: a second copy may not fit into memory
        weights, moments = tensors.cpu_copies(parameters), tensors.cpu_copies(moments)
        if (name := tensors.not_finite(weights | moments)) is not None:
            raise InputError(
                f"step {progress.step}: {name} contains NaN or infinity, so it is not saved; try a lower learning rate "
                "or a larger adam_epsilon. Earlier checkpoints are intact"
            )
        scaler = prepared.accelerator.scaler
        state = {
            "progress": dataclasses.asdict(progress),
            "gradient_scaler": scaler.state_dict() if scaler else None,
            "identity": prepared.fingerprint,  # text, tokenizers, processes; run.json's identity is the recipe's keys
            "environment": prepared.environment,
        }
        self.writing = self.executor.submit(self._write, weights, moments, state)
        stall = time.perf_counter() - started
        prepared.reporter.write({"event": "checkpoint", "step": progress.step, "stall_seconds": stall})

    def _write(self, weights: dict[str, torch.Tensor], moments: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        prepared, step = self.prepared, state["progress"]["step"]

        def fill(folder: Path) -> None:
            prepared.model.save_pretrained(folder, state_dict=weights)
            prepared.text.tokenizer.save_pretrained(folder)
            if prepared.text.target_tokenizer is not None:
                prepared.text.target_tokenizer.save_pretrained(folder / TARGET_TOKENIZER)
            tensors.save_tensors(moments, folder / tensors.OPTIMIZER)
            write_json(folder / checkpoint_folders.STATE, state)

        size = sum(tensor.nbytes for tensor in (*weights.values(), *moments.values()))
        checkpoint_folders.save_checkpoint(self.root, step, fill, size)
        if state["progress"]["best_step"] == step:
            checkpoint_folders.mark_best(self.root, step)
        checkpoint_folders.prune(self.root, prepared.recipe.keep, prepared.recipe.save_every)

    def finish_writing(self) -> None:
        """Wait until the last checkpoint is on disk. Raises the error of writing it, unless keep_going is set."""
        writing, self.writing = self.writing, None
        try:
            if writing is not None:
                writing.result()
        except (UnavailableError, OSError) as error:
            if not self.prepared.recipe.keep_going:
                raise
            self.prepared.reporter.say(f"{error}; training continues")

    def raise_if_failed(self) -> None:
        """Raise the error of a finished background write, without waiting for a running one."""
        if self.writing is not None and self.writing.done():
            self.finish_writing()

    def mark_best(self, progress: Progress) -> None:
        """Point `best` at the checkpoint of this step if it is the best."""
        if self.prepared.accelerator.is_main_process and progress.best_step == progress.step:
            checkpoint_folders.mark_best(self.root, progress.step)

    def restore(self) -> Progress:
        """Load the newest intact checkpoint into the model and the optimizer; return the run's progress."""
        prepared, folder = self.prepared, None
        if prepared.accelerator.is_main_process:
            folder = checkpoint_folders.newest_intact(self.root, prepared.reporter.say)
        (folder,) = broadcast_object_list([folder])
        if folder is None:
            return Progress()
        progress = self._restore_state(folder)
        tensors.restore_model(prepared.model, folder)
        tensors.restore_optimizer(prepared.model, prepared.optimizer.optimizer, folder)
        prepared.reporter.say(f"resuming from {folder.name}")
        return progress

    def _restore_state(self, folder: Path) -> Progress:
        prepared, path = self.prepared, folder / checkpoint_folders.STATE
        state = read_json_object(path, "progress", "identity", "environment")
        try:
            saved = state["progress"]  # the oldest checkpoints lack two fields
            progress = Progress(**{"validated_step": saved["step"], "wall_seconds": saved["seconds"], **saved})
            identity, environment, scaler = state["identity"], state["environment"], state["gradient_scaler"]
        except (KeyError, TypeError) as error:
            raise BrokenFileError(f"{path} lacks {error}; the run cannot be resumed exactly") from error
        check_unchanged(identity, prepared.fingerprint, prepared.recipe, prepared.reporter)
        for change in differences(environment, prepared.environment):
            prepared.reporter.say(
                f"warning: {change}: the last bits of the weights may differ from an uninterrupted run"
            )
        if prepared.accelerator.scaler is not None and scaler is not None:
            prepared.accelerator.scaler.load_state_dict(scaler)
        return progress
