"""training/schedule.py against Eq. (3) of the paper and the peaks that follow from it."""

import pytest

from training.recipe import load_recipe
from training.schedule import inverse_sqrt_learning_rate, learning_rate, linear_decay, paper_learning_rate


def test_the_rate_follows_section_5_3():
    for step in (1, 17, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert paper_learning_rate(step, 512, 4000) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("d_model", "warmup", "factor", "peak"),
    [(512, 4000, 1, 6.99e-4), (1024, 4000, 1, 4.94e-4), (512, 8000, 2, 9.88e-4)],  # base, big, tensor2tensor base_v3
)
def test_the_rate_peaks_at_warmup(d_model, warmup, factor, peak):
    rates = {step: paper_learning_rate(step, d_model, warmup, factor) for step in range(1, 3 * warmup)}
    assert max(rates, key=lambda step: rates[step]) == warmup
    assert rates[warmup] == pytest.approx(peak, rel=1e-3)


def test_inverse_sqrt_equals_the_paper_at_its_peak():
    peak = paper_learning_rate(4000, 512, 4000)
    for step in (1, 400, 4000, 9000):
        assert inverse_sqrt_learning_rate(step, peak, 4000) == pytest.approx(paper_learning_rate(step, 512, 4000))


def test_decay_is_linear_and_ends_at_zero():
    factors = [linear_decay(step, 10, 0.4) for step in range(1, 11)]
    assert factors == pytest.approx([1] * 7 + [0.75, 0.5, 0.25])
    assert linear_decay(11, 10, 0.4) == 0


def rate_of(step: int, total_steps: int, **keys: str) -> float:
    return learning_rate(load_recipe(None, {"warmup_steps": "10", **keys}), 512, total_steps, step)


def test_the_recipe_scales_and_decays_the_rate():
    assert rate_of(50, 60, learning_rate_factor="2") == rate_of(50, 10**6, learning_rate_factor="2")
    assert rate_of(50, 60, learning_rate_factor="2") == 2 * paper_learning_rate(50, 512, 10)
    decayed = rate_of(60, 60, learning_rate="1e-3", decay_share="0.5")
    assert decayed == pytest.approx(inverse_sqrt_learning_rate(60, 1e-3, 10) / 30)
