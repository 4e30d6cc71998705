"""Align the words of a translation with the words of its source, by the attention of some heads.

A word is an item of `text.split()`: of the text as it was given, and of its translation. The probability of a source
word for a target word is the attention that the tokens of the target word pay to those of the source word, averaged
over the tokens of the target word and over the heads. What is missing from 1 was paid to </s>, which is no word.

A head looks at the source of a word while the decoder predicts the word, or one step later, when the decoder reads it.
`choose_heads` compares both, for every head, with a reference.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from .errors import InputError, UnavailableError
from .lines import read_lines
from .model_folder import AlignmentHead
from .sentences_vaswani_transformer import join_texts

Span = tuple[int, int]  # of characters
Alignment = list[dict[int, float]]  # for each target word, the probabilities of source words, best first
Links = set[tuple[int, int]]  # of a source and a target word

# Another head must lower the error rate by this much: smaller gains on a thousand pairs are chance.
LEAST_GAIN = 0.005
IBM_PAIRS = 5000  # nltk takes half a minute for them in each direction


# ---- words and tokens ------------------------------------------------------------------------------------------------


class Words:
    """The words of a text, by character. White space counts as part of the next word, at the end as part of the last.

    count: the number of words;  of: for each character, the index of its word
    """

    def __init__(self, text: str):
        self.count = len(text.split())
        self.of: list[int] = []
        for match in re.finditer(r"\s*\S+|\s+", text):
            word = self.of[-1] + 1 if self.of else 0
            self.of += [min(word, self.count - 1)] * len(match[0])


def locate(part: str, text: str, start: int) -> list[int]:
    """Return where the characters of a part stand in the text, which has further ones between them.

    A space in the part may be any white space in the text.  start: where the part begins
    """
    places = []
    for character in part:
        if character != " ":
            start = text.index(character, start)
        places.append(min(start, len(text) - 1))
        start += character != " "
    return places


def token_spans(encoding: Any, prefix: str = "") -> list[Span | None]:
    """Return the characters of each token, None for special tokens.

    encoding: of the tokenizers library;  prefix: in front of the text, whose tokens have None, too
    """
    first, spans = len(prefix), []
    for is_special, (start, stop) in zip(encoding.special_tokens_mask, encoding.offsets, strict=True):
        is_prefix = 0 < stop <= first
        spans.append(None if is_special or is_prefix else (max(start - first, 0), max(stop - first, 0)))
    return spans


def decoded_spans(decode: Callable[[list[int]], str], tokens: list[int], end: int) -> list[Span | None]:
    """Return the characters of each token in the text that the tokens decode to, None for the end token."""
    text, spans, stop = decode(tokens), [], 0
    for count, token in enumerate(tokens, start=1):
        start, so_far = stop, decode(tokens[:count])
        while stop < min(len(text), len(so_far)) and text[stop] == so_far[stop]:  # an incomplete character differs
            stop += 1
        spans.append(None if token == end else (start, stop))
    return spans


def share_tokens(spans: Sequence[Span | None], text: str, words: Sequence[int]) -> np.ndarray:
    """Return which share of each token belongs to each word, (tokens, words[-1] - words[0] + 1).

    spans: of the tokens in the text;  words: the word of each of its characters
    """
    shares = np.zeros((len(spans), words[-1] - words[0] + 1))
    visible = [i for i, character in enumerate(text) if not character.isspace()]
    for row, span in zip(shares, spans, strict=True):
        if span is not None:
            own = visible[bisect_left(visible, span[0]) : bisect_left(visible, span[1])]
            # A token of only white space, or of the first bytes of a character, belongs to what follows.
            own = own or visible[bisect_left(visible, span[0]) :][:1] or visible[-1:]
            for i in own:
                row[words[i] - words[0]] += 1 / len(own)
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
    """Return the alignment of a text and its translation. Words of which every character is copied align to themselves.

    target: the translations of the parts, joined by what is copied
    """
    of_source, of_target = Words(source).of, Words(target)
    attention, copies = ([defaultdict(float) for _ in range(of_target.count)] for _ in range(2))
    tokens = [0.0] * of_target.count
    place, joined = 0, ""
    for part in parts:
        # What is copied stands in front of the part in both texts, with other white space.
        places = locate(part.copied, source, place)
        place = places[-1] + 1 if places else place
        joined = join_texts(joined, part.copied, part.target)
        at = len(joined) - len(part.target)
        for character, source_place in zip(reversed(part.copied), reversed(places), strict=True):
            if not character.isspace():
                at = next(i for i in range(at - 1, -1, -1) if not joined[i].isspace())
                copies[of_target.of[at]][of_source[source_place]] += 1
        # What is translated.
        places = locate(part.source, source, place)
        place = places[-1] + 1 if places else place
        if not part.source.strip() or not part.target.strip():
            continue
        source_words = [of_source[at] for at in places]
        target_words = of_target.of[len(joined) - len(part.target) : len(joined)]
        attended, counts = attend_words(part, source_words, target_words)
        for word, (row, count) in enumerate(zip(attended.tolist(), counts.tolist(), strict=True), target_words[0]):
            tokens[word] += count
            for source_word, weight in enumerate(row, start=source_words[0]):
                attention[word][source_word] += weight
    alignment = []
    for count, attended, copied in zip(tokens, attention, copies, strict=True):
        found, total = (attended, count) if count else (copied, sum(copied.values()))
        ordered = sorted(found, key=lambda word: (-found[word], word))
        alignment.append({word: found[word] / total for word in ordered})
    return alignment


def attend_words(
    part: AlignedPart, source_words: Sequence[int], target_words: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the attention of the words of a part, (..., target, source), summed over the tokens of each target word.

    source_words, target_words: the word of each character
    Also returns the number of tokens of each target word.
    """
    target_shares = share_tokens(part.target_spans, part.target, target_words)
    source_shares = share_tokens(part.source_spans, part.source, source_words)
    return target_shares.T @ part.attention @ source_shares, target_shares.sum(axis=0)


def word_probabilities(source: str, target: str, part: AlignedPart) -> np.ndarray:
    """Return what `align_text` returns for a text of one part, for any number of heads: (..., target, source) words."""
    of_source, of_target = Words(source), Words(target)
    found = np.zeros((*part.attention.shape[:-2], of_target.count, of_source.count))
    if part.source.strip() and part.target.strip():
        words = [of_source.of[place] for place in locate(part.source, source, 0)]
        attended, counts = attend_words(part, words, of_target.of)
        rows = slice(of_target.of[0], of_target.of[-1] + 1)
        found[..., rows, words[0] : words[-1] + 1] = attended / np.maximum(counts, 1e-9)[:, None]
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


# ---- the choice of heads ---------------------------------------------------------------------------------------------


def default_heads(layers: int, heads: int) -> list[AlignmentHead]:
    """Return the heads of the last layer but one, or of the last of one or two layers, at the step of prediction.

    Garg et al. 2019 (arXiv 1909.02074) found that layer to be the best of six.
    """
    layer = max(layers - 2, min(layers - 1, 1))
    return [AlignmentHead(layer, head, 0) for head in range(heads)]


def shift_steps(attention: np.ndarray, offset: int) -> np.ndarray:
    """Return for each token the attention `offset` steps after its prediction.  attention: (..., target, source)

    The last token, which is </s> unless the translation was cut off, is not read.
    """
    return np.concatenate((attention[..., offset:, :], attention[..., attention.shape[-2] - offset :, :]), axis=-2)


def attention_by_step(attention: np.ndarray) -> np.ndarray:
    """Return the attention of every head at both steps, (layers x heads x 2, target, source)."""
    both = np.stack([shift_steps(attention, offset) for offset in range(2)], axis=2)
    return both.reshape(-1, *attention.shape[2:])


def attention_of_heads(attention: np.ndarray, heads: Sequence[AlignmentHead]) -> np.ndarray:
    """Return the mean attention of heads, (target, source).  attention: (layers, heads, target, source)"""
    return np.mean([shift_steps(attention[layer, head], offset) for layer, head, offset in heads], axis=0)


class Reference(NamedTuple):
    """The alignment of a pair of texts: links that must be found, and those that may be found, which include them."""

    sure: Links
    possible: Links


def error_rate(alignments: Iterable[Iterable[tuple[int, int]]], references: Iterable[Reference]) -> float:
    """Return the alignment error rate (AER) of Och and Ney 2003."""
    hits = total = 0
    for links, reference in zip(alignments, references, strict=True):
        found = set(links)
        hits += len(found & reference.sure) + len(found & reference.possible)
        total += len(found) + len(reference.sure)
    return 1 - hits / max(total, 1)


class HeadScores(NamedTuple):
    """heads: the chosen ones;  rate: their error rate;  single: that of every head alone, best first"""

    heads: list[AlignmentHead]
    rate: float
    single: dict[AlignmentHead, float]


def choose_heads(
    probabilities: Iterable[np.ndarray], references: Sequence[Reference], sizes: tuple[int, int]
) -> HeadScores:
    """Choose the heads whose mean agrees best with the references: the best one, then others as long as they help.

    probabilities: of each pair, those of `attention_by_step`, (layers x heads x 2, target words, source words)
    sizes: the numbers of layers and heads
    Raises InputError if the references have no link.
    """
    if not any(reference.sure for reference in references):
        raise InputError("the reference has no sure link for these texts; give their alignment")
    heads = [AlignmentHead(*head) for head in product(*map(range, (*sizes, 2)))]
    pairs = [
        (found, mark_links(found.shape[1:], marked)) for found, marked in zip(probabilities, references, strict=True)
    ]
    sure = sum(len(reference.sure) for reference in references)
    chosen: list[int] = []
    rate, single = 1.0, {}
    while True:
        hits = links = np.zeros(len(heads))
        for found, marks in pairs:
            if not marks.size:
                continue
            mean = (found + found[chosen].sum(axis=0)) / (len(chosen) + 1)
            is_link = mean.max(axis=2) >= 1 - mean.sum(axis=2)  # as in `find_links`
            hits = hits + (marks[np.arange(len(marks)), mean.argmax(axis=2)] * is_link).sum(axis=1)
            links = links + is_link.sum(axis=1)
        rates = 1 - hits / (links + sure)
        single = single or {heads[i]: float(rates[i]) for i in rates.argsort(kind="stable")}
        best = int(rates.argmin())
        if chosen and rates[best] > rate - LEAST_GAIN:
            return HeadScores([heads[i] for i in chosen], rate, single)
        chosen.append(best)
        rate = float(rates[best])


def mark_links(shape: tuple[int, ...], reference: Reference) -> np.ndarray:
    """Return 2 at sure links, 1 at possible ones and 0 elsewhere, (target words, source words)."""
    marks = np.zeros(shape)
    for links in reference:
        for source, target in links:
            marks[target, source] += 1
    return marks


# ---- references ------------------------------------------------------------------------------------------------------


def read_references(path: Path, sources: Sequence[str], targets: Sequence[str]) -> list[Reference]:
    """Read links in the format of Pharaoh, in which `1-2` is a sure link and `1p2` a possible one.

    Raises InputError naming a line that has other content, or words that the texts do not have.
    """
    lines = list(read_lines(path))
    if len(lines) != len(sources):
        raise InputError(f"{path} has {len(lines)} lines, the texts {len(sources)}; they must be parallel")
    references = []
    for number, (line, source, target) in enumerate(zip(lines, sources, targets, strict=True), start=1):
        reference, sizes = Reference(set(), set()), (len(source.split()), len(target.split()))
        for field in line.split():
            match = re.fullmatch(r"(\d{1,9})([-p])(\d{1,9})", field, re.ASCII)
            if match is None:
                raise InputError(f"{path} line {number}: {field!r} is not a link; write SOURCE-TARGET, such as 0-0 1-2")
            link = int(match[1]), int(match[3])
            if link[0] >= sizes[0] or link[1] >= sizes[1]:
                raise InputError(
                    f"{path} line {number}: {field} names words from 0 to {sizes[0] - 1} and {sizes[1] - 1}; the "
                    "texts are split at white space"
                )
            reference.possible.add(link)
            if match[2] == "-":
                reference.sure.add(link)
        references.append(reference)
    return references


def compute_references(sources: Sequence[str], targets: Sequence[str]) -> list[Reference]:
    """Align texts with eflomal or, where it is not installed, the first 5,000 with IBM Model 2 of nltk.

    Links that are found in both directions are sure, the others possible. Raises UnavailableError without an aligner.
    """
    pairs = list(zip(map(plain_words, sources), map(plain_words, targets), strict=True))
    for align in (align_with_eflomal, align_with_ibm_model):
        try:
            return [Reference(forward & backward, forward | backward) for forward, backward in align(pairs)]
        except ImportError:
            continue
    raise UnavailableError(
        "no aligner is installed: pip install eflomal (or nltk), or pass the links of another one as --reference"
    )


def plain_words(text: str) -> list[str]:
    """Return the words of a text in lower case and without punctuation at their ends, which hides what they share."""
    return [re.sub(r"^\W+|\W+$", "", word).lower() or word for word in text.split()]


def align_with_eflomal(pairs: Sequence[tuple[list[str], list[str]]]) -> list[tuple[Links, Links]]:
    from eflomal import Aligner  # pyright: ignore[reportMissingImports]

    texts = ([" ".join(words) + "\n" for words in side] for side in zip(*pairs, strict=True))
    with TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("forward", "backward")]
        Aligner().align(*texts, links_filename_fwd=str(files[0]), links_filename_rev=str(files[1]))
        both = ([parse_links(line) for line in file.read_text().split("\n")] for file in files)
        return list(zip(*both, strict=True))[: len(pairs)]


def parse_links(line: str) -> Links:
    return {(int(source), int(target)) for source, _, target in (field.partition("-") for field in line.split())}


def align_with_ibm_model(pairs: Sequence[tuple[list[str], list[str]]]) -> list[tuple[Links, Links]]:
    from nltk.translate import AlignedSent, IBMModel2

    pairs = [(source or ["-"], target or ["-"]) for source, target in pairs[:IBM_PAIRS]]
    forward = [AlignedSent(target, source) for source, target in pairs]
    backward = [AlignedSent(source, target) for source, target in pairs]
    for corpus in (forward, backward):
        IBMModel2(corpus, 5)  # which adds the alignments to the sentences
    return [
        ({(s, t) for t, s in to.alignment if s is not None}, {(s, t) for s, t in back.alignment if t is not None})
        for to, back in zip(forward, backward, strict=True)
    ]
