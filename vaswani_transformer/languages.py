"""The languages of a model, from the records in its folder, and the names that its readers see."""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from .errors import BrokenFileError, one_line
from .files import read_json_object
from .languages_vaswani_transformer import NAMES, find_language, split_code
from .model_folder import CARD, CONVERSION_RECORD, EXPORT_RECORD, MANIFEST
from .training_run import read_run

# ISO 639-5, and names that OPUS-MT had before: the families that a model of several languages records.
FAMILIES = {
    "afa": "Afro-Asiatic", "art": "constructed", "bat": "Baltic", "bnt": "Bantu", "cel": "Celtic", "celtic": "Celtic",
    "dra": "Dravidian", "fiu": "Finno-Ugrian", "gem": "Germanic", "gmq": "North Germanic", "gmw": "West Germanic",
    "iir": "Indo-Iranian", "inc": "Indic", "ine": "Indo-European", "ira": "Iranian", "itc": "Italic",
    "map": "Austronesian", "mkh": "Mon-Khmer", "mul": "many", "nic": "Niger-Kordofanian", "phi": "Philippine",
    "poz": "Malayo-Polynesian", "roa": "Romance", "romance": "Romance", "scandinavia": "Scandinavian",
    "sem": "Semitic", "sit": "Sino-Tibetan", "sla": "Slavic", "tai": "Tai", "trk": "Turkic", "tut": "Altaic",
    "urj": "Uralic", "zle": "East Slavic", "zls": "South Slavic", "zlw": "West Slavic",
}  # fmt: skip

# What stands for a language in names of files and columns.
ROLES = (("source", "src"), ("target", "tgt", "trg"))


def name_languages(codes: Sequence[str]) -> list[str]:
    """Return English names: `German` for `de` and `deu_Latn`, `Portuguese (BR)`, `Romance languages` for `roa`.

    The code of a language that is not in `NAMES` is its name.

    A script is named only where another one of the same language is among the codes.
    """
    bases = [split_code(code)[0] for code in codes]
    named = []
    for code, base in zip(codes, bases, strict=True):
        if base in FAMILIES:
            named.append(f"{FAMILIES[base]} languages")
            continue
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
    lists them all, in `language_details` where their scripts differ. Raises BrokenFileError.
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
    is_ours = "vaswani_transformer" in str(card.get("tags"))
    listed = (is_ours and card.get("language_details")) or card.get("language")
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
    try:  # all values are text: Norwegian is `no`, which other loaders read as false
        metadata = yaml.load(header[1], yaml.BaseLoader) if header else {}
    except (yaml.YAMLError, RecursionError) as error:
        raise BrokenFileError(
            f"{path}: the metadata is not valid YAML ({one_line(str(error))}); correct or remove it"
        ) from None
    return metadata if isinstance(metadata, dict) else {}
