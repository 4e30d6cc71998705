"""Split a text into sentences, which a model translates one at a time, and put their translations in their places.

Models are trained on single sentences; given two at once, they often omit the second. What stands between the
sentences is copied: white space, line breaks, and parts without a letter such as bullets, rules, emoji and numbers. So
are code between fences, addresses, and tags around a sentence.
`split_text` splits, and `cut_to_limit` a sentence that is too long; `join_texts` joins. Translator and the pipeline use
them; hub/space-static/sentences.js follows the same rules. This file is published with the pipeline and imports nothing
but the standard library and files like it.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .languages_vaswani_transformer import find_language
from .search_vaswani_transformer import check_number

# Subfolder of a model folder: the decoder's tokenizer, if the languages have separate vocabularies.
TARGET_TOKENIZER = "target_tokenizer"

# ---- characters ------------------------------------------------------------------------------------------------------

# Sets of characters, each the inside of [...] in a regular expression of Python or of the tokenizers library.
LINE_BREAKS = "\n-\r\x85\u2028\u2029"
# White space in Unicode and in Python, and three characters that are drawn as a blank.
WHITE_SPACE = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u2800\u3000\u3164\uffa0"
# Control and format characters that a reader does not see and no word needs: soft hyphen, zero-width space, byte order
# mark, marks of the writing direction, variation selectors, tags.
INVISIBLE = (
    "\0-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u17b4\u17b5\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Zero-width joiner and non-joiner and Mongolian's variation selectors are part of the spelling in some scripts.
JOINERS = "\u180b-\u180f\u200c\u200d"
# They are kept after these characters: Arabic, Syriac, the scripts of South and South-East Asia, Mongolian; emoji.
JOINED = (
    "\u0600-\u109f\u1780-\u180a\u1810-\u18af\u1900-\u1cff\ua800-\uabff\ufb50-\ufdff\ufe70-\ufefc"
    "\U00010a00-\U00011fff\U0001e900-\U0001e95f\u2190-\u2bff\U0001f000-\U0001faff"
)


def list_characters(inside: str) -> list[str]:
    """Return the characters of the inside of [...]."""
    ranges = re.findall("(.)(?:-(.))?", inside, re.DOTALL)
    return [chr(code) for first, last in ranges for code in range(ord(first), ord(last or first) + 1)]


ALL_WHITE_SPACE = "".join(list_characters(WHITE_SPACE))
NOT_SPACE = re.compile(f"[^{WHITE_SPACE}]")
LETTER = re.compile(r"[^\W\d_]")
LETTER_OR_DIGIT = re.compile(r"[^\W_]")
WORD = re.compile(r"\w+")

# ---- cleaning --------------------------------------------------------------------------------------------------------

# The steps that clean a text, patterns and replacements; then its ends are stripped.
CLEANING = ((f"[{INVISIBLE}]+", ""), (f"(?<![{JOINED}])[{JOINERS}]+", ""), (f"[{WHITE_SPACE}]+", " "))
STEPS = [(re.compile(pattern), replacement) for pattern, replacement in CLEANING]
UNCLEAN = re.compile(f"[{INVISIBLE}{JOINERS}]|(?! )[{WHITE_SPACE}]|  |\\A | \\Z")


def clean_text(text: str) -> str:
    """Drop invisible characters, make each run of white space one space, and strip the ends."""
    if UNCLEAN.search(text):
        for pattern, replacement in STEPS:
            text = pattern.sub(replacement, text)
        text = text.strip(" ")
    return text


def cleans_itself(normalizer: Any) -> bool:
    """Return whether a normalizer (or None) begins with the steps of `clean_text`.

    Those of tokenizers that this package trains do, unless they keep invisible characters. A text and `clean_text` of
    it then have the same tokens, whatever the later steps are.
    """
    steps = [] if normalizer is None else json.loads(normalizer.__getstate__()).get("normalizers", [])
    own = [{"type": "Replace", "pattern": {"Regex": pattern}, "content": content} for pattern, content in CLEANING]
    own.append({"type": "Strip", "strip_left": True, "strip_right": True})
    return steps[: len(own)] == own


def choose_cleaning(normalizer: Any) -> Callable[[str], str]:
    """Return the function that cleans texts for a tokenizer: `clean_text`, except for what its normalizer decides.

    A converted tokenizer may drop some of these characters or turn them into a space, as its toolkit does; they are
    left to it. A tokenizer that strips the ends and keeps a soft hyphen was trained to keep invisible characters; its
    texts are only stripped.

    normalizer: of the tokenizers library, or None
    """
    if normalizer is None or cleans_itself(normalizer):
        return clean_text
    normalize = normalizer.normalize_str
    if normalize(" a\xadb ") == "a\xadb":
        return strip_text
    characters = list_characters(INVISIBLE + JOINERS + WHITE_SPACE)
    own = [character for character in characters if normalize(f"a{character} b") == normalize("a b")]
    if len(own) in (0, len(characters)):
        return clean_text
    others = f"(?![{re.escape(''.join(own))}])"
    steps = [(re.compile(f"(?:{others}{pattern[:-1]})+"), replacement) for pattern, replacement in CLEANING]

    def clean(text: str) -> str:
        if UNCLEAN.search(text):
            for pattern, replacement in steps:
                text = pattern.sub(replacement, text)
        return strip_text(text)

    return clean


def strip_text(text: str) -> str:
    return text.strip(ALL_WHITE_SPACE)


# ---- languages -------------------------------------------------------------------------------------------------------

# A token that names the language of the translation: >>deu<< and >>bel_Latn<< (OPUS-MT), <2de>, __de__ and [de_DE]
# (fairseq, M2M-100), de_DE (mBART), deu_Latn (NLLB). None can leave the code of a Markdown page.
LANGUAGE_TOKEN = re.compile(
    r">>([\w@.+-]+)<<|<2([a-z]{2,3}(?:[_-]\w{2,8})*)>|__([a-z]{2,3}(?:_[A-Za-z]{2,8})?)__"
    r"|\[?([a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3}))\]?"
)
# Those that no subword of a text looks like; the others, such as en_US, count as added tokens only.
UNMISTAKABLE = (">>", "<2", "__")


class LanguageTokens:
    """The language tokens of a model with several target languages. Its source sentences begin with one of them.

    tokens: by id; empty for a model without such tokens
    """

    def __init__(self, tokenizer: Any):
        """tokenizer: of the sources, a tokenizers.Tokenizer"""
        added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        # SentencePiece may have learned ▁<2de> from texts that begin with <2de>.
        texts = {token.removeprefix("▁"): id for token, id in vocabulary.items()}
        found = [text for text in texts if text in added or text.startswith(UNMISTAKABLE)]
        self.tokens = sorted(filter(LANGUAGE_TOKEN.fullmatch, found), key=texts.__getitem__)
        longest_first = "|".join(map(re.escape, sorted(self.tokens, key=len, reverse=True)))
        blank = f"(?![{LINE_BREAKS}])[{WHITE_SPACE}]"
        self._beginning = re.compile(f"(?:\\A|(?<=[{LINE_BREAKS}]))(?:{blank})*({longest_first})((?:{blank})*)")

    @property
    def are_needed(self) -> bool:
        """Whether a source without a token is refused. With a single token, it may be one that training rarely used."""
        return len(self.tokens) > 1

    @property
    def names(self) -> list[str]:
        """The languages as they are written in the tokens, such as deu."""
        return [next(filter(None, LANGUAGE_TOKEN.fullmatch(token).groups())) for token in self.tokens]  # pyright: ignore

    def find(self, language: str) -> str:
        """Return the token of a language: `de`, `deu` and `German` are one, see `find_language`; or as a token.

        Raises ValueError naming all languages.
        """
        if not self.tokens:
            raise ValueError(f"target_language is {language!r}, but the model has one target language; leave it out")
        if language in self.tokens:
            return language
        position = find_language(self.names, language)
        if position is not None:
            return self.tokens[position]
        raise ValueError(f"target_language is {language!r}; the model has {', '.join(self.names)}")

    def prefix(self, language: str | None) -> str | None:
        """Return what stands in front of each sentence: the token of a language, "" for none, None if it must be typed.

        language: None for that of the text, "" for texts that may have none
        """
        if language:
            return f"{self.find(language)} "
        return None if language is None and self.are_needed else ""

    def split(self, text: str, prefix: str | None) -> Iterator[tuple[str, str | None]]:
        """Yield the parts of a text and the prefix of the sentences of each.

        A token at the beginning of the text or of a line takes the place of the prefix from there on.
        """
        end, found = 0, self._beginning.finditer(text) if self.tokens else ()
        for match in found:
            if match.start(1):
                yield text[end : match.start(1)], prefix
            prefix, end = match[1] + (" " if match[2] else ""), match.end()
        yield text[end:], prefix

    def begins(self, text: str) -> bool:
        """Return whether the text begins with a language token."""
        return bool(self.tokens and self._beginning.match(text))

    def missing(self) -> str:
        """Return what a text without a token lacks, and the remedy."""
        some = ", ".join(self.tokens[:20]) + (f" and {len(self.tokens) - 20} more" if len(self.tokens) > 20 else "")
        known = f"begin it with {some}, or give --target-language (target_language in Python)"
        return f"no language token, which this model needs: {known}"


class MissingLanguage(ValueError):
    """A sentence has no language token, and the model needs one."""


# ---- a text in pieces ------------------------------------------------------------------------------------------------

# Token ids of a text, ending in </s>, and the character at which each token begins.
Encode = Callable[[str], tuple[list[int], list[int]]]
# Cut sentences of more tokens, if generation_config.json has no max_source_length.
MAX_SOURCE_LENGTH = 128
SHORTEST_MAX_SOURCE_LENGTH = 8  # a character takes up to four tokens, </s> one
LONGEST_MAX_SOURCE_LENGTH = 1_000_000  # of models with sinusoids, which have no last position


def source_limit(
    requested: int | None, trained_length: int | None, positions: int | None, split_sentences: bool = True
) -> int:
    """Return the token limit of a part: the requested one or, by default, the recorded length of the training.

    positions: the number of learned positions, which no limit exceeds
    split_sentences: False for texts that are not split, whose default is not below MAX_SOURCE_LENGTH
    Raises ValueError.
    """
    least, most = SHORTEST_MAX_SOURCE_LENGTH, positions or LONGEST_MAX_SOURCE_LENGTH
    if requested is None:
        default = MAX_SOURCE_LENGTH if trained_length is None else max(trained_length, least)
        return min(default if split_sentences else max(default, MAX_SOURCE_LENGTH), most)
    return check_number("max_source_length", requested, least, most)


class Piece(NamedTuple):
    """A unit of translation: a sentence, or a part of a very long one."""

    copied: str  # what stands between the previous piece and this one, and is copied
    ids: list[int]  # token ids, ending in </s>; empty after the last sentence of a text that does not end there
    text: str
    is_cut: bool  # whether it is a part of a sentence
    prefix: str = ""  # of the ids: the language token, which `text` does not have


def split_text(
    text: str,
    limit: int,
    encode: Encode,
    split_sentences: bool = True,
    clean: Callable[[str], str] = clean_text,
    languages: LanguageTokens | None = None,
    language: str | None = None,
) -> Iterator[Piece]:
    """Yield the sentences of a text, each with at most `limit` tokens, and what is copied between them.

    A longer sentence is cut at punctuation, at a conjunction, at a space, or else between letters. If the text ends in
    anything that is copied, or is empty, the last piece has no ids.

    split_sentences: False to cut a line only where it is too long
    languages: the model's language tokens; the one with which the text begins is put in front of every sentence
    language: of the translation, for a text that begins with none; "" to translate it without a token
    Raises ValueError for an unknown language, MissingLanguage if a sentence has none and the model needs one.

    >>> encode = lambda text: ([*text.encode(), 2], [*range(len(text) + 1)])
    >>> [(piece.copied, piece.text) for piece in split_text("It rains.\\n* Stay inside! Read.", 128, encode)]
    [('', 'It rains.'), ('\\n* ', 'Stay inside!'), (' ', 'Read.')]
    """
    if languages is None or not (languages.tokens or language):
        yield from split_part(text, limit, encode, split_sentences, clean)
        return
    copied, is_complete = "", True
    for part, prefix in languages.split(text, languages.prefix(language)):
        for piece in split_part(part, limit, encode_after(prefix or "", encode), split_sentences, clean):
            copied, is_complete = copied + piece.copied, bool(piece.ids)
            if piece.ids:
                if prefix is None:
                    raise MissingLanguage(languages.missing())
                yield piece._replace(copied=copied, prefix=prefix)
                copied = ""
    if not is_complete:
        yield Piece(copied, [], "", False)


def encode_after(prefix: str, encode: Encode) -> Encode:
    """Return a function that encodes a text with a prefix in front of it, and counts characters from its beginning."""

    def encode_text(text: str) -> tuple[list[int], list[int]]:
        ids, starts = encode(prefix + text)
        return ids, [max(0, start - len(prefix)) for start in starts]

    return encode_text if prefix else encode


# What is copied keeps of the invisible characters only those of emoji.
NOT_OF_EMOJI = re.compile(
    f"(?<![#*0-9\u2190-\u2bff\U0001f000-\U0001faff\u200d\ufe0f\U000e0000-\U000e0fff])[{INVISIBLE}{JOINERS}]"
)


def split_part(
    text: str, limit: int, encode: Encode, split_sentences: bool, clean: Callable[[str], str]
) -> Iterator[Piece]:
    """Yield the pieces of a text, or of a part of it that has one prefix, see `split_text`."""
    end = 0
    keep = clean is strip_text
    for start, stop in sentence_spans(text, split_sentences):
        copied = text[end:start] if keep else NOT_OF_EMOJI.sub("", text[end:start])
        pieces = list(cut_to_limit(clean(text[start:stop]), limit, encode))
        for number, (separator, ids, part) in enumerate(pieces):
            yield Piece(separator if number else copied, ids, part, len(pieces) > 1)
        end = stop
    if end < len(text) or not text:
        yield Piece(text[end:] if keep else NOT_OF_EMOJI.sub("", text[end:]), [], "", False)


# Characters of a sentence: one of a million letters would take minutes.
LONGEST_SENTENCE = 10_000


def check_sentences(text: str) -> None:
    """Raise ValueError for a sentence of more than LONGEST_SENTENCE characters."""
    if len(text) <= LONGEST_SENTENCE:
        return
    longest = max((stop - start for start, stop in sentence_spans(text)), default=0)
    if longest > LONGEST_SENTENCE:
        raise ValueError(f"a sentence has {longest:,} characters, the limit is {LONGEST_SENTENCE:,}; split it")


def sentence_spans(text: str, split_sentences: bool = True) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence, or each line, without what is copied around it."""
    is_cased = any(letter.isupper() for letter in text)
    for start, stop in separated_spans(text):
        line = text[start:stop]
        for first, last in split_line(line, is_cased) if split_sentences else [(0, len(line))]:
            begin, end = strip_copied(line, first, last)
            tags = [tag[0] for tag in TAG.finditer(line, begin, end) if not tag[0].endswith("/>")]
            if 2 * sum(tag.startswith("</") for tag in tags) != len(tags):  # "<b>A</b> dog": its tags are a pair
                begin, end = strip_copied(line, first, last, with_tags=False)
            if LETTER.search(line, begin, end) and not NO_LANGUAGE.fullmatch(line, begin, end):
                yield start + begin, start + end


# ---- the translations of the pieces in one text ----------------------------------------------------------------------

FULL_WIDTH = {",": "，", ";": "；", ":": "："}
SPACED_MARK = re.compile(r"\A (?=[,;:](?: |\Z))")  # the space in front of a mark, but not of ":)"
FULL_STOP = re.compile(r"(?<![.…])[.。]\Z")
IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]\Z")
# The end of a sentence that a space follows. Chinese and Japanese double an ellipsis.
SPACED_END = re.compile(r"(?:[.!?]|(?<!…)…)[\"'”’»)\]“‘«]*\Z")


def join_texts(first: str, separator: str, second: str) -> str:
    """Join the translations of consecutive parts by what is copied between them.

    Chinese and Japanese have nothing between sentences; if the translation's language does, it gets a space. The full
    stop that the model gave to a part in front of a copied comma is dropped, and a comma gets the script's own form.
    """
    mark = SPACED_MARK.sub("", separator)
    if mark[:1] in FULL_WIDTH or mark[:2] in (".,", ".;"):
        first = FULL_STOP.sub("", first)
        if mark[0] in FULL_WIDTH and IDEOGRAPH.search(first):
            return first + FULL_WIDTH[mark[0]] + mark[1:].lstrip(" ") + second
    if not separator and second and SPACED_END.search(first):
        separator = " "
    return first + separator + second


# ---- what stands between separators: lines, cells, HTML blocks, without code -----------------------------------------

# A text between two of these is split by itself: line breaks, tags of HTML blocks, bars of tables, fences of code,
# commands after a prompt, the times of subtitles, comments.
BLOCK_TAGS = (
    "br|p|div|li|ul|ol|dl|dt|dd|h[1-6]|hr|tr|td|th|table|thead|tbody|details|summary|blockquote|pre|center|"
    "figure|figcaption|img|html|head|title|body|section|article|header|footer|nav|main|aside|caption|!doctype"
)
SEPARATOR = re.compile(
    rf"""(?<![^{LINE_BREAKS}])[ \t>]{{0,12}}(?:(?P<fence>`{{3,}})[^`{LINE_BREAKS}]*(?![^{LINE_BREAKS}])
        |(?P<tildes>~{{3,}})[^{LINE_BREAKS}]*
        |(?P<line>\$\x20[a-z./~]|WEBVTT(?![^\s])|(?:[0-9]{{1,3}}:)?[0-9]{{1,2}}:[0-9]{{2}}[.,][0-9]{{3}}[ \t]+-->)
            [^{LINE_BREAKS}]*)
    |(?P<line_break>[{LINE_BREAKS}]+)
    |</?(?:{BLOCK_TAGS})(?![a-z0-9])[^<>{LINE_BREAKS}]{{0,200}}>
    |<!--[^{LINE_BREAKS}]{{0,500}}?-->
    |(?P<bars>(?<!\\)\|+)""",
    re.VERBOSE | re.IGNORECASE,
)
ONE_LINE_BREAK = re.compile("\r\n|.", re.DOTALL)
TABLE_ROW = re.compile(rf"[ \t>]{{0,20}}\|[^{LINE_BREAKS}]*\|[ \t]*(?![^{LINE_BREAKS}])")


def separated_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of what stands between line breaks, tags and bars, without blocks of code."""
    start = place = 0
    in_table = TABLE_ROW.match(text) is not None
    unclosed = {"`": len(text), "~": len(text)}  # lengths of fences that nothing closes
    above, line_start = "", 0  # the line in front of this one
    while found := SEPARATOR.search(text, place):
        place = found.end()
        around = text[found.start() - 1 : found.start()] + text[place : place + 1]
        if found["bars"] and not in_table and NOT_SPACE.search(around):
            continue
        yield start, found.start()
        if found["line_break"]:
            in_table = TABLE_ROW.match(text, place) is not None
            above = text[line_start : found.start()] if ONE_LINE_BREAK.fullmatch(found[0]) else ""
            line_start = place
        fence = found["fence"] or found["tildes"]
        if fence and len(fence) < unclosed[fence[0]] and not is_underline(found[0], above):
            if closing := closing_fence(fence).search(text, place):
                place = closing.end()
            else:
                unclosed[fence[0]] = len(fence)
        start = place
    yield start, len(text)


def is_underline(line: str, above: str) -> bool:
    """Return whether a line that looks like a fence of code underlines the title above, as in reStructuredText."""
    marks = line.strip()
    return len(set(marks)) == 1 and len(marks) > 3 and len(marks) >= len(above.strip()) > 0


def closing_fence(fence: str) -> re.Pattern[str]:
    """Return the pattern of the line that closes a fence: as many of the same characters, or more."""
    closing = f"{fence[0]}{{{len(fence)},}}"
    return re.compile(f"(?<![^{LINE_BREAKS}])[ \\t>]{{0,12}}{closing}[ \\t]*(?![^{LINE_BREAKS}])")


# ---- what is copied around a sentence --------------------------------------------------------------------------------

# Symbols at the ends of a sentence that are copied: bullets (Word's are private characters), rules, markup, emoji.
SYMBOLS = re.compile(
    "[#*+\\-‐-―−=~|•‣◦⁃·\u30fb\uff65※〜～_`^\u2190-\u21ff\u2300-\u2bff\u20e3\ue000-\uf8ff\U0001f000-\U0001faff"
    f"{WHITE_SPACE}{INVISIBLE}{JOINERS}]"
)
# An option of a command begins with no bullet: "-o FILE" and "--help", but "-I am here" and "-first item".
OPTION = re.compile(r"(?<!-)(?:--[a-z]|-[B-HJ-Zb-z](?![^\W_]|['’]))")
# Tags around a sentence: of XML, HTML and subtitles (WebVTT, Advanced SubStation Alpha). Not tokens such as </s>.
TAG = re.compile(
    r"</?(?!(?:s|pad|unk)>)[a-z][a-z0-9:._-]{0,30}(?:\x20[^<>]{0,200}=[^<>]{0,200})?\x20?/?>|<v\x20[^<>]{1,99}>|\{\\[^{}]{1,99}\}",
    re.IGNORECASE,
)
# The number or box of an item of a list, or the number of a note, which a model may take for a numeral: "2. Dogs run."
ITEM_NUMBER = re.compile(
    r"(?:[0-9]{1,3}[.)]|[A-Za-z]\)|(?:[ivx]{2,6}|[IVX]{2,6})[.)]|\((?:[0-9]{1,3}|[A-Za-z]|[ivx]{2,6}|[IVX]{2,6})\)"
    rf"|\[[\x20xX]\]|\[(?:[0-9]{{1,3}}|\^[A-Za-z0-9_-]{{1,30}})\]:?)[{WHITE_SPACE}]+|[0-9]\ufe0f?\u20e3[{WHITE_SPACE}]*"
)


def strip_copied(line: str, first: int, last: int, with_tags: bool = True) -> tuple[int, int]:
    """Return the start and end of a sentence without the symbols, white space, numbers of items and tags around it."""
    start, stop, letter = first, last, -1  # the place of the next letter or digit after the item numbers
    while first < last:
        number = ITEM_NUMBER.match(line, first, last)
        if number and letter < number.end():
            found = LETTER_OR_DIGIT.search(line, number.end(), last)
            letter = found.start() if found else last
        if with_tags and (tag := TAG.match(line, first, last)):
            first = tag.end()
        elif number and letter < last:
            first = number.end()
        elif (SYMBOLS.match(line, first) or line[first] == ">") and not OPTION.match(line, first):  # > quotes a line
            first += 1
        else:
            break
    while first < last:
        tag = TAG.match(line, max(first, line.rfind("{" if line[last - 1] == "}" else "<", first, last)), last)
        if with_tags and tag and tag.end() == last:
            last = tag.start()
        elif SYMBOLS.match(line, last - 1) or line[last - 1] == "\\":  # a line break in Markdown
            last -= 1
        else:
            break
    return keep_emphasis(line, start, first, last, stop)


# Emphasis that begins in front of a sentence and ends inside it, and the reverse: "*Please* come.", "It is `late`."
EMPHASIS = "*_`~"
CLOSES = {mark: re.compile(rf"[^{mark}]*(?<![{mark}{WHITE_SPACE}])\{mark}+(?![{mark}]|[^\W_])") for mark in EMPHASIS}
OPENS = {mark: re.compile(rf"(?<![^\W_]|[{mark}])\{mark}+(?![{mark}{WHITE_SPACE}])[^{mark}]*\Z") for mark in EMPHASIS}


def keep_emphasis(line: str, start: int, first: int, last: int, stop: int) -> tuple[int, int]:
    """Return the start and end of a sentence with emphasis that begins or ends inside it: "*Please* come."."""
    mark = line[first - 1] if start < first < last else ""
    if mark in CLOSES and CLOSES[mark].match(line, first, last):
        while first > start and line[first - 1] == mark:
            first -= 1
    mark = line[last] if first < last < stop else ""
    if mark in OPENS and OPENS[mark].search(line, first, last):
        while last < stop and line[last] == mark:
            last += 1
    return first, last


# Parts that are copied though they have letters: an address, also with a label; a path; in Markdown, images and the
# title of a box of GitHub.
LINK_TARGET = r"(?:\([^()]{0,1000}\)|\[[^\[\]]{0,100}\])"
NO_LANGUAGE = re.compile(
    rf"""(?:\[[^\[\]]{{1,100}}\]:\x20*)?<?(?:(?:[a-z][a-z0-9+.-]{{0,30}}:)?//|www\.|mailto:)[!-~]+(?:\x20+["'(].*)?
    |<?[a-z0-9_.+-]+@(?:[a-z0-9_-]+\.)+[a-z]{{2,}}>?[.,;]?
    |(?:~|\.\.?|[a-z]:)?(?:[/\\][a-z0-9_.+-]+){{2,}}[/\\]?
    |\[![a-z]+\]
    |(?:\[?!\[[^\[\]]{{0,200}}\]{LINK_TARGET}(?:\]{LINK_TARGET})?\x20*)+""",
    re.VERBOSE | re.IGNORECASE,
)

# ---- ends of sentences -----------------------------------------------------------------------------------------------

# A possible end of a sentence: punctuation, with the quotes, brackets, asterisks, emoji, tags and numbers of notes that
# close after it. The lookbehinds keep long runs of one character linear. Then full stops that need no space after them:
# of Chinese, Japanese, Hindi, Urdu, Amharic, Armenian, Burmese, Khmer and Tibetan, and Arabic's question mark; and the
# question mark of Greek and the full stop of Armenian where they are typed as ; and :
BOUNDARY = re.compile(
    rf"""(?<![.!?…])(?P<mark>[.!?…]+)
        (?P<closing>[\"'”’»›」』）)\]}}“‘«*_`{INVISIBLE}\u200d\u2600-\u27bf\U0001f000-\U0001faff]*(?:</[A-Za-z][A-Za-z0-9:._-]{{0,30}}>)*
            (?:\[[0-9]{{1,3}}\])*(?:[\x20\xa0\u202f]»(?=[{WHITE_SPACE}]))?)
        (?P<space>[{WHITE_SPACE}]*)
    |(?P<full>(?!។ល។)[。！？｡।॥۔؟።፧፨։။។៕༎‼⁇⁈⁉]+[!?]*|།\x20?།|(?<![0-9０-９])．(?![0-9A-Za-z０-９Ａ-Ｚａ-ｚ])
        |(?<=[\u0370-\u03ff\u1f00-\u1fff])[;\u037e](?=[{WHITE_SPACE}])
        |(?<=[\u0561-\u0587]):(?=[{WHITE_SPACE}]))
        (?P<closes>[」』）”’»)\"'*_]*)(?P<gap>[{WHITE_SPACE}]*)""",
    re.VERBOSE,
)


def split_line(line: str, is_cased: bool) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence of a line."""
    start, first = 0, LETTER_OR_DIGIT.search(line)
    for match in BOUNDARY.finditer(line):
        end = match.end("closing") if match["full"] is None else match.end("closes")
        if match.end() == len(line) or first is None:
            break
        if first.start() < end and is_sentence_end(line, start, match, is_cased):
            yield start, end
            start = match.end()
            first = LETTER_OR_DIGIT.search(line, start)
    yield start, len(line)


# Quotes, brackets and dashes in front of the word that may begin a sentence.
OPENING = "\"'“‘„«»‹›([{¿¡*_`-–— \xa0\u202f"
# Quotes go on with a particle in Japanese, 「はい。」と言った。, and with the speaker in Chinese: “好！”他说。
PARTICLE = re.compile("[とっのがはをもに]|[\u4e00-\u9fff]{0,5}(?<!知)[说道问答喊叫說問][。，：！]")
# Urdu's full stop also joins the letters of abbreviations: پی۔ایچ۔ڈی
SHORT_URDU = re.compile("(?<![\u0600-\u06d3\u06d5-\u06ff])[\u0600-\u06d3\u06d5-\u06ff]{1,3}\\Z")
URDU_VERBS = frozenset("ہے ہیں تھا تھی تھے گا گی گے ہوں ہو گیا گئی گئے دیا لیا آیا آئی ہوا ہوئی".split())
# The last word in front of a full stop, and the word before that one.
LAST_WORDS = re.compile(
    rf"(?:(?P<before>[^\W\d]+|[=<>§€$£])[^\w{WHITE_SPACE},]*[{WHITE_SPACE}]+)?[\"'“‘„«‹(\[*_]*(?P<word>[^{WHITE_SPACE}(\[“„«]+)\Z"
)
# Between the names of a path through menus: Format – Cells… – Borders, File > Open… > Recent
PATH_SIGNS = "-–—>→▸▶/"
# No sentence begins with a number that ends the line, "Viz obr. 3.", or a dot of " . . ."
NO_SENTENCE = re.compile(rf"[0-9]{{1,4}}[.!?)\]\"”»{WHITE_SPACE}]*\Z|\.(?:[{WHITE_SPACE}]|\Z)")
# What has a number in front, and a long word or two before that: "1799 г." ends no sentence that begins with it.
UNIT = re.compile(rf"[^\W\d_](?:[^\W\d_]{{2}}|[{WHITE_SPACE}][^\W\d_]).*[0-9][{WHITE_SPACE}]?[^\W\d_]{{1,5}}\Z")
# In India's scripts, initials are the names of letters: एम. के. गांधी. So is a short first word. A Thai "." ends nothing.
INDIC = "\u0900-\u0dff"
SHORT_INDIC = rf"(?:(?=[^\W\d_])[{INDIC}](?:(?![^\W\d_])[{INDIC}])*){{1,2}}"
INDIC_INITIAL = re.compile(
    rf"(?:(?P<begins>\A|(?<![{INDIC}]){SHORT_INDIC}\.[{WHITE_SPACE}]*)|)(?<![{INDIC}])"
    rf"(?!(?:हा|ना|हो|ஆம்|હા|ના)[\u0901\u0902]?\Z){SHORT_INDIC}\Z|(?P<thai>[\u0e00-\u0e7f]\Z)"
)
NEXT_INITIAL = re.compile(rf"(?:[^\W\d_]|{SHORT_INDIC})\.")


def is_sentence_end(line: str, start: int, match: re.Match[str], is_cased: bool) -> bool:
    """Return whether the punctuation that BOUNDARY matched ends the sentence that begins at `start`."""
    following = match.end()
    while following < len(line) - 1 and line[following] in OPENING:
        following += 1
    is_lower = line[following].islower() and not "ა" <= line[following] <= "ჿ"  # Georgian has no capitals in sentences
    before = line[max(start, match.start() - 40) : match.start()]
    if match["full"] is not None:
        if match["full"] in (";", "\u037e", ":"):
            return not is_lower
        if match["gap"]:
            return True
        if match["full"] == "۔":
            return not SHORT_URDU.search(before) or re.split(f"[{WHITE_SPACE}۔]", before)[-1] in URDU_VERBS
        return not (match["closes"] and PARTICLE.match(line, following))
    last = LAST_WORDS.search(before)
    if not match["space"]:
        if match["mark"][-1] in "!?" and "「" <= line[following] <= "\u9fff":  # Japanese: そう!?はい。
            return not (match["closing"] and PARTICLE.match(line, following))
        after = AFTER_GLUED.match(line, following)
        return is_cased and last is not None and after is not None and may_be_glued(last["word"], after[0])
    if is_lower and (is_cased or match["closing"]):  # "Nein!" sagte er
        return False
    if match["mark"] in ("...", "…"):  # between spaces it stands for words that are left out, as after Persian's "and"
        is_omission = line[match.start() - 1] in ALL_WHITE_SPACE or (last is not None and last["word"] == "و")
        return not is_omission and line[match.end()] not in PATH_SIGNS
    if match["mark"] == "." and NO_SENTENCE.match(line, match.end()):
        return False
    if match["mark"] != "." or last is None:
        return True
    next_word = WORD.match(line, following)
    next_text = next_word[0] if next_word else line[following]
    is_date = last["word"].isdecimal() and next_text.isdecimal() and line.startswith(".", following + len(next_text))
    is_initial, indic = NEXT_INITIAL.match(line, following) is not None, INDIC_INITIAL.search(before)
    if is_date or (indic and (is_initial or indic["begins"] is not None or indic["thai"])):
        return False
    is_unit = last["word"].islower() and UNIT.search(before) is not None
    return may_end_after(last["word"], last["before"] or "", "" if is_initial else next_text.lower(), is_unit, is_lower)


# "bike.Two dogs": a word or a year in front of the full stop, and a capitalised word that ends at a space or
# punctuation after it.
BEFORE_GLUED = re.compile(r"(?:[^\W\d_]+['’-])*[^\W\d_]+[^\W\d_][)\]”\"’]*|[12][0-9]{3}")
AFTER_GLUED = re.compile(rf"[^\W\d_]+(?:['’-][^\W\d_]+)*(?=[{WHITE_SPACE},;:!?…\"”’)\]*]|\.(?:[{WHITE_SPACE}]|\Z)|\Z)")
# Such capitalised words are parts of names: Node.Js, Booking.Com
NAME_ENDS = frozenset("com net org edu gov io js ts py md txt csv html xml json pdf php asp doc exe zip app ai".split())


def may_be_glued(word: str, following: str) -> bool:
    """Return whether a sentence may end between two words with a full stop, but no space between them."""
    lower = word.lower()
    if lower in NEVER_LAST or lower in MAYBE_LAST or lower in BEFORE_A_NUMBER or following.lower() in NAME_ENDS:
        return False
    is_first_word = following in ("I", "A") or (following[0].isupper() and following[1:].islower())
    return is_first_word and BEFORE_GLUED.fullmatch(word) is not None


# Abbreviations, in lower case and without their last full stop. NEVER_LAST precede a name or the rest of a phrase,
# BEFORE_A_NUMBER a number; MAYBE_LAST may end a sentence.
NEVER_LAST = frozenset(
    "mr mrs ms dr prof rev hon gen col maj capt lt sgt gov sen rep messrs adm cmdr vs cf approx e.g i.e viz "
    "hr hrn fr frl fa dipl ing bzw ca vgl evtl ggf inkl exkl zzgl bspw sog z.b d.h v.a z.t i.d.r Geb Stellv "
    "dr.med dr.phil dr.jur dr.rer rer.nat h.c kath evang "
    "m mm mme mmes mlle mlles mgr p.ex sra srta dra dña ud uds p.ej sig sigg dott avv exmo exma srs Avda Lic Fdo "
    "dhr mevr mw drs bijv d.w.z m.b.t i.v.m t.ex bl.a s.k incl excl esp mt insb einschl ehem ad.es c.-à-d ths "
    "ул им проф акад т.е т.к см просп тов tzn inż ul οδ nám esim ún ifj yakl örn bkz π.χ κ δρ f.eks npr вул напр "
    "Al Cad Cia Dl Dna Doc Doç Eng Id Ir Jl Napr Ob Profa Sta Sto tp ts pgs डॉ डा पं श्री ডা মো ਡਾ ડૉ டாக்டர் డా იხ".split()
)
BEFORE_A_NUMBER = frozenset(
    "no nos nr nrn fig figs abb p pp s vol bd art abs kap ch chap sec eq tab n núm pag pág págs blz str č ust odst puh "
    "max min mind para paras tel tél réf fax kl tlf godz тел obr rys rozdz κεφ αρ табл буд ap séc hlm pàg lk ok रु રૂ "
    "ரூ рис стр гл σελ jan feb mar apr jun jul aug sep sept oct okt nov dec dez".split()
)
MAYBE_LAST = frozenset(
    "ff av ed eds tues thurs std jh mio mrd usw usf str ave inc co corp dept est al u.a o.ä u.ä chr n.chr v.chr".split()
)
ET_CETERA = frozenset("etc т.д т.п и.др κ.λπ κλπ κ.ά n.k v.v u.c t.t m.m o.l ა.შ atd vb stb dll".split())
# Words that often begin a sentence: in front of them, an ambiguous full stop ends one.
STARTERS = frozenset(
    "the a an he she it they we i you this that these those there his her their my our in on at but and so if when "
    "what der die das ein eine er sie es wir ich ihr du dies diese dieser dann aber und wenn im am auf le la les un "
    "une il elle ils elles nous je vous ce cette ces mais et dans then potem pak puis luego el los las una él ella "
    "ellos nosotros yo pero cuando lo gli uno lui lei loro noi io questo questa ma os um uma ele ela eles nós eu isto "
    "mas de het een hij zij ze wij ik dat dit maar depois poi apoi después он она они оно мы я вы это но в на по "
    "после потом ona ono oni ale bu bir ama sonra ο η το οι τα μετά two three four five six several some many people "
    "zwei drei vier fünf sechs mehrere einige viele leute deux trois quatre plusieurs dos tres varios due "
    "alcuni how why where who did does".split()
)
NUMBER_SIGNS = frozenset("§$€£¥+#№")
# German ordinals: "der 2. Weltkrieg", "am 3. Mai"; but "Er ist 12. Sie ist 10."
BEFORE_AN_ORDINAL = frozenset(
    "der die das dem den des am im vom zum zur beim ab bis seit jeder jede jedes jedem jeden ihr sein ihre seine ihren "
    "seinen ihrem seinem unser unsere".split()
)
MONTHS = frozenset(
    "januar jänner februar märz april mai juni juli august september oktober november dezember "
    "jan feb mär apr jun jul aug sep sept okt nov dez".split()
)
# A single capital after one of these is a person's initial: "by J. Smith", but "vitamin C. Good."
BEFORE_A_NAME = frozenset("by von par por da door and und et".split())
ROMAN = re.compile("[IVX]{2,6}")
# A word without a vowel abbreviates another one: kb, płk, Sv, гр. In Slavic languages, r and l may be vowels: trh, vlk.
ABBREVIATION = re.compile(
    r"(?!.+[rlрл].)(?!(?:m?h*m+|p?s+h+|ps+t|tsk|тс+|[bg]rr+|p+ff+t?)\Z)"  # no interjection
    "[b-df-hj-np-tv-xzßçðþćčďđğģķĺļľłńņňñŕřśšşșţťțźżžβγδζθκλμνξπρσςτφχψбвгджзклмнпрстфхцчшщђћјљњџ]{2,5}"
)
ACRONYM = re.compile(r"[^\W\d]{1,2}(\.[^\W\d]{1,2})+")  # U.S, p.m, Ph.D, but not a file such as a.out


def may_end_after(word: str, before: str, following: str, is_unit: bool, is_lower: bool) -> bool:
    """Return whether `word` and a full stop end a sentence, by the words around them.

    following: in lower case, or a symbol; "" for an initial.  is_unit: a number is in front of the word
    is_lower: the text has no capitals
    """
    lower, previous = re.split("['’]", word.lower())[-1], before.lower()  # l'art. 5
    if NEVER_LAST & {word, lower, f"{previous}.{lower}"} or word.endswith("Dr"):  # PhDr, MUDr
        return is_unit and word == "m"
    is_number = following[:1].isdigit() or following in NUMBER_SIGNS or ROMAN.fullmatch(following.upper())
    if is_number and (lower in BEFORE_A_NUMBER or lower.endswith(("str", "pl"))):
        return False
    if following and not LETTER_OR_DIGIT.match(following):
        return True
    if (lower.isdigit() and len(lower) <= 2) or ROMAN.fullmatch(word):  # the number of an item in a list, or an ordinal
        return bool(before) and previous not in BEFORE_AN_ORDINAL and following not in MONTHS
    if ET_CETERA & {lower, f"{previous}.{lower}"}:
        return not is_lower or following in STARTERS
    if is_unit and not MAYBE_LAST & {lower, following}:  # 850 n. Chr.
        return True
    if len(word) == 1 and word.isalpha():  # an initial, or a part of an abbreviation
        is_name = following == "" or previous in BEFORE_A_NAME | NEVER_LAST
        return following in STARTERS or (word.isupper() and before.islower() and len(before) > 1 and not is_name)
    is_short = ABBREVIATION.fullmatch(lower) and word[1:].islower()
    if is_short or lower in MAYBE_LAST or ACRONYM.fullmatch(word):
        return following in STARTERS
    return True


# ---- parts of sentences that are too long ----------------------------------------------------------------------------

# At punctuation, a long sentence is cut into parts of about this share of the limit, and one of two such parts is cut
# already. A model translates the clauses of its longest sentences better than the whole.
CLAUSE = 0.35
# To find the cut in a long sentence, tokenise this many characters per allowed token: at first, and at most.
CHARACTERS_PER_TOKEN = (6, 32)
# Where a comma joins two sentences: "It rains, The dog sleeps" or "It rains., The dog". A long sentence is cut at all
# such commas, except after so few characters that they are no sentence. Some words have a capital inside a sentence as
# well, and names begin with The.
SPLICERS = "|".join(sorted(word.capitalize() for word in STARTERS - {"i", "sie", "ihr"}))
SPLICE = re.compile(rf"(?:(?<![.…])\.)?[,;]\ +(?!(?:The|An?)\ [A-Z])(?=(?:{SPLICERS})(?![\w-]))")
SHORTEST_SPLICED = 20


def cut_to_limit(text: str, limit: int, encode: Encode) -> Iterator[tuple[str, list[int], str]]:
    """Yield the parts of a sentence of at most `limit` tokens: what is copied before, the ids and the text of each."""
    clause = max(SHORTEST_MAX_SOURCE_LENGTH, int(CLAUSE * limit))
    splices = [(match.start(), match.end()) for match in SPLICE.finditer(text)]
    if splices and len(encode(text[: limit * CHARACTERS_PER_TOKEN[1]])[0]) <= 2 * clause:
        splices = []
    start, copied = 0, ""
    for end, following in (*splices, (len(text), len(text))):
        if end - start < SHORTEST_SPLICED and end < len(text):
            continue
        for separator, ids, part in cut_clauses(text[start:end], limit, clause, encode):
            yield copied + separator, ids, part
            copied = ""
        start, copied = following, text[end:following]


# Where to cut a sentence that is too long: after punctuation; in front of a conjunction, at a space.
CUTS = (
    (
        re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\ |\Z)|[。！？｡।॥۔؟።፧։]+[」』）]*"),
        re.compile(r"[;:,،؛][\"'”’»)\]]*(?=\ )|[，、；：፣།]|\ [–—-](?=\ )"),
    ),
    (
        re.compile(
            r"\ (?=(?:and|or|but|while|because|which|who|that|und|oder|aber|während|weil|et|ou|mais|qui|que|y|pero|ma|"
            r"che|mas|en|maar|и|но|а|или|что|i|ale|ve|و|और|या)\ )"
        ),
        re.compile(f"[{WHITE_SPACE}]+"),
    ),
)
# A mark at which a sentence was cut. It is copied: training text has hardly a sentence that ends in one.
CLAUSE_MARK = re.compile(r"(?<![.…])[;:,]\Z")


def cut_clauses(text: str, limit: int, clause: int, encode: Encode) -> Iterator[tuple[str, list[int], str]]:
    """Yield the parts of a sentence as `cut_to_limit` does;  clause: the tokens of a part of a long sentence"""
    start, separator = 0, ""
    while start < len(text):
        ids, starts, seen = [], [], 0
        for per_token in CHARACTERS_PER_TOKEN:
            seen = min(limit * per_token, len(text) - start)
            ids, starts = encode(text[start : start + seen])
            if len(ids) > limit or start + seen == len(text):
                break
        is_rest, limits = start + seen == len(text), (min(limit, 2 * clause), limit)
        cut = reach = 0
        for cuts, most in zip(CUTS, limits, strict=True):
            if len(ids) <= most and is_rest:
                break
            # Where the first token beyond the limit begins; </s>, the last token, takes no characters.
            reach = max(1, starts[most - 1]) if len(ids) > most else seen
            # Two halves are better than a long part and a remnant.
            goal = seen // 2 if is_rest and len(ids) <= 2 * most else reach
            if cuts is CUTS[0]:
                goal = min(goal, starts[min(len(ids) - 1, clause)] or seen)
            if cut := best_cut(text[start : start + reach + 1], reach, goal, cuts):
                break
        if not cut and len(ids) <= limit and is_rest:
            yield separator, ids, text[start:]
            return
        head = text[start : start + (cut or reach)].rstrip(ALL_WHITE_SPACE)
        end = start + len(head)
        if cut:
            head = CLAUSE_MARK.sub("", head).rstrip(ALL_WHITE_SPACE)  # French has a space in front of a colon
        ids, _ = encode(head)
        # NFKC turns one character into up to 18: only a part that consists of such a character is truncated.
        yield separator, ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]], head
        after = NOT_SPACE.search(text, end)
        end, start = start + len(head), after.start() if after else len(text)
        separator = text[end:start]


def best_cut(text: str, reach: int, goal: int, cuts: Sequence[re.Pattern[str]]) -> int:
    """Return where to cut within the first `reach` characters, as near to the goal as possible, or 0.

    cuts: the places, of which the first kind that occurs is taken
    """
    # One character more, so that a lookahead sees a space after punctuation at the very end.
    for kind in cuts:
        least = 1 if kind is CUTS[1][1] else reach // 3  # no short beginning for the sake of a comma
        ends = [match.end() for match in kind.finditer(text[: reach + 1]) if match.start() > 0]
        if ends := [end for end in ends if least <= end <= reach]:
            return min(ends, key=lambda end: abs(end - goal))
    return 0


__all__ = ["split_text"]
