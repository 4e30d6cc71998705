"""Write Figures 1 to 5: the architecture of a model, and heads of its encoder self-attention."""

import time
from pathlib import Path
from typing import Any

from vaswani_transformer.attention_maps import attention_maps
from vaswani_transformer.command_translator import load_translator

from ..plots import save
from ..result_files import command_line, provenance, write_result
from .architecture import figure1, figure2
from .head_figures import figure3, figure4, figure5, word_maps

# A caption with a pronoun and a dependency over several words, for models trained on image captions.
SENTENCE = "A man in a blue shirt is throwing a ball to his dog while two children are watching them ."
OF_MODULES = {1: figure1, 2: figure2}
OF_HEADS = {3: figure3, 4: figure4, 5: figure5}


def write_figures(output: Path, model: Path, numbers: list[int], source: str | None) -> list[Path]:
    """Write figureN.png and figureN.json for every number, and return the paths of the pictures.

    source: the sentence of Figures 3 to 5
    """
    translator = load_translator(str(model), "cpu", "float32", download=False)
    paths = []
    for number in numbers:
        started = time.perf_counter()
        if number in OF_MODULES:
            picture = OF_MODULES[number](translator.model)
            result: dict[str, Any] = {"parameters": translator.model.num_parameters()}
        else:
            maps = word_maps(attention_maps(translator.model, translator.tokenizer, source or SENTENCE))
            picture, result = OF_HEADS[number](maps)
        path = output / f"figure{number}.png"
        save(picture, path)
        command = command_line(f"python -m paper figure{number}", {"model": model, "source": source})
        write_result(path.with_suffix(".json"), result | provenance(command, [], time.perf_counter() - started))
        paths.append(path)
    return paths
