"""Write the model folder of a converted checkpoint."""

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformers.utils import logging

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.atomic import atomic_folder, check_new_folder
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import CONVERSION_NOTES
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER

from .description import Description
from .folder import ORIGINALS, RECORD, write_toolkit_json


def new_folder(out: Path) -> AbstractContextManager[Path]:
    """Return a context manager: a temporary folder that is renamed to `out` on success and deleted on failure."""
    out = check_new_folder(out)
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out}: the folder {out.absolute().parent} does not exist")
    return atomic_folder(out)


def save(description: Description, model: Model, folder: Path) -> None:
    """Write the model, tokenizers and notes, and what converting back needs: RECORD and the toolkit's files."""
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    vocabulary = description.vocabulary
    texts = {side: tokenizer.to_str() for side, tokenizer in vocabulary.tokenizers.items()}
    if "source" in texts:
        vocabulary.fast_tokenizer("source").save_pretrained(folder)
    if "target" in texts and texts["target"] != texts.get("source"):
        vocabulary.fast_tokenizer("target").save_pretrained(folder / TARGET_TOKENIZER)
    (folder / ORIGINALS).mkdir()
    for file in [*vocabulary.files, *description.files]:
        shutil.copyfile(file, folder / ORIGINALS / file.name)
    write_toolkit_json(record_of(description), folder / RECORD)
    (folder / CONVERSION_NOTES).write_text(as_markdown(description), encoding="utf-8")


def record_of(description: Description) -> dict[str, Any]:
    """Return the content of conversion.json, see RECORD."""
    dtypes = {description.tensors[rule.theirs].dtype for rule in description.rules}
    dtype = str(dtypes.pop()).removeprefix("torch.") if len(dtypes) == 1 and not description.unscaled else "float32"
    vocabulary = description.vocabulary
    sizes = {"source_tokens": len(vocabulary.source), "target_tokens": len(vocabulary.target)}
    kept = description.kept | sizes | {"dtype": dtype}
    return {"toolkit": description.toolkit, "file": description.path.name, "options": kept}


def as_markdown(description: Description) -> str:
    """Return the content of CONVERSION.md."""
    toolkit, vocabulary = description.toolkit, description.vocabulary
    notes = description.all_notes()
    if vocabulary.start is None:
        notes.append(
            f"{toolkit} starts the decoder with a zero vector. Here it is token {vocabulary.start_id}, whose "
            "embedding is zero and which is never produced."
        )
    if vocabulary.pad is None:
        notes.append(f"{toolkit} has no padding token. Here it is token {vocabulary.pad_id}.")
    for side, pieces in vocabulary.aliases.items():
        if pieces:
            notes.append(
                f"The {side} tokenizer can make {len(pieces)} pieces that are not in the vocabulary, which {toolkit} "
                f"maps to `<unk>`. Here they are the tokens from {vocabulary.first_alias(side)} on, with `<unk>`'s "
                "embedding."
            )
    if "source" in vocabulary.tokenizers and "target" in vocabulary.tokenizers and not vocabulary.is_joint:
        notes.append(
            "Source and target have different vocabularies: `tokenizer.json` is the source's, "
            f"`{TARGET_TOKENIZER}/` the target's, for decoding and for labels."
        )
    return "\n".join([f"# Converted from {toolkit} (`{description.path.name}`)", "", *(f"* {n}" for n in notes)]) + "\n"
