"""What the model relies on in transformers: a version that works otherwise is an error, never another search.

`VaswaniTransformerGenerationMixin` overrides private methods of `GenerationMixin`, and `forward` receives the cache
under a name that transformers has changed before. The tests patch the source of the installed version as a later
release might change it. That the results are right is shown in test_search.py and test_generate.py.
"""

import inspect
import re
import textwrap
from typing import Any

import pytest
import torch
import transformers
from tiny_models import ModelMaker, padded
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.generation import utils

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.configuration_vaswani_transformer import NEWEST_TRANSFORMERS
from vaswani_transformer.modeling_vaswani_transformer import (
    CACHE_NAME,
    HOOKS,
    VaswaniTransformerGenerationMixin,
    VaswaniTransformerPreTrainedModel,
    check_hooks,
)

OVERRIDDEN = {"_beam_search", *HOOKS}
DOCUMENTED = {"_init_weights", "_reorder_cache"}  # extension points


@pytest.fixture(autouse=True)
def check_again():
    """The hooks are compared once per process."""
    check_hooks.cache_clear()
    yield
    check_hooks.cache_clear()


def patch_source(monkeypatch: pytest.MonkeyPatch, method: str, pattern: str, replacement: str) -> None:
    """Replace text in the source of a method of GenerationMixin."""
    source, count = re.subn(pattern, replacement, inspect.getsource(inspect.unwrap(getattr(GenerationMixin, method))))
    assert count, f"{pattern} is not in {method}() of transformers {transformers.__version__}"
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(source), utils.__dict__, namespace)
    monkeypatch.setattr(GenerationMixin, method, namespace[method])


BEAM_SEARCH = [
    # inlined, or called past the model's class
    ("_beam_search", r"self\._update_finished_beams\(", "GenerationMixin._update_finished_beams(self, "),
    ("_beam_search", r"self\._check_early_stop_heuristic\(", "GenerationMixin._check_early_stop_heuristic("),
    ("generate", r"getattr\(type\(self\), GENERATION_MODES", "getattr(GenerationMixin, GENERATION_MODES"),
    ("_beam_search", r'if hasattr\(self, "_reorder_cache"\)', "if False"),
    # called in some steps only
    ("_beam_search", r'if hasattr\(self, "_reorder_cache"\)', "if cur_len < 3"),
    ("_beam_search", r"length_penalty = .*", "length_penalty = 1.0"),
    # called with other arguments
    (
        "_beam_search",
        r"topk_log_probs=topk_log_probs,\n(.*)beam_indices=",
        r"log_probs=topk_log_probs,\n\1beam_indices=",
    ),
    ("_beam_search", r"cur_len=cur_len,\n(.*)max_length", r"cur_len=cur_len - 1,\n\1max_length"),
    ("_beam_search", r"beams_to_keep = .*", "beams_to_keep = num_beams"),
    ("_update_finished_beams", r"topk_log_probs", "candidate_log_probs"),
    ("_check_early_stop_heuristic", r"running_beam_scores", "live_scores"),
]
ANY_SEARCH = [
    # the cache under another name, dropped, or never filled
    ("prepare_inputs_for_generation", rf'model_inputs\["{CACHE_NAME}"\] = ', 'model_inputs["kv_cache"] = '),
    ("prepare_inputs_for_generation", rf'model_inputs\["{CACHE_NAME}"\] = {CACHE_NAME}', "pass"),
    (
        "prepare_inputs_for_generation",
        rf'model_inputs\["{CACHE_NAME}"\] = {CACHE_NAME}',
        f'model_inputs["{CACHE_NAME}"] = DynamicCache()',
    ),
    # more than the last token
    ("prepare_inputs_for_generation", r"input_ids\[:, -next_sequence_length:\]", "input_ids[:, -2:]"),
    # the padding of the source forgotten
    ("prepare_inputs_for_generation", r"return model_inputs", "return model_inputs | {'attention_mask': None}"),
    # the limits of the sentences are ignored
    ("_get_stopping_criteria", r"self\._merge_criteria_processor_list\(criteria, stopping_criteria\)", "criteria"),
]


@pytest.mark.parametrize(
    ("beams", "patch"),
    [(beams, patch) for beams, patches in ((4, BEAM_SEARCH + ANY_SEARCH), (1, ANY_SEARCH)) for patch in patches],
    ids=str,
)
def test_a_changed_search_is_an_error(
    lively_model: ModelMaker, monkeypatch: pytest.MonkeyPatch, beams: int, patch: tuple[str, str, str]
) -> None:
    model, batch = lively_model(1), padded([[5, 6, 7, 8, 2], [9, 2]])
    expected = model.generate(**batch, num_beams=beams)
    assert expected.shape[1] > 4, "several steps"
    patch_source(monkeypatch, *patch)
    check_hooks.cache_clear()
    with pytest.raises((RuntimeError, TypeError)) as error:
        model.generate(**batch, num_beams=beams)
    message = str(error.value)
    assert f"transformers {transformers.__version__}" in message, message
    assert "pip install" in message or transformers.__version__ == NEWEST_TRANSFORMERS, message
    assert "\n" not in message


@pytest.mark.parametrize("name", sorted(OVERRIDDEN))
def test_a_missing_method_is_an_error(lively_model: ModelMaker, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(GenerationMixin, name)
    with pytest.raises(
        RuntimeError, match=rf"{name}\(\), which .* not expect of transformers {transformers.__version__}"
    ):
        lively_model(1).generate(**padded([[5, 6, 7, 2]]))


def test_every_private_override_is_checked() -> None:
    for ours in (
        VaswaniTransformerForConditionalGeneration,
        VaswaniTransformerGenerationMixin,
        VaswaniTransformerPreTrainedModel,
    ):
        private = {name for name in vars(ours) if name.startswith("_") and not name.startswith("__")}
        inherited = {name for name in private if hasattr(GenerationMixin, name) or hasattr(PreTrainedModel, name)}
        functions = {name for name in inherited if callable(getattr(ours, name))}
        assert functions <= OVERRIDDEN | DOCUMENTED, "check in RunningSearch that it is called"


def test_empty_beams_have_the_expected_score() -> None:
    """A change would not be noticed while the search runs: scores below -1e8 are those of empty beams."""
    assert "running_beam_scores[:, 1:] = -1e9" in inspect.getsource(vars(GenerationMixin)["_beam_search"])


@pytest.mark.parametrize("part", ["model", "base model", "encoder", "decoder"])
@pytest.mark.parametrize("name", ["kv_cache", "position_ids", "cu_seq_lens_q", "is_causal", "decoder_inputs"])
def test_forward_refuses_an_unknown_argument(lively_model: ModelMaker, part: str, name: str) -> None:
    """Those of transformers that this model does not implement, too."""
    model, source = lively_model(1), padded([[5, 6, 7, 2]])
    memory = model.get_encoder()(**source).last_hidden_state
    target = {"decoder_input_ids": torch.tensor([[0, 5]])}
    module, inputs = {
        "model": (model, source | target),
        "base model": (model.model, source | target),
        "encoder": (model.get_encoder(), source),
        "decoder": (model.get_decoder(), {"input_ids": source["input_ids"], "encoder_hidden_states": memory}),
    }[part]
    with pytest.raises(TypeError, match=rf"forward\(\) has no argument `{name}`; correct its name"):
        module(**inputs, **{name: torch.tensor([0])})
    module(**inputs, **{name: None})  # is as good as absent


def test_the_cache_has_two_names(lively_model: ModelMaker) -> None:
    """That of transformers 5.24, and that of the versions before; an output has the installed version's."""
    model, source = lively_model(1), padded([[5, 6, 7, 2]])
    target = torch.tensor([[0, 5, 6]])
    expected = model(**source, decoder_input_ids=target).logits
    for name in ("cache", "past_key_values"):
        for module in (model, model.model):
            first = module(**source, decoder_input_ids=target[:, :2], **{name: DynamicCache()}, use_cache=True)
            second = module(**source, decoder_input_ids=target[:, 2:], **{name: first[CACHE_NAME]})
            assert second[CACHE_NAME].get_seq_length() == 3
        torch.testing.assert_close(second.logits if module is model else model.lm_head(second[0]), expected[:, 2:])
    both = {"cache": DynamicCache(), "past_key_values": DynamicCache()}
    with pytest.raises(ValueError, match="two names of one argument"):
        model(**source, decoder_input_ids=target, **both)
