"""The errors that users see; `exit` prints them as one line on stderr.

Their exit codes identify the cause: 2 invalid user input, 3 a broken file, 4 the environment, 1 any other error, such
as a failed proof.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Invalid input from the user: a flag, a recipe, a text file, ids given to a model. Exit code 2."""

    exit_code = 2


class BrokenFileError(ValueError):
    """A file is truncated, corrupt or inconsistent with the files beside it. Exit code 3."""

    exit_code = 3


class UnavailableError(RuntimeError):
    """The environment lacks something: disk space, memory, a package, a device. Exit code 4."""

    exit_code = 4


class ProofError(RuntimeError):
    """An exported or converted model does not reproduce the original. Exit code 1."""

    exit_code = 1


@contextmanager
def as_input_errors() -> Iterator[None]:
    """Raise a ValueError of the published code, which cannot import this file, as InputError."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from None


@contextmanager
def name_in_errors(path: object) -> Iterator[None]:
    """Give the errors of an open file its name, which those of reading and locking lack.

    Raises UnavailableError for errors of the system that a library in Rust or torch's memory map reports.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None and "(os error " in str(error):
            raise UnavailableError(f"{path} cannot be read: {error}") from error
        if error.filename is None and error.errno is not None:  # gzip's own error has only a message
            error.filename = str(path)
        raise
    except RuntimeError as error:
        if not str(error).startswith(("unable to mmap", "unable to open file")):
            raise
        raise UnavailableError(f"{path} cannot be read: {one_line(str(error))}; copy it to another disk") from error


FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Operating system errors that the user's input did not cause.
ENVIRONMENT_ERRNOS = FULL_DISK | {
    errno.EIO, errno.EMFILE, errno.ENODEV, errno.ENOMEM, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT
}  # fmt: skip

# Neither torch nor ONNX Runtime raises an exception class for this on the CPU: match the messages of torch's
# allocator, ONNX Runtime's arena, C++ and CUDA.
OUT_OF_MEMORY = ("DefaultCPUAllocator", "Failed to allocate memory", "bad_alloc", "out of memory")


def out_of_memory(error: BaseException) -> bool:
    """Return whether the error reports a lack of memory, on the CPU or a GPU."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in str(error) for words in OUT_OF_MEMORY)


def one_line(message: str) -> str:
    """Return the message without line breaks, and with control characters escaped."""
    return escape_controls(re.sub(r"\s*[\r\n]+\s*", " ", message.strip()))


# Printable for Python, but nothing is seen of them: fillers, the empty cell of Braille, and variation selectors.
UNSEEN = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def escape_controls(text: str) -> str:
    """Return the text with all control characters except line breaks escaped, and others that show nothing.

    Names of files may hold any.
    """
    return "".join(c if (c.isprintable() and not UNSEEN.match(c)) or c == "\n" else ascii(c)[1:-1] for c in text)
