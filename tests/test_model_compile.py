"""torch.compile, torch.export and gradient checkpointing give the numbers of the plain model."""

import pytest
import torch
from conftest import one_fast_in
from tiny_models import TOLERANCE, ModelMaker, labelled_batch, padded, random_sentences
from torch import Tensor, nn


# transformers 5.17 has only this name; 5.23 has renamed it and warns.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(
    tiny_model: ModelMaker, dropout: float, reentrant: bool
) -> None:
    """Includes dropout: the second forward pass must draw the same masks."""
    found = []
    for checkpointing in (False, True):
        model = tiny_model(dropout=dropout).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        torch.manual_seed(0)
        loss = model(**labelled_batch()).loss
        loss.backward()
        found.append([loss, *(weight.grad for weight in model.parameters())])
    for plain, checkpointed in zip(*found, strict=True):
        torch.testing.assert_close(checkpointed, plain, **TOLERANCE)


@pytest.mark.parametrize("implementation", one_fast_in(2, ["sdpa", "eager"]))
# The backend "eager" tests the capture; inductor's kernels take a compiler and minutes.
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # inductor itself still uses torch.jit
def test_the_forward_pass_compiles_into_one_graph(tiny_model: ModelMaker, implementation: str, backend: str) -> None:
    """fullgraph=True makes a graph break an error."""
    torch._dynamo.reset()
    model = tiny_model(attn_implementation=implementation, encoder_layers=1, decoder_layers=1)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    batch = labelled_batch()
    torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits, **TOLERANCE)
    torch.testing.assert_close(compiled(**batch).loss, model(**batch).loss)


def test_the_forward_pass_exports_with_dynamic_shapes(tiny_model: ModelMaker) -> None:
    """torch.export with dynamic batch, source and target sizes gives one program for all sizes."""
    model = tiny_model(encoder_layers=1, decoder_layers=1)
    batch, source, target = (torch.export.Dim(name) for name in ("batch", "source", "target"))
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 2], [8, 9, 2, 1]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
        "decoder_input_ids": torch.tensor([[0, 4, 5], [0, 6, 7]]),
    }
    shapes = {
        "input_ids": {0: batch, 1: source},
        "attention_mask": {0: batch, 1: source},
        "decoder_input_ids": {0: batch, 1: target},
    }

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
            return self.model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False).logits

    program = torch.export.export(Logits(), (), inputs, dynamic_shapes=shapes).module()
    sentences = random_sentences(1, count=5, vocab_size=30, longest=11)
    other = padded(sentences) | {"decoder_input_ids": torch.randint(4, 30, (5, 8))}
    with torch.no_grad():
        torch.testing.assert_close(program(**other), model(**other).logits, **TOLERANCE)
