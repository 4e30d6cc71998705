"""Which toolkit a path comes from, and which of its files is the checkpoint."""

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

# Each has NAME, checkpoints(folder), recognise(what the file holds), read(path, reasons).
PICKLED = (fairseq, opennmt_py, joeynmt, torch_nn, annotated)
# These recognise the path itself.
FOLDERS: tuple[ModuleType, ...] = (marian, hf_marian, hf_fsmt, sockeye, tensor2tensor)
READERS: dict[str, ModuleType] = {module.NAME: module for module in (*PICKLED, *FOLDERS)}
# write_back(model, origin, out, reasons)
WRITERS: dict[str, ModuleType] = {
    module.NAME: module for module in (fairseq, marian, hf_marian, opennmt_py, ctranslate2)
}


def find_checkpoint(path: Path, wanted: str | None = None) -> tuple[ModuleType, Path]:
    """The toolkit and the checkpoint's file; a folder must hold exactly one. wanted: the toolkit's name.

    Raises InputError if the format is not known, or there is not one checkpoint but none or several.
    """
    if wanted is not None and wanted not in READERS:
        raise InputError(f"{wanted!r} is not a format that can be converted; known are {', '.join(READERS)}")
    toolkits = [READERS[wanted]] if wanted else list(READERS.values())
    if path.is_dir():
        found = {file for toolkit in toolkits for file in toolkit.checkpoints(path)}
        named = {file.resolve(): file for file in sorted(found) if file.is_file()}  # two names of one file are one
        candidates = sorted(named.values())
        if not candidates:
            raise InputError(
                f"{path}: no file in this folder has the name of a checkpoint of {wanted or 'a known toolkit'}"
                + ("" if wanted else f" ({', '.join(READERS)})")
            )
        if len(candidates) > 1:
            names = enumerated(file.name for file in candidates)
            raise InputError(f"{path} holds {len(candidates)} checkpoints ({names}); give the path of one of them")
        path = candidates[0]
    elif not path.exists() and path.with_name(path.name + ".index").exists():
        path = path.with_name(path.name + ".index")  # TensorFlow's users name a checkpoint by its prefix
    elif not path.exists():
        raise InputError(f"{path}: no such file or folder")
    return (READERS[wanted] if wanted else recognised(path)), path


def recognised(path: Path) -> ModuleType:
    """The toolkit that a checkpoint comes from."""
    for toolkit in FOLDERS:
        if toolkit.recognise(path):
            return toolkit
    if not is_pickled(path):
        raise InputError(f"{path} is not a checkpoint of a known toolkit ({', '.join(READERS)})")
    content = load_checkpoint(path)
    for toolkit in PICKLED:
        if toolkit.recognise(content):
            return toolkit
    known = ", ".join(toolkit.NAME for toolkit in PICKLED)
    raise InputError(f"{path} is a checkpoint of PyTorch, but of none of {known}")
