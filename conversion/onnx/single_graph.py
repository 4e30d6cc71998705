"""Encoder, cached decoder and beam search as one ONNX graph of standard operators.

    input_ids, attention_mask, num_beams, max_length, length_penalty, min_length, num_return_sequences, early_stopping
    -> sequences, scores; on request cross_attentions

`start` and `step` of `vaswani_transformer.beam_search` are exported as they are and joined by two loops, as in
`beam_search`: the inner loop takes steps until sentences are done, the outer loop stores their hypotheses and drops
them from the batch. Each weight is stored once, in the inner loop if only the steps read it: ONNX Runtime packs the
matrices of a nested loop for its products only if that loop owns them.

Attention weights are not collected during the search, which returns one hypothesis out of dozens. When the last
sentence is done, the best translations go through the decoder once more, all tokens at once. That happens in the outer
loop, which then owns the weights that it shares with the steps: owned by the outermost graph, they would make the
steps a sixth slower.
"""

from typing import cast

import numpy as np
import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.beam_search import EMPTY
from vaswani_transformer.model_folder import search_settings_of
from vaswani_transformer.modeling_vaswani_transformer import NO_HYPOTHESIS
from vaswani_transformer.text_translator import NO_MAXIMUM, lookahead_of

from .graph_surgery import model_of, rename
from .operators import Operators, tensor_type
from .traced import SearchGraphs, eager_attention, search_graphs

# Inputs with defaults. early_stopping: see `lookahead_of`
SETTINGS = ("num_beams", "max_length", "length_penalty", "min_length", "num_return_sequences", "early_stopping")
IDS = ("input_ids", "attention_mask")
Values = dict[str, str]  # a variable of the search -> the name of its value in the graph
NOTHING, EMPTY_SCORE = np.float32(NO_HYPOTHESIS), np.float32(EMPTY)


@torch.no_grad()
def export_single_graph(model: Model, attention: bool = False) -> ModelProto:
    """Export the model with its search; its generation config gives the defaults of num_beams and length_penalty.

    attention: add the output cross_attentions (batch, layers, heads, length, source), of the best hypotheses
    """
    with eager_attention(model):
        graphs = search_graphs(model, attention)
    exported = model_of(join(model, graphs))
    # A runtime can tell from these whether the config.json beside the file is this model's.
    sizes = {"vocab_size": model.config.vocab_size, "decoder_vocab_size": model.lm_head.weight.shape[0]}
    helper.set_model_props(exported, {name: str(size) for name, size in sizes.items()})
    return exported


def join(model: Model, graphs: SearchGraphs) -> GraphProto:
    """Connect `start`, the loops around `step`, and the inputs and outputs of the file."""
    config, pad = model.config, cast(int, model.config.pad_token_id)
    op = Operators("search.")
    first = first_values(op, graphs, model.lm_head.weight.shape[0])
    # How many of the best hypotheses are returned and so must be final; 0: all.
    wanted = op.Where(op.Greater("num_return_sequences", 0), "num_return_sequences", "num_beams")
    last_wanted = op.Unsqueeze(op.Sub(op.Where(op.Less("early_stopping", 0), "num_beams", wanted), 1), [0])
    final = outer_loop(op, graphs, first, last_wanted, pad)
    length = finalise(op, final["sequences"], final["scores"], op.Unsqueeze(wanted, [0]), pad)
    outputs = [
        helper.make_tensor_value_info("sequences", TensorProto.INT64, ["batch", "hypotheses", "length"]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", "hypotheses"]),
    ]
    if "cross_attentions" in final:
        # The best hypotheses may be shorter than others that are returned.
        padding = op.Sub(length, op.Shape(final["cross_attentions"], start=3, end=4))
        op.Pad(final["cross_attentions"], op.Concat([0], padding, axis=0), "", [3], name="cross_attentions")
        shape = ["batch", config.decoder_layers, config.decoder_attention_heads, "length", "source"]
        outputs.append(helper.make_tensor_value_info("cross_attentions", TensorProto.FLOAT, shape))
    num_beams, alpha, rule = search_settings_of(model.generation_config.to_dict())
    values = *map(np.int64, (num_beams, NO_MAXIMUM)), np.float32(alpha), *map(np.int64, (0, 0, lookahead_of(rule)))
    defaults = [numpy_helper.from_array(np.array(value), name) for name, value in zip(SETTINGS, values, strict=True)]
    return helper.make_graph(
        op.nodes,
        "translation",
        [
            *(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "source"]) for name in IDS),
            *(helper.make_tensor_value_info(tensor.name, tensor.data_type, []) for tensor in defaults),
        ],
        outputs,
        initializer=[*op.tensors, *defaults],
    )


def first_values(op: Operators, graphs: SearchGraphs, vocabulary: int) -> Values:
    """Encode the sentences; returns what `start` returns, and empty results for each row of the batch."""
    beams = op.Range(0, "num_beams", 1)
    # `initial_hypotheses`: 2 x num_beams / vocabulary, rounded up
    initial_live = op.Div(op.Add(op.Mul("num_beams", 2), vocabulary - 1), vocabulary)
    settings = ["length_penalty", "early_stopping", "min_length", "max_length"]
    inputs = [*IDS, beams, op.Range(0, initial_live, 1), *settings]
    names = [name for part in graphs.names for name in part]
    outputs = op.inline(graphs.start, "start.", inputs, [f"first.{name}" for name in names])
    first = dict(zip(names, outputs, strict=True))
    rows = op.Range(0, op.Squeeze(op.Shape("input_ids", end=1), [0]), 1)
    sequences, _ = op.Split(first["tokens"], axis=1, num_outputs=2)
    results = {"rows": rows, "sequences": sequences, "scores": first["finished_scores"]}
    if graphs.cross_attentions is not None:
        results["cross_attentions"] = op.constant(np.zeros([0] * 5, np.float32))
    return first | results


def outer_loop(op: Operators, graphs: SearchGraphs, first: Values, last_wanted: str, pad: int) -> Values:
    """Until no sentence is left: search, store the hypotheses of finished sentences, and drop these sentences."""
    body, types = Operators("outer.", op), types_of(graphs)
    now = {name: f"outer.{name}" for name in first if name not in graphs.names.constants}
    # Before the steps, so that their common weights are in this loop.
    attention = attention_nodes(body, graphs, first)
    state = inner_loop(body, graphs, first | now, last_wanted)
    sequences, scores = collect_finished(body, state, now, first["penalties"], pad)
    after = compact_batch(body, graphs, now, state) | {"sequences": sequences, "scores": scores}
    any_left = body.Greater(body.Squeeze(body.Shape(after["rows"]), [0]), 0)
    if attention:
        after["cross_attentions"] = body.If(
            any_left, **attention_branches(body, now, sequences, scores, pad, attention)
        )
    variables = {now[name]: first[name] for name in now}
    final = op.loop(body, variables, [types[name] for name in now], any_left, [after[name] for name in now])
    return dict(zip(now, final, strict=True))


def inner_loop(op: Operators, graphs: SearchGraphs, now: Values, last_wanted: str) -> Values:
    """Take steps until sentences are done; returns the new state."""
    steps, types, names = Operators("inner.", op), types_of(graphs), graphs.names
    here = {name: f"inner.{name}" for name in names.state}
    known = [now[name] for name in (*names.memory, *names.batch_constants, *names.constants)]
    inputs = [*known, *here.values(), last_wanted]
    *after, go_on = steps.inline(graphs.step, "step.", inputs, [*(f"after.{name}" for name in here), "go_on"])
    variables = {here[name]: now[name] for name in here}
    op.nodes += steps.take_loop_invariants(variables)
    final = op.loop(steps, variables, [types[name] for name in here], go_on, after)
    return dict(zip(here, final, strict=True))


def collect_finished(op: Operators, state: Values, now: Values, penalties: str, pad: int) -> tuple[str, str]:
    """Write each sentence's hypotheses to its row of the results; unfinished sentences overwrite them later.

    If no hypothesis has finished at a sentence's limit, its live hypotheses count, and the length penalty is applied to
    them here. `step` has applied it to the finished ones.
    """
    live, finished = op.Split(state["tokens"], axis=1, num_outputs=2)
    none_finished = op.LessOrEqual(op.Slice(state["finished_scores"], [0], [1], [1]), NOTHING)
    live_scores = op.Div(state["live_scores"], op.Gather(penalties, state["length"]))
    live_scores = op.Where(op.Greater(state["live_scores"], NOTHING), live_scores, EMPTY_SCORE)
    found_scores = op.Where(none_finished, live_scores, state["finished_scores"])
    found = op.Where(op.Unsqueeze(none_finished, [2]), live, finished)
    # By Concat: CUDA has no Pad of int64.
    longer = op.Sub(op.Shape(state["tokens"], start=2), op.Shape(now["sequences"], start=2))
    shape = op.Concat(op.Shape(now["sequences"], end=2), longer, axis=0)
    padding = op.ConstantOfShape(shape, value=helper.make_tensor("", TensorProto.INT64, [1], [pad]))
    sequences = op.Concat(now["sequences"], padding, axis=2)
    rows = op.Unsqueeze(now["rows"], [1])
    return op.ScatterND(sequences, rows, found), op.ScatterND(now["scores"], rows, found_scores)


def compact_batch(op: Operators, graphs: SearchGraphs, now: Values, state: Values) -> Values:
    """Drop the sentences that are done."""
    by_sentence = {name: now[name] for name in graphs.names.memory} | state | {"rows": now["rows"]}
    length = by_sentence.pop("length")
    leaves = op.Or(state["done"], op.GreaterOrEqual(length, now["memory_limits"]))
    stays = op.Not(op.Squeeze(leaves, [1]))
    after = {name: op.Compress(value, stays, axis=0) for name, value in by_sentence.items()}
    count = op.Shape(after["rows"])
    equal_rows = {name: op.Slice(now[name], [0], count, [0]) for name in graphs.names.batch_constants}
    return after | equal_rows | {"length": length}


def finalise(op: Operators, sequences: str, scores: str, wanted: str | list[int], pad: int, prefix: str = "") -> str:
    """Name the `wanted` best hypotheses {prefix}sequences and {prefix}scores; returns the length of the longest.

    A slot without a finished hypothesis is padding.
    """
    scores = op.Slice(scores, [0], wanted, [1], name=f"{prefix}scores")
    exists = op.Unsqueeze(op.Greater(scores, NOTHING), [2])
    tokens = op.Where(exists, op.Slice(sequences, [0], wanted, [1]), pad)
    is_token = op.Cast(op.Not(op.Equal(tokens, pad)), to=TensorProto.INT64)
    longest = op.ReduceMax(op.ReduceSum(is_token, [2], keepdims=0), keepdims=0)
    length = op.Unsqueeze(longest, [0])
    op.Slice(tokens, [0], length, [2], name=f"{prefix}sequences")
    return length


def attention_nodes(op: Operators, graphs: SearchGraphs, first: Values) -> list[NodeProto]:
    """Return the nodes that compute best.cross_attentions from best.sequences, with their weights in this graph."""
    if graphs.cross_attentions is None:
        return []
    # The memory of all sentences, as it was before the first one left.
    inputs = [*(first[name] for name in graphs.names.memory), first["positions"], "best.sequences"]
    rename(graphs.cross_attentions, "attention.", inputs, ["best.cross_attentions"])
    return op.tensors.take(graphs.cross_attentions)


def attention_branches(
    op: Operators, now: Values, sequences: str, scores: str, pad: int, nodes: list[NodeProto]
) -> dict[str, GraphProto]:
    """Pass the weights on while sentences are left; then run `attention_nodes` on the best hypotheses."""
    type = tensor_type(TensorProto.FLOAT, 5)
    later, last = Operators("later.", op), Operators("best.", op)
    later.Identity(now["cross_attentions"], name="later.cross_attentions")
    finalise(last, sequences, scores, [1], pad, "best.")
    last.nodes += nodes
    return {
        "then_branch": later.graph({"later.cross_attentions": type}),
        "else_branch": last.graph({"best.cross_attentions": type}),
    }


def types_of(graphs: SearchGraphs) -> dict[str, TypeProto]:
    """Return the types of the search's variables; their sizes change from step to step."""
    names = [name for part in graphs.names for name in part]
    types = {
        name: tensor_type(value.type.tensor_type.elem_type, len(value.type.tensor_type.shape.dim))
        for name, value in zip(names, graphs.step.input, strict=False)
    }
    return types | {
        "rows": tensor_type(TensorProto.INT64, 1),
        "sequences": tensor_type(TensorProto.INT64, 3),
        "scores": tensor_type(TensorProto.FLOAT, 2),
        "cross_attentions": tensor_type(TensorProto.FLOAT, 5),
    }
