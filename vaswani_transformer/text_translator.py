"""Texts in, translations out, whatever runs the model: cut what is far too long, sort by length, fill batches, search,
restore the order.

Nothing here needs torch: `translator.py` searches with it, `onnx_translator.py` with ONNX Runtime.
"""

import numbers
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, SupportsIndex, overload

from .errors import InputError
from .text_vaswani_transformer import MAX_SOURCE_LENGTH, SHORTEST_MAX_SOURCE_LENGTH, split_text

MAX_BEAMS = 1000  # as in modeling_vaswani_transformer.py, which travels alone
# With these, float32 holds the penalty of a thousand tokens, and their scores stay far above -1e8, where a hypothesis
# counts as none: log P = -10,000 becomes -1.7e6 with alpha -1 and -7.6e-8 with 5.
LENGTH_PENALTIES = (-1, 5)


@dataclass(frozen=True)
class Hypothesis:
    """A translation, its score log P(Y | X) / ((5 + |Y|) / 6)^alpha, and its token ids, </s> included.

    Of a text that was cut, scores are summed and tokens joined over its parts.
    """

    text: str
    score: float
    tokens: list[int]


@dataclass(frozen=True)
class Part:
    """What is translated at once: all of a text, or a part of one that is far too long."""

    text: int  # which text it belongs to
    source: list[int]  # token ids, ending in </s>
    separator: str  # what goes between its translation and that of the part before


class TextTranslator(ABC):
    """What a translator does with texts; `_search` and the tokenizer are its children's."""

    positions: int | None  # learned positions of the model; None: no maximum
    pad: int

    @property
    @abstractmethod
    def own_search(self) -> tuple[int, float]:
        """Beam size and alpha with which generate() searches when nothing is asked for.

        generation_config.json says them; where that says nothing, transformers' 1 and 1.0, and where there is no such
        file, the paper's 4 and 0.6.
        """

    def search_settings(self, num_beams: int | None, length_penalty: float | None) -> tuple[int, float]:
        """What a call asks for, and the model's own where it asks for nothing."""
        beams, alpha = self.own_search
        return beams if num_beams is None else num_beams, alpha if length_penalty is None else length_penalty

    @abstractmethod
    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids, ending in </s>, and where in the text each begins."""

    @abstractmethod
    def _decode(self, tokens: list[int]) -> str:
        """The text of token ids, without the control tokens."""

    @abstractmethod
    def _search(
        self, sources: list[list[int]], num_beams: int, length_penalty: float, n_best: int
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of a batch of sources, best first; fewer than n_best where fewer finished."""

    def _hypotheses(self, sequences: list[list[list[int]]], scores: list[list[float]]) -> list[list[Hypothesis]]:
        """(batch, n_best, length) and (batch, n_best), as a search gives them; a slot of padding is none."""
        found = []
        for rows, row_scores in zip(sequences, scores, strict=True):
            stripped = [[token for token in row if token != self.pad] for row in rows]
            found.append(
                [
                    Hypothesis(self._decode(row), score, row)
                    for row, score in zip(stripped, row_scores, strict=True)
                    if row
                ]
            )
        return found

    @overload
    def translate(
        self,
        texts: str | Sequence[str],
        *,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        n_best: Literal[1] = 1,
        return_scores: Literal[False] = False,
        batch_tokens: int = 8192,
        max_source_length: int | None = None,
        progress: bool = False,
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        texts: str | Sequence[str],
        *,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        return_scores: Literal[True],
        batch_tokens: int = 8192,
        max_source_length: int | None = None,
        progress: bool = False,
    ) -> list[list[Hypothesis]]: ...

    @overload
    def translate(
        self,
        texts: str | Sequence[str],
        *,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        return_scores: bool = False,
        batch_tokens: int = 8192,
        max_source_length: int | None = None,
        progress: bool = False,
    ) -> list[str] | list[list[Hypothesis]]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        return_scores: bool = False,
        batch_tokens: int = 8192,
        max_source_length: int | None = None,
        progress: bool = False,
    ) -> list[str] | list[list[Hypothesis]]:
        """Translate texts by the search of section 6.1; a text of white space alone becomes an empty one.

        num_beams, length_penalty: beam size and alpha of the GNMT penalty; default: the model's own (`own_search`).
        n_best, return_scores: with either, a list of at most n_best hypotheses per text, best first.
        batch_tokens: source tokens in a batch, padding included, times beams: what memory depends on.
        max_source_length: a text of more tokens is cut at the ends of sentences, or else at spaces, or else between
            letters, and its translations are joined (default: 256, or the model's learned positions if fewer).
        progress: show a bar on stderr.

        Returns one translation, or one list of hypotheses, per text, in their order. Raises InputError.
        """
        texts = checked_texts(texts, "text")
        limit = self._source_limit(max_source_length)
        num_beams, length_penalty = self.search_settings(num_beams, length_penalty)
        num_beams = check_number("num_beams", num_beams, 1, MAX_BEAMS)
        n_best = check_number("n_best", n_best, 1, num_beams)
        batch_tokens = check_number("batch_tokens", batch_tokens, 1, 1_000_000_000)
        check_length_penalty(length_penalty)
        with_scores = return_scores or n_best > 1

        parts = [part for number, text in enumerate(texts) for part in self._parts(number, text, limit)]
        found: list[list[Hypothesis]] = [[] for _ in parts]
        batches = batches_of_equal_length([len(part.source) * num_beams for part in parts], batch_tokens)
        with shown_progress(len(parts) if progress else None) as advance:
            for batch in batches:
                sources = [parts[i].source for i in batch]
                for i, hypotheses in zip(batch, self._search(sources, num_beams, length_penalty, n_best), strict=True):
                    found[i] = hypotheses
                advance(len(batch))

        translations: list[list[Hypothesis]] = [[] for _ in texts]
        for part, hypotheses in zip(parts, found, strict=True):
            so_far = translations[part.text]
            translations[part.text] = joined(so_far, part.separator, hypotheses) if so_far else hypotheses
        empty = [Hypothesis("", 0.0, [])]
        if with_scores:
            return [hypotheses or empty for hypotheses in translations]
        return [hypotheses[0].text if hypotheses else "" for hypotheses in translations]

    def _source_limit(self, max_source_length: int | None) -> int:
        if max_source_length is None:
            return MAX_SOURCE_LENGTH if self.positions is None else min(MAX_SOURCE_LENGTH, self.positions)
        most = 1_000_000 if self.positions is None else self.positions
        return check_number("max_source_length", max_source_length, SHORTEST_MAX_SOURCE_LENGTH, most)

    def _parts(self, number: int, text: str, limit: int) -> Iterator[Part]:
        """The text as one part if it has at most `limit` tokens, cut at good places if not; none if it is empty."""
        for source, separator in split_text(text, limit, self._encode):
            yield Part(number, source, separator)


def batches_of_equal_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of texts of similar length, longest first; a batch, padded, has at most batch_tokens, or one text."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def joined(first: list[Hypothesis], joint: str, second: list[Hypothesis]) -> list[Hypothesis]:
    """The k-th best of one part with the k-th best of the next."""
    return [
        Hypothesis(a.text + joint + b.text, a.score + b.score, a.tokens + b.tokens)
        for a, b in zip(first, second, strict=False)  # a part may have fewer
    ]


def checked_texts(texts: str | Sequence[str], kind: str) -> list[str]:
    """The texts as a list. Raises InputError naming the first that is none, or not Unicode."""
    texts = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise InputError(f"{kind} {number} is a {type(text).__name__}, not a str")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"{kind} {number}: the lone surrogate {ascii(text[error.start])} at character {error.start + 1} "
                "is not Unicode text"
            ) from None
    return texts


def check_number(name: str, value: SupportsIndex, least: int, most: int) -> int:
    """The integer, numpy's too. Raises InputError if it is none, or does not lie between its limits."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise InputError(f"{name} is {value!r}; it must lie between {least} and {most}")
    return number


def check_length_penalty(alpha: float) -> None:
    """Raises InputError if alpha is no number, numpy's too, or one with which scores mean nothing."""
    least, most = LENGTH_PENALTIES
    if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real) or not least <= alpha <= most:
        raise InputError(f"length_penalty is {alpha!r}; it must lie between {least} and {most} (paper: 0.6)")


@contextmanager
def shown_progress(total: int | None):
    """A function that advances a bar on stderr; None: one that does nothing."""
    if total is None:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
