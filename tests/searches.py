"""Shared by tests of the searches: configurations, searches as functions of a batch, and comparisons."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tiny_models import padded, random_sentences

from vaswani_transformer.beam_search import beam_search
from vaswani_transformer.modeling_vaswani_transformer import VALID_ABOVE
from vaswani_transformer.onnx_translator import graph_inputs, has_repetition
from vaswani_transformer.search_vaswani_transformer import SearchSettings

PAD = 1
SCORE_TOLERANCE = 1e-5
OFFSET = 6  # instead of the paper's 50: a few hypotheses reach their limits

# Configurations; `end_at` is the position at which the fixture's models become likely to end a sentence.
SWITCHES: dict[str, dict[str, Any]] = {
    "paper": {},
    "ends early": {"end_at": 2.0},
    "ends late": {"end_at": 8.0},
    "pre-norm": {"norm_position": "pre"},
    "pre-norm without final norms": {"norm_position": "pre", "encoder_final_norm": False, "decoder_final_norm": False},
    "post-norm with final norms": {"encoder_final_norm": True, "decoder_final_norm": True},
    "learned positions": {"position_embedding_type": "learned", "max_position_embeddings": 40, "position_offset": 2},
    "learned positions that end before the limit": {
        "position_embedding_type": "learned",
        "max_position_embeddings": 13,
        "end_at": 9.0,
    },
    "another base and offset": {"position_base": 500.0, "position_offset": 2},
    "d_k and d_v": {"d_k": 3, "d_v": 5},
    "one head": {"encoder_attention_heads": 1, "decoder_attention_heads": 1},
    "biases": {"attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "two vocabularies": {"decoder_vocab_size": 19, "share_encoder_decoder_embeddings": False},
    "two vocabularies, the target's tied": {
        "decoder_vocab_size": 19,
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": True,
    },
    "gelu": {"activation_function": "gelu"},
    "swish": {"activation_function": "swish"},
    "one layer each": {"encoder_layers": 1, "decoder_layers": 1},
    "starts with the padding token": {"decoder_start_token_id": PAD},
    "fewer tokens than candidates": {"vocab_size": 7},
}
# Not in EXPORTED, for tests in which an export takes most of the time: the same graph, or in MANY_AT_ONCE.
SAME_GRAPH = ["ends early", "ends late", "pre-norm", "learned positions", "d_k and d_v", "one head", "biases"]
SAME_GRAPH += ["two vocabularies", "one layer each"]
EXPORTED = [name for name in SWITCHES if name not in SAME_GRAPH]
MANY_AT_ONCE = {
    "norm_position": "pre",
    **SWITCHES["learned positions"],
    **SWITCHES["d_k and d_v"],
    **SWITCHES["biases"],
    **SWITCHES["two vocabularies"],
}


@dataclass
class Found:
    """n-best lists: tokens without padding; scores (batch, n), or None where the search gives none."""

    tokens: list[list[list[int]]]
    scores: np.ndarray | None


def batch_for(model: Any, seed: int, count: int = 9, longest: int = 9) -> dict[str, Any]:
    return padded(random_sentences(seed, count, model.config.vocab_size, longest))


def stripped(row: list[int]) -> list[int]:
    return [token for token in row if token != PAD]


def found(sequences: Any, scores: Any) -> Found:
    return Found([[stripped(row) for row in sentence] for sentence in sequences.tolist()], scores)


def by_generate(model: Any, batch: dict[str, Any], beams: int, alpha: float, **settings: Any) -> Found:
    settings = {"extra_length": OFFSET, "num_return_sequences": beams} | settings
    output = model.generate(
        **batch, num_beams=beams, length_penalty=alpha, return_dict_in_generate=True, output_scores=True, **settings
    )
    scores = output.sequences_scores.unflatten(0, (-1, beams)).numpy() if beams > 1 else None
    return found(output.sequences[:, 1:].unflatten(0, (-1, beams)), scores)


def by_search(model: Any, batch: dict[str, Any], beams: int, alpha: float, **settings: Any) -> Found:
    settings = {"extra_length": OFFSET, "num_return_sequences": beams} | settings
    search = SearchSettings(beams, alpha, **settings)
    sequences, scores = beam_search(model, batch["input_ids"], batch["attention_mask"], search)
    return found(sequences, scores.numpy())


def by_graph(session: Any, batch: dict[str, Any], **settings: Any) -> Found:
    """Run the graph; settings that are not given have the graph's defaults."""
    inputs = {name: tensor.numpy() for name, tensor in batch.items()}
    every = graph_inputs(SearchSettings(**settings), has_repetition(session))
    changed = {name: value for name, value in every.items() if name in settings}
    return found(*session.run(["sequences", "scores"], inputs | changed))


def check_same(ours: Found, theirs: Found) -> int:
    """Check that the n-best lists agree; return the number of hypotheses.

    Scores must agree within a tolerance. Tokens must agree wherever the score is separated from the list's other
    scores: rounding, which depends on threads and processor, may swap hypotheses that are equally good.
    """
    assert ours.scores is not None
    exists = ours.scores > VALID_ABOVE
    for rows, flags in zip(ours.tokens, exists, strict=True):
        assert not any(row for row, flag in zip(rows, flags, strict=True) if not flag), "an empty slot is padding"
    if theirs.scores is None:
        assert ours.tokens == theirs.tokens
        return int(exists.sum())
    assert np.array_equal(exists, theirs.scores > VALID_ABOVE)
    np.testing.assert_allclose(ours.scores[exists], theirs.scores[exists], atol=SCORE_TOLERANCE, rtol=1e-6)
    for sentence, scores in enumerate(theirs.scores):
        distances = np.abs(scores[:, None] - scores) + np.where(np.eye(len(scores)), np.inf, 0)
        for rank in np.flatnonzero(exists[sentence] & (distances.min(axis=1) > 2 * SCORE_TOLERANCE)):
            assert ours.tokens[sentence][rank] == theirs.tokens[sentence][rank]
    return int(exists.sum())


def matrices_of(graph: Any) -> list[Any]:
    """Return the matrices of a layer's size in an onnx.GraphProto and in its loops."""
    from conversion.onnx.graph_builder import SMALLEST_WEIGHT
    from conversion.onnx.rewrite import walk_graphs

    tensors = [tensor for body in walk_graphs(graph) for tensor in body.initializer]
    return [tensor for tensor in tensors if len(tensor.dims) == 2 and np.prod(tensor.dims) >= SMALLEST_WEIGHT]


def check_every_weight_once(graph: Any, model: Any) -> None:
    """Check that the matrices of a graph have as many elements as the model's, and that no two are equal."""
    from onnx import numpy_helper

    from conversion.onnx.graph_builder import SMALLEST_WEIGHT

    matrices = [numpy_helper.to_array(tensor) for tensor in matrices_of(graph)]
    sizes = [parameter.numel() for parameter in model.parameters() if parameter.dim() == 2]
    assert sum(array.size for array in matrices) == sum(size for size in sizes if size >= SMALLEST_WEIGHT)
    assert len({np.sort(array, axis=None).tobytes() for array in matrices}) == len(matrices)


def session_of(graph: Any) -> Any:
    """Open an ONNX Runtime session with one thread;  graph: an onnx.ModelProto or a file's path"""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # warns about inputs with defaults
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph if isinstance(graph, str) else graph.SerializeToString(), options)
