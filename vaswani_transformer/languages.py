"""The languages of a model, from the records in its folder."""

import re
from pathlib import Path
from typing import Any

import yaml

from .errors import BrokenFileError
from .files import read_json_object
from .model_folder import CARD, CONVERSION_RECORD, EXPORT_RECORD
from .training_run import read_run

# English names of the languages that models are published for.
LANGUAGES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian",
             "ja": "Japanese", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
             "uk": "Ukrainian", "zh": "Chinese"}  # fmt: skip


def read_languages(folder: Path) -> tuple[str, str] | None:
    """Return the codes of source and target language, or None if no record in the folder names both.

    They are in the recipe of a training (run.json), the options of a conversion, the record of an export, or the
    metadata of a card, where the source comes first. Raises BrokenFileError.
    """
    recipe = read_run(folder).get("recipe") or {}
    found: list[Any] = [[recipe.get("source_language"), recipe.get("target_language")]]
    if (folder / CONVERSION_RECORD).is_file():
        options = read_json_object(folder / CONVERSION_RECORD, "options").get("options", {})
        # A conversion chooses `..._language` for a multilingual model; other toolkits record one pair as `..._lang`.
        found.append([options.get(f"{side}_language") or options.get(f"{side}_lang") for side in ("source", "target")])
    if (folder / EXPORT_RECORD).is_file():
        found.append(read_json_object(folder / EXPORT_RECORD).get("languages"))
    found.append(read_card(folder / CARD).get("language"))
    for pair in found:
        if isinstance(pair, list) and len(pair) == 2 and all(pair) and all(isinstance(code, str) for code in pair):
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
