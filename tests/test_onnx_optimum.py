"""Optimum, on transformers 4, translates with the split layout as this package does."""

import json
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import ENVIRONMENT
from saved_model import ENGLISH, GERMAN, trained_model, trained_tokenizer, untrained_model
from transformers import MarianMTModel

from conversion.__main__ import main as convert
from conversion.onnx.__main__ import main
from vaswani_transformer import Translator

PYTHON = Path(__file__).parents[1] / ".venv-optimum" / "bin" / "python"
BEAM_SEARCH: dict[str, Any] = {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"}
CODE = """
import json, sys
from optimum.onnxruntime import ORTModelForSeq2SeqLM
from transformers import AutoTokenizer

texts, searches = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained("exported")
batch = tokenizer(texts, return_tensors="pt", padding=True)
for merged in (True, False):
    model = ORTModelForSeq2SeqLM.from_pretrained("exported", use_merged=merged)
    for search in searches:
        print(json.dumps(tokenizer.batch_decode(model.generate(**batch, **search), skip_special_tokens=True)))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs transformers 4: make .venv-optimum/installed"),
]


def test_optimum_translates_as_this_package(tmp_path: Path) -> None:
    """Greedily, which is the default. Its beam search is that of transformers, which MarianMTModel has too."""
    model = untrained_model(layer_norm_eps=1e-5)  # as in MarianMTModel
    model.load_state_dict(trained_model().state_dict())
    model.save_pretrained(tmp_path / "model")
    trained_tokenizer().save_pretrained(tmp_path / "model")
    main([str(tmp_path / "model"), str(tmp_path / "exported"), "--for", "optimum"])
    convert([str(tmp_path / "model"), str(tmp_path / "marian"), "--to", "hf-marian"])
    texts, environment = [*ENGLISH, *GERMAN], ENVIRONMENT | {"PYTHONPATH": ""}
    done = subprocess.run(
        [PYTHON, "-c", CODE], cwd=tmp_path, env=environment, input=json.dumps([texts, [{}, BEAM_SEARCH]]),
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tokenizer, marian = trained_tokenizer(), cast(Any, MarianMTModel.from_pretrained(tmp_path / "marian"))
    found = marian.generate(**tokenizer(texts, return_tensors="pt", padding=True), **BEAM_SEARCH)
    by_beams = tokenizer.batch_decode(found, skip_special_tokens=True)
    greedy = Translator.from_pretrained(tmp_path / "model", device="cpu").translate(texts, num_beams=1)
    assert greedy != by_beams
    assert [json.loads(line) for line in done.stdout.splitlines()] == [greedy, by_beams] * 2
