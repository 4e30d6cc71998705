"""The languages of a model, from the records in its folder, and their codes and names."""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from .errors import BrokenFileError
from .files import read_json_object
from .model_folder import CARD, CONVERSION_RECORD, EXPORT_RECORD, MANIFEST
from .training_run import read_run

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

# What stands for a language in names of files and columns.
ROLES = (("source", "src"), ("target", "tgt", "trg"))


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


def name_languages(codes: Sequence[str]) -> list[str]:
    """Return English names: `German` for `de` and `deu_Latn`, `Portuguese (BR)`, the code of a language not in `NAMES`.

    A script is named only where another one of the same language is among the codes.
    """
    bases = [split_code(code)[0] for code in codes]
    named = []
    for code, base in zip(codes, bases, strict=True):
        names = [name.capitalize() for name in NAMES.get(base, "").split() if len(name) > 3]  # codes have two or three
        region = "".join(re.split("[_-]", code, maxsplit=1)[1:])
        needs_region = region and (len(region) != 4 or bases.count(base) > 1)
        named.append(f"{names[0]} ({region})" if names and needs_region else (*names, code)[0])
    return named


def shorten_codes(names: Sequence[str]) -> list[str]:
    """Return the codes of ISO 639-1 where these exist, as clients expect them: `de` for `deu` and `deu_Latn`.

    `find_language` finds each language by its code: of several regions or scripts, only the first has the short one.
    """
    bases = [split_code(name)[0] for name in names]
    is_short = [
        len(re.split("[_-]", name)[0]) == 3 and find_language(names, base) == position
        for position, (name, base) in enumerate(zip(names, bases, strict=True))
    ]
    return [base if short else name for name, base, short in zip(names, bases, is_short, strict=True)]


def read_languages(folder: Path) -> tuple[str, str] | None:
    """Return the codes of source and target language, or None if no record in the folder names both.

    They are in the recipe of a training (run.json), the options of a conversion, the record of an export, the manifest
    of an average, or the metadata of a card, where the source comes first; our card of a model with several targets
    lists them all. Raises BrokenFileError.
    """
    recipe = read_run(folder).get("recipe") or {}
    found: list[Any] = [[recipe.get("source_language"), recipe.get("target_language")]]
    if (folder / CONVERSION_RECORD).is_file():
        options = read_json_object(folder / CONVERSION_RECORD, "options").get("options", {})
        found.append([options.get("source_lang"), options.get("target_lang")])
    if (folder / EXPORT_RECORD).is_file():
        found.append(read_json_object(folder / EXPORT_RECORD).get("languages"))
    if (folder / MANIFEST).is_file():
        found.append(read_json_object(folder / MANIFEST).get("languages"))
    card = read_card(folder / CARD)
    listed = card.get("language")
    is_ours = "vaswani_transformer" in str(card.get("tags"))
    found.append(listed[:2] if is_ours and isinstance(listed, list) else listed)
    for pair in found:
        if isinstance(pair, list) and len(pair) == 2 and all(code and isinstance(code, str) for code in pair):
            if not {*pair} & {*chain(*ROLES)}:  # names of files with several languages, train.src and train.tgt
                return pair[0], pair[1]
    return None


def read_card(path: Path) -> dict[str, Any]:
    """Return the metadata of a model card, {} if there is none. Raises BrokenFileError."""
    if not path.is_file():
        return {}
    header = re.match(r"---\n(.*?)\n---\n", path.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
    try:
        metadata = yaml.safe_load(header[1]) if header else {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2020-13-45
        raise BrokenFileError(f"{path}: the metadata is not valid YAML ({error}); mend or remove it") from None
    return metadata if isinstance(metadata, dict) else {}
