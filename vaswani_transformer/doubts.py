"""Name the translations that a reader should look at: empty ones, loops, short ones, and parts of cut sentences."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# What a program replaces in its messages: %s, %(name)d, %1$s, %1 of Qt, {}, {0}, {name}, ${name}, @NAME@.
PLACEHOLDER = re.compile(
    r"%(?:\d+\$|\(\w+\))?[-+#0]*\d*(?:\.\d+)?(?:hh?|ll?|z|j)?[sdiufFeEgGxXoc]\b|%\d+\b|\$?\{\w*\}|@[A-Z_]+@", re.ASCII
)
LOOP = 5  # times that the same tokens follow each other
LONGEST_LOOP = 16  # tokens


@dataclass(frozen=True)
class Doubt:
    """A part of a text whose translation may be wrong."""

    text_index: int
    reason: str
    source: str
    translation: str


def find_reasons(
    source: Sequence[int],
    translation: Sequence[int],
    source_text: str,
    text: str,
    is_cut: bool,
    least_ratio: float | None,
) -> list[str]:
    """Return why the translation of a part is doubtful.

    source, translation: token ids, </s> included;  source_text, text: the same as text
    is_cut: the part is not a whole sentence;  least_ratio: of their numbers of tokens
    """
    reasons = ["a part of a long sentence that was split"] if is_cut else []
    ratio = (len(translation) - 1) / max(len(source) - 1, 1)
    if not text.strip():
        reasons.append("the translation is empty")
    elif least_ratio is not None and ratio < least_ratio:
        reasons.append(f"the translation has {ratio:.2f} times as many tokens as the source")
    if has_loop(translation) and not has_loop(source):
        reasons.append("the translation repeats itself")
    # Each placeholder, such as %s, as often as it is missing.
    missing = Counter(PLACEHOLDER.findall(source_text)) - Counter(PLACEHOLDER.findall(text))
    return reasons + [f"the translation lacks {name}" for name in sorted(missing.elements())]


def has_loop(tokens: Sequence[int]) -> bool:
    """Return whether the same n tokens follow each other LOOP times."""
    for n in range(1, min(LONGEST_LOOP, len(tokens) // LOOP) + 1):
        repeated = 0
        for token, before in zip(tokens[n:], tokens, strict=False):
            repeated = repeated + 1 if token == before else 0
            if repeated == (LOOP - 1) * n:
                return True
    return False
