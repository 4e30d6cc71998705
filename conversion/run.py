"""The two directions, from the path to the written folder and what is printed about it."""

from pathlib import Path
from types import ModuleType

import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError, one_line
from vaswani_transformer.loading import load_model

from .check import check as check_model
from .converted import Converted
from .folder import folder_written_whole, save
from .formats import WRITERS, find_checkpoint
from .origin import Origin
from .refuse import Reasons

# What a model of the paper leaves at its default is not printed.
SWITCHES = (
    "position_embedding_type position_base position_offset max_position_embeddings norm_position encoder_final_norm "
    "decoder_final_norm layer_norm_eps attention_bias output_bias activation_function d_k d_v "
    "share_encoder_decoder_embeddings tie_word_embeddings decoder_vocab_size"
).split()


def convert_in(path: Path, out: Path, wanted: str | None, check: tuple[Path, Path] | None = None) -> None:
    """A checkpoint of another toolkit -> a model folder at `out`, which must be new."""
    toolkit, file = find_checkpoint(path, wanted)
    reasons = Reasons(file)
    with folder_written_whole(out) as folder, torch.inference_mode():
        converted, model = read(toolkit, file, reasons)
        save(converted, model, folder)
        proof = check_model(converted, folder, model, check)
    config, default = model.config, type(model.config)()
    print(f"{toolkit.NAME}: {model.num_parameters():,} parameters")
    switches = {name: getattr(config, name) for name in SWITCHES}
    different = {name: value for name, value in switches.items() if value != getattr(default, name)}
    if different.get("decoder_vocab_size") == config.vocab_size:
        del different["decoder_vocab_size"]
    print("switches: " + (", ".join(f"{name}={value}" for name, value in different.items()) or "none, as the paper"))
    for line in [*("note: " + note for note in converted.notes), *proof]:
        print(line)


def read(
    toolkit: ModuleType, file: Path, reasons: Reasons
) -> tuple[Converted, VaswaniTransformerForConditionalGeneration]:
    """The checkpoint as a model. Raises InputError or BrokenFileError with all reasons why it cannot be one."""
    try:
        converted = toolkit.read(file, reasons)
        converted.vocabulary.check(file)
        return converted, converted.finish(reasons)
    except (InputError, BrokenFileError, UnavailableError):
        raise
    except Exception as error:
        # A file can hold anything anywhere: what goes wrong in reading it is the file's, and follows from what has
        # been found out about it before. --debug shows where.
        reasons.refuse_if_any()
        found = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise BrokenFileError(f"{file} and the files beside it are not {toolkit.NAME}'s ({found})") from error


def convert_out(path: Path, out: Path, wanted: str) -> None:
    """A model folder of ours -> a checkpoint of another toolkit in the folder `out`, which must be new."""
    if wanted not in WRITERS:
        raise InputError(f"--to {wanted}: not a format that can be written; known are {', '.join(WRITERS)}")
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; --to takes a model folder of this project")
    model = load_model(path, device="cpu")
    reasons = Reasons(f"{path} (to {wanted})")
    with folder_written_whole(out) as folder, torch.inference_mode():
        WRITERS[wanted].write_back(model, Origin(path), folder, reasons)
    print(f"{wanted}: {model.num_parameters():,} parameters")
