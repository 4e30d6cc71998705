"""Settings of the search: one set for `generate()`, Translator and ONNX.

It is published with every model and imports only the standard library.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, SupportsIndex

MAX_BEAMS = 1000
# In this range float32 represents the penalty of a thousand tokens, and every score stays above -1e8 (VALID_ABOVE),
# below which a slot counts as empty: log P = -10,000 becomes -1.7e6 with alpha -1.
LENGTH_PENALTIES = (-1, 5)
# With more, repeated tokens with log P = -1,000 would take a score below VALID_ABOVE; 1.1 to 1.5 is usual.
REPETITION_PENALTIES = (0.1, 10)
LONGEST_OUTPUT = 100_000  # tokens; the search allocates this much per hypothesis
NO_MAXIMUM = 1_000_000  # as a lookahead: more tokens than any output has
# Values of `beam_search` in generation_config.json; the first is the default. It belongs to the model, as the tokens
# that it never generates do: translations are chosen by the rules with which the model was published.
BEAM_SEARCHES = ("tensor2tensor", "transformers")

# Settings against repetitions, with their neutral values.
REPETITION = {"no_repeat_ngram_size": 0, "repetition_penalty": 1.0}

# Settings that only `generate()` applies, with their neutral values.
ONLY_IN_GENERATE = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "constraints": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "max_time": None,
    "low_memory": False,
    "min_length": 0,
    "num_beam_groups": 1,
    "penalty_alpha": 0.0,
    "renormalize_logits": False,
    "sequence_bias": None,
    "stop_strings": None,
    "token_healing": False,
    "watermarking_config": None,
}


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search; the defaults are the paper's (Section 6.1).

    Names and values are those of `generate()` and of the inputs of an exported graph. `extra_length` is this model's
    own: transformers does not have it. A model with the search of transformers has the score log P / length^alpha.
    Raises `ValueError` naming a setting that is out of range.

    >>> SearchSettings(num_beams=8).length_penalty
    0.6
    """

    num_beams: int = 4  # beam size; 1 is greedy search
    length_penalty: float = 0.6  # alpha of the score log P / ((5 + length) / 6)^alpha, Equation (14) of Wu et al. 2016
    early_stopping: bool | int | str = "never"  # when a sentence is done, see `lookahead`
    num_return_sequences: int = 1  # translations of a sentence, best first; a smaller number may end the search sooner
    extra_length: int = 50  # tokens that an output may have beyond those of its source (tensor2tensor: extra_length)
    max_new_tokens: int | None = None  # if set, the limit of every output, </s> included; replaces extra_length
    min_new_tokens: int = 0  # tokens before </s>
    no_repeat_ngram_size: int = 0  # no sequence of this many tokens occurs twice in a translation; 0: off
    repetition_penalty: float = 1.0  # factor of the log-probability of tokens that a translation already has; 1: off

    def __post_init__(self):
        check_real("length_penalty", self.length_penalty, *LENGTH_PENALTIES, "paper: 0.6")
        penalty = check_real("repetition_penalty", self.repetition_penalty, *REPETITION_PENALTIES, "1: off")
        object.__setattr__(self, "repetition_penalty", penalty)
        limits: dict[str, tuple[int, int]] = {
            "num_beams": (1, MAX_BEAMS),
            "extra_length": (0, LONGEST_OUTPUT),
            "min_new_tokens": (0, LONGEST_OUTPUT),
            "no_repeat_ngram_size": (0, LONGEST_OUTPUT),
        }
        if self.max_new_tokens is not None:
            limits["max_new_tokens"] = (1, LONGEST_OUTPUT)
        if not isinstance(self.early_stopping, bool | str):
            limits["early_stopping"] = (0, NO_MAXIMUM)
        elif self.early_stopping not in (True, False, "never"):
            raise ValueError(
                f'early_stopping is {self.early_stopping!r}; it must be "never", true, false or a number of tokens'
            )
        for name, (least, most) in limits.items():  # numpy's integers become Python's
            object.__setattr__(self, name, check_number(name, getattr(self, name), least, most))
        returned = check_number(
            "num_return_sequences", self.num_return_sequences, 1, self.num_beams, "num_beams; raise it for more"
        )
        object.__setattr__(self, "num_return_sequences", returned)

    @property
    def lookahead(self) -> int:
        """Return the most tokens by which a live hypothesis is assumed to grow; an exported graph has it as input.

        early_stopping   lookahead
        "never"          NO_MAXIMUM: it may grow to its limit, as in the paper; no better hypothesis is lost
        a number k       k
        False            0, as in transformers
        True             -1: a sentence is done when `num_beams` hypotheses have finished
        """
        if self.early_stopping == "never":
            return NO_MAXIMUM
        if isinstance(self.early_stopping, bool):
            return -1 if self.early_stopping else 0
        return int(self.early_stopping)

    @property
    def repetition(self) -> dict[str, int | float]:
        """Return the settings against repetitions that are on. An ONNX graph has them as inputs only on request."""
        values = {name: getattr(self, name) for name in REPETITION}
        return {name: value for name, value in values.items() if value != REPETITION[name]}

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any]) -> "SearchSettings":
        """Return the settings in the content of generation_config.json, with the values of `generate()` for others.

        `num_return_sequences` is only checked: how many translations are returned is up to each call.
        """
        given = {field.name: config[field.name] for field in fields(cls) if config.get(field.name) is not None}
        if not {"extra_length", "max_new_tokens"} & given.keys() and config.get("max_length") is not None:
            longest = check_number("max_length", config["max_length"], 2, LONGEST_OUTPUT)
            given["max_new_tokens"] = longest - 1  # without the start token
        settings = cls(**{"num_beams": 1, "length_penalty": 1.0, "early_stopping": False} | given)
        return replace(settings, num_return_sequences=1)


def as_numbers(settings: SearchSettings, repetition: bool) -> dict[str, int | float]:
    """Return the settings as a search in tensors takes them: `lookahead` as early_stopping, 0 for no max_new_tokens.

    repetition: with the settings against repetitions
    """
    values = vars(settings) | {
        "length_penalty": float(settings.length_penalty),
        "early_stopping": settings.lookahead,
        "max_new_tokens": settings.max_new_tokens or 0,
    }
    return {name: value for name, value in values.items() if repetition or name not in REPETITION}


def is_beam_search_of_transformers(value: Any) -> bool:
    """Return whether a model's search follows the rules of transformers instead of the paper's.

    value: `beam_search` of generation_config.json; None: the default. Raises `ValueError` if it is neither.
    """
    if value not in (None, *BEAM_SEARCHES):
        raise ValueError(f"beam_search is {value!r}; it must be {' or '.join(map(repr, BEAM_SEARCHES))}")
    return value == "transformers"


def refuse_settings_of_generate(config: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the content of generation_config.json has a setting that only `generate()` applies."""
    for name, neutral in ONLY_IN_GENERATE.items():
        value = config.get(name)
        if value is not None and value != neutral:
            raise ValueError(
                f"{name} is {value!r}, which generate() applies and Translator and ONNX do not; set it to "
                f"{neutral!r}, or call generate()"
            )


def check_real(name: str, value: Any, least: float, most: float, meaning: str) -> float:
    """Return a number, of Python or numpy, as a float. Raises `ValueError` if it is not one or outside its limits.

    meaning: of one of the values, for the message
    """
    if isinstance(value, bool) or not hasattr(value, "__float__") or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; it must lie between {least} and {most} ({meaning})")
    return float(value)


def check_number(name: str, value: SupportsIndex, least: int, most: int, meaning: str = "") -> int:
    """Return an integer, of Python or numpy, as an int. Raises `ValueError` if it is not one or outside its limits.

    meaning: what the upper limit is, for the message
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    limits = f"between {least} and {most}" + (f" ({meaning})" if meaning else "")
    if number is None:
        raise ValueError(f"{name} is {value!r}; it must be an integer {limits}")
    if not least <= number <= most:
        raise ValueError(f"{name} is {value!r}; it must lie {limits}")
    return number


__all__ = ["SearchSettings"]
