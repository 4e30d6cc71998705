"""Private parts of transformers that the search relies on, and what to check when they change.

`VaswaniTransformerGenerationMixin` overrides private methods of `GenerationMixin`. tests/test_search.py shows that the
results are right; these tests explain a failure after an upgrade of transformers.
"""

import inspect

import pytest
from transformers import GenerationMixin, PreTrainedModel

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
