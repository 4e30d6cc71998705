"""Run a conversion in either direction: convert, write the folder, print a summary."""

import shutil
from pathlib import Path
from typing import Any

import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError, one_line, out_of_memory

from .build import build_model
from .check import check
from .description import Description
from .folder import ModelFolder
from .options import Options
from .reasons import Reasons
from .recognise import find_checkpoint
from .save import new_folder, save
from .toolkits import WRITERS, load_toolkit

# Printed if they differ from the paper's model.
SETTINGS = (
    "position_embedding_type position_base position_offset max_position_embeddings norm_position encoder_final_norm "
    "decoder_final_norm layer_norm_eps attention_bias output_bias activation_function d_k d_v "
    "share_encoder_decoder_embeddings tie_word_embeddings"
).split()


def import_checkpoint(path: Path, out: Path, toolkit: str | None = None, logits: Path | None = None) -> None:
    """Convert a checkpoint of another toolkit to a model folder at `out`, which must be new.

    toolkit: the name of the checkpoint's toolkit, None to recognise it
    logits: see `check.check`
    """
    toolkit, file = find_checkpoint(path, toolkit)
    with new_folder(out) as folder, torch.inference_mode():
        description, model = read(toolkit, file)
        save(description, model, folder)
        comparison = check(description, model, logits)
    print(f"{toolkit}: {model.num_parameters():,} parameters")
    print(f"settings that differ from the paper's: {differences_from_paper(model.config)}")
    for note in description.all_notes():
        print(f"note: {note}")
    print(comparison)


def read(toolkit: str, file: Path) -> tuple[Description, Model]:
    """Read a checkpoint as a model. Raises InputError or BrokenFileError with all reasons against the conversion."""
    reasons = Reasons(file)
    try:
        description = load_toolkit(toolkit).read(file, reasons)
        description.toolkit, description.path = toolkit, file
        description.vocabulary.check_special_ids(file)
        return description, build_model(description, reasons)
    except (InputError, BrokenFileError, UnavailableError):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        # Any other exception means a damaged or foreign file. Earlier reasons usually explain it, so report them first.
        # --debug shows where it happened.
        reasons.raise_if_any()
        message = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise BrokenFileError(f"{file} or a file next to it is damaged or not from {toolkit} ({message})") from error


def differences_from_paper(config: Any) -> str:
    """Return the fields of a configuration that differ from the paper's model, for the summary."""
    default = type(config)()
    different = {name: getattr(config, name) for name in SETTINGS if getattr(config, name) != getattr(default, name)}
    return ", ".join(f"{name}={value}" for name, value in different.items()) or "none"


def export_checkpoint(path: Path, out: Path, toolkit: str) -> None:
    """Convert a model folder to a checkpoint of another toolkit in the folder `out`, which must be new."""
    if toolkit not in WRITERS:
        raise InputError(f"--to {toolkit}: not a format that can be written; known formats: {', '.join(WRITERS)}")
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; --to takes a model folder of this project")
    module, folder = load_toolkit(toolkit), ModelFolder(path)
    reasons = Reasons(f"{path} (to {toolkit})")
    with new_folder(out) as new, torch.inference_mode():
        requirements = module.requirements(folder.config) | {"d_k": (None,), "d_v": (None,)}  # d_model / heads
        Options(folder.config.to_dict(), reasons, "{} {}").require(requirements)
        module.write_checkpoint(folder, new, reasons)
        reasons.raise_if_any()  # the folder is deleted
        if folder.toolkit == toolkit and folder.originals.is_dir():  # the vocabularies, byte for byte
            for file in sorted(folder.originals.iterdir()):
                shutil.copyfile(file, new / file.name)
    print(f"{toolkit}: {folder.model.num_parameters():,} parameters")
