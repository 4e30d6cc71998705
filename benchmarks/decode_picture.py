"""The picture of a race: BLEU against sentences per second, a line for each system and a point for each batch size."""

from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.pictures import RESOLUTION, figure_class


def draw(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """rows: those of `decode.py`, with BLEU; path: the PNG file to write."""
    figure = figure_class()(figsize=(8, 5), layout="constrained", dpi=RESOLUTION)
    axis = figure.subplots()
    for system in dict.fromkeys(row["system"] for row in rows):
        of_system = [row for row in rows if row["system"] == system]
        speeds = [row["sentences"] / row["seconds"] for row in of_system]
        scores = [float(row["bleu"]) for row in of_system]
        # Peers are dashed.
        ours = system.startswith(("onnx", "torch"))
        (line,) = axis.plot(speeds, scores, "o-" if ours else "s--", label=system, markersize=5)
        for row, speed, score in zip(of_system, speeds, scores, strict=True):
            label = row["batch"].removesuffix(" tokens")
            axis.annotate(label, (speed, score), (3, 4), textcoords="offset points", fontsize=7, color=line.get_color())
    axis.set(xscale="log", xlabel="sentences per second (numbers: sentences or tokens per batch)", ylabel="BLEU")
    axis.set_title(title, fontsize=10)
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.xaxis.set_minor_formatter("{x:.0f}")
    low, high = axis.get_ylim()
    axis.set_ylim((low + high - max(high - low, 3)) / 2, (low + high + max(high - low, 3)) / 2)  # 0.1 BLEU is noise
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
    with atomic_file(path) as file:
        figure.savefig(file, format="png")
