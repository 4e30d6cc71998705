"""Rules that map a toolkit's names of tensors to ours, for reading and for writing a checkpoint.

A table maps their names to ours. Braces expand to alternatives as in a shell, and the n-th name on the left belongs to
the n-th on the right:

>>> [(rule.theirs, rule.ours) for rule in expand_table({"w_{1,2}.weight": "feed_forward.fc{1,2}.weight"})]
[('w_1.weight', 'feed_forward.fc1.weight'), ('w_2.weight', 'feed_forward.fc2.weight')]

The table of a layer has the names inside it; `expand_layers` puts the prefixes in front.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .options import STACKS, Reasons, expand

FINAL_NORM = "model.{encoder,decoder}.final_norm.{weight,bias}"


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


def expand_table(names: Mapping[str, str], transposed: bool = False) -> list[Rule]:
    """Return the rules of a table: the toolkit's names -> ours."""
    return [
        Rule(theirs, ours, transposed)
        for pattern, our_pattern in names.items()
        for theirs, ours in zip(expand(pattern), expand(our_pattern), strict=True)
    ]


def expand_layers(
    config: Mapping[str, Any],
    prefix: str,
    layers: Mapping[str, Mapping[str, str]],
    final_norm: str = "",
    first: int = 0,
    transposed: bool = False,
) -> list[Rule]:
    """Return the rules of the layers of both stacks and, where the model has them, of the final norms.

    prefix: the toolkit's prefix of the names inside a layer, for both stacks; `#` is the number of the layer
    layers: the table of names inside a layer, by stack; the encoder skips entries of cross-attention
    final_norm: the toolkit's names of the final norms, in the order of FINAL_NORM
    first: the toolkit's number of the first layer
    transposed: see `Rule`

    >>> layers = dict.fromkeys(STACKS, {"w_1.weight": "feed_forward.fc1.weight"})
    >>> rules = expand_layers({"encoder_layers": 2, "decoder_layers": 1}, "{enc,dec}.#.", layers)
    >>> [(rule.theirs, rule.ours) for rule in rules][1]
    ('enc.1.w_1.weight', 'model.encoder.layers.1.feed_forward.fc1.weight')
    """
    rules = []
    for stack, before in zip(STACKS, expand(prefix), strict=True):
        for n in range(config[f"{stack}_layers"]):
            theirs, ours = before.replace("#", str(n + first)), f"model.{stack}.layers.{n}."
            names = {theirs + name: ours + our_name for name, our_name in layers[stack].items()}
            table = expand_table(names, transposed)
            rules += [rule for rule in table if stack == "decoder" or ".cross_attn" not in rule.ours]
    if final_norm:
        is_pre = config.get("norm_position") == "pre"
        present = tuple(f"model.{stack}." for stack in STACKS if config.get(f"{stack}_final_norm", is_pre))
        norms = expand_table({final_norm: FINAL_NORM}, transposed)
        rules += [rule for rule in norms if rule.ours.startswith(present)]
    return rules


def find_first(tensors: Mapping[str, Any], *names: str) -> str:
    """Return the first of the names that the checkpoint has; if it has none, the first name.

    `rename_to_ours` then reports that name as missing.
    """
    return next((name for name in names if name in tensors), names[0])


def infer_sizes(tensors: Mapping[str, Tensor], fc1: str) -> dict[str, int]:
    """Infer the number of layers and d_ff of each stack from tensors named `{stack}.layers.{n}...`.

    fc1: the name, inside a layer, of the matrix (d_ff, d_model)
    """
    sizes = {}
    for stack in STACKS:
        names = [name for name in tensors if name.startswith(f"{stack}.layers.")]
        sizes[f"{stack}_layers"] = len({name.split(".")[2] for name in names})
        sizes[f"{stack}_ffn_dim"] = len(tensors[f"{stack}.layers.0.{fc1}"])
    return sizes


def select_weights(tensors: Mapping[str, Any], reasons: Reasons, *ignored: str) -> dict[str, Tensor]:
    """Return the floating-point tensors; report every other value as a fault of the file.

    ignored: regular expressions for the full names of buffers, counters and stale copies, which are skipped
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = str(name)
        if any(re.fullmatch(pattern, name) for pattern in ignored):
            continue
        fault = find_fault(tensor)
        if fault is None:
            weights[name] = tensor.resolve_neg().contiguous()  # as safetensors saves them
        else:
            reasons.add_fault(f"tensor {name} is {fault}", name)
    return weights


def find_fault(tensor: Any) -> str | None:
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


def rename_to_ours(tensors: Mapping[str, Tensor], rules: Iterable[Rule], reasons: Reasons) -> dict[str, Tensor]:
    """Return the tensors by our names. Two rules may read one tensor; a tensor without a rule is a fault."""
    rules = list(rules)
    missing = {rule.theirs for rule in rules} - tensors.keys()
    for name in sorted(missing):
        reasons.add_fault(f"tensor {name} is missing", name)
    for name in sorted(tensors.keys() - {rule.theirs for rule in rules}):
        reasons.add_fault(f"unexpected tensor {name}")
    return {rule.ours: rule.to_ours(tensors[rule.theirs]) for rule in rules if rule.theirs not in missing}


def rename_to_theirs(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by the toolkit's names."""
    return {rule.theirs: rule.to_theirs(ours[rule.ours]).contiguous() for rule in rules}
