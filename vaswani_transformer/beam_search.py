"""The beam search of Section 6.1 in tensors only: the same translations as `generate()`, faster.

Three things make it fast. The beams of a sentence share one cache that is only appended to: an ancestry table says
which of its slots each beam may attend to, and nothing is ever reordered. The memory's keys and values are kept once
per sentence, with the beams as its queries. Sentences that are done leave the batch.

`start` and `step` have no Python in the way of their data, so that they can be exported; `beam_search` drives them.
"""

# To the type checker the layers of a ModuleList are modules of any kind.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .modeling_vaswani_transformer import (
    NO_HYPOTHESIS,
    MultiHeadAttention,
    VaswaniTransformerForConditionalGeneration,
    gnmt_length_penalty,
    scaled_dot_product_attention,
    split_heads,
)


class Memory(NamedTuple):
    """What is known before the first step and does not change."""

    keys: list[Tensor]  # a layer each, (batch, heads, source, d_k)
    values: list[Tensor]  # a layer each, (batch, heads, source, d_v)
    mask: Tensor  # (batch, 1, 1, source), True at real tokens
    limits: Tensor  # (batch,), output tokens, </s> counted


class Search(NamedTuple):
    """Where the search stands after `steps` tokens."""

    keys: list[Tensor]  # a layer each, (batch, heads, steps x beams, d_k)
    values: list[Tensor]  # a layer each, (batch, heads, steps x beams, d_v)
    ancestry: Tensor  # (batch, beams, steps): the slot that each step of each live hypothesis lives in
    live: Tensor  # (batch, beams, 1 + steps), token ids with the start token
    live_scores: Tensor  # (batch, beams), log-probabilities, best first
    pool: Tensor  # (batch, beams, steps), token ids of finished hypotheses, padded
    pool_scores: Tensor  # (batch, beams), log-probability / length penalty, best first; NO_HYPOTHESIS: empty slot
    done: Tensor  # (batch,)


def start(
    model: VaswaniTransformerForConditionalGeneration,
    input_ids: Tensor,
    attention_mask: Tensor,
    offset: int,
    beams: int,
    max_length: Tensor | None = None,
) -> tuple[Memory, Search]:
    """Encode the sentences; input_ids, attention_mask: (batch, source)

    offset: output tokens beyond a sentence's source tokens;  max_length: (), output tokens of any sentence
    """
    config, decoder = model.config, model.model.decoder
    states = model.model.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    limits = attention_mask.sum(dim=1) + offset
    if config.max_position_embeddings is not None:  # learned positions end there
        limits = limits.clamp(max=config.max_position_embeddings - 1)
    if max_length is not None:
        limits = torch.minimum(limits, max_length)
    cross = [layer.cross_attn for layer in decoder.layers]
    memory = Memory(
        keys=[split_heads(attention.k_proj(states), attention.d_k).contiguous() for attention in cross],
        values=[split_heads(attention.v_proj(states), attention.d_v).contiguous() for attention in cross],
        mask=attention_mask.bool()[:, None, None],
        limits=limits,
    )
    batch, device = input_ids.shape[0], input_ids.device
    own = [layer.self_attn for layer in decoder.layers]
    heads = config.decoder_attention_heads
    live_scores = torch.full((batch, beams), 10 * NO_HYPOTHESIS, device=device)
    live_scores[:, 0] = 0.0  # one live hypothesis, the empty one
    search = Search(
        keys=[states.new_zeros(batch, heads, 0, attention.d_k) for attention in own],
        values=[states.new_zeros(batch, heads, 0, attention.d_v) for attention in own],
        ancestry=torch.zeros(batch, beams, 0, dtype=torch.long, device=device),
        live=torch.full((batch, beams, 1), config.decoder_start_token_id, device=device),
        live_scores=live_scores,
        pool=torch.zeros(batch, beams, 0, dtype=torch.long, device=device),
        pool_scores=torch.full((batch, beams), 10 * NO_HYPOTHESIS, device=device),
        done=torch.zeros(batch, dtype=torch.bool, device=device),
    )
    return memory, search


def step(
    model: VaswaniTransformerForConditionalGeneration,
    memory: Memory,
    search: Search,
    alpha: Tensor,
    min_length: Tensor,
) -> Search:
    """One more token for every live hypothesis; the search as tests/brute_force.py spells it out.

    alpha: (), of the length penalty;  min_length: (), tokens before </s>
    """
    logits, keys, values = decode(model, memory, search)  # (batch, beams, V)
    config, beams = model.config, search.live.shape[1]
    ends, pad = as_set(config.eos_token_id), config.pad_token_id
    suppressed = as_set(model.generation_config.suppress_tokens)
    length = search.ancestry.new_full((), search.live.shape[2])  # of what this step makes, the start token not counted

    # The 2 x beams best continuations of a sentence are among the 2 x beams best of each of its beams; a few more,
    # for those that are not allowed.
    width = torch.sym_min(2 * beams + len(suppressed | ends), logits.shape[-1])
    best, best_tokens = logits.log_softmax(dim=-1).topk(width, dim=-1)  # (batch, beams, width)
    scores = search.live_scores[:, :, None] + best
    forbidden = is_one_of(best_tokens, suppressed) | (is_one_of(best_tokens, ends) & (length <= min_length))
    scores = scores.masked_fill(forbidden, 10 * NO_HYPOTHESIS).flatten(1)
    scores, chosen = scores.topk(2 * beams, dim=-1)  # (batch, candidates)
    parents = chosen // width
    tokens = best_tokens.flatten(1).gather(1, chosen)
    candidates = torch.cat((gather(search.live, parents), tokens[:, :, None]), dim=2)

    # Every continuation that is </s> is a finished hypothesis. Beam 1 is greedy search: only the best one counts.
    exists = scores > NO_HYPOTHESIS
    is_end = is_one_of(tokens, ends)
    candidate, slot = (torch.arange(n, device=tokens.device) for n in (2 * beams, beams))
    greedy = slot[-1] == 0
    ended = exists & is_end & ((candidate == 0) | ~greedy)
    at_limit = (length >= memory.limits)[:, None]
    pool_is_empty = ~((search.pool_scores > NO_HYPOTHESIS) | ended.any(dim=1, keepdim=True)).any(dim=1, keepdim=True)
    finished = (ended | (exists & at_limit & pool_is_empty)) & ~search.done[:, None]
    final = torch.where(finished, scores / gnmt_length_penalty(length, alpha), 10 * NO_HYPOTHESIS)
    pool_scores, kept = torch.cat((search.pool_scores, final), dim=1).topk(beams, dim=-1)
    pool = F.pad(search.pool, (0, 1), value=pad)
    pool = gather(torch.cat((pool, candidates[:, :, 1:]), dim=1), kept)

    # The best `beams` of the others live on.
    live_scores, lives = scores.masked_fill(is_end, 10 * NO_HYPOTHESIS).topk(beams, dim=-1)
    parents = parents.gather(1, lives)

    # Log-probabilities only fall, and the penalty divides most at the sentence's limit.
    bound = live_scores[:, 0] / gnmt_length_penalty(torch.where(alpha > 0, memory.limits, length), alpha)
    full = (pool_scores > NO_HYPOTHESIS).all(dim=1)
    done = search.done | at_limit[:, 0] | (live_scores[:, 0] <= NO_HYPOTHESIS)
    done = done | (full & ((pool_scores[:, -1] >= bound) | greedy))
    return Search(
        keys=keys,
        values=values,
        ancestry=torch.cat((gather(search.ancestry, parents), parents[:, :, None]), dim=2),
        live=gather(candidates, lives),
        live_scores=live_scores,
        pool=pool,
        pool_scores=pool_scores,
        done=done,
    )


def decode(
    model: VaswaniTransformerForConditionalGeneration, memory: Memory, search: Search
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The decoder on the last token of every live hypothesis: logits (batch, beams, V) in float32, keys, values"""
    decoder = model.model.decoder
    batch, beams, steps = search.ancestry.shape
    # Of earlier steps a hypothesis sees its ancestors' slots, of this one its own.
    own = torch.arange(beams, device=search.ancestry.device).expand(batch, beams)[:, :, None]
    slots = torch.cat((search.ancestry, own), dim=2)[..., None] == torch.arange(beams, device=own.device)
    may_attend = slots.flatten(2)[:, None]  # (batch, 1, beams, (steps + 1) x beams)
    all_keys, all_values = [], []

    def self_attention(attention: MultiHeadAttention, states: Tensor, past_keys: Tensor, past_values: Tensor) -> Tensor:
        keys = torch.cat((past_keys, split_heads(attention.k_proj(states), attention.d_k)), dim=2)
        values = torch.cat((past_values, split_heads(attention.v_proj(states), attention.d_v)), dim=2)
        all_keys.append(keys)
        all_values.append(values)
        return attend(attention, states, keys, values, may_attend)

    # The beams stand where a sequence stands elsewhere, all at the same position.
    hidden = decoder.embed(search.live[:, :, -1:].flatten(0, 1), None, start=steps).unflatten(0, (batch, beams))[
        :, :, 0
    ]
    for i, layer in enumerate(decoder.layers):
        hidden = layer.add_and_norm(
            hidden,
            layer.self_attn_norm,
            lambda x, layer=layer, i=i: self_attention(layer.self_attn, x, search.keys[i], search.values[i]),
        )
        hidden = layer.add_and_norm(
            hidden,
            layer.cross_attn_norm,
            lambda x, layer=layer, i=i: attend(layer.cross_attn, x, memory.keys[i], memory.values[i], memory.mask),
        )
        hidden = layer.add_and_norm(hidden, layer.feed_forward_norm, layer.feed_forward)
    return model.lm_head(decoder.final_norm(hidden)).float(), all_keys, all_values


def attend(attention: MultiHeadAttention, states: Tensor, keys: Tensor, values: Tensor, may_attend: Tensor) -> Tensor:
    """(batch, beams, d_model) -> the same; keys, values: (batch, heads, slots, d_k or d_v)"""
    query = split_heads(attention.q_proj(states), attention.d_k)
    output, _ = scaled_dot_product_attention(query, keys, values, may_attend, scaling=attention.scaling)
    return attention.out_proj(output.transpose(1, 2).flatten(2))


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
) -> tuple[Tensor, Tensor]:
    """Translate a batch, `generate(**batch)` token for token.

    input_ids, attention_mask: (batch, source), padded on the right
    max_source_length_offset, max_length: a sentence's limit is its source tokens plus the one, and at most the other
    min_length: tokens before </s> (transformers' `min_new_tokens`)
    returns sequences (batch, num_beams, length), without the start token, ending in </s> and padded, best first; and
    their scores (batch, num_beams), log P / ((5 + length) / 6)^alpha; a slot in which nothing finished is padding
    and scores below NO_HYPOTHESIS
    """
    alpha = torch.tensor(float(length_penalty), device=input_ids.device)
    shortest = torch.tensor(min_length, device=input_ids.device)
    most = None if max_length is None else torch.tensor(max_length, device=input_ids.device)
    memory, search = start(model, input_ids, attention_mask, max_source_length_offset, num_beams, most)
    rows = torch.arange(input_ids.shape[0], device=input_ids.device)
    longest = int(memory.limits.max())
    sequences = torch.full((len(rows), num_beams, longest), model.config.pad_token_id, device=rows.device)
    scores = torch.full((len(rows), num_beams), 10 * NO_HYPOTHESIS, device=rows.device)
    while len(rows):
        search = step(model, memory, search, alpha, shortest)
        # Leaving costs a copy of what remains: worth it when a good part of the batch is done.
        if search.done.sum() * 8 >= len(rows):
            sequences[rows[search.done], :, : search.pool.shape[2]] = search.pool[search.done]
            scores[rows[search.done]] = search.pool_scores[search.done]
            remaining = ~search.done
            rows = rows[remaining]
            memory = Memory._make(select(field, remaining) for field in memory)
            search = Search._make(select(field, remaining) for field in search)
    sequences.masked_fill_((scores <= NO_HYPOTHESIS)[:, :, None], model.config.pad_token_id)
    length = int((sequences != model.config.pad_token_id).sum(dim=2).max())
    return sequences[:, :, :length], scores


def select(field: Tensor | list[Tensor], rows: Tensor) -> Tensor | list[Tensor]:
    return [tensor[rows] for tensor in field] if isinstance(field, list) else field[rows]
