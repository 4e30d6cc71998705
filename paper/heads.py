"""A report on every head of a model: means over many sentences."""

import math
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer import TorchTranslator
from vaswani_transformer.attention_maps import attention_maps
from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import read_lines

from .result_files import describe_origin, format_table, write_result

MEASURES = ("entropy", "distance", "fixed distance", "end", "agreement")


def read_sentences(text: Path, lines: int) -> list[str]:
    """Return the sentences in the first lines of a text. Raises InputError if there are none."""
    sentences = [line for line in islice(read_lines(text), lines) if line.strip()]
    if not sentences:
        raise InputError(f"--text {text} has no sentence in its first {lines} lines")
    return sentences


def write_heads(output: Path, model: Path, sentences: list[str], command: str) -> str:
    """Write heads.json and return the report in Markdown. command: reproduces the file"""
    started = time.perf_counter()
    translator = TorchTranslator.from_pretrained(model, device="cpu", dtype="float32", local_files_only=True)
    rows = describe_heads(translator, sentences)
    result = {"sentences": len(sentences), "heads": rows} | describe_origin(command, [], time.perf_counter() - started)
    write_result(output / "heads.json", result)
    return format_result(result)


def describe_heads(translator: TorchTranslator, sentences: list[str]) -> list[dict[str, Any]]:
    """Return means over sentences for every head: entropy, distance, share at its best fixed distance, share on </s>.

    Cross-attention heads also have the agreement with the mean over all heads: the share of target tokens for which
    both attend most to the same source token.
    """
    measured: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}
    for sentence in sentences:
        maps = attention_maps(translator.model, translator.tokenizer, sentence, None, translator.target_tokenizer)
        for kind, by_sentence in measured.items():
            by_sentence.append(measure_heads(kind, getattr(maps, kind)))
    return [
        {"kind": kind, "layer": layer, "head": head}
        | {name: round(value, 3) for name, value in zip(MEASURES, values, strict=True) if not math.isnan(value)}
        for kind, by_sentence in measured.items()
        for layer, heads in enumerate(torch.stack(by_sentence).mean(0).tolist(), start=1)
        for head, values in enumerate(heads, start=1)
    ]


def measure_heads(kind: str, weights: Tensor) -> Tensor:
    """Return MEASURES (layers, heads, measure) of the weights (layers, heads, query, key) of one sentence.

    NaN for a measure that this kind of head does not have.
    """
    queries, keys = weights.shape[-2:]
    distance = (torch.arange(queries)[:, None] - torch.arange(keys)).abs().float()
    entropy = torch.special.entr(weights).sum(-1).mean(-1)
    at_distance = [weights.diagonal(offset, -2, -1).sum(-1) / queries for offset in range(-queries + 1, keys)]
    end = agreement = torch.full_like(entropy, torch.nan)
    if kind == "cross":
        of_all_heads = weights.mean((0, 1)).argmax(-1)
        agreement = (weights.argmax(-1) == of_all_heads).float().mean(-1)
    if kind != "decoder":
        end = weights[..., -1].mean(-1)
    columns = (entropy, (weights * distance).sum(-1).mean(-1), torch.stack(at_distance).amax(0), end, agreement)
    return torch.stack(columns, dim=-1)


def format_result(result: dict[str, Any]) -> str:
    """Return the report in Markdown. result: the content of heads.json"""
    return format_table(
        [
            {name: row[name] for name in ("kind", "layer", "head")}
            | {name: f"{row[name]:.2f}" if name in row else "" for name in MEASURES}
            for row in result["heads"]
        ]
    )
