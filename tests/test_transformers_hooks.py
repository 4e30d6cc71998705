"""Private parts of transformers that the search relies on: these tests explain a failure after an upgrade.

`VaswaniTransformerGenerationMixin` overrides private methods of `GenerationMixin`. tests/test_search.py shows that the
results are right.
"""

import inspect

import pytest
from transformers import GenerationMixin, PreTrainedModel

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.modeling_vaswani_transformer import (
    VaswaniTransformerGenerationMixin,
    VaswaniTransformerPreTrainedModel,
)

# Methods of GenerationMixin that are overridden, and their parameters.
OVERRIDDEN = {
    "_beam_search": "self input_ids logits_processor stopping_criteria generation_config synced_gpus model_kwargs",
    "_update_finished_beams": (
        "self sequences topk_running_sequences beam_scores topk_log_probs beam_indices topk_running_beam_indices "
        "is_early_stop_heuristic_unsatisfied is_sent_finished next_token_hits_stopping_criteria top_num_beam_mask "
        "num_beams cur_len decoder_prompt_len length_penalty early_stopping"
    ),
    "_check_early_stop_heuristic": (
        "is_early_stop_heuristic_unsatisfied running_beam_scores beam_scores is_sent_finished cur_len max_length "
        "decoder_prompt_len early_stopping length_penalty"
    ),
}
DOCUMENTED = {"_init_weights", "_reorder_cache"}  # extension points, tested by their effect


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_methods_have_the_expected_parameters(name: str) -> None:
    theirs = inspect.signature(getattr(GenerationMixin, name)).parameters
    assert list(theirs) == OVERRIDDEN[name].split(), f"transformers changed it: check our {name}"


def test_every_private_override_is_listed_here() -> None:
    for ours in (
        VaswaniTransformerForConditionalGeneration,
        VaswaniTransformerGenerationMixin,
        VaswaniTransformerPreTrainedModel,
    ):
        private = {name for name in vars(ours) if name.startswith("_") and not name.startswith("__")}
        inherited = {name for name in private if hasattr(GenerationMixin, name) or hasattr(PreTrainedModel, name)}
        functions = {name for name in inherited if callable(getattr(ours, name))}
        assert functions <= OVERRIDDEN.keys() | DOCUMENTED, "describe it in OVERRIDDEN"


# Changes that test_search.py would not explain; that of `_reorder_cache` it would not even notice.
@pytest.mark.parametrize(
    ("fragment", "advice"),
    [
        ("topk_log_probs=topk_log_probs,", "the arguments are no longer given by keyword"),
        ('if hasattr(self, "_reorder_cache"):', "`_reorder_cache` is not used: correct, but slower"),
        ("beams_to_keep = max(2, 1 + n_eos_tokens) * num_beams", "a step may consider too few continuations"),
        ("running_beam_scores[:, 1:] = -1e9", "empty beams are recognised by scores below -1e8"),
    ],
)
def test_the_beam_search_contains_the_expected_code(fragment: str, advice: str) -> None:
    source = inspect.getsource(vars(GenerationMixin)["_beam_search"])
    assert fragment in source, f"in GenerationMixin._beam_search: {advice}"
