"""Which toolkit a path comes from, and which of its files is the checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.loading import enumerated

from . import fairseq
from .unpickle import load_checkpoint

READERS: dict[str, ModuleType] = {module.NAME: module for module in (fairseq,)}
WRITERS: dict[str, ModuleType] = {module.NAME: module for module in (fairseq,)}
PICKLES = (".pt", ".pth", ".ckpt", ".bin")


def toolkit_of(name: str) -> ModuleType:
    if name not in READERS:
        raise InputError(f"{name!r} is not a format that can be converted; known are {', '.join(READERS)}")
    return READERS[name]


def find_checkpoint(path: Path, wanted: str | None) -> tuple[ModuleType, Path]:
    """The toolkit and the checkpoint's file; a folder must hold exactly one. wanted: the toolkit's name, or None."""
    if wanted is not None:
        toolkit_of(wanted)
    if not path.exists() and not path.with_name(path.name + ".index").exists():
        raise InputError(f"{path}: no such file or folder")
    candidates = [path] if not path.is_dir() else checkpoints_in(path)
    if not candidates:
        raise InputError(
            f"{path}: there is no checkpoint of a known toolkit in this folder ({', '.join(READERS)})"
        )
    if len(candidates) > 1:
        names = enumerated(file.name for file in candidates)
        raise InputError(f"{path} holds {len(candidates)} checkpoints ({names}); give the path of one of them")
    file = candidates[0]
    return (toolkit_of(wanted) if wanted else recognised(file)), file
