"""What several commands share: their options, and the MODEL of each.

It is a model folder, a repository on the Hub, or a checkpoint that is converted on the way.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .atomic import temporary_path
from .errors import InputError, UnavailableError, escape_controls
from .hub_files import choose_files, download, is_repository, plan_download
from .model_folder import ADAPTER, MODEL_TYPE, choose_backend
from .programs import import_program
from .training_run import follow_pointer

Model = Annotated[
    str, typer.Argument(help="A model folder, owner/name on the Hub, or a checkpoint that `convert` reads.")
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the repository on the Hub.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the files that would be downloaded, and stop.")]
TargetLanguage = Annotated[
    str | None, typer.Option(help="Language of the translation, if the model has several: de, or its token >>deu<<.")
]
NumBeams = Annotated[int | None, typer.Option(help="Beam size; 1 is greedy search; default: the model's.")]
LengthPenalty = Annotated[float | None, typer.Option(help="alpha of the length penalty; default: the model's.")]
BatchTokens = Annotated[
    int | None,
    typer.Option(help="Tokens times beams per batch; lower it to save memory; default: 8192, on a GPU 32768."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; default: a GPU if there is one.")]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16", "float64"] | None,
    typer.Option(help="Precision of the weights; default: as saved."),
]
Backend = Annotated[
    Literal["torch", "onnx"] | None,
    typer.Option(
        help="onnx: read the output of `export onnx`; default: onnx if the folder has model.onnx but no torch weights."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Batches translated at the same time, one on each core; default: all cores, 1 on a GPU."),
]


def find_model(context: typer.Context, model: str, revision: str | None = None, dry_run: bool = False) -> Path:
    """Return the folder of a command's MODEL; a checkpoint is converted to one that lasts as long as the command.

    Raises InputError if there is no such model, and typer.Exit after the list of a dry run.
    """
    return context.with_resource(open_model(locate_model(model, revision, dry_run), model))


def find_model_and_backend(
    context: typer.Context,
    model: str,
    backend: Literal["torch", "onnx"] | None,
    revision: str | None = None,
    dry_run: bool = False,
    precision: str | None = None,
) -> tuple[Path, Literal["torch", "onnx"]]:
    """Return the folder of a command's MODEL and the backend that translates with it; see `Backend`."""
    if (backend or choose_backend(Path(model))) == "torch":
        return find_model(context, model, revision, dry_run), "torch"
    from .onnx_translator import files_of_export

    # Of a repository, the ONNX backend needs no other weights.
    return locate_model(model, revision, dry_run, files_of_export(precision)), "onnx"


def locate_model(
    model: str, revision: str | None = None, dry_run: bool = False, files: Sequence[str] | None = None
) -> Path:
    """Return the path of a MODEL, or the local copy of a repository, downloaded if needed.

    files: glob patterns of the files to download; None for those of a model, or of a checkpoint that can be converted
    """
    if not is_repository(model):
        if revision is not None:
            raise InputError(f"--revision {revision}: {model} is not a repository on the Hub; leave it out")
        if dry_run:
            typer.echo(f"{model}: nothing would be downloaded")
            raise typer.Exit()
        return follow_pointer(Path(model))
    files, commit = choose_files(model, revision) if files is None else (files, None)
    if not dry_run:
        folder = download(model, revision, files)  # by its name, by which the cache finds it offline
        if commit not in (None, folder.name):
            raise UnavailableError(f"{model} received another commit during the download; run the command again")
        return folder
    planned = plan_download(model, commit or revision, files)
    for file in planned:
        note = "  (downloaded before)" if file.is_cached else ""
        typer.echo(f"{file.file_size or 0:>14,}  {escape_controls(file.filename)}{note}")
    new = [file.file_size or 0 for file in planned if not file.is_cached]
    commit = planned[0].commit_hash[:12] if planned else ""
    typer.echo(f"{model}, commit {commit}: {len(new)} files, {sum(new):,} bytes would be downloaded")
    raise typer.Exit()


@contextmanager
def open_model(path: Path, model: str) -> Iterator[Path]:
    """Yield the path of a model folder, or a temporary model folder if the path is another toolkit's checkpoint.

    model: its name on the command line
    """
    if not is_foreign(path):
        yield path
        return
    start = time.perf_counter()
    convert = import_program("conversion", "convert")
    with temporary_path(Path(tempfile.gettempdir()) / "converted") as folder:
        with redirect_stdout(sys.stderr):
            convert.import_checkpoint(path, folder)
        seconds = time.perf_counter() - start
        typer.echo(
            f"{model}: converted in {seconds:.1f} s for this command; `vaswani-transformer convert {model} FOLDER` "
            "keeps the result",
            err=True,
        )
        yield folder


def is_foreign(path: Path) -> bool:
    """Return whether the path is a checkpoint of another toolkit, or a folder with one."""
    if not path.is_dir():
        return path.is_file()
    if any((path / name).exists() for name in (ADAPTER, "run.json")) or any(path.glob("*.onnx")):
        return False
    config: Any = None
    if (path / "config.json").exists():
        try:
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        except (ValueError, OSError):
            return False  # an error where the model is loaded
        if not isinstance(config, dict) or config.get("model_type") == MODEL_TYPE:
            return False
    convert = import_program("conversion", "convert")
    readers = import_program("conversion", "toolkits").READERS.values()
    return any(convert.list_preferred_files(path, reader) for reader in readers)
