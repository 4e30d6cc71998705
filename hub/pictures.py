"""The two pictures of a card: who attends to whom in the example, and the curve of the training."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from vaswani_transformer.pictures import attention_figure, attention_maps, curve_figure, curves_of
from vaswani_transformer.translator import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attention_picture(translator: Translator, example: str) -> bytes:
    """Cross-attention of the last decoder layer in a sentence and its translation, as PNG."""
    maps = attention_maps(translator.model, translator.tokenizer, example, target_tokenizer=translator.target_tokenizer)
    return png(attention_figure(maps))


def training_curve(folder: Path) -> bytes | None:
    """Loss over the steps of the run in the folder, and BLEU where it was measured, as PNG; None if none is logged."""
    if not (folder / "metrics.jsonl").is_file():
        return None
    curves = curves_of(folder / "metrics.jsonl")
    return png(curve_figure(curves)) if any(curves.values()) else None


def png(figure: "Figure") -> bytes:
    """The same bytes for the same picture: without the date and version that matplotlib would write into it."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
