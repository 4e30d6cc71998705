"""Find the checkpoint in a folder and recognise its toolkit."""

from collections.abc import Iterable
from pathlib import Path

from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import enumerate_names
from vaswani_transformer.model_folder import MODEL_TYPE

from .checkpoint_files import load_checkpoint, may_be_torch_save
from .toolkits import READERS, RECOGNISED_BY_CONTENT, RECOGNISED_BY_FILE, WRITERS, load_toolkit
from .toolkits.hugging_face import model_type_of


def find_checkpoint(path: Path, toolkit: str | None = None) -> tuple[str, Path]:
    """Return the toolkit and the file of a checkpoint; a folder must contain exactly one. toolkit: if it is known

    Raises InputError if there is no such toolkit, or the folder contains no checkpoint or several.
    """
    if toolkit is not None and toolkit not in READERS:
        raise InputError(f"--from {toolkit}: not a format that can be read; known formats: {', '.join(READERS)}")
    toolkits = [toolkit] if toolkit else READERS
    expected = toolkit or f"a known format ({', '.join(READERS)})"
    if path.is_dir():
        path = only_checkpoint(path, toolkits, expected)
    elif not path.exists():
        index = path.with_name(path.name + ".index")  # TensorFlow's users name a checkpoint by its prefix
        if not index.exists():
            raise InputError(f"{path}: no such file or folder")
        path = index
    if toolkit in RECOGNISED_BY_FILE:
        return toolkit, path  # whatever the file's name; `read` reports a file of another toolkit
    for name in RECOGNISED_BY_FILE:
        if name in toolkits and load_toolkit(name).recognise(path):
            return name, path
    content = load_checkpoint(path) if toolkit or may_be_torch_save(path) else None
    for name in RECOGNISED_BY_CONTENT:
        if name in toolkits and isinstance(content, dict) and load_toolkit(name).recognise_content(content):
            return name, path
    raise InputError(f"{path} is not a checkpoint of {expected}")


def only_checkpoint(folder: Path, toolkits: Iterable[str], expected: str) -> Path:
    """Return the only file in the folder that may be a checkpoint of one of the toolkits."""
    found = sorted({file for name in toolkits for file in preferred_files(folder, name)})
    candidates = list({file.resolve(): file for file in found}.values())  # JoeyNMT links best.ckpt to a checkpoint
    if not candidates and model_type_of(folder / "config.json") == MODEL_TYPE:
        raise InputError(f"{folder} is already a model folder; --to FORMAT converts it to {', '.join(WRITERS)}")
    if not candidates:
        raise InputError(f"{folder}: no file in this folder has the name of a checkpoint of {expected}")
    if len(candidates) > 1:
        names = enumerate_names(file.name for file in candidates)
        raise InputError(f"{folder} contains {len(candidates)} checkpoints ({names}); give the path of one of them")
    return candidates[0]


def preferred_files(folder: Path, toolkit: str) -> list[Path]:
    """Return the files that match the first of a toolkit's patterns that any checkpoint matches."""
    module = load_toolkit(toolkit)
    for pattern in module.FILES:
        files = [file for file in folder.glob(pattern) if file.is_file()]
        if toolkit in RECOGNISED_BY_FILE:
            files = [file for file in files if module.recognise(file)]
        if files:
            return files
    return []
