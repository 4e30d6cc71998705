"""The front door: `vaswani-transformer demo | tokenizer | train | evaluate | translate | score | ...`

Every command imports what it needs when it runs, so that `--help` does not wait for torch.
"""

import importlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani_transformer.atomic import atomic_folder
from vaswani_transformer.errors import InputError, exit_cleanly
from vaswani_transformer.lines import (
    arriving_lines,
    check_new_folder,
    existing_file,
    in_one_line,
    open_output,
    read_lines,
)
from vaswani_transformer.programs import launch, program, program_name

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="The Transformer of Attention Is All You Need: train it, translate with it, look into it.",
    epilog="--debug after any command shows the traceback of an error.",
)
plot_app = typer.Typer(rich_markup_mode=None)
export_app = typer.Typer(rich_markup_mode=None)
app.add_typer(export_app, name="export", help="Take a model to another runtime.")
app.add_typer(plot_app, name="plot", help="Draw attention weights, the positional encoding, or a run's curve.")

# The programs read their arguments themselves, --help too.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

Model = Annotated[str, typer.Option(help="A model's folder.")]
Download = Annotated[bool, typer.Option("--download", help="--model may name a repository of the Hub: fetch it.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; default: the best there is.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; default: as saved.")]
Output = Annotated[str, typer.Option(help="A file, or - for stdout.")]


# ---- the way of a model, in the order of its life ----------------------------------------------------------------


@app.command(add_help_option=False, context_settings=PASS_ON, help="From nothing to a translation in a few minutes.")
def demo(context: typer.Context) -> None:
    importlib.import_module("vaswani_transformer.demo").main(context.args)


@app.command(help="Train one shared byte-level BPE on text files of both languages.")
def tokenizer(
    files: Annotated[list[str], typer.Argument(help="UTF-8 text files (.gz too), one sentence a line; - for stdin.")],
    output: Annotated[str, typer.Option(help="The new folder, for tokenizer.json and tokenizer_config.json.")],
    vocab_size: Annotated[int, typer.Option(help="Entries, 4 control tokens and 256 bytes among them.")] = 37000,
    min_frequency: Annotated[int, typer.Option(min=1, help="A pair is merged if it occurs this often.")] = 2,
    split_digits: Annotated[bool, typer.Option("--split-digits", help="Every digit is a token of its own.")] = False,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Read and write small letters alone.")] = False,
) -> None:
    folder = check_new_folder(output)
    for file in files:
        if file != "-":
            existing_file(file)
    from vaswani_transformer.tokenization import lines_of_files, train_tokenizer

    quiet_transformers()
    trained = train_tokenizer(
        lines_of_files(files), vocab_size, min_frequency=min_frequency, split_digits=split_digits, lowercase=lowercase
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as unfinished:
        trained.save_pretrained(unfinished)
    typer.echo(f"{folder}: {len(trained)} entries", err=True)


@app.command(add_help_option=False, context_settings=PASS_ON, help="Train a model as a recipe says, or go on with it.")
def train(context: typer.Context) -> None:
    name = program_name()
    if {"--help", "-h"} & set(context.args) or not context.args:
        program("__main__").main(context.args or ["--help"])
        return
    code = launch(name, context.args, program("__main__").recipe_of(context.args).processes)
    if code:
        raise SystemExit(code)


@app.command(add_help_option=False, context_settings=PASS_ON, help="BLEU of a model's translations.")
def evaluate(context: typer.Context) -> None:
    program("evaluate").main(context.args)


@app.command(help="Translate lines of text: one line in, one line out.")
def translate(
    model: Model,
    input: Annotated[str, typer.Option(help="A UTF-8 text file (.gz too), or - for stdin.")] = "-",
    output: Output = "-",
    num_beams: Annotated[int | None, typer.Option(help="Beam size; 1 is greedy search; default: the model's.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="alpha of ((5 + length) / 6)^alpha; default: the model's.")
    ] = None,
    n_best: Annotated[int, typer.Option(help="Translations per line: line number, score, text, with tabs.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="The score and a tab before each translation.")] = False,
    batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch, times beams: less needs less memory.")] = 8192,
    max_source_length: Annotated[
        int | None,
        typer.Option(
            help="Cut a line of more tokens into sentences; default: 256, or as many as learned positions are."
        ),
    ] = None,
    chunk_lines: Annotated[int, typer.Option(min=1, help="Lines that are sorted into batches together.")] = 2000,
    progress: Annotated[bool, typer.Option("--progress", help="A bar per chunk, on stderr.")] = False,
    device: Device = None,
    dtype: Dtype = None,
    backend: Annotated[str, typer.Option(help="torch, or onnx for a folder that `export onnx` wrote.")] = "torch",
    threads: Annotated[int | None, typer.Option(help="Of the ONNX backend on the CPU.")] = None,
    download: Download = False,
) -> None:
    if input != "-":
        existing_file(input)
    with open_output(output) as out:
        translator = load_translator(model, device, dtype, download, backend, threads)
        number = 0
        chunks = arriving_lines(chunk_lines) if input == "-" else in_chunks(read_lines(input), chunk_lines)
        for lines in chunks:
            hypotheses = translator.translate(
                lines,
                num_beams=num_beams,
                length_penalty=length_penalty,
                n_best=n_best,
                return_scores=scores,
                batch_tokens=batch_tokens,
                max_source_length=max_source_length,
                progress=progress,
            )
            for translation in hypotheses:
                number += 1
                if isinstance(translation, str):
                    out.write(f"{in_one_line(translation)}\n".encode())
                    continue
                for hypothesis in translation:
                    columns = [str(number)] if n_best > 1 else []
                    columns += [f"{hypothesis.score:.6f}", in_one_line(hypothesis.text).replace("\t", " ")]
                    out.write(("\t".join(columns) + "\n").encode())
            out.flush()


@app.command(help="How probable a model finds given translations: log P and the number of tokens, with a tab.")
def score(
    model: Model,
    source: Annotated[str, typer.Option(help="A UTF-8 text file (.gz too).")],
    target: Annotated[str, typer.Option(help="Its translation, line by line; - for stdin.")],
    output: Output = "-",
    tokens: Annotated[bool, typer.Option("--tokens", help="A JSON object a line, with every token's log P.")] = False,
    batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch: less needs less memory.")] = 8192,
    progress: Annotated[bool, typer.Option("--progress", help="A bar on stderr.")] = False,
    device: Device = None,
    dtype: Dtype = None,
    download: Download = False,
) -> None:
    sources, targets = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(targets):
        raise InputError(f"{source} has {len(sources)} lines, {target} has {len(targets)}; they must be parallel")
    with open_output(output) as out:
        translator = load_translator(model, device, dtype, download)
        from vaswani_transformer.attention import token_labels

        for forced in translator.score(sources, targets, batch_tokens=batch_tokens, progress=progress):
            line = f"{forced.total:.6f}\t{len(forced.tokens)}"
            if tokens:
                fields = {
                    "log_probability": forced.total,
                    "tokens": token_labels(translator.target_tokenizer, forced.tokens),
                    "log_probabilities": forced.log_probabilities,
                }
                line = json.dumps(fields, ensure_ascii=False)
            out.write(f"{line}\n".encode())


@app.command(add_help_option=False, context_settings=PASS_ON, help="Average the weights of checkpoints (section 6.1).")
def average(context: typer.Context) -> None:
    program("average").main(context.args)


@app.command(add_help_option=False, context_settings=PASS_ON, help="What a recipe will cost: FLOPs, memory, time.")
def plan(context: typer.Context) -> None:
    program("plan").main(context.args)


@app.command(add_help_option=False, context_settings=PASS_ON, help="Another toolkit's checkpoint in; with --to, out.")
def convert(context: typer.Context) -> None:
    program("__main__", of="conversion").main(context.args)


@export_app.command("onnx", add_help_option=False, context_settings=PASS_ON, help="One ONNX file, its search inside.")
def export_onnx(context: typer.Context) -> None:
    program("onnx.__main__", of="conversion").main(context.args)


@app.command(add_help_option=False, context_settings=PASS_ON, help="Publish a model on the Hub, with its card.")
def push(context: typer.Context) -> None:
    program("__main__", of="hub").main(["push", *context.args])


@plot_app.command("attention", help="Who attends to whom in a sentence and its translation, as a heat map.")
def plot_attention(
    model: Model,
    source: Annotated[str, typer.Option(help="The sentence.")],
    output: Annotated[str, typer.Option(help="A .png, .svg or .pdf file.")],
    target: Annotated[str | None, typer.Option(help="Its translation; default: the model's.")] = None,
    kind: Annotated[str, typer.Option(help="cross, encoder or decoder.")] = "cross",
    layer: Annotated[int | None, typer.Option(help="1 is the first, 0 all; default: the last.")] = None,
    head: Annotated[int | None, typer.Option(help="1 is the first, 0 their mean; default: each.")] = None,
    download: Download = False,
) -> None:
    kind_of_picture(output)
    from vaswani_transformer.attention import attention_maps
    from vaswani_transformer.pictures import attention_figure, figure_class

    figure_class()
    translator = load_translator(model, "cpu", "float32", download)
    maps = attention_maps(translator.model, translator.tokenizer, source, target, translator.target_tokenizer)
    save_picture(attention_figure(maps, kind, layer, head), output)


@plot_app.command("positions", help="The sinusoids of section 3.5 as a heat map.")
def plot_positions(
    output: Annotated[str, typer.Option(help="A .png, .svg or .pdf file.")],
    length: Annotated[int, typer.Option(help="Positions.")] = 100,
    d_model: Annotated[int, typer.Option(help="Dimensions.")] = 128,
) -> None:
    kind_of_picture(output)
    from vaswani_transformer.pictures import positional_encoding_figure

    save_picture(positional_encoding_figure(length, d_model), output)


@plot_app.command("curve", help="Loss and BLEU of a training run over its steps.")
def plot_curve(
    run: Annotated[str, typer.Option(help="The folder that was trained, with its metrics.jsonl.")],
    output: Annotated[str, typer.Option(help="A .png, .svg or .pdf file.")],
) -> None:
    kind_of_picture(output)
    from vaswani_transformer.pictures import curve_figure, curves_of, figure_class

    figure_class()
    save_picture(curve_figure(curves_of(Path(run) / "metrics.jsonl")), output)


@app.command(help="What this machine and installation can do, and whether a model's folder loads.")
def doctor(
    model: Annotated[str | None, typer.Option(help="A model's folder to check.")] = None,
) -> None:
    from vaswani_transformer.doctor import examination

    quiet_transformers()
    translator = None if model is None else load_translator(model, None, None, download=False)
    for line in examination(translator):
        typer.echo(line)


# ---- what the commands share -------------------------------------------------------------------------------------


def load_translator(
    model: str,
    device: str | None,
    dtype: str | None,
    download: bool,
    backend: Any = "torch",
    threads: int | None = None,
) -> Any:
    """A Translator; the network is only asked with --download."""
    if not download and not Path(model).is_dir():
        hint = "; a repository of the Hub needs --download" if re.fullmatch(r"[\w.-]+/[\w.-]+", model) else ""
        raise InputError(f"--model {model}: there is no such folder{hint}")
    from vaswani_transformer.translator import Translator

    if backend == "torch":
        quiet_transformers()
    from_pretrained: Any = Translator.from_pretrained  # which has a signature for each backend
    return from_pretrained(model, device=device, dtype=dtype, backend=backend, threads=threads)


def quiet_transformers() -> None:
    """stderr is for our own lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def in_chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    lines = iter(lines)
    while chunk := list(islice(lines, size)):
        yield chunk


def kind_of_picture(output: str) -> str:
    suffix = Path(output).suffix.lower().removeprefix(".")
    if suffix not in ("png", "svg", "pdf"):
        raise InputError(f"--output {output}: the name of a picture ends in .png, .svg or .pdf")
    return suffix


def save_picture(figure, output: str) -> None:
    with open_output(output) as out:
        figure.savefig(out, format=kind_of_picture(output))
    typer.echo(output, err=True)


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # see training/__init__.py
    exit_cleanly(app, arguments or ["--help"], name="vaswani-transformer")
