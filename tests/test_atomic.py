"""A file or folder appears under its name only when it is complete, however its writer ends."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ENVIRONMENT, file_size_limit
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from vaswani_transformer.atomic import atomic_file, atomic_folder, check_new_folder, remove_stale
from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import open_output

# Under the program's name the package does not import torch.
WRITER = """
import sys
sys.argv[0] = "vaswani-transformer"
from pathlib import Path
from vaswani_transformer.atomic import atomic_folder
from vaswani_transformer.exit import exit_cleanly
def write(args, **settings):
    with atomic_folder(Path(args[0])) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_bytes(b"half")
        print("writing", flush=True)
        sys.stdin.readline()
exit_cleanly(write, sys.argv[1:])
"""


def start_writing(path: Path) -> subprocess.Popen[str]:
    """Start a process and return while it is writing the folder `path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def end(process: subprocess.Popen[str], number: int) -> int:
    process.send_signal(number)
    process.communicate(timeout=100)
    return process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_files_behind(tmp_path: Path, number: int) -> None:
    process = start_writing(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == [f".out.{process.pid}.tmp"]
    assert end(process, number) == 128 + number
    assert not list(tmp_path.iterdir())


def test_the_next_writer_removes_leftovers_of_a_killed_one(tmp_path: Path) -> None:
    process = start_writing(tmp_path / "out")
    assert end(process, signal.SIGKILL) == -signal.SIGKILL
    (tmp_path / f".out.{os.getpid()}.tmp" / "inner").mkdir(parents=True)  # containers often repeat process numbers
    theirs = [tmp_path / f".{name}.{process.pid}.tmp" for name in ("other", "out.2")]
    for path in theirs:
        path.touch()
    with atomic_file(tmp_path / "out") as stream:
        stream.write(b"complete")
    assert (tmp_path / "out").read_bytes() == b"complete"
    assert sorted(tmp_path.iterdir()) == [*theirs, tmp_path / "out"]


def test_files_of_a_running_process_are_not_removed(tmp_path: Path) -> None:
    process = start_writing(tmp_path / "out")
    (theirs,) = tmp_path.iterdir()
    remove_stale(tmp_path / "out")
    assert (theirs / "inner" / "weights").read_bytes() == b"half"
    process.communicate("continue\n", timeout=100)
    assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "inner" / "weights").read_bytes() == b"half"


def test_every_byte_is_on_disk_before_the_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.removesuffix(".tmp"))
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        events.append(f"rename to {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_bytes(b"weights")
    assert set(events[:-2]) == {"inner", "weights", f".model.{os.getpid()}"}
    assert events[-2:] == ["rename to model", tmp_path.name]
    events.clear()
    with atomic_file(tmp_path / "file") as stream:
        stream.write(b"text")
    assert events == [f".file.{os.getpid()}", "rename to file", tmp_path.name]


def test_devices_and_pipes_are_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(os.devnull)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (pipe, tmp_path / "link"):
        with open_output(path) as stream:
            stream.write(b"line\n")
    assert os.read(reader, 99) == b"line\n"
    os.close(reader)
    assert pipe.is_fifo() and (tmp_path / "link").is_symlink() and Path(os.devnull).is_char_device()
    assert len(list(tmp_path.iterdir())) == 2


def test_weights_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_folder(tmp_path / "model") as folder:
            save_file({"a": np.zeros(1)}, folder / "model.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "model" / "model.safetensors").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o755])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    (tmp_path / "out").touch()
    (tmp_path / "out").chmod(mode)
    with atomic_file(tmp_path / "out") as stream:
        stream.write(b"line\n")
        assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [mode, mode]  # the temporary one, too
    assert (tmp_path / "out").read_text() == "line\n" and (tmp_path / "out").stat().st_mode & 0o777 == mode


def save_with_torch(path: Path) -> None:
    with path.open("wb") as stream:
        torch.save(torch.zeros(10**6), stream)


TOO_LARGE: dict[str, Callable[[Path], object]] = {
    "open": lambda path: path.write_bytes(bytes(10**6)),
    "numpy": lambda path: np.savez(path, a=np.zeros(10**6)),
    "safetensors": lambda path: save_file({"a": np.zeros(10**6)}, path),
    "tokenizers": lambda path: Tokenizer(WordLevel({str(i): i for i in range(10**5)}, unk_token="0")).save(str(path)),
    "shutil": lambda path: shutil.copyfile(torch.__file__, path),
    "torch.save": save_with_torch,
}


@pytest.mark.parametrize("writer", TOO_LARGE)
def test_a_full_disk_is_reported_with_the_final_name(tmp_path: Path, writer: str) -> None:
    named = re.escape(f"[Errno 27] File too large: '{tmp_path / 'out'}'")
    with pytest.raises(OSError, match=f"^{named}$"), file_size_limit(10**4):
        with atomic_folder(tmp_path / "out") as folder:
            TOO_LARGE[writer](folder / "file.npz")
    assert not list(tmp_path.iterdir())


def test_errors_about_other_files_keep_their_names(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"), atomic_folder(tmp_path / "out"):
        (tmp_path / "absent").read_text()
    for name, message in (("x" * 250, "File name too long: '.*/x{250}'$"), ("no/out", "No such file.*: '.*/no/out'$")):
        with pytest.raises(OSError, match=message), atomic_file(tmp_path / name):
            pass
    # An InputError is more precise than the OSError that caused it.
    with pytest.raises(InputError, match="more precise"), atomic_file(tmp_path / "out"):
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise InputError("more precise") from error


def test_links_are_kept_and_their_targets_written(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "old").write_text("old")
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(f"inner/{name}")
        with open_output(tmp_path / name) as stream:
            stream.write(b"line\n")
        assert (tmp_path / name).is_symlink() and (tmp_path / "inner" / name).read_text() == "line\n"
    (tmp_path / "folder").symlink_to("inner/folder")
    (tmp_path / "inner" / "folder").mkdir()
    with atomic_folder(check_new_folder(tmp_path / "folder")) as folder:
        (folder / "file").write_text("text")
    assert (tmp_path / "folder").is_symlink() and (tmp_path / "inner" / "folder" / "file").read_text() == "text"


def test_empty_folders_that_cannot_be_replaced_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^\. is the current folder, .*; give the name of a new folder inside it"):
        check_new_folder(".")
    monkeypatch.chdir("/")
    assert check_new_folder(tmp_path) == tmp_path
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)  # only a superuser can mount one
    with pytest.raises(InputError, match="is a mount point, .*; give the name of a new folder inside it"):
        check_new_folder(tmp_path)


def test_a_closed_named_pipe_is_an_error(tmp_path: Path) -> None:
    """A closed stdout is no error (`| head`), but here the requested file is incomplete."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(InputError, match="pipe: the reader closed the pipe"), open_output(tmp_path / "pipe") as out:
        os.close(reader)
        out.write(b"line\n")
