"""Command line of `hub`: `push` uploads a model (a dry run by default); `space` writes a Gradio Space."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaswani_transformer.atomic import check_new_folder
from vaswani_transformer.cli import quiet_transformers
from vaswani_transformer.errors import InputError, one_line
from vaswani_transformer.exit import exit_cleanly

if TYPE_CHECKING:  # huggingface_hub and torch are imported only by a push, so that --help is fast
    from .contents import Files
    from .remote import Plan

app = typer.Typer(add_completion=False, rich_markup_mode=None)
MAIN, MESSAGE = "main", "Upload model with vaswani-transformer"  # defaults of a push


def check_repo_id(parameter: typer.CallbackParam, name: str | None) -> str | None:
    """Return the name of a repository. Raises InputError unless it is `owner/name` and valid on the Hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    option = parameter.opts[0]
    if name is None:
        return None
    if name.count("/") != 1:
        raise InputError(
            f"{option} is {name!r}; it must be owner/name, such as anna/en-de; the owner is a user or an organisation "
            "on the Hub"
        )
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(f"{option} is {name!r}, which is not valid on the Hub: {one_line(str(error))}") from None
    return name


def refuse_empty(parameter: typer.CallbackParam, value: str | None) -> str | None:
    """Return the value of an option. Raises InputError for one without text, as of an unset variable of a shell."""
    if value is not None and not value.strip():
        raise InputError(f"{parameter.opts[0]} is empty")
    return value


def check_ref(parameter: typer.CallbackParam, name: str | None) -> str | None:
    """Return the name of a branch or a tag. Raises InputError for one that git refuses, as the Hub would later."""
    if name is not None and (not re.fullmatch(r"[\w+]([\w.+/-]*[\w+-])?", name, re.ASCII) or ".." in name):
        raise InputError(f"{parameter.opts[0]} {name!r} is not a branch or tag name; use letters, digits and . - _ /")
    return name


Language = Annotated[
    str | None,
    typer.Option(help="Language code, such as en or de; default: the recipe's or the converted checkpoint's."),
]


@app.callback()
def hub() -> None:
    """Publish a trained model."""


@app.command(help="Preview a push to the Hub; with --yes, upload the model, its code and its card in one commit.")
def push(
    folder: Annotated[str, typer.Argument(help="A model folder.")],
    repo: Annotated[str, typer.Argument(callback=check_repo_id, help="The repository, owner/name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Upload the files; without it, push is a dry run.")] = False,
    to_folder: Annotated[str | None, typer.Option(help="Write the files to a new folder instead; offline.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str, typer.Option(callback=check_ref, help="Branch; created if it does not exist.")] = MAIN,
    tag: Annotated[str | None, typer.Option(callback=check_ref, help="Tag the commit; the tag must be new.")] = None,
    message: Annotated[str, typer.Option(callback=refuse_empty, help="Commit message.")] = MESSAGE,
    onnx: Annotated[
        list[str] | None,
        typer.Option(help="The output of `export onnx`, or int8=OUTPUT for model_int8.onnx; default: FOLDER/onnx."),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(help="A CSV file of `evaluate --record`; the package's own results are always searched."),
    ] = None,
    source_language: Language = None,
    target_language: Language = None,
    dataset: Annotated[str | None, typer.Option(help="Training dataset on the Hub.")] = None,
    base_model: Annotated[
        str | None,
        typer.Option(callback=check_repo_id, help="Repository of the model that was fine-tuned or converted."),
    ] = None,
    license: Annotated[str | None, typer.Option(help="License of the weights, such as apache-2.0.")] = None,
    example: Annotated[
        str | None,
        typer.Option(
            callback=refuse_empty,
            help="An example sentence for the card; default: a simple one in the source language.",
        ),
    ] = None,
    keep_card: Annotated[bool, typer.Option("--keep-card", help="Keep the README.md on the Hub.")] = False,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Include attention and training-curve plots in the card.")
    ] = True,
) -> None:
    of_the_hub = {"--yes": yes, "--private": private, "--revision": revision != MAIN, "--tag": tag is not None,
                  "--message": message != MESSAGE, "--keep-card": keep_card}  # fmt: skip
    for option, is_given in of_the_hub.items():
        if is_given and to_folder is not None:
            raise InputError(
                f"{option} and --to-folder exclude each other: nothing is compared with the Hub or uploaded"
            )
    out = None if to_folder is None else check_new_folder(to_folder)
    stated = {"source_language": source_language, "target_language": target_language, "dataset": dataset,
              "base_model": base_model, "license": license}  # fmt: skip
    files = repository_files(
        Path(folder), repo, onnx=onnx or [], results=results or [], stated=stated, example=example, pictures=pictures
    )
    from huggingface_hub import HfApi

    from . import remote
    from .contents import list_unpublished, measure_size, write_folder

    if out is not None:
        write_folder(files, out)
        for name, file in sorted(files.items()):
            typer.echo(f"{measure_size(file):>14,}  {one_line(name)}")
        typer.echo(f"{out}: the files of `push {repo} --yes`")
        return
    remote.set_timeout()
    api = HfApi()
    kept = ["README.md"] if keep_card else []
    planned = remote.plan(api, repo, revision, files, private=private, tag=tag, kept=kept)
    for line in summary(planned, list_unpublished(Path(folder), files)):
        typer.echo(one_line(line))
    typer.echo(remote.push(api, planned, files, message) if yes else "dry run: nothing was uploaded; add --yes to push")


@app.command(help="Write a Space that translates with a model on the Hub and shows its attention.")
def space(
    model: Annotated[str, typer.Argument(callback=check_repo_id, help="The model's repository, owner/name.")],
    repo: Annotated[str, typer.Argument(callback=check_repo_id, help="The Space, owner/name.")],
    to_folder: Annotated[str, typer.Option(help="The new folder.")],
    revision: Annotated[
        str | None,
        typer.Option(callback=check_ref, help="A commit or tag of the model; the Space runs the model's code."),
    ] = None,
) -> None:
    from .contents import collect_space_files, write_folder

    write_folder(collect_space_files(repo, model, revision), check_new_folder(to_folder))
    typer.echo(f"{to_folder}: a Space; `hf upload {repo} {to_folder} . --repo-type space` publishes it")


def repository_files(
    folder: Path,
    repo: str,
    *,
    onnx: list[str],
    results: list[str],
    stated: dict[str, str | None],
    example: str | None,
    pictures: bool,
) -> "Files":
    """Return all files of a push: those of the model, plots and card, checked for secrets."""
    from vaswani_transformer.model_folder import MANIFEST
    from vaswani_transformer.training_run import RECORD

    from . import card, contents
    from .provenance import Provenance

    quiet_transformers()
    files, translator, weights_sha256 = contents.collect_model_files(folder, onnx)
    targets = translator.languages.names if translator.languages.are_needed else []
    provenance = Provenance(folder, weights_sha256, list(map(Path, results)), stated, targets)
    example = example or card.default_example(provenance)
    if example is not None:
        (example,) = translator.add_language([example], card.choose_language(translator, provenance))
    if pictures and example is not None:
        files["attention.png"] = card.attention_plot(translator, example)
    if pictures and (curve := card.training_curve(provenance.curves)):
        files["training_curve.png"] = curve
    files["README.md"] = card.write_card(repo, translator, provenance, files, example=example).encode()
    contents.refuse_secrets(files)
    if not provenance.run and (folder / RECORD).is_file():
        typer.echo(f"the card leaves out {RECORD}: without {MANIFEST}, the weights may not be those of the run")
    if missing := provenance.missing():
        typer.echo(f"to complete the model card, add {', '.join(missing)}")
    return files


def summary(planned: "Plan", unpublished_names: list[str]) -> list[str]:
    """Return the lines of a dry run: one per file, with its status and size, then the totals.

    unpublished_names: files of the model folder that are not published
    """
    lines = [f"{change.status:<8}{change.size:>14,}  {change.name}" for change in planned.changes]
    if unpublished_names:
        lines.append(f"not published: {', '.join(unpublished_names)}")
    sent, deleted = planned.with_status("new", "changed"), planned.with_status("deleted")
    state = f"{planned.repo_id}, revision {planned.revision}"
    if planned.head is None:
        state += f", a new {'private' if planned.private else 'public'} repository"
    elif not planned.revision_exists:
        state += ", a new branch"
    if not planned.has_changes:
        return [*lines, f"{state}: no changes"]
    sent_bytes = sum(change.size for change in sent)
    total = f"{len(sent)} of {len(planned.changes) - len(deleted)} files, {sent_bytes:,} bytes"
    if deleted:
        total += f", {len(deleted)} deleted"
    return [*lines, f"{state}: one commit with {total}"]


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer")


if __name__ == "__main__":
    main()
