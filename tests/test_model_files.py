"""Errors about a model folder name the file, field or tensor; nothing is guessed, no code from the folder runs."""

import contextlib
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import one_fast_in
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from saved_model import ENGLISH, VOCABULARY, change_json, trained_model, trained_tokenizer
from tokenizers import Regex, Tokenizer, models, normalizers
from transformers import GenerationConfig

from vaswani_transformer import (
    SearchSettings,
    TorchTranslator,
    Translator,
    VaswaniTransformerForConditionalGeneration,
    tokenizer_steps,
)
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.hub_files import find_folder
from vaswani_transformer.loading import load_model, load_tokenizer
from vaswani_transformer.model_folder import ModelFolder

WEIGHTS = "model.safetensors"
FILES = ["config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]


def refusal(folder: Path, kind: type[Exception] = BrokenFileError) -> str:
    """Return the one-line error of loading the folder."""
    with pytest.raises(kind) as refused:
        Translator.from_pretrained(folder, device="cpu")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_an_intact_folder_loads_as_it_was_saved(model_folder):
    loaded = load_model(model_folder, device="cpu")
    for name, tensor in trained_model().state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert not loaded.training and loaded.generation_config.to_dict()["extra_length"] == 50
    assert load_tokenizer(model_folder).vocab_size == VOCABULARY


def test_a_model_is_as_it_was_loaded_although_its_file_is_overwritten(folder):
    model = load_model(folder, device="cpu")
    with (folder / WEIGHTS).open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size // 2)
        file.write(bytes(size - size // 2))
    for name, tensor in trained_model().state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("what", ["empty", "truncated", "missing", "a folder"])
def test_a_damaged_file_is_named(folder, file, what):
    path = folder / file
    content = path.read_bytes()
    if what in ("missing", "a folder"):
        path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what != "missing":
        path.write_bytes(b"" if what == "empty" else content[: len(content) // 2])
    if (file, what) == ("generation_config.json", "missing"):  # the only optional file
        loaded = load_model(folder, device="cpu")
        assert loaded.generation_config.to_diff_dict() == trained_model().generation_config.to_diff_dict()
    else:
        assert str(path) + " cannot be read: Is a directory" * (what == "a folder") in refusal(folder)


@pytest.mark.parametrize("file", FILES)
def test_files_that_are_not_regular_are_not_read(folder, file):
    """Reading a named pipe would wait for a writer, and /dev/zero has no end."""
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (folder / file).unlink()
        make(folder / file)
        assert refusal(folder).startswith(f"{folder / file} is not a regular file")


@pytest.mark.parametrize(
    "files, said",
    [
        ([], "has no config.json; give the folder of a model"),
        (["model/config.json", "other/config.json"], "has no config.json; give {}/model or {}/other"),
        (["run.json"], "is an unfinished run; resume its training"),
        (
            ["run.json", *(f"checkpoints/step-{step}/config.json" for step in ("90", "100", "200.broken"))],
            "is an unfinished run; resume its training, or give a checkpoint of it, {}/checkpoints/step-100",
        ),
    ],
)
@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_the_model_of_another_folder_is_pointed_out(tmp_path, files, said, backend):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(InputError) as refused:
        Translator.from_pretrained(tmp_path, backend=backend)
    assert str(refused.value) == f"{tmp_path} {said.replace('{}', str(tmp_path))}"


@pytest.mark.parametrize(
    "value, reason",
    [(b"[" * 10**5, "nested too deeply"), (b"9" * 5000, "5000 digits"), (b'"\xff"', "0xff in position 7")],
)
def test_extreme_json_is_refused_in_one_line(folder, value, reason):
    (folder / "config.json").write_bytes(b'{"a": ' + value + b"}")
    message = refusal(folder)
    assert message.startswith(f"{folder / 'config.json'} is not valid JSON: ") and reason in message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_is_named(folder, value):
    tensors, name = load_file(folder / WEIGHTS), "model.decoder.layers.1.self_attn.q_proj.weight"
    tensors[name][3, 5] = value
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    assert refusal(folder).startswith(f"{folder / WEIGHTS} has NaN or infinite values in {name}; ")


def test_a_missing_unknown_or_misshapen_tensor_is_named(folder):
    change_json(folder / "config.json", decoder_layers=3)
    assert "lacks model.decoder.layers.2." in refusal(folder)
    change_json(folder / "config.json", decoder_layers=1)
    assert "has model.decoder.layers.1." in refusal(folder)
    change_json(folder / "config.json", decoder_layers=2)
    tensors = load_file(folder / WEIGHTS)
    name = "model.encoder.layers.0.self_attn.q_proj.weight"
    without = {key: tensor for key, tensor in tensors.items() if key != name}
    for content, message in [
        (without, f"lacks {name}"),
        (tensors | {"extra.weight": torch.zeros(3)}, "has extra.weight, which the architecture in config.json"),
        (without | {name: torch.zeros(7, 5)}, f"{name} (7, 5) where config.json gives (32, 32)"),
    ]:
        save_file(content, folder / WEIGHTS)
        assert message in refusal(folder)


def test_any_copy_of_the_tied_matrix_is_enough(folder):
    tensors = load_file(folder / WEIGHTS)
    shared = tensors.pop("model.shared.weight")
    for name in ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.shared.weight"):
        save_file(tensors | {name: shared}, folder / WEIGHTS)
        assert torch.equal(load_model(folder, device="cpu").lm_head.weight, trained_model().lm_head.weight)
    save_file(tensors, folder / WEIGHTS)
    assert "model.shared.weight" in refusal(folder)


@pytest.mark.parametrize(
    "file, field, value",
    [
        ("config.json", "d_model", "32"),
        ("config.json", "encoder_layers", 2.5),
        ("config.json", "vocab_size", 10**12),
        ("config.json", "norm_position", "middle"),
        ("config.json", "eos_token_id", [2, 5]),
        ("config.json", "pad_token_id", None),
        ("config.json", "decoder_start_token_id", 10**6),
        ("generation_config.json", "num_beams", 0),
        ("generation_config.json", "num_beams", "4"),
        ("generation_config.json", "length_penalty", "x"),
        ("generation_config.json", "early_stopping", 7),
        ("generation_config.json", "early_stopping", -3),
        ("generation_config.json", "early_stopping", "sometimes"),
        ("generation_config.json", "suppress_tokens", [-1]),
        ("generation_config.json", "num_return_sequences", 5),
        ("generation_config.json", "num_return_sequences", True),
    ],
)
def test_a_wrong_field_is_named_with_its_value(folder, file, field, value):
    change_json(folder / file, **{field: value})
    message = refusal(folder)
    assert field in message and file in message and str(value).strip("[]") in message


def test_another_kind_of_model_is_refused(folder):
    change_json(folder / "config.json", model_type="marian")
    assert "model_type is 'marian'" in refusal(folder, InputError)
    (folder / "config.json").write_text("[1, 2]")
    assert "holds a list" in refusal(folder)


def test_a_tokenizer_of_another_model_is_refused(folder):
    for token in ("<unk>", None, "<other>"):
        change_json(folder / "tokenizer_config.json", eos_token=token)
        assert "eos_token" in refusal(folder)
    change_json(folder / "tokenizer_config.json", eos_token="</s>")
    change_json(folder / "tokenizer.json", post_processor=None)
    assert "does not end a sentence with token 2" in refusal(folder)
    content = json.loads((folder / "tokenizer.json").read_text())["model"]
    change_json(folder / "tokenizer.json", model=content | {"vocab": content["vocab"] | {"new": VOCABULARY}})
    assert f"ids up to {VOCABULARY}, but config.json has vocab_size {VOCABULARY}" in refusal(folder)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [([VOCABULARY + 5, 2], f"ids up to {VOCABULARY + 5}, but"), ([2] * 1000, "makes 1,001 tokens of one letter")],
)
def test_ids_that_a_post_processor_adds_are_checked(folder, ids, reason):
    content = json.loads((folder / "tokenizer.json").read_text())["post_processor"]
    end = {"</s>": {"id": "</s>", "ids": ids, "tokens": ["</s>"] * len(ids)}}
    change_json(folder / "tokenizer.json", post_processor=content | {"special_tokens": end})
    assert reason in refusal(folder)


LONG = "a" * 1000
SPACE = {"type": "Replace", "pattern": {"Regex": "(?=.)"}, "content": " "}  # before each letter


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


@pytest.mark.parametrize(
    ("field", "steps", "reason"),
    [
        ("normalizer", [replace("a", LONG)] * 9, "1,000,000 letters of one, with its step Replace 'aaa"),
        ("normalizer", [replace("b", LONG.upper()), {"type": "Lowercase"}, replace("a", LONG)], "1,000,000 letters"),
        ("normalizer", [SPACE] * 99, "16,384 letters of one, with its step Replace ' '; at most 10,000 are"),
        ("normalizer", [{"type": "Prepend", "prepend": LONG * 1000}], "1,000,001 letters"),
        ("normalizer", [{"type": "ByteLevel"}] * 99, "16,384 letters of one, with its step ByteLevel"),
        ("decoder", [{"type": "Sequence", "decoders": [replace("a", LONG)]}, replace("a", LONG)], "1,000,000 letters"),
        ("decoder", [{"type": "BPEDecoder", "suffix": ""}] * 99, "16,384 letters"),
    ],
)
def test_a_tokenizer_that_makes_endless_texts_is_refused(folder, field, steps, reason):
    change_json(folder / "tokenizer.json", **{field: {"type": "Sequence", f"{field}s": steps}})
    error = refusal(folder)
    assert f"tokenizer.json: {field} may make" in error and reason in error and len(error) < 500


def test_the_escapes_of_a_toolkit_are_not_multiplied(folder):
    """Those of Moses and subword-nmt, which do not match each other's letters."""
    codes = {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;"}
    steps = [replace(letter, code) for letter, code in codes.items()] + [replace(letter, LONG) for letter in "xyz"]
    change_json(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": steps})
    Translator.from_pretrained(folder, device="cpu")


TEXTS = st.text("abC\u00e9", min_size=1, max_size=3)
STEPS = st.builds(normalizers.Replace, TEXTS | st.just(Regex("[^C]")), TEXTS | st.just(""))
STEPS |= st.builds(normalizers.Prepend, TEXTS)
# tokenizers 0.23 panics if one of the second follows one of the first.
ANYWHERE = st.builds(normalizers.Replace, st.sampled_from(["", Regex("(?=a)"), Regex("b*")]), TEXTS)
LETTERS = st.sampled_from([normalizers.Lowercase(), normalizers.ByteLevel()])


@given(
    st.lists(STEPS | ANYWHERE, max_size=6) | st.lists(STEPS | LETTERS, max_size=6), TEXTS, st.sampled_from([2, 4, 10])
)
def test_no_accepted_tokenizer_makes_longer_texts(steps, text, most):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(steps)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(BrokenFileError):
        patch.setattr(tokenizer_steps, "MOST_LETTERS_OF_A_LETTER", most)
        tokenizer_steps.check_growth(Path("tokenizer.json"), tokenizer)
        assert len(tokenizer.normalizer.normalize_str(text)) < most * (len(text) + 1)  # the end counts as a letter


def test_other_entries_of_a_config_are_ignored(folder):
    """transformers would build a part of another model, return tuples, or fail in another library."""
    others = {
        "text_config": {"model_type": "bert"},
        "return_dict": False,
        "base_model_tp_plan": 5,
        "id2label": {"a": 1},
    }
    others |= {"_attn_implementation": "flash_attention_3", "validate": 5, "to_dict": "a"}
    expected = Translator.from_pretrained(folder, device="cpu").translate(ENGLISH)
    change_json(folder / "config.json", **others)
    assert Translator.from_pretrained(folder, device="cpu").translate(ENGLISH) == expected


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "manifest.json", WEIGHTS])
def test_a_link_to_nothing_is_not_a_missing_file(folder, name):
    """Files that may be missing have defaults, and a Hub cache may have lost what its links lead to."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("nothing")
    assert refusal(folder).startswith(f"{folder / name}: a link to a file that does not exist")
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    assert refusal(folder).startswith(f"{folder / name} cannot be read: Too many levels of symbolic links")


def test_half_a_character_in_a_file_is_named(folder):
    content = (folder / "config.json").read_text().rstrip().removesuffix("}")
    (folder / "config.json").write_text(content + r', "emoji": "\ud83d\ude00"}')
    assert Translator.from_pretrained(folder, device="cpu").translate(["a"])
    (folder / "config.json").write_text(content + r', "note": "\udE00"}')
    assert "config.json is not valid JSON: 'utf-8' codec can't encode character '\\ude00'" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        (None, torch.float8_e4m3fn, "as torch.float8_e4m3fn; weights are torch.float32"),
        ("model.encoder.layers.0.self_attn.q_proj.weight", torch.int32, "as torch.int32; weights are torch.float32"),
        (
            "model.encoder.layers.0.self_attn.q_proj.weight",
            torch.float16,
            "has tensors of float16 and float32; choose one for all, such as dtype='float32'",
        ),
    ],
)
def test_weights_in_which_the_model_cannot_compute_are_refused(folder, name, dtype, reason):
    tensors = load_file(folder / WEIGHTS)
    changed = {key: tensor.to(dtype) for key, tensor in tensors.items() if name in (None, key)}
    save_file(tensors | changed, folder / WEIGHTS, {"format": "pt"})
    assert reason in refusal(folder)
    if dtype is torch.float16:
        assert Translator.from_pretrained(folder, device="cpu", dtype="float32").translate(["a"])


@pytest.mark.parametrize(
    "field, value",
    [
        ("encoder_no_repeat_ngram_size", 3),
        ("encoder_repetition_penalty", 1.2),
        ("do_sample", True),
        ("low_memory", True),
        ("stop_strings", ["a"]),
        ("watermarking_config", {"greenlist_ratio": 0.5}),
        ("eos_token_id", [2, 5]),
        ("eos_token_id", 2.0),
        ("pad_token_id", 5),
    ],
)
def test_settings_that_only_generate_supports_are_refused(folder, field, value):
    change_json(folder / "generation_config.json", **{field: value})
    found = f"generation_config.json: {field} is " + ("" if isinstance(value, dict) else str(value))
    assert found in refusal(folder, InputError)
    load_model(folder, device="cpu")  # for generate()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("bad_words_ids", [[3]], ", which generate"), ("eos_token_id", [2, 5], ", but 2 in con")],
)
def test_a_model_in_memory_is_refused_settings_that_only_generate_supports(folder, field, value, said):
    change_json(folder / "generation_config.json", **{field: value})
    model = load_model(folder, device="cpu")
    with pytest.raises(InputError, match=re.escape(f"{field} is {value}{said}")):
        TorchTranslator(model, trained_tokenizer())


def test_neutral_settings_are_accepted(folder):
    neutral = {"num_beam_groups": 1, "guidance_scale": 1, "renormalize_logits": False, "temperature": 0.5, "top_k": 9}
    change_json(folder / "generation_config.json", **neutral)
    Translator.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("length", ["20", [20], 1, 10**30])
def test_an_impossible_maximum_length_is_named(folder, length):
    change_json(folder / "generation_config.json", extra_length=None, max_length=length)
    with pytest.raises(BrokenFileError, match=rf"generation_config.json: max_length is {re.escape(repr(length))}; it"):
        assert ModelFolder(folder).search


def test_omitted_search_settings_are_those_of_transformers(folder):
    path = folder / "generation_config.json"
    change_json(path, num_beams=None, length_penalty=None, early_stopping=None)
    translator = Translator.from_pretrained(folder, device="cpu")
    assert translator.search == SearchSettings(1, 1.0, False)
    batch = translator.tokenizer(ENGLISH, return_tensors="pt", padding=True)
    found = translator.tokenizer.batch_decode(translator.model.generate(**batch), skip_special_tokens=True)
    assert translator.translate(ENGLISH) == found
    path.unlink()
    assert Translator.from_pretrained(folder, device="cpu").search == SearchSettings()


@pytest.mark.parametrize("backend", ["torch", "onnx"])
@pytest.mark.parametrize(
    "settings",
    [
        {"early_stopping": "never"},
        {"early_stopping": True, "num_beams": 3},
        {"extra_length": 2, "min_new_tokens": 9, "length_penalty": 1.2},
        {"max_new_tokens": 4, "early_stopping": False},
    ],
)
def test_one_file_gives_the_same_search_everywhere(exported, tmp_path, settings, backend):
    shutil.copytree(exported / ("onnx" if backend == "onnx" else "model"), tmp_path / "copy")
    change_json(tmp_path / "copy" / "generation_config.json", **settings)
    model, tokenizer = trained_model(), trained_tokenizer()
    expected = [
        tokenizer.decode(
            model.generate(**tokenizer([text], return_tensors="pt"), **settings)[0], skip_special_tokens=True
        )
        for text in ENGLISH
    ]
    assert Translator.from_pretrained(tmp_path / "copy", backend=backend, device="cpu").translate(ENGLISH) == expected


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")  # of transformers, about min_new_tokens
@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_a_call_replaces_the_limit_of_the_folder_by_extra_length(exported, tmp_path, backend):
    """Converted models of OPUS-MT have a maximum for all texts. No translation ends before 60 tokens here."""
    shutil.copytree(exported / ("onnx" if backend == "onnx" else "model"), tmp_path / "copy")
    change_json(tmp_path / "copy" / "generation_config.json", extra_length=None, max_new_tokens=40, min_new_tokens=60)
    source, folder = ENGLISH[:1], tmp_path / "copy"
    translator: Any = Translator.from_pretrained(folder, backend=backend, device="cpu")
    length = len(trained_tokenizer()(source[0])["input_ids"])

    def count(**options):
        ((found,),) = translator.find_hypotheses(source, **options)
        return len(found.tokens)

    assert (count(), count(extra_length=2), count(extra_length=2, max_new_tokens=9)) == (40, length + 2, 9)
    settings = vars(translator.change_search(extra_length=2))  # as commands pass them on
    assert count(**settings) == length + 2
    if backend == "torch":
        batch = trained_tokenizer()(source, return_tensors="pt")
        for options in ({"extra_length": 2}, {"generation_config": GenerationConfig(extra_length=2)}):
            assert translator.model.generate(**batch, **options).shape[1] == 1 + length + 2
            assert translator.model.generate(**batch).shape[1] == 1 + 40


class Bomb:
    """Creates a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_pickled_weights_are_refused_without_opening_them(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / WEIGHTS).unlink()
    torch.save({"model.shared.weight": Bomb()}, folder / "pytorch_model.bin")
    message = refusal(folder, InputError)
    assert "pytorch_model.bin" in message and WEIGHTS in message
    assert "weights_only=False" not in message
    assert not (folder / "exploded").exists()


def test_code_in_the_folder_does_not_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "evil.py").write_text("import os\nos.mkdir('exploded')\nclass Evil: pass\n")
    auto_map = {name: "evil.Evil" for name in ("AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM")}
    change_json(folder / "config.json", auto_map=auto_map, architectures=["Evil"])
    change_json(
        folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    )
    assert Translator.from_pretrained(folder, device="cpu").translate(["a"])
    assert not (folder / "exploded").exists()


def sharded(folder: Path, file: str) -> None:
    """Split the weights into two files, the second of which is `file`."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    places = {name: ("one.safetensors", file)[i % 2] for i, name in enumerate(tensors)}
    for part in ("one.safetensors", file):
        save_file({n: tensor for n, tensor in tensors.items() if places[n] == part}, folder / part, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def test_weights_in_several_files_load(folder):
    sharded(folder, "two.safetensors")
    loaded = load_model(folder, device="cpu")
    assert torch.equal(loaded.lm_head.weight, trained_model().lm_head.weight)
    (folder / "two.safetensors").unlink()
    assert "two.safetensors: no such file" in refusal(folder)


def test_weights_saved_in_parts_beside_an_older_file_are_not_ignored(folder):
    trained_model().save_pretrained(folder, max_shard_size="60KB")
    assert f"{folder} holds two models, {WEIGHTS} and model-00001-of-" in refusal(folder)
    (folder / WEIGHTS).unlink()
    load_model(folder, device="cpu")
    trained_model().save_pretrained(folder)  # removes the parts and leaves their index
    load_model(folder, device="cpu")


def test_a_tensor_in_two_files_is_refused(folder):
    """The index names one of them, and transformers takes the last one."""
    sharded(folder, "two.safetensors")
    first, second = (load_file(folder / f"{name}.safetensors") for name in ("one", "two"))
    name = next(iter(first))
    save_file(second | {name: first[name] + 1}, folder / "two.safetensors", {"format": "pt"})
    assert f"two.safetensors holds {name}, which another file holds as well" in refusal(folder)


def test_tied_weights_with_different_values_are_refused(folder):
    """transformers would not tie them: users of the folder would have two models."""
    weights = load_file(folder / WEIGHTS)
    for factor in (1, 2):
        weights["lm_head.weight"] = weights["model.shared.weight"] * factor
        save_file(weights, folder / WEIGHTS, {"format": "pt"})
        if factor == 1:
            assert torch.equal(load_model(folder, device="cpu").lm_head.weight, trained_model().lm_head.weight)
    assert "different values in lm_head.weight and model.shared.weight, which config.json ties" in refusal(folder)
    loaded = VaswaniTransformerForConditionalGeneration.from_pretrained(folder)
    assert not torch.equal(loaded.lm_head.weight, loaded.model.shared.weight)


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "\ud800", "a" * 300, "\x1b[31m", 5])
def test_an_index_names_files_by_printable_names(folder, name):
    sharded(folder, "two.safetensors")
    change_json(folder / f"{WEIGHTS}.index.json", weight_map={"model.shared.weight": name})
    found = refusal(folder)
    assert f"{WEIGHTS}.index.json" in found and ("must map the name of each" in found or "not valid JSON" in found)


@pytest.mark.parametrize("file", ["../two.safetensors", "{absolute}"])
def test_an_index_cannot_name_files_outside_the_folder(folder, file, tmp_path):
    sharded(folder, file.format(absolute=tmp_path / "two.safetensors"))
    assert "outside the folder, and is not read" in refusal(folder)


def test_a_config_cannot_name_other_weights(folder):
    change_json(folder / "config.json", transformers_weights="../elsewhere.safetensors")
    loaded = load_model(folder, device="cpu")
    assert torch.equal(loaded.lm_head.weight, trained_model().lm_head.weight)


def test_a_missing_folder_is_refused_without_the_network(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    (tmp_path / "file").touch()
    for path, named in ((tmp_path / "file", "is a file"), ("name", "no such folder")):
        with pytest.raises(InputError, match=named):
            find_folder(path)


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"  # with a set in a set
GROUPS_OF_DIGITS = r"\d(?=(?:\d{3})+(?!\d))"


@pytest.mark.parametrize("pattern", [GPT_2, GPT_4O, BLOOM, GROUPS_OF_DIGITS, r"(?<=[\s\S])\z", r"[[:alpha:]&&[^a]]+"])
def test_patterns_of_known_tokenizers_are_used(folder, pattern):
    split = SPLIT | {"pattern": {"Regex": pattern}}
    content = json.loads((folder / "tokenizer.json").read_text())
    steps = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
    change_json(folder / "tokenizer.json", pre_tokenizer=steps)
    assert load_tokenizer(folder).encode("a b")


@pytest.mark.parametrize(
    ("field", "step"),
    [
        ("normalizer", {"type": "Replace", "content": ""}),
        ("pre_tokenizer", SPLIT),
        ("decoder", {"type": "Replace", "content": ""}),
    ],
)
@pytest.mark.parametrize(
    "pattern",
    one_fast_in(
        3,
        [
            *("(a+)+b", "(?:[ab]*c*)*d", r"(\w{2,9}){3,}b", "((a+))+b", r"(?:x(?:(\s*)y)z?)*b"),
            *("a+a+[bc]", r"\w+\w+[.,]", "[g-z]+[g-z]*[g-z]+[01]", r"(?:\d+\d+)?:", r"\s*\s*\s*!"),
        ],
    ),
)
def test_a_pattern_that_may_backtrack_for_minutes_is_refused(folder, field, step, pattern):
    change_json(folder / "tokenizer.json", **{field: step | {"pattern": {"Regex": pattern}}})
    with pytest.raises(BrokenFileError, match=f"tokenizer.json: {field} has the pattern .*, which may take minutes"):
        load_tokenizer(folder)


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_a_pattern_that_gives_up_on_a_text_is_named(folder, exported, tmp_path, backend):
    """The library panics. No check finds all such patterns before."""
    if backend == "onnx":
        folder = shutil.copytree(exported / "onnx", tmp_path / "onnx")
        (folder / "export.json").unlink()  # it has the hash of tokenizer.json
    content = json.loads((folder / "tokenizer.json").read_text())
    split = SPLIT | {"pattern": {"Regex": "(?:ab|abab)+$c"}}
    steps = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
    change_json(folder / "tokenizer.json", pre_tokenizer=steps)
    translator: Any = Translator.from_pretrained(folder, backend=backend, device="cpu")
    assert translator.translate("A house.", max_new_tokens=3)
    calls = [lambda text: translator.translate(text)]
    if backend == "torch":
        calls.append(lambda text: translator.score(text, text))
    for call in calls:
        with pytest.raises(BrokenFileError, match=f"{folder}/tokenizer.json fails on a text .*retry-limit"):
            call("ab" * 60 + "!")


@pytest.mark.parametrize(
    "field, value, reason",
    [
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "Precompiled: "),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "chunk size must be non-zero"),
        ("post_processor", {"special_tokens": {}}, "no entry found for key"),
        ("decoder", {"type": "Strip", "content": "l", "start": 10**6, "stop": 10**6}, "index out of bounds"),
        (
            "model",
            {"type": "WordLevel", "vocab": {"</s>": 2, "a": 3}, "unk_token": "<none>"},
            "WordLevel error: Missing",
        ),
    ],
)
def test_a_panic_in_tokenizers_is_an_ordinary_error(folder, field, value, reason, capfd):
    if field == "post_processor":
        value = json.loads((folder / "tokenizer.json").read_text())[field] | value
    change_json(folder / "tokenizer.json", **{field: value})
    assert f"tokenizer.json is not a tokenizer ({reason}" in refusal(folder)
    assert capfd.readouterr().err == ""  # Rust announces a panic there


def test_the_links_of_a_hub_cache_are_followed(model_folder, tmp_path):
    repository = tmp_path / "models--a--b"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "0123"
    shutil.copytree(model_folder, blobs)
    sharded(blobs, "two.safetensors")
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../..") / "blobs" / file.name)
    assert torch.equal(load_model(snapshot, device="cpu").lm_head.weight, trained_model().lm_head.weight)
