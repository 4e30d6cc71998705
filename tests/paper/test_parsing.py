"""Section 6.3: trees as sequences, the constraint on the search, labelled F1, and the command of Table 4."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nltk.tree import Tree
from tiny_models import ModelMaker
from transformers import LogitsProcessorList, PreTrainedTokenizerFast

from paper import table4
from paper.__main__ import main
from paper.parsing.constraint import SHARE_OF_ALL_WORDS, WellFormedTrees
from paper.parsing.evalb import compute_f1
from paper.parsing.search import ALPHA, decode_tokens
from paper.parsing.train_parser import train_parsing_tokenizer
from paper.parsing.trees import build_tree, linearise, parse_trees, read_treebank, recombine, split_words
from paper.rnn import RnnWithAttention, beam_search
from paper.table4 import BUDGETS, SYSTEMS, describe_leads
from paper.verdicts import format_mean
from training.recipe import load_recipe
from vaswani_transformer import gnmt_length_penalty
from vaswani_transformer.errors import InputError

SENTENCE = """( (S
    (NP-SBJ-1 (NNP John) )
    (VP (VBZ seems)
      (S
        (NP-SBJ (-NONE- *-1) )
        (VP (TO to) (VP (VB sleep) ))))
    (. .) ))
"""


LABELS, TAGS = ("NP", "VP", "S", "PRT", "ADVP"), ("NN", "VB", ",", ".")


def random_tree(generator: random.Random, depth: int = 4) -> Tree:
    """Return a tree with ambiguous labels, punctuation and unary chains."""
    children: list[Any] = []
    for _ in range(generator.choice([1, 1, 2, 3])):
        if depth and generator.random() < 0.6:
            children.append(random_tree(generator, depth - 1))
        else:
            children.append(Tree(generator.choice(TAGS), [f"w{generator.randrange(100)}"]))
    return Tree(generator.choice(LABELS), children)


# --- trees as sequences ----------------------------------------------------------------------------------------


def test_a_tree_is_written_as_vinyals_et_al_do() -> None:
    (tree,) = parse_trees(SENTENCE)
    written = "(S (NP John )NP (VP seems (S (VP to (VP sleep )VP )VP )S )VP . )S"
    assert " ".join(linearise(tree)) == written
    assert tree.leaves() == ["John", "seems", "to", "sleep", "."]
    assert build_tree(written.split(), tree.pos()) == tree


def test_every_tree_comes_back_from_its_tokens() -> None:
    generator = random.Random(1)
    for _ in range(200):
        tree = random_tree(generator)
        assert build_tree(linearise(tree), tree.pos()) == tree


@pytest.mark.parametrize(
    "tokens",
    ["", "a b", "(S a )S", "(S b a )S", "(S a b", "(S a b )NP", "(S a b )S )S", "(S a )S (S b )S", "(S (NP )NP a b )S"],
)
def test_tokens_that_are_no_tree_are_refused(tokens: str) -> None:
    with pytest.raises(ValueError, match="2 words"):
        build_tree(tokens.split(), [("a", "NN"), ("b", "NN")])


def test_recombined_trees_consist_of_known_constituents() -> None:
    generator = random.Random(2)
    trees = [random_tree(generator) for _ in range(20)]
    before = [str(tree) for tree in trees]
    new = recombine(trees, copies=3, seed=1)
    assert [str(tree) for tree in trees] == before and new == recombine(trees, copies=3, seed=1)
    assert sum(tree not in trees for tree in new) > 20
    assert pairs_of_labels(new) <= pairs_of_labels(trees)


def pairs_of_labels(trees: list[Tree]) -> set[tuple[str, str]]:
    """Return the labels of parents and their children."""
    nodes = [node for tree in trees for node in tree.subtrees()]
    return {(node.label(), child.label()) for node in nodes for child in node if isinstance(child, Tree)}


def test_a_whole_treebank_has_the_standard_sections(tmp_path: Path) -> None:
    for number in (1, 201, 2199, 2201, 2301, 2454):
        (tmp_path / f"wsj_{number:04}.mrg").write_text(SENTENCE.replace("John", f"J{number}"))
    first = {part: [tree.leaves()[0] for tree in trees] for part, trees in read_treebank(tmp_path).items()}
    assert first == {"train": ["J201", "J2199"], "val": ["J2201"], "test": ["J2301"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SENTENCE.rstrip()[:-2], r"wsj_0001\.mrg is not a file of trees: .*end-of-string"),
        ("(S (NP (-NONE- *)))", "no tree for train"),  # an empty sentence is no tree
    ],
)
def test_a_faulty_treebank_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "wsj_0001.mrg").write_text(text)
    with pytest.raises(InputError, match=said):
        read_treebank(tmp_path)


def test_words_are_split_as_in_the_treebank() -> None:
    assert split_words("Don't (ever) pay $5.") == ["Do", "n't", "-LRB-", "ever", "-RRB-", "pay", "$", "5", "."]


# --- labelled F1 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "parsed", "recall", "precision"),
    [
        # By hand, with EVALB's rules: the number of constituents that match, in the reference, in the parse.
        ("(S (NP (NN a)) (VP (VB b)))", "(S (NP (NN a)) (VP (VB b)))", 3 / 3, 3 / 3),
        ("(S (NP (NN a)) (VP (VB b)))", "(S (NN a) (NP (VB b)))", 1 / 3, 1 / 2),
        ("(S (PRT (RP a)) (VP (VB b)))", "(S (ADVP (RP a)) (VP (VB b)))", 3 / 3, 3 / 3),
        # Punctuation counts for no span, and a constituent of punctuation alone for nothing.
        ("(S (NP (NN a) (, ,)) (VP (VB b)) (. .))", "(S (NP (NN a)) (PRN (, ,)) (VP (VB b) (. .)))", 3 / 3, 3 / 3),
        # A constituent matches once, however often the parse repeats it; TOP counts for nothing.
        ("(TOP (NP (NN a)))", "(NP (NP (NP (NN a))))", 1 / 1, 1 / 3),
    ],
)
def test_f1_follows_evalb(gold: str, parsed: str, recall: float, precision: float) -> None:
    found = compute_f1([Tree.fromstring(gold)], [Tree.fromstring(parsed)])
    assert found["recall"] == pytest.approx(100 * recall) and found["precision"] == pytest.approx(100 * precision)
    assert found["f1"] == pytest.approx(200 * recall * precision / (recall + precision))


def test_f1_of_short_sentences_counts_punctuation_as_words() -> None:
    trees = [Tree("S", [Tree("NN", ["a"])] * 40), Tree("S", [*[Tree("NN", ["a"])] * 40, Tree(".", ["."])])]
    assert compute_f1(trees, trees, longest=40)["sentences"] == 1


# --- the constraint --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """The brackets are (NP, (S, )NP and )S; `a` and `b` are words of one token, `ab` is one of two."""
    tree = Tree.fromstring("(S (NP (NN a)) (NN b) (NN a) (NN b))")
    return train_parsing_tokenizer([tree] * 5, 262)


@pytest.mark.parametrize(("sentence", "limit"), [("a", 4), ("a", 6), ("a b", 7), ("a b a", 9), ("ab a", 9)])
def test_the_constraint_allows_exactly_the_trees_within_the_limit(
    tokenizer: PreTrainedTokenizerFast, sentence: str, limit: int
) -> None:
    """Every sequence of tokens up to the limit, against the reader of trees."""
    source, end = tokenizer(sentence)["input_ids"][:-1], tokenizer.eos_token_id
    constraint = WellFormedTrees(tokenizer, [source], [limit])
    signs = [*constraint.closing, *constraint.closing.values()]
    tagged = [(word, "NN") for word in sentence.split()]

    def outputs(beginning: list[int]) -> Iterator[tuple[int, ...]]:
        for token in constraint.allowed(beginning, source, limit):
            yield from [tuple(beginning)] if token == end else outputs([*beginning, token])

    def trees(beginning: list[int]) -> Iterator[tuple[int, ...]]:
        opened = [token in constraint.closing for token in beginning if token in signs]
        depth = 2 * sum(opened) - len(opened)
        if beginning and depth == 0:
            try:
                build_tree(decode_tokens(beginning, tokenizer), tagged)
            except ValueError:
                return
            yield tuple(beginning)
        elif len(beginning) < limit - 1 and depth >= 0 and len(beginning) - len(opened) <= len(source):
            for token in {*signs, *source}:
                yield from trees([*beginning, token])

    assert set(outputs([])) == set(trees([])) != set()


def test_the_only_possible_word_shares_the_probability_of_all(tokenizer: PreTrainedTokenizerFast) -> None:
    vocabulary = tokenizer.get_vocab()
    source = tokenizer("ab a")["input_ids"][:-1]
    constraint = WellFormedTrees(tokenizer, [source], [40])
    scores = torch.randn(1, len(vocabulary), generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    start, opening = tokenizer.bos_token_id, constraint.opening[0]
    found = constraint(torch.tensor([[start, opening]]), scores)[0]
    signs = {*constraint.closing, *constraint.closing.values(), constraint.end}
    words = [id for id in range(len(vocabulary)) if id not in signs]
    own, all_words = float(scores[0, source[0]]), math.log(scores[0, words].exp().sum())
    assert float(found[source[0]]) == pytest.approx(own + SHARE_OF_ALL_WORDS * (all_words - own), rel=1e-5)
    assert own < float(found[source[0]]) < all_words < 0
    assert found[opening] == scores[0, opening]
    others = set(range(len(vocabulary))) - {source[0], *constraint.opening}
    assert others and all(found[id] == -torch.inf for id in others)


def test_generate_returns_trees_from_a_model_that_knows_none(
    tokenizer: PreTrainedTokenizerFast, tiny_model: ModelMaker
) -> None:
    model = tiny_model(vocab_size=len(tokenizer))
    sentences, limits = ["ab a b b a", "a bab"], [40, 14]
    source: Any = tokenizer(sentences, padding=True, return_tensors="pt")
    words = [ids[:-1] for ids in tokenizer(sentences)["input_ids"]]
    found = model.generate(
        **source,
        num_beams=6,
        max_new_tokens=40,
        num_return_sequences=3,
        logits_processor=LogitsProcessorList([WellFormedTrees(tokenizer, words, limits)]),
    )
    for row, ids in enumerate(found.tolist()):
        # Raises if it is none.
        build_tree(decode_tokens(ids, tokenizer), [(word, "NN") for word in sentences[row // 3].split()])


# --- the RNN beside it ------------------------------------------------------------------------------------------


def test_padding_does_not_change_the_rnn() -> None:
    torch.manual_seed(0)
    model = RnnWithAttention(11, 16, "lstm").eval()
    source, target = torch.tensor([[4, 5, 6, 2], [7, 2, 1, 1]]), torch.tensor([[0, 4, 5], [0, 6, 7]])
    padded = model(source, target, (source != 1).long())
    torch.testing.assert_close(padded[1:], model(source[1:, :2], target[1:]))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_rnn_search_finds_the_best_output(cell: str) -> None:
    """Brute force over every output of up to 4 tokens; the beam is as wide as there are outputs."""
    torch.manual_seed(1)
    model, limit, alpha = RnnWithAttention(6, 8, cell).eval(), 4, 0.6
    source = [3, 4, 2]

    def score(tokens: list[int]) -> float:
        given = torch.tensor([[0, *tokens[:-1]]])
        chosen = model(torch.tensor([source]), given).log_softmax(-1)[0].gather(1, torch.tensor(tokens)[:, None])
        return float(chosen.sum()) / float(gnmt_length_penalty(len(tokens), alpha))

    others = [token for token in range(6) if token != 2]
    finished = [[2]]
    level: list[list[int]] = [[]]
    for _ in range(limit - 1):
        level = [[*tokens, token] for tokens in level for token in others]
        finished += [[*tokens, 2] for tokens in level]
    with torch.no_grad():
        best = max(finished, key=score)
    found = beam_search(model, source, beams=200, alpha=alpha, limit=limit, lookahead=limit, start=0, end=2)
    assert [*found, 2] == best


# --- the command -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A treebank whose sentences are `the NOUN VERB` and `the NOUN VERB the NOUN`, in files as the sample's."""
    folder, generator = tmp_path_factory.mktemp("treebank"), random.Random(4)
    nouns, verbs = "dog cat bird man woman child horse".split(), "sees likes hears finds follows".split()

    def noun_phrase() -> str:
        return f"(NP (DT the) (NN {generator.choice(nouns)}))"

    for number in (*range(1, 9), 160, 180):
        lines = []
        for _ in range(30):
            rest = f" {noun_phrase()}" if generator.random() < 0.5 else ""
            lines.append(f"( (S {noun_phrase()} (VP (VBZ {generator.choice(verbs)}){rest}) (. .)))")
        (folder / f"wsj_{number:04}.mrg").write_text("\n".join(lines) + "\n")
    return folder


def test_the_recipe_has_the_length_penalty_of_the_search() -> None:
    assert load_recipe(table4.RECIPE).length_penalty == ALPHA == 0.3  # section 6.3


def test_a_missing_text_is_reported_before_any_training(treebank: Path, tmp_path: Path, refused: Any) -> None:
    words = f"table4 --output {tmp_path} --treebank {treebank} --unlabelled absent.txt"
    assert "absent.txt: no such file" in refused(main, words.split())
    assert not any(tmp_path.iterdir())


def test_cpu_time_and_well_formed_share_are_means_over_seeds() -> None:
    scores = {part: {key: {"f1": 70.0} for key in ("all", "at most 40 words")} for part in ("val", "test")}
    row = {"system": "Transformer", "parameters": 1_400_000, "scores": scores}
    rows = [
        row | {"seed": seed, "cpu_seconds_of_training": 60 * seed, "well_formed_without_constraint": seed / 10}
        for seed in (1, 2)
    ]
    table = table4.format_result({"rows": rows})
    assert "| 1.4 M | 1 min 30 s |" in table and "| 15 % |" in table


def test_the_lead_for_equal_time_compares_equal_runs() -> None:
    def row(system: str, seed: int, f1: float, seconds: float, hardware: str = "a") -> dict[str, Any]:
        scores = {"test": {"all": {"f1": f1}}}
        return {
            "system": system, "seed": seed, "scores": scores, "cpu_seconds_of_training": seconds, "hardware": hardware,
        }  # fmt: skip

    (_, longer_lstm), (transformer, equal_time_lstm) = list(BUDGETS.values())[1:]
    rows = [row(transformer, seed, 80 + seed, 100) for seed in (1, 2, 3, 4)]
    rows += [row(equal_time_lstm, 1, 70, 105), row(equal_time_lstm, 2, 73, 95), row(longer_lstm, 1, 78, 300)]
    equal_time = format_mean([11, 9], 1, signed=True)
    expected = f"+3.0 with three times as many tokens for both (1 seed); {equal_time} with equal CPU time (2 seeds)"
    assert describe_leads(rows).endswith(f": {expected}.")
    others = [row(equal_time_lstm, 3, 0, 60), row(equal_time_lstm, 4, 0, 100, "b")]
    assert describe_leads([*rows, *others]) == describe_leads(rows)
    assert describe_leads([]) == ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_command_trains_parsers_and_prints_the_table(
    treebank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = tmp_path / "captions.txt"
    captions.write_text("the dog sees the cat .\nthe bird likes the man .\n" * 10)
    model = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    words = f"table4 --output {tmp_path / 'paper'} --treebank {treebank} --unlabelled {captions}"
    words += " --max_steps 100 --warmup_steps 10 --learning_rate 1e-2 --tokens_per_step 1000 --max_length 64"
    words += " --vocabulary 280 --validate_every 100 --save_every 50 --average_last 1 --mixed_precision no"
    main([*words.split(), *(f"--model.{key}={value}" for key, value in model.items())])
    rows = json.loads((tmp_path / "paper" / "table4.json").read_text())["rows"]
    assert [row["system"] for row in rows] == list(SYSTEMS)
    # A grammar of four rules: a parser that learns anything is nearly perfect, one that does not is far from it.
    # The LSTMs have had too few steps for that.
    f1 = {row["system"]: row["scores"]["test"]["all"]["f1"] for row in rows}
    lstms = [f1.pop(name) for name in list(f1) if name.startswith("LSTM")]
    assert len(lstms) == 3 and min(lstms) > 0
    assert min(f1.values()) > 60 and max(f1.values()) > 95
    table = capsys.readouterr().out
    assert "Transformer (4 layers)" in table and "semi-supervised" in table
    assert f"{f1['Transformer'] - lstms[0]:+.1f} with equal tokens (1 seed)" in table
