"""`push`: the files it writes, its errors, the model card, and that no secret is published."""

import csv
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from conftest import ENVIRONMENT, one_fast_in, read_rows, write_lines
from golden import golden, opus_folder
from hub_server import OWNER, WRITE_TOKEN, Fault, HubServer
from huggingface_hub import HfApi, ModelCard, constants
from onnx.external_data_helper import convert_model_to_external_data
from safetensors.torch import load_file, save_file
from saved_model import ENGLISH, GERMAN, change_json, trained_model, untrained_model
from transformers import AutoConfig

from conversion.__main__ import main as convert
from hub import remote
from hub.__main__ import main
from hub.contents import collect_model_files, write_folder
from training.checkpoints import write_manifest
from training.evaluate import main as evaluate
from vaswani_transformer import Translator
from vaswani_transformer.cli import main as command_line
from vaswani_transformer.configuration_vaswani_transformer import AUTO_MAP
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.files import file_sha256, files_sha256
from vaswani_transformer.languages import read_languages
from vaswani_transformer.model_folder import weight_files
from vaswani_transformer.pipeline_vaswani_transformer import VaswaniTransformerTranslationPipeline

ROOT = Path(__file__).parents[1]
REPO = f"{OWNER}/model"
COMMAND = "vaswani-transformer train --config demo --data /private/corpora/news --output-dir=/private/runs/one"
PARAMETERS = sum(parameter.numel() for parameter in untrained_model().parameters())
FILES = {
    "README.md", "config.json", "generation_config.json", "model.safetensors",
    "tokenizer.json", "tokenizer_config.json",
    "configuration_vaswani_transformer.py", "modeling_vaswani_transformer.py", "pipeline_vaswani_transformer.py",
    "languages_vaswani_transformer.py", "search_vaswani_transformer.py", "sentences_vaswani_transformer.py",
}  # fmt: skip
ROW = {
    "date": "2026-11-21", "commit": "abc1234", "command": COMMAND, "hardware": "2 cores of a test",
    "hours": "0.213", "cpu_hours": "0.212", "steps": "400", "parameters": str(PARAMETERS), "data": "news",
    "test": "test2016", "sentences": "1000", "beam": "4", "alpha": "0.6", "bleu": "35.43",
    "bleu_signature": "nrefs:1|case:mixed|bleu", "bleu_lowercase": "36.0",
    "bleu_lowercase_signature": "nrefs:1|case:lc", "bleu_tokenised": "36.1", "bleu_compound_split": "35.5",
    "chrf": "58.61",
    "chrf_signature": "nrefs:1|case:mixed|chrf", "chrf_plus_plus": "55.2", "exact_match": "5.0",
    "weights_sha256": "",
}  # fmt: skip


@pytest.fixture
def trained(folder) -> Path:
    """The model folder with the files that `train` writes."""
    recipe = {"source_language": "en", "target_language": "de", "data": "/private/corpora/news", "train": ["a"],
              "dataset": None, "max_length": 128}  # fmt: skip
    identity = {"preset": "base", "label_smoothing": 0.1, "initial_weights": "/private/runs/zero"}
    (folder / "run.json").write_text(json.dumps({"command": COMMAND, "recipe": recipe, "fixed_keys": identity}))
    lines: list[dict[str, Any]] = []
    for step in range(100, 500, 100):
        clock = {"seconds": step * 1.9, "cpu_seconds": step * 1.88}
        lines.append({"step": step, "loss": 5 - step / 200, "tokens": step * 1000, **clock})
        lines.append({"event": "validation", "step": step, "validation_loss": 4.5 - step / 250, **clock})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    progress = {"step": 400, "tokens": 400_000, "seconds": 766.8, "cpu_seconds": 763.2}
    about = {"average_of": ["step-400"], "progress": progress, "environment": {"device": "cpu"}}
    write_manifest(folder, [folder / "model.safetensors"], **about)
    return folder


@pytest.fixture
def hub(monkeypatch) -> Iterator[HubServer]:
    """A Hub on which this process's user is logged in."""
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
        yield server
    assert not server.unknown


def push(*arguments: object) -> None:
    main(["push", "--no-pictures", *map(str, arguments)])


def written(folder: Path, *options: object) -> Path:
    """Return a new folder with the files of a push."""
    out = folder.parent / f"out{len(list(folder.parent.iterdir()))}"
    push(folder, REPO, "--to-folder", out, *options)
    return out


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def change_recipe(folder: Path, **keys: object) -> None:
    change_json(folder / "run.json", recipe=json.loads((folder / "run.json").read_text())["recipe"] | keys)


NO_DETAILS = "to complete the model card, add --source-language, --target-language, --dataset, --license, --results\n"


def refusal(refused, *arguments: object, code: int = 2, out: str = "") -> str:
    """Return the one-line error of a push."""
    error = refused(lambda words: push(*words), arguments, code, out).strip()
    assert error.startswith("error: ") and "\n" not in error
    return error


def rows(path: Path, model: Path, *changes: dict[str, str]) -> Path:
    """Write a results file with rows of the model's weights."""
    weights = {"weights_sha256": files_sha256(*weight_files(model))}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows({**ROW, **weights, **change} for change in changes)
    return path


# ---- published files ---------------------------------------------------------------------------------------------


def test_folder_writes_the_files_of_a_push(hub, folder, capsys):
    out = written(folder)
    assert not hub.log  # no network
    assert names(out) == FILES
    push(folder, REPO, "--yes")
    assert hub.files(REPO) == {name: (out / name).read_bytes() for name in FILES}
    assert len(hub.repos[REPO].main) == 2
    assert WRITE_TOKEN not in "".join(capsys.readouterr())
    push(folder, REPO)
    assert f"{REPO}, revision main: no changes" in capsys.readouterr().out


def test_the_configuration_names_every_class_and_nothing_else_changes(folder):
    before = json.loads((folder / "config.json").read_text())
    del before["auto_map"], before["custom_pipelines"]  # as another program may have saved it
    (folder / "config.json").write_text(json.dumps(before))
    out = written(folder)
    after = json.loads((out / "config.json").read_text())
    assert after.pop("auto_map") == AUTO_MAP
    assert set(AUTO_MAP) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    pipelines = after.pop("custom_pipelines")
    assert after == before and list(pipelines) == ["translation"]
    implementation = pipelines["translation"]["impl"]
    assert implementation.endswith(VaswaniTransformerTranslationPipeline.__name__)
    for reference in (*AUTO_MAP.values(), implementation):
        module, name = reference.split(".")
        assert f"class {name}(" in (out / f"{module}.py").read_text()
    tokenizer = json.loads((out / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert not hasattr(AutoConfig.from_pretrained(out), "custom_pipelines")  # the package has its own


def test_a_published_configuration_has_the_fields_that_were_checked_and_no_others(folder):
    """transformers applies all of them: `return_dict` changes what the model returns, and `dtype` cannot be read."""
    config = folder / "config.json"
    before = json.loads(config.read_text())
    foreign = {"return_dict": False, "output_attentions": True, "dtype": "a stranger's", "id2label": {"0": "a note"}}
    renamed = {"hidden_size": before["d_model"]} | {name: before[name] for name in before if name != "d_model"}
    config.write_text(json.dumps(renamed | foreign))  # transformers takes both names of this size
    expected = before | {"dtype": "float32"}
    assert json.loads((written(folder) / "config.json").read_text()) == expected


def test_a_pushed_folder_can_be_pushed_again(folder):
    one = written(folder)
    two = written(one)
    assert [name for name in FILES if (one / name).read_bytes() != (two / name).read_bytes()] == []


@pytest.mark.slow
def test_a_push_writes_the_same_bytes_in_every_process(folder, tmp_path):
    """Python orders a set of names by hashes that differ between processes; the Hub would get a new commit."""
    words = [sys.executable, "-m", "vaswani_transformer", "push", folder, REPO, "--to-folder"]
    for seed in "0123":
        subprocess.run([*words, tmp_path / seed], env=ENVIRONMENT | {"PYTHONHASHSEED": seed}, check=True)
    contents = [{name: (tmp_path / seed / name).read_bytes() for name in names(tmp_path / seed)} for seed in "0123"]
    assert all(content == contents[0] for content in contents)


def test_sharded_weights_are_published_with_their_index(folder):
    (folder / "model.safetensors").unlink()
    trained_model().save_pretrained(folder, max_shard_size="60KB")
    shards = {path.name for path in folder.glob("model-*.safetensors")}
    assert len(shards) > 1
    out = written(folder)
    assert names(out) == FILES - {"model.safetensors"} | shards | {"model.safetensors.index.json"}
    Translator.from_pretrained(out, device="cpu")


def test_other_files_of_the_folder_are_not_published(trained, hub, capsys):
    (trained / "checkpoints").mkdir()
    torch.save({}, trained / "training_args.bin")  # the Trainer's, a pickle
    push(trained, REPO)
    output = capsys.readouterr().out
    assert "not published: checkpoints/, manifest.json, metrics.jsonl, run.json, training_args.bin" in output
    assert f"{REPO}, revision main, a new public repository: one commit with 12 of 12 files" in output
    assert "dry run: nothing was uploaded; add --yes to push" in output
    assert not hub.repos and {method for method, _, _ in hub.log} == {"GET"}
    assert set(re.findall(r"^new +[\d,]+  (.*)$", output, re.MULTILINE)) == FILES


def graph(name: str, **fields: Any) -> onnx.ModelProto:
    """Return a placeholder for an exported graph."""
    numbers = onnx.numpy_helper.from_array(np.arange(3.0), "numbers")
    node = onnx.helper.make_node("Identity", ["numbers"], ["output"], doc_string=fields.pop("of_node", None))
    output = onnx.helper.make_tensor_value_info("output", onnx.TensorProto.DOUBLE, [3])
    return onnx.helper.make_model(onnx.helper.make_graph([node], name, [], [output], [numbers]), **fields)


def name_of(path: Path) -> str:
    """Return the name of a published graph."""
    return onnx.load(path).graph.name


def export(folder: Path, target: Path) -> Path:
    """Write a folder like that of `export onnx`, with a placeholder for the graph."""
    target.mkdir()
    onnx.save(graph(f"graph of {target.name}"), target / "model.onnx")
    (target / "README.md").write_text("How to use it.")
    for file in ("config.json", "tokenizer.json"):
        shutil.copy(folder / file, target)
    return target


def recorded_as_int8(exported: Path, target: Path) -> Path:
    """Copy an export as one of int8, whose graph would take minutes."""
    shutil.copytree(exported, target)
    change_json(target / "export.json", precision="int8")
    return target


def test_onnx_files_are_published_with_the_model(folder):
    (export(folder, folder / "onnx") / "notes.txt").write_text("mine")
    out = written(folder)
    onnx = {"model.onnx", "config.json", "tokenizer.json"}  # the card says how to use it
    assert names(out) == FILES | {f"onnx/{name}" for name in onnx}
    assert f'hf_hub_download("{REPO}", "onnx/model.onnx")' in (out / "README.md").read_text()


def test_onnx_variants_get_the_usual_names(folder, tmp_path, refused):
    small = export(folder, tmp_path / "small")
    options = ["--onnx", f"int8={small}", "--onnx", export(folder, tmp_path / "exported")]
    out = written(folder, *options)
    files = {path.name for path in (out / "onnx").iterdir()}
    assert files == {"model.onnx", "model_int8.onnx", "config.json", "tokenizer.json"}
    assert name_of(out / "onnx" / "model_int8.onnx") == "graph of small"
    assert name_of(out / "onnx" / "model.onnx") == "graph of exported"
    assert "`onnx/model_int8.onnx`" in (out / "README.md").read_text()
    unknown = refusal(refused, folder, REPO, "--onnx", f"int4={tmp_path}")
    assert f"--onnx int4={tmp_path}: no such folder; the precisions before = are fp16, int8, int8-weights" in unknown
    with_data = graph("graph of small")
    convert_model_to_external_data(with_data, location="model.onnx.data", size_threshold=0)
    onnx.save(with_data, small / "model.onnx")
    assert "without model.onnx.data" in refusal(refused, folder, REPO, *options)


def test_two_exports_of_the_same_precision_are_refused(folder, tmp_path, refused):
    one, two = (export(folder, tmp_path / name) for name in ("one", "two"))
    for prefix in ("", "int8="):
        error = refusal(refused, folder, REPO, "--onnx", f"{prefix}{one}", "--onnx", f"{prefix}{two}")
        assert f"--onnx {prefix}{two}" in error and "twice" in error


def test_the_folder_of_an_export_may_contain_an_equals_sign(folder, tmp_path):
    (tmp_path / "lr=3").mkdir()
    exported = export(folder, tmp_path / "lr=3" / "exported")
    for option, name in ((exported, "model.onnx"), (f"int8={exported}", "model_int8.onnx")):
        assert name_of(written(folder, "--onnx", option) / "onnx" / name) == "graph of exported"


def test_onnx_translates_from_the_hub(hub, exported, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    onnx = exported / "onnx"
    int8 = recorded_as_int8(onnx, tmp_path / "int8")
    push(exported / "model", REPO, "--yes", "--onnx", onnx, "--onnx", f"int8={int8}")
    expected = Translator.from_pretrained(onnx, backend="onnx", device="cpu").translate(ENGLISH)
    for precision, graph in ((None, "onnx/model.onnx"), ("int8", "onnx/model_int8.onnx")):
        hub.log.clear()
        arguments: dict[str, Any] = {"device": "cpu", "revision": "main", "precision": precision}
        assert Translator.from_pretrained(REPO, backend="onnx", **arguments).translate(ENGLISH) == expected
        downloaded = {path.partition("/resolve/")[2].partition("/")[2] for _, path, _ in hub.log if "/resolve/" in path}
        others = downloaded - {graph}  # downloaded once, for both
        assert graph in downloaded and all(re.fullmatch(r"onnx/\w+\.json", name) for name in others)
    with pytest.raises(BrokenFileError, match=r"model_fp16.onnx: no such file; there is model.onnx, model_int8.onnx"):
        Translator.from_pretrained(REPO, backend="onnx", precision="fp16")


@pytest.mark.parametrize(
    "fault", one_fast_in(3, ["etag", "dots", "linked etag", "commit", "root", "info", "root info", "spelling", "tree"])
)
def test_no_answer_leads_a_download_out_of_the_cache(hub, folder, tmp_path, monkeypatch, fault):
    """huggingface_hub names its files by hashes that the server sends."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "outside" / "cache"))
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    push(folder, REPO, "--yes")
    path = {"dots": "WW..", "root": "/profile", "root info": "/profile"}.get(fault, "../../../.profile")
    headers = {"etag": "ETag", "dots": "ETag", "linked etag": "X-Linked-Etag"}
    headers |= {"commit": "X-Repo-Commit", "root": "X-Repo-Commit"}
    if fault in headers:
        hub.faults.append(Fault("HEAD", "/resolve/", times=9, headers={headers[fault]: path}))
    elif "info" in fault:
        hub.faults.append(Fault("GET", f"/api/models/{REPO}", content={"id": REPO, "sha": path}))
    elif fault == "spelling":  # which the parser of JSON reads as "sha"
        content = json.dumps({"id": REPO, "s_ha": path}).replace("s_ha", r"\u0073ha").encode()
        hub.faults.append(Fault("GET", f"/api/models/{REPO}", content=content))
    else:
        entry = {"type": "file", "path": "config.json", "size": 2, "oid": "0" * 40, "xetHash": "0" * 64}
        entry |= {"lfs": {"oid": path, "size": 2, "pointerSize": 9}}
        hub.faults.append(Fault("GET", "/tree/", content=[entry]))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    with pytest.raises(UnavailableError, match=rf"the answer of .* has the hash '{re.escape(path)}', which is a path"):
        Translator.from_pretrained(REPO, device="cpu")
    outside = [found.name for found in tmp_path.rglob("*") if found.is_file() and "cache" not in found.parts]
    assert not any("profile" in name for name in outside)


def test_another_models_onnx_is_refused(folder, tmp_path, refused):
    exported = export(folder, tmp_path / "exported")
    change_json(exported / "config.json", d_model=64)
    error = refusal(refused, folder, REPO, "--onnx", exported, "--to-folder", tmp_path / "out")
    assert "belongs to another model than" in error and "they differ in d_model; export the model again" in error
    assert not (tmp_path / "out").exists()


def test_onnx_files_with_other_settings_of_the_search_are_refused(exported, tmp_path, refused):
    folder = shutil.copytree(exported / "model", tmp_path / "model")
    change_json(folder / "generation_config.json", length_penalty=1.4)
    error = refusal(refused, folder, REPO, "--onnx", exported / "onnx", "--to-folder", tmp_path / "out")
    assert "generation_config.json: they differ in length_penalty; export the model again" in error


def test_onnx_files_of_weights_that_have_changed_are_refused(exported, tmp_path, refused):
    folder = shutil.copytree(exported / "model", tmp_path / "model")
    shutil.copytree(exported / "onnx", folder / "onnx")
    assert "onnx/export.json" in names(written(folder))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.shared.weight"] += 1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    error = refusal(refused, folder, REPO)
    assert f"{folder / 'onnx'} was exported from other weights" in error and f"those of {folder} (" in error
    assert error.endswith("export the model again")
    (folder / "onnx" / "export.json").unlink()  # as in exports by other programs
    assert "onnx/model.onnx" in names(written(folder))


def test_a_snapshot_in_the_hubs_cache_can_be_pushed(folder, tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "c0ffee", tmp_path / "models--a--b" / "blobs"
    (snapshot / "onnx").mkdir(parents=True)
    blobs.mkdir()
    for path in folder.iterdir():
        path.rename(blobs / f"sha-of-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/sha-of-{path.name}")
    onnx.save(graph("a graph"), blobs / "sha-of-a-graph")
    (snapshot / "onnx" / "model.onnx").symlink_to("../../../blobs/sha-of-a-graph")
    assert names(written(snapshot)) == FILES | {"onnx/model.onnx"}


# ---- checks ------------------------------------------------------------------------------------------------------


def test_the_card_does_not_quote_files_from_run_json(trained, tmp_path):
    """The recipe in a downloaded run.json could name any file of the user."""
    (tmp_path / "private.en").write_text("A line of a private file.\n")
    change_recipe(trained, data=str(tmp_path), validation=["private"])
    assert "private file" not in (written(trained) / "README.md").read_text()


def test_a_folder_without_a_model_is_refused(folder, tmp_path, refused):
    """What is wrong with a model's files: test_model_files.py."""
    assert "no such folder" in refusal(refused, tmp_path / "no", REPO)
    assert "has no config.json" in refusal(refused, tmp_path, REPO)
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in refusal(refused, folder, REPO)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *(([name], f"repo is {name!r}") for name in ("model", "a/b/c", "a b/c", "a/b..c", "é/b", "")),
        *(
            ([REPO, *given.split(), "--to-folder", "x"], f"{given.split()[0]} and --to-folder exclude each other")
            for given in ("--yes", "--private", "--revision dev", "--tag v1", "--message m", "--keep-card")
        ),
        ([REPO, "--license", "My License"], "is not a license name"),
        ([REPO, "--source-language", "English"], "'English' is not a language code"),
        ([REPO, "--dataset", "/private/text"], "'/private/text' is not a name on the Hub"),
        ([REPO, "--base-model", "model"], "--base-model is 'model'; it must be owner/name, such as anna/en-de"),
        ([REPO, "--example", " "], "--example is empty"),
        ([REPO, "--message", ""], "--message is empty"),
        *(
            ([REPO, option, name], f"{option} {name!r} is not a branch or tag name")
            for option in ("--revision", "--tag")
            for name in ("", "a b", "-v1", "v1..2", "v1/")  # the last one is completed by a shell
        ),
        ([REPO, "--onnx", "nowhere"], "no such folder"),
        ([REPO, "--results", "nowhere.csv"], "nowhere.csv: no such file"),
    ],
)
def test_wrong_arguments_are_refused(folder, refused, arguments, says):
    assert says in refusal(refused, folder, *arguments)


def test_a_non_empty_folder_is_not_overwritten(folder, refused):
    assert "is not empty" in refusal(refused, folder, REPO, "--to-folder", folder)


@pytest.mark.parametrize(
    "secret",
    [WRITE_TOKEN, "hf_oauth_" + "a1B2" * 8, "hf_jwt_" + "eyJhbGciOiJFZERTQSJ9" + ".e30.x", "api_org_" + "AbCd" * 8,
     "ghp_" + "a1B2" * 9, "github_pat_" + "a1B2" * 8, "AKIA" + "A1B2" * 4, "sk-proj-" + "a1B2" * 12,
     "-----BEGIN OPENSSH PRIVATE KEY-----"],
)  # fmt: skip
def test_a_file_with_a_secret_is_refused(folder, refused, secret):
    change_json(folder / "config.json", transformers_version=secret)
    error = refusal(refused, folder, REPO)
    assert "config.json contains an access token" in error and secret not in error


def test_a_secret_on_a_line_of_its_own_is_refused(folder, refused):
    change_json(folder / "config.json", transformers_version=f"token:\n{WRITE_TOKEN}")
    assert "config.json contains an access token" in refusal(refused, folder, REPO)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("tokenizer_config.json", "model_max_length", math.inf),
        ("config.json", "transformers_version", math.nan),
        ("generation_config.json", "temperature", -math.inf),
    ],
)
def test_settings_that_only_python_can_read_are_refused(folder, refused, name, field, value):
    """transformers.js parses the files as JSON, which has no such numbers."""
    change_json(folder / name, **{field: value})
    assert f"{name}: {field} is {value!r}; NaN and Infinity are not JSON" in refusal(refused, folder, REPO)


def test_entries_that_name_code_or_files_are_not_published(exported, tmp_path):
    """transformers would run a stranger's code for whoever trusts this repository's."""
    folder = shutil.copytree(exported / "model", tmp_path / "model")
    shutil.copytree(exported / "onnx", folder / "onnx")
    evil = {"auto_map": {"AutoTokenizer": ["stranger/repo--evil.Evil", None]}, "custom_generate": "stranger/repo"}
    for name in ("tokenizer_config.json", "generation_config.json", "config.json"):
        for place in (folder, folder / "onnx"):
            change_json(place / name, **evil, fast_tokenizer_files=["../other.json"])
    change_json(folder / "onnx" / "export.json", **evil)
    out = written(folder)
    assert b"stranger" not in b"".join(path.read_bytes() for path in out.rglob("*.json"))
    assert b"fast_tokenizer_files" not in b"".join(path.read_bytes() for path in out.rglob("*.json"))
    assert json.loads((out / "config.json").read_text())["auto_map"] == AUTO_MAP
    assert "auto_map" not in json.loads((out / "onnx" / "config.json").read_text())
    assert json.loads((out / "generation_config.json").read_text())["extra_length"] == 50


def test_a_converted_model_is_published_with_its_search(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    convert([str(golden("hf-marian")), str(folder)])
    out = written(folder)
    published = json.loads((out / "generation_config.json").read_text())
    assert published == json.loads((folder / "generation_config.json").read_text())
    assert published["beam_search"] == "transformers"
    assert "Beam search as in transformers, with 4 beams and a length penalty of 1.0" in (out / "README.md").read_text()


PASSWORD = "https://ann:secret@example.org/data"


def test_a_run_that_goes_on_is_refused(trained, refused):
    """The recipe and the losses would not be those of the model."""
    with (trained / "metrics.jsonl").open("a") as log:
        log.write('{"event": "validation", "step": 500, "validation_loss": 1.5}\n')
    said = "its model is of step 400, and metrics.jsonl goes on to step 500: the run was continued"
    assert said in refusal(refused, trained, REPO)
    with (trained / "metrics.jsonl").open("a") as log:  # it was killed, resumed and ended sooner
        log.write('{"event": "resume", "step": 300}\n{"step": 400, "loss": 1.5}\n')
    assert written(trained)


def test_folders_and_passwords_are_left_out_of_languages_and_commands(trained):
    change_recipe(trained, source_language="/home/ann/en", target_language=PASSWORD)
    change_json(trained / "run.json", command=f"train --tokenizer {PASSWORD}")
    card = (written(trained) / "README.md").read_text()
    assert "train --tokenizer https://example.org/data\n" in card
    assert "English to https://example.org/data" in card
    assert "/home" not in card and "secret" not in card


@pytest.mark.parametrize("text", ["/home/ann/runs", r"C:\ann", "<img>", "\x1b[31m", "\u202e5.0"])
def test_text_in_settings_is_refused(exported, tmp_path, refused, text):
    folder = shutil.copytree(exported / "model", tmp_path / "model")
    shutil.copytree(exported / "onnx", folder / "onnx")
    for name, field in (
        ("config.json", "transformers_version"), ("generation_config.json", "transformers_version"),
        ("tokenizer_config.json", "model_input_names"), ("onnx/config.json", "transformers_version"),
    ):  # fmt: skip
        places = {name, f"onnx/{name}"} if field == "model_input_names" else {name}  # which must be equal
        before = {place: (folder / place).read_text() for place in places}
        for place in places:
            change_json(folder / place, **{field: [text] if field == "model_input_names" else text})
        error = refusal(refused, folder, REPO)
        assert f"{name}: {field} has the text {text!r}; a setting is a name" in error
        for place, content in before.items():
            (folder / place).write_text(content)


def change_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a safetensors file."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    change(header)
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + content[end:])


def test_notes_in_the_header_of_the_weights_are_refused(folder, refused):
    """transformers and safetensors read neither."""
    weights = folder / "model.safetensors"
    original = weights.read_bytes()
    for change in (
        lambda header: header["__metadata__"].update(author="ann"),
        lambda header: next(iter(header.values())).update(author="ann"),
    ):
        change_header(weights, change)
        assert f"{weights}: its header has the entry 'author'" in refusal(refused, folder, REPO)
        weights.write_bytes(original)
    change_header(weights, lambda header: header["__metadata__"].update(format="ann"))
    assert "its format is 'ann'; it must be 'pt'" in refusal(refused, folder, REPO)
    save_file(load_file(weights), weights, {"format": "pt"})  # as the error says
    assert names(written(folder)) == FILES
    raw = weights.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    tensor = next(name for name in json.loads(raw[8 : 8 + size]) if name != "__metadata__")
    note = f'"{tensor}": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "author": "ann"}}, '.encode()
    header = b"{" + note + raw[9 : 8 + size]
    weights.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + size :])
    assert f"{weights}: its header has the entry '{tensor}' twice" in refusal(refused, folder, REPO)


def test_notes_in_the_index_of_the_weights_are_not_published(folder, refused):
    (folder / "model.safetensors").unlink()
    trained_model().save_pretrained(folder, max_shard_size="60KB")
    index = folder / "model.safetensors.index.json"
    original = json.loads(index.read_text())
    shards = original["weight_map"]
    index.write_text(
        json.dumps(
            {"author": "ann", "metadata": {"author": "ann"}, "weight_map": {"ann": min(shards.values())} | shards}
        )
    )
    out = written(folder)
    assert json.loads((out / index.name).read_text()) == {
        "metadata": {"total_size": original["metadata"]["total_size"]}, "weight_map": shards
    }  # fmt: skip
    Translator.from_pretrained(out, device="cpu")
    (folder / "more").mkdir()
    (folder / min(shards.values())).rename(folder / "more" / min(shards.values()))
    moved = {name: f"more/{file}" if file == min(shards.values()) else file for name, file in shards.items()}
    index.write_text(json.dumps({"weight_map": moved}))
    assert f"names more/{min(shards.values())}; weights are NAME.safetensors" in refusal(refused, folder, REPO)


def test_notes_in_a_tokenizer_are_not_published(folder):
    expected = (written(folder) / "tokenizer.json").read_bytes()
    content = json.loads((folder / "tokenizer.json").read_text())
    for part in (content["model"], content["decoder"], content["added_tokens"][0]):
        part["author"] = "ann"
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert (written(folder) / "tokenizer.json").read_bytes() == expected


def test_a_damaged_tokenizer_of_an_export_is_named(folder, tmp_path, refused):
    exported = export(folder, tmp_path / "exported")
    change_json(exported / "tokenizer.json", model=None)
    error = refused(main, ["push", folder, REPO, "--onnx", exported], 3)
    assert f"{exported / 'tokenizer.json'} is not a tokenizer (" in error


def test_an_export_is_published_as_it_is(exported):
    out = written(exported / "model", "--onnx", exported / "onnx")
    for name in ("model.onnx", "tokenizer.json", "export.json"):
        before, after = ((place / name).read_bytes() for place in (exported / "onnx", out / "onnx"))
        assert json.loads(before) == json.loads(after) if name.endswith("json") else before == after


def test_files_that_macos_adds_are_not_taken_for_graphs(folder, tmp_path):
    exported = export(folder, tmp_path / "exported")
    before = names(written(folder, "--onnx", exported))
    (exported / "._model.onnx").write_bytes(b"\0\5\26\7")
    assert names(written(folder, "--onnx", exported)) == before


def test_descriptions_in_a_graph_are_not_published(folder, tmp_path, refused):
    """Exporters write stack traces with the names of folders."""
    exported = export(folder, tmp_path / "exported")
    path = "/home/ann/model.py"
    noted = graph("a graph", doc_string=path, domain=path, of_node=path)
    for part in (noted, noted.graph, noted.graph.node[0], noted.graph.initializer[0], noted.graph.output[0]):
        part.metadata_props.add(key=path, value=path)
        part.doc_string = path
    onnx.save(noted, exported / "model.onnx")
    record: dict[str, Any] = {"weights_sha256": files_sha256(*weight_files(folder)), "author": "ann"}
    record |= {"graphs": {"model.onnx": file_sha256(exported / "model.onnx"), path: path}}
    (exported / "export.json").write_text(json.dumps(record))
    out = written(folder, "--onnx", exported) / "onnx"
    assert (out / "model.onnx").read_bytes() == graph("a graph").SerializeToString()
    names = {"graphs": "model.onnx", "tokenizers": "tokenizer.json"}
    published = {kind: {name: file_sha256(out / name)} for kind, name in names.items()}
    published |= {"weights_sha256": record["weights_sha256"]}
    assert json.loads((out / "export.json").read_text()) == published
    (exported / "export.json").unlink()
    in_list = graph("a graph")  # of words, one per line
    in_list.graph.initializer.append(onnx.numpy_helper.from_array(np.array([f"a\n{WRITE_TOKEN}"], object), "words"))
    for leaking in (graph(WRITE_TOKEN), in_list):
        onnx.save(leaking, exported / "model.onnx")
        error = refusal(refused, folder, REPO, "--onnx", exported)
        assert "model.onnx contains an access token" in error and WRITE_TOKEN not in error


def test_a_graph_that_onnx_runtime_cannot_load_is_not_published(folder, tmp_path, refused):
    exported = export(folder, tmp_path / "exported")
    broken = graph("a graph")
    broken.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(broken, exported / "model.onnx")
    (exported / "export.json").unlink(missing_ok=True)
    error = refused(main, ["push", folder, REPO, "--onnx", exported], 3)
    assert f"{exported / 'model.onnx'} is not a complete ONNX file" in error and "NoSuchOperator" in error


def test_only_files_that_a_graph_names_are_published_beside_it(folder, tmp_path, refused):
    exported = export(folder, tmp_path / "exported")
    with_data = graph("a graph")
    convert_model_to_external_data(with_data, location="model.onnx.data", size_threshold=0)
    onnx.save(with_data, exported / "model.onnx")
    (exported / "notes.onnx.data").write_text("mine")
    out = written(folder, "--onnx", exported) / "onnx"
    assert names(out) == {"model.onnx", "model.onnx.data", "config.json", "tokenizer.json"}
    (exported / "model.onnx.data").unlink()
    error = refused(main, ["push", folder, REPO, "--onnx", exported], 3)
    assert "model.onnx: its weights are in 'model.onnx.data'; they must be" in error
    (exported / "model.onnx").write_text("no graph")
    assert "model.onnx is not an ONNX file" in refused(main, ["push", folder, REPO, "--onnx", exported], 3)


def test_bytes_of_a_file_of_weights_that_no_tensor_uses_are_not_published(folder, tmp_path, refused):
    exported, with_data = export(folder, tmp_path / "exported"), graph("a graph")
    convert_model_to_external_data(with_data, location="model.onnx.data", size_threshold=0)
    onnx.save(with_data, exported / "model.onnx")
    data = exported / "model.onnx.data"
    weights = data.read_bytes()
    data.write_bytes(weights + bytes(4096))  # exporters align tensors with zeros
    assert (written(folder, "--onnx", exported) / "onnx/model.onnx.data").read_bytes() == data.read_bytes()
    data.write_bytes(weights + bytes(5000) + b"a note")
    error = refusal(refused, folder, REPO, "--onnx", exported)
    assert f"{data} has bytes from {len(weights):,} on that no tensor of its graph uses" in error
    data.write_bytes(b"a note" + weights)
    moved = onnx.load(exported / "model.onnx", load_external_data=False)
    for entry in (entry for tensor in moved.graph.initializer for entry in tensor.external_data):
        if entry.key == "offset":
            entry.value = str(int(entry.value) + len("a note"))
    (exported / "model.onnx").write_bytes(moved.SerializeToString())
    assert "has bytes from 0 on that no" in refusal(refused, folder, REPO, "--onnx", exported)


def test_weights_that_change_during_the_push_are_refused(hub, folder, tmp_path):
    """As when a training run writes its final model meanwhile."""
    files, *_ = collect_model_files(folder)
    planned = remote.plan(HfApi(), REPO, "main", files)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.shared.weight"] += 1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="model.safetensors changed during the push"):
        remote.push(HfApi(), planned, files, "a model")
    assert not hub.repos
    with pytest.raises(InputError, match="model.safetensors changed during the push"):
        write_folder(files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_of_files_do_not_control_the_terminal(hub, folder, tmp_path, capsys):
    (folder / "\x1b[31mred").write_text("")
    exported = export(folder, tmp_path / "exported")
    (exported / "model.onnx").rename(exported / "\x1b[2J.onnx")
    push(folder, REPO, "--onnx", exported)
    written(folder, "--onnx", exported)
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\\x1b[31mred" in said and "onnx/\\x1b[2J.onnx" in said


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "CONVERSION.md", "run.json", "onnx/README.md", "onnx/creds.json"]
)
def test_links_out_of_the_folder_are_not_followed(exported, tmp_path, refused, name):
    folder = shutil.copytree(exported / "model", tmp_path / "model")
    shutil.copytree(exported / "onnx", folder / "onnx")
    secret = tmp_path / "secret.json"
    secret.write_text('{"model_type": "vaswani_transformer", "password": "1234"}')
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    error = refused(main, ["push", folder, REPO, "--to-folder", tmp_path / "out"], 3)
    assert f"{folder / name} leads to {secret}, outside the folder" in error and not (tmp_path / "out").exists()


def test_another_graph_under_the_same_name_is_refused(exported, tmp_path, refused):
    folder = shutil.copytree(exported / "model", tmp_path / "model")
    shutil.copytree(exported / "onnx", folder / "onnx")
    graph = onnx.load(folder / "onnx" / "model.onnx")
    next(tensor for tensor in graph.graph.initializer if tensor.name == "num_beams").CopyFrom(
        onnx.numpy_helper.from_array(np.array(2), "num_beams")
    )
    onnx.save(graph, folder / "onnx" / "model.onnx")
    for arguments in (["push", folder, REPO], ["translate", folder, "--backend", "onnx"]):
        run = main if arguments[0] == "push" else command_line
        assert "model.onnx is not the file that was exported" in refused(run, arguments, 3)


def test_graphs_of_an_earlier_export_are_not_published(exported, tmp_path, refused):
    """As model_int8.onnx beside a new export: export.json has the hashes of those that were exported together."""
    folder = shutil.copytree(exported / "model", tmp_path / "model")
    shutil.copytree(exported / "onnx", folder / "onnx")
    for name in ("model_int8.onnx", "model_text.onnx", "decoder_model.onnx"):
        graph = shutil.copyfile(exported / "onnx/model.onnx", folder / "onnx" / name)
        assert f"{name} is not one of the files of" in refused(main, ["push", folder, REPO], 3)
        graph.unlink()


def test_all_published_graphs_are_in_the_record(exported, tmp_path):
    int8 = recorded_as_int8(exported / "onnx", tmp_path / "int8")
    out = written(exported / "model", "--onnx", exported / "onnx", "--onnx", f"int8={int8}")
    record, graph = json.loads((out / "onnx/export.json").read_text()), exported / "onnx/model.onnx"
    assert record["graphs"] == dict.fromkeys(("model.onnx", "model_int8.onnx"), file_sha256(graph))
    assert record["tokenizers"] == {"tokenizer.json": file_sha256(out / "onnx/tokenizer.json")}
    for precision in (None, "int8"):
        assert Translator.from_pretrained(out, backend="onnx", device="cpu", precision=precision).translate(["A"])
    changed = onnx.load(graph)
    changed.graph.name = "another"
    onnx.save(changed, out / "onnx/model_int8.onnx")
    with pytest.raises(BrokenFileError, match="model_int8.onnx is not the file that was exported"):
        Translator.from_pretrained(out, backend="onnx", device="cpu", precision="int8")


def test_an_export_is_not_published_under_the_name_of_another_precision(exported, refused):
    error = refusal(refused, exported / "model", REPO, "--onnx", f"int8={exported / 'onnx'}")
    assert f"--onnx int8={exported / 'onnx'}: {exported / 'onnx/export.json'} says that its precision is fp32" in error


def test_a_record_with_an_unknown_precision_is_not_published(exported, tmp_path, refused):
    export = shutil.copytree(exported / "onnx", tmp_path / "onnx")
    change_json(export / "export.json", precision="by ann")
    error = refused(main, ["push", exported / "model", REPO, "--onnx", export], 3)
    assert "export.json: precision is 'by ann'; export the model again" in error


def test_private_models_are_not_pushed_to_public_repositories(hub, folder, refused):
    hub.create(REPO)
    error = refusal(refused, folder, REPO, "--private", "--yes", out=NO_DETAILS)
    assert f"is public: `hf repos settings {REPO} --private` first" in error and hub.files(REPO) == {}


def test_the_command_times_out_on_an_unresponsive_hub(hub, folder, monkeypatch, refused):
    monkeypatch.setattr(remote, "TIMEOUT", 0.5)
    hub.faults.append(Fault("GET", f"/api/models/{REPO}", silent=True))
    assert "the Hub cannot be reached" in refusal(refused, folder, REPO, code=4, out=NO_DETAILS)


# ---- the card ----------------------------------------------------------------------------------------------------


def card_of(out: Path) -> ModelCard:
    return ModelCard.load(out / "README.md")


def test_a_card_states_that_there_are_no_results(folder):
    card = card_of(written(folder))
    data: Any = card.data
    assert data.eval_results is None and data.license is None and data.language is None
    assert card.text.strip().startswith("# model\n\nA translation model.\nIt is the Transformer of")
    assert "## Use\n\n```bash\npip install torch" in card.text
    assert "No results are recorded for this model" in card.text
    assert "The training of this model was not recorded" in card.text
    assert "No license has been specified" in card.text


def test_only_learned_positions_are_a_limit(folder, two_vocabularies):
    assert "positional embeddings limit" not in card_of(written(folder)).text
    shutil.copytree(two_vocabularies / "model", folder, dirs_exist_ok=True)
    assert "Learned positional embeddings limit source and target to 120 tokens" in card_of(written(folder)).text


def test_options_say_what_the_folder_does_not(folder, capsys):
    """A folder of Seq2SeqTrainer records neither languages nor text."""
    options = ["--source-language=en", "--target-language=de", "--dataset=owner/text", "--base-model=owner/older",
               "--license=mit"]  # fmt: skip
    written(folder)
    assert capsys.readouterr().out.startswith(NO_DETAILS)
    card = card_of(written(folder, *options))
    assert capsys.readouterr().out.startswith("to complete the model card, add --results\n")
    data: Any = card.data
    assert data.language == ["en", "de"] and data.license == "mit" and data.widget[0]["text"].startswith("Do they")
    assert data.datasets == ["owner/text"] and data.base_model == "owner/older"
    assert "Translates English to German" in card.text


def test_a_folder_of_initial_weights_is_not_a_base_model(trained, tmp_path, monkeypatch, capsys):
    """Relative to the folder of the training, it looks like a repository."""
    change_recipe(trained, initial_weights="runs/zero")
    monkeypatch.chdir(tmp_path)
    data: Any = card_of(written(trained)).data
    assert data.base_model is None and "--base-model" in capsys.readouterr().out


def test_the_card_shows_the_provenance(trained, tmp_path):
    results = rows(tmp_path / "results.csv", trained, {}, {"weights_sha256": "0" * 64}, {"weights_sha256": ""})
    options = ["--results", results, "--license", "cc-by-4.0", "--example", "The house | is small."]
    out = written(trained, *options, "--pictures")
    card = card_of(out)
    data: Any = card.data
    assert data.language == ["en", "de"] and data.pipeline_tag == "translation" and data.license == "cc-by-4.0"
    assert data.library_name == "transformers"
    assert [entry["text"] for entry in data.widget] == ["The house | is small."]
    found = [(r.metric_type, r.metric_value, r.metric_args, r.dataset_name) for r in data.eval_results]
    assert found == [
        ("bleu", 35.43, {"signature": "nrefs:1|case:mixed|bleu"}, "news, test2016"),
        ("chrf", 58.61, {"signature": "nrefs:1|case:mixed|chrf"}, "news, test2016"),
    ]
    translation = Translator.from_pretrained(trained, device="cpu").translate("The house | is small.")[0]
    for says in (
        f"{PARAMETERS:,} parameters",
        "400, on 400,000 source and target tokens",
        "0.213 hours, 0.212 CPU hours",
        "* device: cpu",
        "2.9000 at the end, 2.9000 at the minimum",
        "No training sentence had more than 128 tokens",
        f'print(translate(["The house | is small."])[0]["translation_text"])\n# {translation}\n```',
        "label_smoothing: 0.1",
        "| news, test2016 | 1000 | 4 | 0.6 | 35.43 | 58.61 | 2026-11-21, commit abc1234, on 2 cores of a test |",
        "not from a mean over several seeds",
        "English to German",
        "```bash\nvaswani-transformer train --config demo --data news --output-dir=one\n```",
        "](attention.png)",
        "](training_curve.png)",
    ):
        assert says in card.text, says
    assert "/private" not in card.content
    places = list(map(card.text.index, ("English to German, trained on news.", "## Use", "## Results", "## Limits",
                                        "<details>", "`vocab_size`", "label_smoothing", "</details>")))  # fmt: skip
    assert places == sorted(places), "the settings are folded, below all that a reader decides by"
    assert {"attention.png", "training_curve.png"} <= names(out)
    width = int.from_bytes((out / "attention.png").read_bytes()[16:20], "big")
    assert 8 / 72 * 150 * 760 / width >= 9, "labels of 8 points, at 150 to the inch, on a card 760 pixels wide"


def test_an_incomplete_last_line_in_the_log_of_a_killed_run_changes_nothing(trained):
    complete = written(trained, "--pictures")
    with (trained / "metrics.jsonl").open("a") as log:
        log.write('{"step": 500, "lo')
    out = written(trained, "--pictures")
    assert [name for name in names(complete) if (complete / name).read_bytes() != (out / name).read_bytes()] == []


def test_the_card_marks_demo_scores_as_toy_results(trained, tmp_path):
    for data, toy in (("embedded", True), ("news", False)):
        change_recipe(trained, data=data)
        out = written(trained, "--results", rows(tmp_path / "a.csv", trained, {}))
        assert ("generated by a toy grammar" in card_of(out).text) is toy


def test_the_card_of_a_lowercase_model_has_lowercase_scores(trained, tmp_path):
    """Cased BLEU says little about it: 7.4 for a model with 40 lowercased."""
    change_recipe(trained, lowercase=True)
    card: Any = card_of(written(trained, "--results", rows(tmp_path / "a.csv", trained, {})))
    assert [(result.metric_type, result.metric_value) for result in card.data.eval_results] == [("bleu", 36.0)]
    assert card.data.eval_results[0].metric_args == {"signature": "nrefs:1|case:lc"}
    assert ROW["bleu"] not in card.text and ROW["chrf"] not in card.text
    assert "outputs lowercase text" in card.text


@pytest.mark.parametrize("kind", ["trained", "converted"])
@pytest.mark.parametrize("weights", ["", "0" * 64])
def test_rows_of_other_weights_are_refused(trained, tmp_path, refused, kind, weights):
    """The command, the size, and the training time can be those of another model."""
    if kind == "converted":
        (trained / "run.json").unlink()
    results = rows(tmp_path / "results.csv", trained, {"weights_sha256": weights})
    assert "no row matches this model (weights_sha256 " in refusal(refused, trained, REPO, "--results", results)


def test_rows_without_the_hash_of_their_weights_are_refused(folder, tmp_path, refused):
    (tmp_path / "old.csv").write_text(",".join(list(ROW)[:-1]) + "\n")
    error = refusal(refused, folder, REPO, "--results", tmp_path / "old.csv")
    assert "it lacks the column weights_sha256; `evaluate --record` writes a new one" in error


def test_what_evaluate_records_of_sharded_weights_is_in_the_card(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    trained_model().save_pretrained(folder, max_shard_size="60KB")
    for name, lines in (("s", ENGLISH), ("r", GERMAN)):
        write_lines(tmp_path / name, lines)
    text = ["--source", str(tmp_path / "s"), "--reference", str(tmp_path / "r")]
    evaluate([str(folder), *text, "--record", str(tmp_path / "results.csv")])
    (row,) = read_rows(tmp_path / "results.csv")
    assert int(row["parameters"]) == PARAMETERS
    data: Any = card_of(written(folder, "--results", tmp_path / "results.csv")).data
    assert [result.metric_value for result in data.eval_results] == [float(row["bleu"]), float(row["chrf"])]


def test_a_score_is_listed_with_its_test_set(trained, tmp_path):
    """The training data is another dataset."""
    change_recipe(trained, dataset="owner/news")
    data: Any = card_of(written(trained, "--results", rows(tmp_path / "a.csv", trained, {"data": "wmt14"}))).data
    assert data.datasets == ["owner/news"]
    assert {(result.dataset_type, result.dataset_name) for result in data.eval_results} == {
        ("wmt14", "wmt14, test2016")
    }


def test_the_card_of_a_fine_tuned_model_says_so(trained):
    change_recipe(trained, initial_weights="/private/runs/zero")
    for options, base in (([], "`zero`"), (["--base-model", "owner/older"], "`owner/older`")):
        text = card_of(written(trained, *options)).text
        assert "trained only on" not in text
        assert f"Translates English to German, fine-tuned from {base} on news.\n" in text
        assert "The settings and numbers below are those of the fine-tuning." in text
        assert "source and target tokens; those of the earlier training are not recorded\n" in text
        assert f"* It was fine-tuned on news from {base}" in text
    record = trained / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"earlier_training": {"step": 7000, "tokens": 9000}}))
    assert "source and target tokens; before, 7,000 steps on 9,000 tokens\n" in card_of(written(trained)).text


def test_the_card_does_not_describe_another_training_of_the_weights(trained, capsys):
    """As of a model that was fine-tuned or merged, and saved over that of a run."""
    described = ("* steps: 400", "vaswani-transformer train --config demo")
    text = (written(trained) / "README.md").read_text()
    assert all(words in text for words in described)
    tensors = load_file(trained / "model.safetensors")
    save_file(
        {name: tensor * 1.01 for name, tensor in tensors.items()}, trained / "model.safetensors", {"format": "pt"}
    )
    (trained / "manifest.json").unlink()  # loading advises it
    capsys.readouterr()
    out = written(trained)
    text = (out / "README.md").read_text()
    assert not any(words in text for words in described) and "training_curve.png" not in names(out)
    assert "the weights may not be those of the run" in capsys.readouterr().out


def test_a_table_without_results_is_refused(folder, tmp_path, refused):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    assert "it lacks the column date" in refusal(refused, folder, REPO, "--results", tmp_path / "table.csv")
    for score in ("n/a", "", "nan", "inf", "-1", "101"):
        results = rows(tmp_path / "results.csv", folder, {"bleu": score})
        assert f"bleu {score!r}; it must be a number" in refusal(refused, folder, REPO, "--results", results)


def test_the_card_of_a_converted_model_names_its_source(folder):
    record = {"toolkit": "fairseq", "file": "checkpoint_best.pt", "options": {"source_lang": "fr", "target_lang": "en"}}
    (folder / "conversion.json").write_text(json.dumps(record))
    (folder / "CONVERSION.md").write_text("# Converted from fairseq\n\n* A note on its tokens.\n")
    card: Any = card_of(written(folder))
    assert "Translates French to English, converted from a checkpoint of fairseq, `checkpoint_best.pt`.\n" in card.text
    assert "* A note on its tokens." in card.text
    assert card.data.language == ["fr", "en"]
    card = card_of(written(folder, "--base-model", "owner/theirs"))
    assert "Translates French to English, converted from `owner/theirs`.\n" in card.text
    assert "fine-tun" not in card.text and card.data.base_model == "owner/theirs"


def test_the_card_of_a_multilingual_model_names_the_chosen_languages(folder):
    """The Hub refuses a language that is not a code of ISO 639, such as eng_Latn."""
    options = {"source_lang": "eng_Latn", "target_lang": "deu_Latn"}
    record = {"toolkit": "hf-prenorm", "file": "config.json", "options": options}
    (folder / "conversion.json").write_text(json.dumps(record))
    card: Any = card_of(written(folder))
    assert "Translates English to German, converted" in card.text and card.data.language == ["en", "de"]
    assert card.data.widget[0]["text"] == "Do they come from Germany?"


@pytest.mark.parametrize(
    ("source", "words"), [("mul", "many languages to English"), ("gmw", "West Germanic languages to English")]
)
def test_the_card_of_a_model_of_a_family_of_languages_names_it(folder, source, words):
    record = {"toolkit": "hf-marian", "file": "config.json", "options": {"source_lang": source, "target_lang": "eng"}}
    (folder / "conversion.json").write_text(json.dumps(record))
    card: Any = card_of(written(folder))
    assert f"Translates {words}, converted" in card.text and card.data.language == [source, "en"]


def test_the_card_keeps_languages_that_differ_in_their_script(folder):
    """The Hub takes only zh for both."""
    options = {"source_lang": "zho_Hans", "target_lang": "zho_Hant"}
    record = {"toolkit": "hf-prenorm", "file": "config.json", "options": options}
    (folder / "conversion.json").write_text(json.dumps(record))
    out = written(folder)
    card: Any = card_of(out)
    assert "Translates Chinese (Hans) to Chinese (Hant), converted" in card.text
    assert card.data.language == ["zh"] and card.data.language_details == ["zho_Hans", "zho_Hant"]
    (out / "conversion.json").unlink(missing_ok=True)
    assert read_languages(out) == ("zho_Hans", "zho_Hant")


def test_the_card_of_a_model_with_language_tokens_names_all_of_them(tmp_path):
    """tokenizer_config.json names the source and a family of targets; a server reads them from the card again."""
    theirs, ours = opus_folder(tmp_path / "theirs", [">>deu<<", ">>bel<<", ">>bel_Latn<<"], False), tmp_path / "ours"
    change_json(theirs / "tokenizer_config.json", source_lang="eng", target_lang="mul")
    convert([str(theirs), str(ours)])
    assert read_languages(ours) == ("eng", "mul")
    out = written(ours, "--target-language", "be")
    card: Any = card_of(out)
    assert "Translates English to German, Belarusian and Belarusian (Latn), converted" in card.text
    assert "only from English to German, Belarusian and Belarusian (Latn)" in card.text
    assert card.data.language == ["en", "de", "be"]
    assert card.data.widget[0]["text"].startswith(">>bel<< ") and read_languages(out) == ("eng", "deu")


def test_a_downloaded_model_keeps_the_languages_of_its_card(folder, refused):
    (folder / "README.md").write_text("---\nlanguage: [fr, en]\n---\n")
    card: Any = card_of(written(folder))
    assert card.data.language == ["fr", "en"] and "Translates French to English" in card.text
    (folder / "README.md").write_text("---\nlanguage: [fr\n---\n")
    assert f"{folder / 'README.md'}: the metadata is not valid" in refusal(refused, folder, REPO, code=3)


def test_results_that_a_spreadsheet_has_saved_are_read(trained, tmp_path):
    results = rows(tmp_path / "results.csv", trained, {})
    results.write_text(results.read_text(), encoding="utf-8-sig")
    card: Any = card_of(written(trained, "--results", results))
    assert card.data.eval_results


def test_the_card_links_to_the_project(folder, tmp_path, monkeypatch):
    record = tmp_path / "site" / "vaswani_transformer-9.dist-info" / "METADATA"
    record.parent.mkdir(parents=True)
    address = "https://example.org/vaswani"
    record.write_text(f"Metadata-Version: 2.4\nName: vaswani-transformer\nVersion: 9\nProject-URL: Source, {address}\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert f"[`vaswani-transformer`]({address})" in card_of(written(folder)).text


def test_an_existing_card_can_be_kept(hub, folder):
    hub.create(REPO, **{"README.md": b"---\nlicense: mit\n---\n\nMine.\n"})
    push(folder, REPO, "--yes", "--keep-card")
    assert hub.files(REPO)["README.md"].endswith(b"Mine.\n") and set(hub.files(REPO)) == FILES
