"""Label-smoothed cross-entropy (section 5.4), computed in chunks, never for all (tokens, vocabulary) logits at once.

It is the loss of a training run; `label_smoothed_cross_entropy` of the model is the same for other training programs.
Padding has no loss, because only the decoder's states at real tokens reach the chunks (`target_positions`).

It replaces torch 2.13's F.linear_cross_entropy, which takes 1.3 times as long and twelve times the memory on a CPU,
returns no separate -log p, and is missing in torch 2.11.
"""

from typing import Any, cast

import torch
from torch import nn

# A chunk has as many rows as fit into this many logits. With smaller chunks, accumulating the weight gradient costs
# more than the saved memory is worth (V = 37,000 on a CPU: a tenth of the loss's time with half the size).
CHUNK_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 27}


def chunk_rows(vocabulary: int, device: str) -> int:
    """Return the number of tokens per chunk of logits."""
    return max(64, CHUNK_ELEMENTS.get(device, CHUNK_ELEMENTS["cpu"]) // vocabulary)


class _LinearCrossEntropy(torch.autograd.Function):
    """Output projection and loss in chunks of rows; the forward pass computes the gradients, too."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, epsilon, dtype, rows, needs_gradient):
        # epsilon is spread over the V-1 other tokens, as in tensor2tensor and fairseq; torch spreads it over all V.
        other_mass = epsilon / (len(weight) - 1)
        # The target distribution q is other_mass everywhere, plus this at the target.
        peak = 1.0 - epsilon - other_mass
        cast_weight = weight.to(dtype)
        # other_mass is the same for every token: its part of the loss needs only sums over the vocabulary.
        weight_sum = weight.sum(0, dtype=torch.float32)  # (d_model,)
        bias_sum = 0.0 if bias is None else bias.sum()
        loss = hidden.new_zeros((), dtype=torch.float32)
        negative_log_likelihood = hidden.new_zeros((), dtype=torch.float32)
        # Empty if no gradient is needed.
        hidden_gradient = torch.empty_like(hidden if needs_gradient else hidden[:0])
        weight_gradient = torch.zeros_like(weight if needs_gradient else weight[:0], dtype=torch.float32)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        # One buffer for all chunks: the page faults of fresh memory cost up to a seventh of the product (V = 37,000).
        cast_logits = hidden.new_empty(min(rows, len(hidden)), len(weight), dtype=dtype)
        for start in range(0, len(hidden), rows):
            part = hidden[start : start + rows].to(dtype)  # (rows, d_model)
            target = labels[start : start + rows, None]  # (rows, 1)
            logits = torch.mm(part, cast_weight.T, out=cast_logits[: len(part)]).float()  # (rows, vocabulary)
            if bias is not None:
                logits += bias
            target_logit = logits.gather(1, target)
            highest = logits.amax(1, keepdim=True)
            exponential = logits.sub_(highest).exp_()
            normaliser = exponential.sum(1, keepdim=True)
            log_normaliser = normaliser.log() + highest
            # sum_v q_v (logsumexp - logit_v): the part of the target, then that of all tokens.
            sum_of_logits = (part.float() @ weight_sum)[:, None] + bias_sum
            loss += (log_normaliser - peak * target_logit - other_mass * sum_of_logits).sum()
            negative_log_likelihood += (log_normaliser - target_logit).sum()
            if not needs_gradient:
                continue
            if dtype == torch.float16:  # its range is too small for unnormalised exponentials
                exponential /= normaliser
                normaliser = torch.ones_like(normaliser)
            # The gradient of a row's logits is p - q. Here it is multiplied by the normaliser, which is divided out of
            # the smaller factors below, and without other_mass.
            exponential.scatter_add_(1, target, -peak * normaliser)
            cast_exponential = exponential.to(dtype)
            weighted = (cast_exponential @ cast_weight) / normaliser  # (rows, d_model)
            hidden_gradient[start : start + rows] = weighted - other_mass * weight_sum
            if bias_gradient is not None:
                bias_gradient += (exponential.T @ (1 / normaliser))[:, 0] - other_mass * len(part)
            part = (part / normaliser).to(dtype)
            if dtype == torch.float32:
                weight_gradient.addmm_(cast_exponential.T, part)
            else:
                weight_gradient += cast_exponential.T @ part
        if needs_gradient:
            weight_gradient -= other_mass * hidden.to(dtype).sum(0, dtype=torch.float32)
            ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
            ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(negative_log_likelihood)
        return loss, negative_log_likelihood

    @staticmethod
    def backward(ctx, *gradients):
        hidden_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        scale = gradients[0]
        return (
            hidden_gradient * scale.to(hidden_gradient.dtype),
            (weight_gradient * scale).to(ctx.weight_dtype),
            None if bias_gradient is None else (bias_gradient * scale).to(ctx.weight_dtype),
            *(None,) * 5,
        )


# torch.compile would unroll the loop over chunks and recompile for every number of tokens.
@torch.compiler.disable()
def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    epsilon: float,
    rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums over tokens of the label-smoothed loss of hidden @ weight.T + bias and of -log p(label).

    hidden: (tokens, d_model); weight: (vocabulary, d_model); bias: (vocabulary,) or None; labels: (tokens,), no -100.
    rows: tokens per chunk of logits. Only the first result has a gradient, and it can be used once.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    if rows is None:
        rows = chunk_rows(len(weight), device)
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    with torch.autocast(device, enabled=False):
        result = _LinearCrossEntropy.apply(hidden, weight, bias, labels, epsilon, dtype, rows, needs_gradient)
    return cast(tuple[torch.Tensor, torch.Tensor], result)


class TrainingLoss(nn.Module):
    """The model and its loss in one module, so that DDP, autocast and torch.compile see a single forward pass."""

    def __init__(self, model: Any, epsilon: float):
        super().__init__()
        self.model = model
        self.epsilon = epsilon

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        decoder_input_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_ids: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of the smoothed loss and of -log p over the real target tokens of a micro-batch.

        input_ids, attention_mask: (batch, source); decoder_input_ids: (batch, target)
        target_positions, target_ids: (tokens,): indices of the real tokens in the flattened (batch, target), and
        the expected tokens.
        """
        hidden = self.model.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            use_cache=False,
        ).last_hidden_state  # (batch, target, d_model)
        hidden = hidden.flatten(0, 1).index_select(0, target_positions)  # (tokens, d_model)
        head = self.model.lm_head
        epsilon = self.epsilon if self.training else 0.0
        return linear_cross_entropy(hidden, head.weight, head.bias, target_ids, epsilon)
