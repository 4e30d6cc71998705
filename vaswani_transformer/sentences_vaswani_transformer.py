"""Split a text into sentences, which a model translates one at a time, and join their translations.

Models are trained on single sentences; given two at once, they often omit the second. Translator, the ONNX translator
and the pipeline share this file, and hub/space-static/sentences.js follows the same rules. It is published with
the pipeline and imports only the standard library.
"""

import re
from collections.abc import Callable, Iterator

from .search_vaswani_transformer import check_number

# Subfolder of a model folder: the decoder's tokenizer, if the languages have separate vocabularies.
TARGET_TOKENIZER = "target_tokenizer"

# Cut sentences of more tokens, if generation_config.json has no max_source_length (the longest in training).
MAX_SOURCE_LENGTH = 256
SHORTEST_MAX_SOURCE_LENGTH = 8  # a character takes up to four tokens, </s> one
LONGEST_MAX_SOURCE_LENGTH = 1_000_000  # of models with sinusoids, which have no last position
# Characters of a text, unless a call allows more: a line of a million letters would take minutes.
LONGEST_TEXT = 100_000
# To find the cut in a long sentence, tokenise this many characters per allowed token: at first, and at most.
CHARACTERS_PER_TOKEN = (6, 32)

# A possible end of a sentence: a line break, or punctuation with the quotes and brackets that close after it and white
# space. Chinese and Japanese have no space there. The lookbehinds keep long runs of one character linear.
BOUNDARY = re.compile(
    r"""(?<!\s)(?P<lines>\s*[\r\n\u2028\u2029]\s*)
    |(?<![.!?…])(?P<mark>[.!?…]+)(?P<closing>[\"'”’»)\]“‘«]*)(?P<space>\s+)
    |[。！？]+[」』）”’]*(?P<cjk>\s*)""",
    re.VERBOSE,
)
LINE_BREAK = re.compile(r"[\r\n\u2028\u2029]")
PUNCTUATION = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s|\Z)|[。！？]+[」』）]*")
SPACE, NOT_SPACE, WORD = re.compile(r"\s+"), re.compile(r"\S"), re.compile(r"\w+")
LAST_LETTER = re.compile(r"\w\W*\Z")
# The end of a sentence that a space follows. Chinese and Japanese double an ellipsis.
SPACED_END = re.compile(r"(?:[.!?]|(?<!…)…)[\"'”’»)\]“‘«]*\Z")
# Quotes, brackets and dashes in front of the word that may begin a sentence.
OPENING = "\"'“‘„«»‹›([{¿¡*-–— "
# The last word in front of a full stop, and the word before that one.
LAST_WORDS = re.compile(r"(?:(?P<before>[^\W\d]+)[^\w\s]*\s+)?[\"'“‘„«‹(\[]*(?P<word>\S+)\Z")

ACRONYM = re.compile(r"[^\W\d]+(\.[^\W\d]+)+")  # U.S, p.m

# Abbreviations (English, German, French), in lower case and without their last full stop. NEVER_LAST precede a name or
# the rest of a phrase, BEFORE_A_NUMBER a number; MAYBE_LAST may end a sentence.
NEVER_LAST = frozenset(
    "mr mrs ms dr prof rev hon gen col maj capt lt sgt gov sen rep vs cf approx e.g i.e "
    "hr hrn fr frl dipl ing bzw ca vgl evtl ggf inkl sog z.b d.h v.a z.t m mm mme mmes mlle mlles mgr p.ex".split()
)
BEFORE_A_NUMBER = frozenset(
    "no nos nr nrn fig figs abb p pp s vol bd art abs kap ch chap sec eq tab n "
    "jan feb mar apr jun jul aug sep sept oct okt nov dec dez".split()
)
MAYBE_LAST = frozenset(
    "etc usw usf st str ave jr sr inc ltd co corp bros dept est al u.a o.ä u.ä chr n.chr v.chr".split()
)
# An ambiguous full stop ends a sentence if the next word is one that often begins a sentence.
STARTERS = frozenset(
    "the a an he she it they we i you this that these those there his her their my our in on at but and so if when "
    "what der die das ein eine er sie es wir ich ihr du dies diese dieser dann aber und wenn im am auf "
    "le la les un une il elle ils elles nous je vous ce cette ces mais et dans".split()
)
# German ordinals: "der 2. Weltkrieg", "am 3. Mai"; but "Er ist 12. Sie ist 10."
BEFORE_AN_ORDINAL = frozenset(
    "der die das dem den des am im vom zum zur beim ab bis seit jeder jede jedes jedem jeden ihr sein ihre seine ihren "
    "seinen ihrem seinem unser unsere".split()
)
MONTHS = frozenset("januar jänner februar märz april mai juni juli august september oktober november dezember".split())

# Token ids of a text, ending in </s>, and the character at which each token begins.
Encode = Callable[[str], tuple[list[int], list[int]]]


def source_limit(requested: int | None, trained_length: int | None, positions: int | None) -> int:
    """Return the token limit of a sentence: the requested one or, by default, the longest in training, if known.

    positions: the number of learned positions, which no limit exceeds;  raises ValueError
    """
    least, most = SHORTEST_MAX_SOURCE_LENGTH, positions or LONGEST_MAX_SOURCE_LENGTH
    if requested is None:
        return min(MAX_SOURCE_LENGTH if trained_length is None else max(trained_length, least), most)
    return check_number("max_source_length", requested, least, most)


def split_text(text: str, limit: int, encode: Encode, sentences: bool = True) -> Iterator[tuple[list[int], str]]:
    """Yield the token ids of each sentence, at most `limit`, and the white space before it.

    A longer sentence is cut at a space, or else between letters. A text of only white space yields nothing.

    sentences: False to cut a text only where it is too long, after punctuation if possible
    """
    end = 0
    for start, stop in sentence_spans(text) if sentences else [(0, len(text))]:
        for ids, part_start, part_stop in cut_to_limit(text, start, stop, limit, encode):
            yield ids, text[end:part_start] if end else ""
            end = part_stop


def join_texts(first: str, separator: str, second: str) -> str:
    """Join the translations of consecutive parts by the white space between the parts.

    Chinese and Japanese have none between sentences; if the translation's language does, it gets a space.
    """
    if not separator and second and SPACED_END.search(first):
        separator = " "
    return first + separator + second


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence. White space around the text belongs to its first and last sentence."""
    start = 0
    first_word, last_letter = WORD.search(text), LAST_LETTER.search(text)
    is_cased = any(letter.isupper() for letter in text)
    for match in BOUNDARY.finditer(text):
        end = max(match.start(group) for group in ("lines", "space", "cjk"))  # -1 for the groups that do not match
        if first_word is None or last_letter is None or last_letter.start() < match.end():
            break  # what follows has no word
        if first_word.start() >= end:
            continue
        breaks = match["mark"] is None or LINE_BREAK.search(match["space"]) is not None
        if breaks or is_sentence_end(text, start, match, is_cased):
            yield start, end
            start = match.end()
            first_word = WORD.search(text, start)
    if start < len(text):
        yield start, len(text)


def is_sentence_end(text: str, start: int, match: re.Match[str], is_cased: bool) -> bool:
    """Return whether the punctuation that BOUNDARY matched ends the sentence that begins at `start`."""
    following = match.end()
    while following < len(text) - 1 and text[following] in OPENING:
        following += 1
    if text[following].islower() and (is_cased or match["closing"]):  # "Nein!" sagte er
        return False
    if match["mark"] in ("...", "…"):  # between spaces it stands for words that are left out
        return not text[match.start() - 1].isspace()
    next_word = WORD.match(text, following)
    last = LAST_WORDS.search(text, max(start, match.start() - 40), match.start())
    if match["mark"] != "." or next_word is None or last is None:
        return True
    return may_end_after(last["word"], last["before"] or "", next_word[0].lower())


def may_end_after(word: str, before: str, following: str) -> bool:
    """Return whether `word` and a full stop end a sentence, by the words around them; `following` is in lower case."""
    lower, previous = word.lower(), before.lower()
    if lower in NEVER_LAST or f"{previous}.{lower}" in NEVER_LAST:
        return False
    if lower in BEFORE_A_NUMBER and following[0].isdigit():
        return False
    if lower.isdigit() and len(lower) <= 2:  # the number of an item in a list, or an ordinal
        return bool(before) and previous not in BEFORE_AN_ORDINAL and following not in MONTHS
    if len(word) == 1 and word.isalpha():  # an initial, or a part of an abbreviation
        return following in STARTERS or (word.isupper() and before.islower() and len(before) > 1)
    if lower in MAYBE_LAST or ACRONYM.fullmatch(word):
        return following in STARTERS
    return True


def cut_to_limit(text: str, start: int, stop: int, limit: int, encode: Encode) -> Iterator[tuple[list[int], int, int]]:
    """Yield the parts of text[start:stop] of at most `limit` tokens: their ids, start and end."""
    while NOT_SPACE.search(text, start, stop):
        ids, starts, seen = [], [], 0
        for per_token in CHARACTERS_PER_TOKEN:
            seen = min(limit * per_token, stop - start)
            ids, starts = encode(text[start : start + seen])
            if len(ids) > limit or start + seen == stop:
                break
        if len(ids) <= limit and start + seen == stop:
            yield ids, start, stop
            return
        if text[start].isspace():  # skip white space longer than a part, which would have no word
            start = SPACE.match(text, start).end()  # pyright: ignore[reportOptionalMemberAccess]
            continue
        # Where the first token beyond the limit begins; </s>, the last token, takes no characters.
        reach = max(1, starts[limit - 1]) if len(ids) > limit else seen
        cut = start + best_cut(text[start : start + reach + 1], reach)
        head = text[start:cut].rstrip()
        ids, _ = encode(head)
        # NFKC turns one character into up to 18: only a part that consists of such a character is truncated.
        yield ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]], start, start + len(head)
        after = NOT_SPACE.search(text, cut, stop)
        start = after.start() if after else stop


def best_cut(text: str, reach: int) -> int:
    """Return where to cut within the first `reach` characters: after the last punctuation, or else the last space."""
    # One character more, so that PUNCTUATION's lookahead sees a space after a full stop at the very end.
    for boundary in (PUNCTUATION, SPACE):
        matches = boundary.finditer(text[: reach + 1])
        if cuts := [match.end() for match in matches if 0 < match.start() and match.end() <= reach]:
            return cuts[-1]
    return reach


__all__ = ["split_text"]
