"""Writes text of others into Markdown, so that it stays text.

A template whose environment has `finalize=show` escapes every value that it prints. The functions here, as filters,
choose another form; `trusted` is for Markdown that this package has written itself.
"""

import json
import re
from typing import Any

from vaswani_transformer.errors import escape_controls

# Renderers turn these into links, even if they are escaped; only in code they do not.
ADDRESS = re.compile(r"://|\bwww\.|@", re.IGNORECASE)


class Markdown(str):
    """Text that is Markdown already and is printed as it is."""


def show(value: object) -> str:
    """Return a value as plain text in Markdown, on one line."""
    if isinstance(value, Markdown):
        return value
    text = as_one_line(str(value))
    return code(text).replace("|", "\\|") if ADDRESS.search(text) else re.sub(r"([\\`*_\[\]<>&|~$])", r"\\\1", text)


def code(value: object) -> Markdown:
    """Return a value as code within a line."""
    text = as_one_line(str(value)).strip()
    fence = "`" * (longest_run(text) + 1)
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return Markdown(f"{fence}{padding}{text}{padding}{fence}" if text else "")


def block(value: str, language: str) -> Markdown:
    """Return a text of several lines as a block of code."""
    text = escape_controls(value)
    fence = "`" * max(3, longest_run(text) + 1)
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def note(line: str) -> Markdown:
    """Return a line of CONVERSION.md, of whose Markdown only a list's asterisk and code in backticks are kept."""
    line = line.strip()
    bullet, text = ("* ", line[2:]) if line.startswith("* ") else ("", line)
    parts = [code(part[1:-1]) if n % 2 else show(part) for n, part in enumerate(re.split(r"(`[^`]+`)", text))]
    return Markdown(bullet + re.sub(r"^(\s*\d*)([#+=.)-])", r"\1\\\2", "".join(parts)))


def literal(value: object) -> Markdown:
    """Return a value as a literal of Python, for a block of code."""
    return Markdown(escape_controls(json.dumps(value, ensure_ascii=False)))


def comment(value: object) -> Markdown:
    """Return a value as a comment of Python, for a block of code."""
    return Markdown(f"# {as_one_line(str(value))}")


def as_one_line(text: str) -> str:
    """Return the text with each run of white space as a space, and control characters escaped."""
    return escape_controls(re.sub(r"\s+", " ", text))


def longest_run(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max(map(len, re.findall("`+", text)), default=0)


FILTERS: dict[str, Any] = {
    "code": code,
    "block": block,
    "note": note,
    "literal": literal,
    "comment": comment,
    "trusted": Markdown,
}
