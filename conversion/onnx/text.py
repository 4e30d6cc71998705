"""The single graph between the two halves of its tokenizer, in a second file: texts in, translations out.

    text, num_beams, max_length, length_penalty, min_length, early_stopping -> translations, scores

It needs ONNX Runtime and no other file. Two of its operators are ONNX Runtime's and not the standard's, see
`text_to_ids.py`; therefore it does not replace `model.onnx`.
"""

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import search_settings_of
from vaswani_transformer.modeling_vaswani_transformer import NO_HYPOTHESIS, target_vocab_size
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from .byte_level_bpe import ByteLevelBPE
from .ids_to_text import texts_of
from .operators import Operators
from .prove import BATCH
from .running import EQUALLY_GOOD, inputs_of, open_session, padded, raise_if_wrong, run, score_difference
from .single_graph import SETTINGS
from .text_to_ids import token_ids

WANTED = "num_return_sequences"  # a constant in this file, 1
# Texts with which tokenizers often differ.
AWKWARD = [
    "",
    "The house is small.",
    "  two  spaces and three   ",
    "</s>",
    "Typed <s> control <pad> tokens </s><unk>.",
    "日本語の文章。 中文, 한국어",
    "🙂👩‍👩‍👧 é e\u0301 İSTANBUL ǅ ﷽",
    "\ttab\t\n\r\n line \u2028\u0085 \u00a0",
    " \u3000\t",
    "it's we'll I'M 'd ''s they're'nt",
    "3.14 1,000 ½ ٣ Ⅷ x2y",
    "From 1987 to 2024 1234567890 people, 20000 of them in 1990.",
    "null \0 and \x1f, \ufffd \U0010ffff",
    "a" * 40,
]


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
    before, after = Operators("text."), Operators("translation.")
    ids, mask, only_space = token_ids(before, "text", bpe, cast(int, model.config.pad_token_id))
    before.Identity(ids, name="input_ids")
    before.Identity(mask, name="attention_mask")
    sequences, scores = (after.Gather(name, 0, axis=1) for name in ("sequences", "search.scores"))
    texts = texts_of(after, sequences, bpe, model.config.vocab_size)
    # As in the Translator, an empty text has an empty translation, and so has one whose search found nothing.
    found = after.And(after.Greater(scores, np.float32(NO_HYPOTHESIS)), after.Not(only_space))
    after.Where(found, texts, b"", name="translations")
    after.Where(found, scores, np.float32(0), name="scores")
    settings = [value for value in inner.input if value.name in SETTINGS and value.name != WANTED]
    tensors = [tensor for tensor in inner.initializer if tensor.name != WANTED]
    tensors += [numpy_helper.from_array(np.array(1), WANTED), *before.tensors, *after.tensors]
    kinds = {"text": TensorProto.STRING, "translations": TensorProto.STRING, "scores": TensorProto.FLOAT}
    text, *outputs = (helper.make_tensor_value_info(name, kind, ["batch"]) for name, kind in kinds.items())
    nodes = [*before.nodes, *inner.node, *after.nodes]
    inner.CopyFrom(helper.make_graph(nodes, "translation of texts", [text, *settings], outputs, tensors))
    graph.opset_import.extend([helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3)])
    return graph


def prove_text(folder: Path, model: Model, tokenizer: Any, lines: list[str]) -> str:
    """Compare model_text.onnx with model.onnx between its tokenizers; returns a report. Raises ProofError.

    lines: texts in addition to the awkward ones; those with more tokens than learned positions are left out
    """
    by_ids, by_text = (open_session(folder / name) for name in ("model.onnx", "model_text.onnx"))
    search, pad = search_settings_of(model.generation_config.to_dict()), cast(int, model.config.pad_token_id)
    most = model.config.max_position_embeddings or math.inf
    encoded = [(text, cast(list[int], tokenizer(text, verbose=False)["input_ids"])) for text in [*AWKWARD, *lines]]
    encoded = [(text, ids) for text, ids in encoded if len(ids) <= most]
    different = []
    for i in range(0, len(encoded), BATCH):
        texts, ids = zip(*encoded[i : i + BATCH], strict=True)
        inputs = inputs_of({}, search) | {"text": np.array(texts, object)}
        del inputs[WANTED]
        found = zip(*(output.tolist() for output in by_text.run(["translations", "scores"], inputs)), strict=True)
        sequences, scores = run(by_ids, padded(ids, pad), search, wanted=1)
        for text, (ours, our_score), row, score in zip(texts, found, sequences[:, 0], scores[:, 0], strict=True):
            expected = tokenizer.decode(row.tolist(), skip_special_tokens=True)
            if not text or text.isspace() or score <= NO_HYPOTHESIS:
                expected, score = "", 0.0
            if ours != expected or score_difference(our_score, score) >= EQUALLY_GOOD:
                different.append(f"{text[:40]!r} becomes {ours[:40]!r}, with token ids {expected[:40]!r}")
    raise_if_wrong([f"{len(different)} of {len(encoded)} texts differ, the first: {text}" for text in different[:1]])
    return f"{len(encoded)} texts by model_text.onnx: compared with model.onnx and tokenizers: the same"
