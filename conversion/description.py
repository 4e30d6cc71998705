"""A reader's description of a checkpoint, from which `build.py` makes our model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .layout import PAPER, Sinusoids
from .rename import Rule
from .vocabulary import Vocabulary

# Our names of the embeddings and the output layer. Each has a rule, so tied matrices are read twice.
SOURCE, TARGET, OUTPUT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
SHARED, OUTPUT_BIAS = "model.shared.weight", "lm_head.bias"

# Computes logits (1, target, vocabulary) from source ids and the decoder's input ids, both (1, length).
Forward = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Description:
    """A checkpoint in terms of our model.

    tensors: by the toolkit's names, with joined matrices split
    rules: map each tensor's name to ours
    config: fields of our configuration, except those that follow from the tensors and the vocabulary
    sinusoids: their form, unless the rules read learned tables; saved tables of sinusoids are ignored
    unscaled: the embeddings (SOURCE, TARGET) that the toolkit does not multiply by sqrt(d_model)
    notes: sentences about the model for its users
    assumptions: sentences about properties that the checkpoint does not record, with what to do if they are wrong
    files: files that are copied into the model folder for converting back, besides those of the vocabulary
    kept: values that converting it back needs, saved in conversion.json
    reference: builds the checkpoint's own model, if torch or transformers has its class
    toolkit, path: set by `run.read`
    """

    tensors: dict[str, Tensor]
    rules: list[Rule]
    config: dict[str, Any]
    vocabulary: Vocabulary
    sinusoids: Sinusoids = PAPER
    unscaled: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    reference: Callable[["Description"], Forward] | None = None
    toolkit: str = ""
    path: Path = Path()

    def all_notes(self) -> list[str]:
        return self.assumptions + self.notes + self.vocabulary.notes


def forward_of(model: nn.Module) -> Forward:
    """Return the forward pass of one of transformers' models or of ours."""
    # With its cache, FSMT is not causal for several target tokens.
    return lambda ids, target: model(input_ids=ids, decoder_input_ids=target, use_cache=False).logits


def penalty_note(name: str, ranking: str) -> str:
    """Return the note about a toolkit whose length penalty is not ours. ranking: its formula"""
    return f"{name} ranks hypotheses by {ranking}, generate() by log P / ((5 + L) / 6)^alpha: their order can differ."


def embedding_rows(tensors: dict[str, Tensor], rules: list[Rule]) -> list[int]:
    """Return the numbers of rows of the source's and the target's embedding; 0 if it is missing."""
    names = {rule.ours: rule.theirs for rule in rules}
    return [len(tensors[names[name]]) if names[name] in tensors else 0 for name in (SOURCE, TARGET)]
