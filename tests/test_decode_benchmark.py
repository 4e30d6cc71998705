"""The decoding benchmark compares systems that translate alike, and its columns are consistent."""

import csv
from pathlib import Path

import pytest
from saved_model import ENGLISH, GERMAN, saved_model

from benchmarks import decode
from conversion.__main__ import main as convert
from conversion.onnx.export import export_folder
from vaswani_transformer.errors import exit_cleanly

pytest.importorskip("ctranslate2")
pytest.importorskip("onnxruntime")


@pytest.mark.slow
@pytest.mark.timeout(900)  # twelve processes load torch or ONNX Runtime one after another
def test_every_system_is_measured_on_the_same_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved_model(tmp_path / "model")
    export_folder(model, tmp_path / "onnx")
    convert(["--to", "ctranslate2", str(model), str(tmp_path / "ctranslate2")])
    for name, lines in (("source", ENGLISH + GERMAN), ("reference", GERMAN + ENGLISH)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    words = [str(model), "--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]
    words += ["--onnx", str(tmp_path / "onnx"), "--ctranslate2", str(tmp_path / "ctranslate2"), "--bfloat16"]
    words += ["--batch-size", "3", "--batch-tokens", "60", "--rounds", "1", "--record", str(tmp_path / "decode.csv")]
    monkeypatch.chdir(Path(__file__).parents[1])
    exit_cleanly(decode.app, words)
    with (tmp_path / "decode.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["batch"] for row in rows] == ["3"] * 6 + ["60 tokens"] * 6
    by_system = {row["system"]: row for row in rows}
    exact = ["torch generate()", "torch search in tensors", "onnx"]
    assert by_system.keys() == {*exact, "torch search, bfloat16", "ctranslate2 float32", "ctranslate2 int8"}
    assert len({by_system[name]["bleu"] for name in exact}) == 1 and float(by_system["onnx"]["bleu"]) > 20
    for row in rows:
        by_generate = next(r for r in rows if r["system"] == "torch generate()" and r["batch"] == row["batch"])
        times = float(by_generate["seconds"]) / max(float(row["seconds"]), 1e-3)
        assert float(row["times_generate"]) == pytest.approx(times, rel=0.3)
        assert str(tmp_path) not in row["command"]
    # Without torch, a process needs less than half the memory.
    assert int(by_system["onnx"]["peak_megabytes"]) * 2 < int(by_system["torch generate()"]["peak_megabytes"])
