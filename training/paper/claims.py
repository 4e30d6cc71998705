"""Claims about the paper's model, each with numbers, a plot and a verdict in a row file of its own.

A claim whose row file is there is not measured again, so an interrupted command resumes.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from vaswani_transformer.errors import BrokenFileError, InputError

from ..json_files import write_json
from . import measured_claims, speed_claims, trained_claims
from .claim import Numbers, Setting
from .results import origin, save

CLAIMS = {**measured_claims.CLAIMS, **speed_claims.CLAIMS, **trained_claims.CLAIMS}


def measure_claims(setting: Setting, names: list[str], command: str, say: Callable[[str], None]) -> None:
    """Write claims/NAME.json and claims/NAME.png for every claim that has no row file yet.

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
            numbers = CLAIMS[name].measure(setting)
        except InputError as error:
            problems.append(f"{name}: {error}")
            say(f"{name}: not measured")
            continue
        about = origin(f"{command} --only {name}", setting.seeds, time.perf_counter() - started) | numbers
        about = publish(folder, name, about)
        say(f"{name}: {about['verdict']}: {about['number']}")
    if problems:
        raise InputError("; ".join(problems))


def publish(folder: Path, name: str, about: Numbers) -> Numbers:
    """Write the row file and the picture of a claim, with what follows from its numbers."""
    try:
        verdict, number, figure = CLAIMS[name].judge(about)
    except KeyError as error:
        path = folder / f"{name}.json"
        raise BrokenFileError(
            f"{path} lacks {error}: an earlier version wrote it; remove it to measure again"
        ) from error
    about = {**about, "claim": CLAIMS[name].text, "verdict": verdict, "number": number}
    save(figure, folder / f"{name}.png")
    write_json(folder / f"{name}.json", about)
    return about
