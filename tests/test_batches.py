"""training/batches.py: the order of training is deterministic, and batches have little padding."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.batches import Epoch, RunBatches, batch_by_length, shares

lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=200)


def sides(pairs):
    array = np.array(pairs, dtype=np.int32)
    return array[:, 0], array[:, 1]


def normal_lengths(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths distributed like those of image captions: target and source differ by a few tokens."""
    generator = np.random.default_rng(0)
    source = np.maximum(2, generator.normal(15, 5, count)).astype(np.int32)
    target = np.maximum(2, source + generator.normal(1, 3, count)).astype(np.int32)
    return source, target


@settings(max_examples=100, deadline=None)
@given(lengths, st.integers(60, 300), st.integers(1, 4), st.integers(0, 5))
def test_epochs_cover_every_pair_within_the_budget(pairs, budget, group, epoch):
    source, target = sides(pairs)
    batching = batch_by_length(source, target, budget, group)
    order = Epoch(batching, seed=3, epoch=epoch)
    batches = [batch for i in range(batching.steps_per_epoch) for batch in order.step(i)]
    assert len(batches) == batching.steps_per_epoch * group
    for batch in batches:
        assert (source[batch].max() + target[batch].max()) * len(batch) <= budget
    once = batches[: batching.micro_batches_per_epoch]
    assert sorted(np.concatenate(once).tolist()) == list(range(len(pairs)))
    # The last step is filled with the first batches of the epoch.
    for extra, batch in zip(
        batches[batching.micro_batches_per_epoch :],
        np.resize(np.arange(batching.micro_batches_per_epoch), group),
        strict=False,
    ):
        np.testing.assert_array_equal(extra, batches[batch])


@pytest.mark.parametrize("budget", [40, 45])
def test_micro_batches_are_filled(budget):
    batching = batch_by_length(
        np.full(10, 4, np.int32), np.full(10, 6, np.int32), budget
    )  # 4 pairs of 4 + 6 tokens fit
    assert np.diff(batching.starts).tolist() == [4, 4, 2]


def test_the_order_of_access_does_not_change_batches():
    source, target = normal_lengths(3000)
    batching = batch_by_length(source, target, 500, 4)
    forwards, jumping = RunBatches(batching, seed=1), RunBatches(batching, seed=1)
    taken = [forwards.step(i) for i in range(3 * batching.steps_per_epoch)]
    for step in (2 * batching.steps_per_epoch + 1, 0, len(taken) - 1, batching.steps_per_epoch):
        for ours, theirs in zip(jumping.step(step), taken[step], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_epochs_and_seeds_change_order_and_batches():
    source, target = normal_lengths(3000)
    batching = batch_by_length(source, target, 500)

    def companies(seed, epoch):
        order = Epoch(batching, seed, epoch)
        return [tuple(sorted(batch)) for i in range(batching.steps_per_epoch) for batch in order.step(i)]

    first = companies(1, 0)
    for other in (companies(1, 1), companies(2, 0)):
        assert len(set(first) & set(other)) < 0.3 * len(first)
    orders = [Epoch(batching, seed, epoch).micro_batch_order.tolist() for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    assert orders[0] not in orders[1:]
    # The lengths of consecutive steps are uncorrelated.
    longest = [max(source[list(batch)].max(), target[list(batch)].max()) for batch in first]
    assert abs(np.corrcoef(longest[:-1], longest[1:])[0, 1]) < 0.2


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 9))
def test_any_number_of_processes_can_share_a_step(sizes, processes):
    starts = np.cumsum([0, *sizes])
    batches = [np.arange(a, b) for a, b in itertools.pairwise(starts)]
    work = [shares(batches, rank, processes) for rank in range(processes)]
    assert len({len(share) for share in work}) == 1 and all(work)
    assert sorted(np.concatenate([part for share in work for _, part in share])) == list(range(starts[-1]))
    if len(batches) % processes == 0:
        assert {len(share) for share in work} == {len(batches) // processes}
    numbers = [number for share in work for number, _ in share]
    assert len(set(numbers)) == len(numbers)  # Each part has its own random seed.


def test_padding_is_below_five_percent_at_4096_tokens():
    source, target = normal_lengths(29_000)
    batching = batch_by_length(source, target, 4096)
    order = Epoch(batching, 1, 0)
    real = padded = 0
    for i in range(batching.steps_per_epoch):
        (batch,) = order.step(i)
        real += int(source[batch].sum() + target[batch].sum())
        padded += len(batch) * int(source[batch].max() + target[batch].max())
    assert 1 - real / padded == pytest.approx(batching.padding())
    assert batching.padding() < 0.05


def test_a_pair_larger_than_the_budget_is_refused():
    with pytest.raises(ValueError, match="70 tokens does not fit into a micro-batch of 64"):
        batch_by_length(np.array([3, 40]), np.array([4, 30]), 64)
