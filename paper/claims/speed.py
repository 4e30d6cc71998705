"""Claims about the speed of a Transformer and of RNNs of the same size."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from training.machine import this_device
from training.metrics import time_calls
from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration

from ..plots import make_panels, plot_curves, set_log_y
from ..rnn import RnnWithAttention, State, make_rnn
from ..verdicts import FAILS, HOLDS
from .claim import Judgement, Measurements, Setting

LENGTHS = [10, 25, 50, 100, 200, 400]  # tokens of each sentence
SENTENCES = 16  # decoded together
VOCABULARY = 2000
CELLS = ("GRU", "LSTM")
CLAIMED_FACTOR = 10  # by which a Transformer is said to train faster, at least


def measure_training_speed(setting: Setting) -> Measurements:
    return measure_speeds(take_training_step, setting.seconds, is_training=True)


def measure_decoding_speed(setting: Setting) -> Measurements:
    return measure_speeds(decode, setting.seconds, is_training=False)


def take_training_step(model: nn.Module, ids: Tensor) -> None:
    is_rnn = isinstance(model, RnnWithAttention)
    logits = model(ids, ids) if is_rnn else model(input_ids=ids, decoder_input_ids=ids).logits
    nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()


def decode(model: nn.Module, ids: Tensor) -> None:
    length = ids.shape[1]
    if isinstance(model, RnnWithAttention):
        decode_greedily(model, ids, length)
    else:
        cast(Any, model).generate(ids, num_beams=1, min_new_tokens=length, max_new_tokens=length)


@torch.inference_mode()
def decode_greedily(model: RnnWithAttention, source: Tensor, length: int) -> Tensor:
    """Decode greedily. source: (batch, source) -> ids (batch, length)"""
    encoded = model.encode(source)
    state: State | None = None
    context, token, tokens = torch.zeros_like(encoded.memory[:, 0]), source[:, 0], []
    for _ in range(length):
        output, state, context = model.step(model.embedding(token), state, context, encoded)
        token = model.output(output).argmax(-1)
        tokens.append(token)
    return torch.stack(tokens, dim=1)


def measure_speeds(work: Callable[[nn.Module, Tensor], None], seconds: float, is_training: bool) -> Measurements:
    """Measure tokens per second of a Transformer and of RNNs of the same size, by sentence length.

    work: trains or decodes once;  seconds: per measurement
    Returns {model: [(length, tokens per second)]} and {RNN: [speed of the Transformer / its speed for each length]}.
    """
    device = this_device()
    config = VaswaniTransformerConfig(
        vocab_size=VOCABULARY, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512, dropout=0.0,
    )  # fmt: skip
    transformer = VaswaniTransformerForConditionalGeneration(config)
    models = {"Transformer": cast(nn.Module, transformer)}
    models |= {cell: make_rnn(transformer.num_parameters(), VOCABULARY, cell.lower()) for cell in CELLS}
    # On a CPU, measure CPU time: other programs do not change it.
    unit, clock = ("second of CPU time", time.process_time) if device.type == "cpu" else ("second", time.perf_counter)
    series: dict[str, list[tuple[int, float]]] = {}
    for length in LENGTHS:
        sentences = max(1, 2000 // length) if is_training else SENTENCES
        ids = torch.randint(4, VOCABULARY, (sentences, length), device=device)
        tokens = 2 * ids.numel() if is_training else ids.numel()
        for name, model in models.items():
            model.to(device).train(is_training)
            median = statistics.median(time_calls(partial(work, model, ids), device, seconds, clock))
            series.setdefault(name, []).append((length, tokens / median))
    speeds = {name: [speed for _, speed in points] for name, points in series.items()}
    ratios = {cell: [a / b for a, b in zip(speeds["Transformer"], speeds[cell], strict=True)] for cell in CELLS}
    return {"lengths": LENGTHS, "unit": unit, "tokens_per_second": series, "ratios": ratios}


def judge_training_speed(measurements: Measurements) -> Judgement:
    slowest = min(min(ratios) for ratios in measurements["ratios"].values())
    return judge_speeds(measurements, HOLDS if slowest >= CLAIMED_FACTOR else FAILS, "trains on", "training tokens")


def judge_decoding_speed(measurements: Measurements) -> Judgement:
    ratios = [ratio for by_length in measurements["ratios"].values() for ratio in by_length]
    slower = sum(ratio <= 1 for ratio in ratios)
    verdict = {0: FAILS, len(ratios): HOLDS}.get(slower, f"reproduced in {slower} of {len(ratios)} cases")
    return judge_speeds(measurements, verdict, "decodes", f"decoded tokens (greedy, {SENTENCES} sentences)")


def judge_speeds(measurements: Measurements, verdict: str, verb: str, counted: str) -> Judgement:
    """Compare the speeds. verb: of the evidence;  counted: label of the y axis"""
    unit = measurements["unit"]
    evidence = f"per {unit}, the Transformer {verb} " + " and ".join(
        f"{min(ratios):.2f} to {max(ratios):.2f} times as many tokens as the {cell}"
        for cell, ratios in measurements["ratios"].items()
    )
    figure, (axis,) = make_panels()
    plot_curves(axis, measurements["tokens_per_second"], "tokens of a sentence", f"{counted}\nper {unit}", log_x=True)
    set_log_y(axis)
    return Judgement(verdict, evidence, figure)
