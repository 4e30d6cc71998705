"""Claims for which models of Table 3's recipe are trained."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import in_one_line
from vaswani_transformer.modeling_vaswani_transformer import MultiHeadAttention, PositionalEncoding, Stack
from vaswani_transformer.pictures import curves_of

from ..parallel_text import parallel_texts
from ..recipe import Recipe, load_recipe
from ..scores import corpus_bleu
from ..test_sets import TestSet
from ..train import train
from .claim import Claim, Finding, Numbers, Setting, curves, intervals, measured_ticks, panels
from .fit import Curve, fit, prepare_recipe
from .processes import in_processes
from .results import FAILS, HOLDS, UNSURE, mean_interval, verdict, with_interval
from .rnn import search, train_rnn
from .table3 import RECIPE, nats_per_token

# ---- training ------------------------------------------------------------------------------------------------------

LENGTH = {"max_steps", "validate_every"}  # keys of recipes
# With these and one seed, all claims together take less than half an hour on two cores.
SHORT = {"max_steps": "300", "validate_every": "300"}
LONGER = {"max_steps": "800", "validate_every": "800"}
Kind = TypeVar("Kind", bound=Hashable)


def recipe_for(setting: Setting, name: str, own: dict[str, str]) -> Recipe:
    """Return the recipe of Table 3 with the claim's own options and the user's, which may change its length.

    Raises InputError if the user sets what the claim compares.
    """
    for key in own.keys() & setting.options.keys() - LENGTH:
        raise InputError(f"--{key}: the claim sets it; leave it out")
    folder = setting.output / "claims" / "runs" / name
    return load_recipe(RECIPE, {**own, **setting.options, "output_dir": str(folder)})


def for_each_seed(
    setting: Setting, kinds: Iterable[Kind], work: Callable[..., Any], case: Callable[[Kind, int], tuple[Any, ...]]
) -> dict[Kind, list[Any]]:
    """Return for each kind work(*case(kind, seed)) of every seed, several of them at a time.

    case: returns the recipe of the training and other arguments of `work`
    """
    kinds = list(kinds)
    cases = [case(kind, seed) for kind, seed in itertools.product(kinds, setting.seeds)]
    logs = [Path(f"{recipe.output_dir}.log") for recipe, *_ in cases]
    found = iter(in_processes(work, list(zip(logs, cases, strict=True)), setting.jobs))
    return {kind: list(itertools.islice(found, len(setting.seeds))) for kind in kinds}


def trained(recipe: Recipe) -> Translator:
    """Train a model, resume its training or load it. Raises InputError if its recipe was another."""
    train(recipe)
    return Translator.from_pretrained(Path(recipe.output_dir))


def trained_with(recipe: Recipe, change: Callable[[nn.Module], None]) -> tuple[Translator, Curve]:
    """Change each module of a new model and train it as the recipe says, in float32 and without checkpoints."""
    prepared = prepare_recipe(recipe)
    for module in list(prepared.model.modules()):
        change(module)

    def forward(source: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        return cast(Tensor, prepared.model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits)

    betas = (recipe.adam_beta1, recipe.adam_beta2)
    curve = fit(cast(nn.Module, prepared.model), forward, prepared, prepared.learning_rate, betas)
    return Translator(prepared.model, prepared.tokenizer), curve


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def loss_figure(losses: dict[str, Curve]) -> Any:
    figure, (axis,) = panels()
    curves(axis, losses, "step", "training loss, label-smoothed (first seed)")
    return figure


# ---- section 5.3: warm-up ------------------------------------------------------------------------------------------


def measure_warm_up(setting: Setting) -> Numbers:
    base = load_recipe(RECIPE, {**SHORT, **setting.options})
    assert base.learning_rate is not None
    # The rate falls with the root of the step, so that it is the same from step 100 on.
    rates = {1: base.learning_rate * 10, 100: base.learning_rate}

    def case(kind: str, seed: int) -> tuple[Recipe]:
        warmup = 100 if kind == "with warm-up" else 1
        options = {"warmup_steps": str(warmup), "learning_rate": str(rates[warmup]), "decay_share": "0", **SHORT}
        return (recipe_for(setting, f"warmup{warmup}-seed{seed}", options | {"seed": str(seed)}),)

    found = for_each_seed(setting, ("without warm-up", "with warm-up"), losses_of, case)
    return {
        "steps": base.max_steps,
        "validation_loss": {kind: [last for last, _ in each] for kind, each in found.items()},
        "losses": {kind: each[0][1] for kind, each in found.items()},
    }


def losses_of(recipe: Recipe) -> tuple[float, Curve]:
    """Train a model and return its last validation loss and the curve of its training loss."""
    train(recipe)
    found = curves_of(Path(recipe.output_dir) / "metrics.jsonl")
    return found["validation_loss"][max(found["validation_loss"])], list(found["loss"].items())


def judge_warm_up(numbers: Numbers) -> Finding:
    none, some = numbers["validation_loss"].values()
    worse = differences(none, some)
    number = (
        f"after {numbers['steps']} steps, the validation loss is {with_interval(none)} without warm-up and "
        f"{with_interval(some)} with 100 steps of it (difference: {with_interval(worse, signed=True)}); "
        "from step 100 on, both learning rates are equal"
    )
    if "losses" in numbers:
        figure = loss_figure(numbers["losses"])
    else:
        figure, (axis,) = panels()
        means = {kind: mean_interval(each) for kind, each in numbers["validation_loss"].items()}
        intervals(axis, means, f"validation loss after {numbers['steps']} steps")
    return Finding(verdict(mean_interval(worse), +1), number, figure)


# ---- section 3.5: positions ----------------------------------------------------------------------------------------


BUCKETS = ((1, 10), (11, 20), (21, 256))  # source tokens; models are trained on the first two


def measure_extrapolation(setting: Setting) -> Numbers:
    def case(kind: str, seed: int) -> tuple[Recipe, bool, TestSet]:
        options = {"seed": str(seed), "max_length": str(BUCKETS[1][1]), **LONGER}
        if kind != "none":
            options["model.position_embedding_type"] = kind
        return recipe_for(setting, f"{kind}-seed{seed}", options), kind == "none", setting.development

    found = for_each_seed(setting, ("sinusoidal", "learned", "none"), by_length, case)
    return {
        "steps": load_recipe(RECIPE, {**LONGER, **setting.options}).max_steps,
        "buckets": BUCKETS,
        "sentences": [count for _, _, count in next(iter(found.values()))[0]],
        "nats_per_token": {kind: [[nats for nats, _, _ in each] for each in values] for kind, values in found.items()},
        "bleu": {kind: [[bleu for _, bleu, _ in each] for each in values] for kind, values in found.items()},
    }


def by_length(recipe: Recipe, has_no_positions: bool, text: TestSet) -> list[tuple[float, float, int]]:
    """Train a model and return nats per token, BLEU and the number of sentences of each bucket of source lengths."""
    translator = trained_with(recipe, without_positions)[0] if has_no_positions else trained(recipe)
    counts = [len(ids) for ids in translator.tokenizer(text.sources)["input_ids"]]
    measured = []
    for low, high in BUCKETS:
        chosen = [n for n, count in enumerate(counts) if low <= count <= high]
        if not chosen:
            raise InputError(f"no sentence of {low} to {high} tokens among the {len(counts)} read; raise --sentences")
        sources, references = ([side[n] for n in chosen] for side in (text.sources, text.references))
        translations = translator.translate(sources, split_sentences=False, max_source_length=256)
        nats = nats_per_token(translator, sources, references)
        measured.append((nats, corpus_bleu(translations, references), len(chosen)))
    return measured


class NoPositions(PositionalEncoding):
    def forward(self, start: int | Tensor, length: int, device: torch.device) -> Tensor:
        return torch.zeros_like(super().forward(start, length, device))


def without_positions(module: nn.Module) -> None:
    if isinstance(module, Stack):
        module.positional_encoding = NoPositions(module.config)


def judge_extrapolation(numbers: Numbers) -> Finding:
    nats, (_, seen, unseen) = numbers["nats_per_token"], numbers["buckets"]
    # The loss of the unseen lengths over that of the longest seen ones.
    rise = {kind: [each[2] - each[1] for each in values] for kind, values in nats.items()}
    more = differences(rise["sinusoidal"], rise["learned"])
    number = (
        f"on sentences of more than {seen[1]} tokens, longer than any in training, the loss per token is higher than "
        f"on those of {seen[0]} to {seen[1]} tokens by {with_interval(rise['sinusoidal'])} nats with sinusoids, by "
        f"{with_interval(rise['learned'])} with learned positions and by {with_interval(rise['none'])} without "
        f"positions; sinusoids minus learned: {with_interval(more, signed=True)} "
        f"({numbers['sentences'][2]} sentences, {numbers['steps']} steps)"
    )
    figure, axes = panels(2)
    names = [f"{low} to {high}" for low, high in numbers["buckets"][:2]] + [f"{unseen[0]} and more\n(not in training)"]
    for kind, values in nats.items():
        axes[0].plot(names, [mean_interval(each)[0] for each in zip(*values, strict=True)], marker="o", label=kind)
    axes[0].set(xlabel="source tokens", ylabel="nats per token")
    axes[0].grid(alpha=0.3)
    axes[0].legend(title="positions", fontsize=8)
    means = {kind: mean_interval(each) for kind, each in rise.items()}
    intervals(
        axes[1], means, "loss beyond the training lengths, minus\nloss of the longest in training, nats per token"
    )
    return Finding(verdict(mean_interval(more), -1), number, figure)


# ---- section 3.2.1: the factor 1 / sqrt(d_k) in training -----------------------------------------------------------


def measure_factor(setting: Setting) -> Numbers:
    def case(kind: str, seed: int) -> tuple[Recipe, bool, TestSet]:
        options = {f"model.{part}coder_attention_heads": "1" for part in ("en", "de")} | SHORT | {"seed": str(seed)}
        return recipe_for(setting, f"{kind.replace(' ', '-')}-seed{seed}", options), kind == "without it", text

    text = setting.development
    found = for_each_seed(setting, ("with the factor", "without it"), loss_by_factor, case)
    return {
        "steps": load_recipe(RECIPE, {**SHORT, **setting.options}).max_steps,
        "nats_per_token": {kind: [nats for nats, _ in each] for kind, each in found.items()},
        "losses": {kind: each[0][1] for kind, each in found.items()},
    }


def loss_by_factor(recipe: Recipe, without: bool, text: TestSet) -> tuple[float, Curve]:
    """Train a model, with the factor or without it; return its nats per token and the curve of its training loss."""
    translator, curve = trained_with(recipe, without_the_factor if without else lambda _: None)
    return nats_per_token(translator, text.sources, text.references), curve


def without_the_factor(module: nn.Module) -> None:
    if isinstance(module, MultiHeadAttention):
        module.scaling = 1.0


def judge_factor(numbers: Numbers) -> Finding:
    scaled, unscaled = numbers["nats_per_token"].values()
    worse = differences(unscaled, scaled)
    number = (
        f"with a single head, after {numbers['steps']} steps, the loss on the development set is "
        f"{with_interval(scaled)} nats per token with the factor and {with_interval(unscaled)} without it "
        f"(difference: {with_interval(worse, signed=True)})"
    )
    return Finding(verdict(mean_interval(worse), +1), number, loss_figure(numbers["losses"]))


# ---- an RNN on little text -----------------------------------------------------------------------------------------


PAIRS = (1000, 3000, 10_000, 29_000)
# Recipe keys for the files that `first_pairs` writes, wherever the text came from.
FILES = {"dataset": "null", "dataset_config": "null", "streaming": "false", "train": "train", "validation": "val"}


def measure_small_data(setting: Setting) -> Numbers:
    texts = dict(first_pairs(setting, count) for count in PAIRS)
    counts, models = sorted(texts), ("Transformer", "LSTM")

    def case(kind: tuple[str, int], seed: int) -> tuple[Recipe, bool, TestSet]:
        model, count = kind
        own = replace(setting, options={**setting.options, **FILES, "data": str(texts[count])})
        recipe = recipe_for(own, f"{model.lower()}-{count}-seed{seed}", {"seed": str(seed), **LONGER})
        return recipe, model == "LSTM", setting.development

    found = for_each_seed(setting, itertools.product(models, counts), bleu_of, case)
    by_seed = {model: zip(*(found[model, count] for count in counts), strict=True) for model in models}
    return {
        "steps": load_recipe(RECIPE, {**LONGER, **setting.options}).max_steps,
        "pairs": counts,
        "bleu": {model: [list(each) for each in values] for model, values in by_seed.items()},
    }


def first_pairs(setting: Setting, count: int) -> tuple[int, Path]:
    """Write the first pairs of the training text, and the development text beside them; return how many there are."""
    recipe = load_recipe(RECIPE, setting.options)
    chunks = itertools.chain.from_iterable(text.chunks() for text in parallel_texts(recipe, recipe.train))
    pairs = itertools.chain.from_iterable(zip(chunk.sources, chunk.targets, strict=True) for chunk in chunks)
    folder = setting.output / "claims" / "runs" / f"first-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [(source or "", target or "") for source, target in itertools.islice(pairs, count)]
    development = list(zip(setting.development.sources, setting.development.references, strict=True))
    for name, text in (("train", chosen), ("val", development)):
        for side, language in enumerate((recipe.source_language, recipe.target_language)):
            lines = "".join(f"{in_one_line(pair[side])}\n" for pair in text)
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
    return len(chosen), folder


def bleu_of(recipe: Recipe, is_lstm: bool, text: TestSet) -> float:
    """Train a Transformer or an LSTM of its size and return its BLEU with the search of section 6.1."""
    if not is_lstm:
        return corpus_bleu(trained(recipe).translate(text.sources, split_sentences=False), text.references)
    model, prepared = train_rnn(recipe)
    start, end = prepared.config.decoder_start_token_id, prepared.config.eos_token_id
    translations = []
    for sentence in text.sources:
        source = prepared.tokenizer(sentence)["input_ids"]
        limit = len(source) + 50
        found = search(model, source, beams=4, alpha=0.6, limit=limit, lookahead=5, start=start, end=end)
        translations.append(prepared.tokenizer.decode(found, skip_special_tokens=True))
    return corpus_bleu(translations, text.references)


def judge_small_data(numbers: Numbers) -> Finding:
    counts, bleu = numbers["pairs"], numbers["bleu"]
    of_size = {name: list(zip(*values, strict=True)) for name, values in bleu.items()}
    lead = [differences(*each) for each in zip(of_size["LSTM"], of_size["Transformer"], strict=True)]
    verdicts = {verdict(mean_interval(each), +1) for each in (lead[0], differences(lead[0], lead[-1]))}
    number = f"BLEU of the LSTM minus BLEU of the Transformer after {numbers['steps']} steps, nothing tuned to a size: "
    number += ", ".join(
        f"{with_interval(each, 1, signed=True)} from {count:,} pairs" for count, each in zip(counts, lead, strict=True)
    )
    figure, axes = panels(2)
    for name, values in of_size.items():
        axes[0].plot(counts, [mean_interval(each)[0] for each in values], marker="o", label=name)
    axes[0].set(xlabel="training pairs", ylabel="BLEU")
    axes[0].grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    measured_ticks(axes[0], set(counts))
    by_size = {f"{count:,}": mean_interval(each) for count, each in zip(counts, lead, strict=True)}
    intervals(axes[1], by_size, "BLEU of the LSTM minus the Transformer", zero=True)
    axes[1].set(xlabel="training pairs")
    return Finding(next(each for each in (FAILS, UNSURE, HOLDS) if each in verdicts), number, figure)


CLAIMS = {
    "training_without_the_factor": Claim(
        "A model with large d_k learns worse without the factor 1/√d_k (section 3.2.1)", measure_factor, judge_factor
    ),
    "warm_up": Claim(
        "Training without warm-up of the learning rate is worse (section 5.3)", measure_warm_up, judge_warm_up
    ),
    "length_extrapolation": Claim(
        "Beyond the lengths of its training, a model with sinusoids loses less than one with learned positions "
        "(section 3.5)",
        measure_extrapolation,
        judge_extrapolation,
    ),
    "small_data": Claim(
        "On little text, an RNN is better than a Transformer of its size, and on more text no longer (often repeated)",
        measure_small_data,
        judge_small_data,
    ),
}
