"""Checkpoints written for toolkits: models that came from one return bit by bit; others are compared or refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import one_fast_in
from golden import Golden, converted, golden, refusal
from saved_model import ENGLISH, GERMAN, change_json, trained_model, trained_tokenizer, untrained_model
from tiny_models import tiny_config
from transformers import AutoTokenizer, MarianMTModel

from conversion.__main__ import main
from conversion.checkpoint_files import load_checkpoint
from conversion.convert import READERS, WRITERS
from training.recipe import load_recipe
from vaswani_transformer import Translator, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.loading import load_model
from vaswani_transformer.model_folder import ModelFolder
from vaswani_transformer.tokenization import train_tokenizer


def tensors_of(file: Path) -> dict[str, np.ndarray]:
    """Return every tensor of a checkpoint by name."""
    if file.suffix == ".npz":
        with np.load(file) as archive:
            return dict(archive)
    content = load_checkpoint(file)
    parts = {"model": content} if file.suffix == ".safetensors" else content
    found = {part: parts.get(part, {}) for part in ("model", "generator")}
    return {f"{part}/{name}": tensor.numpy() for part, tensors in found.items() for name, tensor in tensors.items()}


def written(to: str, checkpoint: Golden, tmp_path: Path) -> Path:
    """Convert a converted model to the format of a toolkit; return the folder."""
    main(["--to", to, str(checkpoint.folder), str(tmp_path / "out")])
    return tmp_path / "out"


# fairseq's stale copies, OpenNMT-py's tables of positions (5000 rows), Pegasus's, which its class computes.
NOT_WEIGHTS = ("_weight", "_bias", "version", "_float_tensor", "pe.pe", "embed_positions.weight")


ROUND_TRIPS = [
    ("fairseq", "fairseq", "checkpoint_best.pt"),
    ("marian", "marian", "model.npz"),
    ("marian-spm", "marian", "model.npz"),
    ("marian-prenorm", "marian", "model.npz"),
    ("hf-marian", "hf-marian", "model.safetensors"),
    ("hf-prenorm", "hf-prenorm", "model.safetensors"),
    ("opennmt-py", "opennmt-py", "model_release.pt"),
]


def test_every_toolkit_that_is_read_and_written_has_a_round_trip():
    assert {toolkit for _, toolkit, _ in ROUND_TRIPS} == set(READERS) & set(WRITERS)


@pytest.mark.parametrize(("name", "toolkit", "file"), one_fast_in(2, ROUND_TRIPS))
def test_a_round_trip_is_bit_exact(name: str, toolkit: str, file: str, tmp_path: Path):
    checkpoint = converted(name)
    out = written(toolkit, checkpoint, tmp_path)
    theirs, back = tensors_of(checkpoint.checkpoint / file), tensors_of(out / file)
    weights = [weight for weight in theirs if not weight.endswith(NOT_WEIGHTS)]
    assert len(weights) > 40
    for weight in weights:
        assert back[weight].dtype == theirs[weight].dtype, weight
        assert np.array_equal(back[weight], theirs[weight]), weight
    assert set(weights) == {weight for weight in back if not weight.endswith(NOT_WEIGHTS)}
    for kept in (checkpoint.folder / "original").iterdir():  # the vocabularies, byte for byte
        assert (out / kept.name).read_bytes() == (checkpoint.checkpoint / kept.name).read_bytes()

    main([str(out), str(tmp_path / "again")])
    again = load_model(tmp_path / "again", device="cpu").state_dict()
    for weight, tensor in checkpoint.model.state_dict().items():
        assert torch.equal(again[weight], tensor), weight
    assert (tmp_path / "again" / "tokenizer.json").read_text() == (checkpoint.folder / "tokenizer.json").read_text()


def test_fairseq_can_load_what_is_written(tmp_path: Path):
    """checkpoint_utils.py of 0.12.2 reads `args`, or OmegaConf's `cfg`, and the last entry of the optimizer's history
    (lines 601 to 618)."""
    saved = load_checkpoint(written("fairseq", converted("fairseq"), tmp_path) / "checkpoint_best.pt")
    assert "cfg" not in saved and (saved["args"].arch, saved["args"].task) == ("transformer", "translation")
    assert {"optimizer_name", "lr_scheduler_state", "num_updates"} <= saved["optimizer_history"][-1].keys()


def test_opennmt_py_can_load_what_is_written(tmp_path: Path):
    """model_builder.py of 3.5.1 reads these options of the training (lines 42 to 61, 348 to 443); the fixture, which
    OpenNMT-py itself has saved, has them."""
    checkpoint = converted("opennmt-py")
    saved = vars(load_checkpoint(written("opennmt-py", checkpoint, tmp_path) / "model_release.pt")["opt"])
    theirs = vars(load_checkpoint(checkpoint.checkpoint / "model_release.pt")["opt"])
    needed = {f"freeze_{part}" for part in ("encoder", "decoder", "word_vecs_enc", "word_vecs_dec")}
    needed |= {"optim", "param_init", "param_init_glorot", "parallel_mode", "world_size", "use_ckpting"}
    assert needed <= theirs.keys() and needed <= saved.keys()


def test_old_fairseq_is_written_as_new(tmp_path: Path):
    checkpoint = converted("fairseq-old")
    theirs = tensors_of(checkpoint.checkpoint / "checkpoint_best.pt")
    back = tensors_of(written("fairseq", checkpoint, tmp_path) / "checkpoint_best.pt")
    assert np.array_equal(back["model/decoder.output_projection.weight"], theirs["model/decoder.embed_out"])
    assert np.array_equal(back["model/encoder.embed_tokens.weight"], theirs["model/encoder.embed_tokens.weight"])


def test_fsmt_is_written_for_fairseq_with_its_codes(tmp_path: Path):
    """FSMT marks the last piece of a word (`lo</w>`), fairseq those before it (`ki@@`)."""
    checkpoint = converted("hf-fsmt")
    out = written("fairseq", checkpoint, tmp_path)
    names = sorted(file.name for file in out.iterdir())
    assert names == ["bpecodes.de", "bpecodes.en", "checkpoint_best.pt", "dict.de.txt", "dict.en.txt"]
    words = (out / "dict.en.txt").read_text(encoding="utf-8").split("\n")
    assert "lo 1" in words and "ka@@ 1" in words and not any("</w>" in word for word in words)

    main([str(out), str(tmp_path / "again")])
    again = Golden(checkpoint.checkpoint, tmp_path / "again")
    sources, targets = checkpoint.texts
    labels = checkpoint.tokenizer("target")(targets)["input_ids"]
    assert again.tokenizer()(sources)["input_ids"] == checkpoint.tokenizer()(sources)["input_ids"]
    assert again.tokenizer("target")(targets)["input_ids"] == labels
    rows = list(range(len(labels)))
    for a, b in zip(again.log_probabilities(rows, labels), checkpoint.log_probabilities(rows, labels), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_token_that_a_user_added_is_written_for_fairseq_as_a_word(tmp_path: Path, refused):
    """Without the record of the conversion, the original dictionaries, which lack the token, are left out."""
    folder = shutil.copytree(converted("fairseq").folder, tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<product>"])
    model = load_model(folder, device="cpu")
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    message = refusal(refused, "--to", "fairseq", folder, tmp_path / "out")
    assert "1 more that the model can generate, from id 40 on, would be lost; remove this file" in message
    (folder / "conversion.json").unlink()
    main([str(folder), str(tmp_path / "out"), "--to", "fairseq"])
    for side in ("src", "tgt"):
        before, after = (
            (place / f"dict.{side}.txt").read_text(encoding="utf-8").split("\n")
            for place in (golden("fairseq"), tmp_path / "out")
        )
        words = [line.split(" ")[0] for line in before[:-1]]
        assert [line.split(" ")[0] for line in after] == [*words, "<product>", ""]


def test_fairseqs_joint_dictionary_returns(tmp_path: Path):
    theirs = shutil.copytree(golden("fairseq"), tmp_path / "theirs")
    (theirs / "dict.src.txt").rename(theirs / "dict.txt")
    (theirs / "dict.tgt.txt").unlink()
    main([str(theirs), str(tmp_path / "ours")])
    record = tmp_path / "ours/conversion.json"
    content = record.read_text().replace('"src"', '"en"').replace('"tgt"', '"de"')  # as of a model of these languages
    record.write_text(content)
    out = written("fairseq", Golden(theirs, tmp_path / "ours"), tmp_path)
    options = load_checkpoint(out / "checkpoint_best.pt")["args"]
    assert (options.source_lang, options.target_lang) == ("en", "de")
    for name in ("dict.txt", "bpecodes"):
        assert (out / name).read_bytes() == (theirs / name).read_bytes()
    ours, tokens = (file.read_text(encoding="utf-8").split("\n") for file in (out / "dict.en.txt", theirs / "dict.txt"))
    assert [line.split(" ")[0] for line in ours] == [line.split(" ")[0] for line in tokens]


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


def test_the_settings_of_the_search_are_written_for_transformers(tmp_path: Path):
    """All that means the same there; the length penalty does not."""
    model = VaswaniTransformerForConditionalGeneration(tiny_config(layer_norm_eps=1e-5))
    settings = {"num_beams": 6, "min_new_tokens": 2, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    model.generation_config.update(**settings, max_new_tokens=40, suppress_tokens=[0, 1, 9], forced_bos_token_id=7)
    model.save_pretrained(tmp_path / "ours")
    main(["--to", "hf-marian", str(tmp_path / "ours"), str(tmp_path / "theirs")])
    written = json.loads((tmp_path / "theirs" / "generation_config.json").read_text())
    settings |= {"max_length": 41, "bad_words_ids": [[0], [1], [9]], "forced_bos_token_id": 7}
    assert written == settings | {"eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 0}
    assert MarianMTModel.from_pretrained(tmp_path / "theirs").generation_config.num_beams == 6


def test_a_forced_first_token_is_written_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """transformers applies it, and CTranslate2 takes it as the target_prefix of each call."""
    model = untrained_model(layer_norm_eps=1e-5)
    model.generation_config.forced_bos_token_id = 7
    model.save_pretrained(tmp_path / "ours")
    trained_tokenizer().save_pretrained(tmp_path / "ours")
    main(["--to", "hf-marian", str(tmp_path / "ours"), str(tmp_path / "theirs")])
    assert json.loads((tmp_path / "theirs" / "generation_config.json").read_text())["forced_bos_token_id"] == 7
    assert "prefix" not in capsys.readouterr().out
    pytest.importorskip("ctranslate2")
    main(["--to", "ctranslate2", str(tmp_path / "ours"), str(tmp_path / "ct2")])
    assert "(id 7), which ctranslate2 must be given as a prefix" in capsys.readouterr().out


def test_both_tokenizers_are_written_for_transformers_and_read_again(tmp_path: Path):
    model = VaswaniTransformerForConditionalGeneration(tiny_config(layer_norm_eps=1e-5, vocab_size=300))
    model.save_pretrained(tmp_path / "ours")
    trained_tokenizer().save_pretrained(tmp_path / "ours")
    train_tokenizer(GERMAN, 270).save_pretrained(tmp_path / "ours" / "target_tokenizer")
    main(["--to", "hf-marian", str(tmp_path / "ours"), str(tmp_path / "theirs")])
    source, target = (
        AutoTokenizer.from_pretrained(tmp_path / "theirs", subfolder=folder) for folder in ("", "target_tokenizer")
    )
    assert (len(source), len(target)) == (300, 270)
    main([str(tmp_path / "theirs"), str(tmp_path / "back")])
    before, after = ModelFolder(tmp_path / "ours"), ModelFolder(tmp_path / "back")
    texts = [*ENGLISH, *GERMAN, "</s> <s>", "x\u00a0y  \N{GRINNING FACE}"]
    for ours, back in ((before.tokenizer, after.tokenizer), (before.target_tokenizer, after.target_tokenizer)):
        assert [back.encode(text).ids for text in texts] == [ours.encode(text).ids for text in texts]


def test_one_tokenizer_for_both_languages_is_read_again(tmp_path: Path):
    untrained_model(layer_norm_eps=1e-5).save_pretrained(tmp_path / "ours")
    trained_tokenizer().save_pretrained(tmp_path / "ours")
    main(["--to", "hf-marian", str(tmp_path / "ours"), str(tmp_path / "theirs")])
    main([str(tmp_path / "theirs"), str(tmp_path / "back")])
    translators = (Translator.from_pretrained(tmp_path / name, device="cpu") for name in ("ours", "back"))
    ours, back = (translator.translate(ENGLISH, num_beams=1, max_new_tokens=9) for translator in translators)
    assert ours == back


@pytest.mark.parametrize(
    "name", one_fast_in(2, ["marian", "fairseq", "hf-marian", "opennmt-py", "tensor2tensor", "sockeye"])
)
def test_ctranslate2_computes_the_same_scores(name: str, tmp_path: Path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    checkpoint = converted(name)
    out = written("ctranslate2", checkpoint, tmp_path)
    translator = ctranslate2.Translator(str(out), device="cpu", compute_type="float32", intra_threads=1)
    tokenizer, target_tokenizer = checkpoint.tokenizer(), checkpoint.tokenizer("target")
    sources, targets = checkpoint.texts
    pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(sources)["input_ids"]]
    labels = target_tokenizer(targets)["input_ids"]
    assert all(ids[-1] == checkpoint.model.config.eos_token_id for ids in labels)
    words = [target_tokenizer.convert_ids_to_tokens(ids[:-1]) for ids in labels]
    theirs = [score.log_probs for score in translator.score_batch(pieces, words)]
    ours = checkpoint.log_probabilities(list(range(len(labels))), labels)
    for a, b in zip(ours, theirs, strict=True):
        assert a.tolist() == pytest.approx(b, abs=2e-4)  # its float32 kernels; a wrong table is off by 3e-3 to 5e-2


def test_opennmt_py_says_what_the_source_text_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Its own models do not end a source with `</s>`; ours do, and it appends none."""
    sizes = {"decoder_attention_heads": 4, "decoder_ffn_dim": 24}
    model = untrained_model(norm_position="pre", encoder_final_norm=True, decoder_final_norm=True, **sizes)
    model.save_pretrained(tmp_path / "ours")
    trained_tokenizer().save_pretrained(tmp_path / "ours")
    note = "note: The sources of this model end in </s>, which OpenNMT-py does not add"
    for folder, expected in ((tmp_path / "ours", True), (converted("opennmt-py").folder, False)):
        capsys.readouterr()
        main(["--to", "opennmt-py", str(folder), str(tmp_path / f"out {expected}")])
        assert (note in capsys.readouterr().out) == expected


def test_all_unsupported_settings_of_a_target_are_listed(tmp_path: Path, refused):
    trained_model().save_pretrained(tmp_path / "paper")
    trained_tokenizer().save_pretrained(tmp_path / "paper")
    message = refusal(refused, "--to", "fairseq", tmp_path / "paper", tmp_path / "out")
    for reason in ("position_base", "position_offset is 0", "layer_norm_eps is 1e-06", "decoder with </s>"):
        assert reason in message
    untrained_model(layer_norm_eps=1e-5, tie_word_embeddings=False, position_offset=2).save_pretrained(tmp_path / "o")
    message = refusal(refused, "--to", "hf-marian", tmp_path / "o", tmp_path / "out")
    assert "position_offset is 2" in message and "tie_word_embeddings is False" in message


def test_a_model_trained_with_the_settings_that_are_named_can_be_written(tmp_path: Path, refused):
    trained_model().save_pretrained(tmp_path / "paper")
    trained_tokenizer().save_pretrained(tmp_path / "paper")
    message = refusal(refused, "--to", "hf-marian", tmp_path / "paper", tmp_path / "out")
    assert message.endswith("layer_norm_eps is 1e-06 (supported: 1e-05)\n")
    untrained_model(**load_recipe(None, {"model.layer_norm_eps": "1e-05"}).model).save_pretrained(tmp_path / "next")
    main(["--to", "hf-marian", str(tmp_path / "next"), str(tmp_path / "out")])


def test_a_trained_start_token_cannot_be_written_for_marian(tmp_path: Path, refused):
    folder = shutil.copytree(converted("marian").folder, tmp_path / "ours")
    model = load_model(folder, device="cpu")
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[model.config.decoder_start_token_id] = 1
    model.save_pretrained(folder)
    message = refusal(refused, "--to", "marian", folder, tmp_path / "out")
    assert "the decoder's first token has an embedding" in message


def test_marians_configuration_from_a_separate_file_is_written_into_the_model(tmp_path: Path):
    theirs = shutil.copytree(golden("marian"), tmp_path / "theirs")
    with np.load(theirs / "model.npz") as archive:
        arrays = dict(archive)
    configuration = arrays.pop("special:model.yml").tobytes().split(b"\0")[0]
    np.savez(theirs / "model.npz", allow_pickle=False, **arrays)
    (theirs / "model.npz.yml").write_bytes(configuration)
    main([str(theirs), str(tmp_path / "ours")])
    out = written("marian", Golden(theirs, tmp_path / "ours"), tmp_path)
    with np.load(out / "model.npz") as archive:
        assert archive["special:model.yml"].tobytes().split(b"\0")[0] == configuration


@pytest.mark.parametrize("field, value", [("position_base", 10000), ("position_offset", 2), ("layer_norm_eps", 0.01)])
def test_an_edited_model_is_not_written_for_marian(field, value, tmp_path, refused):
    folder = shutil.copytree(converted("marian-prenorm").folder, tmp_path / "ours")
    change_json(folder / "config.json", **{field: value})
    assert field in refusal(refused, "--to", "marian", folder, tmp_path / "out")


@pytest.mark.parametrize(
    "record",
    [
        "{}",
        '{"toolkit": "marian", "options": []}',
        '{"toolkit": "fairseq", "options": {"dtype": "none"}}',
        '{"toolkit": "fairseq", "options": {"source_tokens": Infinity}}',
        '{"toolkit": "fairseq", "options": {"target_tokens": true}}',
        '{"toolkit": "fairseq", "options": {"target_tokens": 0}}',
        '{"toolkit": "fairseq", "options": {"source_tokens": 39}}',
        '{"toolkit": "fairseq", "options": {"target_tokens": 1000000}}',
        "[]",
        "{",
        "[" * 10**5,
    ],
)
def test_a_broken_record_of_a_conversion_is_named(record: str, tmp_path: Path, refused):
    folder = shutil.copytree(converted("fairseq").folder, tmp_path / "ours")
    (folder / "conversion.json").write_text(record)
    message = refusal(refused, "--to", "fairseq", folder, tmp_path / "out", code=3)
    assert "conversion.json is not a record of a conversion" in message


@pytest.mark.parametrize(
    ("file", "change"),
    [("conversion.json", {"options": {"config": []}}), ("generation_config.json", {"length_penalty": float("inf")})],
)
def test_damaged_settings_of_what_is_written_are_named(file: str, change: dict, tmp_path: Path, refused):
    folder = shutil.copytree(converted("hf-marian").folder, tmp_path / "ours")
    change_json(folder / file, **change)
    message = refusal(refused, "--to", "hf-marian", folder, tmp_path / "out", code=3)
    assert "ours: conversion.json or generation_config.json is damaged or does not fit hf-marian (" in message
    assert not (tmp_path / "out").exists()
