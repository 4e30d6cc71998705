"""Claims that are measured on random numbers, or on a run that is finished."""

import math
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer import Translator, VaswaniTransformerConfig
from vaswani_transformer.errors import InputError
from vaswani_transformer.modeling_vaswani_transformer import MultiHeadAttention

from ..average import average_weights
from ..checkpoint import checkpoints
from .claim import Result, Setting, curves, intervals
from .rows import FAILS, HOLDS, UNSURE, mean_interval, verdict
from .table1 import exponents

# ---- section 3.2.1: the factor 1 / sqrt(d_k) -----------------------------------------------------------------------


KEYS = 64  # that a query attends to


def square_root_of_d_k(setting: Setting) -> Result:
    """Without the factor, the softmax of large d_k saturates and its gradients become extremely small."""
    sizes, gradients = [4, 8, 16, 32, 64, 128, 256, 512], dict[str, list[list[float]]]()
    entropies: dict[str, list[list[float]]] = {}
    for name in ("scaled", "unscaled"):
        measured = [[saturation(d_k, name == "scaled", seed) for d_k in sizes] for seed in setting.seeds]
        entropies[name] = [[entropy for entropy, _ in each] for each in measured]
        gradients[name] = [[norm for _, norm in each] for each in measured]
    shrinks = [math.log(each[-1] / each[0]) for each in gradients["unscaled"]]
    steady = [math.log(each[-1] / each[0]) for each in gradients["scaled"]]
    judged = verdict([a - b for a, b in zip(shrinks, steady, strict=True)], -1, 0)
    series = {
        name: [(d, mean_interval([each[n] for each in values])[0]) for n, d in enumerate(sizes)]
        for name, values in gradients.items()
    }
    last = {name: mean_interval([each[-1] for each in values])[0] for name, values in entropies.items()}
    numbers = {
        "d_k": sizes, "entropy": entropies, "gradient_norm": gradients, "verdict": judged,
        "number": f"from d_k = {sizes[0]} to {sizes[-1]}, the softmax's gradient becomes "
        f"{math.exp(mean_interval(shrinks)[0]):.3f} times as large without the factor and "
        f"{math.exp(mean_interval(steady)[0]):.3f} times with it; at {sizes[-1]}, the entropy over {KEYS} keys is "
        f"{last['unscaled']:.2f} nats without it and {last['scaled']:.2f} with it (uniform: {math.log(KEYS):.2f})",
    }  # fmt: skip
    return numbers, curves(series, "d_k", "norm of the softmax's gradient")


def saturation(d_k: int, scaled: bool, seed: int) -> tuple[float, float]:
    """Return mean entropy of attention over random keys, and the norm of d loss / d scores for a random loss."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(256, KEYS, d_k, generator=generator) for _ in range(3))
    scores = (query[:, :1] @ key.transpose(1, 2)).mul_(d_k**-0.5 if scaled else 1.0).requires_grad_()
    weights = scores.softmax(-1)
    (weights * value[:, :, 0][:, None]).sum().backward()
    assert scores.grad is not None
    return float(torch.special.entr(weights.detach()).sum(-1).mean()), float(scores.grad.norm(dim=-1).mean())


# ---- memory against length -----------------------------------------------------------------------------------------


def memory_of_attention(setting: Setting) -> Result:
    """The memory of self-attention grows quadratically with the length."""
    lengths = [128, 256, 512, 1024, 2048]
    series = {kernel: [(float(n), float(saved_bytes(kernel, n))) for n in lengths] for kernel in ("eager", "sdpa")}
    powers = {kernel: exponents(points[-3:])[0] for kernel, points in series.items()}
    eager = HOLDS if powers["eager"] > 1.75 else FAILS
    fused = HOLDS if powers["sdpa"] > 1.75 else FAILS
    numbers = {
        "bytes": series, "exponents": powers, "verdict": f"{eager} (eager), {fused} (fused kernel)",
        "number": f"bytes kept for the backward pass grow as n^{powers['eager']:.2f} (eager), "
        f"n^{powers['sdpa']:.2f} (sdpa)", "seeds": [],
    }  # fmt: skip
    return numbers, curves(series, "sentence length n", "bytes kept for the backward pass")


def saved_bytes(kernel: str, length: int) -> int:
    """Return the bytes of distinct tensors that one attention layer keeps for the backward pass."""
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


# ---- section 6.1: beam size, alpha, averaging ----------------------------------------------------------------------


def beam_and_alpha(setting: Setting) -> Result:
    """A beam of 4 with alpha 0.6 is better than greedy search."""
    translator = Translator.from_pretrained(setting.run)
    settings = [(beam, 0.6) for beam in (1, 2, 4, 8, 16)] + [(4, alpha) for alpha in (0.0, 0.3, 1.0, 1.5)]
    systems = {
        f"beam {beam}, alpha {alpha}": translator.translate(
            setting.development.sources, num_beams=beam, length_penalty=alpha, split_sentences=False
        )
        for beam, alpha in settings
    }
    bleu = paired_bleu(systems, setting.development.references)
    four = bleu["beam 4, alpha 0.6"]
    better = four["bleu"] > bleu["beam 1, alpha 0.6"]["bleu"]
    numbers = {
        "bleu": bleu, "verdict": (HOLDS if better else FAILS) if four["p"] < 0.05 else UNSURE,
        "number": f"BLEU {bleu['beam 1, alpha 0.6']['bleu']:.2f} with beam 1, {four['bleu']:.2f} with beam 4 and "
        f"alpha 0.6 (p = {four['p']:.3f})", "seeds": [],
    }  # fmt: skip
    sizes = {str(beam): bleu[f"beam {beam}, alpha {alpha}"] for beam, alpha in settings[:5]}
    return numbers, intervals(bleu_of(sizes), BLEU_OF_ONE_RUN, "beam size, with alpha 0.6")


BLEU_OF_ONE_RUN = "BLEU, with its bootstrap interval over sentences"


def bleu_of(systems: dict[str, dict[str, Any]]) -> dict[str, tuple[float, float | None]]:
    return {name: (each["bleu"], each["interval"]) for name, each in systems.items()}


def paired_bleu(systems: dict[str, list[str]], references: list[str]) -> dict[str, dict[str, Any]]:
    """Return BLEU of each system and, by paired bootstrap, the p value of its difference from the first."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    test = PairedTest(
        list(systems.items()), {"BLEU": BLEU(references=[references], force=True)}, [references], "bs", 1000
    )
    _, columns = test()
    results: list[Any] = columns["BLEU"]
    return {
        name: {"bleu": round(each.score, 3), "interval": each.ci and round(each.ci, 3), "p": each.p_value}
        for name, each in zip(systems, results, strict=True)
    }


def averaging(setting: Setting) -> Result:
    """The average of the last five checkpoints is better than the last one."""
    folders = checkpoints(setting.run / "checkpoints")[:5][::-1]
    if len(folders) < 2:
        raise InputError(f"--run {setting.run} has {len(folders)} checkpoints; averaging needs at least 2")
    nats: dict[str, list[float]] = {}
    systems: dict[str, list[str]] = {}
    translator = Translator.from_pretrained(setting.run)
    for name, chosen in (("last", folders[-1:]), (f"average of {len(folders)}", folders)):
        translator.model.load_state_dict(average_weights(chosen), strict=False)
        translator.model.tie_weights()
        forced = translator.score(setting.development.sources, setting.development.references)
        nats[name] = [-each.total / len(each.tokens) for each in forced]
        systems[name] = translator.translate(setting.development.sources, split_sentences=False)
    bleu = paired_bleu(systems, setting.development.references)
    last_name, average_name = nats
    gain = [a - b for a, b in zip(nats[average_name], nats[last_name], strict=True)]
    mean, half = mean_interval(gain)
    numbers = {
        "bleu": bleu, "nats_difference": [mean, half], "checkpoints": [each.name for each in folders],
        "verdict": verdict(gain, -1, 0),
        "number": f"loss of the average minus that of the last: {mean:+.4f} ± {half:.4f} nats per token; "
        f"BLEU {bleu[last_name]['bleu']:.2f} (last), {bleu[average_name]['bleu']:.2f} (average), "
        f"p = {bleu[average_name]['p']:.2f}", "seeds": [],
    }  # fmt: skip
    return numbers, intervals(bleu_of(bleu), BLEU_OF_ONE_RUN)
