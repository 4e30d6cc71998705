"""Which segmentation a toolkit's vocabulary was made with, from the files beside the checkpoint."""

from pathlib import Path

from tokenizers import Tokenizer

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
        model = find_file(folder, f"*{language}*.model", f"*{language}*.spm", "*.model", "*.spm")
        if model:
            originals.append(model)
            return SentencePieceModel.read(model).tokenizer(vocabulary, side)
        notes.append(f"No SentencePiece model beside the checkpoint: the {side} tokenizer takes segmented text.")
    return vocabulary.words(side)


def set_tokenizers(
    vocabulary: Vocabulary, folder: Path, languages: tuple[str | None, str | None], notes: list[str]
) -> list[Path]:
    """Give the vocabulary its tokenizers; returns the files that they were made from."""
    originals: list[Path] = []
    vocabulary.source_tokenizer = find_tokenizer(vocabulary, "source", folder, languages[0], notes, originals)
    vocabulary.target_tokenizer = find_tokenizer(vocabulary, "target", folder, languages[1], notes, originals)
    return list(dict.fromkeys(originals))
