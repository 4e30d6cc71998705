"""`python -m paper table3 --output FOLDER`: the paper's tables, figures and claims, one command each."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from training.recipe_options import RECIPE_OPTIONS, parse_options
from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Reproduce the paper's tables, figures and claims at a small scale.",
)

Output = Annotated[Path, typer.Option(help="Folder for the results: JSON files and pictures.")]
Model = Annotated[Path, typer.Option(help="A model folder.")]
Source = Annotated[str | None, typer.Option(help="The sentence; default: a caption with pronouns.")]
Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas.")]
Jobs = Annotated[int, typer.Option(min=1, help="Number of models to train in parallel.")]
Run = Annotated[Path, typer.Option(help="The folder of a finished training run.")]
Seconds = Annotated[float, typer.Option(min=0, help="Seconds per speed measurement.")]
Multi30k = Annotated[str, typer.Option(help="The folder of Multi30k.")]

VOCABULARY = 4000  # of the tokenizer of Table 4's words
SENTENCES = 300  # of the development set, for the claims
LINES = 50  # of text, for the report on heads
FIGURES = [1, 2, 3, 4, 5]
SET_HERE = {"seed", "output_dir"}  # keys of a recipe that the commands set for each model


def read_keys(words: list[str], of_command: set[str]) -> dict[str, str | None]:
    """Return the keys of a recipe on a command line. Raises InputError for those that the command sets itself."""
    keys = parse_options(words)
    for key in keys:
        if key.replace("-", "_") in of_command:
            raise InputError(f"--{key} is set by this command; leave it out (--seeds and --output choose runs)")
    return keys


@app.command(help="Count the operations of four kinds of layers, their sequential steps and their paths.")
def table1(output: Output) -> None:
    from .table1 import write_table1

    typer.echo(write_table1(output))


@app.command(help="Compare our models with the rows of Table 2. Their training FLOPs are counted and estimated.")
def table2(
    output: Output,
    data: Multi30k = "data/multi30k",
    results: Annotated[Path | None, typer.Option(help="A CSV file of `evaluate --record`; default: ours.")] = None,
) -> None:
    from .table2 import RESULTS, write_table2

    typer.echo(write_table2(output, results or RESULTS, data))


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Train the rows of Table 3 and test the paper's findings on them. Other options are keys of the recipe "
    "multi30k_table3: --data FOLDER, --max_steps 5000. Run the same command again to resume.",
)
def table3(
    context: typer.Context,
    output: Output,
    rows: Annotated[
        str | None, typer.Option(help="Rows, separated by commas, such as base,A-h1; default: all.")
    ] = None,
    seeds: Seeds = "1,2,3",
    jobs: Jobs = 1,
) -> None:
    options = read_keys(context.args, SET_HERE)
    from .table3 import parse_rows, write_table3

    typer.echo(write_table3(output, parse_rows(rows), parse_seeds(seeds), jobs, options))


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Train parsers on a treebank and measure their F1, as in section 6.3 of the paper. Other options are keys of "
    "the recipe treebank_parsing: --max_steps 5000. Run the same command again to resume.",
)
def table4(
    context: typer.Context,
    output: Output,
    treebank: Annotated[Path, typer.Option(help="A folder or .zip file with wsj_0001.mrg, ...: NLTK's treebank.zip.")],
    unlabelled: Annotated[
        Path | None,
        typer.Option(help="Sentences for the semi-supervised row, one per line (.gz too); default: leave the row out."),
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="Vocabulary size of the tokenizer of words.")] = VOCABULARY,
    seeds: Seeds = "1",
) -> None:
    options = read_keys(context.args, SET_HERE | {"data", "tokenizer", "train"})
    from .table4 import write_table4

    typer.echo(write_table4(output, treebank, unlabelled, vocabulary, parse_seeds(seeds), options))


def add_figures(name: str, numbers: list[int], text: str) -> None:
    @app.command(name, help=text)
    def figures(model: Model, output: Output, source: Source = None) -> None:
        from .figures import write_figures

        echo_paths(write_figures(output, model, numbers, source))


add_figures(
    "figure1", [1], "Draw the architecture of a model. Names, shapes and parameters are those of its running modules."
)
add_figures("figure2", [2], "Draw the attention of a model. Operations and shapes are those of its running modules.")
add_figures("figure3", [3], "Find and draw heads that connect distant words.")
add_figures("figure4", [4], "Find and draw heads that connect a pronoun to an earlier noun.")
add_figures("figure5", [5], "Find and draw two heads with different tasks.")
add_figures("figures", FIGURES, "Draw figures 1 to 5.")


@app.command(help="Show every value of one head for one sentence: Q, K, V, scores, mask, softmax, weighted values.")
def walk(
    model: Model,
    output: Output,
    source: Source = None,
    target: Annotated[str | None, typer.Option(help="Its translation; default: the model's.")] = None,
    kind: Annotated[Literal["encoder", "decoder", "cross"], typer.Option(help="The kind of attention.")] = "encoder",
    layer: Annotated[int, typer.Option(min=1, help="Counted from 1.")] = 1,
    head: Annotated[int, typer.Option(min=1, help="Counted from 1.")] = 1,
) -> None:
    from .walk import Head, write_walk

    echo_paths(write_walk(output, model, source, target, Head(kind, layer, head)))


@app.command(
    help="Describe every head over many sentences: entropy, distance, share at a fixed distance and on </s>, "
    "agreement.",
)
def heads(
    model: Model,
    output: Output,
    text: Annotated[Path, typer.Option(help="Sentences, one per line (.gz too).")],
    lines: Annotated[int, typer.Option(min=1, help="Lines to read.")] = LINES,
) -> None:
    from .heads import read_sentences, write_heads
    from .result_files import format_command

    command = format_command("python -m paper heads", {"model": model, "text": text, "lines": lines})
    typer.echo(write_heads(output, model, read_sentences(text, lines), command))


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Test claims about the model; each gets a verdict and a plot. Takes about 20 minutes on two cores. Verdicts "
    "on trained models need several seeds, such as --seeds 1,2,3, which take three times as long. Other options are "
    "keys of the recipe multi30k_table3, for the claims that train models. Run the same command again to resume.",
)
def claims(
    context: typer.Context,
    output: Output,
    run: Run,
    data: Annotated[
        str | None, typer.Option(help="Folder of the run's text; default: the one recorded in the run.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Claims, separated by commas; default: all.")] = None,
    sentences: Annotated[int, typer.Option(min=2, help="Sentences of the development set to translate.")] = SENTENCES,
    seconds: Seconds = 2,
    seeds: Seeds = "1",
    jobs: Jobs = 2,
) -> None:
    check_run(run)
    options, numbers = read_keys(context.args, SET_HERE), parse_seeds(seeds)
    from .claims import CLAIMS, make_setting, write_claims

    setting = make_setting(
        output, run, data=data, sentences=sentences, seconds=seconds, seeds=numbers, jobs=jobs, options=options
    )
    write_claims(setting, only.split(",") if only else list(CLAIMS))


@app.command(help="Write README.md with all results of a folder.")
def page(output: Output) -> None:
    from .page import write_page

    typer.echo(write_page(output))


@app.command(
    "all",
    context_settings=RECIPE_OPTIONS,
    help="Run all commands for one trained model. Tables 1 to 3, the figures, the walkthrough, the report on heads, "
    "the claims, and the page. --treebank adds Table 4, with its default options. Other options are keys of the recipe "
    "multi30k_table3. Run the same command again to resume: trained rows and measured claims are skipped, the rest "
    "takes minutes.",
)
def run_all(
    context: typer.Context,
    output: Output,
    run: Run,
    data: Multi30k = "data/multi30k",
    rows: Annotated[str | None, typer.Option(help="Rows of Table 3; default: all.")] = None,
    seeds: Seeds = "1,2,3",
    jobs: Jobs = 1,
    treebank: Annotated[Path | None, typer.Option(help="A treebank for Table 4; default: no Table 4.")] = None,
    seconds: Seconds = 2,
) -> None:
    check_run(run)
    if treebank is not None and not treebank.exists():  # it is read only after Table 3, hours later
        raise InputError(f"--treebank {treebank}: no such file or folder")
    options, numbers = read_keys(context.args, SET_HERE), parse_seeds(seeds)
    from .claims import CLAIMS, make_setting, write_claims
    from .figures import write_figures
    from .heads import write_heads
    from .page import write_page
    from .result_files import format_command
    from .table1 import write_table1
    from .table2 import RESULTS, write_table2
    from .table3 import parse_rows, write_table3
    from .table4 import write_table4
    from .walk import Head, write_walk

    setting = make_setting(
        output, run, data=data, sentences=SENTENCES, seconds=seconds, seeds=numbers, jobs=jobs, options=options
    )
    chosen = parse_rows(rows)
    typer.echo(write_table1(output))
    typer.echo(write_table2(output, RESULTS, data))
    typer.echo(write_table3(output, chosen, numbers, jobs, {"data": data, **options}))
    if treebank is not None:
        typer.echo(write_table4(output, treebank, None, VOCABULARY, numbers, {}))
    echo_paths(write_figures(output, run, FIGURES, None))
    echo_paths(write_walk(output, run, None, None, Head("encoder", 1, 1)))
    command = format_command("python -m paper all", {"run": run})
    typer.echo(write_heads(output, run, setting.development.sources[:LINES], command))
    try:
        write_claims(setting, list(CLAIMS))
    except InputError:  # some claims could not be measured; the page shows the others
        typer.echo(write_page(output))
        raise
    typer.echo(write_page(output))


def check_run(run: Path) -> None:
    if not run.is_dir():
        raise InputError(f"--run {run}: no such folder")


def parse_seeds(seeds: str) -> list[int]:
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds {seeds}: must be whole numbers separated by commas, such as 1,2,3") from None
    if len(set(numbers)) < len(numbers):  # equal runs would look like a confidence interval of width 0
        raise InputError(f"--seeds {seeds}: a seed is given twice; the verdicts need different seeds")
    return numbers


def echo_paths(paths: list[Path]) -> None:
    for path in paths:
        typer.echo(path)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="python -m paper")


if __name__ == "__main__":
    main()
