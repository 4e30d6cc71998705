"""`generate()` apart from its search (test_search.py): caches, inputs, outputs and errors."""

import logging
from typing import Any, cast

import pytest
import torch
from conftest import one_fast_in
from saved_model import trained_tokenizer
from tiny_models import TOLERANCE, ModelMaker, padded, random_sentences
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from vaswani_transformer import SearchSettings
from vaswani_transformer.beam_search import beam_search
from vaswani_transformer.modeling_vaswani_transformer import CACHE_NAME, VaswaniTransformerGenerationMixin

END = 2


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("sizes", [{}, {"d_k": 3, "d_v": 5}, {"encoder_layers": 3, "decoder_layers": 1}], ids=str)
def test_every_kind_of_cache_gives_the_same_translations(lively_model: ModelMaker, beams: int, sizes: dict) -> None:
    model = lively_model(1, **sizes)
    batch = padded(random_sentences(1, count=5, vocab_size=16, longest=9))
    arguments = {"num_beams": beams, "extra_length": 6, "return_dict_in_generate": True}
    expected = model.generate(**batch, **arguments, output_scores=True, use_cache=False)
    assert getattr(expected, CACHE_NAME) is None
    for cache in ("dynamic", "static"):
        found = model.generate(**batch, **arguments, output_scores=True, cache_implementation=cache)
        assert torch.equal(found.sequences, expected.sequences), cache
        if beams > 1:
            torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, **TOLERANCE)


def test_sampling_with_a_cache_draws_the_same_tokens(lively_model: ModelMaker) -> None:
    model, batch = lively_model(1), padded([[5, 6, 7, 8, 2], [9, 2]])
    samples = []
    for settings in ({"use_cache": False}, {}, {"cache_implementation": "static"}):
        torch.manual_seed(0)
        samples.append(model.generate(**batch, **settings, do_sample=True, num_beams=1, max_new_tokens=12))
    assert len(set(samples[0][0].tolist())) > 4
    assert torch.equal(samples[1], samples[0]) and torch.equal(samples[2], samples[0])


def enable_checkpointing(model: Any) -> None:
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()  # its older name


@pytest.mark.parametrize("beams", [1, 4])
def test_a_model_in_training_with_gradient_checkpointing_translates_the_same(lively_model: ModelMaker, beams: int):
    model, batch = lively_model(1, dropout=0.0), padded([[5, 6, 7, 8, 2], [9, 2]])
    expected = model.generate(**batch, num_beams=beams)
    enable_checkpointing(model)
    assert torch.equal(model.train().generate(**batch, num_beams=beams), expected)


def test_gradient_checkpointing_refuses_a_filled_cache(lively_model: ModelMaker) -> None:
    """The backward pass would append to it again."""
    model, batch = lively_model(1, dropout=0.0), padded([[5, 6, 7, 8, 2]])
    target = torch.tensor([[0, 5, 6]])
    plain = model(**batch, decoder_input_ids=target)
    enable_checkpointing(model.train())
    found = model(**batch, decoder_input_ids=target, cache=DynamicCache(), use_cache=True)
    torch.testing.assert_close(found.logits, plain.logits)
    found.logits.sum().backward()
    with pytest.raises(ValueError, match="cannot be used with gradient checkpointing"):
        model(**batch, decoder_input_ids=target, cache=getattr(plain, CACHE_NAME))


@pytest.mark.parametrize("beams", [1, 4])
def test_a_search_continues_from_a_cache(lively_model: ModelMaker, beams: int) -> None:
    """transformers would decode the tokens in the cache again."""
    model, source, prompt = lively_model(1), padded([[5, 6, 7, 8, 2]]), torch.tensor([[0, 5, 6, 9]])
    arguments = {"num_beams": beams, "max_new_tokens": 9}
    expected = model.generate(**source, decoder_input_ids=prompt, **arguments)
    for name in ("cache", "past_key_values"):
        cache = getattr(model(**source, decoder_input_ids=prompt[:, :2], use_cache=True), CACHE_NAME)
        cache.batch_repeat_interleave(beams)
        found = model.generate(**source, decoder_input_ids=prompt, **arguments, **{name: cache})
        assert torch.equal(found, expected), name


def test_settings_that_are_none_have_their_defaults(lively_model: ModelMaker) -> None:
    """transformers' run_translation_no_trainer.py passes `num_beams=None`."""
    model, batch = lively_model(1), padded([[5, 6, 7, 8, 2], [9, 2]])
    nothing = dict.fromkeys(
        ["num_beams", "num_return_sequences", "length_penalty", "early_stopping", "use_cache", "max_length"]
    )
    assert torch.equal(model.generate(**batch, **nothing), model.generate(**batch))


@pytest.mark.parametrize("beams", [1, 4])
def test_nothing_deprecated_is_used(lively_model: ModelMaker, beams: int, caplog: pytest.LogCaptureFixture) -> None:
    """transformers logs such messages once per process; Python's own warnings are errors in all tests."""
    cast(Any, logging.Logger).warning_once.cache_clear()
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        model, batch = lively_model(1), padded([[5, 6, 7, 8, 2], [9, 2]])
        for settings in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
            model.generate(**batch, **settings, num_beams=beams, return_dict_in_generate=True)
        model(**batch, decoder_input_ids=torch.tensor([[0], [0]]), use_cache=True)
    finally:
        logger.removeHandler(caplog.handler)
    assert not [record.getMessage() for record in caplog.records if "deprecated" in record.getMessage()]


def test_the_checks_of_a_search_allow_unusual_calls(lively_model: ModelMaker) -> None:
    """Arguments that transformers passes on, settings in the generation config, and another model within the search."""
    model, other, batch = lively_model(1), lively_model(2), padded([[5, 6, 7, 8, 2]])

    class WithOther(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            source = batch["input_ids"].repeat_interleave(len(input_ids), dim=0)
            return scores + other(source, decoder_input_ids=input_ids[:, -1:]).logits[:, -1] * 0

    best, greedy = model.generate(**batch), model.generate(**batch, num_beams=1)
    assert torch.equal(model.generate(**batch, tokenizer=trained_tokenizer()), best)
    assert torch.equal(model.generate(**batch, assistant_model=other), best), "transformers ignores it with beams"
    for beams, expected in ((4, best), (1, greedy)):
        assert torch.equal(model.generate(**batch, num_beams=beams, logits_processor=[WithOther()]), expected)
    model.generation_config.prompt_lookup_num_tokens = 2
    assert torch.equal(model.generate(**batch, num_beams=1), greedy)


def test_padding_in_front_is_refused(lively_model: ModelMaker) -> None:
    """It would shift the positions of the tokens, and other translations would follow."""
    model, ids = lively_model(1), torch.tensor([[5, 6, 2], [1, 9, 2]])
    mask = (ids != 1).long()
    for given in ({"attention_mask": mask}, {}):
        with pytest.raises(ValueError, match=r"`input_ids` row 1 begins with padding; pad on the right"):
            model.generate(ids, **given)
    hidden = torch.tensor([[0, 1, 1]])  # a token can be hidden, in front as well
    model.generate(torch.tensor([[5, 6, 2]]), attention_mask=hidden)


@pytest.mark.parametrize("beams", [1, 4])
def test_the_source_can_have_four_forms(lively_model: ModelMaker, beams: int) -> None:
    """Ids by name or position, embeddings, or the encoder's output: the same translation, the limit included."""
    model = lively_model(3)
    batch = padded([[5, 6, 7, 8, 2], [9, 2]])
    arguments = {"num_beams": beams, "extra_length": 2}
    expected = model.generate(**batch, **arguments)
    mask = {"attention_mask": batch["attention_mask"]}
    assert torch.equal(model.generate(batch["input_ids"], **mask, **arguments), expected)
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    assert torch.equal(model.generate(inputs_embeds=embeddings, **mask, **arguments), expected)
    with torch.no_grad():
        encoded = model.get_encoder()(**batch)
    assert torch.equal(model.generate(encoder_outputs=encoded, **mask, **arguments), expected)


def test_the_arguments_of_marian_are_accepted(lively_model: ModelMaker) -> None:
    """Processors and criteria by position, another class for the encoder's output, a plain cache, no padding token."""
    model = lively_model(3)
    batch = padded([[5, 6, 7, 8, 2], [9, 2]])
    expected = model.generate(**batch)
    processors, criteria = LogitsProcessorList(), StoppingCriteriaList()
    assert torch.equal(model.generate(batch["input_ids"], None, processors, criteria), expected)
    with torch.no_grad():
        encoded = BaseModelOutputWithPastAndCrossAttentions(**model.get_encoder()(**batch))
        target = torch.tensor([[0, 5], [0, 6]])
        plain = model(**batch, decoder_input_ids=target).logits
        found = model(encoder_outputs=encoded, attention_mask=batch["attention_mask"], decoder_input_ids=target)
        torch.testing.assert_close(found.logits, plain)
        cached = model(**batch, decoder_input_ids=target, cache=DynamicCache(), use_cache=True)
        torch.testing.assert_close(cached.logits, plain)
    single = batch["input_ids"][:1]
    expected = model.generate(single)
    model.config.pad_token_id = None
    assert torch.equal(model.generate(single), expected)


@pytest.mark.parametrize("beams", [1, 4])
def test_translations_without_an_end_token_reach_the_limit(lively_model: ModelMaker, beams: int) -> None:
    """Benchmarks rely on this."""
    batch = padded([[5, 6, 7, 8, 2], [9, 2]])
    found = lively_model(3, end_at=2.0).generate(**batch, eos_token_id=None, num_beams=beams, max_new_tokens=7)
    assert found.shape == (2, 8)


def test_without_a_mask_padding_is_recognised_by_its_id(lively_model: ModelMaker) -> None:
    model = lively_model(4)
    batch = padded([[5, 6, 7, 8, 2], [9, 2], [10, 11, 2]])
    assert torch.equal(model.generate(batch["input_ids"]), model.generate(**batch))


def test_outputs_have_the_documented_shapes(lively_model: ModelMaker) -> None:
    model = lively_model(1, attn_implementation="eager")
    output = model.generate(
        **padded([[5, 6, 7, 2], [8, 2]]),
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_attentions=True,
        output_hidden_states=True,
        extra_length=4,
    )
    steps = len(output.scores)
    assert output.sequences.shape[0] == output.beam_indices.shape[0] == 2
    assert output.sequences_scores.shape == (2,)
    assert all(score.shape == (8, 16) for score in (*output.scores, *output.logits))
    assert len(output.cross_attentions) == len(output.decoder_attentions) == steps
    assert [a.shape for a in output.cross_attentions[0]] == [(8, 2, 1, 4)] * 2
    assert [a.shape for a in output.decoder_attentions[2]] == [(8, 2, 1, 3)] * 2
    assert [a.shape[1:] for a in output.encoder_attentions] == [(4, 4, 4)]
    assert [s.shape for s in output.decoder_hidden_states[0]] == [(8, 1, 16)] * 3


def test_generate_is_repeatable_and_changes_no_setting(lively_model: ModelMaker) -> None:
    model = lively_model(2)
    before = model.generation_config.to_dict()
    batch = padded([[5, 6, 7, 2], [8, 2]])
    config = GenerationConfig(num_beams=2)
    given = config.to_dict()
    changes = {"num_beams": 2, "length_penalty": 1.0, "extra_length": 1}
    expected, changed = model.generate(**batch), model.generate(**batch, **changes)
    model.generate(**batch, generation_config=config)
    assert config.to_dict() == given
    assert model.generation_config.to_dict() == before
    assert torch.equal(model.generate(**batch), expected)
    model.generation_config.update(**changes)
    assert torch.equal(model.generate(**batch), changed)


def test_custom_processors_and_criteria_are_applied(lively_model: ModelMaker) -> None:
    """The criterion ends single hypotheses, at different lengths."""

    class Never5(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores.index_fill(1, torch.tensor([5]), -torch.inf)

    class After7(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return input_ids[:, -1] == 7

    model = lively_model(3, end_at=9.0)
    custom = {"logits_processor": LogitsProcessorList([Never5()]), "stopping_criteria": [After7()]}
    several = 0
    for sentence in ([5, 6, 7, 2], [8, 2], [9, 9, 4, 2]):
        for beams in (1, 4):
            found = model.generate(**padded([sentence]), **custom, num_beams=beams, num_return_sequences=beams)
            hypotheses = [[token for token in row if token > 1] for row in found.tolist()]  # no start, no padding
            assert all(5 not in hypothesis and 7 not in hypothesis[:-1] for hypothesis in hypotheses)
            several += len({len(hypothesis) for hypothesis in hypotheses if hypothesis[-1:] == [7]}) > 1
    assert several >= 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_beams", 0),
        ("num_beams", 10**9),
        ("num_return_sequences", 10**9),
        ("num_return_sequences", 1.0),
        ("max_length", 10**9),
        ("max_length", 20.5),
        ("length_penalty", float("nan")),
        ("early_stopping", -1),
    ],
)
def test_impossible_settings_are_refused(lively_model: ModelMaker, field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}; it must"):
        lively_model(0).generate(torch.tensor([[5, 2]]), **{field: value})


def test_a_half_precision_model_translates_without_nan(lively_model: ModelMaker) -> None:
    sentences = random_sentences(3, count=6, vocab_size=16, longest=9)
    for dtype in (torch.bfloat16, torch.float16):
        options = {"return_dict_in_generate": True, "output_scores": True, "extra_length": 5}
        output = lively_model(3).to(dtype).generate(**padded(sentences), **options)
        assert torch.isfinite(output.sequences_scores).all()
        assert output.sequences_scores.dtype == torch.float32


@pytest.mark.parametrize("arguments", one_fast_in(3, [{"num_return_sequences": 3}, {}, {"early_stopping": True}]))
def test_log_probabilities_that_are_nan_are_refused(lively_model: ModelMaker, arguments: dict) -> None:
    """Also if they become NaN at a later step, or other hypotheses have finished."""
    settings, refused = SearchSettings(**arguments), 0
    for token in range(3, 16):
        model = lively_model(3)
        batch = padded(random_sentences(3, count=6, vocab_size=16, longest=9))
        batch["input_ids"][batch["input_ids"] == token] = 15 if token == 4 else 4
        before = beam_search(model, batch["input_ids"], batch["attention_mask"], settings)
        model.model.decoder.embed_tokens.weight = torch.nn.Parameter(model.model.decoder.embed_tokens.weight.clone())
        with torch.no_grad():
            model.model.decoder.embed_tokens.weight[token] = 3e38  # NaN after this token
        sequences, scores = beam_search(model, batch["input_ids"], batch["attention_mask"], settings)
        nan = scores.isnan().all(dim=1)
        assert torch.equal(scores.isnan().any(dim=1), nan)
        torch.testing.assert_close(scores[~nan], before[1][~nan])
        assert not (sequences == token)[~nan].any()
        refused += int(nan.sum())
        if nan.any():
            with pytest.raises(ValueError, match=f"^source row {int(nan.nonzero()[0])}: the model's .* are NaN"):
                model.generate(**batch, **arguments)
        else:
            model.generate(**batch, **arguments)
    assert 10 < refused < 60


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_greedy_search_refuses_logits_that_are_not_finite(lively_model: ModelMaker, bad: float) -> None:
    """The most probable token would be the same one for ever."""
    model, batch = lively_model(3), padded([[5, 6, 2], [9, 4, 2]])
    expected = model.generate(**batch, num_beams=1)

    def spoil(module: object, arguments: object, output: torch.Tensor) -> None:
        output[-1] = bad

    hook = model.lm_head.register_forward_hook(spoil)
    with pytest.raises(ValueError, match="^source row 1: the model's log-probabilities are NaN"):
        model.generate(**batch, num_beams=1)
    hook.remove()
    assert torch.equal(model.generate(**batch, num_beams=1), expected)


def test_a_folder_without_generation_config_keeps_the_papers_search(
    lively_model: ModelMaker, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers' defaults would be greedy search and 20 tokens."""
    model, batch = lively_model(7), padded([[5, 6, 7, 8, 2], [9, 2]])
    expected = model.generate(**batch)
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    settings = type(model).from_pretrained(tmp_path).generation_config
    assert settings.num_beams == 4 and settings.extra_length == 50
    # Nor does the search depend on the hook that from_pretrained calls.
    monkeypatch.delattr(VaswaniTransformerGenerationMixin, "adjust_generation_fn")
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.generation_config.num_beams != 4
    assert torch.equal(loaded.generate(**batch), expected)
