"""Translate the text of HTML and copy its tags.

The pieces are those of browsers (https://html.spec.whatwg.org/multipage/parsing.html#tokenization), found in linear
time: Python's html.parser takes a minute for 100,000 characters of `<a `, writes end tags in lower case, and reads a
page in other ways with each version.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

# Elements whose text is not translated, as in elements with translate="no".
NOT_TRANSLATED = {"code", "kbd", "pre", "samp", "var"}
RAW = {"iframe", "noembed", "noframes", "script", "style", "textarea", "xmp"}  # nor that of these, which has no tags
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}

# Comments, declarations, and CDATA as in XML; each may lack its end.
COMMENT = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))|<!\[CDATA\[.*?(?:\]\]>|\Z)|<(?:[!?]|/(?=[^A-Za-z]))[^>]*+(?:>|\Z)", re.DOTALL
)
SPACE = r"[\t\n\f\r ]*+"
TAG = re.compile(r"<(/?)([A-Za-z][^\t\n\f\r />]*+)")
# A name in a tag, and perhaps a value, without quotes or in quotes, of which the second may be missing.
ATTRIBUTE = re.compile(
    rf"""[\t\n\f\r /]*+(=?[^\t\n\f\r />=]*+)(?:{SPACE}={SPACE}("[^"]*+"?|'[^']*+'?|[^\t\n\f\r >]*+))?"""
)


class Splitter:
    """Reads a page and keeps its open elements."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.open: list[str] = []  # elements
        self.counts = Counter[str]()  # of their names, so that a stray end tag is one at a glance
        self.outside: int | None = None  # number of open elements around the outermost one that is not translated

    def split(self) -> Iterator[tuple[str, bool]]:
        """Yield the parts of the page and whether each is text to translate."""
        start = 0
        while start < len(self.page):
            comment, tag = COMMENT.match(self.page, start), TAG.match(self.page, start)
            if comment:
                end, is_text = comment.end(), False
            elif tag and (end := self._read_tag(tag)):
                is_text = False
            else:  # up to the next <; a tag that has no end takes the rest
                end, is_text = len(self.page) if tag else self.page.find("<", start + 1), self.outside is None
            end = len(self.page) if end < 0 else end
            yield self.page[start:end], is_text
            start = end

    def _read_tag(self, tag: re.Match[str]) -> int:
        """Open or close the element of a tag, and return where the tag ends, or what it encloses if that is raw.

        Returns 0 for a tag without an end.
        """
        name, end, is_translated = tag[2].lower(), tag.end(), True
        while self.page[end : end + 1] not in (">", ""):
            attribute = ATTRIBUTE.match(self.page, end)
            assert attribute  # it matches anything that is no end
            end = attribute.end()
            if attribute[1].lower() == "translate" and (attribute[2] or "").strip("\"'").lower() == "no":
                is_translated = False
        if end == len(self.page):
            return 0
        if tag[1]:
            self._close(name)
        elif name not in VOID and self.page[end - 1] != "/":  # XML closes an element with a slash
            if name in RAW:
                found = re.compile(rf"</{name}(?=[\t\n\f\r />])", re.IGNORECASE).search(self.page, end)
                return found.start() if found else len(self.page)
            if self.outside is None and (name in NOT_TRANSLATED or not is_translated):
                self.outside = len(self.open)
            self.open.append(name)
            self.counts[name] += 1
        return end + 1

    def _close(self, name: str) -> None:
        """Close an element, and those inside it whose end tags are left out."""
        while self.counts[name]:
            closed = self.open.pop()
            self.counts[closed] -= 1
            if closed == name:
                break
        if self.outside is not None and len(self.open) <= self.outside:
            self.outside = None


def split_html(page: str) -> list[tuple[str, bool]]:
    """Return the pieces of HTML in order: (text, True) to translate, without entities, or (HTML, False) to copy."""
    runs = [
        ("".join(part for part, _ in run), is_text) for is_text, run in groupby(Splitter(page).split(), itemgetter(1))
    ]
    return [(html.unescape(run) if is_text else run, is_text) for run, is_text in runs]


def join_html(pieces: list[tuple[str, bool]]) -> str:
    """Join the pieces of HTML, with entities in the texts."""
    return "".join(html.escape(piece, quote=False) if is_text else piece for piece, is_text in pieces)
