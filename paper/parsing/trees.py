"""Constituency trees as the sequences of section 6.3: `(S (NP John )NP (VP sleeps )VP )S`.

The format of Vinyals et al. 2015 (arXiv 1412.7449), except that words are kept instead of replaced by XX: with 3,000
training trees, a decoder does not learn to count the XX (F1 14). Trees are nltk's; the parent of a leaf is its tag.
"""

import random
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nltk.tokenize import NLTKWordTokenizer
from nltk.tree import Tree

from vaswani_transformer.errors import InputError

# NLTK's sample has only sections 0 and 1; its last files replace the standard development and test sections.
DEVELOPMENT_FILES, TEST_FILES = range(160, 180), range(180, 200)


def read_treebank(path: Path) -> dict[str, list[Tree]]:
    """Return the trees for training, development and test: sections 2 to 21, 22 and 23, or parts of NLTK's sample.

    path: a folder or a .zip file with the treebank's .mrg files, wsj_0001.mrg to wsj_2454.mrg
    """
    parts: dict[str, list[Tree]] = {"train": [], "val": [], "test": []}
    files = sorted(read_mrg_files(path))
    is_whole = any(number // 100 == 23 for number, _ in files)
    for number, text in files:
        section = number // 100
        if is_whole:
            part = {22: "val", 23: "test"}.get(section, "train" if 2 <= section <= 21 else None)
        else:
            part = "val" if number in DEVELOPMENT_FILES else "test" if number in TEST_FILES else "train"
        if part is not None:
            try:
                parts[part] += parse_trees(text)
            except ValueError as error:
                problem = " ".join(str(error).split())
                raise InputError(f"--treebank {path}: wsj_{number:04}.mrg is not a file of trees: {problem}") from error
    for part, trees in parts.items():
        if not trees:
            raise InputError(f"--treebank {path}: no tree for {part}; it needs files such as wsj_0001.mrg")
    return parts


def read_mrg_files(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each wsj_NNNN.mrg."""
    if path.is_dir():
        for file in path.rglob("wsj_[0-9][0-9][0-9][0-9].mrg"):
            yield int(file.stem[4:]), file.read_text(encoding="latin-1")
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if match := re.search(r"wsj_(\d{4})\.mrg$", name):
                    yield int(match[1]), archive.read(name).decode("latin-1")
    else:
        raise InputError(f"--treebank {path}: neither a folder nor a .zip file")


def parse_trees(text: str) -> list[Tree]:
    """Return the trees of a .mrg file without traces and function tags. A tree starts in the first column."""
    bracketed = [part for part in re.split(r"^(?=\()", text, flags=re.MULTILINE) if part.strip()]
    trees = [Tree.fromstring(part, remove_empty_top_bracketing=True) for part in bracketed]
    return [kept for tree in trees if (kept := strip_traces(tree)) is not None]


def strip_traces(tree: Tree) -> Tree | None:
    """Strip function tags (NP-SBJ becomes NP), traces, and constituents that become empty.

    Returns None if nothing is left.
    """
    if isinstance(tree[0], str):
        return None if tree.label() == "-NONE-" else tree
    children = [kept for child in tree if (kept := strip_traces(child)) is not None]
    label = re.split("[-=|]", tree.label() or "TOP")[0]
    return Tree(label, children) if children else None


def join_leaves(tree: Tree) -> str:
    return " ".join(tree.leaves())


def linearise(tree: Any) -> list[str]:
    """Return the words and brackets of a tree."""
    if isinstance(tree[0], str):
        return [tree[0]]
    return [f"({tree.label()}", *(token for child in tree for token in linearise(child)), f"){tree.label()}"]


def build_tree(tokens: Sequence[str], tagged: Sequence[tuple[str, str]]) -> Tree:
    """Return the tree of the tokens: the inverse of `linearise`.

    tagged: the words of the sentence with their parts of speech
    Raises ValueError if the brackets do not balance, a constituent is empty, or the words differ.
    """
    rest = list(reversed(tagged))
    root: Any = Tree("", [])
    open_trees = [root]
    for number, token in enumerate(tokens, start=1):
        top = open_trees[-1]
        if token.startswith("("):
            open_trees.append(Tree(token[1:], []))
        elif token == f"){top.label()}" and len(top) and len(open_trees) > 1:
            open_trees.pop()
            open_trees[-1].append(top)
        elif rest and token == rest[-1][0]:
            word, tag = rest.pop()
            top.append(Tree(tag, [word]))
        else:
            raise ValueError(f"token {number}, {token!r}, does not continue a tree over {len(tagged)} words")
    if rest or len(open_trees) > 1 or len(root) != 1 or root[0].height() < 3:
        raise ValueError(f"the {len(tokens)} tokens are not one tree over {len(tagged)} words")
    return root[0]


def split_words(sentence: str) -> list[str]:
    """Split a sentence as the treebank does: `do n't`, `$ 5`, -LRB- for a bracket."""
    return NLTKWordTokenizer().tokenize(sentence, convert_parentheses=True)


def recombine(trees: Sequence[Any], copies: int, seed: int) -> list[Tree]:
    """Return new trees with constituents replaced by constituents that have the same label and the same parent label.

    Data recombination (Jia and Liang 2016, arXiv 1606.03622) for a small treebank.
    copies: new trees per tree, each with one to three replacements
    """
    generator = random.Random(seed)
    substitutes: dict[tuple[str, str], list[Any]] = defaultdict(list)  # {(parent label, label): constituents}
    positions = [find_inner_positions(tree) for tree in trees]
    for tree, inner in zip(trees, positions, strict=True):
        for position in inner:
            substitutes[read_labels(tree, position)].append(tree[position])
    new = []
    for tree, inner in zip(trees, positions, strict=True):
        for _ in range(copies if inner else 0):
            changed = tree.copy(deep=True)
            chosen = generator.sample(inner, min(len(inner), generator.randint(1, 3)))
            # From right to left, so that a replacement does not shift the remaining positions.
            for position in sorted(chosen, reverse=True):
                changed[position] = generator.choice(substitutes[read_labels(tree, position)])
            new.append(changed)
    return new


def find_inner_positions(tree: Any) -> list[tuple[int, ...]]:
    """Return the positions of all constituents below the root."""
    return [at for at in tree.treepositions() if at and isinstance(tree[at], Tree) and tree[at].height() > 2]


def read_labels(tree: Any, position: tuple[int, ...]) -> tuple[str, str]:
    return tree[position[:-1]].label(), tree[position].label()
