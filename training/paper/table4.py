"""Table 4: constituency parsing (section 6.3) on the treebank's sample, with an LSTM with attention beside it.

Data, tokenizers, models and row files lie in OUTPUT/table4. The same command resumes.
"""

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import pre_tokenizers
from transformers import AddedToken, PreTrainedTokenizerFast

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import tell
from vaswani_transformer.lines import existing_file, read_lines
from vaswani_transformer.model_folder import read_json_object
from vaswani_transformer.tokenization import train_tokenizer

from ..checkpoint_folders import STATE, checkpoints
from ..json_files import write_json
from ..recipe import Recipe, load_recipe
from ..result_row import parameters
from ..train import train
from .fit import seconds_of_fit
from .parse import parse, parse_with_rnn
from .results import PAPER, in_words, markdown, origin, with_interval, write_table
from .rnn import train_rnn
from .trees import labelled_f1, linearise, read_treebank, recombined, tree_from, word_splitter

if TYPE_CHECKING:
    from nltk.tree import Tree

RECIPE = "treebank_parsing"


@dataclass(frozen=True)
class System:
    """A row of the table. keys: what differs from the recipe, unless the command gives the same keys.

    "more trees and steps" is three times as many of both.
    """

    corpora: list[str]
    keys: Mapping[str, str] = field(default_factory=dict)
    is_rnn: bool = False


SUPERVISED, SEMI_SUPERVISED = "Transformer", "Transformer, semi-supervised"
LONGER, LSTM = "Transformer, more trees and steps", "LSTM with attention"
LONGER_LSTM, EQUAL_TIME_LSTM = f"{LSTM}, more trees and steps", f"{LSTM}, more trees, equal CPU time"
# Small steps: after 2,500 steps of 4,000 tokens, the LSTM does not yet copy words, and its F1 is 7. The first two give
# it as many tokens as the Transformer beside it has, the last as much CPU time on an AMD EPYC, where it needs 2.3 times
# as much per token (1.4 times on an Intel Xeon).
STEPS_OF_RNN, MORE_STEPS_OF_RNN, EQUAL_TIME_OF_RNN = (
    {"tokens_per_step": "1600", "max_steps": steps} for steps in ("6250", "18750", "8000")
)
SYSTEMS = {
    "Transformer, sample alone": System(["sample"]),
    SUPERVISED: System(["recombined"]),
    LSTM: System(["recombined"], STEPS_OF_RNN, is_rnn=True),
    SEMI_SUPERVISED: System(["recombined", "parsed"]),  # parsed by the supervised Transformer of the same seed
    LONGER: System(["more"], {"max_steps": "7500"}),
    LONGER_LSTM: System(["more"], MORE_STEPS_OF_RNN, is_rnn=True),
    EQUAL_TIME_LSTM: System(["more"], EQUAL_TIME_OF_RNN, is_rnn=True),
}
EQUAL_TIME = "equal CPU time"
BUDGETS = {  # Transformer and LSTM of a budget
    "equal tokens": (SUPERVISED, LSTM),
    "equal tokens, three times as many": (LONGER, LONGER_LSTM),
    EQUAL_TIME: (LONGER, EQUAL_TIME_LSTM),
}
CORPORA = {
    "sample": "NLTK's sample of the WSJ",
    "recombined": "the sample and recombined trees",
    "more": "the sample and more recombined trees",
    "parsed": "captions that the supervised model parsed",
}
CAPTIONS, CONFIDENT = 6000, 0.5  # captions to parse, and the share of them to train on
FEW_BEAMS = 4  # for the captions, and for the share of well-formed trees without the constraint
COPIES = {"recombined": 20, "more": 60}  # recombined trees per tree of the sample


def prepare_data(treebank: Path, folder: Path, vocabulary: int) -> dict[str, list["Tree"]]:
    """Write the text and the tokenizers that training reads, and return the trees of val and test."""
    trees = read_treebank(treebank)
    sample = trees.pop("train")
    write_trees(folder / "sample", sample)
    for name, copies in COPIES.items():
        write_trees(folder / name, [*sample, *recombined(sample, copies, seed=1)])
    for part, each in trees.items():
        write_trees(folder / part, each)
    parsing_tokenizer(sample, vocabulary).save_pretrained(folder / "tokenizer")
    return trees


def words_of(tree: "Tree") -> str:
    return " ".join(tree.leaves())


def write_trees(path: Path, trees: Sequence["Tree"]) -> None:
    write_pairs(path, map(words_of, trees), (" ".join(linearise(tree)) for tree in trees))


def write_pairs(path: Path, sentences: Iterable[str], trees: Iterable[str]) -> None:
    """Write PATH.words and PATH.trees, a sentence a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for language, lines in (("words", sentences), ("trees", trees)):
        with atomic_file(path.with_suffix(f".{language}")) as file:
            file.writelines(f"{line}\n".encode() for line in lines)


def parsing_tokenizer(trees: Sequence["Tree"], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the words of the trees, and add a token for each of their brackets."""
    tokenizer = train_tokenizer(map(words_of, trees), vocabulary)
    # So that the first word of a sentence is written like all others.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    labels = {tree.label() for whole in trees for tree in whole.subtrees() if tree.height() > 2}
    # lstrip: the space before a bracket belongs to the bracket.
    for label in sorted(labels):
        tokenizer.add_tokens([AddedToken(f"({label}", lstrip=True), AddedToken(f"){label}", lstrip=True)])
    return tokenizer


# ---- systems -------------------------------------------------------------------------------------------------------


def table4(
    output: Path,
    treebank: Path,
    unlabelled: Path | None,
    vocabulary: int,
    seeds: list[int],
    options: Mapping[str, str | None],
) -> None:
    """Train and measure every system with every seed that has no row file yet, and write table4.json and table4.md.

    unlabelled: text for the semi-supervised row, a sentence a line; None to leave the row out
    vocabulary: size of the tokenizer of the words;  options: keys of the recipe treebank_parsing
    An interrupted Transformer resumes at its last checkpoint, an interrupted LSTM at its first step.
    """
    folder = output / "table4"
    words = ["--treebank", treebank.name, *([] if unlabelled is None else ["--unlabelled", unlabelled.name])]
    words += ["--vocabulary", str(vocabulary), *(f"--{key}={value}" for key, value in options.items())]
    command = shlex.join(["vaswani-transformer", "paper", "table4", *words])
    where = {"data": str(folder / "data"), "tokenizer": str(folder / "data" / "tokenizer")}
    gold = prepare_data(treebank, folder / "data", vocabulary)
    for seed in seeds:
        for name, system in SYSTEMS.items():
            path = folder / f"{file_name(name)}-seed{seed}.json"
            if path.is_file() or (name == SEMI_SUPERVISED and unlabelled is None):
                continue
            model = folder / file_name(name) / f"seed{seed}"
            parsed = f"parsed-seed{seed}"
            names = [parsed if corpus == "parsed" else corpus for corpus in system.corpora]
            own = {"train": f"[{', '.join(names)}]", "seed": str(seed), "output_dir": str(model)}
            recipe = load_recipe(RECIPE, {**system.keys, **options, **where, **own})
            if name == SEMI_SUPERVISED and unlabelled is not None:
                parse_captions(unlabelled, folder / file_name(SUPERVISED) / f"seed{seed}", folder / "data" / parsed)
            write_json(path, row_of(name, recipe, gold, f"{command} --seeds {seed}"))
    rows = [read_json_object(path) for path in sorted(folder.glob("*-seed*.json"))]
    rows.sort(key=lambda each: (list(SYSTEMS).index(each["system"]), each["seed"]))
    write_table(output, "table4", {"quoted": PAPER["table4"], "rows": rows}, as_markdown(rows))


def file_name(system: str) -> str:
    return system.lower().replace(",", "").replace(" ", "-")


def row_of(name: str, recipe: Recipe, gold: dict[str, list["Tree"]], command: str) -> dict[str, Any]:
    """Train a system and return its row file."""
    started, model = time.perf_counter(), Path(recipe.output_dir)
    sentences = {part: [words_of(tree) for tree in trees] for part, trees in gold.items()}
    if SYSTEMS[name].is_rnn:
        rnn, prepared = train_rnn(recipe)
        size, unconstrained = sum(each.numel() for each in rnn.parameters()), None
        trained = seconds_of_fit(model)
        parsed = {part: parse_with_rnn(rnn, prepared.tokenizer, each) for part, each in sentences.items()}
    else:
        train(recipe)
        size, unconstrained = parameters(model), share_without_constraint(model, gold["test"])
        trained = read_json_object(checkpoints(model / "checkpoints")[0] / STATE, "progress")["progress"]["cpu_seconds"]
        parsed = {part: [each.tokens for each in parse(model, texts)] for part, texts in sentences.items()}
    scores = {part: scores_of(trees, parsed[part]) for part, trees in gold.items()}
    return {
        "system": name,
        "seed": recipe.seed,
        "parameters": size,
        "steps": recipe.max_steps,
        "scores": scores,
        "well_formed_without_constraint": unconstrained,
        "cpu_seconds_of_training": round(trained, 1),
        **origin(command, [recipe.seed], time.perf_counter() - started),
    }


def scores_of(gold: Sequence["Tree"], parsed: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return F1 over all sentences and the short ones. Raises ValueError if a tree is not well formed."""
    trees = [tree_from(tokens, tree.pos()) for tree, tokens in zip(gold, parsed, strict=True)]
    return {"all": labelled_f1(gold, trees), "at most 40 words": labelled_f1(gold, trees, longest=40)}


def share_without_constraint(model: Path, gold: Sequence["Tree"]) -> float:
    """Return how many of the trees are well formed when nothing constrains the search (beam 4)."""
    parsed = parse(model, [words_of(tree) for tree in gold], beams=FEW_BEAMS, constrained=False)
    return sum(is_tree(each.tokens, tree) for each, tree in zip(parsed, gold, strict=True)) / len(gold)


def is_tree(tokens: Sequence[str], gold: "Tree") -> bool:
    try:
        tree_from(tokens, gold.pos())
    except ValueError:
        return False
    return True


def parse_captions(text: Path, teacher: Path, target: Path) -> None:
    """Write the teacher's most confident parses of a text's first sentences, as pairs to train on."""
    if target.with_suffix(".trees").is_file():
        return
    split = word_splitter()
    sentences = [" ".join(split(line.strip())) for line in islice(read_lines(existing_file(str(text))), CAPTIONS)]
    sentences = [sentence for sentence in sentences if sentence]
    tell(f"parsing {len(sentences):,} sentences of {text.name}")
    parsed = parse(teacher, sentences, beams=FEW_BEAMS, batch=64)
    order = sorted(range(len(sentences)), key=lambda index: parsed[index].confidence)
    chosen = sorted(order[round(len(order) * (1 - CONFIDENT)) :])
    write_pairs(target, [sentences[index] for index in chosen], [" ".join(parsed[index].tokens) for index in chosen])


# ---- the table -----------------------------------------------------------------------------------------------------


def as_markdown(rows: list[dict[str, Any]]) -> str:
    quoted = [
        [each["parser"], "quoted", each["training"], "", "", "", f"{each['f1']:.1f}", "", ""]
        for each in PAPER["table4"]
    ]
    ours = []
    for name in SYSTEMS:
        found = [each for each in rows if each["system"] == name]
        if not found:
            continue
        tests, share = [each["scores"]["test"] for each in found], found[0]["well_formed_without_constraint"]
        ours.append(
            [
                name,
                "ours",
                " + ".join(CORPORA[corpus] for corpus in SYSTEMS[name].corpora),
                f"{found[0]['parameters'] / 1e6:.1f} M",
                in_words(found[0]["cpu_seconds_of_training"]),
                with_interval([each["scores"]["val"]["all"]["f1"] for each in found], 1),
                with_interval([each["all"]["f1"] for each in tests], 1),
                with_interval([each["at most 40 words"]["f1"] for each in tests], 1),
                "" if share is None else f"{100 * share:.0f} %",
            ]
        )
    head = "parser|from|trained on|parameters|CPU time of training|F1, development|F1, test|of at most 40 words"
    table = markdown([*head.split("|"), "well formed without constraint"], [*quoted, *ours])
    lead = leads(rows)
    return f"{table}\nThe Transformer's lead over the LSTM in F1 on the test set: {lead}.\n" if lead else table


def leads(rows: list[dict[str, Any]]) -> str:
    """Return, by budget, the mean difference of the seeds that both systems have."""
    found = {(each["system"], each["seed"]): each for each in rows}
    statements = []
    for budget, (transformer, lstm) in BUDGETS.items():
        pairs = [
            (found[transformer, seed], row)
            for (name, seed), row in found.items()
            if name == lstm and (transformer, seed) in found
        ]
        if budget == EQUAL_TIME:
            pairs = [pair for pair in pairs if took_as_long(*pair)]
        if pairs:
            f1 = [[row["scores"]["test"]["all"]["f1"] for row in pair] for pair in pairs]
            difference = with_interval([one - other for one, other in f1], 1, signed=True)
            statements.append(f"{budget} {difference} (seeds: {len(pairs)})")
    return "; ".join(statements)


def took_as_long(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether both were trained on the same hardware in about the same CPU time."""
    seconds = [row["cpu_seconds_of_training"] for row in (one, other)]
    return one["hardware"] == other["hardware"] and max(seconds) < 1.15 * min(seconds)
