"""Refuse what must not be published: files from outside the folder, access tokens.

Every check raises an error that names the file.
"""

import re
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


def refuse_secrets(files: dict[str, Path | bytes]) -> None:
    """Raise InputError naming a text file that contains an access token or a private key."""
    for name, content in files.items():
        if name.endswith(TEXT_SUFFIXES):
            text = content if isinstance(content, bytes) else content.read_bytes()
            if SECRETS.search(text):
                raise InputError(f"{name} contains an access token or a private key; remove it before you publish")
