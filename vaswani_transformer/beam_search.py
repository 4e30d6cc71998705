"""The beam search of Section 6.1 in tensors only: the same translations as `generate()`, faster.

Five things make it fast. The beams of a sentence share one cache that is only appended to: each beam has a bias that
says which of its slots are its own past, and no key is ever moved. The memory's keys and values are kept once per
sentence, with the beams as its queries. The first step has one live hypothesis, the empty one; `beams` live after it.
Sentences that are done leave the batch. And a step has few operations: what does not change from step to step is made
before the first.

`start` and `step` have no Python in the way of their data, so that they can be exported; `beam_search` drives them.
"""

# To the type checker the layers of a ModuleList are modules of any kind.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import functools
import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from .modeling_vaswani_transformer import (
    NO_HYPOTHESIS,
    MultiHeadAttention,
    VaswaniTransformerForConditionalGeneration,
    gnmt_length_penalty,
    scaled_dot_product_attention,
    split_heads,
)

EMPTY = 10 * NO_HYPOTHESIS  # the score of a slot without a hypothesis
UNSEEN = torch.finfo(torch.float32).min  # added to the scores of what may not be attended to


class Memory(NamedTuple):
    """What is known of each sentence before the first step."""

    keys: list[Tensor]  # a layer each, (batch, heads, source, d_k)
    values: list[Tensor]  # a layer each, (batch, heads, source, d_v)
    bias: Tensor  # (batch, 1, 1, source), 0 at real tokens, UNSEEN at padding
    limits: Tensor  # (batch, 1), output tokens, </s> counted
    limit_penalties: Tensor  # (batch, 1), the length penalty at the limit


class Places(NamedTuple):
    """What is the same for each sentence, as often as there are sentences."""

    own: Tensor  # (batch, beams, beams), the bias of a step's own slots: a beam sees itself
    pool_rows: Tensor  # (batch, beams), where a sentence's tokens have those of its pool
    padding: Tensor  # (batch, beams), the token for padding


class Tables(NamedTuple):
    """What is the same for all sentences."""

    positions: Tensor  # (length, d_model), the positional encoding
    penalties: Tensor  # (length,), the length penalty by length
    forbidden: Tensor  # (2 x V,), EMPTY at suppressed tokens; in the second half, for short hypotheses, at </s> too
    beam_of: Tensor  # (beams x width,), the beam that each of the best continuations of all beams belongs to
    ranks: Tensor  # (width,), of the best continuations of a beam that are looked at
    may_end: Tensor  # (1, 2 x beams), of which continuations </s> counts: beam 1 is greedy search, the best one's
    greedy: Tensor  # (), whether there is one beam
    falling: Tensor  # (), whether the penalty falls or stays as a hypothesis grows


class Search(NamedTuple):
    """Where the search stands after `length` tokens. `live` hypotheses go on: `roots` at first, then beams."""

    keys: list[Tensor]  # a layer each, (batch, heads, slots, d_k), a slot for each live hypothesis of each step
    values: list[Tensor]  # a layer each, (batch, heads, slots, d_v)
    past: Tensor  # (batch, live, slots + live), the bias with the next step's slots: 0 at its own past, else UNSEEN
    tokens: Tensor  # (batch, 2 x beams, length), the live hypotheses and then the pool's, padded
    last: Tensor  # (batch, live), the live hypotheses' last tokens
    live_scores: Tensor  # (batch, live), log-probabilities, best first
    pool_scores: Tensor  # (batch, beams), log-probability / length penalty, best first; EMPTY: none
    length: Tensor  # (1,)
    done: Tensor  # (batch, 1)
    at_limit: Tensor  # (batch, 1); such a sentence has to leave before the next step


class StepDecoder(nn.Module):
    """The decoder with the projections of a layer's queries, keys and values as one, and what the search knows."""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration):
        super().__init__()
        self.decoder, self.lm_head, self.config = model.model.decoder, model.lm_head, model.config
        self.projections = nn.ModuleList(
            joined(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            for layer in self.decoder.layers
        )
        self.ends = sorted(as_set(model.config.eos_token_id))


def joined(*linears: nn.Module) -> nn.Module:
    """One layer with the outputs of several side by side."""
    if not all(type(linear) is nn.Linear and linear.weight.device.type != "meta" for linear in linears):
        return SideBySide(*linears)  # Adapters and quantised or offloaded layers do more than multiply by `weight`.
    return joined_linear(*cast(tuple[nn.Linear, ...], linears))


class SideBySide(nn.ModuleList):
    def __init__(self, *layers: nn.Module):
        super().__init__(layers)

    def forward(self, states: Tensor) -> Tensor:
        return torch.cat([layer(states) for layer in self], dim=-1)


def joined_linear(*linears: nn.Linear) -> nn.Linear:
    first = linears[0]
    weight = torch.cat([linear.weight.detach() for linear in linears])
    with torch.device("meta"):  # its own weights are not needed
        made = nn.Linear(first.in_features, len(weight), bias=first.bias is not None)
    made.weight = nn.Parameter(weight, requires_grad=False)
    if first.bias is not None:
        made.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]), requires_grad=False)
    return made


def start(
    model: VaswaniTransformerForConditionalGeneration,
    input_ids: Tensor,
    attention_mask: Tensor,
    offset: int,
    beams: int,
    alpha: Tensor,
    max_length: Tensor | None = None,
    roots: int = 1,
) -> tuple[Memory, Places, Tables, Search]:
    """Encode the sentences; input_ids, attention_mask: (batch, source)

    offset: output tokens beyond a sentence's source tokens;  alpha: (), of the length penalty
    max_length: (), output tokens of any sentence
    roots: live hypotheses of the first step, of which the first counts: `how_many_roots`
    """
    config, decoder = model.config, model.model.decoder
    states = model.model.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    longest = input_ids.shape[1] + offset
    limits = attention_mask.sum(dim=1, keepdim=True) + offset
    if config.max_position_embeddings is not None:  # learned positions end there
        limits = limits.clamp(max=config.max_position_embeddings - 1)
    if max_length is not None:
        limits = torch.minimum(limits, max_length)
    cross = [layer.cross_attn for layer in decoder.layers]
    memory = Memory(
        keys=[split_heads(attention.k_proj(states), attention.d_k).contiguous() for attention in cross],
        values=[split_heads(attention.v_proj(states), attention.d_v).contiguous() for attention in cross],
        bias=((1 - attention_mask).float() * UNSEEN)[:, None, None],
        limits=limits,
        limit_penalties=gnmt_length_penalty(limits.float(), alpha),
    )
    batch, device = input_ids.shape[0], input_ids.device
    rows, slots = torch.arange(batch, device=device)[:, None], torch.arange(beams, device=device)
    places = Places(
        own=((slots[:, None] != slots).float() * UNSEEN)[None].repeat(batch, 1, 1),
        pool_rows=rows * 0 + slots + beams,
        padding=torch.full_like(rows + slots, config.pad_token_id),
    )
    candidates = torch.arange(2 * beams, device=device)[None]
    greedy = slots[-1] == 0
    encoding = decoder.positional_encoding
    if encoding.learned:
        positions = encoding.table.weight[encoding.offset :]
    else:
        positions = encoding(0, longest + 1, device)
    vocabulary = torch.arange(config.decoder_vocab_size, device=device)
    ends, suppressed = as_set(config.eos_token_id), as_set(model.generation_config.suppress_tokens)
    forbidden = [is_one_of(vocabulary, ids).float() * EMPTY for ids in (suppressed, suppressed | ends)]
    # The 2 x beams best continuations of a sentence are among the 2 x beams best of each of its beams; a few more,
    # for those that are not allowed.
    ranks = torch.arange(torch.sym_min(2 * beams + len(suppressed | ends), len(vocabulary)), device=device)
    tables = Tables(
        positions=positions,
        penalties=gnmt_length_penalty(torch.arange(longest + 2, device=device).float(), alpha),
        forbidden=torch.cat(forbidden),
        beam_of=(slots[:, None] + 0 * ranks).flatten(),
        ranks=ranks,
        may_end=(candidates == 0) | ~greedy,
        greedy=greedy,
        falling=alpha <= 0,
    )
    own = [layer.self_attn for layer in decoder.layers]
    heads = config.decoder_attention_heads
    first = torch.arange(roots, device=device)
    last = torch.full_like(rows + first, config.decoder_start_token_id)  # (batch, roots)
    search = Search(
        keys=[states.new_zeros(batch, heads, 0, attention.d_k) for attention in own],
        values=[states.new_zeros(batch, heads, 0, attention.d_v) for attention in own],
        past=((first[:, None] != first).float() * UNSEEN)[None].repeat(batch, 1, 1),
        tokens=torch.zeros(batch, 2 * beams, 0, dtype=torch.long, device=device),
        last=last,
        live_scores=last.float() * 0 + (first != 0).float() * EMPTY,
        pool_scores=places.padding.float() * 0 + EMPTY,
        length=torch.zeros(1, dtype=torch.long, device=device),
        done=torch.zeros(batch, 1, dtype=torch.bool, device=device),
        at_limit=torch.zeros(batch, 1, dtype=torch.bool, device=device),
    )
    return memory, places, tables, search


def how_many_roots(beams: int, vocabulary: int) -> int:
    """As many as have 2 x beams continuations: one, unless there are fewer words."""
    return math.ceil(2 * beams / vocabulary)


def step(
    decoder: StepDecoder,
    memory: Memory,
    places: Places,
    tables: Tables,
    search: Search,
    min_length: Tensor,
    needed: Tensor,
) -> Search:
    """One more token for every live hypothesis; the search as tests/brute_force.py spells it out.

    min_length: (), tokens before </s>;  needed: (1,), the last of the best hypotheses that have to be final, from 0
    """
    position = tables.positions.index_select(0, search.length)
    logits, keys, values, _ = decode(decoder, memory, search.keys, search.values, search.past, search.last, position)
    beams, vocabulary = places.padding.shape[1], logits.shape[-1]
    length = search.length + 1  # of what this step makes, the start token not counted
    penalty = tables.penalties.index_select(0, length)

    best, best_tokens = logits.log_softmax(dim=-1).topk(tables.ranks.shape[0], dim=-1)  # (batch, live, width)
    forbidden = tables.forbidden[best_tokens + (length <= min_length).long() * vocabulary]
    scores = (best + search.live_scores[:, :, None] + forbidden).flatten(1)
    scores, chosen = scores.topk(2 * beams, dim=-1)  # (batch, candidates)
    parents = tables.beam_of[chosen]
    tokens = best_tokens.flatten(1).gather(1, chosen)

    # Every continuation that is </s> is a finished hypothesis; the best of these and of the pool are the pool.
    is_end = functools.reduce(torch.logical_or, (tokens == end for end in decoder.ends))
    ended = is_end & tables.may_end & (scores > NO_HYPOTHESIS) & ~search.done
    pool_scores = torch.cat((search.pool_scores, torch.where(ended, scores / penalty, EMPTY)), dim=1)
    pool_scores, kept = pool_scores.topk(beams, dim=-1)
    # The best `beams` of the others live on.
    live_scores, lives = torch.where(is_end, EMPTY, scores).topk(beams, dim=-1)

    # Of each, which row of the tables it goes on from, and its new token.
    picked = torch.cat((lives + beams, kept), dim=1)  # (batch, 2 x beams), first the pool's places, then candidates
    before = torch.cat((places.pool_rows, parents), dim=1).gather(1, picked)
    added = torch.cat((places.padding, tokens), dim=1).gather(1, picked)

    # Log-probabilities only fall, and the penalty divides most at the sentence's limit.
    best_live = live_scores[:, :1]
    bound = best_live / torch.where(tables.falling, penalty, memory.limit_penalties)
    worst = pool_scores.index_select(1, needed)
    at_limit = length >= memory.limits
    provable = (worst > NO_HYPOTHESIS) & ((worst >= bound) | tables.greedy)
    return Search(
        keys=keys,
        values=values,
        past=torch.cat((gather(search.past, parents.gather(1, lives)), places.own), dim=2),
        tokens=torch.cat((gather(search.tokens, before), added[:, :, None]), dim=2),
        last=added[:, :beams],
        live_scores=live_scores,
        pool_scores=pool_scores,
        length=length,
        done=search.done | provable | at_limit | (best_live <= NO_HYPOTHESIS),
        at_limit=at_limit,
    )


def decode(
    step_decoder: StepDecoder,
    memory: Memory,
    keys: list[Tensor],
    values: list[Tensor],
    past: Tensor,
    tokens: Tensor,
    position: Tensor,
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    """The decoder on the last token of every live hypothesis; or on all tokens of one, in the place of the beams.

    keys, values: a layer each, (batch, heads, slots so far, d_k or d_v)
    past: (batch, beams, slots), the bias of all slots, those of these tokens last
    tokens: (batch, beams);  position: (1 or beams, d_model), the positional encoding
    returns the logits (batch, beams, V) in float32; keys and values with these tokens' slots; and the weights of the
        attention to the source, a layer each, (batch, heads, beams, source)
    """
    decoder = step_decoder.decoder
    all_keys, all_values, attended = [], [], []

    def self_attention(i: int, states: Tensor) -> Tensor:
        attention = decoder.layers[i].self_attn
        query, key, value = heads_of(step_decoder.projections[i](states), attention)
        all_keys.append(torch.cat((keys[i], key), dim=2))
        all_values.append(torch.cat((values[i], value), dim=2))
        return attend(attention, query, all_keys[i], all_values[i], past[:, None])[0]

    def cross_attention(i: int, states: Tensor) -> Tensor:
        attention = decoder.layers[i].cross_attn
        query = split_heads(attention.q_proj(states), attention.d_k)
        output, weights = attend(attention, query, memory.keys[i], memory.values[i], memory.bias)
        attended.append(weights)
        return output

    # The beams stand where a sequence stands elsewhere, all at the same position.
    hidden = decoder.embed_tokens(tokens) * math.sqrt(step_decoder.config.d_model)
    hidden = hidden + position.to(hidden.dtype)
    for i, layer in enumerate(decoder.layers):
        hidden = layer.add_and_norm(hidden, layer.self_attn_norm, lambda x, i=i: self_attention(i, x))
        hidden = layer.add_and_norm(hidden, layer.cross_attn_norm, lambda x, i=i: cross_attention(i, x))
        hidden = layer.add_and_norm(hidden, layer.feed_forward_norm, layer.feed_forward)
    return step_decoder.lm_head(decoder.final_norm(hidden)).float(), all_keys, all_values, attended


def heads_of(states: Tensor, attention: MultiHeadAttention) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, beams, all queries, keys and values) -> each (batch, heads, beams, d_k or d_v)"""
    d_k, d_v = attention.d_k, attention.d_v
    if d_k == d_v:
        query, key, value = split_heads(states, d_k).chunk(3, dim=1)
        return query, key, value
    heads = states.shape[-1] // (2 * d_k + d_v)
    query, key, value = states.split([heads * d_k, heads * d_k, heads * d_v], dim=-1)
    return split_heads(query, d_k), split_heads(key, d_k), split_heads(value, d_v)


def attend(
    attention: MultiHeadAttention, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """query: (batch, heads, beams, d_k), keys, values: (batch, heads, slots, d_k or d_v)

    returns (batch, beams, d_model) and the weights (batch, heads, beams, slots)
    """
    output, weights = scaled_dot_product_attention(query, keys, values, bias, scaling=attention.scaling)
    return attention.out_proj(output.transpose(1, 2).flatten(2)), weights


def as_set(ids: int | list[int] | None) -> set[int]:
    return {ids} if isinstance(ids, int) else set(ids or ())


def is_one_of(tokens: Tensor, ids: set[int]) -> Tensor:
    """bool, in the shape of tokens"""
    return functools.reduce(torch.logical_or, (tokens == id for id in sorted(ids)), torch.zeros_like(tokens).bool())


def gather(rows: Tensor, indices: Tensor) -> Tensor:
    """rows: (batch, n, length), indices: (batch, m) -> (batch, m, length)"""
    return rows.gather(1, indices[:, :, None].expand(-1, -1, rows.shape[2]))


@torch.no_grad()
def beam_search(
    model: VaswaniTransformerForConditionalGeneration,
    input_ids: Tensor,
    attention_mask: Tensor,
    num_beams: int = 4,
    length_penalty: float = 0.6,
    max_source_length_offset: int = 50,
    min_length: int = 0,
    max_length: int | None = None,
    num_return_sequences: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Translate a batch, `generate(**batch)` token for token.

    input_ids, attention_mask: (batch, source), padded on the right
    max_source_length_offset, max_length: a sentence's limit is its source tokens plus the one, and at most the other
    min_length: tokens before </s> (transformers' `min_new_tokens`)
    num_return_sequences: how many of the best hypotheses are wanted, None for num_beams; fewer are sooner certain
    returns sequences (batch, num_return_sequences, length), without the start token, ending in </s> and padded, best
    first; and their scores (batch, num_return_sequences), log P / ((5 + length) / 6)^alpha; a slot in which nothing
    finished is padding and scores below NO_HYPOTHESIS
    """
    device, pad, vocabulary = input_ids.device, model.config.pad_token_id, model.config.decoder_vocab_size
    wanted = num_beams if num_return_sequences is None else num_return_sequences
    alpha = torch.tensor(float(length_penalty), device=device)
    shortest, needed = torch.tensor(min_length, device=device), torch.tensor([wanted - 1], device=device)
    most = None if max_length is None else torch.tensor(max_length, device=device)
    roots = how_many_roots(num_beams, vocabulary)
    memory, places, tables, search = start(
        model, input_ids, attention_mask, max_source_length_offset, num_beams, alpha, most, roots
    )
    decoder = StepDecoder(model)
    rows = torch.arange(input_ids.shape[0], device=device)
    longest = int(memory.limits.max())
    sequences = torch.full((len(rows), num_beams, longest), pad, device=device)
    scores = torch.full((len(rows), num_beams), EMPTY, device=device)
    while len(rows):
        search = step(decoder, memory, places, tables, search, shortest, needed)
        # Leaving costs a copy of what remains: worth it when a good part of the batch is done.
        if (search.done.sum() * 8 >= len(rows)) | search.at_limit.any():
            # As indices: by a mask, a GPU waits at every field to know how many rows there are.
            gone, remaining = (rows_of.nonzero()[:, 0] for rows_of in (search.done[:, 0], ~search.done[:, 0]))
            sequences[rows[gone], :, : search.tokens.shape[2]], scores[rows[gone]] = (
                field[gone] for field in results(search, tables)
            )
            rows = rows[remaining]
            memory = Memory._make(select(field, remaining) for field in memory)
            places = Places._make(field[: len(rows)] for field in places)
            search = Search._make(field if field is search.length else select(field, remaining) for field in search)
    sequences, scores = sequences[:, :wanted], scores[:, :wanted]
    sequences = sequences.masked_fill((scores <= NO_HYPOTHESIS)[:, :, None], pad)
    length = int((sequences != pad).sum(dim=2).max())
    return sequences[:, :, :length], scores


def results(search: Search, tables: Tables) -> tuple[Tensor, Tensor]:
    """The pool's hypotheses (batch, beams, length) and scores; where it is empty, at the limit, the live ones."""
    live, pool = search.tokens.chunk(2, dim=1)
    is_empty = search.pool_scores[:, :1] <= NO_HYPOTHESIS
    live_scores = torch.where(
        search.live_scores > NO_HYPOTHESIS, search.live_scores / tables.penalties[search.length], EMPTY
    )
    return torch.where(is_empty[:, :, None], live, pool), torch.where(is_empty, live_scores, search.pool_scores)


def select(field: Tensor | list[Tensor], rows: Tensor) -> Tensor | list[Tensor]:
    return [tensor[rows] for tensor in field] if isinstance(field, list) else field[rows]
