"""Errors as users see them: one line, the right exit code, a traceback only on request."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import typer
from saved_model import ENGLISH, GERMAN

from vaswani_transformer.cli import main
from vaswani_transformer.errors import BrokenFileError, InputError, ProofError, UnavailableError
from vaswani_transformer.exit import exit_cleanly, explain, print_error, render

ROOT = Path(__file__).parents[1]
UNEXPECTED = "error: unexpected {}; --debug shows the traceback"


def app_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer(add_completion=False)

    @app.command()
    def command(number: int = 0) -> None:
        raise error

    return app


@pytest.mark.parametrize(
    "error, code, line",
    [
        (InputError("train.de line 2: bad"), 2, "error: train.de line 2: bad"),
        (BrokenFileError("model.safetensors is empty"), 3, "error: model.safetensors is empty"),
        (UnavailableError("disk full"), 4, "error: disk full"),
        (InputError("first\n   second\n"), 2, "error: first second"),
        (InputError("a  b \x1b[31m\x00\u202e\ud800"), 2, r"error: a  b \x1b[31m\x00\u202e\ud800"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a b/ü.txt"), 2, "error: a b/ü.txt: No such file"),
        (OSError(errno.ENOSPC, "No space left on device", "run"), 4, "error: run: No space left on device"),
        (ModuleNotFoundError("x", name="onnx_ir.passes"), 4, "error: onnx_ir is not installed: pip install onnx_ir"),
        (
            ModuleNotFoundError("x", name="onnx"),
            4,
            'error: onnx is not installed: pip install "vaswani-transformer[onnx]"',
        ),
        (ModuleNotFoundError("no x", name="training.x"), 1, UNEXPECTED.format("ModuleNotFoundError: no x")),
        (MemoryError("too much"), 4, "error: out of memory: too much; smaller batches and fewer beams need less"),
        (ProofError("the graph differs from torch"), 1, "error: the graph differs from torch"),
        (KeyError("x"), 1, UNEXPECTED.format("KeyError: 'x'")),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code(error, code, line, refused):
    assert refused(partial(exit_cleanly, app_that_raises(error)), [], code) == line + "\n"


def test_running_out_of_memory_in_torch_is_recognised():
    with pytest.raises(RuntimeError) as error:
        torch.empty(10**14)
    (line,) = render(error.value)
    assert explain(error.value)[0] == 4 and line.startswith("error: out of memory: ")


@pytest.mark.parametrize("arguments", ["--number x", "--nunber 1", "extra", "--number"])
def test_a_wrong_command_line_shows_the_usage(arguments, refused):
    command = partial(exit_cleanly, app_that_raises(AssertionError()), name="program")
    lines = refused(command, arguments.split()).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: ") and arguments.split()[0] in lines[0]
    assert lines[1].startswith("Usage: program") and "program --help" in lines[1]


def test_no_message_controls_the_terminal(capsys):
    """Names of files and text from broken files may hold any character."""
    print_error("Traceback:\n    line \x1b[2J\u202e\r, é")
    assert capsys.readouterr().err == "Traceback:\n    line \\x1b[2J\\u202e\\r, é\n"


def test_a_long_value_does_not_fill_the_terminal():
    (line,) = render(InputError(f"config.json: d_model is {'x' * 10**6}; it must be a number"))
    assert len(line) < 5000
    assert line.startswith("error: config.json: d_model is xxx") and line.endswith("xxx; it must be a number")


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_the_traceback_is_shown_on_request(by, capsys, monkeypatch):
    monkeypatch.setenv("VASWANI_DEBUG", "1" if by == "environment" else "")
    with pytest.raises(SystemExit) as stopped:
        exit_cleanly(app_that_raises(InputError("bad")), ["--debug"] if by == "flag" else [])
    printed = capsys.readouterr().err
    assert stopped.value.code == 2 and "Traceback" in printed and printed.endswith("error: bad\n")
    assert os.environ["VASWANI_DEBUG"] == "1"  # for child processes


def test_success_returns_and_exit_codes_are_kept(capsys, refused):
    exit_cleanly(lambda **_: None, [])
    assert capsys.readouterr().err == ""
    assert refused(partial(exit_cleanly, app_that_raises(SystemExit(143))), [], 143) == ""


def start(folder: Path, body: str, redirection: str = "") -> subprocess.Popen[str]:
    """Start a process whose command has this body."""
    script = folder / "vaswani-transformer"
    script.write_text(
        "import sys\nfrom vaswani_transformer.errors import InputError\nimport typer\n"
        "from vaswani_transformer.exit import exit_cleanly, print_error\n"
        f"app = typer.Typer()\n@app.command()\ndef command() -> None:\n    {body}\nexit_cleanly(app, [])\n"
    )
    words = ["sh", "-c", f'exec "$0" "$1" {redirection}', sys.executable, str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


# A module that, like numpy's, catches what a signal raises during its import.
# Its sleeps are short: Python handles a signal that arrives just before a sleep only at the end of the sleep.
SLEEP = "[time.sleep(0.1) for _ in range(6000)]"
SLOW = f"import time\nprint('importing', flush=True)\ntry: {SLEEP}\nexcept BaseException: {SLEEP}\n"


@pytest.mark.parametrize(("number", "said"), [(signal.SIGINT, "interrupted\n"), (signal.SIGTERM, "")])
def test_a_signal_ends_an_import_at_once(number, said, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    folder = f"atomic_folder(Path({str(tmp_path / 'out')!r}))"
    imports = "from pathlib import Path; from vaswani_transformer.atomic import atomic_folder"
    process = start(tmp_path, f"{imports}\n    with {folder}: import slow")
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(number)
    assert (process.communicate(timeout=100), process.returncode) == (("", said), 128 + number)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == [
        "slow.py",
        "vaswani-transformer",
    ]


@pytest.mark.parametrize("statement", ["typer.echo('line')", "print('line')"])
def test_a_closed_pipe_is_no_error(statement, tmp_path):
    writer = start(tmp_path, f"for _ in range(100_000): {statement}")
    assert writer.stdout is not None and writer.stderr is not None
    assert writer.stdout.readline() == "line\n"
    writer.stdout.close()
    assert (writer.stderr.read(), writer.wait(timeout=200)) == ("", 0)
    writer.stderr.close()


def test_the_command_that_needs_a_missing_package_names_it(monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = refused(main, ["plot", "positions", "--output", "positions.png"], 4)
    assert line.endswith(': pip install "vaswani-transformer[viz]"\n')


@pytest.mark.parametrize("where", [">&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("statement", ["typer.echo('line')", "print('line')"])
def test_a_command_succeeds_with_closed_streams(where, statement, tmp_path):
    text = tmp_path / "text"
    wrote = f"file = open({str(text)!r}, 'w'); import os; os.system('echo noise; echo noise >&2'); file.write('text')"
    process = start(tmp_path, f"{statement}; {wrote}", where)
    assert (process.communicate(timeout=200)[0], process.returncode) == ("", 0)
    assert text.read_text() == "text"


@pytest.mark.parametrize("where", ["2>&-", "<&- 2>&-", "2>/dev/full", "2>file"])
def test_errors_never_end_up_in_stdout_or_another_file(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = start(tmp_path, "print('line'); print_error('note'); raise InputError('wrong')", where)
    assert (*process.communicate(timeout=200), process.returncode) == ("line\n", "", 2)
    if where == "2>file":
        assert (tmp_path / "file").read_text() == "note\nerror: wrong\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "broken"),
    [
        ("translate model --input a.en --output new.de", "a.en"),
        ("translate model --input a.en --output new.de", "model/config.json"),
        ("translate model --input a.en --output new.de", "model/model.safetensors"),
        ("translate model --input a.en --output new.de", "new.de"),
        ("tokenizer a.en --output new --vocab-size 270", "new"),
        ("average model model2 --output mean", "model2/model.safetensors"),
        ("average model model2 --output mean", "mean"),
        ("push model o/n --to-folder upload", "upload"),
        ("push model o/n --to-folder upload", "model/model.safetensors"),
        ("evaluate model --source a.en --reference a.de --record rows.csv", "rows.csv"),
        ("train --config recipe.yaml", "recipe.yaml"),
        ("train --data . --train a --output_dir run", "run/corpus"),
    ],
)
def test_a_disk_that_fails_is_named(arguments: str, broken: str, folder: Path, broken_disk: Path):
    work = folder.parent
    shutil.copytree(folder, work / "model2")
    for name, sentences in (("a.en", ENGLISH), ("a.de", GERMAN)):
        (work / name).write_text("\n".join(sentences * 20) + "\n")
    (work / "recipe.yaml").write_text("data: .\n")
    finished = subprocess.run(
        [sys.executable, "-m", "vaswani_transformer", *arguments.split()],
        cwd=work,
        env=os.environ | {"LD_PRELOAD": str(broken_disk), "BROKEN": f"/{broken}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert finished.returncode == 4, finished.stderr
    assert len(errors) == 1 and broken in errors[0]
