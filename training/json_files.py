"""JSON files that are complete or absent."""

import json
from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import atomic_file


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; the file replaces an older one only when it is complete and on disk."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())
