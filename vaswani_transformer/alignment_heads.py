"""The attention heads that align words: the default ones, and the choice of better ones by reference alignments.

A head looks at the source of a word while the decoder predicts the word, or one step later, when the decoder reads it.
`choose_heads` compares both, for every head, with the references.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from .errors import InputError, UnavailableError
from .lines import read_lines
from .model_folder import AlignmentHead

Links = set[tuple[int, int]]  # of a source and a target word

# Another head must lower the error rate by this much: smaller gains on a thousand pairs are chance.
LEAST_GAIN = 0.005
IBM_PAIRS = 5000  # nltk takes half a minute for them in each direction


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
    single = rate_heads(pairs, [])
    chosen, rate = [int(single.argmin())], float(single.min())
    while (rates := rate_heads(pairs, chosen)).min() <= rate - LEAST_GAIN:
        chosen.append(int(rates.argmin()))
        rate = float(rates.min())
    by_rate = {heads[i]: float(single[i]) for i in single.argsort(kind="stable")}
    return HeadScores([heads[i] for i in chosen], rate, by_rate)


def rate_heads(pairs: Sequence[tuple[np.ndarray, np.ndarray]], chosen: list[int]) -> np.ndarray:
    """Return the alignment error rate (AER) of Och and Ney 2003 for the mean of each head with the chosen ones.

    pairs: of each, the probabilities (heads, target words, source words) and the marks of its reference
    """
    (hits, links), sure = np.zeros((2, len(pairs[0][0]))), 0
    for found, marks in pairs:
        if marks.size:
            mean = (found + found[chosen].sum(axis=0)) / (len(chosen) + 1)
            is_link = mean.max(axis=2) >= 1 - mean.sum(axis=2)  # as in `find_links`
            hits += (marks[np.arange(len(marks)), mean.argmax(axis=2)] * is_link).sum(axis=1)
            links += is_link.sum(axis=1)
            sure += (marks == 2).sum()
    return 1 - hits / (links + sure)


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
        raise InputError(f"{path} has {len(lines)} lines, the texts {len(sources)}: line n aligns line n of the texts")
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
        "no aligner is installed: pip install eflomal (or nltk), or pass the links of another aligner as --reference"
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
