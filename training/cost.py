"""The cost of a model: parameters, floating-point operations, memory."""

from dataclasses import dataclass

import torch

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size

from .loss import chunk_rows


@dataclass(frozen=True)
class Counts:
    """Parameters of a config: all of them, and those of the layers' matrices."""

    total: int
    encoder_matrices: int
    decoder_matrices: int


def count_parameters(config: VaswaniTransformerConfig) -> Counts:
    """Count the parameters of a model on the "meta" device, which allocates nothing."""
    with torch.device("meta"):
        model = VaswaniTransformerForConditionalGeneration(config)
    stacks = (model.model.encoder.layers, model.model.decoder.layers)
    matrices = [sum(p.numel() for p in layers.parameters() if p.dim() > 1) for layers in stacks]
    return Counts(model.num_parameters(), *matrices)


def training_flops(
    config: VaswaniTransformerConfig,
    source_tokens: float,
    target_tokens: float,
    source_length: float,
    target_length: float,
) -> float:
    """Return the FLOPs of forward and backward pass: 2 per multiply-add, the backward pass twice the forward pass.

    source_tokens, target_tokens: totals; source_length, target_length: mean lengths of their sentences.
    Counts products with weights (per token), attention (per pair of positions) and the output layer, but not the
    embedding lookup.
    """
    counts = count_parameters(config)
    heads = config.encoder_attention_heads
    width = heads * ((config.d_k or config.d_model // heads) + (config.d_v or config.d_model // heads))
    # Cross attention computes keys and values from source tokens.
    cross = config.decoder_layers * config.d_model * width
    weights = (counts.encoder_matrices + cross) * source_tokens
    weights += (counts.decoder_matrices - cross) * target_tokens
    output = config.d_model * target_vocab_size(config) * target_tokens
    attention = width * (
        config.encoder_layers * source_tokens * source_length
        + config.decoder_layers * target_tokens * (target_length + source_length)
    )
    return 3 * 2 * (weights + output + attention)


def training_memory(config: VaswaniTransformerConfig, tokens: int, device: str) -> int:
    """Estimate the bytes that a process needs: weights, gradients and two moments in float32, and activations.

    tokens: positions of a micro-batch; device: "cpu" or "cuda"
    """
    parameters = count_parameters(config).total
    layers = config.encoder_layers + config.decoder_layers
    per_position = layers * (14 * config.d_model + 2 * config.encoder_ffn_dim)  # kept for the backward pass, float32
    vocabulary = target_vocab_size(config)
    return 16 * parameters + 4 * (tokens * per_position // 2 + 3 * chunk_rows(vocabulary, device) * vocabulary)
