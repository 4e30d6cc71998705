"""Files of a folder that may be a stranger's: read them with errors that name them, hash them, write them whole."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .atomic import atomic_file
from .errors import BrokenFileError, name_in_errors, one_line

CONVERSION_NOTES = "CONVERSION.md"  # for the users of a model that was converted from another toolkit
# Escaped half of a character, which UTF-8 cannot encode without the other half.
LONE_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def check_readable(path: Path) -> None:
    """Raise BrokenFileError if a file cannot be opened; safetensors would call it missing, ONNX Runtime damaged.

    Reading a named pipe would wait for a writer, and a device such as /dev/zero may have no end.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise BrokenFileError(f"{path} is not a regular file and is not read; copy or download the file again")
        path.open("rb").close()
    except FileNotFoundError:
        reason = "a link to a file that does not exist" if path.is_symlink() else "no such file"
        raise BrokenFileError(f"{path}: {reason}") from None
    except OSError as error:
        raise BrokenFileError(f"{path} cannot be read: {error.strerror}") from None


def check_inside(file: Path, folder: Path) -> None:
    """Raise BrokenFileError if a name or a symbolic link leads out of the folder, and does not stay in a Hub cache."""
    inside, target = Path(os.path.realpath(folder)), Path(os.path.realpath(file))  # resolve() raises for a loop
    for parent in inside.parents:
        if parent.name == "snapshots":  # its files are links to the folder of blobs beside it
            inside = parent.parent
    if not target.is_relative_to(inside):
        raise BrokenFileError(f"{file} leads to {target}, outside the folder, and is not read")


def read_json_object(path: Path, *objects: str) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises BrokenFileError naming the file and the position of the error.

    objects: fields that must be objects as well, if they are there
    """
    check_readable(path)
    try:
        with name_in_errors(path):
            text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        if LONE_SURROGATE.search(text):  # or a pair
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else one_line(str(error))
        reason = "it is empty" if path.stat().st_size == 0 else reason
        raise BrokenFileError(f"{path} is not valid JSON: {reason}; copy or download it again") from None
    if not isinstance(content, dict):
        raise BrokenFileError(f"{path} holds a {type(content).__name__}; it must hold an object")
    for field in objects:
        if not isinstance(content.get(field, {}), dict):
            raise BrokenFileError(f"{path}: {field} is a {type(content[field]).__name__}; it must be an object")
    return content


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; the file replaces an older one only when it is complete and on disk."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def file_sha256(path: Path) -> str:
    with name_in_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(*paths: Path) -> str:
    """Return a hash over the hashes of the files, in this order."""
    return combine_sha256(map(file_sha256, paths))


def combine_sha256(hashes: Iterable[str]) -> str:
    return hashlib.sha256(b"".join(map(bytes.fromhex, hashes))).hexdigest()
