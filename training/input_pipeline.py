"""Builds the batches of the next step in a background thread.

A step's pairs depend only on seed and step (batches.py), so prefetching changes no result.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .batches import shares
from .corpus import Corpus
from .prepare import Prepared

Batch = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class MicroBatch:
    number: int  # within the step
    batch: Batch
    weight: float  # 0 for a dummy pair


@dataclass(frozen=True)
class StepBatches:
    micro_batches: list[MicroBatch]  # of this process
    source_tokens: int  # of all processes
    target_tokens: int


def make_batch(corpus: Corpus, pairs: np.ndarray, config: Any, device: torch.device) -> Batch:
    """Return the arguments of TrainingLoss.forward for some pairs of a corpus.

    The tensors stay on the CPU, pinned if the device is a GPU: only pinned memory can be copied asynchronously.
    """
    source, source_real = corpus.sources(pairs, config.pad_token_id)
    target, target_real = corpus.targets(pairs, config.pad_token_id)
    shifted = np.empty_like(target)
    shifted[:, 0] = config.decoder_start_token_id
    shifted[:, 1:] = target[:, :-1]
    positions = np.flatnonzero(target_real)
    mask = None if source_real.all() else source_real.astype(np.int64)
    arrays = (source, mask, shifted, positions, target.reshape(-1)[positions])
    tensors = [None if a is None else torch.from_numpy(a) for a in arrays]
    return tuple(t if t is None or device.type != "cuda" else t.pin_memory() for t in tensors)


def on_device(batch: Batch, device: torch.device) -> Batch:
    return tuple(t if t is None else t.to(device, non_blocking=True) for t in batch)


def own_micro_batches(prepared: Prepared, corpus: Corpus, batches: list[np.ndarray]) -> Iterator[MicroBatch]:
    """Yield the micro-batches of this process.

    Collective operations need every process: a process without pairs computes a dummy pair with weight 0.
    """
    accelerator = prepared.accelerator
    for number, pairs in shares(batches, accelerator.process_index, accelerator.num_processes):
        chosen = pairs if len(pairs) else batches[0][:1]
        yield MicroBatch(number, make_batch(corpus, chosen, prepared.config, accelerator.device), float(len(pairs) > 0))


class InputPipeline:
    """Builds the batches of one step ahead."""

    def __init__(self, prepared: Prepared):
        self.prepared = prepared
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="input")
        self.ahead: tuple[int, Future[StepBatches]] | None = None

    def take(self, step: int) -> StepBatches:
        """Return the batches of a step (from 0), and start building those of the next one."""
        if self.ahead is None or self.ahead[0] != step:
            self.ahead = step, self.executor.submit(self.build, step)
        batches = self.ahead[1].result()
        self.ahead = None
        if step + 1 < self.prepared.total_steps:
            self.ahead = step + 1, self.executor.submit(self.build, step + 1)
        return batches

    def close(self) -> None:
        self.executor.shutdown(cancel_futures=True)

    def build(self, step: int) -> StepBatches:
        corpus, batches = self.prepared.text.training, self.prepared.batches.step(step)
        pairs = np.concatenate(batches)
        return StepBatches(
            list(own_micro_batches(self.prepared, corpus, batches)),
            source_tokens=int(corpus.source_lengths[pairs].sum(dtype=np.int64)),
            target_tokens=int(corpus.target_lengths[pairs].sum(dtype=np.int64)),
        )
