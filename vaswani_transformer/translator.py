"""Translate texts with any runtime: split texts into sentences, sort by length, batch, search, restore the order.

>>> translator = Translator.from_pretrained("demo/model")
>>> translator.translate(["The house is small."])
['Das Haus ist klein.']

The path of a text, from `translate` by `find_hypotheses` to `find_in_chunks`:

    _split, batches_by_length    text -> pieces with token ids (`split_text`) -> batches
    Workers.start                batch -> `BatchSearch.run`, in threads -> Found
                                 TorchSearch (torch_translator.py) calls beam_search.py, OnnxSearch (onnx_translator.py)
                                 runs the graph
    _finish, join_hypotheses     Found -> Hypothesis of each piece -> Hypothesis of the text

Nothing here needs torch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from .doubts import Doubt, find_reasons
from .errors import BrokenFileError, InputError, as_input_errors
from .lines import check_unicode
from .model_folder import AlignmentHead, parse_alignment_heads
from .search_vaswani_transformer import SearchSettings, check_number, check_real
from .sentences_vaswani_transformer import (
    LanguageTokens,
    MissingLanguage,
    Piece,
    check_sentences,
    choose_cleaning,
    join_texts,
    source_limit,
    split_text,
)
from .tokenizer_files import panics_as_errors
from .workers import BatchSearch, Found, Workers

if TYPE_CHECKING:  # imported where they are used: either backend works without the other
    from tokenizers import Tokenizer

    from .alignments import Alignment, Span
    from .onnx_translator import OnnxTranslator
    from .torch_translator import TorchTranslator

BACKENDS = ("torch", "onnx")
LARGEST_COUNT = 1_000_000_000  # of batch_tokens
# The defaults of batch_tokens. On a GPU, a step of a search takes little longer for four times the sentences.
BATCH_TOKENS, BATCH_TOKENS_ON_GPU = 8192, 32_768
MOST_WORKERS = 1024
# On a CPU, texts are divided into this many batches, unless these would have fewer tokens times beams.
DIVISIONS, SMALLEST_DIVISION = 32, 2048
# Of a batch: in every step, each hypothesis has the logits of the whole vocabulary, whatever the length of its source.
LOGITS_PER_TOKEN = 4096


Item = TypeVar("Item")


@dataclass(frozen=True)
class Hypothesis:
    """A translation, its score log P(Y | X) / length penalty, and its token ids, </s> included.

    For a text that was split, scores are summed and tokens concatenated over its parts.

    alignment: for each word of `text.split()`, the probabilities of the words of the source's `split()` by their
        indices, best first; None unless it was requested
    attention: of the tokens of a part, (target, source); only while the parts are joined
    """

    text: str
    score: float
    tokens: list[int]
    alignment: "Alignment | None" = None
    attention: Any = field(default=None, compare=False)

    @property
    def links(self) -> list[tuple[int, int]]:
        """Each target word's most probable source word: (source, target), in the order of the translation.

        A word that attends most to the end of the sentence has none. Raises InputError without an alignment.
        """
        if self.alignment is None:
            raise InputError("the hypothesis has no alignment; call find_hypotheses(..., alignments=True)")
        from .alignments import find_links

        return find_links(self.alignment)

    def __repr__(self) -> str:
        return f"<{self.text!r}, score {self.score:.4f}, {len(self.tokens)} tokens>"


class NotFiniteError(BrokenFileError):
    """The model's log-probabilities of a text are NaN or infinite, so that no translation has a score.

    Both searches keep NaN up to the score, by the same rule in `collect_results` of beam_search.py and in
    `collect_hypotheses` of conversion/onnx/single_graph.py. `generate()` raises its own error, in
    `RunningSearch.check_end`.

    index: of the text, from 0.  place: what errors call the text
    """

    def __init__(self, index: int, place: str):
        super().__init__(
            f"{place}: the model's log-probabilities are NaN or infinite, as in float16 when values exceed 65,504; use "
            "float32 or bfloat16, or another checkpoint"
        )
        self.index = index


class MissingLanguageError(InputError):
    """A text has no language token, and the model needs one. index, place: as above"""

    def __init__(self, index: int, place: str, reason: str):
        super().__init__(f"{place} has {reason}")
        self.index, self.reason = index, reason


NOTHING = Hypothesis("", 0.0, [])  # the translation of what is only copied


@dataclass(frozen=True)
class TranslationOptions:
    """How to translate texts, besides the settings of the search. Raises ValueError naming a value out of range.

    batch_tokens: maximum number of source tokens, padding included, times beams in a batch; limits memory use. A
        sentence counts as at least one token for every 4,096 tokens of the target vocabulary, for its logits.
        Default: 8,192, or 32,768 on a GPU.
    max_source_length: split sentences of more tokens (default: the length that 99% of the training sentences do not
        exceed, or 128 if unknown; at least 128 for whole lines).
    split_sentences: translate the sentences of a text one by one, as models are trained. The text between them is
        copied: white space, line breaks, bullets, rules, numbers. False splits only lines that are longer than
        max_source_length.
    target_language: for a model with language tokens such as >>deu<<: "de", "deu" or "German", or the token itself,
        which is put in front of every sentence. A text that begins with a token, or has one at the beginning of a line,
        keeps it. None refuses texts without a token if the model has several; "" translates them without one.
    progress: show progress bars on stderr.
    doubts: a list to which the parts with a doubtful best translation are added: empty, a loop, a cut sentence.
    warn_ratio: also those with fewer target tokens than this number times the source tokens.
    alignments: align the words of the translations with those of the texts: `alignment` and `links` of the results.
    workers: number of batches that are searched at the same time, each on one CPU thread; memory grows with it. 1 uses
        all threads inside each operator, as does any text that fits into one batch. Translations do not depend on it.
        Default: the number of threads, or 1 on a GPU.
    one_thread: search one batch after the other, on one CPU thread, for callers that translate in several threads of
        their own, as a server does.
    """

    batch_tokens: int | None = None
    max_source_length: int | None = None
    split_sentences: bool = True
    target_language: str | None = None
    progress: bool = False
    doubts: list[Doubt] | None = None
    warn_ratio: float | None = None
    alignments: bool = False
    workers: int | None = None
    one_thread: bool = False

    def __post_init__(self):
        if self.batch_tokens is not None:
            check_number("batch_tokens", self.batch_tokens, 1, LARGEST_COUNT)
        if self.warn_ratio is not None:
            check_real("warn_ratio", self.warn_ratio, 0, 1, "0: no translation is too short")
        if self.workers is not None:
            check_number("workers", self.workers, 1, MOST_WORKERS)


@dataclass(frozen=True)
class Chunk:
    """Texts whose translation has begun."""

    texts: list[str]
    parts: list[tuple[int, Piece]]  # and the indices of their texts
    batches: list[list[int]]  # indices of parts
    searched: Iterator[Found]  # for each batch


class Translator(ABC):
    """A model and its tokenizer; translates texts of any number and length.

    `from_pretrained` returns a TorchTranslator or an OnnxTranslator, which search with torch or with ONNX Runtime and
    find the same translations.
    """

    folder: Path | None = None  # the folder that the model was loaded from

    def __init__(
        self, config: Mapping[str, Any], settings: Mapping[str, Any], search: SearchSettings, tokenizer: "Tokenizer"
    ):
        """Read what both backends need.

        config, settings: the contents of config.json and generation_config.json
        search: the default settings, from the latter.  tokenizer: of the sources
        """
        self.search = search
        self.pad: int = config["pad_token_id"]
        self.end: int = config["eos_token_id"]
        has_table = config.get("position_embedding_type") == "learned"
        self.positions: int | None = config.get("max_position_embeddings") if has_table else None  # None: no maximum
        self.target_vocabulary: int = config["decoder_vocab_size"]
        # Tokens of the longest source sentence of the training; None: unknown
        self.trained_length: int | None = settings.get("max_source_length")
        self.alignment_heads: Sequence[AlignmentHead] | None = parse_alignment_heads(settings, config)
        self.languages = LanguageTokens(tokenizer)
        self.clean = choose_cleaning(tokenizer.normalizer)  # what it needs before a text is tokenized

    @overload
    @classmethod
    def from_pretrained(
        cls, folder_or_repo: str | Path, *, backend: Literal["torch"] = "torch", **options: Any
    ) -> "TorchTranslator": ...

    @overload
    @classmethod
    def from_pretrained(
        cls, folder_or_repo: str | Path, *, backend: Literal["onnx"], **options: Any
    ) -> "OnnxTranslator": ...

    @classmethod
    def from_pretrained(cls, folder_or_repo: str | Path, *, backend: str = "torch", **options: Any) -> "Translator":
        """Load a Translator from a model folder, or from the repository `owner/name` on the Hub.

        backend: "torch", or "onnx", which needs neither torch nor transformers, for a folder that `export onnx` wrote
            or a model folder or repository with onnx/model.onnx.
        options: those of `TorchTranslator.from_pretrained` (device, dtype) or `OnnxTranslator.from_pretrained` (device,
            threads, precision); for both revision and local_files_only.
        Raises InputError, BrokenFileError or UnavailableError naming the file that cannot be used, and why:
            model_folder.py and tokenizer_files.py check what both backends read, loading.py the weights.
        """
        if backend not in BACKENDS:
            raise InputError(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
        if backend == "onnx":
            from .onnx_translator import OnnxTranslator

            if options.pop("dtype", None) is not None:
                raise InputError("dtype is for the torch backend; an ONNX file has a precision, chosen by precision")
            return OnnxTranslator.from_pretrained(folder_or_repo, **options)
        from .torch_translator import TorchTranslator

        for name, instead in (("threads", "OMP_NUM_THREADS or torch.set_num_threads"), ("precision", "dtype")):
            if options.pop(name, None) is not None:
                raise InputError(f"{name} is for the ONNX backend; torch has {instead}")
        return TorchTranslator.from_pretrained(folder_or_repo, **options)

    def __repr__(self) -> str:
        beams, alpha = self.search.num_beams, self.search.length_penalty
        return f"<{type(self).__name__}: {self.description()}, beam {beams}, length penalty {alpha}>"

    @abstractmethod
    def description(self) -> str:
        """Return the size and place of the model."""

    def change_search(self, **settings: Any) -> SearchSettings:
        """Return the default settings with some changed; None keeps the default. Raises InputError.

        A changed `extra_length` takes the place of a default `max_new_tokens`, such as that of OPUS-MT's models.
        """
        changes = {name: value for name, value in settings.items() if value is not None}
        if "extra_length" in changes:
            changes.setdefault("max_new_tokens", None)
        if unknown := changes.keys() - vars(self.search).keys():
            raise InputError(f"{', '.join(sorted(unknown))}: no such setting; known: {', '.join(vars(self.search))}")
        with as_input_errors():
            return replace(self.search, **changes)

    def add_language(self, texts: Sequence[str], language: str | None, kind: str = "text") -> list[str]:
        """Put the token of the language in front of texts that begin with none; each must be one sentence.

        language: as `target_language` of `find_hypotheses`.  kind: of the texts, for errors
        """
        with as_input_errors():
            prefix = self.languages.prefix(language)
        added = []
        for index, text in enumerate(texts):
            begins = self.languages.begins(text) or not text.strip()
            if prefix is None and not begins:
                raise MissingLanguageError(index, f"{kind} {index + 1}", self.languages.missing())
            added.append(text if begins else f"{prefix}{text}")
        return added

    @abstractmethod
    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Return token ids, ending in </s>, and the character offset at which each begins."""

    @abstractmethod
    def _decode(self, tokens: list[int]) -> str:
        """Return the text of token ids, without special tokens."""

    @abstractmethod
    def _source_spans(self, text: str, prefix: str) -> "list[Span | None]":
        """Return the characters of each token of `prefix + text` in the text, None for other tokens."""

    @abstractmethod
    def _open_search(self, settings: SearchSettings, alignments: bool, one_thread: bool) -> BatchSearch:
        """Return a search for at most `num_return_sequences` hypotheses of each source, best first.

        alignments: whether it returns the attention of their tokens
        one_thread: whether each of its batches uses one CPU thread, because other threads search at the same time
        """

    @abstractmethod
    def count_cores(self) -> int | None:
        """Return the number of CPU cores for searches; None on a GPU, which one search at a time keeps busy."""

    def _default_batch_tokens(self) -> int:
        return BATCH_TOKENS_ON_GPU if self.count_cores() is None else BATCH_TOKENS

    def _hypotheses(self, found: Found) -> list[list[Hypothesis]]:
        """Convert what a search has found; skip empty slots."""
        hypotheses = []
        attention = found.attention or [[None] * len(scores) for scores in found.scores]
        for rows, *others in zip(found.sequences, found.scores, attention, strict=True):
            stripped = [[token for token in row if token != self.pad] for row in rows]
            slots = zip(stripped, *others, strict=True)
            hypotheses.append(
                [Hypothesis(self._decode(row), score, row, attention=weights) for row, score, weights in slots if row]
            )
        return hypotheses

    def translate(self, texts: str | Sequence[str], **options: Any) -> list[str]:
        """Translate texts by beam search (section 6.1); text without a letter is copied.

        options: those of `find_hypotheses`, which also returns scores and further translations
        Returns the best translation of each text, in order. Raises InputError.
        """
        if (wanted := options.get("num_return_sequences") or 1) != 1:
            raise InputError(
                f"num_return_sequences is {wanted}, but translate() returns the best translation of each text; call "
                "find_hypotheses()"
            )
        return [best.text for best, *_ in self.find_hypotheses(texts, **options)]

    def find_hypotheses(self, texts: str | Sequence[str], **options: Any) -> list[list[Hypothesis]]:
        """Translate texts and return the best hypotheses of each, with their scores and tokens, best first.

        options: fields of `TranslationOptions` and, to change the settings in generation_config.json, of
            `SearchSettings`, such as `num_beams=8`

        Returns at most `num_return_sequences` hypotheses (default: 1) and at least one for each text, in order. Raises
        InputError, MissingLanguageError naming the text, and NotFiniteError if its translations have no finite score.
        """
        (found,) = self.find_in_chunks([texts], **options)
        return found

    def find_in_chunks(
        self, chunks: Iterable[str | Sequence[str]], *, look_ahead: bool = False, **options: Any
    ) -> Generator[list[list[Hypothesis]]]:
        """Yield what `find_hypotheses` returns for each chunk of texts, in order; needs memory for two chunks.

        look_ahead: begin a chunk before the previous one is yielded, so that no worker waits at its end. False for text
            that is still being written.
        options: those of `find_hypotheses`
        Close the generator if it is not exhausted: it has threads.
        """
        own = {field.name: options.pop(field.name) for field in fields(TranslationOptions) if field.name in options}
        settings = self.change_search(**options)
        with as_input_errors():
            how = TranslationOptions(**own)
            limit = source_limit(how.max_source_length, self.trained_length, self.positions, how.split_sentences)
            self.languages.prefix(how.target_language)  # raises ValueError for an unknown language
        cores = self.count_cores()

        def begin(texts: str | Sequence[str]) -> Chunk:
            texts = as_texts(texts, "text")
            parts = self._split(texts, limit, how)
            sources = [i for i, (_, piece) in enumerate(parts) if piece.ids]
            shortest = self.target_vocabulary // LOGITS_PER_TOKEN
            lengths = [max(len(parts[i][1].ids), shortest) * settings.num_beams for i in sources]
            largest = how.batch_tokens or self._default_batch_tokens()
            if cores is not None:
                largest = divide_evenly(sum(lengths), largest)
            batches = [[sources[i] for i in batch] for batch in batches_by_length(lengths, largest)]
            return Chunk(texts, parts, batches, pool.start([[parts[i][1].ids for i in batch] for batch in batches]))

        count = 1 if how.one_thread else how.workers or cores or 1
        open_search = partial(self._open_search, settings, how.alignments)
        with panics_as_errors(self.folder), Workers(open_search, count, how.one_thread) as pool:
            begun = map(begin, chunks)
            for chunk in take_ahead(begun) if look_ahead else begun:
                yield self._finish(chunk, how)

    def _split(self, texts: list[str], limit: int, how: TranslationOptions) -> list[tuple[int, Piece]]:
        """Return the parts of texts, of at most `limit` tokens, each with the index of its text."""
        cut = (limit, self._encode, how.split_sentences, self.clean, self.languages, how.target_language)
        parts: list[tuple[int, Piece]] = []
        with show_progress(how.progress, "splitting") as advance:
            for number, text in enumerate(texts):
                try:
                    for piece in split_text(text, *cut):
                        parts.append((number, piece))
                        advance(1)
                except MissingLanguage as error:
                    raise MissingLanguageError(number, f"text {number + 1}", str(error)) from None
        return parts

    def _finish(self, chunk: Chunk, how: TranslationOptions) -> list[list[Hypothesis]]:
        """Wait for the search of a chunk, and return the hypotheses of each of its texts."""
        found: list[list[Hypothesis]] = [[] for _ in chunk.parts]
        with show_progress(how.progress, "translating", sum(map(len, chunk.batches))) as advance:
            for batch, of_batch in zip(chunk.batches, chunk.searched, strict=True):
                for i, hypotheses in zip(batch, self._hypotheses(of_batch), strict=True):
                    if not hypotheses or not all(math.isfinite(hypothesis.score) for hypothesis in hypotheses):
                        number = chunk.parts[i][0]
                        raise NotFiniteError(number, f"text {number + 1}")
                    found[i] = hypotheses
                advance(len(batch))

        translations: list[list[Hypothesis]] = [[] for _ in chunk.texts]
        for (number, piece), hypotheses in zip(chunk.parts, found, strict=True):
            translations[number] = join_hypotheses(translations[number], piece.copied, hypotheses)
            if how.doubts is not None and piece.ids:
                best = hypotheses[0]
                reasons = find_reasons(piece.ids, best.tokens, piece.text, best.text, piece.is_cut, how.warn_ratio)
                how.doubts.extend(Doubt(number, reason, piece.text, best.text) for reason in reasons)
        return self._align(chunk, found, translations) if how.alignments else translations

    def _align(
        self, chunk: Chunk, found: list[list[Hypothesis]], translations: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Return the translations with their alignments.  found: the hypotheses of each part, with their attention"""
        from .alignments import AlignedPart, align_text, decoded_spans

        of_text: list[list[list[AlignedPart]]] = [[[] for _ in hypotheses] for hypotheses in translations]
        for (number, piece), hypotheses in zip(chunk.parts, found, strict=True):
            source_spans = self._source_spans(piece.text, piece.prefix) if piece.ids else []
            # The tokens of a part that was truncated are its first ones and </s>.
            source_spans = [*source_spans[: max(len(piece.ids) - 1, 0)], *source_spans[-1:]]
            for rank, aligned in enumerate(of_text[number]):
                best = hypotheses[rank] if piece.ids else NOTHING
                spans = decoded_spans(self._decode, best.tokens)
                aligned.append(AlignedPart(piece.copied, piece.text, best.text, source_spans, spans, best.attention))
        return [
            [
                replace(hypothesis, alignment=align_text(text, hypothesis.text, aligned))
                for hypothesis, aligned in zip(hypotheses, ranks, strict=True)
            ]
            for text, hypotheses, ranks in zip(chunk.texts, translations, of_text, strict=True)
        ]


def take_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, each after the next one has been taken, so that an error in taking one comes after those before."""
    taken: list[Item] = []
    try:
        for item in items:
            taken.append(item)
            if len(taken) > 1:
                yield taken.pop(0)
    except Exception:
        yield from taken
        raise
    yield from taken


def pad_rows(rows: Sequence[list[int]], pad: int) -> tuple[list[list[int]], list[list[int]]]:
    """Pad token ids on the right. Return ids and mask, both (rows, longest)."""
    longest = max(map(len, rows))
    ids = [row + [pad] * (longest - len(row)) for row in rows]
    return ids, [[1] * len(row) + [0] * (longest - len(row)) for row in rows]


def divide_evenly(tokens: int, batch_tokens: int) -> int:
    """Return the size of batches that occupy many workers, at most `batch_tokens`.

    On a CPU, smaller batches take no more time. The number of workers does not count here, so that the translations do
    not depend on it, not even by rounding.
    """
    return min(batch_tokens, max(SMALLEST_DIVISION, tokens // DIVISIONS))


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


def join_hypotheses(first: list[Hypothesis], copied: str, second: list[Hypothesis]) -> list[Hypothesis]:
    """Concatenate the k-th best hypotheses of consecutive parts; a first or last part may have none."""
    if not first or not second:
        pairs = [(a, b) for a in first or [NOTHING] for b in second or [NOTHING]]
    else:
        pairs = list(zip(first, second, strict=False))  # a part may have fewer
    return [Hypothesis(join_texts(a.text, copied, b.text), a.score + b.score, a.tokens + b.tokens) for a, b in pairs]


def as_texts(texts: str | Sequence[str], kind: str, first_number: int = 1) -> list[str]:
    """Return the texts as a list. Raises InputError naming the first that is not a str or cannot be translated.

    first_number: number of the first text in errors
    """
    if isinstance(texts, str):
        texts = [texts]
    elif not isinstance(texts, Iterable):
        raise InputError(f"the {kind}s are of type {type(texts).__name__}; give a str or a list of str")
    elif isinstance(texts, Mapping) or getattr(texts, "ndim", 1) != 1:  # iterating yields keys, or a frame's columns
        raise InputError(f"the {kind}s are in a {type(texts).__name__}; give a list of str, such as one of its columns")
    texts = list(texts)
    for number, text in enumerate(texts, start=first_number):
        if not isinstance(text, str):
            raise InputError(f"{kind} {number} is a {type(text).__name__}, not a str")
        check_unicode(text, f"{kind} {number}")
        try:
            check_sentences(text)
        except ValueError as error:
            raise InputError(f"{kind} {number}: {error}") from None
    return texts


@contextmanager
def show_progress(is_shown: bool, what: str, total: int | None = None):
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
