"""Translate a large file in parts, which survive an interruption.

Part k is the translation of the k-th chunk of lines. It appears in OUTPUT.parts when it is complete. After an
interruption, the same command translates the missing and the damaged parts, and joins them all. Parts are compressed
because gzip's checksum shows whether a part is whole. Their names hold a checksum of the chunk, because the text may
have been another one for a while.
"""

import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from .atomic import lock, remove_stale
from .errors import BrokenFileError, InputError, name_in_errors
from .files import files_sha256, read_json_object, write_json
from .lines import open_output, open_text
from .model_folder import MODEL_FILES

ABOUT = "about.json"  # what the parts are a translation of

Item = TypeVar("Item")  # a chunk of lines


def translate_file(
    translate: Callable[[Iterator[Item]], Generator[list[bytes]]],
    chunks: Iterable[Item],
    text: Path,
    output: Path,
    about: dict[str, Any],
) -> None:
    """Translate the chunks of a file, or resume their translation.

    translate: yields the lines of output of each chunk
    chunks: of the lines of the file `text`
    about: what else determines the translations: the division into chunks, the model, settings
    Raises InputError if OUTPUT.parts holds parts of another translation, or the text changes meanwhile.
    """
    folder = output.with_name(f"{output.name}.parts")
    about = about | {"input": files_sha256(text)}
    with claim_parts(folder, about):
        parts: list[Path] = []
        missing: deque[Path] = deque()  # parts that are being translated

        def read_missing() -> Iterator[Item]:
            for number, chunk in enumerate(chunks):
                part = folder / f"part-{number:07}-{crc32(repr(chunk).encode()):08x}.gz"
                parts.append(part)
                if not is_whole(part):
                    missing.append(part)
                    yield chunk
            if files_sha256(text) != about["input"]:
                raise InputError(f"{text} was changed while it was translated; remove {folder} and translate it again")

        with closing(translate(read_missing())) as translated:
            for lines in translated:
                with open_output(missing.popleft()) as file:
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
                f"{folder} holds parts of another translation ({'; '.join(changed)}); finish that translation, or "
                "remove the folder"
            )


def is_whole(part: Path) -> bool:
    """Return whether a part exists and can be read to its end, where the checksum is."""
    try:
        with open_text(part) as file:
            while file.read(1 << 20):
                pass
    except (FileNotFoundError, BrokenFileError):
        return False
    return True


def join_parts(parts: list[Path], folder: Path, output: Path) -> None:
    """Write the output and remove all parts, also those of what the text was for a while."""
    with open_output(output) as out:
        for part in parts:
            with open_text(part) as file:
                shutil.copyfileobj(file, out)
    for path in (*folder.glob("part-*"), folder / ABOUT):
        path.unlink()
        remove_stale(path)  # of a process that was killed just after it had written the part
    if not any(folder.iterdir()):
        folder.rmdir()


def model_sha256(folder: Path) -> str:
    """Return a hash of the files that determine a model's translations: weights, settings, tokenizers."""
    patterns = (*MODEL_FILES, "*.onnx*")
    return files_sha256(*sorted({path for pattern in patterns for path in folder.glob(pattern)}))
