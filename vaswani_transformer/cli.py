"""The command line: `vaswani-transformer demo | tokenizer | train | evaluate | translate | score | ...`

Each command imports its dependencies when it runs, so that `--help` does not wait for torch.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from . import __version__
from .atomic import atomic_folder, check_new_folder
from .errors import InputError, escape_controls
from .exit import default_signal_handlers, exit_cleanly
from .hub_files import check_folder
from .lines import (
    check_file,
    check_output,
    open_output,
    read_arriving_lines,
    read_lines,
    read_parallel_lines,
    refuse_same_file,
)
from .model_folder import choose_backend
from .options import (
    Backend,
    BatchTokens,
    Device,
    DryRun,
    Dtype,
    LengthPenalty,
    Model,
    NumBeams,
    Revision,
    TargetLanguage,
    Workers,
    find_model,
    find_model_and_backend,
)
from .programs import import_program
from .translate_file import model_sha256, translate_file
from .translate_lines import LineTranslator, OutputColumns, append_report, split_into_chunks
from .translator import Translator
from .unwrap import unwrap_lines

app = typer.Typer(
    rich_markup_mode=None,
    help="The Transformer of Attention Is All You Need: train it, translate with it, inspect it.",
    epilog="--debug after any command shows the traceback of an error.",
)
plot_app = typer.Typer(rich_markup_mode=None)
export_app = typer.Typer(rich_markup_mode=None)
recipes_app = typer.Typer(rich_markup_mode=None)
app.add_typer(export_app, name="export", help="Export a model to another runtime.")
app.add_typer(recipes_app, name="recipes", help="List the recipes of the package, or show one.")
app.add_typer(plot_app, name="plot", help="Draw attention, positions, or the curve of a run.")


def check_picture(output: str) -> str:
    """Return the file name of a picture. Raises InputError if it has another suffix, or cannot be written."""
    if Path(output).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--output {output}: the file name of a picture ends in .png, .svg or .pdf")
    check_output(output)
    return output


Precision = Annotated[
    Literal["fp16", "int8", "int8-weights"] | None,
    typer.Option(help="ONNX file of a published model, such as int8 for model_int8.onnx; default: model.onnx."),
]
Progress = Annotated[
    bool | None, typer.Option(help="Show progress bars on stderr; default: on a terminal, if the input is a file.")
]
Output = Annotated[str, typer.Option(help="A file, or - for stdout.")]
Source = Annotated[str, typer.Option(help="A UTF-8 text file (.gz too).")]
Target = Annotated[str, typer.Option(help="Its translation, line by line; - for stdin.")]
Picture = Annotated[str, typer.Option(callback=check_picture, help="A .png, .svg or .pdf file.")]

# The programs parse their arguments themselves, including --help.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
# The module of each, by command; docs/generate.py takes its help from there.
PROGRAMS = {"train": "training.__main__"}


def add_program(
    group: typer.Typer, name: str, help: str, program: str, module: str = "__main__", subcommand: str = ""
) -> None:
    """Add a command that passes its arguments on to the `main` of a program's module."""
    PROGRAMS[name] = f"{program}.{module}"

    @group.command(name, add_help_option=False, context_settings=PASS_ON, help=help)
    def run(context: typer.Context) -> None:
        import_program(program, module).main([subcommand, *context.args] if subcommand else context.args)


def show_version(wanted: bool) -> None:
    """Print the version and exit, for `--version`."""
    if wanted:
        typer.echo(f"vaswani-transformer {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


add_program(app, "demo", "Train a small model and translate with it, in minutes.", "training", "demo")


@app.command(help="Train a byte-level BPE on text files of both languages.")
def tokenizer(
    files: Annotated[list[str], typer.Argument(help="UTF-8 text files (.gz too), one sentence a line; - for stdin.")],
    output: Annotated[str, typer.Option(help="The new folder, for tokenizer.json and tokenizer_config.json.")],
    vocab_size: Annotated[
        int, typer.Option(max=1_000_000, help="Entries, including 4 special tokens and 256 bytes.")
    ] = 37000,
    min_frequency: Annotated[
        int, typer.Option(min=1, max=1_000_000_000, help="Merge pairs that occur at least this often.")
    ] = 2,
    split_digits: Annotated[bool, typer.Option("--split-digits", help="Make every digit one token.")] = False,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Convert all text to lower case.")] = False,
    symbols: Annotated[
        list[str] | None,
        typer.Option("--symbol", help="A string that stays one token, such as <2de>; repeatable."),
    ] = None,
    keep_invisible: Annotated[
        bool, typer.Option("--keep-invisible", help="Keep soft hyphens, zero-width spaces and unusual white space.")
    ] = False,
) -> None:
    folder = check_new_folder(output)
    for file in files:
        if file != "-":
            check_file(file)
        suffix = Path(file.removesuffix(".gz")).suffix
        if suffix in (".csv", ".jsonl", ".tmx", ".tsv"):
            raise InputError(f"{file} is not plain text; `train` trains a tokenizer on {suffix} files itself")
    from .tokenization import train_tokenizer

    quiet_transformers()
    texts = chain.from_iterable(map(read_lines, files))
    with default_signal_handlers():
        trained = train_tokenizer(
            texts,
            vocab_size,
            min_frequency=min_frequency,
            split_digits=split_digits,
            lowercase=lowercase,
            symbols=symbols or (),
            keep_invisible=keep_invisible,
        )
    with atomic_folder(folder) as unfinished:
        trained.save_pretrained(unfinished)
    typer.echo(f"{folder}: {len(trained)} entries", err=True)


@app.command(add_help_option=False, context_settings=PASS_ON, help="Train a model from a recipe, or resume training.")
def train(context: typer.Context) -> None:
    import_program("training", "launch").start(context.args)


@recipes_app.callback(invoke_without_command=True)
def list_recipes(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        recipe = import_program("training", "recipe")
        sizes = [size.recipe for size in import_program("training", "recipe_options").SIZES]
        for name in [*sizes, *(name for name in recipe.shipped_recipes() if name not in sizes)]:
            typer.echo("\n    ".join([name, *recipe.describe_recipe(name)]))
        typer.echo(
            f"\nFor your own text, `vaswani-transformer train --data FOLDER` counts the pairs and chooses "
            f"{', '.join(sizes[:-1])} or {sizes[-1]}.\n`recipes show NAME` prints a recipe's keys and comments."
        )


@recipes_app.command("show", help="Print a recipe: its comments, keys and values.")
def show_recipe(name: Annotated[str, typer.Argument(help="The name of a recipe.")]) -> None:
    typer.echo(import_program("training", "recipe").recipe_path(name).read_text(encoding="utf-8"), nl=False)


add_program(app, "evaluate", "Compute BLEU of a model's translations.", "training", "evaluate")


@app.command(
    help="Translate lines of text: one line in, one line out. With files, run it again to resume.",
    context_settings={"allow_extra_args": True},  # for an error that says where the text comes from
)
def translate(
    context: typer.Context,
    model: Model,
    input: Annotated[str, typer.Option(help="A UTF-8 text file (.gz too), or - for stdin.")] = "-",
    output: Output = "-",
    target_language: TargetLanguage = None,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    early_stopping: Annotated[
        str | None, typer.Option(help="never, true, false or a number of tokens (5 is fast); default: the model's.")
    ] = None,
    extra_length: Annotated[
        int | None, typer.Option(help="Tokens that a translation may have beyond its source; default: the model's.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Maximum tokens of every translation; replaces --extra-length.")
    ] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="Minimum tokens of a translation.")] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(help="Do not repeat any sequence of N tokens in a translation; 0: off.")
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Factor of the log-probability of tokens that a translation already has; 1: off."),
    ] = None,
    num_return_sequences: Annotated[
        int,
        typer.Option(
            "--n-best",
            "--num-return-sequences",
            help="Print the N best translations per line: line number, score, text (tab-separated).",
        ),
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="Print the score and a tab before each translation.")
    ] = False,
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments",
            help="Print a tab and the word alignment after each translation: 0-0 1-2, source and target word, from 0.",
        ),
    ] = False,
    batch_tokens: BatchTokens = None,
    max_source_length: Annotated[
        int | None,
        typer.Option(
            help="Split sentences of more tokens; default: the 99th percentile in training, or 128 if unknown."
        ),
    ] = None,
    split_sentences: Annotated[bool, typer.Option(help="Translate the sentences of a line one by one.")] = True,
    max_characters: Annotated[int | None, typer.Option(min=1, help="Refuse longer lines; default: no limit.")] = None,
    unwrap: Annotated[
        bool, typer.Option("--unwrap", help="Translate a document: join the lines of a paragraph.")
    ] = False,
    report: Annotated[
        str | None,
        typer.Option(help="Append doubtful translations to this file: line, reason, source, text (tab-separated)."),
    ] = None,
    warn_ratio: Annotated[
        float | None, typer.Option(help="Also report translations with fewer than RATIO times the source's tokens.")
    ] = None,
    chunk_lines: Annotated[
        int, typer.Option(min=1, help="Lines translated at a time; an interruption loses at most these.")
    ] = 2000,
    progress: Progress = None,
    device: Device = None,
    dtype: Dtype = None,
    backend: Backend = None,
    workers: Workers = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the ONNX backend on the CPU.")] = None,
    precision: Precision = None,
    revision: Revision = None,
    dry_run: DryRun = False,
) -> None:
    if context.args:
        raise InputError(
            f"unexpected argument {context.args[0]!r}: translate reads its text from stdin, or from the file that "
            f"--input names"
        )
    if not dry_run:
        check_paths(input, output, report)
    folder, backend = find_model_and_backend(context, model, backend, revision, dry_run, precision)
    translator = load_translator(folder, backend, device=device, dtype=dtype, threads=threads, precision=precision)
    search = translator.change_search(
        num_beams=num_beams,
        length_penalty=length_penalty,
        early_stopping=None if early_stopping is None else stopping_rule(early_stopping),
        extra_length=extra_length,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        no_repeat_ngram_size=no_repeat_ngram_size,
        repetition_penalty=repetition_penalty,
        num_return_sequences=num_return_sequences,
    )
    several = num_return_sequences > 1
    columns = OutputColumns(several, scores or several, alignments)
    settings = vars(search) | {
        "max_source_length": max_source_length, "split_sentences": split_sentences, "target_language": target_language,
    }  # fmt: skip
    options = settings | {"batch_tokens": batch_tokens, "workers": workers, "warn_ratio": warn_ratio}
    options["progress"] = shows_progress(progress, input, output)
    lines = LineTranslator(translator, columns, options, max_characters, None if report is None else Path(report))
    chunks = lines.number_chunks(read_chunks(input, chunk_lines, unwrap))
    translate_chunks = partial(lines.translate, look_ahead=input != "-")
    if is_translated_in_parts(input, output):
        # Only with the same values can an interrupted translation be resumed. The report is among them because it
        # lists the doubtful translations of finished parts.
        about = settings | {
            "dtype": dtype, "precision": precision, "chunk_lines": chunk_lines, "unwrap": unwrap, "scores": scores,
            "alignments": alignments, "report": report, "warn_ratio": warn_ratio, "version": __version__,
            "model": model_sha256(translator.folder), "backend": backend,
        }  # fmt: skip
        translate_file(translate_chunks, chunks, Path(input), Path(output), about)
    else:
        with open_output(output) as out, closing(translate_chunks(chunks)) as translated:
            for chunk in translated:
                out.writelines(chunk)
                out.flush()
    if warning := lines.summary():
        typer.echo(f"warning: {warning}", err=True)


def read_chunks(input: str, size: int, unwrap: bool) -> Iterator[list[str]]:
    """Yield the lines of a file or of stdin in lists of at most `size`; those typed at a terminal one by one.

    unwrap: yield paragraphs instead of lines
    """
    if input == "-" and not unwrap:
        return read_arriving_lines(size)
    lines = read_lines(input)
    return split_into_chunks(unwrap_lines(lines) if unwrap else lines, size)


def check_paths(input: str, output: str, report: str | None) -> None:
    """Refuse impossible names before a download."""
    if input != "-":
        check_file(input)
    check_output(output)
    refuse_same_file("--output", output, input)
    if report is not None:
        refuse_same_file("--report", report, input, output)
        append_report(Path(report), [], [])


def is_translated_in_parts(input: str, output: str) -> bool:
    """Return whether a file is translated to a file, in parts that survive an interruption; no pipes or devices."""
    is_to_file = output != "-" and (Path(output).is_file() or not Path(output).exists())
    return is_to_file and input != "-" and Path(input).is_file()


def load_translator(folder: Path, backend: Any = "torch", **options: Any) -> Any:
    """Load the Translator of a command."""
    if backend == "torch":
        quiet_transformers()
    return Translator.from_pretrained(folder, backend=backend, **options)


def quiet_transformers() -> None:
    """Keep transformers' messages and progress bars off stderr."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def stopping_rule(text: str) -> bool | int | str:
    """Return the value that `--early-stopping` spells as in JSON; the search refuses other texts."""
    return {"true": True, "false": False}.get(text, int(text) if text.isdecimal() else text)


def shows_progress(progress: bool | None, input: str, output: str) -> bool:
    """Return whether to show progress; by default, if stderr is a terminal that neither input nor output shares."""
    if progress is not None:
        return progress
    return input != "-" and sys.stderr.isatty() and not (output == "-" and os.isatty(1))


@app.command(help="Score given translations. Prints the log-probability of each, a tab, and its number of tokens.")
def score(
    context: typer.Context,
    model: Model,
    source: Source,
    target: Target,
    output: Output = "-",
    target_language: TargetLanguage = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Print JSON lines with the log-probability of each token.")
    ] = False,
    batch_tokens: BatchTokens = None,
    progress: Progress = None,
    device: Device = None,
    dtype: Dtype = None,
    revision: Revision = None,
    dry_run: DryRun = False,
) -> None:
    sources, targets = ([], []) if dry_run else read_pairs(source, target, output)
    folder = find_model(context, model, revision, dry_run)
    progress = shows_progress(progress, target, output)
    with open_output(output) as out:
        translator = load_translator(folder, device=device, dtype=dtype)
        from .attention_maps import token_labels

        options = {"batch_tokens": batch_tokens, "target_language": target_language, "progress": progress}
        for forced in translator.score(sources, targets, **options):
            line = f"{forced.total:.6f}\t{len(forced.tokens)}"
            if tokens:
                fields = {
                    "log_probability": forced.total,
                    "tokens": token_labels(translator.target_tokenizer, forced.tokens),
                    "log_probabilities": forced.log_probabilities,
                }
                line = json.dumps(fields, ensure_ascii=False)
            out.write(f"{line}\n".encode())


def read_pairs(source: str, target: str, output: str) -> tuple[list[str], list[str]]:
    """Read the lines of two files. Refuse impossible texts and names before a download."""
    check_output(output)
    refuse_same_file("--output", output, source, target)
    return read_parallel_lines(source, target)


@app.command(help="Align the words of given translations. Prints source-target pairs for each: 0-0 1-2.")
def align(
    context: typer.Context,
    model: Model,
    source: Source,
    target: Target,
    output: Output = "-",
    target_language: TargetLanguage = None,
    batch_tokens: BatchTokens = None,
    progress: Progress = None,
    device: Device = None,
    dtype: Dtype = None,
    revision: Revision = None,
    dry_run: DryRun = False,
) -> None:
    sources, targets = ([], []) if dry_run else read_pairs(source, target, output)
    folder = find_model(context, model, revision, dry_run)
    progress = shows_progress(progress, target, output)
    with open_output(output) as out:
        translator = load_translator(folder, device=device, dtype=dtype)
        from .alignments import find_links, format_links

        options = {"batch_tokens": batch_tokens, "target_language": target_language, "progress": progress}
        for alignment in translator.align(sources, targets, **options):
            out.write(f"{format_links(find_links(alignment))}\n".encode())


@app.command(help="Choose the attention heads that align words best. Record them in the model folder.")
def choose_heads(
    model: Model,
    source: Annotated[str, typer.Option(help="A text (.gz too); its first 1000 lines decide.")],
    target: Annotated[str, typer.Option(help="Its translation, line by line.")],
    reference: Annotated[
        str | None,
        typer.Option(
            help="Reference alignments: lines of 0-0 1-2 (1p2: a possible link); default: by eflomal, or else by nltk."
        ),
    ] = None,
    target_language: TargetLanguage = None,
    batch_tokens: BatchTokens = None,
    progress: Progress = None,
    device: Device = None,
) -> None:
    from .alignment_heads import compute_references, read_references

    sources, targets = read_parallel_lines(source, target)
    translator = load_translator(check_folder(model), device=device)
    if reference is None:
        references = compute_references(sources, targets)
    else:
        references = read_references(Path(reference), sources, targets)
    progress = shows_progress(progress, source, "-")
    first = slice(1000)
    options = {"batch_tokens": batch_tokens, "target_language": target_language, "progress": progress}
    found = translator.choose_heads(sources[first], targets[first], references[first], **options)
    for head, rate in found.single.items():
        typer.echo(f"{head}: error rate {rate:.3f}")
    typer.echo(f"chosen: {'; '.join(map(str, found.heads))}: error rate {found.rate:.3f}")
    typer.echo(f"{translator.record_alignment_heads()}: alignment_heads", err=True)


add_program(app, "average", "Average the weights of checkpoints (section 6.1).", "training", "average")
add_program(app, "plan", "Estimate FLOPs, memory and time of a recipe.", "training", "plan")
add_program(app, "convert", "Convert checkpoints from and to other toolkits.", "conversion")
add_program(
    export_app, "onnx", "Export a model, including beam search, to one ONNX file.", "conversion", "onnx.__main__"
)
add_program(app, "serve", "Serve a model over HTTP, with the API of LibreTranslate.", "serving")
add_program(app, "push", "Preview a push to the Hub, or push a model and its card.", "hub", subcommand="push")
add_program(app, "space", "Write a Space for a model on the Hub.", "hub", subcommand="space")


@plot_app.command("attention", help="Draw attention weights of a translation as heat maps.")
def plot_attention(
    context: typer.Context,
    model: Model,
    source: Annotated[str, typer.Option(help="The sentence.")],
    output: Picture,
    target: Annotated[str | None, typer.Option(help="Its translation; default: the model's.")] = None,
    kind: Annotated[Literal["cross", "encoder", "decoder"], typer.Option(help="The attention to draw.")] = "cross",
    layer: Annotated[
        int | None,
        typer.Option(
            help="Layer, from 1; 0: all layers; default: that of the head that `choose-heads` found best, or the last."
        ),
    ] = None,
    head: Annotated[int | None, typer.Option(help="Head, from 1; 0: mean of all heads; default: all heads.")] = None,
    target_language: TargetLanguage = None,
    revision: Revision = None,
    dry_run: DryRun = False,
) -> None:
    from .attention_maps import attention_maps
    from .pictures import attention_figure, new_figure

    new_figure()  # report a missing matplotlib before the model is loaded
    folder = find_model(context, model, revision, dry_run)
    translator = load_translator(folder, device="cpu", dtype="float32")
    (source,) = translator.add_language([source], target_language, "source")
    maps = attention_maps(translator.model, translator.tokenizer, source, target, translator.target_tokenizer)
    if kind == "cross" and layer is None and translator.alignment_heads:
        layer = translator.alignment_heads[0].layer + 1
    save_picture(attention_figure(maps, kind, layer, head), output)


@plot_app.command("positions", help="Draw the sinusoids of section 3.5 as a heat map.")
def plot_positions(
    output: Picture,
    length: Annotated[int, typer.Option(help="Positions.")] = 100,
    d_model: Annotated[int, typer.Option(help="Dimensions.")] = 128,
) -> None:
    from .pictures import positional_encoding_figure

    save_picture(positional_encoding_figure(length, d_model), output)


@plot_app.command("curve", help="Draw loss and BLEU of a training run over its steps.")
def plot_curve(
    run: Annotated[str, typer.Option(help="The output folder of the run, with metrics.jsonl.")],
    output: Picture,
) -> None:
    from .training_run import METRICS, curve_figure, read_curves

    save_picture(curve_figure(read_curves(Path(run) / METRICS)), output)


@app.command(help="Describe this machine, the installation and a model.")
def doctor(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="A model to check: a folder, owner/name on the Hub, or a checkpoint.")
    ] = None,
    revision: Revision = None,
    dry_run: DryRun = False,
) -> None:
    if model is None and (revision is not None or dry_run):
        raise InputError("--revision and --dry-run need a model: vaswani-transformer doctor owner/name")
    folder = None if model is None else find_model(context, model, revision, dry_run)
    from .doctor import environment_lines, model_lines

    of_model = [] if folder is None else model_lines(load_translator(folder, choose_backend(folder)), folder)
    # The fences keep the columns when the lines are pasted into an issue.
    for line in chain(["```text"], environment_lines(), of_model, ["```"]):
        typer.echo(escape_controls(" ".join(line.splitlines())))  # a stranger's files name the languages


def save_picture(figure, output: str) -> None:
    with open_output(output) as out:
        figure.savefig(out, format=Path(output).suffix.lower().removeprefix("."))
    typer.echo(output, err=True)


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # see training/__init__.py
    exit_cleanly(app, arguments or ["--help"], name="vaswani-transformer")
