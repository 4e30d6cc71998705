"""Table 3 at a small scale: every row with the paper's proportions, and whether its directions hold.

Each (row, seed) is trained and measured once and leaves OUTPUT/table3/ROW-seedN.json; table3.json and table3.md are
made from these files. The same command resumes interrupted runs and skips finished ones.
"""

import json
import math
import re
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from vaswani_transformer import PRESETS, Translator, VaswaniTransformerConfig
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object, write_json

from ..checkpoint_folders import progress_of
from ..evaluation_text import text_of_recipe
from ..model import model_config
from ..recipe import Recipe, load_recipe
from ..result_row import parameters
from ..train import train
from .processes import in_processes
from .results import (
    PAPER,
    command_line,
    markdown,
    mean_interval,
    portable,
    provenance,
    verdict,
    with_interval,
    write_table,
)

RECIPE = "multi30k_table3"
ROWS: list[str] = list(PAPER["table3"])

# Sections 5.4 and 6.2: row, claim, sign of its difference from the base row in BLEU and in perplexity.
DIRECTIONS = (
    ("A-h1", "a single head is worse", -1, +1),
    ("A-h32", "too many heads are worse", -1, +1),
    ("B-dk16", "a small key size hurts", -1, +1),
    ("B-dk32", "a small key size hurts", -1, +1),
    ("C-N2", "fewer layers are worse", -1, +1),
    ("C-N4", "fewer layers are worse", -1, +1),
    ("C-N8", "more layers are better", +1, -1),
    ("C-d256", "a narrow model is worse", -1, +1),
    ("C-d1024", "a wide model is better", +1, -1),
    ("C-ff1024", "a narrow feed-forward layer is worse", -1, +1),
    ("C-ff4096", "a wide feed-forward layer is better", +1, -1),
    ("D-dropout0.0", "without dropout it is worse", -1, +1),
    ("D-ls0.0", "without label smoothing BLEU is worse, perplexity better", -1, -1),
    ("E-learned-positions", "learned positions are nearly identical", 0, 0),
    ("big", "the big model is better", +1, -1),
)
MARGIN = {"bleu": 1.0, "log_perplexity": math.log(1.05)}  # differences that count as nearly identical
SYMBOLS = {
    "attention_heads": "h", "layers": "N", "ffn_dim": "d_ff", "label_smoothing": "label smoothing",
    "position_embedding_type": "positions",
}  # fmt: skip


def resolved_fields(config: VaswaniTransformerConfig) -> dict[str, Any]:
    """Return the fields of a config, with d_k and d_v as numbers."""
    of_head = config.d_model // config.encoder_attention_heads
    return config.to_dict() | {"d_k": config.d_k or of_head, "d_v": config.d_v or of_head}


def row_options(row: str, base: Recipe) -> dict[str, str]:
    """Return the row's changes as options of training: the paper's sizes, times our base model's over the paper's."""
    if smoothing := re.fullmatch(r"D-ls(.*)", row):
        return {"label_smoothing": smoothing[1]}
    paper, ours = resolved_fields(VaswaniTransformerConfig()), resolved_fields(model_config(base, base.vocab_size))
    options = {}
    for field, value in PRESETS[row].items():
        if isinstance(value, int) and isinstance(paper[field], int):
            value = max(1, round(value * ours[field] / paper[field]))
        options[f"model.{field}"] = str(value)
    return options


def write_table3(output: Path, rows: list[str], seeds: list[int], jobs: int, options: Mapping[str, str | None]) -> None:
    """Train and measure the missing rows, `jobs` at a time, and write the table."""
    folder, recipe = output / "table3", load_recipe(RECIPE, options)
    for row in rows:
        if row not in ROWS:
            raise InputError(f"--rows {row}: not a row of Table 3; rows: {', '.join(ROWS)}")
        row_options(row, recipe)  # raises for a wrong option before the first run
    missing = [
        (folder / f"{row}-seed{seed}.log", partial(train_row, folder, row, seed, dict(options)))
        for seed in seeds
        for row in rows
        if not is_measured(folder / f"{row}-seed{seed}.json", options)
    ]
    if len(missing) == 1:
        missing[0][1]()  # in this process, with its messages on the terminal
    else:
        in_processes(missing, jobs)
    measured = [read_json_object(path) for path in sorted(folder.glob("*-seed*.json"))]
    measured.sort(key=lambda row: (ROWS.index(row["row"]), row["seed"]))
    write_table(output, "table3", {"rows": measured, "claims": judge_rows(measured)}, as_markdown(measured))


def is_measured(path: Path, options: Mapping[str, str | None]) -> bool:
    """Return whether there is a result file. Raises InputError if it was measured with other options."""
    if not path.is_file():
        return False
    before = read_json_object(path).get("options")
    if before != portable(options):
        raise InputError(f"{path} was measured with the options {before}; choose another --output")
    return True


def train_row(folder: Path, row: str, seed: int, options: Mapping[str, str | None]) -> None:
    """Train one row with one seed, or resume its training, and write its result file."""
    changes = row_options(row, load_recipe(RECIPE, options))
    keys = {**options, **changes, "seed": str(seed)}
    model = folder / f"{row}-seed{seed}"
    recipe = load_recipe(RECIPE, {**keys, "output_dir": str(model)})
    train(recipe)
    progress = progress_of(model)
    result = {
        "row": row,
        "seed": seed,
        "change": in_symbols(changes),
        "options": portable(options),
        **measure(model, recipe),
        "parameters": parameters(model),
        "steps": progress["step"],
        "tokens": progress["tokens"],
        "cpu_seconds": round(progress["cpu_seconds"], 1),
        **provenance(command_line("train", {"config": RECIPE}, keys), [seed], progress["seconds"]),
    }
    write_json(folder / f"{row}-seed{seed}.json", result)
    for name in ("checkpoints", "corpus"):
        shutil.rmtree(model / name, ignore_errors=True)


def measure(model: Path, recipe: Recipe) -> dict[str, Any]:
    """Return perplexity per token and BLEU on the development set, as in the paper's table."""
    development = text_of_recipe(recipe)  # its validation text: the recipe names no test corpus
    translator = Translator.from_pretrained(model)
    nats = nats_per_token(translator, development.sources, development.references)
    metric = BLEU(force=True)
    translations = translator.translate(development.sources, split_sentences=False)
    score = metric.corpus_score(translations, [development.references], n_bootstrap=1000)
    signature = str(metric.get_signature())
    rounded = json.loads(score.format(width=3, signature=signature, is_json=True))
    return {
        "development": development.name,
        "perplexity": math.exp(nats),
        "bleu": rounded["score"],
        "bleu_interval": rounded.get("confidence_var"),
        "bleu_signature": signature,
    }


def nats_per_token(translator: Translator, sources: list[str], references: list[str]) -> float:
    """Return the mean negative log-likelihood of the references' tokens, `</s>` included."""
    scores = translator.score(sources, references)
    return -math.fsum(score.total for score in scores) / sum(len(score.tokens) for score in scores)


def in_symbols(options: dict[str, str]) -> str:
    """Write a row's changes in the paper's symbols: `h 4, d_ff 256`."""
    changes = {}
    for key, value in options.items():
        field = re.sub(r"^(model\.)?((en|de)coder_)?", "", key)
        changes[SYMBOLS.get(field, field)] = value
    changes.pop("max_position_embeddings", None)
    return ", ".join(f"{key} {value}" for key, value in changes.items())


# ---- the table ---------------------------------------------------------------------------------------------------


def judge_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge the direction of each row by its differences from the base row, seed by seed."""
    measured = {(row["row"], row["seed"]): row for row in rows}
    judged = []
    for name, claim, bleu_sign, perplexity_sign in DIRECTIONS:
        seeds = [seed for row, seed in measured if row == name and ("base", seed) in measured]
        if not seeds:
            continue
        pairs = [(measured[name, seed], measured["base", seed]) for seed in seeds]
        bleu = [row["bleu"] - base["bleu"] for row, base in pairs]
        nats = [math.log(row["perplexity"] / base["perplexity"]) for row, base in pairs]
        judged.append(
            {
                "row": name,
                "claim": claim,
                "seeds": seeds,
                "bleu_difference": mean_interval(bleu),
                "perplexity_ratio": [round(math.exp(difference), 4) for difference in nats],
                "bleu_shown": with_interval(bleu, signed=True),
                "perplexity_shown": with_interval([100 * difference for difference in nats], 1, signed=True),
                "bleu_verdict": verdict(mean_interval(bleu), bleu_sign, MARGIN["bleu"]),
                "perplexity_verdict": verdict(mean_interval(nats), perplexity_sign, MARGIN["log_perplexity"]),
            }
        )
    return judged


def as_markdown(rows: list[dict[str, Any]]) -> str:
    quoted = PAPER["table3"]
    measured = []
    for name in ROWS:
        ours = [row for row in rows if row["row"] == name]
        if not ours:
            continue
        millions = quoted[name].get("parameters")
        measured.append(
            {
                "row": name,
                "change": ours[0]["change"] or "-",
                "perplexity, paper": f"{quoted[name]['perplexity']:.2f}",
                "BLEU, paper": f"{quoted[name]['bleu']:.1f}",
                "parameters, paper": "" if millions is None else f"{millions / 1e6:.0f} M",
                "perplexity, ours": with_interval([row["perplexity"] for row in ours]),
                "BLEU, ours": with_interval([row["bleu"] for row in ours]),
                "bootstrap ±": f"{max(row['bleu_interval'] or 0 for row in ours):.2f}",
                "parameters, ours": f"{ours[0]['parameters'] / 1e6:.2f} M",
                "seeds": len(ours),
            }
        )
    judged = [
        {
            "row": row["row"],
            "claim": row["claim"],
            "BLEU, paper": f"{quoted[row['row']]['bleu'] - quoted['base']['bleu']:+.1f}",
            "BLEU, ours": row["bleu_shown"],
            "verdict on BLEU": row["bleu_verdict"],
            "log-perplexity, paper": (
                f"{100 * math.log(quoted[row['row']]['perplexity'] / quoted['base']['perplexity']):+.1f}"
            ),
            "ours": row["perplexity_shown"],
            "verdict on log-perplexity": row["perplexity_verdict"],
        }
        for row in judge_rows(rows)
    ]
    return (
        markdown(measured)
        + "\nDifferences from the base row; log-perplexity in hundredths of a nat per token:\n\n"
        + markdown(judged)
    )
