"""The two pictures of a card: who attends to whom in the example, and the losses over the steps of the training."""

import io
from typing import TYPE_CHECKING, Any

from vaswani_transformer.pictures import RESOLUTION, attention_figure, attention_maps, figure_class
from vaswani_transformer.translator import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attention_picture(translator: Translator, example: str) -> bytes:
    """Cross-attention of the last decoder layer in a sentence and its translation, as PNG."""
    maps = attention_maps(translator.model, translator.tokenizer, example, target_tokenizer=translator.target_tokenizer)
    return png(attention_figure(maps))


def training_curve(metrics: list[dict[str, Any]]) -> bytes | None:
    """Losses over steps, from the lines of metrics.jsonl, as PNG; None where there are fewer than two."""
    curves = {
        "training": [(line["step"], line["loss"]) for line in metrics if "loss" in line],
        "validation": [(line["step"], line["validation_loss"]) for line in metrics if "validation_loss" in line],
    }
    if max(map(len, curves.values())) < 2:
        return None
    figure = figure_class()(figsize=(8, 4), layout="constrained", dpi=RESOLUTION)
    axis = figure.subplots()
    for (name, points), style in zip(curves.items(), ("-", "o-"), strict=True):
        if points:
            axis.plot(*zip(*points, strict=True), style, label=name, markersize=3, linewidth=1.2)
    axis.set_xlabel("step")
    axis.set_ylabel("loss, nats per token")
    axis.grid(alpha=0.3)
    axis.legend()
    return png(figure)


def png(figure: "Figure") -> bytes:
    """The same bytes for the same picture: without the date and version that matplotlib would write into it."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
