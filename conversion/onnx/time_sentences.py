"""Time real sentences, and compare their translations with torch's."""

import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.search_vaswani_transformer import SearchSettings

from .session import open_session, pad_batch
from .verify import BATCH, compare, raise_if_wrong, same_tokens, translate


def encoded_sentences(lines: list[str], tokenizer: Any, model: Model, name: str) -> list[list[int]]:
    """Tokenize the lines that are not blank, and sort them by length. Raises InputError naming a line too long."""
    positions = model.config.learned_positions
    sentences = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        ids = cast(list[int], tokenizer(line, verbose=False)["input_ids"])
        if positions is not None and len(ids) > positions:
            raise InputError(f"{name} line {number} has {len(ids)} tokens; the model has {positions} positions")
        sentences.append(ids)
    if not sentences:
        raise InputError(f"{name} has no sentence: every line is blank")
    return sorted(sentences, key=len)


def time_sentences(path: Path, model: Model, sentences: list[list[int]], precision: str = "fp32") -> str:
    """Translate sentences with `generate()`, the graph and the search in torch, and return a report.

    Random tokens show that a graph is correct, but its speed depends on the lengths of real translations.

    sentences: token ids, sorted by length so that batches have little padding. Raises ProofError.
    """
    session, pad = open_session(path), cast(int, model.config.pad_token_id)
    search = SearchSettings.from_generation_config(model.generation_config.to_dict())
    batches = [pad_batch(sentences[i : i + BATCH], pad) for i in range(0, len(sentences), BATCH)]
    seconds, same_as_generate = np.zeros(3), 0
    for turn, batch in enumerate([batches[0], *batches]):  # the three take turns, so that other load slows all of them
        begun = time.perf_counter()
        generated = cast(Any, model).generate(**batch, **vars(search))[:, None, 1:].numpy()
        generation = time.perf_counter() - begun
        found = translate(session, model, batch, search)
        wrong = compare(found, model, batch, search.length_penalty, precision).wrong
        raise_if_wrong([f"sentences: {reason}" for reason in wrong])
        if turn > 0:  # the first one warms up
            seconds += generation, *found.seconds
            same_as_generate += int(same_tokens(found.sequences, generated, pad).sum())
    of_generate, of_graph, of_torch = seconds
    return (
        f"{len(sentences)} sentences, {BATCH} at a time, beam {search.num_beams}, {torch.get_num_threads()} thread(s): "
        f"generate() {of_generate:.2f} s, our search in torch {of_torch:.2f} s, model.onnx {of_graph:.2f} s: "
        f"{of_generate / of_graph:.1f} times as fast as generate(); "
        f"{same_as_generate} of {len(sentences)} translations are the same"
    )
