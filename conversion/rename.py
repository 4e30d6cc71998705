"""Rules that map a toolkit's names of tensors to ours, for reading and for writing a checkpoint.

A table maps names to names. Braces stand for several names, as in a shell: `fc{1,2}.{weight,bias}` are four. `{n}` is
the number of the layer.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .reasons import Reasons

STACKS = ("encoder", "decoder")


@dataclass(frozen=True)
class Rule:
    """A tensor's names in the toolkit's checkpoint (theirs) and in our state dict (ours).

    transposed: the toolkit stores matrices as (in, out) and, if it is Marian, vectors as (1, size)
    """

    theirs: str
    ours: str
    transposed: bool = False

    @property
    def is_vector(self) -> bool:
        return self.ours.endswith("bias") or "norm." in self.ours

    def to_ours(self, tensor: Tensor) -> Tensor:
        if self.is_vector:
            return tensor.reshape(-1)
        return tensor.T if self.transposed else tensor

    def to_theirs(self, tensor: Tensor) -> Tensor:
        if not self.transposed:
            return tensor
        return tensor.reshape(1, -1) if self.is_vector else tensor.T


def rules_of(names: Mapping[str, str], transposed: bool = False) -> list[Rule]:
    """Return the rules of a table: the toolkit's names -> ours."""
    return [
        Rule(theirs, ours, transposed)
        for pattern, our_pattern in names.items()
        for theirs, ours in zip(expand(pattern), expand(our_pattern), strict=True)
    ]


def stack_rules(
    config: Mapping[str, Any],
    theirs: str | Mapping[str, str],
    names: Mapping[str, Any],
    final: str = "",
    first: int = 0,
    transposed: bool = False,
) -> list[Rule]:
    """Return the rules of the layers of both stacks and, where the model has them, of the final norms.

    theirs: the toolkit's prefix of the names inside a layer, with `{stack}` and `{n}`; or a prefix for each stack
    names: the table of names inside a layer, or a table for each stack; the encoder skips cross-attention
    final: the toolkit's names of a final norm, with `{stack}`
    first: the toolkit's number of the first layer
    transposed: see `Rule`
    """
    rules = []
    for stack in STACKS:
        prefix = theirs if isinstance(theirs, str) else theirs[stack]
        inside = rules_of(names.get(stack, names), transposed)
        if stack == "encoder":
            inside = [rule for rule in inside if not rule.ours.startswith("cross_attn")]
        for n in range(config[f"{stack}_layers"]):
            before, ours = prefix.format(stack=stack, n=n + first), f"model.{stack}.layers.{n}."
            rules += [replace(rule, theirs=before + rule.theirs, ours=ours + rule.ours) for rule in inside]
        if final and config.get(f"{stack}_final_norm", config.get("norm_position") == "pre"):
            norm = f"model.{stack}.final_norm.{{weight,bias}}"
            rules += rules_of({final.replace("{stack}", stack): norm}, transposed)
    return rules


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern with braces stands for."""
    parts = re.split(r"\{([^{}]*,[^{}]*)\}", pattern)  # text, choices, text, ...
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def first_present(tensors: Mapping[str, Any], *names: str) -> str:
    """Return the first name that is in the checkpoint, or the first of all, which is then reported as missing."""
    return next((name for name in names if name in tensors), names[0])


def stack_sizes(tensors: Mapping[str, Tensor], fc1: str) -> dict[str, int]:
    """Return the layers and d_ff of stacks whose tensors are called `{stack}.layers.{n}....`.

    fc1: the name of a matrix (d_ff, d_model) in a layer
    """
    sizes = {}
    for stack in STACKS:
        names = [name for name in tensors if name.startswith(f"{stack}.layers.")]
        sizes[f"{stack}_layers"] = len({name.split(".")[2] for name in names})
        sizes[f"{stack}_ffn_dim"] = len(tensors[f"{stack}.layers.0.{fc1}"])
    return sizes


def checked_tensors(tensors: Mapping[str, Any], reasons: Reasons, *ignored: str) -> dict[str, Tensor]:
    """Return the tensors that can be weights. Any other value is a fault of the file.

    ignored: regular expressions for the full names of buffers, counters and stale copies, which are left out
    """
    checked: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = str(name)
        if any(re.fullmatch(pattern, name) for pattern in ignored):
            continue
        fault = fault_of(tensor)
        if fault is None:
            checked[name] = tensor
        else:
            reasons.broken(f"tensor {name} is {fault}")
    return checked


def fault_of(tensor: Any) -> str | None:
    """Return the reason why a value cannot be a weight; None if it can."""
    if not torch.is_tensor(tensor):
        return f"a {type(tensor).__name__}"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "sparse or quantised"
    if not tensor.is_floating_point():
        return f"of type {str(tensor.dtype).removeprefix('torch.')}, not of floating-point numbers"
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return f"of shape {tuple(tensor.shape)}, more than its file holds"
    return None


def split_in_proj(tensors: dict[str, Tensor]) -> None:
    """Split the joint matrix of queries, keys and values in torch's and old fairseq's attention modules."""
    for name in list(tensors):
        module, _, last = name.rpartition(".")
        if last in ("in_proj_weight", "in_proj_bias") and module.endswith("_attn"):
            kind = last.removeprefix("in_proj_")
            for projection, part in zip("qkv", tensors.pop(name).chunk(3), strict=True):
                tensors[f"{module}.{projection}_proj.{kind}"] = part


def rename(tensors: Mapping[str, Tensor], rules: Iterable[Rule], reasons: Reasons) -> dict[str, Tensor]:
    """Return the tensors under our names. Two rules may read one tensor; a tensor that no rule reads is a fault."""
    rules = list(rules)
    missing = {rule.theirs for rule in rules} - tensors.keys()
    for name in sorted(missing):
        reasons.broken(f"tensor {name} is missing")
    for name in sorted(tensors.keys() - {rule.theirs for rule in rules}):
        reasons.broken(f"tensor {name} has no place in the model")
    return {rule.ours: rule.to_ours(tensors[rule.theirs]) for rule in rules if rule.theirs not in missing}


def to_their_names(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the toolkit's names."""
    return {rule.theirs: rule.to_theirs(ours[rule.ours]).contiguous() for rule in rules}
