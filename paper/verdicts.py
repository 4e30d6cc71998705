"""From measurements to verdicts: means, confidence intervals, verdicts and fitted exponents."""

import statistics
from collections.abc import Sequence

import torch
from scipy.stats import t as student

# The verdicts on a finding of the paper.
HOLDS, FAILS, UNSURE = "reproduced", "contradicted", "not distinguishable at this budget"
Interval = tuple[float, float | None]  # a mean and the half-width of its 95 % interval


def estimate_mean(values: Sequence[float]) -> Interval:
    """Return the mean and the half-width of its 95 % interval (Student's t); None for a single value."""
    if len(values) < 2:
        return values[0], None
    quantile = float(student.ppf(0.975, len(values) - 1))
    return statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


def judge(difference: Interval, expected_sign: int, margin: float = 0.0) -> str:
    """Return the verdict on whether a mean difference has the expected sign, by its 95 % interval.

    It is reproduced if the whole interval has that sign, contradicted if the whole interval has the other sign, and not
    distinguishable otherwise, also without an interval (one seed).
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


def compare_with_control(
    samples: Sequence[Sequence[float]], control: Sequence[float], comparisons: int
) -> list[Interval]:
    """Return the difference of each sample's mean from the control's mean, with intervals for many comparisons.

    With 95 % probability, all intervals contain the true differences if there are `comparisons` of them (Bonferroni).
    The standard deviation is estimated from all samples, as if they had the same one, so two runs of each are enough.
    Without a second run of any, there are no intervals.
    """
    groups = [*samples, control]
    differences = [statistics.mean(sample) - statistics.mean(control) for sample in samples]
    degrees = sum(len(group) - 1 for group in groups)
    if degrees == 0:
        return [(difference, None) for difference in differences]
    squares = sum((value - statistics.mean(group)) ** 2 for group in groups for value in group)
    quantile = float(student.ppf(1 - 0.05 / (2 * comparisons), degrees))
    halves = [quantile * (squares / degrees * (1 / len(sample) + 1 / len(control))) ** 0.5 for sample in samples]
    return list(zip(differences, halves, strict=True))


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
