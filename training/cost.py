"""What a model costs: parameters, floating-point operations, memory; and what this machine can do of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration


@dataclass(frozen=True)
class Counts:
    """A config's parameters: all, and those of the layers' matrices."""

    total: int
    encoder_matrices: int
    decoder_matrices: int


def count_parameters(config: VaswaniTransformerConfig) -> Counts:
    """Counted on a model without memory ("meta" device), so that big costs nothing."""
    with torch.device("meta"):
        model = VaswaniTransformerForConditionalGeneration(config)
    stacks = (model.model.encoder.layers, model.model.decoder.layers)
    matrices = [sum(p.numel() for p in layers.parameters() if p.dim() > 1) for layers in stacks]
    return Counts(sum(p.numel() for p in model.parameters()), *matrices)


def training_flops(
    config: VaswaniTransformerConfig, source_tokens: float, target_tokens: float, source: float, target: float
) -> float:
    """Floating-point operations of forward and backward pass, 2 per multiply-add, the backward pass twice the forward.

    source_tokens, target_tokens: tokens in all; source, target: the mean length of the sentences they are in.
    Products with weights (a token each) and attention scores and values (a pair of positions each); the look-up of
    embeddings is no product, the output layer is one.
    """
    counts = count_parameters(config)
    heads = config.encoder_attention_heads
    width = heads * ((config.d_k or config.d_model // heads) + (config.d_v or config.d_model // heads))
    # Cross attention's keys and values are made of source tokens.
    cross = config.decoder_layers * config.d_model * width
    weights = (counts.encoder_matrices + cross) * source_tokens
    weights += (counts.decoder_matrices - cross) * target_tokens
    output = config.d_model * (config.decoder_vocab_size or config.vocab_size) * target_tokens
    attention = width * (
        config.encoder_layers * source_tokens * source + config.decoder_layers * target_tokens * (target + source)
    )
    return 3 * 2 * (weights + output + attention)


def training_memory(config: VaswaniTransformerConfig, tokens: int, vocabulary_rows: int) -> int:
    """About how many bytes a process needs: weights, gradients and two moments in float32, and activations.

    tokens: positions of a micro-batch; vocabulary_rows: rows of logits alive at a time (loss.py).
    """
    parameters = count_parameters(config).total
    layers = config.encoder_layers + config.decoder_layers
    per_position = layers * (14 * config.d_model + 2 * config.encoder_ffn_dim)  # kept for the backward pass, float32
    vocabulary = config.decoder_vocab_size or config.vocab_size
    return 16 * parameters + 4 * (tokens * per_position // 2 + 3 * vocabulary_rows * vocabulary)


def product_rate(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """FLOP a second of products of large matrices, measured: what no step can exceed, the 100 % of MFU."""
    size = 1024 if device.type == "cpu" else 8192
    generator = torch.Generator(device).manual_seed(0)  # not the one that training draws from
    left, right = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    return 2 * size**3 / seconds_of(lambda: left @ right, device, seconds)


def seconds_of(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The mean time of a call, over at least this many seconds and two calls, after a first one."""
    work()
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds or done < 2:
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        done += 1
    return (time.perf_counter() - started) / done
