"""Write the pictures of figures 1 to 5 and of the walk through attention, each with its row file."""

import time
from pathlib import Path
from typing import Any

from vaswani_transformer import Translator
from vaswani_transformer.attention import attention_maps

from ..json_files import write_json
from . import architecture, heads
from .rows import origin, save, write_table
from .walk import walk, walk_figure


def draw(translator: Translator, number: int, source: str, output: Path, command: str) -> Path:
    """Write figureN.png and figureN.json, and return the path of the picture."""
    started, model = time.perf_counter(), translator.model
    if number <= 2:
        picture = (architecture.figure1, architecture.figure2)[number - 1](model)
        found: dict[str, Any] = {"parameters": sum(each.numel() for each in model.parameters())}
    else:
        maps = heads.word_maps(attention_maps(model, translator.tokenizer, source))
        picture, found = heads.figure_of(maps, number)
    path = output / f"figure{number}.png"
    save(picture, path)
    write_json(path.with_suffix(".json"), found | origin(command, [], time.perf_counter() - started))
    return path


def draw_walk(
    translator: Translator,
    source: str,
    target: str | None,
    kind: str,
    layer: int,
    head: int,
    output: Path,
    command: str,
) -> None:
    """Write walk.png and walk.json, which holds all numbers."""
    started = time.perf_counter()
    values, maps = walk(translator, source, target, kind, layer, head)
    save(walk_figure(values, maps, kind, layer, head), output / "walk.png")
    # JSON has no infinity: null where attending is not allowed.
    numbers = {
        name: [[round(x, 5) if x > -1e30 else None for x in row] for row in tensor.tolist()]
        for name, tensor in values.items()
    }
    labels = {"source": maps.source, "target": maps.target, "kind": kind, "layer": layer, "head": head}
    write_json(output / "walk.json", labels | numbers | origin(command, [], time.perf_counter() - started))


def report_heads(translator: Translator, sentences: list[str], output: Path, command: str) -> None:
    """Write heads.json and heads.md."""
    started = time.perf_counter()
    rows = heads.head_report(translator, sentences)
    about = {"sentences": len(sentences), "heads": rows} | origin(command, [], time.perf_counter() - started)
    write_table(output, "heads", about, heads.heads_table(rows))
