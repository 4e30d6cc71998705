"""The decoder as a function of tensors: one step of a search, with the cache as an argument and a result.

The model's own decoder keeps its cache in a transformers object. Here the cache is a list of tensors, so the step
can be exported, and one matrix product computes the queries, keys and values of a layer. `beam_search.py` calls it
with one token per live hypothesis, and `decode_whole` with all tokens of given translations, for their attention.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from .modeling_vaswani_transformer import (
    MultiHeadAttention,
    VaswaniTransformerForConditionalGeneration,
    scaled_dot_product_attention,
    searches_as_transformers,
    split_heads,
)


class Decoded(NamedTuple):
    logits: Tensor  # (batch, target, V), float32
    keys: list[Tensor]  # per layer, (batch, heads, past + target, d_k)
    values: list[Tensor]  # per layer, (batch, heads, past + target, d_v)
    cross_attentions: list[Tensor]  # per layer, the weights (batch, heads, target, source)


class CachedDecoder(nn.Module):
    """The decoder and output layer of a model, with explicit keys and values."""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration):
        super().__init__()
        # Any: to the type checker, the layers of a ModuleList are plain modules.
        self.decoder: Any = model.model.decoder
        self.lm_head, self.end = model.lm_head, model.config.eos_token_id
        self.start = model.config.decoder_start_token_id
        self.searches_as_transformers = searches_as_transformers(model)
        attentions = [layer.self_attn for layer in self.decoder.layers]
        self.projections = nn.ModuleList(fuse_layers(a.q_proj, a.k_proj, a.v_proj) for a in attentions)

    def forward(
        self,
        tokens: Tensor,
        encoding: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        mask: Tensor,
        memory_keys: list[Tensor],
        memory_values: list[Tensor],
        memory_mask: Tensor,
    ) -> Decoded:
        """Decode one token of each hypothesis, or several tokens of one hypothesis.

        tokens: (batch, target);  encoding: the positional encoding of the tokens, (1 or target, d_model)
        keys, values: the cache, per layer, (batch, heads, past, d_k or d_v); empty lists for no past
        mask: (1 or batch, target, past + target);  memory_mask: (batch, 1, 1, source)
            Masks are bool, True where attending is allowed, or a bias to be added to the scores.
        """
        all_keys, all_values, cross_attentions = [], [], []

        def self_attention(i: int, states: Tensor) -> Tensor:
            attention = self.decoder.layers[i].self_attn
            query, key, value = split_projection(self.projections[i](states), attention)
            all_keys.append(torch.cat((keys[i], key), dim=2) if keys else key)
            all_values.append(torch.cat((values[i], value), dim=2) if values else value)
            return attend(attention, query, all_keys[i], all_values[i], mask[:, None])[0]

        def cross_attention(i: int, states: Tensor) -> Tensor:
            attention = self.decoder.layers[i].cross_attn
            query = split_heads(attention.q_proj(states), attention.d_k)
            output, weights = attend(attention, query, memory_keys[i], memory_values[i], memory_mask)
            cross_attentions.append(weights)
            return output

        hidden = self.decoder.add_positions(self.decoder.embed_tokens(tokens), encoding)
        for i, layer in enumerate(self.decoder.layers):
            hidden = layer.add_and_norm(hidden, layer.self_attn_norm, lambda x, i=i: self_attention(i, x))
            hidden = layer.add_and_norm(hidden, layer.cross_attn_norm, lambda x, i=i: cross_attention(i, x))
            hidden = layer.add_and_norm(hidden, layer.feed_forward_norm, layer.feed_forward)
        logits = self.lm_head(self.decoder.final_norm(hidden)).float()
        return Decoded(logits, all_keys, all_values, cross_attentions)

    def decode_whole(
        self,
        tokens: Tensor,
        encoding: Tensor,
        memory_keys: list[Tensor],
        memory_values: list[Tensor],
        memory_mask: Tensor,
    ) -> Decoded:
        """Decode all tokens of one translation of each sentence, (batch, target); other arguments as in `forward`.

        encoding: of at least as many positions as there are tokens
        """
        inputs = torch.cat((torch.full_like(tokens[:, :1], self.start), tokens[:, :-1]), dim=1)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        causal = (place[None, :] <= place[:, None])[None]
        encoding = encoding.index_select(0, place)
        return self(inputs, encoding, [], [], causal, memory_keys, memory_values, memory_mask)


def memory_keys_and_values(decoder: Any, memory: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Project the encoder's output (batch, source, d_model) once, for cross attention in every step.

    returns keys and values per layer, (batch, heads, source, d_k or d_v)
    """
    attentions = [layer.cross_attn for layer in decoder.layers]
    keys = [split_heads(attention.k_proj(memory), attention.d_k) for attention in attentions]
    values = [split_heads(attention.v_proj(memory), attention.d_v) for attention in attentions]
    return keys, values


def attend(
    attention: MultiHeadAttention, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute attention over cached keys and values.

    query: (batch, heads, target, d_k);  keys, values: (batch, heads, source, d_k or d_v)
    returns (batch, target, d_model) and the weights (batch, heads, target, source)
    """
    output, weights = scaled_dot_product_attention(query, keys, values, mask, scaling=attention.scaling)
    return attention.out_proj(output.transpose(1, 2).flatten(2)), weights


def split_projection(states: Tensor, attention: MultiHeadAttention) -> tuple[Tensor, ...]:
    """Split (batch, target, heads * (2 * d_k + d_v)) into query, key and value, (batch, heads, target, d_k or d_v)."""
    d_k, d_v = attention.d_k, attention.d_v
    if d_k == d_v:  # one view and transposition instead of three
        return split_heads(states, d_k).chunk(3, dim=1)
    heads = states.shape[-1] // (2 * d_k + d_v)
    query, key, value = states.split([heads * d_k, heads * d_k, heads * d_v], dim=-1)
    return split_heads(query, d_k), split_heads(key, d_k), split_heads(value, d_v)


def fuse_layers(*layers: nn.Module) -> nn.Module:
    """Return one layer that computes the concatenated outputs of the given layers."""
    if not all(is_plain(layer) for layer in layers):
        return SideBySide(layers)
    linears = cast(tuple[nn.Linear, ...], layers)
    first, weight = linears[0], torch.cat([linear.weight.detach() for linear in linears])
    with torch.device("meta"):  # allocate nothing: the weights are replaced below
        joined = nn.Linear(first.in_features, len(weight), bias=first.bias is not None)
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if first.bias is not None:
        joined.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]), requires_grad=False)
    return joined


def is_plain(layer: nn.Module) -> bool:
    """Return whether a layer only multiplies by its weight and adds its bias.

    Adapters replace the layer, torchao replaces the tensor in it, and Accelerate moves the weights of an offloaded one.
    """
    if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
        return False
    return layer.weight.device.type != "meta"


class SideBySide(nn.ModuleList):
    """Layers whose outputs are concatenated."""

    def forward(self, states: Tensor) -> Tensor:
        return torch.cat([layer(states) for layer in self], dim=-1)
