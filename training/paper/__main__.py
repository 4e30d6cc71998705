"""`vaswani-transformer paper table3 --output FOLDER`: the paper's tables, figures and claims, one command each."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly

from ..__main__ import RECIPE_OPTIONS, parse_options

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Reproduce the paper's tables, figures and claims at a small scale.",
)

Output = Annotated[Path, typer.Option(help="A folder for the result files, pictures and Markdown tables.")]
Model = Annotated[Path, typer.Option(help="A model folder.")]
Source = Annotated[str | None, typer.Option(help="The sentence; default: a caption with pronouns.")]
Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas.")]
Jobs = Annotated[int, typer.Option(min=1, help="Trainings at a time.")]
Run = Annotated[Path, typer.Option(help="The folder of a finished training run.")]
Seconds = Annotated[float, typer.Option(min=0, help="How long to measure each speed.")]


@app.command(help="Count operations, sequential steps and path lengths of four kinds of layers, and fit exponents.")
def table1(output: Output) -> None:
    from .table1 import write_table1

    write_table1(output)


@app.command(help="Set our trained models, with their training FLOPs, beside the rows that the paper prints.")
def table2(
    output: Output,
    data: Annotated[str, typer.Option(help="The folder of Multi30k.")] = "data/multi30k",
    results: Annotated[Path | None, typer.Option(help="A CSV file of `evaluate --record`; default: ours.")] = None,
) -> None:
    from .table2 import RESULTS, write_table2

    write_table2(output, results or RESULTS, data)


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Train the rows of Table 3 and judge its directions. Other options are keys of the recipe multi30k_table3: "
    "--data FOLDER, --max_steps 5000. The same command resumes.",
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
    options = parse_options(context.args)
    from .table3 import ROWS, write_table3

    write_table3(output, rows.split(",") if rows else ROWS, parse_seeds(seeds), jobs, options)


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Train parsers on a treebank and measure labelled F1 (section 6.3). Other options are keys of the recipe "
    "treebank_parsing: --max_steps 5000. The same command resumes.",
)
def table4(
    context: typer.Context,
    output: Output,
    treebank: Annotated[Path, typer.Option(help="A folder or .zip file with wsj_0001.mrg, ...: NLTK's treebank.zip.")],
    unlabelled: Annotated[
        Path | None, typer.Option(help="Sentences for the semi-supervised row, one a line (.gz too); default: no row.")
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="Size of the tokenizer of the words.")] = 4000,
    seeds: Seeds = "1",
) -> None:
    options = parse_options(context.args)
    from .table4 import write_table4

    write_table4(output, treebank, unlabelled, vocabulary, parse_seeds(seeds), options)


@app.command(
    context_settings=RECIPE_OPTIONS,
    help="Measure claims about the model, each with a number, a plot and a verdict: about 20 minutes on two cores. "
    "Verdicts on trained models need several seeds, such as --seeds 1,2,3, and three times as long. The same command "
    "resumes. Other options are keys of the recipe multi30k_table3, for the claims that train models.",
)
def claims(
    context: typer.Context,
    output: Output,
    run: Run,
    data: Annotated[str | None, typer.Option(help="The folder of the run's text, if it has moved.")] = None,
    only: Annotated[str | None, typer.Option(help="Claims, separated by commas; default: all.")] = None,
    sentences: Annotated[int, typer.Option(min=2, help="Sentences of the validation text to translate.")] = 300,
    seconds: Seconds = 2,
    seeds: Seeds = "1",
    jobs: Jobs = 2,
) -> None:
    options = parse_options(context.args)
    if not run.is_dir():
        raise InputError(f"--run {run}: no such folder")
    from ..evaluation_text import TEXT_KEYS, recipe_of_run, text_of_recipe
    from .claims import CLAIMS, measure_claims
    from .claims.claim import Setting
    from .results import command_line

    recipe = recipe_of_run(run, None, {} if data is None else {"data": data})
    validation = text_of_recipe(recipe.model_copy(update={"test": []}))
    development = replace(
        validation, sources=validation.sources[:sentences], references=validation.references[:sentences]
    )
    keys = recipe.model_dump(include=set(TEXT_KEYS), exclude={"test"})
    text = {key: json.dumps(value, ensure_ascii=False) for key, value in keys.items()}
    setting = Setting(run, development, parse_seeds(seeds), output, seconds, jobs, text | options)
    given = {"run": run, "sentences": sentences, "seconds": f"{seconds:g}", "seeds": seeds}
    command = command_line("paper claims", given, options)
    measure_claims(setting, only.split(",") if only else list(CLAIMS), command, typer.echo)


@app.command(
    "all",
    context_settings=RECIPE_OPTIONS,
    help="Run all of them for one trained model, and write the page. The same command resumes Table 3 and the claims.",
)
def run_all(
    context: typer.Context,
    output: Output,
    run: Run,
    data: Annotated[str, typer.Option(help="The folder of Multi30k.")] = "data/multi30k",
    rows: Annotated[str | None, typer.Option(help="Rows of Table 3; default: all.")] = None,
    seeds: Seeds = "1,2,3",
    jobs: Jobs = 1,
    treebank: Annotated[Path | None, typer.Option(help="A treebank for Table 4; default: no Table 4.")] = None,
    seconds: Seconds = 2,
) -> None:
    chosen = [] if rows is None else ["--rows", rows]
    trained = ["--data", data, "--seeds", seeds, *context.args]
    problem: InputError | None = None  # of single claims; the page shows the others
    for words in (
        ["table1"],
        ["table2", "--data", data],
        ["table3", "--jobs", str(jobs), *chosen, *trained],
        *([] if treebank is None else [["table4", "--treebank", str(treebank), "--seeds", seeds]]),
        ["figures", "--model", str(run)],
        ["walk", "--model", str(run)],
        ["claims", "--run", str(run), "--seconds", str(seconds), "--jobs", str(jobs), *trained],
        ["page"],
    ):
        try:
            app([*words, "--output", str(output)], standalone_mode=False)
        except InputError as error:
            if words[0] != "claims":
                raise
            problem = error
    if problem is not None:
        raise problem


@app.command(help="Write README.md beside the result files of a folder: all tables, figures and claims on one page.")
def page(output: Output) -> None:
    from .page import write_page

    typer.echo(write_page(output))


def add_figures(name: str, numbers: list[int], text: str) -> None:
    @app.command(name, help=text)
    def figures(model: Model, output: Output, source: Source = None) -> None:
        from .figures import draw_figures

        for path in draw_figures(model, numbers, source, output):
            typer.echo(path)


add_figures("figure1", [1], "Draw the architecture of a model: names, shapes and parameters of its running modules.")
add_figures("figure2", [2], "Draw the attention of a model: operations, shapes and parameters of its running modules.")
add_figures("figure3", [3], "Find and draw heads that connect distant words.")
add_figures("figure4", [4], "Find and draw heads that connect a pronoun to an earlier noun.")
add_figures("figure5", [5], "Find and draw two heads with different tasks.")
add_figures("figures", [1, 2, 3, 4, 5], "Draw figures 1 to 5.")


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
    from .walk import Head, draw_walk

    draw_walk(model, source, target, Head(kind, layer, head), output)


@app.command(help="Describe every head over many sentences: entropy, distance, fixed distance, alignment.")
def heads(
    model: Model,
    output: Output,
    text: Annotated[Path, typer.Option(help="Sentences, one a line (.gz too).")],
    lines: Annotated[int, typer.Option(min=1, help="Sentences to read.")] = 50,
) -> None:
    from .heads import report_heads

    report_heads(model, text, lines, output)


def parse_seeds(seeds: str) -> list[int]:
    try:
        return [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds {seeds}: must be whole numbers separated by commas, such as 1,2,3") from None


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer paper")


if __name__ == "__main__":
    main()
