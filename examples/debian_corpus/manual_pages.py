"""Manual pages. Translations are made from the English source and keep its macros.

A section of a page corresponds to the same section of its translation if both consist of the same kinds of blocks:
headings, paragraphs, and the tags and texts of lists.
"""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from apt import Packages

ORIGINALS = ["manpages", "manpages-dev", "coreutils", "util-linux", "systemd"]
PACKAGES = {language: [*ORIGINALS, f"manpages-{language}", f"manpages-{language}-dev"] for language in ("de", "fr")}
Block = tuple[str, str]  # the macro that begins it, and its text

LAYOUT = {"ne", "in", "ad", "hy", "nh", "PD", "ta", "br", "sp"}
VERBATIM = {"nf": True, "EX": True, "TS": True, "fi": False, "EE": False, "TE": False}  # begins, ends
SAME = {"P": "PP", "LP": "PP", "TQ": "TP"}
FONTS = {"B", "I", "R", "SM", "SB", "BI", "BR", "IB", "IR", "RB", "RI"}
CHARACTERS = {
    r"\-": "-", r"\(aq": "'", r"\(cq": "’", r"\(oq": "‘", r"\(dq": '"', r"\(lq": "“", r"\(rq": "”", r"\(em": "—",
    r"\(en": "–", r"\(bu": "•", r"\(co": "©", r"\(mu": "×", r"\(Fo": "«", r"\(Fc": "»", r"\(ga": "`", r"\(ha": "^",
    r"\(ti": "~", r"\(rs": "\\", r"\e": "\\", r"\'": "´", r"\`": "`", r"\ ": " ", r"\~": " ", r"\0": " ",
}  # fmt: skip
ESCAPE = re.compile(
    "|".join(map(re.escape, CHARACTERS))
    + r"|\\\[..\]|\\f\[[^]]*\]|\\f\(..|\\f.|\\s[-+]?\d|\\m\[[^]]*\]|\\[&/,|^:%c]|\\\".*"
)


def read_pairs(packages: Packages, language: str) -> Iterator[tuple[str, str]]:
    folders = packages.unpack(*PACKAGES[language])
    originals = {path.name: path for folder in folders for path in sorted(folder.glob("usr/share/man/man?/*.gz"))}
    for folder in folders:
        for path in sorted(folder.glob(f"usr/share/man/{language}/man?/*.gz")):
            if path.name in originals and not originals[path.name].is_symlink() and not path.is_symlink():
                yield from pair_pages(read_sections(originals[path.name]), read_sections(path))


def pair_pages(english: list[list[Block]], translated: list[list[Block]]) -> Iterator[tuple[str, str]]:
    """Yield the texts of corresponding blocks of two pages."""
    if len(translated) - len(english) not in (0, 1):  # the last section of a translation names its translators
        return
    for one, other in zip(english, translated, strict=False):
        if [kind for kind, _ in one] == [kind for kind, _ in other]:
            yield from ((a, b) for (_, a), (_, b) in zip(one, other, strict=True))


def read_sections(path: Path) -> list[list[Block]]:
    """Return the blocks of each section of a page."""
    sections: list[list[Block]] = [[]]
    kind, words, verbatim = "", [], False
    for line in gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace").splitlines():
        macro, rest = split_macro(line)
        if macro.startswith('\\"') or macro in LAYOUT:
            continue
        if not macro or macro in FONTS:
            if line.strip() and not verbatim:
                words.append(join_fonts(macro, rest) if macro else line)
                if kind == "TP":  # the tag is one line
                    sections[-1].append(("TP", make_plain(words)))
                    kind, words = "TP text", []
            continue
        if words:
            sections[-1].append((kind, make_plain(words)))
        kind, words = macro, []
        if macro == "SH":
            sections.append([("SH", make_plain([rest]))])
        elif macro == "SS":
            sections[-1].append((macro, make_plain([rest])))
        elif macro == "IP" and rest.strip():
            sections[-1].append((macro, make_plain(split_arguments(rest)[:1])))
        verbatim = VERBATIM.get(macro, verbatim)
    if words:
        sections[-1].append((kind, make_plain(words)))
    return sections


def split_macro(line: str) -> tuple[str, str]:
    """Return the name of the line's macro and its arguments; "" and the line for text."""
    if not re.match(r"\.|'(\\\"|[a-z]{2}\b)", line):
        return "", line
    name, _, rest = line[1:].strip().partition(" ")
    return SAME.get(name, name), rest


def split_arguments(rest: str) -> list[str]:
    found = re.findall(r'"((?:[^"]|"")*)"|((?:\\.|\S)+)', rest)
    return [quoted.replace('""', '"') or bare for quoted, bare in found] or [""]


def join_fonts(macro: str, rest: str) -> str:
    """Return the text of a line such as `.BR ls (1),`: two fonts alternate without space."""
    return ("" if len(macro) == 2 and macro not in ("SM", "SB") else " ").join(split_arguments(rest))


def make_plain(words: list[str]) -> str:
    """Return text without roff's escapes."""
    return ESCAPE.sub(find_character, " ".join(words)).strip().strip('"')


def find_character(escape: re.Match[str]) -> str:
    name = rf"\({escape[0][2:4]}" if escape[0].startswith(r"\[") else escape[0]  # \[em] is \(em
    return CHARACTERS.get(name, "")
