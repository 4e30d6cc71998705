"""Which segmentation a toolkit's vocabulary was made with, from the files beside the checkpoint."""

import re
from pathlib import Path

from tokenizers import Tokenizer

from vaswani_transformer.errors import BrokenFileError

from .sentencepiece import SPACE, SentencePieceModel
from .vocabulary import Vocabulary, find_file, read_codes


def find_tokenizer(
    vocabulary: Vocabulary, side: str, folder: Path, language: str | None, notes: list[str], originals: list[Path]
) -> Tokenizer:
    """Codes of subword-nmt or fastBPE, a SentencePiece model, or words; what is used is added to `originals`."""
    tokens = vocabulary.source if side == "source" else vocabulary.target
    language = language or ("src" if side == "source" else "tgt")
    if any(token.endswith("@@") for token in tokens):
        codes = find_file(folder, f"bpecodes.{language}", f"*codes*.{language}", "bpecodes", "*codes*", "code", "*.bpe")
        if codes:
            originals.append(codes)
            return vocabulary.bpe(side, read_codes(codes))
        notes.append(f"No BPE codes beside the checkpoint: the {side} tokenizer takes segmented text (`a@@ b`).")
    elif any(token.startswith(SPACE) for token in tokens):
        model = find_sentencepiece(folder, language, tokens)
        if model:
            originals.append(model.path)
            return model.tokenizer(vocabulary, side)
        notes.append(f"No SentencePiece model beside the checkpoint: the {side} tokenizer takes segmented text.")
    return vocabulary.words(side)


def find_sentencepiece(folder: Path, language: str, tokens: list[str]) -> SentencePieceModel | None:
    """Of the folder's SentencePiece models those with the language in their names (spm.en.model), if there are any; of
    these the one with the most pieces of this vocabulary."""
    models, faults = [], []
    for path in sorted([*folder.glob("*.model"), *folder.glob("*.spm")]):
        try:
            models.append(SentencePieceModel.read(path))
        except BrokenFileError as error:  # Models of other things have the same suffix.
            faults.append(error)
    if faults and not models:
        raise faults[0]
    # As a word of its own: "en" is in "sentencepiece" as well.
    word = re.compile(rf"(^|[._-]){re.escape(language)}([._-]|$)")
    named = [model for model in models if word.search(model.path.name)]
    known = set(tokens)
    return max(named or models, key=lambda model: sum(piece in known for piece, *_ in model.pieces), default=None)


def set_tokenizers(
    vocabulary: Vocabulary, folder: Path, languages: tuple[str | None, str | None], notes: list[str]
) -> list[Path]:
    """Give the vocabulary its tokenizers; returns the files that they were made from."""
    originals: list[Path] = []
    vocabulary.source_tokenizer = find_tokenizer(vocabulary, "source", folder, languages[0], notes, originals)
    vocabulary.target_tokenizer = find_tokenizer(vocabulary, "target", folder, languages[1], notes, originals)
    return list(dict.fromkeys(originals))
