"""What stops a run: a limit of the recipe, or a signal. After Ctrl-C (SIGINT), SIGTERM or SIGHUP:

1. Before the first step there is nothing to save, and the process ends at once (`default_signal_handlers` of exit.py).
2. Later, `Signals` records the signal; a second one ends the process at once. `vaswani-transformer train` forwards it
   to several processes (launch.py), and torchrun passes it on.
3. A single process abandons its step before the next micro-batch (step.py). Several finish theirs, so that they agree
   on the last step, and then on the highest reason (`agree_on_stop`).
4. The loop (train.py) saves a checkpoint, waits until it is on disk, and ends with 128 + the signal's number. A
   validation that is due takes place when the run is resumed.
"""

import os
import signal
from contextlib import AbstractContextManager
from enum import IntEnum

import torch
from torch import distributed

from vaswani_transformer.exit import signal_handlers

from .checkpoints import Progress
from .recipe import LimitSettings


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
    """Turn the first SIGTERM, SIGINT or SIGHUP into a request to save and stop; a second one ends the process."""

    received = StopReason.NONE

    def handle(self) -> AbstractContextManager[None]:
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        return signal_handlers(dict.fromkeys(numbers, self._handle))

    def _handle(self, number: int, frame: object) -> None:
        reason = StopReason[signal.Signals(number).name]
        if self.received:
            os._exit(reason.exit_code)
        self.received = reason


def limit_reached(settings: LimitSettings, total_steps: int, progress: Progress) -> bool:
    """Return whether a limit of the recipe ends the run here."""
    limits = (
        (progress.step, total_steps),
        (progress.wall_seconds / 3600, settings.max_hours),
        (progress.cpu_seconds, settings.max_cpu_seconds),
        (progress.tokens, settings.max_tokens),
        (progress.validations_since_best, settings.patience),
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
