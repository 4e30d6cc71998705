"""The tokenizer.json of an export or a push neither truncates nor pads, whatever that of the model folder does."""

import shutil
from pathlib import Path

import pytest
from saved_model import ENGLISH, already_exported
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from conversion.onnx.__main__ import main as export
from hub.__main__ import main as hub
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER

pytestmark = pytest.mark.timeout(1200)  # an export takes 20 seconds of an idle processor, and minutes of a busy one


def truncating(folder: Path) -> Path:
    """Save the tokenizers of a folder as the Trainer leaves them: with truncation and padding of the last batch."""
    for place in {path.parent for path in folder.rglob("tokenizer.json")}:
        tokenizer = AutoTokenizer.from_pretrained(place)
        tokenizer(ENGLISH, padding=True, truncation=True, max_length=5)
        tokenizer.save_pretrained(place)
        saved = Tokenizer.from_file(str(place / "tokenizer.json"))
        assert saved.truncation and saved.padding
    return folder


def check_tokenizers(folder: Path, model: Path, expected: set[str]) -> None:
    """Check that the tokenizers in these places give the tokens of the model's, all of them and no padding."""
    places = {path.parent.relative_to(folder).as_posix() for path in folder.rglob("tokenizer.json")}
    assert places == expected
    for place in places:
        plain = Tokenizer.from_file(str(folder / place / "tokenizer.json"))
        ours = AutoTokenizer.from_pretrained(model / TARGET_TOKENIZER if place.endswith(TARGET_TOKENIZER) else model)
        assert [encoding.ids for encoding in plain.encode_batch(ENGLISH)] == ours(ENGLISH)["input_ids"]


def test_an_export_has_all_tokens_of_a_text(two_vocabularies: Path, tmp_path: Path) -> None:
    model = truncating(shutil.copytree(two_vocabularies / "model", tmp_path / "model"))
    with already_exported(two_vocabularies / "onnx"):
        export([str(model), str(tmp_path / "out"), "--no-defaults"])
    check_tokenizers(tmp_path / "out", model, {".", TARGET_TOKENIZER})


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--text", "--layout split", "--for optimum", "--for transformers.js"])
def test_every_layout_has_all_tokens_of_a_text(exported: Path, tmp_path: Path, options: str) -> None:
    model = truncating(shutil.copytree(exported / "model", tmp_path / "model"))
    with already_exported(exported / "onnx"):
        export([str(model), str(tmp_path / "out"), *options.split()])
    check_tokenizers(tmp_path / "out", model, {"."})


def test_a_push_has_all_tokens_of_a_text(two_vocabularies: Path, tmp_path: Path) -> None:
    """Also of an export that has the model's tokenizer unchanged, or without truncation."""
    model = truncating(shutil.copytree(two_vocabularies / "model", tmp_path / "model"))
    old = truncating(shutil.copytree(two_vocabularies / "onnx", tmp_path / "old"))
    (old / "export.json").unlink()  # it has the hash of tokenizer.json
    for number, onnx in enumerate((old, two_vocabularies / "onnx")):
        out = tmp_path / f"push{number}"
        hub(["push", str(model), "owner/name", "--onnx", str(onnx), "--no-pictures", "--to-folder", str(out)])
        places = {".", TARGET_TOKENIZER, "onnx", f"onnx/{TARGET_TOKENIZER}"}
        check_tokenizers(out, model, places)
