"""The configuration refuses impossible values by field, and survives JSON."""

import json
import re
import runpy

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError
from tiny_models import tiny_config
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from transformers.integrations import hub_kernels

from hub import card
from vaswani_transformer import (
    PRESETS,
    VaswaniTransformerConfig,
    VaswaniTransformerForConditionalGeneration,
    configuration_vaswani_transformer,
)
from vaswani_transformer.model_folder import FIXED_ENTRIES, SWITCHES

SMALLER_TARGET = {"decoder_vocab_size": 25, "share_encoder_decoder_embeddings": False}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"encoder_layers": 0}, "encoder_layers"),
        ({"d_model": 18}, "d_model"),  # not divisible by four heads
        ({"decoder_attention_heads": 3}, "d_model"),
        ({"d_model": 18, "d_k": 5}, "d_model"),
        ({"d_v": -2}, "d_v"),
        ({"dropout": 1.0}, "dropout"),
        ({"attention_dropout": -0.1}, "attention_dropout"),
        ({"norm_position": "middle"}, "norm_position"),
        ({"position_embedding_type": "rotary"}, "position_embedding_type"),
        ({"position_offset": -1}, "position_offset"),
        ({"position_offset": 10**18}, "position_offset"),  # float32 does not tell such positions apart
        ({"decoder_vocab_size": 40}, "share_encoder_decoder_embeddings"),
        ({"separate_vocabularies": True}, "share_encoder_decoder_embeddings"),
        ({"activation_function": "rleu"}, "activation_function"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps"),
        ({"position_base": 0.0}, "position_base"),
        ({"d_model": 15, "encoder_attention_heads": 1, "decoder_attention_heads": 1}, "d_model"),
        ({"d_model": 10**9}, "d_model"),
        (SMALLER_TARGET | {"pad_token_id": 27}, "pad_token_id"),
        (SMALLER_TARGET | {"decoder_start_token_id": 27}, "decoder_start_token_id"),
        ({"bos_token_id": 30}, "bos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"eos_token_id": [2, 3]}, "eos_token_id"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
    ids=str,
)
def test_impossible_values_are_refused_by_field(changes: dict, named: str) -> None:
    with pytest.raises((ValueError, StrictDataclassError), match=named):  # the second for wrong types
        tiny_config(**changes)


def test_unusual_but_possible_values_are_accepted() -> None:
    tiny_config(d_model=18, d_k=5, d_v=7)
    tiny_config(decoder_vocab_size=40, share_encoder_decoder_embeddings=False, decoder_start_token_id=35)


def test_a_changed_vocabulary_decides_whether_there_are_two(tmp_path) -> None:
    config = tiny_config(share_encoder_decoder_embeddings=False)
    config.decoder_vocab_size = 25
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).has_two_vocabularies
    two = tiny_config(**SMALLER_TARGET).to_dict()
    assert not VaswaniTransformerConfig(**two | {"decoder_vocab_size": two["vocab_size"]}).has_two_vocabularies
    assert VaswaniTransformerConfig(**tiny_config().to_dict() | SMALLER_TARGET).has_two_vocabularies


def test_an_unknown_preset_is_refused_with_the_valid_names() -> None:
    with pytest.raises(ValueError, match="hugeous.*base.*big"):
        VaswaniTransformerConfig.from_preset("hugeous")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name: str, tmp_path) -> None:
    config = VaswaniTransformerConfig.from_preset(name)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is VaswaniTransformerConfig
    assert loaded.to_diff_dict() == config.to_diff_dict()


def test_config_json_describes_only_the_model(tmp_path) -> None:
    tiny_config(norm_position="pre", d_k=3).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written.items() >= {"model_type": "vaswani_transformer", "norm_position": "pre", "d_k": 3}.items()
    assert not {"num_beams", "length_penalty", "max_length", "early_stopping"} & set(written)


def test_every_field_that_changes_what_a_model_computes_is_known_to_exports_and_cards() -> None:
    fields = VaswaniTransformerConfig.__annotations__.keys()
    of_calls, of_tokenizers = {"use_cache", "is_encoder_decoder"}, {"separate_vocabularies"}
    matrices = {"share_encoder_decoder_embeddings", "tie_word_embeddings"}
    dropout = {"dropout", "attention_dropout", "activation_dropout"}
    assert fields - {*FIXED_ENTRIES} == {"bos_token_id"} | of_calls | of_tokenizers | matrices | dropout
    ids = {"bos_token_id", "decoder_start_token_id", "pad_token_id", "eos_token_id"}
    positions = {"max_position_embeddings"}  # `learned_positions` in a card
    assert fields - {*card.LISTED_SIZES, *SWITCHES, *card.OTHER_SWITCHES} == ids | of_calls | positions


def test_common_field_names_are_aliases() -> None:
    config = tiny_config()
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (16, 2, 4)
    config.hidden_size = 32
    assert config.d_model == 32
    assert config.get_text_config(decoder=True).num_hidden_layers == config.decoder_layers


def test_pre_norm_adds_final_norms_by_default() -> None:
    assert tiny_config(norm_position="pre").decoder_final_norm and not tiny_config().encoder_final_norm
    assert not tiny_config(norm_position="pre", decoder_final_norm=False).decoder_final_norm
    assert tiny_config(encoder_final_norm=True).encoder_final_norm


def test_only_learned_positions_have_a_maximum() -> None:
    """Code ported from Marian or BART may set one, which would limit translations."""
    sinusoidal = VaswaniTransformerConfig(max_position_embeddings=512)
    assert sinusoidal.learned_positions is None
    longest = sinusoidal.max_position_embeddings
    assert longest and longest > 1024, "transformers' run_translation.py compares it with a length"
    learned = VaswaniTransformerConfig(position_embedding_type="learned", max_position_embeddings=512)
    assert learned.max_position_embeddings == learned.learned_positions == 512
    assert VaswaniTransformerConfig(position_embedding_type="learned").max_position_embeddings == 256


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("value", ["owner/name", "owner/name@main:function", {"": "owner/name"}], ids=str)
def test_a_config_file_cannot_load_a_kernel_from_the_hub(
    field: str, value: object, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel_hub", lambda *args, **_: calls.append(args), raising=False)
    VaswaniTransformerForConditionalGeneration(tiny_config()).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(written | {field: value}))
    with pytest.raises(ValueError, match="`attn_implementation` is 'owner/name.*eager, sdpa"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert not calls


@pytest.mark.parametrize("version", ["4.57.1", "5.3.0"])
def test_an_old_transformers_is_refused_in_one_line(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "__version__", version)
    monkeypatch.delattr(transformers, "PreTrainedConfig")  # its name before version 5
    with pytest.raises(ImportError, match=re.escape(f'{version} is too old: pip install "transformers>=5.4"')):
        runpy.run_path(configuration_vaswani_transformer.__file__)
