"""Join the lines of a hard-wrapped document into paragraphs; its code, lists, tables and headings stay as they are."""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise

from .sentences_vaswani_transformer import SEPARATOR, closing_fence, is_underline

# A list item, heading, table, command, image, definition, field or speaker begins a line of its own.
NEW_LINE = re.compile(
    r"""\s*(?:[-*+•‣◦·–—#|♪:]+\s|(?:\d{1,3}|[ivx]{2,4})[.)]\s|[A-Za-z]\)\s|\((?:\d{1,3}|[a-z]|[ivx]{2,4})\)\s|\||\$\s|>>>\s|\.\.\s
    |\[?!\[|\[[^\[\]]{1,100}\](?::\s|\s*\Z)|:\w[\w ]*:\s|[A-Z][A-Za-z-]{1,20}:\s)""",
    re.VERBOSE,
)
QUOTE = re.compile(r"(?:[ \t]{0,3}>)*")  # of an e-mail, or of Markdown
LINE_BREAK = ("  ", "\\")  # of Markdown, at the end of a line
# A heading, a row of a table, and the title of a box of GitHub are no part of a paragraph.
ALONE = re.compile(r"\s*(?:[#|]|(?:>\s*)*\[!\w+\]\s*\Z)")
CODE_INDENTATION = 4


def unwrap_lines(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of a hard-wrapped text into one line for each paragraph; blank lines stay.

    A block of code between fences is one text, with its line breaks; the lines of indented code stay apart. List items,
    headings, other quotations, lines after a line break of Markdown, and lines without a letter begin a line of their
    own. So does a line that is indented otherwise than the line before, if its first word had room there, as below a
    heading of a manual page: no program wrapped it.
    """
    width = 0
    for block in split_into_blocks(lines):
        if find_fence(block[0]):
            yield "\n".join(block)
        elif len(block) == 1:
            yield block[0]
        else:
            width = max(width, *(len(line.rstrip()) for line in block))
            yield from join_paragraphs(block, width)


def split_into_blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield blocks of code with their fences, runs of lines that have words, and each other line."""
    rest, block = iter(lines), list[str]()
    unclosed = {"`": math.inf, "~": math.inf}  # lengths of fences that nothing closes
    while (line := next(rest, None)) is not None:
        fence = "" if block and is_underline(line, block[-1]) else find_fence(line)
        code = [line]
        if fence and len(fence) < unclosed[fence[0]]:
            closing = closing_fence(fence)
            for code_line in rest:
                code.append(code_line)
                if closing.fullmatch(code_line):
                    break
            else:
                unclosed[fence[0]] = len(fence)
                code, rest = [line], iter(code[1:])
        if fence or is_copied(line) or ALONE.match(line) or not any(letter.isalpha() for letter in line):
            if block:
                yield block
            yield code
            block = []
        else:
            block.append(line)
    if block:
        yield block


def find_fence(line: str) -> str:
    """Return the characters of the fence with which a line opens a block of code, or ""."""
    found = SEPARATOR.match(line)
    return (found["fence"] or found["tildes"] or "") if found else ""


def is_copied(line: str) -> bool:
    """Return whether a line, such as the times of a subtitle, is copied as a whole."""
    found = SEPARATOR.match(line)
    return found is not None and found["line"] is not None


def find_code(block: list[str]) -> list[bool]:
    """Return which lines of a block are code: indented, and half of them end where the next word had room.

    No program has wrapped these.
    """
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


def join_paragraphs(block: list[str], width: int) -> Iterator[str]:
    """Yield a line for each paragraph of a block.  width: of the text, at which it was wrapped"""
    paragraph, before, quote_before = "", "", ""
    for line, is_code in zip(block, find_code(block), strict=True):
        quote = QUOTE.match(line)[0]  # pyright: ignore[reportOptionalSubscript]
        text = line[len(quote) :]
        is_indented = indentation(text) != indentation(before) and not NEW_LINE.match(before)
        begins = is_code or NEW_LINE.match(text) or (is_indented and has_room(quote_before + before, text, width))
        begins = begins or quote.count(">") > 2 or quote.split() != quote_before.split()  # >>> is also Python's prompt
        end = "  " if line.endswith("  ") else ""
        if paragraph and not (begins or paragraph.endswith(LINE_BREAK)):
            paragraph = join_wrapped(paragraph, text.strip()) + end
        else:
            if paragraph:
                yield paragraph
            paragraph = line.rstrip() + end
        before, quote_before = text, quote
    yield paragraph


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def join_wrapped(first: str, second: str) -> str:
    """Join two lines of a paragraph: by a space, unless a hyphen ends the first, or the script has no spaces."""
    if first.endswith("\xad"):
        return first[:-1] + second
    is_hyphen = first[-1] == "-" and first[-2:-1].isalpha() and second[0].islower()
    has_no_spaces = all(unicodedata.east_asian_width(letter) in "WF" for letter in (first[-1], second[0]))
    return first + second if is_hyphen or has_no_spaces else f"{first} {second}"
