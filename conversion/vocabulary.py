"""A toolkit's vocabulary -> a plain tokenizer.json with the toolkit's ids.

Words, subword-nmt and fastBPE codes, and (sentencepiece.py, subwords.py) SentencePiece and tensor2tensor's subwords.
A piece that the segmentation can make but the dictionary does not have is `<unk>` to the toolkit. A tokenizer needs an
id for it, for the merges that go on from there: it gets one after the toolkit's own, with `<unk>`'s embedding.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.lines import read_lines

# Source texts may be longer than what a toolkit was trained on; the sinusoidal model has no limit.
MODEL_MAX_LENGTH = 1024


@dataclass
class Vocabulary:
    """The toolkit's tokens, and which of them is what.

    source, target: the tokens by id; the same object where both sides have one vocabulary
    pad, start: None where the toolkit has none; a start that is None is a zero vector
    begins, ends: the source begins with `bos`, ends with `eos`
    source_has_symbols: False where `bos` and `eos` are tokens of the target alone
    source_tokenizer, target_tokenizer: how text becomes ids; None: nothing in the checkpoint says it
    source_aliases, target_aliases: pieces after the toolkit's own that are `<unk>` to it
    """

    source: list[str]
    target: list[str]
    eos: int
    unknown: int | None
    bos: int | None = None
    pad: int | None = None
    start: int | None = None
    begins: bool = False
    ends: bool = True
    source_has_symbols: bool = True
    source_tokenizer: Tokenizer | None = None
    target_tokenizer: Tokenizer | None = None
    source_aliases: list[str] = field(default_factory=list)
    target_aliases: list[str] = field(default_factory=list)

    @property
    def is_joint(self) -> bool:
        return self.source is self.target or self.source == self.target

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

    def new_special_rows(self) -> int:
        """Rows of either table with the symbols that the toolkit does not have; 0 if it has all."""
        new = (self.start is None) + (self.pad is None)
        return self.first_new + new if new else 0

    def sizes(self) -> tuple[int, int]:
        """Rows of the source's and of the target's table."""
        source = max(len(self.source), self.new_special_rows()) + len(self.source_aliases)
        target = max(len(self.target), self.new_special_rows()) + len(self.target_aliases)
        return (max(source, target), max(source, target)) if self.is_joint else (source, target)

    def special_tokens(self, side: str) -> dict[str, str]:
        """bos_token, eos_token, pad_token, unk_token -> the token, for one side."""
        tokens = self.source if side == "source" else self.target
        ids = {"eos_token": self.eos, "unk_token": self.unknown, "bos_token": self.bos, "pad_token": self.pad}
        if side == "source" and not self.source_has_symbols:
            ids = {"unk_token": self.unknown, "pad_token": self.pad}
            return {name: tokens[id] for name, id in ids.items() if id is not None}
        found = {name: tokens[id] for name, id in ids.items() if id is not None}
        if self.bos is None:
            found["bos_token"] = new_name("<s>", tokens) if self.start is None else tokens[self.start]
        if self.pad is None:
            found["pad_token"] = new_name("<pad>", tokens)
        return found

    def ids(self, side: str) -> dict[str, int]:
        """Token -> id for one side, the new symbols included."""
        tokens = self.source if side == "source" else self.target
        ids = {token: id for id, token in reversed(list(enumerate(tokens)))}
        special = self.special_tokens(side)
        if self.start is None:
            ids[special["bos_token"]] = self.start_id
        if self.pad is None:
            ids[special["pad_token"]] = self.pad_id
        return ids

    def first_alias(self, side: str) -> int:
        return max(len(self.source if side == "source" else self.target), self.new_special_rows())

    def check(self, what: str | Path) -> None:
        """Raises BrokenFileError for what no vocabulary can be."""
        symbols = (self.eos, self.bos, self.start)
        of_source = symbols if self.source_has_symbols else ()
        for side, tokens, ids in (("source", self.source, of_source), ("target", self.target, symbols)):
            for id in (*ids, self.unknown, self.pad):
                if id is not None and not 0 <= id < len(tokens):
                    raise BrokenFileError(f"{what}: the {side} vocabulary has {len(tokens)} entries, none with id {id}")

    # ---- tokenizers ------------------------------------------------------------------------------------------

    def words(self, side: str) -> Tokenizer:
        """Words between spaces, each an entry of the vocabulary or `<unk>`."""
        special = self.special_tokens(side)
        unknown = special.get("unk_token", special["pad_token"])
        tokenizer = Tokenizer(models.WordLevel(self.ids(side), unk_token=unknown))
        # A control symbol that somebody types is a word that the vocabulary does not have.
        typed = "|".join(re.escape(token) for name, token in special.items() if name != "unk_token")
        tokenizer.normalizer = normalizers.Replace(Regex(rf"(?<!\S)({typed})(?!\S)"), unknown)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return self.with_template(tokenizer, side)

    def bpe(self, side: str, merges: Sequence[tuple[str, str]], separator: str | None = "@@") -> Tokenizer:
        """subword-nmt: words between spaces, their letters merged; the vocabulary marks pieces that go on.

        merges: pairs of pieces in the order of the codes, the end of a word as `</w>`
        separator: what a piece ends with that is not the last of its word; None: the last one ends with `</w>`
        """
        special = self.special_tokens(side)
        ids: dict[str, int] = {}
        control = set(special.values())
        for token, id in self.ids(side).items():
            if token in control or separator is None:
                ids[token] = id
            else:
                ids[token.removesuffix(separator) if token.endswith(separator) else token + "</w>"] = id
        aliases: list[str] = []
        first, kept = self.first_alias(side), []
        for left, right in dict.fromkeys(merges):
            for piece in (left, right, left + right):
                if piece not in ids:
                    ids[piece] = first + len(aliases)
                    aliases.append(piece)
            kept.append((left, right))
        if side == "source":
            self.source_aliases = aliases
        else:
            self.target_aliases = aliases
        tokenizer = Tokenizer(
            models.BPE(ids, kept, unk_token=special["unk_token"], end_of_word_suffix="</w>", fuse_unk=False)
        )
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
        return self.with_template(tokenizer, side)

    def with_template(self, tokenizer: Tokenizer, side: str) -> Tokenizer:
        """The tokenizer with the symbols around a sentence: the target ends with `</s>`."""
        special, ids = self.special_tokens(side), self.ids(side)
        around = [special["bos_token"]] if self.begins and side == "source" else []
        around.append("$A")
        if self.ends or side == "target":
            around.append(special["eos_token"])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(around) if not any(" " in token for token in around) else around,
            special_tokens=[(token, ids[token]) for token in dict.fromkeys(around) if token != "$A"],
        )
        return tokenizer

    def loadable(self, side: str, tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
        """The tokenizer as AutoTokenizer loads it."""
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            **self.special_tokens(side),
            split_special_tokens=True,
            clean_up_tokenization_spaces=False,
            padding_side="right",
            model_max_length=MODEL_MAX_LENGTH,
        )


def new_name(name: str, tokens: Iterable[str]) -> str:
    """A name for a new symbol that no token of the vocabulary has."""
    tokens = set(tokens)
    while name in tokens:
        name = f"<{name}>"
    return name


# ---- files -------------------------------------------------------------------------------------------------------


def read_codes(path: Path) -> list[tuple[str, str]]:
    """The merges of a file of subword-nmt (version 0.2), fastBPE, or Hugging Face's merges.txt of one of them.

    Raises InputError for subword-nmt 0.1, where the end of a word is a letter of its own.
    """
    merges = []
    version_1 = True
    for number, line in enumerate(read_lines(path), start=1):
        if number == 1 and line.startswith("#version:"):
            version_1 = line.split()[-1] == "0.1"
            continue
        parts = line.rstrip(" ").split(" ")
        if parts == [""]:
            continue
        if len(parts) == 3 and parts[2].isdigit():  # fastBPE adds how often the pair occurred
            version_1 = False
        elif len(parts) != 2:
            raise BrokenFileError(f"{path} line {number}: {line!r} is not a pair of pieces")
        merges.append((parts[0], parts[1]))
    if version_1 and any("</w>" in (left, right) for left, right in merges):
        raise InputError(f"{path} is of subword-nmt 0.1, whose segmentation a tokenizer.json cannot hold")
    return merges


def read_counted_words(path: Path) -> list[str]:
    """The tokens of fairseq's dict.txt: a token, a space, a count; in the order of their ids."""
    tokens = []
    for number, line in enumerate(read_lines(path), start=1):
        line = line.removesuffix(" #fairseq:overwrite")
        token, space, count = line.rstrip().rpartition(" ")
        if not space or not count.isdigit():
            raise BrokenFileError(f"{path} line {number}: {line!r} is not a token and a count")
        tokens.append(token)
    return tokens


def read_words(path: Path) -> list[str]:
    """A token a line."""
    return list(read_lines(path))


def find_file(folder: Path, *patterns: str) -> Path | None:
    """The first file of the folder that fits; patterns in the order of preference."""
    for pattern in patterns:
        found = sorted(file for file in folder.glob(pattern) if file.is_file())
        if found:
            return found[0]
    return None
