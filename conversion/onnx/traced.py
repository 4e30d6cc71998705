"""Export the two functions of the search, and the decoder of whole translations, as ONNX graphs of their own."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from onnx import GraphProto
from torch import Tensor, nn
from torch.export import Dim

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.beam_search import (
    MASKED,
    BatchConstants,
    Constants,
    Memory,
    SearchState,
    initial_hypotheses,
    start,
    step,
)
from vaswani_transformer.cached_decoder import CachedDecoder
from vaswani_transformer.text_translator import LOOKAHEAD, NO_MAXIMUM

from .graph_surgery import OPSET
from .simplify import simplify

EXAMPLE_LENGTH = 7  # source tokens of the traced example: learned positions must be as many
TALKATIVE = ("torch.onnx._internal.exporter._registration", "onnx_ir.passes.common.initializer_deduplication")


T = TypeVar("T", bound=Memory | BatchConstants | Constants | SearchState)


class Names(NamedTuple):
    """The names of the tensors between `start` and `step`, in the order of their outputs and inputs."""

    memory: list[str]
    batch_constants: list[str]
    constants: list[str]
    state: list[str]


class SearchGraphs(NamedTuple):
    """The exported functions.

    start: its outputs are `names`
    step: its inputs are `names` and last_wanted; its outputs the new state and whether to take another
        step before sentences leave the batch
    cross_attentions: its inputs are the memory, the positions and the sequences
    """

    start: GraphProto
    step: GraphProto
    names: Names
    cross_attentions: GraphProto | None


class Start(nn.Module):
    """`start`, with the lengths of tensors for the numbers of hypotheses, since these become sizes."""

    def __init__(self, model: Model, offset: int):
        super().__init__()
        self.model, self.offset = model, offset

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        beams: Tensor,
        initial_live: Tensor,
        length_penalty: Tensor,
        lookahead: Tensor,
        min_length: Tensor,
        max_length: Tensor,
    ):
        settings = self.offset, beams.shape[0], length_penalty, lookahead, min_length, max_length
        return start(self.model, input_ids, attention_mask, *settings, initial_live.shape[0])


class Step(nn.Module):
    """`step`, and whether to take another one before sentences leave the batch."""

    def __init__(self, model: Model):
        super().__init__()
        self.decoder = CachedDecoder(model)

    def forward(
        self,
        memory: Memory,
        batch_constants: BatchConstants,
        constants: Constants,
        state: SearchState,
        last_wanted: Tensor,
    ):
        after = step(self.decoder, memory, batch_constants, constants, state, last_wanted)
        # As in `beam_search`: sentences leave when an eighth of the batch is done or one is at its limit.
        an_eighth = (batch_constants.padding.shape[0] + 7) // 8
        return after, (after.done.long().sum() < an_eighth) & (after.length < memory.limits.min())[0]


class CrossAttentions(nn.Module):
    """The weights with which the tokens of given translations attend to their sources."""

    def __init__(self, model: Model):
        super().__init__()
        self.decoder, self.config = CachedDecoder(model), model.config

    def forward(self, memory: Memory, positions: Tensor, sequences: Tensor) -> Tensor:
        """sequences: (batch, 1, length), padded;  returns (batch, layers, heads, length, source), 0 at padding"""
        tokens = sequences[:, 0]
        start_tokens = torch.full_like(tokens[:, :1], self.config.decoder_start_token_id)
        inputs = torch.cat((start_tokens, tokens[:, :-1]), dim=1)
        places = torch.arange(tokens.shape[1])
        causal = ((places[:, None] < places).float() * MASKED)[None]
        encoding = positions.index_select(0, places)
        decoded = self.decoder(inputs, encoding, [], [], causal, memory.keys, memory.values, memory.bias)
        weights = torch.stack(decoded.cross_attentions, dim=1).float()
        return weights.masked_fill((tokens == self.config.pad_token_id)[:, None, None, :, None], 0.0)


def source_length_offset(model: Model) -> int:
    """Return the output tokens beyond the source's, 50 as in the paper unless the generation config says otherwise."""
    offset = getattr(model.generation_config, "max_source_length_offset", None)
    return 50 if offset is None else offset


def search_graphs(model: Model, attention: bool) -> SearchGraphs:
    """Export `start`, `step` and, for attention, `CrossAttentions`."""
    # No two sizes are equal, or torch takes one for the other.
    batch, live, beams, length, source = 2, 3, 4, 5, EXAMPLE_LENGTH
    input_ids = torch.full((batch, source), 2)
    mask = torch.ones_like(input_ids)
    numbers = 0.6, LOOKAHEAD, 0, NO_MAXIMUM, [2]
    alpha, lookahead, min_length, most, last_wanted = (torch.tensor(number) for number in numbers)
    start_graph = exported_graph(
        Start(model, source_length_offset(model)),
        (input_ids, mask, torch.arange(beams), torch.arange(live), alpha, lookahead, min_length, most),
        ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}, {0: Dim.AUTO}, {}, {}, {}, {}),
    )
    initial_live = initial_hypotheses(beams, model.lm_head.weight.shape[0])
    memory, batch_constants, constants, state = start(
        model, input_ids, mask, 50, beams, alpha, lookahead, min_length, initial_live=initial_live
    )
    decoder = CachedDecoder(model)
    for _ in range(length):
        state = step(decoder, memory, batch_constants, constants, state, last_wanted)
    # As in the first step, fewer live hypotheses than beams.
    slots = state.keys[0].shape[2]
    state = state._replace(
        bias=state.bias[:, :live, : slots + live],
        last_tokens=state.last_tokens[:, :live],
        live_scores=state.live_scores[:, :live],
    )
    parts = (described(part, model) for part in (memory, batch_constants, constants, state))
    names, example, shapes = zip(*parts, strict=True)
    step_graph = exported_graph(Step(model), (*example, last_wanted), (*shapes, {}))
    return SearchGraphs(start_graph, step_graph, Names(*names), cross_attention_graph(model) if attention else None)


def cross_attention_graph(model: Model) -> GraphProto:
    input_ids, sequences = torch.full((2, EXAMPLE_LENGTH), 2), torch.full((2, 1, 5), 2)
    alpha, lookahead, min_length = (torch.tensor(number) for number in (0.6, LOOKAHEAD, 0))
    memory, _, constants, _ = start(model, input_ids, torch.ones_like(input_ids), 50, 3, alpha, lookahead, min_length)
    _, known, memory_axes = described(memory, model)
    _, example, axes = described(constants, model)
    return exported_graph(
        CrossAttentions(model),
        (known, example.positions, sequences),
        (memory_axes, axes.positions, {0: Dim.AUTO, 2: Dim.AUTO}),
    )


def described(part: T, model: Model) -> tuple[list[str], T, T]:
    """Return the names of a part's tensors, an example of each, and in its place the axes without a fixed size."""
    is_memory = isinstance(part, Memory)
    changing = {
        "keys": (0, 2),
        "values": (0, 2),
        "bias": (0, 3) if is_memory else (0, 1, 2),
        "suppressed": (),
        "positions": () if model.config.position_embedding_type == "learned" else (0,),
    }
    names, examples, axes = [], [], []
    for field, value in zip(part._fields, part, strict=True):
        tensors = value if isinstance(value, list) else [value]
        name = f"memory_{field}" if is_memory else field
        names += [f"{name}.{layer}" for layer in range(len(tensors))] if isinstance(value, list) else [name]
        # Views of other tensors confuse the exporter, and it takes a size of 1 as fixed.
        copies = [tensor.clone().contiguous() for tensor in tensors]
        free = [
            {axis: Dim.AUTO for axis in changing.get(field, range(tensor.ndim)) if tensor.shape[axis] > 1}
            for tensor in tensors
        ]
        examples.append(copies if isinstance(value, list) else copies[0])
        axes.append(free if isinstance(value, list) else free[0])
    return names, type(part)._make(examples), type(part)._make(axes)


@contextmanager
def eager_attention(model: Model) -> Iterator[None]:
    """Compute attention as Equation (1) is written, and restore the model's implementation afterwards."""
    implementation = model.config._attn_implementation or "eager"
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


def exported_graph(module: nn.Module, arguments: tuple, dynamic_shapes: tuple) -> GraphProto:
    """Export a module with torch's exporter, simplified and without traces of this machine."""
    # These loggers report that torchvision is missing and which constants are duplicates.
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():  # torch 2.13 itself uses what it deprecates
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            program = torch.onnx.export(
                module.eval(), arguments, dynamo=True, dynamic_shapes=dynamic_shapes, opset_version=OPSET, verbose=False
            )
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    assert program is not None
    graph = program.model_proto.graph
    # The metadata has source files and memory addresses: without it the same model gives the same file.
    for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    simplify(graph)
    return graph
