"""Check that the other side can represent the options of a checkpoint or the fields of our configuration."""

import itertools
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaswani_transformer.errors import BrokenFileError, InputError

STACKS: tuple[str, ...] = ("encoder", "decoder")
RATES = ("dropout", "attention_dropout", "activation_dropout")
MOST_REASONS = 20  # in one message: another number of layers makes hundreds of wrong tensors
MAX_LAYERS, MAX_SIZE = 1_000, 1_000_000  # far above every published model: a larger value is a damaged file


class Reasons:
    """The reasons why a model cannot be converted, collected so that one error names them all.

    A setting that the other side does not support is wrong input (exit code 2). A tensor that is missing, unexpected
    or of a wrong shape makes a broken file (exit code 3). Only a file that is missing, damaged or at odds with another
    file raises its error at once, because the model cannot be read without it.
    """

    def __init__(self, subject: str | Path):
        self.subject = subject
        self.settings: list[str] = []
        self.faults: dict[str, str] = {}  # by tensor name; faults of the whole file by themselves

    def add_setting(self, reason: str) -> None:
        """Add a setting that cannot be converted."""
        self.settings.append(reason)

    def add_fault(self, reason: str, tensor: str = "") -> None:
        """Add a fault of the file. Only the first fault of a tensor counts: one of a wrong type is not also missing."""
        self.faults.setdefault(tensor or reason, reason)

    def raise_if_any(self) -> None:
        """Raise InputError or BrokenFileError with all reasons, if there are any."""
        if self.settings or self.faults:
            kind = InputError if self.settings else BrokenFileError
            reasons = list(dict.fromkeys([*self.settings, *self.faults.values()]))
            more = f" and {len(reasons) - MOST_REASONS:,} more" if len(reasons) > MOST_REASONS else ""
            raise kind(f"{self.subject} cannot be converted: {'; '.join(reasons[:MOST_REASONS])}{more}")


class Options(dict[str, Any]):
    """The options by name. The methods add unsupported ones to `reasons`.

    as_flags: whether users know them as options of a command line: messages say `--name value`, not `name is value`
    """

    def __init__(self, values: Mapping[str, Any], reasons: Reasons, as_flags: bool = False):
        super().__init__(values)
        self.reasons, self.as_flags = reasons, as_flags

    def show(self, name: str) -> str:
        """Return the option with its value, for a message."""
        value = show_value(self.get(name))
        return f"--{name.replace('_', '-')} {value}" if self.as_flags else f"{name} is {value}"

    def require(self, supported: Mapping[str, tuple], off: str = "") -> None:
        """Check that each option has one of the values that the other side can represent, unless it is missing.

        Braces in names expand, see `expand`.

        off: names of options that must be off: False, 0, None or empty
        """
        for name in itertools.chain(*map(expand, off.split())):
            if self.get(name):
                self.reasons.add_setting(f"{self.show(name)} (not supported)")
        for pattern, values in supported.items():
            for name in expand(pattern):
                if name in self and self[name] not in values:
                    choices = " or ".join(map(show_value, dict.fromkeys(values)))
                    self.reasons.add_setting(f"{self.show(name)} (supported: {choices})")

    def require_equal(self, first: str, second: str, missing: Any = None) -> None:
        """Check that two options agree; `missing` is the value of an option that is not given."""
        values = [missing if self.get(name) is None else self[name] for name in (first, second)]
        if values[0] != values[1]:
            self.reasons.add_setting(f"{self.show(first)}, but {self.show(second)}")

    def read_norm_position(self, pattern: str, known: Mapping[tuple[str, str], str]) -> str | None:
        """Return "pre" or "post".

        pattern: the two options for the operations before and after a sub-layer, in which `d` is dropout
        known: these operations, without dropout -> the position of the norm
        """
        before, after = expand(pattern)
        order = (str(self.get(before, "")).replace("d", ""), str(self.get(after, "")).replace("d", ""))
        if order not in known:
            choices = " or ".join(f"{first!r} with {last!r}" for first, last in known)
            self.reasons.add_setting(f"{self.show(before)} with {self.show(after)} (supported: {choices})")
        return known.get(order)

    def read_sizes(self, table: Mapping[str, str]) -> dict[str, Any]:
        """Return the sizes of our configuration, which must be numbers from 1. table: see `map_fields`"""
        options = map_fields(table)
        for name in options.values():
            value, limit = self.get(name), MAX_LAYERS if "layer" in name or "depth" in name else MAX_SIZE
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
                self.reasons.add_setting(f"{self.show(name)} (supported: sizes from 1 to {limit:,})")
        return {field: self.get(name, 0) for field, name in options.items()}

    def read_rates(self, default: float, *names: str) -> dict[str, float]:
        """Return our three dropout rates: of a list with one rate for each stage of the training, the last.

        names: an option for each, or one option for all
        """
        rates = {}
        for field, name in zip(RATES, names * 3 if len(names) == 1 else names, strict=True):
            rate = self.get(name, default)
            rate = (rate[-1] if isinstance(rate, list) and rate else rate) or 0.0
            if not isinstance(rate, int | float):
                self.reasons.add_setting(f"{self.show(name)} (supported: rates from 0 to 1)")
            rates[field] = rate
        return rates

    def read_heads(self, name: str, d_model: int) -> dict[str, int]:
        """Return the fields for the number of heads, for toolkits whose other sizes follow from the tensors."""
        heads = self.get(name)
        if heads is None:
            self.reasons.add_setting(f"the configuration lacks {name}; add it: no tensor records the number of heads")
        elif not isinstance(heads, int) or heads < 1 or d_model % heads:
            self.reasons.add_setting(f"{self.show(name)}; it must divide d_model {d_model}")
        return {f"{stack}_attention_heads": self.get(name, 0) for stack in STACKS}


def show_value(value: Any) -> str:
    """Return the value for a message, shortened: YAML aliases can make it exponentially long."""
    if isinstance(value, float):
        return f"{value:g}"
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 80, 80
    return short.repr(value)


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern with braces stands for, as in a shell: `fc{1,2}` is fc1 and fc2."""
    parts = re.split(r"\{([^{}]*)\}", pattern)  # text, choices, text, ...
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def flatten_options(values: Mapping[str, Any], depth: int = 2) -> dict[str, Any]:
    """Add the paths of nested options: {"encoder": {"dropout": 0.1}} gets an item "encoder.dropout"."""
    flat = dict(values)
    for name, inside in values.items():
        if depth and isinstance(inside, Mapping):
            flat |= {f"{name}.{path}": value for path, value in flatten_options(inside, depth - 1).items()}
    return flat


def map_fields(table: Mapping[str, str]) -> dict[str, str]:
    """Return the toolkit's option for each field of our configuration.

    table: their options -> our fields, with braces, see `expand`; an option may be for both stacks

    >>> map_fields({"{enc,dec}-depth": "{encoder,decoder}_layers", "heads": "{encoder,decoder}_attention_heads"})
    {'encoder_layers': 'enc-depth', 'decoder_layers': 'dec-depth',
     'encoder_attention_heads': 'heads', 'decoder_attention_heads': 'heads'}
    """
    return {
        field: option
        for theirs, ours in table.items()
        for field, option in zip(expand(ours), expand(theirs) * 2, strict=False)
    }
