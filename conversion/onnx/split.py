"""Encoder and decoder as separate graphs, under Optimum's names, for runtimes that implement their own search.

encoder_model.onnx             input_ids, attention_mask -> last_hidden_state
decoder_model.onnx             input_ids, encoder_hidden_states, encoder_attention_mask -> logits, present.*
decoder_with_past_model.onnx   input_ids, encoder_attention_mask, past_key_values.* -> logits, present.*.decoder.*
decoder_model_merged.onnx      both decoders; `use_cache_branch` selects one

With `attention=True`, decoder_model.onnx also has the outputs cross_attentions.*: one call with a complete translation
returns the attention of each of its tokens to the source.
"""

import copy
from itertools import chain

import numpy as np
import torch
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper
from torch import Tensor, nn
from torch.export import Dim

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.attention_maps import eager_copy
from vaswani_transformer.beam_search import MASKED
from vaswani_transformer.cached_decoder import CachedDecoder, Decoded, memory_keys_and_values

from .graph_builder import GraphBuilder, type_without_sizes
from .rewrite import remove_unused
from .torch_export import ROWS_AND_COLUMNS, SOURCE_LENGTH, export_module

# Lengths of the example inputs, all different: torch.export treats equal sizes as one symbol.
TARGET_LENGTH, PAST_LENGTH = 3, 5

FILES = ("encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged")
ENCODER_INPUTS = ["input_ids", "attention_mask"]
FIRST_INPUTS = ["input_ids", "encoder_hidden_states", "encoder_attention_mask"]
NEXT_INPUTS = ["input_ids", "encoder_attention_mask"]


class FirstDecoder(nn.Module):
    """The decoder without a cache.

    attention: also return the attention to the source;  end: see `export_split`
    """

    def __init__(self, model: Model, attention: bool = False, end: int | None = None):
        super().__init__()
        self.decoder, self.attention, self.end = CachedDecoder(model), attention, end

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor, encoder_attention_mask: Tensor):
        """Return logits; per layer self keys, self values, cross keys and cross values; attention weights."""
        memory = memory_keys_and_values(self.decoder.decoder, encoder_hidden_states)
        decoded = decode(self.decoder, input_ids, ([], [], *memory), encoder_attention_mask, self.end)
        cache = zip(decoded.keys, decoded.values, *memory, strict=True)
        return decoded.logits, *chain(*cache), *(decoded.cross_attentions if self.attention else [])


class NextDecoder(nn.Module):
    """The decoder with a cache. It returns only self-attention keys and values: those of the memory do not change."""

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

    past: keys and values of earlier tokens, and those of the memory (see `CachedDecoder`)
    end: after this token, predict only the token itself; None to disable
    """
    keys, values, memory_keys, memory_values = past
    start, target = keys[0].shape[2] if keys else 0, tokens.shape[1]
    positions = torch.arange(target) + start
    causal = (torch.arange(target + start)[None, :] <= positions[:, None])[None]  # (1, target, past + target)
    encoding = decoder.decoder.positional_encoding(start, target, tokens.device)
    allowed = source_mask.bool()[:, None, None]
    decoded = decoder(tokens, encoding, keys, values, causal, memory_keys, memory_values, allowed)
    if end is None:
        return decoded
    only_end = torch.full_like(decoded.logits[:1, :1], MASKED).index_fill(2, torch.tensor([end]), 0.0)
    return decoded._replace(logits=torch.where((tokens == end)[:, :, None], only_end, decoded.logits))


@torch.no_grad()
def export_split(model: Model, attention: bool, end: int | None) -> dict[str, ModelProto]:
    """Export the four graphs and return them by file name without `.onnx`.

    attention: add an output cross_attentions.N per layer to decoder_model, (batch, heads, target, source)
    end: a token after which only itself is predicted, for searches that keep decoding finished sentences
    """
    layers = model.config.decoder_layers
    present, past = cache_names("present", layers), cache_names("past_key_values", layers)
    self_attention_cache = [name for name in present if ".decoder." in name]
    weights = [f"cross_attentions.{layer}" for layer in range(layers)] if attention else []
    encoder, decoder, decoder_with_past = export_modules(eager_copy(model), attention, end)
    # Copies, because building a model renames its graphs in place. The merged file has no attention weights.
    first_branch, next_branch = copy.deepcopy(decoder), copy.deepcopy(decoder_with_past)
    del first_branch.output[1 + len(present) :]
    remove_unused(first_branch)
    next_inputs, next_outputs = [*NEXT_INPUTS, *past], ["logits", *self_attention_cache]
    return {
        "encoder_model": single_model(encoder, "encoder", ENCODER_INPUTS, ["last_hidden_state"]),
        "decoder_model": single_model(decoder, "decoder", FIRST_INPUTS, ["logits", *present, *weights]),
        "decoder_with_past_model": single_model(decoder_with_past, "decoder_with_past", next_inputs, next_outputs),
        "decoder_model_merged": merge_decoders(first_branch, next_branch, past, present),
    }


def cache_names(prefix: str, layers: int) -> list[str]:
    parts = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
    return [f"{prefix}.{layer}.{part}" for layer in range(layers) for part in parts]


def export_modules(model: Model, attention: bool, end: int | None) -> tuple[GraphProto, GraphProto, GraphProto]:
    """Export encoder, decoder and decoder with past; arguments as in `export_split`."""
    ids, mask = torch.full((2, SOURCE_LENGTH), 2), torch.ones(2, SOURCE_LENGTH, dtype=torch.long)
    tokens, earlier_tokens = torch.full((2, TARGET_LENGTH), 2), torch.full((2, PAST_LENGTH), 2)
    encoder, decoder, next_decoder = model.model.encoder, FirstDecoder(model, attention, end), NextDecoder(model, end)
    memory = encoder(ids, mask).last_hidden_state.clone()
    _, *cache = FirstDecoder(model)(earlier_tokens, memory, mask)
    past = [tensor.clone().contiguous() for tensor in cache]  # the exporter mishandles views
    past_axes = [{0: Dim.AUTO, 2: Dim.AUTO} for _ in past]
    return (
        export_module(encoder, (ids, mask), (ROWS_AND_COLUMNS,) * 2),
        export_module(decoder, (tokens, memory, mask), (ROWS_AND_COLUMNS,) * 3),
        export_module(next_decoder, (tokens, mask, past), (ROWS_AND_COLUMNS, ROWS_AND_COLUMNS, past_axes)),
    )


def single_model(graph: GraphProto, name: str, inputs: list[str], outputs: list[str]) -> ModelProto:
    """Return a model of one graph with these names of inputs and outputs."""
    op = GraphBuilder(f"{name}.")
    op.inline(graph, f"{name}.", inputs, outputs)
    return op.model(name, map(with_free_sizes, graph.input), map(with_free_sizes, graph.output))


def merge_decoders(
    decoder: GraphProto, decoder_with_past: GraphProto, past: list[str], present: list[str]
) -> ModelProto:
    """Return one model whose If node selects a decoder. The first ignores the cache, which may have length 0.

    past, present: names of the cache as input and output, in the same order
    """
    outputs = ["logits", *present]
    next_outputs = [name for name in outputs if ".encoder." not in name]
    types = dict(zip(outputs, map(type_without_sizes, decoder.output), strict=True))
    op = GraphBuilder("merged.")
    first, after = GraphBuilder("first.", op), GraphBuilder("next.", op)
    # The branches share the weights of the graph around them.
    first_names, next_names = [f"first.{name}" for name in outputs], [f"next.{name}" for name in next_outputs]
    first.inline(decoder, "first.", FIRST_INPUTS, first_names, initializer_graph=op)
    after.inline(decoder_with_past, "next.", [*NEXT_INPUTS, *past], next_names, initializer_graph=op)
    for old, new in zip(past, present, strict=True):
        if ".encoder." in new:
            after.Identity(old, name=f"next.{new}")
    node = helper.make_node(
        "If",
        [op.Reshape("use_cache_branch", np.array([], np.int64))],
        outputs,
        then_branch=after.graph({f"next.{name}": type for name, type in types.items()}),
        else_branch=first.graph({f"first.{name}": type for name, type in types.items()}),
    )
    op.nodes.append(node)
    by_name = {value.name: value for value in (*decoder.input, *decoder_with_past.input)}
    inputs = ["encoder_attention_mask", "input_ids", "encoder_hidden_states", *past]
    values = [with_free_sizes(by_name[name]) for name in inputs]
    values.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    results = [ValueInfoProto(name=name, type=type) for name, type in types.items()]
    return op.model("decoder_merged", values, results)


def with_free_sizes(value: ValueInfoProto) -> ValueInfoProto:
    """Return an input or output with the same fixed sizes, and without names of the other sizes."""
    tensor = value.type.tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
    return helper.make_tensor_value_info(value.name, tensor.elem_type, sizes)
