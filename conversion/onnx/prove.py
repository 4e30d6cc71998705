"""Compare the single graph with torch: the same translations with the same scores, or the export has failed."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.beam_search import beam_search
from vaswani_transformer.modeling_vaswani_transformer import NO_HYPOTHESIS
from vaswani_transformer.text_translator import SearchSettings

from .running import TOLERANCES, inputs_of, open_session, random_batch, run, same_or_equally_good, score_difference
from .traced import eager_attention, source_length_offset

# The largest difference of an attention weight, which is between 0 and 1.
ATTENTION_TOLERANCES = TOLERANCES | {"fp32": 1e-5}


class Case(NamedTuple):
    sentences: int
    search: SearchSettings
    longest: int  # source tokens
    max_length: int

    def __str__(self) -> str:
        return f"batch {self.sentences}, beams {self.search.num_beams}, alpha {self.search.length_penalty}"


CASES = [
    Case(1, SearchSettings(1, 0.6), 8, 24),
    Case(5, SearchSettings(4, 0.6), 20, 24),
    Case(3, SearchSettings(8, 1.0, "never"), 12, 16),
    Case(8, SearchSettings(2, 0.0, True), 6, 40),
    Case(4, SearchSettings(5, 0.6, False), 1, 12),
]


@dataclass(frozen=True)
class Comparison:
    """One batch, by the graph and by torch."""

    case: Case
    hypotheses: int
    equal: int  # token for token
    equally_good: int  # other tokens with the same score, in float32
    score_difference: float  # the largest, for the same tokens; below float32: per token
    graph_seconds: float
    torch_seconds: float


def prove(path: Path, model: Model, precision: str = "fp32") -> tuple[list[Comparison], list[str]]:
    """Return what was compared, and what is wrong."""
    session = open_session(path)
    comparisons, wrong = [], []
    for seed, case in enumerate(CASES):
        batch = random_batch(model, seed, case.sentences, case.longest)
        comparison, reasons = compare(session, model, batch, case, precision)
        comparisons.append(comparison)
        wrong += [f"{case}: {reason}" for reason in reasons]
    if not any(comparison.hypotheses for comparison in comparisons):
        wrong.append("no sentence has a translation, with torch neither: the weights are not finite numbers")
    if precision == "fp32" and sum(c.equally_good for c in comparisons) > 0.02 * sum(c.hypotheses for c in comparisons):
        wrong.append("more than 2 % of the translations differ from torch's with the same scores")
    return comparisons, wrong


def compare(
    session: Any, model: Model, batch: dict[str, Tensor], case: Case, precision: str
) -> tuple[Comparison, list[str]]:
    """Translate a batch by the graph and by torch; returns what is wrong, too."""
    begun = time.perf_counter()
    found, found_scores = run(session, batch, case.search, case.max_length)
    middle = time.perf_counter()
    expected, expected_scores = search_in_torch(model, batch, case.search, max_length=case.max_length)
    ended = time.perf_counter()
    exists, found_exists = (scores > NO_HYPOTHESIS for scores in (expected_scores, found_scores))
    pad, wrong = cast(int, model.config.pad_token_id), []
    equal, near = same_or_equally_good(found, found_scores, expected, expected_scores, pad)
    if precision == "fp32":
        differences = score_difference(found_scores, expected_scores)[exists]
        different = int((exists & ~equal & ~near).sum())
        if different:
            wrong.append(f"{different} of {int(exists.sum())} translations differ")
        if not np.array_equal(exists, found_exists):
            wrong.append("the numbers of finished translations differ")
        if differs_alone(session, batch, found, found_scores, case, pad):
            wrong.append("a sentence alone has another translation than in its batch")
    else:  # other rounding chooses other tokens: torch scores these very tokens
        differences = difference_by_token(model, batch, found, found_scores, case.search.length_penalty)[found_exists]
        near = np.zeros_like(equal)
    largest = float(differences.max(initial=0.0))
    if not np.array_equal(exists.any(axis=1), found_exists.any(axis=1)):
        wrong.append("other sentences have no translation")
    if not largest <= TOLERANCES[precision]:  # neither if it is NaN
        wrong.append(f"scores differ by {largest:.2g}; the limit is {TOLERANCES[precision]}")
    hypotheses = exists if precision == "fp32" else found_exists
    counts = int(hypotheses.sum()), int((exists & equal).sum()), int((exists & near).sum())
    return Comparison(case, *counts, largest, middle - begun, ended - middle), wrong


def search_in_torch(
    model: Model, batch: dict[str, Tensor], search: SearchSettings, **settings: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences and scores of our search. settings: other arguments of `beam_search`"""
    ids, mask, offset = batch["input_ids"], batch["attention_mask"], source_length_offset(model)
    found = beam_search(model, ids, mask, max_source_length_offset=offset, **search._asdict(), **settings)
    return found[0].numpy(), found[1].numpy()


def differs_alone(
    session: Any, batch: dict[str, Tensor], together: np.ndarray, scores: np.ndarray, case: Case, pad: int
) -> bool:
    """Return whether the first sentence has another, not equally good translation without the rest of its batch."""
    length = int(batch["attention_mask"][0].sum())
    first = {name: ids[:1, :length] for name, ids in batch.items()}
    alone = run(session, first, case.search, case.max_length)
    equal, near = same_or_equally_good(*alone, together[:1], scores[:1], pad)
    return not (equal | near).all()


@torch.no_grad()
def difference_by_token(
    model: Model, batch: dict[str, Tensor], found: np.ndarray, scores: np.ndarray, alpha: float
) -> np.ndarray:
    """Return how far the scores are from torch's for these very translations, as log P per token, (batch, beams)."""
    beams = found.shape[1]
    labels = torch.from_numpy(found).flatten(0, 1)
    is_token = labels != model.config.pad_token_id
    repeated = {name: tensor.repeat_interleave(beams, dim=0) for name, tensor in batch.items()}
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(**repeated, decoder_input_ids=decoder_input_ids, use_cache=False).logits.float()
    log_probabilities = logits.log_softmax(dim=-1).gather(-1, labels[..., None])[..., 0]
    totals = (log_probabilities * is_token).sum(dim=1).unflatten(0, (-1, beams)).numpy()
    lengths = is_token.sum(dim=1).unflatten(0, (-1, beams)).numpy().clip(min=1)
    return np.abs(scores * ((5 + lengths) / 6) ** alpha - totals) / lengths


def prove_attention(path: Path, model: Model, precision: str = "fp32") -> tuple[float, list[str]]:
    """Return the largest difference of an attention weight from torch's, and what is wrong."""
    session, limit = open_session(path), ATTENTION_TOLERANCES[precision]
    largest, wrong = 0.0, []
    for seed, case in enumerate(CASES):
        batch = random_batch(model, seed, case.sentences, case.longest)
        inputs = inputs_of(batch, case.search, case.max_length)
        sequences, weights = session.run(["sequences", "cross_attentions"], inputs)
        best = torch.from_numpy(sequences[:, 0])
        per_layer = cross_attentions(model, batch, model.prepare_decoder_input_ids_from_labels(best))
        expected = np.stack(per_layer, axis=1)  # (batch, layers, heads, length, source)
        is_token = (best != model.config.pad_token_id).numpy()[:, None, None, :, None]
        difference = np.inf
        if weights.shape == expected.shape:
            difference = float(np.abs(weights - expected * is_token).max(initial=0.0))
        largest = max(largest, difference)
        if not difference <= limit:
            wrong.append(f"{case}: attention weights differ by {difference:.2g}; the limit is {limit}")
    return largest, wrong


@torch.no_grad()
def cross_attentions(model: Model, batch: dict[str, Tensor], tokens: Tensor) -> list[np.ndarray]:
    """Return torch's weights of the attention to the source, per layer, (batch, heads, target, source)."""
    with eager_attention(model):
        output = model(**batch, decoder_input_ids=tokens, use_cache=False, output_attentions=True)
    return [weights.float().numpy() for weights in output.cross_attentions]


def table(comparisons: list[Comparison]) -> str:
    """Return a line for each batch."""
    head = f"{'batch':>6}{'beams':>6}{'alpha':>6}{'translations':>14}{'equal':>7}{'tied':>6}{'score diff.':>13}"
    lines = [head + f"{'ONNX s':>9}{'torch s':>9}"]
    for c in comparisons:
        sentences, (beams, alpha, _), *_ = c.case
        lines.append(
            f"{sentences:>6}{beams:>6}{alpha:>6}{c.hypotheses:>14}{c.equal:>7}{c.equally_good:>6}"
            f"{c.score_difference:>13.1e}{c.graph_seconds:>9.2f}{c.torch_seconds:>9.2f}"
        )
    return "\n".join(lines)
