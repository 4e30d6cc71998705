"""The comparison at the end of a conversion with the toolkit's own model, if the toolkit is installed."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from golden import FIXTURES, converted, golden, refusal
from test_conversion_variants import TutorialTransformer, randomised, write_words

from conversion.__main__ import main
from conversion.reasons import Reasons
from conversion.reference_forward import NotComparable, toolkit_scores
from conversion.toolkits import torch_nn
from vaswani_transformer import Translator

PACKAGE = {
    "fairseq": "fairseq",
    "joeynmt": "joeynmt",
    "marian": "_pymarian",
    "opennmt-py": "onmt",
    "sockeye": "sockeye",
}


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


@pytest.mark.parametrize("name", PACKAGE)
def test_installed_toolkits_are_compared_and_others_named(name: str, tmp_path: Path, capsys):
    line = check_line(capsys, golden(name), tmp_path / "out")
    if importlib.util.find_spec(PACKAGE[name]) is None:
        assert f"{name} " in line and "is not installed here; --check SRC TGT prints log-probabilities" in line
    else:
        assert float(line.split(" tokens is ")[1]) <= 1e-4


def test_a_toolkit_that_does_not_run_is_reported(tmp_path: Path, capsys, monkeypatch):
    """The converted model is written, and the line names the error."""
    (tmp_path / "site" / "sockeye").mkdir(parents=True)
    (tmp_path / "site" / "sockeye" / "__init__.py").write_text("")
    (tmp_path / "site" / "sockeye" / "model.py").write_text("raise ValueError('of another time\\nand place')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    line = check_line(capsys, golden("sockeye"), tmp_path / "out")
    assert "sockeye is installed here, but does not run (ValueError: of another time)" in line
    assert (tmp_path / "out" / "model.safetensors").is_file()
    for name in [name for name in sys.modules if name.startswith("sockeye")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_conversion_with_other_scores_is_refused(tmp_path: Path, capsys, monkeypatch):
    """The final norm differs from that of the nn.Transformer with the tensors of the file."""
    read = torch_nn.read

    def wrongly(path: Path, reasons: Reasons):
        found = read(path, reasons)
        for name in ("encoder.norm.weight", "encoder.norm.bias"):
            found.tensors[name] = found.tensors[name] * 1.1
        return found

    monkeypatch.setattr(torch_nn, "read", wrongly)
    message = refusal(capsys, golden("torch-nn-transformer"), tmp_path / "out", code=3)
    assert "the converted model differs from torch-nn-transformer by" in message


def test_a_wrong_option_changes_the_reference_scores(tmp_path: Path):
    """Post-norm layers that are read as pre-norm have different scores."""
    sizes = {"source": 13, "target": 13, "d_model": 16, "tied": False, "learned": False, "nhead": 4}
    model = randomised(TutorialTransformer(**sizes, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=8))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    (tmp_path / "config.json").write_text('{"nhead": 4}')
    for side in ("src", "tgt"):
        write_words(tmp_path / f"vocab.{side}.txt", ["<unk>", "<pad>", "<bos>", "<eos>"], 13)
    found = torch_nn.read(tmp_path / "model.pt", Reasons(tmp_path))
    pairs = [([4, 5, 6], [7, 8, 3])]
    with torch.inference_mode():
        (right,) = toolkit_scores(found, pairs)
        found.config["norm_position"] = "pre"
        (wrong,) = toolkit_scores(found, pairs)
    assert (right[2] - wrong[2]).abs().max() > 0.01


def test_prenorm_marian_is_not_compared():
    if importlib.util.find_spec("_pymarian") is None:
        pytest.skip("needs pymarian")
    with pytest.raises(NotComparable, match="another function"):
        checkpoint = converted("marian-prenorm").checkpoint
        from conversion.toolkits import marian

        toolkit_scores(marian.read(checkpoint / "model.npz", Reasons(checkpoint)), [([2, 0], [2, 0])])


def test_a_source_vocabulary_without_eos_translates(tmp_path: Path):
    """OpenNMT-py 1 and 2 have <s> and </s> only in the target vocabulary."""
    main([str(FIXTURES / "variants" / "opennmt-py-2-separate"), str(tmp_path / "out")])
    translator = Translator.from_pretrained(tmp_path / "out", device="cpu")
    assert translator.tokenizer.eos_token is None
    (score,) = translator.score("src0 src1", "tgt0")
    assert len(score.tokens) == 2  # the word and </s>
    assert isinstance(translator.translate("src0 src1"), str | list)
