"""The search and the exact answer by brute force, against which `generate()` is checked.

Pure Python over a function `prefix -> log-probabilities of the next token`: no cache, no batch, no padding, and no code
of the library or of transformers. The search is tensor2tensor's, as the paper used it (Section 6.1 and
`utils/beam_search.py`):

* each step takes the 2 x beam best continuations of a sentence by accumulated log-probability;
* every one of them that is `</s>` enters the finished pool with logP / ((5 + L) / 6)^alpha, where L counts
  `</s>` and not the start token; the best `beam` of the others live on; the pool keeps its best `beam`;
* at the sentence's limit the live hypotheses count only if the pool is empty;
* the sentence is done when the worst that is returned is at least best-live / lp(limit), or, assuming that it grows by
  k tokens at most, best-live / lp(min(limit, step + k)); where alpha is below 0, which tensor2tensor does not provide
  for, at least best-live / lp(step);
* or else, as in fairseq, when the pool is full;
* beam 1 is greedy search: only the single best continuation counts.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

START, PAD, END = 0, 1, 2
NextLogProbabilities = Callable[[tuple[int, ...]], np.ndarray]


def length_penalty(length: int, alpha: float) -> float:
    """Wu et al. (2016), Eq. 14, without coverage."""
    return ((5.0 + length) / 6.0) ** alpha


@dataclass(frozen=True)
class Hypothesis:
    """tokens: generated tokens, without the start token, with `</s>` unless the limit ended it
    parents: for every token, the rank of the live hypothesis that it extends
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    parents: tuple[int, ...]

    @property
    def ended(self) -> bool:
        return self.tokens[-1] == END

    @property
    def switched(self) -> bool:
        """Return whether its rank among the live hypotheses changed, which requires reordering the beams.

        The first parent is always 0, since there is one live hypothesis.
        """
        return len(set(self.parents[1:])) > 1


@dataclass
class Found:
    """hypotheses: best first;  steps: forward passes of the decoder along the longest path
    margin: the smallest difference that decided something; below float noise another answer is as good
    """

    hypotheses: list[Hypothesis]
    steps: int
    margin: float
    live_would_have_won: bool = field(default=False)


def beam_search(
    next_log_probabilities: NextLogProbabilities,
    *,
    beams: int,
    alpha: float,
    limit: int,
    returned: int | None = None,
    early_stopping: bool | int | str = "never",
) -> Found:
    """Return the best translations of one sentence, at most `returned`.

    early_stopping: "never" for the provable bound, k for k more tokens, False for 0, True for a full pool
    """
    returned = beams if returned is None else returned
    margins: list[float] = []

    def best(candidates: Iterable[Hypothesis], keep: int) -> list[Hypothesis]:
        ranked = sorted(candidates, key=lambda hypothesis: -hypothesis.score)
        if keep < len(ranked):
            margins.append(ranked[keep - 1].score - ranked[keep].score)
        return ranked[:keep]

    live = [Hypothesis((), 0.0, 0.0, ())]
    pool: list[Hypothesis] = []
    step = 0
    live_would_have_won = False
    while step < limit:
        step += 1
        continuations = []
        for rank, hypothesis in enumerate(live):
            log_probabilities = next_log_probabilities((START, *hypothesis.tokens))
            for token, log_probability in enumerate(log_probabilities.tolist()):
                if token not in (START, PAD) and log_probability > -math.inf:
                    total = hypothesis.log_probability + log_probability
                    tokens = (*hypothesis.tokens, token)
                    # While a hypothesis lives, hypotheses have the same length: the score is logP itself.
                    continuations.append(Hypothesis(tokens, total, total, (*hypothesis.parents, rank)))
        continuations = best(continuations, 1 if beams == 1 else 2 * beams)

        penalty = length_penalty(step, alpha)
        for hypothesis in continuations:
            if hypothesis.ended:
                logp = hypothesis.log_probability
                pool.append(Hypothesis(hypothesis.tokens, logp, logp / penalty, hypothesis.parents))
        pool = best(pool, beams)
        live = best((hypothesis for hypothesis in continuations if not hypothesis.ended), beams)

        if not live:
            break
        if step == limit:
            at_limit = [Hypothesis(h.tokens, h.log_probability, h.score / penalty, h.parents) for h in live]
            if pool:
                live_would_have_won = at_limit[0].score > pool[0].score
            else:
                pool = best(at_limit, beams)
        elif early_stopping is True:
            if len(pool) == beams:
                break
        elif len(pool) >= returned:
            longest = limit if early_stopping == "never" else min(limit, step + int(early_stopping))
            bound = live[0].log_probability / length_penalty(longest if alpha > 0 else step, alpha)
            margins.append(abs(pool[returned - 1].score - bound))
            if pool[returned - 1].score >= bound:
                break
    pool = pool[:returned]
    margins += [before.score - after.score for before, after in itertools.pairwise(pool)]
    return Found(pool, step, min(margins, default=math.inf), live_would_have_won)


def enumerate_everything(next_log_probabilities: NextLogProbabilities, *, alpha: float, limit: int) -> list[Hypothesis]:
    """Return all translations of at most `limit` tokens from {3, 4, 5} that end in `</s>`, best first."""
    found = []
    for length in range(1, limit + 1):
        for words in itertools.product((3, 4, 5), repeat=length - 1):
            tokens = (*words, END)
            logp = sum(float(next_log_probabilities((START, *tokens[:i]))[token]) for i, token in enumerate(tokens))
            found.append(Hypothesis(tokens, logp, logp / length_penalty(length, alpha), ()))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


def against_repetitions(
    model: Any, source: Sequence[int], *, size: int = 0, penalty: float = 1.0, greedy: bool = False
) -> NextLogProbabilities:
    """Return `full_forward` with a penalty for tokens of the prefix, and without n-grams that the prefix has.

    As in transformers, the penalty changes log-probabilities in beam search and logits in greedy search.

    size: n;  penalty: multiplies negative values and divides positive ones
    """
    log_probabilities, logits = full_forward(model, source), full_forward(model, source, logits=True)

    def next_log_probabilities(prefix: tuple[int, ...]) -> np.ndarray:
        values = (logits if greedy else log_probabilities)(prefix).copy()
        for token in set(prefix):
            values[token] *= penalty if values[token] < 0 else 1 / penalty
        if greedy:
            values -= np.logaddexp.reduce(logits(prefix))
        if size:
            seen = {prefix[i : i + size] for i in range(len(prefix) - size + 1)}
            last = prefix[len(prefix) - size + 1 :]
            values[[token for token in range(len(values)) if (*last, token) in seen]] = -math.inf
        return values

    return next_log_probabilities


def with_first(token: int, next_log_probabilities: NextLogProbabilities) -> NextLogProbabilities:
    """Return the function after which every translation begins with the token, at no cost (`forced_bos_token_id`)."""

    def forced(prefix: tuple[int, ...]) -> np.ndarray:
        values = next_log_probabilities(prefix)
        return values if len(prefix) > 1 else np.where(np.arange(len(values)) == token, 0.0, -math.inf)

    return forced


def full_forward(model: Any, source: Sequence[int], logits: bool = False) -> NextLogProbabilities:
    """Return this function for a model: a complete pass of the decoder for each unpadded sentence and prefix.

    Results are cached by prefix for searches with other beams and alphas.

    logits: return logits instead
    """
    with torch.no_grad():
        encoded = model.get_encoder()(torch.tensor([list(source)]))
    known: dict[tuple[int, ...], np.ndarray] = {}

    def next_log_probabilities(prefix: tuple[int, ...]) -> np.ndarray:
        if prefix not in known:
            with torch.no_grad():
                output = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([list(prefix)]), use_cache=False)
            last = output.logits[0, -1].double()
            known[prefix] = (last if logits else torch.log_softmax(last, dim=-1)).numpy()
        return known[prefix]

    return next_log_probabilities
