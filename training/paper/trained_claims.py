"""Claims for which models of Table 3's recipe are trained."""

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import in_one_line
from vaswani_transformer.modeling_vaswani_transformer import MultiHeadAttention, PositionalEncoding, Stack
from vaswani_transformer.pictures import curves_of

from ..json_files import read_json
from ..parallel_text import parallel_texts
from ..recipe import Recipe, load_recipe
from ..scores import corpus_bleu
from ..test_sets import TestSet
from ..train import train
from .claim import Result, Setting, curves, intervals
from .fit import Curve, fit, prepared
from .rnn import search, train_rnn
from .rows import FAILS, HOLDS, UNSURE, mean_interval, verdict, with_interval
from .table3 import RECIPE, claims_of, nats_per_token

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
    nats = mean_interval([100 * math.log(ratio) for ratio in each["perplexity_ratio"]])
    differences = {"BLEU": each["bleu_difference"], "log-perplexity, hundredths of a nat": nats}
    return {
        "seeds_compared": each["seeds"],
        "verdict": f"BLEU: {each['bleu_verdict']}; perplexity: {each['perplexity_verdict']}",
        "number": f"without smoothing, BLEU {each['bleu_shown']} and log-perplexity {each['perplexity_shown']} "
        "hundredths of a nat against the base row",
        "seeds": [],  # those of Table 3
    }, intervals(differences, "without label smoothing, minus with it")


# ---- training ------------------------------------------------------------------------------------------------------


LENGTH = {"max_steps", "validate_every"}  # keys of recipes
# So that all claims together, with one seed, take half an hour.
SHORT = {"max_steps": "300", "validate_every": "300"}
LONGER = {"max_steps": "800", "validate_every": "800"}


def recipe_for(setting: Setting, name: str, own: dict[str, str]) -> Recipe:
    """Return the recipe of Table 3 with the claim's own options and the user's, which may change its length.

    Raises InputError if the user sets what the claim compares.
    """
    for key in own.keys() & setting.options.keys() - LENGTH:
        raise InputError(f"--{key}: the claim sets it; leave it out")
    folder = setting.output / "claims" / "runs" / name
    return load_recipe(RECIPE, {**own, **setting.options, "output_dir": str(folder)})


def trained(recipe: Recipe) -> Path:
    """Train a model, or resume its training, and return its folder. Raises InputError if its recipe was another."""
    train(recipe)
    return Path(recipe.output_dir)


def trained_with(recipe: Recipe, change: Callable[[nn.Module], None]) -> tuple[Translator, Curve]:
    """Change each module of a new model and train it as the recipe says, in float32 and without checkpoints."""
    text = prepared(recipe)
    for module in list(text.model.modules()):
        change(module)

    def forward(source: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        return cast(Tensor, text.model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits)

    betas = (recipe.adam_beta1, recipe.adam_beta2)
    curve = fit(cast(nn.Module, text.model), forward, text, text.learning_rate, betas)
    return Translator(text.model, text.tokenizer), curve


# ---- section 5.3: warm-up ------------------------------------------------------------------------------------------


def warm_up(setting: Setting) -> Result:
    """Training without warm-up of the learning rate is worse."""
    losses: dict[str, list[float]] = {}
    series: dict[str, Curve] = {}
    base = load_recipe(RECIPE, {**SHORT, **setting.options})
    assert base.learning_rate is not None
    for warmup, seed in itertools.product((1, 100), setting.seeds):
        # The rate falls with the root of the step, so that it is the same from step 100 on.
        options = {"warmup_steps": str(warmup), "learning_rate": str(base.learning_rate * (100 / warmup) ** 0.5)}
        options |= {"seed": str(seed), "decay_share": "0", **SHORT}
        recipe = recipe_for(setting, f"warmup{warmup}-seed{seed}", options)
        found = curves_of(trained(recipe) / "metrics.jsonl")
        losses.setdefault(f"{warmup} steps", []).append(found["validation_loss"][max(found["validation_loss"])])
        series.setdefault("with warm-up" if warmup > 1 else "without warm-up", list(found["loss"].items()))  # first seed
    none, some = losses.values()
    numbers = {
        "validation_loss": losses,
        "verdict": verdict([a - b for a, b in zip(none, some, strict=True)], +1, 0),
        "number": f"validation loss after {base.max_steps} steps {with_interval(none)} without, {with_interval(some)} "
        "with 100 steps of warm-up",
    }
    return numbers, curves(series, "step", "training loss, label-smoothed", log=("linear", "linear"))


# ---- section 3.5: positions ----------------------------------------------------------------------------------------


BUCKETS = ((1, 10), (11, 20), (21, 256))  # source tokens; models are trained on the first two


def length_extrapolation(setting: Setting) -> Result:
    """Beyond the lengths of its training, a model with sinusoids loses less than one with learned positions."""
    nats: dict[str, list[list[float]]] = {}
    bleu: dict[str, list[list[float]]] = {}
    sentences: list[int] = []
    for kind, seed in itertools.product(("sinusoidal", "learned", "none"), setting.seeds):
        options = {"seed": str(seed), "max_length": str(BUCKETS[1][1]), **LONGER}
        if kind == "none":
            translator, _ = trained_with(recipe_for(setting, f"{kind}-seed{seed}", options), without_positions)
        else:
            options["model.position_embedding_type"] = kind
            translator = Translator.from_pretrained(trained(recipe_for(setting, f"{kind}-seed{seed}", options)))
        measured = [by_length(translator, setting.development, *bucket) for bucket in BUCKETS]
        nats.setdefault(kind, []).append([each[0] for each in measured])
        bleu.setdefault(kind, []).append([each[1] for each in measured])
        sentences = [each[2] for each in measured]
    # The loss of the unseen lengths over that of the longest seen ones.
    rise = {kind: [each[2] - each[1] for each in values] for kind, values in nats.items()}
    better = [a - b for a, b in zip(rise["sinusoidal"], rise["learned"], strict=True)]
    numbers = {
        "buckets": BUCKETS, "sentences": sentences, "nats_per_token": nats, "bleu": bleu,
        "verdict": verdict(better, -1, 0),
        "number": f"beyond {BUCKETS[1][1]} tokens ({sentences[2]} sentences), the loss rises by "
        f"{with_interval(rise['sinusoidal'])} nats per token with sinusoids, by {with_interval(rise['learned'])} with "
        f"learned positions and by {with_interval(rise['none'])} without positions",
    }  # fmt: skip
    series = {
        kind: [(low, mean_interval([each[n] for each in values])[0]) for n, (low, _) in enumerate(BUCKETS)]
        for kind, values in nats.items()
    }
    return numbers, curves(series, "source tokens, from", "nats per token", log=("linear", "linear"))


def by_length(translator: Translator, text: TestSet, low: int, high: int) -> tuple[float, float, int]:
    """Return nats per token and BLEU of the sentences with that many source tokens, and how many they are."""
    counts = [len(ids) for ids in translator.tokenizer(text.sources)["input_ids"]]
    chosen = [n for n, count in enumerate(counts) if low <= count <= high]
    if not chosen:
        raise InputError(f"no sentence of {low} to {high} tokens among the {len(counts)} read; raise --sentences")
    sources, references = ([side[n] for n in chosen] for side in (text.sources, text.references))
    translations = translator.translate(sources, split_sentences=False, max_source_length=256)
    return nats_per_token(translator, sources, references), corpus_bleu(translations, references), len(chosen)


class NoPositions(PositionalEncoding):
    def forward(self, start: int | Tensor, length: int, device: torch.device) -> Tensor:
        return torch.zeros_like(super().forward(start, length, device))


def without_positions(module: nn.Module) -> None:
    if isinstance(module, Stack):
        module.positional_encoding = NoPositions(module.config)


# ---- section 3.2.1: the factor 1 / sqrt(d_k) in training -----------------------------------------------------------


def training_without_the_factor(setting: Setting) -> Result:
    """A model with large d_k learns worse without the factor 1 / sqrt(d_k)."""
    nats: dict[str, list[float]] = {}
    series: dict[str, Curve] = {}
    text, options = setting.development, {f"model.{part}coder_attention_heads": "1" for part in ("en", "de")} | SHORT
    steps = load_recipe(RECIPE, {**options, **setting.options}).max_steps
    for kind, seed in itertools.product(("with the factor", "without it"), setting.seeds):
        recipe = recipe_for(setting, f"{kind.replace(' ', '-')}-seed{seed}", options | {"seed": str(seed)})
        translator, curve = trained_with(recipe, without_the_factor if kind == "without it" else lambda _: None)
        nats.setdefault(kind, []).append(nats_per_token(translator, text.sources, text.references))
        series.setdefault(kind, curve)  # of the first seed
    scaled, unscaled = nats.values()
    numbers = {
        "nats_per_token": nats, "losses": series,
        "verdict": verdict([a - b for a, b in zip(unscaled, scaled, strict=True)], +1, 0),
        "number": f"with one head, after {steps} steps {with_interval(scaled)} nats per token with the "
        f"factor, {with_interval(unscaled)} without it",
    }  # fmt: skip
    return numbers, curves(series, "step", "training loss, label-smoothed", log=("linear", "linear"))


def without_the_factor(module: nn.Module) -> None:
    if isinstance(module, MultiHeadAttention):
        module.scaling = 1.0


# ---- an RNN on little text -----------------------------------------------------------------------------------------


PAIRS = (1000, 3000, 10_000, 29_000)
# Recipe keys for the files that `first_pairs` writes, wherever the text came from.
FILES = {"dataset": "null", "dataset_config": "null", "streaming": "false", "train": "train", "validation": "val"}


def small_data(setting: Setting) -> Result:
    """On little text, an RNN is better than a Transformer of its size, and on more text no longer (often repeated)."""
    bleu: dict[str, list[list[float]]] = {}
    texts = dict(first_pairs(setting, count) for count in PAIRS)
    counts, steps = sorted(texts), load_recipe(RECIPE, {**LONGER, **setting.options}).max_steps
    for seed in setting.seeds:
        for name, translate in (("Transformer", with_transformer), ("LSTM", with_lstm)):
            found = []
            for count in counts:
                own = replace(setting, options={**setting.options, **FILES, "data": str(texts[count])})
                recipe = recipe_for(own, f"{name.lower()}-{count}-seed{seed}", {"seed": str(seed), **LONGER})
                translations = translate(recipe, setting.development.sources)
                found.append(corpus_bleu(translations, setting.development.references))
            bleu.setdefault(name, []).append(found)
    means = {name: [statistics.mean(each) for each in zip(*values, strict=True)] for name, values in bleu.items()}
    lead = [[a - b for a, b in zip(*each, strict=True)] for each in zip(bleu["LSTM"], bleu["Transformer"], strict=True)]
    verdicts = {verdict([each[0] for each in lead], +1, 0), verdict([each[0] - each[-1] for each in lead], +1, 0)}
    numbers = {
        "pairs": counts, "bleu": bleu,
        "verdict": next(each for each in (FAILS, UNSURE, HOLDS) if each in verdicts),
        "number": f"BLEU of the LSTM and the Transformer, {steps} steps each, nothing tuned to a size: "
        + "; ".join(
            f"{means['LSTM'][n]:.1f} and {means['Transformer'][n]:.1f} from {count:,} pairs"
            for n, count in enumerate(counts)
        ),
    }  # fmt: skip
    series = {name: list(zip(map(float, counts), values, strict=True)) for name, values in means.items()}
    return numbers, curves(series, "training pairs", "BLEU", log=("log", "linear"))


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


def with_transformer(recipe: Recipe, sentences: list[str]) -> list[str]:
    return Translator.from_pretrained(trained(recipe)).translate(sentences, split_sentences=False)


def with_lstm(recipe: Recipe, sentences: list[str]) -> list[str]:
    """Translate with the search of section 6.1, as `Translator` does."""
    model, text = train_rnn(recipe)
    translations = []
    for sentence in sentences:
        source = text.tokenizer(sentence)["input_ids"]
        found = search(
            model,
            source,
            beams=4,
            alpha=0.6,
            limit=len(source) + 50,
            lookahead=5,
            start=text.config.decoder_start_token_id,
            end=text.config.eos_token_id,
        )
        translations.append(text.tokenizer.decode(found, skip_special_tokens=True))
    return translations
