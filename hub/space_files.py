"""The files of a Space for a model: those of hub/space, with the model's name in model.json and in the README."""

from pathlib import Path

import yaml

from .contents import Files, json_bytes

SPACE = Path(__file__).with_name("space")


def space_files(repo: str, model: str, revision: str | None) -> Files:
    """Return the files of the Space `repo`, which loads `model` at a commit or tag (None: the newest)."""
    files: Files = {path.name: path for path in SPACE.iterdir() if path.is_file()}
    _, front_matter, text = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(front_matter) | {"title": repo.split("/")[1], "models": [model]}
    front_matter = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
    files["README.md"] = f"---\n{front_matter}---\n{text}".encode()
    files["model.json"] = json_bytes({"id": model, "revision": revision})
    return files
