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
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .shared.decode_random import (
    BEAMS,
    OUTPUT_LENGTH,
    SOURCE_LENGTH,
    VOCABULARY,
    convert,
    export,
    random_model,
    random_works,
)
from .shared.decode_systems import Translate, import_ctranslate2
from .shared.harness import BatchSizes, Ceilings, Record, Rounds, Row, Threads, race, report, run

LAYERS, D_MODEL, D_FF = 6, 512, 2048  # of the base model
PEERS = {"onnx-fp32": "ctranslate2 float32", "onnx-int8": "ctranslate2 int8"}


def compare(batch_size: BatchSizes = None, threads: Threads = 1, rounds: Rounds = 3, record: Record = None) -> None:
    """Compare the speed of translating at the paper's base size."""
    import_ctranslate2()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_model(folder / "model")
        systems = export(folder, {"onnx-fp32": "fp32", "onnx-int8": "int8"}, threads)
        systems |= convert(folder, ("float32", "int8"), threads)
        for size in batch_size or [1, 16, 64]:
            rows += measure(systems, size, threads, rounds)
    report(rows, record)


def measure(systems: dict[str, Translate], size: int, threads: int, rounds: int) -> Iterator[Row]:
    """Let the systems take turns at one batch; yield a row per system."""
    ceilings = Ceilings(time.perf_counter)

    def measure_ceilings() -> None:
        for kind in PEERS:
            rows = np.ones((256, D_MODEL), np.uint8 if kind == "onnx-int8" else np.float32)
            product = partial(product_session(kind, threads).run, None, {"rows": rows})
            ceilings.measure(kind, product, 2 * rows.size * VOCABULARY)

    works = random_works(systems, size, VOCABULARY)
    best = race(works, rounds, time.perf_counter, measure_ceilings)
    for name, (seconds, found) in best.items():
        lengths = {len(ids) for ids in found}
        assert len(found) == size and lengths <= {OUTPUT_LENGTH - 1, OUTPUT_LENGTH}, (name, lengths)
        rate, ceiling = round(size * OUTPUT_LENGTH / seconds), "onnx-int8" if "int8" in name else "onnx-fp32"
        yield {
            "threads": threads,
            "batch": size,
            "system": name,
            "ids_per_second": rate,
            "times_ctranslate2": f"{best[PEERS.get(name, name)][0] / seconds:.2f}",
            "share": ceilings.share(ceiling, rate * operations_per_id()),
            "product_gops": round(ceilings.best[ceiling] / 1e9),
        }


def operations_per_id() -> float:
    """Return the operations of weight products per output id of the best translation; a multiply-add counts as 2."""
    projection, feed_forward = D_MODEL**2, 2 * D_MODEL * D_FF
    # The encoder, and the keys and values of cross-attention, run once per source token.
    each_source = LAYERS * (4 * projection + feed_forward + 2 * projection)
    each_output = LAYERS * (4 * projection + 2 * projection + feed_forward) + D_MODEL * VOCABULARY
    hypotheses = (1 + BEAMS * (OUTPUT_LENGTH - 1)) / OUTPUT_LENGTH  # the first step has one, also in CTranslate2
    return 2 * (each_source * SOURCE_LENGTH / OUTPUT_LENGTH + each_output * hypotheses)


@functools.cache
def product_session(kind: str, threads: int) -> Any:
    """Return a session that multiplies rows by a matrix of the output layer's size."""
    import onnx.parser
    import onnxruntime

    operator, rows, products = {
        "onnx-fp32": ("MatMul", "float", "float"),
        "onnx-int8": ("MatMulInteger", "uint8", "int32"),
    }[kind]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 20]>
        product ({rows}[n, {D_MODEL}] rows) => ({products}[n, {VOCABULARY}] products)
        {{ products = {operator}(rows, matrix) }}"""
    )
    generator, shape = np.random.default_rng(0), (D_MODEL, VOCABULARY)
    matrix = generator.random(shape, np.float32) if rows == "float" else generator.integers(-127, 128, shape, np.int8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "matrix"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    run(compare)
