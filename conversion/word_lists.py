"""Vocabularies of models that people wrote themselves: a token a line, special ones by their usual names."""

from pathlib import Path

from vaswani_transformer.errors import InputError

from .segmentation import set_tokenizers
from .vocabulary import Vocabulary, find_file, read_words

NAMES = {
    "unknown": ("<unk>", "[UNK]"),
    "pad": ("<pad>", "<blank>", "[PAD]"),
    "bos": ("<s>", "<bos>", "<sos>", "[BOS]", "[SOS]", "[CLS]"),
    "eos": ("</s>", "<eos>", "[EOS]", "[SEP]"),
}


def read_vocabulary(folder: Path, rows: list[int], notes: list[str]) -> tuple[Vocabulary, list[Path]]:
    """vocab.src.txt and vocab.tgt.txt, or vocab.txt; the source is between the two symbols of a sentence."""
    files = [
        find_file(folder, f"vocab.{side}.txt", f"vocab.{other}.txt", f"{side}_vocab.txt", "vocab.txt")
        for side, other in (("src", "source"), ("tgt", "trg"))
    ]
    if files[0] is None or files[1] is None:
        raise InputError(
            f"{folder}: vocab.src.txt and vocab.tgt.txt are missing beside the checkpoint: one token a line, in the "
            "order of their ids; the special ones are found by their names"
        )
    found = [file for file in files if file]
    source, target = (read_words(file) for file in found)
    if source == target:
        target = source
    ids = {}
    for kind, names in NAMES.items():
        places = [next((tokens.index(name) for name in names if name in tokens), None) for tokens in (source, target)]
        if None in places or places[0] != places[1]:
            where = f"{found[0].name} and {found[1].name}"
            raise InputError(
                f"{' or '.join(names)} has the ids {places[0]} and {places[1]} in {where}; they must agree"
            )
        ids[kind] = places[0]
    vocabulary = Vocabulary(source, target, start=ids["bos"], begins=True, ends=True, **ids)
    originals = set_tokenizers(vocabulary, folder, (None, None), notes)
    return vocabulary, [*dict.fromkeys(found), *originals]
