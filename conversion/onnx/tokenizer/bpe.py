"""A byte-level BPE as `vaswani-transformer tokenizer` trains it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import normalizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vaswani_transformer.sentences_vaswani_transformer import clean_text
from vaswani_transformer.tokenization import make_normalizer

from .source import (
    SourceTokenizer,
    find_end,
    list_parts,
    list_symbols,
    list_unsupported_ends,
    read_tokenizer_json,
    read_type,
    refuse_unsupported,
)
from .trie import SparseTable, build_sparse_table

SPELLING = bytes_to_unicode()  # byte -> the character that stands for it in byte-level BPE
# Fields of tokenizer.json's model that the operators do not support.
NOT_SUPPORTED = "dropout unk_token continuing_subword_prefix end_of_word_suffix byte_fallback ignore_merges".split()


@dataclass(frozen=True, kw_only=True)
class ByteLevelBPE(SourceTokenizer):
    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]
    lowercase: bool
    split_digits: bool

    @classmethod
    def read(cls, folder: Path) -> "ByteLevelBPE":
        """Read the tokenizer of a folder. Raises InputError naming everything that the operators do not support."""
        content, settings = read_tokenizer_json(folder)
        refuse_unsupported(folder, list_unsupported(content, settings))
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else merge for merge in content["model"]["merges"]]
        return cls(
            clean=clean_text,
            vocabulary=content["model"]["vocab"],
            merges=[(left, right) for left, right in merges],
            end=find_end(content["post_processor"])[0],
            symbols=find_symbols(content),
            lowercase="Lowercase" in json.dumps(content.get("normalizer")),
            split_digits="Digits" in map(read_type, list_parts(content["pre_tokenizer"], "pretokenizers")),
        )

    def is_in_order(self) -> bool:
        """Return whether no merge needs the product of a later one, as in every trained tokenizer."""
        made = {left + right: rank for rank, (left, right) in enumerate(self.merges)}
        return all(max(made.get(part, -1) for part in pair) < rank for rank, pair in enumerate(self.merges))

    def build_ranks(self) -> SparseTable:
        """Return the ranks of the merges by the ids of their pairs."""
        ids = self.vocabulary
        size = max(*ids.values(), *self.symbols.values(), self.end) + 1
        ranks = {(ids[left], ids[right]): rank for rank, (left, right) in enumerate(self.merges)}
        return build_sparse_table(ranks, size, size)


def list_unsupported(content: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Return the fields of tokenizer.json and tokenizer_config.json that the operators do not support."""
    model = content.get("model") or {}
    if read_type(model) != "BPE":
        return [f"model {read_type(model)}"]
    found = [f"model.{field} {json.dumps(model[field])}" for field in NOT_SUPPORTED if model.get(field)]
    if missing := [byte for byte, spelling in SPELLING.items() if spelling not in model["vocab"]]:
        found.append(f"model.vocab without {len(missing)} of the 256 bytes")
    if content.get("normalizer") not in list_normalizers():
        found.append(f"normalizer {read_type(content['normalizer'])} that does not clean texts as `clean_text`")
    steps = list_parts(content.get("pre_tokenizer"), "pretokenizers")
    if len(steps) == 2 and steps[0] == {"type": "Digits", "individual_digits": True}:
        steps = steps[1:]
    is_byte_level = [read_type(step) for step in steps] == ["ByteLevel"]
    if not is_byte_level or steps[0].get("add_prefix_space") or not steps[0].get("use_regex", True):
        found.append(f"pre_tokenizer {json.dumps(content.get('pre_tokenizer'))[:80]}")
    symbols = list_symbols(content)
    found += [f"added_tokens {token['content']!r} with rstrip" for token in symbols if token.get("rstrip")]
    if content.get("normalizer") is not None:
        found += [f"added_tokens {t['content']!r} that is not normalized" for t in symbols if not t.get("normalized")]
    return found + list_unsupported_ends(content, settings)


def find_symbols(content: dict[str, Any]) -> dict[str, int]:
    """Return the symbols of tokenizer.json with their ids, as they are in normalised text."""
    symbols = {token["content"]: token["id"] for token in list_symbols(content)}
    if "Lowercase" not in json.dumps(content.get("normalizer")):
        return symbols
    return {normalizers.Lowercase().normalize_str(symbol): id for symbol, id in symbols.items()}


def list_normalizers() -> list[Any]:
    """Return the supported normalizers, as in tokenizer.json: those of trained tokenizers, and of earlier ones."""
    trained = [make_normalizer(lowercase, keep_invisible=False) for lowercase in (False, True)]
    return [None, {"type": "Lowercase"}, *(json.loads(normalizer.__getstate__()) for normalizer in trained)]
