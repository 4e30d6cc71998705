"""The toolkits that can be read and written, and the search for a checkpoint's file.

Each is a module of toolkits/ with `NAME`. A reader has `FILES`, the patterns of its checkpoints' names, and

    recognise(path, content) -> bool    whether a file is a checkpoint; content: what a pickle holds; None for other
                                        files, and as long as the pickle has not been opened
    read(path, reasons) -> Description  adds all reasons that the options give against converting it

and a writer `write_checkpoint(model, origin, out, reasons)`.
"""

from pathlib import Path
from types import ModuleType

from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import enumerated

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

BY_CONTENT: list[ModuleType] = [fairseq, opennmt_py, joeynmt, torch_nn, annotated]  # pickles
READING = [*BY_CONTENT, marian, hf_marian, hf_fsmt, sockeye, tensor2tensor]
READERS = {toolkit.NAME: toolkit for toolkit in READING}
WRITERS = {toolkit.NAME: toolkit for toolkit in (fairseq, marian, hf_marian, opennmt_py, ctranslate2)}
PICKLES = (".pt", ".pth", ".ckpt")


def find_checkpoint(path: Path, wanted: str | None = None) -> tuple[ModuleType, Path]:
    """Return the toolkit and the checkpoint's file; a folder must hold exactly one. wanted: the toolkit's name

    Raises InputError if the format is not known, or the folder holds no checkpoint or several.
    """
    if wanted is not None and wanted not in READERS:
        raise InputError(f"{wanted!r} is not a format that can be converted; known formats: {', '.join(READERS)}")
    toolkits = READING if wanted is None else [READERS[wanted]]
    expected = wanted or f"a known toolkit ({', '.join(READERS)})"
    if path.is_dir():
        path = only_checkpoint(path, toolkits, expected)
    elif not path.exists():
        index = path.with_name(path.name + ".index")  # TensorFlow's users name a checkpoint by its prefix
        if not index.exists():
            raise InputError(f"{path}: no such file or folder")
        path = index
    found = [toolkit for toolkit in toolkits if toolkit.recognise(path, None)]
    if not found and wanted and toolkits[0] not in BY_CONTENT:
        found = toolkits  # a file of another name; `read` reports any other fault
    elif not found and (is_pickled(path) or wanted):
        content = load_checkpoint(path)
        found = [toolkit for toolkit in toolkits if toolkit.recognise(path, content)]
    if not found:
        raise InputError(f"{path} is not a checkpoint of {expected}")
    return found[0], path


def only_checkpoint(folder: Path, toolkits: list[ModuleType], expected: str) -> Path:
    """Return the only file in the folder that has the name of a checkpoint."""
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
        raise InputError(f"{folder}: no file in this folder has the name of a checkpoint of {expected}")
    if len(candidates) > 1:
        names = enumerated(file.name for file in candidates)
        raise InputError(f"{folder} holds {len(candidates)} checkpoints ({names}); give the path of one of them")
    return candidates[0]
