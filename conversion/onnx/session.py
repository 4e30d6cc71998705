"""Run an exported file on token ids."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vaswani_transformer.search_settings import NO_MAXIMUM, SearchSettings, lookahead_of


def open_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of inputs with defaults
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(
    session: Any, batch: Mapping[str, Tensor], search: SearchSettings, max_length: int = NO_MAXIMUM, wanted: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences and scores;  wanted: how many of the best hypotheses, 0 for all"""
    return session.run(["sequences", "scores"], inputs_of(batch, search, max_length, wanted))


def inputs_of(
    batch: Mapping[str, Tensor], search: SearchSettings, max_length: int = NO_MAXIMUM, wanted: int = 0
) -> dict[str, np.ndarray]:
    beams, alpha, rule = search
    settings = {"num_beams": beams, "max_length": max_length, "min_length": 0, "num_return_sequences": wanted}
    settings["early_stopping"] = lookahead_of(rule)
    inputs = {name: tensor.numpy() for name, tensor in batch.items()}
    inputs |= {name: np.array(value, np.int64) for name, value in settings.items()}
    return inputs | {"length_penalty": np.array(alpha, np.float32)}


def padded(sentences: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """Return input_ids and attention_mask, (batch, longest)."""
    ids = [torch.tensor(sentence) for sentence in sentences]
    mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    return {"input_ids": pad_sequence(ids, batch_first=True, padding_value=pad), "attention_mask": mask}
