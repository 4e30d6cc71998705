"""The model as a citizen of transformers: every way to run it gives the same numbers."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from conftest import ModelMaker, padded, random_sentences, randomise, tiny_config
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSeq2SeqLM
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from vaswani_transformer import VaswaniTransformerForConditionalGeneration, VaswaniTransformerModel

# Float32 on a CPU: the same sums in another order. Logits of the tiny models are of size 1 to 10.
TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def a_batch(vocab_size: int = 30, seed: int = 0) -> dict[str, Tensor]:
    """Three sentences of different length, padded on both sides, with labels."""
    sources = [[5, 6, 7, 8, 9, 2], [10, 11, 2], [12, 2]]
    targets = [[8, 9, 2], [13, 14, 15, 16, 2], [17, 2]]
    labels = padded(targets)["input_ids"]
    labels[padded(targets)["attention_mask"] == 0] = -100
    return padded(sources) | {"labels": labels}


# --- One function, several ways to compute it -------------------------------------------------------------


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("sizes", [{}, {"d_k": 3, "d_v": 5}], ids=str)
def test_eager_equals_sdpa(tiny_model: ModelMaker, norm_position: str, sizes: dict) -> None:
    """Logits and gradients, with padding in the source and in the target."""
    gradients = {}
    logits = {}
    for implementation in ("eager", "sdpa"):
        model = tiny_model(norm_position=norm_position, attn_implementation=implementation, **sizes)
        assert model.config._attn_implementation == implementation
        output = model(**a_batch())
        output.loss.backward()
        logits[implementation] = output.logits
        gradients[implementation] = {name: weight.grad for name, weight in model.named_parameters()}
    torch.testing.assert_close(logits["eager"], logits["sdpa"], **TOLERANCE)
    for name, gradient in gradients["eager"].items():
        torch.testing.assert_close(gradient, gradients["sdpa"][name], **TOLERANCE)


@pytest.mark.parametrize("target_length", [1, 4, 5, 9])
def test_the_masks_of_flash_attention_hide_padding_in_cross_attention(
    tiny_model: ModelMaker, monkeypatch: pytest.MonkeyPatch, target_length: int
) -> None:
    """Flash attention needs a GPU: transformers makes its masks here, the kernel is replaced by the one of torch.

    transformers unpads the queries of cross attention by the mask of the keys; the stand-in, given such, fails.
    """

    def like_flash(module, query, key, value, attention_mask, **kwargs):
        assert attention_mask is None or attention_mask.dim() == 2
        if attention_mask is None:
            return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, **kwargs)
        assert query.shape[2] == 1 or not is_cross(module), "flash would unpad"
        seen = attention_mask[:, None, None, -key.shape[2] :].bool()
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, seen, **kwargs)

    def is_cross(module) -> bool:
        return any(module is layer.cross_attn for layer in model.model.decoder.layers)

    AttentionInterface.register("like_flash", like_flash)
    AttentionMaskInterface.register("like_flash", flash_attention_mask)
    model = tiny_model()
    batch = padded([[5, 6, 7, 8, 2], [9, 10, 2]])
    target = torch.randint(3, 30, (2, target_length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(**batch, decoder_input_ids=target).logits
        model.config._attn_implementation = "like_flash"
        found = model(**batch, decoder_input_ids=target).logits
    torch.testing.assert_close(found, expected, **TOLERANCE)


def test_sdpa_is_the_default(tiny_model: ModelMaker) -> None:
    assert tiny_model().config._attn_implementation == "sdpa"


# transformers 5.17 has only this name; 5.23 has renamed it and warns.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(
    tiny_model: ModelMaker, dropout: float, reentrant: bool
) -> None:
    """With dropout too: the second forward pass draws the same masks."""
    found = []
    for checkpointing in (False, True):
        model = tiny_model(dropout=dropout).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        torch.manual_seed(0)
        loss = model(**a_batch()).loss
        loss.backward()
        found.append((loss, {name: weight.grad for name, weight in model.named_parameters()}))
    (loss, gradients), (checkpointed_loss, checkpointed_gradients) = found
    torch.testing.assert_close(checkpointed_loss, loss)
    assert gradients.keys() == checkpointed_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(checkpointed_gradients[name], gradient, **TOLERANCE)


@pytest.mark.parametrize("kind", ["own", "dynamic", "static"])
@pytest.mark.parametrize("position_embedding_type", ["sinusoidal", "learned"])
def test_decoding_with_a_cache_equals_decoding_without(
    tiny_model: ModelMaker, kind: str, position_embedding_type: str
) -> None:
    """Token by token and in pieces of three, against the whole target at once."""
    model = tiny_model(position_embedding_type=position_embedding_type, position_offset=2)
    batch = padded([[5, 6, 7, 8, 2], [9, 10, 2]])
    target = torch.randint(3, 30, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(**batch, decoder_input_ids=target, use_cache=False)
        assert expected.past_key_values is None
        for pieces in (torch.split(target, 1, dim=1), torch.split(target, 3, dim=1)):
            cache: EncoderDecoderCache | None = None
            if kind == "dynamic":
                cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
            elif kind == "static":
                decoder = model.config.get_text_config(decoder=True)
                cache = EncoderDecoderCache(StaticCache(decoder, 12), StaticCache(decoder, 5))
            encoder_outputs = model.get_encoder()(**batch)
            logits = []
            for piece in pieces:
                output = model(
                    encoder_outputs=encoder_outputs,
                    attention_mask=batch["attention_mask"],
                    decoder_input_ids=piece,
                    past_key_values=cache,
                    use_cache=True,
                )
                cache = output.past_key_values
                logits.append(output.logits)
            torch.testing.assert_close(torch.cat(logits, dim=1), expected.logits, **TOLERANCE)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_padding_does_not_change_the_other_sentences(tiny_model: ModelMaker, implementation: str) -> None:
    """Each row of a batch padded far beyond need equals the sentence alone, on both sides."""
    model = tiny_model(attn_implementation=implementation)
    sentences = [*random_sentences(0, count=6, vocab_size=30, longest=12), [4 + i % 26 for i in range(40)]]
    targets = [[0, *sentence[:-1]] for sentence in reversed(sentences)]
    padded_targets = padded(targets)
    with torch.no_grad():
        together = model(
            **padded(sentences),
            decoder_input_ids=padded_targets["input_ids"],
            decoder_attention_mask=padded_targets["attention_mask"],
        ).logits
        unmasked = model(**padded(sentences), decoder_input_ids=padded_targets["input_ids"]).logits
        for row, (source, target) in enumerate(zip(sentences, targets, strict=True)):
            alone = model(torch.tensor([source]), decoder_input_ids=torch.tensor([target])).logits[0]
            torch.testing.assert_close(together[row, : len(target)], alone, **TOLERANCE)
            # Right padding lies in the future: the causal mask is enough.
            torch.testing.assert_close(unmasked[row, : len(target)], alone, **TOLERANCE)


def test_what_stands_at_padding_does_not_matter(tiny_model: ModelMaker) -> None:
    model = tiny_model()
    batch = a_batch()
    other = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 25)
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, model(**batch | {"input_ids": other}).logits)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_fully_masked_sentence_gives_no_nan(tiny_model: ModelMaker, implementation: str, dtype: torch.dtype) -> None:
    """Neither in its own row nor, through the gradients, anywhere; the other rows are what they were.

    The encoder is called by itself: on a CPU the model refuses such a source, on a GPU it does not look.
    """
    model = tiny_model(attn_implementation=implementation).to(dtype)
    batch = a_batch()
    expected = model(**batch).logits[:2]
    batch["attention_mask"][2] = 0
    encoded = model.get_encoder()(batch.pop("input_ids"), batch["attention_mask"])
    output = model(encoder_outputs=encoded, **batch)
    assert torch.isfinite(output.logits).all()
    torch.testing.assert_close(output.logits[:2], expected)
    output.loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_fully_masked_target_gives_no_nan(tiny_model: ModelMaker, implementation: str) -> None:
    model = tiny_model(attn_implementation=implementation)
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    output = model(
        torch.tensor([[5, 2], [6, 2]]),
        decoder_input_ids=torch.tensor([[0, 7, 8], [1, 1, 1]]),
        decoder_attention_mask=mask,
    )
    assert torch.isfinite(output.logits).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.015)])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_half_precision_is_close_to_float32(
    tiny_model: ModelMaker, implementation: str, dtype: torch.dtype, tolerance: float
) -> None:
    """bfloat16 keeps 8 bits, float16 11: relative steps of 2^-8 and 2^-11, times some twenty operations in a
    row. Long sequences too, where a table in half precision would lose the position."""
    model = tiny_model(attn_implementation=implementation)
    long = torch.randint(4, 30, (2, 300), generator=torch.Generator().manual_seed(0))
    target = torch.randint(4, 30, (2, 280), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(long, decoder_input_ids=target).logits
        found = model.to(dtype)(long, decoder_input_ids=target).logits
    assert found.dtype == dtype
    difference = (found.float() - expected).abs()
    assert difference.mean() <= tolerance * expected.abs().mean()


def test_a_float16_model_survives_large_scores(tiny_model: ModelMaker) -> None:
    """Scores in the thousands, and a mask: a bias of -1e9 would be minus infinity in float16."""
    for implementation in ("eager", "sdpa"):
        model = tiny_model(attn_implementation=implementation)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "q_proj" in name or "k_proj" in name:
                    weight.mul_(20)
        assert torch.isfinite(model.half()(**a_batch()).logits).all()


def test_autocast_runs_and_stays_finite(tiny_model: ModelMaker) -> None:
    model = tiny_model().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**a_batch(), label_smoothing=0.1).loss
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


# --- torch.compile and torch.export -----------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_forward_pass_compiles_into_one_graph(tiny_model: ModelMaker, implementation: str) -> None:
    """fullgraph=True: a graph break is an error. The backend "eager" proves the capture, not the kernels."""
    torch._dynamo.reset()
    model = tiny_model(attn_implementation=implementation)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    batch = a_batch()
    torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits, **TOLERANCE)
    torch.testing.assert_close(compiled(**batch).loss, model(**batch).loss)


@pytest.mark.slow
def test_the_training_step_compiles_into_one_graph_for_all_lengths(tiny_model: ModelMaker) -> None:
    torch._dynamo.reset()
    model = tiny_model(dropout=0.0, encoder_layers=1, decoder_layers=1).train()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    generator = torch.Generator().manual_seed(0)
    for source_length, target_length in ((5, 6), (9, 4)):
        batch = {
            "input_ids": torch.randint(4, 30, (3, source_length), generator=generator),
            "attention_mask": torch.ones(3, source_length, dtype=torch.long),
            "labels": torch.randint(4, 30, (3, target_length), generator=generator),
        }
        batch["attention_mask"][1, 3:] = 0
        gradients = []
        for run in (compiled, model):
            model.zero_grad()
            run(**batch, label_smoothing=0.1).loss.backward()
            gradients.append([weight.grad.clone() for weight in model.parameters()])
        for found, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(found, expected, **TOLERANCE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # inductor itself still uses torch.jit
def test_inductor_gives_the_same_numbers(tiny_model: ModelMaker) -> None:
    torch._dynamo.reset()
    model = tiny_model(encoder_layers=1, decoder_layers=1)
    compiled = torch.compile(model, fullgraph=True)
    batch = a_batch()
    torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits, **TOLERANCE)


def test_the_forward_pass_exports_with_dynamic_shapes(tiny_model: ModelMaker) -> None:
    """torch.export with free batch, source and target sizes: one program, right for other sizes too."""
    model = tiny_model()
    batch, source, target = (torch.export.Dim(name) for name in ("batch", "source", "target"))
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 2], [8, 9, 2, 1]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
        "decoder_input_ids": torch.tensor([[0, 4, 5], [0, 6, 7]]),
    }
    shapes = {
        "input_ids": {0: batch, 1: source},
        "attention_mask": {0: batch, 1: source},
        "decoder_input_ids": {0: batch, 1: target},
    }

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
            return self.model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False).logits

    program = torch.export.export(Logits(), (), inputs, dynamic_shapes=shapes).module()
    sentences = random_sentences(1, count=5, vocab_size=30, longest=11)
    other = padded(sentences) | {"decoder_input_ids": torch.randint(4, 30, (5, 8))}
    with torch.no_grad():
        torch.testing.assert_close(program(**other), model(**other).logits, **TOLERANCE)


# --- Outputs ----------------------------------------------------------------------------------------------


def test_attentions_and_hidden_states_have_their_shapes(tiny_model: ModelMaker) -> None:
    """(batch, heads, target, source): 2 encoder layers of 4 heads, 3 decoder layers of 2 heads."""
    model = tiny_model(attn_implementation="eager", d_k=3, d_v=5)
    batch = a_batch()
    output = model(**batch, output_attentions=True, output_hidden_states=True)
    assert [a.shape for a in output.encoder_attentions] == [(3, 4, 6, 6)] * 2
    assert [a.shape for a in output.decoder_attentions] == [(3, 2, 5, 5)] * 3
    assert [a.shape for a in output.cross_attentions] == [(3, 2, 5, 6)] * 3
    assert [s.shape for s in output.encoder_hidden_states] == [(3, 6, 16)] * 3
    assert [s.shape for s in output.decoder_hidden_states] == [(3, 5, 16)] * 4
    torch.testing.assert_close(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    padding = batch["attention_mask"] == 0
    for weights in (*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions):
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    for weights in (*output.encoder_attentions, *output.cross_attentions):
        assert (weights.transpose(1, 3)[padding] == 0).all(), "attention to padding"
    for weights in output.decoder_attentions:
        assert (weights.triu(1) == 0).all(), "attention to the future"


def test_the_last_hidden_state_of_a_pre_norm_stack_is_after_its_norm(tiny_model: ModelMaker) -> None:
    model = tiny_model(norm_position="pre")
    output = model(**a_batch(), output_hidden_states=True)
    torch.testing.assert_close(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    torch.testing.assert_close(model.lm_head(output.decoder_hidden_states[-1]), output.logits)


def test_a_tuple_is_the_same_as_the_named_output(tiny_model: ModelMaker) -> None:
    model = tiny_model()
    named = model(**a_batch())
    loss, logits, *_ = model(**a_batch(), return_dict=False)
    assert torch.equal(loss, named.loss)
    assert torch.equal(logits, named.logits)


def test_embeddings_given_equal_embeddings_looked_up(tiny_model: ModelMaker) -> None:
    """`inputs_embeds` are rows of the matrix: the factor sqrt(d_model) is the model's."""
    model = tiny_model()
    batch = padded([[5, 6, 7, 2], [8, 2]])
    target = torch.tensor([[0, 4, 5], [0, 6, 7]])
    look_up = model.get_input_embeddings()
    with torch.no_grad():
        expected = model(**batch, decoder_input_ids=target).logits
        found = model(
            inputs_embeds=look_up(batch["input_ids"]),
            attention_mask=batch["attention_mask"],
            decoder_inputs_embeds=look_up(target),
        ).logits
        encoded = model.get_encoder()(**batch)
        reused = model(encoder_outputs=encoded, attention_mask=batch["attention_mask"], decoder_input_ids=target).logits
        as_tuple = model(
            encoder_outputs=(encoded.last_hidden_state,),
            attention_mask=batch["attention_mask"],
            decoder_input_ids=target,
        ).logits
    assert torch.equal(found, expected)
    assert torch.equal(reused, expected)
    assert torch.equal(as_tuple, expected)


def test_only_the_wanted_logits_are_computed(tiny_model: ModelMaker) -> None:
    model = tiny_model()
    inputs = {"input_ids": torch.tensor([[5, 2]]), "decoder_input_ids": torch.tensor([[0, 4, 5, 6]])}
    everything = model(**inputs).logits
    torch.testing.assert_close(model(**inputs, logits_to_keep=1).logits, everything[:, -1:])
    torch.testing.assert_close(model(**inputs, logits_to_keep=torch.tensor([0, 2])).logits, everything[:, [0, 2]])


def test_neither_tokens_nor_embeddings_is_refused(tiny_model: ModelMaker) -> None:
    with pytest.raises(ValueError, match="embed"):
        tiny_model()(decoder_input_ids=torch.tensor([[0]]))
    with pytest.raises(ValueError, match="embed"):
        tiny_model()(torch.tensor([[5, 2]]))


def test_learned_positions_end_where_the_config_says(tiny_model: ModelMaker) -> None:
    model = tiny_model(position_embedding_type="learned", max_position_embeddings=8)
    target = torch.tensor([[0]])
    assert model(torch.full((1, 8), 5), decoder_input_ids=target).logits.shape == (1, 1, 30)
    with pytest.raises(ValueError, match="8"):
        model(torch.full((1, 9), 5), decoder_input_ids=target)
    with pytest.raises(ValueError, match="8"):
        model(torch.full((1, 3), 5), decoder_input_ids=torch.zeros(1, 9, dtype=torch.long))


def test_decoding_step_by_step_past_the_learned_positions_is_refused(tiny_model: ModelMaker) -> None:
    """With a cache each piece is short; its position is not."""
    model = tiny_model(position_embedding_type="learned", max_position_embeddings=8)
    past = model(torch.full((1, 3), 5), decoder_input_ids=torch.full((1, 8), 5), use_cache=True)
    with pytest.raises(ValueError, match="8"):
        model(
            encoder_outputs=(past.encoder_last_hidden_state,),
            decoder_input_ids=torch.tensor([[5]]),
            past_key_values=past.past_key_values,
        )


# --- Loss -------------------------------------------------------------------------------------------------


def test_labels_are_shifted_once(tiny_model: ModelMaker) -> None:
    """The logits at position t answer label t: loss equals cross-entropy on the unshifted pair."""
    model = tiny_model()
    batch = a_batch()
    shifted = torch.tensor([[0, 8, 9, 2, 1], [0, 13, 14, 15, 16], [0, 17, 2, 1, 1]])
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(batch["labels"]), shifted)
    output = model(**batch)
    expected = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=shifted).logits
    torch.testing.assert_close(output.logits, expected, **TOLERANCE)
    loss = nn.functional.cross_entropy(expected.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(output.loss, loss)


def test_padding_labels_with_minus_100_gives_no_gradient(tiny_model: ModelMaker) -> None:
    """Three separate sentences, weighted by their lengths, equal the padded batch."""
    model = tiny_model()
    batch = a_batch()
    together = model(**batch).loss
    total = torch.zeros(())
    for row, (source, target) in enumerate([(6, 3), (3, 5), (2, 2)]):
        loss = model(batch["input_ids"][row : row + 1, :source], labels=batch["labels"][row : row + 1, :target]).loss
        total = total + loss * target
    torch.testing.assert_close(together, total / 10)


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_num_items_in_batch_makes_accumulated_gradients_those_of_one_batch(
    tiny_model: ModelMaker, as_tensor: bool, epsilon: float
) -> None:
    """Micro-batches of 3, 5 and 2 labels, each divided by 10, sum up to the loss of all ten."""
    model = tiny_model()
    batch = a_batch()
    model(**batch, label_smoothing=epsilon).loss.backward()
    expected = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    items = torch.tensor(10) if as_tensor else 10
    for row in range(3):
        one = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        model(**one, label_smoothing=epsilon, num_items_in_batch=items).loss.backward()
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, **TOLERANCE)


@pytest.mark.parametrize("spread", ["others", "all"])
def test_label_smoothing_reaches_the_loss_in_both_readings(tiny_model: ModelMaker, spread: str) -> None:
    """KL form by hand: -sum_k q_k log p_k with q as each reading has it."""
    model = tiny_model()
    batch = a_batch()
    output = model(**batch, label_smoothing=0.1, label_smoothing_spread=spread)
    counted = batch["labels"] != -100
    log_p = torch.log_softmax(output.logits[counted], dim=-1)
    label = nn.functional.one_hot(batch["labels"][counted], 30).float()
    q = 0.9 * label + 0.1 / 30 if spread == "all" else 0.9 * label + (1 - label) * 0.1 / 29
    torch.testing.assert_close(output.loss, -(q * log_p).sum(-1).mean())
    assert (output.loss - model(**batch).loss).abs() > 1e-3


def test_an_unknown_reading_of_label_smoothing_is_refused(tiny_model: ModelMaker) -> None:
    with pytest.raises(ValueError, match="some"):
        tiny_model()(**a_batch(), label_smoothing=0.1, label_smoothing_spread="some")


def test_a_batch_without_labels_to_learn_has_loss_zero_not_nan(tiny_model: ModelMaker) -> None:
    batch = a_batch()
    batch["labels"][:] = -100
    assert tiny_model()(**batch).loss.item() == 0


EMBEDDINGS = ("model.encoder.embed_tokens", "model.decoder.embed_tokens")


# --- Weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 40},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 40, "tie_word_embeddings": False},
        {"position_embedding_type": "learned", "attention_bias": True, "output_bias": True},
        {"norm_position": "pre", "d_k": 3, "d_v": 5},
    ],
    ids=str,
)
def test_a_saved_model_loads_as_it_was(tiny_model: ModelMaker, changes: dict, tmp_path: Path) -> None:
    model = tiny_model(**changes)
    model.save_pretrained(tmp_path)
    stored = sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())
    assert stored == model.num_parameters(), "tied matrices are stored once, all others are stored"
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is VaswaniTransformerForConditionalGeneration
    assert not any(report.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert loaded.num_parameters() == model.num_parameters()
    inputs = {"input_ids": torch.tensor([[5, 2]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**inputs).logits, model(**inputs).logits)
        backbone = AutoModel.from_pretrained(tmp_path).eval()
        assert type(backbone) is VaswaniTransformerModel
        assert torch.equal(backbone(**inputs).last_hidden_state, model.model(**inputs).last_hidden_state)


@pytest.mark.parametrize("copy", [f"{place}.weight" for place in ("lm_head", *EMBEDDINGS)])
def test_any_copy_of_the_shared_matrix_is_enough(tiny_model: ModelMaker, tmp_path: Path, copy: str) -> None:
    """Other toolkits keep the one matrix under another name."""
    model = tiny_model()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[copy] = tensors.pop("model.shared.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = VaswaniTransformerForConditionalGeneration.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_loading_draws_nothing_from_the_random_generator(tiny_model: ModelMaker, tmp_path: Path) -> None:
    """A learned table and sinusoids alike come from the file or the formula."""
    tiny_model().save_pretrained(tmp_path)
    inputs = {"input_ids": torch.tensor([[5, 2]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    logits = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        logits.append(AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()(**inputs).logits)
    assert torch.equal(*logits)


def test_a_fresh_process_loads_the_folder_by_the_auto_classes(tiny_model: ModelMaker, tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    code = """
import sys, torch, vaswani_transformer
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    logits = model(torch.tensor([[5, 6, 2]]), decoder_input_ids=torch.tensor([[0, 7]])).logits
torch.save((logits, model.generate(torch.tensor([[5, 6, 2]]))), sys.argv[2])
"""
    written = tmp_path / "logits.pt"
    root = Path(__file__).parent.parent
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", code, tmp_path, written], check=True, env=environment, timeout=120)
    logits, translation = torch.load(written)
    inputs = {"input_ids": torch.tensor([[5, 6, 2]])}
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=torch.tensor([[0, 7]])).logits
    torch.testing.assert_close(logits, expected, **TOLERANCE)
    assert torch.equal(translation, model.generate(**inputs))


def test_state_dict_survives_torch_save(tiny_model: ModelMaker) -> None:
    model, other = tiny_model(0), tiny_model(1)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(model(**a_batch()).logits, other(**a_batch()).logits)


@pytest.mark.parametrize("new_size", [24, 37])
def test_resizing_the_vocabulary_keeps_the_old_rows_and_the_ties(
    tiny_model: ModelMaker, new_size: int, tmp_path: Path
) -> None:
    model = tiny_model(output_bias=True)
    before = model.model.shared.weight.detach().clone()
    bias = model.lm_head.bias.detach().clone()
    model.resize_token_embeddings(new_size)
    kept = min(new_size, 30)
    assert model.config.vocab_size == new_size
    assert model.config.decoder_vocab_size == new_size
    matrices = {
        model.model.shared.weight,
        model.get_encoder().embed_tokens.weight,
        model.get_decoder().embed_tokens.weight,
        model.lm_head.weight,
    }
    assert len(matrices) == 1
    assert model.lm_head.weight.shape == (new_size, 16)
    assert torch.equal(model.model.shared.weight[:kept], before[:kept])
    assert torch.equal(model.lm_head.bias[:kept], bias[:kept])
    inputs = {"input_ids": torch.tensor([[new_size - 1, 2]]), "decoder_input_ids": torch.tensor([[0, new_size - 1]])}
    logits = model(**inputs).logits
    assert logits.shape == (1, 2, new_size)
    model.save_pretrained(tmp_path)
    loaded = VaswaniTransformerForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**inputs).logits, logits)


def test_untied_output_is_a_matrix_of_its_own(tiny_model: ModelMaker) -> None:
    model = tiny_model(tie_word_embeddings=False)
    assert model.lm_head.weight is not model.model.shared.weight
    assert model.get_encoder().embed_tokens.weight is model.get_decoder().embed_tokens.weight
    assert model.num_parameters() == tiny_model().num_parameters() + 30 * 16


def test_two_vocabularies_are_two_matrices_and_the_output_is_the_decoders(tiny_model: ModelMaker) -> None:
    model = tiny_model(share_encoder_decoder_embeddings=False, decoder_vocab_size=40)
    assert model.get_encoder().embed_tokens.weight.shape == (30, 16)
    assert model.get_decoder().embed_tokens.weight.shape == (40, 16)
    assert model.lm_head.weight is model.get_decoder().embed_tokens.weight
    assert model(**a_batch()).logits.shape == (3, 5, 40)


def test_an_initial_model_predicts_nearly_uniformly() -> None:
    """A sensible initialisation: the loss starts near log V, and no activation explodes with depth."""
    torch.manual_seed(0)
    model = VaswaniTransformerForConditionalGeneration(
        tiny_config(vocab_size=1000, d_model=64, encoder_layers=6, decoder_layers=6)
    ).eval()
    labels = torch.randint(4, 1000, (8, 20))
    loss = model(torch.randint(4, 1000, (8, 20)), labels=labels).loss.item()
    assert abs(loss - torch.log(torch.tensor(1000.0)).item()) < 1.5


def test_gradients_reach_every_parameter(tiny_model: ModelMaker) -> None:
    model = tiny_model(attention_bias=True, output_bias=True, norm_position="pre")
    model(**a_batch()).loss.backward()
    for name, weight in model.named_parameters():
        if not name.endswith("k_proj.bias"):  # a constant added to every key cancels in the softmax
            assert weight.grad is not None and weight.grad.abs().max() > 0, name


def test_a_module_can_be_watched_by_hooks(tiny_model: ModelMaker) -> None:
    """Layers return plain tensors and take hidden states first: pictures and probes hang on to that."""
    model = tiny_model()
    seen: dict[str, tuple[int, ...]] = {}
    for name, module in (("encoder", model.get_encoder()), ("decoder", model.get_decoder())):
        for index, layer in enumerate(module.layers):
            layer.register_forward_hook(
                lambda _module, args, output, key=f"{name}.{index}": seen.update({key: (*args[0].shape, *output.shape)})
            )
    model(**a_batch())
    assert seen == {f"encoder.{i}": (3, 6, 16) * 2 for i in range(2)} | {
        f"decoder.{i}": (3, 5, 16) * 2 for i in range(3)
    }


def test_randomise_touches_every_parameter(tiny_model: ModelMaker) -> None:
    """The tests above lean on it: no parameter keeps its initial zero or one."""
    model = tiny_model(attention_bias=True, output_bias=True)
    randomise(model, 3)
    for name, weight in model.named_parameters():
        assert weight.std() > 0.01, name


def test_new_weights_are_drawn_as_the_docstring_says() -> None:
    """Glorot uniform has variance 2 / (fan_in + fan_out), times the squared gain: 1/2 for queries, keys and values."""
    config = tiny_config(vocab_size=2000, d_model=256, encoder_ffn_dim=512, decoder_ffn_dim=512)
    model = VaswaniTransformerForConditionalGeneration(config)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            halved = 0.5 if name.rsplit(".", 1)[1] in ("q_proj", "k_proj", "v_proj") else 1.0
            expected = halved * 2 / (module.in_features + module.out_features)
            # 65,536 draws: the estimate is within 2 % (5 standard errors).
            assert module.weight.var().item() == pytest.approx(expected, rel=0.02), name
    embedding = cast(torch.nn.Embedding, model.get_input_embeddings()).weight
    assert embedding.var().item() == pytest.approx(1 / 256, rel=0.02)
