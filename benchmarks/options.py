"""Command-line options that several benchmarks have."""

from pathlib import Path
from typing import Annotated, Literal

import typer

BATCH_SIZES = [1, 16, 64]  # sentences per batch, unless --batch-size is given

DataFolder = Annotated[Path, typer.Argument(help="Folder with train.en and train.de (or .gz), for example Multi30k's.")]
BatchSizes = Annotated[list[int] | None, typer.Option(help="Sentences per batch; repeatable.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each system.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; each system runs once per round.")]
ClockName = Annotated[
    Literal["cpu", "wall"],
    typer.Option("--clock", help="cpu: CPU seconds of the process; wall: elapsed seconds, required on a GPU."),
]
Device = Annotated[Literal["cuda", "cpu"], typer.Option(help="Where to run.")]
Record = Annotated[Path | None, typer.Option("--record", help="Append the result to this CSV file.")]
