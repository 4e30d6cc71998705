"""Settings of the beam search: limits, defaults and stopping rule. Both backends read them without torch."""

import operator
from typing import Any, NamedTuple, SupportsIndex

from .errors import InputError

MAX_BEAMS = 1000
# In this range float32 represents the penalty of a thousand tokens, and every score stays above -1e8 (VALID_ABOVE),
# below which a slot counts as empty: log P = -10,000 becomes -1.7e6 with alpha -1.
LENGTH_PENALTIES = (-1, 5)
LOOKAHEAD = 5  # tokens; see `lookahead_of`, and docs/explanation/search.md for what it changes
NO_MAXIMUM = 1_000_000  # tokens: more than any sentence has, for settings that need a number where there is no limit
LARGEST_COUNT = 1_000_000_000  # of batch_tokens and max_characters


class SearchSettings(NamedTuple):
    """Beam size, exponent of the GNMT length penalty, and stopping rule (see `lookahead_of`)."""

    num_beams: int
    length_penalty: float
    early_stopping: bool | int | str = LOOKAHEAD


DEFAULT_SEARCH = SearchSettings(4, 0.6)  # without generation_config.json: the paper's, except for the stopping rule
TRANSFORMERS_SEARCH = SearchSettings(1, 1.0, False)  # for entries that generation_config.json does not have


def search_settings_of(generation_config: dict[str, Any] | None) -> SearchSettings:
    """Return the default search of Translator and ONNX for a generation config, or for None if there is no file.

    It is that of generate(), except for the stopping rule, see `lookahead_of`.
    """
    if generation_config is None:
        return DEFAULT_SEARCH
    fields = SearchSettings._fields
    given = {field: generation_config[field] for field in fields if generation_config.get(field) is not None}
    if given.get("early_stopping") == "never":
        lookahead = generation_config.get("stopping_lookahead")
        given["early_stopping"] = LOOKAHEAD if lookahead is None else lookahead
    return TRANSFORMERS_SEARCH._replace(**given)


def lookahead_of(early_stopping: bool | int | str) -> int:
    """Return the lookahead k of a stopping rule: the search assumes that a live hypothesis grows by at most k tokens.

    early_stopping   lookahead
    "never"          NO_MAXIMUM: a hypothesis may grow to its limit, as in the paper; no better one is lost
    a number k       k
    False            0, as in transformers
    True             -1: a sentence is done when `num_beams` hypotheses have finished

    Defaults: generate() has the `early_stopping` of generation_config.json, which is "never" in the files of this
    package. Translator, OnnxTranslator and the exported graph have the same, but instead of "never" the file's
    `stopping_lookahead` or, without this entry, LOOKAHEAD. The graph's input `early_stopping` holds a lookahead.
    Raises InputError.
    """
    if early_stopping == "never":
        return NO_MAXIMUM
    if isinstance(early_stopping, bool):
        return -1 if early_stopping else 0
    if isinstance(early_stopping, str):
        raise InputError(f'early_stopping is {early_stopping!r}; it must be "never", true, false or a number of tokens')
    return check_number("early_stopping", early_stopping, 0, NO_MAXIMUM)


def check_number(name: str, value: SupportsIndex, least: int, most: int, meaning: str = "") -> int:
    """Return an integer, of Python or numpy, as an int. Raises InputError if it is not one or outside its limits.

    meaning: what the upper limit is, for the message
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    limits = f"between {least} and {most}" + (f" ({meaning})" if meaning else "")
    if number is None:
        raise InputError(f"{name} is {value!r}; it must be an integer {limits}")
    if not least <= number <= most:
        raise InputError(f"{name} is {value!r}; it must lie {limits}")
    return number
