"""A file or folder appears under its name only when it is complete, however its writer ends."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ENVIRONMENT, wait_until
from disks import file_size_limit, not_removable, shared_folder
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from vaswani_transformer.atomic import atomic_file, atomic_folder, check_new_folder, remove_stale
from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.lines import open_output, read_lines

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


# A container has its own process numbers, all of which are small.
IN_CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def start_writing(path: Path, prefix: Sequence[str] = (), library: Path | None = None) -> subprocess.Popen[str]:
    """Start a process and return while it is writing the folder `path`. library: preloaded"""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT | ({} if library is None else {"LD_PRELOAD": str(library)}),
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
    (temporary,) = tmp_path.iterdir()
    assert re.fullmatch(r"\.out\.\w+-\w+\.tmp", temporary.name)
    assert end(process, number) == 128 + number
    assert not list(tmp_path.iterdir())


def test_the_next_writer_removes_leftovers_of_a_killed_one(tmp_path: Path) -> None:
    process = start_writing(tmp_path / "out")
    assert end(process, signal.SIGKILL) == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    theirs = [tmp_path / leftover.name.replace("out", name) for name in ("other", "out.2")]
    for path in theirs:
        path.mkdir()
    with atomic_file(tmp_path / "out") as stream:
        stream.write(b"complete")
    assert (tmp_path / "out").read_bytes() == b"complete"
    assert sorted(tmp_path.iterdir()) == sorted([*theirs, tmp_path / "out"])


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127])
def test_names_of_the_greatest_length_are_written_and_their_leftovers_removed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert end(start_writing(path), signal.SIGKILL) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with atomic_file(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole" and list(tmp_path.iterdir()) == [path]


def test_leftovers_of_other_machines_are_removed_after_a_day(tmp_path: Path) -> None:
    """A file system may pass no locks on to other machines."""
    for name in (".out.0123abcd-89ef4567.tmp", ".out.4567abcd-123.tmp"):
        (tmp_path / name / "inner").mkdir(parents=True)
        remove_stale(tmp_path / "out")
        assert (tmp_path / name / "inner").is_dir()
        os.utime(tmp_path / name, (0, 0))
        remove_stale(tmp_path / "out")  # something in it is younger
        assert (tmp_path / name / "inner").is_dir()
        os.utime(tmp_path / name / "inner", (0, 0))
        remove_stale(tmp_path / "out")
        assert not (tmp_path / name).exists()


def finish(process: subprocess.Popen[str], out: Path) -> None:
    process.communicate("continue\n", timeout=100)
    assert process.returncode == 0
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert (out / "inner" / "weights").read_bytes() == b"half"


def test_the_slower_of_two_writers_is_told_to_choose_another_name(tmp_path: Path, refused) -> None:
    """As of two conversions or exports to one folder at once."""

    def write(arguments: list[str]) -> None:
        def command(**settings: object) -> None:
            with atomic_folder(tmp_path / "out") as folder:
                (folder / "ours").write_bytes(b"1")
                start_writing(tmp_path / "out").communicate("continue\n", timeout=100)

        exit_cleanly(command, arguments)

    error = refused(write, [], 2)
    assert f"{tmp_path / 'out'}: another program wrote it in the meantime, and it is kept; give the name of" in error
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["weights"]


def test_files_of_a_running_process_are_not_removed(tmp_path: Path) -> None:
    process = start_writing(tmp_path / "out")
    remove_stale(tmp_path / "out")
    finish(process, tmp_path / "out")


def test_containers_that_share_a_folder_do_not_remove_each_others_files(tmp_path: Path) -> None:
    """In both, the writer has the same process number."""
    if subprocess.run([*IN_CONTAINER, "true"], capture_output=True).returncode:
        pytest.skip("this system allows no process namespaces")
    first, second = (start_writing(tmp_path / "out", IN_CONTAINER) for _ in range(2))
    remove_stale(tmp_path / "out")
    assert len(list(tmp_path.iterdir())) == 2
    end(second, signal.SIGKILL)
    wait_until(lambda: remove_stale(tmp_path / "out") or len(list(tmp_path.iterdir())) == 1)
    finish(first, tmp_path / "out")


def test_file_systems_without_locks_permissions_and_fsync_of_folders_are_written(
    tmp_path: Path, poor_file_system: Path
) -> None:
    (tmp_path / "out").mkdir()
    process = start_writing(tmp_path / "out", library=poor_file_system)
    other = start_writing(tmp_path / "out", library=poor_file_system)
    assert len(list(tmp_path.iterdir())) == 3  # without locks, nobody knows whether the first one has ended
    end(other, signal.SIGTERM)
    finish(process, tmp_path / "out")


def test_a_failed_fsync_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)  # no disk here is broken
    with pytest.raises(OSError, match=f"Input/output error: '{tmp_path / 'out'}'$"), atomic_file(tmp_path / "out"):
        pass


def test_every_byte_is_on_disk_before_the_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        events.append(f"rename to {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_bytes(b"weights")
    assert set(events[:-2]) == {"inner", "weights", "model"}
    assert events[-2:] == ["rename to model", tmp_path.name]
    events.clear()
    with atomic_file(tmp_path / "file") as stream:
        stream.write(b"text")
    assert events == ["file", "rename to file", tmp_path.name]


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


def test_output_is_not_written_plain_under_the_name_of_a_compression(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a.txt.bz2: compressed outputs end in \.gz"):
        with open_output(tmp_path / "a.txt.bz2"):
            pass
    assert not list(tmp_path.iterdir())


def test_output_for_a_name_in_gz_is_compressed(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        with open_output(tmp_path / name) as stream:
            stream.writelines([b"one\n", b"two\n"])
    assert list(read_lines(tmp_path / "a.gz")) == ["one", "two"]
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    with open_output(tmp_path / "empty.gz"):
        pass
    assert list(read_lines(tmp_path / "empty.gz")) == []
    with pytest.raises(OSError, match="failed.gz"), open_output(tmp_path / "failed.gz") as stream:
        stream.write(b"line")
        raise OSError(28, "the disk is full")
    assert not (tmp_path / "failed.gz").exists()


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
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        assert [file.stat().st_mode & 0o777 for file in files] == [mode, mode]  # the temporary one, too
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
    for name, message in (("x" * 256, "File name too long: '.*/x{256}'$"), ("no/out", "No such file.*: '.*/no/out'$")):
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


def test_the_parents_of_a_new_folder_are_created_and_must_be_folders(tmp_path: Path) -> None:
    """As `convert`, `export onnx`, `average`, `tokenizer`, `space` and `push --to-folder` need."""
    with atomic_folder(check_new_folder(tmp_path / "a" / "b" / "new")) as folder:
        (folder / "file").write_text("text")
    assert (tmp_path / "a" / "b" / "new" / "file").read_text() == "text"
    (tmp_path / "file").write_text("text")
    with pytest.raises(InputError, match="/file is not a folder; give a name in a folder$"):
        check_new_folder(tmp_path / "file" / "b" / "new")


def test_a_new_folder_in_one_that_is_read_only_is_refused_beforehand() -> None:
    """And not after the download or the training of what it is to contain."""
    with shared_folder() as shared, not_removable(shared):
        for name in ("new", "a/b/new"):
            with pytest.raises(InputError, match=f"{name}: you may not write in {shared}; give a name"):
                check_new_folder(shared / name)


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
