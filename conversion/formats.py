"""The toolkits that can be read and written, and the search for a checkpoint's file."""

from pathlib import Path
from typing import Any, Protocol

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import enumerated

from .description import Description
from .origin import Origin
from .reasons import Reasons
from .toolkits import (
    annotated,
    ctranslate2,
    fairseq,
    hf_fsmt,
    hf_marian,
    joeynmt,
    marian,
    opennmt_py,
    sockeye,
    tensor2tensor,
    torch_nn,
)
from .unpickle import is_pickled, load_checkpoint


class Reader(Protocol):
    """A module of toolkits/ that reads checkpoints. FILES: patterns of their names"""

    @property
    def NAME(self) -> str: ...

    @property
    def FILES(self) -> list[str]: ...

    def recognise(self, path: Path, content: Any) -> bool:
        """Return whether a file is a checkpoint of this toolkit. content: what a pickle holds; None for other files"""
        ...

    def read(self, path: Path, reasons: Reasons) -> Description:
        """Describe a checkpoint. Raises all reasons that the options give against converting it."""
        ...


class Writer(Protocol):
    """A module of toolkits/ that writes checkpoints."""

    @property
    def NAME(self) -> str: ...

    def write_checkpoint(self, model: Model, origin: Origin, out: Path, reasons: Reasons) -> None: ...


READING: list[Reader] = [
    fairseq,
    opennmt_py,
    joeynmt,
    torch_nn,
    annotated,
    marian,
    hf_marian,
    hf_fsmt,
    sockeye,
    tensor2tensor,
]
WRITING: list[Writer] = [fairseq, marian, hf_marian, opennmt_py, ctranslate2]
PICKLES = (".pt", ".pth", ".ckpt")  # recognised by their content
READERS = {toolkit.NAME: toolkit for toolkit in READING}
WRITERS = {toolkit.NAME: toolkit for toolkit in WRITING}


def find_checkpoint(path: Path, wanted: str | None = None) -> tuple[Reader, Path]:
    """Return the toolkit and the checkpoint's file; a folder must hold exactly one. wanted: the toolkit's name

    Raises InputError if the format is not known, or the folder holds no checkpoint or several.
    """
    if wanted is not None and wanted not in READERS:
        raise InputError(f"{wanted!r} is not a format that can be converted; known formats: {', '.join(READERS)}")
    if path.is_dir():
        path = only_checkpoint(path, wanted)
    elif not path.exists():
        index = path.with_name(path.name + ".index")  # TensorFlow's users name a checkpoint by its prefix
        if not index.exists():
            raise InputError(f"{path}: no such file or folder")
        path = index
    return (READERS[wanted] if wanted else toolkit_of(path)), path


def only_checkpoint(folder: Path, wanted: str | None) -> Path:
    """Return the only file in the folder that has the name of a checkpoint."""
    toolkits = [READERS[wanted]] if wanted else READING
    found = {
        file
        for toolkit in toolkits
        for pattern in toolkit.FILES
        for file in folder.glob(pattern)
        if file.is_file() and (file.suffix in PICKLES or toolkit.recognise(file, None))
    }
    candidates = sorted({file.resolve(): file for file in sorted(found)}.values())
    candidates = [file for file in candidates if file.name == "params.best"] or candidates  # Sockeye's choice
    if not candidates:
        known = wanted or f"a known toolkit ({', '.join(READERS)})"
        raise InputError(f"{folder}: no file in this folder has the name of a checkpoint of {known}")
    if len(candidates) > 1:
        names = enumerated(file.name for file in candidates)
        raise InputError(f"{folder} holds {len(candidates)} checkpoints ({names}); give the path of one of them")
    return candidates[0]


def toolkit_of(path: Path) -> Reader:
    """Return the toolkit that a checkpoint comes from."""
    for toolkit in READING:
        if toolkit.recognise(path, None):
            return toolkit
    if not is_pickled(path):
        raise InputError(f"{path} is not a checkpoint of a known toolkit ({', '.join(READERS)})")
    content = load_checkpoint(path)
    for toolkit in READING:
        if toolkit.recognise(path, content):
            return toolkit
    raise InputError(f"{path} is a checkpoint of PyTorch, but of no known toolkit ({', '.join(READERS)})")
