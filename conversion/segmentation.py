"""Make tokenizers from the files next to a checkpoint: BPE codes, a SentencePiece model, or only the vocabulary.

SentencePiece models (.spm, .model) are read without the sentencepiece library:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.files import check_readable
from vaswani_transformer.lines import read_lines

from .checkpoint_files import find_file
from .protobuf import parse_fields
from .vocabulary import SIDES, Reference, Vocabulary

PIECES, TRAINER_SPEC, NORMALIZER_SPEC = 1, 2, 3  # fields of ModelProto
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of a piece
UNIGRAM, BPE = 1, 2  # kinds of models
SPACE = "▁"
# Patterns of tokens that follow each other without spaces: single characters, and atoms and bonds of SMILES.
CHARACTER = r"[\s\S]"
SMILES = r"\[[^\]\s]+\]|%[0-9]{2}|Br|Cl|[\s\S]"


def add_tokenizers(vocabulary: Vocabulary, folder: Path, languages: Sequence[str | None] = (None, None)) -> Vocabulary:
    """Return the vocabulary with the tokenizers of both sides.

    languages: the codes in file names; None for `src` and `tgt`
    """
    for side, language, default in zip(SIDES, languages, ("src", "tgt"), strict=True):
        vocabulary.tokenizers[side] = find_tokenizer(vocabulary, side, folder, language or default)
    vocabulary.files = list(dict.fromkeys(vocabulary.files))
    return vocabulary


def find_tokenizer(vocabulary: Vocabulary, side: str, folder: Path, language: str) -> Tokenizer:
    """Return the tokenizer of one side.

    Tokens that end with `@@` need BPE codes, tokens that begin with `▁` a SentencePiece model. If every token is a
    character and one is the space, or every token is part of a molecule, the tokens follow each other without spaces.
    """
    tokens = vocabulary.tokens(side)
    if any(token.endswith("@@") for token in tokens):
        names = (f"bpecodes.{language}", f"*codes*.{language}", f"{language}.bpe", "bpecodes", "*codes*", "code")
        codes = find_file(folder, *names, "*.bpe")
        if codes:
            vocabulary.files.append(codes)
            return build_bpe_tokenizer(vocabulary, side, read_codes(codes))
        vocabulary.notes.append(
            f"No BPE codes were found next to the checkpoint: the {side} tokenizer expects segmented text (`a@@ b`)."
        )
    elif any(token.startswith(SPACE) for token in tokens):
        model, known = find_sentencepiece(folder, language, tokens), set(tokens)
        if model:
            vocabulary.files.append(model.path)
            if not vocabulary.splits_pieces or known.issuperset(
                piece for piece, _, kind in model.pieces if kind == NORMAL
            ):
                vocabulary.references[side] = model.make_reference(vocabulary, side)
            return model.build_tokenizer(vocabulary, side)
        vocabulary.notes.append(
            f"No SentencePiece model was found next to the checkpoint: the {side} tokenizer expects segmented text."
        )
    elif pattern := find_pattern(vocabulary, side):
        return build_pattern_tokenizer(vocabulary, side, pattern)
    return build_word_tokenizer(vocabulary, side)


def find_sentencepiece(folder: Path, language: str, tokens: list[str]) -> "SentencePieceModel | None":
    """Return the folder's SentencePiece model that has the most pieces of this vocabulary.

    Models with the language in their names (spm.en.model) are preferred.
    """
    models, faults = [], []
    for path in sorted([*folder.glob("*.model"), *folder.glob("*.spm")]):
        try:
            models.append(SentencePieceModel.read(path))
        except BrokenFileError as error:  # models of other programs have the same suffix
            faults.append(error)
    if faults and not models:
        raise faults[0]
    # The code must be a separate part of the name: "en" is also in "sentencepiece".
    word = re.compile(rf"(^|[._-]){re.escape(language)}([._-]|$)")
    named = [model for model in models if word.search(model.path.name)]
    known = set(tokens)
    return max(named or models, key=lambda model: sum(piece in known for piece, *_ in model.pieces), default=None)


def find_pattern(vocabulary: Vocabulary, side: str) -> str | None:
    """Return the pattern of the tokens, if texts are split without spaces; None for words."""
    special = set(vocabulary.special_tokens(side).values())
    tokens = [token for token in vocabulary.tokens(side) if token not in special]
    if " " in tokens and all(len(token) == 1 for token in tokens):
        return CHARACTER
    has_atoms = any(re.fullmatch(r"\[[^\]\s]+\]", token) for token in tokens)
    return SMILES if has_atoms and all(re.fullmatch(SMILES, token) for token in tokens) else None


def build_pattern_tokenizer(vocabulary: Vocabulary, side: str, pattern: str) -> Tokenizer:
    """Return a tokenizer that splits a text into the pattern's matches and joins tokens without spaces.

    A vocabulary without the space has `▁` in its place, as JoeyNMT's of characters.
    """
    tokenizer = Tokenizer(models.WordLevel(vocabulary.ids(side), unk_token=name_unknown(vocabulary, side)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if " " not in vocabulary.tokens(side) and SPACE in vocabulary.tokens(side):
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    return vocabulary.add_post_processor(tokenizer, side)


def name_unknown(vocabulary: Vocabulary, side: str) -> str:
    """Return the token for unknown words; `<pad>` if the vocabulary has none."""
    special = vocabulary.special_tokens(side)
    return special.get("unk_token", special["pad_token"])


def add_whole_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> None:
    """Make tokens of the vocabulary stay whole in any text, without the spaces after them."""
    tokenizer.add_tokens([AddedToken(token, normalized=False, rstrip=True) for token in tokens])


def build_word_tokenizer(vocabulary: Vocabulary, side: str) -> Tokenizer:
    """Return a tokenizer that splits at spaces and maps each word to its id or to `<unk>`."""
    special, unknown = vocabulary.special_tokens(side), name_unknown(vocabulary, side)
    tokenizer = Tokenizer(models.WordLevel(vocabulary.ids(side), unk_token=unknown))
    # A special token in a user's text becomes `<unk>`.
    typed = "|".join(re.escape(token) for name, token in special.items() if name != "unk_token")
    tokenizer.normalizer = normalizers.Replace(Regex(rf"(?<!\S)({typed})(?!\S)"), unknown)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    add_whole_tokens(tokenizer, vocabulary.language_tokens(side))
    return vocabulary.add_post_processor(tokenizer, side)


def build_bpe_tokenizer(
    vocabulary: Vocabulary, side: str, merges: Sequence[tuple[str, str]], separator: str | None = "@@"
) -> Tokenizer:
    """Return a tokenizer that splits at spaces and merges letters as subword-nmt and fastBPE do.

    merges: pairs of pieces in the order of the codes, with `</w>` for the end of a word
    separator: the suffix of pieces inside a word in the vocabulary; None if the last piece has the suffix `</w>`
    """
    special = vocabulary.special_tokens(side)
    ids: dict[str, int] = {}
    whole = vocabulary.language_tokens(side)
    no_pieces = {*special.values(), *whole, *vocabulary.languages.values()}
    for token, id in vocabulary.ids(side).items():
        if separator is not None and token not in no_pieces:
            token = token.removesuffix(separator) if token.endswith(separator) else token + "</w>"
        ids[token] = id
    merges = list(dict.fromkeys(merges))
    if vocabulary.splits_pieces:
        merges = select_needed(merges, ids)
    pieces = dict.fromkeys(piece for left, right in merges for piece in (left, right, left + right))
    ids |= vocabulary.add_aliases(side, (piece for piece in pieces if piece not in ids))
    tokenizer = Tokenizer(
        models.BPE(ids, merges, unk_token=special["unk_token"], end_of_word_suffix="</w>", fuse_unk=False)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    add_whole_tokens(tokenizer, whole)
    return vocabulary.add_post_processor(tokenizer, side)


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


def read_codes(path: Path) -> list[tuple[str, str]]:
    """Read the merges of subword-nmt 0.2 or fastBPE, also as Hugging Face's merges.txt.

    Raises InputError for subword-nmt 0.1, where the end of a word is a separate letter, and BrokenFileError.
    """
    check_readable(path)
    merges = []
    version_1 = True
    for number, line in enumerate(read_lines(path), start=1):
        if number == 1 and line.startswith("#version:"):
            version_1 = line.split()[-1] == "0.1"
            continue
        parts = line.rstrip(" ").split(" ")
        if parts == [""]:
            continue
        if len(parts) == 3 and parts[2].isdigit():  # fastBPE appends the frequency of the pair
            version_1 = False
        elif len(parts) != 2:
            raise BrokenFileError(f"{path} line {number}: {line!r} is not a pair of pieces")
        merges.append((parts[0], parts[1]))
    if version_1 and any("</w>" in (left, right) for left, right in merges):
        raise InputError(f"{path} is from subword-nmt 0.1, whose segmentation a tokenizer.json cannot represent")
    if not merges:  # every word would be split into letters
        raise BrokenFileError(f"{path} has no merges; copy it again")
    return merges


# ---- SentencePiece ------------------------------------------------------------------------------------------------


@dataclass
class SentencePieceModel:
    """A SentencePiece model. pieces: (piece, score, type) by id; charsmap: the compiled normalisation"""

    path: Path
    pieces: list[tuple[str, float, int]]
    kind: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    spaces_are_prefixes: bool = True

    @classmethod
    def read(cls, path: Path) -> "SentencePieceModel":
        """Read a model. Raises BrokenFileError if the file is not a SentencePiece model."""
        check_readable(path)
        model = cls(path, [])
        try:
            for number, value in parse_fields(path.read_bytes()):
                if number not in (PIECES, TRAINER_SPEC, NORMALIZER_SPEC):
                    continue
                options = dict(parse_fields(value))
                if number == PIECES:
                    (score,) = struct.unpack("<f", options.get(2, bytes(4)))
                    model.pieces.append((options.get(1, b"").decode("utf-8"), score, options.get(3, NORMAL)))
                elif number == TRAINER_SPEC:
                    model.kind = options.get(3, UNIGRAM)
                    model.byte_fallback = bool(options.get(35, 0))
                    model.spaces_are_prefixes = not options.get(24, 0)
                else:
                    model.charsmap = options.get(2, b"")
                    model.add_dummy_prefix = bool(options.get(3, 1))
                    model.remove_extra_whitespaces = bool(options.get(4, 1))
        except (ValueError, TypeError, AttributeError, OSError, struct.error) as error:
            raise BrokenFileError(f"{path} is not a complete SentencePiece model ({error}); copy it again") from None
        if not model.pieces:
            raise BrokenFileError(f"{path} is not a SentencePiece model: it has no pieces")
        return model

    @property
    def user_defined(self) -> set[str]:
        """The symbols that stay whole in any text."""
        return {piece for piece, _, kind in self.pieces if kind == USER_DEFINED}

    @property
    def marks_runs(self) -> bool:
        """Whether the normalised text has spaces around runs of characters that the model lacks, see `name_tokens`.

        They would cut symbols of a BPE model whose letters are no pieces of it.
        """
        letters = {piece for piece, *_ in self.pieces}
        return not self.byte_fallback and (self.kind == UNIGRAM or letters.issuperset("".join(self.user_defined)))

    def make_vocabulary(self) -> Vocabulary:
        """Return the vocabulary of a model that is used alone, for both languages, with its tokenizer as the target's.

        The ids are SentencePiece's. Raises InputError if the model has no `</s>`.
        """
        tokens = [piece for piece, *_ in self.pieces]
        ids = {token: id for id, token in enumerate(tokens)}
        if "</s>" not in ids:
            raise InputError(f"{self.path} has no piece </s>, which must end a sentence; train it without --eos_id=-1")
        unknown = next((id for id, (*_, kind) in enumerate(self.pieces) if kind == UNKNOWN), None)
        bos = ids.get("<s>")
        vocabulary = Vocabulary(tokens, tokens, ids["</s>"], unknown, bos=bos, pad=ids.get("<pad>"), start=bos)
        vocabulary.tokenizers["target"] = self.build_tokenizer(vocabulary, "target")
        vocabulary.references["target"] = self.make_reference(vocabulary, "target")
        return vocabulary

    def build_tokenizer(self, vocabulary: Vocabulary, side: str) -> Tokenizer:
        """Return the tokenizer of one side, with the ids that the toolkit's vocabulary gives to the pieces.

        Pieces that are not in the vocabulary become aliases. The library returns a run of characters that the model
        lacks as one unknown piece; toolkits look that piece up too, so a token of the other side is found if such a run
        is all of it. Language tokens stay whole in any text.
        """
        if self.kind not in (UNIGRAM, BPE):
            raise InputError(f"{self.path}: only SentencePiece's unigram and bpe models can become a tokenizer.json")
        if not self.spaces_are_prefixes:
            raise InputError(
                f"{self.path}: its pieces end in spaces (treat_whitespace_as_suffix), which a tokenizer.json cannot "
                "represent"
            )
        ids = vocabulary.ids(side)
        special = vocabulary.special_tokens(side)
        matchable = {
            piece: score
            for piece, score, kind in self.pieces
            if kind in (NORMAL, USER_DEFINED, BYTE) and piece not in special.values()
        }
        if vocabulary.splits_pieces:
            matchable = self.select_pieces(matchable, ids)
        whole = [token for token in vocabulary.whole_tokens(side) if token not in matchable]
        ids |= vocabulary.add_aliases(side, [piece for piece in matchable if piece not in ids])
        names = self.name_tokens(ids, {*matchable, *whole}, vocabulary)
        if self.kind == UNIGRAM:
            tokenizer = Tokenizer(self.build_unigram(names, ids, matchable, vocabulary.unknown))
        else:
            tokenizer = Tokenizer(self.build_bpe(names, ids, matchable, special.get("unk_token")))
        tokenizer.normalizer = self.build_normalizer(set("".join(matchable)))
        # SentencePiece never matches control symbols in text, but tokenizers would: split them, so that a typed `</s>`
        # is text. User-defined symbols stay whole; a unigram model's scores see to that.
        unmatched = {piece for piece, _, kind in self.pieces if kind in (CONTROL, UNKNOWN, BYTE)}
        symbols = [
            piece for piece in unmatched.union(special.values(), vocabulary.languages.values()) if len(piece) > 1
        ]
        parts = [f"{re.escape(symbol[0])}(?={re.escape(symbol[1:])})" for symbol in sorted(symbols)]
        if self.kind == BPE:
            parts += map(re.escape, sorted(self.user_defined, key=len, reverse=True))
            parts.append(" [^ ]+  ")  # see `name_tokens`
        if parts:
            tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(parts)), "isolated")
        tokenizer.decoder = self.build_decoder()
        add_whole_tokens(tokenizer, whole)
        return vocabulary.add_post_processor(tokenizer, side)

    def make_reference(self, vocabulary: Vocabulary, side: str) -> Reference:
        """Return the library's own segmentation, with the ids that the toolkit's vocabulary gives to the pieces."""

        def encode(texts: list[str]) -> list[list[int]]:
            from sentencepiece import SentencePieceProcessor

            processor: Any = SentencePieceProcessor(model_file=str(self.path))
            return [vocabulary.add_special_ids(pieces, side) for pieces in processor.encode(texts, out_type=str)]

        return Reference("SentencePiece", encode)

    def build_normalizer(self, known: set[str]) -> normalizers.Normalizer:
        """Return the model's normalisation, then `▁` for spaces and, if the model adds it, before the text.

        known: the characters of the pieces
        """
        steps: list[normalizers.Normalizer] = []
        if self.charsmap:
            try:
                steps.append(normalizers.Precompiled(self.charsmap))
            except Exception as error:  # the tokenizers library raises plain Exception
                raise BrokenFileError(f"{self.path} is not a complete SentencePiece model ({error})") from None
        if self.remove_extra_whitespaces:
            steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        steps.append(normalizers.Replace(" ", SPACE))
        if self.add_dummy_prefix:
            steps.append(normalizers.Prepend(SPACE))
        if self.marks_runs:
            other = f"[^{make_ranges(known)}]"
            steps.append(normalizers.Replace(Regex(f"(?<!{other})(?={other})"), " "))
            steps.append(normalizers.Replace(Regex(f"(?<={other})(?!{other}| )"), "  "))
        return normalizers.Sequence(steps)

    def build_decoder(self) -> decoders.Decoder:
        steps: list[decoders.Decoder] = [decoders.Replace(" ", "")]  # see `name_tokens`
        if self.byte_fallback:
            steps.append(decoders.ByteFallback())
        steps += [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        return decoders.Sequence(steps)

    def list_merges(self, matchable: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
        """Return the pairs of pieces that make a piece, the best score first, and then by their ids."""
        merges = [
            (-score, ids[piece[:cut]], ids[piece[cut:]], piece[:cut], piece[cut:])
            for piece, score in matchable.items()
            for cut in range(1, len(piece))
            if piece[:cut] in matchable and piece[cut:] in matchable
        ]
        return [(left, right) for *_, left, right in sorted(merges)]

    def select_pieces(self, matchable: dict[str, float], known: Iterable[str]) -> dict[str, float]:
        """Return the pieces that the library uses after SetVocabulary: known ones and single characters.

        It still merges the others of a BPE model, and then splits them: see `select_needed`.
        """
        needed = {*known, *self.user_defined}
        if self.kind == BPE:
            merges = self.list_merges(matchable, {piece: id for id, (piece, *_) in enumerate(self.pieces)})
            needed |= {part for pair in select_needed(merges, needed) for part in pair}
        return {piece: score for piece, score in matchable.items() if piece in needed or len(piece) == 1}

    def name_tokens(self, ids: dict[str, int], found: set[str], vocabulary: Vocabulary) -> dict[str, int]:
        """Return the names of the tokens in the tokenizer's model, with their ids.

        Tokens of the other side have a space before and two after them, as the normalised text may have around a run of
        characters that the model lacks, and around nothing else. The decoder removes these spaces.

        found: the tokens that keep their names, because texts can have them
        """
        special = {token for side in SIDES for token in vocabulary.special_tokens(side).values()}
        special.update(vocabulary.languages.values())
        own = {piece for piece, *_ in self.pieces}
        names = {}
        for piece, id in ids.items():
            if piece in found or piece in special:
                names[piece] = id
            elif piece in own:  # of a type that the library never finds in text
                names["   " + piece] = id
            else:
                names[f" {piece}  "] = id
        return names

    def build_unigram(
        self, names: dict[str, int], ids: dict[str, int], matchable: dict[str, float], unknown: int | None
    ) -> models.Unigram:
        """Return a model of the pieces with their scores. names: see `name_tokens`;  ids: by piece"""
        user_defined = self.user_defined
        best = max(matchable.values(), default=0.0)
        entries = [(f"   {id}", 0.0) for id in range(max(ids.values()) + 1)]  # ids without a piece: no text matches
        for piece, id in names.items():
            score = matchable.get(piece, 0.0)
            if piece in user_defined:  # SentencePiece prefers them to all other pieces with this score
                score = len(piece.encode()) * best - 0.1
            entries[id] = piece, score
        return models.Unigram(entries, unk_id=unknown, byte_fallback=self.byte_fallback)

    def build_bpe(
        self, names: dict[str, int], ids: dict[str, int], matchable: dict[str, float], unknown: str | None
    ) -> models.BPE:
        """Return a model of the merges that make each piece, the best score first. names: see `name_tokens`

        No merges make user-defined symbols and the other side's tokens: a part of the text that is a token becomes it.
        """
        return models.BPE(
            names,
            self.list_merges(matchable, ids),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=self.byte_fallback,
            ignore_merges=True,
        )


def make_ranges(characters: set[str]) -> str:
    """Return the inside of a regular expression's [...] that matches the characters."""
    ranges: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)
