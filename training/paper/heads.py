"""Figures 3 to 5 in the paper's layout, the search for the heads that they show, and a report on every head."""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vaswani_transformer import Translator
from vaswani_transformer.attention import AttentionMaps, attention_maps
from vaswani_transformer.errors import InputError
from vaswani_transformer.pictures import RESOLUTION, drawable, figure_class

from .results import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A caption with a pronoun and a dependency over several words, for models of image captions.
SENTENCE = "A man in a blue shirt is throwing a ball to his dog while two children are watching them ."
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
    """Encoder self-attention between the words of a sentence: (layers, heads, word, word)."""

    words: list[str]
    weights: Tensor

    def content(self, index: int) -> bool:
        word = self.words[index].lower()
        return bool(re.match(r"\w", word)) and word not in FUNCTION_WORDS | PRONOUNS

    def noun(self, index: int) -> bool:
        """Return whether the word is the last one after a determiner: `shirt` in `a blue shirt is`."""
        first = index
        while first > 0 and self.content(first - 1):
            first -= 1
        last = index + 1 == len(self.words) or not self.content(index + 1)
        return self.content(index) and last and first > 0 and self.words[first - 1].lower() in DETERMINERS


def groups(labels: list[str]) -> list[list[int]]:
    """Return the tokens of each word: a word begins with a space, and a punctuation mark is a word of its own."""
    found: list[list[int]] = []
    for index, label in enumerate(labels):
        before = labels[index - 1] if found else ""
        joins = before == "▁" or (re.match(r"[\w']", label) and re.match(r"[\w'▁]", before))
        if joins:
            found[-1].append(index)
        else:
            found.append([index])
    return found


def word_maps(maps: AttentionMaps) -> WordMaps:
    """Join the tokens of a word: their weights are added as keys and averaged as queries."""
    parts = groups(maps.source)
    words = ["".join(re.sub(r" \d/\d$", "", maps.source[n]) for n in part).replace("▁", "") for part in parts]
    joined = torch.zeros(len(parts), len(maps.source))
    for word, part in enumerate(parts):
        joined[word, part] = 1.0
    averaged = joined / joined.sum(1, keepdim=True)
    return WordMaps(words, averaged @ maps.encoder @ joined.T)


@dataclass(frozen=True)
class Found:
    """The heads that a panel shows: one layer (from 1), its heads (from 1), a query word or None for all words.

    score: the weights on which the search decided; higher is clearer
    """

    title: str
    layer: int
    heads: list[int]
    word: int | None
    score: float
    key: int | None = None


def long_distance(maps: WordMaps) -> Found:
    """Return the layer and the content word whose heads together attend most to distant content words (Figure 3)."""
    count = len(maps.words)
    words = torch.arange(count)
    content = torch.tensor([maps.content(n) for n in range(count)])
    far = ((words[:, None] - words).abs() >= max(3, count // 4)) & content & content[:, None]
    scores = (maps.weights * far).amax(-1).sum(1)  # (layers, word): the strongest far word of each head
    if not far.any():
        raise InputError(f"--source has {count} words and no two content words far from each other; give a longer one")
    layer, word = divmod(int(scores.argmax()), count)
    key = int((maps.weights[layer, :, word] * far[word]).sum(0).argmax())
    title = f"Layer {layer + 1}: attention of “{maps.words[word]}”, all heads"
    return Found(title, layer + 1, list(range(1, maps.weights.shape[1] + 1)), word, float(scores.max()), key)


def anaphora(maps: WordMaps) -> Found:
    """Return the two heads of a layer that attend most strongly from a pronoun to an earlier noun (Figure 4)."""
    found: list[Found] = []
    for word, text in enumerate(maps.words):
        before = [n for n in range(word) if maps.noun(n)]
        if text.lower() not in PRONOUNS or not before:
            continue
        strongest, keys = maps.weights[:, :, word, before].max(-1)  # (layers, heads)
        top, heads = strongest.topk(min(2, strongest.shape[1]), dim=1)
        layer = int(top[:, 0].argmax())
        key, numbers = before[int(keys[layer, heads[layer, 0]])], [int(head) + 1 for head in heads[layer]]
        title = f"The same layer, only “{text}”"
        found.append(Found(title, layer + 1, numbers, word, float(top[layer, 0]), key))
    if not found:
        raise InputError("--source has no pronoun with a noun before it; Figure 4 needs one, such as `his` or `it`")
    return max(found, key=lambda each: each.score)


def structure(maps: WordMaps) -> list[Found]:
    """Return two heads with clearly different tasks: one that looks at a fixed distance, one that looks elsewhere."""
    weights = maps.weights[..., :-1, :-1]  # without </s>
    heads, count = weights.shape[1:3]
    offsets = range(-count // 2, count // 2 + 1)
    shifted = torch.stack([weights.diagonal(offset, -2, -1).sum(-1) / count for offset in offsets if offset])
    positional = shifted.amax(0).flatten()  # the share of attention at the best distance
    sink = weights.mean(-2).amax(-1).flatten()  # the share of the most popular word
    focus = weights.amax(-1).mean(-1).flatten()
    itself = weights.diagonal(0, -2, -1).mean(-1).flatten()
    found = []
    for task, scores in (("a fixed distance", positional), ("chosen words", focus - positional - sink - itself)):
        layer, head = divmod(int(scores.argmax()), heads)
        title = f"Layer {layer + 1}, head {head + 1}: {task}"
        found.append(Found(title, layer + 1, [head + 1], None, float(scores.max())))
    return found


# ---- drawing -------------------------------------------------------------------------------------------------------


PALETTE = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")


def figure_of(maps: WordMaps, number: int) -> tuple["Figure", dict[str, Any]]:
    """Draw Figure 3, 4 or 5, and return what the search found for its row file."""
    found = structure(maps) if number == 5 else [(long_distance if number == 3 else anaphora)(maps)]
    shown = found
    if number == 4:
        layer, head = found[0].layer, found[0].heads[0]
        shown = [replace(found[0], title=f"Layer {layer}, head {head}: all words", heads=[head], word=None), *found]
    size = (4.6 * len(shown), 1.0 + 0.24 * len(maps.words))
    figure = figure_class()(figsize=size, layout="constrained", dpi=RESOLUTION)
    for axis, each in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        draw_lines(axis, maps, each)
    rows = [
        {
            "layer": each.layer,
            "heads": each.heads,
            "query": None if each.word is None else maps.words[each.word],
            "key": None if each.key is None else maps.words[each.key],
            "score": round(each.score, 4),
        }
        for each in found
    ]
    return figure, {"words": maps.words, "found": rows}


def draw_lines(axis: "Axes", maps: WordMaps, found: Found) -> None:
    """Draw the words twice, top to bottom, and a line from each query word to each key word, as dark as its weight."""
    from matplotlib.patches import Rectangle

    count = len(maps.words)
    axis.set(xlim=(-0.8, 2.1), ylim=(count - 0.3, -0.7))
    axis.set_axis_off()
    axis.set_title(found.title, fontsize=9)
    for n, text in enumerate(drawable(maps.words)):
        weight = "bold" if n == found.word else "normal"
        axis.text(-0.08, n, text, ha="right", va="center", fontsize=9, fontweight=weight, parse_math=False)
        axis.text(1.08, n, text, ha="left", va="center", fontsize=9, parse_math=False)
    for place, head in enumerate(found.heads):
        colour, weights = PALETTE[(head - 1) % len(PALETTE)], maps.weights[found.layer - 1, head - 1]
        for query in range(count) if found.word is None else [found.word]:
            for key in range(count):
                alpha = float(weights[query, key])
                if alpha > 0.02:
                    axis.plot([0, 1], [query, key], color=colour, alpha=min(1.0, alpha), linewidth=2)
        axis.add_patch(Rectangle((1.65, place * 0.8 - 0.4), 0.1, 0.7, facecolor=colour))
        axis.text(1.8, place * 0.8, f"head {head}", va="center", fontsize=7)


# ---- the report ----------------------------------------------------------------------------------------------------


def head_report(translator: Translator, sources: list[str]) -> list[dict[str, Any]]:
    """Return averages over sentences for every head: entropy, distance, mass at its best distance, and on </s>.

    Cross-attention heads also get their agreement with the alignment of the mean over all heads: the share of target
    tokens for which both choose the same source token.
    """
    sums: dict[tuple[str, int, int], Tensor] = {}
    for source in sources:
        maps = attention_maps(translator.model, translator.tokenizer, source, None, translator.target_tokenizer)
        for kind in ("encoder", "decoder", "cross"):
            for layer, of_layer in enumerate(measures(kind, getattr(maps, kind)), start=1):
                for head, values in enumerate(of_layer, start=1):
                    sums[kind, layer, head] = sums.get((kind, layer, head), torch.zeros(())) + values / len(sources)
    return [
        {"kind": kind, "layer": layer, "head": head}
        | {name: round(float(value), 3) for name, value in zip(MEASURES, values, strict=True) if not value.isnan()}
        for (kind, layer, head), values in sums.items()
    ]


MEASURES = ("entropy", "distance", "fixed distance", "end", "agreement")


def measures(kind: str, weights: Tensor) -> Tensor:
    """Return (layers, heads, measure) for weights (layers, heads, query, key) of one sentence."""
    queries, keys = weights.shape[-2:]
    distance = (torch.arange(queries)[:, None] - torch.arange(keys)).abs().float()
    entropy = torch.special.entr(weights).sum(-1).mean(-1)
    offsets = [weights.diagonal(offset, -2, -1).sum(-1) / queries for offset in range(-queries + 1, keys)]
    agreement = torch.full_like(entropy, torch.nan)
    if kind == "cross":
        together = weights.mean((0, 1)).argmax(-1)
        agreement = (weights.argmax(-1) == together).float().mean(-1)
    end = weights[..., -1].mean(-1) if kind != "decoder" else torch.full_like(entropy, torch.nan)
    columns = (entropy, (weights * distance).sum(-1).mean(-1), torch.stack(offsets).amax(0), end, agreement)
    return torch.stack(columns, dim=-1)


def heads_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            row["kind"],
            str(row["layer"]),
            str(row["head"]),
            *(f"{row[name]:.2f}" if name in row else "" for name in MEASURES),
        ]
        for row in rows
    ]
    return markdown(["kind", "layer", "head", *MEASURES], lines)
