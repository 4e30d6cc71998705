"""Encoder and decoder as graphs of their own, under Optimum's names: for runtimes that bring their own search.

encoder_model.onnx             input_ids, attention_mask -> last_hidden_state
decoder_model.onnx             input_ids, encoder_hidden_states, encoder_attention_mask -> logits, present.*
decoder_with_past_model.onnx   input_ids, encoder_attention_mask, past_key_values.* -> logits, present.*.decoder.*
decoder_model_merged.onnx      both decoders and `use_cache_branch`, which says the one

On demand decoder_model.onnx gives cross_attentions.* as well: given a whole translation, whoever found it, one call
says which source tokens each of its tokens attended to.
"""

from typing import Any

import numpy as np
import torch
from onnx import GraphProto, ModelProto, TensorProto, helper
from torch import Tensor, nn
from torch.export import Dim

from vaswani_transformer.modeling_vaswani_transformer import (
    VaswaniTransformerForConditionalGeneration,
    scaled_dot_product_attention,
    split_heads,
)

from .shapes import remove_unread
from .single_graph import EXAMPLE_LENGTH, OPSET, Weights, exported_graph, renamed

FILES = ("encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged")


class Encoder(nn.Module):
    def __init__(self, model: VaswaniTransformerForConditionalGeneration):
        super().__init__()
        self.encoder = model.model.encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Decoder(nn.Module):
    """The decoder with its cache as a flat list: of each layer self keys, self values, cross keys, cross values."""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration):
        super().__init__()
        self.decoder, self.lm_head = model.model.decoder, model.lm_head

    def decode(self, input_ids: Tensor, mask: Tensor, memory: Tensor | None, past: list[Tensor]):
        """input_ids: (batch, target), the first of them after the past's;  memory: for the first call

        returns the logits, the cache, and the weights of the attention to the memory, a layer each, (batch, heads,
            target, source)
        """
        before = past[0].shape[2] if past else 0
        position = torch.arange(input_ids.shape[1]) + before
        may_attend = torch.arange(input_ids.shape[1] + before)[None, :] <= position[:, None]  # (target, past + target)
        source_mask = mask.bool()[:, None, None]
        present: list[Tensor] = []
        attended: list[Tensor] = []

        def attend(attention, states: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
            present.extend((keys, values))
            query = split_heads(attention.q_proj(states), attention.d_k)
            output, weights = scaled_dot_product_attention(query, keys, values, allowed, scaling=attention.scaling)
            if allowed is source_mask:
                attended.append(weights.float())
            return attention.out_proj(output.transpose(1, 2).flatten(2))

        def self_attention(attention, states: Tensor, i: int) -> Tensor:
            keys, values = keys_and_values(attention, states)
            if past:
                keys, values = torch.cat((past[4 * i], keys), dim=2), torch.cat((past[4 * i + 1], values), dim=2)
            return attend(attention, states, keys, values, may_attend)

        def cross_attention(attention, states: Tensor, i: int) -> Tensor:
            keys, values = (past[4 * i + 2], past[4 * i + 3]) if memory is None else keys_and_values(attention, memory)
            return attend(attention, states, keys, values, source_mask)

        decoder: Any = self.decoder
        hidden = decoder.embed(input_ids, None, start=before)
        for i, layer in enumerate(decoder.layers):
            hidden = layer.add_and_norm(
                hidden, layer.self_attn_norm, lambda x, layer=layer, i=i: self_attention(layer.self_attn, x, i)
            )
            hidden = layer.add_and_norm(
                hidden, layer.cross_attn_norm, lambda x, layer=layer, i=i: cross_attention(layer.cross_attn, x, i)
            )
            hidden = layer.add_and_norm(hidden, layer.feed_forward_norm, layer.feed_forward)
        return self.lm_head(decoder.final_norm(hidden)).float(), present, attended


class FirstDecoder(Decoder):
    """attention: the weights of the attention to the memory, too"""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration, attention: bool = False):
        super().__init__(model)
        self.attention = attention

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor, encoder_attention_mask: Tensor):
        logits, present, attended = self.decode(input_ids, encoder_attention_mask, encoder_hidden_states, [])
        return logits, *present, *(attended if self.attention else [])


class NextDecoder(Decoder):
    """Gives back its own keys and values only: those of the memory do not change."""

    def forward(self, input_ids: Tensor, encoder_attention_mask: Tensor, past: list[Tensor]):
        logits, present, _ = self.decode(input_ids, encoder_attention_mask, None, past)
        return logits, *(tensor for i, tensor in enumerate(present) if i % 4 < 2)


def keys_and_values(attention, states: Tensor) -> tuple[Tensor, Tensor]:
    return split_heads(attention.k_proj(states), attention.d_k), split_heads(attention.v_proj(states), attention.d_v)


@torch.no_grad()
def export_split(model: VaswaniTransformerForConditionalGeneration, attention: bool = False) -> dict[str, ModelProto]:
    """The four graphs by name, without `.onnx`.

    attention: decoder_model has the outputs cross_attentions.0, ..., a layer each, (batch, heads, target, source)
    """
    implementation = model.config._attn_implementation or "eager"
    model.set_attn_implementation("eager")
    try:
        encoder, first, after = export_three(model, attention)
    finally:
        model.set_attn_implementation(implementation)
    layers, kind = model.config.decoder_layers, model.dtype
    states = {"last_hidden_state": ("batch", "source", "d_model")}
    named = "input_ids", "attention_mask"
    graphs = {"encoder_model": alone(encoder, "encoder", list(named), list(states))}
    present = names("present", layers)
    own = [name for name in present if ".decoder." in name]
    past = names("past_key_values", layers)
    first_inputs = ["input_ids", "encoder_hidden_states", "encoder_attention_mask"]
    next_inputs = ["input_ids", "encoder_attention_mask", *past]
    # The merged graph takes both apart: it comes from copies.
    merged_first, merged_next = GraphProto(), GraphProto()
    merged_first.CopyFrom(first)
    weights = [f"cross_attentions.{layer}" for layer in range(layers)] if attention else []
    del merged_first.output[1 + len(present) :]
    remove_unread(merged_first)
    merged_next.CopyFrom(after)
    graphs["decoder_model"] = alone(first, "decoder", first_inputs, ["logits", *present, *weights])
    graphs["decoder_with_past_model"] = alone(after, "decoder_with_past", next_inputs, ["logits", *own])
    graphs["decoder_model_merged"] = merged(merged_first, merged_next, first_inputs, past, present, kind)
    return graphs


def names(prefix: str, layers: int) -> list[str]:
    return [
        f"{prefix}.{layer}.{part}.{what}"
        for layer in range(layers)
        for part in ("decoder", "encoder")
        for what in ("key", "value")
    ]


def export_three(
    model: VaswaniTransformerForConditionalGeneration, attention: bool
) -> tuple[GraphProto, GraphProto, GraphProto]:
    batch, source, target = 2, EXAMPLE_LENGTH, 3
    ids, mask = torch.full((batch, source), 2), torch.ones(batch, source, dtype=torch.long)
    both = {0: Dim.AUTO, 1: Dim.AUTO}
    encoder = exported_graph(Encoder(model), (ids, mask), (both, both))
    memory = Encoder(model)(ids, mask).clone()
    tokens = torch.full((batch, target), 2)
    first = exported_graph(FirstDecoder(model, attention), (tokens, memory, mask), (both, both, both))
    past = [tensor.clone().contiguous() for tensor in FirstDecoder(model)(torch.full((batch, 5), 2), memory, mask)[1:]]
    after = exported_graph(
        NextDecoder(model), (tokens, mask, past), (both, both, [{0: Dim.AUTO, 2: Dim.AUTO}] * len(past))
    )
    return encoder, first, after


def alone(graph: GraphProto, name: str, inputs: list[str], outputs: list[str]) -> ModelProto:
    renamed(graph, f"{name}.", inputs, outputs)
    weights = Weights()
    nodes = weights.taken_from(graph)
    return model_of(
        helper.make_graph(
            nodes,
            name,
            [described(value) for value in graph.input],
            [described(value) for value in graph.output],
            initializer=weights.tensors(),
        )
    )


def merged(
    first: GraphProto,
    after: GraphProto,
    first_inputs: list[str],
    past: list[str],
    present: list[str],
    kind: torch.dtype,
) -> ModelProto:
    """One If around both decoders; in its first branch the past is not looked at and may be of length 0."""
    renamed(first, "first.", first_inputs, [f"first.{name}" for name in ("logits", *present)])
    own = [name for name in present if ".decoder." in name]
    renamed(
        after, "next.", ["input_ids", "encoder_attention_mask", *past], [f"next.{name}" for name in ("logits", *own)]
    )
    weights = Weights()
    first_nodes, next_nodes = weights.taken_from(first), weights.taken_from(after)
    for old, new in zip(past, present, strict=True):
        if ".encoder." in new:
            next_nodes.append(helper.make_node("Identity", [old], [f"next.{new}"]))
    float_type = TensorProto.FLOAT16 if kind == torch.float16 else TensorProto.FLOAT
    kinds = {"logits": (TensorProto.FLOAT, 3)} | {name: (float_type, 4) for name in present}

    def branch(prefix: str, nodes: list) -> GraphProto:
        outputs = [
            helper.make_tensor_value_info(f"{prefix}.{name}", element, [None] * rank)
            for name, (element, rank) in kinds.items()
        ]
        return helper.make_graph(nodes, prefix, [], outputs)

    by_name = {value.name: value for value in (*first.input, *after.input)}
    use_cache = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    scalar = weights.constant(np.array([], np.int64))
    nodes = [
        helper.make_node("Reshape", ["use_cache_branch", scalar], ["use_cache"]),
        helper.make_node(
            "If",
            ["use_cache"],
            ["logits", *present],
            then_branch=branch("next", next_nodes),
            else_branch=branch("first", first_nodes),
        ),
    ]
    inputs = ["encoder_attention_mask", "input_ids", "encoder_hidden_states", *past]
    outputs = [helper.make_tensor_value_info(name, element, [None] * rank) for name, (element, rank) in kinds.items()]
    return model_of(
        helper.make_graph(
            nodes,
            "decoder_merged",
            [*(described(by_name[name]) for name in inputs), use_cache],
            outputs,
            initializer=weights.tensors(),
        )
    )


def described(value):
    """A graph's input or output: sizes that are numbers stay, the others are free."""
    tensor = value.type.tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
    return helper.make_tensor_value_info(value.name, tensor.elem_type, sizes)


def model_of(graph: GraphProto) -> ModelProto:
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10, producer_name="vaswani-transformer")
