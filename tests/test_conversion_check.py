"""The comparison at the end of a conversion, with torch's or transformers' own model or with logits from a file."""

import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import one_fast_in
from golden import golden, refusal
from saved_model import change_json
from test_conversion_variants import SENTENCES, TARGETS, TutorialTransformer
from tiny_models import padded
from tokenizers import normalizers

from conversion.__main__ import main
from conversion.convert import READERS
from conversion.sentencepiece_model import SentencePieceModel

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def check_line(capsys: pytest.CaptureFixture, *arguments: str | Path) -> str:
    """Convert; return the line of the comparison of log-probabilities."""
    capsys.readouterr()
    main([str(argument) for argument in arguments])
    return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("check: "))


def largest_difference(line: str) -> float:
    return float(line.rpartition(" at most ")[2])


@pytest.mark.parametrize("name", ["torch-nn-transformer", "hf-marian", "hf-fsmt"])
def test_torch_and_transformers_are_always_compared(name: str, tmp_path: Path, capsys):
    line = check_line(capsys, golden(name), tmp_path / "out")
    assert largest_difference(line) <= 1e-5 and " of 40 tokens " in line


@pytest.mark.parametrize(
    "name", one_fast_in(2, ["fairseq", "joeynmt", "opennmt-py", "sockeye", "tensor2tensor", "hf-marian"])
)
def test_logits_in_a_file_are_compared(name: str, tmp_path: Path, capsys):
    line = check_line(capsys, golden(name), tmp_path / "out", "--logits", golden(name) / "expected.npz")
    assert "expected.npz's by" in line and largest_difference(line) <= 2e-5


def test_a_toolkit_that_cannot_run_is_named_with_the_remedy(tmp_path: Path, capsys):
    line = check_line(capsys, golden("fairseq"), tmp_path / "out")
    assert line.startswith("check: not compared: fairseq cannot run here") and line.endswith("with --logits FILE")


def test_a_model_that_transformers_cannot_open_is_reported(tmp_path: Path, capsys):
    """The converted model is written, and the line names the error."""
    change_json(shutil.copytree(golden("hf-marian"), tmp_path / "theirs") / "config.json", max_position_embeddings=1)
    line = check_line(capsys, tmp_path / "theirs", tmp_path / "out")
    assert "not compared: hf-marian could not run this model (" in line
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_conversion_with_other_scores_is_refused(tmp_path: Path, refused, monkeypatch):
    """A reader with a fault, as no checkpoint shows one: its final norm is not that of the file."""
    reader = READERS["torch-nn-transformer"]

    def read_wrongly(*arguments: Any):
        found = reader.read(*arguments)
        found.tensors["encoder.norm.weight"] = found.tensors["encoder.norm.weight"] * 1.1
        return found

    monkeypatch.setitem(READERS, reader.name, replace(reader, read=read_wrongly))
    message = refusal(refused, golden("torch-nn-transformer"), tmp_path / "out", code=1)
    assert "the converted model's log-probabilities differ from torch-nn-transformer's by" in message


@pytest.fixture
def unscaled(tmp_path: Path) -> Path:
    """A checkpoint whose module does not multiply embeddings by sqrt(d_model), and logits.npz, which it computed."""
    model = TutorialTransformer(tied=True, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=8).eval()
    model.scale = 1.0
    folder = tmp_path / "theirs"
    folder.mkdir()
    model.save(folder, nhead=4)
    batch = padded(SENTENCES)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.inference_mode():
        arrays = {"src_ids": ids, "src_mask": mask, "tgt_in_ids": TARGETS, "logits": model(ids, mask, TARGETS)}
    np.savez(tmp_path / "logits.npz", allow_pickle=False, **{name: array.numpy() for name, array in arrays.items()})
    return folder


def test_unscaled_embeddings_need_a_setting(unscaled: Path, tmp_path: Path, capsys, refused):
    logits = ["--logits", tmp_path / "logits.npz"]
    message = refusal(refused, *logits, unscaled, tmp_path / "out", code=1)
    assert "logits.npz's by " in message and 'set "scale_embeddings": false in the config.json next to' in message
    (unscaled / "config.json").write_text('{"nhead": 4, "scale_embeddings": false}')
    assert largest_difference(check_line(capsys, unscaled, tmp_path / "ours", *logits)) <= 1e-5
    assert "sqrt(d_model)" not in (tmp_path / "ours" / "CONVERSION.md").read_text()
    # torch's own module, which is compared without --logits, follows the setting as well.
    assert largest_difference(check_line(capsys, unscaled, tmp_path / "by_torch")) <= 1e-5
    (unscaled / "config.json").write_text('{"nhead": 4, "scale_embeddings": "no"}')
    assert "scale_embeddings is 'no'" in refusal(refused, unscaled, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"logits": None}, 2, "lacks logits"),
        ({"logits": np.zeros((3, 5, 12), np.float32)}, 2, "logits (3, 5, 12); --logits needs"),
        ({"src_ids": np.zeros((2, 7), np.int64)}, 2, "src_ids (2, 7), tgt_in_ids (3, 5)"),
        ({"src_mask": np.ones((3, 5), np.int64)}, 2, "src_mask has shape (3, 5), but the ids have (3, 7)"),
        ({"src_ids": np.full((3, 7), 99)}, 2, "src_ids must have ids from 0 to 12"),
        ({"logits": np.array([{}])}, 3, "is not an .npz file of numbers"),
        ({"logits": np.full((3, 5, 13), np.nan, np.float32)}, 1, "differ from"),
    ],
)
def test_a_wrong_file_of_logits_is_refused(unscaled: Path, change: dict, code: int, message: str, tmp_path, refused):
    with np.load(tmp_path / "logits.npz") as archive:
        arrays: dict[str, Any] = dict(archive) | change
    np.savez(tmp_path / "logits.npz", **{name: array for name, array in arrays.items() if array is not None})
    (unscaled / "config.json").write_text('{"nhead": 4, "scale_embeddings": false}')
    arguments = ["--logits", tmp_path / "logits.npz", unscaled, tmp_path / "out"]
    assert message in refusal(refused, *arguments, code=code)


@pytest.mark.parametrize("shape", ["(True,)", "(", f"({10**30},)"])
def test_a_damaged_header_of_logits_is_named(unscaled: Path, shape: str, tmp_path, refused):
    """numpy raises TypeError, TokenError and OverflowError for these."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    with zipfile.ZipFile(tmp_path / "logits.npz", "w") as archive:
        archive.writestr("logits.npy", np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header)
    (unscaled / "config.json").write_text('{"nhead": 4, "scale_embeddings": false}')
    message = refusal(refused, "--logits", tmp_path / "logits.npz", unscaled, tmp_path / "out", code=3)
    assert "logits.npz is not an .npz file of numbers (" in message


@pytest.mark.parametrize(("name", "theirs"), [("hf-marian", "MarianTokenizer"), ("marian-spm", "SentencePiece")])
def test_tokenizers_are_compared(name: str, theirs: str, tmp_path: Path, capsys, monkeypatch):
    pytest.importorskip("sentencepiece")
    main([str(golden(name)), str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert f"check: source tokens equal {theirs}'s on " in said and f"check: target tokens equal {theirs}'s on " in said
    monkeypatch.setattr(SentencePieceModel, "build_normalizer", lambda self, known: normalizers.Lowercase())
    main([str(golden(name)), str(tmp_path / "wrong")])
    assert f"check: source tokens differ from {theirs}'s on " in capsys.readouterr().out


def test_tokenizers_are_compared_only_with_their_package(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    main([str(golden("marian-spm")), str(tmp_path / "out")])
    expected = "check: source tokens not compared: SentencePiece needs `pip install sentencepiece`"
    assert expected in capsys.readouterr().out
