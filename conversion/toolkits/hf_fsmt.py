"""FSMT in transformers: fairseq's WMT19 models. Positions as in fairseq, from 2; the file contains the sinusoids.

transformers 5.18 trains that table with the other weights. A table that no longer matches the formula becomes a learned
one.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from transformers import FSMTForConditionalGeneration

from ..description import OUTPUT, SOURCE, TARGET, Description, embedding_rows
from ..layout import POSITIONS, TENSOR2TENSOR
from ..reasons import Reasons
from ..rename import Rule, first_present, rules_of
from ..segmentation import bpe_tokenizer, read_codes
from ..vocabulary import SIDES, Vocabulary, numbered_tokens, read_token_ids
from . import hugging_face
from .fairseq import OFFSET

FILES = ["config.json"]
EMBEDDINGS = {
    "model.encoder.embed_tokens.weight": SOURCE,
    "model.decoder.embed_tokens.weight": TARGET,
    "model.decoder.output_projection.weight": OUTPUT,
}
TABLES = rules_of({"model.{encoder,decoder}.embed_positions.weight": POSITIONS})
MOSES_NOTE = "FSMTTokenizer applies Moses' tokenizer; tokenizer.json splits at spaces: tokenize with sacremoses first."
TRAINED_NOTE = "The saved sinusoids were trained; here they are a learned table."


def recognise(path: Path) -> bool:
    return hugging_face.model_type_of(path) == "fsmt"


def read(path: Path, reasons: Reasons) -> Description:
    """Describe a folder with an FSMT model."""
    # Positions are counted from the id of <pad>.
    options, tensors, config = hugging_face.read_model(path, reasons, "relu", pad_token_id=(OFFSET - 1,))
    config["position_offset"] = OFFSET

    # Tied matrices are saved under one or several of their names.
    tied = list(EMBEDDINGS) if options.get("tie_word_embeddings", False) else []
    rules = [Rule(first_present(tensors, theirs, *tied), ours) for theirs, ours in EMBEDDINGS.items()]
    rules += hugging_face.layers(config)
    notes = [hugging_face.PENALTY_NOTE, MOSES_NOTE]
    tables = {rule.theirs: tensors[rule.theirs].clone() for rule in TABLES if rule.theirs in tensors}
    for table in tables.values():
        table[OFFSET - 1] = TENSOR2TENSOR.table(OFFSET, config["d_model"])[-1]  # row 1, the padding's, is zeros
    if all(TENSOR2TENSOR.match(table, config["d_model"]) for table in tables.values()):
        for name in tables:
            del tensors[name]
    else:
        notes.append(TRAINED_NOTE)
        rules += TABLES
    vocabulary = read_vocabulary(path.parent, options, embedding_rows(tensors, rules))
    unscaled = () if options.get("scale_embedding", True) else (SOURCE, TARGET)
    source_lang, target_lang = options.get("langs") or (None, None)
    return Description(
        tensors,
        rules,
        config,
        vocabulary,
        TENSOR2TENSOR,
        unscaled=unscaled,
        notes=notes,
        kept={"source_lang": source_lang, "target_lang": target_lang},
        reference=partial(hugging_face.reference, FSMTForConditionalGeneration),
    )


def read_vocabulary(folder: Path, options: Mapping[str, Any], rows: list[int]) -> Vocabulary:
    """Read vocab-src.json, vocab-tgt.json and merges.txt, in which `</w>` ends the last piece of a word."""
    ids = {"bos": options.get("bos_token_id", 0), "pad": 1, "eos": options.get("eos_token_id", 2), "unknown": 3}
    ids["start"] = options.get("decoder_start_token_id", ids["eos"])
    files, codes = [folder / "vocab-src.json", folder / "vocab-tgt.json"], folder / "merges.txt"
    missing = [file.name for file in (*files, codes) if not file.exists()]
    if missing:
        why = f"the checkpoint comes without {' and '.join(missing)}. Ids are the checkpoint's"
        return numbered_tokens([], rows, why, **ids)
    source, target = (read_token_ids(file) for file in files)
    if "<unk>" in source:
        ids["unknown"] = source.index("<unk>")
    vocabulary = Vocabulary(source, target, files=[*files, codes], **ids)
    merges = read_codes(codes)
    for side in SIDES:
        vocabulary.tokenizers[side] = bpe_tokenizer(vocabulary, side, merges, separator=None)
    return vocabulary
