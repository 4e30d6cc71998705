"""Figures 3 to 5 in the paper's layout, the search for the heads that they show, and a report on every head."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vaswani_transformer import Translator
from vaswani_transformer.attention import AttentionMaps, attention_maps
from vaswani_transformer.errors import InputError
from vaswani_transformer.pictures import RESOLUTION, drawable, figure_class

from .rows import markdown

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
    """The heads that a figure shows: one layer (from 1), its heads (from 1), a query word or None for all words.

    score: the weights on which the search decided; higher is clearer
    """

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
    return Found(layer + 1, list(range(1, maps.weights.shape[1] + 1)), word, float(scores.max()), key)


def anaphora(maps: WordMaps) -> Found:
    """Return the two heads of a layer that attend most strongly from a pronoun to an earlier noun (Figure 4)."""
    best: Found | None = None
    for word, text in enumerate(maps.words):
        before = [n for n in range(word) if maps.noun(n)]
        if text.lower() not in PRONOUNS or not before:
            continue
        strongest, keys = maps.weights[:, :, word, before].max(-1)  # (layers, heads)
        top, heads = strongest.topk(min(2, strongest.shape[1]), dim=1)
        layer = int(top[:, 0].argmax())
        score = float(top[layer, 0])
        if best is None or score > best.score:
            key = before[int(keys[layer, heads[layer, 0]])]
            best = Found(layer + 1, [int(head) + 1 for head in heads[layer]], word, score, key)
    if best is None:
        raise InputError("--source has no pronoun with a noun before it; Figure 4 needs one, such as `his` or `it`")
    return best


def structure(maps: WordMaps) -> list[Found]:
    """Return two heads with clearly different tasks: one that looks at a fixed distance, one that looks elsewhere."""
    weights = maps.weights[..., :-1, :-1]  # without </s>
    layers, heads, count, _ = weights.shape
    offsets = range(-count // 2, count // 2 + 1)
    shifted = torch.stack([weights.diagonal(offset, -2, -1).sum(-1) / count for offset in offsets if offset])
    positional = shifted.amax(0).flatten()  # the share of attention at the best distance
    sink = weights.mean(-2).amax(-1).flatten()  # the share of the most popular word
    focus = weights.amax(-1).mean(-1).flatten()
    itself = weights.diagonal(0, -2, -1).mean(-1).flatten()
    by_task = (positional, focus - positional - sink - itself)
    chosen = [int(scores.argmax()) for scores in by_task]
    return [
        Found(n // heads + 1, [n % heads + 1], None, float(scores[n]))
        for n, scores in zip(chosen, by_task, strict=True)
    ]


# ---- drawing -------------------------------------------------------------------------------------------------------


def head_colours(heads: list[int]) -> dict[int, str]:
    palette = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
    return {head: palette[(head - 1) % len(palette)] for head in heads}


def columns(axis: "Axes", maps: WordMaps, layer: int, heads: list[int], word: int | None, title: str) -> None:
    """Draw the words twice, top to bottom, and a line from each query word to each key word, as dark as its weight."""
    count, colours = len(maps.words), head_colours(heads)
    axis.set(xlim=(-0.8, 2.1), ylim=(count - 0.3, -0.7))
    axis.set_axis_off()
    axis.set_title(title, fontsize=9)
    for n, text in enumerate(drawable(maps.words)):
        weight = "bold" if n == word else "normal"
        axis.text(-0.08, n, text, ha="right", va="center", fontsize=9, fontweight=weight, parse_math=False)
        axis.text(1.08, n, text, ha="left", va="center", fontsize=9, parse_math=False)
    for head in heads:
        weights = maps.weights[layer - 1, head - 1]
        for query in range(count) if word is None else [word]:
            for key in range(count):
                alpha = float(weights[query, key])
                if alpha > 0.02:
                    axis.plot([0, 1], [query, key], color=colours[head], alpha=min(1.0, alpha), linewidth=2)
    for place, head in enumerate(heads):
        axis.add_patch(square(1.65, place * 0.8 - 0.4, colours[head]))
        axis.text(1.8, place * 0.8, f"head {head}", va="center", fontsize=7)


def square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 0.1, 0.7, facecolor=colour)


def panels(maps: WordMaps, shown: list[tuple[Found, int | None, str]]) -> "Figure":
    height = 1.0 + 0.24 * len(maps.words)
    figure = figure_class()(figsize=(4.6 * len(shown), height), layout="constrained", dpi=RESOLUTION)
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for axis, (found, word, title) in zip(axes, shown, strict=True):
        columns(axis, maps, found.layer, found.heads, word, title)
    return figure


def figure3(maps: WordMaps) -> tuple["Figure", dict[str, Any]]:
    found = long_distance(maps)
    title = f"Layer {found.layer}: attention of “{maps.words[found.word or 0]}”, all heads"
    return panels(maps, [(found, found.word, title)]), about(maps, [found])


def figure4(maps: WordMaps) -> tuple["Figure", dict[str, Any]]:
    found = anaphora(maps)
    first = Found(found.layer, found.heads[:1], None, found.score)
    word = maps.words[found.word or 0]
    full = f"Layer {found.layer}, head {found.heads[0]}: all words"
    return panels(maps, [(first, None, full), (found, found.word, f"The same layer, only “{word}”")]), about(
        maps, [found]
    )


def figure5(maps: WordMaps) -> tuple["Figure", dict[str, Any]]:
    pair = structure(maps)
    tasks = ("a fixed distance", "chosen words")
    titles = [f"Layer {f.layer}, head {f.heads[0]}: {task}" for f, task in zip(pair, tasks, strict=True)]
    return panels(maps, [(f, None, title) for f, title in zip(pair, titles, strict=True)]), about(maps, pair)


def about(maps: WordMaps, found: list[Found]) -> dict[str, Any]:
    """Return what the search found, for the row file."""
    return {
        "words": maps.words,
        "found": [
            {
                "layer": each.layer,
                "heads": each.heads,
                "query": None if each.word is None else maps.words[each.word],
                "key": None if each.key is None else maps.words[each.key],
                "score": round(each.score, 4),
            }
            for each in found
        ],
    }


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
            weights = getattr(maps, kind)
            for key, values in zip(product_of(kind, weights), measures(kind, weights).flatten(0, 1), strict=True):
                sums[key] = sums.get(key, torch.zeros(())) + values / len(sources)
    names = ("entropy", "distance", "fixed distance", "end", "agreement")
    return [
        {"kind": kind, "layer": layer, "head": head}
        | {name: round(float(value), 3) for name, value in zip(names, values, strict=True) if not value.isnan()}
        for (kind, layer, head), values in sums.items()
    ]


def product_of(kind: str, weights: Tensor) -> list[tuple[str, int, int]]:
    layers, heads = weights.shape[:2]
    return [(kind, layer, head) for layer in range(1, layers + 1) for head in range(1, heads + 1)]


def measures(kind: str, weights: Tensor) -> Tensor:
    """Return (layers, heads, 5) for weights (layers, heads, query, key) of one sentence."""
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
    names = ["entropy", "distance", "fixed distance", "end", "agreement"]
    lines = [
        [
            row["kind"],
            str(row["layer"]),
            str(row["head"]),
            *(f"{row[name]:.2f}" if name in row else "" for name in names),
        ]
        for row in rows
    ]
    return markdown(["kind", "layer", "head", *names], lines)
