"""Read a SentencePiece model (.spm, .model) without the sentencepiece library, and make a tokenizer of it.

https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.files import check_readable

from .protobuf import parse_fields
from .vocabulary import SIDES, ReferenceTokenizer, Vocabulary, add_whole_tokens, select_needed

PIECES, TRAINER_SPEC, NORMALIZER_SPEC, DENORMALIZER_SPEC = 1, 2, 3, 5  # fields of ModelProto
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of a piece
UNIGRAM, BPE = 1, 2  # kinds of models
SPACE = "▁"


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
    changes_decoded_text: bool = False  # by rules of its own, see `denormalization_rule_tsv`

    @classmethod
    def read(cls, path: Path) -> "SentencePieceModel":
        """Read a model. Raises BrokenFileError if the file is not a SentencePiece model."""
        check_readable(path)
        model = cls(path, [])
        try:
            for number, value in parse_fields(path.read_bytes()):
                if number not in (PIECES, TRAINER_SPEC, NORMALIZER_SPEC, DENORMALIZER_SPEC):
                    continue
                options = dict(parse_fields(value))
                if number == PIECES:
                    (score,) = struct.unpack("<f", options.get(2, bytes(4)))
                    model.pieces.append((options.get(1, b"").decode("utf-8"), score, options.get(3, NORMAL)))
                elif number == TRAINER_SPEC:
                    model.kind = options.get(3, UNIGRAM)
                    model.byte_fallback = bool(options.get(35, 0))
                    model.spaces_are_prefixes = not options.get(24, 0)
                elif number == DENORMALIZER_SPEC:
                    model.changes_decoded_text = bool(options.get(2))
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
        for is_unsupported, what in (
            (self.kind not in (UNIGRAM, BPE), "it is no unigram or bpe model"),
            (not self.spaces_are_prefixes, "its pieces end in spaces (treat_whitespace_as_suffix)"),
            (self.changes_decoded_text, "it changes decoded text by rules (denormalization_rule_tsv)"),
        ):
            if is_unsupported:
                raise InputError(f"{self.path}: {what}, which a tokenizer.json cannot represent")
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

    def make_reference(self, vocabulary: Vocabulary, side: str) -> ReferenceTokenizer:
        """Return the library's own segmentation, with the ids that the toolkit's vocabulary gives to the pieces."""

        def encode(texts: list[str]) -> list[list[int]]:
            from sentencepiece import SentencePieceProcessor

            processor: Any = SentencePieceProcessor(model_file=str(self.path))
            return [vocabulary.add_special_ids(pieces, side) for pieces in processor.encode(texts, out_type=str)]

        return ReferenceTokenizer("SentencePiece", encode)

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
