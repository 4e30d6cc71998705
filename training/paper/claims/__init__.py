"""Claims about the paper's model, each with measurements, a plot and a verdict in a result file of its own.

A claim whose result file is there is not measured again, so an interrupted command resumes.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.model_folder import write_json

from ..plots import save
from ..results import provenance
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
    ),
    "beam_and_alpha": Claim(
        "A beam of 4 with alpha 0.6 is better than greedy search (section 6.1)",
        search.measure_beam_and_alpha,
        search.judge_beam_and_alpha,
    ),
    "averaging": Claim(
        "The average of the last five checkpoints is better than the last one (section 6.1)",
        search.measure_averaging,
        search.judge_averaging,
    ),
    "label_smoothing": Claim(
        "Label smoothing hurts perplexity but improves BLEU (section 5.4)",
        training.measure_label_smoothing,
        training.judge_label_smoothing,
    ),
    "training_speed": Claim(
        "A Transformer trains 10 to 100 times as fast as an RNN with attention (often repeated, not in the paper)",
        partial(speed.measure_speeds, speed.training_step, True),
        speed.judge_training_speed,
    ),
    "decoding_speed": Claim(
        "An RNN with attention decodes at least as fast as a Transformer with `generate()` (often repeated)",
        partial(speed.measure_speeds, speed.decode, False),
        speed.judge_decoding_speed,
    ),
    "training_without_the_factor": Claim(
        "A model with large d_k learns worse without the factor 1/√d_k (section 3.2.1)",
        training.measure_training_without_the_factor,
        training.judge_training_without_the_factor,
    ),
    "warm_up": Claim(
        "Training without warm-up of the learning rate is worse (section 5.3)",
        training.measure_warm_up,
        training.judge_warm_up,
    ),
    "length_extrapolation": Claim(
        "Beyond the lengths of its training, a model with sinusoids loses less than one with learned positions "
        "(section 3.5)",
        positions.measure_length_extrapolation,
        positions.judge_length_extrapolation,
    ),
    "small_data": Claim(
        "On little text, an RNN is better than a Transformer of its size, and on more text no longer (often repeated)",
        small_data.measure_small_data,
        small_data.judge_small_data,
    ),
}


def measure_claims(setting: Setting, names: list[str], command: str, say: Callable[[str], None]) -> None:
    """Write claims/NAME.json and claims/NAME.png for every claim that has no result file yet.

    Raises InputError at the end if some claims could not be measured.
    """
    folder = setting.output / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    if unknown := [name for name in names if name not in CLAIMS]:
        raise InputError(f"--only {unknown[0]}: not a claim; claims: {', '.join(CLAIMS)}")
    problems: list[str] = []
    for name in names:
        if (folder / f"{name}.json").is_file():
            say(f"{name}: measured before")
            continue
        torch.manual_seed(setting.seeds[0])
        started = time.perf_counter()
        try:
            measurements = CLAIMS[name].measure(setting)
        except InputError as error:
            problems.append(f"{name}: {error}")
            say(f"{name}: not measured")
            continue
        result = provenance(f"{command} --only {name}", setting.seeds, time.perf_counter() - started) | measurements
        result = write_claim(folder, name, result)
        say(f"{name}: {result['verdict']}: {result['evidence']}")
    if problems:
        raise InputError("; ".join(problems))


def write_claim(folder: Path, name: str, result: Measurements) -> Measurements:
    """Write the result file and the picture of a claim, with what follows from its measurements."""
    path = folder / f"{name}.json"
    try:
        verdict, evidence, figure = CLAIMS[name].judge(result)
    except KeyError as error:
        raise BrokenFileError(
            f"{path} lacks {error}: an earlier version wrote it; remove it to measure again"
        ) from error
    result = {**result, "claim": CLAIMS[name].text, "verdict": verdict, "evidence": evidence}
    save(figure, path.with_suffix(".png"))
    write_json(path, result)
    return result
