"""`vaswani-transformer demo`: run the commands that a user would type, and print them."""

import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vaswani_transformer.errors import InputError, name_in_errors
from vaswani_transformer.exit import exit_cleanly, print_error, signal_handlers
from vaswani_transformer.lines import read_lines
from vaswani_transformer.programs import safe_environment

from . import demo_corpus

SENTENCE_KINDS = ("statement", "question", "negation", "inversion", "subordinate", "perfect", "date", "price")
EXPORT_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
# A folder with this file was created by a demo and may be overwritten.
README = """# Files written by `vaswani-transformer demo`

* `model/`: the trained model, an ordinary transformers model folder, and its training run
* `corpus/`: the bundled corpus as text
* `eight.en`, `eight.de`: eight sentences of the test set, and their translations
* `attention.png`, `positions.png`: pictures of attention weights and of the positional encoding
* `onnx/`: the model and its search as one ONNX file; `timed.en`: the sentences used to time it

Run the same command again to resume an interrupted demo; it writes these files again.
"""
TITLE = README.partition("\n")[0].encode()
EXAMPLE_SENTENCE = "Tomorrow the old man is buying a red apple."

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    folder: Annotated[Path | None, typer.Argument(help="Output folder; default: demo, or demo-quick.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run all steps in a minute, with too little training.")
    ] = False,
) -> None:
    """Train a small English-German model on the bundled corpus, evaluate it, translate, draw and export it.

    About three minutes of training on two CPU cores. Run the same command again to resume after Ctrl-C.
    """
    console = Console(width=None if os.isatty(1) else 120)
    # The quick demo trains with another schedule, so it needs its own folder.
    folder = folder or Path("demo-quick" if quick else "demo")
    prepare_folder(folder)
    model = folder / "model"

    console.print(
        "[bold]1. The corpus:[/] 20,000 sentences generated from a grammar; "
        "the test sentences are not in the training set."
    )
    test = write_corpus(folder)

    console.print("\n[bold]2. Tokenizer and model,[/] trained with the recipe `demo`: 2 + 2 layers, d_model 128.")
    limits = ["--max-steps", "200", "--warmup-steps", "80"] if quick else []
    run("train", "--config", "demo", "--output-dir", model, *limits)

    console.print("\n[bold]3. Evaluation[/] on unseen sentences: BLEU with its signature, exact matches by kind.")
    run("evaluate", model)

    console.print("\n[bold]4. Eight translations[/] of unseen sentences.")
    translate_eight(console, folder, test)

    console.print("\n[bold]5. Pictures:[/] the English words that each German word attends to; positional encodings.")
    run("plot", "attention", model, "--source", EXAMPLE_SENTENCE, "--output", folder / "attention.png")
    run("plot", "positions", "--output", folder / "positions.png")

    console.print("\n[bold]6. One ONNX file[/] that contains the search, compared with torch and timed beside it.")
    exported = export(folder, [source for _, source, _ in test[: 24 if quick else 200]])

    console.print(f"\n[bold]{escape(str(model))}[/] is an ordinary transformers model folder. Commands to try next:")
    show_next_commands(console, folder, exported)


def write_corpus(folder: Path) -> list[tuple[str, str, str]]:
    """Write the bundled corpus as text; return the test set as (kind, English, German)."""
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for split in demo_corpus.SPLITS:
        columns = zip(*demo_corpus.load(split), strict=True)
        for suffix, lines in zip(("kinds", "en", "de"), columns, strict=True):
            with name_in_errors(path := corpus / f"{split}.{suffix}"):
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return list(zip(*(read_lines(corpus / f"test.{column}") for column in ("kinds", "en", "de")), strict=True))


def translate_eight(console: Console, folder: Path, test: list[tuple[str, str, str]]) -> None:
    """Translate one sentence of each kind, and print a table that shows where references differ."""
    eight = [next(row for row in test if row[0] == kind) for kind in SENTENCE_KINDS]
    sources, translations = folder / "eight.en", folder / "eight.de"
    sources.write_text("".join(f"{source}\n" for _, source, _ in eight), encoding="utf-8")
    run("translate", folder / "model", "--input", sources, "--output", translations)
    table = Table("English", "German", "", box=None, padding=(0, 2, 0, 0))
    for (_, source, reference), translation in zip(eight, read_lines(translations), strict=True):
        table.add_row(source, translation, "" if translation == reference else f"(reference: {reference})")
    console.print(table, highlight=False)


def export(folder: Path, sentences: list[str]) -> bool:
    """Export the model to ONNX and time it on sentences. Returns False if a package is missing."""
    missing = [package for package in EXPORT_PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        print(f'skipped: {", ".join(missing)} not installed; pip install "vaswani-transformer[onnx]"')
        return False
    if (folder / "onnx" / "model.onnx").is_file():  # from an earlier demo
        shutil.rmtree(folder / "onnx")
    timed = folder / "timed.en"
    timed.write_text("".join(f"{source}\n" for source in sentences), encoding="utf-8")
    run("export", "onnx", folder / "model", folder / "onnx", "--sentences", timed)
    return True


def show_next_commands(console: Console, folder: Path, exported: bool) -> None:
    pipe, model = f'echo "{EXAMPLE_SENTENCE}" | ', folder / "model"
    for line in (
        pipe + command_line("translate", model, "--n-best", "4"),
        *([pipe + command_line("translate", folder / "onnx")] if exported else []),
        command_line("score", model, "--source", folder / "eight.en", "--target", folder / "eight.de"),
        command_line("plan", "--config", "paper_base_en_de"),
        command_line("train", "--data", "FOLDER", "--output-dir", "OUTPUT"),
    ):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def prepare_folder(folder: Path) -> None:
    """Create the folder or reuse that of an earlier demo. Raises InputError if it holds other files."""
    readme = folder / "README.md"
    is_demo = readme.is_file() and readme.read_bytes().startswith(TITLE)
    if folder.is_dir() and any(folder.iterdir()) and not is_demo:
        raise InputError(f"{folder} is not empty and was not created by `demo`; choose a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    readme.write_text(README, encoding="utf-8")


def command_line(*words: str | Path) -> str:
    """Return a command line, with words quoted for a shell where needed."""
    script = Path(sys.executable).with_name("vaswani-transformer")  # the virtual environment may not be active
    found = shutil.which(script.name) is not None or not script.exists()
    return shlex.join([script.name if found else os.path.relpath(script), *map(str, words)])


def run(*words: str | Path) -> None:
    """Print a command and run it. Raises SystemExit with its exit code if it fails."""
    print(f"$ {command_line(*words)}", flush=True)
    # Ctrl-C also reaches the command, which may still save a checkpoint: wait for it.
    with signal_handlers({signal.SIGINT: lambda *_: None}):
        command = [sys.executable, "-m", "vaswani_transformer", *map(str, words)]
        code = subprocess.run(command, env=safe_environment(), check=False).returncode
    code = code if code >= 0 else 128 - code
    if code == 130:
        print_error("\nRun the same command again to resume.")
    if code:
        raise SystemExit(code)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer demo")
