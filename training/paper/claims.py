"""Claims about the paper's model, each with numbers, a plot and a verdict in a row file of its own.

A claim whose row file is there is not measured again, so an interrupted command resumes.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from vaswani_transformer import Translator, VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import InputError
from vaswani_transformer.modeling_vaswani_transformer import MultiHeadAttention
from vaswani_transformer.pictures import RESOLUTION, curves_of, figure_class

from ..average import average_weights
from ..checkpoint import checkpoints
from ..cost import seconds_of_calls
from ..json_files import read_json, write_json
from ..recipe import load_recipe
from ..scores import corpus_bleu
from ..test_sets import TestSet
from ..train import train
from .rnn import rnn_of_size
from .rows import FAILS, HOLDS, UNSURE, mean_interval, origin, verdict, with_interval
from .table1 import slope
from .table3 import RECIPE, claims_of, nats_per_token

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Setting:
    """What the claims are measured on: a trained run with its checkpoints, a development set, seeds, row files."""

    run: Path
    development: TestSet
    seeds: list[int]
    output: Path
    seconds: float  # to measure one speed
    options: Mapping[str, str | None]  # of training, for the claims that train models


Result = tuple[dict[str, Any], "Figure | None"]


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, log: tuple[str, str] = ("log", "log")
) -> "Figure":
    figure = figure_class()(figsize=(7, 4), layout="constrained", dpi=RESOLUTION)
    axis = figure.subplots()
    for label, points in series.items():
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    axis.set(xlabel=x, ylabel=y, xscale=log[0], yscale=log[1])
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return figure


# ---- section 3.2.1: the factor 1 / sqrt(d_k) -----------------------------------------------------------------------


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
    factor = math.exp(mean_interval(shrinks)[0])
    numbers = {
        "d_k": sizes, "entropy": entropies, "gradient_norm": gradients, "verdict": judged,
        "number": f"from d_k = 4 to 512, the softmax's gradient becomes {factor:.3f} times as large without it, "
        f"and {math.exp(mean_interval(steady)[0]):.3f} times with the factor",
    }  # fmt: skip
    return numbers, curves(series, "d_k", "norm of the softmax's gradient")


def saturation(d_k: int, scaled: bool, seed: int) -> tuple[float, float]:
    """Return mean entropy of attention over 64 random keys, and the norm of d loss / d scores for a random loss."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(256, 64, d_k, generator=generator) for _ in range(3))
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
    powers = {
        kernel: slope([(math.log(n), math.log(size)) for n, size in points[-3:]]) for kernel, points in series.items()
    }
    eager = HOLDS if powers["eager"] > 1.75 else FAILS
    fused = HOLDS if powers["sdpa"] > 1.75 else FAILS
    numbers = {
        "bytes": series, "exponents": powers, "verdict": f"{eager} (eager), {fused} (fused kernel)",
        "number": f"bytes kept for the backward pass grow as n^{powers['eager']:.2f} (eager), "
        f"n^{powers['sdpa']:.2f} (sdpa)",
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
        f"alpha 0.6 (p = {four['p']:.3f})",
    }  # fmt: skip
    points = {
        "beam size (alpha 0.6)": [(beam, bleu[f"beam {beam}, alpha {alpha}"]["bleu"]) for beam, alpha in settings[:5]]
    }
    return numbers, curves(points, "beam size", "BLEU", log=("log", "linear"))


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
    folders = list(itertools.islice(checkpoints(setting.run / "checkpoints"), 5))[::-1]
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
    last, averaged = nats
    gain = [a - b for a, b in zip(nats[averaged], nats[last], strict=True)]
    mean, half = mean_interval(gain)
    numbers = {
        "bleu": bleu, "nats_difference": [mean, half], "checkpoints": [each.name for each in folders],
        "verdict": verdict(gain, -1, 0),
        "number": f"{mean:+.4f} ± {half:.4f} nats per token; BLEU {bleu[last]['bleu']:.2f} (last), "
        f"{bleu[averaged]['bleu']:.2f} (average), p = {bleu[averaged]['p']:.2f}",
    }  # fmt: skip
    return numbers, None


# ---- label smoothing, from the rows of Table 3 ---------------------------------------------------------------------


def label_smoothing(setting: Setting) -> Result:
    """Label smoothing hurts perplexity and improves BLEU (section 5.4)."""
    path = setting.output / "table3.json"
    rows = read_json(path)["rows"] if path.is_file() else []
    found = [each for each in claims_of(rows) if each["row"] == "D-ls0.0"]
    if not found:
        raise InputError(
            f"{path} has no rows base and D-ls0.0 of one seed; run `paper table3 --rows base,D-ls0.0` first"
        )
    (each,) = found
    return {
        "seeds_compared": each["seeds"],
        "verdict": f"BLEU: {each['bleu_verdict']}; perplexity: {each['perplexity_verdict']}",
        "number": f"without smoothing, BLEU {each['bleu_shown']} and log-perplexity {each['perplexity_shown']} "
        "hundredths of a nat against the base row",
    }, None


# ---- the throughput of an RNN --------------------------------------------------------------------------------------


def throughput(setting: Setting) -> Result:
    """A Transformer trains 10 to 100 times as fast as an RNN with attention (often repeated, not in the paper)."""
    device = torch.device(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    config = VaswaniTransformerConfig(
        vocab_size=2000, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512,
    )  # fmt: skip
    transformer = VaswaniTransformerForConditionalGeneration(config).train()
    cast(torch.nn.Module, transformer).to(device)
    parameters = sum(each.numel() for each in transformer.parameters())
    # CPU time on a CPU, so that other programs do not count
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    lengths, series = [10, 25, 50, 100, 200, 400], dict[str, list[tuple[float, float]]]()
    models: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "Transformer": lambda source, target: transformer(input_ids=source, decoder_input_ids=target).logits,
        **{cell: rnn_of_size(parameters, config.vocab_size, cell).to(device) for cell in ("gru", "lstm")},
    }
    for length, (name, model) in itertools.product(lengths, models.items()):
        ids = torch.randint(4, config.vocab_size, (max(1, 2000 // length), length), device=device)

        def step(ids: Tensor = ids, model: Callable[[Tensor, Tensor], Tensor] = model) -> None:
            torch.nn.functional.cross_entropy(model(ids, ids).flatten(0, 1), ids.flatten()).backward()

        took = statistics.median(seconds_of_calls(step, device, setting.seconds, clock))
        series.setdefault(name, []).append((length, 2 * ids.numel() / took))
    speed = {name: dict(points) for name, points in series.items()}
    ratios = {cell: [speed["Transformer"][n] / speed[cell][n] for n in lengths] for cell in ("gru", "lstm")}
    every = [ratio for values in ratios.values() for ratio in values]
    numbers = {
        "parameters": parameters, "lengths": lengths, "tokens_per_second": series, "ratios": ratios,
        "verdict": HOLDS if min(every) >= 10 else FAILS,
        "number": "; ".join(
            f"{min(values):.2f} to {max(values):.2f} times as fast as the {cell.upper()}"
            for cell, values in ratios.items()
        ),
    }  # fmt: skip
    unit = "CPU second" if device.type == "cpu" else "second"
    return numbers, curves(series, "sentence length", f"training tokens per {unit}")


# ---- claims that train models of the recipe of Table 3 -------------------------------------------------------------


def trained(setting: Setting, name: str, options: dict[str, str]) -> Path:
    """Train a model, or resume its training, and return its folder."""
    folder = setting.output / "claims" / "runs" / name
    if not (folder / "model.safetensors").is_file():
        train(load_recipe(RECIPE, {**options, **setting.options, "output_dir": str(folder)}))
    return folder


def warm_up(setting: Setting) -> Result:
    """Training without warm-up of the learning rate is worse."""
    losses: dict[str, list[float]] = {}
    for warmup, seed in itertools.product((1, 100), setting.seeds):
        options = {"warmup_steps": str(warmup), "seed": str(seed), "decay_share": "0"}
        options |= {"max_steps": "300", "validate_every": "300"}
        found = curves_of(trained(setting, f"warmup{warmup}-seed{seed}", options) / "metrics.jsonl")["validation_loss"]
        losses.setdefault(f"{warmup} steps", []).append(found[max(found)])
    none, some = losses.values()
    numbers = {
        "validation_loss": losses,
        "verdict": verdict([a - b for a, b in zip(none, some, strict=True)], +1, 0),
        "number": f"validation loss after 300 steps {with_interval(none)} without, {with_interval(some)} with "
        "100 steps of warm-up",
    }
    return numbers, None


BUCKETS = ((1, 10), (11, 20), (21, 30), (31, 256))  # source tokens; models are trained on the first two


def length_extrapolation(setting: Setting) -> Result:
    """Sinusoids extrapolate to sentences longer than those of the training, learned positions do not."""
    nats: dict[str, list[list[float]]] = {}
    bleu: dict[str, list[list[float]]] = {}
    for kind, seed in itertools.product(("sinusoidal", "learned"), setting.seeds):
        options = {"model.position_embedding_type": kind, "seed": str(seed), "max_length": str(BUCKETS[1][1])}
        model = trained(setting, f"{kind}-seed{seed}", options)
        measured = [by_length(Translator.from_pretrained(model), setting.development, *bucket) for bucket in BUCKETS]
        nats.setdefault(kind, []).append([each[0] for each in measured])
        bleu.setdefault(kind, []).append([each[1] for each in measured])
    # The loss of the unseen lengths over that of the longest seen ones.
    rise = {kind: [statistics.mean(each[2:]) - each[1] for each in values] for kind, values in nats.items()}
    better = [a - b for a, b in zip(rise["sinusoidal"], rise["learned"], strict=True)]
    numbers = {
        "buckets": BUCKETS, "nats_per_token": nats, "bleu": bleu, "verdict": verdict(better, -1, 0),
        "number": f"beyond {BUCKETS[1][1]} tokens, the loss rises by {with_interval(rise['sinusoidal'])} nats per "
        f"token with sinusoids and by {with_interval(rise['learned'])} with learned positions",
    }  # fmt: skip
    series = {
        kind: [(low, mean_interval([each[n] for each in values])[0]) for n, (low, _) in enumerate(BUCKETS)]
        for kind, values in bleu.items()
    }
    return numbers, curves(series, "source tokens, from", "BLEU", log=("linear", "linear"))


def by_length(translator: Translator, text: TestSet, low: int, high: int) -> tuple[float, float]:
    """Return nats per token and BLEU of the sentences with that many source tokens."""
    counts = [len(ids) for ids in translator.tokenizer(text.sources)["input_ids"]]
    chosen = [n for n, count in enumerate(counts) if low <= count <= high]
    if not chosen:
        raise InputError(f"the development text has no sentence of {low} to {high} tokens; give more --sentences")
    sources, references = ([side[n] for n in chosen] for side in (text.sources, text.references))
    translations = translator.translate(sources, split_sentences=False, max_source_length=256)
    return nats_per_token(translator, sources, references), corpus_bleu(translations, references)


CLAIMS: dict[str, Callable[[Setting], Result]] = {
    "square_root_of_d_k": square_root_of_d_k,
    "memory_of_attention": memory_of_attention,
    "throughput": throughput,
    "averaging": averaging,
    "beam_and_alpha": beam_and_alpha,
    "label_smoothing": label_smoothing,
    "warm_up": warm_up,
    "length_extrapolation": length_extrapolation,
}


def measure_claims(setting: Setting, names: list[str], command: str, say: Callable[[str], None]) -> None:
    """Write claims/NAME.json and, with a plot, claims/NAME.png for every claim that has no row file yet."""
    folder = setting.output / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name not in CLAIMS:
            raise InputError(f"--only {name}: not a claim; claims: {', '.join(CLAIMS)}")
        if (folder / f"{name}.json").is_file():
            say(f"{name}: measured before")
            continue
        torch.manual_seed(setting.seeds[0])
        started = time.perf_counter()
        numbers, figure = CLAIMS[name](setting)
        if figure is not None:
            with atomic_file(folder / f"{name}.png") as file:
                figure.savefig(file, format="png")
        about = {"claim": (CLAIMS[name].__doc__ or "").strip(), **numbers}
        made = origin(f"{command} --only {name}", setting.seeds, time.perf_counter() - started)
        write_json(folder / f"{name}.json", about | made)
        say(f"{name}: {numbers['verdict']}: {numbers['number']}")
