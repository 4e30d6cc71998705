"""Claims about the speed of the Transformer and of an RNN of its size."""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration

from ..cost import seconds_of_calls
from .claim import Result, Setting, curves
from .rnn import AttentiveRnn, State, rnn_of_size
from .rows import FAILS, HOLDS

LENGTHS = [10, 25, 50, 100, 200, 400]  # tokens of each sentence
SENTENCES = 16  # decoded together


def throughput(setting: Setting) -> Result:
    """A Transformer trains 10 to 100 times as fast as an RNN with attention (often repeated, not in the paper)."""
    transformer, rnns, device, clock = rivals()
    transformer.train()
    models: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "Transformer": lambda source, target: transformer(input_ids=source, decoder_input_ids=target).logits,
        **rnns,
    }
    series: dict[str, list[tuple[float, float]]] = {}
    for length, (name, model) in itertools.product(LENGTHS, models.items()):
        ids = torch.randint(4, VOCABULARY, (max(1, 2000 // length), length), device=device)

        def step(ids: Tensor = ids, model: Callable[[Tensor, Tensor], Tensor] = model) -> None:
            torch.nn.functional.cross_entropy(model(ids, ids).flatten(0, 1), ids.flatten()).backward()

        took = statistics.median(seconds_of_calls(step, device, setting.seconds, clock))
        series.setdefault(name, []).append((length, 2 * ids.numel() / took))
    return compared(series, "training tokens", device, lambda ratios: HOLDS if min(ratios) >= 10 else FAILS)


def decoding_throughput(setting: Setting) -> Result:
    """An RNN with attention decodes at least as fast as a Transformer with `generate()` (often repeated)."""
    transformer, rnns, device, clock = rivals()
    transformer.eval()
    series: dict[str, list[tuple[float, float]]] = {}
    for length in LENGTHS:
        ids = torch.randint(4, VOCABULARY, (SENTENCES, length), device=device)

        def generate(ids: Tensor = ids, length: int = length) -> None:
            transformer.generate(ids, num_beams=1, min_new_tokens=length, max_new_tokens=length)

        decoders: dict[str, Callable[[], object]] = {"Transformer": generate}
        for cell, model in rnns.items():
            decoders[cell] = lambda model=model, ids=ids, length=length: greedy(model, ids, length)
        for name, decode in decoders.items():
            took = statistics.median(seconds_of_calls(decode, device, setting.seconds, clock))
            series.setdefault(name, []).append((length, ids.numel() / took))

    def judge(ratios: list[float]) -> str:
        slower = sum(ratio <= 1 for ratio in ratios)
        return HOLDS if slower == len(ratios) else f"holds in {slower} of {len(ratios)} cases" if slower else FAILS

    return compared(series, f"tokens, {SENTENCES} sentences, greedy,", device, judge)


@torch.inference_mode()
def greedy(model: AttentiveRnn, source: Tensor, length: int) -> Tensor:
    """source: (batch, source) -> ids (batch, length)"""
    encoded = model.encode(source)
    state: State | None = None
    context, token, found = encoded.memory[:, 0] * 0, source[:, 0], []
    for _ in range(length):
        output, state, context = model.step(model.embedding(token), state, context, encoded)
        token = model.output(output).argmax(-1)
        found.append(token)
    return torch.stack(found, dim=1)


VOCABULARY = 2000
CELLS = ("GRU", "LSTM")
Clock = Callable[[], float]


def rivals() -> tuple[VaswaniTransformerForConditionalGeneration, dict[str, AttentiveRnn], torch.device, Clock]:
    """Return a Transformer, RNNs of its size, their device and the clock to use."""
    device = torch.device(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    config = VaswaniTransformerConfig(
        vocab_size=VOCABULARY, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512, dropout=0.0,
    )  # fmt: skip
    transformer = VaswaniTransformerForConditionalGeneration(config)
    cast(torch.nn.Module, transformer).to(device)
    parameters = transformer.num_parameters()
    rnns = {cell: rnn_of_size(parameters, VOCABULARY, cell.lower()).to(device) for cell in CELLS}
    # CPU time on a CPU, so that other programs do not count
    return transformer, rnns, device, time.process_time if device.type == "cpu" else time.perf_counter


def compared(
    series: dict[str, list[tuple[float, float]]], what: str, device: torch.device, judge: Callable[[list[float]], str]
) -> Result:
    """series: by model, (length, speed)"""
    speed = {name: dict(points) for name, points in series.items()}
    ratios = {cell: [speed["Transformer"][n] / speed[cell][n] for n in LENGTHS] for cell in CELLS}
    unit = "CPU second" if device.type == "cpu" else "second"
    numbers: dict[str, Any] = {
        "lengths": LENGTHS, "tokens_per_second": series, "ratios": ratios,
        "verdict": judge([ratio for values in ratios.values() for ratio in values]),
        "number": f"by tokens per {unit}, the Transformer is "
        + " and ".join(
            f"{min(values):.2f} to {max(values):.2f} times as fast as the {cell}"
            for cell, values in ratios.items()
        ),
    }  # fmt: skip
    return numbers, curves(series, "sentence length", f"{what} per {unit}")
