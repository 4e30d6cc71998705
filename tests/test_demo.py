"""The quick demo, interrupted and run again as a user does (slow), and its commands without running them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_until
from disks import file_size_limit

from training import demo, demo_corpus
from vaswani_transformer import Translator

COMMAND = Path(sys.executable).with_name("vaswani-transformer")


def shell(line: str, folder: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory) -> Path:
    """A folder in which a user has run `vaswani-transformer demo --quick demo`, after interrupting it once."""
    folder = tmp_path_factory.mktemp("a newcomer's folder, größer")
    (folder / "yaml.py").write_text("raise SystemExit('not the module that was meant')")
    script = f"OMP_NUM_THREADS=1 exec {COMMAND} demo --quick demo"
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            script, shell=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, process_group=0
        )
        metrics = folder / "demo" / "model" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group
        assert process.wait(timeout=300) == 130
    assert not (folder / "demo" / "model" / "model.safetensors").exists()
    result = shell("vaswani-transformer demo --quick demo", folder)
    assert result.returncode == 0, result.stderr
    (folder / "stdout").write_text(result.stdout, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_demo_can_resume_after_ctrl_c(newcomer):
    stderr = (newcomer / "stderr").read_text(encoding="utf-8")
    assert "to resume" in stderr and "Traceback" not in stderr
    metrics = newcomer / "demo" / "model" / "metrics.jsonl"

    def steps() -> list[int]:
        records = map(json.loads, metrics.read_text().splitlines())
        return [record["step"] for record in records if "learning_rate" in record]

    trained = steps()
    assert trained == sorted(set(trained)) and trained[-1] == 200
    # A finished run is not trained again.
    lines = (newcomer / "stdout").read_text(encoding="utf-8").splitlines()
    (typed,) = (line[2:] for line in lines if line.startswith("$ vaswani-transformer train "))
    result = shell(typed, newcomer)
    assert result.returncode == 0, result.stderr
    assert steps() == trained


@pytest.mark.slow
def test_the_demo_prints_commands_bleu_and_translations(newcomer):
    stdout = (newcomer / "stdout").read_text(encoding="utf-8")
    commands = [line.split()[2] for line in stdout.splitlines() if line.startswith("$ ")]
    assert commands == ["train", "evaluate", "translate", "plot", "plot", "export"]
    assert re.search(r"^BLEU \d+\.\d+ .*: nrefs:1\|case:mixed", stdout, re.MULTILINE)
    kinds = set(re.findall(r"^(\w+) +\d+ .* \d+\.\d %$", stdout, re.MULTILINE))
    assert kinds == {row[0] for row in demo_corpus.load("test")}
    sources = (newcomer / "demo" / "eight.en").read_text(encoding="utf-8").splitlines()
    assert len(sources) == 8 and not {row[1] for row in demo_corpus.load("train")} & set(sources)
    assert len((newcomer / "demo" / "eight.de").read_text(encoding="utf-8").splitlines()) == 8
    for picture in ("attention.png", "positions.png"):
        assert (newcomer / "demo" / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_demo_exports_checks_and_times_the_model(newcomer):
    """The last command translates with the exported file only."""
    stdout = (newcomer / "stdout").read_text(encoding="utf-8")
    seconds = re.search(
        r"^24 sentences, .*: generate\(\) ([\d.]+) s, our search in torch [\d.]+ s, model.onnx ([\d.]+) s: "
        r"([\d.]+) times as fast as generate\(\); 24 of 24 translations are the same$",
        stdout,
        re.MULTILINE,
    )
    assert seconds is not None
    by_generate, by_file, times = map(float, seconds.groups())
    assert times == pytest.approx(by_generate / by_file, rel=0.2)
    (line,) = (line for line in stdout.splitlines() if line.startswith("  echo") and "onnx" in line)
    on_onnx = shell(line.strip(), newcomer)
    assert on_onnx.returncode == 0, on_onnx.stderr
    (expected,) = Translator.from_pretrained(newcomer / "demo" / "model", device="cpu").translate(
        [demo.EXAMPLE_SENTENCE]
    )
    assert expected and on_onnx.stdout == f"{expected}\n"


@pytest.mark.parametrize("onnxruntime", [True, False])
def test_the_demo_runs_every_command(capsys, monkeypatch, tmp_path, onnxruntime):
    """Does not run them. Without onnxruntime, it names the package instead of exporting."""
    commands = []
    if not onnxruntime:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(demo, "run", lambda *words: commands.append(words[0]))
    folder = tmp_path / "a [bold] name"
    folder.mkdir()
    (folder / "README.md").write_text(demo.README, encoding="utf-8")
    (folder / "eight.de").write_text("\n" * 8, encoding="utf-8")
    demo.main([str(folder)])
    said = capsys.readouterr().out
    # The suggested commands are quoted for a shell.
    scoring = next(line for line in said.splitlines() if "vaswani-transformer score " in line)
    assert shlex.split(scoring)[2] == str(folder / "model")
    assert f"{folder}/model is an ordinary" in " ".join(said.split())  # rich breaks lines
    assert commands == ["train", "evaluate", "translate", "plot", "plot", *["export"] * onnxruntime]
    assert ("translate '" in said and f"{folder}/onnx'" in said) == onnxruntime
    missing = 'onnxruntime not installed; pip install "vaswani-transformer[onnx]"'
    assert (missing in said) != onnxruntime


def test_the_demo_refuses_a_folder_with_other_files(refused, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "eight.en").write_text("mine\n")
    said = f"error: {tmp_path} is not empty and was not created by `demo`; choose a new folder\n"
    assert refused(demo.main, [tmp_path]) == said
    assert (tmp_path / "eight.en").read_text() == "mine\n" and len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_is_named(tmp_path):
    (tmp_path / "corpus").mkdir()
    with file_size_limit(10_000), pytest.raises(OSError) as raised:
        demo.write_corpus(tmp_path)
    assert raised.value.filename == str(tmp_path / "corpus/train.kinds")


def test_commands_have_a_path_where_the_environment_is_not_active(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("python", "vaswani-transformer"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert demo.command_line("plan", "a b") == "bin/vaswani-transformer plan 'a b'"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert demo.command_line("plan") == "vaswani-transformer plan"
