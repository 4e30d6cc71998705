"""Inputs and outputs of the forward pass: accepted forms, caches, shapes and errors."""

import pytest
import torch
from tiny_models import TOLERANCE, ModelMaker, labelled_batch, padded
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

from vaswani_transformer.modeling_vaswani_transformer import CACHE_NAME

TARGET = {"decoder_input_ids": torch.tensor([[0], [0]])}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": [[5, 2], [30, 2]]}, "`input_ids` row 1 has ids from 2 to 30; .* 0 to 29"),
        ({"input_ids": [[5, 2], [-1, 2]]}, "`input_ids` row 1 has ids from -1 to 2"),
        ({"input_ids": [[], []]}, r"`input_ids` has shape \(2, 0\)"),
        ({"input_ids": [[5, 2], [1, 1]]}, "source row 1 .* only padding"),
        ({"input_ids": [[5, 2], [6, 2]], "attention_mask": [[0, 0], [1, 1]]}, "source row 0 .* only padding"),
        ({"input_ids": [[5, 2], [6, 2]], "attention_mask": [[1, 1]]}, r"`attention_mask` has shape \(1, 2\)"),
    ],
)
@pytest.mark.parametrize("method", ["forward", "generate"])
def test_invalid_sources_are_refused_by_row(tiny_model: ModelMaker, method: str, inputs: dict, message: str) -> None:
    model = tiny_model()
    tensors = {name: torch.tensor(rows, dtype=torch.long) for name, rows in inputs.items()}
    with pytest.raises(ValueError, match=message):
        model(**tensors, **TARGET) if method == "forward" else model.generate(**tensors)


@pytest.mark.parametrize("ids", [[[0], [30]], [[-1], [0]], [[], []]], ids=str)
def test_invalid_targets_are_refused(tiny_model: ModelMaker, ids: list) -> None:
    with pytest.raises(ValueError, match="`decoder_input_ids`"):
        tiny_model()(torch.tensor([[5, 2], [6, 2]]), decoder_input_ids=torch.tensor(ids, dtype=torch.long))


def test_missing_tokens_and_embeddings_are_refused(tiny_model: ModelMaker) -> None:
    with pytest.raises(ValueError, match="embed"):
        tiny_model()(decoder_input_ids=torch.tensor([[0]]))
    for model in (tiny_model(), tiny_model().model):
        with pytest.raises(ValueError, match="give `decoder_input_ids`, beginning with `decoder_start_token_id`"):
            model(torch.tensor([[5, 2]]))


def test_sequences_beyond_the_learned_positions_are_refused(tiny_model: ModelMaker) -> None:
    """Covers the source, the target, and a target whose beginning is in the cache."""
    model = tiny_model(position_embedding_type="learned", max_position_embeddings=8)
    five = torch.full((1, 9), 5)
    output = model(five[:, :8], decoder_input_ids=five[:, :8], use_cache=True)
    cached = {"encoder_outputs": (output.encoder_last_hidden_state,), "cache": getattr(output, CACHE_NAME)}
    for source, length in (({"input_ids": five}, 1), ({"input_ids": five[:, :3]}, 9), (cached, 1)):
        with pytest.raises(ValueError, match="`max_position_embeddings` = 8"):
            model(**source, decoder_input_ids=five[:, :length])


@pytest.mark.parametrize("kind", ["default", "dynamic", "static"])
@pytest.mark.parametrize("position_embedding_type", ["sinusoidal", "learned"])
def test_cached_decoding_equals_full_decoding(tiny_model: ModelMaker, kind: str, position_embedding_type: str) -> None:
    """Decodes token by token and in pieces of three, against the complete target at once."""
    model = tiny_model(position_embedding_type=position_embedding_type, position_offset=2)
    batch = padded([[5, 6, 7, 8, 2], [9, 10, 2]])
    target = torch.randint(3, 30, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(**batch, decoder_input_ids=target, use_cache=False)
        assert getattr(expected, CACHE_NAME) is None
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
                    cache=cache,
                    use_cache=True,
                )
                cache = getattr(output, CACHE_NAME)
                logits.append(output.logits)
            torch.testing.assert_close(torch.cat(logits, dim=1), expected.logits, **TOLERANCE)


def test_embeddings_and_encoder_outputs_replace_token_ids(tiny_model: ModelMaker) -> None:
    """`inputs_embeds` are rows of the matrix; the model applies the factor sqrt(d_model)."""
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
        for outputs in (encoded, (encoded.last_hidden_state,)):
            reused = model(None, batch["attention_mask"], encoder_outputs=outputs, decoder_input_ids=target).logits
            assert torch.equal(reused, expected)
    assert torch.equal(found, expected)


def test_logits_to_keep_selects_positions(tiny_model: ModelMaker) -> None:
    model = tiny_model()
    inputs = {"input_ids": torch.tensor([[5, 2]]), "decoder_input_ids": torch.tensor([[0, 4, 5, 6]])}
    everything = model(**inputs).logits
    torch.testing.assert_close(model(**inputs, logits_to_keep=1).logits, everything[:, -1:])
    torch.testing.assert_close(model(**inputs, logits_to_keep=torch.tensor([0, 2])).logits, everything[:, [0, 2]])


def test_attentions_and_hidden_states_have_documented_shapes(tiny_model: ModelMaker) -> None:
    model = tiny_model(attn_implementation="eager", d_k=3, d_v=5)
    batch = labelled_batch()
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


def test_the_last_pre_norm_hidden_state_is_normalised(tiny_model: ModelMaker) -> None:
    model = tiny_model(norm_position="pre")
    output = model(**labelled_batch(), output_hidden_states=True)
    torch.testing.assert_close(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    torch.testing.assert_close(model.lm_head(output.decoder_hidden_states[-1]), output.logits)


def test_forward_hooks_see_plain_hidden_states(tiny_model: ModelMaker) -> None:
    """Layers take hidden states first and return a plain tensor, which probes rely on."""
    model = tiny_model()
    seen: dict[str, tuple[int, ...]] = {}
    for name, module in (("encoder", model.get_encoder()), ("decoder", model.get_decoder())):
        for index, layer in enumerate(module.layers):
            layer.register_forward_hook(
                lambda _module, args, output, key=f"{name}.{index}": seen.update({key: (*args[0].shape, *output.shape)})
            )
    model(**labelled_batch())
    assert seen == {f"encoder.{i}": (3, 6, 16) * 2 for i in range(2)} | {
        f"decoder.{i}": (3, 5, 16) * 2 for i in range(3)
    }
