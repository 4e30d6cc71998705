"""training/loss.py and the loss of the model: labels, padding, label smoothing, against definitions and torch."""

import pytest
import torch
import torch.nn.functional as F
from tiny_models import TOLERANCE, ModelMaker, labelled_batch
from torch import nn
from torch._dynamo.testing import CompileCounter

from training.loss import TrainingLoss, linear_cross_entropy
from training.model import ByteDropout, use_byte_dropout
from vaswani_transformer import label_smoothed_cross_entropy

TOKENS, D_MODEL, VOCABULARY = 23, 8, 31


def random_inputs(bias: bool = True):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, D_MODEL, generator=generator).requires_grad_()
    weight = torch.randn(VOCABULARY, D_MODEL, generator=generator).requires_grad_()
    offset = torch.randn(VOCABULARY, generator=generator).requires_grad_() if bias else None
    labels = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    return hidden, weight, offset, labels


def gradients_of(loss, *inputs):
    return torch.autograd.grad(loss, [x for x in inputs if x is not None])


def assert_equal(found, expected, *inputs):
    """Compare two losses and the gradients of three times the loss."""
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-6)
    for ours, theirs in zip(gradients_of(3 * found, *inputs), gradients_of(3 * expected, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 23, 100])
def test_the_loss_in_parts_equals_the_whole(bias, rows):
    """test_model_paper.py compares label_smoothed_cross_entropy with its definition."""
    hidden, weight, offset, labels = random_inputs(bias)
    loss, plain = linear_cross_entropy(hidden, weight, offset, labels, 0.1, rows)
    logits = F.linear(hidden, weight, offset)
    torch.testing.assert_close(plain, F.cross_entropy(logits, labels, reduction="sum"), atol=1e-5, rtol=1e-6)
    expected = label_smoothed_cross_entropy(logits, labels, 0.1, num_items_in_batch=1)
    assert_equal(loss, expected, hidden, weight, offset)


def test_huge_logits_stay_finite():
    hidden, weight, offset, labels = random_inputs()
    loss, plain = linear_cross_entropy(hidden * 1e4, weight * 1e2, offset, labels, 0.1, 4)
    assert torch.isfinite(loss) and torch.isfinite(plain)
    assert all(torch.isfinite(g).all() for g in gradients_of(loss, hidden, weight, offset))


@pytest.mark.parametrize("output_bias", [True, False])
def test_the_training_loss_equals_the_models_loss(tiny_model, output_bias):
    model = tiny_model(dropout=0.0, output_bias=output_bias)
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, 30, (3, 7), generator=generator)
    mask = torch.ones_like(source)
    source[1, 5:], mask[1, 5:] = 1, 0
    labels = torch.randint(4, 30, (3, 6), generator=generator)
    labels[0, 4:] = labels[2, 2:] = -100
    module = TrainingLoss(model, 0.1).train()
    positions = (labels.flatten() != -100).nonzero()[:, 0]
    loss, plain = module(
        source, mask, model.prepare_decoder_input_ids_from_labels(labels), positions, labels.flatten()[positions]
    )
    ours = torch.autograd.grad(loss, list(model.parameters()))
    output = model(source, mask, labels=labels, label_smoothing=0.1, num_items_in_batch=1)
    torch.testing.assert_close(loss, output.loss, atol=1e-4, rtol=1e-6)
    for a, b in zip(ours, torch.autograd.grad(output.loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    expected = label_smoothed_cross_entropy(output.logits, labels, num_items_in_batch=1)
    torch.testing.assert_close(plain, expected.detach(), atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_losses_and_gradients_stay_close(dtype):
    """In an untrained model all probabilities are 1 / V, close to the smallest numbers of float16."""
    vocabulary = 100_000
    generator = torch.Generator().manual_seed(0)
    hidden = (1e-3 * torch.randn(3, D_MODEL, generator=generator)).requires_grad_()
    weight = torch.randn(vocabulary, D_MODEL, generator=generator).requires_grad_()
    labels = torch.tensor([5, 99_999, 7])
    exact, _ = linear_cross_entropy(hidden, weight, None, labels, 0.1)
    with torch.autocast("cpu", dtype=dtype):
        loss, _ = linear_cross_entropy(hidden, weight, None, labels, 0.1)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact.item(), rel=1e-3)
    expected = gradients_of(exact, hidden, weight)
    for found, gradient in zip(gradients_of(loss, hidden, weight), expected, strict=True):
        assert found.dtype == torch.float32 and (found - gradient).norm() < 0.01 * gradient.norm()


@pytest.mark.parametrize("rate", [0.001, 0.3, 0.999])
def test_dropout_keeps_the_mean(rate):
    dropped = ByteDropout(rate).train()(torch.ones(4_000_000))
    assert dropped.mean() == pytest.approx(1, abs=6 * (rate / (1 - rate) / 4_000_000) ** 0.5 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_training_compiles_once_for_all_sizes(tiny_model, attention):
    """Batch sizes, lengths and numbers of target tokens all vary."""
    torch._dynamo.reset()
    model = tiny_model(attn_implementation=attention, attention_dropout=0.1, encoder_layers=1, decoder_layers=1)
    use_byte_dropout(model)
    module = TrainingLoss(model, 0.1).train()
    captured = CompileCounter()
    compiled = torch.compile(module, backend=captured, dynamic=True)
    generator = torch.Generator().manual_seed(0)
    for batch, source_length, target_length in ((3, 7, 6), (2, 9, 4), (5, 4, 8)):
        source, target = (
            torch.randint(4, 30, (batch, length), generator=generator) for length in (source_length, target_length)
        )
        mask = torch.ones_like(source)
        source[1, 3:], mask[1, 3:] = 1, 0
        positions = torch.arange(target.numel() - 3)
        loss, _ = compiled(source, mask, target, positions, target.flatten()[positions])
        loss.backward()
        assert loss.isfinite() and all(weight.grad.isfinite().all() for weight in model.parameters())
    assert captured.frame_count == 1


def test_labels_are_shifted_once(tiny_model: ModelMaker) -> None:
    """The logits at position t predict label t: plain cross-entropy of both, even in training mode."""
    model = tiny_model(dropout=0.0).train()
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


def test_an_unknown_label_smoothing_spread_is_refused(tiny_model: ModelMaker) -> None:
    with pytest.raises(ValueError, match="some"):
        tiny_model()(**labelled_batch(), label_smoothing=0.1, label_smoothing_spread="some")


def test_a_batch_without_labels_has_loss_zero(tiny_model: ModelMaker) -> None:
    batch = labelled_batch()
    batch["labels"][:] = -100
    assert tiny_model()(**batch).loss.item() == 0
