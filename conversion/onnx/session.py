"""Run exported files with ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vaswani_transformer.onnx_translator import graph_inputs
from vaswani_transformer.search_vaswani_transformer import SearchSettings
from vaswani_transformer.translator import pad_rows


def open_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no warnings about inputs with defaults
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(session: Any, batch: Mapping[str, Tensor], search: SearchSettings) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences and scores."""
    inputs = {name: tensor.numpy() for name, tensor in batch.items()}
    return session.run(["sequences", "scores"], inputs | graph_inputs(search))


def pad_batch(sentences: Sequence[list[int]], pad: int) -> dict[str, Tensor]:
    """Return input_ids and attention_mask, (batch, longest)."""
    ids, mask = map(torch.tensor, pad_rows(sentences, pad))
    return {"input_ids": ids, "attention_mask": mask}
