"""Converts a script with `# %%` cells (jupytext format) to a notebook or to Markdown.

python docs/notebook.py examples/annotated_transformer.py    writes the .ipynb beside the script
"""

import json
import re
import sys
from pathlib import Path


def cells(script: Path) -> list[tuple[str, str]]:
    """Return ("markdown" or "code", text) of every cell."""
    found = []
    for part in re.split(r"^# %%", script.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        marker, _, body = part.partition("\n")
        if marker.strip() == "[markdown]":
            body = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
            found.append(("markdown", body.strip()))
        else:
            found.append(("code", body.strip()))
    return found


def as_notebook(script: Path) -> str:
    """Return the notebook as JSON, without outputs."""
    content = []
    for number, (kind, text) in enumerate(cells(script)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        content.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {"cells": content, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def as_markdown(script: Path) -> str:
    """Return the page, with the code in blocks."""
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells(script))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.with_suffix(".ipynb").write_text(as_notebook(path), encoding="utf-8")
