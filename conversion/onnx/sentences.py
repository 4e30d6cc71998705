"""Translate real sentences by `generate()`, by the search in torch and by the file: the same translations, timed.

Random tokens prove a graph but say little about its speed, which depends on how long translations are and when they
end.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, get_num_threads

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import default_search
from vaswani_transformer.text_translator import SearchSettings

from .prove import difference_by_token, search_in_torch
from .running import TOLERANCES, open_session, padded, run, same_or_equally_good, score_difference, widened

BATCH = 8  # sentences


def encoded_sentences(lines: list[str], tokenizer: Any, model: Model, name: str) -> list[list[int]]:
    """Return the token ids of lines that are not blank, shortest first. Raises InputError naming a line too long."""
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


def prove_sentences(
    path: Path, model: Model, sentences: list[list[int]], precision: str = "fp32"
) -> tuple[str, list[str]]:
    """Translate by each search in turn; returns a report and what is wrong with the file's translations."""
    pad = cast(int, model.config.pad_token_id)
    search = default_search(model)
    batches = [padded(sentences[i : i + BATCH], pad) for i in range(0, len(sentences), BATCH)]
    translators = searches(path, model, search)
    for translate in translators:  # to warm up
        translate(batches[0])
    seconds = [0.0, 0.0, 0.0]
    as_generate, different, largest = 0, 0, 0.0
    for batch in batches:  # in turn, so that other load on the machine slows all three
        results = []
        for i, translate in enumerate(translators):
            begun = time.perf_counter()
            results.append(translate(batch))
            seconds[i] += time.perf_counter() - begun
        generated, (expected, expected_scores), (found, scores) = results
        width = max(generated.shape[2], found.shape[2])
        as_generate += int((widened(found, width, pad) == widened(generated, width, pad)).all(axis=2).sum())
        if precision == "fp32":
            equal, near = same_or_equally_good(found, scores, expected, expected_scores, pad)
            different += int((~equal & ~near).sum())
            differences = score_difference(scores, expected_scores)
        else:
            differences = difference_by_token(model, batch, found, scores, search.length_penalty)
        largest = max(largest, float(differences.max()))
    wrong = []
    if different:
        wrong.append(f"{different} of {len(sentences)} sentences have another translation")
    if not largest <= TOLERANCES[precision]:
        wrong.append(f"scores of sentences differ by {largest:.2g}; the limit is {TOLERANCES[precision]}")
    report = (
        f"{len(sentences)} sentences, {BATCH} at a time, beam {search.num_beams}, {get_num_threads()} thread(s): "
        f"generate() {seconds[0]:.2f} s, our search in torch {seconds[1]:.2f} s, model.onnx {seconds[2]:.2f} s: "
        f"{seconds[0] / seconds[2]:.1f} times as fast as generate(); "
        f"{as_generate} of {len(sentences)} translations are the same"
    )
    return report, wrong


def searches(path: Path, model: Model, search: SearchSettings) -> list[Callable[[dict[str, Tensor]], Any]]:
    """Return `generate()`, the search in torch and the file, as functions of a batch."""
    session = open_session(path)

    def by_generate(batch: dict[str, Tensor]) -> np.ndarray:
        found: Any = model.generate(**cast(Any, batch), **search._asdict())
        return found[:, None, 1:].numpy()

    return [
        by_generate,
        lambda batch: search_in_torch(model, batch, search, num_return_sequences=1),
        lambda batch: run(session, batch, search, wanted=1),
    ]
