"""Refuse a tokenizer.json with a step by which a short text would fill the memory, or take minutes."""

import base64
import json
import re
import reprlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BrokenFileError
from .sentences_vaswani_transformer import CLEANING

if TYPE_CHECKING:  # imported where it is used, so that --help is fast
    from tokenizers import Tokenizer

MOST_LETTERS_OF_A_LETTER = 10_000  # by all steps of a tokenizer; SentencePiece's normalisation may make 18
# Steps of tokenizers that may double each letter, besides those with a text to insert. A second ByteLevel encodes what
# the first has made; the others insert a space everywhere if the text that they replace is empty.
DOUBLING = ("ByteLevel", "BPEDecoder", "CTC")
# Of regular expressions: an escaped character or a set, a group without another inside, and a repetition.
ESCAPE_OR_SET = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]])*\]")
INNER_GROUP = re.compile(r"\(([^()]*)\)([+*]|\{\d*,)?")
REPETITION = re.compile(r"[+*]|\{\d*,\d*\}")
# What patterns are tried on: these letters, a few of each kind, and the pattern's own, each so many times. With two
# long repetitions, as in `a+a+[bc]`, a pattern takes 0.4 s for 1,000 letters, minutes for 10,000; GPT-4o's, 0.2 ms.
USUAL_LETTERS = "aA0 .\n\u02b0\u03b1\u0431\u0627\u6f22"
MOST_LETTERS_TRIED = 200
REPEATED = (125, 250, 500, 1000)  # growing, so that no trial takes more than seconds
LONGEST_TRIAL = 0.05  # CPU seconds
OWN_PATTERNS = {pattern for pattern, _ in CLEANING}  # which need no trial: it takes 24 ms


def list_steps(tokenizer: "Tokenizer", names: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the steps of these parts, each with the name of its part; those of a sequence one by one."""
    for name in names:
        part = getattr(tokenizer, name)
        steps = [] if part is None else [json.loads(part.__getstate__())]
        while steps:
            step = steps.pop(0)
            if step["type"] == "Sequence":
                steps = [inner for value in step.values() if isinstance(value, list) for inner in value] + steps
            else:
                yield name, step


def check_growth(path: Path, tokenizer: "Tokenizer") -> None:
    """Raise BrokenFileError naming the step by which a short text would fill the memory.

    A step multiplies what an earlier one has inserted only if it matches a letter of it, which the escapes of a toolkit
    do not do.
    """
    for names in (("normalizer", "pre_tokenizer"), ("decoder",)):
        most = floor = 1.0  # the most letters that any letter has become, and one that no step has inserted
        inserted: dict[str, float] = {}  # the same for the letters of inserted texts
        for name, step in list_steps(tokenizer, names):
            text = step.get("content", step.get("prepend")) if step["type"] in ("Replace", "Prepend") else None
            matched = "" if text is None else step.get("pattern", {}).get("String", "")
            before = max((inserted.get(letter, floor) for letter in matched), default=most)
            after = before * measure_growth(step, text, matched)
            most = max(most, after)
            if most > MOST_LETTERS_OF_A_LETTER:
                raise BrokenFileError(
                    f"{path}: {name} may make {most:,.0f} letters of one, with its step {step['type']} "
                    f"{reprlib.repr(text or '')}; at most {MOST_LETTERS_OF_A_LETTER:,} are supported: shorten or "
                    "remove the step"
                )
            if text is None:  # it may turn an inserted letter into any other
                floor, inserted = most, {}
            else:
                inserted |= {letter: max(inserted.get(letter, floor), after) for letter in text}


def measure_growth(step: dict[str, Any], text: str | None, matched: str) -> float:
    """Return the largest number of letters that a step of a tokenizer makes of one.

    text: what the step inserts, if it is given.  matched: what it replaces; "" for a place or a regular expression
    """
    if text is not None:
        return max(1, len(text) / len(matched) if matched else 1 + len(text))
    if step["type"] == "Precompiled":  # of SentencePiece: the size of a trie, the trie, texts that end in a zero
        charsmap = base64.b64decode(step["precompiled_charsmap"])
        return max(map(len, charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")), default=1)
    return 2 if step["type"] in DOUBLING else 1


def check_patterns(path: Path, tokenizer: "Tokenizer") -> None:
    """Raise BrokenFileError naming a regular expression that can keep the library busy for minutes, as `(a+)+b` can."""
    for name, step in list_steps(tokenizer, ("normalizer", "pre_tokenizer", "decoder")):
        pattern = step["pattern"].get("Regex") if isinstance(step.get("pattern"), dict) else None
        if pattern is None or pattern in OWN_PATTERNS:
            continue
        if has_nested_repetition(pattern) or is_slow(pattern):
            raise BrokenFileError(
                f"{path}: {name} has the pattern {reprlib.repr(pattern)}, which may take minutes for a short text; "
                "write it without a repetition inside a repeated group or two long repetitions of the same letters"
            )


def is_slow(pattern: str) -> bool:
    """Return whether a regular expression takes long for any of its letters repeated."""
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    letters = list(dict.fromkeys(USUAL_LETTERS + pattern))[:MOST_LETTERS_TRIED]
    rest = "\0" + "".join(letters)  # the library does not even begin where a letter that must follow is nowhere
    for letter in letters:
        for times in REPEATED:
            start = time.thread_time()  # not the clock's, which a busy machine lengthens
            split.pre_tokenize_str(letter * times + rest)
            if time.thread_time() - start > LONGEST_TRIAL:
                return True
    return False


def has_nested_repetition(pattern: str) -> bool:
    """Return whether a regular expression repeats a group that has a repetition inside, in whatever groups."""
    rest = ESCAPE_OR_SET.sub("x", pattern)
    while group := INNER_GROUP.search(rest):
        inside, repeated = REPETITION.search(group[1]), group[2]
        if inside and repeated:
            return True
        rest = rest[: group.start()] + ("x+" if inside else f"x{repeated or ''}") + rest[group.end() :]
    return False
