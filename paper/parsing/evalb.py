"""Labelled F1 of constituency trees as EVALB computes it with the parameters of Collins (COLLINS.prm)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from nltk.tree import Tree

PUNCTUATION = {",", ":", "``", "''", "."}  # parts of speech whose words EVALB deletes from both trees
ROOTS = {"TOP", "S1"}


def count_constituents(tree: Tree) -> Counter[tuple[str, int, int]]:
    """Count the (label, start, end) of a tree; punctuation has no position.

    Constituents of punctuation alone and the extra label of the root do not count; PRT counts as ADVP.
    """
    spans: Counter[tuple[str, int, int]] = Counter()

    def visit(node: Any, start: int) -> int:
        if isinstance(node[0], str):
            return start + (node.label() not in PUNCTUATION)
        end = start
        for child in node:
            end = visit(child, end)
        if end > start and node.label() not in ROOTS:
            spans["ADVP" if node.label() == "PRT" else node.label(), start, end] += 1
        return end

    visit(tree, 0)
    return spans


def compute_f1(gold: Sequence[Tree], parsed: Sequence[Tree], longest: int | None = None) -> dict[str, float]:
    """Return recall, precision and F1 in percent over the sentences of at most `longest` words; all by default."""
    in_gold = in_parsed = in_both = sentences = 0
    for reference, tree in zip(gold, parsed, strict=True):
        if reference.leaves() != tree.leaves():
            raise ValueError(f"sentence {sentences + 1}: the words of the parsed tree differ from the reference")
        if longest is not None and len(reference.leaves()) > longest:
            continue
        expected, found = count_constituents(reference), count_constituents(tree)
        in_gold, in_parsed = in_gold + expected.total(), in_parsed + found.total()
        in_both, sentences = in_both + (expected & found).total(), sentences + 1
    return {
        "recall": 100 * in_both / in_gold if in_gold else 0.0,
        "precision": 100 * in_both / in_parsed if in_parsed else 0.0,
        "f1": 200 * in_both / (in_gold + in_parsed) if in_gold + in_parsed else 0.0,
        "sentences": sentences,
    }
