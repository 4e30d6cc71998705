"""Both directions of a conversion, from the path to the written folder and the printed summary.

Each toolkit is a module of toolkits/ with `NAME`. One that can be read has `FILES`, the patterns of its checkpoints'
names, and

    recognise(path) -> bool             whether a file is a checkpoint; for PICKLED, recognise(content), a dictionary
    read(path, reasons) -> Description  adds to the reasons all options that the model cannot represent

One that can be written has

    requirements(config)                      fields of our configuration -> the values that the toolkit supports
    write_checkpoint(folder, out, reasons)    raises all reasons, its own included, before it writes
"""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError, one_line
from vaswani_transformer.loading import enumerated

from .build import build_model
from .check import check
from .checkpoint_files import is_pickled, load_checkpoint
from .description import Description
from .folder import ModelFolder, new_model_folder, save
from .options import Options
from .reasons import Reasons
from .toolkits import (
    annotated,
    ctranslate2,
    fairseq,
    hf_fsmt,
    hf_marian,
    joeynmt,
    marian,
    opennmt_py,
    sockeye,
    tensor2tensor,
    torch_nn,
)

PICKLED: tuple[ModuleType, ...] = (fairseq, opennmt_py, joeynmt, torch_nn, annotated)  # recognised by their content
READERS: dict[str, ModuleType] = {
    toolkit.NAME: toolkit for toolkit in (*PICKLED, marian, hf_marian, hf_fsmt, sockeye, tensor2tensor)
}
WRITERS = {toolkit.NAME: toolkit for toolkit in (fairseq, marian, hf_marian, opennmt_py, ctranslate2)}

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
    logits: Path | None = None,
) -> None:
    """Convert a checkpoint of another toolkit to a model folder at `out`, which must be new.

    wanted: the toolkit's name, None to recognise it
    logits: see `check.check`
    """
    toolkit, file = find_checkpoint(path, wanted)
    with new_model_folder(out) as folder, torch.inference_mode():
        description, model = read(toolkit, file)
        save(description, model, folder)
        comparison = check(description, model, logits)
    print(f"{toolkit.NAME}: {model.num_parameters():,} parameters")
    print(f"switches: {switches(model.config)}")
    for note in description.all_notes():
        print(f"note: {note}")
    print(comparison)


def find_checkpoint(path: Path, wanted: str | None = None) -> tuple[ModuleType, Path]:
    """Return the toolkit and the checkpoint's file; a folder must hold exactly one. wanted: the toolkit's name

    Raises InputError if the format is not known, or the folder holds no checkpoint or several.
    """
    if wanted is not None and wanted not in READERS:
        raise InputError(f"{wanted!r} is not a format that can be converted; known formats: {', '.join(READERS)}")
    toolkits = list(READERS.values()) if wanted is None else [READERS[wanted]]
    expected = wanted or f"a known toolkit ({', '.join(READERS)})"
    if path.is_dir():
        path = only_checkpoint(path, toolkits, expected)
    elif not path.exists():
        index = path.with_name(path.name + ".index")  # TensorFlow's users name a checkpoint by its prefix
        if not index.exists():
            raise InputError(f"{path}: no such file or folder")
        path = index
    pickled = [toolkit for toolkit in toolkits if toolkit in PICKLED]
    if wanted and not pickled:
        return toolkits[0], path  # under any name; `read` reports a file of another kind
    found = [toolkit for toolkit in toolkits if toolkit not in PICKLED and toolkit.recognise(path)]
    if not found and (wanted or is_pickled(path)):
        content = load_checkpoint(path)
        found = [toolkit for toolkit in pickled if isinstance(content, dict) and toolkit.recognise(content)]
    if not found:
        raise InputError(f"{path} is not a checkpoint of {expected}")
    return found[0], path


def only_checkpoint(folder: Path, toolkits: list[ModuleType], expected: str) -> Path:
    """Return the only file in the folder that has the name of a checkpoint."""
    found = {
        file
        for toolkit in toolkits
        for pattern in toolkit.FILES
        for file in folder.glob(pattern)
        if file.is_file() and (toolkit in PICKLED or toolkit.recognise(file))
    }
    candidates = sorted({file.resolve(): file for file in sorted(found)}.values())
    candidates = [file for file in candidates if file.name == "params.best"] or candidates  # Sockeye's choice
    if not candidates:
        raise InputError(f"{folder}: no file in this folder has the name of a checkpoint of {expected}")
    if len(candidates) > 1:
        names = enumerated(file.name for file in candidates)
        raise InputError(f"{folder} holds {len(candidates)} checkpoints ({names}); give the path of one of them")
    return candidates[0]


def read(toolkit: ModuleType, file: Path) -> tuple[Description, Model]:
    """Read a checkpoint as a model. Raises InputError or BrokenFileError with all reasons against the conversion."""
    reasons = Reasons(file)
    try:
        description = toolkit.read(file, reasons)
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


def switches(config: Any) -> str:
    """Return the fields of a configuration that differ from the paper's model, for the summary."""
    default = type(config)()
    different = {name: getattr(config, name) for name in SWITCHES if getattr(config, name) != getattr(default, name)}
    if config.decoder_vocab_size == config.vocab_size:
        different.pop("decoder_vocab_size", None)
    return ", ".join(f"{name}={value}" for name, value in different.items()) or "none, as the paper"


def convert_out(path: Path, out: Path, wanted: str) -> None:
    """Convert a model folder to a checkpoint of another toolkit in the folder `out`, which must be new."""
    if wanted not in WRITERS:
        raise InputError(f"--to {wanted}: not a format that can be written; known formats: {', '.join(WRITERS)}")
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; --to takes a model folder of this project")
    toolkit, folder, reasons = WRITERS[wanted], ModelFolder(path), Reasons(f"{path} (to {wanted})")
    with new_model_folder(out) as new, torch.inference_mode():
        requirements = toolkit.requirements(folder.config) | {"d_k": (None,), "d_v": (None,)}  # d_model / heads
        Options(folder.config.to_dict(), reasons, "{} {}").require(requirements)
        toolkit.write_checkpoint(folder, new, reasons)
        if folder.toolkit == wanted and folder.originals.is_dir():  # the vocabularies, byte for byte
            for file in sorted(folder.originals.iterdir()):
                shutil.copyfile(file, new / file.name)
    print(f"{wanted}: {folder.model.num_parameters():,} parameters")
