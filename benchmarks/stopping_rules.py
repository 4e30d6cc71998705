"""Compares stopping rules of beam search: steps per token and changed translations.

    python -m benchmarks.stopping_rules MODEL data/multi30k/val.en.gz data/multi30k/val.de.gz --beam 4 --alpha 0.6

`steps_per_token` counts a step for every unfinished sentence; a search that stops with its last token has 1. `differ`
counts translations that are not those of the first rule, which is provably exact. Only `seconds` depends on the
machine.
"""

import time
from functools import partial
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import typer

from vaswani_transformer.lines import read_lines

from .shared.harness import PORTABLE_METADATA, Record, report, run, timed

RULES = ("never", 10, 5, 2, False, True)


def compare(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    texts: Annotated[Path, typer.Argument(help="Text to translate, a sentence per line.")],
    references: Annotated[Path, typer.Argument(help="Its translations.")],
    beam: Annotated[int, typer.Option(min=2)] = 4,
    alpha: float = 0.6,
    record: Record = None,
) -> None:
    """Compare the stopping rules of the search."""
    from sacrebleu import corpus_bleu

    from vaswani_transformer import Translator, beam_search

    sources, expected = list(read_lines(texts)), list(read_lines(references))
    translator = Translator.from_pretrained(model, device="cpu")
    step, steps = beam_search.step, 0

    def counted(decoder, memory, batch_constants, constants, state, *settings):
        nonlocal steps
        steps += int((~state.done).sum())
        return step(decoder, memory, batch_constants, constants, state, *settings)

    rows, provable = [], []
    for rule in RULES:
        steps = 0
        settings = {"num_beams": beam, "length_penalty": alpha, "early_stopping": rule}
        search = partial(translator.translate, sources, **settings, split_sentences=False, return_scores=True)
        with patch.object(beam_search, "step", counted):
            seconds, found = timed(search, time.process_time)
        best = [hypotheses[0] for hypotheses in found]
        provable = provable or best
        pairs = list(zip(best, provable, strict=True))
        rows.append(
            {
                "sentences": len(sources),
                **settings,
                "steps_per_token": round(steps / sum(len(hypothesis.tokens) for hypothesis in best), 3),
                "differ": sum(ours.tokens != theirs.tokens for ours, theirs in pairs),
                "lower_scores": sum(ours.score < theirs.score - 1e-5 for ours, theirs in pairs),
                "bleu": round(corpus_bleu([hypothesis.text for hypothesis in best], [expected]).score, 2),
                "seconds": round(seconds, 1),
            }
        )
    report(rows, record, PORTABLE_METADATA)


if __name__ == "__main__":
    run(compare)
