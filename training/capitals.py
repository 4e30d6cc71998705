"""Write a sentence in capitals or in title case, as in headlines."""

import re

from vaswani_transformer.languages_vaswani_transformer import split_code

# Words with these characters are tags, placeholders or addresses: <2de>, {name}, __NUM__, a.b@c.org, https://a.org
UNCHANGED = re.compile(r"\S*[<>{}_@\\/]\S*")
WORD = re.compile(r"\S+")
ANY, FIRST_LETTER = re.compile(r".+"), re.compile(r"^\W*\w")
WITH_DOTTED_I = ("az", "tr")


def write_capitals(text: str, language: str) -> str:
    return WORD.sub(lambda word: _change(word[0], ANY, language), text)


def write_title_case(text: str, language: str) -> str:
    return WORD.sub(lambda word: _change(word[0], FIRST_LETTER, language), text)


def _change(word: str, part: re.Pattern[str], language: str) -> str:
    """Return a word with a part of it in capitals."""
    if UNCHANGED.fullmatch(word):
        return word
    dotted = split_code(language)[0] in WITH_DOTTED_I
    return part.sub(lambda match: (match[0].replace("i", "İ") if dotted else match[0]).upper(), word, count=1)
