"""The claim that an RNN beats a Transformer on little training data."""

from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from training.evaluate import EvaluationText
from training.parallel_text import open_texts
from training.recipe import Recipe, load_recipe
from training.scores import corpus_bleu
from vaswani_transformer.lines import remove_line_breaks

from ..fit_model import train_lstm
from ..plots import make_panels, plot_intervals, plot_means, set_log_x
from ..rnn import beam_search
from ..table3 import RECIPE
from ..verdicts import FAILS, HOLDS, UNSURE, estimate_mean, format_mean, judge, subtract
from .claim import Judgement, Measurements, Setting
from .comparison import LONG_STEPS, Variant, train_and_load, train_models

PAIRS = (1000, 3000, 10_000, 29_000)
# Recipe keys for the files that `write_first_pairs` writes, whatever the source of the text.
FILES = {"dataset": "null", "train": "train", "validation": "val"}


def measure_small_data(setting: Setting) -> Measurements:
    """Return {system: [[BLEU for each number of training pairs] for each seed]}."""
    folders = dict(write_first_pairs(setting, count) for count in PAIRS)
    counts = sorted(folders)
    systems = {"Transformer": measure_transformer, "LSTM": measure_lstm}
    models = {
        (system, count): Variant(
            f"{system.lower()}-{count}", FILES | {"data": str(folders[count])}, partial(measure, setting.development)
        )
        for system, measure in systems.items()
        for count in counts
    }
    measurements = train_models(setting, models, LONG_STEPS)
    bleu = {}
    for system in systems:
        by_count = [measurements["bleu"][system, count] for count in counts]
        bleu[system] = [list(of_seed) for of_seed in zip(*by_count, strict=True)]
    return measurements | {"pairs": counts, "bleu": bleu}


def write_first_pairs(setting: Setting, count: int) -> tuple[int, Path]:
    """Write the first training pairs and the development text; return the number of training pairs and the folder."""
    recipe = load_recipe(RECIPE, setting.options)
    pairs = chain.from_iterable(text.pairs() for text in open_texts(recipe, recipe.train))
    folder = setting.runs / f"first-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [(source or "", target or "") for _, source, target in islice(pairs, count)]
    development = list(zip(setting.development.sources, setting.development.references, strict=True))
    for name, text in (("train", chosen), ("val", development)):
        for side, language in enumerate(recipe.languages):
            lines = "".join(f"{remove_line_breaks(pair[side])}\n" for pair in text)
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
    return len(chosen), folder


def measure_transformer(text: EvaluationText, recipe: Recipe) -> Measurements:
    translations = train_and_load(recipe).translate(text.sources, split_sentences=False)
    return {"bleu": corpus_bleu(translations, text.references)}


def measure_lstm(text: EvaluationText, recipe: Recipe) -> Measurements:
    """Train an LSTM of the same size and return its BLEU with the search of section 6.1."""
    model, run = train_lstm(recipe)
    config: Any = run.network.model.config
    start, end = config.decoder_start_token_id, config.eos_token_id
    translations = []
    for sentence in text.sources:
        source = run.corpora.tokenizer(sentence)["input_ids"]
        limit = len(source) + 50
        ids = beam_search(model, source, beams=4, alpha=0.6, limit=limit, lookahead=5, start=start, end=end)
        translations.append(run.corpora.tokenizer.decode(ids, skip_special_tokens=True))
    return {"bleu": corpus_bleu(translations, text.references)}


def judge_small_data(measurements: Measurements) -> Judgement:
    counts, bleu = measurements["pairs"], measurements["bleu"]
    by_count = {system: list(zip(*by_seed, strict=True)) for system, by_seed in bleu.items()}
    leads = [subtract(*pair) for pair in zip(by_count["LSTM"], by_count["Transformer"], strict=True)]
    on_little = judge(estimate_mean(leads[0]), expected_sign=+1)
    on_more = judge(estimate_mean(leads[-1]), expected_sign=-1)
    worse = next(found for found in (FAILS, UNSURE, HOLDS) if found in (on_little, on_more))  # both parts must hold
    evidence = (
        f"BLEU of the LSTM minus BLEU of the Transformer after {measurements['steps']} steps, with the same "
        "hyperparameters for every size: "
    )
    evidence += ", ".join(
        f"{format_mean(lead, 1, signed=True)} from {count:,} pairs" for count, lead in zip(counts, leads, strict=True)
    )
    figure, (left, right) = make_panels(2)
    plot_means(left, counts, bleu, "training pairs", "BLEU")
    set_log_x(left, set(counts))
    plot_intervals(
        right,
        {f"{count:,}": estimate_mean(lead) for count, lead in zip(counts, leads, strict=True)},
        "BLEU of the LSTM minus the Transformer",
        zero=True,
    )
    right.set(xlabel="training pairs")
    return Judgement(worse, evidence, figure)
