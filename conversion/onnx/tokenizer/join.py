"""The single graph between the two halves of its tokenizer, in a second file: texts in, translations out.

    text, num_beams, max_length, length_penalty, min_length, early_stopping -> translations, scores

It needs ONNX Runtime and no other file. Two of its operators are ONNX Runtime's and not the standard's, see
`text_to_ids.py`; therefore it does not replace `model.onnx`.
"""

from pathlib import Path
from typing import cast

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.modeling_vaswani_transformer import VALID_ABOVE, target_vocab_size
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from ..graph_builder import GraphBuilder
from ..single_graph import SETTINGS
from .bpe import ByteLevelBPE
from .decode import texts_of
from .encode import token_ids

WANTED = "num_return_sequences"  # a constant in this file, 1


def readable_tokenizer(folder: Path, model: Model) -> ByteLevelBPE:
    """Return the tokenizer to build in. Raises InputError naming what the operators do not support."""
    if (folder / TARGET_TOKENIZER).is_dir() or target_vocab_size(model.config) != model.config.vocab_size:
        raise InputError(f"{folder}: --text needs one vocabulary for both languages; this model has two")
    if not (folder / "tokenizer.json").exists():
        raise InputError(f"{folder / 'tokenizer.json'}: no such file; --text builds it into the graph")
    return ByteLevelBPE.read(folder)


def with_tokenizer(graph: ModelProto, bpe: ByteLevelBPE, model: Model) -> ModelProto:
    """Give the single graph texts for inputs and outputs, in place."""
    inner = graph.graph
    for node in inner.node:  # "scores" becomes the name of the new output
        for values in (node.input, node.output):
            values[:] = ["search.scores" if name == "scores" else name for name in values]
    before, after = GraphBuilder("text."), GraphBuilder("translation.")
    ids, mask, only_space = token_ids(before, "text", bpe, cast(int, model.config.pad_token_id))
    before.Identity(ids, name="input_ids")
    before.Identity(mask, name="attention_mask")
    sequences, scores = (after.Gather(name, 0, axis=1) for name in ("sequences", "search.scores"))
    texts = texts_of(after, sequences, bpe, model.config.vocab_size)
    # As in the Translator, an empty text has an empty translation, and so has one whose search found nothing.
    found = after.And(after.Greater(scores, np.float32(VALID_ABOVE)), after.Not(only_space))
    after.Where(found, texts, b"", name="translations")
    after.Where(found, scores, np.float32(0), name="scores")
    settings = [value for value in inner.input if value.name in SETTINGS and value.name != WANTED]
    tensors = [tensor for tensor in inner.initializer if tensor.name != WANTED]
    tensors += [numpy_helper.from_array(np.array(1), WANTED), *before.tensors, *after.tensors]
    kinds = {"text": TensorProto.STRING, "translations": TensorProto.STRING, "scores": TensorProto.FLOAT}
    text, *outputs = (helper.make_tensor_value_info(name, kind, ["batch"]) for name, kind in kinds.items())
    nodes = [*before.nodes, *inner.node, *after.nodes]
    inner.CopyFrom(helper.make_graph(nodes, "translation of texts", [text, *settings], outputs, tensors))
    graph.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return graph
