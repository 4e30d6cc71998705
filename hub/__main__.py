"""`python -m hub push FOLDER REPO`: a model's folder to the Hub, or a look at what that would send."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaswani_transformer.atomic import atomic_folder
from vaswani_transformer.errors import InputError, exit_cleanly
from vaswani_transformer.lines import check_new_folder

if TYPE_CHECKING:  # huggingface_hub and torch are for who pushes, not for --help
    from .remote import Plan

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def hub() -> None:
    """Publish a trained model."""


@app.command(help="What a push to the Hub would change; with --yes, push: one commit, code and card included.")
def push(
    folder: Annotated[str, typer.Argument(help="A model's folder.")],
    repo: Annotated[str, typer.Argument(help="The repository, owner/name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Push. Without it nothing is sent.")] = False,
    to_folder: Annotated[
        str | None, typer.Option(help="Write exactly what would be uploaded to this new folder; no network.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="A new repository that only you see.")] = False,
    revision: Annotated[str, typer.Option(help="The branch; made if it is not there.")] = "main",
    tag: Annotated[str | None, typer.Option(help="Tag the commit, with a name that is free.")] = None,
    message: Annotated[str, typer.Option(help="The commit's message.")] = "A model of vaswani-transformer",
    onnx: Annotated[str | None, typer.Option(help="What `export onnx` wrote; default: FOLDER/onnx.")] = None,
    results: Annotated[
        list[str] | None, typer.Option(help="A CSV file of `evaluate --record`, beside the shipped ones.")
    ] = None,
    license: Annotated[str | None, typer.Option(help="Of the weights, such as apache-2.0 or cc-by-4.0.")] = None,
    example: Annotated[
        str | None, typer.Option(help="A sentence for the card; default: a short one of the validation text.")
    ] = None,
    keep_card: Annotated[bool, typer.Option("--keep-card", help="Leave the README.md that is on the Hub.")] = False,
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Attention and training curve.")] = True,
) -> None:
    from . import card as cards
    from . import contents, remote
    from .record import read_record

    repo_id = remote.checked_repo_id(repo)
    remote.checked_revision(revision, "--revision")
    if tag is not None:
        remote.checked_revision(tag, "--tag")
    if not message.strip():
        raise InputError("--message is empty; a commit needs one")
    if yes and to_folder is not None:
        raise InputError("--yes pushes and --to-folder does not; give one of them")
    out = None if to_folder is None else check_new_folder(to_folder)
    quiet_transformers()

    source = Path(folder)
    files, translator = contents.model_files(source, None if onnx is None else Path(onnx))
    record = read_record(source, cards.parameters(translator), [Path(name) for name in results or ()])
    if example is not None and not example.strip():
        raise InputError("--example is empty; give a sentence, or leave it to the default")
    example = example or cards.default_example(record)
    if pictures:
        from .pictures import attention_picture, training_curve

        if example is not None:
            files["attention.png"] = attention_picture(translator, example)
        if curve := training_curve(source):
            files["training_curve.png"] = curve
    files["README.md"] = str(
        cards.write_card(repo_id, translator, record, files, example=example, license=license)
    ).encode()
    contents.refuse_secrets(files)

    if out is not None:
        for name, size in write_folder(files, out):
            typer.echo(f"{size:>14,}  {name}")
        typer.echo(f"{out}: what `push {repo_id} --yes` would upload")
        return

    from huggingface_hub import HfApi

    def say(line: str) -> None:
        typer.echo(line, err=True)

    remote.limit_silence()
    api = HfApi()
    planned = remote.plan(api, repo_id, revision, files, say)
    if keep_card and any(change.name == "README.md" and change.what != "new" for change in planned.changes):
        del files["README.md"]
        planned = replace(planned, changes=[change for change in planned.changes if change.name != "README.md"])
    if private and planned.repo_exists and not planned.private:
        raise InputError(f"--private: {repo_id} exists and everybody sees it; make it private on the Hub first")
    if tag is not None and planned.repo_exists:
        remote.refuse_tag_that_exists(api, repo_id, tag, planned, say)
    for line in summary(repo_id, revision, planned, private, contents.left_behind(source, files)):
        typer.echo(line)
    if not yes:
        typer.echo("nothing has been sent; --yes sends it")
        return
    where = remote.push(api, repo_id, revision, files, planned, private=private, tag=tag, message=message, say=say)
    typer.echo(where)


def summary(repo_id: str, revision: str, planned: "Plan", private: bool, left: list[str]) -> list[str]:
    """The files with their sizes and what happens to each, and what that makes in all."""
    lines = [f"{change.what:<8}{change.size:>14,}  {change.name}" for change in planned.changes]
    if left:
        lines.append(f"stays here: {', '.join(left)}")
    sent = [change for change in planned.changes if change.what in ("new", "changed")]
    gone = sum(change.what == "deleted" for change in planned.changes)
    state = f"{repo_id}, revision {revision}"
    if not planned.repo_exists:
        state += f", would be created, {'private' if private else 'public'}"
    elif not planned.revision_exists:
        state += ", a new branch"
    if not planned.changes_something:
        return [*lines, f"{state}: nothing to change"]
    total = f"{len(sent)} of {len(planned.changes) - gone} files, {sum(change.size for change in sent):,} bytes"
    return [*lines, f"{state}: one commit with {total}" + (f", {gone} deleted" if gone else "")]


def write_folder(files: dict[str, Path | bytes], out: Path) -> list[tuple[str, int]]:
    """Write the new folder, or nothing; the names and sizes of its files."""
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    written = []
    with atomic_folder(out) as unfinished:
        for name, file in sorted(files.items()):
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, bytes):
                path.write_bytes(file)
            else:
                shutil.copyfile(file, path)
            written.append((name, path.stat().st_size))
    return written


def quiet_transformers() -> None:
    """stdout and stderr are for our own lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="hub")


if __name__ == "__main__":
    main()
