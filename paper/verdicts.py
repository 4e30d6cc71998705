"""From measurements to verdicts: means, confidence intervals, verdicts and fitted exponents."""

import statistics
from collections.abc import Sequence

import torch

# 97.5 % quantiles of Student's t by degrees of freedom; above 9, 1.96 + 2.5 / degrees is at most 0.02 too low.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
HOLDS, FAILS, UNSURE = "holds", "does not hold", "inconclusive"  # the verdicts
Interval = tuple[float, float | None]  # a mean and the half-width of its 95 % interval


def estimate_mean(values: Sequence[float]) -> Interval:
    """Return the mean and the half-width of its 95 % interval (Student's t); None for a single value."""
    if len(values) < 2:
        return values[0], None
    degrees = len(values) - 1
    quantile = STUDENT.get(degrees, 1.96 + 2.5 / degrees)
    return statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


def judge(difference: Interval, expected_sign: int, margin: float = 0.0) -> str:
    """Return the verdict on whether a mean difference has the expected sign, by its 95 % interval.

    It holds if the whole interval has that sign, fails if the whole interval has the other sign, and is inconclusive
    otherwise, also without an interval (one seed).
    expected_sign: +1 or -1; 0 if the difference should lie between -margin and +margin
    """
    mean, half = difference
    if half is None:
        return UNSURE
    low, high = mean - half, mean + half
    if expected_sign == 0:
        holds, fails = -margin <= low and high <= margin, high < -margin or low > margin
    elif expected_sign > 0:
        holds, fails = low > 0, high < 0
    else:
        holds, fails = high < 0, low > 0
    return HOLDS if holds else FAILS if fails else UNSURE


def subtract(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def format_interval(interval: Interval, digits: int = 2, signed: bool = False) -> str:
    """Format a mean and its interval, as `5.21 ± 0.10`."""
    mean, half = interval
    return f"{mean:{'+' if signed else ''}.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def format_mean(values: Sequence[float], digits: int = 2, signed: bool = False) -> str:
    """Format the mean of the values and its interval."""
    return format_interval(estimate_mean(values), digits, signed)


def fit_exponents(points: Sequence[tuple[float, ...]]) -> list[float]:
    """Fit log y = c + sum of a_i log x_i to points (x_1, ..., y) by least squares; return the a_i."""
    table = torch.tensor(points, dtype=torch.float64).log()
    inputs = torch.cat((torch.ones_like(table[:, :1]), table[:, :-1]), dim=1)
    return torch.linalg.lstsq(inputs, table[:, -1:]).solution[1:, 0].tolist()
