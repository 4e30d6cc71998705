"""Fold differences between toolkits into the weights, exactly, so that the forward pass stays the paper's.

The dimensions of d_model can be permuted, if every tensor is. Such a permutation turns concatenated sines and cosines
into the paper's interleaved ones. The exponent i / (d_model/2 - 1) is the paper's exponent with another base.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .options import expand

# Our names of the embeddings and the output layer. Each has a rule, so tied matrices are read twice.
SOURCE, TARGET, OUTPUT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
SHARED, OUTPUT_BIAS = "model.shared.weight", "lm_head.bias"
POSITIONS = "model.{encoder,decoder}.positional_encoding.table.weight"
ENCODER_POSITIONS, DECODER_POSITIONS = expand(POSITIONS)
COMPARED_POSITIONS = 256  # float32 tables deviate from the formula at large positions


@dataclass(frozen=True)
class Sinusoids:
    """A form of sinusoidal positions, Section 3.5.

    PAPER: torch's tutorial, the Annotated Transformer, JoeyNMT, OpenNMT-py
    CONCATENATED: Sockeye, transformers' MarianMTModel
    TENSOR2TENSOR: tensor2tensor, fairseq, FSMT, Marian, OpenNMT-py's "SinusoidalConcat"

    concatenated: all sines, then all cosines; the paper's alternate
    endpoint: as in numpy.linspace: the last exponent is 1, so it is i / (d_model/2 - 1) instead of 2i / d_model
    """

    concatenated: bool = False
    endpoint: bool = False

    def base(self, d_model: int) -> float:
        """Return the `position_base` with which our model computes these sinusoids."""
        if not self.endpoint:
            return 10000.0
        half = d_model // 2
        return 10000.0 ** (half / (half - 1))

    def table(self, length: int, d_model: int) -> Tensor:
        """Return the table, (length, d_model), float64."""
        half = d_model // 2
        exponents = torch.arange(half, dtype=torch.float64) / (half - 1 if self.endpoint else half)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0**-exponents
        if self.concatenated:
            return torch.cat((angles.sin(), angles.cos()), dim=1)
        return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)

    def match(self, table: Tensor, d_model: int) -> bool:
        """Return whether a saved tensor (..., d_model) matches the formula up to the rounding of its type."""
        if table.dim() < 2 or table.shape[-1] != d_model:
            return False
        tolerance = max(1e-3, torch.finfo(table.dtype).eps / 2)
        table = table.reshape(-1, table.shape[-1])[:COMPARED_POSITIONS].double()
        return bool(torch.allclose(table, self.table(*table.shape), atol=tolerance, rtol=0))


PAPER = Sinusoids()
CONCATENATED = Sinusoids(concatenated=True)
TENSOR2TENSOR = Sinusoids(concatenated=True, endpoint=True)


def find_model_axis(name: str) -> int | None:
    """Return the axis of one of our tensors that has size d_model, or None."""
    if name == "lm_head.bias":
        return None
    if name.endswith((".out_proj.weight", ".fc2.weight", ".out_proj.bias", ".fc2.bias")) or "norm." in name:
        return 0
    if name.endswith(".bias"):  # of q, k, v and fc1
        return None
    return 1  # embeddings, positions, output; the input side of q, k, v and fc1


def interleave(tensors: Mapping[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """Permute d_model of our tensors from the order of concatenated sinusoids to the paper's."""
    return permute(tensors, torch.arange(d_model).view(2, -1).T.reshape(-1))  # 0, h, 1, h + 1, ...


def concatenate(tensors: Mapping[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """Undo `interleave`."""
    return permute(tensors, torch.arange(d_model).view(-1, 2).T.reshape(-1))  # 0, 2, 4, ..., 1, 3, 5, ...


def permute(tensors: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Return the tensors with the dimensions of d_model in another order. order: (d_model,)"""
    return {
        name: tensor if (axis := find_model_axis(name)) is None else tensor.index_select(axis, order)
        for name, tensor in tensors.items()
    }
