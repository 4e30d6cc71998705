"""The Transformer of "Attention Is All You Need" for the Hugging Face ecosystem.

Importing the package registers the model with transformers' Auto classes:

>>> import vaswani_transformer
>>> from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
>>> model = AutoModelForSeq2SeqLM.from_pretrained("folder-or-repository")

Files, in reading order (`...` is vaswani_transformer); those with this ending are copied into every saved model:

configuration_..., modeling_...   the model and `generate()`
beam_search.py                    the faster search of Translator and ONNX; cached_decoder.py: the decoder that it steps
search_settings.py                limits, defaults and stopping rule of both backends
text_translator.py                texts -> sentences (text_...) -> batches -> translations; translator.py searches with
                                  torch, onnx_translator.py with ONNX Runtime
pipeline_...                      `pipeline("translation")`
tokenization.py                   trains a tokenizer
loading.py, model_folder.py       read and check a model folder; atomic.py writes files and folders
cli.py                            the commands; command_translator.py, programs.py, launch.py, demo.py, doctor.py,
                                  tried_versions.py
errors.py, exit.py, lines.py      errors and exit codes; text files and pipes
attention_maps.py, pictures.py    figures
training_run.py                   what a training run leaves in its folder: progress, log, curve
"""

import os
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from .exit import FIRST_ERROR, exit_on_signals

if TYPE_CHECKING:  # for editors; at run time `__getattr__` below imports these names on first use
    from .configuration_vaswani_transformer import PRESETS, VaswaniTransformerConfig
    from .modeling_vaswani_transformer import (
        VaswaniTransformerForConditionalGeneration,
        VaswaniTransformerModel,
        gnmt_length_penalty,
        label_smoothed_cross_entropy,
        scaled_dot_product_attention,
        sinusoidal_positional_encoding,
    )
    from .translator import Translator

__version__ = "0.1.0"

_MODULE_OF = {
    "PRESETS": "configuration_vaswani_transformer",
    "VaswaniTransformerConfig": "configuration_vaswani_transformer",
    "VaswaniTransformerForConditionalGeneration": "modeling_vaswani_transformer",
    "VaswaniTransformerModel": "modeling_vaswani_transformer",
    "gnmt_length_penalty": "modeling_vaswani_transformer",
    "label_smoothed_cross_entropy": "modeling_vaswani_transformer",
    "scaled_dot_product_attention": "modeling_vaswani_transformer",
    "sinusoidal_positional_encoding": "modeling_vaswani_transformer",
    "Translator": "translator",
}
__all__ = [*_MODULE_OF, "register"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name in _MODULE_OF:
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Register the model with AutoConfig, AutoModel, AutoModelForSeq2SeqLM and `pipeline("translation")`."""
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

    from .configuration_vaswani_transformer import VaswaniTransformerConfig
    from .modeling_vaswani_transformer import VaswaniTransformerForConditionalGeneration, VaswaniTransformerModel
    from .pipeline_vaswani_transformer import register_pipeline

    AutoConfig.register("vaswani_transformer", VaswaniTransformerConfig, exist_ok=True)
    AutoModel.register(VaswaniTransformerConfig, VaswaniTransformerModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration, exist_ok=True)
    register_pipeline()


# ONNX Runtime 1.31 collects and sends usage data by default.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# The console script, `python -m vaswani_transformer`, and the processes of launch.py.
_COMMANDS = {("-m", __name__), ("-m", f"{__name__}.launch")}
if (
    Path(sys.argv[0]).stem == "vaswani-transformer"
    or _COMMANDS & {*pairwise(sys.orig_argv)}
    or FIRST_ERROR in os.environ
):
    # They answer --help without importing torch, which takes seconds, and Ctrl-C already ends them during the imports.
    exit_on_signals("SIGINT")
else:
    try:
        register()
    except ModuleNotFoundError as error:  # the ONNX backend needs neither torch nor transformers
        if (error.name or "").partition(".")[0] not in ("torch", "transformers"):
            raise
