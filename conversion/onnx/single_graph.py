"""Encoder, cached decoder and beam search as one ONNX graph of standard operators.

    input_ids, attention_mask, num_beams, max_length, length_penalty, min_length, num_return_sequences, early_stopping
    -> sequences, scores; on request cross_attentions

`start` and `step` from `vaswani_transformer/beam_search.py` are exported unchanged and connected by two nested ONNX
loops (torch uses one loop with an `if`):

    initial_values             `start`: encode the sentences
    outer_loop                 while sentences are left in the batch:
        inner_loop                 `step` until some are done; it divides the scores of finished hypotheses by the
                                   length penalty
        collect_hypotheses         store what was found; divides the scores of live hypotheses by the length penalty
                                   where a sentence is at its limit and none has finished
        drop_done_sentences        remove them from the batch
    select_best                return the best hypotheses of each sentence

Each weight is stored once. Weights that only `step` reads are initializers of the inner loop's body: ONNX Runtime
prepacks MatMul weights only if they belong to the loop that uses them or to the loop directly around it.

The search does not record attention: it explores dozens of hypotheses per result. After the last sentence is done, the
best translations pass through the decoder once more in one call. That call is in the outer loop, whose body then stores
the weights that it shares with `step`: in the outermost graph they would not be prepacked, and steps would take a sixth
longer.
"""

from typing import cast

import numpy as np
import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.modeling_vaswani_transformer import EMPTY_SCORE, VALID_ABOVE
from vaswani_transformer.search_settings import NO_MAXIMUM, lookahead_of, search_settings_of

from .graph_builder import GraphBuilder, rename, tensor_type
from .torch_export import SearchGraphs, eager_attention, search_graphs

# Inputs with defaults. early_stopping: see `lookahead_of`
SETTINGS = ("num_beams", "max_length", "length_penalty", "min_length", "num_return_sequences", "early_stopping")
IDS = ("input_ids", "attention_mask")
THRESHOLD, EMPTY = np.float32(VALID_ABOVE), np.float32(EMPTY_SCORE)
# The variables of the outer loop beside those of the search.
ATTENTION_TYPE = tensor_type(TensorProto.FLOAT, 5)
RESULT_TYPES = {
    "rows": tensor_type(TensorProto.INT64, 1),  # of the results that belong to the sentences left in the batch
    "sequences": tensor_type(TensorProto.INT64, 3),
    "scores": tensor_type(TensorProto.FLOAT, 2),
    "cross_attentions": ATTENTION_TYPE,
}
Values = dict[str, str]  # a variable of the search -> the name of its value in the graph


@torch.no_grad()
def export_single_graph(model: Model, attention: bool = False) -> ModelProto:
    """Export the model and its beam search.

    The generation config supplies the defaults of num_beams, length_penalty and early_stopping.

    attention: add the output cross_attentions (batch, layers, heads, length, source), of the best hypotheses
    """
    with eager_attention(model):
        graphs = search_graphs(model, attention)
    op, pad = GraphBuilder("search."), cast(int, model.config.pad_token_id)
    initial = initial_values(op, graphs, model.lm_head.weight.shape[0])
    # How many of the best hypotheses are returned and so must be final; 0: all.
    wanted = op.Where(op.Greater("num_return_sequences", 0), "num_return_sequences", "num_beams")
    last_index = op.Unsqueeze(op.Sub(op.Where(op.Less("early_stopping", 0), "num_beams", wanted), 1), [0])
    final = outer_loop(op, graphs, initial, last_index, pad)
    length = select_best(op, final["sequences"], final["scores"], op.Unsqueeze(wanted, [0]), pad)
    if attention:
        # The best hypotheses may be shorter than others that are returned.
        padding = op.Sub(length, op.Shape(final["cross_attentions"], start=3, end=4))
        op.Pad(final["cross_attentions"], op.Concat([0], padding, axis=0), "", [3], name="cross_attentions")
    exported = op.model("translation", *inputs_and_outputs(model, attention))
    # A runtime can tell from these whether the config.json beside the file is this model's.
    sizes = {"vocab_size": model.config.vocab_size, "decoder_vocab_size": model.lm_head.weight.shape[0]}
    helper.set_model_props(exported, {name: str(size) for name, size in sizes.items()})
    return exported


def inputs_and_outputs(model: Model, attention: bool) -> tuple[list, list, list]:
    """Return the inputs and outputs of the file, and the default values of optional inputs."""
    num_beams, alpha, rule = search_settings_of(model.generation_config.to_dict())
    values = *map(np.int64, (num_beams, NO_MAXIMUM)), np.float32(alpha), *map(np.int64, (0, 0, lookahead_of(rule)))
    defaults = [numpy_helper.from_array(np.array(value), name) for name, value in zip(SETTINGS, values, strict=True)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "source"]) for name in IDS]
    inputs += [helper.make_tensor_value_info(tensor.name, tensor.data_type, []) for tensor in defaults]
    outputs = [
        helper.make_tensor_value_info("sequences", TensorProto.INT64, ["batch", "hypotheses", "length"]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", "hypotheses"]),
    ]
    if attention:
        shape = ["batch", model.config.decoder_layers, model.config.decoder_attention_heads, "length", "source"]
        outputs.append(helper.make_tensor_value_info("cross_attentions", TensorProto.FLOAT, shape))
    return inputs, outputs, defaults


def initial_values(op: GraphBuilder, graphs: SearchGraphs, vocabulary: int) -> Values:
    """Encode the sentences; returns what `start` returns, and empty results for each row of the batch."""
    beams = op.Range(0, "num_beams", 1)
    # `initial_hypotheses`: 2 x num_beams / vocabulary, rounded up
    initial_live = op.Div(op.Add(op.Mul("num_beams", 2), vocabulary - 1), vocabulary)
    settings = ["length_penalty", "early_stopping", "min_length", "max_length"]
    inputs = [*IDS, beams, op.Range(0, initial_live, 1), *settings]
    outputs = op.inline(graphs.start, "start.", inputs, [f"first.{name}" for name in graphs.types])
    initial = dict(zip(graphs.types, outputs, strict=True))
    rows = op.Range(0, op.Squeeze(op.Shape("input_ids", end=1), [0]), 1)
    sequences, _ = op.Split(initial["tokens"], axis=1, num_outputs=2)
    results = {"rows": rows, "sequences": sequences, "scores": initial["finished_scores"]}
    if graphs.cross_attentions is not None:
        results["cross_attentions"] = op.constant(np.zeros([0] * 5, np.float32))
    return initial | results


def outer_loop(op: GraphBuilder, graphs: SearchGraphs, initial: Values, last_index: str, pad: int) -> Values:
    """Until no sentence is left: search, store the hypotheses of done sentences, and drop these sentences."""
    body = GraphBuilder("outer.", op)
    now = {name: f"outer.{name}" for name in initial if name not in graphs.constants}
    # Before the steps, so that their common weights are in this loop.
    attention = attention_nodes(body, graphs, initial)
    state = inner_loop(body, graphs, initial | now, last_index)
    sequences, scores = collect_hypotheses(body, state, now, initial["penalties"], pad)
    after = drop_done_sentences(body, graphs, now, state) | {"sequences": sequences, "scores": scores}
    any_left = body.Greater(body.Squeeze(body.Shape(after["rows"]), [0]), 0)
    if attention:
        branches = attention_branches(body, now, sequences, scores, pad, attention)
        after["cross_attentions"] = body.If(any_left, **branches)
    variables, types = {now[name]: initial[name] for name in now}, graphs.types | RESULT_TYPES
    final = op.loop(body, variables, [types[name] for name in now], any_left, [after[name] for name in now])
    return dict(zip(now, final, strict=True))


def inner_loop(op: GraphBuilder, graphs: SearchGraphs, now: Values, last_index: str) -> Values:
    """Take steps until sentences are done; returns the new state."""
    steps = GraphBuilder("inner.", op)
    here = {name: f"inner.{name}" for name in graphs.state}
    known = [now[name] for name in (*graphs.memory, *graphs.batch_constants, *graphs.constants)]
    inputs = [*known, *here.values(), last_index]
    *after, condition = steps.inline(graphs.step, "step.", inputs, [*(f"after.{name}" for name in here), "condition"])
    variables = {here[name]: now[name] for name in here}
    op.nodes += steps.take_loop_invariants(variables)
    final = op.loop(steps, variables, [graphs.types[name] for name in here], condition, after)
    return dict(zip(here, final, strict=True))


def collect_hypotheses(op: GraphBuilder, state: Values, now: Values, penalties: str, pad: int) -> tuple[str, str]:
    """Write each sentence's hypotheses to its row of the results; unfinished sentences overwrite them later.

    If no hypothesis has finished at a sentence's limit, its live hypotheses count, and the length penalty is applied to
    them here. `step` has applied it to the finished ones.
    """
    live, finished = op.Split(state["tokens"], axis=1, num_outputs=2)
    none_finished = op.LessOrEqual(op.Slice(state["finished_scores"], [0], [1], [1]), THRESHOLD)
    live_scores = op.Div(state["live_scores"], op.Gather(penalties, state["length"]))
    live_scores = op.Where(op.Greater(state["live_scores"], THRESHOLD), live_scores, EMPTY)
    found_scores = op.Where(none_finished, live_scores, state["finished_scores"])
    found = op.Where(op.Unsqueeze(none_finished, [2]), live, finished)
    # By Concat: CUDA has no Pad of int64.
    longer = op.Sub(op.Shape(state["tokens"], start=2), op.Shape(now["sequences"], start=2))
    shape = op.Concat(op.Shape(now["sequences"], end=2), longer, axis=0)
    padding = op.ConstantOfShape(shape, value=helper.make_tensor("", TensorProto.INT64, [1], [pad]))
    sequences = op.Concat(now["sequences"], padding, axis=2)
    rows = op.Unsqueeze(now["rows"], [1])
    return op.ScatterND(sequences, rows, found), op.ScatterND(now["scores"], rows, found_scores)


def drop_done_sentences(op: GraphBuilder, graphs: SearchGraphs, now: Values, state: Values) -> Values:
    """Remove the sentences that are done or at their limit from the batch dimension of every variable."""
    by_sentence = {name: now[name] for name in graphs.memory} | state | {"rows": now["rows"]}
    length = by_sentence.pop("length")
    leaves = op.Or(state["done"], op.GreaterOrEqual(length, now["memory_limits"]))
    stays = op.Not(op.Squeeze(leaves, [1]))
    after = {name: op.Compress(value, stays, axis=0) for name, value in by_sentence.items()}
    count = op.Shape(after["rows"])
    equal_rows = {name: op.Slice(now[name], [0], count, [0]) for name in graphs.batch_constants}
    return after | equal_rows | {"length": length}


def select_best(
    op: GraphBuilder, sequences: str, scores: str, wanted: str | list[int], pad: int, prefix: str = ""
) -> str:
    """Name the `wanted` best hypotheses {prefix}sequences and {prefix}scores; returns the length of the longest.

    A slot without a finished hypothesis is padding.
    """
    scores = op.Slice(scores, [0], wanted, [1], name=f"{prefix}scores")
    exists = op.Unsqueeze(op.Greater(scores, THRESHOLD), [2])
    tokens = op.Where(exists, op.Slice(sequences, [0], wanted, [1]), pad)
    is_token = op.Cast(op.Not(op.Equal(tokens, pad)), to=TensorProto.INT64)
    longest = op.ReduceMax(op.ReduceSum(is_token, [2], keepdims=0), keepdims=0)
    length = op.Unsqueeze(longest, [0])
    op.Slice(tokens, [0], length, [2], name=f"{prefix}sequences")
    return length


def attention_nodes(op: GraphBuilder, graphs: SearchGraphs, initial: Values) -> list[NodeProto]:
    """Return the nodes that compute best.cross_attentions from best.sequences, with their weights in this graph."""
    if graphs.cross_attentions is None:
        return []
    # The memory of all sentences, as it was before the first one left.
    inputs = [*(initial[name] for name in graphs.memory), initial["positional_encoding"], "best.sequences"]
    rename(graphs.cross_attentions, "attention.", inputs, ["best.cross_attentions"])
    return op.store_tensors(graphs.cross_attentions)


def attention_branches(
    op: GraphBuilder, now: Values, sequences: str, scores: str, pad: int, nodes: list[NodeProto]
) -> dict[str, GraphProto]:
    """Pass the weights on while sentences are left; then run `attention_nodes` on the best hypotheses."""
    later, last = GraphBuilder("later.", op), GraphBuilder("best.", op)
    later.Identity(now["cross_attentions"], name="later.cross_attentions")
    select_best(last, sequences, scores, [1], pad, "best.")
    last.nodes += nodes
    return {
        "then_branch": later.graph({"later.cross_attentions": ATTENTION_TYPE}),
        "else_branch": last.graph({"best.cross_attentions": ATTENTION_TYPE}),
    }
