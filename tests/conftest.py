"""Fixtures and helpers shared by test files: small models, waiting, one torch thread per worker."""

import contextlib
import csv
import gc
import math
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration

gc.disable()  # until the tests are collected; imports leave no garbage

# nohup and background jobs of a shell ignore these signals, and so would the child processes to which tests send them.
# A Python handler is not inherited: the tests keep ignoring the signal, their children do not.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# pytest-xdist runs a worker per core: more threads would only compete.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes that tests start

# The tests run on the CPU, on a machine with a GPU as well: `make gpu` compares the two.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Of processes that tests start: nothing else of this process's environment.
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
ENVIRONMENT |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

# Fixtures for tests that train or export.
pytest_plugins = ["training_runs", "saved_model"]

# transformers' own tests need its sdist and another environment: `make test-hf`.
collect_ignore = ["hf"]

# Run first, so that the workers, which take a file at a time, end at about the same time. While one worker exports the
# models that files share (test_onnx.py), the other has files that do not wait for them.
FIRST = [
    "test_onnx.py",
    "test_search.py",
    "test_training_resume.py",
    "test_onnx_translator.py",
    "test_cli.py",
    "test_package.py",
    "test_translator.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # a collection would visit every object of the imported modules and of the collected tests


def one_fast_in(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrization; every `step`-th runs with the fast tests, the others are slow."""
    marks: Any = pytest.mark.slow
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks if number % step else [])
        for number, case in enumerate(cases)
    ]


# Any, because `generate()` and torch's modules are typed as unions that tests would have to narrow.
ModelMaker = Callable[..., Any]


def tiny_config(**changes: Any) -> VaswaniTransformerConfig:
    """Return the paper's model with small sizes that all differ."""
    sizes: dict[str, Any] = {
        "vocab_size": 30,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 28,
    }
    return VaswaniTransformerConfig(**(sizes | changes))


def randomise(model: Any, seed: int = 0) -> Any:
    """Draw every trained parameter, biases and LayerNorms too, from a normal distribution; return it in eval mode.

    No parameter stays at 0 or 1, so that a swapped or forgotten one changes the output.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:  # a table of positions
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
    return model.eval()


@pytest.fixture
def tiny_model() -> ModelMaker:
    """tiny_model(seed=0, **config changes) -> a model in eval mode with every parameter random."""

    def make(seed: int = 0, **changes: Any) -> Any:
        model: Any = VaswaniTransformerForConditionalGeneration(tiny_config(**changes)).eval()
        randomise(model, seed)
        return model

    return make


def make_lively(seed: int = 0, end_at: float = 4.5, **changes: Any) -> Any:
    """Return a model whose beams switch and end at different lengths.

    A random tied model repeats one token and its beams never switch. Here the output layer is untied, and its row for
    `</s>` is fitted so that the logit of `</s>` rises by about one per position and passes zero at position `end_at`,
    as in a trained model. The tests count that beams switch and hypotheses end.
    """
    sizes: dict[str, Any] = {"vocab_size": 16, "encoder_layers": 1, "decoder_layers": 2}
    changes = sizes | {"tie_word_embeddings": False, "output_bias": True} | changes
    model: Any = VaswaniTransformerForConditionalGeneration(tiny_config(**changes)).eval()
    randomise(model, seed)
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
        source = torch.randint(4, vocabulary, (64, 5), generator=generator)
        target = torch.randint(3, model.config.decoder_vocab_size, (64, 12), generator=generator)
        target[:, 0] = model.config.decoder_start_token_id
        states = model.model(source, decoder_input_ids=target).last_hidden_state.flatten(0, 1)
        wanted = torch.arange(12.0).repeat(64)[:, None] - end_at
        # Ridge regression: large weights would amplify float32's rounding errors.
        inputs = torch.cat((states, torch.ones(len(states), 1)), dim=1)
        fitted = torch.linalg.solve(inputs.T @ inputs + 20 * torch.eye(17), inputs.T @ wanted)[:, 0]
        model.lm_head.weight[2], model.lm_head.bias[2] = fitted[:-1], fitted[-1]
    return model


@pytest.fixture
def lively_model() -> ModelMaker:
    """lively_model(seed=0, end_at=4.5, **config changes) -> a model as of `make_lively`"""
    return make_lively


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition. The limit only ends a test that hangs: it allows for busy machines."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """refused(main, arguments, code=2, out="") -> the error with which a command ends, without a traceback"""

    def run(main: Callable[[list[str]], object], arguments: Iterable[object], code: int = 2, out: str = "") -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert (stopped.value.code, printed.out) == (code, out) and "Traceback" not in printed.err, printed
        return printed.err

    return run


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_rows(table: Path) -> list[dict[str, Any]]:
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def flip_a_bit(path: Path) -> None:
    """Change the last bit of a file: one that only a checksum shows."""
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes: writing then fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def padded(sentences: list[list[int]], pad: int = 1) -> dict[str, torch.Tensor]:
    """Return input_ids and attention_mask of a right-padded batch."""
    longest = max(map(len, sentences))
    rows = [sentence + [pad] * (longest - len(sentence)) for sentence in sentences]
    mask = [[1] * len(sentence) + [0] * (longest - len(sentence)) for sentence in sentences]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


# Float32 on a CPU with another order of summation; the logits of the tiny models are of size 1 to 10.
TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def labelled_batch() -> dict[str, torch.Tensor]:
    """Return three sentence pairs of different lengths, padded, with labels."""
    sources = [[5, 6, 7, 8, 9, 2], [10, 11, 2], [12, 2]]
    targets = [[8, 9, 2], [13, 14, 15, 16, 2], [17, 2]]
    labels = padded(targets)["input_ids"]
    labels[padded(targets)["attention_mask"] == 0] = -100
    return padded(sources) | {"labels": labels}


def random_sentences(seed: int, count: int, vocab_size: int, longest: int) -> list[list[int]]:
    """Return source sentences of 2 to `longest` tokens, ending in `</s>`, without other special tokens."""
    generator = torch.Generator().manual_seed(seed)
    sentences = []
    for _ in range(count):
        length = int(torch.randint(1, longest, (1,), generator=generator))
        words = torch.randint(4, vocab_size, (length,), generator=generator).tolist()
        sentences.append([*words, 2])
    return sentences


# For LD_PRELOAD: what CIFS, FUSE and FAT answer.
POOR_FILE_SYSTEM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>
static int no(int error) { errno = error; return -1; }
int flock(int descriptor, int operation) { return no(ENOLCK); }
int chmod(const char *path, mode_t mode) { return no(EPERM); }
int fchmod(int descriptor, mode_t mode) { return no(EPERM); }
int fchmodat(int folder, const char *path, mode_t mode, int flags) { return no(EPERM); }
int fsync(int descriptor) {
    struct stat about;
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return !fstat(descriptor, &about) && S_ISDIR(about.st_mode) ? no(EINVAL) : real(descriptor);
}
"""


# For LD_PRELOAD: the file whose path contains $BROKEN opens, but cannot be read, mapped or written.
BROKEN_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static int is_broken(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return getenv("BROKEN") && strstr(path, getenv("BROKEN"));
}
#define FAIL(result) if (is_broken(descriptor)) { errno = EIO; return result; }
ssize_t read(int descriptor, void *buffer, size_t size) {
    FAIL(-1)
    return ((ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read"))(descriptor, buffer, size);
}
ssize_t write(int descriptor, const void *buffer, size_t size) {
    FAIL(-1)
    return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(descriptor, buffer, size);
}
#define MMAP(name, offset_type) \
    void *name(void *at, size_t size, int protection, int flags, int descriptor, offset_type offset) { \
        FAIL(MAP_FAILED) \
        return ((void *(*)(void *, size_t, int, int, int, offset_type))dlsym(RTLD_NEXT, #name)) \
            (at, size, protection, flags, descriptor, offset); \
    }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)
"""


# For LD_PRELOAD: of the calls that change files below $FAILING, number $CALL finds no space.
FULL_FOR_ONE_CALL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static int calls;
static int fails(const char *path) {
    const char *below = getenv("FAILING"), *call = getenv("CALL");
    if (!below || !call || !path || strncmp(path, below, strlen(below))) return 0;
    if (__sync_add_and_fetch(&calls, 1) != atoi(call)) return 0;
    fprintf(stderr, "failed: %s\\n", path);
    errno = ENOSPC;
    return 1;
}
static int fails_at(int descriptor) {
    char link[64], path[PATH_MAX] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    return readlink(link, path, sizeof path - 1) > 0 && fails(path);
}
#define CALL(result, name, types, names, failed) \
    result name types { \
        result (*real) types = dlsym(RTLD_NEXT, #name); \
        if (failed) return -1; \
        return real names; \
    }
#define WRITES(flags) ((flags) & (O_CREAT | O_WRONLY | O_RDWR))
CALL(int, open, (const char *path, int flags, mode_t mode), (path, flags, mode), WRITES(flags) && fails(path))
CALL(int, open64, (const char *path, int flags, mode_t mode), (path, flags, mode), WRITES(flags) && fails(path))
CALL(ssize_t, write, (int to, const void *bytes, size_t size), (to, bytes, size), fails_at(to))
CALL(ssize_t, sendfile, (int to, int from, off_t *start, size_t size), (to, from, start, size), fails_at(to))
CALL(ssize_t, sendfile64, (int to, int from, off64_t *start, size_t size), (to, from, start, size), fails_at(to))
CALL(int, fsync, (int descriptor), (descriptor), fails_at(descriptor))
CALL(int, mkdir, (const char *path, mode_t mode), (path, mode), fails(path))
CALL(int, rename, (const char *from, const char *to), (from, to), fails(to))
CALL(int, unlink, (const char *path), (path), fails(path))
CALL(int, rmdir, (const char *path), (path), fails(path))
"""


def compile_library(factory: pytest.TempPathFactory, code: str) -> Path:
    """Return a shared library of C code, for LD_PRELOAD."""
    if shutil.which("gcc") is None:
        pytest.skip("needs a C compiler")
    source = factory.mktemp("library") / "library.c"
    source.write_text(code)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", source.with_suffix(".so"), source, "-ldl"], check=True)
    return source.with_suffix(".so")


@pytest.fixture(scope="session")
def poor_file_system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes every file system behave like one without locks, permissions and fsync of folders."""
    return compile_library(tmp_path_factory, POOR_FILE_SYSTEM)


@pytest.fixture(scope="session")
def broken_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with which the file whose path contains $BROKEN cannot be read, mapped or written."""
    return compile_library(tmp_path_factory, BROKEN_DISK)


@pytest.fixture(scope="session")
def full_for_one_call(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with which call number $CALL of those that change files below $FAILING fails: no space left."""
    return compile_library(tmp_path_factory, FULL_FOR_ONE_CALL)


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Yield a new folder that other users can enter, unlike tmp_path."""
    with TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def not_removable(folder: Path) -> Iterator[None]:
    """Let this process be refused the removal of a folder in a `shared_folder`, as that of another user."""
    folder.chmod(0o555)
    user = os.geteuid()
    try:
        if user == 0:  # who may remove any file
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o700)
