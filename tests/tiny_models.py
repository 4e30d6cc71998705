"""Models of tiny sizes, whose parameters are all random, and batches for them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration

# Any, because `generate()` and torch's modules are typed as unions that tests would have to narrow.
ModelMaker = Callable[..., Any]


def tiny_config(**changes: Any) -> VaswaniTransformerConfig:
    """Return the paper's model with small sizes that all differ."""
    sizes: dict[str, Any] = {
        "vocab_size": 30,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 28,
    }
    return VaswaniTransformerConfig(**(sizes | changes))


def randomise(model: Any, seed: int = 0) -> Any:
    """Draw every trained parameter, biases and LayerNorms too, from a normal distribution; return it in eval mode.

    No parameter stays at 0 or 1, so that a swapped or forgotten one changes the output.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:  # a table of positions
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
    return model.eval()


@pytest.fixture
def tiny_model() -> ModelMaker:
    """tiny_model(seed=0, **config changes) -> a model in eval mode with every parameter random."""

    def make(seed: int = 0, **changes: Any) -> Any:
        model: Any = VaswaniTransformerForConditionalGeneration(tiny_config(**changes)).eval()
        randomise(model, seed)
        return model

    return make


def make_lively(seed: int = 0, end_at: float = 4.5, **changes: Any) -> Any:
    """Return a model whose beams switch and end at different lengths.

    A random tied model repeats one token and its beams never switch. Here the output layer is untied, and its row for
    `</s>` is fitted so that the logit of `</s>` rises by about one per position and passes zero at position `end_at`,
    as in a trained model. The tests count that beams switch and hypotheses end.
    """
    sizes: dict[str, Any] = {"vocab_size": 16, "encoder_layers": 1, "decoder_layers": 2}
    changes = sizes | {"tie_word_embeddings": False, "output_bias": True} | changes
    model: Any = VaswaniTransformerForConditionalGeneration(tiny_config(**changes)).eval()
    randomise(model, seed)
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
        source = torch.randint(4, vocabulary, (64, 5), generator=generator)
        target = torch.randint(3, model.config.decoder_vocab_size, (64, 12), generator=generator)
        target[:, 0] = model.config.decoder_start_token_id
        states = model.model(source, decoder_input_ids=target).last_hidden_state.flatten(0, 1)
        wanted = torch.arange(12.0).repeat(64)[:, None] - end_at
        # Ridge regression: large weights would amplify float32's rounding errors.
        inputs = torch.cat((states, torch.ones(len(states), 1)), dim=1)
        fitted = torch.linalg.solve(inputs.T @ inputs + 20 * torch.eye(17), inputs.T @ wanted)[:, 0]
        model.lm_head.weight[2], model.lm_head.bias[2] = fitted[:-1], fitted[-1]
    return model


@pytest.fixture
def lively_model() -> ModelMaker:
    """lively_model(seed=0, end_at=4.5, **config changes) -> a model as of `make_lively`"""
    return make_lively


def padded(sentences: list[list[int]], pad: int = 1) -> dict[str, torch.Tensor]:
    """Return input_ids and attention_mask of a right-padded batch."""
    longest = max(map(len, sentences))
    rows = [sentence + [pad] * (longest - len(sentence)) for sentence in sentences]
    mask = [[1] * len(sentence) + [0] * (longest - len(sentence)) for sentence in sentences]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


# Float32 on a CPU with another order of summation; the logits of the tiny models are of size 1 to 10.
TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def labelled_batch() -> dict[str, torch.Tensor]:
    """Return three sentence pairs of different lengths, padded, with labels."""
    sources = [[5, 6, 7, 8, 9, 2], [10, 11, 2], [12, 2]]
    targets = [[8, 9, 2], [13, 14, 15, 16, 2], [17, 2]]
    labels = padded(targets)["input_ids"]
    labels[padded(targets)["attention_mask"] == 0] = -100
    return padded(sources) | {"labels": labels}


def random_sentences(seed: int, count: int, vocab_size: int, longest: int) -> list[list[int]]:
    """Return source sentences of 2 to `longest` tokens, ending in `</s>`, without other special tokens."""
    generator = torch.Generator().manual_seed(seed)
    sentences = []
    for _ in range(count):
        length = int(torch.randint(1, longest, (1,), generator=generator))
        words = torch.randint(4, vocab_size, (length,), generator=generator).tolist()
        sentences.append([*words, 2])
    return sentences
