"""Section 5: the training loop, in one process or one per GPU. The same command resumes an interrupted run."""

import gc
import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.training_curve import curve_figure, curves_of
from vaswani_transformer.tried_versions import untried_versions_warning

from . import checkpoint_folders, fsdp, machine
from .average import write_model_folder
from .checkpointer import Checkpointer
from .metrics import Meter, Window
from .model import check_model_fields
from .prepare import Prepared, prepare
from .processes import make_accelerator
from .progress import Progress
from .recipe import ADVICE, Recipe
from .report import Reporter
from .run_folder import claim_output, lock_run, record_run
from .step import Stepper
from .stopping import Signals, StopReason, agree_on_stop, default_signal_handlers, limit_reached
from .validation import validate


def train(recipe: Recipe, change: Callable[[Any], None] | None = None) -> None:
    """Train a model in recipe.output_dir, or resume the run there.

    Leaves a model folder: config.json, model.safetensors, tokenizer.json, generation_config.json.
    change: changes the computation of the new model in place, but no parameter. Neither the run nor the model folder
        records it: make the same change to resume the run, and after loading the model.
    """
    output, began = Path(recipe.output_dir), time.perf_counter()
    check_model_fields(recipe)
    transformers_logging.disable_progress_bar()  # the reporter shows one
    shard_weights = fsdp.pop_request()
    signals = Signals()
    with ExitStack() as stack:
        if recipe.deterministic:
            machine.use_deterministic_algorithms()
            stack.callback(torch.use_deterministic_algorithms, False)
        accelerator = make_accelerator(recipe, output)
        reporter = Reporter(accelerator.is_main_process, recipe.keep_going)
        if warning := untried_versions_warning():
            reporter.say(warning)
        machine.check_process_count(recipe.processes, accelerator.num_processes)
        machine.check_precision(accelerator.mixed_precision, accelerator.device)
        if accelerator.is_main_process:
            stack.enter_context(lock_run(output))
            claim_output(recipe, output, reporter)
        accelerator.wait_for_everyone()
        with default_signal_handlers():  # there is nothing to save yet, and reading the text may take an hour
            prepared = prepare(recipe, output, accelerator, reporter, shard_weights)
        if change is not None:
            change(prepared.model)
        stack.enter_context(signals.handle())
        stack.callback(reporter.stop)
        stack.callback(accelerator.end_training)
        stack.callback(release_model, prepared)
        run = Run(prepared, output, signals, began)
        if accelerator.is_main_process:
            record_run(recipe, output)  # the checkpoints belong to this recipe and text
        stack.callback(run.stepper.input.close)
        reason = run.train()
    if reason.is_signal:
        raise SystemExit(reason.exit_code)


def release_model(prepared: Prepared) -> None:
    """Free the model before the process group is destroyed.

    DDP holds a reference to the group. If it held the last one, Python would free the group while holding the GIL and
    wait forever for a gloo thread that needs it.
    """
    prepared.accelerator.free_memory()
    del prepared.module, prepared.optimizer, prepared.cpu_group
    gc.collect()


class Run:
    """The training loop: steps, validation, checkpoints, and the decision to stop."""

    def __init__(self, prepared: Prepared, output: Path, signals: Signals, began: float):
        """began: time.perf_counter() when the process started, for max_hours"""
        self.prepared, self.output, self.signals = prepared, output, signals
        self.checkpointer = Checkpointer(prepared, output / "checkpoints")
        self.progress = self.checkpointer.restore()
        self.window, self.meter = Window(prepared.accelerator.device), Meter(prepared)
        self.stepper = Stepper(prepared, self.progress, self.window, signals)
        self.began = began - self.progress.wall_seconds

    def train(self) -> StopReason:
        """Train until a limit ends the run and write the model, or stop on a signal. Return the reason."""
        prepared, reporter = self.prepared, self.prepared.reporter
        report_setup(prepared)
        if prepared.recipe.trackers:
            keys = prepared.recipe.model_dump().items()
            config = {k: v if isinstance(v, int | float | str) else str(v) for k, v in keys}
            prepared.accelerator.init_trackers("vaswani_transformer", config=config)
        reporter.start(self.output, prepared.accelerator, self.progress.step, prepared.total_steps)
        self.stepper.fix_ddp_bucket_order()
        self.window.start()
        reason = self._loop()
        if reason.is_signal:
            step = self.progress.step
            saved = f"saved step {step}" if step else "before the first step"
            reporter.say(f"{reason.name}: {saved}; run the same command again to resume")
        else:
            finish(prepared, self.output, self.progress)
        return reason

    def _loop(self) -> StopReason:
        """Train until there is a reason to stop, and wait until the last checkpoint is on disk."""
        progress = self.progress
        saved_step = progress.step
        reason = self._stop_reason()
        # A signal stopped the run after this step but before its validation: validate now.
        if progress.step > progress.validated_step and self._validation_is_due(reason):
            reason = self._validate(reason)
        self.checkpointer.mark_best(progress)  # the run may have been killed before it updated the pointer
        while not reason:
            self.checkpointer.raise_if_failed()
            if self.stepper.step():
                self._report()
            reason = self._stop_reason()
            if self._validation_is_due(reason):
                reason = self._validate(reason)
            save_is_due = progress.step % self.prepared.recipe.save_every == 0 or progress.best_step == progress.step
            if (reason or save_is_due) and progress.step != saved_step:
                self._save()
                saved_step = progress.step
        self.checkpointer.finish_writing()
        self.prepared.accelerator.wait_for_everyone()
        return reason

    def _validate(self, reason: StopReason) -> StopReason:
        validate(self.prepared, self.progress, last=reason == StopReason.LIMIT)
        self.window.start()
        return max(reason, self._stop_reason())

    def _save(self) -> None:
        self.stepper.read_norms()
        self.checkpointer.save(self.progress)
        self.window.start()

    def _validation_is_due(self, reason: StopReason) -> bool:
        """Return whether to validate now; after a signal, validation waits until the run is resumed."""
        due = self.progress.step % self.prepared.recipe.validation_interval == 0 or reason == StopReason.LIMIT
        return self.prepared.text.validation is not None and due and not reason.is_signal

    def _stop_reason(self) -> StopReason:
        """Return the stop reason, on which all processes agree."""
        prepared = self.prepared
        self.progress.wall_seconds = time.perf_counter() - self.began
        reached = limit_reached(prepared.recipe, prepared.total_steps, self.progress)
        reason = self.signals.received or (StopReason.LIMIT if reached else StopReason.NONE)
        return agree_on_stop(reason, prepared.cpu_group)

    def _report(self) -> None:
        progress, prepared = self.progress, self.prepared
        step, total = progress.step, prepared.total_steps
        if step % prepared.recipe.log_every == 0 or step == total:
            self.stepper.read_norms()
            record: dict[str, Any] = {
                "step": step,
                "total_steps": total,
                "epoch": step / prepared.plan.steps_per_epoch,
                "learning_rate": self.stepper.learning_rate,
                "gradient_norm": self.stepper.gradient_norm,
                **self.meter.read(self.window, progress),
            }
            prepared.reporter.log(record, (total - step) * progress.seconds / step)
            self.window.start()
        else:
            prepared.reporter.advance(step, total, progress.seconds / step)


def report_setup(prepared: Prepared) -> None:
    """Print the size of the run and its hardware, and warn of a recipe that does not suit the text."""
    recipe, plan, environment, say = prepared.recipe, prepared.plan, prepared.environment, prepared.reporter.say
    parameters = sum(p.numel() for p in prepared.model.parameters())
    pairs, steps, processes = len(prepared.text.training), prepared.total_steps, prepared.accelerator.num_processes
    say(
        f"{parameters:,} parameters, {pairs:,} pairs, {plan.steps_per_epoch:,} steps per epoch of "
        f"{recipe.tokens_per_step:,} tokens ({plan.padding():.1%} padding), {steps:,} steps"
    )
    sharding = ""
    if fsdp.is_sharded(prepared.module):
        sharding = f", weights split by FSDP ({fsdp.local_parameters(prepared.model):,} here)"
    compiler = f", compiled by {environment['compiler']}" if "compiler" in environment else ""
    say(
        f"{processes} process{'es' if processes > 1 else ''} on {environment['device']}, "
        f"{environment['threads']} threads{sharding}; precision {environment['mixed_precision']}, "
        f"float32 products {environment['matmul_precision']}, attention {environment['attention']}{compiler}; "
        f"{plan.micro_batches_per_step} micro-batch{'es' if plan.micro_batches_per_step > 1 else ''} per step"
    )
    if recipe.warmup_steps >= steps:
        say(
            f"warning: the learning rate rises for {recipe.warmup_steps:,} steps (warmup_steps), but the run has "
            f"{steps:,}; a tenth of the steps is usual"
        )
    if parameters > 1000 * pairs and recipe.initial_weights is None:  # shipped recipes: 1.5 to 230 per pair
        say(f"warning: {parameters:,} parameters are too many for {pairs:,} pairs; use another --config: {ADVICE}")


def finish(prepared: Prepared, output: Path, progress: Progress) -> None:
    """Average the last checkpoints into the model (section 6.1); its folder is output_dir itself."""
    recipe, reporter, root = prepared.recipe, prepared.reporter, output / "checkpoints"
    if prepared.accelerator.is_main_process:
        # Checkpoints made by a signal are left out, so that an interrupted run ends with the same model.
        regular = checkpoint_folders.regular(root, recipe.save_every, last=progress.step)
        folders = list(itertools.islice(checkpoint_folders.intact(regular, reporter.say), recipe.average_last))[::-1]
        if not folders and not progress.step:
            raise InputError("max_hours, max_cpu_seconds or max_tokens ended the run before its first step")
        if not folders:
            raise UnavailableError(
                f"{root}: no checkpoint could be written, so there is no model; free space and run the command again"
            )
        write_model_folder(folders, output)
        names = ", ".join(folder.name for folder in folders)
        origin = f"the average of {names}" if len(folders) > 1 else f"from {names}"
        reporter.say(f"{output}: the model, {origin}")
        draw_curve(output, reporter)
    prepared.accelerator.wait_for_everyone()


def draw_curve(output: Path, reporter: Reporter) -> None:
    """Draw curve.png beside the model, if matplotlib is installed and something has been logged."""
    try:
        curves = curves_of(output / "metrics.jsonl")
        if any(curves.values()):
            with atomic_file(output / "curve.png") as file:
                curve_figure(curves).savefig(file, format="png")
    except (UnavailableError, BrokenFileError) as error:
        reporter.say(f"no curve.png: {error}")
