"""Translate the text of HTML and copy its tags."""

import html
from html.parser import HTMLParser

# Elements whose text is not translated, as in elements with translate="no".
NOT_TRANSLATED = {"code", "kbd", "pre", "samp", "script", "style", "textarea", "var"}
RAW = {"script", "style"}  # elements without entities
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Splitter(HTMLParser):
    """Splits HTML into pieces: (text, True) to translate, without entities, and (HTML, False) to copy."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[tuple[str, bool]] = []
        self.kept: list[str] = []  # the outermost open element that is not translated, and the open elements inside it

    def add(self, piece: str, is_text: bool = False) -> None:
        if self.pieces and self.pieces[-1][1] == is_text:
            piece = self.pieces.pop()[0] + piece
        self.pieces.append((piece, is_text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID and (self.kept or tag in NOT_TRANSLATED or ("translate", "no") in attrs):
            self.kept.append(tag)
        self.add(self.get_starttag_text() or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.add(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.kept:
            while self.kept.pop() != tag:  # elements whose end tags are left out
                pass
        self.add(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self.kept:
            self.add(data if self.kept[-1] in RAW else html.escape(data, quote=False))
        else:
            self.add(data, True)

    def handle_comment(self, data: str) -> None:
        self.add(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.add(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self.add(f"<?{data}>")

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Copy `<![CDATA[...]]>`, and `<![...>` as far as browsers read it; Python raises AssertionError for most."""
        end = "]]>" if self.rawdata.startswith("<![CDATA[", i) else ">"
        after = self.rawdata.find(end, i) + len(end)
        if after < len(end):
            return -1  # it has no end
        self.add(self.rawdata[i:after])
        return after

    def unknown_decl(self, data: str) -> None:
        self.add(f"<![{data}]]>")  # CDATA, of a Python that does not call the method above

    def close(self) -> None:
        super().close()
        if self.rawdata:  # the end of a script without an end tag, which Python 3.11 leaves there
            self.handle_data(self.rawdata)


def split_html(page: str) -> list[tuple[str, bool]]:
    """Return the pieces of HTML in order: (text, True) to translate, without entities, or (HTML, False) to copy."""
    splitter = Splitter()
    splitter.feed(page)
    splitter.close()
    return splitter.pieces


def join_html(pieces: list[tuple[str, bool]]) -> str:
    """Join the pieces of HTML, with entities in the texts."""
    return "".join(html.escape(piece, quote=False) if is_text else piece for piece, is_text in pieces)
