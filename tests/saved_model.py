"""A model's folder for the tests of what users do with one: a trained tokenizer and a small random model."""

import functools
import math
from pathlib import Path

import torch
from conftest import randomise, tiny_config
from transformers import PreTrainedTokenizerFast

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.tokenization import train_tokenizer

GERMAN = [
    "Das Haus ist klein.",
    "Wir möchten für zwölf Euro zwei Äpfel kaufen.",
    "Im Winter ist es in den Bergen sehr kalt, aber die Straße ist frei!",
    "Warum schläft die müde Katze nicht?",
]
ENGLISH = [
    "The house is small.",
    "We would like to buy two apples for twelve euros.",
    "In winter it is very cold in the mountains, but the road is clear!",
    "Why does the tired cat not sleep?",
]
VOCABULARY = 300


@functools.cache
def trained_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(GERMAN + ENGLISH, VOCABULARY)


def random_model(seed: int = 0, **changes) -> VaswaniTransformerForConditionalGeneration:
    """A model that writes varied text and ends it: a random tied one would repeat a token for ever."""
    changes = {"vocab_size": VOCABULARY, "tie_word_embeddings": False, "output_bias": True} | changes
    model = VaswaniTransformerForConditionalGeneration(tiny_config(**changes)).eval()
    randomise(model, seed, gain=1.5)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        weight = model.lm_head.weight
        weight.copy_(2.0 * torch.randn(weight.shape, generator=generator) / math.sqrt(weight.shape[1]))
        model.lm_head.bias[2] += 3.0
    return model


def saved_model(folder: Path, seed: int = 0, **changes) -> Path:
    """The folder, with all five files of a trained model in it."""
    random_model(seed, **changes).save_pretrained(folder)
    trained_tokenizer().save_pretrained(folder)
    return folder
