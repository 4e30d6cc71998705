"""Export `start`, `step` and the cross-attention pass as ONNX graphs with torch.onnx.export."""

import logging
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from onnx import GraphProto, TypeProto
from torch import Tensor, nn
from torch.export import Dim

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.beam_search import Constants, Memory, SearchState, SettingTensors, start, step
from vaswani_transformer.cached_decoder import CachedDecoder
from vaswani_transformer.search_vaswani_transformer import SearchSettings, as_numbers

from .graph_builder import OPSET, type_without_sizes
from .rewrite import simplify

# Sizes of the example inputs, all different: torch.export treats equal sizes as one symbol.
EXAMPLE_BATCH, LIVE, BEAMS, STEPS = 2, 3, 4, 5
SOURCE_LENGTH = 7  # tokens; learned positions must cover at least this many
LONGEST = 57  # tokens of an output; tables by length have 1 or 2 rows more
ROWS_AND_COLUMNS = {0: Dim.AUTO, 1: Dim.AUTO}
# Axes whose sizes vary, by name of the tensor; all axes of tensors that are not listed.
VARYING_AXES = {
    "memory_keys": (0, 2),
    "memory_values": (0, 2),
    "memory_bias": (0, 3),
    "keys": (0, 2),
    "values": (0, 2),
    "bias": (0, 1, 2),
    "positional_encoding": (0,),
    "suppressed": (),
}
Part = Memory | Constants | SearchState
T = TypeVar("T", bound=Part)


class SearchGraphs(NamedTuple):
    """The exported functions, and the names of the tensors that they exchange (see beam_search.py)."""

    start: GraphProto  # outputs: memory, constants and state
    step: GraphProto  # inputs: these and last_index; outputs: the new state and whether to take another step
    cross_attentions: GraphProto | None  # inputs: memory, positional encoding and sequences
    types: dict[str, TypeProto]  # types of the tensors named below; sizes change from step to step
    memory: list[str]
    constants: list[str]
    state: list[str]


class Start(nn.Module):
    """Wrap `start` for export.

    Sizes are passed as tensor lengths, because torch.export supports dynamic sizes but not integer inputs that become
    sizes.
    """

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(
        self, ids: Tensor, mask: Tensor, beams: Tensor, longest: Tensor, initial_live: Tensor, *settings: Tensor
    ):
        sizes = beams.shape[0], longest.shape[0], initial_live.shape[0]
        return start(self.model, ids, mask, SettingTensors(*settings), *sizes)


class Step(nn.Module):
    """Wrap `step` for export. Also return whether to take another step before sentences are dropped."""

    def __init__(self, model: Model):
        super().__init__()
        self.decoder = CachedDecoder(model)

    def forward(
        self,
        memory: Memory,
        constants: Constants,
        state: SearchState,
        last_index: Tensor,
    ):
        after = step(self.decoder, memory, constants, state, last_index)
        # As in `beam_search`: drop sentences when an eighth of the batch is done or one is at its limit.
        an_eighth = (memory.limits.shape[0] + 7) // 8
        return after, (after.done.long().sum() < an_eighth) & (after.length < memory.limits.min())[0]


class CrossAttentions(nn.Module):
    """Decode given translations and return their attention to the source."""

    def __init__(self, model: Model):
        super().__init__()
        self.decoder, self.pad = CachedDecoder(model), model.config.pad_token_id

    def forward(self, memory: Memory, positional_encoding: Tensor, sequences: Tensor) -> Tensor:
        """Return the weights, (batch, layers, heads, length, source), 0 at padding.

        sequences: (batch, 1, length), padded
        """
        tokens = sequences[:, 0]
        decoded = self.decoder.decode_whole(tokens, positional_encoding, memory.keys, memory.values, memory.bias)
        weights = torch.stack(decoded.cross_attentions, dim=1).float()
        return weights.masked_fill((tokens == self.pad)[:, None, None, :, None], 0.0)


def export_search(model: Model, attention: bool, repetition: bool) -> SearchGraphs:
    """Export `start`, `step` and, for attention, `CrossAttentions`.

    repetition: with the settings against repetitions
    """
    ids = torch.full((EXAMPLE_BATCH, SOURCE_LENGTH), 2)
    example = SearchSettings(early_stopping=5, no_repeat_ngram_size=2, repetition_penalty=1.3)
    numbers = as_numbers(example, repetition)
    settings = [torch.tensor(numbers[name]) for name in SettingTensors._fields if name in numbers]
    start_inputs = (ids, torch.ones_like(ids), *map(torch.arange, (BEAMS, LONGEST, LIVE)), *settings)
    sizes = [{0: Dim.AUTO}] * 3
    start_axes = (ROWS_AND_COLUMNS, ROWS_AND_COLUMNS, *sizes, tuple({} for _ in settings))
    last_index = torch.tensor([2])
    parts = make_example_parts(model, start_inputs, last_index)
    # The exporter mishandles views.
    examples: list[Any] = [map_tensors(part, lambda _, tensor: tensor.clone().contiguous()) for part in parts]
    axes: list[Any] = [map_tensors(part, find_varying_axes) for part in parts]
    start_graph = export_module(Start(model), start_inputs, start_axes)
    step_graph = export_module(Step(model), (*examples, last_index), (*axes, {}))
    attention_graph = None
    if attention:
        memory, constants, _ = examples
        attention_graph = export_module(
            CrossAttentions(model),
            (memory, constants.positional_encoding, torch.full((EXAMPLE_BATCH, 1, STEPS), 2)),
            (axes[0], axes[1].positional_encoding, {0: Dim.AUTO, 2: Dim.AUTO}),
        )
    names = [list_names(part) for part in parts]
    *inputs, _ = step_graph.input  # without last_index
    types = dict(zip(chain.from_iterable(names), map(type_without_sizes, inputs), strict=True))
    return SearchGraphs(start_graph, step_graph, attention_graph, types, *names)


def make_example_parts(model: Model, start_inputs: tuple[Tensor, ...], last_index: Tensor) -> tuple[Part, ...]:
    """Search for STEPS steps and return the inputs of the next one, with LIVE live hypotheses."""
    memory, constants, state = Start(model)(*start_inputs)
    take_step = Step(model)
    for _ in range(STEPS):
        state, _ = take_step(memory, constants, state, last_index)
    # As in the first step, fewer live hypotheses than beams.
    slots = state.keys[0].shape[2]
    state = state._replace(
        bias=state.bias[:, :LIVE, : slots + LIVE],
        last_tokens=state.last_tokens[:, :LIVE],
        live_log_probs=state.live_log_probs[:, :LIVE],
        history=[tensor[:, :LIVE] for tensor in state.history],
    )
    return memory, constants, state


def map_tensors(part: T, function: Callable[[str, Tensor], Any]) -> T:
    """Replace each tensor of a part of the search by `function(name, tensor)`."""
    prefix = "memory_" if isinstance(part, Memory) else ""
    return type(part)._make(
        [function(f"{prefix}{field}.{layer}", tensor) for layer, tensor in enumerate(value)]
        if isinstance(value, list)
        else function(prefix + field, value)
        for field, value in part._asdict().items()
    )


def list_names(part: Part) -> list[str]:
    fields: Any = map_tensors(part, lambda name, _: name)
    return [name for field in fields for name in (field if isinstance(field, list) else [field])]


def find_varying_axes(name: str, tensor: Tensor) -> dict[int, Any]:
    """Return the axes of a tensor whose sizes vary, for torch.export, which treats a size of 1 as constant."""
    axes = VARYING_AXES.get(name.partition(".")[0], range(tensor.ndim))
    return {axis: Dim.AUTO for axis in axes if tensor.shape[axis] > 1}


def export_module(module: nn.Module, inputs: tuple, axes: tuple) -> GraphProto:
    """Export a module with torch.onnx.export and simplify the graph;  axes: those of each input whose sizes vary"""
    # Silence notes about missing torchvision, duplicate initializers and empty attributes.
    for name in ("torch.onnx._internal.exporter._registration", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():  # torch 2.13 calls functions that it has deprecated
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        program = torch.onnx.export(
            module.eval(), inputs, dynamo=True, dynamic_shapes=axes, opset_version=OPSET, verbose=False
        )
    assert program is not None
    graph = program.model_proto.graph
    # Remove source paths and memory addresses, so that the same model gives the same file.
    for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    simplify(graph)
    return graph
