"""Table 4: constituency parsing (section 6.3) on NLTK's treebank sample, compared with an LSTM.

Data, models and result files are in OUTPUT/table4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from training.recipe import load_recipe
from vaswani_transformer.files import read_json_object
from vaswani_transformer.lines import check_file

from .result_files import PAPER, format_command, format_duration, format_table, is_measured, write_result
from .verdicts import format_mean

RECIPE = str(Path(__file__).parent / "recipes" / "treebank_parsing.yaml")
LSTM = "LSTM with attention"
CORPORA = {
    "sample": "NLTK's sample of the WSJ",
    "recombined": "the sample and recombined trees",
    "more": "the sample and more recombined trees",
    "parsed": "captions parsed by the supervised model",  # the Transformer of the same seed
}


@dataclass(frozen=True)
class System:
    """A row of the table."""

    corpora: list[str]
    steps: int | None = None  # None for the recipe's number; --max_steps overrides it
    is_lstm: bool = False

    @property
    def is_semi_supervised(self) -> bool:
        return "parsed" in self.corpora

    @property
    def keys(self) -> dict[str, str]:
        """Recipe keys that differ from the recipe."""
        keys = {} if self.steps is None else {"max_steps": str(self.steps)}
        # With the recipe's 4,000 tokens per step, the LSTM does not learn to copy words in 2,500 steps (F1 7).
        return keys | ({"tokens_per_step": "1600"} if self.is_lstm else {})


# Each LSTM sees as many tokens as its Transformer; the last one instead uses as much CPU time, measured on an AMD EPYC
# (2.3 times as much per token; 1.4 times on an Intel Xeon).
SYSTEMS = {
    "Transformer, sample alone": System(["sample"]),
    "Transformer": System(["recombined"]),
    LSTM: System(["recombined"], steps=6250, is_lstm=True),
    "Transformer, semi-supervised": System(["recombined", "parsed"]),
    "Transformer, more trees and steps": System(["more"], steps=7500),
    f"{LSTM}, more trees and steps": System(["more"], steps=18750, is_lstm=True),
    f"{LSTM}, more trees, equal CPU time": System(["more"], steps=8000, is_lstm=True),
}
EQUAL_TIME = "equal CPU time"
BUDGETS = {  # the Transformer and the LSTM of each budget
    "equal tokens": ("Transformer", LSTM),
    "three times as many tokens for both": ("Transformer, more trees and steps", f"{LSTM}, more trees and steps"),
    EQUAL_TIME: ("Transformer, more trees and steps", f"{LSTM}, more trees, equal CPU time"),
}


def write_table4(
    output: Path,
    treebank: Path,
    unlabelled: Path | None,
    vocabulary: int,
    seeds: list[int],
    options: Mapping[str, str | None],
) -> str:
    """Train and measure the missing systems with every seed, write table4.json and return the table in Markdown.

    unlabelled: text for the semi-supervised row, one sentence per line; None to leave the row out
    vocabulary: size of the tokenizer of the words;  options: keys of the recipe treebank_parsing
    An interrupted Transformer resumes at its last checkpoint, an interrupted LSTM at its first step.
    """
    # nltk is needed to train, not to write the page
    from .parsing.train_parser import parse_unlabelled, prepare_data, train_parser

    if unlabelled is not None:
        check_file(unlabelled)  # it is read only after the first parsers are trained
    folder, data = output / "table4", output / "table4" / "data"
    missing = {}  # {(system, seed): command}
    for seed in seeds:
        for name, system in SYSTEMS.items():
            if system.is_semi_supervised and unlabelled is None:
                continue
            text = unlabelled if system.is_semi_supervised else None
            given = {"treebank": treebank, "unlabelled": text, "vocabulary": vocabulary, "seeds": seed}
            command = format_command("python -m paper table4", given, options)
            if not is_measured(folder / f"{make_file_name(name)}-seed{seed}.json", command):
                missing[name, seed] = command
    gold = prepare_data(treebank, data, vocabulary)
    for (name, seed), command in missing.items():
        system = SYSTEMS[name]
        if system.is_semi_supervised and unlabelled is not None:
            teacher = folder / make_file_name("Transformer") / f"seed{seed}"
            parse_unlabelled(unlabelled, teacher, data / f"parsed-seed{seed}")
        corpora = [f"parsed-seed{seed}" if corpus == "parsed" else corpus for corpus in system.corpora]
        files = {"data": str(data), "tokenizer": str(data / "tokenizer"), "train": f"[{', '.join(corpora)}]"}
        model = {"seed": str(seed), "output_dir": str(folder / make_file_name(name) / f"seed{seed}")}
        recipe = load_recipe(RECIPE, {**system.keys, **options, **files, **model})
        row = train_parser(recipe, system.is_lstm, gold, command)
        write_result(folder / f"{make_file_name(name)}-seed{seed}.json", {"system": name, **row})
    rows = [read_json_object(path) for path in sorted(folder.glob("*-seed*.json"))]
    rows.sort(key=lambda row: (list(SYSTEMS).index(row["system"]), row["seed"]))
    result = {"rows": rows}
    write_result(output / "table4.json", result)
    return format_result(result)


def make_file_name(system: str) -> str:
    return system.lower().replace(",", "").replace(" ", "-")


# ---- the table -----------------------------------------------------------------------------------------------------


def format_result(result: dict[str, Any]) -> str:
    """Return the table in Markdown. result: the content of table4.json"""
    rows, table = result["rows"], []
    for name, system in SYSTEMS.items():
        ours = [row for row in rows if row["system"] == name]
        if not ours:
            continue
        test = [row["scores"]["test"] for row in ours]
        shares = [share for row in ours if (share := row["well_formed_without_constraint"]) is not None]
        table.append(
            {
                "parser": name,
                "from": "ours",
                "trained on": " + ".join(CORPORA[corpus] for corpus in system.corpora),
                "parameters": f"{ours[0]['parameters'] / 1e6:.1f} M",
                "CPU time of training": format_duration(fmean(row["cpu_seconds_of_training"] for row in ours)),
                "F1, development": format_mean([row["scores"]["val"]["all"]["f1"] for row in ours], 1),
                "F1, test": format_mean([scores["all"]["f1"] for scores in test], 1),
                "of at most 40 words": format_mean([scores["at most 40 words"]["f1"] for scores in test], 1),
                "well formed without constraint": f"{100 * fmean(shares):.0f} %" if shares else "",
            }
        )
    quoted = [
        dict.fromkeys(table[0], "")
        | {"parser": row["parser"], "from": "quoted", "trained on": row["training"], "F1, test": f"{row['f1']:.1f}"}
        for row in PAPER["table4"]
    ]
    lead = describe_leads(rows)
    return format_table(quoted + table) + (f"\n{lead}\n" if lead else "")


def describe_leads(rows: list[dict[str, Any]]) -> str:
    """Return the mean difference in F1 for each budget, over the seeds that both systems have."""
    statements = []
    for budget, systems in BUDGETS.items():
        transformers, lstms = ({row["seed"]: row for row in rows if row["system"] == system} for system in systems)
        pairs = [(transformers[seed], lstm) for seed, lstm in lstms.items() if seed in transformers]
        if budget == EQUAL_TIME:
            pairs = [pair for pair in pairs if have_equal_cpu_time(*pair)]
        if pairs:
            f1 = [[row["scores"]["test"]["all"]["f1"] for row in pair] for pair in pairs]
            difference = format_mean([transformer - lstm for transformer, lstm in f1], 1, signed=True)
            statements.append(f"{difference} with {budget} ({len(pairs)} {'seed' if len(pairs) == 1 else 'seeds'})")
    if not statements:
        return ""
    return f"The Transformer's lead over the LSTM in F1 on the test set: {'; '.join(statements)}."


def have_equal_cpu_time(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether both were trained on the same hardware in about the same CPU time."""
    seconds = [row["cpu_seconds_of_training"] for row in (one, other)]
    return one["hardware"] == other["hardware"] and max(seconds) < 1.15 * min(seconds)
