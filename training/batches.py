"""The order of training as a pure function: (seed, epoch, lengths, budget) -> batches.

A step's batch is `micro_batches` micro-batches of sentences of similar length. They do not depend on the number of
processes, and all epochs have the same number of steps, so the position of a run is one integer: the steps taken.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np


def random_words(seed: int, stream: int, count: int) -> np.ndarray:
    """Return `count` random 64-bit words that depend on (seed, stream) only; numpy keeps Philox's raw output stable."""
    return np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)


@dataclass(frozen=True)
class BatchPlan:
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


def plan_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_micro_batch: int, micro_batches_per_step: int = 1
) -> BatchPlan:
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
    return BatchPlan(
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

    def __init__(self, plan: BatchPlan, seed: int, epoch: int):
        self.plan = plan
        ordered = plan.pairs_by_length
        same_length = _length_groups(plan.source_lengths[ordered], plan.target_lengths[ordered])
        noise = random_words(seed, 2 * epoch, len(ordered))
        # Sort by (length group, noise): the group number above 40 bits of noise.
        self.pairs = ordered[np.argsort((same_length.astype(np.uint64) << np.uint64(40)) | (noise >> np.uint64(24)))]
        shuffled = np.argsort(random_words(seed, 2 * epoch + 1, plan.micro_batches_per_epoch), kind="stable")
        # Fill the last step from the front, so that all steps have the same size and no pair is left out.
        self.micro_batch_order = np.resize(shuffled, plan.steps_per_epoch * plan.micro_batches_per_step)

    def step(self, index: int) -> list[np.ndarray]:
        """Return the micro-batches of one step of the epoch, each an array of pairs (indices into the corpus)."""
        size = self.plan.micro_batches_per_step
        starts = self.plan.starts
        return [self.pairs[starts[b] : starts[b + 1]] for b in self.micro_batch_order[index * size :][:size]]


def _length_groups(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return each pair's group number; a group has equal (source, target) lengths: 0 0 0 1 1 2 ..."""
    changes = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    return np.concatenate(([0], np.cumsum(changes)))


class RunBatches:
    """The batches of a whole training run by step (from 0)."""

    def __init__(self, plan: BatchPlan, seed: int):
        self.plan = plan
        self._epoch = lru_cache(maxsize=1)(partial(Epoch, plan, seed))

    def step(self, step: int) -> list[np.ndarray]:
        number, index = divmod(step, self.plan.steps_per_epoch)
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
