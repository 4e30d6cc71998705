"""Disks that are full or broken, file systems without locks, files of other users, and bits that have changed."""

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


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
