"""The comparison at the end of a conversion, with torch's or transformers' own model or with logits from a file."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import padded
from golden import converted, golden, refusal
from test_conversion_variants import SENTENCES, TARGETS, TutorialTransformer

from conversion.__main__ import main
from conversion.toolkits import torch_nn


def check_line(capsys: pytest.CaptureFixture, *arguments: str | Path) -> str:
    """Convert; return the line of the comparison."""
    capsys.readouterr()
    main([str(argument) for argument in arguments])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("check: ")]
    return line


@pytest.mark.parametrize("name", ["torch-nn-transformer", "hf-marian", "hf-fsmt"])
def test_torch_and_transformers_are_always_compared(name: str, tmp_path: Path, capsys):
    line = check_line(capsys, golden(name), tmp_path / "out")
    tokens, difference = re.fullmatch(r".* in log P of (\d+) tokens is (\S+)", line).groups()  # pyright: ignore
    assert float(difference) <= 1e-5 and int(tokens) == 40


@pytest.mark.parametrize("name", ["fairseq", "joeynmt", "opennmt-py", "sockeye", "tensor2tensor", "hf-marian"])
def test_logits_in_a_file_are_compared(name: str, tmp_path: Path, capsys):
    line = check_line(capsys, golden(name), tmp_path / "out", "--logits", golden(name) / "expected.npz")
    assert "expected.npz in log P of " in line and float(line.split(" tokens is ")[1]) <= 2e-5


@pytest.mark.parametrize("name", ["hf-marian", "hf-fsmt", "fairseq"])
def test_log_probabilities_of_texts_are_printed(name: str, tmp_path: Path, capsys):
    checkpoint = converted(name)
    for side, lines in zip("01", checkpoint.texts, strict=True):
        (tmp_path / side).write_text("\n".join(lines) + "\n", encoding="utf-8")
    capsys.readouterr()
    main([str(golden(name)), str(tmp_path / "out"), "--check", str(tmp_path / "0"), str(tmp_path / "1")])
    printed = capsys.readouterr().out
    labels = checkpoint.tokenizer("target")(checkpoint.texts[1])["input_ids"]
    total = sum(words.sum().item() for words in checkpoint.log_probabilities(list(range(5)), labels))
    assert float(printed.split("log P of all 5 pairs: ")[1].split("\n")[0]) == pytest.approx(total, abs=2e-3)
    if name == "fairseq":
        assert "fairseq cannot be run from here; its scorer should print these numbers" in printed
    else:
        assert float(printed.split(" tokens is ")[1].split("\n")[0]) <= 1e-5


def test_a_toolkit_that_cannot_be_run_is_named_with_the_remedies(tmp_path: Path, capsys):
    line = check_line(capsys, golden("fairseq"), tmp_path / "out")
    assert "fairseq cannot be run from here; --check SRC TGT prints" in line and "--logits FILE compares" in line


def test_a_model_that_transformers_cannot_open_is_reported(tmp_path: Path, capsys):
    """The converted model is written, and the line names the error."""
    config = shutil.copytree(golden("hf-marian"), tmp_path / "theirs") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 1}))
    line = check_line(capsys, tmp_path / "theirs", tmp_path / "out")
    assert "hf-marian could not run this model (" in line
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_conversion_with_other_scores_is_refused(tmp_path: Path, capsys, monkeypatch):
    """A reader with a fault, as no checkpoint shows one: its final norm is not that of the file."""
    read = torch_nn.read

    def wrongly(*arguments: Any):
        found = read(*arguments)
        found.tensors["encoder.norm.weight"] = found.tensors["encoder.norm.weight"] * 1.1
        return found

    monkeypatch.setattr(torch_nn, "read", wrongly)
    message = refusal(capsys, golden("torch-nn-transformer"), tmp_path / "out", code=3)
    assert "the converted model differs from torch-nn-transformer by" in message


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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_unscaled_embeddings_need_an_option(unscaled: Path, tmp_path: Path, capsys):
    logits = ["--logits", tmp_path / "logits.npz"]
    message = refusal(capsys, *logits, unscaled, tmp_path / "out", code=3)
    assert "logits.npz by " in message and "--no-scale-embeddings or with" in message
    line = check_line(capsys, unscaled, tmp_path / "by_option", "--no-scale-embeddings", *logits)
    assert float(line.split(" tokens is ")[1]) <= 1e-5
    (unscaled / "config.json").write_text('{"nhead": 4, "scale_embeddings": false}')
    check_line(capsys, unscaled, tmp_path / "by_config", *logits)
    assert "sqrt(d_model)" not in (tmp_path / "by_config" / "CONVERSION.md").read_text()
    # torch's own module, which is compared without --logits, follows the setting as well.
    assert float(check_line(capsys, unscaled, tmp_path / "by_torch").split(" tokens is ")[1]) <= 1e-5
    # The option overrides the file.
    assert "differs" in refusal(capsys, *logits, "--scale-embeddings", unscaled, tmp_path / "out", code=3)


def test_the_scaling_option_is_refused_for_other_toolkits(unscaled: Path, tmp_path: Path, capsys):
    message = refusal(capsys, "--scale-embeddings", golden("fairseq"), tmp_path / "out")
    assert "--scale-embeddings is for torch-nn-transformer" in message
    (unscaled / "config.json").write_text('{"nhead": 4, "scale_embeddings": "no"}')
    assert "scale_embeddings is 'no'" in refusal(capsys, unscaled, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"logits": None}, 2, "lacks logits"),
        ({"logits": np.zeros((3, 5, 12), np.float32)}, 2, "logits (3, 5, 12); --logits needs"),
        ({"src_ids": np.full((3, 7), 99)}, 2, "src_ids must have ids from 0 to 12"),
        ({"logits": np.array([{}])}, 3, "is not an .npz file of numbers"),
        ({"logits": np.full((3, 5, 13), np.nan, np.float32)}, 3, "differs from"),
    ],
)
def test_a_wrong_file_of_logits_is_refused(unscaled: Path, change: dict, code: int, message: str, tmp_path, capsys):
    with np.load(tmp_path / "logits.npz") as archive:
        arrays: dict[str, Any] = dict(archive) | change
    np.savez(tmp_path / "logits.npz", **{name: array for name, array in arrays.items() if array is not None})
    arguments = ["--no-scale-embeddings", "--logits", tmp_path / "logits.npz", unscaled, tmp_path / "out"]
    assert message in refusal(capsys, *arguments, code=code)
