"""Translate a corpus of any size with any number of processes, in resumable shards, keeping the order.

    accelerate launch --multi_gpu --num_processes 8 -m training.translate MODEL --input corpus.en --output corpus.de

Shard k is the k-th `--shard-lines` lines of the input. Process r of n translates shards r, r + n, ... into files of
OUTPUT.shards, each written atomically; at the end the main process joins them. After an interruption, the same command
translates the missing shards, with any number of processes.
"""

import json
from contextlib import ExitStack
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from accelerate import PartialState

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.lines import existing_file, open_output, read_lines, without_line_breaks
from vaswani_transformer.model_folder import files_sha256, read_json_object, write_json
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.translator import Translator

from . import machine
from .report import Reporter
from .run_folder import differences, lock_run, remove_unfinished
from .search_options import BatchTokens, Dtype, LengthPenalty, NumBeams

ABOUT = "about.json"
# Processes wait for the slowest one at the end.
TIMEOUT = timedelta(days=7)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Translate a large text file with several processes, resumable by shard.")
def translate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    input: Annotated[str, typer.Option(help="A UTF-8 text file (.gz too), one sentence per line.")],
    output: Annotated[Path, typer.Option(help="Output file, one translation per line.")],
    shard_lines: Annotated[
        int, typer.Option(min=1, help="Lines per shard; a killed process loses at most one shard.")
    ] = 20_000,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = 8192,
    dtype: Dtype = None,
) -> None:
    if not model.is_dir():
        raise InputError(f"{model}: no such model folder")
    source = existing_file(input)
    if not source.is_file():
        raise InputError(f"--input {input} is not a regular file; it is read twice, so save a pipe to a file first")
    if output.is_dir():
        raise InputError(f"--output {output} is a folder; give the name of a file")
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=TIMEOUT)
    reporter = Reporter(state.is_main_process)
    machine.check_process_count(None, state.num_processes)
    folder = output.with_name(f"{output.name}.shards")
    translator = Translator.from_pretrained(model, device=state.device, dtype=dtype)
    num_beams, length_penalty, _ = translator.search_settings(num_beams, length_penalty)
    about = {"shard_lines": shard_lines, "num_beams": num_beams, "length_penalty": length_penalty, "dtype": dtype}
    with ExitStack() as stack:
        if state.is_main_process:
            stack.enter_context(lock_run(folder))
            _claim(folder, {**about, "input": files_sha256(source), "model": files_sha256(*_files_of(model))})
        state.wait_for_everyone()
        lines, read = 0, read_lines(source)
        for number, shard in enumerate(iter(lambda: list(islice(read, shard_lines)), [])):
            first, lines, path = lines + 1, lines + len(shard), _shard(folder, number)
            if number % state.num_processes != state.process_index or path.is_file():
                continue
            found = translator.translate(
                shard,
                num_beams=num_beams,
                length_penalty=length_penalty,
                batch_tokens=batch_tokens,
                split_sentences=False,
            )
            with atomic_file(path) as file:  # a JSON list, in which truncation is detected
                file.write(json.dumps([without_line_breaks(each) for each in found], ensure_ascii=False).encode())
            reporter.say(f"lines {first} to {lines} translated")
        state.wait_for_everyone()
        if state.is_main_process:
            _join(folder, output, -(-lines // shard_lines), lines)
            for path in (*folder.glob("shard-*"), folder / ABOUT, folder / ".lock"):
                path.unlink(missing_ok=True)
            if not any(folder.iterdir()):
                folder.rmdir()
            reporter.say(f"{output}: {lines} lines")
        state.wait_for_everyone()


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:07}"


def _files_of(model: Path) -> list[Path]:
    """Return the files that determine a model's translations: weights, settings, tokenizers."""
    patterns = ("*.safetensors", "*config.json", "*tokenizer.json", f"{TARGET_TOKENIZER}/*.json")
    return sorted(path for pattern in patterns for path in model.glob(pattern))


def _claim(folder: Path, about: dict[str, Any]) -> None:
    """Record this translation in the folder, and remove unfinished files of killed processes."""
    path, shards = folder / ABOUT, sorted(folder.glob("shard-*"))
    if shards and not path.is_file():
        raise InputError(
            f"{folder} holds {shards[0].name} but no {ABOUT}, so its origin is unknown; move it away, or choose "
            "another --output"
        )
    if shards and (changes := differences(read_json_object(path), about)):
        raise InputError(
            f"{folder} holds shards of another translation ({'; '.join(changes)}); finish that one, or remove the "
            "folder"
        )
    remove_unfinished(folder)
    write_json(path, about)


def _join(folder: Path, output: Path, shards: int, lines: int) -> None:
    """Join the shards in order. Raises BrokenFileError unless they have as many lines as the input."""
    written = 0
    with open_output(output) as out:
        for number in range(shards):
            path = _shard(folder, number)
            try:
                translations = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise BrokenFileError(
                    f"{path} is damaged ({error}); remove it and run the same command again"
                ) from error
            written += len(translations)
            out.write("".join(f"{line}\n" for line in translations).encode())
        if written != lines:
            raise BrokenFileError(f"{folder} has {written} translations of {lines} lines; remove the folder")


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="python -m training.translate")


if __name__ == "__main__":
    main()
