"""OnnxTranslator translates as Translator does, and needs neither torch nor transformers."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import write_lines
from safetensors.torch import load_file, save_file
from saved_model import ENGLISH, GERMAN, already_exported, trained_tokenizer

from conversion.onnx.export import export_single_folder
from conversion.onnx.graph_builder import GraphBuilder
from hub.contents import collect_model_files
from training.evaluate import main as evaluate
from vaswani_transformer import SearchSettings, TorchTranslator, Translator
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.exit import explain, render
from vaswani_transformer.loading import load_config, load_model, load_tokenizer
from vaswani_transformer.model_folder import ModelFolder
from vaswani_transformer.onnx_translator import OnnxSearch, OnnxTranslator
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.tokenization import train_tokenizer
from vaswani_transformer.tokenizer_files import read_tokenizer

has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
without_cuda = pytest.mark.skipif(has_cuda, reason="this machine has CUDA")
ROOT = Path(__file__).parents[1]
SENTENCES = [*ENGLISH, *GERMAN, "", " ", "a", "</s> <pad>", "日本語 🙂", " ".join(ENGLISH * 4)]


@pytest.fixture
def folder(exported: Path) -> Path:
    """An exported model; its original is in the folder `model` beside it."""
    return exported / "onnx"


@pytest.fixture(scope="module")
def translator(exported: Path) -> OnnxTranslator:
    return OnnxTranslator.from_pretrained(exported / "onnx", device="cpu", threads=1)


@pytest.fixture(scope="module")
def by_torch(exported: Path) -> TorchTranslator:
    return Translator.from_pretrained(exported / "model", device="cpu")


def update(path: Path, fields: dict[str, Any], without: Sequence[str] = ()) -> None:
    """Change fields of a JSON file, and remove others."""
    content = json.loads(path.read_text(encoding="utf-8")) | fields
    content = {field: value for field, value in content.items() if field not in without}
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("settings", [{}, {"num_beams": 1}, {"length_penalty": 0.0}, {"batch_tokens": 40}])
def test_translations_equal_those_of_torch(
    translator: Any, by_torch: TorchTranslator, settings: dict[str, Any]
) -> None:
    """Covers empty texts, typed special tokens and texts that are split."""
    arguments: dict[str, Any] = {"max_source_length": 32} | settings
    assert translator.translate(SENTENCES, **arguments) == by_torch.translate(SENTENCES, **arguments)


def test_inputs_live_until_the_search_has_read_them(translator: OnnxTranslator) -> None:
    session, settings = translator.session, SearchSettings(num_beams=4, length_penalty=0.6)
    sources = [translator.tokenizer.encode(ENGLISH[0]).ids]
    junk: list[np.ndarray] = []

    def run_later(*arguments: Any) -> None:
        junk.extend(np.full((), -1) for _ in range(1000))  # takes the memory of arrays that are gone
        session.run_with_iobinding(*arguments)

    busy = SimpleNamespace(
        io_binding=session.io_binding,
        get_provider_options=session.get_provider_options,
        run_with_iobinding=run_later,
    )
    found = [OnnxSearch(translator, settings, each).run(sources) for each in (busy, session)]
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_the_default_search_comes_from_generation_config(folder: Path, tmp_path: Path, backend: Any) -> None:
    shutil.copytree(folder if backend == "onnx" else folder.parent / "model", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "generation_config.json"
    update(path, {"num_beams": 2, "length_penalty": 2.0})
    translator = Translator.from_pretrained(tmp_path, device="cpu", backend=backend)
    assert translator.search == SearchSettings(2, 2.0)
    found = translator.find_hypotheses(SENTENCES)
    assert found == translator.find_hypotheses(SENTENCES, num_beams=2, length_penalty=2.0)
    by_the_paper = translator.find_hypotheses(SENTENCES, num_beams=4, length_penalty=0.6)
    assert found != by_the_paper
    with pytest.raises(InputError, match="num_return_sequences is 3; it must lie between 1 and 2"):
        translator.find_hypotheses(SENTENCES, num_return_sequences=3)
    update(path, {}, without=["num_beams", "length_penalty"])
    assert Translator.from_pretrained(tmp_path, device="cpu", backend=backend).search == SearchSettings(1, 1.0)
    path.unlink()
    translator = Translator.from_pretrained(tmp_path, device="cpu", backend=backend)
    assert translator.find_hypotheses(SENTENCES) == by_the_paper


def test_n_best_and_scores_equal_those_of_torch(translator: OnnxTranslator, by_torch: TorchTranslator) -> None:
    expected = by_torch.find_hypotheses(ENGLISH, num_return_sequences=3)
    found = translator.find_hypotheses(ENGLISH, num_return_sequences=3)
    for ours, theirs in zip(found, expected, strict=True):
        assert [(h.tokens, h.text) for h in ours] == [(h.tokens, h.text) for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)


def test_evaluate_gives_an_export_the_scores_of_its_model(folder: Path, tmp_path: Path, capsys: Any) -> None:
    source = write_lines(tmp_path / "test.en", ENGLISH)
    reference = write_lines(tmp_path / "test.de", [*GERMAN[:-1], "Nein."])
    texts = ["--source", str(source), "--reference", str(reference), "--json"]
    evaluate([str(folder.parent / "model"), *texts, "--dtype", "float32"])
    expected = json.loads(capsys.readouterr().out)
    evaluate([str(folder), *texts, "--backend", "onnx", "--device", "cpu", "--batch-tokens", "100"])
    assert json.loads(capsys.readouterr().out) == expected
    assert 0 < expected["exact_match"] < 100


def test_translating_needs_neither_torch_nor_transformers_nor_telemetry(folder: Path, tmp_path: Path) -> None:
    """ONNX Runtime's telemetry would first write its data into the home folder."""
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'safetensors', 'onnx'): sys.modules[name] = None\n"
        "from vaswani_transformer import Translator\n"
        "print(Translator.from_pretrained(sys.stdin.read(), backend='onnx').translate('The house is small.'))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    environment["HOME"] = str(tmp_path)
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, input=str(folder), env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "['Das Haus ist klein.']\n"), done.stderr
    assert list(tmp_path.rglob("*onnxruntime*")) == []


@pytest.mark.slow
def test_an_export_sends_no_telemetry(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    command = [sys.executable, "-m", "vaswani_transformer", "export", "onnx", "model", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=environment | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2, "the folder is empty, which is noticed after ONNX Runtime's import"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("first", ["transformers", "vaswani_transformer"])
def test_the_package_imports_beside_transformers_without_torch(folder: Path, first: str) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        f"import {first}, transformers, vaswani_transformer\n"
        "translator = vaswani_transformer.Translator.from_pretrained(sys.stdin.read(), backend='onnx')\n"
        "print(translator.translate('The house is small.'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=str(folder), capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "['Das Haus ist klein.']\n"), done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_beams": 0}, "num_beams is 0; it must lie between 1 and 1000"),
        ({"num_beams": np.bool_(True)}, "num_beams is .*True"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
    ],
)
def test_invalid_settings_are_named(translator: OnnxTranslator, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        translator.translate("a", **settings)


@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_numpy_integers_are_accepted_as_settings(translator: Any, by_torch: TorchTranslator, kind: Any) -> None:
    settings = {
        "num_beams": kind(4),
        "num_return_sequences": kind(2),
        "batch_tokens": np.int64(8192),
        "max_source_length": kind(200),
    }
    for backend in (translator, by_torch):
        assert backend.find_hypotheses(ENGLISH, **settings) == backend.find_hypotheses(
            ENGLISH, num_beams=4, num_return_sequences=2
        )


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [  # The other files are read by the functions of test_model_files.py.
        ("model.onnx", None, "model.onnx: no such file"),
        ("model.onnx", b"", "model.onnx is not a complete ONNX file"),
        ("model.onnx", 0.5, "model.onnx is not a complete ONNX file"),
        ("config.json", {"vocab_size": 299, "decoder_vocab_size": 299}, "tokenizer.json has ids up to 299"),
        ("config.json", {"vocab_size": 999, "decoder_vocab_size": 999}, "vocab_size 300, but .*config.json has 999"),
        ("config.json", {"pad_token_id": -1}, "pad_token_id is -1"),
        ("config.json", {"eos_token_id": 7}, "does not end a sentence"),
        (
            "generation_config.json",
            {"early_stopping": 7},
            "generation_config.json: early_stopping is 7; here it must be",
        ),
        (
            "generation_config.json",
            {"num_beams": 1, "num_return_sequences": 2},
            "generation_config.json: num_return_sequences is 2; it must lie between 1 and 1",
        ),
        ("tokenizer.json", None, "tokenizer.json: no such file"),
        ("tokenizer_config.json", {"bos_token": "<nope>"}, "bos_token is '<nope>', which tokenizer.json does not"),
    ],
)
def test_broken_files_are_named(folder: Path, tmp_path: Path, file: str, content: Any, said: str) -> None:
    shutil.copytree(folder, tmp_path / "broken")
    path = tmp_path / "broken" / file
    if content is None:
        path.unlink()
    elif isinstance(content, float):
        complete = path.read_bytes()
        path.write_bytes(complete[: int(len(complete) * content)])
    elif isinstance(content, dict):
        update(path, content)
    else:
        path.write_bytes(content)
    with pytest.raises(BrokenFileError, match=said):
        OnnxTranslator.from_pretrained(tmp_path / "broken")


@pytest.mark.parametrize("place", ["onnx", "."])
def test_an_export_of_other_weights_is_refused(exported: Path, tmp_path: Path, place: str) -> None:
    model = shutil.copytree(exported / "model", tmp_path / "model")
    shutil.copytree(exported / "onnx", model / place, dirs_exist_ok=True)
    assert OnnxTranslator.from_pretrained(model).folder == model / place
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    with pytest.raises(BrokenFileError, match=r"model.onnx was exported from other weights than .*model.safetensors"):
        OnnxTranslator.from_pretrained(model)


def test_an_export_of_other_weights_in_several_files_is_refused(exported: Path, tmp_path: Path) -> None:
    model = shutil.copytree(exported / "model", tmp_path / "model")
    shutil.copytree(exported / "onnx", model / "onnx")
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "one.safetensors")}))
    assert OnnxTranslator.from_pretrained(model).folder == model / "onnx", "there are only graphs"
    save_file(tensors, model / "one.safetensors")
    with pytest.raises(BrokenFileError, match=r"model.onnx was exported from other weights than .*.index.json"):
        OnnxTranslator.from_pretrained(model)


def test_a_graph_that_no_record_lists_is_refused(folder: Path, tmp_path: Path) -> None:
    """As model_int8.onnx of earlier weights, beside a new export."""
    other = shutil.copytree(folder, tmp_path / "other")
    shutil.copyfile(folder / "model.onnx", other / "model_int8.onnx")
    with pytest.raises(
        BrokenFileError, match=r"model_int8.onnx is not one of the files of .*/export.json \(model.onnx\)"
    ):
        OnnxTranslator.from_pretrained(other, precision="int8")
    assert OnnxTranslator.from_pretrained(other).translate(ENGLISH)
    (other / "export.json").unlink()
    assert OnnxTranslator.from_pretrained(other, precision="int8").translate(ENGLISH)


def test_another_tokenizer_is_refused(exported: Path, tmp_path: Path) -> None:
    """As large as the model's, whose ids it gives to other tokens."""
    folder = shutil.copytree(exported / "onnx", tmp_path / "onnx")
    train_tokenizer(GERMAN * 2, 300).save_pretrained(folder)
    with pytest.raises(BrokenFileError, match=r"onnx/tokenizer.json is not the file that was exported with .*export"):
        OnnxTranslator.from_pretrained(folder)


def test_another_graph_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other", ignore=shutil.ignore_patterns("export.json"))
    op = GraphBuilder("other.")
    op.Identity("input_ids", name="sequences")
    ids, out = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "source"])
        for name in ("input_ids", "sequences")
    )
    onnx.save(op.model("other", [ids], [out], []), tmp_path / "other" / "model.onnx")
    with pytest.raises(BrokenFileError, match=r"model.onnx is not a graph .*: it has no attention_mask, early_stop"):
        OnnxTranslator.from_pretrained(tmp_path / "other")


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("generation_config.json", "suppress_tokens", [0, 1, 260]),
        ("generation_config.json", "suppress_tokens", None),
        ("config.json", "pad_token_id", 3),
        ("config.json", "decoder_start_token_id", 3),
        ("config.json", "norm_position", "pre"),
    ],
)
def test_settings_that_are_built_into_a_graph_are_not_ignored(
    exported: Path, tmp_path: Path, file: str, field: str, value: Any
) -> None:
    folder = shutil.copytree(exported / "onnx", tmp_path / "onnx")
    model = shutil.copytree(exported / "model", tmp_path / "model")
    for place in (folder, model):
        update(place / "generation_config.json", {}, without=[field])  # which may contradict config.json
        update(place / file, {field: value})
    said = f"model.onnx was exported with {field} .*, but .*{file} has .*; export the model again"
    with pytest.raises(BrokenFileError, match=said):
        OnnxTranslator.from_pretrained(folder, device="cpu")
    with pytest.raises(BrokenFileError, match=f"{said}|pad_token is '<pad>'; pad_token_id is 1, but"):
        collect_model_files(model, [str(folder)])


def test_the_order_of_suppressed_tokens_does_not_matter(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    update(tmp_path / "generation_config.json", {"suppress_tokens": [1, 0, 1]})
    assert OnnxTranslator.from_pretrained(tmp_path, device="cpu").translate(ENGLISH[:1]) == GERMAN[:1]


def test_truncation_and_padding_of_tokenizer_json_are_ignored(tmp_path: Path) -> None:
    trained_tokenizer().save_pretrained(tmp_path)
    tokenizer = read_tokenizer(tmp_path, 300)
    expected = [tokenizer.encode(text).ids for text in ENGLISH]
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(length=9, pad_id=1)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert {len(tokenizer.encode(text).ids) for text in ENGLISH} == {9}
    assert [read_tokenizer(tmp_path, 300).encode(text).ids for text in ENGLISH] == expected


@pytest.mark.parametrize("state", ["missing", "truncated", "outside"])
def test_external_weights_are_read_from_the_folder_only(folder: Path, tmp_path: Path, capfd: Any, state: str) -> None:
    shutil.copytree(folder, tmp_path / "split")
    (tmp_path / "split" / "data").mkdir()
    data, path = tmp_path / "split" / "data" / "weights.bin", tmp_path / "split" / "model.onnx"
    graph = onnx.load(folder / "model.onnx")
    onnx.save(graph, path, save_as_external_data=True, location="data/weights.bin", size_threshold=1024)
    if state == "truncated":
        os.truncate(data, data.stat().st_size // 2)
    else:
        data.rename(tmp_path / "weights.bin")
    if state == "outside":
        data.symlink_to(tmp_path / "weights.bin")
    reason = "file_length: .* out of bounds" if state == "truncated" else "weights.bin"
    with pytest.raises(BrokenFileError, match=f"model.onnx .* of its weights is missing or truncated .*{reason}"):
        OnnxTranslator.from_pretrained(path.parent, device="cpu")
    assert not capfd.readouterr().err


@pytest.mark.parametrize("arena", [True, False])
def test_running_out_of_memory_is_recognised(arena: bool) -> None:
    op = GraphBuilder("large.")
    op.ConstantOfShape("shape", name="out")
    shape, out = onnx.helper.make_tensor_value_info("shape", 7, [1]), onnx.helper.make_tensor_value_info("out", 1, None)
    model = op.model("large", [shape], [out])
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.enable_cpu_mem_arena = 4, arena
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    with pytest.raises(Exception) as error:  # noqa: B017
        session.run(None, {"shape": np.array([10**13])})
    assert explain(error.value)[0] == 4 and render(error.value)[0].startswith("error: out of memory: ")


def test_a_converted_config_gets_the_defaults_of_torch(exported: Path, tmp_path: Path) -> None:
    """The config has a maximum that sinusoids ignore, and lacks fields that have defaults."""
    path = shutil.copytree(exported / "model", tmp_path / "model") / "config.json"
    config = {"max_position_embeddings": 12, "decoder_vocab_size": None, "note": "mine"}
    update(path, config, without=["pad_token_id", "eos_token_id"])
    with already_exported(exported / "onnx"):
        export_single_folder(tmp_path / "model", tmp_path / "onnx")
    translator = OnnxTranslator.from_pretrained(tmp_path / "onnx", device="cpu")
    text = " ".join(ENGLISH)
    (expected,) = Translator.from_pretrained(tmp_path / "model", device="cpu").translate([text])
    assert translator.translate(text) == [expected]
    assert "note" not in ModelFolder(tmp_path / "onnx").config
    assert load_config(tmp_path / "onnx").to_dict() == load_config(tmp_path / "model").to_dict()
    # Older exports contain an unchanged copy of the model's file.
    update(path, {"pad_token_id": 1, "eos_token_id": 2})
    shutil.copy(path, tmp_path / "onnx")
    assert OnnxTranslator.from_pretrained(tmp_path / "onnx", device="cpu").translate(text) == [expected]


def test_a_missing_folder_and_invalid_options_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        OnnxTranslator.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(InputError, match="device 'tpu'"):
        OnnxTranslator.from_pretrained(folder, device="tpu")
    with pytest.raises(InputError, match="threads is 0"):
        OnnxTranslator.from_pretrained(folder, threads=0)


@without_cuda
def test_a_missing_gpu_is_named(folder: Path) -> None:
    with pytest.raises(UnavailableError, match="has no CUDA"):
        OnnxTranslator.from_pretrained(folder, device="cuda:0")


@without_cuda
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_an_unusable_gpu_does_not_fall_back_to_cpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime is built for CUDA, cannot load it, and would continue on the CPU."""
    built = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: built)
    with pytest.raises(UnavailableError, match="device 'cuda:0': ONNX Runtime cannot load CUDA here"):
        OnnxTranslator.from_pretrained(folder, device="cuda:0")
    assert OnnxTranslator.from_pretrained(folder).translate(ENGLISH[:1]) == GERMAN[:1]
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"backend": "tensorflow"}, "backend 'tensorflow' is not one of torch, onnx"),
        ({"backend": "onnx", "dtype": "float16"}, "chosen by precision"),
        ({"threads": 2}, "threads is for the ONNX backend"),
    ],
)
def test_options_of_another_backend_are_refused(folder: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Translator.from_pretrained(folder, **arguments)


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_the_target_tokenizer_decodes_translations(two_vocabularies: Path, backend: Any) -> None:
    model = load_model(two_vocabularies / "model", device="cpu")
    source = load_tokenizer(two_vocabularies / "model")
    target = load_tokenizer(two_vocabularies / "model" / TARGET_TOKENIZER)
    texts = [*ENGLISH, "a"]
    expected = []
    for text in texts:
        (ids,) = model.generate(**source(text, return_tensors="pt"))
        expected.append(target.decode(ids, skip_special_tokens=True))
    assert len(set(expected)) > 2
    folder = two_vocabularies / {"torch": "model", "onnx": "onnx"}[backend]
    translator = Translator.from_pretrained(folder, device="cpu", backend=backend)
    assert translator.translate(texts) == expected


def test_the_target_tokenizer_encodes_translations_to_score(two_vocabularies: Path) -> None:
    translator = Translator.from_pretrained(two_vocabularies / "model", device="cpu")
    (forced,) = translator.score(ENGLISH[:1], GERMAN[:1])
    assert forced.tokens == load_tokenizer(two_vocabularies / "model" / TARGET_TOKENIZER)(GERMAN[0])["input_ids"]


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_a_missing_or_mismatched_target_tokenizer_is_named(
    two_vocabularies: Path, tmp_path: Path, backend: Any
) -> None:
    folder = two_vocabularies / {"torch": "model", "onnx": "onnx"}[backend]
    shutil.copytree(folder, tmp_path / "missing")
    shutil.rmtree(tmp_path / "missing" / TARGET_TOKENIZER)
    with pytest.raises(
        InputError, match="separate vocabularies .*needs a second tokenizer .*target_tokenizer/tokenizer.json"
    ):
        Translator.from_pretrained(tmp_path / "missing", device="cpu", backend=backend)
    shutil.copytree(folder, tmp_path / "other")
    train_tokenizer([*ENGLISH, *GERMAN], 300).save_pretrained(tmp_path / "other" / TARGET_TOKENIZER)
    with pytest.raises(BrokenFileError, match="ids up to 299, but config.json has decoder_vocab_size 270"):
        Translator.from_pretrained(tmp_path / "other", device="cpu", backend=backend)


def test_the_target_tokenizer_is_checked_before_an_export(two_vocabularies: Path, tmp_path: Path) -> None:
    shutil.copytree(two_vocabularies / "model", tmp_path / "model")
    train_tokenizer([*ENGLISH, *GERMAN], 300).save_pretrained(tmp_path / "model" / TARGET_TOKENIZER)
    with pytest.raises(BrokenFileError, match="ids up to 299, but config.json has decoder_vocab_size 270"):
        export_single_folder(tmp_path / "model", tmp_path / "onnx")
    shutil.rmtree(tmp_path / "model" / TARGET_TOKENIZER)
    with pytest.raises(
        InputError, match="separate vocabularies .*needs a second tokenizer .*target_tokenizer/tokenizer.json"
    ):
        export_single_folder(tmp_path / "model", tmp_path / "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_pickling_keeps_the_folder_device_and_threads(
    folder: Path, translator: OnnxTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """datasets.map(num_proc=...) and multiprocessing pickle their arguments."""
    monkeypatch.chdir(folder)
    relative = OnnxTranslator.from_pretrained(".", device="cpu", threads=1)
    monkeypatch.chdir(folder.parent)
    copy = pickle.loads(pickle.dumps(relative))
    assert copy.translate(ENGLISH) == translator.translate(ENGLISH)
    assert copy.session.get_session_options().intra_op_num_threads == 1
