"""Encoder, cached decoder and beam search as one ONNX graph of standard operators.

    input_ids, attention_mask, num_beams, max_length, length_penalty, min_length, num_return_sequences
    -> sequences, scores; on demand cross_attentions

`start` and `step` of `vaswani_transformer.beam_search` are exported as they stand and joined by two loops: the inner
one takes steps until sentences are done, the outer one lets these leave the batch. Every weight is stored once:
in the inner loop what its steps alone read.

What tokens attended to is not kept while the search goes on: of dozens of hypotheses one is returned. When the last
sentence is done, the best translations go through the decoder once more, all their tokens at once. That is in the
outer loop, with the weights that it shares with the steps: in the outermost graph the steps would be a sixth slower.
"""

import hashlib
import logging
import warnings
from collections.abc import Iterable
from typing import cast

import numpy as np
import onnx
import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.export import Dim

from vaswani_transformer.beam_search import (
    EMPTY,
    UNSEEN,
    Memory,
    Places,
    Search,
    StepDecoder,
    Tables,
    decode,
    how_many_roots,
    start,
    step,
)
from vaswani_transformer.loading import own_search
from vaswani_transformer.modeling_vaswani_transformer import (
    NO_HYPOTHESIS,
    VaswaniTransformerForConditionalGeneration,
)

from .shapes import simplify

OPSET = 20
SETTINGS = ("num_beams", "max_length", "length_penalty", "min_length", "num_return_sequences")  # inputs with defaults
NO_MAXIMUM = 1_000_000  # max_length that is none
TALKATIVE = ("torch.onnx._internal.exporter._registration", "onnx_ir.passes.common.initializer_deduplication")
# Smaller tensors are constants of the operators, not weights.
SMALLEST_WEIGHT = 1024
EXAMPLE_LENGTH = 7  # source tokens of what is traced: learned positions have to be as many


class Start(nn.Module):
    """`start` with tensors in and out; the numbers of beams and roots are lengths, since shapes are made of them."""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration, offset: int):
        super().__init__()
        self.model, self.offset = model, offset

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        beams: Tensor,
        roots: Tensor,
        length_penalty: Tensor,
        max_length: Tensor,
    ):
        sizes = self.offset, beams.shape[0]
        state = start(self.model, input_ids, attention_mask, *sizes, length_penalty, max_length, roots.shape[0])
        return tuple(tensor for part in state for tensor in flat(part))


class Step(nn.Module):
    """`step` with lists of tensors in and out."""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration):
        super().__init__()
        self.decoder, self.layers = StepDecoder(model), model.config.decoder_layers

    def forward(
        self,
        memory: list[Tensor],
        places: list[Tensor],
        tables: list[Tensor],
        search: list[Tensor],
        min_length: Tensor,
        needed: Tensor,
    ):
        n = self.layers
        known = Memory(memory[:n], memory[n : 2 * n], *memory[2 * n :])
        before = Search(search[:n], search[n : 2 * n], *search[2 * n :])
        after = step(self.decoder, known, Places(*places), Tables(*tables), before, min_length, needed)
        # An eighth of the batch is done, or a sentence at its limit: somebody leaves.
        batch = search[-1].shape[0]
        go_on = (after.done.long().sum() * 8 < batch) & (after.at_limit.long().sum() == 0)
        return (*flat(after), go_on)


class Attention(nn.Module):
    """What each token of given translations attends to."""

    def __init__(self, model: VaswaniTransformerForConditionalGeneration):
        super().__init__()
        self.decoder, self.config = StepDecoder(model), model.config

    def forward(self, memory: list[Tensor], positions: Tensor, sequences: Tensor) -> Tensor:
        """sequences: (batch, 1, length), padded;  returns (batch, layers, heads, length, source), 0 at padding"""
        n, tokens = self.config.decoder_layers, sequences[:, 0]
        known = Memory(memory[:n], memory[n : 2 * n], *memory[2 * n :])
        start_tokens = torch.full_like(tokens[:, :1], self.config.decoder_start_token_id)
        places = torch.arange(tokens.shape[1])
        causal = (places[:, None] < places).float() * UNSEEN
        *_, attended = decode(
            self.decoder,
            known,
            [keys[:, :, :0] for keys in known.keys],
            [values[:, :, :0] for values in known.values],
            causal[None],
            torch.cat((start_tokens, tokens[:, :-1]), dim=1),
            positions.index_select(0, places),
        )
        weights = torch.stack(attended, dim=1).float()
        return weights.masked_fill((tokens == self.config.pad_token_id)[:, None, None, :, None], 0.0)


def source_length_offset(model: VaswaniTransformerForConditionalGeneration) -> int:
    """Output tokens beyond the source's, the paper's 50 unless the generation config has another number."""
    offset = getattr(model.generation_config, "max_source_length_offset", None)
    return 50 if offset is None else offset


def flat(fields: Iterable[Tensor | list[Tensor]]) -> tuple[Tensor, ...]:
    return tuple(tensor for field in fields for tensor in (field if isinstance(field, list) else [field]))


@torch.no_grad()
def export_single_graph(model: VaswaniTransformerForConditionalGeneration, attention: bool = False) -> ModelProto:
    """The model and its search; its generation config has the defaults of num_beams and length_penalty.

    attention: one more output, cross_attentions (batch, layers, heads, length, source), of the best hypotheses
    """
    implementation = model.config._attn_implementation or "eager"
    model.set_attn_implementation("eager")  # Equation (1) as it is written
    try:
        first, body, names = export_both(model)
        last = export_attention(model) if attention else None
    finally:
        model.set_attn_implementation(implementation)
    graph = join(model, first, body, names, last)
    exported = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="vaswani-transformer"
    )
    exported.ir_version = 10
    # So that a runtime can tell whose config.json lies beside the file.
    sizes = {"vocab_size": model.config.vocab_size, "decoder_vocab_size": model.lm_head.weight.shape[0]}
    helper.set_model_props(exported, {name: str(size) for name, size in sizes.items()})
    return exported


def export_both(model: VaswaniTransformerForConditionalGeneration) -> tuple[GraphProto, GraphProto, list[list[str]]]:
    """The graphs of `start` and `step`, and what the tensors between them are called: a list for each part."""
    # No two sizes alike, so that torch takes none for another.
    batch, live, beams, length, source = 2, 3, 4, 5, EXAMPLE_LENGTH
    input_ids = torch.full((batch, source), 2)
    alpha, most, min_length, needed = (torch.tensor(number) for number in (0.6, NO_MAXIMUM, 0, [2]))
    start_graph = exported_graph(
        Start(model, source_length_offset(model)),
        (input_ids, torch.ones_like(input_ids), torch.arange(beams), torch.arange(live), alpha, most),
        ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}, {0: Dim.AUTO}, {}, {}),
    )
    roots = how_many_roots(beams, model.lm_head.weight.shape[0])
    memory, places, tables, search = start(model, input_ids, torch.ones_like(input_ids), 50, beams, alpha, roots=roots)
    decoder = StepDecoder(model)
    for _ in range(length):
        search = step(decoder, memory, places, tables, search, min_length, needed)
    # As in the first step, fewer live than there are beams.
    slots = search.keys[0].shape[2]
    search = search._replace(
        past=search.past[:, :live, : slots + live],
        last=search.last[:, :live],
        live_scores=search.live_scores[:, :live],
    )
    names, example, shapes = zip(*(described(part, model) for part in (memory, places, tables, search)), strict=True)
    step_graph = exported_graph(Step(model), (*example, min_length, needed), (*shapes, {}, {}))
    return start_graph, step_graph, list(names)


def export_attention(model: VaswaniTransformerForConditionalGeneration) -> GraphProto:
    """The graph of `Attention`."""
    input_ids, sequences = torch.full((2, EXAMPLE_LENGTH), 2), torch.full((2, 1, 5), 2)
    memory, _, tables, _ = start(model, input_ids, torch.ones_like(input_ids), 50, 3, torch.tensor(0.6))
    _, known, shapes = described(memory, model)
    names, example, free = described(tables, model)
    i = names.index("positions")
    return exported_graph(
        Attention(model), (known, example[i], sequences), (shapes, free[i], {0: Dim.AUTO, 2: Dim.AUTO})
    )


def described(
    part: Memory | Places | Tables | Search, model: VaswaniTransformerForConditionalGeneration
) -> tuple[list[str], list[Tensor], list[dict]]:
    """A part's tensors: what they are called, an example of each, and which of its axes may change."""
    changing = {
        "keys": (0, 2),
        "values": (0, 2),
        "bias": (0, 3),
        "positions": () if model.config.position_embedding_type == "learned" else (0,),
        "forbidden": (),
        "may_end": (1,),
    }
    prefix = "memory_" if isinstance(part, Memory) else ""
    names, example, shapes = [], [], []
    for field, value in zip(part._fields, part, strict=True):
        for layer, tensor in enumerate(value if isinstance(value, list) else [value]):
            names.append(f"{prefix}{field}.{layer}" if isinstance(value, list) else prefix + field)
            # Views of other tensors confuse the exporter.
            example.append(tensor.clone().contiguous())
            # An axis of length 1 is one; all others may change.
            axes = (axis for axis in changing.get(field, range(tensor.ndim)) if tensor.shape[axis] > 1)
            shapes.append(dict.fromkeys(axes, Dim.AUTO))
    return names, example, shapes


def exported_graph(module: nn.Module, arguments: tuple, dynamic_shapes: tuple) -> GraphProto:
    # They log that torchvision is not installed and which constants stay twice, and warn of what torch 2.13 itself
    # still uses.
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
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
    # Where in whose files torch found each operator, and at which addresses, is nobody's business; and the same model
    # is the same file.
    for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    simplify(graph)
    return graph


def join(
    model: VaswaniTransformerForConditionalGeneration,
    first: GraphProto,
    body: GraphProto,
    names: list[list[str]],
    last: GraphProto | None = None,
) -> GraphProto:
    """`start`; then `step` in a loop until sentences are done, in a loop until the last one is; `Attention` then."""
    config, (num_beams, alpha) = model.config, own_search(model)
    memory, places, tables, search = names
    # Names are unique across the loops' borders.
    given = ["input_ids", "attention_mask", "beams", "roots", "length_penalty", "max_length"]
    renamed(first, "start.", given, [f"first.{name}" for part in names for name in part])
    tables = [f"first.{name}" for name in tables]
    after = [f"after.{name}" for name in search]
    known = [f"in.{name}" for name in (*memory, *places)]
    renamed(body, "step.", [*known, *tables, *search, "min_length", "needed"], [*after, "go_on"])
    weights = Weights()
    constant, node = weights.constant, helper.make_node
    start_nodes = weights.taken_from(first)
    always = constant(np.array(True))
    words, pad_id = model.lm_head.weight.shape[0], cast(int, config.pad_token_id)
    zero, one, two, pad, vocabulary, last_word = (
        constant(np.array(number, np.int64)) for number in (0, 1, 2, pad_id, words, words - 1)
    )
    first_axis, second_axis, last_axis = (constant(np.array([axis])) for axis in (0, 1, 2))
    fourth_axis = last_axis if last is None else constant(np.array([3]))
    nothing, empty = (constant(np.array(number, np.float32)) for number in (NO_HYPOTHESIS, EMPTY))
    if last is not None:
        # The memory as it was before anybody left.
        inputs = [*(f"first.{name}" for name in memory), "first.positions", "best.sequences"]
        renamed(last, "attention.", inputs, ["attention.weights"])
        start_nodes.append(node("Identity", [constant(np.zeros([0] * 5, np.float32))], ["first.attentions"]))
    shared = weights.tensors()
    attention_nodes = [] if last is None else weights.taken_from(last)
    read_by_both = weights.tensors()[len(shared) :]
    step_nodes = weights.taken_from(body)

    def best(found: str, prefix: str, wanted: str) -> list[NodeProto]:
        """The best hypotheses; a slot in which nothing finished is padding; the longest gives the length."""

        def named(*names: str) -> list[str]:
            return [prefix + name for name in names]

        return [
            node("Slice", [f"{found}.scores", first_axis, wanted, second_axis], named("scores")),
            node("Slice", [f"{found}.sequences", first_axis, wanted, second_axis], named("best_tokens")),
            node("Greater", [*named("scores"), nothing], named("exists")),
            node("Unsqueeze", [*named("exists"), last_axis], named("row_exists")),
            node("Where", [*named("row_exists", "best_tokens"), pad], named("all_tokens")),
            node("Equal", [*named("all_tokens"), pad], named("is_padding")),
            node("Not", named("is_padding"), named("is_token")),
            node("Cast", named("is_token"), named("is_token_number"), to=TensorProto.INT64),
            node("ReduceSum", [*named("is_token_number"), last_axis], named("lengths"), keepdims=0),
            node("ReduceMax", named("lengths"), named("longest"), keepdims=0),
            node("Unsqueeze", [*named("longest"), first_axis], named("end")),
            node("Slice", [*named("all_tokens"), first_axis, *named("end"), last_axis], named("sequences")),
        ]

    def boolean(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.BOOL, [])

    steps = helper.make_graph(
        step_nodes,
        "steps",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            boolean("going"),
            *(value_info(body.input, name) for name in search),
        ],
        [boolean("go_on"), *(value_info(body.output, name) for name in after)],
        # ONNX Runtime packs the matrices of a loop within a loop for its products only if they are its own.
        initializer=weights.tensors()[len(shared) + len(read_by_both) :],
    )
    by_row = [*memory, *(name for name in search if name != "length")]
    result = ["rows", "sequences", "scores", *(["attentions"] if last is not None else [])]
    state = [*memory, *places, *search, *result]
    generation_nodes = [
        node("Loop", ["", always, *(f"in.{name}" for name in search)], [f"end.{name}" for name in search], body=steps),
        # What a sentence has found goes to its row of the result: its pool or, if that is empty, at its limit, its
        # live hypotheses. Who goes on will be written again.
        node("Split", ["end.tokens"], ["live", "pool"], axis=1, num_outputs=2),
        node("Slice", ["end.pool_scores", first_axis, second_axis, second_axis], ["best_of_pool"]),
        node("LessOrEqual", ["best_of_pool", nothing], ["pool_is_empty"]),
        node("Gather", ["first.penalties", "end.length"], ["penalty"]),
        node("Div", ["end.live_scores", "penalty"], ["live_divided"]),
        node("Greater", ["end.live_scores", nothing], ["is_live"]),
        node("Where", ["is_live", "live_divided", empty], ["live_final"]),
        node("Where", ["pool_is_empty", "live_final", "end.pool_scores"], ["found_scores"]),
        node("Unsqueeze", ["pool_is_empty", last_axis], ["pool_of_row_is_empty"]),
        node("Where", ["pool_of_row_is_empty", "live", "pool"], ["found"]),
        node("Shape", ["end.tokens"], ["length_now"], start=2),
        node("Shape", ["in.sequences"], ["length_before"], start=2),
        node("Sub", ["length_now", "length_before"], ["longer"]),
        node("Shape", ["in.sequences"], ["all_rows"], end=2),
        node("Concat", ["all_rows", "longer"], ["pads_shape"], axis=0),
        node(
            "ConstantOfShape", ["pads_shape"], ["pads"], value=helper.make_tensor("", TensorProto.INT64, [1], [pad_id])
        ),
        node("Concat", ["in.sequences", "pads"], ["widened"], axis=2),  # CUDA has no Pad of int64
        node("Unsqueeze", ["in.rows", second_axis], ["row_indices"]),
        node("ScatterND", ["widened", "row_indices", "found"], ["out.sequences"]),
        node("ScatterND", ["in.scores", "row_indices", "found_scores"], ["out.scores"]),
        # Who is done leaves; the others close up.
        node("Squeeze", ["end.done", second_axis], ["is_done"]),
        node("Not", ["is_done"], ["stays"]),
        *(
            node("Compress", [f"{'end' if name in search else 'in'}.{name}", "stays"], [f"out.{name}"], axis=0)
            for name in by_row
        ),
        node("Compress", ["in.rows", "stays"], ["out.rows"], axis=0),
        node("Identity", ["end.length"], ["out.length"]),
        node("Shape", ["out.rows"], ["staying"]),
        *(node("Slice", [f"in.{name}", first_axis, "staying", first_axis], [f"out.{name}"]) for name in places),
        node("Squeeze", ["staying", first_axis], ["how_many_stay"]),
        node("Greater", ["how_many_stay", zero], ["somebody_stays"]),
    ]
    if last is not None:

        def branch(nodes: list[NodeProto], output: str) -> GraphProto:
            return helper.make_graph(
                nodes, output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * 5)]
            )

        generation_nodes.append(
            node(
                "If",
                ["somebody_stays"],
                ["out.attentions"],
                then_branch=branch([node("Identity", ["in.attentions"], ["attentions.later"])], "attentions.later"),
                else_branch=branch([*best("out", "best.", second_axis), *attention_nodes], "attention.weights"),
            )
        )
    kinds = [
        *body.input,
        helper.make_tensor_value_info("rows", TensorProto.INT64, [None]),
        helper.make_tensor_value_info("sequences", TensorProto.INT64, [None] * 3),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None] * 2),
        helper.make_tensor_value_info("attentions", TensorProto.FLOAT, [None] * 5),
    ]
    generations = helper.make_graph(
        generation_nodes,
        "generations",
        [
            helper.make_tensor_value_info("generation", TensorProto.INT64, []),
            boolean("everybody_left"),
            *(value_info(kinds, name, "in.") for name in state),
        ],
        [boolean("somebody_stays"), *(value_info(kinds, name, "out.") for name in state)],
        initializer=read_by_both,
    )
    nodes = [
        node("Range", [zero, "num_beams", one], ["beams"]),
        # `how_many_roots`
        node("Mul", ["num_beams", two], ["continuations"]),
        node("Add", ["continuations", last_word], ["continuations_and_a_root"]),
        node("Div", ["continuations_and_a_root", vocabulary], ["how_many_roots"]),
        node("Range", [zero, "how_many_roots", one], ["roots"]),
        # How many hypotheses have to be final; 0: all.
        node("Greater", ["num_return_sequences", zero], ["some_are_wanted"]),
        node("Where", ["some_are_wanted", "num_return_sequences", "num_beams"], ["how_many_are_wanted"]),
        node("Unsqueeze", ["how_many_are_wanted", first_axis], ["wanted"]),
        node("Sub", ["wanted", one], ["needed"]),
        *start_nodes,
        node("Shape", ["input_ids"], ["batch"], end=1),
        node("Squeeze", ["batch", first_axis], ["batch_size"]),
        node("Range", [zero, "batch_size", one], ["first.rows"]),
        node("Split", ["first.tokens"], ["first.sequences", "first.pool"], axis=1, num_outputs=2),
        node("Identity", ["first.pool_scores"], ["first.scores"]),
        node(
            "Loop",
            ["", always, *(f"first.{name}" for name in state)],
            [f"final.{name}" for name in state],
            body=generations,
        ),
        *best("final", "", "wanted"),
    ]
    outputs = [
        helper.make_tensor_value_info("sequences", TensorProto.INT64, ["batch", "hypotheses", "length"]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", "hypotheses"]),
    ]
    if last is not None:
        nodes += [
            node("Shape", ["final.attentions"], ["longest_best"], start=3, end=4),
            node("Sub", ["end", "longest_best"], ["others_longer"]),
            node("Concat", [first_axis, "others_longer"], ["zeros"], axis=0),
            node("Pad", ["final.attentions", "zeros", "", fourth_axis], ["cross_attentions"]),
        ]
        shape = ["batch", config.decoder_layers, config.decoder_attention_heads, "length", "source"]
        outputs.append(helper.make_tensor_value_info("cross_attentions", TensorProto.FLOAT, shape))
    defaults = {
        "num_beams": np.array(num_beams, np.int64),
        "max_length": np.array(NO_MAXIMUM, np.int64),
        "length_penalty": np.array(alpha, np.float32),
        "min_length": np.array(0, np.int64),
        "num_return_sequences": np.array(0, np.int64),
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
        outputs,
        initializer=[*shared, *(numpy_helper.from_array(value, name) for name, value in defaults.items())],
    )


def value_info(values: Iterable[onnx.ValueInfoProto], name: str, prefix: str = "") -> onnx.ValueInfoProto:
    """The type and rank of a value; its sizes change from step to step."""
    tensor = next(value for value in values if value.name in (name, f"in.{name}")).type.tensor_type
    return helper.make_tensor_value_info(prefix + name, tensor.elem_type, [None] * len(tensor.shape.dim))


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
        outputs = {value.name for value in graph.output}
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            content = content_of(array)
            if content in self.by_content and tensor.name in outputs:
                transposes.append(helper.make_node("Identity", [self.by_content[content].name], [tensor.name]))
            elif content in self.by_content:
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
