"""How much of a batch is padding? Our order against those of Seq2SeqTrainer and of fairseq, on the same sentences.

    python -m benchmarks.padding data/multi30k --tokens 4096

`padding` is the share of positions, source and target, without a token; `batches` is their number per epoch. The
Trainer's batches have a fixed number of sentences, whose average is --tokens tokens. Nothing is trained.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .harness import ANY_HARDWARE, DataFolder, Record, VocabularySize, load_recipe, report, run, tokenised


def compare(
    data: DataFolder,
    tokens: Annotated[int, typer.Option(min=100, help="Source + target tokens of a batch.")] = 4096,
    vocab_size: VocabularySize = 8000,
    record: Record = None,
) -> None:
    """Compare how much padding different orders of the training data cause."""
    with tempfile.TemporaryDirectory() as folder:
        _, corpus = tokenised(load_recipe({"data": str(data), "vocab_size": vocab_size}), Path(folder))
        source, target = np.array(corpus.source_lengths), np.array(corpus.target_lengths)
    rows = []
    for order, batches in orders(source, target, tokens).items():
        found = [(source[batch], target[batch]) for batch in batches]
        positions = sum(len(s) * int(s.max()) + len(t) * int(t.max()) for s, t in found)
        rows.append(
            {
                "pairs": len(source),
                "tokens_per_batch": tokens,
                "order": order,
                "padding": round(1 - (int(source.sum()) + int(target.sum())) / positions, 4),
                "batches": len(found),
            }
        )
    report(rows, record, ANY_HARDWARE)


def orders(source: np.ndarray, target: np.ndarray, tokens: int) -> dict[str, Iterable[Any]]:
    """Return the batches of an epoch, each an array of pairs, in the order of each program."""
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    from training.batches import Epoch, plan_batches

    plan = plan_batches(source, target, tokens)
    epoch = Epoch(plan, seed=1, epoch=0)
    fixed = max(1, round(tokens / float(source.mean() + target.mean())))
    shuffled = np.random.default_rng(0).permutation(len(source))
    generator = torch.Generator().manual_seed(0)
    grouped = np.array(list(LengthGroupedSampler(fixed, lengths=source.tolist(), generator=generator)))
    return {
        "ours: by the longer side, then source, shuffled": [epoch.step(i)[0] for i in range(plan.steps_per_epoch)],
        "Seq2SeqTrainer, random": np.array_split(shuffled, -(-len(source) // fixed)),
        "Seq2SeqTrainer, group_by_length (its own sampler)": np.array_split(grouped, -(-len(source) // fixed)),
        "fairseq's: by target, then source": by_budget(np.lexsort((source, target)), source, target, tokens),
        "random, filled up to the budget (JoeyNMT)": by_budget(shuffled, source, target, tokens),
    }


def by_budget(order: np.ndarray, source: np.ndarray, target: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Split the order into batches that are as large as their padded positions allow."""
    batches, first, widest = [], 0, (0, 0)
    for i, pair in enumerate(order):
        grown = max(widest[0], int(source[pair])), max(widest[1], int(target[pair]))
        if i > first and sum(grown) * (i - first + 1) > tokens:
            batches.append(order[first:i])
            first, grown = i, (int(source[pair]), int(target[pair]))
        widest = grown
    return [*batches, order[first:]]


if __name__ == "__main__":
    run(compare)
