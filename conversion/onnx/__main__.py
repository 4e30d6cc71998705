"""`python -m conversion.onnx MODEL OUT`: export a model to ONNX and verify that it translates as torch does."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from vaswani_transformer.atomic import check_new_folder
from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.lines import check_file
from vaswani_transformer.options import DryRun, Model, Revision, find_model

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Export a model to ONNX and verify that it translates as torch does.")
def export(
    context: typer.Context,
    model: Model,
    output: Annotated[Path, typer.Argument(help="The new folder.")],
    precision: Annotated[
        Literal["fp32", "fp16", "int8", "int8-weights"],
        typer.Option(help="Data type of weights and matrix products; int8-weights: float32 products."),
    ] = "fp32",
    layout: Annotated[
        Literal["single", "split"] | None,
        typer.Option(
            help="single: one graph with the search; split: encoder and decoders, with Optimum's names; default: what "
            "--for needs, or single."
        ),
    ] = None,
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="Add an output: the attention of each token of the best translation to the source; translating takes "
            "about 10 % longer. Not with --text. In the split layout, decoder_model has it.",
        ),
    ] = False,
    repetition: Annotated[
        bool,
        typer.Option(
            "--repetition",
            help="Add the inputs no_repeat_ngram_size and repetition_penalty, and operators for them to each step; "
            "default: only if the model's generation_config.json sets one of them.",
        ),
    ] = False,
    text: Annotated[
        bool,
        typer.Option("--text", help="Also write model_text.onnx with the tokenizer inside: texts in, texts out."),
    ] = False,
    sentences: Annotated[
        str | None,
        typer.Option(help="A UTF-8 text file (.gz too) of a few hundred lines: also verify and time the export on it."),
    ] = None,
    library: Annotated[
        Literal["transformers.js", "optimum", "triton"] | None,
        typer.Option(
            "--for",
            help="transformers.js, optimum: the split layout in a folder that this library loads. triton: a model "
            "repository for Triton Inference Server, which takes token ids or, with --text, texts.",
        ),
    ] = None,
    no_defaults: Annotated[
        bool,
        typer.Option(
            "--no-defaults",
            help="Make the search settings, except early_stopping, required inputs, as onnxruntime-web needs.",
        ),
    ] = False,
    revision: Revision = None,
    dry_run: DryRun = False,
) -> None:
    if library == "triton":
        if layout == "split" or no_defaults:
            given = "--no-defaults" if no_defaults else "--layout split"
            raise InputError(f"{given} cannot be combined with --for triton: its batches need the search with defaults")
    elif library:
        if layout == "single":
            raise InputError(f"--layout single cannot be combined with --for {library}, which loads the split layout")
        layout = "split"
    layout = layout or "single"
    single_only = {"--sentences": sentences is not None, "--text": text, "--no-defaults": no_defaults}
    single_only["--repetition"] = repetition
    for option, is_given in single_only.items():
        if is_given and layout != "single":
            raise InputError(f"{option} needs the search in the graph: --layout single")
    if attention and (text or library in ("transformers.js", "optimum")):
        other = "--text" if text else f"--for {library}"
        raise InputError(f"--attention cannot be combined with {other}; export twice")
    import onnxruntime  # noqa: F401  # report missing packages before any work
    import onnxscript  # noqa: F401

    if not dry_run:
        check_new_folder(output)  # before the model is downloaded
        if sentences not in (None, "-"):
            check_file(sentences)
    folder = find_model(context, model, revision, dry_run)
    if not folder.is_dir():
        raise InputError(f"{model}: no such folder")
    from .export import export_single_folder, export_split_folder

    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    with console.status("reading the model") as status:  # shown only on a terminal
        if layout == "single":
            report = export_single_folder(
                folder,
                output,
                precision,
                defaults=not no_defaults,
                attention=attention,
                repetition=repetition,
                text=text,
                sentences=sentences,
                triton=library == "triton",
                on_stage=status.update,
            )
        else:
            assert library != "triton"
            report = export_split_folder(
                folder, output, precision, attention=attention, library=library, on_stage=status.update
            )
    typer.echo(report)
    for path in sorted(path for pattern in ("*.onnx", "*.onnx.data") for path in output.rglob(pattern)):
        typer.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {precision}")


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer export onnx")


if __name__ == "__main__":
    main()
