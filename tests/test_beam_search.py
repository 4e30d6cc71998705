"""The search in tensors gives what `generate()` gives, token for token, for every switch of the configuration."""

import warnings
from typing import Any

import pytest
import torch
from brute_force import beam_search as slow_beam_search
from brute_force import full_forward
from conftest import ModelMaker, padded, random_sentences
from torch import nn

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.beam_search import beam_search
from vaswani_transformer.modeling_vaswani_transformer import NO_HYPOTHESIS

PAD, END = 1, 2
OFFSET = 6  # instead of the paper's 50: a few hypotheses run into their limits

# Each with the place at which its models like to end, and the longest source.
SWITCHES = {
    "paper": {},
    "ends early": {"end_at": 2.0},
    "ends late": {"end_at": 8.0},
    "pre-norm": {"norm_position": "pre"},
    "pre-norm without the last norms": {
        "norm_position": "pre",
        "encoder_final_norm": False,
        "decoder_final_norm": False,
    },
    "post-norm with last norms": {"encoder_final_norm": True, "decoder_final_norm": True},
    "learned positions": {"position_embedding_type": "learned", "max_position_embeddings": 40, "position_offset": 2},
    "learned positions that end before the limit": {
        "position_embedding_type": "learned",
        "max_position_embeddings": 13,
        "end_at": 9.0,
    },
    "another base and offset": {"position_base": 500.0, "position_offset": 2},
    "d_k and d_v of their own": {"d_k": 3, "d_v": 5},
    "one head": {"encoder_attention_heads": 1, "decoder_attention_heads": 1},
    "biases": {"attention_bias": True},
    "two vocabularies": {"decoder_vocab_size": 19, "share_encoder_decoder_embeddings": False},
    "gelu": {"activation_function": "gelu"},
    "one layer each": {"encoder_layers": 1, "decoder_layers": 1},
    "starts with the token for padding": {"decoder_start_token_id": PAD},
    "fewer tokens than candidates": {"vocab_size": 7},
}


def compared(model: VaswaniTransformerForConditionalGeneration, batch: dict[str, Any], beams: int, alpha: float) -> int:
    """The number of hypotheses that `beam_search` and `generate()` both have; AssertionError if they differ."""
    expected = model.generate(
        **batch,
        num_beams=beams,
        length_penalty=alpha,
        max_source_length_offset=OFFSET,
        num_return_sequences=beams,
        return_dict_in_generate=True,
        output_scores=True,
    )
    sequences, scores = beam_search(
        model, **batch, num_beams=beams, length_penalty=alpha, max_source_length_offset=OFFSET
    )
    rows = expected.sequences[:, 1:].unflatten(0, (-1, beams)).tolist()
    assert [[stripped(row) for row in sentence] for sentence in sequences.tolist()] == [
        [stripped(row) for row in sentence] for sentence in rows
    ]
    exists = scores > NO_HYPOTHESIS
    if beams > 1:  # greedy search has no scores in transformers
        expected_scores = expected.sequences_scores.unflatten(0, (-1, beams))
        assert torch.equal(exists, expected_scores > NO_HYPOTHESIS)
        torch.testing.assert_close(scores[exists], expected_scores[exists], atol=1e-5, rtol=1e-6)
    assert (sequences[~exists] == PAD).all(), "a slot in which nothing finished is padding"
    return int(exists.sum())


def as_any(sentences: list[list[int]]) -> dict[str, Any]:
    return padded(sentences)


def stripped(row: list[int]) -> list[int]:
    return [token for token in row if token != PAD]


@pytest.mark.parametrize("switches", SWITCHES)
def test_every_hypothesis_equals_that_of_generate(lively_model: ModelMaker, switches: str) -> None:
    """A padded batch of nine sentences, beams 1 to 8, three penalties, whole n-best lists."""
    model = lively_model(len(switches), **SWITCHES[switches])
    batch: dict[str, Any] = padded(
        random_sentences(len(switches), count=9, vocab_size=model.config.vocab_size, longest=9)
    )
    count = sum(compared(model, batch, beams, alpha) for beams, alpha in ((1, 0.6), (3, 0.0), (4, 0.6), (8, 1.0)))
    # 9 x (1 + 3 + 4 + 8) = 144 where every pool fills: more than 1000 in all.
    assert count >= 72


class Adapted(nn.Module):
    """A layer with something added to its output, whose `weight` is that of the layer alone, as in PEFT's LoRA."""

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


def test_adapters_on_queries_and_values_take_part(lively_model: ModelMaker) -> None:
    model = lively_model(1)
    batch: dict[str, Any] = padded(random_sentences(1, count=9, vocab_size=model.config.vocab_size, longest=9))
    before = beam_search(model, **batch)[0]
    torch.manual_seed(0)
    for layer in model.model.decoder.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
        layer.self_attn.v_proj = Adapted(layer.self_attn.v_proj)
    compared(model, batch, 4, 0.6)
    after = beam_search(model, **batch)[0]
    assert before.shape != after.shape or not torch.equal(before, after)


def test_quantised_layers_are_called(lively_model: ModelMaker) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch is about to move them elsewhere
        model = torch.ao.quantization.quantize_dynamic(lively_model(2), {nn.Linear})
    assert type(model.model.decoder.layers[0].self_attn.q_proj) is not nn.Linear
    # A product has one scale for all its rows: one sentence and one beam, so that both searches quantise the same.
    for sentence in random_sentences(2, count=9, vocab_size=model.config.vocab_size, longest=9):
        compared(model, padded([sentence]), 1, 0.6)


def test_offloaded_layers_are_called(lively_model: ModelMaker) -> None:
    """Their weights are on no device until their turn comes."""
    accelerate = pytest.importorskip("accelerate")
    batch: dict[str, Any] = padded(random_sentences(2, count=5, vocab_size=16, longest=9))
    expected = beam_search(lively_model(2), **batch)[0]
    model = accelerate.cpu_offload(lively_model(2), execution_device=torch.device("cpu"))
    assert model.model.decoder.layers[0].self_attn.q_proj.weight.device.type == "meta"
    assert torch.equal(beam_search(model, **batch)[0], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_log_probabilities_of_half_precision_are_float32s(lively_model: ModelMaker, dtype: torch.dtype) -> None:
    """One token, whose penalty is 1: logarithms of a softmax in float32, not rounded to the model's few bits."""
    batch: dict[str, Any] = padded(random_sentences(3, count=6, vocab_size=16, longest=9))
    _, scores = beam_search(lively_model(3).to(dtype), **batch, max_length=1)
    assert scores.dtype == torch.float32
    assert (scores.to(dtype).float() != scores).float().mean() > 0.5


def test_these_models_end_their_hypotheses_and_switch_their_beams(lively_model: ModelMaker) -> None:
    """What makes the comparison above worth something, counted by the brute-force search."""
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


@pytest.mark.parametrize("alpha", [-1.0, 2.0])
def test_unusual_penalties_are_those_of_generate(lively_model: ModelMaker, alpha: float) -> None:
    for seed in range(3):
        model = lively_model(seed)
        compared(model, padded(random_sentences(seed, count=7, vocab_size=16, longest=9)), 4, alpha)


def test_greedy_search_ends_with_its_first_end_whatever_the_penalty(lively_model: ModelMaker) -> None:
    for seed in range(3):
        model = lively_model(seed, end_at=3.0)
        batch: dict[str, Any] = padded(random_sentences(seed, count=9, vocab_size=16, longest=9))
        plain = beam_search(model, **batch, num_beams=1, length_penalty=0.0)[0]
        assert torch.equal(beam_search(model, **batch, num_beams=1, length_penalty=5.0)[0], plain)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_translation_does_not_depend_on_its_batch(lively_model: ModelMaker, beams: int) -> None:
    """Alone, and among others of which some leave earlier and some later: bit for bit the same tokens."""
    for seed, end_at in ((0, 3.0), (1, 4.5), (2, 8.0)):
        model = lively_model(seed, end_at)
        sentences = random_sentences(seed, count=16, vocab_size=16, longest=12)
        together, _ = beam_search(model, **as_any(sentences), num_beams=beams, max_source_length_offset=OFFSET)
        for sentence, rows in zip(sentences, together.tolist(), strict=True):
            alone, _ = beam_search(model, **as_any([sentence]), num_beams=beams, max_source_length_offset=OFFSET)
            assert [stripped(row) for row in rows] == [stripped(row) for row in alone[0].tolist()]


def test_a_shortest_length_keeps_the_end_away(lively_model: ModelMaker) -> None:
    """`min_length` tokens before </s>, as transformers' `min_new_tokens`."""
    model = lively_model(0, end_at=2.0)
    batch: dict[str, Any] = padded(random_sentences(0, count=7, vocab_size=16, longest=9))
    free, _ = beam_search(model, **batch, max_source_length_offset=OFFSET)
    assert min(len(stripped(row)) for row in free[:, 0].tolist()) < 5
    sequences, _ = beam_search(model, **batch, max_source_length_offset=OFFSET, min_length=5)
    expected = model.generate(**batch, max_source_length_offset=OFFSET, min_new_tokens=5)
    assert [stripped(row) for row in sequences[:, 0].tolist()] == [stripped(row) for row in expected[:, 1:].tolist()]
    assert min(len(stripped(row)) for row in sequences[:, 0].tolist()) >= 5
