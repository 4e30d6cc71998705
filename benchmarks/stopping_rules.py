"""How early may beam search stop without changing translations?

    python -m benchmarks.stopping_rules MODEL data/multi30k/val.en.gz data/multi30k/val.de.gz --beam 4 --alpha 0.6

Row:  a stopping rule, named by its value of `early_stopping`, on one text.
Unit: `steps_per_token`, decoding steps per token of the translations. Each step counts once for every sentence that is
      unfinished, so a search that stops with a sentence's last token has 1.
Peer: "never", which stops only when no live hypothesis can win any more.

`differ` counts translations that are not those of "never", and `lower_scores` those among them with a lower score. Only
`seconds`, CPU seconds, depends on the machine.
"""

import time
from functools import partial
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import typer
from sacrebleu import corpus_bleu

from vaswani_transformer import TorchTranslator, beam_search
from vaswani_transformer.lines import read_lines

from .harness import Row, report, run, timed
from .options import Record

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
    sources, expected = list(read_lines(texts)), list(read_lines(references))
    translator = TorchTranslator.from_pretrained(model, device="cpu")
    step, steps = beam_search.step, 0

    def counted_step(decoder, memory, constants, state, *settings):
        nonlocal steps
        steps += int((~state.done).sum())
        return step(decoder, memory, constants, state, *settings)

    rows: list[Row] = []
    exact = []  # the translations by "never", which comes first
    for rule in RULES:
        steps = 0
        settings = {"num_beams": beam, "length_penalty": alpha, "early_stopping": rule}
        search = partial(translator.find_hypotheses, sources, **settings, split_sentences=False)
        with patch.object(beam_search, "step", counted_step):
            seconds, found = timed(search, time.process_time)
        best = [hypotheses[0] for hypotheses in found]
        exact = exact or best
        pairs = list(zip(best, exact, strict=True))
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
    report(rows, record)


if __name__ == "__main__":
    run(compare)
