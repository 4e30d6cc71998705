"""Weights: saving and loading, tied matrices, resizing and initialisation."""

from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import ModelMaker, labelled_batch, tiny_config
from transformers import AutoModel, AutoModelForSeq2SeqLM

from vaswani_transformer import VaswaniTransformerForConditionalGeneration, VaswaniTransformerModel


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
def test_a_saved_model_loads_unchanged(tiny_model: ModelMaker, changes: dict, tmp_path: Path) -> None:
    model = tiny_model(**changes)
    model.save_pretrained(tmp_path)
    stored = sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())
    assert stored == model.num_parameters(), "tied matrices are stored once, all others completely"
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is VaswaniTransformerForConditionalGeneration
    assert not any(report.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    inputs = {"input_ids": torch.tensor([[5, 2]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**inputs).logits, model(**inputs).logits)
        backbone = AutoModel.from_pretrained(tmp_path).eval()
        assert type(backbone) is VaswaniTransformerModel
        assert torch.equal(backbone(**inputs).last_hidden_state, model.model(**inputs).last_hidden_state)


@pytest.mark.parametrize("new_size", [24, 37])
def test_resizing_the_vocabulary_keeps_rows_and_ties(tiny_model: ModelMaker, new_size: int, tmp_path: Path) -> None:
    model = tiny_model(output_bias=True)
    before = model.model.shared.weight.detach().clone()
    bias = model.lm_head.bias.detach().clone()
    model.resize_token_embeddings(new_size)
    kept = min(new_size, 30)
    assert model.config.vocab_size == model.config.decoder_vocab_size == new_size
    embeddings = (model.model.shared, model.get_encoder().embed_tokens, model.get_decoder().embed_tokens)
    assert all(embedding.weight is model.lm_head.weight for embedding in embeddings)
    assert model.lm_head.weight.shape == (new_size, 16)
    assert torch.equal(model.model.shared.weight[:kept], before[:kept])
    assert torch.equal(model.lm_head.bias[:kept], bias[:kept])
    inputs = {"input_ids": torch.tensor([[new_size - 1, 2]]), "decoder_input_ids": torch.tensor([[0, new_size - 1]])}
    logits = model(**inputs).logits
    assert logits.shape == (1, 2, new_size)
    model.save_pretrained(tmp_path)
    loaded = VaswaniTransformerForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**inputs).logits, logits)


def test_matrices_are_shared_as_configured(tiny_model: ModelMaker) -> None:
    for tied in (True, False):
        one = tiny_model(tie_word_embeddings=tied)
        assert one.get_encoder().embed_tokens.weight is one.get_decoder().embed_tokens.weight
        assert (one.lm_head.weight is one.model.shared.weight) == tied
        two = tiny_model(tie_word_embeddings=tied, share_encoder_decoder_embeddings=False, decoder_vocab_size=40)
        assert two.get_encoder().embed_tokens.weight.shape == (30, 16)
        assert two.get_decoder().embed_tokens.weight.shape == (40, 16)
        assert (two.lm_head.weight is two.get_decoder().embed_tokens.weight) == tied
        assert two(**labelled_batch()).logits.shape == (3, 5, 40)


def test_new_weights_have_the_documented_variance() -> None:
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


def test_gradients_reach_every_parameter(tiny_model: ModelMaker) -> None:
    model = tiny_model(attention_bias=True, output_bias=True, norm_position="pre")
    model(**labelled_batch()).loss.backward()
    for name, weight in model.named_parameters():
        if not name.endswith("k_proj.bias"):  # cancels in the softmax
            assert weight.grad is not None and weight.grad.abs().max() > 0, name
