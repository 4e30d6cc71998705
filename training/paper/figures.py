"""Write Figures 1 to 5: the architecture of a model, and heads of its encoder self-attention."""

import time
from pathlib import Path
from typing import Any

from vaswani_transformer.attention_maps import attention_maps
from vaswani_transformer.command_translator import load_translator

from .architecture import figure1, figure2
from .head_figures import heads_figure, word_maps
from .plots import save
from .result_files import command_line, provenance, write_result

# A caption with a pronoun and a dependency over several words, for models trained on image captions.
SENTENCE = "A man in a blue shirt is throwing a ball to his dog while two children are watching them ."


def draw_figures(model: Path, numbers: list[int], source: str | None, output: Path) -> list[Path]:
    """Write figureN.png and figureN.json for every number, and return the paths of the pictures."""
    translator = load_translator(str(model), "cpu", "float32", download=False)
    paths = []
    for number in numbers:
        started = time.perf_counter()
        if number <= 2:
            picture = (figure1 if number == 1 else figure2)(translator.model)
            result: dict[str, Any] = {"parameters": sum(weight.numel() for weight in translator.model.parameters())}
        else:
            maps = word_maps(attention_maps(translator.model, translator.tokenizer, source or SENTENCE))
            picture, result = heads_figure(maps, number)
        path = output / f"figure{number}.png"
        save(picture, path)
        command = command_line(f"paper figure{number}", {"model": model, "source": source})
        write_result(path.with_suffix(".json"), result | provenance(command, [], time.perf_counter() - started))
        paths.append(path)
    return paths
