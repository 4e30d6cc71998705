"""The command of `make gpu`, on a CPU with tiny models."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from training.demo_corpus import load
from vaswani_transformer.errors import exit_cleanly

ROOT = Path(__file__).parents[1]
pytest.importorskip("ctranslate2")
pytest.importorskip("onnxruntime")


def rows_of(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The demo's corpus under Multi30k's names."""
    parts = {"train": load("train")[:3000], "val": load("validation")[:100], "test_2016_flickr": load("test")[:100]}
    for name, rows in parts.items():
        for language, column in (("en", 1), ("de", 2)):
            text = "".join(f"{row[column]}\n" for row in rows)
            (tmp_path / f"{name}.{language}").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_pieces_run_on_a_cpu(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    output = tmp_path / "gpu"
    exit_cleanly(gpu.app, ["--data", str(data), "--output", str(output), "--device", "cpu", "--small"])
    checks = {row["check"]: row for row in rows_of(output / "gpu_checks.csv")}
    assert checks["killed training has other bits, bf16, deterministic"]["difference"] == "0.0e+00"
    assert {row["system"].split("+")[0] for row in rows_of(output / "train_throughput.csv")} >= {"marian", "ours"}
    assert len(rows_of(output / "multi30k.csv")) == 1
    scaling = [(row["processes"], row["weights"]) for row in rows_of(output / "scaling.csv")]
    assert scaling == [("1", "copied"), ("2", "copied"), ("2", "split")]
    claims = {path.stem for path in (output / "paper/claims").glob("*.json")}
    assert claims == {"throughput", "decoding_throughput", "memory_of_attention", "training_without_the_factor"}
    assert json.loads((output / "paper/claims/throughput.json").read_text())["hardware"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_finished_piece_does_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    words = ["--data", str(tmp_path), "--output", str(tmp_path / "gpu"), "--device", "cpu", "--small", "--only"]
    exit_cleanly(gpu.app, [*words, "decode"])
    exit_cleanly(gpu.app, [*words, "decode"])
    assert "decode: finished before" in capsys.readouterr().out
    systems = {row["system"] for row in rows_of(tmp_path / "gpu/gpu_decode.csv")}
    assert {
        "marian float32",
        "generate() bfloat16",
        "search bfloat16",
        "onnx float16",
        "ctranslate2 float32",
    } <= systems
    with pytest.raises(SystemExit) as ended:  # there is no text
        exit_cleanly(gpu.app, [*words, "multi30k-1"])
    assert ended.value.code == 4 and "pieces that failed: multi30k-1" in capsys.readouterr().err
    assert "no such" in (tmp_path / "gpu/multi30k-1.log").read_text(encoding="utf-8")
