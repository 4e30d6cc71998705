"""Compare model_text.onnx with model.onnx and the tokenizers library: texts and scores must agree."""

import math
from pathlib import Path
from typing import Any, cast

import numpy as np

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.modeling_vaswani_transformer import VALID_ABOVE
from vaswani_transformer.onnx_translator import graph_inputs
from vaswani_transformer.search_vaswani_transformer import SearchSettings

from ..session import open_session, pad_batch, run
from ..verify import BATCH, EQUALLY_GOOD, raise_if_wrong, score_difference
from .join import FIXED_INPUT

# Texts for which tokenizers often differ.
EDGE_CASES = [
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


def verify_text(folder: Path, model: Model, tokenizer: Any, lines: list[str]) -> str:
    """Translate texts with both files and return a report. Raises ProofError.

    lines: texts besides EDGE_CASES; texts with more tokens than learned positions are skipped
    """
    by_ids, by_text = (open_session(folder / name) for name in ("model.onnx", "model_text.onnx"))
    search = SearchSettings.from_generation_config(model.generation_config.to_dict())
    pad = cast(int, model.config.pad_token_id)
    positions = model.config.learned_positions or math.inf
    encoded = [(text, cast(list[int], tokenizer(text, verbose=False)["input_ids"])) for text in [*EDGE_CASES, *lines]]
    encoded = [(text, ids) for text, ids in encoded if len(ids) <= positions]
    different = []
    for i in range(0, len(encoded), BATCH):
        texts, ids = zip(*encoded[i : i + BATCH], strict=True)
        inputs = graph_inputs(search) | {"text": np.array(texts, object)}
        del inputs[FIXED_INPUT]
        found = zip(*(output.tolist() for output in by_text.run(["translations", "scores"], inputs)), strict=True)
        sequences, scores = run(by_ids, pad_batch(list(ids), pad), search)
        for text, (ours, our_score), row, score in zip(texts, found, sequences[:, 0], scores[:, 0], strict=True):
            expected = tokenizer.decode(row.tolist(), skip_special_tokens=True)
            if not text or text.isspace() or score <= VALID_ABOVE:
                expected, score = "", 0.0
            if ours != expected or score_difference(our_score, score) >= EQUALLY_GOOD:
                different.append(f"{text[:40]!r} becomes {ours[:40]!r} instead of {expected[:40]!r}")
    raise_if_wrong([f"{len(different)} of {len(encoded)} texts differ, the first: {text}" for text in different[:1]])
    return f"{len(encoded)} texts by model_text.onnx: compared with model.onnx and tokenizers: the same"
