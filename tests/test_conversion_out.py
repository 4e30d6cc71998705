"""Checkpoints written for toolkits: models that came from one return bit by bit; others are compared or refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_config
from golden import Golden, converted, golden, refusal
from safetensors.torch import load_file
from saved_model import trained_model, trained_tokenizer, untrained_model
from transformers import MarianMTModel

from conversion.__main__ import main
from conversion.unpickle import load_checkpoint
from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.loading import load_model


def tensors_of(file: Path) -> dict[str, np.ndarray]:
    """Return every tensor of a checkpoint by name."""
    if file.suffix == ".npz":
        with np.load(file) as archive:
            return dict(archive)
    content = {"model": load_file(file)} if file.suffix == ".safetensors" else load_checkpoint(file)
    parts = {part: content.get(part, {}) for part in ("model", "generator")}
    return {f"{part}/{name}": tensor.numpy() for part, tensors in parts.items() for name, tensor in tensors.items()}


CHECKPOINTS = {
    "fairseq": "checkpoint_best.pt",
    "marian": "model.npz",
    "marian-spm": "model.npz",
    "marian-prenorm": "model.npz",
    "hf-marian": "model.safetensors",
    "opennmt-py": "model_release.pt",
}
TO = {"marian-spm": "marian", "marian-prenorm": "marian"}
# fairseq's stale copies, Marian's alignment of the configuration's end, OpenNMT-py's tables of positions (5000 rows).
NOT_WEIGHTS = ("_weight", "_bias", "version", "_float_tensor", "special:model.yml", "pe.pe")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_round_trip_is_bit_exact(name: str, tmp_path: Path):
    checkpoint, out = converted(name), tmp_path / "out"
    main(["--to", TO.get(name, name), str(checkpoint.folder), str(out)])
    theirs = tensors_of(checkpoint.checkpoint / CHECKPOINTS[name])
    back = tensors_of(out / CHECKPOINTS[name])
    weights = [name for name in theirs if not name.endswith(NOT_WEIGHTS)]
    assert len(weights) > 40
    for weight in weights:
        assert back[weight].dtype == theirs[weight].dtype, weight
        assert np.array_equal(back[weight], theirs[weight]), weight
    assert set(weights) == {weight for weight in back if not weight.endswith(NOT_WEIGHTS)}
    for file in (checkpoint.folder / "original").iterdir():  # the vocabularies, byte for byte
        assert (out / file.name).read_bytes() == (checkpoint.checkpoint / file.name).read_bytes()

    main([str(out), str(tmp_path / "again")])
    again = load_model(tmp_path / "again", device="cpu").state_dict()
    for weight, tensor in checkpoint.model.state_dict().items():
        assert torch.equal(again[weight], tensor), weight
    assert (tmp_path / "again" / "tokenizer.json").read_text() == (checkpoint.folder / "tokenizer.json").read_text()


def test_marians_configuration_returns_unchanged(tmp_path: Path):
    checkpoint = converted("marian")
    main(["--to", "marian", str(checkpoint.folder), str(tmp_path / "out")])
    with np.load(checkpoint.checkpoint / "model.npz") as theirs, np.load(tmp_path / "out" / "model.npz") as ours:
        assert np.array_equal(ours["special:model.yml"], theirs["special:model.yml"])


def test_old_fairseq_is_written_as_new(tmp_path: Path):
    checkpoint = converted("fairseq-old")
    main(["--to", "fairseq", str(checkpoint.folder), str(tmp_path / "out")])
    theirs = tensors_of(checkpoint.checkpoint / "checkpoint_best.pt")
    back = tensors_of(tmp_path / "out" / "checkpoint_best.pt")
    assert np.array_equal(back["model/decoder.output_projection.weight"], theirs["model/decoder.embed_out"])
    assert np.array_equal(back["model/encoder.embed_tokens.weight"], theirs["model/encoder.embed_tokens.weight"])


def test_fsmt_is_written_for_fairseq_with_its_codes(tmp_path: Path):
    """FSMT marks the last piece of a word (`lo</w>`), fairseq those before it (`ki@@`)."""
    checkpoint = converted("hf-fsmt")
    main(["--to", "fairseq", str(checkpoint.folder), str(tmp_path / "fairseq")])
    names = sorted(file.name for file in (tmp_path / "fairseq").iterdir())
    assert names == ["bpecodes.de", "bpecodes.en", "checkpoint_best.pt", "dict.de.txt", "dict.en.txt"]
    words = (tmp_path / "fairseq" / "dict.en.txt").read_text(encoding="utf-8").split("\n")
    assert "lo 1" in words and "ka@@ 1" in words and not any("</w>" in word for word in words)

    main([str(tmp_path / "fairseq"), str(tmp_path / "again")])
    again = Golden("hf-fsmt", checkpoint.checkpoint, tmp_path / "again", checkpoint.expected, checkpoint.inputs)
    sources, targets = (list(texts) for texts in zip(*checkpoint.inputs, strict=True))
    labels = checkpoint.tokenizer("target")(targets)["input_ids"]
    assert again.tokenizer()(sources)["input_ids"] == checkpoint.tokenizer()(sources)["input_ids"]
    assert again.tokenizer("target")(targets)["input_ids"] == labels
    rows = list(range(len(labels)))
    for a, b in zip(again.log_probabilities(rows, labels), checkpoint.log_probabilities(rows, labels), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_fairseqs_joint_dictionary_returns(tmp_path: Path):
    theirs = shutil.copytree(golden("fairseq"), tmp_path / "theirs")
    (theirs / "dict.src.txt").rename(theirs / "dict.txt")
    (theirs / "dict.tgt.txt").unlink()
    main([str(theirs), str(tmp_path / "ours")])
    main(["--to", "fairseq", str(tmp_path / "ours"), str(tmp_path / "out")])
    for name in ("dict.txt", "bpecodes"):
        assert (tmp_path / "out" / name).read_bytes() == (theirs / name).read_bytes()
    written = (tmp_path / "out" / "dict.src.txt").read_text(encoding="utf-8").split("\n")
    tokens = (theirs / "dict.txt").read_text(encoding="utf-8").split("\n")
    assert [line.split(" ")[0] for line in written] == [line.split(" ")[0] for line in tokens]


def test_transformers_computes_the_same_logits(tmp_path: Path):
    """A paper model with Hugging Face's epsilon is a MarianMTModel, which does not produce the start token either."""
    torch.manual_seed(0)
    model = VaswaniTransformerForConditionalGeneration(tiny_config(layer_norm_eps=1e-5)).eval()
    model.save_pretrained(tmp_path / "ours")
    main(["--to", "hf-marian", str(tmp_path / "ours"), str(tmp_path / "theirs")])
    theirs = MarianMTModel.from_pretrained(tmp_path / "theirs").eval()
    batch = {
        "input_ids": torch.tensor([[5, 9, 7, 2], [8, 2, 1, 1]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
        "decoder_input_ids": torch.tensor([[0, 5, 6, 11, 7], [0, 4, 4, 9, 20]]),
    }
    with torch.inference_mode():
        difference = (model(**batch).logits - theirs(**batch, use_cache=False).logits).abs().max().item()
    assert difference <= 1e-5
    generation = json.loads((tmp_path / "theirs" / "generation_config.json").read_text())
    assert generation["bad_words_ids"] == [[0], [1]]


@pytest.mark.parametrize("name", ["marian", "fairseq", "hf-marian", "opennmt-py", "tensor2tensor", "sockeye"])
def test_ctranslate2_computes_the_same_scores(name: str, tmp_path: Path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    checkpoint = converted(name)
    main(["--to", "ctranslate2", str(checkpoint.folder), str(tmp_path / "out")])
    translator = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", compute_type="float32", intra_threads=1)
    tokenizer, target_tokenizer = checkpoint.tokenizer(), checkpoint.tokenizer("target")
    sources = [tokenizer.convert_ids_to_tokens(tokenizer(source)["input_ids"]) for source, _ in checkpoint.inputs]
    targets = [target_tokenizer(target)["input_ids"] for _, target in checkpoint.inputs]
    eos = checkpoint.model.config.eos_token_id
    assert all(target[-1] == eos for target in targets)
    words = [target_tokenizer.convert_ids_to_tokens(target[:-1]) for target in targets]
    theirs = [score.log_probs for score in translator.score_batch(sources, words)]
    ours = checkpoint.log_probabilities(list(range(len(targets))), targets)
    for a, b in zip(ours, theirs, strict=True):
        assert a.tolist() == pytest.approx(b, abs=2e-4)  # its float32 kernels; a wrong table is off by 3e-3 to 5e-2


def test_all_unsupported_settings_of_a_target_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture):
    trained_model().save_pretrained(tmp_path / "paper")
    trained_tokenizer().save_pretrained(tmp_path / "paper")
    message = refusal(capsys, "--to", "fairseq", tmp_path / "paper", tmp_path / "out")
    for reason in ("position_base", "position_offset 0", "layer_norm_eps 1e-06", "decoder with </s>"):
        assert reason in message
    untrained_model(layer_norm_eps=1e-5, tie_word_embeddings=False, position_offset=2).save_pretrained(tmp_path / "o")
    message = refusal(capsys, "--to", "hf-marian", tmp_path / "o", tmp_path / "out")
    assert "position_offset 2" in message and "tie_word_embeddings False" in message


def test_a_trained_start_token_cannot_be_written_for_marian(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = shutil.copytree(converted("marian").folder, tmp_path / "ours")
    model = load_model(folder, device="cpu")
    with torch.no_grad():
        model.get_decoder().embed_tokens.weight[model.config.decoder_start_token_id] = 1
    model.save_pretrained(folder)
    message = refusal(capsys, "--to", "marian", folder, tmp_path / "out")
    assert "the decoder's first token has an embedding" in message


@pytest.mark.parametrize("field, value", [("position_base", 10000), ("position_offset", 2), ("layer_norm_eps", 0.01)])
def test_an_edited_model_is_not_written_for_marian(field, value, tmp_path, capsys):
    folder = shutil.copytree(converted("marian-prenorm").folder, tmp_path / "ours")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
    assert field in refusal(capsys, "--to", "marian", folder, tmp_path / "out")
