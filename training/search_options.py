"""Options that `evaluate` and `translate` share."""

from typing import Annotated

import typer

NumBeams = Annotated[int | None, typer.Option(min=1, help="Beam size; 1 is greedy search; default: the model's.")]
LengthPenalty = Annotated[float | None, typer.Option(help="alpha of ((5 + length) / 6)^alpha; default: the model's.")]
BatchTokens = Annotated[int, typer.Option(min=1, help="Tokens in a batch, times beams.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or float64; default: as saved.")]
