"""Private parts of transformers that the search relies on, and what to check when they change.

`VaswaniTransformerGenerationMixin` overrides private methods of `GenerationMixin`. tests/test_search.py shows that the
results are right; these tests explain a failure after an upgrade of transformers.
"""

import inspect

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from vaswani_transformer.modeling_vaswani_transformer import (
    VaswaniTransformerForConditionalGeneration,
    VaswaniTransformerGenerationMixin,
    VaswaniTransformerPreTrainedModel,
)

# method of GenerationMixin: (its parameters, what to check in the override when they change)
OVERRIDDEN = {
    "_beam_search": (
        "self input_ids logits_processor stopping_criteria generation_config synced_gpus model_kwargs",
        "the override only passes the ids of </s> to `_update_finished_beams`; check that the loop still calls the two "
        "methods below, and by keyword",
    ),
    "_update_finished_beams": (
        "self sequences topk_running_sequences beam_scores topk_log_probs beam_indices topk_running_beam_indices "
        "is_early_stop_heuristic_unsatisfied is_sent_finished next_token_hits_stopping_criteria top_num_beam_mask "
        "num_beams cur_len decoder_prompt_len length_penalty early_stopping",
        "the override divides topk_log_probs by the GNMT penalty, finishes all 2 x beam candidates that are </s> "
        "(top_num_beam_mask) and excludes live hypotheses at the limit (next_token_hits_stopping_criteria)",
    ),
    "_check_early_stop_heuristic": (
        "is_early_stop_heuristic_unsatisfied running_beam_scores beam_scores is_sent_finished cur_len max_length "
        "decoder_prompt_len early_stopping length_penalty",
        "the override divides running_beam_scores by the GNMT penalty of the longest possible hypothesis",
    ),
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_methods_have_the_expected_parameters(name: str) -> None:
    parameters, advice = OVERRIDDEN[name]
    theirs = list(inspect.signature(getattr(GenerationMixin, name)).parameters)
    assert theirs == parameters.split(), f"transformers changed GenerationMixin.{name}: {advice}"


def test_every_private_override_is_listed_here() -> None:
    watched = set(OVERRIDDEN) | {
        # documented extension points, tested by their effect
        "_init_weights",
        "_reorder_cache",
    }
    for ours in (
        VaswaniTransformerForConditionalGeneration,
        VaswaniTransformerGenerationMixin,
        VaswaniTransformerPreTrainedModel,
    ):
        for name in vars(ours):
            inherited = hasattr(GenerationMixin, name) or hasattr(PreTrainedModel, name)
            function = callable(getattr(ours, name))
            if name.startswith("_") and not name.startswith("__") and inherited and function:
                assert name in watched, f"{ours.__name__}.{name} overrides transformers: describe it in OVERRIDDEN"


@pytest.mark.parametrize(
    ("fragment", "advice"),
    [
        (
            "sequences, beam_scores, beam_indices, is_sent_finished = self._update_finished_beams(",
            "finished hypotheses are no longer updated through the model: scores and the rule at the limit are lost",
        ),
        ("topk_log_probs=topk_log_probs,", "the arguments are no longer given by keyword"),
        (
            "is_early_stop_heuristic_unsatisfied = self._check_early_stop_heuristic(",
            "the end of the search is no longer decided by the model: it may stop too early",
        ),
        ('if hasattr(self, "_reorder_cache"):', "`_reorder_cache` is not used: correct, but slower"),
        (
            "beams_to_keep = max(2, 1 + n_eos_tokens) * num_beams",
            "a step no longer considers 2 x beam continuations, as tensor2tensor does",
        ),
        (
            "log_probs = nn.functional.log_softmax(logits, dim=-1)",
            "the processors no longer receive log-probabilities",
        ),
        (
            "log_probs = logits_processor(flat_running_sequences, log_probs)",
            "<pad> and <s> are suppressed here: after the softmax, so that probabilities are the model's",
        ),
        (
            "next_token_hits_stopping_criteria = stopping_criteria(",
            "the limit of each sentence is a stopping criterion: check that it is called for every candidate",
        ),
        ("running_beam_scores[:, 1:] = -1e9", "empty beams are recognised by scores below -1e8"),
    ],
)
def test_the_beam_search_contains_the_expected_code(fragment: str, advice: str) -> None:
    source = inspect.getsource(vars(GenerationMixin)["_beam_search"])
    assert fragment in source, f"in GenerationMixin._beam_search: {advice}"


def test_finished_hypotheses_follow_the_mask_and_criterion() -> None:
    """With length_penalty 0 scores stay unchanged; with an all-true mask every stopping candidate finishes."""

    class Bare(GenerationMixin):
        pass

    sequences = torch.zeros(1, 2, 4, dtype=torch.long)
    candidates = torch.arange(1, 5).view(1, 4, 1).expand(1, 4, 4).clone()
    indices = torch.zeros(1, 2, 3, dtype=torch.int32)
    found, scores, _, finished = Bare()._update_finished_beams(
        sequences=sequences,
        topk_running_sequences=candidates,
        beam_scores=torch.tensor([[-3.0, -1e9]]),
        topk_log_probs=torch.tensor([[-1.0, -2.0, -2.5, -4.0]]),
        beam_indices=indices,
        topk_running_beam_indices=torch.zeros(1, 4, 3, dtype=torch.int32),
        is_early_stop_heuristic_unsatisfied=torch.tensor([[True]]),
        is_sent_finished=torch.tensor([[True, False]]),
        next_token_hits_stopping_criteria=torch.tensor([[False, False, True, True]]),
        top_num_beam_mask=torch.ones(4, dtype=torch.bool),
        num_beams=2,
        cur_len=2,
        decoder_prompt_len=1,
        length_penalty=0.0,
        early_stopping="never",
    )
    assert scores.tolist() == [[-2.5, -3.0]], "the third candidate, beyond the first `beam`, must finish"
    assert found[0, :, 0].tolist() == [3, 0]
    assert finished.tolist() == [[True, True]]


def test_the_search_stops_at_the_provable_bound() -> None:
    for running, expected in ((-2.0, False), (-1.99, True)):
        unsatisfied = GenerationMixin._check_early_stop_heuristic(
            is_early_stop_heuristic_unsatisfied=torch.tensor([[True]]),
            running_beam_scores=torch.tensor([[running, -5.0]]),
            beam_scores=torch.tensor([[-1.0, -2.0]]),
            is_sent_finished=torch.tensor([[True, True]]),
            cur_len=4,
            max_length=9,
            decoder_prompt_len=1,
            early_stopping="never",
            length_penalty=0.0,
        )
        assert unsatisfied.tolist() == [[expected]]


def test_unknown_generation_config_entries_are_kept(tmp_path) -> None:
    """`max_source_length_offset` is unknown to transformers and must survive saving and loading."""
    config = GenerationConfig(num_beams=4, max_source_length_offset=50)
    config.save_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).to_dict()["max_source_length_offset"] == 50, (
        "transformers drops unknown entries of a generation config: the length limit of loaded models is lost"
    )


def test_given_stopping_criteria_are_added_to_the_defaults() -> None:
    """The limit of each sentence is passed as `stopping_criteria=`."""
    source = inspect.getsource(vars(GenerationMixin)["_get_stopping_criteria"])
    assert "self._merge_criteria_processor_list(criteria, stopping_criteria)" in source
