"""Constrains a search to well-formed trees over the words of its sentence (section 6.3)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerFast

# Constituents in a row that begin at the same word. The longest chain in the treebank's sample has 6.
LONGEST_CHAIN = 12
# How much the log-probability of all words counts for the only possible one; the rest is its own. Chosen on 80
# sentences of the development part, beam 4. F1 there with 0, 0.5, 0.75, 0.9 and 1: the Transformer 48.0, 62.4, 64.4,
# 63.5 and 60.1, the LSTM 53.4, 67.5, 64.4, 62.2 and 58.0.
SHARE_OF_ALL_WORDS = 0.75
SHARE_FOR_THE_LSTM = 0.5


class WellFormedTrees(LogitsProcessor):
    """Restricts each next token so that brackets balance and every word occurs once and in order.

    An instance is a `logits_processor` of `generate()`; exported graphs do not have it, for their search keeps no open
    brackets per hypothesis. What it allows can always be completed within the sentence's limit.

    Only one word is possible at a time, so its log-probability is mixed with that of all words: the model says whether
    a word comes, the sentence says which. Without that, a model that copies badly opens a bracket instead.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        share: float = SHARE_OF_ALL_WORDS,
    ):
        """sources: the tokens of each sentence, without </s>;  limits: output tokens, counting </s>

        share: how much the log-probability of all words counts for the only possible one, 0 to 1
        """
        self.sources, self.limits, self.share = sources, limits, share
        vocabulary = tokenizer.get_vocab()
        self.end = vocabulary[str(tokenizer.eos_token)]
        self.closing = brackets(vocabulary)
        self.opening = sorted(self.closing)
        self.starts = {id for token, id in vocabulary.items() if token.startswith("Ġ")}  # of words, in byte-level BPE

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids: (sentences x beams, length), start token first;  scores: (sentences x beams, vocabulary)"""
        signs = {*self.closing, *self.closing.values(), self.end}
        any_word = scores.index_fill(1, torch.tensor([*signs], device=scores.device), -torch.inf).logsumexp(1)
        chosen, beams = torch.full_like(scores, -torch.inf), len(scores) // len(self.sources)
        for row, (_, *tokens) in enumerate(input_ids.tolist()):
            sentence = row // beams
            allowed = self.allowed(tokens, self.sources[sentence], self.limits[sentence])
            chosen[row, allowed] = scores[row, allowed]
            for word in set(allowed) - signs:
                chosen[row, word] = torch.lerp(scores[row, word], any_word[row], self.share)
        return chosen

    def allowed(self, tokens: Sequence[int], source: Sequence[int], limit: int) -> list[int]:
        """Return the tokens that may follow; only </s> if the tokens are not a prefix of a tree."""
        open_brackets: list[int] = []
        read = 0  # tokens of the source that are in the tree
        chain = 0  # opening brackets since the last of these tokens, or since a closing bracket
        for token in tokens:
            if token in self.closing:
                open_brackets.append(token)
                chain += 1
            elif open_brackets and token == self.closing[open_brackets[-1]]:
                open_brackets.pop()
                chain = 0
            elif open_brackets and read < len(source) and token == source[read]:
                read += 1
                chain = 0
            else:
                return [self.end]
        left = len(source) - read
        if tokens and not open_brackets:
            return [self.end]
        if left and open_brackets and source[read] not in self.starts:  # in the middle of a word
            return [source[read]]
        choices: list[int] = []
        # A bracket costs two tokens; the words, the brackets that are open and </s> must still fit.
        if left and chain < LONGEST_CHAIN and len(tokens) + 2 + left + len(open_brackets) + 1 <= limit:
            choices += self.opening
        if left and open_brackets:
            choices.append(source[read])
        if open_brackets and not chain and (len(open_brackets) > 1 or not left):
            choices.append(self.closing[open_brackets[-1]])
        return choices or [self.end]


def brackets(vocabulary: dict[str, int]) -> dict[int, int]:
    """Return the closing bracket of every opening one, by id: `)NP` for `(NP`."""
    labels = {token[1:] for token in vocabulary if len(token) > 1 and token.startswith("(")}
    return {vocabulary[f"({label}"]: vocabulary[f"){label}"] for label in labels if f"){label}" in vocabulary}
