"""Checkpoints that cannot be converted are refused in one line with all reasons; no code runs, nothing is written."""

import argparse
import contextlib
import json
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from golden import FIXTURES, change_marians_options, converted, golden, refusal
from safetensors.torch import load_file, save_file
from saved_model import change_json
from torch import nn
from torch.package.package_exporter import PackageExporter

from conversion.__main__ import main
from conversion.checkpoint_files import Stub, load_checkpoint
from conversion.convert import check_result
from conversion.protobuf import Bundle, crc32c
from vaswani_transformer import Translator
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.languages import read_languages
from vaswani_transformer.loading import load_config, load_model
from vaswani_transformer.model_folder import ModelFolder


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[str], Path]:
    """copy_of(name) -> a copy of a fixture that may be damaged"""
    return lambda name: Path(shutil.copytree(FIXTURES / name, tmp_path / "checkpoints" / name))


def change_pickle(file: Path, changes: dict[str, Any], **options: Any) -> None:
    """Change items of a torch.save file through a second file, because tensors are mapped from it."""
    torch.save(load_checkpoint(file) | changes, file.with_suffix(".new"), **options)
    file.with_suffix(".new").replace(file)


def change_options(folder: Path, changes: dict[str, Any]) -> None:
    """Change options in the file in which the toolkit keeps them; None removes an option."""

    def changed(options: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in (options | changes).items() if value is not None}

    if (folder / "model.npz").exists():
        change_marians_options(folder / "model.npz", changed)
    elif (file := folder / "checkpoint_best.pt").exists():
        change_pickle(file, {"args": argparse.Namespace(**changed(vars(load_checkpoint(file)["args"])))})
    else:
        file = next(file for name in ("hparams.json", "config.json") if (file := folder / name).exists())
        file.write_text(json.dumps(changed(json.loads(file.read_text()))))


# ---- pickles -----------------------------------------------------------------------------------------------------


class Malice:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("part", ["model", "cfg", "extra_state"])
def test_code_in_a_pickle_never_runs(part: str, zipped: bool, tmp_path: Path, refused, copy_of):
    folder, malice = copy_of("fairseq"), {"model": Malice(tmp_path / "executed")}
    change_pickle(folder / "checkpoint_best.pt", {part: malice}, _use_new_zipfile_serialization=zipped)
    message = refusal(refused, folder, tmp_path / "out")
    assert "system" in message and "none of it was run" in message
    assert not (tmp_path / "executed").exists()


def test_a_bare_pickle_never_runs(tmp_path: Path):
    (tmp_path / "model.pt").write_bytes(pickle.dumps(Malice(tmp_path / "executed")))
    with pytest.raises((InputError, BrokenFileError), match=r"model\.pt"):
        load_checkpoint(tmp_path / "model.pt")
    assert not (tmp_path / "executed").exists()


def test_objects_of_a_toolkit_become_stubs_without_code(tmp_path: Path):
    """fairseq 0.6 saved its meters, whose classes are not imported."""
    state = b"\x80\x02cfairseq.meters\nAverageMeter\nq\x00)\x81q\x01}q\x02X\x03\x00\x00\x00valq\x03K\x05sb."
    torch.save({"weights": torch.ones(2)}, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt") as archive, zipfile.ZipFile(tmp_path / "meters.pt", "w") as changed:
        for name in filter(lambda name: "/data/" not in name, archive.namelist()):
            changed.writestr(name, state if name.endswith("data.pkl") else archive.read(name))
    found = load_checkpoint(tmp_path / "meters.pt")
    assert vars(found) == {"val": 5} and type(found).__module__ == "conversion.checkpoint_files"


# ---- damaged files -----------------------------------------------------------------------------------------------


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
def test_truncated_files_are_named(name: str, file: str, part: float, tmp_path: Path, refused, copy_of):
    path = copy_of(name) / file
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    place = path if file.endswith(("best", ".pt", ".ckpt")) else path.parent
    assert file in refusal(refused, "--from", name.removesuffix("-spm"), place, tmp_path / "out", code=3)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("fairseq", "checkpoint_best.pt"),
        ("marian", "model.npz"),
        ("marian", "vocab.yml"),
        ("marian", "model.npz.decoder.yml"),
        ("hf-marian", "vocab.json"),
        ("hf-marian", "source.spm"),
        ("hf-fsmt", "merges.txt"),
        ("tensor2tensor", "model.ckpt-800.data-00001-of-00002"),
    ],
)
def test_files_that_are_not_regular_are_not_read(name: str, file: str, tmp_path: Path, refused, copy_of):
    """Reading a named pipe would wait for a writer."""
    path = copy_of(name) / file
    path.unlink()
    os.mkfifo(path)
    place = path if file in ("checkpoint_best.pt", "model.npz") else path.parent
    message = refusal(refused, "--from", name, place, tmp_path / "out", code=3)
    assert f"{path} is not a regular file" in message


@pytest.mark.parametrize("name", ["model.npz", "model.pt"])
def test_a_file_that_would_unpack_to_gigabytes_is_refused(name: str, tmp_path: Path, refused):
    with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in ("special:model.yml.npy", "model/data.pkl"):
            with archive.open(part, "w", force_zip64=True) as stream:
                for _ in range(64):
                    stream.write(bytes(1 << 20))
    assert "would unpack to" in refusal(refused, tmp_path / name, tmp_path / "out", code=3)


@pytest.mark.parametrize(
    ("module", "function", "checkpoint", "allocate"),
    [
        (torch, "load", "fairseq/checkpoint_best.pt", torch.empty),
        (np.lib.format, "read_array", "marian/model.npz", torch.empty),
        (np.lib.format, "read_array", "marian/model.npz", np.empty),
    ],
)
def test_running_out_of_memory_is_no_fault_of_the_file(
    module, function: str, checkpoint: str, allocate, tmp_path: Path, refused, monkeypatch
):
    monkeypatch.setattr(module, function, lambda *_, **options: allocate(10**14))
    message = refusal(refused, FIXTURES / checkpoint, tmp_path / "out", code=4)
    assert message.startswith("error: out of memory: ")


@pytest.mark.parametrize("damage", ["short", "long", "swapped", "compressed", "resized", "dtype"])
def test_tensors_beyond_their_records_are_refused(damage: str, tmp_path: Path):
    """torch reads as many bytes as the pickle says from where a record begins, whatever the record's size."""
    tensors = {"a": torch.arange(64.0), "b": torch.arange(100.0), "c": torch.ones(64)}
    original, changed = tmp_path / "original.pt", tmp_path / "changed.pt"
    torch.save(tensors, original)
    torch.save({name: tensor.half() for name, tensor in tensors.items()}, tmp_path / "half.pt")
    with zipfile.ZipFile(original) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    first, second = "original/data/0", "original/data/1"
    if damage == "short":
        contents[first] = contents[first][:128]
    elif damage == "long":
        contents[first] += bytes(64)
    elif damage == "swapped":
        contents[first], contents[second] = contents[second], contents[first]
    elif damage == "dtype":
        contents["original/data.pkl"] = contents["original/data.pkl"].replace(b"FloatStorage", b"DoubleStorage")
    elif damage == "resized":  # BININT1 64, TUPLE1: the shape of the tensor, larger than its storage
        contents["original/data.pkl"] = contents["original/data.pkl"].replace(b"K@\x85", b"K\xff\x85")
    compression = zipfile.ZIP_DEFLATED if damage == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(changed, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    with pytest.raises(BrokenFileError, match=re.escape(str(changed))):
        load_checkpoint(changed)
    assert torch.equal(load_checkpoint(original)["b"], tensors["b"])


@pytest.mark.parametrize("with_checksums", [True, False])
def test_a_flipped_bit_in_a_torch_checkpoint_is_found(with_checksums: bool, tmp_path: Path):
    """torch writes checksums, and compares none. Without them, a file is read as it is."""
    file = tmp_path / "model.pt"
    torch.serialization.set_crc32_options(with_checksums)
    try:
        torch.save({"a": torch.arange(1.0, 65.0)}, file)
    finally:
        torch.serialization.set_crc32_options(True)
    assert load_checkpoint(file)["a"][0] == 1
    content = bytearray(file.read_bytes())
    content[content.index(torch.arange(1.0, 65.0).numpy().tobytes()) + 2] ^= 0x10
    file.write_bytes(content)
    if with_checksums:
        with pytest.raises(BrokenFileError, match=r"model\.pt is damaged: model/data/0 does not match its checksum"):
            load_checkpoint(file)
    else:
        assert load_checkpoint(file)["a"][0] != 1


def test_a_torch_checkpoint_whose_entry_has_no_valid_name_is_refused(tmp_path: Path):
    """zipfile decodes the second name of an entry, in front of its content, when it reads this."""
    file = tmp_path / "model.pt"
    torch.save({"a": torch.ones(8)}, file)
    content = bytearray(file.read_bytes())
    start = content.index(b"model/data.pkl")
    content[start - 30 + 7] |= 0x08  # the name is UTF-8
    content[start] = 0xE6
    file.write_bytes(content)
    with pytest.raises(BrokenFileError, match=r"model\.pt is damaged: 'utf-8' codec can't decode byte 0xe6"):
        load_checkpoint(file)


@pytest.mark.parametrize("name", ["encoder_l1_self_Wq.npy", "encoder_l1_self_Wq"])
def test_an_entry_that_is_stored_twice_is_refused(name: str, tmp_path: Path, refused, copy_of):
    file = copy_of("marian") / "model.npz"
    with zipfile.ZipFile(file, "a") as archive, pytest.warns() if name.endswith("y") else contextlib.nullcontext():
        archive.writestr(name, archive.read("encoder_l1_self_Wk.npy"))
    message = refusal(refused, file, tmp_path / "out", code=3)
    assert f"{file} is damaged: it has 2 entries named 'encoder_l1_self_Wq'" in message


@pytest.mark.parametrize(
    "view", [lambda t: torch.complex(t, t).conj().imag, lambda t: t.T.contiguous().T], ids=["negative", "strides"]
)
def test_views_are_converted_with_their_values(view: Callable, tmp_path: Path, copy_of):
    """safetensors saves the bytes of a storage, whatever its tensor makes of them."""
    file = copy_of("torch-nn-transformer") / "transformer.pt"
    name, weights = "transformer.encoder.layers.0.linear1.weight", load_checkpoint(file)
    weights[name] = view(weights[name].clone())
    expected = weights[name].clone()
    torch.save(weights, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)
    (file.parent / "expected.npz").unlink()
    main([str(file.parent), str(tmp_path / "out")])
    converted = load_file(tmp_path / "out" / "model.safetensors")["model.encoder.layers.0.feed_forward.fc1.weight"]
    assert torch.equal(converted, expected)


def test_weights_of_another_step_are_not_mixed_in(tmp_path: Path, refused, copy_of):
    """The name of step 100 begins with that of step 10; a second file of the same step is refused."""
    folder = copy_of("variants/opennmt-py-safetensors")
    (checkpoint,), (weights,) = folder.glob("*.pt"), folder.glob("*.safetensors")
    main([str(checkpoint), str(tmp_path / "alone")])
    later = {name: tensor + 1 for name, tensor in load_file(weights).items()}
    save_file(later, folder / weights.name.replace(checkpoint.stem, f"{checkpoint.stem}0"))
    main([str(checkpoint), str(tmp_path / "beside")])
    alone, beside = (load_file(tmp_path / name / "model.safetensors") for name in ("alone", "beside"))
    assert all(torch.equal(alone[name], beside[name]) for name in alone)
    save_file(later, folder / f"{checkpoint.stem}.99.safetensors")
    message = refusal(refused, checkpoint, tmp_path / "out", code=3)
    assert ".safetensors holds " in message and "move the files of other checkpoints away" in message


def test_a_flipped_bit_in_a_tensorflow_checkpoint_is_found(tmp_path: Path, refused, copy_of):
    folder = copy_of("tensor2tensor")
    bundle = Bundle(folder / "model.ckpt-800.index")
    name = "transformer/body/encoder/layer_0/self_attention/multihead_attention/q/kernel"
    shard = folder / "model.ckpt-800.data-00001-of-00002"
    content = bytearray(shard.read_bytes())
    content[bundle.entries[name].offset + 6] ^= 0x10
    shard.write_bytes(content)
    message = refusal(refused, folder, tmp_path / "out", code=3)
    assert f"{shard} is damaged: {name} does not match its checksum" in message


def test_checksums_are_crc32c():
    """The check value of CRC-32C, and the checksum of 32 zeros in RFC 3720, B.4."""
    assert crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
    assert crc32c(np.zeros(32, np.uint8)) == 0x8A9136AA
    for size in (0, 1, 251, 252, 253, 10_000):
        message = np.arange(size, dtype=np.uint32).astype(np.uint8)
        checksum = np.frombuffer(crc32c(message).to_bytes(4, "little"), np.uint8)
        assert crc32c(np.concatenate((message, checksum))) == 0x48674BC7  # of every message with its checksum


def test_an_array_with_more_bytes_than_its_header_says_is_refused(tmp_path: Path, refused, copy_of):
    file = copy_of("marian") / "model.npz"
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    name = "encoder_l1_self_Wq.npy"
    contents[name] = contents[name].replace(b"'<f4'", b"'<f2'")
    with zipfile.ZipFile(file, "w") as archive:
        for part, content in contents.items():
            archive.writestr(part, content)
    assert f"{name} has more bytes than its header says" in refusal(refused, file.parent, tmp_path / "out", code=3)


def test_every_wrong_tensor_is_named(tmp_path: Path, refused, copy_of):
    folder = copy_of("fairseq")
    tensors = dict(load_checkpoint(folder / "checkpoint_best.pt")["model"])
    del tensors["decoder.layers.1.fc1.bias"]
    tensors["decoder.adapter.weight"] = torch.ones(3)
    tensors["encoder.embed_tokens.weight"] = torch.ones(1).expand(10**9, 8)
    change_pickle(folder / "checkpoint_best.pt", {"model": tensors})
    message = refusal(refused, folder, tmp_path / "out", code=3)
    assert "tensor decoder.layers.1.fc1.bias is missing" in message
    assert "unexpected tensor decoder.adapter.weight" in message
    assert "tensor encoder.embed_tokens.weight is of shape (1000000000, 8), more than its file contains" in message
    assert "tensor encoder.embed_tokens.weight is missing" not in message


@pytest.mark.parametrize(
    ("name", "file"),
    [("fairseq-old", "dict.src.txt"), ("joeynmt", "trg_vocab.txt"), ("torch-nn-transformer", "vocab.src.txt")],
)
def test_dictionaries_of_another_size_or_with_a_token_twice_are_refused(
    name: str, file: str, tmp_path: Path, refused, copy_of
):
    path = copy_of(name) / file
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(lines[:-2]) + "\n", encoding="utf-8")
    message = refusal(refused, path.parent, tmp_path / "out", code=3)
    assert "vocabulary has" in message and "rows" in message
    path.write_text("\n".join([*lines[:-1], lines[-2]]) + "\n", encoding="utf-8")  # one token twice
    word = lines[-2].split(" ")[0]
    side = "source" if "src" in file else "target"
    message = refusal(refused, path.parent, tmp_path / "out", code=3)
    assert f"the {side} vocabulary has the token {word!r} 2 times" in message


def test_endless_yaml_stays_a_short_message(tmp_path: Path, refused, copy_of):
    """Each line refers to the one before nine times: written out, the last has 10^9 words."""
    folder = copy_of("variants/joeynmt-post")
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
    text = "\n".join(lines) + "\nmodel: {encoder: {type: *a9, num_layers: *a9}, decoder: {type: *a9}}\n"
    (folder / "config.yaml").write_text(text)
    message = refusal(refused, folder, tmp_path / "out")
    assert "encoder.type is " in message and len(message) < 5000


@pytest.mark.parametrize(("name", "file"), [("fairseq", "bpecodes"), ("hf-fsmt", "merges.txt")])
@pytest.mark.parametrize("text", ["", "#version: 0.2\n"])
def test_codes_of_bpe_without_merges_are_refused(tmp_path: Path, refused, copy_of, name, file, text):
    """An interrupted download would make a model that reads every word letter by letter."""
    folder = copy_of(name)
    (folder / file).write_text(text)
    assert f"{file} has no merges; copy it again" in refusal(refused, folder, tmp_path / "out", code=3)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "- a\n", "a: &a 0\nb: *a\n", "a", ""])
def test_a_vocabulary_in_yaml_is_a_flat_mapping(tmp_path: Path, refused, copy_of, text):
    """PyYAML's loader in C overflows the stack on deeply nested lists, which no exception reports."""
    folder = copy_of("marian")
    (folder / "vocab.yml").write_text(text)
    assert re.search(
        r"vocab.yml.* mapping of token: id; copy it again", refusal(refused, folder, tmp_path / "out", code=3)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [lines[5], *lines], r"vocab\.yml has the token '\w+' 2 times"),
        (lambda lines: [f"other: {lines[5].split()[-1]}\n", *lines], r"vocab\.yml: several tokens have the same id"),
    ],
    ids=["token", "id"],
)
def test_a_vocabulary_of_marian_has_each_token_and_id_once(change: Callable, words: str, tmp_path, refused, copy_of):
    file = copy_of("marian") / "vocab.yml"
    file.write_text("".join(change(file.read_text().splitlines(keepends=True))))
    assert re.search(words, refusal(refused, file.parent, tmp_path / "out", code=3))


@pytest.mark.parametrize("changes", [{"eos_token_id": [0, 5]}, {"decoder_start_token_id": 3}])
def test_ids_of_the_search_that_are_not_the_models_are_refused(changes: dict, tmp_path: Path, refused, copy_of):
    """generate() of transformers would use those of generation_config.json."""
    folder = copy_of("hf-marian")
    change_json(folder / "generation_config.json", eos_token_id=[0])
    main([str(folder), str(tmp_path / "same")])
    change_json(folder / "generation_config.json", **changes)
    ((name, value),) = changes.items()
    message = refusal(refused, folder, tmp_path / "out")
    assert f"{name} is {value} in generation_config.json, but " in message and " in config.json" in message


# ---- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "reasons"),
    [
        (
            "marian",
            {"transformer-ffn-activation": "sine", "transformer-decoder-autoreg": "rnn"},
            ["--transformer-ffn-activation 'sine'", "--transformer-decoder-autoreg 'rnn'"],
        ),
        ("marian", {"lemma-dim-emb": 16, "factors-dim-emb": 8}, ["--lemma-dim-emb 16", "--factors-dim-emb 8"]),
        (
            "fairseq-old",
            {"layernorm_embedding": True, "cross_self_attention": True, "activation_fn": "glu"},
            ["--layernorm-embedding True", "--cross-self-attention True", "--activation-fn 'glu'"],
        ),
        (
            "fairseq-old",
            {
                "lang_pairs": "en-de,en-fr",
                "lang_tok_replacing_bos_eos": True,
                "quant_noise_pq": 0.1,
                "simul_type": "waitk",
            },
            ["--lang-tok-replacing-bos-eos True", "--quant-noise-pq 0.1", "--simul-type 'waitk'"],
        ),
        (
            "fairseq-old",
            {"decoder_normalize_before": True},
            ["--encoder-normalize-before False, but --decoder-normalize-before True"],
        ),
        ("torch-nn-transformer", {"nhead": 5}, ["nhead is 5"]),
        ("torch-nn-transformer", {"nhead": None}, ["the configuration lacks nhead"]),
        ("torch-nn-transformer", {"layer_norm_eps": True}, ["'layer_norm_eps'", "True"]),
        ("tensor2tensor", {"norm_epsilon": "1e-6"}, ["'layer_norm_eps'", "1e-6"]),
        (
            "tensor2tensor",
            {"pos": "asymmetric_timing", "self_attention_type": "dot_product_relative"},
            ["pos is 'asymmetric_timing'", "self_attention_type is 'dot_product_relative'"],
        ),
        (
            "tensor2tensor",
            {"layer_preprocess_sequence": "n", "layer_postprocess_sequence": "dan"},
            ["layer_preprocess_sequence is 'n' with layer_postprocess_sequence is 'dan'"],
        ),
    ],
)
def test_all_unsupported_options_are_listed(name: str, changes: dict, reasons: list[str], tmp_path, refused, copy_of):
    folder = copy_of(name)
    change_options(folder, changes)
    message = refusal(refused, folder, tmp_path / "out")
    assert all(reason in message for reason in reasons), message


def test_joeynmt_without_layer_norm_has_joeynmts_defaults(tmp_path: Path, refused, copy_of):
    """JoeyNMT 2.3, encoders.py line 208 and decoders.py line 537: pre in the encoder, post in the decoder."""
    folder = copy_of("variants/joeynmt-post")
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(re.sub(r"\n +layer_norm: \w+", "", text))
    message = refusal(refused, folder, tmp_path / "out")
    assert "encoder.layer_norm is 'pre', but decoder.layer_norm is 'post'" in message


def test_marians_guided_alignment_is_no_other_architecture(tmp_path: Path, copy_of):
    """The loss of one more head in training; a model.npz without a configuration inside has it in model.npz.yml."""
    folder = copy_of("variants/marian-guided-alignment")
    change_options(folder, {"guided-alignment": "corpus.align"})
    main([str(folder), str(tmp_path / "out")])
    expected = load_file(converted("marian-guided-alignment").folder / "model.safetensors")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_joeynmts_activation_is_relu_in_a_stack_that_names_none(activation: str, tmp_path: Path, refused, copy_of):
    folder = copy_of("joeynmt")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    del settings["model"]["decoder"]["activation"]
    settings["model"]["encoder"]["activation"] = activation
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    if activation == "relu":
        main([str(folder), str(tmp_path / "out")])
    else:
        reason = "encoder.activation is 'gelu', but decoder.activation is None"
        assert reason in refusal(refused, folder, tmp_path / "out")


def test_relu_dropout_of_old_fairseq_counts(tmp_path: Path, copy_of):
    """Before 0.9 `activation_dropout` was `relu_dropout`."""
    folder = copy_of("fairseq-old")
    change_options(folder, {"activation_dropout": None, "relu_dropout": 0.25})
    main([str(folder), str(tmp_path / "ours")])
    assert load_config(tmp_path / "ours").activation_dropout == 0.25


def test_trained_sinusoids_become_a_learned_table(tmp_path: Path, copy_of):
    folder = copy_of("hf-fsmt")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.encoder.embed_positions.weight"] += 0.01
    save_file(tensors, folder / "model.safetensors")
    main([str(folder), str(tmp_path / "out")])
    config = load_config(tmp_path / "out")
    assert (config.position_embedding_type, config.max_position_embeddings) == ("learned", 64)


@pytest.mark.parametrize(
    ("name", "removed", "note"),
    [
        ("hf-marian", ["vocab.json"], "vocab.json is missing"),
        ("fairseq", ["dict.src.txt", "dict.tgt.txt"], "without dict.src.txt and dict.tgt.txt"),
        ("marian", ["vocab.yml"], "without vocab.yml. Ids are"),
        (
            "marian",
            ["model.npz.decoder.yml"],
            "without model.npz.decoder.yml, which names vocabularies (vocabs: [vocab.en.yml, vocab.de.yml]). Ids",
        ),
        ("tensor2tensor", ["vocab.translate_toy_shared.64.subwords"], "no vocab.*.subwords has the right size"),
    ],
)
def test_a_model_without_its_vocabulary_names_the_missing_files(name, removed, note, tmp_path: Path, copy_of):
    folder, out = copy_of(name), tmp_path / "out"
    for file in removed:
        (folder / file).unlink()
    main([str(folder), str(out)])
    assert note in (out / "CONVERSION.md").read_text()
    with pytest.raises(InputError, match="out has no tokenizer.json: .* came without .*CONVERSION.md"):
        Translator.from_pretrained(out, device="cpu")


def test_a_result_that_would_not_load_is_refused(folder: Path):
    """Conversions end with this check."""
    check_result(folder, Path("model.pt"))
    change_json(folder / "config.json", vocab_size=10)
    with pytest.raises(BrokenFileError, match=r"^model.pt cannot be converted: .* refused \(config.json: "):
        check_result(folder, Path("model.pt"))


# ---- arguments ---------------------------------------------------------------------------------------------------


def test_a_folder_with_several_checkpoints_is_refused(tmp_path: Path, refused, copy_of):
    folder = copy_of("fairseq")
    shutil.copyfile(folder / "checkpoint_best.pt", folder / "checkpoint_last.pt")
    message = refusal(refused, folder, tmp_path / "out")
    assert "checkpoint_best.pt" in message and "checkpoint_last.pt" in message
    main([str(folder / "checkpoint_last.pt"), str(tmp_path / "out")])
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_no_suffix_of_a_torch_checkpoint_is_preferred(tmp_path: Path, refused, copy_of):
    folder = copy_of("torch-nn-transformer")
    shutil.copyfile(folder / "transformer.pt", folder / "transformer.pth")
    assert "contains 2 checkpoints (transformer.pt, transformer.pth)" in refusal(refused, folder, tmp_path / "out")


def test_links_to_a_checkpoint_are_not_further_checkpoints(tmp_path: Path, copy_of):
    folder = copy_of("joeynmt")
    (folder / "best.ckpt").rename(folder / "1000.ckpt")
    for name in ("best.ckpt", "latest.ckpt"):
        (folder / name).symlink_to("1000.ckpt")
    main([str(folder), str(tmp_path / "out")])
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_sockeyes_best_parameters_are_preferred(tmp_path: Path, copy_of):
    folder = copy_of("sockeye")
    shutil.copyfile(folder / "params.best", folder / "params.00010")
    main([str(folder), str(tmp_path / "out")])
    assert json.loads((tmp_path / "out" / "conversion.json").read_text())["file"] == "params.best"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or folder; give a checkpoint, or owner/name on the Hub"),
        (["--from", "moses", "nowhere"], "--from moses: not a format that can be read"),
        (["--to", "moses", "nowhere"], "--to moses: not a format that can be written"),
        (["--to", "fairseq", "--from", "marian", "nowhere"], "takes no other option"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, tmp_path: Path, refused):
    assert message in refusal(refused, *arguments, tmp_path / "out")


def test_a_model_folder_is_pointed_to_the_option_that_converts_it(model_folder: Path, tmp_path: Path, refused):
    message = refusal(refused, model_folder, tmp_path / "out")
    assert f"{model_folder} is already a model folder; --to FORMAT converts it to ctranslate2, " in message


def test_an_existing_folder_is_not_overwritten(tmp_path: Path, refused):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    assert "not empty" in refusal(refused, FIXTURES / "fairseq", tmp_path / "out")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("t5", "a model of type 't5'; of transformers' models, MarianMTModel (OPUS-MT), FSMT, M2M-100"),
        (["llama"], "pytorch-transformer); give the path of the file"),
    ],
)
def test_other_models_of_transformers_are_refused_by_name(kind: Any, words: str, tmp_path: Path, refused):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text(json.dumps({"model_type": kind}))
    (theirs / "model.safetensors").write_bytes(b"")
    for path in (theirs, theirs / "config.json") if isinstance(kind, str) else (theirs,):
        assert words in refusal(refused, path, tmp_path / "out")


def test_a_text_in_place_of_a_checkpoint_is_refused_with_what_to_give(tmp_path: Path, refused):
    (tmp_path / "text.en").write_text("A house.\n")
    assert "; give a model folder, or the folder or file of a checkpoint" in refusal(
        refused, tmp_path / "text.en", tmp_path / "out"
    )


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:TypedStorage")
def test_other_archives_are_refused_by_what_they_are(tmp_path: Path, refused):
    """Files of TorchScript, of torch.package, which has no checksums of records, and of numpy."""
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    with PackageExporter(str(tmp_path / "package.pt")) as package:
        package.extern("torch.**")
        package.save_pickle("model", "model.pkl", nn.Linear(2, 2))
    for name in ("script.pt", "package.pt"):
        message = refusal(refused, tmp_path / name, tmp_path / "out")
        assert "if it is a program of TorchScript or torch.package, save only model.state_dict()" in message
    np.savez(tmp_path / "checkpoint20.npz", enc_emb=np.zeros(2), dec_emb=np.zeros(2))
    message = refusal(refused, tmp_path / "checkpoint20.npz", tmp_path / "out")
    assert "checkpoint20.npz was not loaded, and none of it was run: it is an archive of enc_emb.npy" in message


def test_a_vocabulary_of_that_name_beside_a_checkpoint_is_no_model_of_ctranslate2(tmp_path: Path):
    folder = shutil.copytree(golden("fairseq"), tmp_path / "theirs")
    (folder / "en_vocabulary.txt").write_text("a\n")
    main([str(folder), str(tmp_path / "out")])


def test_models_of_ctranslate2_are_refused_by_name(tmp_path: Path, refused):
    pytest.importorskip("ctranslate2")
    theirs = tmp_path / "theirs"
    main([str(converted("fairseq").folder), str(theirs), "--to", "ctranslate2"])
    for path in (theirs, theirs / "model.bin", theirs / "config.json"):
        assert "it is of CTranslate2, which" in refusal(refused, path, tmp_path / "out")
    theirs.rename(tmp_path / "model")  # of a package of Argos Translate, which has it beside metadata.json
    assert "it is of CTranslate2, which" in refusal(refused, tmp_path, tmp_path / "out")
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", tmp_path / "model")
    message = refusal(refused, archive, tmp_path / "out")
    assert "it is an archive of " in message and "; unpack it and give the folder" in message


def test_tensorflow_checkpoints_of_others_are_not_asked_for_hparams(tmp_path: Path, refused, copy_of):
    """Each variable is renamed to one of another toolkit, with as many characters."""
    (index,) = copy_of("tensor2tensor").glob("*.index")
    index.with_name("hparams.json").unlink()
    index.write_bytes(index.read_bytes().replace(b"multihead_attention", b"multi_attention_net"))
    assert "checkpoints of OpenNMT-tf and Keras cannot be converted" in refusal(refused, index, tmp_path / "out")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.ModuleDict({"encoder": nn.GRU(8, 8), "decoder": nn.GRU(8, 8)}), "(text_encoder.encoder.weight_ih_l0, "),
        (nn.Linear(8, 8), "its tensors have the names of no known model (model.weight, model.bias)"),
    ],
)
def test_other_modules_of_torch_are_refused_by_what_they_have(module: nn.Module, words: str, tmp_path: Path, refused):
    name = "model" if isinstance(module, nn.Linear) else "text_encoder"
    weights = {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()}
    torch.save({"epoch": 1, "state_dict": weights}, tmp_path / "model.pt")
    assert words in refusal(refused, tmp_path / "model.pt", tmp_path / "out")
    (tmp_path / "model.pt").rename(tmp_path / "model.onnx")
    assert "convert the checkpoint that it was exported from" in refusal(
        refused, tmp_path / "model.onnx", tmp_path / "out"
    )


def test_numpy_arrays_in_a_checkpoint_of_fairseq_are_ignored(tmp_path: Path, copy_of):
    """As among the metrics of its training; no code of numpy runs for them."""
    file = copy_of("fairseq") / "checkpoint_best.pt"
    change_pickle(file, {"extra_state": {"best": np.arange(3.0)}})
    assert isinstance(load_checkpoint(file)["extra_state"]["best"], Stub)
    main([str(file.parent), str(tmp_path / "out")])
    assert load_model(tmp_path / "out").num_parameters() == converted("fairseq").model.num_parameters()


def test_dictionaries_of_languages_that_fairseq_did_not_record_are_told_by_their_sizes(tmp_path: Path, copy_of):
    folder = copy_of("fairseq")
    file, embedding = folder / "checkpoint_best.pt", "encoder.embed_tokens.weight"
    content = load_checkpoint(file)
    vars(content["cfg"]["model"]).update(source_lang=None, target_lang=None, share_all_embeddings=False)
    weights = content["model"] | {embedding: content["model"][embedding][:-2].clone()}
    change_pickle(file, {"cfg": content["cfg"], "model": weights})
    (folder / "dict.tgt.txt").rename(folder / "dict.aaa.txt")  # the target comes first by name
    lines = (folder / "dict.src.txt").read_text().splitlines(keepends=True)
    (folder / "dict.src.txt").unlink()
    (folder / "dict.zzz.txt").write_text("".join(lines[:-2]))
    main([str(folder), str(tmp_path / "out")])
    assert read_languages(tmp_path / "out") == ("zzz", "aaa")
    sides = (ModelFolder(tmp_path / "out").tokenizer, ModelFolder(tmp_path / "out").target_tokenizer)
    assert [side.get_vocab_size() for side in sides] == [len(lines) + 2, len(lines) + 4]
    main(["--to", "fairseq", str(tmp_path / "out"), str(tmp_path / "back")])
    assert (tmp_path / "back" / "dict.zzz.txt").read_text() == "".join(lines[:-2])

    (folder / "dict.zzz.txt").write_text("".join(lines))  # neither has this size
    main([str(folder), str(tmp_path / "without")])
    note = "without dict.src.txt and dict.tgt.txt (rename dict.aaa.txt, dict.zzz.txt)"
    assert note in (tmp_path / "without" / "CONVERSION.md").read_text()
    # Two vocabularies of different sizes are missing; a second tokenizer alone would be no remedy.
    with pytest.raises(InputError, match="without has no tokenizer.json: .* came without .*CONVERSION.md"):
        Translator.from_pretrained(tmp_path / "without", device="cpu")


def test_students_of_bergamot_are_refused_by_name(tmp_path: Path, refused):
    theirs = shutil.copytree(golden("marian"), tmp_path / "theirs")
    change_marians_options(theirs / "model.npz", lambda options: options | {"transformer-decoder-autoreg": "rnn"})
    message = refusal(refused, theirs, tmp_path / "out")
    assert "its decoder is an SSRU, as in students of Bergamot and Firefox" in message
    file = theirs / "model.npz"
    for name in ("model.intgemm.alphas.bin", "model.deen.intgemm8.bin.gz"):  # as downloaded
        file = file.rename(theirs / name)
        assert "student of Bergamot or Firefox, whose decoder is an SSRU" in refusal(refused, theirs, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_relative_positions": -1}, "--max-relative-positions -1 (supported: 0)"),
        ({"pos_ffn_activation_fn": "silu"}, "--pos-ffn-activation-fn 'silu' (supported: 'relu' or 'gelu')"),
        ({"encoder_type": "brnn"}, "--encoder-type 'brnn' (supported: 'transformer')"),
        ({"dropout": "much"}, "--dropout 'much' (supported: rates from 0 to 1)"),
    ],
)
def test_other_models_of_opennmt_py_are_refused_by_name(changes: dict, words: str, tmp_path: Path, refused, copy_of):
    file = copy_of("opennmt-py") / "model_release.pt"
    options = vars(load_checkpoint(file)["opt"]) | changes
    change_pickle(file, {"opt": argparse.Namespace(**options)})
    assert f"cannot be converted: {words}" in refusal(refused, file, tmp_path / "out")


def test_features_of_opennmt_py_are_refused_by_name(tmp_path: Path, refused, copy_of):
    file = copy_of("opennmt-py") / "model_release.pt"
    content = load_checkpoint(file)
    vars(content["opt"]).pop("n_src_feats")
    luts = "encoder.embeddings.make_embedding.emb_luts"
    model = content["model"] | {f"{luts}.1.weight": torch.ones(4, 8)}
    change_pickle(file, {"opt": content["opt"], "model": model})
    assert "cannot be converted: its source tokens have features, such" in refusal(refused, file, tmp_path / "out")


@pytest.mark.parametrize(
    ("architecture", "part"), [("lstm", "encoder_attn"), ("lightconv", "self_attn"), ("transformer_lm", "encoder_attn")]
)
def test_other_models_of_fairseq_are_refused_by_name(architecture: str, part: str, tmp_path: Path, refused, copy_of):
    file = copy_of("fairseq-old") / "checkpoint_best.pt"
    content = load_checkpoint(file)
    options = argparse.Namespace(**vars(content["args"]) | {"arch": architecture})
    weights = {name: tensor for name, tensor in content["model"].items() if part not in name}
    change_pickle(file, {"args": options, "model": weights})
    assert f"its architecture {architecture!r} has no " in refusal(refused, file, tmp_path / "out")


def test_a_recurrent_model_of_joeynmt_is_refused_by_its_type(tmp_path: Path, refused, copy_of):
    folder = copy_of("joeynmt")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["model"]["decoder"] = {"type": "recurrent", "rnn_type": "gru", "hidden_size": 24, "num_layers": 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    reason = "cannot be converted: decoder.type is 'recurrent' (supported: 'transformer')\n"
    assert refusal(refused, folder, tmp_path / "out").endswith(reason)


@pytest.mark.parametrize("part", ["model", "data", "testing"])
def test_a_list_in_the_place_of_options_is_named(part: str, tmp_path: Path, refused, copy_of):
    file = copy_of("joeynmt") / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {part: ["x"]}))
    assert f"{file}: {part} is ['x']; it must be a mapping" in refusal(refused, file.parent, tmp_path / "out", code=3)


@pytest.mark.parametrize(
    "wrong", [{"max_length": 1}, {"early_stopping": "maybe"}, {"bad_words_ids": "x"}, {"num_beams": 10**6}]
)
def test_wrong_settings_of_the_search_can_be_ignored(wrong: dict, tmp_path: Path, refused, copy_of):
    folder = copy_of("hf-marian")
    change_json(folder / "generation_config.json", **wrong)
    assert "--paper-search ignores them" in refusal(refused, folder, tmp_path / "out", code=3)
    main([str(folder), str(tmp_path / "out"), "--paper-search"])


def test_a_number_of_beams_that_is_null_is_refused(tmp_path: Path, refused, copy_of):
    file = copy_of("joeynmt") / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["testing"]["beam_size"] = None
    file.write_text(yaml.safe_dump(settings))
    assert "--paper-search ignores them" in refusal(refused, file.parent, tmp_path / "out", code=3)


@pytest.mark.parametrize("order", [sorted, reversed])
@pytest.mark.parametrize("name", ["annotated-transformer", "pytorch-seq2seq"])
def test_averages_beside_the_weights_are_not_mixed_in(name: str, order: Callable, tmp_path: Path, refused, copy_of):
    (file,) = copy_of(name).glob("*.pt")
    weights = {key: tensor.clone() for key, tensor in load_checkpoint(file).items()}
    averages = {f"ema.{key}": tensor / 2 for key, tensor in weights.items() if tensor.is_floating_point()}
    both = weights | averages
    torch.save({key: both[key] for key in order([*both])}, file)
    assert "unexpected tensor ema.decoder." in refusal(refused, file.parent, tmp_path / "out", code=3)


def test_another_number_of_layers_in_config_json_is_refused(tmp_path: Path, refused, copy_of):
    """The file of another run may have another number of heads as well, which no tensor records."""
    folder = copy_of("torch-nn-transformer")
    change_json(folder / "config.json", num_encoder_layers=6)
    assert "num_encoder_layers is 6 (supported: 2)" in refusal(refused, folder, tmp_path / "out")


def test_a_message_about_hundreds_of_tensors_stays_short(tmp_path: Path, refused, copy_of):
    folder = copy_of("hf-marian")
    change_json(folder / "config.json", decoder_layers=40)
    message = refusal(refused, folder, tmp_path / "out", code=3)
    assert re.search(r" is missing and \d+ more\n", message) and message.count(" is missing") == 20


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position_encoding_type": "Rotary"}, "position_encoding_type is 'Rotary' (supported: "),
        ({"mlp_activation_fn": "gated-silu"}, "mlp_activation_fn is 'gated-silu' (supported: "),
        ({"embeddings": {"normalize": True}}, "embeddings.normalize is True (not supported)"),
        ({"decoder": {"norm_eps": 0.01}}, "encoder.norm_eps is 1e-05, but decoder.norm_eps is 0.01"),
        ({"encoder": {"mlp_activation_fn": "gelu"}}, "'gelu', but decoder.mlp_activation_fn is 'relu'"),
        ({"heads_kv": 1}, "heads_kv is 1 (not supported)"),
        ({"layer_norm": "rms"}, "layer_norm is 'rms'"),
        ({"encoder": {"encoder_layer_style": "postnorm"}}, "encoder.encoder_layer_style is 'postnorm'"),
        ({"architecture": "transformer_lm"}, "architecture is 'transformer_lm'"),
    ],
)
def test_other_models_of_eole_are_refused_by_name(changes: dict, words: str, tmp_path: Path, refused):
    theirs = shutil.copytree(golden("eole"), tmp_path / "theirs")
    settings = json.loads((theirs / "config.json").read_text())
    settings["model"] |= changes
    (theirs / "config.json").write_text(json.dumps(settings))
    assert words in refusal(refused, theirs, tmp_path / "out")
