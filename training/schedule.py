"""The number of steps of a run, and the learning rate as a function of the step (section 5.3)."""

import math

from .recipe import LimitSettings, OptimizerSettings


def total_steps(settings: LimitSettings, steps_per_epoch: int) -> int:
    """Return the number of steps of the run: the smaller of max_steps and the steps of max_epochs."""
    limits = [settings.max_steps]
    if settings.max_epochs is not None:
        limits.append(max(1, math.ceil(settings.max_epochs * steps_per_epoch)))
    return min(limit for limit in limits if limit is not None)


def paper_learning_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Return d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), Eq. (3), times a factor (the paper: 1).

    step counts from 1. The batch size does not enter. tensor2tensor's base_v3 is factor 2 with 8000 warm-up steps.
    """
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def inverse_sqrt_learning_rate(step: int, peak: float, warmup_steps: int) -> float:
    """Return the shape of Eq. (3) with a given peak: linear until warmup_steps, then proportional to step^-0.5."""
    return peak * min(step / warmup_steps, (warmup_steps / step) ** 0.5)


def linear_decay(step: int, total_steps: int, decay_share: float) -> float:
    """Return the decay factor of a step: 1, then falling linearly over the last `decay_share` of the run.

    It reaches 0 one step after the end. Not in the paper, whose runs end before the rate is low.
    """
    decaying = decay_share * total_steps
    left = total_steps + 1 - step
    return 1.0 if left >= decaying else max(left, 0) / decaying


def learning_rate(settings: OptimizerSettings, d_model: int, total_steps: int, step: int) -> float:
    """Return the rate of a step (from 1). It depends on its arguments only, so that resuming needs no state.

    settings: a recipe's `learning_rate` replaces Eq. (3) by its shape with this peak; the other keys change either
    """
    if settings.learning_rate is None:
        rate = paper_learning_rate(step, d_model, settings.warmup_steps, settings.learning_rate_factor)
    else:
        rate = inverse_sqrt_learning_rate(step, settings.learning_rate, settings.warmup_steps)
    return rate * linear_decay(step, total_steps, settings.decay_share) if settings.decay_share else rate
