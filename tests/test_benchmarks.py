"""Benchmarks on a CPU with tiny models; the slow tests run them as their users do."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import read_rows, write_lines
from saved_model import ENGLISH, GERMAN

from benchmarks import decode, harness, train_throughput
from benchmarks.systems import training_loops
from benchmarks.systems.decoding import System
from conversion.__main__ import main as convert
from training.demo_corpus import load
from vaswani_transformer.errors import InputError

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def run(name: str, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a benchmark and check its exit code."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def new_rows(name: str, folder: Path, *words: object) -> list[dict[str, Any]]:
    """Append to a copy of a benchmark's recorded rows, which fails if its columns differ; return the new rows."""
    path = Path(shutil.copy(RESULTS / f"{name}.csv", folder))
    recorded = read_rows(path)
    run(name, *words, "--record", path)
    return read_rows(path)[len(recorded) :]


def test_files_of_different_lengths_are_refused(tmp_path: Path) -> None:
    """Also if both have as many sentences as are translated."""
    source, reference = write_lines(tmp_path / "source", ENGLISH), write_lines(tmp_path / "reference", GERMAN[:-1])
    with pytest.raises(InputError, match=f"has {len(ENGLISH)} lines and .* has {len(GERMAN) - 1}"):
        decode.read_pairs(str(source), str(reference), 2)
    assert decode.read_pairs(str(source), str(source), 2) == (ENGLISH[:2], ENGLISH[:2])


def test_int8_is_compared_with_the_int8_of_ctranslate2() -> None:
    systems = [
        System("generate", "generate", "float32", list),
        System("onnx", "onnx", "int8", list),
        System("ctranslate2", "ctranslate2", "int8", list),
    ]
    best = {"generate": (6.0, []), "onnx": (2.0, []), "ctranslate2": (3.0, [])}
    rows = [harness.speedups(each.name, decode.peers_of(each, systems), best) for each in systems]
    # Columns: generate(), Marian, which does not run, and CTranslate2, which does not run in float32.
    assert [list(row.values()) for row in rows] == [["1.00", "", ""], ["3.00", "", "1.50"], ["2.00", "", "1.00"]]


def test_rows_name_the_command_without_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["bench/model/", "--system", "onnx=bench/onnx-fp32", "--source=/text/test.en", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["/clone/benchmarks/decode.py", *words])
    expected = "python -m benchmarks.decode model --system onnx=onnx-fp32 --source=test.en --threads 1"
    assert harness.command() == expected


def test_conversion_marian_records_rows(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    rows = new_rows("conversion_marian", tmp_path, "tests/fixtures/marian")
    assert [row["conversion"] for row in rows] == ["ours", "transformers", "ctranslate2"]
    # Marian prints five digits.
    assert float(rows[0]["max_error"]) < 1e-5 < float(rows[1]["max_error"])


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_conversion_opus_records_rows(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    text = tmp_path / "text.en"
    text.write_text("a b c\nb\n", encoding="utf-8")
    (row,) = new_rows("conversion_opus", tmp_path, "tests/fixtures/hf-marian", "--texts", text)
    assert (row["texts"], row["same_ids"], row["same"]) == ("2", "2", "2")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The demo's corpus under Multi30k's names."""
    parts = {"train": load("train")[:3000], "val": load("validation")[:100], "test_2016_flickr": load("test")[:100]}
    for name, rows in parts.items():
        for language, column in (("en", 1), ("de", 2)):
            write_lines(tmp_path / f"{name}.{language}", [row[column] for row in rows])
    return tmp_path


def test_decode_measures_every_system_on_the_same_sentences(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    convert(["--to", "ctranslate2", str(exported / "model"), str(tmp_path / "ctranslate2")])
    source = write_lines(tmp_path / "source", ENGLISH + GERMAN)
    words = [
        exported / "model",
        "--source",
        source,
        "--reference",
        write_lines(tmp_path / "reference", GERMAN + ENGLISH),
    ]
    words += ["--system", f"onnx={exported / 'onnx'}"]
    words += [f"--system=ctranslate2-{kind}={tmp_path / 'ctranslate2'}" for kind in ("float32", "int8")]
    rows = new_rows("decode", tmp_path, *words, "--batch-size", 3, "--batch-tokens", 60, "--rounds", 1)
    assert [row["batch"] for row in rows] == ["3"] * 5 + ["60 tokens"] * 5
    by_system = {row["system"]: row for row in rows}
    exact = ["torch generate()", "torch search in tensors", "onnx"]
    assert by_system.keys() == {*exact, "ctranslate2 float32", "ctranslate2 int8"}
    assert len({by_system[name]["bleu"] for name in exact}) == 1 and float(by_system["onnx"]["bleu"]) > 20
    for row in rows:
        by_generate = next(r for r in rows if r["system"] == "torch generate()" and r["batch"] == row["batch"])
        speedup = float(by_generate["seconds"]) / max(float(row["seconds"]), 1e-3)
        assert float(row["speedup_vs_generate"]) == pytest.approx(speedup, rel=0.3)
        assert row["command"].startswith("python -m benchmarks.decode model ") and str(tmp_path) not in row["command"]
    # Without torch, a process needs less than half the memory.
    assert int(by_system["onnx"]["peak_megabytes"]) * 2 < int(by_system["torch generate()"]["peak_megabytes"])


def test_throughput_compares_every_way_to_use_the_cores(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    text, reference = write_lines(tmp_path / "text", ENGLISH), write_lines(tmp_path / "reference", GERMAN)
    record = tmp_path / "throughput.csv"
    words = ["--rounds", 1, "--cores", 2, "--record", record]
    run("throughput", "--model", exported / "model", "--source", text, "--reference", reference, "--torch", *words)
    run("throughput", "--small", "--sentences", 4, "--tokens-only", *words)
    rows = read_rows(record)
    assert {row["way"] for row in rows if row["system"] == "ctranslate2"} == {
        "one thread", *(f"{way} 2, batches of {size}" for way in ("intra", "inter") for size in (32, 64))
    }  # fmt: skip
    ours = [row for row in rows if row["system"] != "ctranslate2"]
    assert {row["way"] for row in ours} == {"one thread", "intra 2", "workers 2"}
    assert len({row["bleu"] for row in ours if row["unit"] == "texts" and row["precision"] == "float32"}) == 1
    for row in rows:
        peer = row["fastest_of_ctranslate2"]
        assert row["speedup_vs_one_thread"] == "1.00" or row["way"] != "one thread"
        assert row["speedup_vs_ctranslate2"] == "1.00" or (row["system"], row["way"]) != ("ctranslate2", peer)


def test_other_benchmarks_of_a_cpu_record_rows(exported: Path, data: Path) -> None:
    text = data / "val.en"
    words = ["--source", text, "--sentences", 8, "--batch-size", 4, "--most", 5, "--record", data / "profile.csv"]
    run("decode_profile", exported / "onnx", *words)
    assert len(read_rows(data / "profile.csv")) == 5
    never, *others = new_rows("stopping_rules", data, exported / "model", text, data / "val.de")
    assert (never["early_stopping"], never["differ"]) == ("never", "0")
    assert [row["early_stopping"] for row in others] == ["10", "5", "2", "False", "True"]


def test_tokenising_is_compared_with_the_library(exported: Path, data: Path) -> None:
    [row] = new_rows("tokenising", data, data, "--tokenizer", exported / "model", "--pairs", 300, "--rounds", 2)
    assert row["pairs"] == "300" and int(row["pairs_per_second"]) > 0 and int(row["peak_megabytes"]) > 0
    assert float(row["ratio_min"]) <= float(row["ratio"]) <= float(row["ratio_max"])


def test_decoding_at_base_size_is_compared_at_equal_precision(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    pytest.importorskip("onnxruntime")
    rows = {
        row["system"]: row
        for row in new_rows("decode_base_size", tmp_path, "--small", "--batch-size", 2, "--rounds", 1)
    }
    assert rows.keys() == {
        f"{kind} {precision}" for kind in ("onnx", "ctranslate2") for precision in ("float32", "int8")
    }
    assert all(
        rows[f"ctranslate2 {precision}"]["speedup_vs_ctranslate2"] == "1.00" for precision in ("float32", "int8")
    )
    assert all(int(row["tokens_per_second"]) > 0 and int(row["matmul_gops"]) > 0 for row in rows.values())


def test_training_throughput_is_compared_with_the_first_system(data: Path) -> None:
    words = ["--system", "marian", "--system", "ours+highest", "--system", "trainer+group"]
    words += ["--tokens", 2000, "--vocab-size", 500, "--rounds", 1, "--steps", 1, "--warmup", 1]
    rows = new_rows("train_throughput", data, data, *words)
    assert [row["system"] for row in rows] == ["marian", "ours+highest", "trainer+group"]
    assert rows[0]["speedup"] == rows[0]["speedup_max"] == "1.0"
    assert rows[0]["padding"] == rows[1]["padding"] < rows[2]["padding"]


def test_a_precision_that_the_hardware_would_emulate_is_not_measured(monkeypatch) -> None:
    monkeypatch.setattr(training_loops, "has_bfloat16", lambda: False)
    with pytest.raises(InputError, match=r"--system 'ours\+bf16': this hardware would emulate bf16; leave it out"):
        training_loops.TrainingProcess("ours+bf16", None)  # type: ignore[arg-type]


def test_tokens_of_the_trainer_are_those_of_the_steps_that_are_timed(data: Path, tmp_path: Path, monkeypatch) -> None:
    """Accelerate collates a batch ahead of the step, and the first step is not timed."""
    marian_model, positions = training_loops.marian_model, []

    def watched_model(settings: training_loops.Settings) -> Any:
        def count(module: Any, arguments: Any, inputs: dict[str, Any]) -> None:
            positions.append(inputs["input_ids"].numel() + inputs["decoder_input_ids"].numel())

        model = marian_model(settings)
        model.register_forward_pre_hook(count, with_kwargs=True)
        return model

    monkeypatch.setattr(training_loops, "marian_model", watched_model)
    folder = tmp_path / "text"
    folder.mkdir()
    train_throughput.write_text(data, folder, joined=1)
    recipe = train_throughput.make_recipe("tiny", str(folder), tokens=2000, vocab_size=500)
    _, take_steps = training_loops.trainer([], training_loops.Settings(recipe, str(folder), 1, "cpu", "cpu"))
    assert take_steps(2).positions == sum(positions[1:3])


def test_gpu_runs_all_measurements(data: Path) -> None:
    output = data / "gpu"
    run("gpu", "--data", data, "--output", output, "--device", "cpu", "--small")
    checks = {row["check"]: row for row in read_rows(output / "gpu_checks.csv")}
    assert checks["killed training is not bit-identical, bf16, deterministic"]["difference"] == "0.0e+00"
    assert {row["system"].split("+")[0] for row in read_rows(output / "train_throughput.csv")} >= {"marian", "ours"}
    assert len(read_rows(output / "multi30k.csv")) == 1
    scaling = [(row["processes"], row["strategy"]) for row in read_rows(output / "scaling.csv")]
    assert scaling == [("1", "single"), ("2", "ddp"), ("2", "fsdp")]
    claims = {path.stem for path in (output / "paper/claims").glob("*.json")}
    assert claims == {"training_speed", "decoding_speed", "memory_of_attention", "training_without_the_factor"}
    assert json.loads((output / "paper/claims/training_speed.json").read_text())["hardware"]
    systems = {row["system"] for row in read_rows(output / "decode_base_size.csv")}
    assert systems >= {
        "marian float32",
        "generate() bfloat16",
        "search bfloat16",
        "onnx int8",
        "ctranslate2 float32",
    }


def test_gpu_skips_finished_measurements_and_names_failed_ones(tmp_path: Path) -> None:
    words = ["--data", tmp_path, "--output", tmp_path / "gpu", "--device", "cpu", "--small", "--only"]
    run("gpu", *words, "decode")
    assert "decode: finished before" in run("gpu", *words, "decode").stdout
    failed = run("gpu", *words, "multi30k-1", code=4)  # there is no text
    assert "measurements that failed: multi30k-1" in failed.stderr
    assert "no such" in (tmp_path / "gpu/multi30k-1.log").read_text(encoding="utf-8")


def test_serve_measures_as_few_requests_as_it_allows(exported: Path, tmp_path: Path) -> None:
    words = ["--requests", 100, "--rounds", 1, "--memory-requests", 0, "--overload", 0]
    done = run("serve", exported / "onnx", write_lines(tmp_path / "text", ENGLISH), *words)
    assert "p99 / one client: " in done.stdout and done.stdout.endswith("exit code after SIGTERM: 0\n")
