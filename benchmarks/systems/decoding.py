"""The systems that decode.py and decode_base_size.py compare: torch, ONNX Runtime, Marian and CTranslate2.

standalone.py loads one of them without torch: torch and transformers are imported only where they are needed.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from vaswani_transformer.errors import UnavailableError
from vaswani_transformer.model_folder import EXPORT_RECORD

TokenIds = list[list[int]]  # of sentences, without padding
# (sources, beam size, length=None) -> their best translations without </s>; with a length, the search takes exactly
# that many steps.
Translate = Callable[..., TokenIds]
Engine = Literal["generate", "search", "onnx", "marian", "ctranslate2"]
OURS: set[Engine] = {"generate", "search", "onnx"}
Precision = Literal["float32", "bfloat16", "float16", "int8"]
# By the name of `export onnx --precision`.
EXPORTED: dict[str, Precision] = {"fp32": "float32", "fp16": "float16", "int8": "int8", "int8-weights": "int8"}


class System(NamedTuple):
    name: str  # of its rows, unique in a comparison
    engine: Engine
    precision: Precision
    translate: Translate
    megabytes: float = 0.0  # of its weight file, if it was loaded from one


# As `early_stopping`: faster than "never", with the same translations on all tested texts (results/stopping_rules.csv).
LOOKAHEAD = 5


def find_peers(systems: Iterable[System], precisions: Mapping[Engine, Precision]) -> dict[str, str | None]:
    """Return the name of the system with each of these engines and its precision, None if there is none."""
    names = {(system.engine, system.precision): system.name for system in systems}
    return {engine: names.get((engine, precision)) for engine, precision in precisions.items()}


def padded_arrays(sources: TokenIds, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and attention_mask, (batch, longest), int64."""
    longest = max(map(len, sources))
    ids = np.full((len(sources), longest), pad)
    mask = np.zeros_like(ids)
    for row, source in enumerate(sources):
        ids[row, : len(source)], mask[row, : len(source)] = source, 1
    return ids, mask


def without(special: set[int], rows: TokenIds) -> TokenIds:
    return [[token for token in row if token not in special] for row in rows]


# ---- torch -------------------------------------------------------------------------------------------------------


def torch_translate(model: Any, search: Callable[..., Any]) -> Translate:
    """Return translate() of a torch model. search: called like generate(); returns ids, (batch, target)"""
    import torch

    config = model.config
    special = {config.decoder_start_token_id, config.pad_token_id, config.eos_token_id}

    def translate(sources: TokenIds, beams: int, length: int | None = None) -> TokenIds:
        arrays = padded_arrays(sources, config.pad_token_id)
        ids, mask = (torch.from_numpy(array).to(model.device) for array in arrays)
        limits = {"min_new_tokens": length - 1, "max_new_tokens": length} if length else {}  # min: before </s>
        return without(special, search(ids, attention_mask=mask, num_beams=beams, **limits).tolist())

    return translate


def search_translate(model: Any) -> Translate:
    """Return translate() by the search in tensors: keys and values in the model's dtype, scores in float32."""
    from vaswani_transformer.beam_search import beam_search
    from vaswani_transformer.search_vaswani_transformer import SearchSettings

    def search(
        ids: Any, attention_mask: Any, num_beams: int, min_new_tokens: int = 0, max_new_tokens: int | None = None
    ) -> Any:
        settings = SearchSettings(
            num_beams, early_stopping=LOOKAHEAD, max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens
        )
        return beam_search(model, ids, attention_mask, settings)[0][:, 0]

    return torch_translate(model, search)


@functools.cache
def our_model(folder: Path, threads: int) -> Any:
    """Load our model, once for generate() and the search."""
    import torch

    from vaswani_transformer.loading import load_model

    torch.set_num_threads(threads)
    return load_model(folder, device="cpu", dtype="float32")


def torch_generate(folder: Path, threads: int) -> System:
    model = our_model(folder, threads)
    translate = torch_translate(model, model.generate)
    return System("torch generate()", "generate", "float32", translate, safetensors_megabytes(folder))


def torch_search(folder: Path, threads: int) -> System:
    translate = search_translate(our_model(folder, threads))
    return System("torch search in tensors", "search", "float32", translate, safetensors_megabytes(folder))


def marian_generate(folder: Path, threads: int) -> System:
    """Load transformers' Marian, which has the length penalty length^alpha and its own stopping rule."""
    import torch
    from transformers import MarianMTModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    model: Any = MarianMTModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    translate = torch_translate(model, functools.partial(model.generate, length_penalty=0.6, max_length=256))
    return System("transformers Marian", "marian", "float32", translate, safetensors_megabytes(folder))


def safetensors_megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6


# ---- ONNX Runtime and CTranslate2 --------------------------------------------------------------------------------


def onnx_file(folder: Path, threads: int | None, device: str = "cpu") -> System:
    """Load an exported file. The folder names the system: files of one model differ in their precision."""
    from vaswani_transformer.onnx_translator import OnnxTranslator

    translator = OnnxTranslator.from_pretrained(folder, device=device, threads=threads)
    special = {translator.pad, translator.end}

    def translate(sources: TokenIds, beams: int, length: int | None = None) -> TokenIds:
        limits = {"min_new_tokens": length - 1, "max_new_tokens": length} if length else {}  # min: before </s>
        settings = translator.change_search(num_beams=beams, early_stopping=LOOKAHEAD, **limits)
        found = translator._open_search(settings, alignments=False, one_thread=False).run(sources)
        return without(special, [best for best, *_ in found.sequences])

    name = folder.resolve().name
    precision = EXPORTED[json.loads((folder / EXPORT_RECORD).read_text(encoding="utf-8"))["precision"]]
    size = (folder / "model.onnx").stat().st_size / 1e6
    return System(name if name.startswith("onnx") else f"onnx {name}", "onnx", precision, translate, size)


def ctranslate2_model(folder: Path, threads: int, precision: Precision, device: str = "cpu") -> System:
    """Load a CTranslate2 model, which has the length penalty length^alpha and its own stopping rule."""
    translator = import_ctranslate2().Translator(
        str(folder), device=device, compute_type=precision, intra_threads=threads, inter_threads=1
    )
    tokens: list[str] = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    ids = {token: id for id, token in enumerate(tokens)}

    def translate(sources: TokenIds, beams: int, length: int | None = None) -> TokenIds:
        texts = [[tokens[id] for id in source] for source in sources]
        limits = {"max_decoding_length": length or 256, "min_decoding_length": length or 1}
        found = translator.translate_batch(texts, beam_size=beams, length_penalty=0.6, **limits)
        return [[ids[token] for token in result.hypotheses[0]] for result in found]

    size = (folder / "model.bin").stat().st_size / 1e6  # float32; CTranslate2 quantises it while loading
    return System(f"ctranslate2 {precision}", "ctranslate2", precision, translate, size)


def import_ctranslate2() -> Any:
    """Import CTranslate2 with its converters, or raise UnavailableError."""
    try:
        import ctranslate2.converters
    except ModuleNotFoundError:
        raise UnavailableError("ctranslate2 is not installed: pip install ctranslate2") from None
    return ctranslate2


# ---- by kind, for --system KIND=FOLDER of decode.py: (folder, threads) -> the system on the CPU ------------------

SYSTEMS: dict[str, Callable[[Path, int], System]] = {
    "generate": torch_generate,
    "search": torch_search,
    "marian": marian_generate,
    "onnx": onnx_file,
    "ctranslate2-float32": functools.partial(ctranslate2_model, precision="float32"),
    "ctranslate2-int8": functools.partial(ctranslate2_model, precision="int8"),
}
NEEDS_TORCH = {"generate", "search", "marian"}
