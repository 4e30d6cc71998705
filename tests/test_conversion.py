"""Converted checkpoints of other toolkits have the logits, ids and hypotheses that the toolkits computed."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import one_fast_in
from golden import NAMES, VARIANTS, Golden, converted, golden

from conversion.convert import READERS
from vaswani_transformer import Translator

# A wrong epsilon of LayerNorm shows as 4e-5, every other wrong switch as 0.2 to 10. Marian prints five digits; the
# LayerNorm of two tutorials is folded into one with another epsilon.
TOLERANCE = {
    "marian": 2e-5, "marian-spm": 2e-5, "annotated-transformer": 2e-5,
    "pytorch-transformer": 2e-5, "pytorch-transformer-first": 2e-5,
}  # fmt: skip

# Tutorials without beam search.
GREEDY_ONLY = ("torch-nn-transformer", "annotated-transformer", "pytorch-seq2seq", "pytorch-transformer")
# How each toolkit ranks a hypothesis of L tokens, </s> counted; anything else is sum log P / ((5 + L) / 6)^0.6, ours.
# Sockeye's scores are costs.
SCORES = {
    **dict.fromkeys(
        ("fairseq", "fairseq-old", "hf-fsmt", "hf-marian", "hf-prenorm", "marian", "marian-spm"),
        lambda total, length: total / length**0.6,
    ),
    **dict.fromkeys(
        ("opennmt-py", "eole"),
        lambda total, length: total / ((5 + length + 1) / 6) ** 0.6,  # they count <s> as well
    ),
    "sockeye": lambda total, length: -total / length,
    **dict.fromkeys(GREEDY_ONLY, lambda total, length: total),
}
# Pre-norm Marian searches with another function than it trains: see test_prenorm_marian_...
SEARCHED = [name for name in NAMES if name != "marian-prenorm"]


def test_every_reader_has_a_checkpoint():
    assert set(READERS) <= set(NAMES)


@pytest.mark.parametrize(
    "name", [*SEARCHED, *one_fast_in(3, sorted(file.parent.name for file in VARIANTS.glob("*/expected.npz")))]
)
def test_logits_equal_the_toolkits(name: str):
    checkpoint = converted(name)
    expected = checkpoint.expected
    prefix = "ref_" if "ref_log_probs" in expected else ""
    which = next(array for array in ("logits", "log_probs", "ref_log_probs") if array in expected)
    ours, theirs = checkpoint.logits(expected[f"{prefix}tgt_in_ids"]), torch.tensor(expected[which])
    if which != "logits":
        ours = ours.log_softmax(dim=-1)
    mask = torch.tensor(expected.get(f"{prefix}tgt_mask", np.ones(ours.shape[:2]))).bool()
    assert theirs[mask].std() > 0.3
    difference = (ours[..., : theirs.shape[-1]] - theirs)[mask].abs().max().item()
    print(f"{name}: logits differ by {difference:.1e}")
    assert difference <= TOLERANCE.get(name, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_tokenizers_give_the_toolkits_ids(name: str):
    checkpoint = converted(name)
    expected, (sources, targets) = checkpoint.expected, checkpoint.texts
    wanted = [row[mask == 1].tolist() for row, mask in zip(expected["src_ids"], expected["src_mask"], strict=True)]
    assert checkpoint.tokenizer()(sources)["input_ids"] == wanted
    if "tgt_in_ids" in expected:
        rows = zip(expected["tgt_in_ids"], expected["tgt_mask"], strict=True)
        wanted = [[*row[mask == 1].tolist()[1:], checkpoint.model.config.eos_token_id] for row, mask in rows]
        assert checkpoint.tokenizer("target")(targets)["input_ids"] == wanted


def up_to(eos: Any, ids: list[int]) -> list[int]:
    return ids[: ids.index(eos) + 1] if eos in ids else [id for id in ids if id >= 0]


def hypotheses_of(checkpoint: Golden) -> list[tuple[int, list[int], float]]:
    """Return row, token ids and score of each of the toolkit's hypotheses, best first."""
    expected, eos = checkpoint.expected, checkpoint.model.config.eos_token_id
    if "greedy_ids" in expected:
        beams, scores = expected["greedy_ids"][:, None], expected["greedy_scores"][:, None]
    else:
        beams, scores = expected["beam_ids"], expected["beam_scores"]
    return [
        (row, up_to(eos, beam), score)
        for row in range(len(beams))
        for beam, score in zip(beams[row].tolist(), scores[row].tolist(), strict=True)
        if beam[0] >= 0 and not np.isnan(score)  # fewer hypotheses than beams
    ]


@pytest.mark.parametrize("name", SEARCHED)
def test_hypotheses_have_the_toolkits_scores(name: str):
    checkpoint = converted(name)
    rows, hypotheses, scores = zip(*hypotheses_of(checkpoint), strict=True)
    assert len(hypotheses) >= 5
    score = SCORES.get(name, lambda total, length: total / ((5 + length) / 6) ** 0.6)
    found = checkpoint.log_probabilities(list(rows), list(hypotheses))
    ours = [score(chosen.sum().item(), len(chosen)) for chosen in found]
    assert ours == pytest.approx(list(scores), abs=5e-5)


def word_score_difference(checkpoint: Golden) -> float:
    """Return the largest difference from Marian's log-probabilities of words in its 12 best."""
    largest = 0.0
    beams = [[id for id in beam if id >= 0] for row in checkpoint.expected["hyp_ids"].tolist() for beam in row]
    rows = [row for row, hypotheses in enumerate(checkpoint.expected["hyp_ids"]) for _ in hypotheses]
    printed = checkpoint.expected["hyp_word_scores"].reshape(len(beams), -1)
    for beam, ours, theirs in zip(beams, checkpoint.log_probabilities(rows, beams), printed, strict=True):
        largest = max(largest, np.abs(ours.numpy() - theirs[: len(beam)]).max(initial=0.0))
    return largest


@pytest.mark.parametrize("name", ["marian", "marian-spm"])
def test_words_have_the_scores_that_marian_prints(name: str):
    assert word_score_difference(converted(name)) <= 2e-5  # five digits


@pytest.mark.parametrize("name", sorted(file.parent.name for file in VARIANTS.glob("*/printed.npz")))
def test_variants_of_marian_have_the_printed_scores(name: str):
    translator = Translator.from_pretrained(converted(name).folder, device="cpu")
    with np.load(golden(name) / "printed.npz") as printed:
        sources, targets, scores = printed["sources"][printed["rows"]], printed["words"], printed["word_scores"]
    for found, theirs in zip(translator.score(sources.tolist(), targets.tolist()), scores, strict=True):
        theirs = theirs[~np.isnan(theirs)]  # without </s> for a hypothesis of the greatest length
        assert found.log_probabilities[: len(theirs)] == pytest.approx(theirs.tolist(), abs=2e-5)  # five digits


def test_prenorm_marian_is_the_trained_function():
    checkpoint = converted("marian-prenorm")
    eos = checkpoint.model.config.eos_token_id
    targets = [up_to(eos, row) for row in checkpoint.expected["gold_tgt_ids"].tolist()]
    ours = [-words.sum().item() for words in checkpoint.log_probabilities(list(range(len(targets))), targets)]
    assert ours == pytest.approx(checkpoint.expected["gold_ce"].tolist(), abs=1e-4)  # six digits of up to 30 nats
    # Its step-wise decoder is another function, as the note in the folder says.
    assert word_score_difference(checkpoint) > 0.1
    assert "one function in training and another in decoding" in (checkpoint.folder / "CONVERSION.md").read_text()


def generated(checkpoint: Golden, beams: int, returned: int, **settings) -> list[list[list[int]]]:
    """Return our hypotheses for each source as token ids, best first."""
    model = checkpoint.model
    ids = model.generate(**checkpoint.source(), num_beams=beams, num_return_sequences=returned, **settings)
    found = [up_to(model.config.eos_token_id, row) for row in ids[:, 1:].tolist()]
    return [found[start : start + returned] for start in range(0, len(found), returned)]


GREEDY = {"beams": 1, "length_penalty": 1.0, "early_stopping": False}


@pytest.mark.parametrize(
    ("name", "compared", "search"),
    [
        ("tensor2tensor", 4, {"beams": 4, "length_penalty": 0.6}),
        ("joeynmt", 1, {"beams": 4, "length_penalty": 0.6}),  # it keeps finished hypotheses in the beam
        ("torch-nn-transformer", 1, GREEDY),
        ("annotated-transformer", 1, GREEDY),
        ("pytorch-seq2seq", 1, GREEDY),
        ("pytorch-transformer", 1, GREEDY),
    ],
)
def test_toolkits_with_our_penalty_find_the_same_hypotheses(name: str, compared: int, search: dict):
    checkpoint = converted(name)
    hypotheses = hypotheses_of(checkpoint)
    for row, ours in enumerate(generated(checkpoint, returned=search["beams"], **search)):
        theirs = [tokens for at, tokens, _ in hypotheses if at == row]
        assert ours[:compared] == theirs[:compared]


@pytest.mark.parametrize("name", [name for name in SEARCHED if name in SCORES and name not in GREEDY_ONLY])
def test_toolkits_with_other_penalties_find_nothing_better(name: str):
    """The best of our sixteen beams, ranked as the toolkit ranks, is no worse than the best of its four."""
    checkpoint = converted(name)
    hypotheses = hypotheses_of(checkpoint)
    ours = generated(checkpoint, beams=16, returned=16, length_penalty=0.0)
    sign = -1 if name == "sockeye" else 1  # its scores are costs
    for row, found in enumerate(ours):
        found = [tokens for tokens in found if tokens and tokens[-1] == checkpoint.model.config.eos_token_id]
        words = checkpoint.log_probabilities([row] * len(found), found)
        best = max(sign * SCORES[name](chosen.sum().item(), len(chosen)) for chosen in words)
        theirs = next(score for at, _, score in hypotheses if at == row)
        assert best >= sign * theirs - 1e-4
