"""Check that the other side can represent the options of a checkpoint or the fields of our configuration."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from .reasons import Reasons, shown
from .rename import STACKS, expand

RATES = ("dropout", "attention_dropout", "activation_dropout")
MAX_LAYERS, MAX_SIZE = 1_000, 1_000_000  # far above every published model: a larger value is a damaged file


class Options(dict[str, Any]):
    """The options by name. The methods add unsupported ones to `reasons`.

    written: the format of an option and its value in messages; if it begins with `--`, names are written with hyphens
    """

    def __init__(self, values: Mapping[str, Any], reasons: Reasons, written: str = "{} is {}"):
        super().__init__(values)
        self.reasons, self.written = reasons, written

    def show(self, name: str) -> str:
        """Return the option with its value, for a message."""
        flag = name.replace("_", "-") if self.written.startswith("--") else name
        return self.written.format(flag, shown(self.get(name)))

    def require(self, supported: Mapping[str, tuple], off: str = "") -> None:
        """Check that each option has one of the values that the other side can represent, unless it is missing.

        Braces in names expand as in rename.py.

        off: names of options that must be off: False, 0, None or empty
        """
        for name in itertools.chain(*map(expand, off.split())):
            if self.get(name):
                self.reasons.unsupported(f"{self.show(name)} (not supported)")
        for pattern, values in supported.items():
            for name in expand(pattern):
                if name in self and self[name] not in values:
                    choices = " or ".join(map(shown, dict.fromkeys(values)))
                    self.reasons.unsupported(f"{self.show(name)} (supported: {choices})")

    def require_equal(self, first: str, second: str, missing: Any = None) -> None:
        """Check that two options agree; `missing` is the value of an option that is not given."""
        values = [missing if self.get(name) is None else self[name] for name in (first, second)]
        if values[0] != values[1]:
            self.reasons.unsupported(f"{self.show(first)} and {self.show(second)} differ")

    def norm_position(self, pattern: str, known: Mapping[tuple[str, str], str]) -> str | None:
        """Return "pre" or "post".

        pattern: the two options for the operations before and after a sub-layer, in which `d` is dropout
        known: these operations, without dropout -> the position of the norm
        """
        before, after = expand(pattern)
        order = (str(self.get(before, "")).replace("d", ""), str(self.get(after, "")).replace("d", ""))
        if order not in known:
            choices = " or ".join(f"{first!r} with {last!r}" for first, last in known)
            self.reasons.unsupported(f"{self.show(before)} with {self.show(after)} (supported: {choices})")
        return known.get(order)

    def sizes(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the sizes of our configuration, which must be numbers from 1. names: see `size_names`"""
        options = size_names(names)
        for name in options.values():
            value, limit = self.get(name), MAX_LAYERS if "layer" in name or "depth" in name else MAX_SIZE
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
                self.reasons.unsupported(f"{self.show(name)} (supported: sizes from 1 to {limit:,})")
        return {field: self.get(name, 0) for field, name in options.items()}

    def rates(self, default: float, *names: str) -> dict[str, float]:
        """Return our three dropout rates. names: an option for each, or one option for all"""
        options = zip(RATES, names * 3 if len(names) == 1 else names, strict=True)
        return {field: float(self.get(name, default) or 0) for field, name in options}

    def heads(self, name: str, d_model: int) -> dict[str, int]:
        """Return the fields for the number of heads, for toolkits whose other sizes follow from the tensors."""
        heads = self.get(name)
        if not isinstance(heads, int) or heads < 1 or d_model % heads:
            self.reasons.unsupported(f"{self.show(name)}; it must divide d_model {d_model}")
        return {f"{stack}_attention_heads": self.get(name, 0) for stack in STACKS}


def flattened(values: Mapping[str, Any], depth: int = 2) -> dict[str, Any]:
    """Add the paths of nested options: {"encoder": {"dropout": 0.1}} gets an item "encoder.dropout"."""
    flat = dict(values)
    for name, inside in values.items():
        if depth and isinstance(inside, Mapping):
            flat |= {f"{name}.{path}": value for path, value in flattened(inside, depth - 1).items()}
    return flat


def size_names(names: Sequence[str]) -> dict[str, str]:
    """Return our fields for sizes -> a toolkit's options.

    names: the options for d_model, layers, attention heads and d_ff. `{stack}` stands for encoder and decoder,
    `{stack:.3}` for enc and dec
    """
    d_model, *others = names
    return {"d_model": d_model} | {
        f"{stack}_{size}": name.format(stack=stack)
        for stack in STACKS
        for size, name in zip(("layers", "attention_heads", "ffn_dim"), others, strict=True)
    }
