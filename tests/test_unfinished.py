"""What has a name is whole; what was being written when the process ended, however it did, is nowhere to be found."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from saved_model import saved_model

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import free_output_folder, written_whole
from vaswani_transformer.unfinished import lock_of, remove_abandoned, whole_file, whole_folder

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
WRITERS = {
    "folder": """
with whole_folder(Path(sys.argv[1])) as folder:
    (folder / "inner").mkdir()
    (folder / "inner" / "weights").write_bytes(b"half")
    print("writing", flush=True)
    sys.stdin.readline()
""",
    "file": """
with whole_file(Path(sys.argv[1])) as stream:
    stream.write(b"half")
    print("writing", flush=True)
    sys.stdin.readline()
""",
    # An inner one, and an exception handler that catches everything.
    "both": """
with whole_folder(Path(sys.argv[1])) as folder, whole_file(Path(sys.argv[1] + ".txt")) as stream:
    print("writing", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
""",
}
# Under the program's name the package does not wait for torch.
IMPORTS = """
import sys, time
sys.argv[0] = "vaswani-transformer"
from pathlib import Path
from vaswani_transformer.unfinished import whole_file, whole_folder
"""


def writing(path: Path, kind: str) -> subprocess.Popen[str]:
    """A process in the middle of writing `path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTS + WRITERS[kind], str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def ended(process: subprocess.Popen[str], number: int) -> int:
    process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("folder", signal.SIGTERM),
        ("folder", signal.SIGHUP),
        ("folder", signal.SIGINT),
        ("file", signal.SIGTERM),
        ("both", signal.SIGTERM),
    ],
)
def test_a_signal_ends_the_process_and_leaves_nothing(tmp_path: Path, kind: str, number: int) -> None:
    process = writing(tmp_path / "out", kind)
    assert len(list(tmp_path.iterdir())) == (2 if kind == "both" else 1)
    code = ended(process, number)
    assert code == -number or number == signal.SIGINT  # Python makes an exception of it
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_a_killed_process_left_goes_when_that_name_is_written_again(tmp_path: Path, kind: str) -> None:
    for name in ("out", "out.2", "other"):
        assert ended(writing(tmp_path / name, kind), signal.SIGKILL) == -signal.SIGKILL
    left = {path.name.split(".")[1] for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 3 and left == {"out", "other"}
    with whole_file(tmp_path / "out") as stream:
        stream.write(b"whole")
    assert (tmp_path / "out").read_bytes() == b"whole"
    remaining = sorted(path.name for path in tmp_path.iterdir())
    assert len(remaining) == 3 and remaining[0].startswith(".other.") and remaining[1].startswith(".out.2.")


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    process = writing(tmp_path / "out", "folder")
    (theirs,) = tmp_path.iterdir()
    remove_abandoned(tmp_path / "out")
    assert (theirs / "inner" / "weights").read_bytes() == b"half"
    process.communicate("go on\n", timeout=60)
    assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "inner" / "weights").read_bytes() == b"half"


def test_what_is_held_stays_though_no_process_has_its_number_here(tmp_path: Path) -> None:
    """As a container sees what another one writes on a disk that they share."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    theirs = tmp_path / f".out.{dead.pid}.unfinished"
    theirs.mkdir()
    lock = lock_of(theirs)
    assert lock is not None
    remove_abandoned(tmp_path / "out")
    assert theirs.is_dir()
    os.close(lock)
    remove_abandoned(tmp_path / "out")
    assert not theirs.exists()


def test_what_a_process_of_the_same_number_left_is_not_in_the_way(tmp_path: Path) -> None:
    """In a container a program has the same number each time."""
    (tmp_path / f".out.{os.getpid()}.unfinished" / "inner").mkdir(parents=True)
    with whole_folder(tmp_path / "out") as folder:
        assert not list(folder.iterdir())
        remove_abandoned(tmp_path / "out")
        assert folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_whoever_has_a_handler_keeps_it(tmp_path: Path) -> None:
    def handler(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with whole_folder(tmp_path / "out"):
            assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    with whole_file(tmp_path / "file"):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_device_and_a_pipe_are_written_and_stay(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(os.devnull)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (pipe, tmp_path / "link"):
        with written_whole(path) as stream:
            stream.write(b"line\n")
    assert os.read(reader, 99) == b"line\n"
    os.close(reader)
    assert pipe.is_fifo() and (tmp_path / "link").is_symlink() and Path(os.devnull).is_char_device()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_pipe_whose_reader_goes_away_is_an_error(tmp_path: Path) -> None:
    """Of stdout it is none (`| head`); a file that was asked for has not been written."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(InputError, match="pipe: who reads this pipe has gone"), written_whole(tmp_path / "pipe") as out:
        os.close(reader)
        out.write(b"line\n")


def test_a_link_that_leads_to_itself_is_named_and_stays(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for attempt in (lambda: free_output_folder(tmp_path / "a"), lambda: written_whole(tmp_path / "a").__enter__()):
        with pytest.raises(InputError, match="/a is a link that leads to itself; remove it"):
            attempt()
    assert (tmp_path / "a").is_symlink() and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_a_file_that_is_written_again_may_be_read_by_whom_it_could(tmp_path: Path, mode: int) -> None:
    """While it is being written, too."""
    (tmp_path / "out").touch()
    (tmp_path / "out").chmod(mode)
    with whole_file(tmp_path / "out") as stream:
        stream.write(b"line\n")
        assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [mode, mode]
    assert (tmp_path / "out").read_text() == "line\n" and (tmp_path / "out").stat().st_mode & 0o777 == mode


# What may grow no further fails as on a full disk, whoever writes it.
TOO_LARGE = {
    "open": "(folder / 'file').write_bytes(bytes(10**6))",
    "numpy": "import numpy; numpy.savez(folder / 'file.npz', a=numpy.zeros(10**6))",
    "safetensors": "import safetensors.numpy as s, numpy; s.save_file({'a': numpy.zeros(10**6)}, folder / 'file')",
    "tokenizers": "from tokenizers import Tokenizer, models as m; Tokenizer(m.WordLevel({str(i): i for i in "
    "range(10**5)}, unk_token='0')).save(str(folder / 'file'))",
    "torch.save": "import torch; torch.save(torch.zeros(10**6), (folder / 'file').open('wb'))",
}


@pytest.mark.parametrize("writer", TOO_LARGE)
def test_a_full_disk_is_said_of_the_name_that_people_know(tmp_path: Path, writer: str) -> None:
    program = f"{IMPORTS}import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, 10**5))\n"
    program += f"with whole_folder(Path(sys.argv[1])) as folder:\n    {TOO_LARGE[writer]}\n"
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=100)
    last = result.stderr.splitlines()[-1]
    assert last == f"OSError: [Errno 27] File too large: '{tmp_path / 'out'}'"
    assert not list(tmp_path.iterdir())


def test_what_goes_wrong_elsewhere_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"), whole_folder(tmp_path / "out"):
        (tmp_path / "absent").read_text()
    for name, said in (("x" * 250, "File name too long: '.*/x{250}'$"), ("no/out", "No such file.*: '.*/no/out'$")):
        with pytest.raises(OSError, match=said), whole_file(tmp_path / name):
            pass
    # An error of ours says more than the system's that it came of.
    with pytest.raises(InputError, match="better said"), whole_file(tmp_path / "out"):
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise InputError("better said") from error


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "old").write_text("old")
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(f"inner/{name}")
        with written_whole(tmp_path / name) as stream:
            stream.write(b"line\n")
        assert (tmp_path / name).is_symlink() and (tmp_path / "inner" / name).read_text() == "line\n"
    (tmp_path / "folder").symlink_to("inner/folder")
    (tmp_path / "inner" / "folder").mkdir()
    with whole_folder(free_output_folder(tmp_path / "folder")) as folder:
        (folder / "file").write_text("whole")
    assert (tmp_path / "folder").is_symlink() and (tmp_path / "inner" / "folder" / "file").read_text() == "whole"


def test_an_empty_folder_that_cannot_be_replaced_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^\. is the current folder, .*; give a new folder inside it"):
        free_output_folder(".")
    monkeypatch.chdir("/")
    assert free_output_folder(tmp_path) == tmp_path
    # A real one that is empty takes a superuser to make.
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    with pytest.raises(InputError, match="is a mount point, .*; give a new folder inside it"):
        free_output_folder(tmp_path)


def test_a_folder_mounted_from_the_same_disk_is_a_mount_point(tmp_path: Path) -> None:
    for name in ("from", "in a\\folder"):
        (tmp_path / name).mkdir()
    code = "from vaswani_transformer.lines import *; print(*map(is_mount_point, map(Path, sys.argv[1:])))"
    command = 'mount --bind "$1" "$2" && exec "$0" -c "$3" "$1" "$2" /'
    words = [sys.executable, str(tmp_path / "from"), str(tmp_path / "in a\\folder")]
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("no user namespaces here")
    script = "import sys; sys.argv[0] = 'vaswani-transformer'; " + code
    result = subprocess.run(
        [*unshare, "sh", "-c", command, *words, script], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "False True True\n", result.stderr


@pytest.mark.slow
def test_an_export_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    """While torch exports; and after one that was killed, the next removes what that has left."""
    saved_model(tmp_path / "model")
    words = ["export", "onnx", str(tmp_path / "model"), str(tmp_path / "out")]
    code = "import sys; from vaswani_transformer.cli import main; main(sys.argv[1:])"
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen([sys.executable, "-c", code, *words], env=ENVIRONMENT)
        limit = time.monotonic() + 300
        mine = tmp_path / f".out.{process.pid}.unfinished"
        while not mine.exists() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(2)
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"model", mine.name}
        process.send_signal(number)
        assert process.wait(timeout=300) == -number
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
