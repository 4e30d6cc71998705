"""Codes and names of languages, and which of them mean the same one.

It is published with the pipeline and imports only the standard library.
"""

import re
from collections.abc import Sequence

# ISO 639-1: the other codes (ISO 639-2 and -3, of Arabic and the like that of the standard language, as in NLLB) and
# the names of the language in headers, in lower case, with the English one first.
NAMES = {
    "af": "afr afrikaans", "am": "amh amharic", "ar": "ara arb arabic", "az": "aze azj azerbaijani",
    "be": "bel belarusian", "bg": "bul bulgarian", "bn": "ben bengali bangla", "bs": "bos bosnian", "ca": "cat catalan",
    "cs": "ces cze czech", "cy": "cym wel welsh", "da": "dan danish dansk", "de": "deu ger german deutsch",
    "el": "ell gre greek", "en": "eng english", "eo": "epo esperanto", "es": "spa spanish español",
    "et": "est estonian", "eu": "eus baq basque", "fa": "fas per pes persian farsi", "fi": "fin finnish suomi",
    "fr": "fra fre french français", "ga": "gle irish", "gl": "glg galician", "gu": "guj gujarati", "ha": "hau hausa",
    "he": "heb hebrew", "hi": "hin hindi", "hr": "hrv croatian hrvatski", "hu": "hun hungarian magyar",
    "hy": "hye arm armenian", "id": "ind indonesian", "is": "isl ice icelandic", "it": "ita italian italiano",
    "ja": "jpn japanese", "ka": "kat geo georgian", "kk": "kaz kazakh", "km": "khm khmer", "kn": "kan kannada",
    "ko": "kor korean", "la": "lat latin", "lt": "lit lithuanian", "lv": "lav lvs latvian", "mk": "mkd mac macedonian",
    "ml": "mal malayalam", "mn": "mon khk mongolian", "mr": "mar marathi", "ms": "msa may zsm malay",
    "mt": "mlt maltese", "my": "mya bur burmese", "nb": "nob bokmål", "ne": "nep npi nepali",
    "nl": "nld dut dutch nederlands", "nn": "nno nynorsk", "no": "nor norwegian norsk", "pa": "pan punjabi",
    "pl": "pol polish polski", "ps": "pus pbt pashto", "pt": "por portuguese português",
    "ro": "ron rum romanian română", "ru": "rus russian", "si": "sin sinhala", "sk": "slk slo slovak",
    "sl": "slv slovenian slovene", "so": "som somali", "sq": "sqi alb als albanian", "sr": "srp serbian",
    "sv": "swe swedish svenska", "sw": "swa swh swahili", "ta": "tam tamil", "te": "tel telugu", "th": "tha thai",
    "tl": "tgl tagalog", "tr": "tur turkish türkçe", "uk": "ukr ukrainian", "ur": "urd urdu", "uz": "uzb uzn uzbek",
    "vi": "vie vietnamese", "xh": "xho xhosa", "yo": "yor yoruba", "zh": "zho chi cmn chinese", "zu": "zul zulu",
}  # fmt: skip
CODES = {name: code for code, names in NAMES.items() for name in (code, *names.split())}


def split_code(name: str) -> tuple[str, str]:
    """Return the language and the region or script of a name: ("en", "us") for `en_US`."""
    language, _, rest = re.sub("[_ ]", "-", name.strip().casefold()).partition("-")
    return CODES.get(language, language), rest


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
