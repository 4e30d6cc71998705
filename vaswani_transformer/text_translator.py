"""Translate texts with any runtime: split texts into sentences, sort by length, batch, search, restore the order.

Nothing here needs torch: `translator.py` runs the search with torch, `onnx_translator.py` with ONNX Runtime.
"""

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import InputError
from .lines import check_unicode
from .search_settings import (
    LARGEST_COUNT,
    LENGTH_PENALTIES,
    MAX_BEAMS,
    SearchSettings,
    check_number,
    lookahead_of,
)
from .text_vaswani_transformer import joined_texts, source_limit, split_text


@dataclass(frozen=True)
class Hypothesis:
    """A translation, its score log P(Y | X) / ((5 + |Y|) / 6)^alpha, and its token ids, </s> included.

    For a text that was split, scores are summed and tokens concatenated over its parts.
    """

    text: str
    score: float
    tokens: list[int]

    def __repr__(self) -> str:
        return f"<{self.text!r}, score {self.score:.4f}, {len(self.tokens)} tokens>"


@dataclass(frozen=True)
class Part:
    """A unit of translation: a sentence, a part of a very long one, or a text that is kept whole."""

    text_index: int
    source: list[int]  # token ids, ending in </s>
    separator: str  # the white space between the previous part and this one


class TextTranslator(ABC):
    """Splits and batches texts; subclasses implement the search and the tokenizer."""

    trained_length: int | None  # tokens of the longest source sentence of the training; None: unknown
    positions: int | None  # number of learned positions; None: no maximum
    pad: int

    @property
    @abstractmethod
    def default_search(self) -> SearchSettings:
        """Return the settings in generation_config.json, with the defaults of `search_settings_of`."""

    def __repr__(self) -> str:
        beams, alpha = self.default_search.num_beams, self.default_search.length_penalty
        return f"<{type(self).__name__}: {self.description()}, beam {beams}, length penalty {alpha}>"

    @abstractmethod
    def description(self) -> str:
        """Return the size and place of the model."""

    def search_settings(
        self,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | int | str | None = None,
    ) -> SearchSettings:
        """Return the settings of a call, with defaults filled in. Raises InputError."""
        defaults = self.default_search
        beams = defaults.num_beams if num_beams is None else num_beams
        alpha = defaults.length_penalty if length_penalty is None else length_penalty
        rule = defaults.early_stopping if early_stopping is None else early_stopping
        least, most = LENGTH_PENALTIES
        if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real) or not least <= alpha <= most:
            raise InputError(f"length_penalty is {alpha!r}; it must lie between {least} and {most} (paper: 0.6)")
        lookahead_of(rule)  # raises InputError if it is invalid
        return SearchSettings(check_number("num_beams", beams, 1, MAX_BEAMS), alpha, rule)

    @abstractmethod
    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Return token ids, ending in </s>, and the character offset at which each begins."""

    @abstractmethod
    def _decode(self, tokens: list[int]) -> str:
        """Return the text of token ids, without special tokens."""

    @abstractmethod
    def _search(self, sources: list[list[int]], settings: SearchSettings, n_best: int) -> list[list[Hypothesis]]:
        """Return at most n_best hypotheses for each source of a batch, best first."""

    def _hypotheses(self, sequences: list[list[list[int]]], scores: list[list[float]]) -> list[list[Hypothesis]]:
        """Convert the search's token ids (batch, n_best, length) and scores (batch, n_best); skip empty slots."""
        found = []
        for rows, row_scores in zip(sequences, scores, strict=True):
            stripped = [[token for token in row if token != self.pad] for row in rows]
            pairs = zip(stripped, row_scores, strict=True)
            found.append([Hypothesis(self._decode(row), score, row) for row, score in pairs if row])
        return found

    def _padded(self, rows: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """Pad ids on the right. Return ids and mask, both (rows, longest)."""
        longest = max(map(len, rows))
        ids = [row + [self.pad] * (longest - len(row)) for row in rows]
        return ids, [[1] * len(row) + [0] * (longest - len(row)) for row in rows]

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | int | str | None = None,
        n_best: int = 1,
        return_scores: bool = False,
        batch_tokens: int = 8192,
        max_source_length: int | None = None,
        split_sentences: bool = True,
        max_characters: int | None = None,
        progress: bool = False,
    ) -> list[Any]:
        """Translate texts by beam search (section 6.1); a text of white space gets an empty translation.

        num_beams, length_penalty: beam size and alpha of the GNMT penalty; default: `default_search`.
        early_stopping: when a sentence is done, see `lookahead_of`; default: `default_search`.
        n_best, return_scores: return a list of at most n_best hypotheses per text, best first.
        batch_tokens: maximum number of source tokens, padding included, times beams in a batch; limits memory use.
        max_source_length: split sentences of more tokens (default: the length of the longest training sentence, or 256
            if unknown; 256 for whole texts).
        split_sentences: translate the sentences of a text one by one, as models are trained, and join the translations
            with the white space between them; False splits only texts that are longer than max_source_length.
        max_characters: reject longer texts before translating; default: no limit.
        progress: show progress bars on stderr.

        Returns list[str], or list[list[Hypothesis]] with n_best > 1 or return_scores, in order. Raises InputError.
        """
        texts = as_texts(texts, "text", max_characters)
        try:
            limit = source_limit(max_source_length, self.trained_length if split_sentences else None, self.positions)
        except ValueError as error:
            raise InputError(str(error)) from None
        settings = self.search_settings(num_beams, length_penalty, early_stopping)
        n_best = check_number("n_best", n_best, 1, settings.num_beams, "num_beams")
        batch_tokens = check_number("batch_tokens", batch_tokens, 1, LARGEST_COUNT)

        parts: list[Part] = []
        with shown_progress(progress, "splitting") as advance:
            for number, text in enumerate(texts):
                for source, separator in split_text(text, limit, self._encode, split_sentences):
                    parts.append(Part(number, source, separator))
                    advance(1)
        found: list[list[Hypothesis]] = [[] for _ in parts]
        batches = batches_by_length([len(part.source) * settings.num_beams for part in parts], batch_tokens)
        with shown_progress(progress, "translating", len(parts)) as advance:
            for batch in batches:
                of_batch = self._search([parts[i].source for i in batch], settings, n_best)
                for i, hypotheses in zip(batch, of_batch, strict=True):
                    found[i] = hypotheses or [Hypothesis("", 0.0, [])]
                advance(len(batch))

        translations: list[list[Hypothesis]] = [[] for _ in texts]
        for part, hypotheses in zip(parts, found, strict=True):
            so_far = translations[part.text_index]
            translations[part.text_index] = joined(so_far, part.separator, hypotheses) if so_far else hypotheses
        translations = [hypotheses or [Hypothesis("", 0.0, [])] for hypotheses in translations]
        return translations if return_scores or n_best > 1 else [best.text for best, *_ in translations]


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of each batch, longest texts first; a padded batch has at most batch_tokens, or one text."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def joined(first: list[Hypothesis], separator: str, second: list[Hypothesis]) -> list[Hypothesis]:
    """Concatenate the k-th best hypotheses of consecutive parts."""
    return [
        Hypothesis(joined_texts(a.text, separator, b.text), a.score + b.score, a.tokens + b.tokens)
        for a, b in zip(first, second, strict=False)  # a part may have fewer
    ]


def as_texts(
    texts: str | Sequence[str], kind: str, max_characters: int | None = None, first_number: int = 1
) -> list[str]:
    """Return the texts as a list. Raises InputError naming the first that is too long, not a str or invalid Unicode.

    first_number: number of the first text in errors
    """
    if max_characters is not None:
        check_number("max_characters", max_characters, 1, LARGEST_COUNT)
    texts = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(texts, start=first_number):
        if not isinstance(text, str):
            raise InputError(f"{kind} {number} is a {type(text).__name__}, not a str")
        if max_characters is not None and len(text) > max_characters:
            raise InputError(
                f"{kind} {number} has {len(text):,} characters; max_characters is {max_characters:,}: shorten the "
                "text or raise the limit"
            )
        check_unicode(text, f"{kind} {number}")
    return texts


@contextmanager
def shown_progress(is_shown: bool, what: str, total: int | None = None):
    """Yield a function that advances a progress bar on stderr; it does nothing unless `is_shown`.

    total: None if it is unknown; the bar is then shown only on a terminal and removed at the end
    """
    if not is_shown:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console, counts_up = Console(stderr=True), total is None
    hidden = counts_up and not console.is_terminal
    with Progress(*columns, console=console, transient=counts_up, disable=hidden) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
