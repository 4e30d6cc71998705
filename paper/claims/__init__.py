"""Claims about the model: CLAIMS names them, with a function that measures and one that judges each.

    claim.py        the types: Setting -> measure_x -> Measurements -> judge_x -> Judgement
    comparison.py   trains the models that a claim compares, with every seed
    attention.py, search.py, speed.py, training.py, positions.py, small_data.py
                    measure_x and judge_x of the claims, one subject per file

claims/NAME.json has the measurements, and the verdict and the evidence that follow from them, as does NAME.png; `paper
page` judges and draws them again. Claims that already have a result file are skipped, so the same command resumes.

To add a claim, write measure_x and judge_x in a module here, add them to CLAIMS, run `paper claims --only x` and `paper
page`, and commit the JSON, the PNG and the page.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
import typer

from training.evaluate import load_run_recipe, read_recipe_text
from training.recipe import TEXT_KEYS
from vaswani_transformer.errors import InputError

from ..plots import save_picture
from ..result_files import describe_origin, format_command, is_measured, write_result
from . import attention, positions, search, small_data, speed, training
from .claim import Claim, Measurements, Setting

CLAIMS = {
    "saturation": Claim(
        "Without the factor 1/√d_k, the softmax saturates for large d_k and its gradients shrink (section 3.2.1)",
        attention.measure_saturation,
        attention.judge_saturation,
    ),
    "memory_of_attention": Claim(
        "The memory of self-attention grows quadratically with the length",
        attention.measure_memory_of_attention,
        attention.judge_memory_of_attention,
        uses_seeds=False,
    ),
    "beam_and_alpha": Claim(
        "A beam of 4 with alpha 0.6 is better than greedy search (section 6.1)",
        search.measure_beam_and_alpha,
        search.judge_beam_and_alpha,
        uses_seeds=False,
    ),
    "averaging": Claim(
        "The average of the last five checkpoints is better than the last one (section 6.1)",
        search.measure_averaging,
        search.judge_averaging,
        uses_seeds=False,
    ),
    "label_smoothing": Claim(
        "Label smoothing hurts perplexity but improves BLEU (section 5.4)",
        training.measure_label_smoothing,
        training.judge_label_smoothing,
        uses_seeds=False,
    ),
    "training_speed": Claim(
        "A Transformer trains 10 to 100 times as fast as an RNN with attention",
        speed.measure_training_speed,
        speed.judge_training_speed,
        uses_seeds=False,
        in_paper=False,
    ),
    "decoding_speed": Claim(
        "An RNN with attention decodes at least as fast as a Transformer with `generate()`",
        speed.measure_decoding_speed,
        speed.judge_decoding_speed,
        uses_seeds=False,
        in_paper=False,
    ),
    "training_without_the_factor": Claim(
        "A model with large d_k learns worse without the factor 1/√d_k (section 3.2.1)",
        training.measure_training_without_the_factor,
        training.judge_training_without_the_factor,
    ),
    "warm_up": Claim(
        "Training without learning-rate warm-up is worse (section 5.3)",
        training.measure_warm_up,
        training.judge_warm_up,
    ),
    "length_extrapolation": Claim(
        "On sentences longer than any in training, sinusoidal positions degrade less than learned ones (section 3.5)",
        positions.measure_length_extrapolation,
        positions.judge_length_extrapolation,
    ),
    "small_data": Claim(
        "An RNN beats a Transformer of the same size on little training data, but not on more",
        small_data.measure_small_data,
        small_data.judge_small_data,
        in_paper=False,
    ),
}


def make_setting(
    output: Path,
    run: Path,
    *,
    data: str | None,
    sentences: int,
    seconds: float,
    seeds: list[int],
    jobs: int,
    options: Mapping[str, str | None],
) -> Setting:
    """Return the inputs of the measurements; models are trained on the text of the run.

    data: folder of the run's text, if it has moved;  sentences: number of development sentences to translate
    """
    recipe = load_run_recipe(run, data=data)
    # The paper's development set is a recipe's validation text; read_recipe_text would return a test corpus instead.
    text = read_recipe_text(recipe.model_copy(update={"test": []}))
    development = replace(text, sources=text.sources[:sentences], references=text.references[:sentences])
    keys = recipe.model_dump(include=TEXT_KEYS, exclude={"test"})
    # As typed on the command line, for the recipes of the models that the claims train.
    text_keys = {key: json.dumps(value, ensure_ascii=False) for key, value in keys.items()}
    given = {"run": run, "sentences": sentences, "seconds": f"{seconds:g}", "seeds": ",".join(map(str, seeds))}
    command = format_command("python -m paper claims", given, options)
    return Setting(run, development, seeds, output, seconds, jobs, text_keys | dict(options), command)


def write_claims(setting: Setting, names: list[str]) -> None:
    """Write claims/NAME.json and claims/NAME.png for every claim that has no result file yet.

    Raises InputError at the end if some claims could not be measured.
    """
    folder = setting.output / "claims"
    if unknown := [name for name in names if name not in CLAIMS]:
        raise InputError(f"--only {unknown[0]}: not a claim; claims: {', '.join(CLAIMS)}")
    commands = {name: f"{setting.command} --only {name}" for name in names}
    measured = {name for name, command in commands.items() if is_measured(folder / f"{name}.json", command)}
    problems: list[str] = []
    for name, command in commands.items():
        if name in measured:
            typer.echo(f"{name}: already measured, skipped")
            continue
        torch.manual_seed(setting.seeds[0])
        started, claim = time.perf_counter(), CLAIMS[name]
        try:
            measurements = claim.measure(setting)
        except InputError as error:
            problems.append(f"{name}: {error}")
            typer.echo(f"{name}: not measured")
            continue
        seeds = setting.seeds if claim.uses_seeds else []
        result = describe_origin(command, seeds, time.perf_counter() - started) | measurements
        result = write_claim(folder, name, result)
        typer.echo(f"{name}: {result['verdict']}: {result['evidence']}")
    if problems:
        raise InputError("; ".join(problems))


def write_claim(folder: Path, name: str, result: Measurements) -> Measurements:
    """Write the result file and the picture of a claim, with the verdict that follows from its measurements."""
    judgement = CLAIMS[name].judge(result)
    result = {**result, "claim": CLAIMS[name].text, "verdict": judgement.verdict, "evidence": judgement.evidence}
    path = folder / f"{name}.json"
    save_picture(judgement.figure, path.with_suffix(".png"))
    write_result(path, result)
    return result
