"""The systems that decode.py and decode_base_size.py compare."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vaswani_transformer.errors import UnavailableError

Sources = list[list[int]]
# (sources, beam size, length=None) -> their best translations as token ids without </s>; with a length, the search
# takes exactly that many steps.
Translate = Callable[..., Sources]


class System(NamedTuple):
    name: str
    megabytes: float  # of its weight file
    translate: Translate


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


def torch_translate(model: Any, search: Callable[..., Any]) -> Translate:
    """Return translate() of a torch model. search: called like generate(); returns ids, (batch, target)."""
    import torch

    config = model.config

    def translate(sources: Sources, beams: int, length: int | None = None) -> Sources:
        arrays = padded_arrays(sources, config.pad_token_id)
        ids, mask = (torch.from_numpy(array).to(model.device) for array in arrays)
        limits = {"min_new_tokens": length - 1, "max_new_tokens": length} if length else {}  # min: before </s>
        found = search(ids, attention_mask=mask, num_beams=beams, **limits)
        return strip(found.tolist(), config.decoder_start_token_id, config.pad_token_id, config.eos_token_id)

    return translate


def search_translate(model: Any) -> Translate:
    """Return translate() by the search in tensors: keys and values in the model's dtype, scores in float32."""
    from vaswani_transformer.beam_search import beam_search
    from vaswani_transformer.search_settings import LOOKAHEAD

    def search(
        ids: Any, attention_mask: Any, num_beams: int, min_new_tokens: int = 0, max_new_tokens: int | None = None
    ) -> Any:
        settings = {"num_return_sequences": 1, "early_stopping": LOOKAHEAD}
        limits = {"min_length": min_new_tokens, "max_length": max_new_tokens}
        return beam_search(model, ids, attention_mask, num_beams, **settings, **limits)[0][:, 0]

    return torch_translate(model, search)


def safetensors_megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6


@functools.cache
def our_model(folder: Path, threads: int, dtype: str = "float32") -> Any:
    import torch

    from vaswani_transformer.loading import load_model

    torch.set_num_threads(threads)
    return load_model(folder, device="cpu", dtype=dtype)


def torch_generate(folder: Path, threads: int) -> System:
    """Load our model for `generate()`, the baseline."""
    model = our_model(folder, threads)
    return System("torch generate()", safetensors_megabytes(folder), torch_translate(model, model.generate))


def torch_search(folder: Path, threads: int) -> System:
    translate = search_translate(our_model(folder, threads))
    return System("torch search in tensors", safetensors_megabytes(folder), translate)


def torch_search_bfloat16(folder: Path, threads: int) -> System:
    translate = search_translate(our_model(folder, threads, "bfloat16"))
    return System("torch search, bfloat16", safetensors_megabytes(folder) / 2, translate)


def marian_generate(folder: Path, threads: int) -> System:
    """Load transformers' Marian, which has the length penalty length^alpha and its own stopping rule."""
    import torch
    from transformers import MarianMTModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    model: Any = MarianMTModel.from_pretrained(folder, local_files_only=True).eval()
    search = functools.partial(model.generate, length_penalty=0.6, max_length=256)
    return System("transformers Marian", safetensors_megabytes(folder), torch_translate(model, search))


def import_ctranslate2() -> Any:
    """Import CTranslate2 with its converters, or raise UnavailableError."""
    try:
        import ctranslate2.converters
    except ModuleNotFoundError:
        raise UnavailableError("ctranslate2 is not installed: pip install ctranslate2") from None
    return ctranslate2


def onnx_file(folder: Path, threads: int | None, device: str = "cpu") -> System:
    from vaswani_transformer.onnx_translator import OnnxTranslator

    translator = OnnxTranslator.from_pretrained(folder, device=device, threads=threads)

    def translate(sources: Sources, beams: int, length: int | None = None) -> Sources:
        arrays = padded_arrays(sources, translator.pad)
        limits: dict[str, int] = {"min_length": length - 1, "max_length": length} if length else {}  # min: before </s>
        sequences, _ = translator.generate(*arrays, num_beams=beams, num_return_sequences=1, **limits)
        return strip(sequences[:, 0].tolist(), translator.pad, translator.config["eos_token_id"])

    name = folder.resolve().name
    size = (folder / "model.onnx").stat().st_size / 1e6
    return System(name if name.startswith("onnx") else f"onnx {name}", size, translate)


def ctranslate2_model(folder: Path, threads: int, kind: str, device: str = "cpu") -> System:
    """Load a CTranslate2 model, which has the length penalty length^alpha and its own stopping rule."""
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
    return System(f"ctranslate2 {kind}", size, translate)


class Kind(NamedTuple):
    """load: (folder, threads) -> the system on the CPU.  ours: whether its search or its file is this project's"""

    load: Callable[[Path, int], System]
    ours: bool = False
    needs_torch: bool = False


SYSTEMS = {
    "generate": Kind(torch_generate, ours=True, needs_torch=True),
    "search": Kind(torch_search, ours=True, needs_torch=True),
    "search-bfloat16": Kind(torch_search_bfloat16, ours=True, needs_torch=True),
    "marian": Kind(marian_generate, needs_torch=True),
    "onnx": Kind(onnx_file, ours=True),
    "ctranslate2-float32": Kind(functools.partial(ctranslate2_model, kind="float32")),
    "ctranslate2-int8": Kind(functools.partial(ctranslate2_model, kind="int8")),
}
