"""The claim of section 3.5 about sentences that are longer than those seen in training."""

from functools import partial

import torch
from torch import Tensor, nn

from training.evaluate import EvaluationText
from training.recipe import Recipe
from training.scores import corpus_bleu
from vaswani_transformer.errors import InputError
from vaswani_transformer.modeling_vaswani_transformer import PositionalEncoding, Stack

from ..plots import make_panels, plot_intervals, plot_means
from ..table3 import nats_per_token
from ..verdicts import estimate_mean, format_mean, judge, subtract
from .claim import Judgement, Measurements, Setting
from .comparison import LONG_STEPS, Change, Variant, train_and_load, train_models

BUCKETS = ((1, 10), (11, 20), (21, 256))  # source tokens; models are trained on the first two buckets
LONGEST = {"max_length": str(BUCKETS[1][1])}


def measure_length_extrapolation(setting: Setting) -> Measurements:
    """Return nats per token and BLEU, {positions: [[value for each bucket of lengths] for each seed]}."""
    text = setting.development
    models = {
        kind: Variant(kind, LONGEST | {"model.position_embedding_type": kind}, partial(measure_by_length, text, None))
        for kind in ("sinusoidal", "learned")
    }
    models["none"] = Variant("none", LONGEST, partial(measure_by_length, text, remove_positions))
    measurements = train_models(setting, models, LONG_STEPS)
    return measurements | {"buckets": BUCKETS, "sentences": measurements["sentences"]["none"][0]}


def measure_by_length(text: EvaluationText, change: Change | None, recipe: Recipe) -> Measurements:
    """Train a model and return nats per token, BLEU and the number of sentences for each bucket of source lengths."""
    translator = train_and_load(recipe, change)
    lengths = [len(ids) for ids in translator.tokenizer(text.sources)["input_ids"]]
    measured: Measurements = {"sentences": [], "nats_per_token": [], "bleu": []}
    for low, high in BUCKETS:
        chosen = [number for number, length in enumerate(lengths) if low <= length <= high]
        if not chosen:
            raise InputError(
                f"none of the {len(lengths)} development sentences has {low} to {high} tokens; raise --sentences"
            )
        sources, references = ([side[number] for number in chosen] for side in (text.sources, text.references))
        translations = translator.translate(sources, split_sentences=False, max_source_length=256)
        measured["sentences"].append(len(chosen))
        measured["nats_per_token"].append(nats_per_token(translator, sources, references))
        measured["bleu"].append(corpus_bleu(translations, references))
    return measured


def remove_positions(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Stack):
            module.positional_encoding = NoPositions(module.config)


class NoPositions(PositionalEncoding):
    def forward(self, start: int | Tensor, length: int, device: torch.device) -> Tensor:
        return torch.zeros_like(super().forward(start, length, device))


def judge_length_extrapolation(measurements: Measurements) -> Judgement:
    nats, (short, long, unseen) = measurements["nats_per_token"], measurements["buckets"]
    # How much higher the loss is on unseen lengths than on the longest lengths seen in training.
    rise = {kind: [buckets[2] - buckets[1] for buckets in by_seed] for kind, by_seed in nats.items()}
    more = subtract(rise["sinusoidal"], rise["learned"])
    evidence = (
        f"on sentences of more than {long[1]} tokens, longer than any in training, the loss per token is higher than "
        f"on those of {long[0]} to {long[1]} tokens by {format_mean(rise['sinusoidal'])} nats with sinusoidal "
        f"positions, by {format_mean(rise['learned'])} with learned positions and by {format_mean(rise['none'])} "
        f"without positions; sinusoidal minus learned: {format_mean(more, signed=True)} "
        f"({measurements['sentences'][2]} sentences, {measurements['steps']} steps)"
    )
    figure, (left, right) = make_panels(2)
    names = [*(f"{low} to {high}" for low, high in (short, long)), f"{unseen[0]} and more\n(not in training)"]
    plot_means(left, names, nats, "source tokens", "nats per token", legend="positions")
    means = {kind: estimate_mean(by_seed) for kind, by_seed in rise.items()}
    plot_intervals(
        right, means, "loss beyond the training lengths, minus\nloss of the longest in training, nats per token"
    )
    return Judgement(judge(estimate_mean(more), expected_sign=-1), evidence, figure)
