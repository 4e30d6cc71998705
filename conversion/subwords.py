"""Convert tensor2tensor's subword vocabulary (SubwordTextEncoder) to a tokenizer.json."""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.lines import read_lines

from .vocabulary import Vocabulary

WORD, OTHER = r"[\p{L}\p{N}]", r"[^\p{L}\p{N}\x{E000}]"
BOUNDARY, BACKSLASH = "\ue000", "\ue001"  # private use characters, which texts do not contain

# Each character outside the alphabet needs a rule, so there are rules only for European scripts and punctuation.
WRITTEN_AS_NUMBERS = (range(0x00, 0x250), range(0x370, 0x530), range(0x2010, 0x2060), range(0x20A0, 0x20C0))


def read_subwords(path: Path) -> list[str]:
    """Read the pieces by id. Each line is a piece in quotes."""
    pieces = []
    for number, line in enumerate(read_lines(path), start=1):
        line = line.strip()
        if len(line) < 2 or line[0] != line[-1] or line[0] not in "'\"":
            raise BrokenFileError(f"{path} line {number}: {line!r} is not a piece in quotes")
        pieces.append(line[1:-1])
    return pieces


def subword_tokenizer(vocabulary: Vocabulary, side: str) -> Tokenizer:
    """Return the tokenizer of one side, with the ids of the vocabulary's file.

    Text is split between alphanumeric and other characters, and a single space between two words is dropped. Every
    token gets a final `_` and is split, from the left, into the longest pieces of the vocabulary. Characters outside
    the alphabet are written as `\\number;`.
    """
    pieces = vocabulary.tokens(side)
    alphabet = {letter for piece in pieces for letter in piece}
    numbers = [
        (chr(code), rf"\{code};")
        for block in WRITTEN_AS_NUMBERS
        for code in block
        if chr(code) not in alphabet and (chr(code).isprintable() or code < 0x20)
    ]
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary.ids(side),
            unk_token=vocabulary.special_tokens(side)["pad_token"],
            continuing_subword_prefix="",
            max_input_chars_per_word=1_000_000,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"(?<={WORD}) (?={WORD})"), BOUNDARY),
            normalizers.Replace(Regex(f"(?<={WORD})(?={OTHER})|(?<={OTHER})(?={WORD})"), BOUNDARY),
            normalizers.Replace("\\", "\\\\"),
            normalizers.Replace("_", "\\u"),
            *(normalizers.Replace(letter, number) for letter, number in numbers),
            normalizers.Replace(BOUNDARY, "_" + BOUNDARY),
            normalizers.Replace(Regex(r"(?<=[\s\S])\z"), "_"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(BOUNDARY, "removed")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Fuse(),
            decoders.Replace("\\\\", BACKSLASH),
            *(decoders.Replace(number, letter) for letter, number in numbers),
            decoders.Replace(Regex(rf"(?<={WORD})(?<!\\u)_(?={WORD})"), " "),  # a literal `_` is not part of a word
            decoders.Replace("_", ""),
            decoders.Replace("\\u", "_"),
            decoders.Replace(BACKSLASH, "\\"),
        ]
    )
    return vocabulary.add_post_processor(tokenizer, side)
