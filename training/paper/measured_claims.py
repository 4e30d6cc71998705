"""Claims that are measured on random numbers, on a finished run, or on the rows of Table 3."""

import math
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer import Translator, VaswaniTransformerConfig
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object
from vaswani_transformer.modeling_vaswani_transformer import MultiHeadAttention

from ..average import average_weights
from ..checkpoint_folders import checkpoints
from .claim import Claim, Finding, Numbers, Setting, curves, intervals, measured_ticks, panels, plain_y
from .results import FAILS, HOLDS, UNSURE, mean_interval, plus_minus, verdict
from .table1 import exponents
from .table3 import claims_of

# ---- section 3.2.1: the factor 1 / sqrt(d_k) -----------------------------------------------------------------------


KEYS = 64  # that a query attends to
WITH, WITHOUT = "with the factor", "without it"


def measure_saturation(setting: Setting) -> Numbers:
    sizes = [4, 8, 16, 32, 64, 128, 256, 512]
    numbers: Numbers = {"d_k": sizes, "entropy": {}, "gradient_norm": {}}
    for name in (WITH, WITHOUT):
        measured = [[saturation(d_k, name == WITH, seed) for d_k in sizes] for seed in setting.seeds]
        numbers["entropy"][name] = [[entropy for entropy, _ in each] for each in measured]
        numbers["gradient_norm"][name] = [[norm for _, norm in each] for each in measured]
    return numbers


def saturation(d_k: int, scaled: bool, seed: int) -> tuple[float, float]:
    """Return mean entropy of attention over random keys, and the norm of d loss / d scores for a random loss."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(256, KEYS, d_k, generator=generator) for _ in range(3))
    scores = (query[:, :1] @ key.transpose(1, 2)).mul_(d_k**-0.5 if scaled else 1.0).requires_grad_()
    weights = scores.softmax(-1)
    (weights * value[:, :, 0][:, None]).sum().backward()
    assert scores.grad is not None
    return float(torch.special.entr(weights.detach()).sum(-1).mean()), float(scores.grad.norm(dim=-1).mean())


def judge_saturation(numbers: Numbers) -> Finding:
    sizes, norms = numbers["d_k"], numbers["gradient_norm"]
    ratios = [without[-1] / scaled[-1] for without, scaled in zip(norms[WITHOUT], norms[WITH], strict=True)]
    figure, axes = panels(2)
    quantities = (
        ("gradient_norm", "norm of the softmax's gradient"),
        ("entropy", f"entropy of attention over {KEYS} keys, nats"),
    )
    for axis, (quantity, y) in zip(axes, quantities, strict=True):
        means = {
            name: [(d, mean_interval(values)[0]) for d, *values in zip(sizes, *each, strict=True)]
            for name, each in numbers[quantity].items()
        }
        curves(axis, means, "d_k", y, log_x=True)
    plain_y(axes[0])
    axes[1].axhline(math.log(KEYS), color="grey", linestyle=":")
    axes[1].text(sizes[0], math.log(KEYS), "uniform attention", fontsize=8, va="bottom")
    entropy = {name: mean_interval([each[-1] for each in values])[0] for name, values in numbers["entropy"].items()}
    number = (
        f"at d_k = {sizes[-1]}, the gradient of the softmax without the factor is "
        f"{plus_minus(mean_interval(ratios))} times the gradient with it; attention over {KEYS} random keys has an "
        f"entropy of {entropy[WITHOUT]:.2f} nats without the factor and of {entropy[WITH]:.2f} with it "
        f"(uniform attention: {math.log(KEYS):.2f})"
    )
    return Finding(verdict(mean_interval([ratio - 1 for ratio in ratios]), -1), number, figure)


# ---- memory against length -----------------------------------------------------------------------------------------


def measure_memory(setting: Setting) -> Numbers:
    lengths = [128, 256, 512, 1024, 2048]
    series = {kernel: [(n, saved_bytes(kernel, n)) for n in lengths] for kernel in ("eager", "sdpa")}
    powers = {kernel: exponents(points[-3:])[0] for kernel, points in series.items()}
    return {"bytes": series, "exponents": powers, "seeds": []}


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


def judge_memory(numbers: Numbers) -> Finding:
    powers = numbers["exponents"]
    eager, fused = (HOLDS if powers[kernel] > 1.75 else FAILS for kernel in ("eager", "sdpa"))
    number = (
        f"the memory that a layer keeps for the backward pass grows as n^{powers['eager']:.2f} with eager attention "
        f"and as n^{powers['sdpa']:.2f} with the fused kernel (SDPA)"
    )
    figure, (axis,) = panels()
    names = {"eager": "eager attention", "sdpa": "fused kernel (SDPA)"}
    series = {names[kernel]: [(n, count / 2**20) for n, count in each] for kernel, each in numbers["bytes"].items()}
    curves(axis, series, "sentence length n", "MiB kept for the backward pass", log_x=True)
    plain_y(axis)
    return Finding(f"{eager} with eager attention, {fused} with the fused kernel", number, figure)


# ---- section 6.1: beam size, alpha, averaging ----------------------------------------------------------------------


def measure_search(setting: Setting) -> Numbers:
    translator = Translator.from_pretrained(setting.run)
    settings = [(beam, 0.6) for beam in (1, 2, 4, 8, 16)] + [(4, alpha) for alpha in (0.0, 0.3, 1.0, 1.5)]
    systems = {
        f"beam {beam}, alpha {alpha}": translator.translate(
            setting.development.sources, num_beams=beam, length_penalty=alpha, split_sentences=False
        )
        for beam, alpha in settings
    }
    return {"bleu": paired_bleu(systems, setting.development.references), "seeds": []}


def judge_search(numbers: Numbers) -> Finding:
    bleu = numbers["bleu"]
    greedy, four = bleu["beam 1, alpha 0.6"], bleu["beam 4, alpha 0.6"]
    better = HOLDS if four["bleu"] > greedy["bleu"] else FAILS
    number = (
        f"BLEU is {greedy['bleu']:.2f} with greedy search (beam 1) and {four['bleu']:.2f} with beam 4 and alpha 0.6; "
        f"the paired bootstrap test gives p = {four['p']:.3f}"
    )
    figure, axes = panels(2)
    for axis, (x, chosen) in zip(axes, (("beam size", "alpha 0.6"), ("alpha", "beam 4")), strict=True):
        found = sorted((value_of(name, x), each) for name, each in bleu.items() if chosen in name)
        curves(
            axis,
            {f"with {chosen}": [(value, each["bleu"]) for value, each in found]},
            x,
            "BLEU; p is against greedy search",
        )
        for value, each in found:
            label = "greedy" if each["p"] is None else f"p = {each['p']:.3f}"
            axis.annotate(label, (value, each["bleu"]), (0, 5), textcoords="offset points", fontsize=7, ha="center")
        axis.margins(0.12)
        axis.legend(fontsize=8, loc="lower right")
    measured_ticks(axes[0], {1, 2, 4, 8, 16})
    axes[1].sharey(axes[0])
    return Finding(better if four["p"] < 0.05 else UNSURE, number, figure)


def value_of(system: str, x: str) -> float:
    """Return the beam size or the alpha of `beam 4, alpha 0.6`."""
    return float(system.replace(",", "").split()[1 if x == "beam size" else 3])


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


def measure_averaging(setting: Setting) -> Numbers:
    folders = checkpoints(setting.run / "checkpoints")[:5][::-1]
    if len(folders) < 2:
        raise InputError(f"--run {setting.run} has {len(folders)} checkpoints; averaging needs at least 2")
    nats: dict[str, list[float]] = {}
    systems: dict[str, list[str]] = {}
    translator, text = Translator.from_pretrained(setting.run), setting.development
    for name, chosen in (("last", folders[-1:]), (f"average of {len(folders)}", folders)):
        translator.model.load_state_dict(average_weights(chosen), strict=False)
        translator.model.tie_weights()
        forced = translator.score(text.sources, text.references)
        nats[name] = [-each.total / len(each.tokens) for each in forced]
        systems[name] = translator.translate(text.sources, split_sentences=False)
    last, average = nats.values()
    return {
        "bleu": paired_bleu(systems, text.references),
        "nats_difference": mean_interval([b - a for a, b in zip(last, average, strict=True)]),
        "checkpoints": [each.name for each in folders],
        "seeds": [],
    }


def judge_averaging(numbers: Numbers) -> Finding:
    difference, (last, average) = numbers["nats_difference"], numbers["bleu"].values()
    number = (
        f"the average's loss minus the last checkpoint's is {plus_minus(difference, 4, signed=True)} nats per token; "
        f"BLEU is {last['bleu']:.2f} with the last checkpoint and {average['bleu']:.2f} with the average "
        f"(p = {average['p']:.2f})"
    )
    figure, (axis,) = panels()
    shown = {f"average of {len(numbers['checkpoints'])}, minus the last": difference}
    intervals(axis, shown, "difference of the loss, nats per token\n(below 0: the average is better)", zero=True)
    return Finding(verdict(difference, -1), number, figure)


# ---- section 5.4: label smoothing, from the rows of Table 3 --------------------------------------------------------


def compare_smoothing(setting: Setting) -> Numbers:
    path = setting.output / "table3.json"
    rows = read_json_object(path)["rows"] if path.is_file() else []
    for each in claims_of(rows):
        if each["row"] == "D-ls0.0":
            return each | {"seeds": [], "seeds_compared": each["seeds"]}  # the models are Table 3's
    raise InputError(f"{path} has no rows base and D-ls0.0 of one seed; run `paper table3 --rows base,D-ls0.0` first")


def judge_smoothing(numbers: Numbers) -> Finding:
    nats = mean_interval([math.log(ratio) for ratio in numbers["perplexity_ratio"]])
    number = (
        f"without label smoothing, the log-perplexity changes by {plus_minus(nats, 3, signed=True)} nats per token and "
        f"BLEU by {numbers['bleu_shown']}"
    )
    figure, axes = panels(2)
    label = "without label smoothing, minus with it"
    intervals(axes[0], {label: nats}, "log-perplexity, nats per token\n(below 0: better without)", zero=True)
    intervals(axes[1], {label: numbers["bleu_difference"]}, "BLEU\n(below 0: worse without)", zero=True)
    judged = f"perplexity: {numbers['perplexity_verdict']}; BLEU: {numbers['bleu_verdict']}"
    return Finding(judged, number, figure)


CLAIMS = {
    "square_root_of_d_k": Claim(
        "Without the factor 1/√d_k, the softmax saturates for large d_k and its gradients shrink (section 3.2.1)",
        measure_saturation,
        judge_saturation,
    ),
    "memory_of_attention": Claim(
        "The memory of self-attention grows quadratically with the length", measure_memory, judge_memory
    ),
    "beam_and_alpha": Claim(
        "A beam of 4 with alpha 0.6 is better than greedy search (section 6.1)", measure_search, judge_search
    ),
    "averaging": Claim(
        "The average of the last five checkpoints is better than the last one (section 6.1)",
        measure_averaging,
        judge_averaging,
    ),
    "label_smoothing": Claim(
        "Label smoothing hurts perplexity but improves BLEU (section 5.4)", compare_smoothing, judge_smoothing
    ),
}
