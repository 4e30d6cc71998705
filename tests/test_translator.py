"""Translator: order, batching, splitting and scores agree with `generate()` on single sentences."""

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from saved_model import ENGLISH, GERMAN, change_json, saved_model, trained_model, trained_tokenizer, untrained_model
from tokenizers import Tokenizer, models, normalizers
from torch.nn.functional import linear
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast, Seq2SeqTrainer, Seq2SeqTrainingArguments

from vaswani_transformer import TorchTranslator, Translator, cached_decoder
from vaswani_transformer.cached_decoder import fuse_layers
from vaswani_transformer.errors import InputError
from vaswani_transformer.search_vaswani_transformer import LENGTH_PENALTIES
from vaswani_transformer.sentences_vaswani_transformer import CHARACTERS_PER_TOKEN, CUTS, best_cut, split_text
from vaswani_transformer.tokenization import train_tokenizer
from vaswani_transformer.translator import LOGITS_PER_TOKEN, Hypothesis, NotFiniteError

SENTENCES = [*ENGLISH, *GERMAN, "a", "zwölf", "two apples, two apples, two apples", "</s> <pad>", "日本語 🙂 1"]


def by_generate(translator: TorchTranslator, text: str, **options) -> tuple[Any, list[float]]:
    """Return texts and scores of one call of generate() for one sentence."""
    batch = translator.tokenizer([text], return_tensors="pt")
    options |= {"return_dict_in_generate": True, "output_scores": True}
    output = translator.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **options)
    scores = output.get("sequences_scores", torch.zeros(0)).tolist()  # greedy search has none
    return translator.tokenizer.batch_decode(output.sequences, skip_special_tokens=True), scores


@pytest.mark.parametrize("num_beams", [1, 4])
def test_batches_translate_like_single_calls_of_generate(translator, num_beams):
    expected = [by_generate(translator, text, num_beams=num_beams)[0][0] for text in SENTENCES]
    for batch_tokens in (200, 100_000):
        translations = translator.translate(SENTENCES, num_beams=num_beams, batch_tokens=batch_tokens)
        assert translations == expected
    assert len(set(translations)) > len(SENTENCES) // 2  # the model does not repeat one translation


def test_blank_texts_are_copied_in_place(translator):
    texts = ["", SENTENCES[0], " \t", SENTENCES[1], "\n", ""]
    one, two = translator.translate(SENTENCES[:2])
    assert translator.translate(texts) == ["", one, " \t", two, "\n", ""]
    assert translator.translate([]) == []
    assert translator.translate("") == [""]
    assert translator.translate(texts[1]) == [one]
    assert translator.find_hypotheses("", num_return_sequences=2) == [[Hypothesis("", 0.0, [])]]


def test_notebooks_show_short_descriptions(translator):
    size = f"{translator.model.num_parameters():,}"
    assert repr(translator) == f"<TorchTranslator: {size} parameters, float32 on cpu, beam 4, length penalty 0.6>"
    assert repr(Hypothesis("Ja.", -1.23456, [4, 5, 2])) == "<'Ja.', score -1.2346, 3 tokens>"


@pytest.mark.parametrize("alpha", [0.0, 0.6, np.float32(2)])
def test_the_length_penalty_reaches_the_search(translator, alpha):
    expected = [by_generate(translator, text, length_penalty=float(alpha))[0][0] for text in ENGLISH]
    assert translator.translate(ENGLISH, length_penalty=alpha, early_stopping="never") == expected


def test_n_best_equals_generate_with_gnmt_scores(translator):
    for text, hypotheses in zip(ENGLISH, translator.find_hypotheses(ENGLISH, num_return_sequences=4), strict=True):
        texts, expected = by_generate(translator, text, num_return_sequences=4)
        assert [hypothesis.text for hypothesis in hypotheses] == texts
        scores = [hypothesis.score for hypothesis in hypotheses]
        ((best,),) = translator.find_hypotheses([text])
        assert best.tokens == hypotheses[0].tokens and best.score == pytest.approx(scores[0], abs=1e-5)
        assert scores == pytest.approx(expected, abs=1e-5)
        assert scores == sorted(scores, reverse=True)
        assert all(hypothesis.tokens.index(2) == len(hypothesis.tokens) - 1 for hypothesis in hypotheses)


def test_empty_slots_are_left_out():
    # Only one token besides </s> is allowed: each step finishes one hypothesis and keeps one live.
    model = untrained_model()
    for allowed, found in ({50}, 1), ({50, 2}, 4):
        model.generation_config.suppress_tokens = sorted(set(range(model.config.vocab_size)) - allowed)
        (hypotheses,) = TorchTranslator(model, trained_tokenizer()).find_hypotheses(["small"], num_return_sequences=4)
        assert len({len(hypothesis.tokens) for hypothesis in hypotheses}) == len(hypotheses) == found


def test_forced_decoding_equals_log_softmax_of_the_forward_pass(translator):
    targets = [*GERMAN[1:], ""]
    for batch_tokens in (1, 10_000):
        forced = translator.score(ENGLISH, targets, batch_tokens=batch_tokens)
        for source, target, decoding in zip(ENGLISH, targets, forced, strict=True):
            labels = translator.tokenizer(target)["input_ids"]
            logits = translator.model(
                input_ids=torch.tensor([translator.tokenizer(source)["input_ids"]]),
                decoder_input_ids=torch.tensor([[0, *labels[:-1]]]),
            ).logits
            truth = torch.log_softmax(logits[0], dim=-1)[range(len(labels)), labels].tolist()
            assert decoding.tokens == labels
            assert decoding.log_probabilities == pytest.approx(truth, abs=1e-5)
            assert decoding.total == pytest.approx(sum(truth), abs=1e-4)


def test_a_translation_scores_the_same_when_forced(translator):
    # Encoding a translation again may give other tokens: compare only equal ones.
    found = 0
    for source, (best,) in zip(SENTENCES, translator.find_hypotheses(SENTENCES), strict=True):
        (forced,) = translator.score([source], [best.text])
        if forced.tokens == best.tokens:
            found += 1
            assert forced.total / ((5 + len(forced.tokens)) / 6) ** 0.6 == pytest.approx(best.score, abs=1e-5)
    assert found


def test_a_text_at_the_limit_is_not_split(translator):
    text = "A house a cat"
    ids, _ = translator._encode(text)
    assert [part.ids for part in split_text(text, len(ids), translator._encode)] == [ids]
    assert len(list(split_text(text, len(ids) - 1, translator._encode))) == 2


def test_very_long_tokens_lose_no_character():
    translator = TorchTranslator(untrained_model(), train_tokenizer(["x" * 8192], 267))  # of up to 128 letters each
    text = "x" * 5000
    parts = [part.ids for part in split_text(text, 8, translator._encode)]
    assert "".join(translator._decode(ids) for ids in parts) == text


def test_leading_white_space_makes_no_part(translator):
    long = " ".join(ENGLISH)
    for spaces in (" " * 40, "\n\u3000" * CHARACTERS_PER_TOKEN[1] * 20):
        for text in (long, "small"):
            found, expected = (list(split_text(each, 16, translator._encode)) for each in (spaces + text, text))
            assert found[0].copied == spaces and [part.text for part in found] == [part.text for part in expected]


def test_only_a_character_beyond_the_limit_is_truncated():
    # NFKC expands U+FDFA to 18 characters.
    tokenizer = copy.deepcopy(trained_tokenizer())
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    translator = TorchTranslator(untrained_model(), tokenizer)
    expanded, _ = translator._encode("\ufdfa")
    assert len(expanded) > 8
    parts = list(itertools.islice(split_text("ab \ufdfa\ufdfa cd", 8, translator._encode), 9))
    assert [part.ids for part in parts] == [
        translator._encode("ab")[0],
        *[[*expanded[:7], 2]] * 2,
        translator._encode("cd")[0],
    ]
    assert [part.copied for part in parts] == ["", " ", "", " "]


@pytest.mark.parametrize(
    "text, reach, kept",
    [
        ("Nein. Ja.", 9, "Nein. Ja."),
        ("One. Two and three", 10, "One."),
        ("He said “No.” She left", 15, "He said “No.”"),
        ("3.14 and 2.71", 13, "3.14 "),
        ("It is 3.14 now", 8, "It is "),
        ("一。」二三", 4, "一。」"),
        ("One?) Two and three", 10, "One?)"),
        ("A dog, a cat and a bird", 20, "A dog,"),
        ("A dog runs, a cat sleeps", 16, "A dog runs,"),
        ("A dog runs and a cat sleeps", 17, "A dog runs "),
        ("He fell, because", 16, "He fell,"),
        ("一，二三四", 4, "一，"),
        ("abcdef", 4, ""),
        (".......", 4, ""),
    ],
)
def test_a_split_prefers_sentence_ends_then_commas_conjunctions_and_spaces(text, reach, kept):
    assert text[: best_cut(text, reach, reach, [*CUTS[0], *CUTS[1]])] == kept


def test_hypotheses_of_parts_are_joined_by_rank(translator):
    first, second = translator.find_hypotheses(ENGLISH[:2], num_return_sequences=3)
    (joined,) = translator.find_hypotheses(" ".join(ENGLISH[:2]), num_return_sequences=3)
    assert len(joined) == min(len(first), len(second))
    for hypothesis, a, b in zip(joined, first, second, strict=False):
        assert (hypothesis.text, hypothesis.tokens) == (f"{a.text} {b.text}", a.tokens + b.tokens)
        assert hypothesis.score == pytest.approx(a.score + b.score, abs=1e-5)


def overflowing_model() -> Any:
    """Return a model whose log-probabilities are NaN for sources with a "z"."""
    model: Any = untrained_model(share_encoder_decoder_embeddings=False).eval()
    with torch.no_grad():
        model.model.encoder.embed_tokens.weight[trained_tokenizer().convert_tokens_to_ids("z")] = 3e38
    return model


def test_a_text_without_finite_scores_is_named():
    translator = TorchTranslator(overflowing_model(), trained_tokenizer())
    good, bad = "a b", "c. z"
    for call in (translator.translate, translator.find_hypotheses):
        assert len(call([good, good])) == 2
        for workers in (1, 2):
            with pytest.raises(NotFiniteError, match="^text 2: the model's log-probabilities are NaN or infinite"):
                call([good, bad, good], batch_tokens=1, workers=workers)
    assert len(translator.score([good], [bad])) == 1
    with pytest.raises(NotFiniteError, match="^target 2: the model's"):
        translator.score([good, bad], [good, good])


@pytest.mark.parametrize("alpha", LENGTH_PENALTIES)
def test_extreme_length_penalties_keep_long_scores_valid(alpha):
    # A model with a uniform distribution over its 300 tokens that never produces </s>.
    model = untrained_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    model.generation_config.update(extra_length=1000)
    model.generation_config.suppress_tokens = [0, 1, 2]
    translator = TorchTranslator(model, trained_tokenizer())
    ((best,),) = translator.find_hypotheses(["a"], num_beams=1, length_penalty=alpha)
    length = len(best.tokens)
    assert length > 1000
    assert best.score == pytest.approx(-length * math.log(300) / ((5 + length) / 6) ** alpha, rel=1e-4)


def test_batches_of_short_texts_are_bounded_by_their_logits():
    """Each hypothesis has as many logits as the decoder has tokens, in every step."""
    model: Any = untrained_model(decoder_vocab_size=40_000, share_encoder_decoder_embeddings=False)
    translator, sizes = TorchTranslator(model, trained_tokenizer(), trained_tokenizer()), []
    with model.lm_head.register_forward_hook(lambda module, inputs, logits: sizes.append(logits.numel())):
        translator.find_hypotheses(["a"] * 50, batch_tokens=400, max_new_tokens=2)
        assert 0.5 < max(sizes) / (400 * LOGITS_PER_TOKEN) <= 1.1
        sizes.clear()
        translator.score(["a"] * 50, ["a"] * 50, batch_tokens=200)
        assert 0.5 < max(sizes) / (200 * LOGITS_PER_TOKEN) <= 1.1


def test_weights_are_copied_once_for_all_batches(translator, monkeypatch):
    made = []
    monkeypatch.setattr(cached_decoder, "fuse_layers", lambda *layers: made.append(layers) or fuse_layers(*layers))
    translator.translate(ENGLISH, batch_tokens=1)
    assert len(made) == translator.model.config.decoder_layers


def test_texts_of_a_million_letters_are_refused_at_once(translator):
    text = "a" * 1_000_000
    for call in (translator.translate, translator.find_hypotheses):
        with pytest.raises(
            InputError, match="^text 2: a sentence has 1,000,000 characters, the limit is 10,000; split it"
        ):
            call(["a", text])
    with pytest.raises(InputError, match="target 1: a sentence has 1,000,000 characters"):
        translator.score("a", text)
    with pytest.raises(InputError, match="source 1 has 9,001 tokens; at most 5,000 are scored: split it"):
        translator.score("q" * 9000, "a")


def test_batch_tokens_counts_padding_and_beams(translator):
    sizes = []

    def record(module, args, kwargs):
        sizes.append(kwargs["input_ids"].shape)

    with translator.model.get_encoder().register_forward_pre_hook(record, with_kwargs=True):
        for beams in (1, 4):
            sizes.clear()
            translator.translate(ENGLISH, num_beams=beams, batch_tokens=200)
            assert all(rows == 1 or rows * longest * beams <= 200 for rows, longest in sizes)
            assert any(rows > 1 for rows, _ in sizes)


def test_batches_are_larger_on_a_gpu(translator, monkeypatch):
    sizes = []
    monkeypatch.setattr(translator, "count_cores", lambda: None)
    with translator.model.get_encoder().register_forward_hook(lambda *_: sizes.append(len(_[2][0]))):
        translator.translate(["a"] * 2100, num_beams=8, max_new_tokens=1)
        translator.score(["a"] * 5000, ["b"] * 5000)
    assert sizes == [2048, 52, 5000]  # at most 32,768 tokens


@pytest.mark.parametrize(
    "options, named",
    [
        ({"num_beams": -3}, "num_beams is -3"),
        ({"num_beams": 10**9}, "1000"),
        ({"num_beams": True}, "num_beams is True; it must be an integer"),
        ({"num_beams": 2.5}, "num_beams is 2.5; it must be an integer"),
        ({"num_return_sequences": 5}, r"between 1 and 4 \(num_beams; raise it for more\)"),
        ({"batch_tokens": 0}, "batch_tokens is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"max_source_length": 3}, "max_source_length is 3"),
        ({"beams": 4}, "beams: no such setting; known: num_beams, length_penalty, "),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"length_penalty": math.nan}, "length_penalty is nan"),
        ({"length_penalty": "much"}, "length_penalty is 'much'"),
        ({"length_penalty": -1.5}, "length_penalty is -1.5; it must lie between -1 and 5"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1; it must lie between 0 and 100000"),
        ({"no_repeat_ngram_size": 2.0}, "no_repeat_ngram_size is 2.0; it must be an integer"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must lie between 0.1 and 10 .1: off"),
        ({"repetition_penalty": "1.3"}, "repetition_penalty is '1.3'"),
        ({"repetition_penalty": True}, "repetition_penalty is True"),
    ],
)
def test_an_invalid_option_is_refused_with_its_limits(translator, options, named):
    with pytest.raises(InputError, match=named):
        translator.find_hypotheses(["a"], **options)


def test_translate_returns_one_translation_of_each_text(translator):
    with pytest.raises(InputError, match="num_return_sequences is 2, but translate.* call find_hypotheses"):
        translator.translate(["a"], num_return_sequences=2)


@pytest.mark.parametrize(
    "texts, named",
    [
        (["a", None], "text 2 is a NoneType"),
        (None, "the texts are of type NoneType; give a str or a list of str"),
        (Path("a"), "the texts are of type .*Path; give a str or a list of str"),
        ({"en": "a"}, "the texts are in a dict; give a list of str, such as one of its columns"),
        (pandas.DataFrame({"en": ["a"]}), "the texts are in a DataFrame"),
        (["\ud800"], "text 1: .*surrogate"),
    ],
)
def test_invalid_text_is_refused_by_number(translator, texts, named):
    with pytest.raises(InputError, match=named):
        translator.translate(texts)


def test_scoring_needs_a_translation_for_each_source(translator):
    with pytest.raises(InputError, match="2 sources and 1 targets"):
        translator.score(["a", "b"], ["c"])
    assert translator.score([], []) == []


def test_learned_positions_limit_source_and_target():
    model = untrained_model(position_embedding_type="learned", max_position_embeddings=16)
    translator = TorchTranslator(model, trained_tokenizer())
    (translation,) = translator.translate([" ".join(ENGLISH)])
    assert translation
    with pytest.raises(InputError, match="max_source_length is 17; it must lie between 8 and 16"):
        translator.translate(["a"], max_source_length=17)
    with pytest.raises(InputError, match="target 1 has .* tokens; the model has 16 positions"):
        translator.score(["a"], ["a" * 100])


def test_progress_goes_to_stderr_and_changes_nothing(translator, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    text = " ".join(ENGLISH)
    assert translator.translate(text, progress=True) == translator.translate(text)
    printed = capsys.readouterr()
    assert printed.out == "" and f"{len(ENGLISH)}/{len(ENGLISH)}" in printed.err, "a long text, too, gets on visibly"
    assert "splitting" in printed.err


class Doubled(torch.Tensor):
    """A weight that stands for twice its values and cannot be concatenated, as torchao's stand for scaled integers."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.cat:
            raise NotImplementedError
        result: Any = super().__torch_function__(func, types, args, kwargs)
        return 2 * result.as_subclass(torch.Tensor) if func is linear else result


def test_a_layer_with_another_kind_of_weight_is_called():
    model, doubled = copy.deepcopy(trained_model()), copy.deepcopy(trained_model())
    for i in range(model.config.decoder_layers):
        ours, theirs = (m.get_submodule(f"model.decoder.layers.{i}.self_attn.v_proj") for m in (doubled, model))
        ours.weight = torch.nn.Parameter(ours.get_parameter("weight").detach().as_subclass(Doubled))
        theirs.get_parameter("weight").data.mul_(2)
    tokenizer = trained_tokenizer()
    expected = TorchTranslator(model, tokenizer).translate(SENTENCES)
    assert TorchTranslator(doubled, tokenizer).translate(SENTENCES) == expected
    assert TorchTranslator(trained_model(), tokenizer).translate(SENTENCES) != expected


def test_a_saved_folder_translates_as_its_model(translator, tmp_path):
    loaded = Translator.from_pretrained(saved_model(tmp_path), device="cpu")
    assert loaded.translate(SENTENCES) == translator.translate(SENTENCES)
    assert Translator.from_pretrained(tmp_path, device="cpu", dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(InputError, match="dtype 'int4' is not one of float32, bfloat16, float16, float64"):
        Translator.from_pretrained(tmp_path, dtype="int4")


def test_the_folder_of_a_trainer_translates_like_generate(tmp_path):
    """Seq2SeqTrainer writes transformers' default, max_length 20, into generation_config.json."""
    tokenizer = trained_tokenizer()
    rows: Any = [dict(tokenizer(text, text_target=text)) for text in ENGLISH]
    trainer = Seq2SeqTrainer(
        model=copy.deepcopy(trained_model()),
        args=Seq2SeqTrainingArguments(
            str(tmp_path), max_steps=1, learning_rate=0.0, predict_with_generate=True, save_strategy="no",
            report_to="none", dataloader_pin_memory=False, disable_tqdm=True,
        ),
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        processing_class=tokenizer,
    )  # fmt: skip
    trainer.train()
    trainer.predict(rows)
    trainer.save_model(str(tmp_path))
    assert json.loads((tmp_path / "generation_config.json").read_text())["max_length"] == 20
    translator = Translator.from_pretrained(tmp_path, device="cpu")
    found = translator.find_hypotheses(SENTENCES)
    assert [best.text for (best,) in found] == [by_generate(translator, text)[0][0] for text in SENTENCES]
    assert max(len(best.tokens) for (best,) in found) > 20


def test_the_length_of_a_plain_generation_config_is_that_of_generate(folder):
    """Without extra_length, as after training with a GenerationConfig of its own, max_length counts."""
    change_json(folder / "generation_config.json", max_length=7, extra_length=None)
    translator = Translator.from_pretrained(folder, device="cpu")
    found = translator.find_hypotheses(ENGLISH)
    assert [best.text for (best,) in found] == [by_generate(translator, text)[0][0] for text in ENGLISH]
    assert max(len(best.tokens) for (best,) in found) == 6  # and the start token


def test_tokens_are_decoded_as_in_onnx_whatever_clean_up_the_tokenizer_is_saved_with(tiny_model):
    words = {word: id for id, word in enumerate(("<s>", "<pad>", "</s>", "<unk>", "Hi", ",", "you", "."))}
    backend = Tokenizer(models.WordLevel(words, "<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=True)
    assert tokenizer.decode([4, 5, 6, 7]) == "Hi, you."
    assert (
        TorchTranslator(tiny_model(), tokenizer)._decode([4, 5, 6, 7]) == backend.decode([4, 5, 6, 7]) == "Hi , you ."
    )
