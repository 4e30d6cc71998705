"""The order of training as a pure function, (seed, epoch, lengths, budget) -> batches, and the tensors of each step.

A step's batch is `micro_batches` micro-batches of sentences of similar length. They do not depend on the number of
processes, and all epochs have the same number of steps, so the position of a run is one integer: the steps taken.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from .corpus import Corpus


def random_words(seed: int, stream: int, count: int) -> np.ndarray:
    """Return `count` random 64-bit words that depend on (seed, stream) only; numpy keeps Philox's raw output stable."""
    return np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)


@dataclass(frozen=True)
class Batching:
    """How a corpus is cut into micro-batches, for all epochs.

    pairs_by_length: the pairs, shortest first; starts: where in that order each micro-batch begins, and the end.
    """

    source_lengths: np.ndarray
    target_lengths: np.ndarray
    pairs_by_length: np.ndarray
    starts: np.ndarray
    micro_batches_per_step: int

    @property
    def micro_batches_per_epoch(self) -> int:
        return len(self.starts) - 1

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.micro_batches_per_epoch // self.micro_batches_per_step)

    def padding(self) -> float:
        """Return the share of positions, source and target, that are padding."""
        rows = np.diff(self.starts)
        sides = (self.source_lengths, self.target_lengths)
        padded = sum(
            int((np.maximum.reduceat(side[self.pairs_by_length], self.starts[:-1]).astype(np.int64) * rows).sum())
            for side in sides
        )
        return 1 - sum(int(side.sum(dtype=np.int64)) for side in sides) / padded


def batch_by_length(
    source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_micro_batch: int, micro_batches_per_step: int = 1
) -> Batching:
    """Cut the pairs, ordered by length, into micro-batches of at most this many source + target positions, padded.

    lengths: (pairs,), with </s>. The order is by max(source, target), then source, then target. Among pairs
    with an even maximum the source lengths rise, among those with an odd one they fall, so that neighbouring pairs
    have similar lengths.
    """
    source, target = source_lengths.astype(np.int64), target_lengths.astype(np.int64)
    longest = np.maximum(source, target)
    if (top := int((source + target).max())) > tokens_per_micro_batch:
        raise ValueError(f"a pair of {top} tokens does not fit into a micro-batch of {tokens_per_micro_batch}")
    bits = int(longest.max()).bit_length()  # at most 21, for sentences of two million tokens: the key has 63
    falling = longest % 2 == 1
    within = (source << bits) | target
    key = (longest << 2 * bits) | np.where(falling, (1 << 2 * bits) - 1 - within, within)
    order = np.argsort(key, kind="stable").astype(np.int32 if len(source) < 1 << 31 else np.int64)
    return Batching(
        source_lengths,
        target_lengths,
        order,
        _cut(source[order], target[order], tokens_per_micro_batch),
        micro_batches_per_step,
    )


def _cut(source: np.ndarray, target: np.ndarray, budget: int) -> np.ndarray:
    """Return where micro-batches begin if each takes as many pairs as its budget of padded positions allows."""
    starts = [0]
    while (start := starts[-1]) < len(source):
        # All following pairs are at least as long on their longer side, so at most this many fit.
        most = budget // max(int(source[start]), int(target[start])) + 1
        widest = np.maximum.accumulate(source[start : start + most])
        widest = widest + np.maximum.accumulate(target[start : start + most])
        fits = widest * np.arange(1, len(widest) + 1) <= budget
        starts.append(start + (len(fits) if fits.all() else int(fits.argmin())))
    return np.array(starts, dtype=np.int64)


class Epoch:
    """The order of one epoch: pairs of equal length are shuffled, then the micro-batches."""

    def __init__(self, batching: Batching, seed: int, epoch: int):
        self.batching = batching
        ordered = batching.pairs_by_length
        same_length = _length_groups(batching.source_lengths[ordered], batching.target_lengths[ordered])
        noise = random_words(seed, 2 * epoch, len(ordered))
        # Sort by (length group, noise): the group number above 40 bits of noise.
        self.pairs = ordered[np.argsort((same_length.astype(np.uint64) << np.uint64(40)) | (noise >> np.uint64(24)))]
        shuffled = np.argsort(random_words(seed, 2 * epoch + 1, batching.micro_batches_per_epoch), kind="stable")
        # Fill the last step from the front, so that all steps have the same size and no pair is left out.
        self.micro_batch_order = np.resize(shuffled, batching.steps_per_epoch * batching.micro_batches_per_step)

    def step(self, index: int) -> list[np.ndarray]:
        """Return the micro-batches of one step of the epoch, each an array of pairs (indices into the corpus)."""
        size = self.batching.micro_batches_per_step
        starts = self.batching.starts
        return [self.pairs[starts[b] : starts[b + 1]] for b in self.micro_batch_order[index * size :][:size]]


def _length_groups(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return each pair's group number; a group has equal (source, target) lengths: 0 0 0 1 1 2 ..."""
    changes = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    return np.concatenate(([0], np.cumsum(changes)))


class RunBatches:
    """The batches of a whole training run by step (from 0)."""

    def __init__(self, batching: Batching, seed: int):
        self.batching = batching
        self._epoch = lru_cache(maxsize=1)(partial(Epoch, batching, seed))

    def step(self, step: int) -> list[np.ndarray]:
        number, index = divmod(step, self.batching.steps_per_epoch)
        return self._epoch(number).step(index)


def shares(micro_batches: list[np.ndarray], rank: int, processes: int) -> list[tuple[int, np.ndarray]]:
    """Return the share of one process: micro-batches in turn, each with its number in the step.

    With more processes than micro-batches, the pairs of each micro-batch are split between several processes, so that a
    step has the same pairs for any number of processes. All processes get the same number of parts, because with FSDP
    they compute together; a part may be empty.
    """
    parts = -(-processes // len(micro_batches))
    if parts > 1:
        micro_batches = [pairs[part::parts] for pairs in micro_batches for part in range(parts)]
    missing = -len(micro_batches) % processes
    return list(enumerate([*micro_batches, *[micro_batches[0][:0]] * missing]))[rank::processes]


# ---- tensors -----------------------------------------------------------------------------------------------------


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


def to_device(batch: Batch, device: torch.device) -> Batch:
    return tuple(t if t is None else t.to(device, non_blocking=True) for t in batch)


def own_micro_batches(
    corpus: Corpus, batches: list[np.ndarray], config: Any, accelerator: Accelerator
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of this process.

    config: the model's, for its token ids
    Collective operations need every process: a process without pairs computes a dummy pair with weight 0.
    """
    for number, pairs in shares(batches, accelerator.process_index, accelerator.num_processes):
        chosen = pairs if len(pairs) else batches[0][:1]
        yield MicroBatch(number, make_batch(corpus, chosen, config, accelerator.device), float(len(pairs) > 0))


class InputPipeline:
    """Builds the batches of one step ahead, in a background thread.

    A step's pairs depend only on seed and step, so prefetching changes no result.
    """

    def __init__(self, corpus: Corpus, batches: RunBatches, total_steps: int, config: Any, accelerator: Accelerator):
        """config: the model's, for its token ids"""
        self.corpus, self.batches, self.total_steps = corpus, batches, total_steps
        self.config, self.accelerator = config, accelerator
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="input")
        self.ahead: tuple[int, Future[StepBatches]] | None = None

    def take(self, step: int) -> StepBatches:
        """Return the batches of a step (from 0), and start building those of the next one."""
        if self.ahead is None or self.ahead[0] != step:
            self.ahead = step, self.executor.submit(self.build, step)
        batches = self.ahead[1].result()
        self.ahead = None
        if step + 1 < self.total_steps:
            self.ahead = step + 1, self.executor.submit(self.build, step + 1)
        return batches

    def close(self) -> None:
        self.executor.shutdown(cancel_futures=True)

    def build(self, step: int) -> StepBatches:
        corpus, batches = self.corpus, self.batches.step(step)
        pairs = np.concatenate(batches)
        return StepBatches(
            list(own_micro_batches(corpus, batches, self.config, self.accelerator)),
            source_tokens=int(corpus.source_lengths[pairs].sum(dtype=np.int64)),
            target_tokens=int(corpus.target_lengths[pairs].sum(dtype=np.int64)),
        )
