"""One optimizer step (section 5): accumulate gradients over micro-batches, clip, Adam."""

import math
import time

import numpy as np
import torch

from . import fsdp, machine
from .input_pipeline import InputPipeline, StepBatches, make_batch, on_device
from .metrics import Window
from .prepare import Prepared
from .progress import Progress
from .stopping import Signals


class Stepper:
    """Runs optimizer steps; updates `progress` and adds losses and token counts to `window`."""

    def __init__(self, prepared: Prepared, progress: Progress, window: Window, signals: Signals):
        self.prepared, self.progress, self.window, self.signals = prepared, progress, window, signals
        accelerator = prepared.accelerator
        self.device = accelerator.device
        self.input = InputPipeline(prepared)
        self.learning_rate = 0.0
        self.gradient_norm = 0.0
        # Fused Adam itself skips a step whose gradient is not finite, and the host reads the norms later.
        self.skips_on_device = self.device.type == "cuda" and accelerator.mixed_precision != "fp16"
        self.unread_norms: dict[int, torch.Tensor] = {}  # by step, since the last log line or save

    def fix_ddp_bucket_order(self) -> None:
        """Run a dummy backward pass so that DDP fixes its bucket order; otherwise resumed runs differ in the last bits.

        DDP rebuilds its buckets after the first backward pass of a process. From three processes on, the order of the
        buckets changes the rounding of the sums.
        """
        prepared, accelerator = self.prepared, self.prepared.accelerator
        if accelerator.num_processes == 1 or fsdp.is_sharded(prepared.module):
            return
        prepared.module.train()
        # The same pair twice: torch.compile specialises on batches of one.
        batch = make_batch(prepared.text.training, np.array([0, 0]), prepared.config, self.device)
        loss, _ = prepared.module(*on_device(batch, self.device))
        accelerator.backward(loss * 0)
        prepared.optimizer.zero_grad(set_to_none=True)

    def step(self) -> bool:
        """Take one step. Return False if a signal made a single process abandon it."""
        prepared, progress = self.prepared, self.progress
        started, cpu_started = time.perf_counter(), time.process_time()
        batches = self.input.take(progress.step)
        if not self._compute_gradients(batches):
            return False
        self._update_weights()
        progress.step += 1
        progress.tokens += batches.source_tokens + batches.target_tokens
        progress.seconds += time.perf_counter() - started
        progress.cpu_seconds += (time.process_time() - cpu_started) * prepared.accelerator.num_processes
        self.window.source_tokens += batches.source_tokens
        self.window.target_tokens += batches.target_tokens
        if not self.skips_on_device:
            self.read_norms()
        return True

    def _compute_gradients(self, batches: StepBatches) -> bool:
        """Accumulate the gradient of the mean loss over the step's target tokens. Return False if it was abandoned."""
        prepared, accelerator = self.prepared, self.prepared.accelerator
        processes = accelerator.num_processes
        prepared.module.train()
        prepared.optimizer.zero_grad(set_to_none=True)
        for each in batches.micro_batches:
            if self.signals.received and processes == 1:
                return False
            # Seeded by step and micro-batch only: no generator state to save, and dropout does not depend on the number
            # of processes unless they split a micro-batch.
            machine.seed_torch(prepared.recipe.seed, self.progress.step, each.number)
            with fsdp.accumulate(accelerator, prepared.module, last=each is batches.micro_batches[-1]):
                loss, negative_log_likelihood = prepared.module(*on_device(each.batch, self.device))
                loss, negative_log_likelihood = loss * each.weight, negative_log_likelihood * each.weight
                # DDP averages over processes; a sum is needed here.
                accelerator.backward(loss * (processes / batches.target_tokens))
            self.window.loss += loss.detach()
            self.window.negative_log_likelihood += negative_log_likelihood
        return True

    def _update_weights(self) -> None:
        """Clip the gradients and take an Adam step; skip it if a gradient is not finite."""
        prepared, recipe, progress = self.prepared, self.prepared.recipe, self.progress
        fp16 = prepared.accelerator.mixed_precision == "fp16"
        if fp16:
            prepared.accelerator.unscale_gradients()
        gradients = [p.grad for p in prepared.model.parameters() if p.grad is not None]
        norm = fsdp.unsharded(torch.nn.utils.get_total_norm(gradients))
        self.learning_rate = prepared.learning_rate_at(progress.step + 1)
        if self.skips_on_device:
            prepared.optimizer.optimizer.found_inf = norm.isfinite().logical_not().float()
        if self.skips_on_device or fp16 or math.isfinite(norm):
            if recipe.max_gradient_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(prepared.model.parameters(), recipe.max_gradient_norm, norm)
            for group in prepared.optimizer.param_groups:
                group["lr"] = self.learning_rate
            prepared.optimizer.step()  # with fp16 the gradient scaler skips the step itself and lowers its scale
        self.unread_norms[progress.step + 1] = norm

    def read_norms(self) -> None:
        """Count the steps since the last call whose gradient was not finite; called before a log line or a save.

        This synchronises with the GPU; the wait counts as step time. Raises InputError after max_bad_steps such steps
        in a row.
        """
        prepared, progress, started = self.prepared, self.progress, time.perf_counter()
        unread, self.unread_norms = self.unread_norms, {}
        norms = torch.stack(list(unread.values())).tolist() if unread else []
        for step, norm in zip(unread, norms, strict=True):
            self.gradient_norm, finite = norm, math.isfinite(norm)
            # The first few steps with fp16 are expected to overflow, until its scale has settled.
            if not finite and (prepared.accelerator.mixed_precision != "fp16" or progress.skipped_in_a_row >= 5):
                prepared.reporter.say(f"step {step}: the gradient is not finite, step skipped")
            progress.record_gradient(step, finite, prepared.recipe.max_bad_steps)
        progress.seconds += time.perf_counter() - started
