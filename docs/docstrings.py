"""A Griffe extension that renders parameter lines of docstrings as lists.

A paragraph of lines `name: text` or `returns text`, continued by indented lines, would otherwise run together. Tokens
such as </s> become code, because Markdown takes them for HTML, and examples after >>> become blocks of code.
"""

import re

import griffe

NAME = r"(returns|[a-z_]\w*(?:, [a-z_]\w*)*(?: \([^)]*\))*:)(?=\s)"
PARAMETERS = re.compile(rf"^(?:{NAME}.*\n(?: {{4}}.*\n)*)+", re.MULTILINE)
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
TOKEN = re.compile(r"(?<!`)(</?\w+>)(?!`)")


def with_lists(text: str) -> str:
    """Return the docstring in Markdown, with one list item for each parameter line."""

    def as_list(lines: re.Match[str]) -> str:
        items = re.sub(rf"^{NAME}", lambda item: f"* `{item[1].rstrip(':')}`:", lines[0], flags=re.MULTILINE)
        return f"\n{items}\n"

    return PARAMETERS.sub(as_list, f"{text}\n")


class ParameterLists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if obj.docstring:
            text = TOKEN.sub(r"`\1`", with_lists(obj.docstring.value))
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)
