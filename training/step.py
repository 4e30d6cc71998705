"""One step of section 5: micro-batches, gradients, Adam."""

import math
import time
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch

from . import fsdp, machine
from .batches import shares
from .corpus import Corpus
from .metrics import Window
from .prepare import Prepared
from .progress import Progress, Signals
from .schedule import learning_rate


def make_batch(corpus: Corpus, pairs: np.ndarray, config: Any, device: torch.device) -> tuple[torch.Tensor | None, ...]:
    """Return the arguments of TrainingLoss.forward for some pairs of a corpus."""
    pad = cast(int, config.pad_token_id)
    source, source_real = corpus.sources(pairs, pad)
    target, target_real = corpus.targets(pairs, pad)
    shifted = np.empty_like(target)
    shifted[:, 0] = config.decoder_start_token_id
    shifted[:, 1:] = target[:, :-1]
    positions = np.flatnonzero(target_real)
    mask = None if source_real.all() else source_real.astype(np.int64)
    arrays = (source, mask, shifted, positions, target.reshape(-1)[positions])
    tensors = [None if a is None else torch.from_numpy(a) for a in arrays]
    if device.type == "cuda":  # copies are asynchronous only from pinned memory
        tensors = [t if t is None else t.pin_memory() for t in tensors]
    return tuple(t if t is None else t.to(device, non_blocking=True) for t in tensors)


class Stepper:
    """Takes steps and counts them in `progress`; adds losses and tokens to `window`."""

    def __init__(self, prepared: Prepared, progress: Progress, window: Window, signals: Signals):
        self.prepared, self.progress, self.window, self.signals = prepared, progress, window, signals
        self.rate = 0.0
        self.gradient_norm = 0.0

    def settle_buckets(self) -> None:
        """Run a dummy backward pass so that DDP fixes its bucket order; otherwise resumed runs differ in the last bits.

        DDP rebuilds its buckets after the first backward pass of a process. From three processes on, the order of the
        buckets changes the rounding of the sums.
        """
        prepared, accelerator = self.prepared, self.prepared.accelerator
        if accelerator.num_processes == 1 or fsdp.is_sharded(prepared.module):
            return
        prepared.module.train()
        # The same pair twice: torch.compile specialises on batches of one.
        loss, _ = prepared.module(*self._batch(np.array([0, 0])))
        accelerator.backward(loss * 0)
        prepared.optimizer.zero_grad(set_to_none=True)

    def step(self) -> bool:
        """Take one step. Returns False if a signal arrived before its last micro-batch."""
        prepared, progress = self.prepared, self.progress
        started, cpu_started = time.perf_counter(), time.process_time()
        micro_batches = prepared.order.step(progress.step)
        pairs = np.concatenate(micro_batches)
        target_tokens = int(prepared.corpus.target_lengths[pairs].sum(dtype=np.int64))
        source_tokens = int(prepared.corpus.source_lengths[pairs].sum(dtype=np.int64))
        if not self._compute_gradients(micro_batches, pairs, target_tokens):
            return False
        self._update_weights()
        progress.step += 1
        progress.tokens += source_tokens + target_tokens
        progress.seconds += time.perf_counter() - started
        progress.cpu_seconds += (time.process_time() - cpu_started) * prepared.accelerator.num_processes
        self.window.add_tokens(source_tokens, target_tokens)
        return True

    def _compute_gradients(self, micro_batches: list[np.ndarray], pairs: np.ndarray, target_tokens: int) -> bool:
        """Accumulate the gradient of the mean loss over all target tokens of the step."""
        prepared, accelerator = self.prepared, self.prepared.accelerator
        processes = accelerator.num_processes
        mine = shares(micro_batches, accelerator.process_index, processes)
        prepared.module.train()
        prepared.optimizer.zero_grad(set_to_none=True)
        for number, part in mine:
            if self.signals.received and processes == 1:
                return False
            # Randomness depends on the position alone: there is no generator state to save, and it is the same for any
            # number of processes as long as no micro-batch is divided between them.
            machine.seed_everything(prepared.recipe.seed, self.progress.step, number)
            last = number == mine[-1][0]
            # All processes must compute together: one without a sentence computes any pair with weight 0.
            batch, weight = (part, 1.0) if len(part) else (pairs[:1], 0.0)
            fsdp.synchronise_gradients(prepared.module, last)
            with nullcontext() if last else accelerator.no_sync(prepared.module):
                loss, negative_log_likelihood = prepared.module(*self._batch(batch))
                loss, negative_log_likelihood = loss * weight, negative_log_likelihood * weight
                # DDP averages over processes; a sum is needed here.
                accelerator.backward(loss * (processes / target_tokens))
            self.window.add_losses(loss.detach(), negative_log_likelihood)
        return True

    def _update_weights(self) -> None:
        """Clip the gradients and let Adam step; NaN and infinity never reach the weights."""
        prepared, recipe, progress = self.prepared, self.prepared.recipe, self.progress
        fp16 = prepared.accelerator.mixed_precision == "fp16"
        if fp16:
            prepared.accelerator.unscale_gradients()
        gradients = [p.grad for p in prepared.model.parameters() if p.grad is not None]
        norm = fsdp.unsharded(torch.nn.utils.get_total_norm(gradients))
        self.gradient_norm = float(norm)
        self.rate = learning_rate(
            progress.step + 1,
            d_model=prepared.config.d_model,
            warmup_steps=recipe.warmup_steps,
            factor=recipe.learning_rate_factor,
            peak=recipe.learning_rate,
            total_steps=prepared.total_steps,
            decay_share=recipe.decay_share,
        )
        finite = math.isfinite(self.gradient_norm)
        if finite or fp16:
            if recipe.max_gradient_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(prepared.model.parameters(), recipe.max_gradient_norm, norm)
            for group in prepared.optimizer.param_groups:
                group["lr"] = self.rate
            prepared.optimizer.step()  # with fp16 the gradient scaler skips the step itself and lowers its scale
        # The first few steps with fp16 are expected to overflow, until its scale has settled.
        if not finite and (not fp16 or progress.skipped_in_a_row >= 5):
            prepared.reporter.say(f"step {progress.step + 1}: the gradient is not finite, step skipped")
        progress.count_gradient(finite, recipe.max_bad_steps)

    def _batch(self, pairs: np.ndarray) -> tuple[torch.Tensor | None, ...]:
        prepared = self.prepared
        return make_batch(prepared.corpus, pairs, prepared.config, prepared.accelerator.device)
