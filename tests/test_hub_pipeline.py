"""`pipeline("translation", model=...)` with the package equals the Translator."""

from typing import Any

import pytest
import torch
from huggingface_hub import constants
from saved_model import ENGLISH, GERMAN, trained_tokenizer, untrained_model
from transformers import GenerationConfig, MarianConfig, MarianMTModel
from transformers import pipeline as typed_pipeline

from vaswani_transformer import TorchTranslator

pipeline: Any = typed_pipeline  # typed for the tasks of transformers only
TEXTS = [*ENGLISH, "The cat is cold.", "Two apples"]
LONG = " ".join(ENGLISH[:3]) + "\n" + "".join(ENGLISH[0].split())


@pytest.fixture(scope="module")
def translate(model_folder) -> Any:
    return pipeline("translation", model=str(model_folder), device="cpu")


def texts(translations: list[dict[str, Any]]) -> list[str]:
    return [translation["translation_text"] for translation in translations]


def test_arguments_of_transformers_4_work_or_are_refused(translate):
    (expected,) = translate(TEXTS[0])
    assert translate(TEXTS[0], truncation=True, clean_up_tokenization_spaces=False, return_text=True) == [expected]
    (both,) = translate(TEXTS[0], return_tensors=True, return_text=True)
    assert both.keys() == {"translation_text", "translation_token_ids"} and both.items() >= expected.items()
    for name, said in (("src_lang", "src_lang is 'de'"), ("tgt_lang", "'de', but the model has one target language")):
        with pytest.raises(ValueError, match=f"{said}; leave it out"):
            translate(TEXTS[0], **{name: "de"})
    with pytest.raises(ValueError, match="tgt_lang is 'de', target_language 'fr'; give one"):
        translate(TEXTS[0], tgt_lang="de", target_language="fr")
    with pytest.raises(ValueError, match="return_text is False; return_tensors=True"):
        translate(TEXTS[0], return_text=False)


def test_cleaning_up_spaces_reaches_the_tokenizer(folder):
    translate = pipeline("translation", model=str(folder), device="cpu")
    translate.target_tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    translate.target_tokenizer.clean_up_tokenization_spaces = True
    part = {
        "is_blank": False,
        "separator": "",
        "sequences": torch.tensor([[trained_tokenizer()("klein .")["input_ids"]]]),
    }
    assert texts(translate.postprocess([part])) == ["klein ."]  # as by Translator
    assert texts(translate.postprocess([part], clean_up_tokenization_spaces=True)) == ["klein."]


def test_translations_of_sentences_without_a_space_between_them_get_one(translate):
    """As those of Chinese sentences; the parts are what hub/space/app.py passes, too."""
    parts = [
        {"is_blank": False, "separator": "", "sequences": torch.tensor([[trained_tokenizer()(text)["input_ids"]]])}
        for text in ENGLISH[:2]
    ]
    assert texts(translate.postprocess(parts)) == [" ".join(ENGLISH[:2])]


def test_texts_give_flat_lists_of_translations(translate, translator):
    expected = [{"translation_text": text} for text in translator.translate(TEXTS)]
    assert translate(TEXTS) == translate(tuple(TEXTS)) == expected
    assert translate(TEXTS[0]) == expected[:1]
    assert translate(()) == translate([]) == []


def test_batching_does_not_change_translations(translate):
    batch = [TEXTS[0], LONG, *TEXTS[4:]]
    assert translate(batch, batch_size=3, max_source_length=30) == translate(batch, max_source_length=30)


def test_n_best_translations_and_scores_equal_the_translator(translate, translator):
    expected = translator.find_hypotheses(TEXTS, num_return_sequences=3, length_penalty=1.0)
    found = translate(TEXTS, num_return_sequences=3, length_penalty=1.0, return_scores=True)
    for translations, hypotheses in zip(found, expected, strict=True):
        assert texts(translations) == [hypothesis.text for hypothesis in hypotheses]
        scores = torch.tensor([translation["score"] for translation in translations])
        assert torch.allclose(scores, torch.tensor([hypothesis.score for hypothesis in hypotheses]), atol=1e-4)


def test_scores_use_the_length_penalty_of_the_generation_config(translate, translator):
    config = GenerationConfig(length_penalty=2.0)
    (found,) = translate(TEXTS[:1], generation_config=config, return_scores=True)
    ((expected,),) = translator.find_hypotheses(TEXTS[:1], length_penalty=2.0)
    assert found["score"] == pytest.approx(expected.score, abs=1e-4)


def test_without_a_length_penalty_scores_use_the_default_of_generate(translate, monkeypatch):
    monkeypatch.setattr(translate.model.generation_config, "length_penalty", None)
    (found,) = translate(TEXTS[:1], return_scores=True)
    (expected,) = translate(TEXTS[:1], length_penalty=1.0, return_scores=True)
    assert found == expected


@pytest.mark.parametrize("beams", [1, 4])
def test_scores_have_the_penalty_of_repetitions(translate, translator, beams):
    settings = {"num_beams": beams, "repetition_penalty": 1.5}
    found = translate(TEXTS, return_scores=True, **settings)
    expected = [best for (best,) in translator.find_hypotheses(TEXTS, **settings)]
    assert [translation["translation_text"] for translation in found] == [best.text for best in expected]
    scores = [translation["score"] for translation in found]
    assert scores == pytest.approx([best.score for best in expected], abs=1e-4)


def test_greedy_scores_equal_forced_decoding(translate, translator):
    (found,) = translate(TEXTS[:1], num_beams=1, length_penalty=0.0, return_scores=True)
    ids = translate(TEXTS[:1], num_beams=1, return_tensors=True)[0]["translation_token_ids"]
    (forced,) = translator._log_probabilities([translator._encode(TEXTS[0])[0]], [ids.tolist()])
    assert found["score"] == pytest.approx(sum(forced), abs=1e-4)


def test_long_texts_are_translated_like_the_translator(translate, translator):
    asked = {"max_source_length": 20, "num_return_sequences": 2, "batch_size": 3}
    found = translate(LONG, **asked)
    expected = translator.find_hypotheses(LONG, max_source_length=20, num_return_sequences=2)[0]
    assert texts(found) == [hypothesis.text for hypothesis in expected]
    found = translate(LONG, return_tensors=True, return_scores=True, **asked)
    scores = [hypothesis.score for hypothesis in expected]
    assert [translation["score"] for translation in found] == pytest.approx(scores, abs=1e-4)
    tokens = [hypothesis.tokens for hypothesis in expected]
    assert [translation["translation_token_ids"].tolist() for translation in found] == tokens


def test_learned_positions_limit_the_parts():
    model = untrained_model(position_embedding_type="learned", max_position_embeddings=12).eval()
    translate = pipeline("translation", model=model, tokenizer=trained_tokenizer(), device="cpu")
    assert texts(translate([LONG])) == TorchTranslator(model, trained_tokenizer()).translate([LONG])
    for length in (13, 9.5):
        with pytest.raises(ValueError, match=f"max_source_length is {length}; it must .* between 8 and 12"):
            translate(LONG, max_source_length=length)


def test_what_has_no_word_is_copied(translate, translator):
    text = f"- {TEXTS[0]}\n\n---\n{TEXTS[0]} 🙂\n"
    assert texts(translate([text], batch_size=2)) == translator.translate([text])
    assert translate(["", TEXTS[0], " \n\t"], batch_size=2) == [
        {"translation_text": ""},
        *translate([TEXTS[0]]),
        {"translation_text": " \n\t"},
    ]
    assert translate("") == [{"translation_text": ""}]


def test_typed_special_tokens_are_text(translate, translator):
    assert texts(translate(["</s>", "<pad> a"])) == translator.translate(["</s>", "<pad> a"])


def test_generators_are_supported(translate):
    found = translate(text for text in TEXTS[4:])
    assert [texts(translations) for translations in found] == [texts(translate(text)) for text in TEXTS[4:]]


@pytest.mark.parametrize("wrong", [3, ["a", None], [["a"]]])
def test_inputs_other_than_text_are_refused(translate, wrong):
    with pytest.raises(ValueError, match="is a str or a list of str, not"):
        translate(wrong)


def test_unknown_arguments_are_refused(translate):
    with pytest.raises(ValueError, match="num_beens"):
        translate(TEXTS[0], num_beens=3)


def test_other_model_types_are_refused():
    sizes: Any = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 300, "pad_token_id": 1}
    other = MarianMTModel(MarianConfig(**sizes, decoder_start_token_id=1))
    with pytest.raises(ValueError, match="not marian"):
        pipeline("translation", model=other, tokenizer=trained_tokenizer(), device="cpu")


def test_a_separate_target_tokenizer_decodes(tmp_path):
    from vaswani_transformer.tokenization import train_tokenizer

    target = train_tokenizer(GERMAN, 280)
    model = untrained_model(decoder_vocab_size=280, share_encoder_decoder_embeddings=False).eval()
    translate = pipeline(
        "translation", model=model, tokenizer=trained_tokenizer(), target_tokenizer=target, device="cpu"
    )
    ids = translate(TEXTS[0], return_tensors=True)[0]["translation_token_ids"]
    assert texts(translate(TEXTS[0])) == [target.decode(ids, skip_special_tokens=True)]

    # In the model's folder it is found automatically.
    model.save_pretrained(tmp_path)
    trained_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="separate vocabularies; it needs a second tokenizer .*: pass target_"):
        pipeline("translation", model=str(tmp_path), device="cpu")
    with pytest.raises(ValueError, match="300 tokens and the model's decoder 280; pass target_tokenizer="):
        pipeline("translation", model=str(tmp_path), target_tokenizer=trained_tokenizer(), device="cpu")
    target.save_pretrained(tmp_path / "target_tokenizer")
    loaded = pipeline("translation", model=str(tmp_path), device="cpu")
    assert loaded(TEXTS[:1]) == translate(TEXTS[:1])


@pytest.mark.parametrize("second", [{"decoder_vocab_size": 400}, {"separate_vocabularies": True}], ids=str)
def test_the_tokenizer_of_the_sources_never_stands_in_for_that_of_another_vocabulary(second):
    """Not even a small one, whose tokens the decoder has."""
    model = untrained_model(share_encoder_decoder_embeddings=False, **second)
    with pytest.raises(ValueError, match="separate vocabularies"):
        pipeline("translation", model=model, tokenizer=trained_tokenizer(), device="cpu")


def test_a_target_tokenizer_that_cannot_be_downloaded_is_an_error(monkeypatch, tmp_path):
    """A repository whose model and first tokenizer were loaded by the Auto classes, and then the network was lost."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model = untrained_model(share_encoder_decoder_embeddings=False)
    model.config._name_or_path = "someone/model"
    with pytest.raises(OSError, match="couldn't connect"):
        pipeline("translation", model=model, tokenizer=trained_tokenizer(), device="cpu")


def test_a_saved_pipeline_loads_without_trust(translate, tmp_path):
    translate.save_pretrained(tmp_path)
    again = pipeline("translation", model=str(tmp_path), device="cpu")
    assert again(TEXTS[:1]) == translate(TEXTS[:1])
