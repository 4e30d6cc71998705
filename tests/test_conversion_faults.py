"""What cannot be converted is refused in one line with all reasons; no code runs; nothing is half written."""

import argparse
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from golden import FIXTURES

from conversion.__main__ import main
from conversion.unpickle import load_checkpoint
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import load_model


@pytest.fixture
def copy_of(tmp_path: Path):
    """copy_of(name) -> a copy of a fixture that may be spoilt"""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(FIXTURES / name, tmp_path / name))

    return copy


def refusal(capsys: pytest.CaptureFixture, *arguments: str | Path, code: int = 2) -> str:
    """The one line that is printed; the exit code is checked, and that nothing has been written."""
    out = Path(arguments[-1])
    before = sorted(out.parent.iterdir())
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    message = capsys.readouterr().err
    assert stop.value.code == code, message
    assert message.count("\n") == 1 and "Traceback" not in message
    assert sorted(out.parent.iterdir()) == before
    return message


def rewrite(content: object, file: Path, **options) -> None:
    """torch.save beside the file and then in its place: its tensors are mapped from it."""
    torch.save(content, file.with_suffix(".new"), **options)
    file.with_suffix(".new").replace(file)


class Malice:
    """Unpickled, it would write a file."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("where", ["model", "cfg", "extra_state"])
def test_code_in_a_pickle_never_runs(where: str, zipped: bool, tmp_path: Path, capsys, copy_of):
    folder = copy_of("fairseq")
    checkpoint = dict(load_checkpoint(folder / "checkpoint_best.pt"))
    checkpoint[where] = {"model": Malice(tmp_path / "executed")}
    rewrite(checkpoint, folder / "checkpoint_best.pt", _use_new_zipfile_serialization=zipped)
    message = refusal(capsys, folder, tmp_path / "out")
    assert "system" in message and "none of it was run" in message
    assert not (tmp_path / "executed").exists()


def test_a_bare_pickle_never_runs(tmp_path: Path, capsys):
    (tmp_path / "model.pt").write_bytes(pickle.dumps(Malice(tmp_path / "executed")))
    message = refusal(capsys, "fairseq", tmp_path / "model.pt", tmp_path / "out", code=refused_code(tmp_path))
    assert "model.pt" in message
    assert not (tmp_path / "executed").exists()


def refused_code(folder: Path) -> int:
    """2 where the pickle's function is named, 3 where it is no checkpoint at all."""
    try:
        load_checkpoint(folder / "model.pt")
    except InputError:
        return 2
    except ValueError:
        return 3
    raise AssertionError("a pickle with code was opened")


def test_objects_of_a_toolkit_become_shells_without_code(tmp_path: Path):
    """fairseq 0.6 saved its meters; they are of no use here and their classes are not imported."""
    state = b"\x80\x02cfairseq.meters\nAverageMeter\nq\x00)\x81q\x01}q\x02X\x03\x00\x00\x00valq\x03K\x05sb."
    with torch.serialization.safe_globals([]):
        torch.save({"weights": torch.ones(2)}, tmp_path / "model.pt")
    import zipfile

    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "meters.pt", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, state if name.endswith("data.pkl") else content)
    found = load_checkpoint(tmp_path / "meters.pt")
    assert vars(found) == {"val": 5} and type(found).__module__ == "conversion.unpickle"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("fairseq", "checkpoint_best.pt"),
        ("marian", "model.npz"),
        ("marian-spm", "vocab.spm"),
        ("hf-marian", "model.safetensors"),
        ("opennmt-py", "model_release.pt"),
        ("joeynmt", "best.ckpt"),
        ("sockeye", "params.best"),
        ("tensor2tensor", "model.ckpt-800.index"),
        ("tensor2tensor", "model.ckpt-800.data-00001-of-00002"),
        ("torch-nn-transformer", "transformer.pt"),
    ],
)
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_truncated_files_are_named(name: str, file: str, part: float, tmp_path: Path, capsys, copy_of):
    path = copy_of(name) / file
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    toolkit = {"torch-nn-transformer": "torch-nn-transformer", "marian-spm": "marian"}.get(name, name)
    place = path if file.endswith(("best", ".pt", ".ckpt")) else path.parent
    assert file in refusal(capsys, toolkit, place, tmp_path / "out", code=3)


def change_marian(folder: Path, **options) -> None:
    """Options in the configuration inside model.npz."""
    with np.load(folder / "model.npz") as archive:
        arrays = dict(archive)
    config = yaml.safe_load(arrays["special:model.yml"].tobytes().split(b"\0")[0])
    config |= {name.replace("_", "-"): value for name, value in options.items()}
    arrays["special:model.yml"] = np.frombuffer(yaml.safe_dump(config).encode(), dtype=np.int8)
    np.savez(folder / "model.npz", allow_pickle=False, **arrays)


def test_all_options_of_marian_that_the_model_lacks_are_told_at_once(tmp_path: Path, capsys, copy_of):
    folder = copy_of("marian")
    change_marian(
        folder, guided_alignment="align.txt", transformer_ffn_activation="sine", transformer_decoder_autoreg="rnn"
    )
    message = refusal(capsys, folder, tmp_path / "out")
    for reason in (
        "--guided-alignment 'align.txt'",
        "--transformer-ffn-activation 'sine'",
        "--transformer-decoder-autoreg",
    ):
        assert reason in message


def test_a_factored_model_of_marian_is_refused(tmp_path: Path, capsys, copy_of):
    folder = copy_of("marian")
    change_marian(folder, lemma_dim_emb=16, factors_dim_emb=8)
    message = refusal(capsys, folder, tmp_path / "out")
    assert "--lemma-dim-emb 16" in message and "--factors-dim-emb 8" in message


def test_all_options_of_fairseq_that_the_model_lacks_are_told_at_once(tmp_path: Path, capsys, copy_of):
    folder = copy_of("fairseq-old")
    checkpoint = dict(load_checkpoint(folder / "checkpoint_best.pt"))
    checkpoint["args"] = argparse.Namespace(
        **vars(checkpoint["args"]) | {"layernorm_embedding": True, "cross_self_attention": True, "activation_fn": "glu"}
    )
    rewrite(checkpoint, folder / "checkpoint_best.pt")
    message = refusal(capsys, folder, tmp_path / "out")
    for reason in ("--layernorm-embedding True", "--cross-self-attention True", "--activation-fn 'glu'"):
        assert reason in message


def test_stacks_of_fairseq_that_normalise_at_different_places_are_refused(tmp_path: Path, capsys, copy_of):
    folder = copy_of("fairseq-old")
    checkpoint = dict(load_checkpoint(folder / "checkpoint_best.pt"))
    checkpoint["args"] = argparse.Namespace(**vars(checkpoint["args"]) | {"decoder_normalize_before": True})
    rewrite(checkpoint, folder / "checkpoint_best.pt")
    message = refusal(capsys, folder, tmp_path / "out")
    assert "--encoder-normalize-before False and --decoder-normalize-before True differ" in message


def test_the_old_name_of_fairseq_s_dropout_counts(tmp_path: Path, copy_of):
    """Before 0.9 `activation_dropout` was `relu_dropout`."""
    folder = copy_of("fairseq-old")
    checkpoint = dict(load_checkpoint(folder / "checkpoint_best.pt"))
    options = {**vars(checkpoint["args"]), "relu_dropout": 0.25}
    options.pop("activation_dropout", None)
    checkpoint["args"] = argparse.Namespace(**options)
    rewrite(checkpoint, folder / "checkpoint_best.pt")
    main([str(folder), str(tmp_path / "ours")])
    assert load_model(tmp_path / "ours", device="cpu").config.activation_dropout == 0.25


def test_missing_and_left_over_tensors_are_named(tmp_path: Path, capsys, copy_of):
    folder = copy_of("fairseq")
    checkpoint = dict(load_checkpoint(folder / "checkpoint_best.pt"))
    tensors = dict(checkpoint["model"])
    del tensors["decoder.layers.1.fc1.bias"]
    tensors["decoder.adapter.weight"] = torch.ones(3)
    rewrite(checkpoint | {"model": tensors}, folder / "checkpoint_best.pt")
    message = refusal(capsys, folder, tmp_path / "out", code=3)
    assert "decoder.layers.1.fc1.bias is missing" in message and "decoder.adapter.weight has no place" in message


@pytest.mark.parametrize("options", [{"num_encoder_layers": 2}, {"nhead": 5}])
def test_heads_must_divide(options: dict, tmp_path: Path, capsys, copy_of):
    folder = copy_of("torch-nn-transformer")
    config = json.loads((folder / "config.json").read_text()) | options
    (folder / "config.json").write_text(json.dumps(config))
    if "nhead" in options:
        assert "nhead is 5" in refusal(capsys, folder, tmp_path / "out")
    else:
        main([str(folder), str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("name", "file"),
    [("fairseq-old", "dict.src.txt"), ("joeynmt", "trg_vocab.txt"), ("torch-nn-transformer", "vocab.src.txt")],
)
def test_dictionaries_of_another_size_are_refused(name: str, file: str, tmp_path: Path, capsys, copy_of):
    path = copy_of(name) / file
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(lines[:-2]) + "\n", encoding="utf-8")
    message = refusal(capsys, path.parent, tmp_path / "out", code=3)
    assert "vocabulary has" in message and "rows" in message


def test_a_folder_with_several_checkpoints_is_not_guessed_at(tmp_path: Path, capsys, copy_of):
    folder = copy_of("fairseq")
    shutil.copyfile(folder / "checkpoint_best.pt", folder / "checkpoint_last.pt")
    message = refusal(capsys, folder, tmp_path / "out")
    assert "checkpoint_best.pt" in message and "checkpoint_last.pt" in message
    main([str(folder / "checkpoint_last.pt"), str(tmp_path / "out")])
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_sinusoids_that_have_been_trained_become_a_learned_table(tmp_path: Path, copy_of):
    from safetensors.torch import load_file, save_file

    from vaswani_transformer.loading import load_config

    folder = copy_of("hf-fsmt")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.encoder.embed_positions.weight"] += 0.01
    save_file(tensors, folder / "model.safetensors")
    main([str(folder), str(tmp_path / "out")])
    config = load_config(tmp_path / "out")
    assert (config.position_embedding_type, config.max_position_embeddings) == ("learned", 64)


@pytest.mark.parametrize("words", [["nonsense"], ["moses", "a", "b"], ["a", "b", "c", "d"], ["nowhere", "out"]])
def test_wrong_arguments(words: list[str], tmp_path: Path, capsys):
    refusal(capsys, *words[:-1], tmp_path / words[-1])


def test_an_existing_folder_is_not_overwritten(tmp_path: Path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    assert "not empty" in refusal(capsys, FIXTURES / "fairseq", tmp_path / "out")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"
