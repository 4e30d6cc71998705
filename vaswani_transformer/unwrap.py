"""Join the lines of a hard-wrapped document into paragraphs; its code, lists, tables and headings stay as they are.

mark_copied             lines -> lines, and what is not translated
join_paragraph_lines    the lines of a paragraph -> one
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice, pairwise
from typing import NamedTuple

from .sentences_vaswani_transformer import BLOCK_TAGS, NO_LANGUAGE, SEPARATOR, closing_fence, is_underline


class Copied(str):
    """Lines of a document that are not translated: code, and what only programs read."""


def unwrap_lines(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of a hard-wrapped text into one line for each paragraph; blank lines stay.

    What is not translated is a Copied: code, with its line breaks, and what only programs read. List items, headings,
    other quotations, tags of HTML blocks, lines after a line break of Markdown, and lines without a letter begin a line
    of their own. So does a line that no program wrapped, because its first word had room on the line before: if it is
    indented otherwise, as below a heading of a manual page, or follows a line of half the width, as in an address.
    """
    return join_paragraph_lines(mark_copied(lines))


# ---- what is not translated ------------------------------------------------------------------------------------------


def mark_copied(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a document; what is not translated is a Copied, which may have line breaks."""
    rest = iter(lines)
    beginning = list(islice(rest, 1))
    first = beginning[0] if beginning else ""
    if first.rstrip() in FRONT_MATTER:
        beginning += islice(rest, LONGEST_FRONT_MATTER)
        if length := find_front_matter(beginning):
            yield Copied("\n".join(beginning[:length]))
            del beginning[:length]
    rest = chain(beginning, rest)
    yield from mark_webvtt(rest) if first.startswith("WEBVTT") else mark_code(rest)


FRONT_MATTER = {"---": ("---", "..."), "+++": ("+++",)}  # marks of its beginning and its end, in YAML and TOML
FRONT_MATTER_KEY = re.compile(r"[\w-]+\s*[:=]")
LONGEST_FRONT_MATTER = 200  # lines


def find_front_matter(lines: list[str]) -> int:
    """Return the number of lines of the front matter with which a document begins, with its marks; 0 if it has none."""
    ends = FRONT_MATTER[lines[0].rstrip()]
    if len(lines) > 1 and FRONT_MATTER_KEY.match(lines[1]):
        for number, line in enumerate(lines[1:], start=2):
            if line.rstrip() in ends:
                return number
    return 0


WEBVTT_BLOCK = re.compile(r"(?:NOTE|STYLE|REGION)(?:\s|\Z)")


def mark_webvtt(lines: Iterable[str]) -> Iterator[str]:
    """Copy the comments, the styles and the names of the cues of subtitles."""
    for is_blank, block in groupby(lines, lambda line: not line.strip()):
        first, *others = block
        if is_blank:
            yield from (first, *others)
        elif WEBVTT_BLOCK.match(first):
            yield Copied("\n".join((first, *others)))
        else:
            yield Copied(first) if others and "-->" in others[0] else first
            yield from others


CODE_FOLLOWS = re.compile(r"\A#{1,6}\s|:\s*\Z")  # a heading, or a colon
DIRECTIVE = re.compile(
    r"\s*\.\.\s+(?:(?P<code>(?:code|code-block|sourcecode|highlight|raw|math|toctree)::)|[\w-]+::)"
)  # of reStructuredText


def mark_code(lines: Iterable[str]) -> Iterator[str]:
    """Copy blocks of code, directives of reStructuredText, and indented commands below a line that ends in a colon."""
    rest = iter(lines)
    unclosed: dict[str, int] = {}  # lengths of fences that nothing closes, by their character or tag
    text, above = "", ""  # the last line with text, and the line in front of this one
    code: list[str] = []  # lines that are at least indented by `indent`
    indent = 0
    while (line := next(rest, None)) is not None:
        if code and (not line.strip() or indentation(line) >= indent):
            code.append(line)
            continue
        yield from copy_code(code)
        code = []
        fence = None if is_underline(line, above) else find_fence(line)
        directive = DIRECTIVE.match(line)
        if fence:
            block, is_closed = [line], fence.length >= unclosed.get(fence.kind, math.inf)
            if not is_closed:
                for code_line in rest:
                    block.append(code_line)
                    if is_closed := fence.closing.search(code_line) is not None:
                        break
                else:
                    unclosed[fence.kind] = fence.length
                    block, rest = [line], iter(block[1:])
            yield Copied("\n".join(block))
        elif directive and directive["code"]:
            code, indent = [line], indentation(line) + 1
        elif directive:
            yield Copied(line)
        elif not above.strip() and CODE_FOLLOWS.search(text) and is_command(line, indentation(text)):
            code, indent = [line], indentation(line)
        else:
            yield line
        text, above = line if line.strip() else text, line
    yield from copy_code(code)


def copy_code(lines: list[str]) -> Iterator[str]:
    """Yield lines of code as one text, and the blank lines after it."""
    length = max((number for number, line in enumerate(lines, start=1) if line.strip()), default=0)
    if length:
        yield Copied("\n".join(lines[:length]))
    yield from lines[length:]


CODE_INDENTATION = 4
CODE_SYMBOL = re.compile(r"[^\w\s'’-]|\d|(?<!\w)-")
DEFINITION = re.compile(r"\w:\s")


def is_command(line: str, indent: int) -> bool:
    """Return whether a line is indented by four characters more than `indent`, and no sentence.

    A sentence begins with a capital, ends in punctuation, defines a word, or has five words without any symbol.
    """
    if indentation(line) < indent + CODE_INDENTATION:
        return False
    code = line.strip()
    letter = next(filter(str.isalpha, code), "")
    is_sentence = code.endswith((".", ",", "!", "?")) or letter.lower() == letter.upper() or letter.isupper()
    return not (is_sentence or DEFINITION.search(code)) and (
        len(code.split()) < 5 or CODE_SYMBOL.search(code) is not None
    )


CODE_BLOCKS = {  # in HTML, LaTeX and Markdown: what ends a block, and its first line
    "</{}>": re.compile(r"\s*<(pre|script|style)(?:\s[^<>]*)?>", re.IGNORECASE),
    r"\end{{{}}}": re.compile(r"\s*\\begin\{((?:verbatim|lstlisting|minted|equation|align|gather|tikzpicture)\*?)\}"),
    "-->": re.compile(r"\s*(<!--)"),
    "$$": re.compile(r"\s*(\$\$)\s*\Z"),
}


class Fence(NamedTuple):
    """The line that opens a block of code."""

    kind: str  # ` or ~ or the tag of HTML
    length: int  # a longer fence may close though a shorter one does not
    closing: re.Pattern[str]


def find_fence(line: str) -> Fence | None:
    """Return the fence with which a line opens a block of code, or None."""
    found = SEPARATOR.match(line)
    if found and (marks := found["fence"] or found["tildes"]):
        return Fence(marks[0], len(marks), re.compile(closing_fence(marks).pattern + r"\Z"))
    for end, beginning in CODE_BLOCKS.items():
        if (tag := beginning.match(line)) and (rest := end.format(tag[1])).lower() not in line[tag.end() :].lower():
            return Fence(tag[1].lower(), 1, re.compile(re.escape(rest), re.IGNORECASE))
    return None


# ---- paragraphs ------------------------------------------------------------------------------------------------------


def join_paragraph_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield a line for each paragraph, and other lines as they are."""
    width = 0
    for block in split_into_blocks(lines):
        width = max(width, *(len(line.rstrip()) for line in block)) if len(block) > 1 else width
        yield from block if len(block) == 1 or are_separate(block) else join_paragraphs(block, width)


# A line of settings or of messages: properties, JSON, YAML, gettext.
FIELD = re.compile(r"""\s*(?:[\w.\[\]@-]+\s*[:=](?!//)|msg[a-z_]+(?:\[\d\])?\s"|["'])""")


def are_separate(block: list[str]) -> bool:
    """Return whether a block has fields, rows of a table, or verses: capitalised lines that no program wrapped."""
    width = max(len(line.rstrip()) for line in block)
    cells = {len(re.findall(r"[;,](?=\S)", line)) for line in block}
    words = [line.lstrip(" \t\"'“‘„«")[:2] for line in block]
    had_room = sum(has_room(first, second, width) for first, second in pairwise(block))
    are_verses = had_room > (len(block) == 3) and all(word[:1].isupper() and not word[1:].isupper() for word in words)
    return (len(block) > 2 and are_verses) or (len(cells) == 1 and min(cells) > 1) or all(map(FIELD.match, block))


# No part of a paragraph: headings, rows of tables, comments, commands of LaTeX, titles in brackets as in GitHub's boxes
ALONE = re.compile(
    r"\s*(?:[#|]|(?:%+|;+|//+|={1,6})\s|\\[A-Za-z]+\*?(?:\[[^\[\]]*\])?(?:\{[^{}]*\})*\s*\Z|(?:>\s*)*\[[^\[\]]{1,100}\]\s*\Z)"
)


def split_into_blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield runs of lines that have words, and each other line."""
    block: list[str] = []
    for line in lines:
        copied = SEPARATOR.match(line)  # such as the times of a subtitle
        is_alone = isinstance(line, Copied) or (copied and copied["line"]) or ALONE.match(line)
        if is_alone or not any(letter.isalpha() for letter in line):
            if block:
                yield block
            yield [line]
            block = []
        else:
            block.append(line)
    if block:
        yield block


def find_unwrapped(block: list[str]) -> list[bool]:
    """Return which lines of a block no program has wrapped: they are indented, and half end where a word had room."""
    found = []
    for indent, lines in groupby(block, indentation):
        run = list(lines)
        width = max(len(line.rstrip()) for line in run)
        had_room = [not NEW_LINE.match(second) and has_room(first, second, width) for first, second in pairwise(run)]
        found += [indent >= CODE_INDENTATION and 2 * sum(had_room) >= max(len(had_room), 1)] * len(run)
    return found


def has_room(line: str, following: str, width: int) -> bool:
    """Return whether the first word of the following line would have fit at the end of the line."""
    return len(line.rstrip()) + 1 + len(following.split(maxsplit=1)[0]) <= width


BLOCK_TAG = rf"(?i:</?(?:{BLOCK_TAGS})(?![a-z0-9])[^<>]*>)"
# A list item, heading, table, command, image, definition, field, speaker, row of columns, clause of a law or tag begins
# a line of its own.
NEW_LINE = re.compile(
    r"""\s*(?:[-*+•‣◦·–—#|♪:]+\s|(?:\d{1,3}|[ivx]{2,4})[.)]\s|[^\W\d_]\)\s|\((?:\d{1,3}|[^\W\d_]|[ivx]{2,4})\)\s|\||\$\s|>>>\s|\.\.?\s
    |\[?!\[|\[[^\[\]]{1,100}\](?::\s|\s*\Z)|:\w[\w ]*:(?:\s|\Z)|[A-Z][A-Za-z-]{1,20}:\s|<[A-Za-z][\w-]{0,20}>\s|§
    |\\item\b|[・※①-⑳]|[0-9０-９一二三四五六七八九十]{1,3}[．、]|[（(][一二三四五六七八九十]{1,3}[）)]|第\S{1,4}[章节節条條]|[가-하]\.\s
    |\[\w+:|\S.*(?:\s{3,}|\t|\.{4,}\s)\S|<!--|"""
    rf"""{BLOCK_TAG})""",
    re.VERBOSE,
)
TIME = re.compile(r"\s*\[?\d{1,4}[-:./]\d\d?\b\S*\s")  # begins the lines of a log or a chat
QUOTE = re.compile(r"(?:[ \t]{0,3}>)*")  # of an e-mail, or of Markdown
# At the end of a line: a line break of Markdown, or a tag or comment of HTML that stands by itself.
LINE_BREAK = re.compile(rf"(?:\x20\x20|\\|{BLOCK_TAG}|-->)\Z")
FULL_WIDTH_TEXT = 50  # characters of a line; subtitles and columns are narrower


def join_paragraphs(block: list[str], width: int) -> Iterator[str]:
    """Yield a line for each paragraph of a block.  width: of the text, at which it was wrapped"""
    paragraph, before, quote_before = "", "", ""
    are_timed = TIME.match(block[0])
    for line, is_unwrapped in zip(block, find_unwrapped(block), strict=True):
        quote = "" if re.search(r"<[A-Za-z/!][^<>]*\Z", before) else QUOTE.match(line)[0]  # pyright: ignore
        text = line[len(quote) :]
        follows_sentence = before.rstrip().endswith((".", ";", ":"))
        is_item = NEW_LINE.match(text) or ((are_timed or follows_sentence) and TIME.match(text))
        is_other_quote = quote.count(">") > 2 or quote.split() != quote_before.split()  # >>> is also Python's prompt
        is_indented = indentation(text) != indentation(before) and not NEW_LINE.match(before)
        is_short = width >= FULL_WIDTH_TEXT and 2 * len(before.rstrip()) < width  # as in an address, below full lines
        is_below_short = is_short and not text.lstrip()[:1].islower()
        had_room = has_room(quote_before + before, text, width)
        is_address = NO_LANGUAGE.fullmatch(text.strip()) and not f" {before}".split(" ")[-1].islower()
        looks_new = is_indented or is_below_short or is_address
        begins = is_unwrapped or is_item or is_other_quote or (had_room and looks_new)
        end = "  " if line.endswith("  ") else ""
        if paragraph and not (begins or LINE_BREAK.search(paragraph)):
            paragraph = join_wrapped(paragraph, text.strip()) + end
        else:
            if paragraph:
                yield paragraph
            paragraph = line.rstrip() + end
        before, quote_before = text, quote
    yield paragraph


def indentation(line: str) -> int:
    """Return the width of the white space in front of a line, in which a tab is as wide as an indentation of code."""
    return len(line[: len(line) - len(line.lstrip())].expandtabs(CODE_INDENTATION))


# Two lines are joined without a space after a hyphen inside a word, except as in "pre- and post-war".
HYPHEN = re.compile(r"[^\W_][-‐]\n(?!(?:and|or|to|und|oder|bzw|et|ou|y|o|e|i|en|of|och|eller|og)\b)[^\W_]")


def join_wrapped(first: str, second: str) -> str:
    """Join two lines of a paragraph: by a space, unless a hyphen ends the first, or the script has no spaces."""
    if first.endswith(("\xad", "¬")):  # the second, in text that was scanned
        return first[:-1] + second
    ends = first[-1] + second[0]
    is_wide = all(unicodedata.east_asian_width(letter) in "WF" for letter in ends)  # as in Korean, which has spaces
    is_joined = HYPHEN.search(f"{first[-2:]}\n{second}") or (is_wide and not re.search("[ᄀ-ᇿ㄰-㆏가-힣]", ends))
    return first + ("" if is_joined else " ") + second
