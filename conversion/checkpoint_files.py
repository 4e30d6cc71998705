"""Find, open and save the files of checkpoints.

PyTorch's checkpoints are pickles, which can run code; torch's restricted unpickler opens them. It builds tensors and
plain containers, and here also `argparse.Namespace` and `set` (fairseq, OpenNMT-py), numpy scalars and inert stubs for
classes of the toolkits' packages (meters, old vocabularies). Any other class is refused.
"""

import argparse
import codecs
import collections
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors import safe_open

from vaswani_transformer.atomic import atomic_folder, check_new_folder
from vaswani_transformer.errors import (
    BrokenFileError,
    InputError,
    UnavailableError,
    name_in_errors,
    one_line,
    out_of_memory,
)
from vaswani_transformer.files import check_readable
from vaswani_transformer.loading import load_tensors
from vaswani_transformer.model_folder import enumerate_names

from .options import show_value

SCALAR = np.float64(0).__reduce__()[0]  # numpy's private constructor of scalars


class Stub:
    """Keeps the attributes of an object of a toolkit's class, without its code."""

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


ALLOWED: list[Any] = [
    argparse.Namespace,
    set,
    collections.defaultdict,
    collections.Counter,
    np.dtype,
    np.ndarray,
    *(type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "bool")),
    (SCALAR, "numpy.core.multiarray.scalar"),
    (SCALAR, "numpy._core.multiarray.scalar"),
    (codecs.encode, "_codecs.encode"),
    (Stub, "numpy.core.multiarray._reconstruct"),  # arrays among the metrics of fairseq; never used
    (Stub, "numpy._core.multiarray._reconstruct"),
    (Stub, "functools.partial"),  # a tokenizer's function in OpenNMT-py 1 and 2; never called
    *(dict, list, str, int, float, bool),  # types of values, to which OmegaConf's nodes refer, as to Any
    (Stub, "typing.Any"),
]

REFUSED_NAME = re.compile(r"(?:[Uu]nsupported (?:global: )?GLOBAL |Unsupported class |callable from )([\w.]+)")
RECORD_NAME = re.compile(r"[^/]+/data/[^/]+")  # of a storage in a file of torch.save
CODE_NAME = re.compile(r"/code/__torch__|/\.data/(ts_code|extern_modules)")
MAX_COMPRESSION = 100  # torch and Marian do not compress


def find_file(folder: Path, *patterns: str) -> Path | None:
    """Return the first file of the folder that matches; earlier patterns are preferred."""
    files = (file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file())
    return next(files, None)


def require_file(folder: Path, *patterns: str, remedy: str = "") -> Path:
    """Return the file that `find_file` finds. Raises InputError naming the first pattern if there is none."""
    file = find_file(folder, *patterns)
    if file is None:
        raise InputError(f"{folder}: {patterns[0]} is missing next to the checkpoint{remedy}")
    return file


def read_yaml(file: Path, *mappings: str, loader: Any = yaml.SafeLoader) -> dict[str, Any]:
    """Return the mapping in a file, see `parse_yaml`.

    mappings: options that must be mappings as well, if they are there
    """
    check_readable(file)
    content = parse_yaml(file.read_bytes(), file, loader)
    for name in mappings:
        if not isinstance(content.get(name, {}), dict):
            raise BrokenFileError(f"{file}: {name} is {show_value(content[name])}; it must be a mapping")
    return content


def parse_yaml(text: str | bytes, file: Path, loader: Any = yaml.SafeLoader) -> dict[str, Any]:
    """Return the mapping in a text. Raises BrokenFileError, which names the file, if it contains anything else.

    loader: a YAML loader that builds only plain values
    """
    try:
        content = yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise BrokenFileError(f"{file} is not valid YAML ({error}); copy it again") from None
    if not isinstance(content, dict):
        raise BrokenFileError(f"{file} contains a {type(content).__name__}, not a mapping")
    return content


def create_folder(out: Path) -> AbstractContextManager[Path]:
    """Return a context manager: a temporary folder that is renamed to `out` on success and deleted on failure."""
    return atomic_folder(check_new_folder(out))


def save_pickle(content: Mapping[str, Any], path: Path) -> None:
    """Call torch.save with an open file: given a path, torch does not say why it cannot be written."""
    with path.open("wb") as file:
        torch.save(content, file)


def load_checkpoint(path: Path) -> Any:
    """Return the tensors of a .safetensors file or the content of a `torch.save` file, memory-mapped if possible.

    Raises InputError if the pickle refers to anything but data, BrokenFileError if the file is damaged.
    """
    if path.suffix == ".safetensors":
        tensors = load_tensors(path)
        with safe_open(path, "pt") as opened:
            names = opened.metadata() or {}  # of shared tensors, which safetensors.torch.save_model saves once
        return {name: tensors[saved] for name, saved in names.items() if saved in tensors} | tensors
    check_readable(path)
    records = list_records(path)
    from .toolkits import READERS  # here, because they import this file

    packages = {package for reader in READERS.values() for package in reader.packages}
    stubs: dict[str, type] = {}
    while True:  # torch names one refused class at a time
        known = [*ALLOWED, *((stub, name) for name, stub in stubs.items())]
        storages: list[torch.UntypedStorage] = []

        def keep_on_cpu(storage: Any, location: str, storages: list = storages) -> Any:
            storages.append(storage)
            return storage

        try:
            with name_in_errors(path), torch.serialization.safe_globals(known), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about the protocol of the pickle
                content = torch.load(path, map_location=keep_on_cpu, weights_only=True, mmap=records is not None)
            if records is not None:
                check_storages(storages, records)
            return content
        except pickle.UnpicklingError as error:
            refused = REFUSED_NAME.search(str(error))
            if refused is None:
                message = f"{path} was not loaded, and none of it was run: {explain_error(error)}"
                raise BrokenFileError(message) from None
            name = refused[1].rstrip(".")
            if name in stubs or name.split(".")[0] not in packages:
                raise InputError(
                    f"{path} was not loaded, and none of it was run: its pickle refers to {name}, which could run any "
                    "code. If you trust the file, load it with its own program and save only model.state_dict()"
                ) from None
            stubs[name] = type(name.rsplit(".", 1)[-1], (Stub,), {"__module__": __name__})
        except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            if out_of_memory(error) or isinstance(error, UnavailableError):
                raise
            found = f"{path.stat().st_size:,} bytes: {explain_error(error)}"
            raise BrokenFileError(f"{path} is not a complete checkpoint of PyTorch ({found}); copy it again") from None


def load_shards(files: Iterable[Path]) -> dict[str, torch.Tensor]:
    """Return the tensors of several .safetensors files. Raises BrokenFileError if two files have the same tensor."""
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        shard = load_checkpoint(file)
        if twice := sorted(tensors.keys() & shard.keys()):
            raise BrokenFileError(
                f"{file} holds {enumerate_names(twice)}, which another .safetensors file next to it holds as well; "
                "move the files of other checkpoints away"
            )
        tensors |= shard
    return tensors


def check_archive(entries: list[zipfile.ZipInfo], path: Path) -> None:
    """Raise BrokenFileError for a small zip file that would unpack to more than fits in memory, or a name used twice.

    Programs differ in which of two entries with one name they read.
    """
    names = collections.Counter(entry.filename.removesuffix(".npy") for entry in entries)
    if names and (most := names.most_common(1)[0])[1] > 1:
        raise BrokenFileError(f"{path} is damaged: it has {most[1]} entries named {most[0]!r}; copy it again")
    size, unpacked = path.stat().st_size, sum(entry.file_size for entry in entries)
    if unpacked > MAX_COMPRESSION * size:
        raise BrokenFileError(f"{path} has {size:,} bytes and would unpack to {unpacked:,}; it was not loaded")


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file, without pickles.

    numpy reads as many bytes as a header says and ignores the rest, and with it the checksum: a header with another
    type or shape would give other numbers. Raises BrokenFileError.
    """
    check_readable(path)
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            check_archive(archive.infolist(), path)
            for name in archive.namelist():
                with archive.open(name) as stream:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(stream, allow_pickle=False)
                    if stream.read(1):
                        raise BrokenFileError(
                            f"{path} is damaged: {name} has more bytes than its header says; copy it again"
                        )
    except Exception as error:  # numpy and zipfile raise many kinds
        if isinstance(error, BrokenFileError) or out_of_memory(error):
            raise
        raise BrokenFileError(f"{path} is not an .npz file of numbers ({one_line(str(error))[:200]})") from None
    return arrays


def list_records(path: Path) -> list[int] | None:
    """Return the sizes of the storages' records in a file of torch.save, in the order of the file, without empty ones.

    None for the format before torch 1.6, which is no zip file: torch checks its sizes. Raises BrokenFileError.
    """
    if not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
            check_archive(entries, path)
            # torch checks no sums. All are 0 after `torch.serialization.set_crc32_options(False)`.
            damaged = archive.testzip() if any(entry.CRC for entry in entries) else None
    except BrokenFileError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:  # also of its names
        raise BrokenFileError(f"{path} is damaged: {one_line(str(error))}; copy it again") from None
    if damaged is not None:
        raise BrokenFileError(f"{path} is damaged: {damaged} does not match its checksum; copy it again")
    names = [entry.filename for entry in entries]
    has_tensors = any(name.endswith("data.pkl") or RECORD_NAME.fullmatch(name) for name in names)
    if names and (not has_tensors or any(map(CODE_NAME.search, names))):
        raise InputError(
            f"{path} was not loaded, and none of it was run: it is an archive of {enumerate_names(names)}; unpack it "
            "and give the folder or, if it is a program of TorchScript or torch.package, save only model.state_dict()"
        )
    for entry, following in pairwise(entries):
        # Also true of compressed records, whose bytes torch would take for numbers.
        if entry.header_offset + entry.file_size > following.header_offset:
            raise BrokenFileError(f"{path}: {entry.filename} overlaps {following.filename}; copy the file again")
    return [entry.file_size for entry in entries if RECORD_NAME.fullmatch(entry.filename) and entry.file_size]


def check_storages(storages: list[torch.UntypedStorage], records: list[int]) -> None:
    """Raise ValueError if a storage is not exactly the bytes of its record.

    torch maps as many bytes as the pickle says from the place where the record begins, and ignores the record's size.
    """
    # The addresses of mapped storages have the order of their records.
    found = [storage.nbytes() for storage in sorted(storages, key=lambda s: s.data_ptr()) if storage.nbytes()]
    if found != records:
        raise ValueError("its storages have other sizes than their records")


def explain_error(error: BaseException) -> str:
    """Return torch's reason without its advice to turn the check off."""
    text = str(error)
    if "Weights only load failed" in text:
        _, separator, text = text.partition("WeightsUnpickler error:")
        if not separator:
            return "it contains more than weights"
    return one_line(text.strip().split("\n")[0][:200]) or type(error).__name__


def may_be_torch_save(path: Path) -> bool:
    """Return whether the file is a zip file or a pickle, as the files of every version of torch."""
    with path.open("rb") as stream:
        return stream.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
