"""Runs an exported graph beside torch: the same translations with the same scores, or the export has failed."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vaswani_transformer.beam_search import beam_search
from vaswani_transformer.modeling_vaswani_transformer import (
    NO_HYPOTHESIS,
    VaswaniTransformerForConditionalGeneration,
)

from .split import FILES
from .traced import source_length_offset

# sentences, beams, alpha, longest source, max_length
CASES = [(1, 1, 0.6, 8, 24), (5, 4, 0.6, 20, 24), (3, 8, 1.0, 12, 16), (8, 2, 0.0, 6, 40), (4, 5, 0.6, 1, 12)]

# How far a score may lie from torch's for the same tokens; fp32: another order of the same sums. The others: each
# token's log-probability, on average, may be off by so much. What that does to BLEU a model's owner has to measure.
TOLERANCES = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.2, "int8-weights": 0.1}
# How far a weight of attention, which lies between 0 and 1, may be off.
ATTENTION_TOLERANCES = TOLERANCES | {"fp32": 1e-5}
ATTENTION = "decoder_model's weights of attention"
# Two translations whose scores differ by less are equally good, in float32.
EQUALLY_GOOD = 1e-5


@dataclass(frozen=True)
class Comparison:
    """One batch, by the graph and by torch."""

    sentences: int
    beams: int
    alpha: float
    hypotheses: int
    equal: int  # token for token
    equally_good: int  # other tokens with the same score, in float32
    score_difference: float  # the largest, for the same tokens; below float32: per token
    graph_seconds: float
    torch_seconds: float


def prove(
    path: Path, model: VaswaniTransformerForConditionalGeneration, precision: str = "fp32"
) -> tuple[list[Comparison], list[str]]:
    """What was compared, and what is wrong; nothing wrong: an empty list."""
    session = open_session(path)
    comparisons, wrong = [], []
    for number, (sentences, beams, alpha, longest, max_length) in enumerate(CASES):
        batch = random_batch(model, number, sentences, longest)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        begun = time.perf_counter()
        found, found_scores = run(session, batch, beams, alpha, max_length)
        middle = time.perf_counter()
        offset = source_length_offset(model)
        expected, expected_scores = beam_search(
            model,
            ids,
            mask,
            num_beams=beams,
            length_penalty=alpha,
            max_source_length_offset=offset,
            max_length=max_length,
        )
        ended = time.perf_counter()
        exists = expected_scores.numpy() > NO_HYPOTHESIS
        translated = exists.any(axis=1)
        width = max(found.shape[2], expected.shape[2])
        pad = cast(int, model.config.pad_token_id)
        equal = (filled(found, width, pad) == filled(expected.numpy(), width, pad)).all(axis=2) & exists
        if precision == "fp32":
            # Beyond -100, sums of hundreds of logarithms, one part in a million.
            scale = np.maximum(1, np.abs(expected_scores.numpy()) / 100)
            differences = np.abs(found_scores - expected_scores.numpy()) / scale
            near = exists & ~equal & (differences < EQUALLY_GOOD)
        else:  # other rounding chooses other tokens: each has to score as torch scores those very tokens
            exists = found_scores > NO_HYPOTHESIS
            differences = difference_by_token(model, batch, found, found_scores, alpha)
            near = np.zeros_like(equal)
        comparison = Comparison(
            sentences,
            beams,
            alpha,
            int(exists.sum()),
            int(equal.sum()),
            int(near.sum()),
            float(differences[exists].max(initial=0.0)),
            middle - begun,
            ended - middle,
        )
        comparisons.append(comparison)
        case = f"batch {sentences}, beams {beams}, alpha {alpha}"
        if precision == "fp32" and not (equal | near | ~exists).all():
            wrong.append(
                f"{case}: {int((exists & ~equal & ~near).sum())} of {comparison.hypotheses} translations differ"
            )
        if precision == "fp32" and not np.array_equal(exists, found_scores > NO_HYPOTHESIS):
            wrong.append(f"{case}: other numbers of finished translations")
        if not np.array_equal(translated, (found_scores > NO_HYPOTHESIS).any(axis=1)):
            wrong.append(f"{case}: other sentences have no translation")
        if not comparison.score_difference <= TOLERANCES[precision]:
            wrong.append(
                f"{case}: scores differ by {comparison.score_difference:.2g}; the limit is {TOLERANCES[precision]}"
            )
        if precision == "fp32":
            wrong += [
                f"{case}: {reason}" for reason in differs_alone(session, batch, found, beams, alpha, max_length, pad)
            ]
    if not any(comparison.hypotheses for comparison in comparisons):
        wrong.append("no sentence has a translation, on torch neither: its weights give no numbers")
    if precision == "fp32" and sum(c.equally_good for c in comparisons) > 0.02 * sum(c.hypotheses for c in comparisons):
        wrong.append("more than 2 % of the translations are other ones with the same scores")
    return comparisons, wrong


def prove_attention(
    path: Path, model: VaswaniTransformerForConditionalGeneration, precision: str = "fp32"
) -> tuple[float, list[str]]:
    """The largest difference of a weight of attention from torch's for the same translations, and what is wrong."""
    session = open_session(path)
    furthest, wrong = 0.0, []
    for number, (sentences, beams, alpha, longest, max_length) in enumerate(CASES):
        batch = random_batch(model, number, sentences, longest)
        inputs = inputs_of(batch, beams, alpha, max_length)
        outputs: Any = session.run(["sequences", "cross_attentions"], inputs)
        sequences, weights = outputs
        best = torch.from_numpy(sequences[:, 0])
        expected = np.stack(
            cross_attentions(model, batch, model.prepare_decoder_input_ids_from_labels(best)), axis=1
        )  # (batch, layers, heads, length, source)
        is_token = (best != model.config.pad_token_id).numpy()[:, None, None, :, None]
        difference = np.inf
        if weights.shape == expected.shape:
            difference = float(np.abs(weights - expected * is_token).max(initial=0.0))
        furthest = max(furthest, difference)
        if not difference <= ATTENTION_TOLERANCES[precision]:
            wrong.append(
                f"batch {sentences}, beams {beams}: weights of attention differ by {difference:.2g}; "
                f"the limit is {ATTENTION_TOLERANCES[precision]}"
            )
    return furthest, wrong


def differs_alone(
    session, batch: dict[str, Tensor], together: np.ndarray, beams: int, alpha: float, max_length: int, pad: int
) -> Iterator[str]:
    """The first sentence must be translated alone as it is in the batch."""
    length = int(batch["attention_mask"][0].sum())
    alone, _ = run(session, {name: ids[:1, :length] for name, ids in batch.items()}, beams, alpha, max_length)
    width = max(alone.shape[2], together.shape[2])
    if not np.array_equal(filled(alone, width, pad), filled(together[:1], width, pad)):
        yield "a sentence alone has another translation than in its batch"


def run(
    session, batch: dict[str, Tensor], beams: int, alpha: float, max_length: int, wanted: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """wanted: how many of the best hypotheses, 0 for all"""
    sequences, scores = session.run(["sequences", "scores"], inputs_of(batch, beams, alpha, max_length, wanted))
    return sequences, scores


def inputs_of(
    batch: dict[str, Tensor], beams: int, alpha: float, max_length: int, wanted: int = 0
) -> dict[str, np.ndarray]:
    inputs = {name: tensor.numpy() for name, tensor in batch.items()}
    inputs["num_beams"] = np.array(beams, np.int64)
    inputs["length_penalty"] = np.array(alpha, np.float32)
    inputs["max_length"] = np.array(max_length, np.int64)
    inputs["min_length"] = np.array(0, np.int64)
    inputs["num_return_sequences"] = np.array(wanted, np.int64)
    return inputs


def random_batch(
    model: VaswaniTransformerForConditionalGeneration, seed: int, sentences: int, longest: int
) -> dict[str, Tensor]:
    """Sentences of 1 to `longest` random tokens and </s>, padded."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    end = cast(int, config.eos_token_id)
    special = {config.pad_token_id, config.decoder_start_token_id, config.bos_token_id, end}
    words = torch.tensor([token for token in range(config.vocab_size) if token not in special])
    if config.max_position_embeddings is not None:
        longest = min(longest, config.max_position_embeddings - 1)
    input_ids = torch.full((sentences, longest + 1), cast(int, config.pad_token_id))
    attention_mask = torch.zeros_like(input_ids)
    for row in range(sentences):
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        input_ids[row, :length] = words[torch.randint(len(words), (length,), generator=generator)]
        input_ids[row, length] = end
        attention_mask[row, : length + 1] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def difference_by_token(
    model: VaswaniTransformerForConditionalGeneration,
    batch: dict[str, Tensor],
    found: np.ndarray,
    scores: np.ndarray,
    alpha: float,
) -> np.ndarray:
    """(batch, beams): how far these translations' scores lie from those of torch, as log-probability by token."""
    lengths = (found != model.config.pad_token_id).sum(axis=2).clip(min=1)
    return np.abs(scores - forced_scores(model, batch, found, alpha)) * ((5 + lengths) / 6) ** alpha / lengths


@torch.no_grad()
def forced_scores(
    model: VaswaniTransformerForConditionalGeneration, batch: dict[str, Tensor], sequences: np.ndarray, alpha: float
) -> np.ndarray:
    """(batch, beams): what torch gives these very translations."""
    beams = sequences.shape[1]
    labels = torch.from_numpy(sequences).flatten(0, 1)
    is_token = labels != model.config.pad_token_id
    repeated = {name: tensor.repeat_interleave(beams, dim=0) for name, tensor in batch.items()}
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(**repeated, decoder_input_ids=decoder_input_ids, use_cache=False).logits.float()
    log_probabilities = logits.log_softmax(dim=-1).gather(-1, labels[..., None])[..., 0]
    totals = (log_probabilities * is_token).sum(dim=1).unflatten(0, (-1, beams)).numpy()
    lengths = is_token.sum(dim=1).unflatten(0, (-1, beams)).numpy()
    return totals / ((5 + lengths) / 6) ** alpha


@torch.no_grad()
def prove_split(
    folder: Path, model: VaswaniTransformerForConditionalGeneration, precision: str = "fp32", steps: int = 6
) -> tuple[dict[str, float], list[str]]:
    """The largest difference of a logit from torch's, by the way it was computed, and what is wrong.

    A padded batch, given tokens one at a time: by the two decoders in turn, by the merged one, and all at once; and,
    where decoder_model has them, the weights of its attention to the source.
    """
    batch = random_batch(model, 0, sentences=3, longest=9)
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.lm_head.weight.shape[0]
    start = torch.full((3, 1), model.config.decoder_start_token_id)
    tokens = torch.cat((start, torch.randint(vocabulary, (3, steps - 1), generator=generator)), dim=1)
    expected = model(**batch, decoder_input_ids=tokens, use_cache=False).logits.float().numpy()
    encoder, first, after, merged = (open_session(folder / f"{name}.onnx") for name in FILES)
    ids, mask, fed = batch["input_ids"].numpy(), batch["attention_mask"].numpy(), tokens.numpy()
    memory: Any = encoder.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    source = {"encoder_hidden_states": memory, "encoder_attention_mask": mask}
    found = {"decoder_model, all tokens at once": first.run(["logits"], source | {"input_ids": fed})[0]}

    def by_name(session, inputs: dict) -> dict[str, np.ndarray]:
        outputs = [value.name for value in session.get_outputs()]
        return dict(zip(outputs, session.run(outputs, inputs), strict=True))

    def as_past(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            name.replace("present", "past_key_values"): value
            for name, value in outputs.items()
            if name.startswith("present")
        }

    outputs = by_name(first, source | {"input_ids": fed[:, :1]})
    past, logits = as_past(outputs), [outputs["logits"]]
    for i in range(1, steps):
        outputs = by_name(after, past | {"input_ids": fed[:, i : i + 1], "encoder_attention_mask": mask})
        past |= as_past(outputs)
        logits.append(outputs["logits"])
    found["decoder_model, then decoder_with_past_model"] = np.concatenate(logits, axis=1)

    # What the first call has of a past is not looked at.
    past = {
        value.name: np.zeros((3, value.shape[1], 0, value.shape[3]), memory.dtype)
        for value in merged.get_inputs()
        if value.name.startswith("past")
    }
    logits = []
    for i in range(steps):
        inputs = {"input_ids": fed[:, i : i + 1], "use_cache_branch": np.array([i > 0])}
        outputs = by_name(merged, source | past | inputs)
        past = as_past(outputs)
        logits.append(outputs["logits"])
    found["decoder_model_merged"] = np.concatenate(logits, axis=1)

    differences = {way: float(np.abs(logits - expected).max()) for way, logits in found.items()}
    names = [value.name for value in first.get_outputs() if value.name.startswith("cross_attentions")]
    # Logits, unlike log-probabilities, have a scale of their own.
    limit = TOLERANCES[precision] * max(1.0, float(np.abs(expected).max()))
    wrong = [
        f"{way}: logits differ by {d:.2g}; the limit is {limit:.2g}" for way, d in differences.items() if not d <= limit
    ]
    if names:
        attended = cross_attentions(model, batch, tokens)
        weights = first.run(names, source | {"input_ids": fed})
        furthest = max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(weights, attended, strict=True))
        differences[ATTENTION] = furthest
        if not furthest <= TOLERANCES[precision]:
            wrong.append(f"{ATTENTION} differ by {furthest:.2g}; the limit is {TOLERANCES[precision]}")
    return differences, wrong


@torch.no_grad()
def cross_attentions(
    model: VaswaniTransformerForConditionalGeneration, batch: dict[str, Tensor], tokens: Tensor
) -> list[np.ndarray]:
    """What torch gives each target token's attention to the source, a layer each, (batch, heads, target, source)."""
    implementation = model.config._attn_implementation or "eager"
    model.set_attn_implementation("eager")
    try:
        output = model(**batch, decoder_input_ids=tokens, use_cache=False, output_attentions=True)
    finally:
        model.set_attn_implementation(implementation)
    return [weights.float().numpy() for weights in output.cross_attentions]


def open_session(path: Path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of inputs with defaults
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def split_table(differences: dict[str, float]) -> str:
    """A line for each way."""
    return "\n".join(
        f"{way:<48} {'' if way == ATTENTION else 'logits '}differ by at most {d:.1e}" for way, d in differences.items()
    )


def filled(sequences: np.ndarray, width: int, pad: int) -> np.ndarray:
    """(batch, beams, length) -> (batch, beams, width)"""
    return np.pad(sequences, ((0, 0), (0, 0), (0, width - sequences.shape[2])), constant_values=pad)


def table(comparisons: list[Comparison]) -> str:
    """A line for each batch."""
    head = f"{'batch':>6}{'beams':>6}{'alpha':>6}{'translations':>14}{'equal':>7}{'tied':>6}{'score diff.':>13}"
    lines = [head + f"{'ONNX s':>9}{'torch s':>9}"]
    for c in comparisons:
        lines.append(
            f"{c.sentences:>6}{c.beams:>6}{c.alpha:>6}{c.hypotheses:>14}{c.equal:>7}{c.equally_good:>6}"
            f"{c.score_difference:>13.1e}{c.graph_seconds:>9.2f}{c.torch_seconds:>9.2f}"
        )
    return "\n".join(lines)
