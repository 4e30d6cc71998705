"""Section 5: the training loop, in one process or one per GPU. The same command resumes an interrupted run."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import TorchDynamoPlugin, broadcast_object_list
from transformers.utils import logging as transformers_logging

from vaswani_transformer.atomic import remove
from vaswani_transformer.doctor import untried_versions_warning
from vaswani_transformer.exit import default_signal_handlers
from vaswani_transformer.files import read_json_object, write_json
from vaswani_transformer.hub_files import find_folder
from vaswani_transformer.model_folder import MANIFEST
from vaswani_transformer.training_run import RECORD

from . import fsdp, machine
from .batches import InputPipeline, RunBatches, batch_by_length
from .checkpoints import Checkpointer, Progress, recorded_choices
from .corpus import Corpora, read_corpora
from .final_model import averaged_steps, write_final_model
from .metrics import Meter, Window, measure_bleu, measure_loss
from .model import (
    Network,
    check_model_fields,
    check_positions,
    initial_weights_sha256,
    make_model,
    model_config,
    record_trained_length,
)
from .processes import (
    check_process_count,
    check_same_on_all_processes,
    make_accelerator,
    new_cpu_group,
    wait_for_all,
)
from .recipe import Recipe, Settings
from .report import Reporter
from .run_folder import claim_output, describe_run, lock_run
from .schedule import learning_rate, total_steps
from .step import Stepper
from .stopping import Signals, StopReason, agree_on_stop, limit_reached
from .tokenizer import sizes_and_ids

# Of the steps of a run: averaging checkpoints of more makes the model worse. Half cost 1 BLEU, more cost 11 and 16
# (training/results/LOG.md); paper/recipes/treebank_parsing.yaml has the largest share of a recipe, 0.4.
LARGEST_AVERAGED_SHARE = 0.4


def train(recipe: Recipe, change: Callable[[Any], None] | None = None) -> None:
    """Train a model in recipe.output_dir, or resume the run there.

    Leaves a model folder: config.json, model.safetensors, tokenizer.json, generation_config.json.
    change: a function that changes what the model computes, in place, and adds no parameter. Neither the run nor the
        model folder records the change, so make it again when you resume the run and after you load the model.
    """
    began, settings, record = time.perf_counter(), recipe.settings(), describe_run(recipe)
    output = Path(settings.run.output_dir)
    check_model_fields(settings.model)
    if settings.model.initial_weights is not None:  # once: a repository or `checkpoints/best` may move meanwhile
        settings.model.initial_weights = str(find_folder(settings.model.initial_weights))
    transformers_logging.disable_progress_bar()  # the reporter shows one
    shard_weights = fsdp.pop_request()
    signals = Signals()
    with ExitStack() as stack:
        if settings.hardware.deterministic:
            machine.use_deterministic_algorithms()
            stack.callback(torch.use_deterministic_algorithms, False)
        saved = {} if settings.run.overwrite else recorded_choices(output / "checkpoints")
        trackers = settings.run.trackers
        with default_signal_handlers():  # torch waits for other processes in C++, where Python handles no signal
            accelerator = make_accelerator(settings.hardware.mixed_precision, trackers, output, saved)
        reporter = Reporter(accelerator.is_main_process, settings.run.keep_going)
        if warning := untried_versions_warning():
            reporter.say(warning)
        check_process_count(settings.hardware.processes, accelerator.num_processes)
        machine.check_precision(accelerator.mixed_precision, accelerator.device)
        choices = {"mixed_precision": accelerator.mixed_precision, "FSDP": shard_weights}
        check_same_on_all_processes({**recipe.shared_keys(), **machine.package_versions(), **choices})
        if accelerator.is_main_process:
            stack.enter_context(lock_run(output, reporter.say))
            claim_output(output, record, settings, reporter.say)
        accelerator.wait_for_everyone()
        with default_signal_handlers():  # there is nothing to save yet, and reading the text may take an hour
            run = Run(settings, record["fixed_keys"], accelerator, reporter, signals, shard_weights, saved)
        if change is not None:
            change(run.network.model)
        stack.enter_context(signals.handle())
        stack.callback(reporter.stop)
        stack.callback(accelerator.end_training)
        stack.callback(run.release)
        run.resume(began)
        # The checkpoints belong to this recipe and text; those of a finished run stay with the recipe that made them.
        ended = limit_reached(settings.limits, run.total_steps, run.progress)
        if accelerator.is_main_process and not ended:
            if read_json_object(output / RECORD).get("fixed_keys") != record["fixed_keys"]:
                remove(output / MANIFEST)  # without which the record is not that of an earlier model in the folder
            write_json(output / RECORD, record)
        if trackers:
            keys = {k: v if isinstance(v, int | float | str) else str(v) for k, v in record["recipe"].items()}
            accelerator.init_trackers("vaswani_transformer", config=keys)
        reason = run.train()
    if reason.is_signal:
        raise SystemExit(reason.exit_code)


class Run:
    """A training run: its text, batches and network, and the loop of steps, validation and checkpoints."""

    def __init__(
        self,
        settings: Settings,
        fixed_keys: dict[str, Any],
        accelerator: Accelerator,
        reporter: Reporter,
        signals: Signals,
        shard_weights: bool = False,
        saved: dict[str, Any] | None = None,
    ):
        """Read the text and build the network. The run is then ready for its first step.

        fixed_keys: of the recipe, which every checkpoint records: one of another run may lie in the folder
        shard_weights: use FSDP instead of DDP if there are several processes
        saved: the choices that the newest checkpoint of the run records
        """
        self.settings, self.reporter, self.signals = settings, reporter, signals
        self.output, saved = Path(settings.run.output_dir), saved or {}
        device, processes = accelerator.device, accelerator.num_processes
        shard_weights = shard_weights and processes > 1
        machine.check_compiler(settings.hardware, device, shard_weights)
        self.cpu_group = new_cpu_group(processes)

        # Section 5.1: the text and its batches.
        self.corpora = corpora = self._read_text(accelerator.is_main_process)
        lengths = corpora.training.source_lengths, corpora.training.target_lengths
        config = model_config(settings.model, *sizes_and_ids(corpora.tokenizer, corpora.target_tokenizer))
        check_positions(config, settings.text.max_length)
        check_same_on_all_processes(
            {**corpora.sha256s(), **initial_weights_sha256(settings.model), "config": config.to_dict()}
        )
        # The main process chooses: GPUs may differ in memory.
        micro_batches = machine.choose_micro_batches(settings.batches, config, device, processes, saved)
        (micro_batches,) = broadcast_object_list([micro_batches])
        self.tokens_per_micro_batch = settings.batches.tokens_per_step // micro_batches
        self.batching = batch_by_length(*lengths, self.tokens_per_micro_batch, micro_batches)
        self.total_steps = total_steps(settings.limits, self.batching.steps_per_epoch)
        order = RunBatches(self.batching, settings.run.seed)
        batches = InputPipeline(corpora.training, order, self.total_steps, config, accelerator)

        # Section 3: the model, on the processes and hardware that there are.
        mean_length = sum(corpora.training.mean_lengths) / 2
        model, choices = make_model(settings.model, settings.hardware, config, device, settings.run.seed, mean_length)
        record_trained_length(model, lengths[0])
        # Set for every run, because a process may train several models. dynamic: compile once for all sentence lengths.
        compiler: Any = machine.choose_compiler(settings.hardware, device, self.total_steps, processes, saved)
        accelerator.state.dynamo_plugin = TorchDynamoPlugin(backend=compiler, dynamic=True)
        self.network = Network(model, settings.optimizer, accelerator, shard_weights)
        self.environment = machine.describe_environment(accelerator, shard_weights) | choices

        # Sections 5.2 to 5.4: the steps, and what is measured and saved between them.
        self.progress, self.window = Progress(), Window(device)
        self.meter = Meter(config, corpora.training.mean_lengths, accelerator)
        schedule = partial(learning_rate, settings.optimizer, config.d_model, self.total_steps)
        self.stepper = Stepper(
            self.network, batches, schedule, self.progress, self.window, signals, reporter.say,
            seed=settings.run.seed, max_gradient_norm=settings.optimizer.max_gradient_norm,
        )  # fmt: skip
        fingerprint = {"processes": processes, "micro_batches": micro_batches, "recipe": fixed_keys}
        fingerprint |= corpora.sha256s()
        state = {"fingerprint": fingerprint, "environment": self.environment}
        self.checkpointer = Checkpointer(
            self.output / "checkpoints", self.network, corpora, settings.checkpoints, settings.run, state, reporter
        )

    def _read_text(self, is_main_process: bool) -> Corpora:
        """Read the text: first the main process, which fills the cache, then the others."""
        settings, say = self.settings, self.reporter.say
        arguments = settings.text, settings.tokenizer, settings.model.initial_weights, self.output, say
        sentences = settings.checkpoints.bleu_every is not None
        corpora = read_corpora(*arguments, sentences) if is_main_process else None
        wait_for_all(self.cpu_group)
        corpora = corpora or read_corpora(*arguments, sentences)
        wait_for_all(self.cpu_group)
        return corpora

    def resume(self, began: float) -> None:
        """Load the newest checkpoint, if there is one. began: time.perf_counter() when the process started"""
        self.progress = self.stepper.progress = self.checkpointer.restore()
        self.began = began - self.progress.wall_seconds
        self.resumed_at = self.progress.step, self.progress.seconds

    def release(self) -> None:
        """Free the input thread, the network and the group of processes, before Accelerate ends the latter."""
        self.stepper.input.close()
        self.network.release()
        del self.cpu_group

    def train(self) -> StopReason:
        """Train until a limit ends the run and write the model, or stop on a signal. Return the reason."""
        reporter, progress = self.reporter, self.progress
        report_setup(self)
        trackers = self.network.accelerator if self.settings.run.trackers else None
        reporter.start(self.output, trackers, progress.step, self.total_steps)
        self.stepper.fix_ddp_bucket_order()
        self.window.start()
        reason = self._loop()
        if reason.is_signal:
            saved = f"saved step {progress.step}" if progress.step else "before the first step"
            reporter.say(f"{reason.name}: {saved}; run the same command again to resume")
            return reason
        if self.network.accelerator.is_main_process:
            write_final_model(self.output, self.settings.checkpoints, progress, reporter.say)
        self.network.accelerator.wait_for_everyone()
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
            save_is_due = progress.step % self.settings.checkpoints.save_every == 0
            if (reason or save_is_due or progress.best_step == progress.step) and progress.step != saved_step:
                self._save()
                saved_step = progress.step
        self.checkpointer.finish_writing()
        self.network.accelerator.wait_for_everyone()
        return reason

    def _validate(self, reason: StopReason) -> StopReason:
        """Log the validation loss, and BLEU if it is due or this is the last step, and record it in `progress`."""
        progress, corpora, bleu_every = self.progress, self.corpora, self.settings.checkpoints.bleu_every
        assert corpora.validation is not None
        record: dict[str, Any] = {"event": "validation", "step": progress.step}
        record |= measure_loss(self.network, corpora.validation, self.tokens_per_micro_batch)
        progress.record_validation(record["validation_loss"])
        record |= {"seconds": progress.seconds, "cpu_seconds": progress.cpu_seconds}
        if bleu_every is not None and (reason == StopReason.LIMIT or progress.step % bleu_every == 0):
            record |= measure_bleu(self.network, corpora, self.settings.tokenizer.lowercase)
            wait_for_all(self.cpu_group)
        self.reporter.write(record)
        bleu = f", BLEU {record['validation_bleu']:.1f}" if "validation_bleu" in record else ""
        self.reporter.say(
            f"step {progress.step}: validation loss {record['validation_loss']:.4f}, "
            f"perplexity {record['validation_perplexity']:.2f}{bleu}"
        )
        self.window.start()
        return max(reason, self._stop_reason())

    def _save(self) -> None:
        self.stepper.check_gradients()
        self.checkpointer.save(self.progress)
        self.window.start()

    def _validation_is_due(self, reason: StopReason) -> bool:
        """Return whether to validate now; after a signal, validation waits until the run is resumed."""
        due = self.progress.step % self.settings.checkpoints.validation_interval == 0 or reason == StopReason.LIMIT
        return self.corpora.validation is not None and due and not reason.is_signal

    def _stop_reason(self) -> StopReason:
        """Return the stop reason, on which all processes agree."""
        self.progress.wall_seconds = time.perf_counter() - self.began
        reached = limit_reached(self.settings.limits, self.total_steps, self.progress)
        reason = self.signals.received or (StopReason.LIMIT if reached else StopReason.NONE)
        return agree_on_stop(reason, self.cpu_group)

    def _report(self) -> None:
        progress = self.progress
        step, total = progress.step, self.total_steps
        if step % self.settings.run.log_every == 0 or step == total:
            self.stepper.check_gradients()
            record: dict[str, Any] = {
                "step": step,
                "total_steps": total,
                "epoch": step / self.batching.steps_per_epoch,
                "learning_rate": self.stepper.learning_rate,
                "gradient_norm": self.stepper.gradient_norm,
                **self.meter.read(self.window, progress),
            }
            self.reporter.log(record, (total - step) * self._seconds_per_step())
            self.window.start()
        else:
            self.reporter.advance(step, total, self._seconds_per_step())

    def _seconds_per_step(self) -> float:
        """Return the mean since the run was resumed: the steps before may be those of another machine."""
        step, seconds = self.resumed_at
        return (self.progress.seconds - seconds) / (self.progress.step - step)


def report_setup(run: Run) -> None:
    """Print the size of the run and its hardware, and warn of a recipe that does not suit the text."""
    batching, environment, say, network = run.batching, run.environment, run.reporter.say, run.network
    parameters = sum(p.numel() for p in network.model.parameters())
    pairs, steps, processes = len(run.corpora.training), run.total_steps, run.network.accelerator.num_processes
    say(
        f"{parameters:,} parameters, {pairs:,} pairs, {batching.steps_per_epoch:,} steps per epoch of "
        f"{run.settings.batches.tokens_per_step:,} tokens ({batching.padding():.1%} padding), {steps:,} steps"
    )
    sharding = ""
    if fsdp.is_sharded(network.module):
        sharding = f", weights split by FSDP ({fsdp.local_parameters(network.model):,} here)"
    compiler = f", compiled by {environment['compiler']}" if "compiler" in environment else ""
    say(
        f"{processes} process{'es' if processes > 1 else ''} on {environment['device']}, "
        f"{environment['threads']} thread{'s' if environment['threads'] > 1 else ''}{sharding}; "
        f"precision {environment['mixed_precision']}, float32 products {environment['matmul_precision']}, "
        f"attention {environment['attention']}{compiler}; "
        f"{batching.micro_batches_per_step} micro-batch{'es' if batching.micro_batches_per_step > 1 else ''} per step"
    )
    device, tokens_per_step = run.network.accelerator.device, run.settings.batches.tokens_per_step
    if warning := machine.small_share_warning(tokens_per_step, processes, device):
        say(warning)
    warmup_steps = run.settings.optimizer.warmup_steps
    if warmup_steps >= steps:
        say(
            f"warning: the learning rate rises for {warmup_steps:,} steps (warmup_steps), but the run has "
            f"{steps:,}; a tenth of the steps is usual"
        )
    averaged = steps - min(averaged_steps(run.settings.checkpoints, steps))
    if averaged > LARGEST_AVERAGED_SHARE * steps:
        say(
            f"warning: the model will average checkpoints of the last {averaged:,} of {steps:,} steps (average_last, "
            "save_every), and the early ones make it worse; lower save_every: a tenth of the steps is usual"
        )
    # Shipped recipes: 1.5 to 230 parameters per pair.
    if parameters > 1000 * pairs and run.settings.model.initial_weights is None:
        say(
            f"warning: {parameters:,} parameters are too many for {pairs:,} pairs; fine-tune an existing model "
            "(--initial_weights), add pairs, or choose a smaller model"
        )
