"""A converted model -> an ordinary model folder, which appears under its name only when it is whole."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers.utils import logging

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.atomic import atomic_folder
from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import check_new_folder
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from .converted import Converted
from .origin import ORIGINALS, RECORD

NOTES = "CONVERSION.md"


@contextmanager
def folder_written_whole(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name at the end, and is gone if something fails."""
    out = check_new_folder(out)
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.absolute().parent}")
    with atomic_folder(out) as unfinished:
        yield unfinished


def save(converted: Converted, model: VaswaniTransformerForConditionalGeneration, folder: Path) -> None:
    """config.json, generation_config.json, model.safetensors, the tokenizer, notes, and the files for the way back."""
    bars_wanted = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        if bars_wanted:
            logging.enable_progress_bar()
    vocabulary = converted.vocabulary
    if vocabulary.source_tokenizer is not None:
        vocabulary.loadable("source", vocabulary.source_tokenizer).save_pretrained(folder)
    target = vocabulary.target_tokenizer
    if target is not None and (
        vocabulary.source_tokenizer is None or target.to_str() != vocabulary.source_tokenizer.to_str()
    ):
        vocabulary.loadable("target", target).save_pretrained(folder / TARGET_TOKENIZER)
    (folder / ORIGINALS).mkdir()
    for file in converted.originals:
        shutil.copyfile(file, folder / ORIGINALS / file.name)
    record = {"toolkit": converted.toolkit, "file": converted.path.name, "options": converted.options}
    (folder / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / NOTES).write_text(notes_of(converted), encoding="utf-8")


def notes_of(converted: Converted) -> str:
    """What a user of the folder has to know, as Markdown."""
    vocabulary = converted.vocabulary
    lines = [f"# Converted from {converted.toolkit} (`{converted.path.name}`)", ""]
    lines += [f"* {note}" for note in converted.notes]
    if vocabulary.start is None:
        lines.append(
            f"* {converted.toolkit} starts the decoder with a zero vector. Here that is token {vocabulary.start_id}, "
            "whose embedding is zero and which is never produced."
        )
    if vocabulary.pad is None:
        lines.append(f"* {converted.toolkit} has no padding symbol. Here that is token {vocabulary.pad_id}.")
    aliases = {"source": vocabulary.source_aliases, "target": vocabulary.target_aliases}
    for side, pieces in aliases.items():
        if pieces:
            first = vocabulary.first_alias(side)
            lines.append(
                f"* The {side} segmentation can make {len(pieces)} pieces that the vocabulary does not have; they are "
                f"`<unk>` to {converted.toolkit}. Here they are the tokens from {first} on, with `<unk>`'s embedding."
            )
    if vocabulary.source_tokenizer is None:
        lines.append("* There is no `tokenizer.json`: nothing beside the checkpoint says how text becomes ids.")
    elif vocabulary.target_tokenizer is not None and not vocabulary.is_joint:
        lines.append(
            f"* Source and target have different vocabularies: `tokenizer.json` is the source's, "
            f"`{TARGET_TOKENIZER}/` the target's, for decoding and for labels."
        )
    return "\n".join(lines) + "\n"
