"""A model's folder: the checks of its files that need neither torch nor transformers."""

import json
from pathlib import Path
from typing import Any

from .errors import BrokenFileError, one_line


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. Raises BrokenFileError naming the file, and the place if it is truncated."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BrokenFileError(f"{path}: no such file; a model's folder needs it") from None
    except OSError as error:
        raise BrokenFileError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise BrokenFileError(f"{path} is not JSON ({type(error).__name__}); copy or fetch it again") from None
    except ValueError as error:
        state = "is empty" if path.stat().st_size == 0 else f"is not whole JSON: {one_line(str(error))}"
        raise BrokenFileError(f"{path} {state}; copy or fetch it again") from None
    if not isinstance(content, dict):
        raise BrokenFileError(f"{path} holds a {type(content).__name__}; it must hold an object")
    return content
