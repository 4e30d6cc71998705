"""BPE-dropout (Provilkov et al. 2020, https://arxiv.org/abs/1910.13267, algorithm 1), drawn by seed.

The tokenizers library has it too, but its dice cannot be seeded: hosts that tokenise for themselves, or again after a
loss, would train on different text.
"""

import json
import random
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

from vaswani_transformer.errors import InputError


class BpeDropout:
    """Cuts texts by a byte-level BPE whose merges are each passed over with probability `share`, each time anew."""

    def __init__(self, backend: Tokenizer, share: float):
        state = json.loads(backend.to_str())
        model: dict[str, Any] = state["model"]
        if model["type"] != "BPE" or "ByteLevel" not in json.dumps(state["pre_tokenizer"]):
            raise InputError(
                f"bpe_dropout: the tokenizer ({model['type']}) must be a byte-level BPE, as `vaswani-transformer "
                "tokenizer` trains it; leave bpe_dropout at 0"
            )
        self.backend, self.share = backend, share
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self.ids: dict[str, int] = model["vocab"]
        self.ending = backend.encode("").ids

    def encode_batch(self, texts: list[str], seed: str) -> list[list[int]]:
        """Ids of each text with the final </s>. Within one call a word is cut in one way."""
        dice = random.Random(seed)  # Python promises the numbers of a seed for all versions to come
        known: dict[str, list[int]] = {}
        batch = []
        for words in self.words(texts):
            for word in words:
                if word not in known:
                    known[word] = [self.ids[token] for token in self.cut(word, dice)]
            batch.append([*chain.from_iterable(known[word] for word in words), *self.ending])
        return batch

    def words(self, texts: list[str]) -> list[list[str]]:
        """What is cut: a letter stands for a byte."""
        normalizer, pre_tokenizer = self.backend.normalizer, self.backend.pre_tokenizer
        normalised = texts if normalizer is None else [normalizer.normalize_str(text) for text in texts]
        return [[word for word, _ in pre_tokenizer.pre_tokenize_str(text)] for text in normalised]

    def cut(self, word: str, dice: random.Random) -> list[str]:
        """The tokens of a word: of the merges that the dice leave the first in the list, as long as they leave one."""
        tokens = list(word)
        while True:
            left = [
                (self.ranks[pair], i)
                for i, pair in enumerate(zip(tokens, tokens[1:], strict=False))
                if pair in self.ranks and dice.random() >= self.share
            ]
            if not left:
                return tokens
            _, i = min(left)
            tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]
