"""Prepare the text of Table 4 (sentences and linearised trees), train its parsers and score them."""

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nltk.tree import Tree
from tokenizers import pre_tokenizers
from transformers import AddedToken, PreTrainedTokenizerFast

from training.recipe import Recipe
from training.result_row import parameters
from training.train import train
from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.exit import print_error
from vaswani_transformer.lines import read_lines
from vaswani_transformer.tokenization import train_tokenizer
from vaswani_transformer.training_run import read_progress

from ..fit_model import read_cpu_seconds, train_lstm
from ..result_files import describe_origin
from .evalb import compute_f1
from .search import FEW_BEAMS, parse, parse_with_lstm
from .trees import build_tree, join_leaves, linearise, read_treebank, recombine, split_words

COPIES = {"recombined": 20, "more": 60}  # recombined trees per tree of the sample
MAX_UNLABELLED, SHARE_KEPT = 6000, 0.5  # sentences to parse, and the share of the parses to train on


def prepare_data(treebank: Path, folder: Path, vocabulary: int) -> dict[str, list[Tree]]:
    """Write the text and the tokenizer for training, and return the trees of val and test."""
    trees = read_treebank(treebank)
    sample = trees.pop("train")
    corpora = {"sample": sample} | trees
    for name, copies in COPIES.items():
        corpora[name] = [*sample, *recombine(sample, copies, seed=1)]
    for name, corpus in corpora.items():
        write_pairs(folder / name, map(join_leaves, corpus), (" ".join(linearise(tree)) for tree in corpus))
    train_parsing_tokenizer(sample, vocabulary).save_pretrained(folder / "tokenizer")
    return trees


def write_pairs(path: Path, sentences: Iterable[str], trees: Iterable[str]) -> None:
    """Write PATH.words and PATH.trees, one sentence per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for language, lines in (("words", sentences), ("trees", trees)):
        with atomic_file(path.with_suffix(f".{language}")) as file:
            file.writelines(f"{line}\n".encode() for line in lines)


def train_parsing_tokenizer(trees: Sequence[Tree], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the words of the trees, and add a token for each bracket."""
    tokenizer = train_tokenizer(map(join_leaves, trees), vocabulary)
    # With the prefix space, a word has the same tokens at the start of a sentence as elsewhere.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    labels = {node.label() for tree in trees for node in tree.subtrees() if node.height() > 2}
    # lstrip: the space before a bracket belongs to the bracket.
    for label in sorted(labels):
        tokenizer.add_tokens([AddedToken(f"({label}", lstrip=True), AddedToken(f"){label}", lstrip=True)])
    return tokenizer


def parse_unlabelled(text: Path, teacher: Path, target: Path) -> None:
    """Parse the first sentences of a text and write the most confident parses as training pairs."""
    if target.with_suffix(".trees").is_file():
        return
    lines = islice(read_lines(text), MAX_UNLABELLED)
    sentences = [sentence for line in lines if (sentence := " ".join(split_words(line.strip())))]
    print_error(f"parsing {len(sentences):,} sentences of {text.name}")
    parses = parse(teacher, sentences, beams=FEW_BEAMS, batch=64)
    by_confidence = sorted(range(len(sentences)), key=lambda number: parses[number].confidence)
    chosen = sorted(by_confidence[round(len(sentences) * (1 - SHARE_KEPT)) :])
    write_pairs(target, (sentences[n] for n in chosen), (" ".join(parses[n].tokens) for n in chosen))


# ---- training and scores -------------------------------------------------------------------------------------------


def train_parser(recipe: Recipe, is_lstm: bool, gold: dict[str, list[Tree]], command: str) -> dict[str, Any]:
    """Train a parser and return its row of the table."""
    started, model = time.perf_counter(), Path(recipe.output_dir)
    sentences = {part: [join_leaves(tree) for tree in trees] for part, trees in gold.items()}
    if is_lstm:
        lstm, run = train_lstm(recipe)
        size, well_formed = sum(weight.numel() for weight in lstm.parameters()), None
        cpu_seconds = read_cpu_seconds(model)
        parsed = {part: parse_with_lstm(lstm, run.corpora.tokenizer, texts) for part, texts in sentences.items()}
    else:
        train(recipe)
        size, well_formed = parameters(model), measure_well_formed(model, gold["test"])
        cpu_seconds = read_progress(model)["cpu_seconds"]
        parsed = {part: [tree.tokens for tree in parse(model, texts)] for part, texts in sentences.items()}
    return {
        "seed": recipe.seed,
        "parameters": size,
        "steps": recipe.max_steps,
        "scores": {part: score_parses(trees, parsed[part]) for part, trees in gold.items()},
        "well_formed_without_constraint": well_formed,
        "cpu_seconds_of_training": round(cpu_seconds, 1),
        **describe_origin(command, [recipe.seed], time.perf_counter() - started),
    }


def score_parses(gold: Sequence[Tree], parsed: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return F1 over all sentences and over the short ones. Raises ValueError if a tree is not well formed."""
    trees = [build_tree(tokens, tree.pos()) for tree, tokens in zip(gold, parsed, strict=True)]
    return {"all": compute_f1(gold, trees), "at most 40 words": compute_f1(gold, trees, longest=40)}


def measure_well_formed(model: Path, gold: Sequence[Tree]) -> float:
    """Return the share of well-formed trees that the search finds without the constraint."""
    well_formed = 0
    parsed = parse(model, [join_leaves(tree) for tree in gold], beams=FEW_BEAMS, constrained=False)
    for output, tree in zip(parsed, gold, strict=True):
        try:
            build_tree(output.tokens, tree.pos())
        except ValueError:
            continue
        well_formed += 1
    return well_formed / len(gold)
