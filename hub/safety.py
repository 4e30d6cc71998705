"""Refuse what must not be published: files from outside the folder, pickles, access tokens.

Every check raises an error that names the file.
"""

import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

from vaswani_transformer.errors import InputError

SECRETS = re.compile(
    rb"\bhf_(?:[a-z]+_)*[A-Za-z0-9]{16,}|\bapi_org_[A-Za-z]{16,}"  # the Hub: user, OAuth and JWT; organisations
    rb"|\bgh[a-z]_[A-Za-z0-9]{36}|\bgithub_pat_\w{22,}"
    rb"|\bAKIA[0-9A-Z]{16}\b|\bsk-[A-Za-z0-9_-]{40,}"  # AWS; OpenAI and Anthropic
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
TEXT_SUFFIXES = (".json", ".md", ".py")


def refuse_links_outside(folder: Path, patterns: Iterable[str]) -> None:
    """Raise InputError if a link makes a file of the folder that matches a pattern lead outside the folder.

    A snapshot in the Hub's cache consists of links to the repository's blobs; those are allowed.
    """
    allowed = [folder.resolve()]
    if allowed[0].parent.name == "snapshots":
        allowed.append(allowed[0].parents[1] / "blobs")
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        target = path.resolve()
        if not any(target.is_relative_to(parent) for parent in allowed):
            raise InputError(f"{path} leads to {target}, outside {folder}; replace the link with a copy")


def refuse_pickles(files: Iterable[Path]) -> None:
    """Raise InputError for a file that is a pickle by its content, whatever its name."""
    for path in files:
        if is_pickle(path):
            raise InputError(f"{path} is a pickle, which can run any code when it is opened; export the model again")


def is_pickle(path: Path) -> bool:
    """Return whether a file is an archive from torch.save, or a bare pickle of protocol 2 or later."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".pkl") for name in archive.namelist())
    with path.open("rb") as stream:
        start = stream.read(2)
        if len(start) < 2 or start[0] != 0x80 or start[1] not in (2, 3, 4, 5):
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"."  # the opcode STOP


def refuse_secrets(files: dict[str, Path | bytes]) -> None:
    """Raise InputError naming a text file that contains an access token or a private key."""
    for name, content in files.items():
        if name.endswith(TEXT_SUFFIXES):
            text = content if isinstance(content, bytes) else content.read_bytes()
            if SECRETS.search(text):
                raise InputError(f"{name} contains an access token or a private key; remove it before you publish")
