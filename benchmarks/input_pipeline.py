"""How long does a training step wait for its batch? The input pipeline's thread against building batches in the step.

python -m benchmarks.input_pipeline data/multi30k --config multi30k_en_de
"""

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from .harness import DataFolder, Record, load_recipe, report, run, stepper_of


def measure(
    data: DataFolder,
    config: Annotated[str, typer.Option(help="A recipe.")] = "multi30k_en_de",
    steps: Annotated[int, typer.Option(min=2)] = 100,
    record: Record = None,
) -> None:
    """Measure how long steps wait for their batches."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe({"data": str(data), "output_dir": folder}, config)
        stepper = stepper_of(recipe, Path(folder))
        for _ in range(10):  # warm up
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
    row = {
        "steps": steps,
        "tokens_per_step": recipe.tokens_per_step,
        "step_ms": round(1e3 * seconds / steps, 2),
        "build_ms": round(1e3 * built / steps, 3),
        "wait_ms": round(1e3 * waited / steps, 3),
        "share": round(waited / seconds, 4),
    }
    report([row], record)


if __name__ == "__main__":
    run(measure)
