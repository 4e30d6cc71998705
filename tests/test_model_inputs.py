"""Inputs that the model refuses, and the forms in which it takes the others."""

import pytest
import torch
from conftest import ModelMaker

TARGET = {"decoder_input_ids": torch.tensor([[0], [0]])}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": [[5, 2], [2000, 2]]}, "`input_ids` row 1 has ids from 2 to 2000; .* 0 to 29"),
        ({"input_ids": [[5, 2], [-1, 2]]}, "`input_ids` row 1 has ids from -1 to 2"),
        ({"input_ids": [[], []]}, r"`input_ids` has shape \(2, 0\)"),
        ({"input_ids": [[5, 2], [1, 1]]}, "source row 1 .* only padding"),
        ({"input_ids": [[5, 2], [6, 2]], "attention_mask": [[0, 0], [1, 1]]}, "source row 0 .* only padding"),
        ({"input_ids": [[5, 2], [6, 2]], "attention_mask": [[1, 1]]}, r"`attention_mask` has shape \(1, 2\)"),
    ],
)
@pytest.mark.parametrize("method", ["forward", "generate"])
def test_invalid_sources_are_refused_by_row(tiny_model: ModelMaker, method: str, inputs: dict, message: str) -> None:
    model = tiny_model()
    tensors = {name: torch.tensor(rows, dtype=torch.long) for name, rows in inputs.items()}
    with pytest.raises(ValueError, match=message):
        model(**tensors, **TARGET) if method == "forward" else model.generate(**tensors)


@pytest.mark.parametrize("ids", [[[0], [30]], [[-1], [0]], [[], []]], ids=str)
def test_invalid_targets_are_refused(tiny_model: ModelMaker, ids: list) -> None:
    with pytest.raises(ValueError, match="`decoder_input_ids`"):
        tiny_model()(torch.tensor([[5, 2], [6, 2]]), decoder_input_ids=torch.tensor(ids, dtype=torch.long))


def test_generate_refuses_a_length_penalty_that_is_not_a_number(tiny_model: ModelMaker) -> None:
    with pytest.raises(ValueError, match="`length_penalty` is nan"):
        tiny_model().generate(torch.tensor([[5, 2]]), length_penalty=float("nan"))
