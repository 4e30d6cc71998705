"""The vocabularies of models with custom code: one token per line, special tokens under their usual names."""

from pathlib import Path

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import read_lines

from .segmentation import set_tokenizers
from .vocabulary import Vocabulary, common_ids, find_file

SYMBOLS = {
    "unknown": ("<unk>", "[UNK]"),
    "pad": ("<pad>", "<blank>", "[PAD]"),
    "bos": ("<s>", "<bos>", "<sos>", "[BOS]", "[SOS]", "[CLS]"),
    "eos": ("</s>", "<eos>", "[EOS]", "[SEP]"),
}


def read_vocabulary(folder: Path) -> Vocabulary:
    """vocab.src.txt and vocab.tgt.txt, or vocab.txt; the source has both symbols of a sentence around it."""
    files: list[Path] = []
    for side, other in (("src", "source"), ("tgt", "trg")):
        file = find_file(folder, f"vocab.{side}.txt", f"vocab.{other}.txt", f"{side}_vocab.txt", "vocab.txt")
        if file is None:
            raise InputError(
                f"{folder}: vocab.{side}.txt is missing beside the checkpoint; write one token per line in the order "
                "of the ids, special tokens under their usual names"
            )
        files.append(file)
    source, target = (list(read_lines(file)) for file in files)
    ids = common_ids(source, target, SYMBOLS, " and ".join(file.name for file in files))
    vocabulary = Vocabulary(source, target, start=ids["bos"], begins=True, files=files, **ids)
    set_tokenizers(vocabulary, folder)
    return vocabulary
