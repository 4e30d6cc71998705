"""Compares decoding speed at the paper's base size on a CPU or a GPU, with random weights.

    python -m benchmarks.decode_base_size --threads 1
    python -m benchmarks.decode_base_size --device cuda --record decode_base_size.csv

Sources have 25 tokens, outputs exactly 28, and the beam size is 4: a random model does not know when to stop, and a
fixed length gives all systems the same work. They translate each batch in interleaved rounds; the fastest round counts.
On a CPU, ONNX files are compared with CTranslate2; on a GPU also our searches in torch with transformers' Marian.

`speedup_vs_ctranslate2` and `speedup_vs_marian` compare systems of the same precision. On a CPU, `fraction_of_peak` is
the rate of a system's matrix products with weights relative to `matmul_gops`, the rate at which ONNX Runtime multiplies
256 rows by the output matrix: near 1, nothing is left to gain at that precision.
"""

import copy
import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import UnavailableError
from vaswani_transformer.tokenization import SPECIAL_TOKENS

from .shared.decode_systems import (
    Sources,
    Translate,
    ctranslate2_model,
    import_ctranslate2,
    onnx_file,
    search_translate,
    torch_translate,
)
from .shared.harness import (
    BATCH_SIZES,
    METADATA,
    BatchSizes,
    Device,
    PeakRates,
    Record,
    Rounds,
    Row,
    Threads,
    clock,
    race,
    report,
    run,
)
from .shared.training_setup import marian_like

SOURCE_LENGTH, OUTPUT_LENGTH, BEAMS = 25, 28, 4
VOCABULARY = 37000  # the paper's
SMALL = {"vocab_size": 500, "d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}


def compare(
    device: Device = "cpu",
    torch_too: Annotated[
        bool | None, typer.Option("--torch/--no-torch", help="Measure systems in torch, too; default: on a GPU.")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="A tiny model, to try the program.")] = False,
    batch_size: BatchSizes = None,
    threads: Threads = 1,
    rounds: Rounds = 3,
    record: Record = None,
) -> None:
    """Compare decoding speed at the paper's base size."""
    torch.set_num_threads(threads)
    if torch_too is None:
        torch_too = device != "cpu"
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        model = random_model(Path(name) / "model", **(SMALL if small else {}))
        systems: dict[str, Translate] = {}
        for load in [torch_systems] * torch_too + [onnx_systems, ctranslate2_systems]:
            try:
                systems |= load(model, Path(name), device, threads)
            except UnavailableError as error:
                typer.echo(f"no rows of {load.__name__}: {error}", err=True)
        if not systems:
            raise UnavailableError(f"no system can translate on --device {device}")
        for size in batch_size or (BATCH_SIZES if device == "cpu" else [1, 64, 512]):
            rows += measure(systems, model.config, size, device, threads, rounds)
    report(rows, record, (*METADATA, "torch", "transformers"))


def measure(
    systems: dict[str, Translate], config: Any, size: int, device: str, threads: int, rounds: int
) -> Iterator[Row]:
    """Time all systems on one batch; yield a row per system."""
    now = clock("wall", device)
    peaks = PeakRates(now)

    def measure_peaks() -> None:
        for precision, dtype in (("float32", np.float32), ("int8", np.uint8)):
            rows = np.ones((256, config.d_model), dtype)
            session = matmul_session(precision, config.d_model, config.vocab_size, threads)
            peaks.measure(precision, partial(session.run, None, {"rows": rows}), 2 * rows.size * config.vocab_size)

    tasks = random_tasks(systems, size, config.vocab_size)
    best = race(tasks, rounds, now, *([measure_peaks] if device == "cpu" and "onnx float32" in systems else []))
    for name, (seconds, found) in best.items():
        lengths = {len(ids) for ids in found}
        assert len(found) == size and lengths <= {OUTPUT_LENGTH - 1, OUTPUT_LENGTH}, (name, lengths)
        rate, precision = size * OUTPUT_LENGTH / seconds, name.split()[-1]
        peers = {f"speedup_vs_{peer}": f"{peer} {precision}" for peer in ("ctranslate2", "marian")}
        speedups = {column: f"{best[peer][0] / seconds:.2f}" if peer in best else "" for column, peer in peers.items()}
        has_peak = precision in peaks.best
        yield {
            "device": device,
            "threads": threads,
            "batch": size,
            "system": name,
            "ids_per_second": round(rate),
            **speedups,
            "fraction_of_peak": peaks.fraction(precision, rate * operations_per_id(config)) if has_peak else "",
            "matmul_gops": round(peaks.best[precision] / 1e9) if has_peak else "",
        }


# ---- the model and its task --------------------------------------------------------------------------------------


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


def random_tasks(systems: dict[str, Translate], batch: int, vocabulary: int) -> dict[str, Callable[[], Sources]]:
    """Return a function per system that translates a batch of random sources; each has run once."""
    ids = np.random.default_rng(batch).integers(4, vocabulary, (batch, SOURCE_LENGTH))
    ids[:, -1] = 2  # </s>
    tasks = {name: partial(translate, ids.tolist(), BEAMS, OUTPUT_LENGTH) for name, translate in systems.items()}
    for task in tasks.values():
        task()  # warm up
    return tasks


# ---- systems: (model, the folder with it, device, threads) -> translate() by name --------------------------------


def torch_systems(ours: Any, folder: Path, device: str, threads: int) -> dict[str, Translate]:
    """Return our search and generate(), and Marian's, in float32 and bfloat16."""
    marian = marian_like(ours.config.to_dict(), max_position_embeddings=256).eval()
    systems: dict[str, Translate] = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        model, peer = (copy.deepcopy(each).to(device, dtype) for each in (ours, marian))
        systems[f"marian {name}"] = torch_translate(peer, peer.generate)
        systems[f"generate() {name}"] = torch_translate(model, model.generate)
        systems[f"search {name}"] = search_translate(model)
    return systems


def onnx_systems(ours: Any, folder: Path, device: str, threads: int) -> dict[str, Translate]:
    """Export the model. Raises UnavailableError if this onnxruntime has no provider for the device."""
    from conversion.onnx.export import export_single_folder
    from vaswani_transformer.onnx_translator import execution_providers

    execution_providers(device)  # raises it before the export
    systems: dict[str, Translate] = {}
    for name, precision in (("float32", "fp32"), ("int8", "int8") if device == "cpu" else ("float16", "fp16")):
        export_single_folder(folder / "model", folder / precision, precision)
        limit = threads if device == "cpu" else None
        systems[f"onnx {name}"] = onnx_file(folder / precision, limit, device).translate
    return systems


def ctranslate2_systems(ours: Any, folder: Path, device: str, threads: int) -> dict[str, Translate]:
    """Convert the model. Raises UnavailableError if CTranslate2, a GPU or a CUDA library is missing."""
    from conversion.run import export_checkpoint

    wanted = {"float32", "int8" if device == "cpu" else "float16"}
    try:
        kinds: Iterable[str] = sorted(wanted & import_ctranslate2().get_supported_compute_types(device))
        export_checkpoint(folder / "model", folder / "ctranslate2", "ctranslate2")
        loaded = [ctranslate2_model(folder / "ctranslate2", threads, kind, device) for kind in kinds]
        for system in loaded:
            system.translate([[5, 2]], 1, 2)  # loads the CUDA libraries
    except RuntimeError as error:  # UnavailableError is one as well
        raise UnavailableError(str(error)) from error
    return {system.name: system.translate for system in loaded}


# ---- the peak rate -----------------------------------------------------------------------------------------------


def operations_per_id(config: Any) -> float:
    """Return the operations of matrix products with weights per output id of the best translation.

    A multiply-add counts as two operations.
    """
    projection = config.d_model**2
    encoder_layer = 4 * projection + 2 * config.d_model * config.encoder_ffn_dim
    decoder_layer = 4 * projection + 2 * projection + 2 * config.d_model * config.decoder_ffn_dim
    # The encoder, and the keys and values of cross-attention, run once per source token.
    each_source = config.encoder_layers * encoder_layer + config.decoder_layers * 2 * projection
    each_output = config.decoder_layers * decoder_layer + config.d_model * config.vocab_size
    hypotheses = (1 + BEAMS * (OUTPUT_LENGTH - 1)) / OUTPUT_LENGTH  # the first step has one, also in CTranslate2
    return 2 * (each_source * SOURCE_LENGTH / OUTPUT_LENGTH + each_output * hypotheses)


@functools.cache
def matmul_session(precision: str, d_model: int, vocabulary: int, threads: int) -> Any:
    """Return a session that multiplies rows by a matrix of the output layer's size."""
    import onnx.parser
    import onnxruntime

    operator, rows, results = {
        "float32": ("MatMul", "float", "float"),
        "int8": ("MatMulInteger", "uint8", "int32"),
    }[precision]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 20]>
        matmul ({rows}[n, {d_model}] rows) => ({results}[n, {vocabulary}] results)
        {{ results = {operator}(rows, matrix) }}"""
    )
    generator, shape = np.random.default_rng(0), (d_model, vocabulary)
    matrix = generator.random(shape, np.float32) if rows == "float" else generator.integers(-127, 128, shape, np.int8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "matrix"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    run(compare)
