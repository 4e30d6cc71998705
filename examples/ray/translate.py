"""Translate a large text or Parquet file on a Ray cluster, or on all GPUs of one machine: one line in, one line out.

    pip install "vaswani-transformer[ray]"
    python examples/ray/translate.py demo/model --input corpus.en.gz --output corpus.de
    python examples/ray/translate.py demo/model --input corpus.parquet --column text --output corpus.de --gpus 1

The program joins the cluster of `ray start` or RAY_ADDRESS, or starts one on this machine. Only the model must exist on
every node, under the same name; text comes from this process and returns to it. Parts of the file are translated by Ray
tasks, whose workers keep the model. The parts of a node that dies are translated by the others, and after an
interruption of this program, the same command translates the missing parts.

Tasks instead of actors, because an actor is bound to the CPUs or the GPU that it needs: after the death of a node, its
parts would wait until another node has as many to spare. A task waits for the next free ones.
"""

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import ray
import ray.data
import typer
from ray.exceptions import RayTaskError

from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.hub_files import check_folder, is_repository
from vaswani_transformer.lines import check_file, read_lines, remove_line_breaks
from vaswani_transformer.options import TargetLanguage
from vaswani_transformer.translate_file import model_sha256, translate_file
from vaswani_transformer.translate_lines import split_into_chunks
from vaswani_transformer.translator import as_texts

app = typer.Typer(add_completion=False, rich_markup_mode=None)
PARTS_AHEAD = 2  # that wait for each task that can run, so that none waits for this process
translators: dict[str, Translator] = {}  # of a worker, which runs many tasks


@ray.remote(max_retries=-1, max_calls=0)  # by default, a worker with a GPU ends after one task
def translate_lines(model: str, options: dict[str, Any], search: dict[str, Any], lines: list[str]) -> list[str]:
    """Translate lines in a worker of the cluster."""
    if model not in translators:
        translators[model] = Translator.from_pretrained(model, **options)
    return translators[model].translate(lines, **search)


def count_tasks(cpus: int, gpus: int) -> int:
    """Return how many tasks the cluster can run now."""
    has = ray.cluster_resources()
    return max(1, int(has.get("GPU", 0) // gpus if gpus else has.get("CPU", 0) // cpus))


def read_column(path: Path, column: str) -> Iterator[str]:
    """Yield a column of a Parquet file in its order, with an empty text for null; Ray Data reads ahead."""
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rows = ray.data.read_parquet(str(path))
    if column not in (names := rows.columns() or []):
        raise InputError(f"{path} has no column {column}; --column is one of {', '.join(names)}")
    for row in rows.select_columns([column]).iter_rows():
        yield "" if row[column] is None else row[column]


@app.command(help="Translate a large file on a Ray cluster. Run it again to resume.")
def translate(
    model: Annotated[str, typer.Argument(help="A model folder that every node has, or owner/name on the Hub.")],
    input: Annotated[Path, typer.Option(help="A UTF-8 text file (.gz too), or .parquet.")],
    output: Annotated[Path, typer.Option(help="The new text file.")],
    column: Annotated[str, typer.Option(help="The column of a Parquet file.")] = "text",
    target_language: TargetLanguage = None,
    backend: Annotated[Literal["torch", "onnx"], typer.Option(help="onnx: a folder of `export onnx`.")] = "torch",
    chunk_lines: Annotated[int, typer.Option(min=1, help="Lines of a part, which one task translates.")] = 500,
    cpus: Annotated[int, typer.Option(min=1, help="CPU cores of a task.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, max=1, help="1: each task has a GPU.")] = 0,
) -> None:
    check_file(input)
    identity = model
    if not is_repository(model):
        model = str(check_folder(model).absolute())  # workers have current folders of their own
        identity = model_sha256(Path(model))
    ray.init(log_to_driver=False, logging_level="ERROR")
    options: dict[str, Any] = {"backend": backend, "device": "cuda" if gpus else "cpu"}
    if backend == "onnx":
        options["threads"] = cpus
    search = {"target_language": target_language}
    task = translate_lines.options(num_cpus=cpus, num_gpus=gpus)

    def translate_chunks(chunks: Iterable[tuple[list[str], int]]) -> Generator[list[bytes]]:
        running: deque[ray.ObjectRef] = deque()
        for lines, first in chunks:
            running.append(task.remote(model, options, search, as_texts(lines, "line", first)))
            while len(running) > PARTS_AHEAD * count_tasks(cpus, gpus):
                yield wait_for(running.popleft())
        while running:
            yield wait_for(running.popleft())

    def read(path: Path) -> Iterator[str]:
        return read_column(path, column) if path.suffix == ".parquet" else read_lines(path)

    about = {"model": identity, "chunk_lines": chunk_lines, "column": column}
    chunks = enumerate(split_into_chunks(read(input), chunk_lines))
    numbered = ((lines, 1 + index * chunk_lines) for index, lines in chunks)
    translate_file(translate_chunks, numbered, input, output, about | options | search)


def wait_for(found: ray.ObjectRef) -> list[bytes]:
    """Return the lines of a task's translations. Raises the error of the task."""
    try:
        return [f"{remove_line_breaks(text)}\n".encode() for text in ray.get(found)]
    except RayTaskError as error:
        raise error.cause from None


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    exit_cleanly(app)
