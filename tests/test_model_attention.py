"""Attention implementations: each gives the numbers of the others, with padding and in half precision."""

from typing import Any

import pytest
import torch
from conftest import ModelMaker, padded
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


# The kernel is not compiled here: on a CPU that takes minutes.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from transformers' call and inside torch.compile
@pytest.mark.parametrize("sizes", [{}, {"d_k": 3, "d_v": 5}], ids=str)
@pytest.mark.parametrize("implementation", ["eager", "flex_attention", "flash_attention_2"])
def test_supported_implementations_equal_sdpa(tiny_model: ModelMaker, implementation: str, sizes: dict) -> None:
    if implementation == "flash_attention_2" and not torch.cuda.is_available():
        pytest.skip("flash attention needs a GPU")
    assert implementation in ["eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()]
    batch = padded([[5, 6, 7, 8, 2], [9, 10, 2]]) | {"decoder_input_ids": torch.tensor([[0, 8, 9], [0, 10, 11]])}
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = tiny_model(**sizes)(**batch).logits
        found = tiny_model(attn_implementation=implementation, **sizes)(**batch).logits
    torch.testing.assert_close(found, expected, **TOLERANCE)
