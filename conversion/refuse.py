"""All reasons why a checkpoint cannot be converted, collected and told at once, in the toolkit's own words."""

import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from vaswani_transformer.errors import BrokenFileError, InputError

MOST_LAYERS, LARGEST_SIZE = 1_000, 1_000_000  # what a configuration of ours allows


class Reasons:
    """Collects reasons; `refuse_if_any` raises them as one error.

    Options that the model does not have are the user's input (exit code 2); tensors that are missing, left over or of
    another shape than the options say are a broken file (exit code 3).
    """

    def __init__(self, what: str | Path):
        self.what = what
        self.options: list[str] = []
        self.faults: list[str] = []

    def option(self, reason: str) -> None:
        self.options.append(reason)

    def fault(self, reason: str) -> None:
        self.faults.append(reason)

    def only(self, options: Mapping[str, Any], allowed: Mapping[str, tuple], flag: str = "{} is {}") -> None:
        """Every option that is there must have one of the values that the model can represent.

        flag: how the toolkit writes an option and its value
        """
        for name, values in allowed.items():
            if name in options and options[name] not in values:
                value = shown(options[name])
                can_be = " or ".join(map(repr, dict.fromkeys(values)))
                name = name.replace("_", "-") if flag.startswith("--") else name
                self.option(flag.format(name, value) + f" (can be converted: {can_be})")

    def sizes(self, options: Mapping[str, Any], names: Iterable[str], flag: str = "{} is {}") -> None:
        """Every one of these options must be there, a number from 1 to what no model exceeds."""
        for name in names:
            value = options.get(name)
            most = MOST_LAYERS if "layer" in name or "depth" in name else LARGEST_SIZE
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                name = name.replace("_", "-") if flag.startswith("--") else name
                self.option(flag.format(name, shown(value)) + f" (a size lies between 1 and {most:,})")

    def refuse_if_any(self) -> None:
        if self.options or self.faults:
            self.refuse()

    def refuse(self) -> NoReturn:
        kind = InputError if self.options else BrokenFileError
        raise kind(f"{self.what} cannot be converted: " + "; ".join(self.options + self.faults))


def shown(value: Any) -> str:
    """A value for a message: a file can hold one whose whole representation has no end."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 80, 80
    return short.repr(value)
