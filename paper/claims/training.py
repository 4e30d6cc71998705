"""Claims about training: warm-up, the factor 1 / sqrt(d_k) and label smoothing."""

import math
from functools import partial
from pathlib import Path

from torch import nn

from training.evaluate import EvaluationText
from training.recipe import Recipe, load_recipe
from training.train import train
from vaswani_transformer.errors import InputError
from vaswani_transformer.files import read_json_object
from vaswani_transformer.modeling_vaswani_transformer import MultiHeadAttention
from vaswani_transformer.training_run import METRICS, read_curves

from ..plots import make_panels, plot_curves, plot_intervals
from ..table3 import RECIPE, nats_per_token
from ..verdicts import estimate_mean, format_interval, format_mean, judge, subtract
from .claim import Judgement, Measurements, Setting
from .comparison import SHORT_STEPS, Change, Variant, train_and_load, train_models

LOSS = "training loss, label-smoothed (first seed)"

# ---- section 5.3: warm-up ------------------------------------------------------------------------------------------


def measure_warm_up(setting: Setting) -> Measurements:
    """Return {model: [final validation loss for each seed]} and {model: loss curve of the first seed}."""
    peak = load_recipe(RECIPE).learning_rate
    assert peak is not None
    # The rate falls with the square root of the step, so both models have the same rate from step 100 on.
    without = {"warmup_steps": "1", "learning_rate": str(peak * 10), "decay_share": "0"}
    with_warm_up = {"warmup_steps": "100", "learning_rate": str(peak), "decay_share": "0"}
    models = {
        "without warm-up": Variant("warmup1", without, measure_losses),
        "with warm-up": Variant("warmup100", with_warm_up, measure_losses),
    }
    return keep_first_losses(train_models(setting, models, SHORT_STEPS))


def measure_losses(recipe: Recipe) -> Measurements:
    """Train a model and return its final validation loss and its training loss curve."""
    train(recipe)
    curves = read_losses(recipe)
    last = curves["validation_loss"][max(curves["validation_loss"])]
    return {"validation_loss": last, "losses": list(curves["loss"].items())}


def read_losses(recipe: Recipe) -> dict[str, dict[int, float]]:
    """Return the curves of a trained model, {"loss": {step: loss}, "validation_loss": ...}."""
    return read_curves(Path(recipe.output_dir) / METRICS)


def keep_first_losses(measurements: Measurements) -> Measurements:
    """Keep only the loss curve of the first seed."""
    return measurements | {"losses": {kind: by_seed[0] for kind, by_seed in measurements["losses"].items()}}


def judge_warm_up(measurements: Measurements) -> Judgement:
    without, with_warm_up = measurements["validation_loss"].values()
    worse = subtract(without, with_warm_up)
    evidence = (
        f"after {measurements['steps']} steps, the validation loss is {format_mean(without)} without warm-up and "
        f"{format_mean(with_warm_up)} with 100 steps of it (difference: {format_mean(worse, signed=True)}); "
        "from step 100 on, both learning rates are equal"
    )
    figure, (axis,) = make_panels()
    if "losses" in measurements:
        plot_curves(axis, measurements["losses"], "step", LOSS)
    else:  # the published result was measured without the curves
        means = {kind: estimate_mean(by_seed) for kind, by_seed in measurements["validation_loss"].items()}
        plot_intervals(axis, means, f"validation loss after {measurements['steps']} steps")
    return Judgement(judge(estimate_mean(worse), expected_sign=+1), evidence, figure)


# ---- section 3.2.1: the factor 1 / sqrt(d_k) -----------------------------------------------------------------------


def measure_training_without_the_factor(setting: Setting) -> Measurements:
    """Return {model: [nats per token for each seed]} and {model: loss curve of the first seed}."""
    one_head = {"model.encoder_attention_heads": "1", "model.decoder_attention_heads": "1"}
    models = {
        "with the factor": Variant("with-the-factor", one_head, partial(measure_change, setting.development, None)),
        "without it": Variant("without-it", one_head, partial(measure_change, setting.development, remove_factor)),
    }
    return keep_first_losses(train_models(setting, models, SHORT_STEPS))


def measure_change(text: EvaluationText, change: Change | None, recipe: Recipe) -> Measurements:
    """Train a model and return its nats per token and its training loss curve."""
    translator = train_and_load(recipe, change)
    nats = nats_per_token(translator, text.sources, text.references)
    return {"nats_per_token": nats, "losses": list(read_losses(recipe)["loss"].items())}


def remove_factor(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.scaling = 1.0


def judge_training_without_the_factor(measurements: Measurements) -> Judgement:
    scaled, unscaled = measurements["nats_per_token"].values()
    worse = subtract(unscaled, scaled)
    evidence = (
        f"with a single head, after {measurements['steps']} steps, the loss on the development set is "
        f"{format_mean(scaled)} nats per token with the factor and {format_mean(unscaled)} without it "
        f"(difference: {format_mean(worse, signed=True)})"
    )
    figure, (axis,) = make_panels()
    plot_curves(axis, measurements["losses"], "step", LOSS)
    return Judgement(judge(estimate_mean(worse), expected_sign=+1), evidence, figure)


# ---- section 5.4: label smoothing, judged by the models of Table 3 ---------------------------------------------------


WITHOUT_SMOOTHING = "D-ls0.0"  # a row of Table 3


def measure_label_smoothing(setting: Setting) -> Measurements:
    """Return the differences that removing label smoothing makes in BLEU and log-perplexity, for each seed."""
    path = setting.output / "table3.json"
    rows = read_json_object(path)["rows"] if path.is_file() else []
    with_it, without = (
        {row["seed"]: row for row in rows if row["row"] == name} for name in ("base", WITHOUT_SMOOTHING)
    )
    seeds = sorted(with_it.keys() & without.keys())
    if not seeds:
        raise InputError(
            f"{path} has no rows base and {WITHOUT_SMOOTHING} with the same seed; run `python -m paper "
            f"table3 --rows base,{WITHOUT_SMOOTHING} --output {setting.output}` first"
        )
    return {
        "seeds_compared": seeds,
        "bleu_difference": [without[seed]["bleu"] - with_it[seed]["bleu"] for seed in seeds],
        "log_perplexity_difference": [
            math.log(without[seed]["perplexity"] / with_it[seed]["perplexity"]) for seed in seeds
        ],
    }


def judge_label_smoothing(measurements: Measurements) -> Judgement:
    log_perplexity = estimate_mean(measurements["log_perplexity_difference"])
    bleu = estimate_mean(measurements["bleu_difference"])
    evidence = (
        f"without label smoothing, the log-perplexity changes by {format_interval(log_perplexity, 3, signed=True)} "
        f"nats per token and BLEU by {format_interval(bleu, signed=True)}"
    )
    figure, axes = make_panels(2)
    label = "without label smoothing, minus with it"
    y = "log-perplexity, nats per token\n(below 0: better without)"
    plot_intervals(axes[0], {label: log_perplexity}, y, zero=True)
    plot_intervals(axes[1], {label: bleu}, "BLEU\n(below 0: worse without)", zero=True)
    on_perplexity, on_bleu = (judge(difference, expected_sign=-1) for difference in (log_perplexity, bleu))
    return Judgement(f"perplexity: {on_perplexity}; BLEU: {on_bleu}", evidence, figure)
