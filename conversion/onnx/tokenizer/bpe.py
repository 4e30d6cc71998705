"""Read a byte-level BPE as `vaswani-transformer tokenizer` trains it, and refuse other tokenizers.

Fields are checked one by one, not compared with the JSON of an untrained tokenizer: converted tokenizers spell a
missing suffix as "" or null, leave out defaults, and may have options without effect.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object

SPELLING = bytes_to_unicode()  # byte -> the character that stands for it in byte-level BPE
# Fields of tokenizer.json's model that the operators do not support.
NOT_SUPPORTED = "dropout unk_token continuing_subword_prefix end_of_word_suffix byte_fallback ignore_merges".split()


@dataclass(frozen=True)
class ByteLevelBPE:
    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]
    end: int  # id of </s>, which ends each text
    control: frozenset[int]
    lowercase: bool
    split_digits: bool

    @classmethod
    def read(cls, folder: Path) -> "ByteLevelBPE":
        """Read the tokenizer of a folder. Raises InputError naming everything that the operators do not support."""
        content = read_json_object(folder / "tokenizer.json")
        if found := unsupported(content, read_json_object(folder / "tokenizer_config.json")):
            raise InputError(
                f"{folder / 'tokenizer.json'}: --text needs a byte-level BPE as `vaswani-transformer tokenizer` trains "
                f"it; this one has {'; '.join(found)}"
            )
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else merge for merge in content["model"]["merges"]]
        return cls(
            content["model"]["vocab"],
            [(left, right) for left, right in merges],
            end_of(content["post_processor"])[0],
            frozenset(token["id"] for token in content.get("added_tokens", [])),
            content.get("normalizer") is not None,
            "Digits" in [step["type"] for step in steps_of(content["pre_tokenizer"])],
        )

    def in_order(self) -> bool:
        """Return whether no merge needs the product of a later one, as in every trained tokenizer."""
        made = {left + right: rank for rank, (left, right) in enumerate(self.merges)}
        return all(max(made.get(part, -1) for part in pair) < rank for rank, pair in enumerate(self.merges))


def unsupported(content: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Return the fields of tokenizer.json and tokenizer_config.json that the operators do not support."""
    model, after = content.get("model") or {}, content.get("post_processor") or {}
    if type_of(model) != "BPE":
        return [f"model {type_of(model)}"]
    found = [f"model.{field} {json.dumps(model[field])}" for field in NOT_SUPPORTED if model.get(field)]
    if missing := [byte for byte, spelling in SPELLING.items() if spelling not in model["vocab"]]:
        found.append(f"model.vocab without {len(missing)} of the 256 bytes")
    if content.get("normalizer") not in (None, {"type": "Lowercase"}):
        found.append(f"normalizer {type_of(content['normalizer'])}")
    steps = steps_of(content.get("pre_tokenizer") or {})
    if len(steps) == 2 and steps[0] == {"type": "Digits", "individual_digits": True}:
        steps = steps[1:]
    is_byte_level = [type_of(step) for step in steps] == ["ByteLevel"]
    if not is_byte_level or steps[0].get("add_prefix_space") or not steps[0].get("use_regex", True):
        found.append(f"pre_tokenizer {json.dumps(content.get('pre_tokenizer'))}")
    if type_of(content.get("decoder")) != "ByteLevel":
        found.append(f"decoder {type_of(content.get('decoder'))}")
    if type_of(after) != "TemplateProcessing" or len(end_of(after)) != 1:
        found.append(f"post_processor {type_of(after)} that is not a text followed by one token")
    if others := [token["content"] for token in content.get("added_tokens", []) if not token["special"]]:
        found.append(f"added_tokens {others} that are not control tokens")
    if not settings.get("split_special_tokens"):
        found.append("split_special_tokens false (tokenizer_config.json), which turns typed text into control tokens")
    if settings.get("clean_up_tokenization_spaces"):
        found.append("clean_up_tokenization_spaces true (tokenizer_config.json)")
    return found


def type_of(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else part


def steps_of(before: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a pre_tokenizer, which may be a Sequence."""
    return before.get("pretokenizers", []) if type_of(before) == "Sequence" else [before]


def end_of(template: dict[str, Any]) -> list[int]:
    """Return the ids that follow a text, or none if the template is not a text and one special token."""
    single = template["single"]
    if [list(part) for part in single] != [["Sequence"], ["SpecialToken"]]:
        return []
    return template["special_tokens"][single[1]["SpecialToken"]["id"]]["ids"]
