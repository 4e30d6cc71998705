"""How long does a training step wait for its batch? The input pipeline's thread against building batches in the step.

python -m benchmarks.input_pipeline data/multi30k --config multi30k_en_de
"""

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani_transformer.errors import exit_cleanly

from .harness import DataFolder, Record, program, report, stepper_of

app = program()


@app.command(help="Measure how long steps wait for their batches.")
def measure(
    data: DataFolder,
    config: Annotated[str, typer.Option(help="A recipe.")] = "multi30k_en_de",
    steps: Annotated[int, typer.Option(min=2)] = 100,
    record: Record = None,
) -> None:
    from training.recipe import load_recipe

    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe(config, {"data": str(data), "output_dir": folder})
        stepper = stepper_of(recipe, Path(folder))
        for _ in range(10):
            stepper.step()
        stepper.input.waited = 0.0
        started = time.perf_counter()
        for _ in range(steps):
            stepper.step()
        seconds = time.perf_counter() - started
        waited = stepper.input.waited
        stepper.input.close()
        started = time.perf_counter()
        for step in range(steps):
            stepper.input.build(step)
        built = time.perf_counter() - started
    row: dict[str, Any] = {"steps": steps, "tokens_per_step": recipe.tokens_per_step}
    row |= {"step_ms": round(1e3 * seconds / steps, 2), "build_ms": round(1e3 * built / steps, 3)}
    row |= {"wait_ms": round(1e3 * waited / steps, 3), "share": round(waited / seconds, 4)}
    report([row], record, "input_pipeline")


if __name__ == "__main__":
    exit_cleanly(app, name="python -m benchmarks.input_pipeline")
