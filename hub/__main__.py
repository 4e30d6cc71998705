"""`python -m hub push FOLDER REPO`: show what a push to the Hub would change, or push; `space`: write a Space."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaswani_transformer.atomic import atomic_folder
from vaswani_transformer.errors import InputError, exit_cleanly
from vaswani_transformer.lines import check_new_folder

if TYPE_CHECKING:  # huggingface_hub and torch are imported only by a push, so that --help is fast
    from .contents import Files
    from .remote import Plan

app = typer.Typer(add_completion=False, rich_markup_mode=None)

NAME = r"[\w-][\w.-]*"
# What the options about the model must look like.
STATED = {
    "source_language": (r"[a-z]{2,3}", "a language code, such as en"),
    "target_language": (r"[a-z]{2,3}", "a language code, such as en"),
    "dataset": (rf"({NAME}/)?{NAME}", "a name on the Hub, such as owner/name"),
    "base_model": (rf"{NAME}/{NAME}", "a name on the Hub, owner/name"),
    "license": (r"[a-z0-9][a-z0-9.+-]*", "a license name of the Hub, such as apache-2.0 or other"),
}


@app.callback()
def hub() -> None:
    """Publish a trained model."""


@app.command(help="Show what a push to the Hub would change; with --yes, push in one commit, including code and card.")
def push(
    folder: Annotated[str, typer.Argument(help="A model's folder.")],
    repo: Annotated[str, typer.Argument(help="The repository, owner/name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Push. Without it nothing is sent.")] = False,
    to_folder: Annotated[
        str | None, typer.Option(help="Write what would be uploaded to this new folder; no network.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str, typer.Option(help="The branch; created if it does not exist.")] = "main",
    tag: Annotated[str | None, typer.Option(help="Tag the commit; the tag must be new.")] = None,
    message: Annotated[str, typer.Option(help="The commit message.")] = "A model of vaswani-transformer",
    onnx: Annotated[
        list[str] | None,
        typer.Option(help="The output of `export onnx`, or int8=OUTPUT for model_int8.onnx; default: FOLDER/onnx."),
    ] = None,
    results: Annotated[
        list[str] | None, typer.Option(help="A CSV file of `evaluate --record`, in addition to the shipped ones.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Language code, such as en; default: the recipe's.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Language code, such as de; default: the recipe's.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The training text's name on the Hub.")] = None,
    base_model: Annotated[str | None, typer.Option(help="The repository of the model that was fine-tuned.")] = None,
    license: Annotated[str | None, typer.Option(help="The weights' license, such as apache-2.0.")] = None,
    example: Annotated[
        str | None, typer.Option(help="A sentence for the card; default: a simple one in the source language.")
    ] = None,
    keep_card: Annotated[bool, typer.Option("--keep-card", help="Keep the README.md that is on the Hub.")] = False,
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Attention and training curve.")] = True,
) -> None:
    from .remote import check_repo_id, check_revision, size_of

    check_repo_id(repo)
    check_revision(revision, "--revision")
    if example is not None and not example.strip():
        raise InputError("--example is empty")
    if tag is not None:
        check_revision(tag, "--tag")
    if yes and to_folder is not None:
        raise InputError("--yes pushes and --to-folder does not; give one of them")
    out = None if to_folder is None else check_new_folder(to_folder)
    tables = [Path(name) for name in results or ()]
    stated = stated_facts(
        source_language=source_language,
        target_language=target_language,
        dataset=dataset,
        base_model=base_model,
        license=license,
    )
    files = repository_files(Path(folder), repo, onnx or (), tables, stated, example, pictures)
    if out is not None:
        write_folder(files, out)
        for name, file in sorted(files.items()):
            typer.echo(f"{size_of(file):>14,}  {name}")
        typer.echo(f"{out}: what `push {repo} --yes` would upload")
    else:
        upload(Path(folder), repo, revision, files, yes, private, tag, message, keep_card)


@app.command(help="Write a Space that translates with a model of the Hub and shows its attention.")
def space(
    repo: Annotated[str, typer.Argument(help="The Space, owner/name.")],
    model: Annotated[str, typer.Option(help="The model's repository, owner/name.")],
    to_folder: Annotated[str, typer.Option(help="The new folder.")],
    revision: Annotated[
        str | None, typer.Option(help="A commit or tag of the model; the Space runs the model's code.")
    ] = None,
) -> None:
    from .contents import space_files
    from .remote import check_repo_id, check_revision

    for name in (repo, model):
        check_repo_id(name)
    if revision is not None:
        check_revision(revision, "--revision")
    write_folder(space_files(repo, model, revision), check_new_folder(to_folder))
    typer.echo(f"{to_folder}: a Space; `hf upload {repo} {to_folder} . --repo-type space` publishes it")


def stated_facts(**options: str | None) -> dict[str, str]:
    """Return what the options say about the model. Raises InputError for a value that the Hub does not accept."""
    facts = {field: value for field, value in options.items() if value is not None}
    for field, value in facts.items():
        pattern, kind = STATED[field]
        if not re.fullmatch(pattern, value, re.ASCII):
            raise InputError(f"--{field.replace('_', '-')} {value!r} is not {kind}")
    return facts


def repository_files(
    folder: Path,
    repo: str,
    onnx: Sequence[str],
    results: list[Path],
    stated: dict[str, str],
    example: str | None,
    pictures: bool,
) -> "Files":
    """Return everything that a push uploads: the model's files, pictures and card, checked for secrets."""
    from transformers.utils import logging

    from . import card, contents
    from .provenance import PROVENANCE_FILES, Provenance

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    files, translator = contents.model_files(folder, onnx)
    contents.refuse_links_outside(folder, PROVENANCE_FILES)
    provenance = Provenance(folder, translator.model.num_parameters(), results, stated)
    example = example or card.default_example(provenance)
    if pictures:
        if example is not None:
            files["attention.png"] = card.attention_picture(translator, example)
        if curve := card.training_curve(folder):
            files["training_curve.png"] = curve
    files["README.md"] = str(card.write_card(repo, translator, provenance, files, example=example)).encode()
    contents.refuse_secrets(files)
    if missing := provenance.missing():
        typer.echo(f"the card would say more with {', '.join(missing)}")
    return files


def upload(
    folder: Path,
    repo: str,
    revision: str,
    files: "Files",
    yes: bool,
    private: bool,
    tag: str | None,
    message: str,
    keep_card: bool,
) -> None:
    """Print what a push would change, and push if `yes`."""
    from huggingface_hub import HfApi

    from . import remote
    from .contents import left_behind

    remote.set_timeout()
    api = HfApi()
    planned = remote.plan(api, repo, revision, files, kept=["README.md"] if keep_card else [])
    if private and planned.head is not None and not planned.private:
        raise InputError(f"--private: {repo} already exists and is public; make it private on the Hub first")
    if tag is not None and planned.head is not None:
        remote.refuse_existing_tag(api, planned, tag)
    for line in summary(planned, private, left_behind(folder, files)):
        typer.echo(line)
    if yes:
        typer.echo(remote.push(api, planned, files, private=private, tag=tag, message=message))
    else:
        typer.echo("nothing has been sent; add --yes to push")


def summary(planned: "Plan", private: bool, left: list[str]) -> list[str]:
    """Return one line per file, with its size and what happens to it, and the totals."""
    lines = [f"{change.kind:<8}{change.size:>14,}  {change.name}" for change in planned.changes]
    if left:
        lines.append(f"not published: {', '.join(left)}")
    sent = [change for change in planned.changes if change.kind in ("new", "changed")]
    deleted = sum(change.kind == "deleted" for change in planned.changes)
    state = f"{planned.repo_id}, revision {planned.revision}"
    if planned.head is None:
        state += f", would be created, {'private' if private else 'public'}"
    elif not planned.revision_exists:
        state += ", a new branch"
    if not planned.changes_something:
        return [*lines, f"{state}: nothing to change"]
    total = f"{len(sent)} of {len(planned.changes) - deleted} files, {sum(change.size for change in sent):,} bytes"
    return [*lines, f"{state}: one commit with {total}" + (f", {deleted} deleted" if deleted else "")]


def write_folder(files: "Files", out: Path) -> None:
    """Write the files to a new folder, which appears only when it is complete."""
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as unfinished:
        for name, file in files.items():
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, bytes):
                path.write_bytes(file)
            else:
                shutil.copyfile(file, path)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer")


if __name__ == "__main__":
    main()
