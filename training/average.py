"""Average the weights of the last checkpoints into the final model (section 6.1)."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from safetensors import SafetensorError, safe_open

from vaswani_transformer.atomic import atomic_folder, move_files, remove, temporary_path
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.model_folder import (
    MANIFEST,
    TOKENIZER_FILES,
    WEIGHTS,
    check_readable,
    read_json_object,
    verify_manifest,
)
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER

if TYPE_CHECKING:  # imported where it is used, so that --help is fast
    import torch

OTHER_FILES = ("config.json", MANIFEST, "generation_config.json", *TOKENIZER_FILES)
OTHER_FILES += tuple(f"{TARGET_TOKENIZER}/{name}" for name in TOKENIZER_FILES)


def other_files(folder: Path) -> list[str]:
    """Return the names of a model folder's other files, config.json first and the model's code last."""
    code = sorted(path.name for path in folder.glob("*.py"))
    return [name for name in (*OTHER_FILES, *code) if (folder / name).is_file()]


def average_weights(folders: list[Path]) -> "dict[str, torch.Tensor]":
    """Return the mean of each tensor over the model folders, summed in float64."""
    files = []
    for folder in folders:
        check_readable(folder / WEIGHTS)
        try:
            files.append(safe_open(folder / WEIGHTS, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise BrokenFileError(f"{folder / WEIGHTS} cannot be read: {error}") from error
    shapes = [{name: file.get_slice(name).get_shape() for name in file.keys()} for file in files]  # noqa: SIM118
    for folder, found in zip(folders, shapes, strict=True):
        if found != shapes[0]:
            odd = sorted(name for name in found | shapes[0] if found.get(name) != shapes[0].get(name))
            raise InputError(
                f"{folder / WEIGHTS} must have the tensors of {folders[0] / WEIGHTS}; different: {', '.join(odd[:5])}"
            )
    averaged = {}
    for name in sorted(shapes[0]):
        first, *others = (file.get_tensor(name) for file in files)
        total = first.double()
        for other in others:
            total += other
        averaged[name] = (total / len(files)).to(first.dtype)
    return averaged


def write_model(folders: list[Path], model: Path) -> None:
    """Write the average of these folders' weights to an empty folder; copy the other files from the last one.

    Raises InputError if the tokenizers differ.
    """
    from .checkpoint_folders import write_manifest
    from .tensors import save_tensors

    for name in OTHER_FILES:
        if name.endswith("tokenizer.json"):
            paths = [folder / name for folder in folders if (folder / name).is_file()]
            for path in paths[:-1]:
                if read_json_object(path) != read_json_object(paths[-1]):
                    raise InputError(f"{path} differs from {paths[-1]}; such models cannot be averaged")
    save_tensors(average_weights(folders), model / WEIGHTS)
    for name in other_files(folders[-1]):
        if name != MANIFEST:
            (model / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folders[-1] / name, model / name)
    # Without the settings, which users may edit.
    write_manifest(model, [model / WEIGHTS, *model.rglob("tokenizer.json")])


def write_model_folder(folders: list[Path], output: Path) -> None:
    """Write the averaged model into a run's folder: every file appears when it is complete, config.json last."""
    with temporary_path(output / "model") as temporary:
        temporary.mkdir()
        write_model(folders, temporary)
        remove(output / MANIFEST)  # it describes the files that are replaced now
        move_files([WEIGHTS, *reversed(other_files(temporary))], temporary, output)


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Average the weights of checkpoints into a model folder.")
def average(
    checkpoint: Annotated[list[Path], typer.Argument(help="Model folders, or one run's folder (see --last).")],
    output: Annotated[Path, typer.Option(help="The new model folder.")],
    last: Annotated[int, typer.Option(min=1, help="Number of a run's last checkpoints.")] = 5,
) -> None:
    from .checkpoint_folders import regular_of_run

    folders = checkpoint
    if len(checkpoint) == 1 and (checkpoint[0] / "checkpoints").is_dir():
        folders = regular_of_run(checkpoint[0])[:last][::-1]
        if len(folders) < last:
            typer.echo(f"the run has {len(folders)} checkpoints, fewer than {last}", err=True)
    if not folders:
        raise InputError(f"{checkpoint[0]}: no checkpoints to average")
    for folder in folders:
        if not (folder / WEIGHTS).is_file():
            raise InputError(f"{folder} has no {WEIGHTS}: not a model folder or a checkpoint of a run")
        try:
            verify_manifest(folder)
        except BrokenFileError as error:
            raise BrokenFileError(f"{error}; choose checkpoints without {folder.name}") from error
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"--output {output} exists; choose a new folder")
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(output) as unfinished:
        write_model(folders, unfinished)
    typer.echo(f"{output}: the average of {', '.join(folder.name for folder in folders)}")


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer average")


if __name__ == "__main__":
    main()
