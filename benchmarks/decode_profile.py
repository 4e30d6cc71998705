"""Which operators of an ONNX file take the time?

    python -m benchmarks.decode_profile ONNX_FOLDER --source test.en --batch-size 1 --batch-size 64

Row:  an operator and a batch size, the most expensive operators first; on a GPU, where it runs.
Unit: its share of the time of all operators, by ONNX Runtime's profiler, on one thread; on a GPU, the time of the host.
Peer: none; the rows of decode.csv say how fast the whole search is.

The profiler adds about a microsecond to each call, so at small batches the shares of cheap operators are too large.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer

from vaswani_transformer.loading import load_tokenizer
from vaswani_transformer.onnx_translator import execution_providers

from .decode import batchings, read_pairs
from .harness import Row, report, run
from .options import BATCH_SIZES, BatchSizes, Device, Record
from .systems.decoding import TokenIds, padded_arrays

BODIES = ("Loop", "If")  # excluded: their time includes that of the operators inside


def profile(
    folder: Annotated[Path, typer.Argument(help="A folder with model.onnx and a tokenizer.")],
    source: Annotated[str, typer.Option(help="A UTF-8 text file, one sentence per line.")],
    batch_size: BatchSizes = None,
    sentences: Annotated[int, typer.Option(min=1, help="Use this many lines of the source.")] = 200,
    device: Device = "cpu",
    most: Annotated[int, typer.Option(min=1, help="Operators to print for each batch size.")] = 15,
    record: Record = None,
) -> None:
    """Print the share of decoding time that each operator takes."""
    lines, _ = read_pairs(source, None, sentences)
    tokenizer: Any = load_tokenizer(folder)
    encoded: TokenIds = tokenizer(lines, verbose=False)["input_ids"]
    rows: list[Row] = []
    for name, batches in batchings(encoded, batch_size or BATCH_SIZES).items():
        sources = [[encoded[i] for i in batch] for batch in batches]
        microseconds, calls = profiled(folder, sources, tokenizer.pad_token_id, device)
        for (provider, operator), spent in microseconds.most_common(most):
            rows.append(
                {
                    "file": folder.resolve().name,
                    "sentences": len(lines),
                    "batch": name,
                    "provider": provider,
                    "operator": operator,
                    "share": f"{spent / microseconds.total():.3f}",
                    "calls": calls[provider, operator],
                    "microseconds_per_call": f"{spent / calls[provider, operator]:.1f}",
                }
            )
    report(rows, record)


def profiled(folder: Path, batches: list[TokenIds], pad: int, device: str) -> tuple[Counter[Any], Counter[Any]]:
    """Translate the batches; return the microseconds and the calls of each (provider, operator)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level, options.enable_profiling = 1, 3, True
    with tempfile.TemporaryDirectory() as temporary:
        options.profile_file_prefix = f"{temporary}/profile"
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, execution_providers(device))
        for sources in batches:
            ids, mask = padded_arrays(sources, pad)
            inputs = {"input_ids": ids, "attention_mask": mask, "num_return_sequences": np.array(1)}
            session.run(["sequences"], inputs)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    microseconds, calls = Counter[Any](), Counter[Any]()
    for event in events:
        operator = event.get("args", {}).get("op_name")
        if operator not in (None, *BODIES) and event["name"].endswith("_kernel_time"):
            key = event["args"]["provider"].removesuffix("ExecutionProvider"), operator
            microseconds[key] += event["dur"]
            calls[key] += 1
    return microseconds, calls


if __name__ == "__main__":
    run(profile)
