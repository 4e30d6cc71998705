"""Start the training program: in this process, or in several through Accelerate's launcher.

    vaswani-transformer train ...       `start`. A single process trains right here: `training.__main__`
        python -m training.launch       `accelerate_launch`: Accelerate's launcher, for several processes. `launch`
                                        starts it, forwards signals to it and returns its exit code
            python -m training ...      the processes of the run, one for each GPU

`accelerate launch -m training` starts the last of these itself.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import yaml

from vaswani_transformer.errors import BrokenFileError, UnavailableError, one_line
from vaswani_transformer.exit import FIRST_ERROR, end_now, print_error, signal_handlers
from vaswani_transformer.programs import safe_environment

# Set when `launch` names a precision only because Accelerate requires one. Training then uses the precision of the
# recipe or the machine.
LAUNCHED = "VASWANI_TRANSFORMER_LAUNCHED"
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(arguments: list[str]) -> None:
    """Train in one process or in several.

    Their number is that of --processes or of the recipe; else that of Accelerate's configuration, if there is one; else
    that of the GPUs, and one without a GPU.
    """
    from .__main__ import main
    from .recipe_options import read_processes

    if {"--help", "-h"} & set(arguments) or not arguments:
        main(["--help"])
        return
    processes, config = read_processes(arguments), find_accelerate_config()
    if processes is None and config is None:
        import torch

        processes = max(1, torch.cuda.device_count())
    if processes == 1 and config is None:  # right here, so that every signal is the training's own: Ctrl-C, kill -9
        sys.argv[1:] = arguments  # run.json records them
        main(arguments)
    elif code := launch(arguments, processes, config):
        raise SystemExit(code)


def find_accelerate_config() -> Path | None:
    """Return the file that `accelerate config` has written, which may ask for more than processes."""
    from huggingface_hub.constants import HF_HOME

    path = Path(HF_HOME, "accelerate", "default_config.yaml")
    return path if path.is_file() else None


def override_processes(path: Path, processes: int | None) -> list[str]:
    """Return the options with which Accelerate starts this many processes in spite of its configuration."""
    if processes is None:
        print_error(f"{path} chooses the number of processes and their settings; --processes N chooses another number")
        return []
    try:
        kind = yaml.safe_load(path.read_text(encoding="utf-8"))["distributed_type"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise BrokenFileError(f"{path}: not a configuration of Accelerate ({one_line(str(error))})") from None
    options = ["--num_processes", str(processes)]
    # Accelerate starts a single process otherwise. Its flag replaces what the file asks for, such as FSDP.
    return [*options, "--multi_gpu"] if kind in ("NO", "MULTI_CPU") and processes > 1 else options


def launch(arguments: list[str], processes: int | None, config: Path | None) -> int:
    """Run the training program through `accelerate launch`, and return its exit code.

    processes: None for the number in the configuration
    config: Accelerate's configuration, see `find_accelerate_config`
    """
    environment = safe_environment()
    command = [sys.executable, "-m", __name__, "--quiet"]
    if config is not None:
        command += override_processes(config, processes)
    else:
        environment[LAUNCHED] = "1"
        command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        # On a CPU, Accelerate starts several processes only with --multi_gpu.
        command += ["--num_processes", str(processes), "--multi_gpu"]
    if "OMP_NUM_THREADS" not in environment:
        import torch

        threads = max(1, torch.get_num_threads() // (processes or 1)) if not torch.cuda.is_available() else 1
        command += ["--num_cpu_threads_per_process", str(threads)]
    # A process group of its own: Ctrl-C in a terminal then reaches the program once, forwarded from here. A second
    # SIGINT would end it without saving.
    child = subprocess.Popen([*command, "-m", str(__package__), *arguments], env=environment, process_group=0)
    numbers = [number for number in FORWARDED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    with signal_handlers(dict.fromkeys(numbers, lambda number, _: child.send_signal(number))):
        code = child.wait()
    return code if code >= 0 else 128 - code


def accelerate_launch() -> None:
    """Run `accelerate launch`, and exit with the code of the first process that failed, or with that of a signal."""
    signal.signal(signal.SIGINT, end_now)  # until the launcher has its own handler
    from accelerate.commands import launch as accelerate
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.disable(logging.ERROR)  # torchrun's report on every process
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3600")  # seconds to save a checkpoint; the default is 30
    accelerate.simple_launcher = become_program
    with tempfile.TemporaryDirectory() as folder:
        first_error = Path(folder) / "first"
        os.environ[FIRST_ERROR] = str(first_error)
        try:
            accelerate.main()
        except SignalException as stopped:
            raise SystemExit(128 + stopped.sigval) from None
        except ChildFailedError as failed:
            if first_error.exists():
                raise SystemExit(int(first_error.read_text())) from None
            raise SystemExit(report_failure(failed.failures)) from None
        except Exception as error:  # such as of a configuration for another version, or for MPI
            config = find_accelerate_config()
            remedy = f"; correct {config}, or write it again with `accelerate config`" if config else ""
            print_error(f"error: Accelerate cannot start the training: {one_line(str(error))}{remedy}")
            raise SystemExit(UnavailableError.exit_code) from None


def become_program(arguments: Any) -> NoReturn:
    """Replace this process by a single process of the training program; replaces a function of Accelerate.

    Accelerate would start a child, which runs on if a signal ends its parent, and whose exit code is lost.
    """
    from accelerate.utils.launch import prepare_simple_launcher_cmd_env

    command, environment = prepare_simple_launcher_cmd_env(arguments)
    environment.pop(FIRST_ERROR)  # there is only one process to report
    shutil.rmtree(Path(os.environ[FIRST_ERROR]).parent)
    os.execvpe(command[0], command, environment)


def report_failure(failures: dict[int, Any]) -> int:
    """Report a process that could not report its own failure (killed, or disconnected), and return its exit code.

    failures: exit codes and more by rank, including those that the launcher itself ended by SIGTERM
    """
    codes = {rank: failure.exitcode for rank, failure in failures.items()}
    # The cause is a signal other than the launcher's SIGTERM, or else an exit code.
    rank, code = min(codes.items(), key=lambda item: (item[1] == -signal.SIGTERM, item[1] > 0))
    if code < 0:
        hint = "; the system does this if memory runs out" if code == -signal.SIGKILL else ""
        print_error(f"error: rank {rank}: ended by {signal.Signals(-code).name}{hint}")
    elif code == UnavailableError.exit_code:
        print_error(f"error: rank {rank}: lost the connection to a process on another host")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    accelerate_launch()
