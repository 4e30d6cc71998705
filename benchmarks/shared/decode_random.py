"""The work of `decode_base.py` and `gpu_decode.py`: random weights and sources, and outputs of a fixed length.

An untrained model does not know when to stop. A fixed length gives all systems the same work.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.tokenization import SPECIAL_TOKENS

from .decode_systems import Sources, Translate, ctranslate2_model, onnx_file

SOURCE_LENGTH, OUTPUT_LENGTH, BEAMS = 25, 28, 4
VOCABULARY = 37000  # the paper's


def random_model(folder: Path, vocab_size: int = VOCABULARY, **sizes: int) -> Any:
    """Write a model with random weights and a tokenizer of made-up words; sizes: what differs from the base model."""
    torch.manual_seed(0)
    config = VaswaniTransformerConfig.from_preset("base", vocab_size=vocab_size, **sizes)
    model: Any = VaswaniTransformerForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    tokens = [*SPECIAL_TOKENS.values(), *(f"token{i}" for i in range(len(SPECIAL_TOKENS), vocab_size))]
    words = models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=SPECIAL_TOKENS["unk_token"])
    backend: Any = Tokenizer(words)
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL_TOKENS)
    tokenizer.save_pretrained(folder)
    return model


def export(
    folder: Path, precisions: Mapping[str, str], threads: int | None, device: str = "cpu"
) -> dict[str, Translate]:
    """Export the model in the folder; precisions: name of the system -> precision of the ONNX file."""
    from conversion.onnx.export import export_single_folder

    systems: dict[str, Translate] = {}
    for name, precision in precisions.items():
        export_single_folder(folder / "model", folder / precision, precision)
        systems[name] = onnx_file(folder / precision, threads, device).translate
    return systems


def convert(folder: Path, kinds: Iterable[str], threads: int, device: str = "cpu") -> dict[str, Translate]:
    """Convert the model in the folder to CTranslate2; kinds: CTranslate2's compute types."""
    from conversion.run import export_checkpoint

    export_checkpoint(folder / "model", folder / "ctranslate2", "ctranslate2")
    systems = [ctranslate2_model(folder / "ctranslate2", threads, kind, device) for kind in kinds]
    return {system.name: system.translate for system in systems}


def random_works(systems: Mapping[str, Translate], batch: int, vocabulary: int) -> dict[str, Callable[[], Sources]]:
    """Return a function per system that translates a batch of random sources; each system has translated it once."""
    ids = np.random.default_rng(batch).integers(4, vocabulary, (batch, SOURCE_LENGTH))
    ids[:, -1] = 2  # </s>
    works = {name: partial(translate, ids.tolist(), BEAMS, OUTPUT_LENGTH) for name, translate in systems.items()}
    for work in works.values():
        work()  # warm up
    return works
