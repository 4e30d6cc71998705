"""Claims about the paper's model, each with numbers, a plot and a verdict in a row file of its own.

A claim whose row file is there is not measured again, so an interrupted command resumes.
"""

import time
from collections.abc import Callable

import torch

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import InputError

from ..json_files import write_json
from .claim import Result, Setting
from .measured_claims import averaging, beam_and_alpha, memory_of_attention, square_root_of_d_k
from .rows import origin
from .speed_claims import decoding_throughput, throughput
from .trained_claims import label_smoothing, length_extrapolation, small_data, training_without_the_factor, warm_up

CLAIMS: dict[str, Callable[[Setting], Result]] = {
    "square_root_of_d_k": square_root_of_d_k,
    "memory_of_attention": memory_of_attention,
    "throughput": throughput,
    "decoding_throughput": decoding_throughput,
    "averaging": averaging,
    "beam_and_alpha": beam_and_alpha,
    "label_smoothing": label_smoothing,
    "warm_up": warm_up,
    "length_extrapolation": length_extrapolation,
    "training_without_the_factor": training_without_the_factor,
    "small_data": small_data,
}


def measure_claims(setting: Setting, names: list[str], command: str, say: Callable[[str], None]) -> None:
    """Write claims/NAME.json and, with a plot, claims/NAME.png for every claim that has no row file yet.

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
            numbers, figure = CLAIMS[name](setting)
        except InputError as error:
            problems.append(f"{name}: {error}")
            say(f"{name}: not measured")
            continue
        if figure is not None:
            with atomic_file(folder / f"{name}.png") as file:
                figure.savefig(file, format="png")
        made = origin(f"{command} --only {name}", setting.seeds, time.perf_counter() - started)
        write_json(folder / f"{name}.json", {"claim": (CLAIMS[name].__doc__ or "").strip(), **made, **numbers})
        say(f"{name}: {numbers['verdict']}: {numbers['number']}")
    if problems:
        raise InputError("; ".join(problems))
