"""Write Figures 1 to 5: the architecture of a model, and heads of its encoder self-attention."""

import time
from pathlib import Path
from typing import Any

from vaswani_transformer import TorchTranslator
from vaswani_transformer.attention_maps import attention_maps

from ..plots import save_picture
from ..result_files import describe_origin, format_command, write_result
from .architecture import draw_figure1, draw_figure2
from .head_figures import draw_figure3, draw_figure4, draw_figure5, join_words

# A caption with a pronoun and a dependency over several words, for models trained on image captions.
SENTENCE = "A man in a blue shirt is throwing a ball to his dog while two children are watching them ."
OF_MODULES = {1: draw_figure1, 2: draw_figure2}
OF_HEADS = {3: draw_figure3, 4: draw_figure4, 5: draw_figure5}


def write_figures(output: Path, model: Path, numbers: list[int], source: str | None) -> list[Path]:
    """Write figureN.png and figureN.json for every number, and return the paths of the pictures.

    source: the sentence of Figures 3 to 5
    """
    translator = TorchTranslator.from_pretrained(model, device="cpu", dtype="float32", local_files_only=True)
    paths = []
    for number in numbers:
        started = time.perf_counter()
        if number in OF_MODULES:
            picture = OF_MODULES[number](translator.model)
            result: dict[str, Any] = {"parameters": translator.model.num_parameters()}
        else:
            maps = join_words(attention_maps(translator.model, translator.tokenizer, source or SENTENCE))
            picture, result = OF_HEADS[number](maps)
        path = output / f"figure{number}.png"
        save_picture(picture, path)
        command = format_command(f"python -m paper figure{number}", {"model": model, "source": source})
        write_result(path.with_suffix(".json"), result | describe_origin(command, [], time.perf_counter() - started))
        paths.append(path)
    return paths
