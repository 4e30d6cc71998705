"""Align the words of a translation with the words of its source, by the attention of some heads.

A word is an item of `text.split()`: of the text as it was given, and of its translation. A letter is any character but
white space. The probability of a source word for a target word is the attention that the tokens of the target word pay
to those of the source word, averaged over the tokens of the target word and over the heads (`alignment_heads.py`). What
is missing from 1 was paid to </s>, which is no word.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .sentences_vaswani_transformer import join_texts

Span = tuple[int, int]  # of characters
Alignment = list[dict[int, float]]  # for each target word, the probabilities of source words, best first


# ---- words and tokens ------------------------------------------------------------------------------------------------


def letter_words(text: str) -> list[int]:
    """Return for each letter of a text the index of its word."""
    return [word for word, _ in words_and_letters(text)]


def letter_places(text: str) -> list[int]:
    """Return for each letter of a text its index among all characters."""
    return [place for place, character in enumerate(text) if not character.isspace()]


def words_and_letters(text: str) -> Iterator[tuple[int, str]]:
    """Yield the letters of a text, each with the index of its word."""
    return ((index, letter) for index, word in enumerate(text.split()) for letter in word)


def take_words(part: str, letters: Iterator[tuple[int, str]]) -> list[int]:
    """Return for each letter of a part the index of its word in the text.

    letters: the rest of the text, see `words_and_letters`; it may have further letters, which were dropped when the
        part was cleaned
    """
    return [next(word for word, letter in letters if letter == wanted) for wanted in part if not wanted.isspace()]


def token_spans(encoding: Any, prefix: str = "") -> list[Span | None]:
    """Return the characters of each token, None for special tokens.

    encoding: of the tokenizers library;  prefix: in front of the text, whose tokens have None, too
    """
    first, spans = len(prefix), []
    for is_special, (start, stop) in zip(encoding.special_tokens_mask, encoding.offsets, strict=True):
        is_prefix = 0 < stop <= first
        spans.append(None if is_special or is_prefix else (max(start - first, 0), max(stop - first, 0)))
    return spans


def decoded_spans(decode: Callable[[list[int]], str], tokens: list[int]) -> list[Span | None]:
    """Return the characters of each token in the text that the tokens decode to, None for special tokens.

    decode: leaves out special tokens, such as </s> and a forced first token
    """
    text, spans, stop = decode(tokens), [], 0
    for count, token in enumerate(tokens, start=1):
        start, so_far = stop, decode(tokens[:count])
        while stop < min(len(text), len(so_far)) and text[stop] == so_far[stop]:  # an incomplete character differs
            stop += 1
        is_special = not decode([token, token])  # white space alone may decode to nothing, but not twice
        spans.append(None if is_special else (start, stop))
    return spans


def share_tokens(spans: Sequence[Span | None], text: str, words: Sequence[int]) -> np.ndarray:
    """Return which share of each token belongs to each word, (tokens, words[-1] - words[0] + 1).

    spans: of the tokens in the text;  words: the word of each of its letters
    """
    shares, places = np.zeros((len(spans), words[-1] - words[0] + 1)), letter_places(text)
    for row, span in zip(shares, spans, strict=True):
        if span is not None:
            # A token of only white space, or of the first bytes of a character, belongs to the next letter.
            first = min(bisect_left(places, span[0]), len(places) - 1)
            own = words[first : max(bisect_left(places, span[1]), first + 1)]
            for word in own:
                row[word - words[0]] += 1 / len(own)
    return shares


# ---- alignments ------------------------------------------------------------------------------------------------------


class AlignedPart(NamedTuple):
    """A part of a text and its translation."""

    copied: str  # in front of it
    source: str
    target: str
    source_spans: Sequence[Span | None]  # of the tokens in `source`
    target_spans: Sequence[Span | None]
    attention: np.ndarray  # (target tokens, source tokens)


def align_text(source: str, target: str, parts: Iterable[AlignedPart]) -> Alignment:
    """Return the alignment of a text and its translation. Words of which every letter is copied align to themselves.

    target: the translations of the parts, joined by what is copied
    """
    letters, words, places = words_and_letters(source), letter_words(target), letter_places(target)
    # For each target word: its source words, by attention and by copied letters, and its number of tokens.
    attended, copied = ([Counter[int]() for _ in target.split()] for _ in range(2))
    tokens = [0.0] * len(attended)
    joined = ""
    for part in parts:
        joined = join_texts(joined, part.copied, part.target)
        begin = bisect_left(places, len(joined) - len(part.target))  # the letter at which the translation begins
        copied_words = take_words(part.copied, letters)
        for word, source_word in zip(words[begin - len(copied_words) : begin], copied_words, strict=True):
            copied[word][source_word] += 1
        source_words = take_words(part.source, letters)
        target_words = words[begin : begin + len(letter_places(part.target))]
        if source_words and target_words:
            attention, counts = attend_words(part, source_words, target_words)
            for word, (row, count) in enumerate(zip(attention.tolist(), counts.tolist(), strict=True), target_words[0]):
                tokens[word] += count
                attended[word].update(dict(enumerate(row, start=source_words[0])))
    alignment = []
    for from_tokens, from_letters, count in zip(attended, copied, tokens, strict=True):
        found, total = (from_tokens, count) if count else (from_letters, from_letters.total())
        alignment.append({word: weight / total for word, weight in found.most_common()})
    return alignment


def attend_words(
    part: AlignedPart, source_words: Sequence[int], target_words: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the attention of the words of a part, (..., target, source), summed over the tokens of each target word.

    source_words, target_words: the word of each letter
    Also returns the number of tokens of each target word.
    """
    target_shares = share_tokens(part.target_spans, part.target, target_words)
    source_shares = share_tokens(part.source_spans, part.source, source_words)
    return target_shares.T @ part.attention @ source_shares, target_shares.sum(axis=0)


def word_probabilities(source: str, target: str, part: AlignedPart) -> np.ndarray:
    """Return what `align_text` returns for a text of one part, for any number of heads: (..., target, source) words."""
    found = np.zeros((*part.attention.shape[:-2], len(target.split()), len(source.split())))
    source_words, target_words = take_words(part.source, words_and_letters(source)), letter_words(target)
    if source_words and target_words:
        attention, counts = attend_words(part, source_words, target_words)
        found[..., source_words[0] : source_words[-1] + 1] = attention / np.maximum(counts, 1e-9)[:, None]
    return found


def find_links(alignment: Alignment) -> list[tuple[int, int]]:
    """Return the pairs of a target word and its most probable source word, in the order of the target words.

    A word that attends most to </s> has none.
    """
    best = [
        (target, *next(iter(words.items())), sum(words.values())) for target, words in enumerate(alignment) if words
    ]
    return [(source, target) for target, source, weight, total in best if weight >= 1 - total]


def format_links(links: Iterable[tuple[int, int]]) -> str:
    """Return links in the format of Pharaoh: `0-0 1-2`, source word and target word, from 0."""
    return " ".join(f"{source}-{target}" for source, target in links)
