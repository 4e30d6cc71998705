"""A griffe extension: shows the parameter lines of this project's docstrings as lists.

A paragraph of lines `name: text` or `returns text`, continued by indented lines, would otherwise run together. Tokens
such as </s> become code, because Markdown takes them for HTML, and examples after >>> become blocks of code.
"""

import re

import griffe

ITEM = re.compile(r"^(returns|[a-z_]\w*(?:, [a-z_]\w*)*(?: \([^)]*\))*:)(?=\s)")

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
TOKEN = re.compile(r"(?<!`)(</?\w+>)(?!`)")


def with_lists(text: str) -> str:
    """The docstring in Markdown, with one list item for each parameter line."""
    lines, in_list = [], False
    for line in text.splitlines():
        match = ITEM.match(line)
        if match:
            if not in_list and lines and lines[-1]:
                lines.append("")
            lines.append(f"* `{match[1].rstrip(':')}`:{line[match.end() :]}")
            in_list = True
        elif in_list and line.startswith("    "):
            lines.append(line)
        elif in_list and line:
            lines += ["", line]
            in_list = False
        else:
            lines.append(line)
            in_list = in_list and not line
    return "\n".join(lines)


class ParameterLists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if obj.docstring:
            text = TOKEN.sub(r"`\1`", with_lists(obj.docstring.value))
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)
