"""Table 3 at a small scale: every row with the paper's proportions, and tests of the paper's findings.

The result of each row and seed is OUTPUT/table3/ROW-seedN.json; table3.json collects them. The same command resumes
interrupted runs and skips finished ones.
"""

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics.bleu import BLEU

from training.evaluate import read_recipe_text
from training.model import check_model_fields, model_config
from training.recipe import Recipe, load_recipe
from training.result_row import parameters
from training.train import train
from vaswani_transformer import PRESETS, TorchTranslator, VaswaniTransformerConfig
from vaswani_transformer.errors import InputError
from vaswani_transformer.files import read_json_object
from vaswani_transformer.training_run import read_progress

from .parallel import run_in_processes
from .result_files import (
    PAPER,
    check_command,
    describe_origin,
    format_command,
    format_table,
    is_measured,
    write_result,
)
from .verdicts import Interval, compare_with_control, format_interval, format_mean, judge

RECIPE_NAME = "paper/recipes/multi30k_table3.yaml"  # in a clone
RECIPE = str(Path(__file__).parents[1] / RECIPE_NAME)
ROWS: list[str] = list(PAPER["table3"])

# Sections 5.4 and 6.2: row, finding, signs of its differences from the base row in BLEU and in perplexity. The verdicts
# compare our differences with these signs; the paper's numbers are only shown beside them.
FINDINGS = (
    ("A-h1", "a single head is worse", -1, +1),
    ("A-h32", "too many heads are worse", -1, +1),
    ("B-dk16", "a small key size hurts", -1, +1),
    ("B-dk32", "a small key size hurts", -1, +1),
    ("C-N2", "fewer layers are worse", -1, +1),
    ("C-N4", "fewer layers are worse", -1, +1),
    ("C-N8", "more layers: better perplexity, lower BLEU", -1, -1),
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


def resolve_fields(config: VaswaniTransformerConfig) -> dict[str, Any]:
    """Return the fields of a config, with d_k and d_v resolved to numbers."""
    of_head = config.d_model // config.encoder_attention_heads
    return config.to_dict() | {"d_k": config.d_k or of_head, "d_v": config.d_v or of_head}


def scale_row(row: str, base: Recipe) -> dict[str, str]:
    """Return the row's changes as recipe keys: the sizes of its preset, scaled from the paper's base model to ours.

    B-dk16 has d_k 16 where the paper's base model has 64, so it has d_k 4 where our base row has 16.
    """
    # Label smoothing is a key of the recipe, not a field of the model, so the presets of its rows are empty.
    if smoothing := re.fullmatch(r"D-ls(.*)", row):
        return {"label_smoothing": smoothing[1]}
    paper, ours = resolve_fields(VaswaniTransformerConfig()), resolve_fields(model_config(base, base.vocab_size))
    options = {}
    for field, value in PRESETS[row].items():
        if isinstance(value, int) and isinstance(paper[field], int):
            value = max(1, round(value * ours[field] / paper[field]))
        options[f"model.{field}"] = str(value)
    return options


def parse_rows(rows: str | None) -> list[str]:
    """Return the rows of a list separated by commas, each once; all if there is none."""
    names = ROWS if rows is None else list(dict.fromkeys(rows.split(",")))
    for row in names:
        if row not in ROWS:
            raise InputError(f"--rows {row}: not a row of Table 3; rows: {', '.join(ROWS)}")
    return names


def write_table3(output: Path, rows: list[str], seeds: list[int], jobs: int, options: Mapping[str, str | None]) -> str:
    """Train and measure the missing rows, `jobs` in parallel, write table3.json and return the table in Markdown.

    Raises InputError if a row in the folder has other options: such rows cannot be compared.
    """
    folder, base = output / "table3", load_recipe(RECIPE, options)
    check_model_fields(base)

    def train_command(row: str, seed: int) -> str:
        keys = {**options, **scale_row(row, base), "seed": str(seed)}
        return format_command("vaswani-transformer train", {"config": RECIPE_NAME}, keys)

    for path in sorted(folder.glob("*-seed*.json")):
        before = read_json_object(path)
        check_command(path, train_command(before["row"], before["seed"]))
    missing = []
    for seed in seeds:
        for row in rows:
            command = train_command(row, seed)
            if not is_measured(folder / f"{row}-seed{seed}.json", command):
                call = partial(train_row, folder, row, seed, options, scale_row(row, base), command)
                missing.append((folder / f"{row}-seed{seed}.log", call))
    run_in_processes(missing, jobs)
    measured = [read_json_object(path) for path in folder.glob("*-seed*.json")]
    measured.sort(key=lambda row: (ROWS.index(row["row"]), row["seed"]))
    result = {"made_by": format_command("python -m paper table3", {}, options), "rows": measured}
    write_result(output / "table3.json", result)
    return format_result(result)


def train_row(
    folder: Path, row: str, seed: int, options: Mapping[str, str | None], changes: Mapping[str, str], command: str
) -> None:
    """Train one row with one seed, or resume its training, and write its result file.

    options, changes: recipe keys;  command: trains the row
    """
    model = folder / f"{row}-seed{seed}"
    recipe = load_recipe(RECIPE, {**options, **changes, "seed": str(seed), "output_dir": str(model)})
    train(recipe)
    progress = read_progress(model)
    result = {
        "row": row,
        "seed": seed,
        "change": format_changes(changes),
        **measure(model, recipe),
        "parameters": parameters(model),
        "steps": progress["step"],
        "tokens": progress["tokens"],
        "cpu_seconds": round(progress["cpu_seconds"], 1),
        **describe_origin(command, [seed], progress["seconds"]),
    }
    write_result(folder / f"{row}-seed{seed}.json", result)
    for name in ("checkpoints", "corpus"):  # most of the disk space; a finished row needs neither
        shutil.rmtree(model / name, ignore_errors=True)


def measure(model: Path, recipe: Recipe) -> dict[str, Any]:
    """Return perplexity per token and BLEU on the development set, as in the paper's table."""
    development = read_recipe_text(recipe.model_copy(update={"test": []}))  # with a test corpus, it returns that one
    translator = TorchTranslator.from_pretrained(model)
    nats = nats_per_token(translator, development.sources, development.references)
    metric = BLEU(force=True)
    translations = translator.translate(development.sources, split_sentences=False)
    score = metric.corpus_score(translations, [development.references], n_bootstrap=1000)
    signature = str(metric.get_signature())
    # The bootstrap interval is only in sacrebleu's report.
    report = json.loads(score.format(width=3, signature=signature, is_json=True))
    return {
        "development": development.name,
        "perplexity": math.exp(nats),
        "bleu": report["score"],
        "bleu_interval": report.get("confidence_var"),
        "bleu_signature": signature,
    }


def nats_per_token(translator: TorchTranslator, sources: list[str], references: list[str]) -> float:
    """Return the mean negative log-likelihood of the references' tokens, `</s>` included."""
    scores = translator.score(sources, references)
    return -math.fsum(score.total for score in scores) / sum(len(score.tokens) for score in scores)


def format_changes(options: Mapping[str, str]) -> str:
    """Write a row's changes in the paper's symbols: `h 4, d_ff 256`."""
    changes = {}
    for key, value in options.items():
        field = re.sub(r"^(model\.)?((en|de)coder_)?", "", key)
        changes[SYMBOLS.get(field, field)] = value
    changes.pop("max_position_embeddings", None)  # the size of the table of learned positions
    return ", ".join(f"{key} {value}" for key, value in changes.items())


# ---- the table ---------------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """A finding of the paper with our differences and their verdicts."""

    row: str
    finding: str
    bleu: Interval
    log_perplexity: Interval
    bleu_verdict: str
    perplexity_verdict: str


def judge_rows(rows: list[dict[str, Any]]) -> list[Judged]:
    """Judge the paper's findings by the differences of the rows from the base row, over all seeds.

    The intervals are simultaneous: with 95 % probability, all of both measures contain the true differences.
    """
    measured = {finding[0] for finding in FINDINGS} & {row["row"] for row in rows}
    findings = [finding for finding in FINDINGS if finding[0] in measured]
    if not findings or all(row["row"] != "base" for row in rows):
        return []

    def compare(measure: Callable[[dict[str, Any]], float]) -> list[Interval]:
        samples = {name: [measure(row) for row in rows if row["row"] == name] for name in ("base", *measured)}
        return compare_with_control([samples[name] for name, *_ in findings], samples["base"], 2 * len(findings))

    judged = []
    differences = zip(compare(itemgetter("bleu")), compare(lambda row: math.log(row["perplexity"])), strict=True)
    for (name, finding, *signs), (bleu, log_perplexity) in zip(findings, differences, strict=True):
        on_bleu = judge(bleu, signs[0], MARGIN["bleu"])
        on_perplexity = judge(log_perplexity, signs[1], MARGIN["log_perplexity"])
        judged.append(Judged(name, finding, bleu, log_perplexity, on_bleu, on_perplexity))
    return judged


def format_result(result: dict[str, Any]) -> str:
    """Return the table in Markdown. result: the content of table3.json"""
    rows, paper = result["rows"], PAPER["table3"]
    measured = []
    for name in ROWS:
        ours = [row for row in rows if row["row"] == name]
        if not ours:
            continue
        millions = paper[name].get("parameters")
        measured.append(
            {
                "row": name,
                "change": ours[0]["change"] or "-",
                "perplexity, paper": f"{paper[name]['perplexity']:.2f}",
                "BLEU, paper": f"{paper[name]['bleu']:.1f}",
                "parameters, paper": "" if millions is None else f"{millions / 1e6:.0f} M",
                "perplexity, ours": format_mean([row["perplexity"] for row in ours]),
                "BLEU, ours": format_mean([row["bleu"] for row in ours]),
                "bootstrap ±": f"{max(row['bleu_interval'] or 0 for row in ours):.2f}",
                "parameters, ours": f"{ours[0]['parameters'] / 1e6:.2f} M",
                "seeds": len(ours),
            }
        )
    findings = []
    for judged in judge_rows(rows):
        theirs, base = paper[judged.row], paper["base"]
        findings.append(
            {
                "row": judged.row,
                "finding": judged.finding,
                "BLEU, paper": f"{theirs['bleu'] - base['bleu']:+.1f}",
                "BLEU, ours": format_interval(judged.bleu, signed=True),
                "verdict on BLEU": judged.bleu_verdict,
                "log-perplexity, paper": format_hundredths((math.log(theirs["perplexity"] / base["perplexity"]), None)),
                "log-perplexity, ours": format_hundredths(judged.log_perplexity),
                "verdict on log-perplexity": judged.perplexity_verdict,
            }
        )
    return (
        format_budget(rows)
        + format_table(measured)
        + "\nDifferences from the base row; log-perplexity is in hundredths of a nat per token:\n\n"
        + format_table(findings)
    )


def format_budget(rows: list[dict[str, Any]]) -> str:
    """Return a sentence with the steps, the tokens and the CPU time of a row."""
    first, hours = rows[0], sorted(row["cpu_seconds"] / 3600 for row in rows)
    return (
        f"Budget: {first['steps']:,} steps, {first['tokens'] / 1e6:.1f} million source and target tokens, and "
        f"{hours[0]:.2f} to {hours[-1]:.2f} CPU hours per row and seed. The paper's rows have 100,000 steps and 5,000 "
        "million tokens.\n\n"
    )


def format_hundredths(interval: Interval) -> str:
    """Format a difference of log-perplexities in hundredths of a nat."""
    mean, half = interval
    return format_interval((100 * mean, None if half is None else 100 * half), 1, signed=True)
