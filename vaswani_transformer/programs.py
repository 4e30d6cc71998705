"""Where the programs are (training, conversion, hub), and how training is started, in one process or in several."""

import importlib
import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import yaml

from vaswani_transformer.errors import UnavailableError


def program_name(program: str = "training") -> str:
    """A program's module: inside the package in the wheel, beside it in a clone."""
    if importlib.util.find_spec(f"vaswani_transformer.{program}") is not None:
        return f"vaswani_transformer.{program}"
    if (clone() / program / "__main__.py").is_file():
        return program
    raise UnavailableError(f"the {program} program is not installed: pip install vaswani-transformer")


def clone() -> Path:
    """The folder that holds the package."""
    return Path(__file__).resolve().parent.parent


def program(module: str, of: str = "training") -> ModuleType:
    """A module of a program."""
    name = program_name(of)
    if name == of and str(clone()) not in sys.path[:1]:
        sys.path.insert(0, str(clone()))  # before any other package of that name
    return importlib.import_module(f"{name}.{module}")


def safe_environment() -> dict[str, str]:
    """The environment of a program of ours: neither `training` nor `yaml.py` in the user's current folder is meant."""
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    if program_name() == "training":  # a clone, which need not be installed
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = str(clone()) + (os.pathsep + path if path else "")
    return environment


def launch(name: str, arguments: list[str]) -> int:
    """Run the training program, on all GPUs or as many processes as `--processes` says; its exit code.

    One process needs no launcher; for several, and where `accelerate config` has been used, it is `accelerate launch`.
    """
    import torch
    from accelerate.commands.config import default_config_file

    processes = wanted_processes(arguments) or max(1, torch.cuda.device_count())
    environment = safe_environment()
    command = [sys.executable, "-m"]
    if processes > 1 or Path(default_config_file).is_file():
        # Without --multi_gpu several processes on a CPU would silently be one.
        command += [__name__, "--quiet"]
        if not Path(default_config_file).is_file():
            command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
            command += ["--num_processes", str(processes), "--multi_gpu"]
        if "OMP_NUM_THREADS" not in environment:
            threads = max(1, len(os.sched_getaffinity(0)) // processes) if not torch.cuda.is_available() else 1
            command += ["--num_cpu_threads_per_process", str(threads)]
        command.append("-m")
    child = subprocess.Popen([*command, name, *arguments], env=environment)

    def pass_on(number: int, frame: object) -> None:
        # Ctrl-C in a terminal reaches the child by itself, and twice would mean: at once, without saving.
        if not (number == signal.SIGINT and in_foreground()):
            child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    try:
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return code if code >= 0 else 128 - code


def wanted_processes(arguments: list[str]) -> int | None:
    """`--processes`, or else `processes` in the file of `--config`; what is wrong with them the program says."""
    given: dict[str, str] = {}
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if match := re.fullmatch(r"--(processes|config)(?:=(.*))?", word):
            given[match[1]] = after if match[2] is None else match[2]
    number = given.get("processes")
    if number is None and Path(given.get("config", "")).is_file():
        try:
            recipe = yaml.safe_load(Path(given["config"]).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError, OSError):
            return None
        number = str(recipe.get("processes")) if isinstance(recipe, dict) else ""
    return int(number) if number and re.fullmatch(r"[1-9]\d{0,3}", number) else None


def in_foreground() -> bool:
    """Whether a terminal would send its Ctrl-C to this process and its children."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def accelerate_launch() -> None:
    """`accelerate launch`, ending with the exit code of the process that failed first, which has said why."""
    from accelerate.commands.launch import main
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.disable(logging.ERROR)  # torchrun's report on every process that has ended
    try:
        main()
    except ChildFailedError as failed:
        code = failed.get_first_failure()[1].exitcode
        raise SystemExit(code if code >= 0 else 128 - code) from None


if __name__ == "__main__":
    accelerate_launch()
