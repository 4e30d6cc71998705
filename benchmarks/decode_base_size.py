"""How fast does each system decode at the paper's base size?

    python -m benchmarks.decode_base_size --threads 1 --record decode_base_size.csv
    python -m benchmarks.decode_base_size --device cuda
    python -m benchmarks.decode_base_size --torch --vocabulary 58101 --batch-size 1 --batch-size 32   # as OPUS-MT's

Row:   a system at one precision, and a batch size; the fastest of several interleaved rounds.
Unit:  output tokens per second of the best translation.
Peers: CTranslate2 at the same precision; on a GPU (or with --torch) also transformers' Marian with generate().

The weights are random, and a random model does not know when to stop: sources have 25 tokens, outputs exactly 28 and
the beam size is 4, which gives all systems the same work. On a CPU, `fraction_of_peak` is the rate of a system's matrix
products with weights relative to `matmul_gops`, the rate at which ONNX Runtime multiplies 256 rows by the output
matrix: near 1, nothing is left to gain at that precision.
"""

import copy
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx.parser
import onnxruntime
import torch
import typer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from conversion.convert import export_checkpoint
from conversion.onnx.export import export_single_folder
from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import UnavailableError
from vaswani_transformer.onnx_translator import execution_providers
from vaswani_transformer.tokenization import SPECIAL_TOKENS

from .harness import PeakRates, Row, clock, race, report, run, speedups
from .options import BATCH_SIZES, BatchSizes, Device, Record, Rounds, Threads
from .systems.decoding import (
    Precision,
    System,
    ctranslate2_model,
    find_peers,
    import_ctranslate2,
    onnx_file,
    search_translate,
    torch_translate,
)
from .systems.marian import marian_like

SOURCE_LENGTH, OUTPUT_LENGTH, BEAMS = 25, 28, 4
FULL = {"vocab_size": 37000}  # the paper's
SMALL = {"vocab_size": 500, "d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}


def compare(
    device: Device = "cpu",
    with_torch: Annotated[bool, typer.Option("--torch", help="Also measure torch on a CPU.")] = False,
    small: Annotated[bool, typer.Option("--small", help="A tiny model, to try the program.")] = False,
    vocabulary: Annotated[int, typer.Option(min=500, help="Tokens; OPUS-MT's models have 58,101.")] = FULL[
        "vocab_size"
    ],
    batch_size: BatchSizes = None,
    threads: Threads = 1,
    rounds: Rounds = 3,
    record: Record = None,
) -> None:
    """Compare decoding speed at the paper's base size."""
    torch.set_num_threads(threads)
    loaders = [onnx_systems, ctranslate2_systems]
    if with_torch or device != "cpu":
        loaders.insert(0, torch_systems)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
        model = save_random_model(Path(temporary) / "model", SMALL if small else {"vocab_size": vocabulary})
        systems: list[System] = []
        for load in loaders:
            try:
                systems += load(model, Path(temporary), device, threads)
            except UnavailableError as error:
                typer.echo(f"no rows of {load.__name__}: {error}", err=True)
        if not systems:
            raise UnavailableError(f"no system can translate on --device {device}")
        for size in batch_size or (BATCH_SIZES if device == "cpu" else [1, 64, 512]):
            rows += measure(systems, model.config, size, device, threads, rounds)
    report(rows, record)


def measure(systems: list[System], config: Any, size: int, device: str, threads: int, rounds: int) -> Iterator[Row]:
    """Time all systems on one batch of random sources; yield a row per system."""
    now = clock("wall", device)
    peaks = PeakRates(now)

    def measure_peaks() -> None:
        for precision, dtype in (("float32", np.float32), ("int8", np.uint8)):
            rows = np.ones((256, config.d_model), dtype)
            session = matmul_session(precision, config.d_model, config.vocab_size, threads)
            peaks.measure(precision, partial(session.run, None, {"rows": rows}), 2 * rows.size * config.vocab_size)

    sources = np.random.default_rng(size).integers(len(SPECIAL_TOKENS), config.vocab_size, (size, SOURCE_LENGTH))
    sources[:, -1] = config.eos_token_id
    tasks = {each.name: partial(each.translate, sources.tolist(), BEAMS, OUTPUT_LENGTH) for each in systems}
    for task in tasks.values():
        task()  # warm up
    best = race(tasks, rounds, now, measure_peaks if device == "cpu" else lambda: None)
    for system in systems:
        seconds, found = best[system.name]
        lengths = {len(ids) for ids in found}
        assert len(found) == size and lengths <= {OUTPUT_LENGTH - 1, OUTPUT_LENGTH}, (system.name, lengths)
        rate, precision = size * OUTPUT_LENGTH / seconds, system.precision
        peers = find_peers(systems, {"ctranslate2": precision, "marian": precision})
        yield {
            "device": device,
            "threads": threads,
            "batch": size,
            "vocabulary": config.vocab_size,
            "system": system.name,
            "tokens_per_second": round(rate),
            **speedups(system.name, peers, best),
            "fraction_of_peak": peaks.fraction(precision, rate * decoding_operations_per_token(config)),
            "matmul_gops": round(peaks.best[precision] / 1e9) if precision in peaks.best else "",
        }


def save_random_model(folder: Path, sizes: dict[str, int]) -> Any:
    """Save a model with random weights and a tokenizer of made-up words. sizes: config fields to change"""
    torch.manual_seed(0)
    config = VaswaniTransformerConfig.from_preset("base", **sizes)
    model: Any = VaswaniTransformerForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    tokens = [*SPECIAL_TOKENS.values(), *(f"token{i}" for i in range(len(SPECIAL_TOKENS), config.vocab_size))]
    words = models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=SPECIAL_TOKENS["unk_token"])
    backend: Any = Tokenizer(words)
    end = (SPECIAL_TOKENS["eos_token"], config.eos_token_id)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL_TOKENS)
    tokenizer.save_pretrained(folder)
    return model


# ---- systems: (model, the folder with model/, device, threads) -> systems with the model's sizes -----------------


def torch_systems(ours: Any, folder: Path, device: str, threads: int) -> list[System]:
    """Return our search and generate(), and Marian's, in float32 and bfloat16."""
    marian = marian_like(ours.config.to_dict(), max_position_embeddings=256).eval()
    systems: list[System] = []
    precisions: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    for precision, dtype in precisions.items():
        model, peer = (copy.deepcopy(each).to(device, dtype) for each in (ours, marian))
        systems += [
            System(f"marian {precision}", "marian", precision, torch_translate(peer, peer.generate)),
            System(f"generate() {precision}", "generate", precision, torch_translate(model, model.generate)),
            System(f"search {precision}", "search", precision, search_translate(model)),
        ]
    return systems


def onnx_systems(ours: Any, folder: Path, device: str, threads: int) -> list[System]:
    """Export the model. Raises UnavailableError if this onnxruntime has no provider for the device."""
    execution_providers(device)  # raises it before the export
    systems: list[System] = []
    for name, precision in (("float32", "fp32"), ("int8", "int8") if device == "cpu" else ("float16", "fp16")):
        export_single_folder(folder / "model", folder / name, precision)
        systems.append(onnx_file(folder / name, threads if device == "cpu" else None, device))
    return systems


def ctranslate2_systems(ours: Any, folder: Path, device: str, threads: int) -> list[System]:
    """Convert the model. Raises UnavailableError if CTranslate2, a GPU or a CUDA library is missing."""
    wanted: list[Precision] = ["float32", "int8" if device == "cpu" else "float16"]
    try:
        supported = import_ctranslate2().get_supported_compute_types(device)
        export_checkpoint(folder / "model", folder / "ctranslate2", "ctranslate2")
        systems = [
            ctranslate2_model(folder / "ctranslate2", threads, precision, device)
            for precision in wanted
            if precision in supported
        ]
        for system in systems:
            system.translate([[ours.config.eos_token_id]], 1, 2)  # loads the CUDA libraries
    except RuntimeError as error:  # UnavailableError is one as well
        raise UnavailableError(str(error)) from error
    return systems


# ---- the peak rate -----------------------------------------------------------------------------------------------


def decoding_operations_per_token(config: Any) -> float:
    """Return the operations of matrix products with weights per output token of the best translation.

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


@cache
def matmul_session(precision: str, d_model: int, vocabulary: int, threads: int) -> Any:
    """Return a session that multiplies rows by a matrix of the output layer's size."""
    is_float = precision == "float32"
    operator, rows, results = ("MatMul", "float", "float") if is_float else ("MatMulInteger", "uint8", "int32")
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 20]>
        matmul ({rows}[n, {d_model}] rows) => ({results}[n, {vocabulary}] results)
        {{ results = {operator}(rows, matrix) }}"""
    )
    generator, shape = np.random.default_rng(0), (d_model, vocabulary)
    matrix = generator.random(shape, np.float32) if is_float else generator.integers(-127, 128, shape, np.int8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "matrix"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    run(compare)
