"""A toolkit's vocabulary, special tokens and tokenizers, with the toolkit's ids.

BPE merges and SentencePiece models can make pieces that are not in the vocabulary, which most toolkits map to `<unk>`
and JoeyNMT splits into smaller ones. A tokenizer needs an id for every piece, so each of these pieces (an alias) gets
an id after the toolkit's ids, and the embedding of `<unk>`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.files import read_json_object
from vaswani_transformer.sentences_vaswani_transformer import LANGUAGE_TOKEN

# Source texts may be longer than those a toolkit was trained on; the sinusoidal model has no limit.
MODEL_MAX_LENGTH = 1024
SIDES = ("source", "target")
TEXT = "$A"  # in templates of the tokenizers library


@dataclass
class ReferenceTokenizer:
    """The toolkit's own tokenizer of one side, with which the converted one is compared.

    encode: returns the ids of each text with the special tokens; raises ImportError if its package is not installed
    """

    name: str
    encode: Callable[[list[str]], list[list[int]]]


@dataclass
class Vocabulary:
    """The toolkit's tokens, the ids of the special tokens, and the tokenizers.

    The rows of one side's embedding are the toolkit's tokens; then, from `first_new`, the start and padding tokens if
    the toolkit lacks them, with the same ids on both sides; then, from `first_alias`, the aliases.

    source, target: the tokens by id
    unknown, bos, pad: None if the toolkit has no such token
    start: the decoder's first token; None if the toolkit starts with a zero vector
    source_template, target_template: what the tokenizers return: TEXT, and the names of special tokens that they add,
        or these tokens themselves
    source_has_bos_and_eos: False if only the target has the tokens `bos` and `eos`
    tokenizers: by side; a side is missing if it has no tokenizer, and the notes say why
    languages: names of languages -> their tokens, which stand at fixed places, see `Description.in_source`
    splits_pieces: whether the toolkit splits a piece that its vocabulary lacks into smaller ones
    added: tokens that users added to the toolkit's tokenizer, which finds them before it splits a text
    references: by side, the toolkit's own tokenizers, where a package that may be installed has them
    aliases: by side, pieces that are not in the toolkit's vocabulary, in the order of their ids
    files: the files that the vocabulary was read from
    notes: sentences about it for the model's users
    """

    source: list[str]
    target: list[str]
    eos: int
    unknown: int | None
    bos: int | None = None
    pad: int | None = None
    start: int | None = None
    source_template: tuple[str, ...] = (TEXT, "eos_token")
    target_template: tuple[str, ...] = (TEXT, "eos_token")
    source_has_bos_and_eos: bool = True
    languages: dict[str, str] = field(default_factory=dict)
    splits_pieces: bool = False
    added: list[str] = field(default_factory=list)
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    references: dict[str, ReferenceTokenizer] = field(default_factory=dict)
    aliases: dict[str, list[str]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def tokens(self, side: str) -> list[str]:
        return self.source if side == "source" else self.target

    @property
    def is_joint(self) -> bool:
        return self.source == self.target

    @property
    def first_new(self) -> int:
        """The first id that neither side has."""
        return max(len(self.source), len(self.target))

    @property
    def start_id(self) -> int:
        return self.first_new if self.start is None else self.start

    @property
    def pad_id(self) -> int:
        return self.first_new + (self.start is None) if self.pad is None else self.pad

    def first_alias(self, side: str) -> int:
        """Return the number of rows before the aliases: the toolkit's tokens and, if there are any, the added ones."""
        added = (self.start is None) + (self.pad is None)
        return self.first_new + added if added else len(self.tokens(side))

    def size(self, side: str) -> int:
        """Return the number of rows of one side's embedding; joint vocabularies share one embedding."""
        sides = SIDES if self.is_joint else (side,)
        return max(self.first_alias(side) + len(self.aliases.get(side, ())) for side in sides)

    def special_tokens(self, side: str) -> dict[str, str]:
        """Return bos_token, eos_token, pad_token, unk_token -> the token, for one side."""
        tokens = self.tokens(side)
        bos = self.start if self.bos is None else self.bos
        ids = {"eos_token": self.eos, "unk_token": self.unknown, "bos_token": bos, "pad_token": self.pad}
        if side == "source" and not self.source_has_bos_and_eos:
            del ids["eos_token"], ids["bos_token"]
        special = {name: tokens[id] for name, id in ids.items() if id is not None}
        if self.bos is None and self.start is None:
            special["bos_token"] = find_unused_name("<s>", tokens)
        if self.pad is None:
            special["pad_token"] = find_unused_name("<pad>", tokens)
        return special

    def ids(self, side: str) -> dict[str, int]:
        """Return token -> id for one side, including the added special tokens."""
        ids = {token: id for id, token in enumerate(self.tokens(side))}
        special = self.special_tokens(side)
        if self.start is None:
            ids[special["bos_token"]] = self.start_id
        if self.pad is None:
            ids[special["pad_token"]] = self.pad_id
        return ids

    def hide_languages(self, names: Mapping[str, str]) -> None:
        """Rename the tokens of languages to what no text has, for models in which texts do not begin with them.

        names: language -> the toolkit's token
        """
        for language, token in names.items():
            self.languages[language] = f"<{token}>"
            for tokens in (self.source, self.target):
                tokens[:] = [self.languages[language] if other == token else other for other in tokens]

    def set_languages(self, source: str | None, target: str | None) -> None:
        """Put these languages' tokens in front of sources and targets, after the tokenizers have been built."""
        templates = [(*filter(None, [token]), TEXT, "eos_token") for token in (source, target)]
        self.source_template, self.target_template = templates
        for side in SIDES:
            if side in self.tokenizers:
                tokenizer = self.tokenizers[side] = Tokenizer.from_str(self.tokenizers[side].to_str())
                tokenizer.add_special_tokens([*self.languages.values()])  # which decoding leaves out
                self.add_post_processor(tokenizer, side)

    def language_tokens(self, side: str) -> list[str]:
        """Return the tokens that name a language, which toolkits put in front of a segmented text."""
        return [token for token in self.tokens(side) if LANGUAGE_TOKEN.fullmatch(token)]

    def whole_tokens(self, side: str) -> list[str]:
        """Return the tokens that stay whole in any text."""
        return list(dict.fromkeys([*self.language_tokens(side), *self.added]))

    def add_aliases(self, side: str, pieces: Iterable[str]) -> dict[str, int]:
        """Give pieces that are not in the vocabulary ids after the toolkit's, and return these ids."""
        self.aliases[side] = list(pieces)
        return {piece: self.first_alias(side) + n for n, piece in enumerate(self.aliases[side])}

    def without_alias(self, id: int, side: str) -> int | None:
        """Return the id, or that of `<unk>` if it is an alias."""
        return self.unknown if id >= self.first_alias(side) else id

    def check_special_ids(self, subject: str | Path) -> None:
        """Raise BrokenFileError if an id of a special token is not in the vocabulary."""
        ends = (self.eos, self.bos, self.start)
        for side in SIDES:
            ids = (self.unknown, self.pad, *(ends if side == "target" or self.source_has_bos_and_eos else ()))
            size = len(self.tokens(side))
            for id in ids:
                if id is not None and not 0 <= id < size:
                    raise BrokenFileError(f"{subject}: the {side} vocabulary has {size} entries, but no id {id}")

    def template(self, side: str) -> tuple[str, ...]:
        return self.source_template if side == "source" else self.target_template

    def add_post_processor(self, tokenizer: Tokenizer, side: str) -> Tokenizer:
        """Make the tokenizer add special tokens, and return it."""
        special, ids, names = self.special_tokens(side), self.ids(side), self.template(side)
        around = [special.get(name, name) for name in names]
        # With those of all languages, which read_tokenizer would otherwise take for symbols of texts.
        added = dict.fromkeys([*(token for token in around if token != TEXT), *self.languages.values()])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=around, special_tokens=[(token, ids[token]) for token in added]
        )
        return tokenizer

    def add_special_ids(self, tokens: Iterable[str], side: str) -> list[int]:
        """Return the ids of a text's tokens as the toolkit gives them to the model: `<unk>`'s, and special tokens."""
        special, ids, names = self.special_tokens(side), self.ids(side), self.template(side)
        unknown = -1 if self.unknown is None else self.unknown
        inside = [ids.get(token, unknown) for token in tokens]
        return [id for name in names for id in (inside if name == TEXT else [ids[special.get(name, name)]])]

    def wrap_tokenizer(self, side: str) -> PreTrainedTokenizerFast:
        """Return the tokenizer of one side in the form that AutoTokenizer loads."""
        return PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizers[side],
            **self.special_tokens(side),
            split_special_tokens=True,
            clean_up_tokenization_spaces=False,
            padding_side="right",
            model_max_length=MODEL_MAX_LENGTH,
        )


def select_needed(merges: Sequence[tuple[str, str]], known: Iterable[str]) -> list[tuple[str, str]]:
    """Return the merges that make known pieces, or parts of these.

    A toolkit that splits pieces which its vocabulary lacks (`Vocabulary.splits_pieces`) segments nearly as without the
    other merges: the two differ if such a piece is also part of a known one, or if its letters then merge with others.
    """
    needed, selected = set(known), []
    for left, right in reversed(merges):
        if left + right in needed:
            needed |= {left, right}
            selected.append((left, right))
    return selected[::-1]


def add_whole_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> None:
    """Make tokens of the vocabulary stay whole in any text, without the spaces after them."""
    tokenizer.add_tokens([AddedToken(token, normalized=False, rstrip=True) for token in tokens])


def find_unused_name(name: str, tokens: Iterable[str]) -> str:
    """Return the name, in as many angle brackets as needed to differ from all tokens."""
    tokens = set(tokens)
    while name in tokens:
        name = f"<{name}>"
    return name


def number_tokens(special: Sequence[str], rows: Sequence[int], why: str, **ids: Any) -> Vocabulary:
    """Return a vocabulary without tokenizers, if only the numbers of rows and the special tokens are known.

    special: the tokens from id 0
    rows: the source's and the target's
    why: the reason, for a note to the users
    ids: the ids of special tokens by the vocabulary's fields
    """
    source, target = ([*special, *(f"token{id}" for id in range(len(special), count))] for count in rows)
    return Vocabulary(source, target, notes=[f"There is no tokenizer: {why}."], **ids)


def read_both_sides(
    files: Sequence[Path],
    read_tokens: Callable[[Path], Iterable[str]],
    special: Mapping[str, Sequence[str]],
    **settings: Any,
) -> Vocabulary:
    """Read the source's and the target's file of a toolkit whose decoder starts with `bos`.

    read_tokens: reads the tokens of a file by id;  special: see `find_common_ids`;  settings: fields of the vocabulary
    """
    source, target = (list(read_tokens(file)) for file in files)
    ids = find_common_ids(source, target, special, " and ".join(file.name for file in files))
    return Vocabulary(source, target, start=ids["bos"], files=list(files), **ids, **settings)


def join_sides(
    source: list[str], target: list[str], start: str, end: str, unknown: str, pad: str, where: str
) -> Vocabulary:
    """Return the vocabulary of OpenNMT-py or eole, which add nothing to sources: only the target needs start and end.

    where: the places of the two lists, for messages
    """
    if missing := [token for token in (start, end) if token not in target]:
        raise InputError(f"{where}: the target's lacks {', '.join(missing)}")
    bos, eos = target.index(start), target.index(end)
    ids = find_common_ids(source, target, {"unknown": [unknown], "pad": [pad]}, where)
    has_both = source[eos : eos + 1] == [end] and source[bos : bos + 1] == [start]
    return Vocabulary(
        source, target, eos, bos=bos, start=bos, source_template=(TEXT,), source_has_bos_and_eos=has_both, **ids
    )


def find_common_ids(
    source: Sequence[str], target: Sequence[str], special: Mapping[str, Sequence[str]], where: str
) -> dict[str, Any]:
    """Return the ids of special tokens. Raises InputError unless both sides have the same.

    special: the name of the id -> the names that the token may have
    where: the names of the files, for the message
    """
    common = {}
    for id_name, names in special.items():
        ids = [next((tokens.index(name) for name in names if name in tokens), None) for tokens in (source, target)]
        if ids[0] is None or ids[0] != ids[1]:
            found = " and ".join("none" if id is None else str(id) for id in ids)
            raise InputError(f"{' or '.join(names)} must have the same id in {where}, but has {found}")
        common[id_name] = ids[0]
    return common


def read_token_ids(path: Path) -> list[str]:
    """Read the tokens of a vocab.json by id. Raises BrokenFileError."""
    return order_tokens(read_json_object(path), path)


def order_tokens(ids: Mapping[str, int], path: Path) -> list[str]:
    """Return the tokens by id. Raises BrokenFileError unless the ids are 0, 1, 2, ... without a gap."""
    if sorted(ids.values()) != list(range(len(ids))):
        raise BrokenFileError(f"{path}: the ids are not 0 to {len(ids) - 1}, each once")
    return sorted(ids, key=lambda token: ids[token])
