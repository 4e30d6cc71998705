"""Package descriptions, translated by Debian's volunteers (DDTP).

The English and the translated record of a package have the same Description-md5. A description is a short line and
paragraphs, which correspond one by one if there are equally many; the short lines always do.
"""

from collections.abc import Iterable, Iterator

from apt import Packages

PACKAGES: dict[str, list[str]] = {}  # the lists of packages have the descriptions


def read_pairs(packages: Packages, language: str) -> Iterator[tuple[str, str]]:
    translated = dict(read_records(packages.read_descriptions(language), language))
    for key, english in read_records(packages.read_descriptions("en"), "en"):
        if other := translated.get(key):
            yield english[0], other[0]
            if len(english) == len(other):
                yield from zip(english[1:], other[1:], strict=True)


def read_records(lines: Iterable[str], language: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the hash and the paragraphs of each record; the first paragraph is the short description."""
    field = f"Description-{language}: "
    key, paragraphs, inside = "", [""], False
    for line in lines:
        if line.startswith("Description-md5: "):
            key = line.split()[1]
        elif line.startswith(field):
            paragraphs, inside = [line.removeprefix(field).strip(), ""], True
        elif inside and line.startswith(" "):
            text = line.strip()
            if text == ".":
                paragraphs.append("")
            elif line.startswith("  ") or text.startswith(("*", "-", "+", "o ")):  # a list, or verbatim text
                paragraphs += [text.lstrip("*-+o "), ""] if text[0] in "*-+o" else [text, ""]
            else:
                paragraphs[-1] += f" {text}" if paragraphs[-1] else text
        elif not line.strip():
            if inside:
                yield key, [text for text in paragraphs if text]
            inside = False
    if inside:
        yield key, [text for text in paragraphs if text]
