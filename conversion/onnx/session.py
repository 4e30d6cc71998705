"""Run exported files with ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vaswani_transformer.search_settings import NO_MAXIMUM, SearchSettings

from .search_inputs import search_inputs


def open_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no warnings about inputs with defaults
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(
    session: Any,
    batch: Mapping[str, Tensor],
    search: SearchSettings,
    max_length: int = NO_MAXIMUM,
    num_return_sequences: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences and scores;  num_return_sequences: 0 for all hypotheses"""
    inputs = {name: tensor.numpy() for name, tensor in batch.items()}
    return session.run(["sequences", "scores"], inputs | search_inputs(search, max_length, num_return_sequences))


def padded(sentences: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """Return input_ids and attention_mask, (batch, longest)."""
    ids = [torch.tensor(sentence) for sentence in sentences]
    mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    return {"input_ids": pad_sequence(ids, batch_first=True, padding_value=pad), "attention_mask": mask}
