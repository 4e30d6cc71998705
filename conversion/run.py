"""Both directions of a conversion, from the path to the written folder and the printed summary."""

import shutil
from pathlib import Path
from types import ModuleType

import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError, one_line
from vaswani_transformer.loading import load_model

from .build import build_model
from .check import check as check_model
from .description import Description
from .folder import new_model_folder, save
from .formats import WRITERS, find_checkpoint
from .origin import Origin
from .reasons import Reasons
from .toolkits import torch_nn

# Printed if they differ from the paper's model.
SWITCHES = (
    "position_embedding_type position_base position_offset max_position_embeddings norm_position encoder_final_norm "
    "decoder_final_norm layer_norm_eps attention_bias output_bias activation_function d_k d_v "
    "share_encoder_decoder_embeddings tie_word_embeddings decoder_vocab_size"
).split()


def convert_in(
    path: Path,
    out: Path,
    wanted: str | None,
    check: tuple[Path, Path] | None = None,
    logits: Path | None = None,
    scale_embeddings: bool | None = None,
) -> None:
    """Convert a checkpoint of another toolkit to a model folder at `out`, which must be new.

    check, logits: see `check.check`;  scale_embeddings: see `torch_nn.read`
    """
    toolkit, file = find_checkpoint(path, wanted)
    if scale_embeddings is not None and toolkit is not torch_nn:
        raise InputError(f"--scale-embeddings is for {torch_nn.NAME}; {toolkit.NAME} needs no such option")
    with new_model_folder(out) as folder, torch.inference_mode():
        description, model = read(toolkit, file, scale_embeddings)
        save(description, model, folder)
        proof = check_model(description, folder, model, check, logits)
    config, default = model.config, type(model.config)()
    print(f"{toolkit.NAME}: {model.num_parameters():,} parameters")
    switches = {name: getattr(config, name) for name in SWITCHES}
    different = {name: value for name, value in switches.items() if value != getattr(default, name)}
    if different.get("decoder_vocab_size") == config.vocab_size:
        del different["decoder_vocab_size"]
    print("switches: " + (", ".join(f"{name}={value}" for name, value in different.items()) or "none, as the paper"))
    for line in [*("note: " + note for note in description.all_notes()), *proof]:
        print(line)


def read(toolkit: ModuleType, file: Path, scale_embeddings: bool | None) -> tuple[Description, Model]:
    """Read a checkpoint as a model. Raises InputError or BrokenFileError with all reasons why it cannot be one."""
    reasons = Reasons(file)
    try:
        scale = (scale_embeddings,) if toolkit is torch_nn else ()
        description = toolkit.read(file, reasons, *scale)
        description.toolkit, description.path = toolkit.NAME, file
        description.vocabulary.check(file)
        return description, build_model(description, reasons)
    except (InputError, BrokenFileError, UnavailableError):
        raise
    except Exception as error:
        # A file can hold anything anywhere: an error while reading it is a fault of the file, and usually follows
        # from reasons that are known already. --debug shows where it happened.
        reasons.refuse_if_any()
        found = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise BrokenFileError(
            f"{file} or a file beside it is not complete, or not from {toolkit.NAME} ({found}); copy them again"
        ) from error


def convert_out(path: Path, out: Path, wanted: str) -> None:
    """Convert a model folder to a checkpoint of another toolkit in the folder `out`, which must be new."""
    if wanted not in WRITERS:
        raise InputError(f"--to {wanted}: not a format that can be written; known formats: {', '.join(WRITERS)}")
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; --to takes a model folder of this project")
    model = load_model(path, device="cpu")
    with new_model_folder(out) as folder, torch.inference_mode():
        origin = Origin(path)
        WRITERS[wanted].write_checkpoint(model, origin, folder, Reasons(f"{path} (to {wanted})"))
        if origin.toolkit == wanted and origin.originals.is_dir():  # the vocabularies, byte for byte
            for file in sorted(origin.originals.iterdir()):
                shutil.copyfile(file, folder / file.name)
    print(f"{wanted}: {model.num_parameters():,} parameters")
