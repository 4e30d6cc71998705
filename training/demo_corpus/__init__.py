"""The embedded English-German corpus of the demo: about 20,000 generated pairs (README.md)."""

import gzip
from pathlib import Path

SPLITS = ("train", "validation", "test")
PATH = Path(__file__).with_name("en-de.tsv.gz")


def load(split: str) -> list[tuple[str, str, str]]:
    """Return kind, English and German of every pair in a split. ValueError for a name that is not in SPLITS."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; the corpus has {', '.join(SPLITS)}")
    with gzip.open(PATH, "rt", encoding="utf-8", newline="\n") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return [(kind, english, german) for kind, name, english, german in rows if name == split]
