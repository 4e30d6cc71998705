"""Texts in, translations out: the single graph with its tokenizer before and after it, in a file of its own.

    text, num_beams, max_length, length_penalty, min_length -> translations, scores

It runs wherever ONNX Runtime does, with nothing beside it. Two of its operators are ONNX Runtime's own, not the
standard's (`text_to_ids.py` says which and why); therefore `model.onnx` stays as it is.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError, UnavailableError, one_line
from vaswani_transformer.loading import target_vocabulary
from vaswani_transformer.modeling_vaswani_transformer import (
    NO_HYPOTHESIS,
    VaswaniTransformerForConditionalGeneration,
)
from vaswani_transformer.text_vaswani_transformer import MAX_SOURCE_LENGTH, TARGET_TOKENIZER

from .ids_to_text import texts_of
from .operators import Operators
from .prove import EQUALLY_GOOD, open_session, run
from .sentences import BATCH, padded
from .single_graph import SETTINGS
from .text_to_ids import ByteLevelBPE, token_ids
from .traced import NO_MAXIMUM

WANTED = "num_return_sequences"  # in this file a constant: the best one
# What tokenizers get wrong first.
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


def readable_tokenizer(folder: Path, model: VaswaniTransformerForConditionalGeneration) -> ByteLevelBPE:
    """The tokenizer as operators can have it. Raises InputError naming what they cannot."""
    if (folder / TARGET_TOKENIZER).is_dir() or target_vocabulary(model.config) != model.config.vocab_size:
        raise InputError(f"{folder}: --text needs one vocabulary for both languages; this model has two")
    if not (folder / "tokenizer.json").exists():
        raise InputError(f"{folder / 'tokenizer.json'}: no such file; --text puts it into the graph")
    return ByteLevelBPE.read(folder)


def with_tokenizer(
    graph: ModelProto, bpe: ByteLevelBPE, model: VaswaniTransformerForConditionalGeneration
) -> ModelProto:
    """The single graph, in place, with texts in the place of ids."""
    inner = graph.graph
    for node in inner.node:  # the name is the new output's
        for values in (node.input, node.output):
            values[:] = ["search.scores" if name == "scores" else name for name in values]
    before, after = Operators("text."), Operators("translation.")
    ids, mask, only_space = token_ids(before, "text", bpe, cast(int, model.config.pad_token_id))
    sequences, scores = (after.Gather(name, 0, axis=1) for name in ("sequences", "search.scores"))
    texts = texts_of(after, sequences, bpe, model.config.vocab_size)
    # The Translator's: an empty text is not translated, and what has no end is no translation.
    found = after.And(after.Greater(scores, np.float32(NO_HYPOTHESIS)), after.Not(only_space))
    nodes = [
        *before.nodes,
        helper.make_node("Identity", [ids], ["input_ids"]),
        helper.make_node("Identity", [mask], ["attention_mask"]),
        *inner.node,
        *after.nodes,
        helper.make_node("Where", [found, texts, after.constant(b"")], ["translations"]),
        helper.make_node("Where", [found, scores, after.constant(np.float32(0))], ["scores"]),
    ]
    settings = [value for value in inner.input if value.name in SETTINGS and value.name != WANTED]
    tensors = [tensor for tensor in inner.initializer if tensor.name != WANTED]
    tensors += [numpy_helper.from_array(np.array(1), WANTED), *before.tensors, *after.tensors]
    whole = helper.make_graph(
        nodes,
        "translation of texts",
        [helper.make_tensor_value_info("text", TensorProto.STRING, ["batch"]), *settings],
        [
            helper.make_tensor_value_info("translations", TensorProto.STRING, ["batch"]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch"]),
        ],
        initializer=tensors,
    )
    graph.graph.CopyFrom(whole)
    graph.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return graph


# ---- proof -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextProof:
    """Texts, translated by the file with the tokenizer, and by the one without."""

    texts: int
    with_torch: int  # those that torch's Translator was asked for, too

    def line(self) -> str:
        beside = f", {self.with_torch} of them with torch's Translator" if self.with_torch else ""
        return f"{self.texts} texts by model_text.onnx: compared with model.onnx and tokenizers{beside}: the same"


def prove_text(
    folder: Path,
    model: VaswaniTransformerForConditionalGeneration,
    tokenizer: Any,
    lines: list[str],
    precision: str = "fp32",
) -> tuple[TextProof, list[str]]:
    """model_text.onnx beside model.onnx: the same translations and scores, in any precision; fp32: as torch, too.

    lines: texts beside the awkward ones;  those that have too many tokens for learned positions are left out
    Raises UnavailableError if this ONNX Runtime is too old for the file.
    """
    by_ids = open_session(folder / "model.onnx")
    try:
        by_text = open_session(folder / "model_text.onnx")
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        import onnxruntime

        raise UnavailableError(
            f"onnxruntime {onnxruntime.__version__} does not run what --text writes "
            f"({one_line(str(error))[:200]}): pip install --upgrade onnxruntime"
        ) from None
    translator = Translator(model, tokenizer)
    most = model.config.max_position_embeddings
    beams, alpha = translator.own_search
    encoded = [(text, cast(list[int], tokenizer(text, verbose=False)["input_ids"])) for text in [*AWKWARD, *lines]]
    encoded = [(text, ids) for text, ids in encoded if most is None or len(ids) <= most]
    different, with_torch = [], 0
    for i in range(0, len(encoded), BATCH):
        texts, ids = zip(*encoded[i : i + BATCH], strict=True)
        sequences, best = run(by_ids, padded(list(ids), translator.pad), beams, alpha, NO_MAXIMUM, wanted=1)
        expected = []
        for text, row, score in zip(texts, sequences[:, 0].tolist(), best[:, 0].tolist(), strict=True):
            exists = bool(text) and not text.isspace() and score > NO_HYPOTHESIS
            expected.append((tokenizer.decode(row, skip_special_tokens=True), score) if exists else ("", 0.0))
        settings = {"num_beams": beams, "max_length": NO_MAXIMUM, "min_length": 0}
        inputs = {name: np.array(value, np.int64) for name, value in settings.items()}
        inputs |= {"text": np.array(texts, object), "length_penalty": np.array(alpha, np.float32)}
        translations, scores = (np.asarray(output) for output in by_text.run(["translations", "scores"], inputs))
        found = list(zip(translations.tolist(), scores.tolist(), strict=True))
        different += [
            f"{text[:40]!r} becomes {ours[0][:40]!r}, with token ids {theirs[0][:40]!r}"
            for text, ours, theirs in zip(texts, found, expected, strict=True)
            if ours[0] != theirs[0] or far_apart(ours[1], theirs[1])
        ]
        if precision == "fp32":
            # The Translator cuts what is longer.
            short = [n for n, row in enumerate(ids) if len(row) <= MAX_SOURCE_LENGTH]
            by_torch = translator.translate(
                [texts[n] for n in short], num_beams=beams, length_penalty=alpha, return_scores=True
            )
            with_torch += len(short)
            different += [
                f"{texts[n][:40]!r} becomes {found[n][0][:40]!r}, with torch {best.text[:40]!r}"
                for n, (best, *_) in zip(short, by_torch, strict=True)
                if found[n][0] != best.text and far_apart(found[n][1], best.score)
            ]
    wrong = (
        [f"of {len(encoded)} texts {len(different)} come out otherwise, the first: {different[0]}"] if different else []
    )
    return TextProof(len(encoded), with_torch), wrong


def far_apart(score: float, other: float) -> bool:
    """Whether two scores differ by more than float32 rounds."""
    return abs(score - other) >= EQUALLY_GOOD * max(1.0, abs(other))
