"""The loss of the model: labels, padding, gradient accumulation and label smoothing."""

from typing import Any

import pytest
import torch
from conftest import TOLERANCE, ModelMaker, labelled_batch
from torch import nn

from vaswani_transformer import label_smoothed_cross_entropy


def test_labels_are_shifted_once(tiny_model: ModelMaker) -> None:
    """The logits at position t predict label t, so the loss is the cross-entropy of both without another shift."""
    model = tiny_model()
    batch = labelled_batch()
    shifted = torch.tensor([[0, 8, 9, 2, 1], [0, 13, 14, 15, 16], [0, 17, 2, 1, 1]])
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(batch["labels"]), shifted)
    output = model(**batch)
    expected = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=shifted).logits
    torch.testing.assert_close(output.logits, expected, **TOLERANCE)
    loss = nn.functional.cross_entropy(expected.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(output.loss, loss)


def test_ignored_labels_do_not_change_the_loss(tiny_model: ModelMaker) -> None:
    """The loss of the padded batch is the mean of three separate sentences, weighted by their lengths."""
    model = tiny_model()
    batch = labelled_batch()
    together = model(**batch).loss
    total = torch.zeros(())
    for row, (source, target) in enumerate([(6, 3), (3, 5), (2, 2)]):
        loss = model(batch["input_ids"][row : row + 1, :source], labels=batch["labels"][row : row + 1, :target]).loss
        total = total + loss * target
    torch.testing.assert_close(together, total / 10)


@pytest.mark.parametrize("items, epsilon", [(10, 0.0), (torch.tensor(10), 0.1)])
def test_num_items_in_batch_makes_accumulation_exact(tiny_model: ModelMaker, items: Any, epsilon: float) -> None:
    """Micro-batches of 3, 5 and 2 labels, each divided by 10, add up to the gradients of one batch."""
    model = tiny_model()
    batch = labelled_batch()
    model(**batch, label_smoothing=epsilon).loss.backward()
    expected = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    for row in range(3):
        one = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        model(**one, label_smoothing=epsilon, num_items_in_batch=items).loss.backward()
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, **TOLERANCE)


@pytest.mark.parametrize("spread", ["others", "all"])
def test_label_smoothing_arguments_reach_the_loss(tiny_model: ModelMaker, spread: str) -> None:
    model, batch = tiny_model(), labelled_batch()
    output = model(**batch, label_smoothing=0.1, label_smoothing_spread=spread)
    expected = label_smoothed_cross_entropy(output.logits, batch["labels"], 0.1, spread)
    torch.testing.assert_close(output.loss, expected)
    assert (output.loss - model(**batch).loss).abs() > 1e-3


def test_an_unknown_label_smoothing_spread_is_refused(tiny_model: ModelMaker) -> None:
    with pytest.raises(ValueError, match="some"):
        tiny_model()(**labelled_batch(), label_smoothing=0.1, label_smoothing_spread="some")


def test_a_batch_without_labels_has_loss_zero(tiny_model: ModelMaker) -> None:
    batch = labelled_batch()
    batch["labels"][:] = -100
    assert tiny_model()(**batch).loss.item() == 0
