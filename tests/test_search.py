"""`generate()` is the paper's search: proved against brute force, enumeration and itself in other batches."""

import dataclasses
import itertools
import operator
from typing import Any

import pytest
import torch
from brute_force import (
    END,
    PAD,
    START,
    Found,
    against_repetitions,
    beam_search,
    enumerate_everything,
    full_forward,
    length_penalty,
)
from conftest import one_fast_in
from searches import by_generate, by_search, check_same
from tiny_models import ModelMaker, padded, random_sentences
from transformers import GenerationConfig

# Decisions that differ by less are equal in float32: the accumulated log-probabilities of a sentence differ by up to
# 2e-6 between a batched, cached forward pass and the plain one.
FLOAT_NOISE = 1e-5


def close_to(score: float):
    """Within 1e-5, or, for translations that sum up seventy float32 log-probabilities, one part in a million."""
    return pytest.approx(score, rel=1e-6, abs=1e-5)


def tokens_of(row: torch.Tensor) -> tuple[int, ...]:
    """A row of `generate()` without the start token and the padding."""
    tokens = row.tolist()
    assert tokens[0] == START
    tokens = tokens[1:]
    if END in tokens:
        cut = tokens.index(END) + 1
        assert set(tokens[cut:]) <= {PAD}, "only padding may follow </s>"
        tokens = tokens[:cut]
    while tokens and tokens[-1] == PAD:
        tokens.pop()
    return tuple(tokens)


def search(model: Any, sentences: list[list[int]], **arguments) -> list[list[tuple[tuple[int, ...], float]]]:
    """generate() on a padded batch -> for each sentence its n-best (tokens, score)."""
    returned = arguments.get("num_return_sequences", 1)
    output = model.generate(**padded(sentences), return_dict_in_generate=True, output_scores=True, **arguments)
    scores = output.sequences_scores.tolist()
    rows = [(tokens_of(row), score) for row, score in zip(output.sequences, scores, strict=True)]
    return [rows[start : start + returned] for start in range(0, len(rows), returned)]


def check_best(found: tuple[tuple[int, ...], float], truth: Found) -> None:
    assert truth.margin > FLOAT_NOISE, "choose another seed: two translations are equally good"
    assert found == (truth.hypotheses[0].tokens, close_to(truth.hypotheses[0].score))


@dataclasses.dataclass
class Comparison:
    """Compares n-best lists, and counts the cases that make the comparison prove something."""

    compared: int = 0
    switched: int = 0
    ended: int = 0
    live_would_have_won: int = 0
    near_ties: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)

    def add(self, case: str, found: list[tuple[tuple[int, ...], float]], truth: Found) -> None:
        """Sequences must agree exactly and scores within 1e-5, unless the search hung on float noise."""
        expected = [(hypothesis.tokens, close_to(hypothesis.score)) for hypothesis in truth.hypotheses]
        self.compared += len(expected)
        self.switched += sum(hypothesis.switched for hypothesis in truth.hypotheses)
        self.ended += sum(hypothesis.ended for hypothesis in truth.hypotheses)
        self.live_would_have_won += truth.live_would_have_won
        if found[: len(expected)] != expected:
            self.near_ties += truth.margin < FLOAT_NOISE
            if truth.margin >= FLOAT_NOISE:
                self.wrong.append(f"{case}, margin {truth.margin:.1e}:\n  found    {found}\n  expected {expected}")

    def check(self) -> None:
        assert not self.wrong, f"{len(self.wrong)} searches differ\n" + "\n".join(self.wrong[:3])
        assert self.near_ties <= 2


# (seed, where </s> becomes likely): from sentences that end soon to sentences that run into the limit
MODELS = [(1, 4.0), (3, 5.0), (6, 8.0), (7, 2.0)]


@pytest.mark.parametrize(("seed", "end_at"), MODELS)
def test_search_equals_brute_force(lively_model: ModelMaker, seed: int, end_at: float) -> None:
    """Four sentences of different length in one padded batch, complete n-best lists.

    Live hypotheses at the limit count only if none has finished, even where they would score best.
    """
    model = lively_model(seed, end_at, norm_position="pre" if seed % 4 == 3 else "post")
    sentences = random_sentences(seed, count=4, vocab_size=16, longest=7)
    forwards = [full_forward(model, sentence) for sentence in sentences]
    comparison = Comparison()
    for beams, alpha in ((2, 0.6), (3, -0.9), (4, 0.0), (4, 2.0), (5, 0.6), (8, -0.9), (8, 2.0)):
        settings = {"num_return_sequences": beams, "length_penalty": alpha, "extra_length": 4}
        found = search(model, sentences, num_beams=beams, **settings)
        for sentence, forward, rows in zip(sentences, forwards, found, strict=True):
            truth = beam_search(forward, beams=beams, alpha=alpha, limit=len(sentence) + 4)
            comparison.add(f"beams {beams}, alpha {alpha}, source {sentence}", rows, truth)
    comparison.check()
    assert comparison.compared >= 80
    assert comparison.switched >= 0.3 * comparison.compared
    assert comparison.live_would_have_won >= 2
    if end_at <= 4:
        assert comparison.ended >= 0.5 * comparison.compared


RULES = ("never", True, False, 1, 3)


def test_every_stopping_rule_equals_brute_force(lively_model: ModelMaker) -> None:
    """In generate() and in the search in tensors; the rules differ from each other in some translations."""
    comparison, found_by_rule = Comparison(), {rule: [] for rule in map(str, RULES)}
    for seed, end_at in ((0, 3.0), (6, 8.0)):
        model = lively_model(seed, end_at)
        sentences = random_sentences(seed, count=6, vocab_size=16, longest=7)
        forwards = [full_forward(model, sentence) for sentence in sentences]
        for rule, (returned, alpha) in itertools.product(RULES, ((3, -0.9), (1, 0.6), (3, 2.0))):
            settings = {"num_return_sequences": returned, "early_stopping": rule, "extra_length": 9}
            rows = search(model, sentences, num_beams=5, length_penalty=alpha, **settings)
            tensors = by_search(model, padded(sentences), 5, alpha, **settings)
            for sentence, forward, ours, theirs in zip(sentences, forwards, rows, tensors.tokens, strict=True):
                limit = len(sentence) + 9
                truth = beam_search(forward, beams=5, alpha=alpha, limit=limit, returned=returned, early_stopping=rule)
                case = f"{rule}, alpha {alpha}, source {sentence}"
                comparison.add(case, ours, truth)
                both = [(tuple(tokens), score) for tokens, (_, score) in zip(theirs, ours, strict=True)]
                comparison.add(f"tensors: {case}", both, truth)
                found_by_rule[str(rule)].append([tokens for tokens, _ in ours])
    comparison.check()
    different = [sum(map(operator.ne, found_by_rule["never"], found)) for found in found_by_rule.values()]
    assert different[0] == 0 and min(different[1:3]) > different[3] >= different[4]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_wide_search_finds_the_best_of_all_translations(lively_model: ModelMaker, alpha: float) -> None:
    """Three words and </s>: with more beams than there are live prefixes nothing is ever pruned, so the n-best
    list is the head of the list of all 1 + 3 + 9 + 27 translations of at most four tokens."""
    differs_from_greedy = 0
    for seed in range(5):
        model = lively_model(seed, end_at=2.0, vocab_size=6)
        sentence = [[4, 5, 5, 4, 2], [5, 2], [4, 4, 5, 2]][seed % 3]
        everything = enumerate_everything(full_forward(model, sentence), alpha=alpha, limit=4)
        assert len(everything) == 1 + 3 + 9 + 27
        wide = {"num_beams": 81, "num_return_sequences": 5, "length_penalty": alpha}
        (found,) = search(model, [sentence], **wide, max_new_tokens=4)
        assert found == [(hypothesis.tokens, close_to(hypothesis.score)) for hypothesis in everything[:5]]
        greedy = model.generate(**padded([sentence]), num_beams=1, max_new_tokens=4)
        differs_from_greedy += tokens_of(greedy[0]) != found[0][0]
    assert differs_from_greedy >= 1


@pytest.mark.parametrize("beams", [1, 4])
def test_a_translation_does_not_depend_on_its_batch(lively_model: ModelMaker, beams: int) -> None:
    """Tokens are the same alone, in order, in reverse, and beside a far longer sentence."""
    ended = 0
    for seed, end_at in MODELS[:2]:
        model = lively_model(seed, end_at - 1.5 if beams == 1 else end_at)  # greedy search ends later
        sentences = random_sentences(seed, count=10, vocab_size=16, longest=12)
        arguments = {"num_beams": beams, "extra_length": 5}
        alone = [tokens_of(model.generate(**padded([sentence]), **arguments)[0]) for sentence in sentences]
        together = [tokens_of(row) for row in model.generate(**padded(sentences), **arguments)]
        assert together == alone
        backwards = [tokens_of(row) for row in model.generate(**padded(sentences[::-1]), **arguments)]
        assert backwards == alone[::-1]
        long = [4 + i % 12 for i in range(40)] + [END]
        beside = model.generate(**padded([*sentences[:4], long]), **arguments)
        assert [tokens_of(row) for row in beside[:4]] == alone[:4]
        ended += sum(tokens[-1] == END for tokens in alone)
    assert ended >= 6


def without_end(model: Any) -> Any:
    with torch.no_grad():
        model.lm_head.bias[END] = -1e4
    return model


@pytest.mark.parametrize("beams", [1, 4])
def test_each_sentence_has_its_own_limit(lively_model: ModelMaker, beams: int) -> None:
    """The model never ends a sentence, so each translation has |source| + 3 tokens, </s> included."""
    model = without_end(lively_model(0))
    sentences = [[5, 2], [6, 7, 8, 9, 10, 2], [4, 4, 4, 2]]
    rows = model.generate(**padded(sentences), num_beams=beams, extra_length=3)
    assert [len(tokens_of(row)) for row in rows] == [5, 9, 7]


def test_the_limit_counts_after_a_given_prefix(lively_model: ModelMaker) -> None:
    """A model that never ends: |source| + 3 tokens after the prefix; with learned positions, up to the last one."""
    for beginning in ([[START, 5, 6, 7]], [[5, 6, 7]]):
        prompt = {"decoder_input_ids": torch.tensor(beginning)}
        row = without_end(lively_model(0)).generate(**padded([[8, 9, 2]]), **prompt, extra_length=3)
        assert row.shape == (1, 4 + 6)
        learned = without_end(lively_model(0, position_embedding_type="learned", max_position_embeddings=12))
        assert learned.generate(**padded([[8, 9, 2]]), **prompt).shape == (1, 12)


def record_steps(model: Any) -> list[int]:
    """Return a list to which each step of the decoder adds an entry."""
    steps: list[int] = []
    model.get_decoder().register_forward_hook(lambda *_: steps.append(1))
    return steps


def test_the_search_stops_at_the_proved_best(lively_model: ModelMaker) -> None:
    """The decoder runs as many steps as brute force needs, not until the limit."""
    early = 0
    for seed in range(4):
        model = lively_model(seed, end_at=3.0)
        for sentence in random_sentences(seed, count=3, vocab_size=16, longest=8):
            limit, steps = len(sentence) + 10, record_steps(model)
            model.generate(**padded([sentence]), extra_length=10)
            found = len(steps)
            truth = beam_search(full_forward(model, sentence), beams=4, alpha=0.6, limit=limit, returned=1)
            if truth.margin > FLOAT_NOISE:
                assert found == truth.steps
                early += truth.steps < limit
    assert early >= 4


@pytest.mark.parametrize(("seed", "start"), [(0, [START]), (1, []), (2, [START])])
def test_a_given_prefix_is_continued_like_brute_force(lively_model: ModelMaker, seed: int, start: list[int]) -> None:
    """Limit, penalty and stopping bound count the generated tokens, not the prefix."""
    model = lively_model(seed)
    sentence, beginning = [5, 6, 7, 2], (5, 6, 4)
    forward = full_forward(model, sentence)
    settings = {"beams": 4, "alpha": 1.0, "limit": len(sentence) + 4, "returned": 1}
    truth = beam_search(lambda row: forward((START, *beginning, *row[1:])), **settings)
    steps = record_steps(model)
    given = {"decoder_input_ids": torch.tensor([[*start, *beginning]])}
    (((tokens, score),),) = search(model, [sentence], **given, length_penalty=1.0, extra_length=4)
    assert tokens[:3] == beginning
    check_best((tokens[3:], score), truth)
    assert len(steps) == truth.steps


def test_beam_1_is_greedy_search(lively_model: ModelMaker) -> None:
    ended = 0
    for seed, end_at in MODELS:
        model = lively_model(seed, end_at - 2)
        sentences = random_sentences(seed + 7, count=6, vocab_size=16, longest=8)
        rows = model.generate(**padded(sentences), num_beams=1, extra_length=5)
        for sentence, row in zip(sentences, rows, strict=True):
            truth = beam_search(full_forward(model, sentence), beams=1, alpha=0.0, limit=len(sentence) + 5)
            assert tokens_of(row) == truth.hypotheses[0].tokens
            ended += truth.hypotheses[0].ended
    assert ended >= 10


@pytest.mark.parametrize(
    ("size", "penalty", "beams"),
    one_fast_in(
        5,
        (
            (size, penalty, beams)
            for size, penalty in ((1, 1.0), (2, 1.0), (3, 1.0), (0, 1.3), (0, 0.7), (2, 1.5))
            for beams in (1, 2, 4)
        ),
    ),
)
def test_settings_against_repetitions_equal_brute_force(
    lively_model: ModelMaker, beams: int, size: int, penalty: float
) -> None:
    """In generate() and in the search in tensors; they change translations."""
    comparison, changed = Comparison(), 0
    for seed in (1, 6):
        model = lively_model(seed, 8.0, vocab_size=20)
        sentences = random_sentences(seed, count=5, vocab_size=20, longest=7)
        batch = padded(sentences)
        settings = {"extra_length": 8, "no_repeat_ngram_size": size, "repetition_penalty": penalty}
        tensors = by_search(model, batch, beams, 0.6, **settings)
        check_same(tensors, by_generate(model, batch, beams, 0.6, **settings))
        changed += sum(map(operator.ne, tensors.tokens, by_search(model, batch, beams, 0.6, extra_length=8).tokens))
        assert tensors.scores is not None
        for sentence, tokens, scores in zip(sentences, tensors.tokens, tensors.scores.tolist(), strict=True):
            forward = against_repetitions(model, sentence, size=size, penalty=penalty, greedy=beams == 1)
            truth = beam_search(forward, beams=beams, alpha=0.6, limit=len(sentence) + 8)
            found = [(tuple(row), score) for row, score in zip(tokens, scores, strict=True) if row]
            comparison.add(f"seed {seed}, source {sentence}", found, truth)
    comparison.check()
    assert comparison.compared >= 6 * beams and changed >= 3


@pytest.mark.parametrize("arguments", [{"num_beams": 1}, {"num_beams": 4}, {"num_beams": 1, "do_sample": True}])
def test_pad_and_start_are_never_produced(lively_model: ModelMaker, arguments: dict) -> None:
    """This holds even where the model gives them nearly all the probability."""
    model = lively_model(3)
    with torch.no_grad():
        model.lm_head.bias[[START, PAD]] = 30.0
    sentences = random_sentences(5, count=8, vocab_size=16, longest=8)
    for sentence, row in zip(sentences, model.generate(**padded(sentences), **arguments), strict=True):
        tokens = tokens_of(row)
        assert tokens
        assert not {START, PAD} & set(tokens)
        assert tokens[-1] == END or len(tokens) == len(sentence) + 50


@pytest.mark.parametrize("beams", [1, 3])
def test_sampling_follows_the_seed_and_the_limit(lively_model: ModelMaker, beams: int) -> None:
    model = without_end(lively_model(4))
    batch = padded([[5, 2], [6, 7, 8, 9, 2]])

    def sample(seed: int) -> list[tuple[int, ...]]:
        torch.manual_seed(seed)
        rows = model.generate(**batch, do_sample=True, num_beams=beams, extra_length=6)
        return [tokens_of(row) for row in rows]

    assert sample(1) == sample(1)
    assert len({tuple(sample(seed)) for seed in range(8)}) > 1
    assert [len(tokens) for tokens in sample(3)] == [8, 11]


@pytest.mark.parametrize("helped_by", ["assistant", "prompt lookup"])
def test_assisted_decoding_equals_greedy(lively_model: ModelMaker, helped_by: str) -> None:
    """A smaller model or the source proposes tokens, and the model decides."""
    for seed in range(2):
        model = lively_model(seed)
        help: dict[str, Any] = {"prompt_lookup_num_tokens": 2}
        if helped_by == "assistant":
            help = {"assistant_model": lively_model(seed + 100, decoder_layers=1, encoder_layers=1)}
        for sentence in random_sentences(seed, count=3, vocab_size=16, longest=8):
            arguments = {**padded([sentence]), "num_beams": 1, "extra_length": 8}
            greedy, assisted = model.generate(**arguments), model.generate(**arguments, **help)
            assert tokens_of(assisted[0]) == tokens_of(greedy[0])


CALLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"num_beams": 2}, {"beams": 2}),
    ({"length_penalty": 1.0}, {"alpha": 1.0}),
    ({"length_penalty": 0.0}, {"alpha": 0.0}),
    ({"max_new_tokens": 5}, {"limit": 5}),
    ({"max_new_tokens": 60}, {"limit": 60}),
    ({"max_length": 6}, {"limit": 5}),  # max_length counts the start token
    ({"extra_length": 1}, {"limit": 7}),
    ({"num_beams": 3, "length_penalty": 2.0, "max_new_tokens": 9}, {"beams": 3, "alpha": 2.0, "limit": 9}),
    ({"generation_config": GenerationConfig(max_new_tokens=4)}, {"limit": 4}),
]


@pytest.mark.parametrize(("seed", "end_at"), [(0, 6.0), (2, None)], ids=["ends", "never"])
def test_settings_are_the_papers_unless_a_call_changes_them(
    lively_model: ModelMaker, seed: int, end_at: float | None
) -> None:
    """One model ends sentences, the other never does."""
    sentence = [5, 6, 7, 8, 9, 2]
    model = without_end(lively_model(seed)) if end_at is None else lively_model(seed, end_at=end_at)
    forward = full_forward(model, sentence)
    for given, meaning in CALLS:
        expected = {"beams": 4, "alpha": 0.6, "limit": len(sentence) + 50} | meaning
        ((best,),) = search(model, [sentence], **given)
        check_best(best, beam_search(forward, **expected))
        assert end_at is not None or len(best[0]) == expected["limit"], given


def test_transition_scores_add_up_to_the_sequence_score(lively_model: ModelMaker) -> None:
    """`compute_transition_scores` gives transformers' log-probabilities per token."""
    model = lively_model(1)
    sentences = random_sentences(2, count=4, vocab_size=16, longest=8)
    output = model.generate(
        **padded(sentences), num_return_sequences=3, return_dict_in_generate=True, output_scores=True
    )
    steps = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    for row, step_scores, score in zip(output.sequences, steps, output.sequences_scores, strict=True):
        penalty = length_penalty(len(tokens_of(row)), 0.6)
        assert step_scores.sum().item() / penalty == close_to(score.item())
