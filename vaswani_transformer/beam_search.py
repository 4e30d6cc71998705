"""The beam search of Section 6.1 as a function of tensors: the same translations as `generate()`, faster.

Five optimisations:

* The hypotheses of a sentence share one append-only cache. An attention bias masks the slots of other hypotheses, so
  reordering beams copies no keys.
* Cross-attention keys and values are stored once per sentence; its live hypotheses form the query dimension.
* The first step has a single, empty hypothesis instead of `beams` copies of it.
* Done sentences are removed from the batch.
* Constants are computed before the first step.

A hypothesis is *finished* when it has ended in </s>. The search of a sentence stops

* when it is *done*: its live hypotheses cannot be among the results any more, by the bound of their scores in `step`.
  `early_stopping` sets how far they may grow in this bound or, if it is True, that `num_beams` finished hypotheses are
  enough (`SearchSettings.lookahead`).
* at its limit (`Memory.limits`): |source| + `extra_length` tokens, or `max_new_tokens`.

Done sentences stay in the batch until an eighth of it is done or one sentence is at its limit. In ONNX, which runs the
same `step`, `Step` in conversion/onnx/torch_export.py repeats this rule for the loops in single_graph.py.

`start` and `step` have no data-dependent control flow, so torch.export can trace them; `beam_search` runs the loop.
"""

import functools
import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .cached_decoder import CachedDecoder, memory_keys_and_values
from .modeling_vaswani_transformer import (
    EMPTY_SCORE,
    VALID_ABOVE,
    VaswaniTransformerForConditionalGeneration,
    score_divisor,
    searches_as_transformers,
    target_vocab_size,
)
from .search_vaswani_transformer import NO_MAXIMUM, SearchSettings, as_numbers

MASKED = torch.finfo(torch.float32).min  # the bias of positions that may not be attended to


class SettingTensors(NamedTuple):
    """The settings that are tensors, each of shape (), so that an exported graph takes them as inputs.

    To add a setting of transformers' `generate()`, which obeys it already, write it with its limits in SearchSettings,
    here and in `step`; in tests/brute_force.py, the specification of `step`; and as an option of `translate` in cli.py.
    A test in test_docs.py names the other files that lack it. `serve` takes it from generation_config.json.
    """

    length_penalty: Tensor
    early_stopping: Tensor  # `SearchSettings.lookahead`
    extra_length: Tensor
    max_new_tokens: Tensor  # 0: no common maximum
    min_new_tokens: Tensor
    # None: a search without settings against repetitions, in which nothing is computed for them.
    no_repeat_ngram_size: Tensor | None = None
    repetition_penalty: Tensor | None = None


class Memory(NamedTuple):
    """The encoded sentences and their length limits."""

    keys: list[Tensor]  # per layer, (batch, heads, source, d_k)
    values: list[Tensor]  # per layer, (batch, heads, source, d_v)
    bias: Tensor  # (batch, 1, 1, source), MASKED at padding, 0 elsewhere
    limits: Tensor  # (batch, 1), the most output tokens, counting </s>
    limit_penalties: Tensor  # (batch, 1), the length penalty at the limit; infinite for alpha <= 0


class Constants(NamedTuple):
    """What is the same for every sentence and step."""

    positional_encoding: Tensor  # (length, d_model)
    penalties: Tensor  # (length,), the length penalty by length
    bound_penalties: Tensor  # (length,), by length, the penalty after `lookahead` more tokens, or now for alpha <= 0
    suppressed: Tensor  # (V,), EMPTY_SCORE at tokens that are never chosen, 0 elsewhere
    min_finish_log_prob: Tensor  # (length, 2 x beams), by length and rank: above it, a candidate with </s> finishes
    beam_of: Tensor  # (beams x width,), the live hypothesis that each of the best continuations extends
    new_bias: Tensor  # (beams, beams), the bias of the slots that a step adds, one per hypothesis
    finished_rows: Tensor  # (beams,), the rows of `SearchState.tokens` with the finished hypotheses
    padding: Tensor  # (beams,), the padding token
    stops_when_finished: Tensor  # (), whether a sentence is done as soon as enough hypotheses have finished
    # Empty without settings against repetitions. The penalty, the number of equal tokens after which the next token is
    # banned, and whether the search is greedy, each ().
    repetition: list[Tensor]
    # Empty unless the generation config has `forced_bos_token_id`: this token, (), and the log-probabilities of the
    # continuations in the first step, (width,): 0 and then EMPTY_SCORE.
    forced: list[Tensor]


class SearchState(NamedTuple):
    """The search after `length` tokens.

    `live` counts the live hypotheses of each sentence: `initial_live` before the first step, `beams` after it.
    """

    keys: list[Tensor]  # per layer, (batch, heads, slots, d_k), a slot for each live hypothesis of each step
    values: list[Tensor]  # per layer, (batch, heads, slots, d_v)
    bias: Tensor  # (batch, live, slots + live), 0 at a hypothesis's own past; includes the slots of the next step
    tokens: Tensor  # (batch, 2 x beams, length), the live and then the finished hypotheses, padded
    last_tokens: Tensor  # (batch, live), of the live hypotheses
    live_log_probs: Tensor  # (batch, live), best first; EMPTY_SCORE in a free slot
    finished_scores: Tensor  # (batch, beams), log-probability / length penalty, best first; EMPTY_SCORE in a free slot
    length: Tensor  # (1,)
    done: Tensor  # (batch, 1), whether no later hypothesis can be among the results
    # Empty without settings against repetitions. The live hypotheses with the start token, and for each of these tokens
    # how many tokens before it are also the last ones of the hypothesis, both (batch, live, 1 + length).
    history: list[Tensor]


def start(
    model: VaswaniTransformerForConditionalGeneration,
    input_ids: Tensor,
    attention_mask: Tensor,
    settings: SettingTensors,
    beams: int,
    longest: int,
    initial_live: int = 1,
) -> tuple[Memory, Constants, SearchState]:
    """Encode the sentences and set up the search.

    input_ids, attention_mask: (batch, source)
    longest: the most output tokens of any sentence
    initial_live: live hypotheses of the first step; all but the first are empty slots, see `count_initial_hypotheses`
    """
    config = model.config
    batch, device = input_ids.shape[0], input_ids.device
    memory = encode(model, input_ids, attention_mask, settings)
    constants = search_constants(model, settings, beams, longest)
    first = torch.arange(initial_live, device=device)
    # Any: to the type checker, the layers of a ModuleList are plain modules.
    layers: Any = model.model.decoder.layers
    keys, heads = memory.keys[0], config.decoder_attention_heads
    state = SearchState(
        keys=[keys.new_zeros(batch, heads, 0, layer.self_attn.d_k) for layer in layers],
        values=[keys.new_zeros(batch, heads, 0, layer.self_attn.d_v) for layer in layers],
        bias=self_only_bias(first).expand(batch, -1, -1),
        tokens=torch.zeros(batch, 2 * beams, 0, dtype=torch.long, device=device),
        last_tokens=torch.full((batch, initial_live), config.decoder_start_token_id, device=device),
        live_log_probs=((first != 0) * EMPTY_SCORE).expand(batch, -1),
        finished_scores=torch.full((batch, beams), EMPTY_SCORE, device=device),
        length=torch.zeros(1, dtype=torch.long, device=device),
        done=torch.zeros(batch, 1, dtype=torch.bool, device=device),
        history=[],
    )
    if constants.repetition:
        start_tokens = state.last_tokens[:, :, None]
        state = state._replace(history=[start_tokens, torch.zeros_like(start_tokens)])
    return memory, constants, state


def encode(
    model: VaswaniTransformerForConditionalGeneration,
    input_ids: Tensor,
    attention_mask: Tensor,
    settings: SettingTensors,
) -> Memory:
    """Run the encoder and project its output for every layer; arguments as in `start`."""
    states = model.model.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    limits = attention_mask.sum(dim=1, keepdim=True) + settings.extra_length
    limits = torch.where(settings.max_new_tokens > 0, settings.max_new_tokens, limits)
    if model.config.learned_positions is not None:  # learned positions end there
        limits = limits.clamp(max=model.config.learned_positions - 1)
    alpha = settings.length_penalty
    limit_penalties = score_divisor(limits.float(), alpha, searches_as_transformers(model))
    keys, values = memory_keys_and_values(model.model.decoder, states)
    return Memory(
        keys=[tensor.contiguous() for tensor in keys],
        values=[tensor.contiguous() for tensor in values],
        bias=((1 - attention_mask).float() * MASKED)[:, None, None],
        limits=limits,
        limit_penalties=torch.where(alpha > 0, limit_penalties, math.inf),
    )


def search_constants(
    model: VaswaniTransformerForConditionalGeneration,
    settings: SettingTensors,
    beams: int,
    longest: int,
) -> Constants:
    """Compute the constants of a search; arguments as in `start`."""
    alpha, lookahead = settings.length_penalty, settings.early_stopping
    config, encoding, device = model.config, model.model.decoder.positional_encoding, alpha.device
    positional_encoding = encoding(0, longest + 1 if encoding.maximum is None else encoding.maximum, device)
    # The 2 x beams best continuations of a sentence are among the 2 x beams best of each of its hypotheses; suppressed
    # tokens may take as many places more.
    vocabulary = target_vocab_size(config)
    never_chosen = sorted(set(model.generation_config.suppress_tokens or ()))
    suppressed = torch.tensor(never_chosen, dtype=torch.long, device=device)
    width = torch.sym_min(2 * beams + len(never_chosen), vocabulary)
    candidates, lengths = torch.arange(2 * beams, device=device), torch.arange(longest + 2, device=device)
    slots = torch.arange(beams, device=device)
    is_greedy = slots[-1] == 0  # beams == 1, as a tensor: `beams` is symbolic in an export
    assumed_growth = torch.where(alpha > 0, lookahead.clamp(min=0), 0)
    # Greedy search keeps only the better of its two candidates, and transformers the best `beams`.
    may_finish = candidates < beams if searches_as_transformers(model) else (candidates == 0) | ~is_greedy
    may_finish = may_finish & (lengths > settings.min_new_tokens)[:, None]
    repetition = []
    if settings.no_repeat_ngram_size is not None and settings.repetition_penalty is not None:
        size = settings.no_repeat_ngram_size
        repetition = [settings.repetition_penalty, torch.where(size > 0, size - 1, NO_MAXIMUM), is_greedy]
    forced, forced_token = [], model.generation_config.forced_bos_token_id
    if forced_token is not None:
        only_one = (torch.arange(width, device=device) != 0) * EMPTY_SCORE
        forced = [torch.tensor(forced_token, device=device), only_one]
    return Constants(
        positional_encoding=positional_encoding,
        penalties=score_divisor(lengths.float(), alpha, searches_as_transformers(model)),
        bound_penalties=score_divisor((lengths + assumed_growth).float(), alpha, searches_as_transformers(model)),
        suppressed=torch.zeros(vocabulary, device=device).index_fill(0, suppressed, EMPTY_SCORE),
        min_finish_log_prob=torch.where(may_finish, VALID_ABOVE, math.inf),
        beam_of=torch.arange(beams * width, device=device) // width,
        new_bias=self_only_bias(slots),
        finished_rows=slots + beams,
        padding=torch.full((beams,), cast(int, config.pad_token_id), device=device),
        stops_when_finished=is_greedy | (lookahead < 0),
        repetition=repetition,
        forced=forced,
    )


def count_initial_hypotheses(beams: int, vocabulary: int) -> int:
    """Return how many live hypotheses have 2 x beams continuations together: 1 unless the vocabulary is tiny."""
    return math.ceil(2 * beams / vocabulary)


def step(
    decoder: CachedDecoder,
    memory: Memory,
    constants: Constants,
    state: SearchState,
    last_index: Tensor,
) -> SearchState:
    """Extend every live hypothesis by one token; tests/brute_force.py spells out the same search.

    last_index: (1,), the index of the last finished hypothesis that must be final before a sentence is done
    """
    position = constants.positional_encoding.index_select(0, state.length)
    logits, keys, values, _ = decoder(
        state.last_tokens, position, state.keys, state.values, state.bias, memory.keys, memory.values, memory.bias
    )
    batch, beams = memory.limits.shape[0], constants.padding.shape[0]
    length = state.length + 1  # of the extended hypotheses, without the start token
    penalty = constants.penalties.index_select(0, length)

    width = constants.beam_of.shape[0] // beams  # continuations to consider per live hypothesis
    log_probs = logits.log_softmax(dim=-1)
    if constants.repetition:
        log_probs = penalise_repetitions(logits, log_probs, constants, state)
    log_probs, best_tokens = log_probs.topk(width, dim=-1)  # (batch, live, width)
    if constants.forced:
        forced_token, only_one = constants.forced
        best_tokens = torch.where(length == 1, forced_token, best_tokens)
        log_probs = torch.where(length == 1, only_one, log_probs)
    log_probs = (log_probs + state.live_log_probs[:, :, None] + constants.suppressed[best_tokens]).flatten(1)
    log_probs, chosen = log_probs.topk(2 * beams, dim=-1)  # (batch, candidates)
    backpointers = constants.beam_of[chosen]
    tokens = best_tokens.flatten(1).gather(1, chosen)

    # Candidates with </s>, and in transformers all at the limit, finish where `min_finish_log_prob` allows it. Keep the
    # best of these and of earlier ones.
    is_end = tokens.eq(cast(int, decoder.end))
    is_last = is_end | (length >= memory.limits) if decoder.searches_as_transformers else is_end
    finishes = is_last & (log_probs > constants.min_finish_log_prob.index_select(0, length))
    finished_scores = torch.cat((state.finished_scores, torch.where(finishes, log_probs / penalty, EMPTY_SCORE)), dim=1)
    finished_scores, kept_finished = finished_scores.topk(beams, dim=-1)
    # The best `beams` other candidates stay live.
    live_log_probs, kept_live = torch.where(is_end, EMPTY_SCORE, log_probs).topk(beams, dim=-1)

    # `kept` counts first the hypotheses finished so far, then the candidates, as the two concatenations below do.
    kept = torch.cat((kept_live + beams, kept_finished), dim=1)  # (batch, 2 x beams)
    # The row of `tokens` that each new hypothesis extends, and its new token: padding if it finished earlier.
    finished_rows, padding = constants.finished_rows.expand(batch, -1), constants.padding.expand(batch, -1)
    parent_rows = torch.cat((finished_rows, backpointers), dim=1).gather(1, kept)
    new_tokens = torch.cat((padding, tokens), dim=1).gather(1, kept)

    # Log-probabilities only fall, so the best possible score of a live hypothesis has the largest penalty it can reach.
    best_live = live_log_probs[:, :1]
    bound = best_live / torch.minimum(constants.bound_penalties.index_select(0, length), memory.limit_penalties)
    threshold = torch.where(constants.stops_when_finished, VALID_ABOVE, bound)
    new_bias = constants.new_bias.expand(batch, -1, -1)
    done = state.done | (finished_scores.index_select(1, last_index) >= threshold)
    live_parents = backpointers.gather(1, kept_live)
    after = SearchState(
        keys=keys,
        values=values,
        bias=torch.cat((gather(state.bias, live_parents), new_bias), dim=2),
        tokens=torch.cat((gather(state.tokens, parent_rows), new_tokens[:, :, None]), dim=2),
        last_tokens=new_tokens[:, :beams],
        live_log_probs=torch.where(done, EMPTY_SCORE, live_log_probs),  # a done sentence gets no further candidates
        finished_scores=finished_scores,
        length=length,
        done=done,
        history=[],
    )
    if constants.repetition:
        after = after._replace(history=extend_history(state.history, live_parents, after.last_tokens))
    return after


def penalise_repetitions(logits: Tensor, log_probs: Tensor, constants: Constants, state: SearchState) -> Tensor:
    """Apply `repetition_penalty` and then `no_repeat_ngram_size` to the continuations, as `generate()` does.

    The penalty multiplies a negative value and divides a positive one, for each token that the hypothesis already has,
    the start token included. In transformers, this value is the log-probability in beam search and the logit in greedy
    search.

    logits, log_probs: (batch, live, V);  returns the changed log_probs
    """
    (tokens, equal_before), (penalty, enough, is_greedy) = state.history, constants.repetition
    before = log_probs.gather(2, tokens)
    value = torch.where(is_greedy, logits.gather(2, tokens), before)
    penalised = torch.where(value < 0, value * penalty, value / penalty)
    # The bracket is exactly 0 in beam search. A token that occurs twice is written twice, with the same value.
    log_probs = log_probs.scatter(2, tokens, penalised - (value - before))
    # An n-gram would occur again if the n - 1 tokens before one of its occurrences are also the last ones.
    return log_probs.scatter_add(2, tokens, (equal_before >= enough) * EMPTY_SCORE)


def extend_history(history: list[Tensor], parents: Tensor, last_tokens: Tensor) -> list[Tensor]:
    """Return the history after a step;  parents, last_tokens: (batch, live), of the new live hypotheses

    Token j + 1 has one equal token more before it than token j had if token j is also the new last token.
    """
    tokens, equal_before = (gather(tensor, parents) for tensor in history)
    last = last_tokens[:, :, None]
    equal_before = torch.where(tokens.eq(last), equal_before + 1, 0)
    return [torch.cat((tokens, last), dim=2), torch.cat((torch.zeros_like(last), equal_before), dim=2)]


def self_only_bias(slots: Tensor) -> Tensor:
    """Return the bias (n, n) that lets each of n slots attend only to itself."""
    return (slots[:, None] != slots).float() * MASKED


def gather(rows: Tensor, indices: Tensor) -> Tensor:
    """Select rows (batch, n, length) by indices (batch, m); returns (batch, m, length)."""
    return rows.gather(1, indices[:, :, None].expand(-1, -1, rows.shape[2]))


@torch.no_grad()
def beam_search(
    model: VaswaniTransformerForConditionalGeneration,
    input_ids: Tensor,
    attention_mask: Tensor,
    settings: SearchSettings,
    decoder: CachedDecoder | None = None,
) -> tuple[Tensor, Tensor]:
    """Translate a batch; returns the tokens of `generate()` with the same settings, without the start token.

    input_ids, attention_mask: (batch, source), padded on the right
    decoder: that of the model, to be shared by several batches, because it copies weights
    returns sequences (batch, num_return_sequences, length), best first, padded, without the start token, and scores
    (batch, num_return_sequences), log P / length penalty; an empty slot is padding. All scores of a
    sentence are NaN if a log-probability is
    """
    device, pad, beams = input_ids.device, cast(int, model.config.pad_token_id), settings.num_beams
    scalar = functools.partial(torch.tensor, device=device)
    numbers = as_numbers(settings, repetition=bool(settings.repetition))
    awaits_all = settings.lookahead < 0 or searches_as_transformers(model)
    awaited = beams if awaits_all else settings.num_return_sequences
    last_index = scalar([awaited - 1])
    memory, constants, state = start(
        model,
        input_ids,
        attention_mask,
        SettingTensors(**{name: scalar(numbers[name]) for name in SettingTensors._fields if name in numbers}),
        beams,
        longest=settings.max_new_tokens or input_ids.shape[1] + settings.extra_length,
        initial_live=count_initial_hypotheses(beams, target_vocab_size(model.config)),
    )
    decoder = decoder or CachedDecoder(model)
    rows = torch.arange(input_ids.shape[0], device=device)
    sequences = torch.full((len(rows), beams, int(memory.limits.max())), pad, device=device)
    scores = torch.full((len(rows), beams), EMPTY_SCORE, device=device)
    while len(rows):
        state = step(decoder, memory, constants, state, last_index)
        at_limit = state.length >= memory.limits
        leaves = (state.done | at_limit)[:, 0]
        # The only GPU-to-host synchronisation in a step.
        leaving, limited = torch.stack((leaves.sum(), at_limit.sum())).tolist()
        # Removing sentences copies the remaining ones: wait until an eighth of the batch is done.
        if leaving * 8 >= len(rows) or limited:
            # Indices instead of a mask, whose rows the host would have to count for every field.
            remaining, removed = leaves.int().argsort(stable=True).split([len(rows) - leaving, leaving])
            found, found_scores = collect_results(state, constants)
            sequences[rows[removed], :, : found.shape[2]] = found[removed]
            scores[rows[removed]] = found_scores[removed]
            rows = rows[remaining]
            memory = Memory._make(select_rows(field, remaining) for field in memory)
            state = SearchState._make(
                field if field is state.length else select_rows(field, remaining) for field in state
            )
    return select_best_hypotheses(sequences, scores, settings.num_return_sequences, pad)


def select_best_hypotheses(sequences: Tensor, scores: Tensor, n_best: int, pad: int) -> tuple[Tensor, Tensor]:
    """Return the `n_best` best hypotheses, trimmed to the longest, and their scores.

    A slot without a hypothesis is padding and scores at most VALID_ABOVE.
    """
    sequences, scores = sequences[:, :n_best], scores[:, :n_best]
    sequences = sequences.masked_fill((scores <= VALID_ABOVE)[:, :, None], pad)
    length = int((sequences != pad).sum(dim=2).max())
    return sequences[:, :, :length], scores


def collect_results(state: SearchState, constants: Constants) -> tuple[Tensor, Tensor]:
    """Return the finished hypotheses (batch, beams, length) and their scores (batch, beams).

    If a sentence has no finished hypothesis at its limit, its live hypotheses are returned. `collect_hypotheses` in
    conversion/onnx/single_graph.py is the same rule in ONNX operators.
    """
    live, finished = state.tokens.chunk(2, dim=1)
    # A hypothesis with NaN stays: `topk` takes it for the best, it never finishes, and no bound is below it.
    nan = torch.where(state.live_log_probs[:, :1].isnan(), math.nan, 0.0)
    none_finished = state.finished_scores[:, :1] <= VALID_ABOVE
    live_scores = torch.where(
        state.live_log_probs > VALID_ABOVE, state.live_log_probs / constants.penalties[state.length], EMPTY_SCORE
    )
    return (
        torch.where(none_finished[:, :, None], live, finished),
        torch.where(none_finished, live_scores, state.finished_scores) + nan,
    )


def select_rows(field: Tensor | list[Tensor], rows: Tensor) -> Tensor | list[Tensor]:
    return [tensor[rows] for tensor in field] if isinstance(field, list) else field[rows]
