"""Verify exported files on real texts: time model.onnx, and compare model_text.onnx with the tokenizers library."""

import math
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import ModelFolder
from vaswani_transformer.modeling_vaswani_transformer import VALID_ABOVE
from vaswani_transformer.onnx_translator import graph_inputs, has_repetition
from vaswani_transformer.search_vaswani_transformer import SearchSettings
from vaswani_transformer.sentences_vaswani_transformer import LanguageTokens, choose_cleaning

from .tokenizer import FIXED_INPUT
from .verify import (
    BATCH,
    EQUALLY_GOOD,
    compare,
    open_session,
    pad_batch,
    raise_if_wrong,
    run,
    same_tokens,
    score_difference,
    translate,
)

# Texts for which tokenizers often differ.
EDGE_CASES = [
    "",
    "The house is small.",
    "  two  spaces and three   ",
    "</s>",
    "Typed <s> control <pad> tokens </s><unk>.",
    "日本語の文章。 中文, 한국어",
    "🙂👩‍👩‍👧 é e\u0301 İSTANBUL ǅ ﷽",
    "s\xado\u200bft \ufeffm\u2060arks\u200d \u0645\u06cc\u200c\u0631\u0648\u0645 👩\u200d🚀 \u3000\xa0",
    "* * * 🙂",
    "\ttab\t\n\r\n line \u2028\u0085 \u00a0",
    " \u3000\t",
    "it's we'll I'M 'd ''s they're'nt",
    "3.14 1,000 ½ ٣ Ⅷ x2y",
    "From 1987 to 2024 1234567890 people, 20000 of them in 1990.",
    "Cafe\u0301 Zu\u0308rich A\u030a\u0301 \u212b\u0301, \u0438\u0306 \u03b1\u0301\u0345",
    "\u0639\u064e\u0631\u064e\u0628\u0650\u064a \u0915\u093c\u094d\u0937 \u304b\u3099 \u1112\u1161\u11ab",
    "ＡＢｃ １２ ｶﾞ ﬁ ½ ™ ㎏ ﷺ ᵃ « …»",
    "null \0 and \x1f, \ufffd \U0010ffff",
    "a" * 40,
]


def tokenize_sentences(lines: list[str], tokenizer: Any, model: Model, name: str) -> list[list[int]]:
    """Tokenize the lines that are not blank, and sort them by length. Raises InputError naming a line too long."""
    positions = model.config.learned_positions
    sentences = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        ids = cast(list[int], tokenizer(line, verbose=False)["input_ids"])
        if positions is not None and len(ids) > positions:
            raise InputError(f"{name} line {number} has {len(ids)} tokens; the model has {positions} positions")
        sentences.append(ids)
    if not sentences:
        raise InputError(f"{name} has no sentence: every line is blank")
    return sorted(sentences, key=len)


def time_sentences(path: Path, model: Model, sentences: list[list[int]], precision: str = "fp32") -> str:
    """Translate sentences with `generate()`, the graph and the search in torch, and return a report.

    Random tokens show that a graph is correct, but its speed depends on the lengths of real translations.

    sentences: token ids, sorted by length so that batches have little padding. Raises ProofError.
    """
    session, pad = open_session(path), cast(int, model.config.pad_token_id)
    search = SearchSettings.from_generation_config(model.generation_config.to_dict())
    batches = [pad_batch(sentences[i : i + BATCH], pad) for i in range(0, len(sentences), BATCH)]
    seconds, same_as_generate = np.zeros(3), 0
    for turn, batch in enumerate([batches[0], *batches]):  # the three take turns, so that other load slows all of them
        begun = time.perf_counter()
        generated = cast(Any, model).generate(**batch, **vars(search))[:, None, 1:].numpy()
        generation = time.perf_counter() - begun
        found = translate(session, model, batch, search)
        wrong = compare(found, model, batch, search, precision).wrong
        raise_if_wrong([f"sentences: {reason}" for reason in wrong])
        if turn > 0:  # the first one warms up
            seconds += generation, *found.seconds
            same_as_generate += int(same_tokens(found.sequences, generated, pad).sum())
    of_generate, of_graph, of_torch = seconds
    return (
        f"{len(sentences)} sentences, {BATCH} at a time, beam {search.num_beams}, {torch.get_num_threads()} thread(s): "
        f"generate() {of_generate:.2f} s, our search in torch {of_torch:.2f} s, model.onnx {of_graph:.2f} s: "
        f"{of_generate / of_graph:.1f} times as fast as generate(); "
        f"{same_as_generate} of {len(sentences)} translations are the same"
    )


def verify_text(folder: Path, model: Model, source: ModelFolder, lines: list[str]) -> str:
    """Translate texts with both files and return a report. Raises ProofError.

    source: the folder that was exported, for its tokenizers
    lines: texts besides EDGE_CASES; texts with more tokens than learned positions are skipped
    """
    by_ids, by_text = (open_session(folder / name) for name in ("model.onnx", "model_text.onnx"))
    search = SearchSettings.from_generation_config(model.generation_config.to_dict())
    pad = cast(int, model.config.pad_token_id)
    positions = model.config.learned_positions or math.inf
    clean = choose_cleaning(source.tokenizer.normalizer)
    tagged = [f"{token} {text}" for token in LanguageTokens(source.tokenizer).tokens[:1] for text in EDGE_CASES]
    texts = [*EDGE_CASES, *tagged, *lines]
    encoded = [(text, source.tokenizer.encode(clean(text)).ids) for text in texts]
    encoded = [(text, ids) for text, ids in encoded if len(ids) <= positions]
    different = []
    for i in range(0, len(encoded), BATCH):
        texts, ids = zip(*encoded[i : i + BATCH], strict=True)
        inputs = graph_inputs(search, has_repetition(by_text)) | {"text": np.array(texts, object)}
        del inputs[FIXED_INPUT]
        found = zip(*(output.tolist() for output in by_text.run(["translations", "scores"], inputs)), strict=True)
        sequences, scores = run(by_ids, pad_batch(ids, pad), search)
        for text, (ours, our_score), row, score in zip(texts, found, sequences[:, 0], scores[:, 0], strict=True):
            expected = source.target_tokenizer.decode(row.tolist(), skip_special_tokens=True)
            is_copied = not any(letter.isalnum() for letter in text)
            if is_copied or score <= VALID_ABOVE:
                expected, score = text if is_copied else "", 0.0
            if ours != expected or score_difference(our_score, score) >= EQUALLY_GOOD:
                different.append(f"{text[:40]!r} becomes {ours[:40]!r} instead of {expected[:40]!r}")
    raise_if_wrong([f"{len(different)} of {len(encoded)} texts differ, the first: {text}" for text in different[:1]])
    return f"{len(encoded)} texts by model_text.onnx: compared with model.onnx and tokenizers: the same"
