"""JSON files that are complete or absent."""

import json
from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.model_folder import read_json_object


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; the file replaces an older one only when it is complete and on disk."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path, *objects: str) -> dict[str, Any]:
    """Read a JSON object, of which these fields must be objects. Raises BrokenFileError that names the file."""
    if not path.exists():
        raise BrokenFileError(f"{path} is missing")
    return read_json_object(path, *objects)
