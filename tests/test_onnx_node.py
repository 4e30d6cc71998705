"""The exported files in onnxruntime-web (WebAssembly) under Node, with and without a tokenizer in JavaScript."""

from pathlib import Path

import numpy as np
import pytest
from browser import NODE_MODULES, in_node
from saved_model import ENGLISH, GERMAN

from conversion.onnx.export import export_single_folder, export_split_folder
from conversion.onnx.verify import open_session
from conversion.onnx.verify_text import EDGE_CASES
from vaswani_transformer import SearchSettings, Translator
from vaswani_transformer.onnx_translator import OnnxTranslator, graph_inputs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NODE_MODULES.is_dir(), reason="needs npm packages: `make test-slow` has them"),
]
SENTENCES = [*ENGLISH, *GERMAN, "a", "日本語 🙂 な"]


@pytest.mark.parametrize(("defaults", "beams"), [(True, 4), (False, 2)])
def test_javascript_translates_as_python(model_folder: Path, tmp_path: Path, defaults: bool, beams: int) -> None:
    """A padded batch of ids, and strings, for which no tokenizer is needed. Without defaults, JavaScript sets the beam
    size. onnxruntime-web ends a text at U+0000."""
    export_single_folder(model_folder, tmp_path / "onnx", defaults=defaults, text=True)
    found = in_node("translate.mjs", {"texts": SENTENCES, "num_beams": beams}, tmp_path / "onnx")
    translator = OnnxTranslator.from_pretrained(tmp_path / "onnx")
    expected = translator.find_hypotheses(SENTENCES, num_beams=beams)
    assert [(row["ids"], row["text"]) for row in found] == [(best.tokens, best.text) for (best,) in expected]
    assert [row["score"] for row in found] == pytest.approx([best.score for (best,) in expected], abs=1e-4)

    texts = [text for text in [*SENTENCES, *EDGE_CASES] if "\0" not in text]
    found = in_node("translate_text.mjs", {"texts": texts, "num_beams": beams}, tmp_path / "onnx")
    inputs = graph_inputs(SearchSettings(beams, 0.6)) | {"text": np.array(texts, object)}
    del inputs["num_return_sequences"]
    translations, scores = open_session(tmp_path / "onnx" / "model_text.onnx").run(["translations", "scores"], inputs)
    assert found["translations"] == translations.tolist()
    assert found["scores"] == pytest.approx(scores.tolist(), abs=1e-4)


def test_transformers_js_translates_a_batch_as_python(model_folder: Path, tmp_path: Path) -> None:
    """It goes on with sentences that have ended until the longest of the batch ends."""
    export_split_folder(model_folder, tmp_path / "onnx", library="transformers.js")
    expected = Translator.from_pretrained(model_folder, device="cpu").translate([*ENGLISH, *GERMAN], num_beams=1)
    assert len({len(text) for text in expected}) > 1
    assert in_node("transformers_js.mjs", {"texts": [*ENGLISH, *GERMAN]}, tmp_path / "onnx") == expected
