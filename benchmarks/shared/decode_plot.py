"""Plots BLEU against sentences per second: a line for each system and a point for each batch size."""

from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.pictures import new_figure


def draw(rows: list[dict[str, Any]], ours: set[str], title: str, path: Path) -> None:
    """Write the plot as a PNG file.

    rows: those of `decode.py`, with BLEU.  ours: names of systems with a solid line; the others are dashed
    """
    figure = new_figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    for system in dict.fromkeys(row["system"] for row in rows):
        of_system = [row for row in rows if row["system"] == system]
        speeds = [row["sentences"] / row["seconds"] for row in of_system]
        scores = [float(row["bleu"]) for row in of_system]
        style = "o-" if system in ours else "s--"
        (line,) = axis.plot(speeds, scores, style, label=system, markersize=5)
        # Close points have their labels above and below the line in turn.
        points = sorted(zip(speeds, scores, of_system, strict=True), key=lambda point: point[0])
        for n, (speed, score, row) in enumerate(points):
            label, color = row["batch"].removesuffix(" tokens"), line.get_color()
            place = {"xytext": (0, 4 if n % 2 else -11), "textcoords": "offset points", "ha": "center"}
            axis.annotate(label, (speed, score), fontsize=7, color=color, **place)
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
