"""LibreOffice's help: the same file and the same id of a paragraph in both languages."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from apt import Packages

PACKAGES = {language: ["libreoffice-help-en-us", f"libreoffice-help-{language}"] for language in ("de", "fr")}


def read_pairs(packages: Packages, language: str) -> Iterator[tuple[str, str]]:
    english, translated = packages.unpack(*PACKAGES[language])
    root = "usr/share/libreoffice/help"
    for path in sorted((english / root / "en-US").rglob("*.html")):
        other = translated / root / language / path.relative_to(english / root / "en-US")
        if other.is_file():
            texts = read_paragraphs(other)
            yield from ((text, texts[key]) for key, text in read_paragraphs(path).items() if key in texts)


def read_paragraphs(path: Path) -> dict[str, str]:
    """Return the text of every heading and paragraph that has an id."""
    parser = Paragraphs()
    parser.feed(path.read_text(encoding="utf-8"))
    return {key: text for key, text in parser.texts.items() if text.strip()}


class Paragraphs(HTMLParser):
    """Collects the text of headings and paragraphs by id."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.key = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("p", "pre") or (tag[0] == "h" and tag[1:].isdecimal()):
            key = dict(attrs).get("id") or ""
            # The same id twice would pair texts of two places.
            self.key = "" if tag == "pre" or key in self.texts else key
        elif tag == "br" and self.key:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("p", "pre") or (tag[0] == "h" and tag[1:].isdecimal()):
            self.key = ""

    def handle_data(self, data: str) -> None:
        if self.key:
            self.texts[self.key] = self.texts.get(self.key, "") + data
