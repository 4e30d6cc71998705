"""Table 4: constituency parsing (section 6.3) on the treebank's sample, with an LSTM with attention beside it.

Data, tokenizers, models and result files lie in OUTPUT/table4. The same command resumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaswani_transformer.model_folder import read_json_object, write_json

from ..recipe import load_recipe
from .results import PAPER, command_line, duration, markdown, with_interval, write_table

RECIPE, LSTM = "treebank_parsing", "LSTM with attention"
CORPORA = {
    "sample": "NLTK's sample of the WSJ",
    "recombined": "the sample and recombined trees",
    "more": "the sample and more recombined trees",
    "parsed": "captions that the supervised model parsed",  # by the Transformer of the same seed
}


@dataclass(frozen=True)
class System:
    """A row of the table. steps: other than the recipe's; the command may change them."""

    corpora: list[str]
    steps: int | None = None
    is_lstm: bool = False

    @property
    def keys(self) -> dict[str, str]:
        """The keys in which the system differs from the recipe."""
        keys = {} if self.steps is None else {"max_steps": str(self.steps)}
        # With the recipe's 4,000 tokens a step, the LSTM does not yet copy words after 2,500 steps, and its F1 is 7.
        return keys | ({"tokens_per_step": "1600"} if self.is_lstm else {})


# An LSTM sees as many tokens as the Transformer beside it. The last one has as much CPU time on an AMD EPYC, where it
# needs 2.3 times as much per token (1.4 times on an Intel Xeon).
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
BUDGETS = {  # Transformer and LSTM of a budget
    "equal tokens": ("Transformer", LSTM),
    "equal tokens, three times as many": ("Transformer, more trees and steps", f"{LSTM}, more trees and steps"),
    EQUAL_TIME: ("Transformer, more trees and steps", f"{LSTM}, more trees, equal CPU time"),
}


def write_table4(
    output: Path,
    treebank: Path,
    unlabelled: Path | None,
    vocabulary: int,
    seeds: list[int],
    options: Mapping[str, str | None],
) -> None:
    """Train and measure every system with every seed that has no result file yet, and write table4.json and table4.md.

    unlabelled: text for the semi-supervised row, a sentence a line; None to leave the row out
    vocabulary: size of the tokenizer of the words;  options: keys of the recipe treebank_parsing
    An interrupted Transformer resumes at its last checkpoint, an interrupted LSTM at its first step.
    """
    from .parser_training import (
        parse_unlabelled,
        prepare_data,
        train_parser,
    )  # nltk is needed to train, not to write the page

    folder, data = output / "table4", output / "table4" / "data"
    gold = prepare_data(treebank, data, vocabulary)
    given = {"treebank": treebank, "unlabelled": unlabelled, "vocabulary": vocabulary}
    command = command_line("paper table4", given, options)
    for seed in seeds:
        for name, system in SYSTEMS.items():
            path = folder / f"{file_name(name)}-seed{seed}.json"
            if path.is_file():
                continue
            if "parsed" in system.corpora:
                if unlabelled is None:
                    continue
                teacher = folder / file_name("Transformer") / f"seed{seed}"
                parse_unlabelled(unlabelled, teacher, data / f"parsed-seed{seed}")
            corpora = [f"parsed-seed{seed}" if corpus == "parsed" else corpus for corpus in system.corpora]
            files = {"data": str(data), "tokenizer": str(data / "tokenizer"), "train": f"[{', '.join(corpora)}]"}
            model = {"seed": str(seed), "output_dir": str(folder / file_name(name) / f"seed{seed}")}
            recipe = load_recipe(RECIPE, {**system.keys, **options, **files, **model})
            row = train_parser(recipe, system.is_lstm, gold, f"{command} --seeds {seed}")
            write_json(path, {"system": name, **row})
    rows = [read_json_object(path) for path in sorted(folder.glob("*-seed*.json"))]
    rows.sort(key=lambda row: (list(SYSTEMS).index(row["system"]), row["seed"]))
    write_table(output, "table4", {"quoted": PAPER["table4"], "rows": rows}, as_markdown(rows))


def file_name(system: str) -> str:
    return system.lower().replace(",", "").replace(" ", "-")


# ---- the table -----------------------------------------------------------------------------------------------------


COLUMNS = (
    "parser", "from", "trained on", "parameters", "CPU time of training", "F1, development", "F1, test",
    "of at most 40 words", "well formed without constraint",
)  # fmt: skip


def as_markdown(rows: list[dict[str, Any]]) -> str:
    table = [
        dict.fromkeys(COLUMNS, "")
        | {"parser": row["parser"], "from": "quoted", "trained on": row["training"], "F1, test": f"{row['f1']:.1f}"}
        for row in PAPER["table4"]
    ]
    for name, system in SYSTEMS.items():
        ours = [row for row in rows if row["system"] == name]
        if not ours:
            continue
        share, test = ours[0]["well_formed_without_constraint"], [row["scores"]["test"] for row in ours]
        cells = (
            name,
            "ours",
            " + ".join(CORPORA[corpus] for corpus in system.corpora),
            f"{ours[0]['parameters'] / 1e6:.1f} M",
            duration(ours[0]["cpu_seconds_of_training"]),
            with_interval([row["scores"]["val"]["all"]["f1"] for row in ours], 1),
            with_interval([scores["all"]["f1"] for scores in test], 1),
            with_interval([scores["at most 40 words"]["f1"] for scores in test], 1),
            "" if share is None else f"{100 * share:.0f} %",
        )
        table.append(dict(zip(COLUMNS, cells, strict=True)))
    lead = lead_sentence(rows)
    sentence = f"\nThe Transformer's lead over the LSTM in F1 on the test set: {lead}.\n" if lead else ""
    return markdown(table) + sentence


def lead_sentence(rows: list[dict[str, Any]]) -> str:
    """Return, by budget, the mean difference of the seeds that both systems have."""
    statements = []
    for budget, systems in BUDGETS.items():
        transformers, lstms = ({row["seed"]: row for row in rows if row["system"] == system} for system in systems)
        pairs = [(transformers[seed], lstm) for seed, lstm in lstms.items() if seed in transformers]
        if budget == EQUAL_TIME:
            pairs = [pair for pair in pairs if equal_cpu_time(*pair)]
        if pairs:
            f1 = [[row["scores"]["test"]["all"]["f1"] for row in pair] for pair in pairs]
            difference = with_interval([transformer - lstm for transformer, lstm in f1], 1, signed=True)
            statements.append(f"{budget} {difference} (seeds: {len(pairs)})")
    return "; ".join(statements)


def equal_cpu_time(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether both were trained on the same hardware in about the same CPU time."""
    seconds = [row["cpu_seconds_of_training"] for row in (one, other)]
    return one["hardware"] == other["hardware"] and max(seconds) < 1.15 * min(seconds)
