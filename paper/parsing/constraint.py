"""Constrain a search to well-formed trees over the words of its sentence (section 6.3)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerFast

# Maximum number of constituents that begin at the same word. The longest chain in NLTK's treebank sample has 6.
LONGEST_CHAIN = 12
# Weight of the log-probability of all words in the score of the only possible word; the rest is the word's own. Chosen
# on 80 sentences of the development set with beam 4. F1 there with 0, 0.5, 0.75, 0.9 and 1: the Transformer 48.0, 62.4,
# 64.4, 63.5 and 60.1, the LSTM 53.4, 67.5, 64.4, 62.2 and 58.0.
SHARE_OF_ALL_WORDS = 0.75
SHARE_FOR_THE_LSTM = 0.5


class WellFormedTrees(LogitsProcessor):
    """Allow only tokens that continue a well-formed tree over the words of the sentence, in order.

    Pass it to `generate()` as a logits processor; exported ONNX graphs do not support it. Every allowed prefix can be
    completed within the limit.

    Only one word is possible at a time, so its score is mixed with that of all words; otherwise a model that copies
    badly opens brackets instead.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        share: float = SHARE_OF_ALL_WORDS,
    ):
        """sources: the tokens of each sentence, without </s>
        limits: the maximum number of output tokens for each sentence, including </s>
        share: weight of the score of all words in the score of the only possible word, 0 to 1
        """
        self.sources, self.limits, self.share = sources, limits, share
        vocabulary = tokenizer.get_vocab()
        self.end = vocabulary[str(tokenizer.eos_token)]
        self.closing = pair_brackets(vocabulary)
        self.opening = sorted(self.closing)
        self.starts = {id for token, id in vocabulary.items() if token.startswith("Ġ")}  # first tokens of words

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids: (sentences x beams, length), start token first;  scores: (sentences x beams, vocabulary)"""
        no_words = {*self.closing, *self.closing.values(), self.end}
        any_word = scores.index_fill(1, torch.tensor([*no_words], device=scores.device), -torch.inf).logsumexp(1)
        constrained, beams = torch.full_like(scores, -torch.inf), len(scores) // len(self.sources)
        for row, (_, *tokens) in enumerate(input_ids.tolist()):
            sentence = row // beams
            allowed = self.allowed(tokens, self.sources[sentence], self.limits[sentence])
            constrained[row, allowed] = scores[row, allowed]
            for word in set(allowed) - no_words:
                constrained[row, word] = torch.lerp(scores[row, word], any_word[row], self.share)
        return constrained

    def allowed(self, tokens: Sequence[int], source: Sequence[int], limit: int) -> list[int]:
        """Return the tokens that may come next; only </s> if the tokens are not a prefix of a tree."""
        open_brackets: list[int] = []
        read = 0  # number of source tokens in the tree
        chain = 0  # number of opening brackets since the last source token or closing bracket
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
        # An opening bracket costs two tokens; the remaining words, the closing brackets and </s> must still fit.
        if left and chain < LONGEST_CHAIN and len(tokens) + 2 + left + len(open_brackets) + 1 <= limit:
            choices += self.opening
        if left and open_brackets:
            choices.append(source[read])
        if open_brackets and not chain and (len(open_brackets) > 1 or not left):  # none is empty; the root is last
            choices.append(self.closing[open_brackets[-1]])
        return choices or [self.end]


def pair_brackets(vocabulary: dict[str, int]) -> dict[int, int]:
    """Return {id of an opening bracket: id of its closing bracket}, such as `(NP` and `)NP`."""
    labels = {token[1:] for token in vocabulary if len(token) > 1 and token.startswith("(")}
    return {vocabulary[f"({label}"]: vocabulary[f"){label}"] for label in labels if f"){label}" in vocabulary}
