"""Collect the reasons why a model cannot be converted, so that one error names them all."""

import reprlib
from pathlib import Path
from typing import Any

from vaswani_transformer.errors import BrokenFileError, InputError


class Reasons:
    """Reasons why a model cannot be converted.

    A setting that the other side does not support is wrong input (exit code 2). A tensor that is missing, unexpected
    or of a wrong shape makes a broken file (exit code 3).
    """

    def __init__(self, subject: str | Path):
        self.subject = subject
        self.settings: list[str] = []
        self.faults: dict[str, str] = {}  # by tensor name; faults of the whole file by themselves

    def unsupported(self, reason: str) -> None:
        """Add a setting that cannot be converted."""
        self.settings.append(reason)

    def broken(self, reason: str, tensor: str = "") -> None:
        """Add a fault of the file. Only the first fault of a tensor counts: one of a wrong type is not also missing."""
        self.faults.setdefault(tensor or reason, reason)

    def raise_if_any(self) -> None:
        """Raise InputError or BrokenFileError with all reasons, if there are any."""
        if self.settings or self.faults:
            kind = InputError if self.settings else BrokenFileError
            reasons = "; ".join(dict.fromkeys([*self.settings, *self.faults.values()]))
            raise kind(f"{self.subject} cannot be converted: {reasons}")


def shown(value: Any) -> str:
    """Return the value for a message, shortened: YAML aliases can make it exponentially long."""
    if isinstance(value, float):
        return f"{value:g}"
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 80, 80
    return short.repr(value)
