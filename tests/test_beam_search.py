"""The search in tensors gives what `generate()` gives, token for token, for every switch of the configuration."""

import warnings
from typing import Any

import pytest
import torch
from brute_force import beam_search as slow_beam_search
from brute_force import full_forward
from conftest import ModelMaker, padded, random_sentences
from searches import OFFSET, SWITCHES, batch_for, by_generate, by_search, check_same, stripped
from torch import nn

from vaswani_transformer.beam_search import beam_search


def compared(model: Any, batch: dict[str, Any], beams: int, alpha: float) -> int:
    """Check that `beam_search` and `generate()` agree; return the number of hypotheses."""
    return check_same(by_search(model, batch, beams, alpha), by_generate(model, batch, beams, alpha))


def best_of(model: Any, batch: dict[str, Any], **settings: Any) -> list[list[int]]:
    sequences, _ = beam_search(model, **batch, max_source_length_offset=OFFSET, **settings)
    return [stripped(row) for row in sequences[:, 0].tolist()]


@pytest.mark.parametrize("switches", SWITCHES)
def test_every_hypothesis_equals_that_of_generate(lively_model: ModelMaker, switches: str) -> None:
    """A padded batch of nine sentences, complete n-best lists of 1 to 8 beams."""
    model = lively_model(len(switches), **SWITCHES[switches])
    batch = batch_for(model, len(switches))
    count = sum(compared(model, batch, beams, alpha) for beams, alpha in ((1, 0.6), (4, 0.0), (8, 1.0)))
    # 9 x (1 + 4 + 8) = 117 if all hypotheses finish.
    assert count >= 50


class Adapted(nn.Module):
    """A layer that adds to its output and whose `weight` is that of the base layer, as in PEFT's LoRA."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer
        self.added = nn.Linear(layer.in_features, layer.out_features, bias=False)
        nn.init.normal_(self.added.weight)

    @property
    def weight(self) -> torch.Tensor:
        return self.layer.weight

    @property
    def bias(self) -> torch.Tensor | None:
        return self.layer.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.layer(states) + self.added(states)


def test_adapters_on_queries_and_values_are_applied(lively_model: ModelMaker) -> None:
    model = lively_model(1)
    batch = batch_for(model, 1)
    before = best_of(model, batch)
    torch.manual_seed(0)
    for layer in model.model.decoder.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
        layer.self_attn.v_proj = Adapted(layer.self_attn.v_proj)
    compared(model, batch, 4, 0.6)
    assert best_of(model, batch) != before


def test_quantised_layers_are_called(lively_model: ModelMaker) -> None:
    with warnings.catch_warnings(action="ignore"):  # deprecated in torch
        model = torch.ao.quantization.quantize_dynamic(lively_model(2), {nn.Linear})
    assert type(model.model.decoder.layers[0].self_attn.q_proj) is not nn.Linear
    # A product has one scale for all its rows: both searches quantise alike only for one sentence and one beam.
    for sentence in random_sentences(2, count=9, vocab_size=model.config.vocab_size, longest=9):
        compared(model, padded([sentence]), 1, 0.6)


def test_offloaded_layers_are_called(lively_model: ModelMaker) -> None:
    """Their weights are on no device until they run."""
    accelerate = pytest.importorskip("accelerate")
    batch = batch_for(lively_model(2), 2, count=5)
    expected = beam_search(lively_model(2), **batch)[0]
    model = accelerate.cpu_offload(lively_model(2), execution_device=torch.device("cpu"))
    assert model.model.decoder.layers[0].self_attn.q_proj.weight.device.type == "meta"
    assert torch.equal(beam_search(model, **batch)[0], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_scores_are_float32(lively_model: ModelMaker, dtype: torch.dtype) -> None:
    """The scores of one token are the logarithms of a float32 softmax, not rounded to half precision."""
    model = lively_model(3).to(dtype)
    _, scores = beam_search(model, **batch_for(model, 3, count=6), max_length=1)
    assert scores.dtype == torch.float32
    assert (scores.to(dtype).float() != scores).float().mean() > 0.5


def test_the_models_end_hypotheses_and_switch_beams(lively_model: ModelMaker) -> None:
    """Without them the comparison above would prove little; the brute-force search counts them."""
    ended = switched = total = 0
    for seed, changes in enumerate(({}, {"end_at": 8.0}, {"norm_position": "pre"})):
        model = lively_model(seed, **changes)
        for sentence in random_sentences(0, count=7, vocab_size=16, longest=9):
            found = slow_beam_search(full_forward(model, sentence), beams=4, alpha=0.6, limit=len(sentence) + OFFSET)
            total += len(found.hypotheses)
            ended += sum(hypothesis.ended for hypothesis in found.hypotheses)
            switched += sum(hypothesis.switched for hypothesis in found.hypotheses)
    assert ended >= 0.5 * total
    assert switched >= 0.3 * total


def test_greedy_search_stops_at_the_first_end_token(lively_model: ModelMaker) -> None:
    for seed in range(3):
        model = lively_model(seed, end_at=3.0)
        batch = batch_for(model, seed)
        plain = beam_search(model, **batch, num_beams=1, length_penalty=0.0)[0]
        assert torch.equal(beam_search(model, **batch, num_beams=1, length_penalty=5.0)[0], plain)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_translation_does_not_depend_on_its_batch(lively_model: ModelMaker, beams: int) -> None:
    """Tokens are the same alone and beside sentences that leave the batch earlier or later."""
    for seed, end_at in ((0, 3.0), (1, 4.5), (2, 8.0)):
        model = lively_model(seed, end_at)
        sentences = random_sentences(seed, count=8, vocab_size=16, longest=12)
        together = by_search(model, padded(sentences), beams, 0.6).tokens
        for sentence, rows in zip(sentences, together, strict=True):
            assert by_search(model, padded([sentence]), beams, 0.6).tokens == [rows]


def test_a_minimum_length_delays_the_end(lively_model: ModelMaker) -> None:
    """`min_length` tokens before </s>, as transformers' `min_new_tokens`."""
    model = lively_model(0, end_at=2.0)
    batch = batch_for(model, 0, count=7)
    assert min(map(len, best_of(model, batch))) < 5 <= min(map(len, best_of(model, batch, min_length=5)))
    expected = model.generate(**batch, max_source_length_offset=OFFSET, min_new_tokens=5)
    assert best_of(model, batch, min_length=5) == [stripped(row) for row in expected[:, 1:].tolist()]
