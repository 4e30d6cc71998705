"""The Transformer of "Attention Is All You Need" for the Hugging Face ecosystem.

Importing the package registers the model with transformers' Auto classes:

>>> import vaswani_transformer
>>> from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
>>> model = AutoModelForSeq2SeqLM.from_pretrained("folder-or-repository")

Files, in reading order (`...` is vaswani_transformer); those with this ending are copied into every saved model:

configuration_..., modeling_...   the model and `generate()`
search_...                        the settings of the search, for `generate()`, Translator and ONNX
beam_search.py                    the faster search of Translator and ONNX; cached_decoder.py: the decoder that it steps
translator.py                     texts -> sentences (sentences_..., languages_...) -> batches; torch_translator.py
                                  searches with torch, onnx_translator.py with ONNX Runtime; workers.py: several
                                  batches at the same time; doubts.py: translations that a reader should look at
pipeline_...                      `pipeline("translation")`
tokenization.py                   trains a tokenizer
model_folder.py, loading.py       read and check a model folder; tokenizer_files.py: its tokenizers, tokenizer_steps.py:
                                  what their steps may do; files.py: single files; hub_files.py downloads a folder;
                                  languages.py: the languages that its records name; atomic.py writes files and folders
cli.py, options.py                the commands, and the MODEL of each; `translate`: unwrap.py,
                                  translate_lines.py, in parts translate_file.py; programs.py, doctor.py
errors.py, exit.py, lines.py      errors and exit codes; text files and pipes
registration.py                   the model's entries in transformers' Auto classes
attention_maps.py, pictures.py    figures; alignments.py: word alignments by attention;
                                  alignment_heads.py: the choice of its heads
training_run.py                   what a training run leaves in its folder: progress, log, curve
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .registration import register, register_once_imported

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
    from .onnx_translator import OnnxTranslator
    from .search_vaswani_transformer import SearchSettings
    from .torch_translator import TorchTranslator
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
    "SearchSettings": "search_vaswani_transformer",
    "Translator": "translator",
    "TorchTranslator": "torch_translator",
    "OnnxTranslator": "onnx_translator",
}
__all__ = [*_MODULE_OF, "register"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name in _MODULE_OF:
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_once_imported()
