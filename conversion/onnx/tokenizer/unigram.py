"""A unigram model of SentencePiece, as `vaswani-transformer convert` writes it (conversion/sentencepiece_model.py).

The text of each part between symbols is normalised, and `▁` stands for spaces and in front of it. Spaces stand around
runs of characters that are in no piece, because a token of the other language may be such a run.
"""

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from vaswani_transformer.sentences_vaswani_transformer import choose_cleaning

from .charsmap import Charsmap
from .source import (
    SourceTokenizer,
    find_end,
    list_parts,
    list_symbols,
    list_unsupported_ends,
    read_tokenizer_json,
    read_type,
    refuse_unsupported,
)

SPACE = "▁"
REMOVE_EXTRA_SPACES = [
    {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
]
MARK_SPACES = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
ADD_PREFIX = [{"type": "Prepend", "prepend": SPACE}]
UNKNOWN_PENALTY = 10.0  # of the tokenizers library: this much below the lowest score


@dataclass(frozen=True, kw_only=True)
class Unigram(SourceTokenizer):
    pieces: list[tuple[str, float]]  # with their scores, by id
    unknown: int  # the id of runs of unknown characters
    charsmap: Charsmap | None
    removes_extra_spaces: bool
    adds_prefix: bool
    unknown_characters: str | None  # a pattern: around runs of these characters are spaces
    split: list[str]  # strings whose first character is no part of a longer piece

    @classmethod
    def read(cls, folder: Path) -> "Unigram":
        """Read the tokenizer of a folder. Raises InputError naming everything that the operators do not support."""
        content, settings = read_tokenizer_json(folder)
        steps = list_parts(content.get("normalizer"), "normalizers")
        charsmap = None
        if steps and read_type(steps[0]) == "Precompiled":
            charsmap = Charsmap.read(base64.b64decode(steps[0]["precompiled_charsmap"]))
            steps = steps[1:]
        removes_extra_spaces, steps = skip_steps(steps, REMOVE_EXTRA_SPACES)
        marks_spaces, steps = skip_steps(steps, MARK_SPACES)
        adds_prefix, steps = skip_steps(steps, ADD_PREFIX)
        unknown_characters = find_unknown_characters(steps)
        _, steps = skip_steps(steps, mark_runs(unknown_characters))
        split = find_split(content.get("pre_tokenizer"))
        found = list_unsupported(content, settings)
        if steps or not marks_spaces:
            found.append(f"normalizer {json.dumps(steps[0])[:80]}" if steps else f"normalizer without {SPACE}")
        if split is None:
            found.append(f"pre_tokenizer {json.dumps(content['pre_tokenizer'])[:80]}")
        refuse_unsupported(folder, found)
        symbols = list_symbols(content)
        loaded = Tokenizer.from_str(json.dumps(content))
        # The library reads a score with an error of one bit now and then; here they are as it has read them.
        vocabulary = json.loads(loaded.to_str())["model"]["vocab"]
        return cls(
            clean=choose_cleaning(loaded.normalizer),
            pieces=[(piece, score) for piece, score in vocabulary],
            unknown=content["model"]["unk_id"],
            charsmap=charsmap,
            removes_extra_spaces=removes_extra_spaces,
            adds_prefix=adds_prefix,
            unknown_characters=unknown_characters,
            split=split or [],
            symbols={token["content"]: token["id"] for token in symbols},
            strips_after_symbols=any(token["rstrip"] for token in symbols),
            end=find_end(content["post_processor"])[0],
        )

    @property
    def unknown_score(self) -> float:
        return min(score for _, score in self.pieces) - UNKNOWN_PENALTY


def list_unsupported(content: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Return the fields of tokenizer.json and tokenizer_config.json that the operators do not support."""
    model, symbols = content["model"], list_symbols(content)
    found = ["model.byte_fallback true"] if model.get("byte_fallback") else []
    if model.get("unk_id") is None:
        found.append("model.unk_id null")
    found += [f"added_tokens {token['content']!r} that is normalized" for token in symbols if token.get("normalized")]
    if len({bool(token.get("rstrip")) for token in symbols}) > 1:
        found.append("added_tokens with rstrip and without it")
    return found + list_unsupported_ends(content, settings)


def skip_steps(steps: list[Any], expected: list[Any]) -> tuple[bool, list[Any]]:
    """Return whether the steps begin with those that are expected, and the steps after them."""
    is_found = steps[: len(expected)] == expected
    return is_found, steps[len(expected) :] if is_found else steps


def find_unknown_characters(steps: list[Any]) -> str | None:
    """Return the pattern of the characters around whose runs these steps put spaces, see `mark_runs`."""
    pattern = steps[0].get("pattern", {}).get("Regex", "") if steps else ""
    found = re.fullmatch(r"\(\?<!(\[\^.+\])\)\(\?=\1\)", pattern, re.DOTALL)
    return found[1] if found else None


def mark_runs(unknown: str | None) -> list[dict[str, Any]]:
    """Return the steps that put a space before each run of such characters, and two after it."""
    steps = {f"(?<!{unknown})(?={unknown})": " ", f"(?<={unknown})(?!{unknown}| )": "  "}
    found = [{"type": "Replace", "pattern": {"Regex": regex}, "content": spaces} for regex, spaces in steps.items()]
    return found if unknown else []


def find_split(step: Any) -> list[str] | None:
    """Return the strings whose first character is split off by a pre_tokenizer, or None if it does anything else."""
    if step is None:
        return []
    pattern = step.get("pattern", {}).get("Regex", "") if read_type(step) == "Split" else ""
    literal = r"((?:\\.|[^\\|()])+)"
    parts = re.findall(rf"{literal}\(\?={literal}\)", pattern)
    expected = "|".join(f"{first}(?={rest})" for first, rest in parts)
    strings = [[re.sub(r"\\(.)", r"\1", part) for part in pair] for pair in parts]
    is_known = parts and pattern == expected and all(len(first) == 1 for first, _ in strings)
    is_isolated = step.get("behavior") == "Isolated" and not step.get("invert")
    return ["".join(pair) for pair in strings] if is_known and is_isolated else None
