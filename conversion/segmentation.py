"""Make tokenizers from the files next to a checkpoint: BPE codes, a SentencePiece model, or only the vocabulary."""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.files import check_readable
from vaswani_transformer.lines import read_lines

from .checkpoint_files import find_file
from .sentencepiece_model import NORMAL, SPACE, SentencePieceModel
from .vocabulary import SIDES, Vocabulary, add_whole_tokens, select_needed

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
        of_side = f"bpecodes.{language}", f"*codes*.{language}", f"{language}.bpe"
        if codes := find_file(folder, *of_side, "bpecodes", "*codes*", "code", "*.code", "*.bpe"):
            vocabulary.files.append(codes)
            merges = read_codes(codes)
            pieces = {p.removesuffix("</w>") if p.endswith("</w>") else f"{p}@@" for p in map("".join, merges)}
            check_pieces(codes, pieces, vocabulary, side)
            return build_bpe_tokenizer(vocabulary, side, merges)
        vocabulary.notes.append(
            f"No BPE codes were found next to the checkpoint: the {side} tokenizer expects segmented text (`a@@ b`)."
        )
    elif any(token.startswith(SPACE) for token in tokens):
        model, known = find_sentencepiece(folder, language, tokens), set(tokens)
        if model:
            vocabulary.files.append(model.path)
            check_pieces(model.path, {piece for piece, *_ in model.pieces}, vocabulary, side)
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


def check_pieces(path: Path, pieces: set[str], vocabulary: Vocabulary, side: str) -> None:
    """Raise InputError if a file and the vocabulary of one side have little in common: it belongs to another model.

    A vocabulary for both languages has the pieces of two files, and codes for both make those of two vocabularies.

    pieces: what the file makes of several letters, as the vocabulary writes them
    """
    tokens = set(vocabulary.tokens(side)).difference(vocabulary.special_tokens(side).values())
    tokens = [token for token in tokens if len(token.removesuffix("@@").removeprefix(SPACE)) > 1]
    made = sum(token in pieces for token in tokens)
    if made < min(len(tokens), len(pieces)) / 4:
        raise InputError(
            f"{path} makes only {made:,} of the {len(tokens):,} longer tokens of the {side} vocabulary; replace it by "
            "the file that segmented the training texts"
        )


def find_sentencepiece(folder: Path, language: str, tokens: list[str]) -> SentencePieceModel | None:
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
