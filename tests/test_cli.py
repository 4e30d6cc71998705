"""The command line: pipes, files, exit codes, one-line errors."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ENVIRONMENT, one_fast_in, wait_until, write_lines
from PIL import Image
from safetensors.torch import load_file, save_file
from saved_model import ENGLISH, GERMAN, VOCABULARY, change_json, saved_model, trained_model, trained_tokenizer
from training_runs import SMALL, options_of
from transformers import AutoTokenizer

from training.parallel_text import FORMATS
from vaswani_transformer import TorchTranslator, Translator, __version__
from vaswani_transformer.cli import main
from vaswani_transformer.translator import Hypothesis

ROOT = Path(__file__).parents[1]
SCRIPT = ["-c", "import sys; from vaswani_transformer.cli import main; main()"]
COMMANDS = "demo tokenizer train evaluate translate score average plan convert push doctor".split()
LINES = [ENGLISH[0], "", "  ", *ENGLISH[1:], "zwölf", "</s> <pad>", "日本語 🙂"]


def command(
    *arguments, stdin: int = subprocess.PIPE, process_group: int | None = None, **environment: str
) -> subprocess.Popen[bytes]:
    """Start the console script in a new process."""
    return subprocess.Popen(
        [sys.executable, *SCRIPT, *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT | environment,
        process_group=process_group,
    )


@pytest.fixture
def translate(exported) -> list[str]:
    """The command of processes, on ONNX, which starts in a tenth of the time that torch takes."""
    return ["translate", str(exported / "onnx"), "--backend", "onnx", "--device", "cpu"]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return TorchTranslator(trained_model(), trained_tokenizer()).translate(LINES)


@pytest.fixture
def source(tmp_path) -> Path:
    return write_lines(tmp_path / "source ü.en", LINES)  # a space and an umlaut in the name


@pytest.fixture
def parallel(tmp_path) -> list[Path]:
    """Two files with parallel text."""
    return [write_lines(tmp_path / "a.en", ENGLISH), write_lines(tmp_path / "a.de", GERMAN)]


def columns_of(capfdbinary, *arguments) -> list[list[str]]:
    """Run a command; return the columns of each line that it prints."""
    main([str(argument) for argument in arguments])
    return [line.split("\t") for line in capfdbinary.readouterr().out.decode().splitlines()]


@pytest.mark.parametrize("start", [SCRIPT, ["-m", "vaswani_transformer"]], ids=["console script", "module"])
def test_help_names_every_command(start):
    result = subprocess.run([sys.executable, *start, "--help"], env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0
    for name in (*COMMANDS, "plot", "export"):
        assert re.search(rf"^  {name}  +\w", result.stdout, re.MULTILINE), name


def test_help_imports_no_heavy_package():
    """Checks imports instead of time, which depends on the load (0.1 to 0.2 seconds when idle)."""
    heavy = {"torch", "transformers", "tokenizers", "numpy", "accelerate", "huggingface_hub", "onnxruntime"}
    program = (
        "import sys; from vaswani_transformer.cli import main\n"
        "for words in sys.argv[1:]:\n"
        "    main([*words.split(), '--help'])\n"
        f"    assert not {heavy} & set(sys.modules), words\n"
    )
    commands = ["", *COMMANDS, "export onnx", "plot attention"]
    words = [sys.executable, "-c", program, *commands]
    result = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.count("Usage: ") == len(commands), result.stderr


@pytest.mark.parametrize("words", ["", "translate", "plot", "export onnx", "train"])
def test_h_is_short_for_help(words, capsys):
    main([*words.split(), "-h"] if words else [])
    assert capsys.readouterr().out.startswith(f"Usage: vaswani-transformer {words} ".replace("  ", " "))


def test_version_is_printed(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"vaswani-transformer {__version__}\n"


@pytest.mark.parametrize(
    ("words", "option"),
    [("plot", "--bad"), ("push", "--bad"), ("translate", "--dtype int4"), ("plot attention", "--kind crosswise")],
)
def test_a_usage_error_names_the_option_and_the_command(words, option, refused):
    lines = refused(main, [*words.split(), *option.split()])
    assert option.split()[0] in lines and f"\nUsage: vaswani-transformer {words} " in lines
    assert lines.endswith(f"(more: vaswani-transformer {words} --help)\n")


def test_an_unknown_command_is_answered_with_the_known_ones(refused):
    assert refused(main, ["export", "model", "out"]).startswith("error: No such command 'model'. Commands: onnx.\n")
    assert refused(main, ["trian"]).startswith("error: No such command 'trian'. Did you mean 'train'?\n")


def test_a_file_is_translated_line_by_line(model_folder, source, tmp_path, expected):
    output = tmp_path / "target.de"
    options = ["--output", str(output), "--device", "cpu", "--chunk-lines", "2"]
    main(["translate", str(model_folder), "--input", str(source), *options])
    assert output.read_bytes() == "".join(f"{line}\n" for line in expected).encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source ü.en", "target.de"]


def test_utf_8_is_used_in_any_locale(exported, translate, expected, tmp_path):
    translate[1] = shutil.copytree(exported / "onnx", tmp_path / "größer")
    text = "\ufeff" + "\r\n".join(LINES)  # a byte order mark, carriage returns, no newline at the end
    process = command(*translate, LC_ALL="C")
    out, err = process.communicate(text.encode())
    assert (out.decode().split("\n"), process.returncode) == ([*expected, ""], 0)
    assert err.startswith(b"warning: doubtful translations") and err.count(b"\n") == 1  # the model repeats itself


@pytest.mark.slow
def test_stdout_has_translations_alone_without_docstrings(model_folder, expected):
    """transformers prints there about each docstring that `python -OO` has removed."""
    process = command("translate", model_folder, "--device", "cpu", PYTHONOPTIMIZE="2")
    out, err = process.communicate("".join(f"{line}\n" for line in LINES).encode())
    assert (out.decode().split("\n"), process.returncode) == ([*expected, ""], 0), err


def test_an_import_of_transformers_leaves_the_stdout_of_other_threads_alone():
    code = """
import sys, vaswani_transformer
class Watch:
    def find_spec(self, name, *_):
        if name.startswith("transformers."):
            assert sys.stdout is stdout
            found.add(name)
stdout, found = sys.stdout, set()
sys.meta_path.insert(0, Watch())
import transformers
assert found
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", ["translate {name}", pytest.param("export onnx {folder} {name}", marks=pytest.mark.slow)]
)
def test_a_model_whose_name_is_not_utf_8_is_refused(model_folder, tmp_path, words):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    if words.startswith("translate"):
        shutil.copytree(model_folder, name)
    process = command(*words.format(name=name, folder=model_folder).split())
    assert process.communicate(b"a\n")[1].startswith(f"error: {tmp_path}/\\udcff".encode())
    assert process.returncode == 2


def test_a_text_may_have_a_name_that_is_not_utf_8(model_folder, source, tmp_path, expected):
    name, output = (os.fsdecode(os.fsencode(tmp_path) + end) for end in (b"/\xff.en", b"/\xff.de"))
    shutil.copyfile(source, name)
    main(["translate", str(model_folder), "--input", name, "--output", output, "--device", "cpu"])
    assert Path(output).read_text(encoding="utf-8").splitlines() == expected


def test_a_removed_current_folder_is_named(model_folder, source, tmp_path):
    (tmp_path / "gone").mkdir()
    words = shlex.join([sys.executable, *SCRIPT, "translate", str(model_folder), "--input", str(source)])
    process = subprocess.run(
        f"rmdir ../gone; {words}", shell=True, cwd=tmp_path / "gone", env=ENVIRONMENT, capture_output=True, text=True
    )
    said = "error: the current folder was removed, change to another one: No such file or directory\n"
    assert (process.stderr, process.returncode) == (said, 2)


@pytest.mark.parametrize(
    "words, bar", [("translate --input {}", b"translating"), ("score --source {0} --target {0}", b"scoring")]
)
def test_progress_is_shown_on_a_terminal_alone(model_folder, parallel, words, bar, monkeypatch):
    arguments = [*words.format(parallel[0]).split(), str(model_folder), "--device", "cpu"]
    monkeypatch.setenv("TERM", "xterm")
    for ends, is_shown in ((os.openpty(), True), (os.pipe(), False)):
        with open(ends[0], "rb", buffering=0) as reader:
            with open(ends[1], "w") as stderr:
                monkeypatch.setattr(sys, "stderr", stderr)
                main(arguments)
            shown = b""
            with contextlib.suppress(OSError):  # a terminal raises it when its other end is closed
                while part := reader.read(4096):
                    shown += part
        assert (bar in shown) == is_shown


def test_typed_lines_are_translated_at_once_until_ctrl_c(translate, expected):
    process = command(*translate)
    assert process.stdin is not None and process.stdout is not None
    for line, translation in list(zip(LINES, expected, strict=True))[:3]:
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == f"{translation}\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=300) == (b"", b"interrupted\n") and process.returncode == 130


def test_n_best_and_scores_are_columns(model_folder, source, expected, capfdbinary):
    options = ["translate", model_folder, "--input", source, "--device", "cpu"]
    rows = columns_of(capfdbinary, *options, "--scores")
    assert [text for _, text in rows] == expected
    best = columns_of(capfdbinary, *options, "--n-best", "3")
    numbers = [int(number) for number, _, _ in best]
    assert numbers == sorted(numbers) and len(best) > 2 * len(LINES)
    for number, ((score, _), text) in enumerate(zip(rows, expected, strict=True), start=1):
        mine = [(float(score), text) for n, score, text in best if int(n) == number]
        # A sentence that reaches its length limit may have fewer finished hypotheses.
        assert 1 <= len(mine) <= (3 if LINES[number - 1].strip() else 1)
        assert mine[0] == (pytest.approx(float(score), abs=2e-6), text)
        assert [score for score, _ in mine] == sorted((score for score, _ in mine), reverse=True)


def test_a_line_without_finite_scores_is_named(tmp_path, refused):
    saved_model(tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors["model.encoder.layers.0.feed_forward.fc2.bias"][:4] = 3e38  # finite in float32, infinite in the norm
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    write_lines(tmp_path / "text", ["", *ENGLISH])
    options = [tmp_path / "model", "--device", "cpu"]
    said = refused(
        main, ["translate", *options, "--input", tmp_path / "text", "--scores", "--chunk-lines", 1], 3, "0.000000\t\n"
    )
    assert said.startswith("error: line 2: the model's log-probabilities are NaN or infinite") and said.count("\n") == 1
    said = refused(main, ["score", *options, "--source", tmp_path / "text", "--target", tmp_path / "text"], 3)
    assert re.match(r"error: target \d: the model's log-probabilities are NaN", said)


def test_early_stopping_is_written_as_in_json(model_folder, source, monkeypatch):
    given = []

    def record(translator, chunks, **options):
        given.append(options["early_stopping"])
        yield from ([[Hypothesis(text, 0.0, [])] for text in texts] for texts in chunks)

    monkeypatch.setattr(Translator, "find_in_chunks", record)
    for text in ("never", "true", "false", "12"):
        main(["translate", str(model_folder), "--input", str(source), "--early-stopping", text])
    assert given == ["never", True, False, 12]


def test_line_breaks_in_a_translation_become_spaces(tmp_path, source):
    model = saved_model(tmp_path / "model")
    newline = [trained_tokenizer().convert_tokens_to_ids("Ċ")]  # in byte-level BPE
    # This model produces only newlines, up to its limit.
    others = sorted(set(range(VOCABULARY)) - set(newline))
    change_json(model / "generation_config.json", suppress_tokens=others)
    main(["translate", str(model), "--input", str(source), "--output", str(tmp_path / "out")])
    assert (tmp_path / "out").read_bytes().count(b"\n") == len(LINES)


@pytest.mark.parametrize(
    "arguments, code, named",
    [
        ("--input nowhere.en", 2, "nowhere.en: no such file"),
        ("--input .", 2, ". is a folder, not a text file; name a file in it"),
        ("--output .", 2, ". is a folder"),
        ("--output no/where", 2, "the folder no does not exist"),
        ("--output {source}", 2, "--output {source} is the same file as {source}; give another name"),
        ("--report {source}", 2, "--report {source} is the same file as {source}; give another name"),
        ("--report {source}.de --output {source}.de", 2, "--report {source}.de is the same file as {source}.de"),
        ("--num-beams 0", 2, "num_beams is 0"),
        ("--n-best 9", 2, "num_return_sequences is 9; it must lie between 1 and 4 (num_beams; raise it for more)"),
        ("--n_best 3 --num_beams=2", 2, "it must lie between 1 and 2 (num_beams; raise it for more)"),
        ("Hello", 2, "'Hello': translate reads its text from stdin, or from the file that --input names"),
        ("--threads 2", 2, "threads is for the ONNX backend; torch has OMP_NUM_THREADS"),
        ("--early-stopping often", 2, "early_stopping is 'often'"),
        ("--output {source}.de --chunk-lines 1 --max-characters 20", 2, "line 4 has 49 characters"),
        ("--device toaster", 2, "toaster"),
        ("--device cuda:99", 4, "cuda:99"),
        ("--device meta", 4, "device 'meta': torch has no such device here"),
        ("--device xpu", 4, "device 'xpu': torch has no such device here"),
    ],
)
def test_a_wrong_option_is_a_one_line_error(model_folder, source, refused, arguments, code, named):
    words = [word.format(source=source) for word in arguments.split()]
    line = refused(main, ["translate", model_folder, "--input", source, *words], code)
    assert line.count("\n") == 1 and named.format(source=source) in line


@pytest.mark.skipif(shutil.which("iconv") is None, reason="needs iconv")
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16"])
def test_the_remedy_for_a_file_in_another_encoding_converts_it(model_folder, tmp_path, refused, encoding):
    (tmp_path / "text").write_text("un café\n", encoding=encoding)
    line = refused(main, ["translate", model_folder, "--input", tmp_path / "text"])
    command = line.partition("convert it: ")[2].split()
    assert subprocess.run([*command, tmp_path / "text"], capture_output=True, check=True).stdout == b"un caf\xc3\xa9\n"


@pytest.mark.parametrize("words", [("--dtype", "float8"), ("--chunk-lines", "0")])
def test_a_value_out_of_range_is_not_in_the_words_of_pydantic(refused, words):
    """New versions of typer check values with pydantic."""
    line = refused(main, ["translate", "model", *words]).splitlines()[0]
    assert line.startswith(f"error: Invalid value for '{words[0]}': ")
    assert "Value error" not in line and "Input should" not in line


def test_a_missing_folder_is_not_looked_up_on_the_network(tmp_path, refused, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("model", "runs/model", "a/b/model", "/runs"):
        line = refused(main, ["translate", name])
        assert f"{name}: no such folder; give a model folder, or owner/name on the Hub" in line


def test_an_exported_folder_is_translated_by_onnx_runtime(exported, source, expected, capfdbinary):
    assert columns_of(capfdbinary, "translate", exported / "onnx", "--input", source) == [[line] for line in expected]


def test_an_exported_folder_is_none_for_torch(exported, source, refused):
    line = refused(main, ["translate", exported / "onnx", "--backend", "torch"])
    assert "holds an ONNX export, which translates with --backend onnx" in line
    line = refused(main, ["score", exported / "onnx", "--source", source, "--target", source])  # has no --backend
    assert "give the model folder that it was exported from" in line


def test_score_prints_the_log_probability_of_each_pair(model_folder, parallel, capfdbinary):
    options = ["score", model_folder, "--source", parallel[0], "--target", parallel[1], "--device", "cpu"]
    forced = TorchTranslator(trained_model(), trained_tokenizer()).score(ENGLISH, GERMAN)
    rows = columns_of(capfdbinary, *options)
    assert [float(total) for total, _ in rows] == pytest.approx([pair.total for pair in forced], abs=1e-4)
    assert [int(count) for _, count in rows] == [len(pair.tokens) for pair in forced]
    for (line,), pair in zip(columns_of(capfdbinary, *options, "--tokens"), forced, strict=True):
        fields = json.loads(line)
        assert fields["log_probabilities"] == pytest.approx(pair.log_probabilities, abs=1e-5)
        assert len(fields["tokens"]) == len(pair.tokens) and fields["tokens"][-1] == "</s>"


@pytest.mark.parametrize("command", ["score", "align"])
def test_a_result_does_not_replace_a_text(model_folder, parallel, refused, command):
    before = [path.read_bytes() for path in parallel]
    for side in parallel:
        words = [command, model_folder, "--source", parallel[0], "--target", parallel[1], "--output", side]
        assert f"--output {side} is the same file as {side}; give another name" in refused(main, words)
    assert [path.read_bytes() for path in parallel] == before


def test_score_needs_as_many_translations_as_sources(model_folder, parallel, source, refused):
    line = refused(main, ["score", model_folder, "--source", source, "--target", parallel[1]])
    assert f"en has {len(LINES)} lines" in line and f"a.de has {len(GERMAN)}" in line


def test_tokenizer_trains_a_folder_that_autotokenizer_loads(parallel, tmp_path, capsys, refused):
    files = [str(file) for file in parallel]
    folder = tmp_path / "new" / "tokenizer"
    symbols = ["--symbol", "<2de>", "--symbol", "<2en>"]
    main(["tokenizer", *files, "--vocab-size", "300", "--output", str(folder), *symbols])
    assert "300 entries" in capsys.readouterr().err
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    assert len(tokenizer) == 300 and tokenizer("</s>")["input_ids"].count(2) == 1
    assert tokenizer("<2en><2de>")["input_ids"] == [299, 298, 2]
    assert [path.name for path in folder.parent.iterdir()] == ["tokenizer"]

    new = tmp_path / "big"
    suffixes = [name.removeprefix("NAME") for name in FORMATS if name.startswith("NAME.")]
    for suffix in suffixes:
        (tmp_path / f"pairs{suffix}.gz").touch()
    for words, named in [
        *(
            ([tmp_path / f"pairs{suffix}.gz", "--output", new], f"trains a tokenizer on {suffix} files itself")
            for suffix in suffixes
        ),
        ([*files, "--vocab-size", "300", "--output", folder], "is not empty"),
        ([*files, "--vocab-size", "300", "--output", files[0]], "is a file"),
        ([*files, "--vocab-size", "9000", "--output", new], "vocab_size 9000 is larger"),
        ([*files, "--vocab-size", "1000000001", "--output", new], "--vocab-size"),
        (["nowhere", "--output", new], "nowhere: no such file"),
    ]:
        assert named in refused(main, ["tokenizer", *words]) and not new.exists()


def test_plot_writes_pictures(model_folder, tmp_path, capsys, refused):
    main(["plot", "positions", "--output", str(tmp_path / "positions.png"), "--length", "20", "--d-model", "32"])
    options = [str(model_folder), "--source", ENGLISH[0]]
    main(["plot", "attention", *options, "--output", str(tmp_path / "attention.png"), "--head", "0"])
    main(["plot", "attention", *options, "--output", str(tmp_path / "attention.svg"), "--target", GERMAN[0]])
    for name in ("positions.png", "attention.png"):
        with Image.open(tmp_path / name) as picture:
            assert min(picture.size) > 400
    assert (tmp_path / "attention.svg").read_text().startswith("<?xml")
    assert capsys.readouterr().out == ""
    for words, named in (["a.txt"], ".png, .svg or .pdf"), (["a.png", "--layer", "7"], "layer is 7"):
        assert named in refused(main, ["plot", "attention", *options, "--output", tmp_path / words[0], *words[1:]])
        assert not (tmp_path / words[0]).exists()


def test_doctor_fits_on_a_screen_and_checks_a_model(model_folder, tmp_path, capsys, refused):
    main(["doctor", str(model_folder)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert (lines[0], lines[-1]) == ("```text", "```") and "```" not in "".join(lines[1:-1])
    assert any(torch.__version__ in line for line in lines)
    assert any("loads" in line and "parameters" in line for line in lines)
    assert any("has no checksums (manifest.json)" in line for line in lines)
    (tmp_path / "config.json").write_text("{")
    refused(main, ["doctor", tmp_path], 3)
    for options in (["--revision", "v1"], ["--dry-run"]):
        assert "--revision and --dry-run need a model" in refused(main, ["doctor", *options])


def test_doctor_prints_what_a_folder_records_without_control_characters(folder, capsys):
    evil = "a\x9b2J\u202e\u2028\n```b"
    (folder / "conversion.json").write_text(json.dumps({"options": {"source_lang": evil, "target_lang": "de"}}))
    main(["doctor", str(folder)])
    said = capsys.readouterr().out
    assert "from a\\x9b2J\\u202e  ```b to de, as its files record" in said


def test_doctor_describes_an_onnx_export(exported, capsys):
    main(["doctor", str(exported / "onnx")])
    said = capsys.readouterr().out
    assert "CPUExecutionProvider" in said and "matches its checksums (export.json)" in said


def test_a_signal_ends_the_training_of_a_tokenizer(tmp_path):
    """Although the library lets Python handle no signal, not even while it waits for text."""
    command = [sys.executable, "-m", "vaswani_transformer", "tokenizer", "-", "--output", tmp_path / "new"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=ENVIRONMENT, cwd=ROOT)
    try:
        assert process.stdin is not None
        process.stdin.write(b"a few words\n" * 20_000)  # more than a pipe holds: the training has begun
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM
        assert not list(tmp_path.iterdir())
    finally:
        process.kill()
        process.communicate()


def test_train_passes_arguments_and_exit_code(tmp_path, refused):
    line = refused(main, ["train", "--config", tmp_path / "no such recipe.yaml"])
    assert line.count("\n") == 1 and "no such recipe.yaml" in line


PROGRAM = """
import os, signal, sys, time
def stop(number, frame):
    os.write(1, b"stopped by %d\\n" % number)
    time.sleep(1)  # a second signal
    os._exit(128 + number)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
os.write(1, f"{sys.argv[1:]} {os.environ.get('OMP_NUM_THREADS')}\\n".encode())
time.sleep(600)
"""
LAUNCH = """
import sys
from pathlib import Path
from vaswani_transformer import programs
from training import launch
programs.repository_root = lambda: Path(sys.argv[1])
processes = None if sys.argv[2] == "null" else int(sys.argv[2])
raise SystemExit(launch.launch(sys.argv[3:], processes, launch.find_accelerate_config()))
"""


def make_program(folder: Path, content: str) -> None:
    """Write a training program that `LAUNCH` starts in this folder."""
    (folder / "training").mkdir()
    (folder / "training" / "__init__.py").touch()
    (folder / "training" / "__main__.py").write_text(content)
    shutil.copy(ROOT / "training" / "launch.py", folder / "training")


def configure_accelerate(folder: Path, **content: object) -> Path:
    """Write the file of `accelerate config` for a program whose HF_HOME is this folder."""
    config = folder / "accelerate" / "default_config.yaml"
    config.parent.mkdir()
    content = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "mixed_precision": "no"} | content
    config.write_text(json.dumps({"num_processes": 1, "num_machines": 1, "use_cpu": True} | content))
    return config


@pytest.mark.parametrize(
    ("number", "processes"), one_fast_in(3, [(signal.SIGTERM, 2), (signal.SIGINT, 2), (signal.SIGTERM, 1)])
)
def test_a_signal_reaches_every_training_process_once(tmp_path, number, processes):
    make_program(tmp_path, PROGRAM)
    if processes == 1:  # `train` starts it itself unless Accelerate is configured
        configure_accelerate(tmp_path)
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, tmp_path, str(processes), "--config", "a b", "--", "-x"],
        env=ENVIRONMENT | {"HF_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        start_new_session=True,  # no terminal
        cwd=ROOT,  # which holds another folder called training
    )
    assert launcher.stdout is not None
    assert {launcher.stdout.readline() for _ in range(processes)} == {b"['--config', 'a b', '--', '-x'] 1\n"}
    launcher.send_signal(number)
    out, _ = launcher.communicate(timeout=300)
    assert (out, launcher.returncode) == (f"stopped by {int(number)}\n".encode() * processes, 128 + number)


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["null", "1", "2"])
def test_the_exit_code_is_that_of_the_training(tmp_path, processes):
    make_program(tmp_path, "raise SystemExit(3)\n")
    configure_accelerate(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCH, tmp_path, processes], env=ENVIRONMENT | {"HF_HOME": str(tmp_path)}, cwd=ROOT
    )
    assert ended.returncode == 3


def test_a_configuration_that_accelerate_cannot_read_is_named(tmp_path):
    make_program(tmp_path, "")
    config = configure_accelerate(tmp_path, of_another_version=True)
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCH, tmp_path, "2"],
        env=ENVIRONMENT | {"HF_HOME": str(tmp_path)}, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert ended.returncode == 4 and "unknown keys (['of_another_version'])" in ended.stderr
    assert ended.stderr.endswith(f"; correct {config}, or write it again with `accelerate config`\n")
    assert ended.stderr.startswith("error: Accelerate cannot start the training: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "processes", "started"),
    [("NO", "2", 2), ("NO", "null", 1), ("MULTI_CPU", "2", 2), ("FSDP", "2", 2), ("FSDP", "null", 3), ("NO", "1", 1)],
)
def test_processes_override_the_configuration_of_accelerate(tmp_path, kind, processes, started):
    program = "import os\nos.write(1, os.environ.get('ACCELERATE_USE_FSDP', 'false').encode() + b'\\n')\n"
    make_program(tmp_path, program)
    fsdp = {"num_processes": 3, "fsdp_config": {"fsdp_version": 2}} if kind == "FSDP" else {}
    config = configure_accelerate(tmp_path, distributed_type=kind, **fsdp)
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCH, tmp_path, processes],
        env=ENVIRONMENT | {"HF_HOME": str(tmp_path)}, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{kind == 'FSDP'}\n".lower() * started
    assert (f"{config} chooses the number of processes" in ended.stderr) == (processes == "null")


@pytest.mark.slow
def test_signals_and_job_control_reach_a_training_in_one_process(text, tmp_path):
    """It is the process that the user started: Ctrl-Z pauses it, and kill -9 leaves none behind."""
    keys = {"data": str(text), "output_dir": str(tmp_path / "run"), "max_steps": 10**6, "log_every": 1}
    options = options_of(SMALL | keys)
    # In a group of its own, as a shell starts it: the system ignores SIGTSTP in a group that no shell watches.
    process = command("train", *options, process_group=0, HF_HOME=str(tmp_path))
    wait_until(lambda: (tmp_path / "run/metrics.jsonl").exists() or process.poll() is not None)
    assert Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() == ""
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: "State:\tT" in Path(f"/proc/{process.pid}/status").read_text())
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 130 and re.search(r"SIGINT: saved step \d+; run the same command again", said), said
    recorded = shlex.split(json.loads((tmp_path / "run/run.json").read_text())["command"])
    assert recorded == ["vaswani-transformer", "train", *options]


def test_non_blocking_pipes_work(translate):
    """Python mistakes a pause of such a stdin for the end; an unbuffered stdout may write only a part."""
    (theirs, ours), (read, write) = os.pipe(), os.pipe()
    os.set_blocking(theirs, False)
    os.set_blocking(write, False)
    words = [sys.executable, *SCRIPT, *translate, "--num-beams", "1"]
    with (
        subprocess.Popen(
            words, stdin=theirs, stdout=write, stderr=subprocess.PIPE, env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}
        ) as process,
        open(ours, "wb", buffering=0) as text,
        open(read, "rb") as translations,
    ):
        # The process makes both ends, which are shared with this one, blocking before it uses them.
        text.write(ENGLISH[0][:3].encode())
        wait_until(lambda: os.get_blocking(theirs) and os.get_blocking(write))
        os.close(theirs)
        os.close(write)
        many = 9000  # more than a pipe holds
        text.write(ENGLISH[0][3:].encode() + b"\n" * many)
        text.close()
        assert len(translations.read().splitlines()) == many
        assert (process.communicate()[1], process.returncode) == (b"", 0)


def test_a_full_disk_is_named(translate, source):
    script = [sys.executable, *SCRIPT]
    for words, to, name in (
        ([*translate, "--input", str(source)], ">/dev/full", "stdout"),
        ([*translate, "--input", str(source), "--output", "/dev/full"], "", "/dev/full"),
        (["recipes"], ">/dev/full", "stdout"),
    ):
        for unbuffered in ("", "1"):
            environment = ENVIRONMENT | {"PYTHONUNBUFFERED": unbuffered}
            line = f"{shlex.join([*script, *words])} {to}"
            done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, timeout=300)
            assert (done.stderr, done.returncode) == (f"error: {name}: No space left on device\n", 4)


@pytest.mark.parametrize("call", one_fast_in(2, ["read_arriving_lines(9)", "read_lines('-')"]))
def test_a_line_of_stdin_that_does_not_end_is_refused(call):
    code = f"from vaswani_transformer.lines import *; list({call})"
    text = b"a\n" + b"b" * 21_000_000
    ended = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, env=ENVIRONMENT, timeout=200)
    assert b"InputError: stdin line 2 is longer than 20,000,000 bytes; write" in ended.stderr


def test_a_closed_stdin_or_stdout_is_named(translate, source):
    script = [sys.executable, *SCRIPT, *translate]
    for words, close, said in (
        ([], "<&-", "stdin is closed"),
        (["--input", str(source)], ">&-", "stdout is closed"),
    ):
        line = f"{shlex.join([*script, *words])} {close}"
        done = subprocess.run(["sh", "-c", line], env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr
