"""Encoder, cached decoder and beam search as one ONNX graph of standard operators.

    input_ids, attention_mask, and the settings of the search by the names of SearchSettings
    -> sequences, scores; on request cross_attentions

`start` and `step` from `vaswani_transformer/beam_search.py` are exported unchanged and connected by two nested ONNX
loops:

    initial_values             `start`: encode the sentences; compute tables of the length penalty
    outer_loop                 while sentences are left in the batch:
        inner_loop                 `step` until enough are done (`Step` in torch_export.py); it divides by the length
                                   penalty the log-probabilities of finished hypotheses and, for the stopping rule, of
                                   the best live one
        collect_hypotheses         store their hypotheses; if a sentence is at its limit and none has finished, divide
                                   the log-probabilities of its live hypotheses by the length penalty
        drop_done_sentences        remove them from the batch
    select_best                return the best hypotheses of each sentence

No node reorders the cache when beams change places: as in beam_search.py, `step` reorders a mask of its entries.

torch uses one loop with an `if`. In ONNX, the results of a step without done sentences would pass through a branch of
an If, and ONNX Runtime copies what a branch returns unchanged: in every step the cache and the encoder memory (4 MB:
0.14 ms). Only the outer loop changes the size of the batch, so the inner one reads the memory from around it.

Each weight is stored once:

    outermost graph            weights of `start`, and the matrices that it shares with `step`; a tied output matrix is
                               transposed in `step`, which ONNX Runtime folds at load time
    body of the outer loop     weights that `step` shares with the attention pass, if attention is requested
    body of the inner loop     weights that only `step` reads

ONNX Runtime prepacks MatMul weights only if they belong to the loop that uses them or to the loop directly around it.

The search does not record attention: it explores dozens of hypotheses per result. After the last sentence is done, the
best translations pass through the decoder once more in one call. That call is in the outer loop, so that the weights
that it shares with `step` are stored there: in the outermost graph they would not be prepacked, and steps would take a
sixth longer.
"""

from typing import cast

import numpy as np
import torch
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.attention_maps import eager_copy
from vaswani_transformer.beam_search import SettingTensors
from vaswani_transformer.modeling_vaswani_transformer import (
    EMPTY_SCORE,
    VALID_ABOVE,
    searches_as_transformers,
    target_vocab_size,
)
from vaswani_transformer.onnx_translator import built_in_values, graph_inputs
from vaswani_transformer.search_vaswani_transformer import REPETITION, SearchSettings

from .graph_builder import GraphBuilder, tensor_type
from .torch_export import SearchGraphs, export_search

IDS = ("input_ids", "attention_mask")
VALID, EMPTY = np.float32(VALID_ABOVE), np.float32(EMPTY_SCORE)
ATTENTION_TYPE = tensor_type(TensorProto.FLOAT, 5)
# Loop variables that the outer loop adds to the search state.
RESULT_TYPES = {
    "rows": tensor_type(TensorProto.INT64, 1),  # result row of each sentence still in the batch
    "sequences": tensor_type(TensorProto.INT64, 3),
    "scores": tensor_type(TensorProto.FLOAT, 2),
    "cross_attentions": ATTENTION_TYPE,
}
Values = dict[str, str]  # a variable of the search -> the name of its value in the graph


@torch.no_grad()
def export_single_graph(model: Model, attention: bool = False, repetition: bool = False) -> ModelProto:
    """Export the model and its beam search.

    The generation config supplies the defaults of the search's settings.

    attention: add the output cross_attentions (batch, layers, heads, length, source), of the best hypotheses
    repetition: add the inputs no_repeat_ngram_size and repetition_penalty
    """
    graphs = export_search(eager_copy(model), attention, repetition)
    op, pad = GraphBuilder("search."), cast(int, model.config.pad_token_id)
    # Both are never negative. Without Abs, shape inference takes the default of an input for a constant, and ONNX
    # Runtime folds the shapes that follow: other values would give wrong translations.
    beams, returned = op.Abs("num_beams"), op.Abs("num_return_sequences")
    initial = initial_values(op, graphs, beams, target_vocab_size(model.config), repetition)
    # A sentence is done when the hypotheses to return are final; with a negative lookahead, when all have finished. In
    # a search of transformers, all must be final.
    awaits_all = searches_as_transformers(model)
    needed = beams if awaits_all else op.Where(op.Less("early_stopping", 0), beams, returned)
    final = outer_loop(op, graphs, initial, op.Unsqueeze(op.Sub(needed, 1), [0]), pad)
    length = select_best(op, final["sequences"], final["scores"], op.Unsqueeze(returned, [0]), pad)
    if attention:
        # The best hypotheses may be shorter than the others.
        padding = op.Sub(length, op.Shape(final["cross_attentions"], start=3, end=4))
        op.Pad(final["cross_attentions"], op.Concat([0], padding, axis=0), "", [3], name="cross_attentions")
    exported = op.model("translation", *inputs_and_outputs(model, attention, repetition))
    config = model.config.to_dict() | {"max_position_embeddings": model.config.learned_positions}
    built_in = built_in_values(config, model.generation_config.to_dict())
    helper.set_model_props(exported, built_in)  # which OnnxTranslator compares
    return exported


def inputs_and_outputs(model: Model, attention: bool, repetition: bool) -> tuple[list, list, list]:
    """Return the inputs and outputs of the file, and the default values of optional inputs."""
    defaults = [numpy_helper.from_array(value, name) for name, value in default_inputs(model, repetition).items()]
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


def default_inputs(model: Model, repetition: bool) -> dict[str, np.ndarray]:
    """Return the defaults of the scalar inputs: the settings in the model's generation config."""
    return graph_inputs(SearchSettings.from_generation_config(model.generation_config.to_dict()), repetition)


def initial_values(op: GraphBuilder, graphs: SearchGraphs, beams: str, vocabulary: int, repetition: bool) -> Values:
    """Encode the sentences. Return the outputs of `start`, and empty results for each row of the batch."""
    # `count_initial_hypotheses`: 2 x num_beams / vocabulary, rounded up
    initial_live = op.Div(op.Add(op.Mul(beams, 2), vocabulary - 1), vocabulary)
    # As in `beam_search`: the most output tokens of any sentence. Abs as above.
    own, common = op.Abs("extra_length"), op.Abs("max_new_tokens")
    own = op.Add(op.Squeeze(op.Shape("input_ids", start=1), [0]), own)
    longest = op.Where(op.Greater(common, 0), common, own)
    settings = [name for name in SettingTensors._fields if repetition or name not in REPETITION]
    inputs = [*IDS, *(op.Range(0, size, 1) for size in (beams, longest, initial_live)), *settings]
    initial = {name: f"first.{name}" for name in graphs.types}
    op.inline(graphs.start, "start.", inputs, [*initial.values()])
    rows = op.Range(0, op.Squeeze(op.Shape("input_ids", end=1), [0]), 1)
    sequences, _ = op.Split(initial["tokens"], axis=1, num_outputs=2)  # (batch, beams, 0)
    results = {"rows": rows, "sequences": sequences, "scores": initial["finished_scores"]}
    if graphs.cross_attentions is not None:
        results["cross_attentions"] = op.constant(np.zeros([0] * 5, np.float32))
    return initial | results


def outer_loop(op: GraphBuilder, graphs: SearchGraphs, initial: Values, last_index: str, pad: int) -> Values:
    """Build the outer loop: search until sentences are done, store their hypotheses and drop them, until the batch is
    empty. Return the final values of its variables."""
    body = GraphBuilder("outer.", op)
    current = {name: f"outer.{name}" for name in initial if name not in graphs.constants}
    # Before the inner loop, so that weights shared with `step` are stored in this body.
    attention = attention_nodes(body, graphs, initial)
    state = inner_loop(body, graphs, initial | current, last_index)
    sequences, scores = collect_hypotheses(body, state, current, initial["penalties"], pad)
    after = drop_done_sentences(body, graphs, current, state) | {"sequences": sequences, "scores": scores}
    any_left = body.Greater(body.Squeeze(body.Shape(after["rows"]), [0]), 0)
    if attention:
        branches = attention_branches(body, current, sequences, scores, pad, attention)
        after["cross_attentions"] = body.If(any_left, **branches)
    variables, types = {current[name]: initial[name] for name in current}, graphs.types | RESULT_TYPES
    final = op.loop(body, variables, [types[name] for name in current], any_left, [after[name] for name in current])
    return dict(zip(current, final, strict=True))


def inner_loop(op: GraphBuilder, graphs: SearchGraphs, current: Values, last_index: str) -> Values:
    """Build the inner loop: take steps until `Step` in torch_export.py ends it. Return the new state."""
    body = GraphBuilder("inner.", op)
    inner_names = {name: f"inner.{name}" for name in graphs.state}
    known = [current[name] for name in (*graphs.memory, *graphs.constants)]
    after = [f"after.{name}" for name in inner_names]
    body.inline(graphs.step, "step.", [*known, *inner_names.values(), last_index], [*after, "condition"])
    variables = {inner_names[name]: current[name] for name in inner_names}
    op.nodes += body.hoist_loop_invariants(variables)
    final = op.loop(body, variables, [graphs.types[name] for name in inner_names], "condition", after)
    return dict(zip(inner_names, final, strict=True))


def collect_hypotheses(op: GraphBuilder, state: Values, current: Values, penalties: str, pad: int) -> tuple[str, str]:
    """Write each sentence's hypotheses to its result row; unfinished sentences overwrite them later.

    If no hypothesis has finished at a sentence's limit, its live hypotheses count, and the length penalty is applied to
    them here. `step` has applied it to the finished ones. `collect_results` in beam_search.py is the same rule.
    """
    live, finished = op.Split(state["tokens"], axis=1, num_outputs=2)
    none_finished = op.LessOrEqual(op.Slice(state["finished_scores"], [0], [1], [1]), VALID)
    live_scores = op.Div(state["live_log_probs"], op.Gather(penalties, state["length"]))
    live_scores = op.Where(op.Greater(state["live_log_probs"], VALID), live_scores, EMPTY)
    found_scores = op.Where(none_finished, live_scores, state["finished_scores"])
    first_live = op.Slice(state["live_log_probs"], [0], [1], [1])
    found_scores = op.Where(op.IsNaN(first_live), first_live, found_scores)
    found = op.Where(op.Unsqueeze(none_finished, [2]), live, finished)
    # Concat instead of Pad: the CUDA provider has no int64 Pad.
    longer = op.Sub(op.Shape(state["tokens"], start=2), op.Shape(current["sequences"], start=2))
    shape = op.Concat(op.Shape(current["sequences"], end=2), longer, axis=0)
    padding = op.ConstantOfShape(shape, value=helper.make_tensor("", TensorProto.INT64, [1], [pad]))
    sequences = op.Concat(current["sequences"], padding, axis=2)
    rows = op.Unsqueeze(current["rows"], [1])
    return op.ScatterND(sequences, rows, found), op.ScatterND(current["scores"], rows, found_scores)


def drop_done_sentences(op: GraphBuilder, graphs: SearchGraphs, current: Values, state: Values) -> Values:
    """Remove the sentences that are done or at their limit from the batch dimension of every variable."""
    batched = {name: current[name] for name in graphs.memory} | state | {"rows": current["rows"]}
    length = batched.pop("length")
    drop = op.Or(state["done"], op.GreaterOrEqual(length, current["memory_limits"]))
    keep = op.Not(op.Squeeze(drop, [1]))
    after = {name: op.Compress(value, keep, axis=0) for name, value in batched.items()}
    return after | {"length": length}


def select_best(
    op: GraphBuilder, sequences: str, scores: str, count: str | list[int], pad: int, prefix: str = ""
) -> str:
    """Select the `count` best hypotheses, and return the length of the longest one.

    The results are named {prefix}sequences and {prefix}scores. A slot without a hypothesis is padding.
    """
    scores = op.Slice(scores, [0], count, [1], name=f"{prefix}scores")
    exists = op.Unsqueeze(op.Greater(scores, VALID), [2])
    tokens = op.Where(exists, op.Slice(sequences, [0], count, [1]), pad)
    is_token = op.Cast(op.Not(op.Equal(tokens, pad)), to=TensorProto.INT64)
    longest = op.ReduceMax(op.ReduceSum(is_token, [2], keepdims=0), keepdims=0)
    length = op.Unsqueeze(longest, [0])
    op.Slice(tokens, [0], length, [2], name=f"{prefix}sequences")
    return length


def attention_nodes(op: GraphBuilder, graphs: SearchGraphs, initial: Values) -> list[NodeProto]:
    """Return the nodes that compute best.cross_attentions from best.sequences; their weights are stored in `op`."""
    if graphs.cross_attentions is None:
        return []
    # The encoder memory of the full batch, before sentences were dropped.
    inputs = [*(initial[name] for name in graphs.memory), initial["positional_encoding"], "best.sequences"]
    branch = GraphBuilder("best.", op)
    branch.inline(graphs.cross_attentions, "attention.", inputs, ["best.cross_attentions"], initializer_graph=op)
    return branch.nodes


def attention_branches(
    op: GraphBuilder, current: Values, sequences: str, scores: str, pad: int, nodes: list[NodeProto]
) -> dict[str, GraphProto]:
    """Build the If branches: keep `cross_attentions` unchanged while sentences remain, compute it after the last one.

    nodes: from `attention_nodes`
    """
    unchanged, computed = GraphBuilder("later.", op), GraphBuilder("best.", op)
    unchanged.Identity(current["cross_attentions"], name="later.cross_attentions")
    select_best(computed, sequences, scores, [1], pad, prefix="best.")
    computed.nodes += nodes
    return {
        "then_branch": unchanged.graph({"later.cross_attentions": ATTENTION_TYPE}),
        "else_branch": computed.graph({"best.cross_attentions": ATTENTION_TYPE}),
    }
