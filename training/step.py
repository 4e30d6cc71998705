"""One optimizer step (section 5): accumulate gradients over micro-batches, clip, Adam."""

import math
import time
from collections.abc import Callable

import numpy as np
import torch

from . import fsdp, machine
from .batches import InputPipeline, StepBatches, make_batch, to_device
from .checkpoints import Progress
from .metrics import Window
from .model import Network
from .stopping import Signals


class Stepper:
    """Runs optimizer steps; updates `progress` and adds losses and token counts to `window`."""

    def __init__(
        self,
        network: Network,
        input: InputPipeline,
        learning_rate_at: Callable[[int], float],
        progress: Progress,
        window: Window,
        signals: Signals,
        say: Callable[[str], None],
        *,
        seed: int,
        max_gradient_norm: float | None,
    ):
        """learning_rate_at: returns the rate of a step, counted from 1"""
        self.network, self.input, self.learning_rate_at = network, input, learning_rate_at
        self.progress, self.window, self.signals, self.say = progress, window, signals, say
        self.seed, self.max_gradient_norm = seed, max_gradient_norm
        self.accelerator = network.accelerator
        self.device, self.precision = self.accelerator.device, self.accelerator.mixed_precision
        self.learning_rate = 0.0
        self.gradient_norm = 0.0
        # Fused Adam itself skips a step whose gradient is not finite, and the host reads the norms later.
        self.skips_on_device = self.device.type == "cuda" and self.precision != "fp16"
        self.unread_norms: dict[int, torch.Tensor] = {}  # by step, since the last log line or save

    def fix_ddp_bucket_order(self) -> None:
        """Run a dummy backward pass so that DDP fixes its bucket order; otherwise resumed runs differ in the last bits.

        DDP rebuilds its buckets after the first backward pass of a process. From three processes on, the order of the
        buckets changes the rounding of the sums.
        """
        network = self.network
        if self.accelerator.num_processes == 1 or fsdp.is_sharded(network.module):
            return
        network.module.train()
        # The same pair twice: torch.compile specialises on batches of one.
        batch = make_batch(self.input.corpus, np.array([0, 0]), network.model.config, self.device)
        loss, _ = network.module(*to_device(batch, self.device))
        self.accelerator.backward(loss * 0)
        network.optimizer.zero_grad(set_to_none=True)

    def step(self) -> bool:
        """Take one step. Return False if a signal made a single process abandon it."""
        progress = self.progress
        started, cpu_started = time.perf_counter(), time.process_time()
        batches = self.input.take(progress.step)
        if not self._compute_gradients(batches):
            return False
        self._update_weights()
        progress.step += 1
        progress.tokens += batches.source_tokens + batches.target_tokens
        progress.seconds += time.perf_counter() - started
        progress.cpu_seconds += (time.process_time() - cpu_started) * self.accelerator.num_processes
        self.window.source_tokens += batches.source_tokens
        self.window.target_tokens += batches.target_tokens
        if not self.skips_on_device:
            self.check_gradients()
        return True

    def _compute_gradients(self, batches: StepBatches) -> bool:
        """Accumulate the gradient of the mean loss over the step's target tokens. Return False if it was abandoned."""
        network, accelerator = self.network, self.accelerator
        processes = accelerator.num_processes
        network.module.train()
        network.optimizer.zero_grad(set_to_none=True)
        for each in batches.micro_batches:
            if self.signals.received and processes == 1:
                return False
            # Seeded by step and micro-batch only: no generator state to save, and dropout does not depend on the number
            # of processes unless they split a micro-batch.
            machine.seed_torch(self.seed, self.progress.step, each.number)
            with fsdp.accumulate(accelerator, network.module, last=each is batches.micro_batches[-1]):
                loss, negative_log_likelihood = network.module(*to_device(each.batch, self.device))
                loss, negative_log_likelihood = loss * each.weight, negative_log_likelihood * each.weight
                # DDP averages over processes; a sum is needed here.
                accelerator.backward(loss * (processes / batches.target_tokens))
            self.window.loss += loss.detach()
            self.window.negative_log_likelihood += negative_log_likelihood
        return True

    def _update_weights(self) -> None:
        """Clip the gradients and take an Adam step; skip it if a gradient is not finite."""
        parameters, optimizer = list(self.network.model.parameters()), self.network.optimizer
        step, fp16 = self.progress.step + 1, self.precision == "fp16"
        if fp16:
            self.accelerator.unscale_gradients()
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = fsdp.unshard(torch.nn.utils.get_total_norm(gradients))
        self.learning_rate = self.learning_rate_at(step)
        if self.skips_on_device:
            optimizer.optimizer.found_inf = norm.isfinite().logical_not().float()
        if self.skips_on_device or fp16 or math.isfinite(norm):
            if self.max_gradient_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters, self.max_gradient_norm, norm)
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate
            optimizer.step()  # with fp16 the gradient scaler skips the step itself and lowers its scale
        self.unread_norms[step] = norm

    def check_gradients(self) -> None:
        """Count and report the steps since the last call whose gradient was not finite.

        Called before a log line or a save. Raises InputError if there were too many in a row.
        """
        for step, norm in self._read_norms().items():
            self.gradient_norm, finite = norm, math.isfinite(norm)
            # The first few steps with fp16 are expected to overflow, until its scale has settled.
            if not finite and (self.precision != "fp16" or self.progress.skipped_in_a_row >= 5):
                self.say(f"step {step}: the gradient is not finite, step skipped")
            self.progress.record_gradient(finite)

    def _read_norms(self) -> dict[int, float]:
        """Return the gradient norms since the last call, by step. The wait for a GPU counts as step time."""
        started = time.perf_counter()
        unread, self.unread_norms = self.unread_norms, {}
        norms = torch.stack(list(unread.values())).tolist() if unread else []
        self.progress.seconds += time.perf_counter() - started
        return dict(zip(unread, norms, strict=True))
