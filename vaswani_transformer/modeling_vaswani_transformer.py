"""The Transformer of "Attention Is All You Need" (arXiv 1706.03762v7), from its parts to the whole.

Positional encoding (3.5), attention (3.2), feed-forward network (3.3), layers and stacks with their embeddings (3.1,
3.4), label smoothing (5.4), and the beam search of Section 6.1 as `generate()`. Differences from the paper:

* Options that are not in the paper are off by default; the comment on each names the toolkit that needs it.
* Sinusoids are computed on the fly in float32: there is no table and no maximum length.
* Decoding caches the keys and values of earlier steps, as every implementation since tensor2tensor does.
* `suppress_tokens` in the generation config forbids `<pad>` and the start token.
* The start token is `<s>`; tensor2tensor starts with a zero vector.

This file is published with every model and imports only torch and transformers.
"""

import copy
import inspect
import math
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache as once
from typing import Any, cast, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import ModelOutput, can_return_tuple, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vaswani_transformer import VaswaniTransformerConfig, incompatible_transformers
from .search_vaswani_transformer import LONGEST_OUTPUT, SearchSettings, check_number, is_beam_search_of_transformers

# The name of the cache in arguments of transformers' functions and in its outputs: "cache" since transformers 5.24,
# "past_key_values" before. The methods below accept both.
CACHE_NAME = next((name for name in ("cache", "past_key_values") if name in Seq2SeqLMOutput.__dataclass_fields__), "")
if CACHE_NAME not in inspect.signature(create_causal_mask).parameters:
    raise ImportError(incompatible_transformers("the cache has another name in masks or outputs"))

# ---- Section 3.5: positional encoding ------------------------------------------------------------------------------


def sinusoidal_positional_encoding(length: int | Tensor, d_model: int, base: float = 10000.0) -> Tensor:
    """Sinusoidal positional encoding, Section 3.5.

        PE(pos, 2i) = sin(pos / base^(2i/d_model))        PE(pos, 2i+1) = cos(pos / base^(2i/d_model))

    Sines and cosines interleave, as in the paper. tensor2tensor, fairseq and Marian concatenate them and divide by
    d_model/2 - 1, which is a permutation of the dimensions and another `base` (see `conversion`).

    length: number of positions, counted from 0, or a tensor (length,) of positions
    returns (length, d_model), float32
    """
    positions = length if isinstance(length, Tensor) else torch.arange(length)
    exponents = torch.arange(0, d_model, 2, device=positions.device, dtype=torch.float32) / d_model
    angles = positions.float()[:, None] * torch.exp(-math.log(base) * exponents)  # (length, d_model / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class PositionalEncoding(nn.Module):
    """Positional encoding to be added to the embeddings: sinusoids, or the learned table of Table 3 (E)."""

    def __init__(self, config: VaswaniTransformerConfig):
        super().__init__()
        self.d_model, self.base, self.offset = config.d_model, config.position_base, config.position_offset
        self.maximum = config.learned_positions  # None for sinusoids
        if self.maximum is not None:
            self.table = nn.Embedding(self.maximum + self.offset, config.d_model)

    def forward(self, start: int | Tensor, length: int, device: torch.device) -> Tensor:
        """Return (length, d_model): the encoding of `length` positions from `start`, counted from 0."""
        if self.maximum is not None and isinstance(start, int) and start + length > self.maximum:
            raise ValueError(
                f"the sequence has {start + length} tokens; this model has learned positions for "
                f"`max_position_embeddings` = {self.maximum}; split the text"
            )
        positions = torch.arange(length, device=device) + start + self.offset
        if self.maximum is not None:
            return self.table(positions)
        return sinusoidal_positional_encoding(positions, self.d_model, self.base)


# ---- Section 3.2: attention ----------------------------------------------------------------------------------------


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scaling: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, Section 3.2.1, Equation (1).

    query: (..., target, d_k);  key: (..., source, d_k);  value: (..., source, d_v)
    mask: broadcastable to (..., target, source); bool, True where attending is allowed, or a bias to add to the scores
    dropout_p: probability of dropping a weight, 0 outside training
    scaling: None for 1 / sqrt(d_k)
    returns the output (..., target, d_v) and the weights (..., target, source) before dropout

    Softmax runs in float32. A query whose keys are all masked gets equal weights instead of NaN.
    """
    scale: float = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = ((query * scale) @ key.transpose(-2, -1)).float()  # (..., target, source)
    if mask is not None and mask.dtype == torch.bool:
        # The most negative float instead of minus infinity keeps fully masked rows finite.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1).to(value.dtype)
    dropped = F.dropout(weights, dropout_p) if dropout_p else weights
    return dropped @ value, weights


def eager_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Equation (1) with the signature of transformers' attention interface, used for "eager"."""
    output, weights = scaled_dot_product_attention(query, key, value, attention_mask, dropout, scaling)
    return output.transpose(1, 2), weights


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, Section 3.2.2, for self-attention and cross-attention.

    d_k and d_v may differ from d_model / h, as in rows (B) of Table 3.
    """

    def __init__(self, config: VaswaniTransformerConfig, heads: int, is_causal: bool, layer_idx: int = 0):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, is_causal
        self.d_k = config.d_k or config.d_model // heads
        self.d_v = config.d_v or config.d_model // heads
        self.scaling = self.d_k**-0.5
        self.q_proj = nn.Linear(config.d_model, heads * self.d_k, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.d_model, heads * self.d_k, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.d_model, heads * self.d_v, bias=config.attention_bias)
        self.out_proj = nn.Linear(heads * self.d_v, config.d_model, bias=config.attention_bias)
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            # A plain float for _init_weights; torch's types expect tensors and modules.
            projection.glorot_gain = 2**-0.5  # pyright: ignore[reportArgumentType]

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        memory: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to `memory` if it is given, otherwise to `hidden_states`.

        hidden_states: (batch, target, d_model)
        attention_mask: mask in the format of the attention implementation, usually (batch, 1, target, source)
        memory: (batch, source, d_model), the output of the encoder
        returns (batch, target, d_model) and, with eager attention, the weights (batch, heads, target, source)
        """
        is_cross = memory is not None
        query = split_heads(self.q_proj(hidden_states), self.d_k)
        if cache is not None and is_cross and cache.is_updated.get(self.layer_idx):
            # Keys and values of the memory are the same at every step.
            layer = cast(DynamicLayer, cache.cross_attention_cache.layers[self.layer_idx])
            key, value = layer.keys, layer.values
        else:
            source = hidden_states if memory is None else memory
            key = split_heads(self.k_proj(source), self.d_k)
            value = split_heads(self.v_proj(source), self.d_v)
            if cache is not None:
                part = cache.cross_attention_cache if is_cross else cache.self_attention_cache
                key, value = part.update(key, value, self.layer_idx)
                if is_cross:
                    cache.is_updated[self.layer_idx] = True
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation or "eager", eager_attention
        )
        if is_cross and query.shape[2] > 1 and isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
            # With a 2-D mask, flash attention would unpad the queries by this mask of the keys
            # (huggingface/transformers#35032).
            attend, attention_mask = ALL_ATTENTION_FUNCTIONS["sdpa"], attention_mask[:, None, None].bool()
        dropout = self.config.attention_dropout if self.training else 0.0
        output, weights = attend(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs
        )
        return self.out_proj(output.flatten(2)), weights


def split_heads(states: Tensor, size: int) -> Tensor:
    """(batch, length, heads * size) -> (batch, heads, length, size)"""
    return states.unflatten(-1, (-1, size)).transpose(1, 2)


# ---- Section 3.3: position-wise feed-forward network ---------------------------------------------------------------


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2, Section 3.3, Equation (2)."""

    def __init__(self, config: VaswaniTransformerConfig, d_ff: int):
        super().__init__()
        self.fc1 = nn.Linear(config.d_model, d_ff)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.activation_dropout)
        self.fc2 = nn.Linear(d_ff, config.d_model)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(batch, length, d_model) -> (batch, length, d_model)"""
        return self.fc2(self.dropout(self.activation(self.fc1(hidden_states))))


# ---- Sections 3.1 and 3.4: layers, stacks and embeddings -----------------------------------------------------------


class TransformerLayer(GradientCheckpointingLayer):
    """Base of encoder and decoder layers: the residual connection around each sub-layer."""

    def __init__(self, config: VaswaniTransformerConfig):
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.norm_first = config.norm_position == "pre"

    def add_and_norm(self, x: Tensor, norm: nn.LayerNorm, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))), Sections 3.1 and 5.4; "pre": x + Dropout(Sublayer(LayerNorm(x)))."""
        if self.norm_first:
            return x + self.dropout(sublayer(norm(x)))
        return norm(x + self.dropout(sublayer(x)))


class EncoderLayer(TransformerLayer):
    """Self-attention and feed-forward network: one layer of the left half of Figure 1."""

    def __init__(self, config: VaswaniTransformerConfig):
        super().__init__(config)
        self.self_attn = MultiHeadAttention(config, config.encoder_attention_heads, is_causal=False)
        self.self_attn_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.feed_forward = FeedForward(config, config.encoder_ffn_dim)
        self.feed_forward_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None, **kwargs) -> Tensor:
        """Map (batch, source, d_model) to the same shape."""
        hidden_states = self.add_and_norm(
            hidden_states, self.self_attn_norm, lambda x: self.self_attn(x, attention_mask, **kwargs)[0]
        )
        return self.add_and_norm(hidden_states, self.feed_forward_norm, self.feed_forward)


class DecoderLayer(TransformerLayer):
    """Causal self-attention, cross-attention and feed-forward network: one layer of the right half of Figure 1."""

    def __init__(self, config: VaswaniTransformerConfig, layer_idx: int):
        super().__init__(config)
        heads = config.decoder_attention_heads
        self.self_attn = MultiHeadAttention(config, heads, is_causal=True, layer_idx=layer_idx)
        self.self_attn_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.cross_attn = MultiHeadAttention(config, heads, is_causal=False, layer_idx=layer_idx)
        self.cross_attn_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.feed_forward = FeedForward(config, config.decoder_ffn_dim)
        self.feed_forward_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None,
        memory_mask: Tensor | None,
        cache: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> Tensor:
        """Map (batch, target, d_model) to the same shape; memory: (batch, source, d_model)."""
        hidden_states = self.add_and_norm(
            hidden_states,
            self.self_attn_norm,
            lambda x: self.self_attn(x, attention_mask, cache=cache, **kwargs)[0],
        )
        hidden_states = self.add_and_norm(
            hidden_states,
            self.cross_attn_norm,
            lambda x: self.cross_attn(x, memory_mask, memory, cache=cache, **kwargs)[0],
        )
        return self.add_and_norm(hidden_states, self.feed_forward_norm, self.feed_forward)


class VaswaniTransformerPreTrainedModel(PreTrainedModel):
    """Base of all models: initialisation, and the capabilities that transformers asks for.

    As in transformers, `from_pretrained` fills missing tensors with random numbers and only logs it. The package's
    `Translator.from_pretrained` refuses such folders.
    """

    config: VaswaniTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module):
        """Initialise one module; the paper does not specify distributions.

        queries, keys, values   Glorot uniform with gain 2^-0.5: as parts of one matrix, as in the first tensor2tensor
        other linear layers     Glorot uniform, biases 0
        embeddings, learned positions, output   N(0, 1 / d_model)
        LayerNorm               gain 1, bias 0

        fairseq uses the same gain. With a gain of 1 the post-norm stacks learn markedly more slowly.
        """
        if isinstance(module, nn.Embedding) or module is getattr(self, "lm_head", None):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight, gain=getattr(module, "glorot_gain", 1.0))
        else:
            super()._init_weights(module)
        if isinstance(module, nn.Linear) and module.bias is not None:
            init.zeros_(module.bias)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args, **kwargs) -> nn.Embedding:
        if not self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "this model has separate encoder and decoder vocabularies, which cannot be resized together; "
                "convert the checkpoint again with the new vocabularies"
            )
        embeddings = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        self.config.decoder_vocab_size = self.config.vocab_size
        return embeddings

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # transformers ties everything or nothing, as `tie_word_embeddings` says. Here that field ties the output matrix
        # to the decoder's embedding, and `share_encoder_decoder_embeddings` ties the two embeddings.
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})


class Stack(VaswaniTransformerPreTrainedModel):
    """Base of encoder and decoder: scaled embeddings plus positions (3.4, 3.5), with dropout (5.4)."""

    def __init__(self, config: VaswaniTransformerConfig, vocab_size: int):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        self.positional_encoding = PositionalEncoding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.gradient_checkpointing = False

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, start: int | Tensor = 0) -> Tensor:
        """Return (batch, length, d_model) for tokens at positions from `start`.

        input_ids: (batch, length), or inputs_embeds: (batch, length, d_model), not yet scaled
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either token ids or embeddings, and not both")
        embeddings = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        encoding = self.positional_encoding(start, embeddings.shape[1], embeddings.device)
        return self.dropout(self.add_positions(embeddings, encoding))

    def add_positions(self, embeddings: Tensor, encoding: Tensor) -> Tensor:
        """Scale embeddings (batch, length, d_model), and add the encoding of the positions, (1 or length, d_model)."""
        return embeddings * math.sqrt(self.config.d_model) + encoding.to(embeddings.dtype)

    def expand_source_mask(self, mask: Tensor | None) -> Tensor | None:
        """Expand a mask (batch, source) to bool (batch, 1, 1, source) for SDPA on a GPU; return others unchanged.

        transformers checks whether a 2-D mask hides any token, so the host would wait for the GPU at every step.
        """
        if mask is None or mask.dim() != 2 or not mask.is_cuda or self.config._attn_implementation != "sdpa":
            return mask
        return mask[:, None, None].bool()


class VaswaniTransformerEncoder(Stack):
    """N identical layers of self-attention and feed-forward network: the left half of Figure 1."""

    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": MultiHeadAttention}

    def __init__(self, config: VaswaniTransformerConfig):
        super().__init__(config, config.vocab_size)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.final_norm = (
            nn.LayerNorm(config.d_model, config.layer_norm_eps) if config.encoder_final_norm else nn.Identity()
        )
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Encode (batch, source) token ids, or embeddings; attention_mask: (batch, source), 0 at padding.

        returns last_hidden_state: (batch, source, d_model)
        """
        refuse_unknown_arguments(kwargs, "logits_to_keep")  # assisted generation passes the decoder's to the encoder
        hidden_states = self.embed(input_ids, inputs_embeds)
        mask = create_bidirectional_mask(self.config, hidden_states, self.expand_source_mask(attention_mask))
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.final_norm(hidden_states))


class VaswaniTransformerDecoder(Stack):
    """N identical layers of causal self-attention, cross-attention and feed-forward network: right half of Figure 1."""

    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: VaswaniTransformerConfig):
        super().__init__(config, target_vocab_size(config))
        self.layers = nn.ModuleList(DecoderLayer(config, layer_idx=i) for i in range(config.decoder_layers))
        self.final_norm = (
            nn.LayerNorm(config.d_model, config.layer_norm_eps) if config.decoder_final_norm else nn.Identity()
        )
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode `target` tokens after those in the cache.

        input_ids: (batch, target); attention_mask: (batch, past + target), 0 at padding
        encoder_hidden_states: (batch, source, d_model); encoder_attention_mask: (batch, source)
        cache: keys and values of the tokens before; `past_key_values` is its name before transformers 5.24
        returns last_hidden_state: (batch, target, d_model), and the cache when `use_cache`
        """
        refuse_unknown_arguments(kwargs)
        cache = choose_cache(cache, past_key_values)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if cache is not None and not isinstance(cache, EncoderDecoderCache):
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        start = 0 if cache is None else cache.get_seq_length()
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            # The backward pass runs each layer again, which would append to the cache again.
            if isinstance(start, int) and start > 0:
                raise ValueError("the cache cannot be used with gradient checkpointing; decode the whole target")
            cache = None
        hidden_states = self.embed(input_ids, inputs_embeds, start)
        past = None if cache is None else cache.self_attention_cache
        mask = create_causal_mask(self.config, hidden_states, attention_mask, **cache_keyword(past))
        memory_mask = create_bidirectional_mask(
            self.config,
            hidden_states,
            self.expand_source_mask(encoder_attention_mask),
            encoder_hidden_states=encoder_hidden_states,
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, encoder_hidden_states, mask, memory_mask, cache=cache, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.final_norm(hidden_states), **cache_keyword(cache)
        )


class VaswaniTransformerModel(VaswaniTransformerPreTrainedModel):
    """Encoder and decoder: Figure 1 without the final linear layer and softmax."""

    def __init__(self, config: VaswaniTransformerConfig):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model)
            self._tied_weights_keys = {
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight",
            }
        self.encoder = VaswaniTransformerEncoder(config)
        self.decoder = VaswaniTransformerDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module):
        embedding = cast(nn.Embedding, value)
        self.encoder.embed_tokens = embedding
        if self.config.share_encoder_decoder_embeddings:
            self.shared = self.decoder.embed_tokens = embedding

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> Seq2SeqModelOutput:
        """Encode the source, unless `encoder_outputs` is given, and decode the target.

        input_ids, attention_mask: (batch, source), the mask 0 at padding; or inputs_embeds: (batch, source, d_model)
        decoder_input_ids, decoder_attention_mask: (batch, target), beginning with the start token
        cache: keys and values of the decoder's tokens before; `past_key_values` is its name before transformers 5.24
        returns last_hidden_state: (batch, target, d_model)
        Raises `TypeError` for an unknown argument, and `ValueError` naming the row for invalid token ids on the CPU,
        where the check is cheap.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(
                "the decoder has no input: give `decoder_input_ids`, beginning with `decoder_start_token_id`; or "
                "pass `labels` to VaswaniTransformerForConditionalGeneration, or call generate() to translate"
            )
        if decoder_input_ids is not None and can_read_values(decoder_input_ids):
            check_token_ids("decoder_input_ids", decoder_input_ids, target_vocab_size(self.config))
        if encoder_outputs is None:
            is_padding_mask = attention_mask is None or attention_mask.dim() == 2
            if input_ids is not None and is_padding_mask and can_read_values(input_ids):
                check_source(input_ids, attention_mask, self.config)
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        elif isinstance(encoder_outputs, ModelOutput):
            encoded = BaseModelOutput(
                **{field: encoder_outputs.get(field) for field in ("last_hidden_state", "hidden_states", "attentions")}
            )
        else:
            encoded = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=choose_cache(cache, past_key_values),
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **cache_keyword(getattr(decoder_outputs, CACHE_NAME)),
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


def target_vocab_size(config: VaswaniTransformerConfig) -> int:
    return config.decoder_vocab_size or config.vocab_size


def cache_keyword(cache: Cache | None) -> dict[str, Any]:
    """Return the cache as keyword argument, by the name that the installed version of transformers gives it."""
    return {CACHE_NAME: cache}


def choose_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    if cache is not None and past_key_values is not None:
        raise ValueError("`cache` and `past_key_values` are two names of one argument; give `cache`")
    return past_key_values if cache is None else cache


# Arguments of `forward` that only transformers reads: in its decorators and attention functions, or in generate(),
# which passes them on.
READ_BY_TRANSFORMERS = {
    "assistant_model",
    "assistant_tokenizer",
    "tokenizer",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "use_cache",  # a decorator also adds it to the encoder's arguments
    "debug_io",
    "debug_io_dir",
    "prune_layers",
}


def refuse_unknown_arguments(arguments: dict[str, Any], *ignored: str) -> None:
    """Raise `TypeError` for an argument that nothing reads. Arguments that are None are ignored.

    Ignoring the cache under a new name, for example, would decode every token as if it were the first.
    """
    for name, value in arguments.items():
        if value is not None and name not in READ_BY_TRANSFORMERS and name not in ignored:
            raise TypeError(
                f"forward() has no argument `{name}`; correct its name, or, if the call is transformers' own: "
                + incompatible_transformers("the argument is new")
            )


def can_read_values(tensor: Tensor) -> bool:
    """Return whether reading values is cheap: not while tracing, and not on a GPU, which would synchronise."""
    return tensor.is_cpu and not is_tracing(tensor)


def check_source(input_ids: Tensor, attention_mask: Tensor | None, config: VaswaniTransformerConfig) -> Tensor:
    """Return the mask, inferred from the padding id if it is None.

    Raises `ValueError` naming the first row with an id outside the vocabulary or with nothing but padding.
    """
    check_token_ids("input_ids", input_ids, config.vocab_size)
    if attention_mask is None:
        real = torch.ones_like(input_ids) if config.pad_token_id is None else input_ids != config.pad_token_id
        attention_mask = real.long()
    return check_mask(attention_mask, input_ids)


def check_token_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    if ids.dim() != 2 or 0 in ids.shape:
        raise ValueError(f"`{name}` has shape {tuple(ids.shape)}; it must be 2-D (batch, length) and non-empty")
    wrong = ((ids < 0) | (ids >= vocab_size)).any(dim=1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"`{name}` row {row} has ids from {int(ids[row].min())} to {int(ids[row].max())}; "
            f"the ids of the vocabulary are 0 to {vocab_size - 1}"
        )


def check_mask(attention_mask: Tensor, source: Tensor) -> Tensor:
    if attention_mask.shape != source.shape[:2]:
        shape = tuple(source.shape[:2])
        raise ValueError(f"`attention_mask` has shape {tuple(attention_mask.shape)}; the source has shape {shape}")
    is_empty = ~attention_mask.any(dim=1)
    if is_empty.any():
        raise ValueError(f"source row {int(is_empty.nonzero()[0])} is empty: it contains only padding")
    return attention_mask


# ---- Section 5.4: label smoothing ----------------------------------------------------------------------------------


def label_smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    epsilon: float = 0.0,
    spread: str = "others",
    num_items_in_batch: int | Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """Cross-entropy against a target distribution with 1 - epsilon at the label, Section 5.4.

    logits: (..., V);  labels: (...), `ignore_index` at positions without a loss
    spread: "others" spreads epsilon evenly over the V - 1 other tokens, as tensor2tensor (the paper's reference
        implementation) and fairseq do; "all" over all V tokens, label included, as Szegedy et al. and torch do
    num_items_in_batch: divisor of the summed loss, None for the number of labels in this batch; with gradient
        accumulation, the number of labels in all batches of the step
    returns a scalar, in nats
    """
    if spread not in ("others", "all"):
        raise ValueError(f'`spread` is {spread!r}; label smoothing spreads over "others" or "all"')
    if spread == "others":
        # torch spreads over all V tokens: epsilon * V / (V - 1) leaves exactly 1 - epsilon at the label.
        epsilon = epsilon * logits.shape[-1] / (logits.shape[-1] - 1)
    total = F.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=ignore_index,
        reduction="sum",
        label_smoothing=epsilon,
    )
    if num_items_in_batch is None:
        num_items_in_batch = (labels != ignore_index).sum().clamp(min=1)
    return total / num_items_in_batch


# ---- Section 6.1: the search, as `generate()` ----------------------------------------------------------------------

VALID_ABOVE = -1e8  # no hypothesis has a score near this
EMPTY_SCORE = -1e9  # as transformers scores an empty beam


@overload
def gnmt_length_penalty(length: int, alpha: float) -> float: ...
@overload
def gnmt_length_penalty(length: Tensor, alpha: float | Tensor) -> Tensor: ...
def gnmt_length_penalty(length: int | Tensor, alpha: float | Tensor) -> float | Tensor:
    """lp(Y) = ((5 + |Y|) / 6)^alpha of Wu et al. 2016, Equation (14); |Y| counts </s> but not the start token."""
    return ((5 + length) / 6) ** alpha


def searches_as_transformers(model: "VaswaniTransformerForConditionalGeneration") -> bool:
    """Return whether the model's search follows the rules of transformers, see `is_beam_search_of_transformers`."""
    return is_beam_search_of_transformers(getattr(model.generation_config, "beam_search", None))


def score_divisor(length: Any, alpha: float | Tensor, of_transformers: bool) -> Any:
    """Return what log P(Y | X) is divided by: |Y|^alpha in a search of transformers, else `gnmt_length_penalty`.

    length: a number or a tensor, as the result is
    """
    return length**alpha if of_transformers else gnmt_length_penalty(length, alpha)


@dataclass
class RunningSearch:
    """State of a running `generate()` that transformers does not pass to the overridden methods.

    They also record their calls here. If transformers renames, moves or drops one of them, its search is another one,
    and `check_end` raises an error. `check_step` compares the steps with what the decoder reads.
    """

    model: nn.Module
    prompt_length: int  # of the decoder, in tokens
    limits: Tensor | None  # (batch, 1), the most output tokens of each sentence; None: max_length for all
    settings: SearchSettings
    of_transformers: bool  # see `is_beam_search_of_transformers`
    has_padding: bool
    may_have_prefix: bool  # whether the cache may be filled before the first step, as by PEFT's prefix tuning
    is_beam_search: bool
    is_speculative: bool  # a step may read and accept several tokens
    has_cache: bool = False
    n_best: int = 1  # hypotheses returned per sentence
    end_tokens: Tensor | None = None  # None: hypotheses end only at a limit
    length: int = field(init=False)  # of the sequences in this step, before its token
    tokens_read: int | None = None  # by the decoder in this step; None: unknown, as in a compiled model
    prefix_length: int = 0  # tokens in the cache before the first step
    # Of beam search's last step: the best live log-probabilities, and whether the sentences may improve, (batch, 1).
    last_step: tuple[Tensor, Tensor] | None = None
    # Without beams: whether a logit of a row has been NaN or +infinity, (batch,), recorded by `LogitsCheck`.
    not_finite: Tensor | None = None
    calls: Counter[str] = field(default_factory=Counter)

    def __post_init__(self):
        self.length = self.prompt_length - 1

    def record_forward(self, decoder_input_ids: Tensor | None, attention_mask: Tensor | None, cache: Cache | None):
        """Record how many tokens the decoder reads, including those in the cache."""
        if self.has_padding and attention_mask is None:
            raise RuntimeError(incompatible_transformers("the decoder receives no mask of the source's padding"))
        past = 0 if cache is None else cache.get_seq_length()
        if decoder_input_ids is None or (isinstance(past, Tensor) and not past.is_cpu):
            self.tokens_read = None  # reading `past` would wait for the GPU
        else:
            self.tokens_read = int(past) + decoder_input_ids.shape[1]

    def check_step(self, length: int) -> None:
        """Record a step, whose sequences have `length` tokens before the new one.

        Raises `RuntimeError` if the decoder has read fewer or more, or if steps were left out.
        """
        self.calls["SearchStep"] += 1
        tokens_read, self.tokens_read = self.tokens_read, None
        if self.calls["SearchStep"] == 1 and self.may_have_prefix and tokens_read is not None:
            self.prefix_length = max(0, tokens_read - length)
        if self.is_speculative:
            is_expected = tokens_read is None or tokens_read >= length
        else:
            is_expected = tokens_read in (None, length + self.prefix_length) and length == self.length + 1
        if not is_expected:
            found = (
                f"step {self.length + 2 - self.prompt_length} has {length} tokens, and the decoder read {tokens_read}"
            )
            raise RuntimeError(incompatible_transformers(found))
        self.length = length

    def record_call(self, name: str, **values: tuple[object, object]) -> None:
        """Record the call of an overridden method; values: the found and the expected value of an argument, by name."""
        self.calls[name] += 1
        for argument, (found, expected) in values.items():
            if found != expected:
                message = f"`{argument}` of {name}() is {found} instead of {expected}"
                raise RuntimeError(incompatible_transformers(message))

    def check_end(self) -> None:
        """Raise `RuntimeError` if a method that makes the search the paper's was not called, or not in each step.

        Raises `ValueError` if log-probabilities were NaN, which a hypothesis keeps: `topk` takes it for the best.
        """
        nan = self.not_finite
        if self.last_step is not None:
            nan = (self.last_step[0].isnan() & self.last_step[1])[:, 0]
        if nan is not None and nan.any():
            raise ValueError(
                f"source row {int(nan.nonzero()[0])}: the model's log-probabilities are NaN, as in float16 when "
                "values exceed 65,504; use float32 or bfloat16, or another checkpoint"
            )
        steps = self.calls["SearchStep"]
        expected = {"SearchStep": max(1, steps)}
        if self.is_beam_search:
            expected |= {"_beam_search": 1} | dict.fromkeys(HOOKS, steps)
            if self.has_cache:
                expected["_reorder_cache"] = steps
        for name, times in expected.items():
            if self.calls[name] != times:
                found = f"the search called {name}() {self.calls[name]} times instead of {times}"
                raise RuntimeError(incompatible_transformers(found))


_running_search: ContextVar[RunningSearch | None] = ContextVar("running search", default=None)

# Methods of transformers' beam search that are overridden and called once per step.
HOOKS = ("_update_finished_beams", "_check_early_stop_heuristic")
# Settings with which a step may read and accept several tokens.
SPECULATIVE = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "custom_generate")


def running_search() -> RunningSearch:
    search = _running_search.get()
    if search is None:
        raise RuntimeError("a beam search of this model runs only inside its generate()")
    return search


class SearchStep(StoppingCriteria):
    """Stop each hypothesis at the limit of its sentence, independently of the rest of the batch, and check the step."""

    def __init__(self, search: RunningSearch):
        self.search = search

    # The base class declares torch's legacy type BoolTensor.
    def __call__(self, input_ids: Tensor, scores, **kwargs) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.search.check_step(input_ids.shape[1] - 1)
        rows = input_ids.shape[0]
        if self.search.limits is None:
            return input_ids.new_zeros(rows, dtype=torch.bool)
        limits = self.search.limits[:, 0].to(input_ids.device).repeat_interleave(rows // self.search.limits.shape[0])
        return input_ids.shape[1] - self.search.prompt_length >= limits


class LogitsCheck(LogitsProcessor):
    """Record in greedy search which rows have a logit that is NaN or +infinity before they end."""

    def __init__(self, search: RunningSearch, batch: int, end: int):
        self.search, self.batch, self.end = search, batch, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        has_ended = (input_ids[:, self.search.prompt_length :] == self.end).any(dim=1)
        found = (~(scores < math.inf).all(dim=1) & ~has_ended).view(self.batch, -1).any(dim=1)
        before = self.search.not_finite
        self.search.not_finite = found if before is None else before | found
        return scores


def normalize_arguments(kwargs: dict[str, Any]) -> None:
    """Normalize arguments that transformers' `generate()` misinterprets or rejects."""
    for name in ("num_beams", "num_return_sequences", "length_penalty", "early_stopping", "use_cache"):
        if kwargs.get(name, False) is None:
            del kwargs[name]
    kwargs.pop("labels", None)  # Seq2SeqTrainer passes a batch with its labels
    for name in ("cache", "past_key_values"):
        if name in kwargs:
            kwargs[CACHE_NAME] = kwargs.pop(name)
    prompt = kwargs.get("decoder_input_ids")
    if kwargs.get(CACHE_NAME) is not None and prompt is not None and kwargs.get("decoder_attention_mask") is None:
        # Without it, transformers decodes the tokens that are in the cache a second time.
        kwargs["decoder_attention_mask"] = torch.ones_like(prompt)


@once
def check_hooks() -> None:
    """Raise `RuntimeError` if transformers' beam search lacks a method that is overridden, or one of its arguments."""
    needed = {"prepare_inputs_for_generation": {CACHE_NAME}}
    for name in ("_beam_search", *HOOKS):
        ours = inspect.signature(getattr(VaswaniTransformerGenerationMixin, name)).parameters.values()
        needed[name] = {parameter.name for parameter in ours if parameter.kind is not parameter.VAR_KEYWORD}
    for name, names in needed.items():
        theirs = getattr(GenerationMixin, name, None)
        if theirs is None:
            raise RuntimeError(incompatible_transformers(f"the search has no method {name}()"))
        for missing in names - set(inspect.signature(theirs).parameters):
            raise RuntimeError(incompatible_transformers(f"{name}() has no argument `{missing}`"))


class VaswaniTransformerGenerationMixin(GenerationMixin):
    """`generate()` with the beam search of tensor2tensor. It differs from transformers' beam search in four ways.

    * The score of a hypothesis is log P(Y | X) / ((5 + |Y|) / 6)^alpha, where alpha is `length_penalty`.
      transformers divides by |Y|^alpha.
    * A continuation by </s> finishes a hypothesis if it is among the 2 x beam best of the step; in transformers, only
      among the `beam` best.
    * Each sentence has its own limit, |source| + `extra_length` (50) tokens, unless `max_length` or `max_new_tokens` is
      given. Live hypotheses at the limit are returned only if none has finished.
    * A sentence is done when no live hypothesis can still enter the n-best list; in transformers, when none can enter
      the `beam` best.

    With `beam_search` "transformers" in generation_config.json, as in models that were converted from there, the first,
    second and fourth are as in transformers, and every hypothesis that reaches the limit counts.

    `SearchStep` sets the limits, `_check_early_stop_heuristic` decides when a sentence is done, and
    `_update_finished_beams` does the rest. The overridden private methods take keyword arguments; the type checker
    compares them with transformers' positional signatures. `check_hooks` compares their names with the installed
    transformers before a search, and `RunningSearch` records their calls.
    """

    config: VaswaniTransformerConfig
    generation_config: GenerationConfig

    def adjust_generation_fn(self, generation_config: GenerationConfig | None, *args, **kwargs):
        super().adjust_generation_fn(generation_config, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        self._replace_derived_generation_config()

    def _replace_derived_generation_config(self) -> None:
        # In a folder without generation_config.json, from_pretrained derives one from the model's config: greedy search
        # and 20 tokens.
        if self.generation_config._from_model_config:
            self.generation_config = default_generation_config(self.config)

    def generate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        **kwargs,
    ):
        """Translate, with the arguments of transformers' `generate()`.

        A translation has at most as many tokens as its source plus `extra_length`, unless the call gives `max_length`
        or `max_new_tokens`, or generation_config.json does and the call has no `extra_length`. If these are too short,
        beam search prefers translations that end before the limit, even empty ones, and greedy search returns a
        truncated translation. A setting that is None has its default value.
        early_stopping: may also be a number of tokens, see `SearchSettings.lookahead`; transformers accepts no number
            in generation_config.json.
        Raises `ValueError` for invalid settings, naming the row for invalid sources and for log-probabilities that are
        NaN, and `RuntimeError` if the installed transformers runs the search otherwise than this class expects.
        """
        check_hooks()
        self._replace_derived_generation_config()  # if from_pretrained has not called adjust_generation_fn
        normalize_arguments(kwargs)

        def requested(name: str):
            value = kwargs.get(name)
            return getattr(generation_config, name, None) if value is None else value

        def setting(name: str):
            value = requested(name)
            return getattr(self.generation_config, name, None) if value is None else value

        names = {field.name for field in fields(SearchSettings)} - {"num_return_sequences"}  # more, if it samples
        settings = SearchSettings.from_generation_config({name: setting(name) for name in names})
        for name in ("num_return_sequences", "max_length"):
            if (value := setting(name)) is not None:
                check_number(name, value, 1, LONGEST_OUTPUT)
        if settings.early_stopping not in ("never", True, False):  # a number, which transformers does not know
            kwargs["early_stopping"] = "never"
        # transformers refuses numpy's numbers, and an integer as the penalty.
        kwargs |= settings.repetition
        kwargs["attention_mask"] = mask = self._source_mask(inputs, kwargs)
        prompt_length = self._prompt_length(kwargs.get("decoder_input_ids"))
        limits = None
        if not self._limit_is_requested(generation_config, kwargs):
            limits = mask.sum(dim=1) + settings.extra_length
            if self.config.learned_positions is not None:
                limits = limits.clamp(max=self.config.learned_positions - prompt_length)
            longest = int(limits.max())
            # transformers prefers max_new_tokens, which generation_config.json may have.
            limit = {"max_length": prompt_length + longest}
            limit = limit if setting("max_new_tokens") is None else {"max_new_tokens": longest}
            if generation_config is None:
                kwargs |= limit
            else:
                generation_config = copy.deepcopy(generation_config)
                vars(generation_config).update(limit)
        running = RunningSearch(
            cast(nn.Module, self),
            prompt_length,
            None if limits is None else limits[:, None],
            settings,
            is_beam_search_of_transformers(setting("beam_search")),
            has_padding=not bool(mask.all()),
            may_have_prefix=kwargs.get(CACHE_NAME) is None,
            is_beam_search=settings.num_beams > 1,
            is_speculative=any(setting(name) for name in SPECULATIVE),
        )
        stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), SearchStep(running)])
        if not running.is_beam_search:
            check = LogitsCheck(running, mask.shape[0], cast(int, self.config.eos_token_id))
            logits_processor = LogitsProcessorList([check, *(logits_processor or [])])
        # transformers types `self` of its mixin as a protocol with more attributes than a model declares.
        search = super().generate  # pyright: ignore[reportAttributeAccessIssue]
        previous = _running_search.set(running)
        try:
            output = search(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)
        except TypeError as error:
            if any(name in str(error) for name in HOOKS):  # called with other arguments
                raise RuntimeError(incompatible_transformers(str(error))) from error
            raise
        finally:
            _running_search.reset(previous)
        if kwargs.get("custom_generate") is None:  # with which the caller chooses another search
            running.check_end()
        return output

    def _limit_is_requested(self, generation_config: GenerationConfig | None, kwargs: dict) -> bool:
        """Return whether the limits of the sentences are replaced by one of the call or of generation_config.json.

        An `extra_length` of the call replaces a limit of generation_config.json. Seq2SeqTrainer writes transformers'
        default, 20, into the `max_length` of a model's generation config, which may come back as an argument; beside
        `extra_length` it is not a request.
        """
        extra_length = kwargs.pop("extra_length", None)  # which transformers does not know
        if kwargs.get("max_length") is not None or kwargs.get("max_new_tokens") is not None:
            return True
        if extra_length is not None:
            return False
        own = self.generation_config
        for config, of_trainer in ((generation_config, 20), (own, own.max_length)):
            names = ("extra_length", "max_length", "max_new_tokens")
            extra_length, max_length, max_new_tokens = (getattr(config, name, None) for name in names)
            no_request = (None,) if extra_length is None else (None, of_trainer)
            if max_new_tokens is not None or max_length not in no_request:
                return True
            if extra_length is not None:
                return False
        return False

    def _prompt_length(self, prompt: Tensor | None) -> int:
        """Return the decoder prompt's length in tokens; transformers prepends a missing start token."""
        if prompt is None:
            return 1
        return prompt.shape[1] + int((prompt[:, 0] != self.config.decoder_start_token_id).all())

    def _source_mask(self, inputs: Tensor | None, kwargs: dict) -> Tensor:
        """Return the mask of the checked source, (batch, source), 0 at padding.

        Without a mask, ids equal to `pad_token_id` are padding; transformers does not infer this for encoder-decoders.
        """
        ids = inputs if inputs is not None else kwargs.get("input_ids")
        mask = kwargs.get("attention_mask")
        if ids is not None:
            mask = check_source(ids, mask, self.config)
            # Padding in front would shift the positions of the tokens.
            is_shifted = (ids[:, 0] == self.config.pad_token_id) & (mask[:, 0] == 0)
            if is_shifted.any():
                raise ValueError(
                    f"`input_ids` row {int(is_shifted.nonzero()[0])} begins with padding; pad on the right: "
                    '`tokenizer.padding_side = "right"`'
                )
            return mask
        source = kwargs.get("inputs_embeds")
        if source is None and kwargs.get("encoder_outputs") is not None:
            source = kwargs["encoder_outputs"][0]
        if source is None:
            raise ValueError("generate() needs `input_ids`, `inputs_embeds` or `encoder_outputs`")
        return check_mask(source.new_ones(source.shape[:2], dtype=torch.long) if mask is None else mask, source)

    def _beam_search(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs
    ):
        search = super()._beam_search  # pyright: ignore[reportAttributeAccessIssue]  # as in `generate`
        running = running_search()
        running.record_call("_beam_search")
        running.has_cache = kwargs.get(CACHE_NAME) is not None
        running.n_best, running.end_tokens = generation_config.num_return_sequences, generation_config._eos_token_tensor
        return search(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)

    def _update_finished_beams(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        *,
        topk_running_sequences: Tensor,  # (batch, candidates, length), candidates = 2 x beam
        topk_log_probs: Tensor,  # (batch, candidates)
        next_token_hits_stopping_criteria: Tensor,  # (batch, candidates): </s> or a limit
        is_sent_finished: Tensor,  # (batch, beam): occupied slots of the finished hypotheses
        top_num_beam_mask: Tensor,
        num_beams: int,
        cur_len: int,
        decoder_prompt_len: int,
        length_penalty: float,
        **state,
    ):
        """Add the continuations that finish in this step to the finished hypotheses; `score_divisor` ranks them."""
        search = running_search()
        search.record_call(
            "_update_finished_beams",
            cur_len=(cur_len, search.length),
            decoder_prompt_len=(decoder_prompt_len, search.prompt_length),
            length_penalty=(length_penalty, search.settings.length_penalty),
        )
        if topk_log_probs.shape[1] < 2 * num_beams:
            found = f"a step has {topk_log_probs.shape[1]} candidates for {num_beams} beams"
            raise RuntimeError(incompatible_transformers(found))
        stops = next_token_hits_stopping_criteria & (topk_log_probs > VALID_ABOVE)
        if search.of_transformers:
            finished = stops & top_num_beam_mask
        else:
            ends = torch.zeros_like(stops)
            if search.end_tokens is not None:
                ends = stops & torch.isin(topk_running_sequences[:, :, cur_len], search.end_tokens)
            # At the limit, every candidate stops; without </s> it counts only if no hypothesis has finished.
            at_limit = next_token_hits_stopping_criteria.all(dim=1, keepdim=True)
            any_finished = torch.cat((is_sent_finished, ends), dim=1).any(dim=1, keepdim=True)
            finished = ends | (stops & ~(at_limit & any_finished))
        penalty = score_divisor(cur_len + 1 - decoder_prompt_len, length_penalty, search.of_transformers)
        return super()._update_finished_beams(
            topk_running_sequences=topk_running_sequences,
            topk_log_probs=torch.where(finished, topk_log_probs / penalty, EMPTY_SCORE),
            next_token_hits_stopping_criteria=finished,
            is_sent_finished=is_sent_finished,
            top_num_beam_mask=torch.ones_like(top_num_beam_mask),
            num_beams=num_beams,
            cur_len=cur_len,
            decoder_prompt_len=decoder_prompt_len,
            length_penalty=0.0,  # already applied to the log-probabilities
            **state,
        )

    @staticmethod
    def _check_early_stop_heuristic(  # pyright: ignore[reportIncompatibleMethodOverride]
        *,
        is_early_stop_heuristic_unsatisfied: Tensor,  # (batch, 1)
        running_beam_scores: Tensor,  # (batch, beam), log-probabilities, best first
        beam_scores: Tensor,  # (batch, beam), of the finished hypotheses, best first
        cur_len: int,
        max_length: int,
        decoder_prompt_len: int,
        length_penalty: float,
        **state,
    ) -> Tensor:
        """Return (batch, 1): whether a live hypothesis can still enter the n-best list.

        Log-probabilities only fall, so a hypothesis scores best at the largest length penalty that it can reach. For
        alpha > 0, that is the penalty at its limit, or after the tokens of `SearchSettings.lookahead`; otherwise it is
        the current one. With `early_stopping` True, the caller stops a sentence when `beam` hypotheses have finished.
        """
        search = running_search()
        search.record_call("_check_early_stop_heuristic", cur_len=(cur_len, search.length + 1))
        lookahead = search.settings.lookahead
        growth = max(lookahead, 0) if length_penalty > 0 else 0
        length = min(cur_len + growth, max_length) - decoder_prompt_len
        length = length if search.limits is None else search.limits.clamp(max=length)
        bound = running_beam_scores[:, :1] / score_divisor(length, length_penalty, search.of_transformers)
        awaits_all = lookahead < 0 or search.of_transformers
        last_index = (beam_scores.shape[1] if awaits_all else search.n_best) - 1
        last_score, best_live = beam_scores[:, last_index, None], running_beam_scores[:, :1]
        # "Not below" instead of "above", so that a sentence with NaN is not done.
        may_improve = ~((best_live <= VALID_ABOVE) | (bound <= last_score))
        may_improve = is_early_stop_heuristic_unsatisfied & may_improve
        search.last_step = best_live, may_improve & (last_score <= VALID_ABOVE) if lookahead < 0 else may_improve
        return may_improve

    def _reorder_cache(self, cache: EncoderDecoderCache, beam_idx: torch.LongTensor) -> EncoderDecoderCache:
        if (search := _running_search.get()) is not None:
            search.record_call("_reorder_cache")
        # All beams of a sentence share its memory, so only the self-attention cache is reordered.
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache


def default_generation_config(config: VaswaniTransformerConfig) -> GenerationConfig:
    """Return the paper's search (Section 6.1). `suppress_tokens` forbids padding and the start token."""
    special = (config.pad_token_id, config.decoder_start_token_id)
    forbidden = {token for token in special if token is not None and token != config.eos_token_id}
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        early_stopping="never",
        extra_length=50,
        suppress_tokens=sorted(forbidden),
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
    )


class VaswaniTransformerForConditionalGeneration(VaswaniTransformerPreTrainedModel, VaswaniTransformerGenerationMixin):
    """Figure 1: encoder, decoder and the final linear layer; `forward` returns logits, without the softmax."""

    def __init__(self, config: VaswaniTransformerConfig):
        super().__init__(config)
        self.model = VaswaniTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, target_vocab_size(config), bias=config.output_bias)
        if config.tie_word_embeddings:
            embedding = "shared" if config.share_encoder_decoder_embeddings else "decoder.embed_tokens"
            self._tied_weights_keys = {"lm_head.weight": f"model.{embedding}.weight"}
        self.post_init()
        # One derived from the model's config by transformers would lose `extra_length` when it is saved.
        self.generation_config = default_generation_config(config)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model as transformers does, which accepts broken files that `Translator.from_pretrained` refuses.

        The model keeps its commit for the pipeline, which reads the target tokenizer of the same commit.
        """
        loaded = super().from_pretrained(*args, **kwargs)
        config = (loaded[0] if isinstance(loaded, tuple) else loaded).config  # with output_loading_info=True
        if getattr(config, "_commit_hash", None) is None and (revision := kwargs.get("revision")):  # 5.17 sets it
            config._commit_hash = getattr(revision, "resolved", revision)
        return loaded

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift labels (batch, target) right, with the start token in front and padding instead of -100."""
        start = labels.new_full((labels.shape[0], 1), self.config.decoder_start_token_id)
        padding = cast(int, self.config.pad_token_id)
        return torch.cat((start, labels[:, :-1].masked_fill(labels[:, :-1] == -100, padding)), dim=1)

    def target_log_probabilities(
        self, labels: Tensor, repetition_penalty: float = 1.0, is_greedy: bool = False, **source: Tensor
    ) -> Tensor:
        """Return log P of each target token, given the source and the target tokens before it (forced decoding).

        labels: (batch, target), padded on the right, with any value at the padding
        repetition_penalty: of the search whose scores to return; 1: off.  is_greedy: whether that search is greedy
        source: input_ids, attention_mask: (batch, source), or others of the encoder's inputs
        returns (batch, target), float32, in nats; 0 for a first token that the search forces, as in its scores
        """
        decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        logits = self(**source, decoder_input_ids=decoder_input_ids, use_cache=False).logits.float()
        chosen = logits.gather(-1, labels[..., None]).squeeze(-1)
        log_probabilities = chosen - logits.logsumexp(dim=-1)
        if repetition_penalty != 1:  # as in `penalise_repetitions` of beam_search.py
            value = chosen if is_greedy else log_probabilities
            penalised = torch.where(value < 0, value * repetition_penalty, value / repetition_penalty)
            is_repeated = (labels[:, :, None] == decoder_input_ids[:, None]).tril().any(dim=2)
            log_probabilities = log_probabilities + is_repeated * (penalised - value)
        if (forced := self.generation_config.forced_bos_token_id) is not None:
            log_probabilities[:, :1].masked_fill_(labels[:, :1] == forced, 0.0)
        return log_probabilities

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> Seq2SeqLMOutput:
        """Compute logits, and the loss if labels are given. Other arguments as in `VaswaniTransformerModel.forward`.

        labels: (batch, target), ending in </s>, -100 at padding; they also give the decoder's input
        label_smoothing (0.0), label_smoothing_spread ("others"), num_items_in_batch: see `label_smoothed_cross_entropy`
        logits_to_keep: number of last positions to compute logits for, or their indices; 0 for all positions
        returns logits: (batch, target, V) and, with labels, the loss
        """
        # Not in the signature, because Trainer treats parameters with "label" in their name as columns of the data set.
        smoothing = kwargs.pop("label_smoothing", 0.0), kwargs.pop("label_smoothing_spread", "others")
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        cache = choose_cache(cache, past_key_values)
        if not is_tracing() and (search := _running_search.get()) is not None and search.model is self:
            search.record_forward(decoder_input_ids, attention_mask, cache)
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = label_smoothed_cross_entropy(logits, labels, *smoothing, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss, logits=logits, **{k: v for k, v in outputs.items() if k != "last_hidden_state"}
        )


__all__ = [
    "VaswaniTransformerForConditionalGeneration",
    "VaswaniTransformerModel",
    "VaswaniTransformerPreTrainedModel",
    "gnmt_length_penalty",
    "label_smoothed_cross_entropy",
    "scaled_dot_product_attention",
    "sinusoidal_positional_encoding",
]
