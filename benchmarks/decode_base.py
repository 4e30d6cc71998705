"""How fast is translating with the paper's base model? ONNX Runtime and CTranslate2, with the same random weights.

    python -m benchmarks.decode_base --threads 1

Sources have 25 tokens and outputs exactly 28 ids, beam 4: an untrained model does not know when to stop, and this way
all systems do the same work. They take turns at each batch; the best round counts. `share` is the fraction of ONNX
Runtime's rate of multiplying 256 rows by the output matrix, `product_gops`, that a system's weight products reach: near
1, nothing is left to gain at that precision.
"""

import functools
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vaswani_transformer.errors import exit_cleanly

from .decode_systems import SYSTEMS, Sources, System, import_ctranslate2
from .harness import BatchSizes, Ceilings, Record, Rounds, Threads, program, report, take_turns, timed

app = program()
SOURCE_LENGTH, OUTPUT_LENGTH, BEAMS, VOCABULARY, D_MODEL = 25, 28, 4, 37000, 512
PEERS = {"onnx-fp32": "ctranslate2 float32", "onnx-int8": "ctranslate2 int8"}


@app.command(help="Compare the speed of translating at the paper's base size.")
def compare(batch_size: BatchSizes = None, threads: Threads = 1, rounds: Rounds = 3, record: Record = None) -> None:
    import_ctranslate2()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        systems = [SYSTEMS["onnx"](folder / kind, threads) for kind in PEERS]
        systems += [SYSTEMS[f"ctranslate2-{kind}"](folder / "ctranslate2", threads) for kind in ("float32", "int8")]
        for size in batch_size or [1, 16, 64]:
            rows += measure(systems, size, threads, rounds)
    report(rows, record, "decode_base")


def measure(systems: list[System], size: int, threads: int, rounds: int) -> list[dict[str, Any]]:
    """Let the systems take turns at one batch; return a row per system."""
    ids = np.random.default_rng(size).integers(4, VOCABULARY, (size, SOURCE_LENGTH))
    ids[:, -1] = 2  # </s>
    sources: Sources = ids.tolist()
    ceilings = Ceilings(time.perf_counter)

    def measure_ceilings() -> None:
        for kind in PEERS:
            rows = np.ones((256, D_MODEL), np.uint8 if kind == "onnx-int8" else np.float32)
            product = partial(product_session(kind, threads).run, None, {"rows": rows})
            ceilings.measure(kind, product, 2 * rows.size * VOCABULARY)

    def turn(system: System) -> float:
        seconds, found = timed(partial(system.translate, sources, BEAMS, OUTPUT_LENGTH), time.perf_counter)
        lengths = {len(ids) for ids in found}
        assert len(found) == size and lengths <= {OUTPUT_LENGTH - 1, OUTPUT_LENGTH}, (system.name, lengths)
        return seconds

    for system in systems:
        turn(system)  # warm up
    turns = take_turns({system.name: partial(turn, system) for system in systems}, rounds, measure_ceilings)
    best = {name: min(seconds) for name, seconds in turns.items()}
    rows = []
    for name, seconds in best.items():
        rate, ceiling = round(size * OUTPUT_LENGTH / seconds), "onnx-int8" if "int8" in name else "onnx-fp32"
        row = {"threads": threads, "batch": size, "system": name, "ids_per_second": rate}
        row["times_ctranslate2"] = f"{best[PEERS.get(name, name)] / seconds:.2f}"
        row["share"] = ceilings.share(ceiling, rate * operations_per_id())
        rows.append(row | {"product_gops": round(ceilings.best[ceiling] / 1e9)})
    return rows


def write_models(folder: Path) -> None:
    """Write random weights of the base model as our folder, two ONNX files and a CTranslate2 model."""
    from conversion.onnx.export import export_folder
    from conversion.run import convert_out

    random_model(folder / "model", vocab_size=VOCABULARY)
    convert_out(folder / "model", folder / "ctranslate2", "ctranslate2")
    for kind in PEERS:
        export_folder(folder / "model", folder / kind, kind.removeprefix("onnx-"))


def random_model(folder: Path, vocab_size: int, **sizes: int) -> Any:
    """Write a model with random weights and a tokenizer of made-up words; sizes: what differs from the base model."""
    import torch
    from tokenizers import Tokenizer, models, processors
    from transformers import PreTrainedTokenizerFast

    from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
    from vaswani_transformer.tokenization import SPECIAL_TOKENS

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


@functools.cache
def operations_per_id() -> float:
    """Return the operations of weight products per output id of the best translation; a multiply-add counts as 2."""
    import torch

    from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration

    config = VaswaniTransformerConfig.from_preset("base", vocab_size=VOCABULARY)
    with torch.device("meta"):
        model = VaswaniTransformerForConditionalGeneration(config)
    each_source, each_output = 0, model.lm_head.weight.numel()
    for name, parameter in model.named_parameters():
        if "layers" in name and parameter.dim() > 1:
            # The encoder, and the keys and values of cross attention, run once per source token.
            once = "encoder.layers" in name or "cross_attn.k_proj" in name or "cross_attn.v_proj" in name
            each_source += parameter.numel() * once
            each_output += parameter.numel() * (not once)
    hypotheses = (1 + BEAMS * (OUTPUT_LENGTH - 1)) / OUTPUT_LENGTH  # the first step has one, also in CTranslate2
    return 2 * (each_source * SOURCE_LENGTH / OUTPUT_LENGTH + each_output * hypotheses)


@functools.cache
def product_session(kind: str, threads: int) -> Any:
    """Build a graph that multiplies rows by a matrix of the output layer's size."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    generator, shape = np.random.default_rng(0), (D_MODEL, VOCABULARY)
    if kind == "onnx-fp32":
        operator, matrix = "MatMul", generator.random(shape, np.float32)
        rows = out = TensorProto.FLOAT
    else:
        operator, matrix = "MatMulInteger", generator.integers(-127, 128, shape, np.int8)
        rows, out = TensorProto.UINT8, TensorProto.INT32
    graph = helper.make_graph(
        [helper.make_node(operator, ["rows", "matrix"], ["products"])],
        "product",
        [helper.make_tensor_value_info("rows", rows, [None, shape[0]])],
        [helper.make_tensor_value_info("products", out, [None, shape[1]])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    exit_cleanly(app, name="python -m benchmarks.decode_base")
