"""Errors that people see: one line that says what is wrong, where, what was found and what to do.

The exit code says whose turn it is: 2 the user's input, 3 a broken file, 4 the environment.
A program hands its typer app to `exit_cleanly`, which prints `error: <message>` on stderr and exits;
`--debug` (or VASWANI_DEBUG=1) shows the traceback instead.
"""

import errno
import io
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO


class InputError(ValueError):
    """The user's input: a flag, a recipe, a text file, ids given to a model. Exit code 2."""

    exit_code = 2


class BrokenFileError(ValueError):
    """A file that should be whole is truncated, corrupt or does not fit its neighbours. Exit code 3."""

    exit_code = 3


class UnavailableError(RuntimeError):
    """The environment: disk full, a missing package, fewer processes than asked for. Exit code 4."""

    exit_code = 4


class ProofError(RuntimeError):
    """What was made of a model does not do what the model does. Exit code 1, as for what nobody foresaw."""

    exit_code = 1


UNEXPECTED, INTERRUPTED = 1, 130  # 130 = 128 + SIGINT, as shells report it

FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# What a user cannot repair by typing something else.
ENVIRONMENT_ERRNOS = FULL_DISK | {errno.EROFS, errno.EIO, errno.EMFILE, errno.ENOMEM}

# Packages that not every installation has, and what brings them: `pip install "vaswani-transformer[...]"`.
EXTRAS = {
    "accelerate": "train", "datasets": "train", "pydantic": "train", "sacrebleu": "train", "sacremoses": "train",
    "jinja2": "hub", "matplotlib": "viz", "onnx": "onnx", "onnxruntime": "onnx", "onnxscript": "onnx",
}  # fmt: skip

# On the CPU neither torch nor ONNX Runtime has a class for it: torch's allocator says its name in a RuntimeError, ONNX
# Runtime what its arena, C++ or CUDA says.
OUT_OF_MEMORY = ("DefaultCPUAllocator", "Failed to allocate memory", "bad_alloc", "out of memory")


def debug_wanted(arguments: list[str]) -> bool:
    """Whether tracebacks are asked for, by `--debug` (before a `--`) or by VASWANI_DEBUG in the environment."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--debug" in options or os.environ.get("VASWANI_DEBUG", "0") not in ("", "0")


def exit_cleanly(command: Callable[..., object], arguments: list[str] | None = None, name: str | None = None) -> None:
    """Run a typer app as a program: returns when it succeeds, else prints one line and raises SystemExit.

    command: the typer app.  arguments: those after the program's name (default: sys.argv[1:]).
    name: the program's name in usage hints.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = debug_wanted(arguments)
    if debug:
        os.environ["VASWANI_DEBUG"] = "1"  # for the programs and processes that this one starts
        if "--debug" in arguments:
            arguments.remove("--debug")
    if sys.stderr is None:  # closed (2>&-): print would turn to stdout, and the next file opened would get its number
        silence(None, 2)
        sys.stderr = open(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter gets a substitute, not a crash.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    handled = exit_on_signals()
    try:
        code = command(args=arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        # typer turns a closed pipe into exit code 1.
        silence(sys.__stdout__, 1)
        return
    except BrokenPipeError:  # the reader of our output has gone (`| head`)
        silence(sys.__stdout__, 1)
        return
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        if debug:
            tell(traceback.format_exc().rstrip())
        for line in render(error, name):
            tell(line)
        raise SystemExit(exit_code_of(error)) from None
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
    if code == INTERRUPTED:  # typer returns it instead of raising
        tell("interrupted")
    if isinstance(code, int) and code != 0:
        raise SystemExit(code)


def exit_on_signals() -> list[int]:
    """Let SIGTERM and SIGHUP raise SystemExit, as SIGINT raises KeyboardInterrupt: temporary files are then removed.

    Returns the signals that had no handler before and have one now; a SIGHUP that nohup ignores stays ignored.
    """

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)  # as shells report it

    if threading.current_thread() is not threading.main_thread():
        return []
    numbers = [
        getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
    ]  # Windows has no SIGHUP
    handled = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, stop)
    return handled


def exit_code_of(error: BaseException) -> int:
    """The exit code for an error: its own, 2 or 4 for the operating system's, 1 for what nobody foresaw."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):  # ours, and typer's usage errors (2)
        return code
    if isinstance(error, OSError):
        return UnavailableError.exit_code if error.errno in ENVIRONMENT_ERRNOS else InputError.exit_code
    if name_that_is_not_utf8(error):
        return InputError.exit_code
    return UnavailableError.exit_code if out_of_memory(error) or missing_package(error) else UNEXPECTED


def out_of_memory(error: BaseException) -> bool:
    """Whether there was not enough memory, of this machine or of its GPU."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in str(error) for words in OUT_OF_MEMORY)


def disk_error(error: BaseException, temporary: Path | None = None) -> int | None:
    """The errno of an error that came of writing: a full disk, or anything wrong with `temporary`; else None.

    safetensors and tokenizers, which are written in Rust, put it at the end of their messages; torch.save raises an
    error of its own on top of the system's.
    """
    if hasattr(error, "exit_code"):  # it has been explained already
        return None
    while not isinstance(error, OSError) and isinstance(error.__context__, Exception):
        error = error.__context__
    if not isinstance(error, OSError):
        number = re.search(r"\(os error (\d+)\)\W*$", str(error))
        return int(number[1]) if number and int(number[1]) in FULL_DISK else None
    if temporary is not None and isinstance(error.filename, (str, bytes)):
        return error.errno if Path(os.fsdecode(error.filename)).is_relative_to(temporary) else None
    return error.errno if error.errno in FULL_DISK else None


def missing_package(error: BaseException) -> str | None:
    """One of EXTRAS that could not be imported."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return name if name in EXTRAS else None


def name_that_is_not_utf8(error: BaseException) -> str | None:
    """A file's name, where it stopped a library that writes names as UTF-8: Python has odd bytes as lone surrogates."""
    return error.object if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason else None


def render(error: BaseException, name: str | None = None) -> list[str]:
    """The lines for stderr: one, and for a usage error of the command line the usage below it."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # typer's (or click's, in older typers) usage errors
        context = getattr(error, "ctx", None)
        path = context.command_path if context else name or Path(sys.argv[0]).name
        usage = context.get_usage() if context else f"Usage: {path} [OPTIONS]"
        return ["error: " + one_line(format_message()), one_line(f"{usage}   (more: {path} --help)")]
    if isinstance(error, (InputError, BrokenFileError, UnavailableError, ProofError)):
        return ["error: " + one_line(str(error))]
    if isinstance(error, OSError) and error.strerror:
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        return ["error: " + one_line(place + error.strerror)]
    if (package := missing_package(error)) is not None:
        return [f'error: {package} is not installed: pip install "vaswani-transformer[{EXTRAS[package]}]"']
    if (odd := name_that_is_not_utf8(error)) is not None:
        return ["error: " + one_line(f"{odd}: a name that is not UTF-8, which not every library takes; rename it")]
    if out_of_memory(error):
        return ["error: out of memory: " + one_line(str(error)) + "; smaller batches and fewer beams need less"]
    message = f"unexpected {type(error).__name__}: {error}; --debug shows the traceback"
    return ["error: " + one_line(message)]


def tell(message: str) -> None:
    """A line on stderr; where its reader has gone or its disk is full, nothing, now and later."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        silence(sys.__stderr__, 2)


def one_line(message: str) -> str:
    """The message without line breaks, and with control characters made visible."""
    line = re.sub(r"\s*[\r\n]+\s*", " ", message.strip())
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)


def silence(stream: TextIO | None, number: int) -> None:
    """What this stream still holds, and what it will be given, goes nowhere, without a complaint at the end."""
    nowhere, number = os.open(os.devnull, os.O_WRONLY), stream.fileno() if stream else number
    if nowhere == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(nowhere, number)
        os.close(nowhere)
