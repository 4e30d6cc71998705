"""YAML configurations of other toolkits. Only loaders that build plain values are used."""

from pathlib import Path
from typing import Any

import yaml

from vaswani_transformer.errors import BrokenFileError


def read_yaml(file: Path, loader: Any = yaml.SafeLoader) -> dict[str, Any]:
    """Return the mapping in a file. Raises BrokenFileError if it holds anything else."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BrokenFileError(f"{file} is not UTF-8 ({error}); copy it again") from None
    return parse_yaml(text, file, loader)


def parse_yaml(text: str, where: Path, loader: Any = yaml.SafeLoader) -> dict[str, Any]:
    """Return the mapping in a text from the file `where`. Raises BrokenFileError if it holds anything else."""
    try:
        content = yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise BrokenFileError(f"{where}: its configuration is not YAML ({error})") from None
    if not isinstance(content, dict):
        raise BrokenFileError(f"{where}: its configuration is a {type(content).__name__}, not a mapping")
    return content
