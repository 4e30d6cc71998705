"""Which segmentation a toolkit's vocabulary was made with, from the files beside the checkpoint."""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.lines import read_lines

from .sentencepiece import SPACE, SentencePieceModel
from .vocabulary import SIDES, Vocabulary, common_ids, find_file, read_codes, required_file

# The usual names of special tokens in a word list.
SYMBOLS = {
    "unknown": ("<unk>", "[UNK]"),
    "pad": ("<pad>", "<blank>", "[PAD]"),
    "bos": ("<s>", "<bos>", "<sos>", "[BOS]", "[SOS]", "[CLS]"),
    "eos": ("</s>", "<eos>", "[EOS]", "[SEP]"),
}


def with_tokenizers(
    vocabulary: Vocabulary, folder: Path, languages: Sequence[str | None] = ("src", "tgt")
) -> Vocabulary:
    """Return the vocabulary with the tokenizers of both sides. languages: the codes in names of files"""
    for side, language, default in zip(SIDES, languages, ("src", "tgt"), strict=True):
        vocabulary.tokenizers[side] = find_tokenizer(vocabulary, side, folder, language or default)
    vocabulary.files = list(dict.fromkeys(vocabulary.files))
    return vocabulary


def find_tokenizer(vocabulary: Vocabulary, side: str, folder: Path, language: str) -> Tokenizer:
    """Return the tokenizer of one side: BPE codes, a SentencePiece model, or words."""
    tokens = vocabulary.tokens(side)
    if any(token.endswith("@@") for token in tokens):
        codes = find_file(folder, f"bpecodes.{language}", f"*codes*.{language}", "bpecodes", "*codes*", "code", "*.bpe")
        if codes:
            vocabulary.files.append(codes)
            return vocabulary.bpe(side, read_codes(codes))
        vocabulary.notes.append(
            f"No BPE codes were found beside the checkpoint: the {side} tokenizer takes segmented text (`a@@ b`)."
        )
    elif any(token.startswith(SPACE) for token in tokens):
        model = find_sentencepiece(folder, language, tokens)
        if model:
            vocabulary.files.append(model.path)
            return model.tokenizer(vocabulary, side)
        vocabulary.notes.append(
            f"No SentencePiece model was found beside the checkpoint: the {side} tokenizer takes segmented text."
        )
    return vocabulary.words(side)


def find_sentencepiece(folder: Path, language: str, tokens: list[str]) -> SentencePieceModel | None:
    """Return the folder's SentencePiece model that has the most pieces of this vocabulary.

    Models with the language in their names (spm.en.model) are preferred.
    """
    models, faults = [], []
    for path in sorted([*folder.glob("*.model"), *folder.glob("*.spm")]):
        try:
            models.append(SentencePieceModel.read(path))
        except BrokenFileError as error:  # other programs' models have the same suffix
            faults.append(error)
    if faults and not models:
        raise faults[0]
    # The code must be a separate word of the name: "en" is in "sentencepiece" as well.
    word = re.compile(rf"(^|[._-]){re.escape(language)}([._-]|$)")
    named = [model for model in models if word.search(model.path.name)]
    known = set(tokens)
    return max(named or models, key=lambda model: sum(piece in known for piece, *_ in model.pieces), default=None)


def read_word_lists(folder: Path) -> Vocabulary:
    """vocab.src.txt and vocab.tgt.txt, or vocab.txt; the source has both symbols of a sentence around it."""
    remedy = "; write one token per line in the order of the ids, special tokens under their usual names"
    files = [
        required_file(
            folder, f"vocab.{side}.txt", f"vocab.{other}.txt", f"{side}_vocab.txt", "vocab.txt", remedy=remedy
        )
        for side, other in (("src", "source"), ("tgt", "trg"))
    ]
    source, target = (list(read_lines(file)) for file in files)
    ids = common_ids(source, target, SYMBOLS, " and ".join(file.name for file in files))
    return with_tokenizers(Vocabulary(source, target, start=ids["bos"], begins=True, files=files, **ids), folder)
