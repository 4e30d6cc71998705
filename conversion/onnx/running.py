"""Run an exported file on token ids."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
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


def random_batch(model: Model, seed: int, sentences: int, longest: int) -> dict[str, Tensor]:
    """Return a padded batch of sentences of 1 to `longest` random tokens and </s>."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    pad, end = cast(int, config.pad_token_id), cast(int, config.eos_token_id)
    special = {pad, end, config.decoder_start_token_id, config.bos_token_id}
    words = torch.tensor([token for token in range(config.vocab_size) if token not in special])
    if config.max_position_embeddings is not None:
        longest = min(longest, config.max_position_embeddings - 1)
    rows = []
    for _ in range(sentences):
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        rows.append([*words[torch.randint(len(words), (length,), generator=generator)].tolist(), end])
    return padded(rows, pad)
