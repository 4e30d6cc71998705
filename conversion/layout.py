"""What a converter absorbs in the weights, so that the forward pass stays the paper's (all exact).

The residual stream has no preferred order: d_model may be permuted throughout. Toolkits that concatenate sines and
cosines become, permuted, the paper's, which interleaves them. Their exponent i / (d_model/2 - 1) is the paper's with
another base.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

# Added to the logit of a token that the toolkit does not have: its probability is 0 in float32, and a label-smoothed
# loss stays finite in every precision.
NEVER = -100.0


def base_of_concatenated(d_model: int) -> float:
    """The base with which 10000^(-2i/d_model) of Section 3.5 becomes 10000^(-i/(d_model/2 - 1)).

    tensor2tensor, fairseq, Marian. The last frequency is then exactly 1 / 10000.
    """
    half = d_model // 2
    if half < 2:
        raise ValueError(f"d_model {d_model} is too small for this formula")
    return 10000.0 ** (half / (half - 1))


def model_axes(name: str) -> int | None:
    """The axis of one of our tensors that runs along d_model; None: none does (the output's bias)."""
    if name == "lm_head.bias":
        return None
    if name.endswith((".out_proj.weight", ".fc2.weight", ".out_proj.bias", ".fc2.bias")) or "norm." in name:
        return 0
    if name.endswith(".bias"):  # of q, k, v and fc1
        return None
    return 1  # embeddings, positions, output; the input side of q, k, v and fc1


def interleaved(tensors: Mapping[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """Our tensors with d_model in the order [sine | cosine] -> with sine and cosine in turn."""
    order = torch.arange(d_model).view(2, -1).T.reshape(-1)  # 0, h, 1, h + 1, ...
    return _permuted(tensors, order)


def concatenated(tensors: Mapping[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """The inverse of `interleaved`."""
    order = torch.arange(d_model).view(-1, 2).T.reshape(-1)  # 0, 2, 4, ..., 1, 3, 5, ...
    return _permuted(tensors, order)


def _permuted(tensors: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    return {
        name: tensor if (axis := model_axes(name)) is None else tensor.index_select(axis, order)
        for name, tensor in tensors.items()
    }


def concatenated_sinusoids(length: int, d_model: int, shifted: bool = True) -> Tensor:
    """(length, d_model), float64: the table [sin | cos] of other toolkits, to compare a saved one with.

    shifted: exponent i / (d_model/2 - 1) as in tensor2tensor; else 2i / d_model
    """
    half = d_model // 2
    exponents = torch.arange(half, dtype=torch.float64) / (half - 1 if shifted else half)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0**-exponents
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def interleaved_sinusoids(length: int, d_model: int) -> Tensor:
    """(length, d_model), float64: the paper's table, to compare a saved one with."""
    exponents = torch.arange(d_model // 2, dtype=torch.float64) * 2 / d_model
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0**-exponents
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


def extended(table: Tensor, rows: int, row: Tensor | None = None) -> Tensor:
    """An embedding with as many more rows: zeros, or copies of `row`."""
    if rows <= 0:
        return table
    more = table.new_zeros(rows, table.shape[1]) if row is None else row.expand(rows, -1)
    return torch.cat((table, more))
