"""Section 6.1: the final model of a run is the average of its last checkpoints."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from vaswani_transformer.atomic import atomic_file, move_files, remove, temporary_path
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.files import check_inside, files_sha256, read_json_object
from vaswani_transformer.model_folder import (
    CODE_FILES,
    FIXED_ENTRIES,
    MANIFEST,
    SETTINGS_FILES,
    WEIGHTS,
    ModelFolder,
    verify_manifest,
    weight_files,
)
from vaswani_transformer.training_run import METRICS, PROGRESS_TYPES, STATE, check_types, curve_figure, read_curves

from . import checkpoints
from .checkpoints import Progress
from .recipe import CheckpointSettings, differences
from .tensors import save_tensors

# Entries of generation_config.json that belong to the model. The others are defaults, which each call may change: an
# average takes those of the last checkpoint.
FIXED_SEARCH = ("beam_search", "forced_bos_token_id", "suppress_tokens")


def list_other_files(folder: Path) -> list[str]:
    """Return the names of the files that a model folder has besides the weights and the manifest, config.json first."""
    return [name for name in (*SETTINGS_FILES, *CODE_FILES) if (folder / name).is_file()]


def average_weights(folders: list[Path]) -> dict[str, torch.Tensor]:
    """Return the mean of each tensor over the model folders, which have been checked, summed in float64.

    Its precision is that of the last folder, as config.json says, which is copied from there.
    """
    models = [open_tensors(folder) for folder in folders]
    shapes = [{name: file.get_slice(name).get_shape() for name, file in model.items()} for model in models]
    for folder, found in zip(folders, shapes, strict=True):
        if found != shapes[0]:
            odd = sorted(name for name in found | shapes[0] if found.get(name) != shapes[0].get(name))
            raise InputError(f"{folder} must have the tensors of {folders[0]}; different: {', '.join(odd[:5])}")
    averaged = {}
    for name in sorted(shapes[0]):
        first, *others = tensors = [model[name].get_tensor(name) for model in models]
        total = first.double()
        for other in others:
            total += other
        averaged[name] = (total / len(models)).to(tensors[-1].dtype)
    return averaged


def open_tensors(folder: Path) -> dict[str, Any]:
    """Return the open safetensors file of each tensor of a model, by its name."""
    files = [safe_open(path, framework="pt") for path in weight_files(folder)]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118


def read_fixed_entries(path: Path) -> dict[str, Any]:
    """Read a tokenizer, or the entries of a file of settings that are the same for all checkpoints of a model."""
    content, fixed = read_json_object(path), {"config.json": FIXED_ENTRIES, "generation_config.json": FIXED_SEARCH}
    return {name: content.get(name) for name in fixed[path.name]} if path.name in fixed else content


def write_model(folders: list[Path], model: Path, **about: Any) -> None:
    """Write the average of these folders' weights to an empty folder; copy the other files from the last one.

    `about` are further entries of the manifest. Raises InputError if the tokenizers or the architectures differ.
    """
    for name in SETTINGS_FILES:
        if name in ("config.json", "generation_config.json") or name.endswith("tokenizer.json"):
            paths = [folder / name for folder in folders if (folder / name).is_file()]
            if paths and len(paths) < len(folders):
                absent = next(folder / name for folder in folders if folder / name not in paths)
                raise InputError(f"{absent} is missing, but there is {paths[0]}; such models cannot be averaged")
            for path in paths[:-1]:
                entries, last = read_fixed_entries(path), read_fixed_entries(paths[-1])
                if odd := sorted(key for key in entries | last if entries.get(key) != last.get(key)):
                    raise InputError(
                        f"{path} differs from {paths[-1]} in {', '.join(odd)}; such models cannot be averaged"
                    )
    save_tensors(average_weights(folders), model / WEIGHTS)
    for name in list_other_files(folders[-1]):
        check_inside(folders[-1] / name, folders[-1])  # the content that a link leads to would be copied
        (model / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(folders[-1] / name, model / name)
    # Without the settings, which users may edit.
    files = [model / WEIGHTS, *model.rglob("tokenizer.json")]
    checkpoints.write_manifest(model, files, **describe_average(folders), **about)


def describe_average(folders: list[Path]) -> dict[str, Any]:
    """Return the entries of the manifest that tell an average from one of other folders with the same names."""
    files = [file for folder in folders for file in weight_files(folder)]
    return {"average_of": [folder.name for folder in folders], "average_of_sha256": files_sha256(*files)}


def write_model_folder(folders: list[Path], output: Path) -> None:
    """Write the averaged model into a run's folder: every file appears when it is complete, config.json last."""
    with temporary_path(output / "model") as temporary:
        temporary.mkdir()
        state = checkpoints.read_checkpoint_state(folders[-1])
        check_types(f"{folders[-1] / STATE}: progress", state["progress"], PROGRESS_TYPES, required=True)
        progress = {name: state["progress"][name] for name in PROGRESS_TYPES}  # see `read_training`
        write_model(folders, temporary, progress=progress, environment=state["environment"])
        remove(output / MANIFEST)  # it describes the files that are replaced now
        move_files([WEIGHTS, MANIFEST, *reversed(list_other_files(temporary))], temporary, output)


def is_average_of(folders: list[Path], output: Path) -> bool:
    """Return whether a run's folder already holds the complete average of these checkpoints."""
    try:
        complete = verify_manifest(output) and all((output / name).is_file() for name in list_other_files(folders[-1]))
        return complete and describe_average(folders).items() <= read_json_object(output / MANIFEST).items()
    except BrokenFileError:
        return False


def check_settings(output: Path, checkpoint: Path) -> None:
    """Raise BrokenFileError if edited settings of the model in `output` are refused, or do not fit its weights."""
    try:
        _ = ModelFolder(output).search
    except (BrokenFileError, InputError) as error:
        raise BrokenFileError(f"{error}. Remove the file, and the command writes it again") from None
    path, other = output / "config.json", checkpoint / "config.json"
    if changes := differences(
        read_fixed_entries(other), read_fixed_entries(path), f"{{}} is {{}} in {other}, {{}} here"
    ):
        raise BrokenFileError(f"{path}: {'; '.join(changes)}. Remove the file, and the command writes it again")


def averaged_steps(settings: CheckpointSettings, last: int) -> list[int]:
    """Return the steps of the checkpoints whose average is the model of a run that ends after step `last`."""
    every = settings.save_every
    return [last, *range((last - 1) // every * every, 0, -every)][: settings.average_last]


def write_final_model(
    output: Path, settings: CheckpointSettings, progress: Progress, say: Callable[[str], None]
) -> None:
    """Average the last checkpoints of a run into the model, whose folder is that of the run, and draw its curve."""
    root = output / "checkpoints"
    # Checkpoints made by a signal are left out, so that an interrupted run ends with the same model.
    regular = checkpoints.select_regular(root, settings.save_every, last=progress.step)
    folders = list(itertools.islice(checkpoints.intact_checkpoints(regular, say), settings.average_last))[::-1]
    if not folders and not progress.step:
        raise InputError("max_hours, max_cpu_seconds or max_tokens ended the run before its first step")
    if not folders:
        raise UnavailableError(
            f"{root}: no checkpoint could be written, so there is no model; free space and run the command again"
        )
    steps = averaged_steps(settings, progress.step)
    if absent := [f"step-{step}" for step in steps if root / f"step-{step}" not in folders]:
        say(f"warning: {', '.join(absent)} should be part of the model, but there is no such checkpoint")
    names = ", ".join(folder.name for folder in folders)
    origin = f"the average of {names}" if len(folders) > 1 else f"from {names}"
    if is_average_of(folders, output):  # its settings may have been edited since
        check_settings(output, folders[-1])
        say(f"{output}: the model, {origin}, is complete and stays as it is")
        return
    write_model_folder(folders, output)
    say(f"{output}: the model, {origin}")
    draw_curve(output, say)


def draw_curve(output: Path, say: Callable[[str], None]) -> None:
    """Draw curve.png beside the model, if matplotlib is installed and something has been logged."""
    try:
        curves = read_curves(output / METRICS)
        if any(curves.values()):
            with atomic_file(output / "curve.png") as file:
                curve_figure(curves).savefig(file, format="png")
    except (UnavailableError, BrokenFileError) as error:
        say(f"no curve.png: {error}")
