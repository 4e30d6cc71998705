"""How much of a batch is padding? Our order against those of Seq2SeqTrainer and of fairseq, on the same sentences.

    python -m benchmarks.padding data/multi30k --tokens 4096

Padding is the share of positions, source and target, that hold no token; `batches` is how many an epoch has. The
Trainer's batches have a fixed number of sentences, as many as have --tokens tokens on average. Nothing is trained.
"""

import tempfile
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from vaswani_transformer.errors import exit_cleanly

from .record import append, command

app = typer.Typer(add_completion=False, rich_markup_mode=None)
COLUMNS = ("date", "commit", "command", "pairs", "tokens_per_batch", "order", "padding", "batches")


@app.command(help="Compare how much padding orders of training waste.")
def main_command(
    data: Annotated[Path, typer.Argument(help="A folder with train.en and train.de (.gz too), such as Multi30k's.")],
    tokens: Annotated[int, typer.Option(min=100, help="Source + target tokens of a batch.")] = 4096,
    vocab_size: Annotated[int, typer.Option(min=300)] = 8000,
    record: Annotated[Path | None, typer.Option(help="Append the result to this CSV file.")] = None,
) -> None:
    source, target = lengths_of(data, vocab_size)
    rows = []
    for order, batches in orders(source, target, tokens).items():
        found = [(np.asarray(source[b]), np.asarray(target[b])) for b in batches]
        positions = sum(len(s) * int(s.max()) + len(t) * int(t.max()) for s, t in found)
        padding = 1 - (int(source.sum()) + int(target.sum())) / positions
        rows.append({"order": order, "padding": round(padding, 4), "batches": len(found)})
        typer.echo(f"{order:<58}{padding:>7.1%}{len(found):>7} batches")
    if record is not None:
        from training.record import commit

        about = {"date": date.today().isoformat(), "commit": commit(), "pairs": len(source), "tokens_per_batch": tokens}
        about["command"] = command("padding")
        append(record, COLUMNS, [about | row for row in rows])


def lengths_of(data: Path, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each source and target, </s> counted."""
    from training.corpus import load_corpus, parallel_texts
    from training.model import load_or_train_tokenizer
    from training.recipe import load_recipe

    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe(None, {"data": str(data), "vocab_size": str(vocab_size)})
        texts = parallel_texts(recipe, recipe.train)
        tokenizer = load_or_train_tokenizer(recipe, Path(folder), texts, lambda _: None)
        corpus = load_corpus(texts, tokenizer, recipe, Path(folder), lambda _: None)
        return np.array(corpus.source_lengths), np.array(corpus.target_lengths)


def orders(source: np.ndarray, target: np.ndarray, tokens: int) -> dict[str, Iterable[Any]]:
    """The batches of an epoch, each an array of pairs, in the order of each program."""
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    from training.batches import Epoch, plan_batches

    plan = plan_batches(source, target, tokens)
    epoch = Epoch(plan, seed=1, epoch=0)
    fixed = max(1, round(tokens / float(source.mean() + target.mean())))
    shuffled = np.random.default_rng(0).permutation(len(source))
    grouped = np.array(
        list(LengthGroupedSampler(fixed, lengths=source.tolist(), generator=torch.Generator().manual_seed(0)))
    )
    return {
        "ours: by the longer side, then source, shuffled": [epoch.step(i)[0] for i in range(plan.steps_per_epoch)],
        "Seq2SeqTrainer, random": np.array_split(shuffled, -(-len(source) // fixed)),
        "Seq2SeqTrainer, group_by_length (its own sampler)": np.array_split(grouped, -(-len(source) // fixed)),
        "fairseq's: by target, then source": by_budget(np.lexsort((source, target)), source, target, tokens),
        "random, filled up to the budget (JoeyNMT)": by_budget(shuffled, source, target, tokens),
    }


def by_budget(order: np.ndarray, source: np.ndarray, target: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Batches in this order, each as large as its padded positions allow."""
    batches, first, widest = [], 0, (0, 0)
    for i, pair in enumerate(order):
        grown = max(widest[0], int(source[pair])), max(widest[1], int(target[pair]))
        if i > first and sum(grown) * (i - first + 1) > tokens:
            batches.append(order[first:i])
            first, grown = i, (int(source[pair]), int(target[pair]))
        widest = grown
    return [*batches, order[first:]]


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="padding")


if __name__ == "__main__":
    main()
