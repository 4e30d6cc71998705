"""The systems that translate in `decode.py` and `decode_base.py`, each from one model folder."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vaswani_transformer.errors import UnavailableError

Sources = list[list[int]]


@dataclass
class System:
    """translate: batch of sources, beam size -> their best translations as token ids without </s>.

    ONNX and CTranslate2 also take an exact length: then translations have that many ids.
    """

    name: str
    kind: str  # its key in SYSTEMS
    folder: Path
    translate: Callable[..., Sources]
    megabytes: float  # of its weight file


def padded_arrays(sources: Sources, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and attention_mask, (batch, longest), int64."""
    longest = max(map(len, sources))
    ids = np.full((len(sources), longest), pad)
    mask = np.zeros_like(ids)
    for row, source in enumerate(sources):
        ids[row, : len(source)], mask[row, : len(source)] = source, 1
    return ids, mask


def strip(rows: Sources, *special: int) -> Sources:
    return [[token for token in row if token not in special] for row in rows]


def weights_megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6


def torch_system(folder: Path, kind: str, name: str, model: Any, search: Callable[..., Any]) -> System:
    """search: called like generate(); returns ids, (batch, target)."""
    import torch

    config = model.config

    def translate(sources: Sources, beams: int) -> Sources:
        ids, mask = map(torch.from_numpy, padded_arrays(sources, config.pad_token_id))
        found = search(ids, attention_mask=mask, num_beams=beams)
        return strip(found.tolist(), config.decoder_start_token_id, config.pad_token_id, config.eos_token_id)

    size = weights_megabytes(folder) / (2 if model.dtype == torch.bfloat16 else 1)
    return System(name, kind, folder, translate, size)


@functools.cache
def our_model(folder: Path, threads: int, dtype: str) -> Any:
    import torch

    from vaswani_transformer.loading import load_model

    torch.set_num_threads(threads)
    return load_model(folder, device="cpu", dtype=dtype)


def torch_generate(folder: Path, threads: int) -> System:
    """`generate()`, the baseline."""
    model = our_model(folder, threads, "float32")
    return torch_system(folder, "generate", "torch generate()", model, model.generate)


def torch_search(folder: Path, threads: int, dtype: str = "float32") -> System:
    """The search in tensors, with keys and values in the model's dtype and scores in float32."""
    from vaswani_transformer.beam_search import beam_search
    from vaswani_transformer.text_translator import LOOKAHEAD

    model = our_model(folder, threads, dtype)

    def search(ids: Any, attention_mask: Any, num_beams: int) -> Any:
        settings = {"num_beams": num_beams, "num_return_sequences": 1, "early_stopping": LOOKAHEAD}
        return beam_search(model, ids, attention_mask, **settings)[0][:, 0]

    if dtype == "float32":
        return torch_system(folder, "search", "torch search in tensors", model, search)
    return torch_system(folder, f"search-{dtype}", f"torch search, {dtype}", model, search)


def marian_generate(folder: Path, threads: int) -> System:
    """transformers' Marian, with its length penalty length^alpha and its stopping rule."""
    import torch
    from transformers import MarianMTModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    model: Any = MarianMTModel.from_pretrained(folder, local_files_only=True).eval()
    search = functools.partial(model.generate, length_penalty=0.6, max_length=256)
    return torch_system(folder, "marian", "transformers Marian", model, search)


def import_ctranslate2() -> Any:
    """Import CTranslate2 with its converters, or raise UnavailableError."""
    try:
        import ctranslate2.converters
    except ModuleNotFoundError:
        raise UnavailableError("ctranslate2 is not installed: pip install ctranslate2") from None
    return ctranslate2


def onnx_file(folder: Path, threads: int) -> System:
    from vaswani_transformer.onnx_translator import OnnxTranslator

    translator = OnnxTranslator.from_pretrained(folder, device="cpu", threads=threads)

    def translate(sources: Sources, beams: int, length: int | None = None) -> Sources:
        arrays = padded_arrays(sources, translator.pad)
        limits: dict[str, int] = {"max_length": length, "min_length": length - 1} if length else {}  # min: before </s>
        sequences, _ = translator.generate(*arrays, num_beams=beams, num_return_sequences=1, **limits)
        return strip(sequences[:, 0].tolist(), translator.pad, translator.config["eos_token_id"])

    name = folder.resolve().name
    size = (folder / "model.onnx").stat().st_size / 1e6
    return System(name if name.startswith("onnx") else f"onnx {name}", "onnx", folder, translate, size)


def ctranslate2_model(folder: Path, threads: int, kind: str, device: str = "cpu") -> System:
    """CTranslate2, with its length penalty length^alpha and its stopping rule."""
    ctranslate2 = import_ctranslate2()
    translator = ctranslate2.Translator(
        str(folder), device=device, compute_type=kind, intra_threads=threads, inter_threads=1
    )
    tokens: list[str] = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    ids = {token: id for id, token in enumerate(tokens)}

    def translate(sources: Sources, beams: int, length: int | None = None) -> Sources:
        texts = [[tokens[id] for id in source] for source in sources]
        limits = {"max_decoding_length": length or 256, "min_decoding_length": length or 1}
        found = translator.translate_batch(texts, beam_size=beams, length_penalty=0.6, **limits)
        return [[ids[token] for token in result.hypotheses[0]] for result in found]

    size = (folder / "model.bin").stat().st_size / 1e6  # float32; int8 is made of it while loading
    return System(f"ctranslate2 {kind}", f"ctranslate2-{kind}", folder, translate, size)


SYSTEMS: dict[str, Callable[[Path, int], System]] = {
    "generate": torch_generate,
    "search": torch_search,
    "search-bfloat16": functools.partial(torch_search, dtype="bfloat16"),
    "marian": marian_generate,
    "onnx": onnx_file,
    "ctranslate2-float32": functools.partial(ctranslate2_model, kind="float32"),
    "ctranslate2-int8": functools.partial(ctranslate2_model, kind="int8"),
}
