"""Read TMX, the exchange format of translation memories, one unit at a time and with constant memory.

https://www.gala-global.org/tmx-14b. The parser expands no entities that the file declares and opens no other file.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn
from xml.parsers import expat

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import LONGEST_LINE, open_text

# Elements that hold formatting codes of the translated document, and texts inside them such as footnotes (`sub`), which
# have units of their own. `hi` only marks a part of the text.
CODES = frozenset(("bpt", "ept", "ph", "it", "ut"))
PLACES = frozenset(("br", "lb", "x"))  # of HTML, TEI and XLIFF, which some programs leave in segments
DROPPED = "\0"  # stands for a dropped code; XML cannot contain it
BLOCK = 1 << 16


class Unit(NamedTuple):
    """A translation unit: the line where it begins, and its texts by the file's language codes."""

    line: int
    texts: dict[str, str]


def read_units(path: Path, keep_codes: bool) -> Iterator[Unit]:
    """Yield the units of a file. Raises InputError naming the line if it is not well-formed or not TMX.

    keep_codes: keep the formatting codes inside segments
    """
    parser = _Parser(path, keep_codes)
    try:
        with open_text(path) as stream:
            while block := stream.read(BLOCK):
                parser.expat.Parse(block)
                yield from parser.units
                parser.units.clear()
        parser.expat.Parse(b"", True)
    except expat.ExpatError as error:
        raise InputError(
            f"{path} line {error.lineno}: {expat.ErrorString(error.code)}, so the file is not complete XML; export it "
            "again"
        ) from None
    yield from parser.units


class _Parser:
    """Collects units. units: complete ones that have not been read yet"""

    def __init__(self, path: Path, keep_codes: bool):
        self.path, self.keep_codes = path, keep_codes
        self.units: list[Unit] = []
        self.unit: Unit | None = None
        self.language = ""
        self.segment: list[str] | None = None  # its texts, inside <seg>
        self.letters = 0  # of these texts
        self.open_codes = 0
        self.is_root = True
        self.expat = expat.ParserCreate()
        self.expat.buffer_text = True
        self.expat.StartElementHandler = self.start
        self.expat.EndElementHandler = self.end
        self.expat.CharacterDataHandler = self.add_text
        self.expat.EntityDeclHandler = lambda name, *_: self.refuse(f"declares the entity {name!r}")
        self.expat.SkippedEntityHandler = lambda name, _: self.refuse(f"refers to the entity {name!r}")

    def refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{self.path} line {self.expat.CurrentLineNumber}: the file {what}, which is not expanded; export it with "
            "the characters themselves"
        )

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if self.is_root and name != "tmx":
            raise InputError(f"{self.path}: the file's root is <{name}>, not <tmx>; export it as TMX")
        self.is_root = False
        if name == "tu":
            self.unit = Unit(self.expat.CurrentLineNumber, {})
        elif name == "tuv":  # TMX 1.1 has `lang`
            self.language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self.segment, self.letters = [], 0
        elif name in CODES and self.segment is not None and not self.keep_codes:
            if not self.open_codes:
                self.segment.append(DROPPED if name == "ph" else "")
            self.open_codes += 1

        elif name in PLACES and self.segment is not None and not self.open_codes:
            self.segment.append(DROPPED)

    def end(self, name: str) -> None:
        if name == "tu" and self.unit is not None:
            self.units.append(self.unit)
            self.unit = None
        elif name == "seg" and self.segment is not None:
            if self.unit is not None:
                self.unit.texts.setdefault(self.language, join_segment(self.segment))
            self.segment = None
        elif name in CODES and self.open_codes:
            self.open_codes -= 1

    def add_text(self, text: str) -> None:
        if self.segment is not None and not self.open_codes:
            self.segment.append(text)
            self.letters += len(text)
            if self.letters > LONGEST_LINE:
                raise InputError(
                    f"{self.path} line {self.expat.CurrentLineNumber}: a segment has more than {LONGEST_LINE:,} "
                    "characters; split it into sentences"
                )


def join_segment(parts: list[str]) -> str:
    """Join the text around dropped codes, which may stand for a line break between two words."""
    text = "".join(parts)
    if DROPPED not in text and "" not in parts:
        return text
    text = re.sub(rf"(?<=\w){DROPPED}+(?=\w)", " ", text).replace(DROPPED, "")
    return re.sub(" {2,}", " ", text)
