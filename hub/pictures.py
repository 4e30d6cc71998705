"""The card's pictures: attention in the example, and the training curve, as PNG."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from vaswani_transformer.attention import attention_maps
from vaswani_transformer.pictures import attention_figure, curve_figure, curves_of
from vaswani_transformer.translator import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attention_picture(translator: Translator, example: str) -> bytes:
    """Draw the cross-attention of the last decoder layer for a sentence and its translation.

    The mean of the heads: the Hub shows a card 760 pixels wide, where the labels of a panel per head cannot be read.
    """
    maps = attention_maps(translator.model, translator.tokenizer, example, target_tokenizer=translator.target_tokenizer)
    return png(attention_figure(maps, head=0))


def training_curve(folder: Path) -> bytes | None:
    """Draw the losses, and BLEU if it was measured, over the steps of the folder's run; None without a log."""
    if not (folder / "metrics.jsonl").is_file():
        return None
    curves = curves_of(folder / "metrics.jsonl")
    return png(curve_figure(curves)) if any(curves.values()) else None


def png(figure: "Figure") -> bytes:
    """Return the same bytes for the same picture: without the version that matplotlib would add."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
