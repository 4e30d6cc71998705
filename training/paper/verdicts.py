"""Means, confidence intervals, verdicts and fitted exponents."""

import statistics
from collections.abc import Sequence

import torch

# 97.5 % quantiles of Student's t by degrees of freedom; above, about 2 (the normal distribution has 1.96).
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
HOLDS, FAILS, UNSURE = "holds", "does not hold", "inconclusive"
Interval = tuple[float, float | None]  # a mean and the half-width of its 95 % interval


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean and the half-width of its 95 % interval (Student's t); None for a single value."""
    if len(values) < 2:
        return values[0], None
    quantile = STUDENT.get(len(values) - 1, 2.0)
    return statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


def verdict(difference: Interval, sign: int, margin: float = 0.0) -> str:
    """Return the verdict on whether a mean difference has this sign, by its 95 % interval.

    sign: +1 or -1; 0 if there should be no difference larger than `margin`
    """
    mean, half = difference
    if half is None:
        return UNSURE
    low, high = mean - half, mean + half
    if sign == 0:
        return HOLDS if -margin <= low and high <= margin else FAILS if high < -margin or low > margin else UNSURE
    if sign < 0:
        low, high = -high, -low
    return HOLDS if low > 0 else FAILS if high < 0 else UNSURE


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def plus_minus(interval: Interval, digits: int = 2, signed: bool = False) -> str:
    """Format a mean and its interval, as `5.21 ± 0.10`."""
    mean, half = interval
    return f"{mean:{'+' if signed else ''}.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def with_interval(values: Sequence[float], digits: int = 2, signed: bool = False) -> str:
    """Format the mean of the values and its interval."""
    return plus_minus(mean_interval(values), digits, signed)


def exponents(points: Sequence[tuple[float, ...]]) -> list[float]:
    """Fit log y = c + sum of a_i log x_i to points (x_1, ..., y) by least squares; return the a_i."""
    table = torch.tensor(points, dtype=torch.float64).log()
    inputs = torch.cat((torch.ones_like(table[:, :1]), table[:, :-1]), dim=1)
    return torch.linalg.lstsq(inputs, table[:, -1:]).solution[1:, 0].tolist()
