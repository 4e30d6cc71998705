"""Profiles an exported file by operator, with ONNX Runtime's profiler.

    python -m benchmarks.decode_profile ONNX_FOLDER --source test.en

Uses one thread. The profiler adds about a microsecond to each call, which makes the shares at small batches too even.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .decode import batchings, read_pairs
from .shared.decode_systems import padded_arrays
from .shared.harness import BATCH_SIZES, BatchSizes, Record, Row, report, run

BODIES = ("Loop", "If")  # excluded: their time includes that of the operators inside


def profile(
    folder: Annotated[Path, typer.Argument(help="A folder with model.onnx and a tokenizer.")],
    source: Annotated[str, typer.Option(help="A UTF-8 text file, one sentence per line.")],
    batch_size: BatchSizes = None,
    sentences: Annotated[int, typer.Option(min=1, help="Use this many lines of the source.")] = 200,
    most: Annotated[int, typer.Option(min=1, help="Operators to print for each batch size.")] = 15,
    record: Record = None,
) -> None:
    """Print the share of decoding time that each operator takes."""
    from vaswani_transformer.loading import load_tokenizer

    lines, _ = read_pairs(source, None, sentences)
    tokenizer = load_tokenizer(folder)
    encoded = tokenizer(lines, verbose=False)["input_ids"]
    rows: list[Row] = []
    for name, batches in batchings(encoded, batch_size or BATCH_SIZES, None).items():
        microseconds, calls = profiled(folder, [[encoded[i] for i in batch] for batch in batches], tokenizer)
        for operator, spent in microseconds.most_common(most):
            rows.append(
                {
                    "file": folder.resolve().name,
                    "sentences": len(lines),
                    "batch": name,
                    "operator": operator,
                    "share": f"{spent / microseconds.total():.3f}",
                    "calls": calls[operator],
                    "microseconds_per_call": f"{spent / calls[operator]:.1f}",
                }
            )
    report(rows, record)


def profiled(folder: Path, batches: list[list[list[int]]], tokenizer: Any) -> tuple[Counter[str], Counter[str]]:
    """Translate the batches; return the microseconds and the calls of each operator."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level, options.enable_profiling = 1, 3, True
    with tempfile.TemporaryDirectory() as name:
        options.profile_file_prefix = f"{name}/profile"
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        for sources in batches:
            ids, mask = padded_arrays(sources, tokenizer.pad_token_id)
            inputs = {"input_ids": ids, "attention_mask": mask, "num_return_sequences": np.array(1)}
            session.run(["sequences"], inputs)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    microseconds, calls = Counter[str](), Counter[str]()
    for event in events:
        operator = event.get("args", {}).get("op_name")
        if operator not in (None, *BODIES) and event["name"].endswith("_kernel_time"):
            microseconds[operator] += event["dur"]
            calls[operator] += 1
    return microseconds, calls


if __name__ == "__main__":
    run(profile)
