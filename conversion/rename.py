"""Rules that map a toolkit's names of tensors to ours, for reading and for writing a checkpoint.

A table maps their names to ours. Braces expand to alternatives as in a shell: `fc{1,2}.{weight,bias}` stands for four
names. `{n}` is the number of the layer.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    prefixes: str | Mapping[str, str],
    names: Mapping[str, Any],
    final: str = "",
    first: int = 0,
    transposed: bool = False,
) -> list[Rule]:
    """Return the rules of the layers of both stacks and, where the model has them, of the final norms.

    prefixes: the toolkit's prefix of the names inside a layer, with `{stack}` and `{n}`; or a prefix for each stack
    names: the table of names inside a layer, or a table for each stack; the encoder skips entries of cross-attention
    final: the toolkit's names of a final norm, with `{stack}`
    first: the toolkit's number of the first layer
    transposed: see `Rule`
    """
    rules = []
    for stack in STACKS:
        prefix = prefixes if isinstance(prefixes, str) else prefixes[stack]
        inside = names.get(stack, names)
        if stack == "encoder":
            inside = {theirs: ours for theirs, ours in inside.items() if not ours.startswith("cross_attn")}
        for n in range(config[f"{stack}_layers"]):
            before = prefix.format(stack=stack, n=n + first)
            table = {before + theirs: f"model.{stack}.layers.{n}.{ours}" for theirs, ours in inside.items()}
            rules += rules_of(table, transposed)
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
    """Return the first of the names that the checkpoint has; if it has none, the first name.

    `rename` then reports that name as missing.
    """
    return next((name for name in names if name in tensors), names[0])


def stack_sizes(tensors: Mapping[str, Tensor], fc1: str) -> dict[str, int]:
    """Infer the number of layers and d_ff of each stack from tensors named `{stack}.layers.{n}...`.

    fc1: the name, inside a layer, of the matrix (d_ff, d_model)
    """
    sizes = {}
    for stack in STACKS:
        names = [name for name in tensors if name.startswith(f"{stack}.layers.")]
        sizes[f"{stack}_layers"] = len({name.split(".")[2] for name in names})
        sizes[f"{stack}_ffn_dim"] = len(tensors[f"{stack}.layers.0.{fc1}"])
    return sizes


def checked_tensors(tensors: Mapping[str, Any], reasons: Reasons, *ignored: str) -> dict[str, Tensor]:
    """Return the floating-point tensors; report every other value as a fault of the file.

    ignored: regular expressions for the full names of buffers, counters and stale copies, which are skipped
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
            reasons.broken(f"tensor {name} is {fault}", name)
    return checked


def fault_of(tensor: Any) -> str | None:
    """Return why a value cannot be a weight; None if it can."""
    if not torch.is_tensor(tensor):
        return f"a {type(tensor).__name__}"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "sparse or quantised"
    if not tensor.is_floating_point():
        return f"of type {str(tensor.dtype).removeprefix('torch.')}, not floating-point"
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return f"of shape {tuple(tensor.shape)}, more than its file contains"
    return None


def split_in_proj(tensors: dict[str, Tensor]) -> None:
    """Split the matrix that torch and old fairseq use for queries, keys and values together."""
    for name in list(tensors):
        module, _, last = name.rpartition(".")
        if last in ("in_proj_weight", "in_proj_bias") and module.endswith("_attn"):
            kind = last.removeprefix("in_proj_")
            for projection, part in zip("qkv", tensors.pop(name).chunk(3), strict=True):
                tensors[f"{module}.{projection}_proj.{kind}"] = part


def rename(tensors: Mapping[str, Tensor], rules: Iterable[Rule], reasons: Reasons) -> dict[str, Tensor]:
    """Return the tensors by our names. Two rules may read one tensor; a tensor without a rule is a fault."""
    rules = list(rules)
    missing = {rule.theirs for rule in rules} - tensors.keys()
    for name in sorted(missing):
        reasons.broken(f"tensor {name} is missing", name)
    for name in sorted(tensors.keys() - {rule.theirs for rule in rules}):
        reasons.broken(f"unexpected tensor {name}")
    return {rule.ours: rule.to_ours(tensors[rule.theirs]) for rule in rules if rule.theirs not in missing}


def to_their_names(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by the toolkit's names."""
    return {rule.theirs: rule.to_theirs(ours[rule.ours]).contiguous() for rule in rules}
