"""The search in tensors gives what `generate()` gives, token for token, for every switch of the configuration."""

from typing import Any

import pytest
import torch
from conftest import one_fast_in
from searches import OFFSET, SWITCHES, batch_for, by_generate, by_search, check_same, stripped
from tiny_models import ModelMaker
from torch import nn

from vaswani_transformer import SearchSettings
from vaswani_transformer.beam_search import beam_search


def compared(model: Any, batch: dict[str, Any], beams: int, alpha: float) -> int:
    """Check that `beam_search` and `generate()` agree; return the number of hypotheses."""
    return check_same(by_search(model, batch, beams, alpha), by_generate(model, batch, beams, alpha))


def best_of(model: Any, batch: dict[str, Any], **settings: Any) -> list[list[int]]:
    search = SearchSettings(extra_length=OFFSET, **settings)
    sequences, _ = beam_search(model, batch["input_ids"], batch["attention_mask"], search)
    return [stripped(row) for row in sequences[:, 0].tolist()]


@pytest.mark.parametrize("switches", one_fast_in(2, SWITCHES))
def test_every_hypothesis_equals_that_of_generate(lively_model: ModelMaker, switches: str) -> None:
    """A padded batch of nine sentences, complete n-best lists of 1 to 8 beams."""
    model = lively_model(len(switches), **SWITCHES[switches])
    batch = batch_for(model, len(switches))
    count = sum(compared(model, batch, beams, alpha) for beams, alpha in ((1, 5.0), (4, 0.0), (8, 1.0)))
    # 9 x (1 + 4 + 8) = 117 if all hypotheses finish.
    assert count >= 50


class Adapted(nn.Module):
    """A layer that adds to its output and whose `weight` is that of the base layer, as in PEFT's LoRA."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer, self.weight, self.bias = layer, layer.weight, layer.bias
        self.added = nn.Linear(layer.in_features, layer.out_features, bias=False)
        nn.init.normal_(self.added.weight)

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


def test_offloaded_layers_are_called(lively_model: ModelMaker) -> None:
    """Their weights are on no device until they run."""
    accelerate = pytest.importorskip("accelerate")
    batch = batch_for(lively_model(2), 2, count=5)
    expected = best_of(lively_model(2), batch)
    model = accelerate.cpu_offload(lively_model(2), execution_device=torch.device("cpu"))
    assert model.model.decoder.layers[0].self_attn.q_proj.weight.device.type == "meta"
    assert best_of(model, batch) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_scores_are_float32(lively_model: ModelMaker, dtype: torch.dtype) -> None:
    """The scores of one token are the logarithms of a float32 softmax, not rounded to half precision."""
    model = lively_model(3).to(dtype)
    search = SearchSettings(num_return_sequences=4, max_new_tokens=1)
    batch = batch_for(model, 3, count=6)
    _, scores = beam_search(model, batch["input_ids"], batch["attention_mask"], search)
    assert scores.dtype == torch.float32
    assert (scores.to(dtype).float() != scores).float().mean() > 0.5


def test_a_minimum_length_delays_the_end(lively_model: ModelMaker) -> None:
    model = lively_model(0, end_at=2.0)
    batch = batch_for(model, 0, count=7)
    assert min(map(len, best_of(model, batch))) < 5 <= min(map(len, best_of(model, batch, min_new_tokens=5)))
    expected = model.generate(**batch, extra_length=OFFSET, min_new_tokens=5)
    assert best_of(model, batch, min_new_tokens=5) == [stripped(row) for row in expected[:, 1:].tolist()]


def test_one_maximum_replaces_the_limits_of_the_sentences(lively_model: ModelMaker) -> None:
    """Also where it is above the limit of a short sentence."""
    model = lively_model(0)
    with torch.no_grad():
        model.lm_head.bias[2] = -1e4  # never ends a sentence
    batch = batch_for(model, 0, count=7, longest=4)
    for most in (2, 20):
        found = best_of(model, batch, max_new_tokens=most)
        assert max(map(len, found)) == most
        assert found == [stripped(row) for row in model.generate(**batch, max_new_tokens=most)[:, 1:].tolist()]
