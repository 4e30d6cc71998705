"""Encoder and decoder as separate graphs, under Optimum's names, for runtimes that bring their own search.

encoder_model.onnx             input_ids, attention_mask -> last_hidden_state
decoder_model.onnx             input_ids, encoder_hidden_states, encoder_attention_mask -> logits, present.*
decoder_with_past_model.onnx   input_ids, encoder_attention_mask, past_key_values.* -> logits, present.*.decoder.*
decoder_model_merged.onnx      both decoders; `use_cache_branch` chooses one

On request decoder_model.onnx has the outputs cross_attentions.* as well: one call with a complete translation gives
the weights with which each of its tokens attends to the source.
"""

from itertools import chain

import numpy as np
import torch
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper
from torch import Tensor, nn
from torch.export import Dim

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.beam_search import MASKED
from vaswani_transformer.cached_decoder import CachedDecoder, Decoded, memory_keys_and_values

from .graph_builder import GraphBuilder, tensor_type
from .subgraphs import remove_unused
from .torch_export import EXAMPLE_LENGTH, ROWS_AND_COLUMNS, eager_attention, exported_graph

FILES = ("encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged")
ENCODER_INPUTS = ["input_ids", "attention_mask"]
FIRST_INPUTS = ["input_ids", "encoder_hidden_states", "encoder_attention_mask"]
NEXT_INPUTS = ["input_ids", "encoder_attention_mask"]


class Encoder(nn.Module):
    def __init__(self, model: Model):
        super().__init__()
        self.encoder = model.model.encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class FirstDecoder(nn.Module):
    """The decoder without a cache.

    attention: also return the weights of the attention to the source;  end: see `export_split`
    """

    def __init__(self, model: Model, attention: bool = False, end: int | None = None):
        super().__init__()
        self.decoder, self.attention, self.end = CachedDecoder(model), attention, end

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor, encoder_attention_mask: Tensor):
        """returns the logits, then per layer self keys, self values, cross keys, cross values, then the weights"""
        memory = memory_keys_and_values(self.decoder.decoder, encoder_hidden_states)
        decoded = decode(self.decoder, input_ids, ([], [], *memory), encoder_attention_mask, self.end)
        cache = zip(decoded.keys, decoded.values, *memory, strict=True)
        return decoded.logits, *chain(*cache), *(decoded.cross_attentions if self.attention else [])


class NextDecoder(nn.Module):
    """The decoder with a cache. It returns the self keys and values only: those of the memory do not change."""

    def __init__(self, model: Model, end: int | None = None):
        super().__init__()
        self.decoder, self.end = CachedDecoder(model), end

    def forward(self, input_ids: Tensor, encoder_attention_mask: Tensor, past: list[Tensor]):
        parts = past[::4], past[1::4], past[2::4], past[3::4]
        decoded = decode(self.decoder, input_ids, parts, encoder_attention_mask, self.end)
        return decoded.logits, *chain(*zip(decoded.keys, decoded.values, strict=True))


def decode(
    decoder: CachedDecoder,
    tokens: Tensor,
    past: tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]],
    source_mask: Tensor,
    end: int | None,
) -> Decoded:
    """Decode tokens (batch, target) after those in the cache.

    past: keys and values of earlier tokens, and those of the memory, see `CachedDecoder`
    end: after this token only itself can follow
    """
    keys, values, memory_keys, memory_values = past
    start, target = keys[0].shape[2] if keys else 0, tokens.shape[1]
    places = torch.arange(target) + start
    causal = (torch.arange(target + start)[None, :] <= places[:, None])[None]  # (1, target, past + target)
    encoding = decoder.decoder.positional_encoding(start, target, tokens.device)
    allowed = source_mask.bool()[:, None, None]
    decoded = decoder(tokens, encoding, keys, values, causal, memory_keys, memory_values, allowed)
    if end is None:
        return decoded
    again = torch.full_like(decoded.logits[:1, :1], MASKED).index_fill(2, torch.tensor([end]), 0.0)
    return decoded._replace(logits=torch.where((tokens == end)[:, :, None], again, decoded.logits))


@torch.no_grad()
def export_split(model: Model, attention: bool = False, end: int | None = None) -> dict[str, ModelProto]:
    """Export the four graphs; returns them by name, without `.onnx`.

    attention: decoder_model has the outputs cross_attentions.0, ..., per layer, (batch, heads, target, source)
    end: a token that repeats itself, for a search that keeps decoding finished sentences
    """
    layers = model.config.decoder_layers
    present, past = cache_names("present", layers), cache_names("past_key_values", layers)
    of_self = [name for name in present if ".decoder." in name]
    weights = [f"cross_attentions.{layer}" for layer in range(layers)] if attention else []
    with eager_attention(model):
        encoder, first, after = traced_graphs(model, attention, end)
    # `alone` renames the graphs in place: the merged file gets copies.
    merged_first, merged_next = GraphProto(), GraphProto()
    merged_first.CopyFrom(first)
    merged_next.CopyFrom(after)
    del merged_first.output[1 + len(present) :]
    remove_unused(merged_first)
    return {
        "encoder_model": alone(encoder, "encoder", ENCODER_INPUTS, ["last_hidden_state"]),
        "decoder_model": alone(first, "decoder", FIRST_INPUTS, ["logits", *present, *weights]),
        "decoder_with_past_model": alone(after, "decoder_with_past", [*NEXT_INPUTS, *past], ["logits", *of_self]),
        "decoder_model_merged": merged(merged_first, merged_next, past, present),
    }


def cache_names(prefix: str, layers: int) -> list[str]:
    parts = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
    return [f"{prefix}.{layer}.{part}" for layer in range(layers) for part in parts]


def traced_graphs(model: Model, attention: bool, end: int | None) -> tuple[GraphProto, GraphProto, GraphProto]:
    """Export encoder and decoders;  arguments as in `export_split`"""
    ids, mask = torch.full((2, EXAMPLE_LENGTH), 2), torch.ones(2, EXAMPLE_LENGTH, dtype=torch.long)
    tokens, earlier_tokens = torch.full((2, 3), 2), torch.full((2, 5), 2)
    encoder, first, after = Encoder(model), FirstDecoder(model, attention, end), NextDecoder(model, end)
    memory = encoder(ids, mask).clone()
    past = [tensor.clone().contiguous() for tensor in FirstDecoder(model)(earlier_tokens, memory, mask)[1:]]
    both = ROWS_AND_COLUMNS
    return (
        exported_graph(encoder, (ids, mask), (both, both)),
        exported_graph(first, (tokens, memory, mask), (both, both, both)),
        exported_graph(after, (tokens, mask, past), (both, both, [{0: Dim.AUTO, 2: Dim.AUTO} for _ in past])),
    )


def alone(graph: GraphProto, name: str, inputs: list[str], outputs: list[str]) -> ModelProto:
    """Return a file with one graph."""
    op = GraphBuilder(f"{name}.")
    op.inline(graph, f"{name}.", inputs, outputs)
    return op.model(name, map(with_free_sizes, graph.input), map(with_free_sizes, graph.output))


def merged(first: GraphProto, after: GraphProto, past: list[str], present: list[str]) -> ModelProto:
    """Return one If around both decoders. Without the cache the past is not read and may have length 0."""
    outputs = ["logits", *present]
    of_self = [name for name in outputs if ".encoder." not in name]
    kinds = [value.type.tensor_type for value in first.output]
    types = {name: tensor_type(kind.elem_type, len(kind.shape.dim)) for name, kind in zip(outputs, kinds, strict=True)}
    op = GraphBuilder("merged.")
    without, with_past = GraphBuilder("first.", op), GraphBuilder("next.", op)
    # The weights are in the graph around both branches.
    without.inline(first, "first.", FIRST_INPUTS, [f"first.{name}" for name in outputs], owner=op)
    with_past.inline(after, "next.", [*NEXT_INPUTS, *past], [f"next.{name}" for name in of_self], owner=op)
    for old, new in zip(past, present, strict=True):
        if ".encoder." in new:
            with_past.Identity(old, name=f"next.{new}")
    node = helper.make_node(
        "If",
        [op.Reshape("use_cache_branch", np.array([], np.int64))],
        outputs,
        then_branch=with_past.graph({f"next.{name}": type for name, type in types.items()}),
        else_branch=without.graph({f"first.{name}": type for name, type in types.items()}),
    )
    op.nodes.append(node)
    by_name = {value.name: value for value in (*first.input, *after.input)}
    inputs = ["encoder_attention_mask", "input_ids", "encoder_hidden_states", *past]
    values = [with_free_sizes(by_name[name]) for name in inputs]
    values.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    results = [ValueInfoProto(name=name, type=type) for name, type in types.items()]
    return op.model("decoder_merged", values, results)


def with_free_sizes(value: ValueInfoProto) -> ValueInfoProto:
    """Return a graph's input or output: sizes that are numbers stay, the others are free."""
    tensor = value.type.tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
    return helper.make_tensor_value_info(value.name, tensor.elem_type, sizes)
