"""Progress of a run, its limits, and stop signals."""

import math
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import distributed

from vaswani_transformer.errors import InputError

from .recipe import Recipe


@dataclass
class Progress:
    """Everything a checkpoint holds besides weights and moments."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # spent in steps
    cpu_seconds: float = 0.0  # spent in steps, of all processes
    wall_seconds: float = 0.0  # validation, checkpoints and preparation included
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    validated_step: int = 0
    validations_since_best: int = 0

    def record_gradient(self, step: int, finite: bool, limit: int) -> None:
        """Record whether the gradient of a step was finite. Raises InputError after `limit` non-finite ones in a row.

        step: counted from 1
        """
        if finite:
            self.skipped_in_a_row = 0
            return
        self.skipped_steps += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= limit:
            raise InputError(
                f"{self.skipped_in_a_row} steps in a row had a loss or gradient that is not finite, up to step "
                f"{step}; try a lower learning rate or a longer warm-up. The last checkpoint is intact"
            )

    def record_validation(self, loss: float) -> None:
        if math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            self.best_loss, self.best_step, self.validations_since_best = loss, self.step, 0
        else:
            self.validations_since_best += 1
        self.validated_step = self.step


class StopReason(IntEnum):
    """Why a run stops, by priority: when processes disagree, the largest value counts."""

    NONE = 0
    LIMIT = 1
    SIGHUP = 2  # a lost terminal
    SIGINT = 3
    SIGTERM = 4

    @property
    def is_signal(self) -> bool:
        return self > StopReason.LIMIT

    @property
    def exit_code(self) -> int:
        """The exit code that shells report for a signal."""
        return 128 + signal.Signals[self.name]


class Signals:
    """Turn the first SIGTERM, SIGINT or SIGHUP into a request to save and stop; a second one ends the process at once.

    A single process abandons its step before the next micro-batch; several processes finish theirs, so that they agree
    on the last step.
    """

    received = StopReason.NONE

    def handle(self) -> AbstractContextManager[None]:
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        return _handlers(dict.fromkeys(numbers, self._handle))

    def _handle(self, number: int, frame: object) -> None:
        reason = StopReason[signal.Signals(number).name]
        if self.received:
            os._exit(reason.exit_code)
        self.received = reason


def default_signal_handlers() -> AbstractContextManager[None]:
    """Restore the default handlers while the text is read.

    The tokenizers library swallows exceptions raised in Python handlers.
    """
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return _handlers({n: signal.SIG_DFL for n in numbers if signal.getsignal(n) is not signal.SIG_IGN})  # nohup


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def limit_reached(recipe: Recipe, total_steps: int, progress: Progress) -> bool:
    """Return whether a limit of the recipe ends the run here."""
    limits = (
        (progress.step, total_steps),
        (progress.wall_seconds / 3600, recipe.max_hours),
        (progress.cpu_seconds, recipe.max_cpu_seconds),
        (progress.tokens, recipe.max_tokens),
        (progress.validations_since_best, recipe.patience),
    )
    return any(limit is not None and value >= limit for value, limit in limits)


def agree_on_stop(reason: StopReason, group: distributed.ProcessGroup | None) -> StopReason:
    """Return the highest-priority stop reason of all processes.

    group: a gloo group, which does not synchronise with the GPU; None for a single process
    """
    if group is None:
        return reason
    reasons = torch.tensor([reason])
    distributed.all_reduce(reasons, op=distributed.ReduceOp.MAX, group=group)
    return StopReason(int(reasons.item()))
