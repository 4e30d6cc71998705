"""Encoder, cached decoder and beam search as one ONNX graph of standard operators.

    input_ids, attention_mask, num_beams, max_length, length_penalty, min_length  ->  sequences, scores

`start` and `step` of `vaswani_transformer.beam_search` are exported as they stand and joined by a Loop; every weight
is stored once, outside the loop.
"""

import hashlib
import logging
import warnings
from collections.abc import Iterable

import numpy as np
import onnx
import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.export import Dim

from vaswani_transformer.beam_search import Memory, Search, start, step
from vaswani_transformer.modeling_vaswani_transformer import (
    NO_HYPOTHESIS,
    VaswaniTransformerForConditionalGeneration,
)

OPSET = 20
SETTINGS = ("num_beams", "max_length", "length_penalty", "min_length")  # inputs with defaults
NO_MAXIMUM = 1_000_000  # max_length that is none
# Smaller tensors are constants of the operators, not weights.
SMALLEST_WEIGHT = 1024


class Start(nn.Module):
    """`start` with tensors in and out; the number of beams is a length, since shapes are made of it."""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration, offset: int):
        super().__init__()
        self.model, self.offset = model, offset

    def forward(self, input_ids: Tensor, attention_mask: Tensor, beams: Tensor, max_length: Tensor):
        memory, search = start(self.model, input_ids, attention_mask, self.offset, beams.shape[0], max_length)
        return (*flat(memory), *flat(search))


class Step(nn.Module):
    """`step` with lists of tensors in and out."""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration):
        super().__init__()
        self.model = model

    def forward(self, memory: list[Tensor], search: list[Tensor], alpha: Tensor, min_length: Tensor):
        layers = self.model.config.decoder_layers
        before = Search(search[:layers], search[layers : 2 * layers], *search[2 * layers :])
        known = Memory(memory[:layers], memory[layers : 2 * layers], *memory[2 * layers :])
        return flat(step(self.model, known, before, alpha, min_length))


def source_length_offset(model: VaswaniTransformerForConditionalGeneration) -> int:
    """Output tokens beyond the source's, the paper's 50 unless the generation config has another number."""
    offset = getattr(model.generation_config, "max_source_length_offset", None)
    return 50 if offset is None else offset


def flat(fields: Iterable[Tensor | list[Tensor]]) -> tuple[Tensor, ...]:
    return tuple(tensor for field in fields for tensor in (field if isinstance(field, list) else [field]))


@torch.no_grad()
def export_single_graph(model: VaswaniTransformerForConditionalGeneration) -> ModelProto:
    """The model and its search, in float32. Its generation config has the defaults of the graph's inputs."""
    attention = model.config._attn_implementation or "eager"
    model.set_attn_implementation("eager")  # Equation (1) as it is written
    try:
        first, body, names = export_both(model)
    finally:
        model.set_attn_implementation(attention)
    graph = join(model, first, body, names)
    exported = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="vaswani-transformer"
    )
    exported.ir_version = 10
    return exported


def export_both(model: VaswaniTransformerForConditionalGeneration) -> tuple[GraphProto, GraphProto, list[str]]:
    """The graphs of `start` and `step`, and what the tensors between them are called."""
    layers = model.config.decoder_layers
    # No two sizes alike, so that torch takes none for another.
    batch, source, beams = 2, 7, 3
    input_ids = torch.full((batch, source), 2)
    first = Start(model, source_length_offset(model))
    slots, most = torch.arange(beams), torch.tensor(NO_MAXIMUM)
    start_graph = exported_graph(
        first,
        (input_ids, torch.ones_like(input_ids), slots, most),
        ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}, {}),
    )
    alpha, min_length = torch.tensor(0.6), torch.tensor(0)
    memory, search = start(model, input_ids, torch.ones_like(input_ids), 50, beams)
    for _ in range(4):
        search = step(model, memory, search, alpha, min_length)
    # Views of other tensors confuse the exporter.
    example = [[tensor.clone().contiguous() for tensor in flat(state)] for state in (memory, search)]
    keys = {0: Dim.AUTO, 2: Dim.AUTO}  # (batch, heads, slots, d_k)
    table = {0: Dim.AUTO, 1: Dim.AUTO, 2: Dim.AUTO}  # (batch, beams, steps)
    scores, rows = {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}
    step_graph = exported_graph(
        Step(model),
        (*example, alpha, min_length),
        (
            [*[keys] * 2 * layers, {0: Dim.AUTO, 3: Dim.AUTO}, rows],
            [*[keys] * 2 * layers, table, table, scores, table, scores, rows],
            {},
            {},
        ),
    )
    names = [f"{field}.{layer}" for field in ("memory_keys", "memory_values") for layer in range(layers)]
    names += ["memory_mask", "limits"]
    names += [f"{field}.{layer}" for field in ("keys", "values") for layer in range(layers)]
    names += list(Search._fields[2:])
    return start_graph, step_graph, names


def exported_graph(module: nn.Module, arguments: tuple, dynamic_shapes: tuple) -> GraphProto:
    # It logs that torchvision is not installed, and warns of what torch 2.13 itself still uses.
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            program = torch.onnx.export(
                module.eval(), arguments, dynamo=True, dynamic_shapes=dynamic_shapes, opset_version=OPSET, verbose=False
            )
    finally:
        logger.setLevel(level)
    assert program is not None
    return program.model_proto.graph


def join(
    model: VaswaniTransformerForConditionalGeneration, first: GraphProto, body: GraphProto, names: list[str]
) -> GraphProto:
    """`start`, then `step` in a Loop until every sentence is done, then what has finished."""
    config, generation = model.config, model.generation_config
    memory_size = 2 * config.decoder_layers + 2
    memory, search = names[:memory_size], names[memory_size:]
    # Names are unique across the loop's border.
    renamed(
        first, "start.", ["input_ids", "attention_mask", "beams", "max_length"], [f"first.{name}" for name in names]
    )
    after = [f"after.{name}" for name in search]
    renamed(body, "step.", [*(f"first.{name}" for name in memory), *search, "length_penalty", "min_length"], after)
    weights = Weights()
    start_nodes, step_nodes = weights.taken_from(first), weights.taken_from(body)

    constant = weights.constant
    loop_body = helper.make_graph(
        [
            *step_nodes,
            helper.make_node("Cast", ["after.done"], ["done_number"], to=TensorProto.INT32),
            helper.make_node("ReduceMin", ["done_number"], ["all_done_number"], keepdims=0),
            helper.make_node("Equal", ["all_done_number", constant(np.array(0, np.int32))], ["continue"]),
        ],
        "step",
        [
            helper.make_tensor_value_info("iteration", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            *(value_info(body.input, name) for name in search),
        ],
        [
            helper.make_tensor_value_info("continue", TensorProto.BOOL, []),
            *(value_info(body.output, name) for name in after),
        ],
    )
    final = [f"final.{name}" for name in search]
    zero, one, pad = (constant(np.array(number, np.int64)) for number in (0, 1, config.pad_token_id))
    first_axis, last_axis = (constant(np.array([axis])) for axis in (0, 2))
    nodes = [
        helper.make_node("Range", [zero, "num_beams", one], ["beams"]),
        *start_nodes,
        helper.make_node(
            "Loop", ["", constant(np.array(True)), *(f"first.{name}" for name in search)], final, body=loop_body
        ),
        # A slot in which nothing finished is padding; the longest hypothesis gives the length.
        helper.make_node("Greater", ["final.pool_scores", constant(np.array(NO_HYPOTHESIS, np.float32))], ["exists"]),
        helper.make_node("Unsqueeze", ["exists", last_axis], ["exists_3d"]),
        helper.make_node("Where", ["exists_3d", "final.pool", pad], ["all_tokens"]),
        helper.make_node("Equal", ["all_tokens", pad], ["is_padding"]),
        helper.make_node("Not", ["is_padding"], ["is_token"]),
        helper.make_node("Cast", ["is_token"], ["is_token_number"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["is_token_number", last_axis], ["lengths"], keepdims=0),
        helper.make_node("ReduceMax", ["lengths"], ["longest"], keepdims=0),
        helper.make_node("Unsqueeze", ["longest", first_axis], ["end"]),
        helper.make_node("Slice", ["all_tokens", first_axis, "end", last_axis], ["sequences"]),
        helper.make_node("Identity", ["final.pool_scores"], ["scores"]),
    ]
    defaults = {
        "num_beams": np.array(generation.num_beams or 4, np.int64),
        "max_length": np.array(NO_MAXIMUM, np.int64),
        "length_penalty": np.array(0.6 if generation.length_penalty is None else generation.length_penalty, np.float32),
        "min_length": np.array(0, np.int64),
    }
    ids = ("input_ids", "attention_mask")
    return helper.make_graph(
        nodes,
        "translation",
        [
            *(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "source"]) for name in ids),
            *(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [])
                for name, value in defaults.items()
            ),
        ],
        [
            helper.make_tensor_value_info("sequences", TensorProto.INT64, ["batch", "beams", "length"]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", "beams"]),
        ],
        initializer=[*weights.tensors(), *(numpy_helper.from_array(value, name) for name, value in defaults.items())],
    )


def value_info(values: Iterable[onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto:
    """The type and rank of a value; its sizes change from step to step."""
    tensor = next(value for value in values if value.name == name).type.tensor_type
    return helper.make_tensor_value_info(name, tensor.elem_type, [None] * len(tensor.shape.dim))


def renamed(graph: GraphProto, prefix: str, inputs: list[str], outputs: list[str]) -> None:
    """Rename every value in place: inputs and outputs as given, the others by a prefix."""
    assert len(graph.input) == len(inputs) and len(graph.output) == len(outputs), "the exporter dropped an input"
    names = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    given_back = []
    for value, name in zip(graph.output, outputs, strict=True):
        if value.name in names:  # an input or an output given back once more
            given_back.append((names[value.name], name))
        else:
            names[value.name] = name
        value.name = name
    for value, name in zip(graph.input, inputs, strict=True):
        value.name = name
    for tensor in graph.initializer:
        tensor.name = names.setdefault(tensor.name, prefix + tensor.name)
    for node in graph.node:
        assert not any(attribute.HasField("g") for attribute in node.attribute), (
            "a nested graph would need renaming too"
        )
        node.name = prefix + node.name
        for values in (node.input, node.output):
            values[:] = [names.get(value, prefix + value) if value else "" for value in values]
    graph.node.extend(helper.make_node("Identity", [source], [target]) for source, target in given_back)


class Weights:
    """Each tensor once, by content: what `start` and `step` share, and a matrix whose transpose is there already."""

    def __init__(self):
        self.by_content: dict[tuple, TensorProto] = {}

    def taken_from(self, graph: GraphProto) -> list[NodeProto]:
        """The graph's nodes, which now read the common tensors; those that transpose one of these come first."""
        names, transposes = {}, []
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            content = content_of(array)
            if content in self.by_content:
                names[tensor.name] = self.by_content[content].name
            elif array.ndim == 2 and array.size >= SMALLEST_WEIGHT and content_of(array.T) in self.by_content:
                # The tied matrix: embedding (V, d_model) and output (d_model, V).
                transposes.append(
                    helper.make_node(
                        "Transpose", [self.by_content[content_of(array.T)].name], [tensor.name], perm=[1, 0]
                    )
                )
            else:
                self.by_content[content] = tensor
        for node in graph.node:
            node.input[:] = [names.get(value, value) for value in node.input]
        return [*transposes, *graph.node]

    def constant(self, array: np.ndarray) -> str:
        """The name of a constant with this value."""
        content = content_of(array)
        if content not in self.by_content:
            self.by_content[content] = numpy_helper.from_array(array, f"constant.{len(self.by_content)}")
        return self.by_content[content].name

    def tensors(self) -> list[TensorProto]:
        return list(self.by_content.values())


def content_of(array: np.ndarray) -> tuple:
    return array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
