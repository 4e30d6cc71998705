"""Example sentences and phrases of the dictionary Ding (English-German only).

A line is `German :: English`; both sides have the same number of entries, separated by ` | `: words, their forms, and
phrases that use them. An entry is one or more alternatives, separated by `;`, with grammar in braces and subjects in
brackets.
"""

import re
from collections.abc import Iterator

from apt import Packages

PACKAGES = {"de": ["trans-de-en"]}
NOTES = re.compile(r"\{[^}]*\}|\[[^\]]*\]")


def read_pairs(packages: Packages, language: str) -> Iterator[tuple[str, str]]:
    (folder,) = packages.unpack(*PACKAGES[language])
    with (folder / "usr/share/trans/de-en").open(encoding="utf-8") as file:
        for line in file:
            german, separator, english = line.strip().partition(" :: ")
            pairs = list(zip(english.split(" | "), german.split(" | "), strict=False))
            if separator and german.count(" | ") == english.count(" | "):
                yield from (
                    (first_alternative(english), first_alternative(german))
                    for english, german in pairs
                    if "{" not in german  # words with their gender or class
                )


def first_alternative(entry: str) -> str:
    return " ".join(NOTES.sub(" ", entry).partition(";")[0].split())


def is_sentence(english: str, german: str) -> bool:
    """Return whether a pair is a whole sentence; the others are phrases."""
    return all(text[:1].isupper() and text[-1] in ".!?…" for text in (english, german))
