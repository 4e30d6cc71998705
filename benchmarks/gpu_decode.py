"""How fast is translating on a GPU? Our searches and ONNX files, CTranslate2 and transformers' Marian, with equal work.

    python -m benchmarks.gpu_decode --device cuda --record gpu_decode.csv

The paper's base model (--small: a tiny one) with random weights, sources of 25 tokens, exactly 28 output tokens, a beam
of 4. ONNX files and CTranslate2 run where their installations know the device; `times_marian` compares with Marian in
the same precision, and is empty for float16.
"""

import copy
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from vaswani_transformer.beam_search import beam_search
from vaswani_transformer.errors import UnavailableError, exit_cleanly

from .decode_base import random_model
from .decode_systems import System, ctranslate2_model, import_ctranslate2
from .harness import ABOUT, BatchSizes, Device, Record, Rounds, clock, marian_like, program, report, take_turns, timed

app = program()
SOURCE, TARGET, BEAMS = 25, 28, 4
EXACT = {"min_length": TARGET - 1, "max_length": TARGET, "num_return_sequences": 1}  # min: before </s>
Search = Callable[[torch.Tensor, torch.Tensor], object]


@app.command(help="Compare the speed of translating on a device.")
def compare(
    device: Device = "cuda",
    small: Annotated[bool, typer.Option("--small", help="A tiny model, to try the program.")] = False,
    batch_size: BatchSizes = None,
    rounds: Rounds = 3,
    record: Record = None,
) -> None:
    sizes = {"vocab_size": 500, "d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    now = clock("wall", device)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        ours = random_model(Path(folder) / "model", **(sizes if small else {"vocab_size": 37000}))
        systems = torch_systems(ours, device) | onnx_files(Path(folder), device)
        systems |= ctranslate2_models(Path(folder), device)
        for batch in batch_size or [1, 64, 512]:
            ids = torch.randint(4, ours.config.vocab_size, (batch, SOURCE), device=device)
            ids[:, -1] = ours.config.eos_token_id
            inputs = ids, torch.ones_like(ids)
            works = {name: partial(timed, partial(search, *inputs), now) for name, search in systems.items()}
            with torch.inference_mode():
                take_turns(works, 1)  # warm up
                turns = take_turns(works, rounds)
            best = {name: min(seconds for seconds, _ in measured) for name, measured in turns.items()}
            for name, seconds in best.items():
                peer_seconds = best.get(f"marian {name.split()[-1]}")
                row = {"device": device, "system": name, "batch": batch}
                row |= {"tokens_per_second": round(batch * TARGET / seconds)}
                row |= {"ms_per_step": round(1e3 * seconds / TARGET, 2)}
                rows.append(row | {"times_marian": round(peer_seconds / seconds, 2) if peer_seconds else ""})
    report(rows, record, "gpu_decode", (*ABOUT, "torch", "transformers"))


def torch_systems(ours: Any, device: str) -> dict[str, Search]:
    """Return our search and generate(), and Marian's, in float32 and bfloat16, by name."""
    limits = {"num_beams": BEAMS, "min_new_tokens": TARGET, "max_new_tokens": TARGET, "do_sample": False}
    peer = marian_like(ours.config, max_position_embeddings=256).eval()

    def generate(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> object:
        return model.generate(input_ids=ids, attention_mask=mask, **limits)

    def search(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> object:
        return beam_search(model, ids, mask, BEAMS, **EXACT)

    systems: dict[str, Search] = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        model, theirs = (copy.deepcopy(each).to(device, dtype) for each in (ours, peer))
        systems[f"marian {name}"] = partial(generate, theirs)
        systems[f"generate() {name}"] = partial(generate, model)
        systems[f"search {name}"] = partial(search, model)
    return systems


def onnx_files(folder: Path, device: str) -> dict[str, Search]:
    """Export the folder's model in float32 and fp16; {} without a provider for the device."""
    import onnxruntime

    provider = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}[device]
    if provider not in onnxruntime.get_available_providers():
        typer.echo(f"onnxruntime has no {provider}: no ONNX rows", err=True)
        return {}
    from conversion.onnx.export import export_folder
    from vaswani_transformer.onnx_translator import OnnxTranslator

    systems: dict[str, Search] = {}
    for precision, name in (("fp32", "float32"), ("fp16", "float16")):
        export_folder(folder / "model", folder / precision, precision=precision)
        translator = OnnxTranslator.from_pretrained(folder / precision, device=device)

        def search(ids: torch.Tensor, mask: torch.Tensor, translator: OnnxTranslator = translator) -> object:
            return translator.generate(ids.cpu().numpy(), mask.cpu().numpy(), num_beams=BEAMS, **EXACT)

        systems[f"onnx {name}"] = search
    return systems


def ctranslate2_models(folder: Path, device: str) -> dict[str, Search]:
    """Convert the folder's model to CTranslate2 in float32 and float16; {} without CTranslate2 for the device."""
    try:
        ctranslate2 = import_ctranslate2()
    except UnavailableError as error:
        typer.echo(f"{error}: no CTranslate2 rows", err=True)
        return {}
    if device == "cuda" and not ctranslate2.get_cuda_device_count():
        typer.echo("CTranslate2 finds no GPU: no CTranslate2 rows", err=True)
        return {}
    from conversion.run import convert_out

    convert_out(folder / "model", folder / "ctranslate2", "ctranslate2")
    systems: dict[str, Search] = {}
    for kind in sorted({"float32", "float16"} & ctranslate2.get_supported_compute_types(device)):
        try:
            system = ctranslate2_model(folder / "ctranslate2", torch.get_num_threads(), kind, device)
            system.translate([[5, 2]], 1, 2)
        except RuntimeError as error:  # its CUDA libraries may be missing
            typer.echo(f"CTranslate2: {error}: no {kind} row", err=True)
            continue

        def search(ids: torch.Tensor, _: torch.Tensor, system: System = system) -> object:
            return system.translate(ids.tolist(), BEAMS, TARGET)

        systems[system.name] = search
    return systems


if __name__ == "__main__":
    exit_cleanly(app, name="python -m benchmarks.gpu_decode")
