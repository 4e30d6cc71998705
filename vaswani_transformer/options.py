"""Options that several commands share."""

from typing import Annotated, Literal

import typer

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
    typer.Option(help="onnx reads what `export onnx` wrote; default: onnx for a folder with model.onnx alone."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Batches translated at the same time, one on each core; default: all cores, 1 on a GPU."),
]
