"""The MODEL of every command: a folder, a repository on the Hub, or another toolkit's checkpoint."""

import io
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ENVIRONMENT, write_lines
from golden import EXPECTED_RESULTS, golden
from hub_server import WRITE_TOKEN, Blob, Commit, Fault, HubServer
from huggingface_hub import constants
from safetensors.torch import load_file
from saved_model import ENGLISH, GERMAN, change_json, trained_tokenizer, untrained_model
from transformers import AutoTokenizer
from transformers import pipeline as typed_pipeline

from serving.__main__ import read_recorded_languages
from vaswani_transformer import Translator
from vaswani_transformer.cli import main
from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.hub_files import find_folder
from vaswani_transformer.tokenization import train_tokenizer

pipeline: Any = typed_pipeline  # typed for the tasks of transformers only

OPUS, OURS = "opus/marian", "someone/ours"
UNREAD = {name: b"x" * 99 for name in ("tf_model.h5", "rust_model.ot", "flax_model.msgpack", "README.md", "run.py")}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in EXPECTED_RESULTS}


@pytest.fixture
def hub(tmp_path, monkeypatch, model_folder) -> Iterator[HubServer]:
    """A Hub with a model of this package and a MarianMTModel; nobody is logged in, and nothing is in the cache."""
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
        monkeypatch.chdir(tmp_path)
        opus: Any = UNREAD | files_of(golden("hf-marian"))
        ours: Any = UNREAD | files_of(model_folder) | {"pytorch_model.bin": b"x"}
        server.create(OPUS, **opus)
        server.create(OURS, **ours)
        yield server
    assert not server.unknown


def downloaded(hub: HubServer) -> set[str]:
    return {path.rpartition("/")[2] for method, path, status in hub.log if method == "GET" and "/resolve/" in path}


@pytest.mark.parametrize(
    "words",
    [
        ["translate", OPUS, "--input", "absent.en"],
        ["score", OPUS, "--source", "absent.en", "--target", "absent.de"],
        ["align", OPUS, "--source", "absent.en", "--target", "absent.de"],
        ["evaluate", OPUS, "--source", "full/file", "--reference", "absent.en"],
        ["evaluate", OPUS, "--hypotheses", "absent/out"],
        ["evaluate", OPUS, "--config", "multi30k_en_de", "--data", "absent.en"],
        ["evaluate", OPUS, "--record", "absent.en/results.csv"],
        ["translate", OPUS, "--output", "absent/out"],
        ["score", OPUS, "--source", "full/file", "--target", "full/file", "--output", "absent/out"],
        ["align", OPUS, "--source", "full/file", "--target", "full/file", "--output", "absent/out"],
        ["plot", "attention", OPUS, "--source", "a", "--output", "absent/out.png"],
        ["convert", OPUS, "full"],
        ["convert", OPUS, "full/file/out"],
        ["convert", OPUS, "new", "--logits", "absent.en"],
        ["export", "onnx", OPUS, "new", "--sentences", "absent.en"],
        ["export", "onnx", OPUS, "full"],
    ],
    ids=" ".join,
)
def test_files_of_the_user_are_checked_before_a_download(hub, tmp_path, capsys, words):
    (tmp_path / "full").mkdir()
    write_lines(tmp_path / "full" / "file", ["a"])
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    named = "full is not empty" if "full" in words else "absent.en"
    named = "full/file is not a folder" if "full/file/out" in words else named
    named = "absent does not exist" if words[-1].startswith("absent/") else named
    assert named in capsys.readouterr().err and not downloaded(hub)


@pytest.mark.parametrize("command", ["translate", "score", "align"])
def test_a_dry_run_reads_no_text(hub, capsys, command):
    """The texts need not exist yet, and stdin may be a terminal."""
    text = ["--input", "absent.en"] if command == "translate" else ["--source", "absent.en", "--target", "-"]
    assert "bytes would be downloaded" in printed(capsys, command, OPUS, "--dry-run", *text)


def printed(capsys, *words: object) -> str:
    capsys.readouterr()
    main([str(word) for word in words])
    return capsys.readouterr().out


@pytest.mark.parametrize("repo", [OURS, pytest.param(OPUS, marks=pytest.mark.slow)])
def test_every_command_takes_a_repository(hub, repo, model_folder, tmp_path, monkeypatch, capsys):
    """Commands on a MarianMTModel convert it on the way: their results are those of the converted folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if repo == OPUS:
        main(["convert", repo, str(tmp_path / "folder")])
    folder = tmp_path / "folder" if repo == OPUS else model_folder
    text = write_lines(tmp_path / "text.en", ["a b c", "b"] if repo == OPUS else ENGLISH[:2])
    results = []
    for model in (repo, folder):
        found = [printed(capsys, "translate", model, "--input", text, "--device", "cpu")]
        found.append(printed(capsys, "score", model, "--source", text, "--target", text, "--device", "cpu"))
        words = ("--source", text, "--reference", text, "--device", "cpu")
        found.append(printed(capsys, "evaluate", model, *words))
        found.append(printed(capsys, "doctor", model).partition("model  ")[2])
        main(["plot", "attention", str(model), "--source", "a b", "--output", str(tmp_path / "plot.png")])
        found.append((tmp_path / "plot.png").read_bytes())
        results.append(found)
    assert results[0] == results[1]
    assert "checksums" in results[0][3]
    assert not downloaded(hub) & {*UNREAD, "pytorch_model.bin"}
    assert not list(tmp_path.glob(".converted.*"))


@pytest.mark.slow
def test_a_model_of_transformers_becomes_one_onnx_file(hub, tmp_path, capsys):
    texts = ["a b c", "b"]
    printed(capsys, "export", "onnx", OPUS, tmp_path / "onnx")
    printed(capsys, "export", "onnx", golden("hf-marian"), tmp_path / "from-a-folder")
    main(["convert", OPUS, str(tmp_path / "converted")])
    expected = Translator.from_pretrained(tmp_path / "converted", device="cpu").translate(texts)
    for name in ("onnx", "from-a-folder"):
        assert Translator.from_pretrained(tmp_path / name, backend="onnx", device="cpu").translate(texts) == expected


def test_the_revision_is_the_one_that_is_asked_for(hub, tmp_path, refused):
    repo = hub.repos[OPUS]
    changed = dict(repo.main[0].files)
    del changed["vocab.json"]
    repo.main.append(Commit("without the vocabulary", changed))
    repo.tags["v1"] = first = repo.main[0].id
    for revision in ("v1", first):
        main(["convert", OPUS, str(tmp_path / revision), "--revision", revision])
        assert (tmp_path / revision / "tokenizer.json").exists()
    main(["convert", OPUS, str(tmp_path / "main")])
    assert not (tmp_path / "main" / "tokenizer.json").exists()
    line = refused(main, ["convert", OPUS, tmp_path / "out", "--revision", "v2"])
    assert line == f"error: {OPUS} has no revision 'v2' on the Hub; give a branch, a tag or a commit\n"
    line = refused(main, ["doctor", tmp_path / "v1", "--revision", "v1"])
    assert line == f"error: --revision v1: {tmp_path / 'v1'} is not a repository on the Hub; leave it out\n"


def test_a_commit_during_the_download_is_not_mixed_with_the_one_before(hub, tmp_path, monkeypatch, refused):
    """The files are chosen from the list of one commit: those that only the other has would be missing."""
    repo = hub.repos[OPUS]
    last = repo.main[-1].files
    repo.main[-1] = Commit("without the vocabulary", {name: last[name] for name in last if name != "vocab.json"})

    def move(method: str, path: str) -> None:
        if path.endswith("/config.json") and len(repo.main) == 1:
            repo.main.append(Commit("complete", last))

    monkeypatch.setattr(hub, "next_fault", move)
    line = refused(main, ["convert", OPUS, tmp_path / "out"], 4).splitlines()[-1]
    assert line == f"error: {OPUS} received another commit during the download; run the command again"
    assert not (tmp_path / "out").exists()
    main(["convert", OPUS, str(tmp_path / "out")])
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_a_private_repository_and_its_branches_can_be_read_with_a_token(hub, tmp_path, monkeypatch, refused):
    files = files_of(golden("hf-marian"))
    repo = hub.create("opus/private", private=True, **files)
    branch = dict(repo.main[0].files)
    del branch["vocab.json"]
    repo.branches["feature/no-words"] = [Commit("a branch with a slash", branch)]
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    main(["convert", "opus/private", str(tmp_path / "main")])
    assert (tmp_path / "main" / "tokenizer.json").exists()
    main(["convert", "opus/private", str(tmp_path / "branch"), "--revision", "feature/no-words"])
    assert not (tmp_path / "branch" / "tokenizer.json").exists()
    monkeypatch.setenv("HF_TOKEN", "hf_" + "Expired" * 5)
    line = refused(main, ["convert", "opus/private", tmp_path / "out", "--revision", "feature/no-words"], 4)
    assert "Invalid credentials" in line and line.count("\n") == 1 and "Expired" not in line


def test_a_private_repository_of_which_the_cache_has_a_part_names_the_remedy(hub, model_folder, monkeypatch):
    files: Any = files_of(model_folder) | {"onnx/model.onnx": b"x"}
    hub.create("someone/private", private=True, **files)
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    Translator.from_pretrained("someone/private", device="cpu")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(InputError, match="for a private one, log in .`hf auth login`. or set HF_TOKEN"):
        Translator.from_pretrained("someone/private", backend="onnx")


def test_a_gated_repository_names_the_remedy(hub, refused):
    headers = {"X-Error-Code": "GatedRepo"}
    hub.faults.append(Fault("HEAD", f"/{OPUS}/resolve/", times=9, status=403, message="Access denied", headers=headers))
    line = refused(main, ["translate", OPUS], 4).splitlines()[-1]
    assert line == (
        f"error: {OPUS}: its owner restricts access; accept the conditions on its page, and log in (`hf auth login`)"
    )


@pytest.mark.parametrize("words", ["convert {} out", "translate {}", "translate --backend onnx {}", "doctor {}"])
def test_a_repository_with_graphs_of_another_exporter_is_refused(hub, words, refused):
    """Such as those for transformers.js: encoder and decoder as graphs, and no weights."""
    files = files_of(golden("hf-marian"))
    del files["model.safetensors"]
    graphs = {f"onnx/{name}_model.onnx": b"x" for name in ("encoder", "decoder")}
    hub.create("web/opus", **files, **graphs)
    *progress, line = refused(main, words.format("web/opus").split()).splitlines()
    assert line.startswith("error: web/opus has ") and all("Fetching" in part for part in progress if part)
    assert not any(name.endswith(".onnx") for name in downloaded(hub))


def test_a_dry_run_lists_the_download(hub, tmp_path, capsys):
    expected = files_of(golden("hf-marian"))
    commit = hub.repos[OPUS].main[-1].id
    for command in (["convert", OPUS, "out"], ["export", "onnx", OPUS, "out"], ["translate", OPUS], ["doctor", OPUS]):
        *lines, total = printed(capsys, *command, "--dry-run").splitlines()
        listed = {line.split()[1]: int(line.split()[0].replace(",", "")) for line in lines}
        assert listed == {name: len(content) for name, content in expected.items()}
        assert [line.split()[1] for line in lines if "downloaded before" in line] == ["config.json"]  # says what it is
        size = sum(listed.values()) - listed["config.json"]
        assert total == f"{OPUS}, commit {commit[:12]}: {len(lines) - 1} files, {size:,} bytes would be downloaded"
    assert downloaded(hub) == {"config.json"} and not (tmp_path / "out").exists()
    main(["convert", OPUS, "out"])
    assert "0 files, 0 bytes" in printed(capsys, "convert", OPUS, "out", "--dry-run")
    assert printed(capsys, "doctor", "out", "--dry-run") == "out: nothing would be downloaded\n"


def test_pickles_are_read_by_the_restricted_unpickler(hub, tmp_path, refused):
    files = files_of(golden("hf-marian"))
    content = io.BytesIO()
    torch.save(load_file(golden("hf-marian") / "model.safetensors"), content)
    del files["model.safetensors"]
    hub.create(
        "opus/old", **files, **{"pytorch_model.bin": content.getvalue(), "optimizer.pt": b"x", "tf_model.h5": b"x"}
    )
    main(["convert", "opus/old", str(tmp_path / "old")])
    main(["convert", OPUS, str(tmp_path / "new")])
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("old", "new"))
    assert all(torch.equal(old[name], new[name]) for name in new)
    assert not downloaded(hub) & {"optimizer.pt", "tf_model.h5"}

    hub.create("opus/evil", **files, **{"pytorch_model.bin": pickle.dumps(Evil(), protocol=2)})
    line = refused(main, ["convert", "opus/evil", tmp_path / "evil"])
    assert "its pickle refers to posix.system, which could run any code" in line and line.count("\n") == 1
    hub.create(
        "someone/pickled", **{"config.json": b'{"model_type": "vaswani_transformer"}', "pytorch_model.bin": b"x"}
    )
    line = refused(main, ["doctor", "someone/pickled"])
    assert "has its weights only as pytorch_model.bin, a pickle" in line and line.count("\n") == 1


def test_prenorm_models_of_transformers_are_read_from_the_hub(hub, tmp_path):
    hub.create("google/prenorm", **files_of(golden("hf-prenorm")), **UNREAD)
    main(["convert", "google/prenorm", str(tmp_path / "from-the-hub")])
    main(["convert", str(golden("hf-prenorm")), str(tmp_path / "from-a-folder")])
    found, expected = (load_file(tmp_path / f"from-{place}/model.safetensors") for place in ("the-hub", "a-folder"))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


@pytest.mark.parametrize(
    "words", ["convert {} out", "translate {}", "export onnx {} out", "translate --backend onnx {}"]
)
def test_a_repository_that_cannot_be_read_is_a_one_line_error(hub, words, refused, monkeypatch):
    def error(repo: str, code: int = 2) -> str:
        line = refused(main, words.format(repo).split(), code)
        assert line.count("\n") == 1 and line.startswith(f"error: {repo}")
        return line

    assert "no such repository on the Hub; for a private one, log in" in error("opus/absent")
    hub.create("opus/private", private=True, **{"config.json": b"{}"})
    assert "no such repository on the Hub; for a private one, log in" in error("opus/private")
    hub.faults.append(Fault("GET", f"/api/models/{OPUS}", times=99, status=403, message="Not for you"))
    assert "Not for you" in error(OPUS, 4)
    hub.faults.clear()
    if "onnx" not in words.split("{}")[0] or "export" in words:
        hub.create("opus/bert", **{"config.json": b'{"model_type": "bert"}', "model.safetensors": b"x"})
        assert "has a bert model; `convert` reads marian, fsmt" in error("opus/bert")
        hub.create("opus/empty", **{"notes.txt": b"x"})
        assert "has no checkpoint of a known format" in error("opus/empty")
        hub.faults.append(Fault("GET", "/tree/", content=[{"type": "file", "path": None, "size": 1, "oid": "a" * 40}]))
        assert "has no checkpoint of a known format" in error(OPUS)
        hub.faults.append(Fault("GET", "/tree/", content=5))
        assert "cannot be reached (TypeError: 'int' object is not iterable); check the network" in error(OPUS, 4)
        assert "model.safetensors" not in downloaded(hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "has not been downloaded before, and HF_HUB_OFFLINE is set" in error(OPUS, 4)


def test_what_was_downloaded_is_used_offline(hub, tmp_path, monkeypatch, refused):
    main(["convert", OPUS, str(tmp_path / "online")])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    main(["convert", OPUS, str(tmp_path / "offline")])
    names = {path.name for path in (tmp_path / "online").iterdir()}
    assert names == {path.name for path in (tmp_path / "offline").iterdir()}
    assert "Dry run cannot be performed" in refused(main, ["convert", OPUS, tmp_path / "dry", "--dry-run"], 4)
    assert not (tmp_path / "dry").exists()


def test_local_files_only_takes_what_was_downloaded(hub, tmp_path, refused):
    with pytest.raises(UnavailableError, match="has not been downloaded before, and local_files_only is set"):
        Translator.from_pretrained(OURS, device="cpu", local_files_only=True)
    assert not hub.log
    expected = Translator.from_pretrained(OURS, device="cpu").translate(ENGLISH[:2])
    before = len(hub.log)
    assert Translator.from_pretrained(OURS, device="cpu", local_files_only=True).translate(ENGLISH[:2]) == expected
    text = write_lines(tmp_path / "text", ENGLISH)
    said = refused(main, ["choose-heads", OURS, "--source", text, "--target", text, "--reference", text])
    assert f"{OURS}: no such folder" in said  # the heads are recorded in the folder
    assert len(hub.log) == before


def test_python_names_the_command_that_converts():
    with pytest.raises(InputError, match=r"model_type is 'marian'; .*; convert it: vaswani-transformer convert /"):
        Translator.from_pretrained(golden("hf-marian"))


def test_a_damaged_model_folder_is_no_checkpoint_of_another_toolkit(folder, refused):
    change_json(folder / "config.json", model_type=None)
    assert "model_type is None; only 'vaswani_transformer'" in refused(main, ["doctor", folder])
    (folder / "config.json").unlink()
    refused(main, ["doctor", folder], 3)


def test_serve_reads_the_languages_in_the_card_of_a_repository(hub, tmp_path):
    """No other command downloads the card."""
    hub.create("someone/described", **{"README.md": b"---\nlanguage: [en, de]\n---\n"})
    assert read_recorded_languages("someone/described", None, tmp_path) == ("en", "de")
    assert downloaded(hub) == {"README.md"}


def test_serve_reads_the_card_of_the_commit_that_it_loads(hub):
    repo = hub.create("someone/described", **{"README.md": b"---\nlanguage: [en, de]\n---\n", "config.json": b"{}"})
    folder = find_folder("someone/described")
    repo.main.append(Commit("another model", {"README.md": Blob(b"---\nlanguage: [fr, en]\n---\n")}))
    assert read_recorded_languages("someone/described", None, folder) == ("en", "de")


def test_serve_needs_no_card(hub, tmp_path):
    """The languages may be given as options."""
    hub.create("someone/plain", **{"config.json": b"{}"})
    assert read_recorded_languages("someone/plain", None, tmp_path) is None


@pytest.mark.slow
def test_training_reads_its_initial_weights_and_their_tokenizer_from_one_commit(hub, tmp_path):
    """Asked again, the Hub might name another commit."""
    for name in ("train.en", "train.de", "val.en", "val.de"):
        write_lines(tmp_path / name, ENGLISH)
    command = [sys.executable, "-m", "vaswani_transformer", "train", "--initial_weights", OURS, "--max_steps", "1"]
    command += ["--data", str(tmp_path), "--output_dir", "run", "--source_language", "en", "--target_language", "de"]
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
    subprocess.run(command, check=True, env=ENVIRONMENT | variables, cwd=tmp_path)
    assert (tmp_path / "run/model.safetensors").is_file()
    assert [path for method, path, status in hub.log].count(f"/api/models/{OURS}/revision/main") == 1


def test_the_second_tokenizer_of_a_private_repository(hub, tmp_path):
    """`pipeline()` keeps its token for the model and the first tokenizer."""
    model = untrained_model(decoder_vocab_size=280, share_encoder_decoder_embeddings=False)
    target = train_tokenizer(GERMAN, 280)
    for part, folder in ((model, "m"), (trained_tokenizer(), "m"), (target, "m/target_tokenizer")):
        part.save_pretrained(tmp_path / folder)
    files = {str(path.relative_to(tmp_path / "m")): path.read_bytes() for path in (tmp_path / "m").rglob("*.*")}
    hub.create("someone/private", private=True, **files)
    load: Any = partial(pipeline, "translation", model="someone/private", token=WRITE_TOKEN, device="cpu")
    with pytest.raises(OSError, match="hf auth login.*someone/private\", revision='[0-9a-f]{40}', .*target_tokenizer"):
        load()
    second = AutoTokenizer.from_pretrained("someone/private", subfolder="target_tokenizer", token=WRITE_TOKEN)
    expected = pipeline("translation", model=str(tmp_path / "m"), device="cpu")
    assert load(target_tokenizer=second)(ENGLISH) == expected(ENGLISH)
