"""Two-way rules between a toolkit's names of tensors and ours.

A rule is a pair of names, with `{n}` for the number of the layer. The same list reads a checkpoint and writes one, so
that a round trip is a test. What is more than a renaming (fused matrices, folds) is code in the toolkit's own file.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .refuse import Reasons


@dataclass(frozen=True)
class Rule:
    """theirs: the toolkit's name; ours: the name in our state dict.

    transposed: the toolkit stores the matrix as (in, out).  row: it stores the vector as (1, size)
    """

    theirs: str
    ours: str
    transposed: bool = False
    row: bool = False

    def read(self, tensor: Tensor) -> Tensor:
        if self.row:
            return tensor.reshape(-1)
        return tensor.T if self.transposed else tensor

    def write(self, tensor: Tensor) -> Tensor:
        if self.row:
            return tensor.reshape(1, -1)
        return tensor.T if self.transposed else tensor

    def of_layer(self, n: int, first: int = 0) -> "Rule":
        """The rule for our layer `n`, whose number is n + `first` in the toolkit."""
        return Rule(
            self.theirs.replace("{n}", str(n + first)), self.ours.replace("{n}", str(n)), self.transposed, self.row
        )


def with_bias(theirs: str, ours: str) -> list[Rule]:
    """The rules of a linear layer or a LayerNorm: `.weight` and `.bias`."""
    return [Rule(f"{theirs}.{part}", f"{ours}.{part}") for part in ("weight", "bias")]


def for_layers(rules: Iterable[Rule], layers: int, first: int = 0) -> list[Rule]:
    """The rules once for each layer; `first`: the toolkit's number of the first one."""
    rules = list(rules)
    return [rule.of_layer(n, first) for n in range(layers) for rule in rules]


class Tensors:
    """A checkpoint's tensors, of which each must be taken exactly once.

    What is no matrix of numbers in memory of its own is a fault: a file may say anything of sizes and types.
    """

    def __init__(self, tensors: Mapping[str, Any], reasons: Reasons):
        self.left: dict[str, Tensor] = {}
        self.reasons = reasons
        for name, tensor in tensors.items():
            fault = fault_of(tensor)
            if fault is None:
                self.left[str(name)] = tensor
            else:
                reasons.fault(f"tensor {name} is {fault}")

    def __contains__(self, name: str) -> bool:
        return name in self.left

    def take(self, name: str, *shape: int | None) -> Tensor | None:
        """The tensor; where it is missing or has another shape, None, and the reason is kept. None: any size."""
        tensor = self.left.pop(name, None)
        if tensor is None:
            if not any(fault.startswith(f"tensor {name} is ") for fault in self.reasons.faults):
                self.reasons.fault(f"tensor {name} is missing")
            return None
        if not tensor.is_floating_point():
            self.reasons.fault(f"tensor {name} has numbers of type {str(tensor.dtype).removeprefix('torch.')}")
            return None
        if shape and not (
            tensor.dim() == len(shape)
            and all(s is None or s == size for s, size in zip(shape, tensor.shape, strict=True))
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            self.reasons.fault(f"tensor {name} has shape {tuple(tensor.shape)}, the options say ({wanted})")
            return None
        return tensor

    def rename(self, rules: Iterable[Rule], ours: dict[str, Tensor]) -> None:
        """Move the tensors of the rules over to `ours`."""
        for rule in rules:
            tensor = self.take(rule.theirs)
            if tensor is not None:
                ours[rule.ours] = rule.read(tensor)

    def ignore(self, *patterns: str) -> None:
        """Tensors that carry no weights: buffers, counters, stale copies. Whole names, as regular expressions."""
        for name in [name for name in self.left if any(re.fullmatch(pattern, name) for pattern in patterns)]:
            del self.left[name]

    def nothing_may_be_left(self) -> None:
        for name in self.left:
            self.reasons.fault(f"tensor {name} has no place in the model")


def fault_of(tensor: Any) -> str | None:
    """Why something cannot be a weight; None: it can."""
    if not torch.is_tensor(tensor):
        return f"a {type(tensor).__name__}"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "sparse or quantised"
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return f"of shape {tuple(tensor.shape)}, more than its file holds"
    return None


def write(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the toolkit's names."""
    return {rule.theirs: rule.write(ours[rule.ours]).contiguous() for rule in rules}
