"""Convert SentencePiece models (.spm, .model) to a tokenizer.json, without the sentencepiece library.

https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from vaswani_transformer.errors import BrokenFileError, InputError

from .protobuf_wire import fields
from .vocabulary import SIDES, Vocabulary

PIECES, TRAINER_SPEC, NORMALIZER_SPEC = 1, 2, 3  # fields of ModelProto
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

    @classmethod
    def read(cls, path: Path) -> "SentencePieceModel":
        """Read a model. Raises BrokenFileError if the file is not a SentencePiece model."""
        model = cls(path, [])
        try:
            for number, value in fields(path.read_bytes()):
                if number not in (PIECES, TRAINER_SPEC, NORMALIZER_SPEC):
                    continue
                options = dict(fields(value))
                if number == PIECES:
                    (score,) = struct.unpack("<f", options.get(2, bytes(4)))
                    model.pieces.append((options.get(1, b"").decode("utf-8"), score, options.get(3, NORMAL)))
                elif number == TRAINER_SPEC:
                    model.kind = options.get(3, UNIGRAM)
                    model.byte_fallback = bool(options.get(35, 0))
                else:
                    model.charsmap = options.get(2, b"")
                    model.add_dummy_prefix = bool(options.get(3, 1))
                    model.remove_extra_whitespaces = bool(options.get(4, 1))
        except (ValueError, TypeError, AttributeError, OSError, struct.error) as error:
            raise BrokenFileError(f"{path} is not a complete SentencePiece model ({error}); copy it again") from None
        if not model.pieces:
            raise BrokenFileError(f"{path} is not a SentencePiece model: it has no pieces")
        return model

    def tokenizer(self, vocabulary: Vocabulary, side: str) -> Tokenizer:
        """Return the tokenizer of one side, with the ids that the toolkit's vocabulary gives to the pieces.

        Pieces that are not in the vocabulary become aliases. A token that is not in this model (a piece of the other
        side) can be decoded, but no text is encoded with it.
        """
        if self.kind not in (UNIGRAM, BPE):
            raise InputError(f"{self.path}: only SentencePiece's unigram and bpe models can become a tokenizer.json")
        ids = vocabulary.ids(side)
        special = vocabulary.special_tokens(side)
        matchable = {
            piece: score
            for piece, score, kind in self.pieces
            if kind in (NORMAL, USER_DEFINED, BYTE) and piece not in special.values()
        }
        ids |= vocabulary.add_aliases(side, [piece for piece in matchable if piece not in ids])
        if self.kind == UNIGRAM:
            tokenizer = Tokenizer(self.unigram(ids, matchable, vocabulary))
        else:
            tokenizer = Tokenizer(self.bpe(ids, matchable, special.get("unk_token")))
        tokenizer.normalizer = self.normalizer()
        # SentencePiece never matches control symbols in text, but tokenizers would: split them, so that a typed `</s>`
        # is text.
        unmatched = {piece for piece, _, kind in self.pieces if kind in (CONTROL, UNKNOWN, BYTE)}
        symbols = [piece for piece in unmatched.union(special.values()) if len(piece) > 1]
        if symbols:
            first_letters = "|".join(f"{re.escape(s[0])}(?={re.escape(s[1:])})" for s in sorted(symbols))
            tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(first_letters), "isolated")
        tokenizer.decoder = self.decoder()
        return vocabulary.add_post_processor(tokenizer, side)

    def normalizer(self) -> normalizers.Normalizer:
        """Return the model's normalisation, then `▁` for spaces and, if the model adds it, before the text."""
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
        return normalizers.Sequence(steps)

    def decoder(self) -> decoders.Decoder:
        steps: list[decoders.Decoder] = []
        if self.kind == UNIGRAM:
            steps.append(decoders.Replace(" ", ""))  # see `unigram`
        if self.byte_fallback:
            steps.append(decoders.ByteFallback())
        steps += [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        return decoders.Sequence(steps)

    def unigram(self, ids: dict[str, int], matchable: dict[str, float], vocabulary: Vocabulary) -> models.Unigram:
        """Return a model of the pieces with their scores; other tokens are entries that no text matches."""
        user_defined = {piece for piece, _, kind in self.pieces if kind == USER_DEFINED}
        best = max(matchable.values(), default=0.0)
        entries = [(f" {id}", 0.0) for id in range(max(ids.values()) + 1)]  # ids without a piece
        special = {token for side in SIDES for token in vocabulary.special_tokens(side).values()}
        for piece, id in ids.items():
            if piece in user_defined:  # SentencePiece prefers them to all other pieces with this score
                entries[id] = piece, len(piece.encode()) * best - 0.1
            elif piece in matchable:
                entries[id] = piece, matchable[piece]
            elif piece in special:
                entries[id] = piece, 0.0
            else:
                entries[id] = " " + piece, 0.0  # normalised text has no spaces; the decoder removes it
        return models.Unigram(entries, unk_id=vocabulary.unknown, byte_fallback=self.byte_fallback)

    def bpe(self, ids: dict[str, int], matchable: dict[str, float], unknown: str | None) -> models.BPE:
        """Return a model of the merges that make each piece, the best score first."""
        merges = [
            (-score, ids[piece[:cut]], ids[piece[cut:]], piece[:cut], piece[cut:])
            for piece, score in matchable.items()
            for cut in range(1, len(piece))
            if piece[:cut] in matchable and piece[cut:] in matchable
        ]
        return models.BPE(
            ids,
            [(left, right) for *_, left, right in sorted(merges)],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=self.byte_fallback,
        )
