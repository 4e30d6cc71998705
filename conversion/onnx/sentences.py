"""Real sentences by `generate()`, by the search in tensors and by the file: the same translations, and how fast.

Random tokens prove a graph and say little of its speed: how long translations are and when they end is the model's
and its sentences' own.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vaswani_transformer.beam_search import beam_search
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import own_search
from vaswani_transformer.modeling_vaswani_transformer import VaswaniTransformerForConditionalGeneration

from .prove import EQUALLY_GOOD, TOLERANCES, difference_by_token, filled, open_session, run
from .traced import NO_MAXIMUM, source_length_offset

BATCH = 8  # sentences


@dataclass(frozen=True)
class Race:
    """The same sentences by each of the three, in the same batches."""

    sentences: int
    beams: int
    as_generate: int  # of the file's translations those that are `generate()`'s, token for token
    generate_seconds: float
    search_seconds: float
    file_seconds: float

    def line(self) -> str:
        times = self.generate_seconds / self.file_seconds
        return (
            f"{self.sentences} sentences, {BATCH} at a time, beam {self.beams}, {torch.get_num_threads()} thread(s): "
            f"generate() {self.generate_seconds:.2f} s, our search in torch {self.search_seconds:.2f} s, "
            f"model.onnx {self.file_seconds:.2f} s: {times:.1f} times as fast as generate(); "
            f"{self.as_generate} of {self.sentences} translations are the same"
        )


def encoded_sentences(
    lines: list[str], tokenizer: Any, model: VaswaniTransformerForConditionalGeneration, name: str
) -> list[list[int]]:
    """Token ids of the lines that are not blank, shortest first. Raises InputError naming a line that is too long."""
    most = model.config.max_position_embeddings
    sentences = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        ids = cast(list[int], tokenizer(line, verbose=False)["input_ids"])
        if most is not None and len(ids) > most:
            raise InputError(f"{name} line {number} has {len(ids)} tokens; the model has {most} positions")
        sentences.append(ids)
    if not sentences:
        raise InputError(f"{name} has no sentence: every line is blank")
    return sorted(sentences, key=len)


def race(
    path: Path, model: VaswaniTransformerForConditionalGeneration, sentences: list[list[int]], precision: str = "fp32"
) -> tuple[Race, list[str]]:
    """Translate the sentences by each in turn; what they took, and what is wrong with the file's translations."""
    session = open_session(path)
    pad = cast(int, model.config.pad_token_id)
    beams, alpha = own_search(model)
    offset = source_length_offset(model)
    batches = [padded(sentences[i : i + BATCH], pad) for i in range(0, len(sentences), BATCH)]

    def by_generate(batch: dict[str, Tensor]) -> np.ndarray:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        found: Any = model.generate(ids, attention_mask=mask, num_beams=beams, length_penalty=alpha)
        return found[:, None, 1:].numpy()

    def by_search(batch: dict[str, Tensor]) -> tuple[np.ndarray, np.ndarray]:
        found = beam_search(
            model,
            batch["input_ids"],
            batch["attention_mask"],
            num_beams=beams,
            length_penalty=alpha,
            max_source_length_offset=offset,
            num_return_sequences=1,
        )
        return found[0].numpy(), found[1].numpy()

    def by_file(batch: dict[str, Tensor]) -> tuple[np.ndarray, np.ndarray]:
        return run(session, batch, beams, alpha, NO_MAXIMUM, wanted=1)

    for system in (by_generate, by_search, by_file):
        system(batches[0])
    seconds = {by_generate: 0.0, by_search: 0.0, by_file: 0.0}

    def timed(system: Callable[[dict[str, Tensor]], Any], batch: dict[str, Tensor]) -> Any:
        begun = time.perf_counter()
        found = system(batch)
        seconds[system] += time.perf_counter() - begun
        return found

    as_generate, different, furthest = 0, 0, 0.0
    for batch in batches:  # in turn, so that what else the machine does falls on all three
        theirs = timed(by_generate, batch)
        expected, expected_scores = timed(by_search, batch)
        found, scores = timed(by_file, batch)
        width = max(array.shape[2] for array in (theirs, expected, found))
        theirs, expected, found = (filled(array, width, pad) for array in (theirs, expected, found))
        as_generate += int((found == theirs).all(axis=2).sum())
        if precision == "fp32":
            apart = np.abs(scores - expected_scores) / np.maximum(1, np.abs(expected_scores))
            different += int(((found != expected).any(axis=2) & (apart >= EQUALLY_GOOD)).sum())
            furthest = max(furthest, float(apart.max()))
        else:
            furthest = max(furthest, float(difference_by_token(model, batch, found, scores, alpha).max()))
    wrong = []
    if different:
        wrong.append(f"{different} of {len(sentences)} sentences have another translation")
    if not furthest <= TOLERANCES[precision]:
        wrong.append(f"scores of sentences differ by {furthest:.2g}; the limit is {TOLERANCES[precision]}")
    return Race(len(sentences), beams, as_generate, *seconds.values()), wrong


def padded(sentences: list[list[int]], pad: int) -> dict[str, Tensor]:
    """input_ids and attention_mask, (batch, longest)"""
    longest = max(map(len, sentences))
    input_ids = torch.tensor([ids + [pad] * (longest - len(ids)) for ids in sentences])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in sentences])
    return {"input_ids": input_ids, "attention_mask": mask}
