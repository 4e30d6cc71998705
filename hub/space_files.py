"""Collects the files of a Space that shows a model: those of `space/`, and model.json with the model's name."""

from pathlib import Path

from huggingface_hub import SpaceCard

from .contents import Files, json_bytes

SPACE = Path(__file__).with_name("space")


def space_files(repo: str, model: str, revision: str | None) -> Files:
    """Return the files of the Space `repo`, which loads `model` at a commit or tag (None: the newest)."""
    files: Files = {path.name: path for path in SPACE.iterdir() if path.is_file()}
    card = SpaceCard.load(SPACE / "README.md")
    card.data["title"], card.data["models"] = repo.split("/")[1], [model]
    files["README.md"] = str(card).encode()
    files["model.json"] = json_bytes({"id": model, "revision": revision})
    return files
