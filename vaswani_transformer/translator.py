"""Texts in, translations out: cut what is far too long, sort by length, fill batches, search, restore the order.

>>> translator = Translator.from_pretrained("runs/demo")
>>> translator.translate(["The house is small."])
['Das Haus ist klein.']
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, overload

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .beam_search import beam_search
from .errors import InputError
from .loading import find_folder, load_model, load_tokenizer, target_vocabulary
from .modeling_vaswani_transformer import (
    MAX_BEAMS,
    VaswaniTransformerForConditionalGeneration,
)

# A text is cut when it has more tokens than this: far more than the sentences that models are trained on.
MAX_SOURCE_LENGTH = 256
SHORTEST_MAX_SOURCE_LENGTH = 8  # a character takes up to four tokens, </s> one
# A longer text per allowed token is looked at in parts: a line of ten million letters costs no memory.
CHARACTERS_PER_TOKEN = 32

# After a full stop and the quotes and brackets that close with it; Chinese and Japanese put no space there.
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s|\Z)|[。！？]+[」』）]*")
SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Hypothesis:
    """A translation, its score log P(Y | X) / ((5 + |Y|) / 6)^alpha, and its token ids, </s> included.

    Of a text that was cut, scores are summed and tokens joined over its parts.
    """

    text: str
    score: float
    tokens: list[int]


@dataclass(frozen=True)
class ForcedDecoding:
    """A given translation as the model sees it: token ids, </s> included, and log P of each, in nats."""

    tokens: list[int]
    log_probabilities: list[float]

    @property
    def total(self) -> float:
        """log P(Y | X)"""
        return math.fsum(self.log_probabilities)


@dataclass(frozen=True)
class Part:
    """What is translated at once: all of a text, or a part of one that is far too long."""

    text: int  # which text it belongs to
    source: list[int]  # token ids, ending in </s>
    joint: str  # what stands between it and the part before


class Translator:
    """A model and its tokenizer, translating texts of any number and length."""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerFast):
        if target_vocabulary(model.config) != model.config.vocab_size:
            raise InputError(
                f"the model has {model.config.vocab_size} source and {target_vocabulary(model.config)} target tokens; "
                "a Translator reads and writes with one shared tokenizer"
            )
        self.model, self.tokenizer = model.eval(), tokenizer

    @classmethod
    def from_pretrained(
        cls,
        folder_or_repo: str | Path,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
    ) -> "Translator":
        """A Translator from a model's folder, or from a repository `owner/name` of the Hub.

        device: None for the best there is.  dtype: None for the one that was saved.
        Raises InputError, BrokenFileError or UnavailableError naming the file that cannot be used, and why.
        """
        folder = find_folder(folder_or_repo, revision)
        model = load_model(folder, device, dtype)
        return cls(model, load_tokenizer(folder, model.config))

    # ---- translating -----------------------------------------------------------------------------------------

    @overload
    def translate(
        self,
        texts: str | Sequence[str],
        *,
        num_beams: int = 4,
        length_penalty: float = 0.6,
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
        num_beams: int = 4,
        length_penalty: float = 0.6,
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
        num_beams: int = 4,
        length_penalty: float = 0.6,
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
        num_beams: int = 4,
        length_penalty: float = 0.6,
        n_best: int = 1,
        return_scores: bool = False,
        batch_tokens: int = 8192,
        max_source_length: int | None = None,
        progress: bool = False,
    ) -> list[str] | list[list[Hypothesis]]:
        """Translate texts by the search of section 6.1; a text of white space alone becomes an empty one.

        num_beams, length_penalty: beam size and alpha of the GNMT penalty.
        n_best, return_scores: with either, a list of at most n_best hypotheses per text, best first.
        batch_tokens: source tokens in a batch, padding included, times beams: what memory depends on.
        max_source_length: a text of more tokens is cut at the ends of sentences, or else at spaces, or else between
            letters, and its translations are joined (default: 256, or the model's learned positions if fewer).
        progress: show a bar on stderr.

        Returns one translation, or one list of hypotheses, per text, in their order. Raises InputError.
        """
        texts = checked_texts(texts, "text")
        limit = self._source_limit(max_source_length)
        check_number("num_beams", num_beams, 1, MAX_BEAMS)
        check_number("n_best", n_best, 1, num_beams)
        check_number("batch_tokens", batch_tokens, 1, 1_000_000_000)
        if not isinstance(length_penalty, (int, float)) or not -100 <= length_penalty <= 100:
            raise InputError(f"length_penalty is {length_penalty!r}; it must lie between -100 and 100 (paper: 0.6)")
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
            translations[part.text] = joined(so_far, part.joint, hypotheses) if so_far else hypotheses
        empty = [Hypothesis("", 0.0, [])]
        if with_scores:
            return [hypotheses or empty for hypotheses in translations]
        return [hypotheses[0].text if hypotheses else "" for hypotheses in translations]

    def _source_limit(self, max_source_length: int | None) -> int:
        positions = self.model.config.max_position_embeddings
        if max_source_length is None:
            return MAX_SOURCE_LENGTH if positions is None else min(MAX_SOURCE_LENGTH, positions)
        most = 1_000_000 if positions is None else positions
        check_number("max_source_length", max_source_length, SHORTEST_MAX_SOURCE_LENGTH, most)
        return max_source_length

    def _parts(self, number: int, text: str, limit: int) -> Iterator[Part]:
        """The text as one part if it has at most `limit` tokens, cut at good places if not; none if it is empty."""
        rest, joint = text, ""
        while rest and not rest.isspace():
            window = rest[: limit * CHARACTERS_PER_TOKEN]
            encoding = self.tokenizer(window, return_offsets_mapping=True, verbose=False)
            ids, starts = cast(list[int], encoding["input_ids"]), [start for start, _ in encoding["offset_mapping"]]
            if len(ids) <= limit and len(window) == len(rest):
                yield Part(number, ids, joint)
                return
            # The first token that has no room; </s>, the last one, has no place in the text.
            reach = starts[limit - 1] if len(ids) > limit else len(window)
            head = rest[: best_cut(rest, reach)]
            yield Part(number, cast(list[int], self.tokenizer(head.rstrip(), verbose=False)["input_ids"]), joint)
            tail = rest[len(head) :]
            rest = tail.lstrip()
            joint = " " if len(rest) < len(tail) or head[-1:].isspace() else ""

    def _search(
        self, sources: list[list[int]], num_beams: int, length_penalty: float, n_best: int
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of a batch of sources, best first; fewer than n_best where fewer finished."""
        batch = self._padded(sources)
        offset = getattr(self.model.generation_config, "max_source_length_offset", None)
        sequences, scores = beam_search(
            self.model,
            batch["input_ids"],
            batch["attention_mask"],
            num_beams,
            length_penalty,
            50 if offset is None else offset,
        )
        pad = self.model.config.pad_token_id
        return [
            [
                Hypothesis(cast(str, self.tokenizer.decode(tokens, skip_special_tokens=True)), score, tokens)
                for row, score in zip(rows[:n_best], row_scores[:n_best], strict=True)
                if (tokens := [token for token in row if token != pad])  # never produced: all of it is padding
            ]
            for rows, row_scores in zip(sequences.tolist(), scores.tolist(), strict=True)
        ]

    # ---- scoring given translations --------------------------------------------------------------------------

    def score(
        self,
        sources: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        batch_tokens: int = 8192,
        progress: bool = False,
    ) -> list[ForcedDecoding]:
        """The log-probability of every token of given translations (forced decoding); nothing is cut.

        Raises InputError if the numbers of texts differ or a text has more tokens than the model has positions.
        """
        sources, targets = checked_texts(sources, "source"), checked_texts(targets, "target")
        if len(sources) != len(targets):
            raise InputError(f"{len(sources)} sources and {len(targets)} targets: each source needs its translation")
        check_number("batch_tokens", batch_tokens, 1, 1_000_000_000)
        if not sources:
            return []
        source_ids = cast(list[list[int]], self.tokenizer(sources, verbose=False)["input_ids"])
        target_ids = cast(list[list[int]], self.tokenizer(text_target=targets, verbose=False)["input_ids"])
        positions = self.model.config.max_position_embeddings
        for kind, side in (("source", source_ids), ("target", target_ids)):
            for number, ids in enumerate(side, start=1):
                if positions is not None and len(ids) > positions:
                    raise InputError(f"{kind} {number} has {len(ids)} tokens; the model has {positions} positions")
        lengths = [max(len(source), len(target)) for source, target in zip(source_ids, target_ids, strict=True)]
        decodings: dict[int, ForcedDecoding] = {}
        with shown_progress(len(sources) if progress else None) as advance:
            for batch in batches_of_equal_length(lengths, batch_tokens):
                forced = self._log_probabilities([source_ids[i] for i in batch], [target_ids[i] for i in batch])
                for i, log_probabilities in zip(batch, forced, strict=True):
                    decodings[i] = ForcedDecoding(target_ids[i], log_probabilities)
                advance(len(batch))
        return [decodings[i] for i in range(len(sources))]

    @torch.inference_mode()
    def _log_probabilities(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """log P of each target token given its source and the target tokens before it."""
        labels = self._padded(targets)["input_ids"]  # (batch, target)
        logits = self.model(
            **self._padded(sources),
            decoder_input_ids=self.model.prepare_decoder_input_ids_from_labels(labels),
            use_cache=False,
        ).logits.float()  # (batch, target, vocab_size)
        log_probabilities = logits.gather(-1, labels[..., None]).squeeze(-1) - logits.logsumexp(-1)
        return [row[: len(target)] for row, target in zip(log_probabilities.tolist(), targets, strict=True)]

    def _padded(self, rows: list[list[int]]) -> dict[str, Tensor]:
        """input_ids and attention_mask, (batch, longest), on the model's device"""
        longest = max(map(len, rows))
        pad = cast(int, self.model.config.pad_token_id)
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows], device=self.model.device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=self.model.device)
        return {"input_ids": ids, "attention_mask": mask}


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


def best_cut(text: str, reach: int) -> int:
    """Where to cut a text within its first `reach` characters: the last end of a sentence, or else the last space."""
    # One character more, so that the space after a full stop at the very end is seen.
    for place in (SENTENCE_END, SPACE):
        cuts = [
            match.end() for match in place.finditer(text[: reach + 1]) if 0 < match.start() and match.end() <= reach
        ]
        if cuts:
            return cuts[-1]
    return reach


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


def check_number(name: str, value: int, least: int, most: int) -> None:
    """Raises InputError if an integer does not lie between its limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}; it must lie between {least} and {most}")


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
