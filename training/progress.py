"""The progress of a run."""

import math
from dataclasses import dataclass

from vaswani_transformer.errors import InputError


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
