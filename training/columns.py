"""Find the columns of both languages by the labels of a table or the keys of an object.

>>> find_columns(["id", "text_de", "English"], ("en", "de")).texts
(2, 1)
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from vaswani_transformer.languages import ROLES
from vaswani_transformer.languages_vaswani_transformer import NAMES, find_language, split_code

# What the labels of columns add to a language or a role: text_de, translation.de, "German sentence", source_text
WORDS = re.compile(r"^(?:text|sentence|segment|translation)[ _.-]+|[ _.-]+(?:text|sentence|segment)$", re.IGNORECASE)
LANGUAGE_OF_ROLE = re.compile(r"(source|src|target|tgt|trg)[ _.-]?(?:lang|language)", re.IGNORECASE)


def find_languages(names: Iterable[str], languages: Sequence[str]) -> list[int | None]:
    """Return the position of each language, see `find_language`."""
    names = list(names)
    return [find_language(names, language) for language in languages]


class Columns(NamedTuple):
    """The positions of both texts in a row, and of the columns that name their languages, such as `src_lang`."""

    texts: Sequence[int]
    languages: Sequence[int | None]


def find_columns(labels: Iterable[str], languages: Sequence[str]) -> Columns | None:
    """Return the columns of the source and the target, or None if the labels do not name both.

    A label names a language (`de`, `text_de`, `German sentence`) or, if none of them do, a role (`source`, `tgt`).
    """
    names = shorten_labels(labels)
    texts = find_languages(names, languages)
    if None in texts:
        texts = find_roles(names)
    source, target = texts
    if source is None or target is None:
        return None
    roles = [match[1] if (match := LANGUAGE_OF_ROLE.fullmatch(name)) else "" for name in names]
    return Columns((source, target), find_roles(roles))


def find_roles(names: list[str]) -> list[int | None]:
    return [next((names.index(role) for role in roles if role in names), None) for roles in ROLES]


def shorten_labels(labels: Iterable[str]) -> list[str]:
    return [WORDS.sub("", label.strip()).casefold() for label in labels]


def missing_language(labels: Iterable[str], languages: Sequence[str]) -> str:
    """Return the first of the languages that no label names, to report labels in which `find_columns` finds nothing."""
    positions = find_languages(shorten_labels(labels), languages)
    return next(language for language, position in zip(languages, positions, strict=True) if position is None)


def is_language(name: str) -> bool:
    return split_code(name)[0] in NAMES


@cache
def is_name_of(name: str, language: str) -> bool:
    return find_language([name], language) is not None
