"""`python -m conversion.onnx MODEL OUT`: export a model's folder to ONNX and prove that it translates as torch does."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.lines import read_lines

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Precision = Literal["fp32", "fp16", "int8", "int8-weights"]
Layout = Literal["single", "split"]


@app.command(help="Write a model as one ONNX file that holds its search, and prove that it translates as torch does.")
def export(
    model: Annotated[str, typer.Argument(help="A model's folder.")],
    output: Annotated[str, typer.Argument(help="The new folder.")],
    precision: Annotated[Precision, typer.Option(help="Data type of the weights and the matrix products.")] = "fp32",
    layout: Annotated[
        Layout, typer.Option(help="single: the search is in the graph; split: encoder and decoders, Optimum's names.")
    ] = "single",
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="Add an output: the weights with which each token of the best translation attends to the source; "
            "translating takes about 10 % longer. Not with --text. In the split layout, decoder_model has it.",
        ),
    ] = False,
    text: Annotated[
        bool,
        typer.Option("--text", help="Also write model_text.onnx with the tokenizer inside: texts in, texts out."),
    ] = False,
    sentences: Annotated[
        str | None,
        typer.Option(help="A UTF-8 text file (.gz too), a few hundred lines: prove the file on these, and time it."),
    ] = None,
    runtime: Annotated[
        Literal["transformers.js"] | None,
        typer.Option("--for", help="transformers.js: the split layout in a folder that this library loads."),
    ] = None,
    no_defaults: Annotated[
        bool,
        typer.Option("--no-defaults", help="Make beam size and the like required inputs, as onnxruntime-web needs."),
    ] = False,
) -> None:
    layout = "split" if runtime else layout
    search_options = {"--sentences": sentences is not None, "--text": text, "--no-defaults": no_defaults}
    for option, is_given in search_options.items():
        if is_given and layout != "single":
            raise InputError(f"{option} needs the search in the graph: --layout single")
    if attention and (runtime or text):
        other = "--for transformers.js" if runtime else "--text"
        raise InputError(f"--attention is not an output of {other}: export twice")
    if not Path(model).is_dir():
        raise InputError(f"{model}: there is no such folder")
    lines = None if sentences is None else list(read_lines(sentences))
    import onnxruntime  # noqa: F401  # a missing package is reported at once
    import onnxscript  # noqa: F401

    from .export import export_folder

    folder, console = Path(output), Console(stderr=True, force_terminal=sys.stderr.isatty())
    options = {"defaults": not no_defaults, "attention": attention, "text": text, "for_javascript": runtime is not None}
    with console.status("reading the model") as status:  # shown on a terminal alone
        report = export_folder(
            Path(model), folder, precision, layout, sentences=lines, name=sentences or "", tell=status.update, **options
        )
    typer.echo(report)
    for path in sorted(path for kind in ("*.onnx", "*.onnx.data") for path in folder.rglob(kind)):
        typer.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {precision}")


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer export onnx")


if __name__ == "__main__":
    main()
