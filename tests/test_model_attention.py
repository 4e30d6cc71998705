"""Attention implementations: equal numbers, masks that hide padding, and no NaN in any precision."""

import pytest
import torch
from tiny_models import TOLERANCE, ModelMaker, labelled_batch, padded, random_sentences
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface


# The kernel is not compiled here: on a CPU that takes minutes.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from transformers' call and inside torch.compile
@pytest.mark.parametrize("sizes", [{}, {"d_k": 3, "d_v": 5}], ids=str)
def test_flex_attention_equals_sdpa(tiny_model: ModelMaker, sizes: dict) -> None:
    batch = padded([[5, 6, 7, 8, 2], [9, 10, 2]]) | {"decoder_input_ids": torch.tensor([[0, 8, 9], [0, 10, 11]])}
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = tiny_model(**sizes)(**batch).logits
        found = tiny_model(attn_implementation="flex_attention", **sizes)(**batch).logits
    torch.testing.assert_close(found, expected, **TOLERANCE)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("sizes", [{}, {"d_k": 3, "d_v": 5}], ids=str)
def test_eager_equals_sdpa(tiny_model: ModelMaker, norm_position: str, sizes: dict) -> None:
    """Logits and gradients, with padding in the source and in the target."""
    found = []
    for implementation in ("eager", None):
        model = tiny_model(norm_position=norm_position, attn_implementation=implementation, **sizes)
        assert model.config._attn_implementation == (implementation or "sdpa"), "the default"
        output = model(**labelled_batch())
        output.loss.backward()
        found.append([output.logits, *(weight.grad for weight in model.parameters())])
    for eager, sdpa in zip(*found, strict=True):
        torch.testing.assert_close(eager, sdpa, **TOLERANCE)


@pytest.mark.parametrize("target_length", [1, 4, 5, 9])
def test_flash_masks_hide_padding_in_cross_attention(tiny_model: ModelMaker, target_length: int) -> None:
    """Uses transformers' flash masks with torch's kernel, because flash attention needs a GPU.

    transformers would unpad the queries of cross-attention by a mask of the keys, so such a mask must not arrive.
    """

    def like_flash(module, query, key, value, attention_mask, **kwargs):
        assert attention_mask is None or attention_mask.dim() == 2
        if attention_mask is None:
            return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, **kwargs)
        assert query.shape[2] == 1 or not is_cross(module), "flash attention would unpad the queries"
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


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_padding_does_not_change_the_other_sentences(tiny_model: ModelMaker, implementation: str) -> None:
    """Each row of a batch with much padding equals the sentence alone, in the source and in the target."""
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
            # Right padding is in the future, so the causal mask is enough.
            torch.testing.assert_close(unmasked[row, : len(target)], alone, **TOLERANCE)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fully_masked_sentences_give_no_nan(tiny_model: ModelMaker, implementation: str, dtype: torch.dtype) -> None:
    """With a source and a target of padding, outputs and gradients are finite, and the other rows do not change.

    The encoder is called directly, because the model refuses such a source on a CPU (but not on a GPU).
    """
    model = tiny_model(attn_implementation=implementation).to(dtype)
    batch = labelled_batch()
    expected = model(**batch).logits[:2]
    batch["attention_mask"][2] = 0
    batch["decoder_attention_mask"] = torch.ones_like(batch["labels"])
    batch["decoder_attention_mask"][2] = 0
    encoded = model.get_encoder()(batch.pop("input_ids"), batch["attention_mask"])
    output = model(encoder_outputs=encoded, **batch)
    assert torch.isfinite(output.logits).all()
    torch.testing.assert_close(output.logits[:2], expected)
    output.loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.015)])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_half_precision_is_close_to_float32(
    tiny_model: ModelMaker, implementation: str, dtype: torch.dtype, tolerance: float
) -> None:
    """The tolerances allow some twenty operations with relative rounding of 2^-8 (bfloat16) and 2^-11 (float16).

    The sequences are long, because a table of positions in half precision would be wrong there."""
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
    """Scores in the thousands with a mask, for which a bias of -1e9 would overflow."""
    for implementation in ("eager", "sdpa"):
        model = tiny_model(attn_implementation=implementation)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "q_proj" in name or "k_proj" in name:
                    weight.mul_(20)
        assert torch.isfinite(model.half()(**labelled_batch()).logits).all()


def test_autocast_runs_and_stays_finite(tiny_model: ModelMaker) -> None:
    model = tiny_model().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**labelled_batch(), label_smoothing=0.1).loss
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())
