"""Dropout that is fast on a CPU."""

import torch
from torch import nn

from .recipe import Recipe


class ByteDropout(nn.Dropout):
    """Dropout whose mask takes one random byte per element; the rate is rounded to 1/256.

    torch's CPU dropout draws a double per element, which takes longer than the matrix products of a small model.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        kept = 256 - round(self.p * 256)
        if not self.training or kept == 256:
            return input
        if kept == 0 or torch.compiler.is_compiling():  # a rate above 0.998; the compiler fuses torch's own
            return super().forward(input)
        return _ByteDropout.apply(input, kept)  # type: ignore[no-any-return]


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, kept):
        words = torch.empty((input.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        random = words.view(torch.uint8)[: input.numel()].view(input.shape)
        # uint8, because torch multiplies by bool four times more slowly.
        mask = torch.lt(random, kept, out=random)
        ctx.save_for_backward(mask)
        ctx.scale = 256 / kept
        return (input * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, *gradients):
        (mask,) = ctx.saved_tensors
        return (gradients[0] * mask).mul_(ctx.scale), None


def use_byte_dropout(recipe: Recipe, model: nn.Module, device: torch.device) -> bool:
    """Replace every nn.Dropout of the model on a CPU, and return whether that was done. Saved weights stay the same."""
    if recipe.fast_dropout != "auto" or device.type != "cpu":
        return False
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, ByteDropout(child.p))
    return True
