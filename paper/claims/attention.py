"""Claims about the attention function, measured on random input."""

import math
from statistics import fmean

import torch
from torch import Tensor

from vaswani_transformer import VaswaniTransformerConfig
from vaswani_transformer.modeling_vaswani_transformer import MultiHeadAttention

from ..plots import make_panels, plot_curves, set_log_y
from ..verdicts import FAILS, HOLDS, estimate_mean, fit_exponents, format_mean, judge
from .claim import Judgement, Measurements, Setting

# ---- section 3.2.1: the factor 1 / sqrt(d_k) -----------------------------------------------------------------------


NUMBER_OF_KEYS = 64
WITH, WITHOUT = "with the factor", "without it"


def measure_saturation(setting: Setting) -> Measurements:
    """Return entropies and gradient norms, {with or without the factor: [[value for each d_k] for each seed]}."""
    sizes = [4, 8, 16, 32, 64, 128, 256, 512]
    measurements: Measurements = {"d_k": sizes, "entropy": {}, "gradient_norm": {}}
    for name, is_scaled in ((WITH, True), (WITHOUT, False)):
        measured = [[measure_softmax(d_k, is_scaled, seed) for d_k in sizes] for seed in setting.seeds]
        measurements["entropy"][name] = [[entropy for entropy, _ in by_size] for by_size in measured]
        measurements["gradient_norm"][name] = [[norm for _, norm in by_size] for by_size in measured]
    return measurements


def measure_softmax(d_k: int, scaled: bool, seed: int) -> tuple[float, float]:
    """Return the mean entropy of attention over random keys, and the norm of d loss / d scores for a random loss."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(256, NUMBER_OF_KEYS, d_k, generator=generator) for _ in range(3))
    scores = (query[:, :1] @ key.transpose(1, 2)).mul_(d_k**-0.5 if scaled else 1.0).requires_grad_()
    weights = scores.softmax(-1)
    (weights * value[:, :, 0][:, None]).sum().backward()
    assert scores.grad is not None
    return float(torch.special.entr(weights.detach()).sum(-1).mean()), float(scores.grad.norm(dim=-1).mean())


def judge_saturation(measurements: Measurements) -> Judgement:
    sizes, norms = measurements["d_k"], measurements["gradient_norm"]
    ratios = [without[-1] / scaled[-1] for without, scaled in zip(norms[WITHOUT], norms[WITH], strict=True)]
    figure, axes = make_panels(2)
    quantities = {
        "gradient_norm": "norm of the softmax's gradient",
        "entropy": f"entropy of attention over {NUMBER_OF_KEYS} keys, nats",
    }
    for axis, (quantity, y) in zip(axes, quantities.items(), strict=True):
        means = {
            name: [(d, fmean(of_seeds)) for d, *of_seeds in zip(sizes, *by_seed, strict=True)]
            for name, by_seed in measurements[quantity].items()
        }
        plot_curves(axis, means, "d_k", y, log_x=True)
    set_log_y(axes[0])
    axes[1].axhline(math.log(NUMBER_OF_KEYS), color="grey", linestyle=":")
    axes[1].text(sizes[0], math.log(NUMBER_OF_KEYS), "uniform attention", fontsize=8, va="bottom")
    entropy = {name: fmean(by_size[-1] for by_size in by_seed) for name, by_seed in measurements["entropy"].items()}
    evidence = (
        f"at d_k = {sizes[-1]}, the gradient of the softmax without the factor is {format_mean(ratios)} times the "
        f"gradient with it; attention over {NUMBER_OF_KEYS} random keys has an entropy of {entropy[WITHOUT]:.2f} "
        f"nats without the factor and of {entropy[WITH]:.2f} with it (uniform attention: "
        f"{math.log(NUMBER_OF_KEYS):.2f})"
    )
    return Judgement(judge(estimate_mean([ratio - 1 for ratio in ratios]), expected_sign=-1), evidence, figure)


# ---- memory against length -----------------------------------------------------------------------------------------


KERNELS = {"eager": "eager attention", "sdpa": "fused kernel (SDPA)"}
QUADRATIC = 1.75  # smallest exponent that counts as quadratic: a linear part remains at these lengths


def measure_memory_of_attention(setting: Setting) -> Measurements:
    """Return {kernel: [(length, bytes)]}, and the exponent of the growth over the three longest lengths."""
    lengths = [128, 256, 512, 1024, 2048]
    series = {kernel: [(n, count_saved_bytes(kernel, n)) for n in lengths] for kernel in KERNELS}
    powers = {kernel: fit_exponents(points[-3:])[0] for kernel, points in series.items()}
    return {"bytes": series, "exponents": powers}


def count_saved_bytes(kernel: str, length: int) -> int:
    """Return the bytes of all tensors that one attention layer keeps for the backward pass."""
    config = VaswaniTransformerConfig(d_model=128, encoder_attention_heads=8)
    config._attn_implementation = kernel
    attention = MultiHeadAttention(config, heads=8, is_causal=False)
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        # Keep the output alive, so that no storage is freed and used again under the same address.
        output = attention(torch.randn(1, length, config.d_model))
    del output
    return sum(storages.values())


def judge_memory_of_attention(measurements: Measurements) -> Judgement:
    powers = measurements["exponents"]
    eager, fused = (HOLDS if powers[kernel] > QUADRATIC else FAILS for kernel in KERNELS)
    evidence = (
        f"the memory that a layer keeps for the backward pass grows as n^{powers['eager']:.2f} with eager attention "
        f"and as n^{powers['sdpa']:.2f} with the fused kernel (SDPA)"
    )
    figure, (axis,) = make_panels()
    mebibytes = {
        name: [(n, count / 2**20) for n, count in measurements["bytes"][kernel]] for kernel, name in KERNELS.items()
    }
    plot_curves(axis, mebibytes, "sentence length n", "MiB kept for the backward pass", log_x=True)
    set_log_y(axis)
    return Judgement(f"{eager} with eager attention, {fused} with the fused kernel", evidence, figure)
