"""Run a command: print an error as one line on stderr and end with its exit code.

The exit code identifies the cause: 2 invalid user input, 3 a broken file, 4 the environment, 1 any other error. Each
command passes its typer app to `exit_cleanly`; `--debug` (or VASWANI_DEBUG=1) also prints the traceback.
"""

import atexit
import gc
import io
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from .atomic import remove, unfinished
from .errors import (
    ENVIRONMENT_ERRNOS,
    FULL_DISK,
    BrokenFileError,
    InputError,
    UnavailableError,
    escape_controls,
    one_line,
    out_of_memory,
)

UNEXPECTED, INTERRUPTED = 1, 130  # 130 = 128 + SIGINT, as shells report it

LONGEST_LINE = 4000  # characters of an error

# Optional packages and the extra that installs them: `pip install "vaswani-transformer[...]"`.
EXTRAS = {
    "accelerate": "train", "datasets": "train", "pydantic": "train", "sacrebleu": "train", "sacremoses": "train",
    "jinja2": "hub", "matplotlib": "viz", "nltk": "paper", "scipy": "paper",
    "fastapi": "serve", "prometheus_client": "serve", "python_multipart": "serve", "uvicorn": "serve",
    "onnx": "onnx", "onnxruntime": "onnx", "onnxscript": "onnx",
}  # fmt: skip
OUR_MODULES = ("vaswani_transformer", "training", "conversion", "serving", "hub")

# Messages of gloo, NCCL and the store when another process of a distributed run has ended.
LOST_CONNECTION = ("closed by peer", "reset by peer", "Broken pipe", "remote process exited", "failed to recv")

# The environment variable that names a file which the first failing process of a distributed run creates.
FIRST_ERROR = "VASWANI_FIRST_ERROR"


def exit_cleanly(command: Callable[..., object], arguments: list[str] | None = None, name: str | None = None) -> None:
    """Run a typer app: return if it succeeds, else print one line and raise SystemExit.

    command: the typer app.  arguments: those after the program's name (default: sys.argv[1:]).
    name: the program's name in usage hints.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = remove_debug(arguments)
    prepare_streams()
    spare_collections()
    with exit_on_signals():
        try:
            code = command(
                args=arguments, prog_name=name, standalone_mode=False, help_option_names=["-h", "--help"],
                token_normalize_func=lambda name: name.replace("_", "-"),  # --num_beams, as in Python and in recipes
            )  # fmt: skip
            if sys.stdout is not None:
                sys.stdout.flush()
        except SystemExit as stop:
            if not isinstance(stop.__context__, BrokenPipeError):
                raise
            discard_output(1)  # typer turns a closed pipe into exit code 1
            return
        except BrokenPipeError:  # the reader of stdout has closed it (`| head`)
            discard_output(1)
            return
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BaseException as error:  # a panic of a library in Rust is no Exception
            if debug:
                print_error(traceback.format_exc().rstrip())
            error = blame_name(error, arguments)
            report(error, name)
            raise SystemExit(explain(error)[0]) from None
    if code == INTERRUPTED:  # typer returns it instead of raising
        print_error("interrupted")
    if isinstance(code, int) and code != 0:
        raise SystemExit(code)


def spare_collections() -> None:
    """Look for garbage less often than Python does.

    The imports of torch and transformers make hundreds of thousands of objects, all of which stay: the collections
    meanwhile, and the one before the process ends, would take a third of a short command's time.
    """
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)


def blame_name(error: BaseException, arguments: list[str]) -> BaseException:
    """Return InputError for a broken file or an unexpected error if a name in the arguments is not UTF-8, else `error`.

    Python opens a text of such a name; libraries in Rust and C++ cannot open such a model.
    """
    named = next((argument for argument in arguments if re.search("[\ud800-\udfff]", argument)), None)
    if named is None or explain(error)[0] not in (UNEXPECTED, BrokenFileError.exit_code):
        return error
    return InputError(f"{named} is not UTF-8; rename it")


def report(error: BaseException, name: str | None) -> None:
    """Print an error as one line, unless another process does so.  name: the program's name in usage hints"""
    if isinstance(error, FileNotFoundError) and error.errno and error.filename is None:  # of os.getcwd()
        error.filename = "the current folder was removed, change to another one"
    if isinstance(error, OSError) and error.filename is None and error.errno in FULL_DISK:
        error.filename = "stdout"  # atomic.py and lines.py name files
        discard_output(1)  # what is left in its buffer
    if claim_report(error):
        for line in render(error, name):
            print_error(line)


def remove_debug(arguments: list[str]) -> bool:
    """Remove `--debug` (before a `--`), and return whether it or VASWANI_DEBUG asks for tracebacks."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--debug" in options:
        arguments.remove("--debug")
        os.environ["VASWANI_DEBUG"] = "1"  # child processes read it
    return os.environ.get("VASWANI_DEBUG", "0") not in ("", "0")


def prepare_streams() -> None:
    """Make the standard streams usable if they are closed, or a terminal cannot show a character.

    The next opened file would get the descriptor of a closed stream, and with it what libraries print.
    """
    for descriptor, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:  # closed, as by 2>&-
            discard_output(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def claim_report(error: BaseException) -> bool:
    """Return whether this process reports the error: in a distributed run, the first to fail, which creates a file."""
    path = os.environ.get(FIRST_ERROR)
    if path is None:
        return True
    if lost_connection(error):  # a consequence; the launcher reports the process that was killed
        return False
    try:
        with open(path, "x") as file:
            file.write(str(explain(error)[0]))
    except FileExistsError:
        return False
    except OSError:  # cannot create the file: report the error anyway
        return True
    return True


def exit_on_signals() -> AbstractContextManager[object]:
    """Return a context in which SIGINT, SIGTERM and SIGHUP end the program with `end_now`.

    Two commands handle them otherwise: `train` saves (training/stopping.py), `serve` finishes its requests, but
    not on SIGHUP (`Server` in serving/connections.py). `translate --output` keeps what is complete (translate_file.py).
    While `tokenizer` trains, the defaults apply (`default_signal_handlers`).

    A signal that the parent ignores (nohup), or that has another handler, keeps it.
    """
    if threading.current_thread() is not threading.main_thread():
        return nullcontext()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    return signal_handlers({number: end_now for number in numbers if signal.getsignal(number) in defaults})


def default_signal_handlers() -> AbstractContextManager[None]:
    """Restore the default handlers, which end the process at once, while it has nothing to save or to remove.

    Python calls its own handlers only between two of its instructions in the main thread. The tokenizers library trains
    for minutes without one, and swallows the exceptions that a handler raises.
    """
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return signal_handlers({n: signal.SIG_DFL for n in numbers if signal.getsignal(n) is not signal.SIG_IGN})  # nohup


@contextmanager
def signal_handlers(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handle these signals in this way, and restore the previous handlers at the end."""
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_now(number: int, frame: FrameType | None = None) -> NoReturn:
    """Remove temporary files and end the process, without an exception, which an import such as numpy's swallows."""
    try:
        for path in list(unfinished):
            remove(path)
        if os.isatty(2):
            os.write(2, b"\x1b[?25h")  # show the cursor, which progress bars hide
        if number == signal.SIGINT and os.environ.get("RANK", "0") == "0":
            os.write(2, b"interrupted\n")  # not print(), which the signal may have interrupted
    finally:
        os._exit(128 + number)


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an error and its message.

    The code is `exit_code` if the error has one, 2 or 4 for an OSError, 4 for lack of memory, a missing package and a
    lost connection, and 1 for any other error.
    """
    unexpected = f"unexpected {type(error).__name__}: {error}; --debug shows the traceback"
    code: Any = getattr(error, "exit_code", None)
    if isinstance(code, int):  # the classes of errors.py, and typer's usage errors (2)
        return code, str(error)
    if isinstance(error, OSError):
        code = (UnavailableError if error.errno in ENVIRONMENT_ERRNOS else InputError).exit_code
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        return code, f"{place}{error.strerror}" if error.strerror else unexpected
    if (package := missing_package(error)) is not None:
        extra = f'"vaswani-transformer[{EXTRAS[package]}]"' if package in EXTRAS else package
        message = f"{package} is not installed: pip install {extra}"
    elif out_of_memory(error):
        message = f"out of memory: {one_line(str(error))}; smaller batches and fewer beams need less"
    elif lost_connection(error):
        message = "lost the connection to another process, which has ended; the cause is in its own error message"
    else:
        return UNEXPECTED, unexpected
    return UnavailableError.exit_code, message


def lost_connection(error: BaseException) -> bool:
    """Return whether the error says that another process of a distributed run has ended."""
    distributed = "WORLD_SIZE" in os.environ and isinstance(error, RuntimeError)
    return distributed and any(words in str(error) for words in LOST_CONNECTION)


def missing_package(error: BaseException) -> str | None:
    """Return the name of the third-party package whose import failed, if that is the error."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return name if name and name not in OUR_MODULES else None


def render(error: BaseException, name: str | None = None) -> list[str]:
    """Return the lines for stderr: one, and for a usage error of the command line the usage below it."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # a usage error of typer, or of click in older typers
        context = getattr(error, "ctx", None)
        path = context.command_path if context else name or Path(sys.argv[0]).name
        usage = context.get_usage() if context else f"Usage: {path} [OPTIONS]"
        message = format_message().replace("Value error, ", "").replace("Input should be", "it must be")  # pydantic's
        commands = getattr(context and context.command, "commands", {})  # of a group, such as `export`
        if commands and message.startswith("No such command") and "Did you mean" not in message:
            message += f" Commands: {', '.join(commands)}."
        return ["error: " + one_line(message), one_line(f"{usage}   (more: {path} --help)")]
    is_one_of_several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    rank = f"rank {os.environ['RANK']}: " if is_one_of_several else ""
    line = one_line(explain(error)[1])
    if len(line) > LONGEST_LINE:  # a file may hold a value of any length; the remedy is at the end
        line = f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"
    return ["error: " + rank + line]


def print_error(message: str) -> None:
    """Print a message on stderr without control characters.

    It is discarded if stderr cannot be written (closed by its reader, full disk).
    """
    try:
        print(escape_controls(message), file=sys.stderr, flush=True)
    except OSError:
        discard_output(2)


def discard_output(descriptor: int) -> None:
    """Point a file descriptor at /dev/null, so that Python's flush at exit does not fail."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == descriptor:  # it was closed
        os.set_inheritable(descriptor, True)
    else:
        os.dup2(null, descriptor)
        os.close(null)
