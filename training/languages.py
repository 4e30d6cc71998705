"""Names of languages in headers, keys and TMX files: `de` is also `DE`, `de-DE`, `deu` and `German`."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

# ISO 639-1: the other codes (ISO 639-2 and -3) and the names of the language in headers, in lower case.
NAMES = {
    "af": "afr afrikaans", "am": "amh amharic", "ar": "ara arabic", "az": "aze azerbaijani", "be": "bel belarusian",
    "bg": "bul bulgarian", "bn": "ben bengali bangla", "bs": "bos bosnian", "ca": "cat catalan", "cs": "ces cze czech",
    "cy": "cym wel welsh", "da": "dan danish dansk", "de": "deu ger german deutsch", "el": "ell gre greek",
    "en": "eng english", "eo": "epo esperanto", "es": "spa spanish español", "et": "est estonian",
    "eu": "eus baq basque", "fa": "fas per persian farsi", "fi": "fin finnish suomi",
    "fr": "fra fre french français", "ga": "gle irish", "gl": "glg galician", "gu": "guj gujarati", "ha": "hau hausa",
    "he": "heb hebrew", "hi": "hin hindi", "hr": "hrv croatian hrvatski", "hu": "hun hungarian magyar",
    "hy": "hye arm armenian", "id": "ind indonesian", "is": "isl ice icelandic", "it": "ita italian italiano",
    "ja": "jpn japanese", "ka": "kat geo georgian", "kk": "kaz kazakh", "km": "khm khmer", "kn": "kan kannada",
    "ko": "kor korean", "la": "lat latin", "lt": "lit lithuanian", "lv": "lav latvian", "mk": "mkd mac macedonian",
    "ml": "mal malayalam", "mn": "mon mongolian", "mr": "mar marathi", "ms": "msa may malay", "mt": "mlt maltese",
    "my": "mya bur burmese", "nb": "nob bokmål", "ne": "nep nepali", "nl": "nld dut dutch nederlands",
    "nn": "nno nynorsk", "no": "nor norwegian norsk", "pa": "pan punjabi", "pl": "pol polish polski",
    "ps": "pus pashto",
    "pt": "por portuguese português", "ro": "ron rum romanian română", "ru": "rus russian", "si": "sin sinhala",
    "sk": "slk slo slovak", "sl": "slv slovenian slovene", "so": "som somali", "sq": "sqi alb albanian",
    "sr": "srp serbian", "sv": "swe swedish svenska", "sw": "swa swahili", "ta": "tam tamil", "te": "tel telugu",
    "th": "tha thai", "tl": "tgl tagalog", "tr": "tur turkish türkçe", "uk": "ukr ukrainian", "ur": "urd urdu",
    "uz": "uzb uzbek", "vi": "vie vietnamese", "xh": "xho xhosa", "yo": "yor yoruba", "zh": "zho chi chinese",
    "zu": "zul zulu",
}  # fmt: skip
CODES = {name: code for code, names in NAMES.items() for name in (code, *names.split())}


# What the labels of columns add to a language or a role: text_de, translation.de, "German sentence", source_text
WORDS = re.compile(r"^(?:text|sentence|segment|translation)[ _.-]+|[ _.-]+(?:text|sentence|segment)$", re.IGNORECASE)
ROLES = (("source", "src"), ("target", "tgt", "trg"))
LANGUAGE_OF_ROLE = re.compile(r"(source|src|target|tgt|trg)[ _.-]?(?:lang|language)", re.IGNORECASE)


def split_code(name: str) -> tuple[str, str]:
    """Return the language and the region or script of a name: ("en", "us") for `en_US`."""
    language, _, rest = re.sub("[_ ]", "-", name.strip().casefold()).partition("-")
    return CODES.get(language, language), rest


def is_language(name: str) -> bool:
    return split_code(name)[0] in NAMES


def find_language(names: Sequence[str], language: str) -> int | None:
    """Return the position of the name that means this language, or None.

    `en` is also `en-US`, `eng` and `English`, but `en-US` is not `en-GB`. The same code is preferred, then one without
    a region, then the first.
    """
    base, region = split_code(language)

    def rank(name: str) -> int | None:
        if name == language:
            return 0
        found, its_region = split_code(name)
        return None if found != base or region not in ("", its_region) else 1 + (its_region != region)

    ranks = [(found, position) for position, name in enumerate(names) if (found := rank(name)) is not None]
    return min(ranks)[1] if ranks else None


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


@cache
def is_name_of(name: str, language: str) -> bool:
    return find_language([name], language) is not None
