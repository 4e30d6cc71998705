"""Metadata of the wheel: the project's URLs, and README.md as the page of a package index.

The address is that of the clone's `origin`, so that a fork's wheel links to the fork (also of a private repository on
these hosts). Without an `origin` there are no URLs, and the page has no link into the clone.
"""

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Hosts and the path of a file there. Other hosts may be a company's own, and cards of published models link to them.
FILES = {"github.com": "blob/HEAD", "gitlab.com": "-/blob/HEAD"}
PICTURES = {host: path.replace("blob", "raw") for host, path in FILES.items()}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)]*)\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]*)\)\n\n")
CAPTION = r"(\*[^*]*\*\n\n)?"


class Origin(MetadataHookInterface):
    """Hatchling's hook for the dynamic fields of pyproject.toml."""

    def update(self, metadata: dict) -> None:
        address = public_address(origin(self.root))
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": page(readme, address)}
        metadata["urls"] = urls(address) if address else {}


def origin(folder: str) -> str:
    """Return the URL of the clone's remote `origin`, or nothing if there is no clone, no remote or no git."""
    command = ["git", "-C", folder, "remote", "get-url", "origin"]
    if not (Path(folder) / ".git").exists():  # an unpacked archive, perhaps inside the clone of another project
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def public_address(remote: str) -> str | None:
    """Return the web address of a remote on a public host, without a user name or a password.

    remote: a URL, or `git@HOST:PATH`, or the path of a folder
    """
    try:
        url = urlsplit(re.sub(r"^[\w.-]+@([\w.-]+):", r"ssh://\1/", remote))
    except ValueError:
        return None
    if url.hostname not in FILES:
        return None
    return f"https://{url.hostname}/{url.path.strip('/').removesuffix('.git')}"


def urls(address: str) -> dict[str, str]:
    files = f"{address}/{FILES[urlsplit(address).netloc]}"
    return {
        "Source": address,
        "Documentation": f"{files}/docs/index.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def page(readme: str, address: str | None) -> str:
    """Return README.md for readers without the clone: links and pictures are absolute, or left out."""
    if address:
        host = urlsplit(address).netloc
        readme = PICTURE.sub(rf"![\1]({address}/{PICTURES[host]}/\2)\n\n", readme)
        return LINK.sub(rf"[\1]({address}/{FILES[host]}/\2)", readme)
    return LINK.sub(r"\1", re.sub(PICTURE.pattern + CAPTION, "", readme))
