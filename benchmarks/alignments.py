"""How well do attention heads align words, compared with models that were made for it?

    python -m benchmarks.alignments MODEL SOURCE TARGET --train-source train.en.gz --train-target train.de.gz

Row:  a head and a step, the heads chosen on the first 1,000 training pairs, the default heads, or IBM Model 2.
Unit: `error_rate`, the alignment error rate (AER) of Och and Ney (2003) on the pairs of SOURCE and TARGET.
Peer: IBM Model 2 of nltk, trained on the first 5,000 of the pairs and of the training pairs.

Without --reference, the reference is eflomal (pip install eflomal), trained on all pairs: links of both directions are
sure, those of one direction possible. It is not a gold standard: a system that errs like eflomal gains by it.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from vaswani_transformer import TorchTranslator
from vaswani_transformer.alignment_heads import (
    IBM_PAIRS,
    Reference,
    align_with_eflomal,
    align_with_ibm_model,
    attention_of_heads,
    default_heads,
    plain_words,
    read_references,
)
from vaswani_transformer.alignments import align_text, find_links
from vaswani_transformer.lines import read_lines

from .harness import Row, report, run
from .options import Record

CHOOSING = 1000  # training pairs, as of the command `choose-heads`


def compare(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    source: Annotated[Path, typer.Argument(help="Text to align, a sentence per line.")],
    target: Annotated[Path, typer.Argument(help="Its translation.")],
    train_source: Annotated[Path, typer.Option(help="Further text, to train the aligners and to choose heads.")],
    train_target: Annotated[Path, typer.Option(help="Its translation.")],
    reference: Annotated[Path | None, typer.Option(help="The alignment of SOURCE and TARGET.")] = None,
    sentences: Annotated[int | None, typer.Option(help="Only the first lines of SOURCE.")] = None,
    train_sentences: Annotated[int | None, typer.Option(help="Only the first lines of the further text.")] = None,
    record: Record = None,
) -> None:
    """Compare the word alignments of attention heads and of IBM Model 2 with a reference."""
    sources, targets = (list(islice(read_lines(path), sentences)) for path in (source, target))
    count, further = (
        len(sources),
        [list(islice(read_lines(path), train_sentences)) for path in (train_source, train_target)],
    )
    pairs = [(plain_words(a), plain_words(b)) for a, b in zip(sources + further[0], targets + further[1], strict=True)]
    silver = [Reference(forward & backward, forward | backward) for forward, backward in align_with_eflomal(pairs)]
    expected = silver[:count] if reference is None else read_references(reference, sources, targets)
    rows: list[Row] = []

    def add(system: str, rate: float) -> None:
        rows.append({"sentences": count, "training_pairs": len(pairs), "system": system, "error_rate": round(rate, 3)})

    translator = TorchTranslator.from_pretrained(model, device="cpu")
    for head, rate in sorted(translator.choose_heads(sources, targets, expected).single.items()):
        add(str(head), rate)
    parts = translator.attend(sources, targets)
    config = translator.model.config
    defaults = default_heads(config.decoder_layers, config.decoder_attention_heads)
    chosen = translator.choose_heads(
        further[0][:CHOOSING], further[1][:CHOOSING], silver[count : count + CHOOSING]
    ).heads
    for name, heads in (("default", defaults), ("chosen", chosen)):
        found = [
            find_links(align_text(a, b, [part._replace(attention=attention_of_heads(part.attention, heads))]))
            for a, b, part in zip(sources, targets, parts, strict=True)
        ]
        add(f"{name}: {'; '.join(map(str, heads))}", error_rate(found, expected))
    forward, backward = zip(*align_with_ibm_model(pairs), strict=True)
    known = min(count, IBM_PAIRS)
    add("IBM Model 2", error_rate(forward[:known], expected[:known]))
    both = [a & b for a, b in zip(forward[:known], backward[:known], strict=True)]
    add("IBM Model 2, both directions", error_rate(both, expected[:known]))
    report(rows, record)


def error_rate(alignments: Iterable[Iterable[tuple[int, int]]], references: Iterable[Reference]) -> float:
    """Return the alignment error rate (AER) of Och and Ney 2003."""
    hits = total = 0
    for links, reference in zip(alignments, references, strict=True):
        found = set(links)
        hits += len(found & reference.sure) + len(found & reference.possible)
        total += len(found) + len(reference.sure)
    return 1 - hits / max(total, 1)


if __name__ == "__main__":
    run(compare)
