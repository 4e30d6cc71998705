"""`vaswani-transformer demo`: the commands that a user would type, printed as they run."""

import importlib.util
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

from vaswani_transformer.errors import InputError, exit_cleanly, tell
from vaswani_transformer.lines import read_lines
from vaswani_transformer.programs import program, safe_environment

EIGHT = ("statement", "question", "negation", "inversion", "subordinate", "perfect", "date", "price")
EXPORTED_WITH = ("onnx", "onnxruntime", "onnxscript")
# The first file of a demo's folder: where it is, the rest is ours to write again.
README = """# What `vaswani-transformer demo` has written

* `model/`: the trained model, an ordinary model folder of transformers, and its run
* `corpus/`: the embedded corpus as text
* `eight.en`, `eight.de`: eight sentences of the test set, and their translations
* `attention.png`, `positions.png`: the pictures
* `onnx/`: the model and its search as one ONNX file; `timed.en`: the sentences that it was timed on

The same command again goes on where it was, and writes these files again.
"""
PICTURED = "Tomorrow the old man is buying a red apple."

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    folder: Annotated[Path | None, typer.Argument(help="Where everything is written; default: demo.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Under a minute: every step, but far too little training.")
    ] = False,
) -> None:
    """Train a small English-German model on the embedded corpus, measure it, translate with it, look inside.

    About three minutes of training on two CPU cores. Ctrl-C and the same command again goes on where it was.
    """
    # A wider page where no terminal sets one. The quick demo has another schedule, and so another run.
    console = Console(width=None if sys.stdout.isatty() else 120)
    folder = folder or Path("demo-quick" if quick else "demo")
    claim(folder)
    model, corpus = folder / "model", folder / "corpus"

    console.print("[bold]1. The corpus:[/] 20,000 sentences that a grammar wrote; none of the test set is in training.")
    program("demo_corpus.__main__").write_parallel_text(corpus)
    test = [list(read_lines(corpus / f"test.{column}")) for column in ("kinds", "en", "de")]
    eight = [next(row for row in zip(*test, strict=True) if row[0] == kind) for kind in EIGHT]
    (folder / "eight.en").write_text("".join(f"{source}\n" for _, source, _ in eight), encoding="utf-8")

    console.print("\n[bold]2. Tokenizer and model,[/] trained as the recipe `demo` says: 2 + 2 layers, d_model 128.")
    limits = ["--max-steps", "200", "--warmup-steps", "80"] if quick else []
    run("train", "--config", "demo", "--output-dir", model, *limits)

    console.print("\n[bold]3. How good is it?[/] Unseen sentences; BLEU with its signature, exact matches by kind.")
    run("evaluate", model)

    console.print("\n[bold]4. Eight translations[/] of sentences that it has never seen.")
    run("translate", "--model", model, "--input", folder / "eight.en", "--output", folder / "eight.de")
    table = Table("English", "German", "", box=None, padding=(0, 2, 0, 0))
    for (_, source, reference), translation in zip(eight, read_lines(folder / "eight.de"), strict=True):
        table.add_row(source, translation, "" if translation == reference else f"(reference: {reference})")
    console.print(table, highlight=False)

    console.print("\n[bold]5. A look inside:[/] which English words each German word attends to; where a word stands.")
    run("plot", "attention", "--model", model, "--source", PICTURED, "--output", folder / "attention.png")
    run("plot", "positions", "--output", folder / "positions.png")

    console.print("\n[bold]6. One ONNX file[/] that holds the search, proved against torch and timed beside it.")
    exported = folder / "onnx"
    missing = [package for package in EXPORTED_WITH if importlib.util.find_spec(package) is None]
    if missing:
        print(f'left out: {", ".join(missing)} not installed; pip install "vaswani-transformer[onnx]"')
    else:
        if (exported / "model.onnx").is_file():  # of the demo before this one
            shutil.rmtree(exported)
        timed = folder / "timed.en"
        timed.write_text("".join(f"{source}\n" for source in test[1][: 24 if quick else 200]), encoding="utf-8")
        run("export", "onnx", model, exported, "--sentences", timed)

    console.print(f"\n[bold]{escape(str(model))}[/] is an ordinary model folder of transformers. What to type next:")
    says = f'echo "{PICTURED}" | '
    for line in (
        says + typed("translate", "--model", model, "--n-best", "4"),
        *([says + typed("translate", "--model", exported, "--backend", "onnx")] if not missing else []),
        typed("score", "--model", model, "--source", folder / "eight.en", "--target", folder / "eight.de"),
        typed("plan", "--config", "paper_base_en_de"),
        typed("train", "--config", "multi30k_en_de", "--data", "FOLDER"),
    ):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def claim(folder: Path) -> None:
    """Make the folder the demo's: new, empty, or of an earlier demo. InputError for anybody else's."""
    readme, title = folder / "README.md", README.partition("\n")[0].encode()
    if folder.is_dir() and any(folder.iterdir()) and not (readme.is_file() and readme.read_bytes().startswith(title)):
        raise InputError(f"{folder} is not empty and no demo's; name a new folder, so that nothing in it is lost")
    folder.mkdir(parents=True, exist_ok=True)
    readme.write_text(README, encoding="utf-8")


def typed(*words: str | Path) -> str:
    """A command as one types it, whatever the folder is called."""
    return shlex.join(["vaswani-transformer", *map(str, words)])


def run(*words: str | Path) -> None:
    """Print a command as one would type it, and run it; its exit code, if not 0, becomes the demo's."""
    print(f"$ {typed(*words)}", flush=True)
    # Ctrl-C reaches the command by itself and it ends in its own time: training saves first.
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        command = [sys.executable, "-m", "vaswani_transformer", *map(str, words)]
        code = subprocess.run(command, env=safe_environment(), check=False).returncode
    finally:
        signal.signal(signal.SIGINT, previous)
    if code == 130:
        tell("\nThe same command again goes on from here.")
    if code:
        raise SystemExit(code)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer demo")
