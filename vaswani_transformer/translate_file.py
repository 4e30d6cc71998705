"""Translate a large file in parts, which survive an interruption.

Part k is the translation of the k-th `part_lines` lines. It appears in OUTPUT.parts when it is complete. After an
interruption, the same command translates the missing parts, and joins them all.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from .atomic import atomic_file, lock, remove_stale
from .errors import BrokenFileError, InputError, name_in_errors
from .files import files_sha256, read_json_object, write_json
from .lines import open_output, read_lines
from .model_folder import MODEL_FILES
from .translate_lines import LineTranslator, NumberedLines, split_into_chunks

ABOUT = "about.json"  # what the parts are a translation of


def translate_file(
    translator: LineTranslator,
    source: Path,
    output: Path,
    part_lines: int,
    about: dict[str, Any],
    read: Callable[[Path], Iterator[str]] = read_lines,
) -> None:
    """Translate a file, or resume its translation.

    about: what determines the translations, besides the text
    read: how to read the lines of the source
    Raises InputError if OUTPUT.parts holds parts of another translation, BrokenFileError if a part is truncated.
    """
    folder = output.with_name(f"{output.name}.parts")
    with claim_parts(folder, about | {"chunk_lines": part_lines, "input": files_sha256(source)}):
        parts: dict[Path, int] = {}  # and the lines that each has at least; with --n-best it has more
        missing: deque[Path] = deque()  # parts that are being translated

        def read_missing() -> Iterator[NumberedLines]:
            for lines, first in translator.number_chunks(split_into_chunks(read(source), part_lines)):
                part = folder / f"part-{len(parts):07}"
                parts[part] = sum(map(translator.count_lines, lines))
                if not part.is_file():
                    missing.append(part)
                    yield lines, first

        with closing(translator.translate(read_missing(), look_ahead=True)) as translated:
            for lines in translated:
                with atomic_file(missing.popleft()) as file:
                    file.writelines(lines)
        join_parts(parts, folder, output)


@contextmanager
def claim_parts(folder: Path, about: dict[str, Any]) -> Iterator[None]:
    """Lock the folder for this process, and record what the parts in it are a translation of."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            with name_in_errors(folder):
                lock(descriptor)
        except BlockingIOError:
            raise InputError(
                f"{folder} is in use by another process; wait for it, or choose another --output"
            ) from None
        check_parts(folder, about)
        write_json(folder / ABOUT, about)
        yield
    finally:
        os.close(descriptor)


def check_parts(folder: Path, about: dict[str, Any]) -> None:
    """Raise InputError if the folder has parts of another translation."""
    path = folder / ABOUT
    if any(folder.glob("part-*")):
        if not path.is_file():
            raise InputError(
                f"{folder} has no {ABOUT}, so its origin is unknown; move it away, or choose another --output"
            )
        before = read_json_object(path)
        differ = [name for name, value in about.items() if before.get(name) != value]
        if changed := [f"{name} was {before.get(name)}, is {about[name]}" for name in differ]:
            raise InputError(
                f"{folder} holds parts of another translation ({'; '.join(changed)}); finish that one, or remove the "
                "folder"
            )


def join_parts(parts: dict[Path, int], folder: Path, output: Path) -> None:
    """Write the output and remove the parts."""
    with open_output(output) as out:
        for part, lines in parts.items():
            content = part.read_bytes()
            if content.count(b"\n") < lines or not content.endswith(b"\n"):
                raise BrokenFileError(f"{part} is truncated; remove it and run the same command again")
            out.write(content)
    for path in (*parts, folder / ABOUT):
        path.unlink()
        remove_stale(path)  # of a process that was killed just after it had written the part
    if not any(folder.iterdir()):
        folder.rmdir()


def model_sha256(folder: Path) -> str:
    """Return a hash of the files that determine a model's translations: weights, settings, tokenizers."""
    patterns = (*MODEL_FILES, "*.onnx*")
    return files_sha256(*sorted({path for pattern in patterns for path in folder.glob(pattern)}))
