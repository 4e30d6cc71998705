"""Errors as users see them: one line, the right exit code, a traceback only on request."""

import errno
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer
from saved_model import saved_model

from vaswani_transformer.cli import main
from vaswani_transformer.errors import (
    EXTRAS,
    BrokenFileError,
    InputError,
    ProofError,
    UnavailableError,
    exit_cleanly,
    exit_code_of,
    one_line,
    render,
)

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
        (InputError("name \x1b[31m\x00"), 2, r"error: name \x1b[31m\x00"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a b/ü.txt"), 2, "error: a b/ü.txt: No such file"),
        (OSError(errno.ENOSPC, "No space left on device", "run"), 4, "error: run: No space left on device"),
        (ModuleNotFoundError("x", name="onnx_ir.passes"), 4, "error: onnx_ir is not installed: pip install onnx_ir"),
        (ModuleNotFoundError("no x", name="training.x"), 1, UNEXPECTED.format("ModuleNotFoundError: no x")),
        (MemoryError("too much"), 4, "error: out of memory: too much; smaller batches and fewer beams need less"),
        (ProofError("the graph differs from torch"), 1, "error: the graph differs from torch"),
        (KeyError("x"), 1, UNEXPECTED.format("KeyError: 'x'")),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code(error, code, line, capsys):
    with pytest.raises(SystemExit) as stopped:
        exit_cleanly(app_that_raises(error), [])
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.err, printed.out) == (code, line + "\n", "")


def test_running_out_of_memory_in_torch_is_recognised():
    with pytest.raises(RuntimeError) as error:
        torch.empty(10**14)
    (line,) = render(error.value)
    assert exit_code_of(error.value) == 4 and line.startswith("error: out of memory: ")


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["--number", "x"], "--number"),
        (["--nunber", "1"], "--nunber"),
        (["extra"], "extra"),
        (["--number"], "--number"),
    ],
)
def test_a_wrong_command_line_shows_the_usage(arguments, named, capsys):
    with pytest.raises(SystemExit) as stopped:
        exit_cleanly(app_that_raises(AssertionError()), arguments, name="program")
    lines = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2 and len(lines) == 2
    assert lines[0].startswith("error: ") and named in lines[0]
    assert lines[1].startswith("Usage: program") and "program --help" in lines[1]


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_the_traceback_is_shown_on_request(by, capsys, monkeypatch):
    monkeypatch.setenv("VASWANI_DEBUG", "1" if by == "environment" else "")
    with pytest.raises(SystemExit) as stopped:
        exit_cleanly(app_that_raises(InputError("bad")), ["--debug"] if by == "flag" else [])
    printed = capsys.readouterr().err
    assert stopped.value.code == 2 and "Traceback" in printed and printed.endswith("error: bad\n")
    assert os.environ["VASWANI_DEBUG"] == "1"  # for child processes


def test_success_returns_and_exit_codes_are_kept(capsys):
    app = typer.Typer(add_completion=False)

    @app.command()
    def command(code: int = 0) -> None:
        if code:
            raise SystemExit(code)

    exit_cleanly(app, [])
    with pytest.raises(SystemExit) as stopped:
        exit_cleanly(app, ["--code", "143"])
    assert stopped.value.code == 143
    assert capsys.readouterr().err == ""


WRITER = """
import sys
import typer
from vaswani_transformer.errors import exit_cleanly
sys.argv[0] = "vaswani-transformer"  # under this name the package does not import torch
app = typer.Typer()
@app.command()
def write() -> None:
    for _ in range(100_000):
        {statement}
exit_cleanly(app, [])
"""


@pytest.mark.parametrize("statement", ["typer.echo('line')", "print('line')"])
def test_a_closed_pipe_is_no_error(statement, tmp_path):
    script = tmp_path / "vaswani-transformer"
    script.write_text(WRITER.format(statement=statement))
    writer = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert writer.stdout is not None and writer.stderr is not None
    assert writer.stdout.readline() == b"line\n"
    writer.stdout.close()
    assert (writer.stderr.read(), writer.wait(timeout=200)) == (b"", 0)
    writer.stderr.close()


FAILING = """
import sys
import typer
from vaswani_transformer.errors import InputError, exit_cleanly, tell
sys.argv[0] = "vaswani-transformer"
app = typer.Typer()
@app.command()
def fail() -> None:
    print("line")
    tell("note")
    raise InputError("wrong")
exit_cleanly(app, [])
"""


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_errors_never_end_up_in_stdout(where, tmp_path):
    script = tmp_path / "vaswani-transformer"
    script.write_text(FAILING)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = ["sh", "-c", f'exec "$0" "$1" {where}', sys.executable, str(script)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=200)
    assert (result.returncode, result.stdout, result.stderr) == (2, "line\n", "")


def test_one_line_keeps_spaces_and_escapes_invisible_characters():
    assert one_line("a  b\r\n\tc\u202e\ud800") == r"a  b c\u202e\ud800"


@pytest.fixture
def programs_imported_again():
    """Lets the test import the programs a second time, and restores the first ones."""

    def take_out() -> dict[str, ModuleType]:
        names = [n for n in sys.modules if n.startswith(("training", "hub.", "vaswani_transformer.pictures"))]
        return {name: sys.modules.pop(name) for name in names}

    before = take_out()
    yield
    take_out()
    sys.modules.update(before)


@pytest.mark.parametrize(
    "missing, command",
    [
        ("sacrebleu", "evaluate {model} --source {text} --reference {text}"),
        ("accelerate", "plan --config demo --seconds 0"),
        ("accelerate", "-m training --config demo"),
        ("jinja2", "push {model} owner/name"),
        ("matplotlib", "plot positions --output positions.png"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    programs_imported_again, missing, command, tmp_path, monkeypatch, capsys
):
    saved_model(tmp_path / "model")
    (tmp_path / "text").write_text("a dog\n")
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    words = command.format(model=tmp_path / "model", text=tmp_path / "text").split()
    with pytest.raises(SystemExit) as stopped:
        if words[0] == "-m":  # `train` starts it in a process of its own
            monkeypatch.setattr(sys, "argv", words[1:])
            runpy.run_module(words[1], run_name="__main__")
        main(words)
    line = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 4 and line.startswith("error: ") and missing in line
    assert line.endswith(f': pip install "vaswani-transformer[{EXTRAS[missing]}]"')
