"""Compare exported files with torch; an export fails if they differ.

The single graph is compared by translations and scores, the split layout by its logits for every way to call it.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.attention_maps import eager_copy
from vaswani_transformer.beam_search import beam_search
from vaswani_transformer.errors import ProofError
from vaswani_transformer.modeling_vaswani_transformer import (
    VALID_ABOVE,
    score_divisor,
    searches_as_transformers,
    target_vocab_size,
)
from vaswani_transformer.onnx_translator import graph_inputs, has_repetition
from vaswani_transformer.search_vaswani_transformer import SearchSettings
from vaswani_transformer.translator import pad_rows

from .split import FILES

# The largest difference of a score from torch's for the same tokens. fp32: the same sums in another order, see
# `score_difference`. Other precisions: the average per token; users must measure the effect on BLEU.
TOLERANCES = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.2, "int8-weights": 0.1}
# The largest difference of an attention weight, which is between 0 and 1.
ATTENTION_TOLERANCES = TOLERANCES | {"fp32": 1e-5}
# Two float32 translations whose scores differ by less are tied.
EQUALLY_GOOD = 1e-5
BATCH = 8  # sentences


class Case(NamedTuple):
    sentences: int
    longest: int  # source tokens
    search: SearchSettings

    def __str__(self) -> str:
        return f"batch {self.sentences}, beams {self.search.num_beams}, alpha {self.search.length_penalty}"


CASES = [
    Case(1, 8, SearchSettings(1, 0.6, 5, num_return_sequences=1, max_new_tokens=24)),
    Case(5, 20, SearchSettings(4, 0.6, 5, num_return_sequences=4, extra_length=4)),
    Case(3, 12, SearchSettings(8, 1.0, "never", num_return_sequences=8, max_new_tokens=16, min_new_tokens=3)),
    Case(8, 6, SearchSettings(2, 0.0, True, num_return_sequences=2, extra_length=34)),
    Case(4, 1, SearchSettings(5, 0.6, False, num_return_sequences=5, max_new_tokens=12)),
]
# Of a graph with the settings against repetitions.
REPETITION_CASES = [
    Case(5, 12, SearchSettings(num_return_sequences=4, min_new_tokens=3, no_repeat_ngram_size=2)),
    Case(3, 12, SearchSettings(num_return_sequences=4, no_repeat_ngram_size=3, repetition_penalty=1.3)),
    Case(6, 12, SearchSettings(1, no_repeat_ngram_size=2, repetition_penalty=1.2)),
]


class Translations(NamedTuple):
    """One batch, translated by the graph and by torch."""

    sequences: np.ndarray  # from the graph
    scores: np.ndarray
    torch_sequences: np.ndarray
    torch_scores: np.ndarray
    seconds: tuple[float, float]  # the graph's and torch's


class Comparison(NamedTuple):
    hypotheses: int
    equal: int  # hypotheses with the same tokens
    tied: int  # hypotheses with other tokens and the same score, in float32
    score_difference: float  # the largest one
    wrong: list[str]  # reasons to reject the graph


def verify(path: Path, model: Model, precision: str = "fp32") -> str:
    """Translate random tokens and return a report. Raises ProofError."""
    session = open_session(path)
    has_attention = "cross_attentions" in {value.name for value in session.get_outputs()}
    lines = [" batch beams alpha  translations  equal  tied  score diff.   ONNX s  torch s"]
    wrong, hypotheses, largest = [], 0, 0.0
    cases = CASES + (REPETITION_CASES if has_repetition(session) else [])
    for seed, case in enumerate(cases):
        batch = random_batch(model, seed, case.sentences, case.longest)
        translations = translate(session, model, batch, case.search)
        found = compare(translations, model, batch, case.search, precision)
        hypotheses += found.hypotheses
        wrong += [f"{case}: {reason}" for reason in found.wrong]
        lines.append(
            f"{case.sentences:>6}{case.search.num_beams:>6}{case.search.length_penalty:>6}{found.hypotheses:>14}"
            f"{found.equal:>7}{found.tied:>6}{found.score_difference:>13.1e}"
            f"{translations.seconds[0]:>9.2f}{translations.seconds[1]:>9.2f}"
        )
        if has_attention:
            difference, limit = attention_difference(session, model, batch, case), ATTENTION_TOLERANCES[precision]
            largest = max(largest, difference)
            if not difference <= limit:
                wrong.append(f"{case}: attention weights differ by {difference:.2g}; the limit is {limit}")
    if not hypotheses:
        wrong.append("neither torch nor the graph finds a translation: the model has weights that are not finite")
    raise_if_wrong(wrong)
    return "\n".join([*lines, *([f"attention weights differ by at most {largest:.1e}"] if has_attention else [])])


def raise_if_wrong(wrong: list[str]) -> None:
    """Raise ProofError with all reasons, if there are any."""
    if wrong:
        found = "; ".join(wrong)
        raise ProofError(f"the exported graph does not translate as torch does ({found}); nothing was written")


def translate(session: Any, model: Model, batch: dict[str, Tensor], search: SearchSettings) -> Translations:
    """Translate a batch with the graph and with torch."""
    begun = time.perf_counter()
    sequences, scores = run(session, batch, search)
    middle = time.perf_counter()
    in_torch = beam_search(model, batch["input_ids"], batch["attention_mask"], search)
    seconds = middle - begun, time.perf_counter() - middle
    torch_sequences, torch_scores = (tensor.numpy() for tensor in in_torch)
    return Translations(sequences, scores, torch_sequences, torch_scores, seconds)


def compare(
    translations: Translations, model: Model, batch: dict[str, Tensor], search: SearchSettings, precision: str
) -> Comparison:
    """Compare the graph's translations of a batch with torch's."""
    found, scores, expected, expected_scores, _ = translations
    exists, exists_in_torch = scores > VALID_ABOVE, expected_scores > VALID_ABOVE
    equal = same_tokens(found, expected, cast(int, model.config.pad_token_id))
    wrong, tied = [], 0
    if not np.array_equal(exists.any(axis=1), exists_in_torch.any(axis=1)):
        wrong.append("the graph and torch find translations for different sentences")
    if precision == "fp32":
        differences = score_difference(scores, expected_scores)
        # Scores of tied hypotheses differ only by rounding, which depends on the shapes of a batch.
        others = differences[exists_in_torch & ~equal]
        tied = int((others < EQUALLY_GOOD).sum())
        if tied < len(others):
            wrong.append(f"{len(others) - tied} of {exists_in_torch.sum()} translations differ")
        if not np.array_equal(exists, exists_in_torch):
            wrong.append("the graph and torch finish different numbers of hypotheses")
        exists = exists_in_torch
    else:  # rounding may change the tokens, so torch scores the graph's translations
        differences = difference_by_token(model, batch, found, scores, search)
    largest = float(differences[exists].max(initial=0.0))
    if not largest <= TOLERANCES[precision]:  # also true for NaN
        wrong.append(f"scores differ by {largest:.2g}; the limit is {TOLERANCES[precision]}")
    return Comparison(int(exists.sum()), int((exists & equal).sum()), tied, largest, wrong)


def score_difference(found: np.ndarray | float, expected: np.ndarray | float) -> np.ndarray:
    """Return the difference of scores, relative to scores below -1: rounding errors grow with the sum."""
    return np.abs(np.subtract(found, expected)) / np.maximum(1, np.abs(expected))


def same_tokens(found: np.ndarray, expected: np.ndarray, pad: int) -> np.ndarray:
    """Return which translations (batch, beams, length) have the same tokens, (batch, beams)."""
    length = min(found.shape[2], expected.shape[2])
    equal = (found[..., :length] == expected[..., :length]).all(axis=2)
    return equal & (found[..., length:] == pad).all(axis=2) & (expected[..., length:] == pad).all(axis=2)


@torch.no_grad()
def difference_by_token(
    model: Model, batch: dict[str, Tensor], found: np.ndarray, scores: np.ndarray, search: SearchSettings
) -> np.ndarray:
    """Return the difference of the scores from torch's for the same tokens, in log P per token, (batch, beams)."""
    beams = found.shape[1]
    labels = torch.from_numpy(found).flatten(0, 1)
    is_token = labels != model.config.pad_token_id
    repeated = {name: tensor.repeat_interleave(beams, dim=0) for name, tensor in batch.items()}
    before = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(**repeated, decoder_input_ids=before, use_cache=False).logits.float()
    of_labels = logits.gather(2, labels[:, :, None])[:, :, 0]
    log_probabilities = of_labels - logits.logsumexp(dim=2)
    # As in `penalise_repetitions`.
    value, penalty = of_labels if search.num_beams == 1 else log_probabilities, search.repetition_penalty
    is_repeated = (labels[:, :, None] == before[:, None]).tril().any(dim=2)
    log_probabilities += is_repeated * (torch.where(value < 0, value * penalty, value / penalty) - value)
    if model.generation_config.forced_bos_token_id is not None:
        log_probabilities[:, 0] = 0
    totals = (log_probabilities * is_token).sum(dim=1).unflatten(0, (-1, beams)).numpy()
    lengths = is_token.sum(dim=1).unflatten(0, (-1, beams)).clip(min=1)
    divisors = score_divisor(lengths.double(), search.length_penalty, searches_as_transformers(model))
    return np.abs(scores * divisors.numpy() - totals) / lengths.numpy()


def attention_difference(session: Any, model: Model, batch: dict[str, Tensor], case: Case) -> float:
    """Return the largest difference of the best translations' attention weights from torch's."""
    inputs = {name: tensor.numpy() for name, tensor in batch.items()}
    inputs |= graph_inputs(case.search, has_repetition(session))
    sequences, weights = session.run(["sequences", "cross_attentions"], inputs)
    best = torch.from_numpy(sequences[:, 0])
    per_layer = cross_attentions(model, batch, model.prepare_decoder_input_ids_from_labels(best))
    expected = np.stack(per_layer, axis=1)  # (batch, layers, heads, length, source)
    is_token = (best != model.config.pad_token_id).numpy()[:, None, None, :, None]
    if weights.shape != expected.shape:
        return np.inf
    return float(np.abs(weights - expected * is_token).max(initial=0.0))


@torch.no_grad()
def cross_attentions(model: Model, batch: dict[str, Tensor], tokens: Tensor) -> list[np.ndarray]:
    """Return torch's attention to the source, per layer, (batch, heads, target, source)."""
    output = eager_copy(model)(**batch, decoder_input_ids=tokens, use_cache=False, output_attentions=True)
    return [weights.float().numpy() for weights in output.cross_attentions]


def open_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no warnings about inputs with defaults
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(session: Any, batch: Mapping[str, Tensor], search: SearchSettings) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences and scores."""
    inputs = {name: tensor.numpy() for name, tensor in batch.items()}
    return session.run(["sequences", "scores"], inputs | graph_inputs(search, has_repetition(session)))


def pad_batch(sentences: Sequence[list[int]], pad: int) -> dict[str, Tensor]:
    """Return input_ids and attention_mask, (batch, longest)."""
    ids, mask = map(torch.tensor, pad_rows(sentences, pad))
    return {"input_ids": ids, "attention_mask": mask}


def random_batch(model: Model, seed: int, sentences: int, longest: int) -> dict[str, Tensor]:
    """Return a padded batch of sentences of 1 to `longest` random tokens and </s>."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    pad, end = cast(int, config.pad_token_id), cast(int, config.eos_token_id)
    special = {pad, end, config.decoder_start_token_id, config.bos_token_id}
    words = torch.tensor([token for token in range(config.vocab_size) if token not in special])
    if config.learned_positions is not None:
        longest = min(longest, config.learned_positions - 1)
    rows = []
    for _ in range(sentences):
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        rows.append([*words[torch.randint(len(words), (length,), generator=generator)].tolist(), end])
    return pad_batch(rows, pad)


# ---- the split layout -----------------------------------------------------------------------------------------------

TARGET_LENGTH = 6  # tokens
Arrays = dict[str, np.ndarray]


@torch.no_grad()
def verify_split(folder: Path, model: Model, precision: str = "fp32") -> str:
    """Decode a padded batch in three ways, and report the largest difference of a logit. Raises ProofError.

    The ways: all tokens in one call; token by token with both decoders; token by token with the merged decoder. If
    decoder_model returns attention weights, they are compared too.
    """
    batch = random_batch(model, seed=0, sentences=3, longest=9)
    generator, start = torch.Generator().manual_seed(0), model.config.decoder_start_token_id
    tokens = torch.randint(target_vocab_size(model.config), (3, TARGET_LENGTH), generator=generator)
    tokens[tokens == model.config.eos_token_id] = start  # decoders for transformers.js repeat </s>
    tokens[:, 0] = start
    expected = model(**batch, decoder_input_ids=tokens, use_cache=False).logits.float().numpy()

    encoder, decoder, decoder_with_past, merged = (open_session(folder / f"{name}.onnx") for name in FILES)
    (memory,) = encoder.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
    source = {"encoder_hidden_states": memory, "encoder_attention_mask": batch["attention_mask"].numpy()}
    at_once = by_name(decoder, source | {"input_ids": tokens.numpy()})
    in_turn = decode_token_by_token(decoder, decoder_with_past, source, tokens.numpy())
    by_merged = decode_token_by_token(merged, merged, source | empty_past(merged, memory), tokens.numpy())
    found = {
        "logits of decoder_model, all tokens at once": at_once["logits"],
        "logits of decoder_model, then decoder_with_past_model": in_turn,
        "logits of decoder_model_merged": by_merged,
    }
    differences = {way: float(np.abs(logits - expected).max()) for way, logits in found.items()}
    # Relative to the logits, whose scale depends on the model.
    limits = dict.fromkeys(found, TOLERANCES[precision] * max(1.0, float(np.abs(expected).max())))
    weights = [value for name, value in at_once.items() if name.startswith("cross_attentions")]
    if weights:
        way, theirs = "attention weights of decoder_model", cross_attentions(model, batch, tokens)
        differences[way] = max(float(np.abs(a - b).max()) for a, b in zip(weights, theirs, strict=True))
        limits[way] = ATTENTION_TOLERANCES[precision]
    exceeding = {way: largest for way, largest in differences.items() if not largest <= limits[way]}  # NaN, too
    raise_if_wrong([f"{way} differ by {size:.2g}; the limit is {limits[way]:.2g}" for way, size in exceeding.items()])
    return "\n".join(f"{way:<54}differ by at most {largest:.1e}" for way, largest in differences.items())


def decode_token_by_token(decoder: Any, decoder_with_past: Any, source: Arrays, tokens: np.ndarray) -> np.ndarray:
    """Return the logits. The first token passes through `decoder`, later ones through `decoder_with_past`."""
    known, logits = source, []
    for i in range(tokens.shape[1]):
        inputs = known | {"input_ids": tokens[:, i : i + 1], "use_cache_branch": np.array([i > 0])}
        outputs = by_name(decoder_with_past if i else decoder, inputs)
        logits.append(outputs.pop("logits"))
        known |= {name.replace("present", "past_key_values"): value for name, value in outputs.items()}
    return np.concatenate(logits, axis=1)


def empty_past(merged: Any, memory: np.ndarray) -> Arrays:
    """Return a cache of length 0, which the first call of the merged decoder ignores."""
    past = [value for value in merged.get_inputs() if value.name.startswith("past")]
    return {value.name: np.zeros((len(memory), value.shape[1], 0, value.shape[3]), memory.dtype) for value in past}


def by_name(session: Any, inputs: Arrays) -> Arrays:
    """Run a session with those of the inputs that it has, and return the outputs by name."""
    given = {value.name: inputs[value.name] for value in session.get_inputs()}
    outputs = [value.name for value in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, given), strict=True))
