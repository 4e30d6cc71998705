"""Figures 3 to 5: attention between the words of a sentence, the search for heads to show, and their drawing."""

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from vaswani_transformer.attention_maps import AttentionMaps
from vaswani_transformer.errors import InputError
from vaswani_transformer.pictures import RESOLUTION, drawable

PRONOUNS = set(
    "he she it they him her them his hers its their theirs himself herself itself themselves who whom whose which "
    "er sie es ihn ihm ihr ihnen sein seine seinen seinem seiner ihre ihren ihrem ihrer sich il elle ils elles lui son "
    "sa ses leur leurs".split()
)
DETERMINERS = set(
    "a an the this that these those his her its their two three four some several many ein eine einen einem einer der "
    "die das den dem seine seinen seinem ihre ihren ihrem zwei drei einige un une le la les des deux trois".split()
)
FUNCTION_WORDS = DETERMINERS | set(
    "and or but of in on at to by for from with as is are was were be been while und oder im an am auf zu mit von bei "
    "ist sind et ou de du en dans sur avec est sont".split()
)


@dataclass(frozen=True)
class WordMaps:
    """Encoder self-attention between the words of a sentence."""

    words: list[str]
    weights: Tensor  # (layers, heads, query word, key word)

    def is_content(self, index: int) -> bool:
        word = self.words[index].lower()
        return bool(re.match(r"\w", word)) and word not in FUNCTION_WORDS | PRONOUNS

    def is_noun(self, index: int) -> bool:
        """Return whether the word ends a group of content words after a determiner: `shirt` in `a blue shirt is`."""
        first = index
        while first > 0 and self.is_content(first - 1):
            first -= 1
        is_last = index + 1 == len(self.words) or not self.is_content(index + 1)
        return self.is_content(index) and is_last and first > 0 and self.words[first - 1].lower() in DETERMINERS


def join_words(maps: AttentionMaps) -> WordMaps:
    """Join the tokens of each word: weights are summed over key tokens and averaged over query tokens."""
    groups = group_tokens(maps.source)
    words = ["".join(re.sub(r" \d/\d$", "", maps.source[n]) for n in group).replace("▁", "") for group in groups]
    joined = torch.zeros(len(groups), len(maps.source))
    for word, group in enumerate(groups):
        joined[word, group] = 1.0
    averaged = joined / joined.sum(1, keepdim=True)
    return WordMaps(words, averaged @ maps.encoder @ joined.T)


def group_tokens(labels: list[str]) -> list[list[int]]:
    """Return the tokens of each word: a word starts after a space, and each punctuation mark is a separate word."""
    groups: list[list[int]] = []
    for index, label in enumerate(labels):
        before = labels[index - 1] if groups else ""
        if before == "▁" or (re.match(r"[\w']", label) and re.match(r"[\w'▁]", before)):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


# ---- the search for heads ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heads:
    """The heads that a panel shows."""

    title: str
    layer: int  # counted from 1
    heads: list[int]  # counted from 1
    query: int | None  # a word, or None for all words
    score: float  # what selected the heads; see find_long_distance, find_anaphora, find_different_tasks
    key: int | None = None  # the word that the query attends to most


def find_long_distance(maps: WordMaps) -> Heads:
    """Return the layer and the content word that attends most to distant content words, over all heads (Figure 3)."""
    count = len(maps.words)
    words = torch.arange(count)
    content = torch.tensor([maps.is_content(n) for n in range(count)])
    # Distant: at least a quarter of the sentence away.
    far = ((words[:, None] - words).abs() >= max(3, count // 4)) & content & content[:, None]
    # The weight on the strongest distant word, summed over heads.
    scores = (maps.weights * far).amax(-1).sum(1)  # (layers, word)
    if not far.any():
        raise InputError(f"--source has {count} words, but no two distant content words; give a longer sentence")
    layer, word = divmod(int(scores.argmax()), count)
    key = int((maps.weights[layer, :, word] * far[word]).sum(0).argmax())
    title = f"Layer {layer + 1}: attention of “{maps.words[word]}”, all heads"
    return Heads(title, layer + 1, list(range(1, maps.weights.shape[1] + 1)), word, float(scores.max()), key)


def find_anaphora(maps: WordMaps) -> Heads:
    """Return the two heads of a layer that attend most strongly from a pronoun to an earlier noun (Figure 4)."""
    candidates: list[Heads] = []
    for word, text in enumerate(maps.words):
        nouns = [n for n in range(word) if maps.is_noun(n)]
        if text.lower() not in PRONOUNS or not nouns:
            continue
        strongest, keys = maps.weights[:, :, word, nouns].max(-1)  # (layers, heads)
        top, heads = strongest.topk(min(2, strongest.shape[1]), dim=1)
        layer = int(top[:, 0].argmax())
        key, numbers = nouns[int(keys[layer, heads[layer, 0]])], [int(head) + 1 for head in heads[layer]]
        title = f"The same layer, only “{text}”"
        candidates.append(Heads(title, layer + 1, numbers, word, float(top[layer, 0]), key))
    if not candidates:
        raise InputError("--source has no pronoun with a noun before it; Figure 4 needs one, such as `his` or `it`")
    return max(candidates, key=lambda heads: heads.score)


def find_different_tasks(maps: WordMaps) -> list[Heads]:
    """Return two heads with different tasks: one attends at a fixed distance, one to chosen words (Figure 5)."""
    weights = maps.weights[..., :-1, :-1]  # without </s>
    heads, count = weights.shape[1:3]
    offsets = range(-count // 2, count // 2 + 1)
    shifted = torch.stack([weights.diagonal(offset, -2, -1).sum(-1) / count for offset in offsets if offset])
    positional = shifted.amax(0).flatten()  # the share of attention at the best distance
    sink = weights.mean(-2).amax(-1).flatten()  # the share of the most attended word
    focus = weights.amax(-1).mean(-1).flatten()
    itself = weights.diagonal(0, -2, -1).mean(-1).flatten()
    chosen = []
    for task, scores in (("a fixed distance", positional), ("chosen words", focus - positional - sink - itself)):
        layer, head = divmod(int(scores.argmax()), heads)
        title = f"Layer {layer + 1}, head {head + 1}: {task}"
        chosen.append(Heads(title, layer + 1, [head + 1], None, float(scores.max())))
    return chosen


# ---- drawing -------------------------------------------------------------------------------------------------------


PALETTE = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")


def draw_figure3(maps: WordMaps) -> tuple[Figure, dict[str, Any]]:
    """Draw Figure 3 and return it with its result."""
    found = [find_long_distance(maps)]
    return draw_heads(maps, found), describe(maps, found)


def draw_figure4(maps: WordMaps) -> tuple[Figure, dict[str, Any]]:
    """Draw Figure 4, the first head for all words and both heads for the pronoun; return it with its result."""
    found = find_anaphora(maps)
    first = found.heads[0]
    all_words = replace(found, title=f"Layer {found.layer}, head {first}: all words", heads=[first], query=None)
    return draw_heads(maps, [all_words, found]), describe(maps, [found])


def draw_figure5(maps: WordMaps) -> tuple[Figure, dict[str, Any]]:
    """Draw Figure 5 and return it with its result."""
    found = find_different_tasks(maps)
    return draw_heads(maps, found), describe(maps, found)


def describe(maps: WordMaps, found: list[Heads]) -> dict[str, Any]:
    """Return the words of the sentence and the selected heads, for the result file."""
    rows = [
        {
            "layer": heads.layer,
            "heads": heads.heads,
            "query": None if heads.query is None else maps.words[heads.query],
            "key": None if heads.key is None else maps.words[heads.key],
            "score": round(heads.score, 4),
        }
        for heads in found
    ]
    return {"words": maps.words, "found": rows}


def draw_heads(maps: WordMaps, panels: list[Heads]) -> Figure:
    size = (4.6 * len(panels), 1.0 + 0.24 * len(maps.words))
    figure = Figure(figsize=size, layout="constrained", dpi=RESOLUTION)
    for axis, heads in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_lines(axis, maps, heads)
    return figure


def draw_lines(axis: Axes, maps: WordMaps, heads: Heads) -> None:
    """Draw the words in two columns and a line from each query word to each key word; its opacity is the weight."""
    count = len(maps.words)
    axis.set(xlim=(-0.8, 2.1), ylim=(count - 0.3, -0.7))
    axis.set_axis_off()
    axis.set_title(heads.title, fontsize=9)
    for n, text in enumerate(drawable(maps.words)):
        weight = "bold" if n == heads.query else "normal"
        axis.text(-0.08, n, text, ha="right", va="center", fontsize=9, fontweight=weight, parse_math=False)
        axis.text(1.08, n, text, ha="left", va="center", fontsize=9, parse_math=False)
    for place, head in enumerate(heads.heads):
        colour, weights = PALETTE[(head - 1) % len(PALETTE)], maps.weights[heads.layer - 1, head - 1]
        for query in range(count) if heads.query is None else [heads.query]:
            for key in range(count):
                alpha = float(weights[query, key])
                if alpha > 0.02:  # fainter lines cannot be seen
                    axis.plot([0, 1], [query, key], color=colour, alpha=min(1.0, alpha), linewidth=2)
        axis.add_patch(Rectangle((1.65, place * 0.8 - 0.4), 0.1, 0.7, facecolor=colour))
        axis.text(1.8, place * 0.8, f"head {head}", va="center", fontsize=7)
