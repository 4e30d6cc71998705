"""How fast is translating on a GPU? Our searches and ONNX files, CTranslate2 and transformers' Marian, with equal work.

    python -m benchmarks.gpu_decode --device cuda --record gpu_decode.csv

The paper's base model (--small: a tiny one) with random weights, sources of 25 tokens, exactly 28 output tokens, a beam
of 4. ONNX files and CTranslate2 run where their installations know the device; `times_marian` compares with Marian in
the same precision, and is empty for float16.
"""

import copy
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from vaswani_transformer.errors import UnavailableError

from .shared.decode_random import OUTPUT_LENGTH, convert, export, random_model, random_works
from .shared.decode_systems import Translate, import_ctranslate2, search_translate, torch_translate
from .shared.harness import ABOUT, BatchSizes, Device, Record, Rounds, Row, clock, race, report, run
from .shared.training_setup import marian_like

SMALL = {"vocab_size": 500, "d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}


def compare(
    device: Device = "cuda",
    small: Annotated[bool, typer.Option("--small", help="A tiny model, to try the program.")] = False,
    batch_size: BatchSizes = None,
    rounds: Rounds = 3,
    record: Record = None,
) -> None:
    """Compare the speed of translating on a device."""
    now = clock("wall", device)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = random_model(folder / "model", **(SMALL if small else {}))
        systems = torch_models(model, device)
        for load, unavailable in ((onnx_models, UnavailableError), (ctranslate2_models, RuntimeError)):
            try:
                systems |= load(folder, device)
            except unavailable as error:
                typer.echo(f"no rows of {load.__name__}: {error}", err=True)
        for batch in batch_size or [1, 64, 512]:
            with torch.inference_mode():
                best = race(random_works(systems, batch, model.config.vocab_size), rounds, now)
            for system, (seconds, _) in best.items():
                marian = f"marian {system.split()[-1]}"
                rows.append(
                    {
                        "device": device,
                        "system": system,
                        "batch": batch,
                        "tokens_per_second": round(batch * OUTPUT_LENGTH / seconds),
                        "ms_per_step": round(1e3 * seconds / OUTPUT_LENGTH, 2),
                        "times_marian": round(best[marian][0] / seconds, 2) if marian in best else "",
                    }
                )
    report(rows, record, (*ABOUT, "torch", "transformers"))


def torch_models(ours: Any, device: str) -> dict[str, Translate]:
    """Return our search and generate(), and Marian's, in float32 and bfloat16, by name."""
    marian = marian_like(ours.config.to_dict(), max_position_embeddings=256).eval()
    systems: dict[str, Translate] = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        model, peer = (copy.deepcopy(each).to(device, dtype) for each in (ours, marian))
        systems[f"marian {name}"] = torch_translate(peer, peer.generate)
        systems[f"generate() {name}"] = torch_translate(model, model.generate)
        systems[f"search {name}"] = search_translate(model)
    return systems


def onnx_models(folder: Path, device: str) -> dict[str, Translate]:
    """Export the folder's model. Raises UnavailableError if this onnxruntime has no provider for the device."""
    from vaswani_transformer.onnx_translator import execution_providers

    execution_providers(device)  # raises it before the work
    return export(folder, {"onnx float32": "fp32", "onnx float16": "fp16"}, None, device)


def ctranslate2_models(folder: Path, device: str) -> dict[str, Translate]:
    """Convert the folder's model. Raises RuntimeError if CTranslate2, a GPU or a CUDA library is missing."""
    kinds = {"float32", "float16"} & import_ctranslate2().get_supported_compute_types(device)
    systems = convert(folder, sorted(kinds), torch.get_num_threads(), device)
    for translate in systems.values():
        translate([[5, 2]], 1, 2)  # loads the CUDA libraries
    return systems


if __name__ == "__main__":
    run(compare)
