"""`push`: what it refuses, what it writes, what the card says, and that nothing secret gets out."""

import csv
import gzip
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import OWNER, WRITE_TOKEN, Fault, HubServer
from huggingface_hub import ModelCard, constants
from huggingface_hub.utils import get_session
from safetensors.torch import load_file, save_file
from saved_model import saved_model, trained_model
from transformers import AutoConfig

from hub import remote
from hub.__main__ import main
from hub.contents import AUTO_MAP
from vaswani_transformer import Translator
from vaswani_transformer.pipeline_vaswani_transformer import VaswaniTransformerTranslationPipeline

# huggingface_hub uploads with an argument of httpx that is about to go.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

ROOT = Path(__file__).parents[1]
REPO = f"{OWNER}/model"
COMMAND = "python -m training --config demo --data /home/somebody/corpora/news --output-dir=/home/somebody/runs/one"
PARAMETERS = sum(parameter.numel() for parameter in trained_model().parameters())
FILES = {
    "README.md", "config.json", "generation_config.json", "model.safetensors",
    "tokenizer.json", "tokenizer_config.json",
    "configuration_vaswani_transformer.py", "modeling_vaswani_transformer.py", "pipeline_vaswani_transformer.py",
    "text_vaswani_transformer.py",
}  # fmt: skip
ROW = {
    "date": "2026-11-21", "commit": "abc1234", "command": COMMAND, "hardware": "2 cores of a test", "hours": "0.213",
    "cpu_hours": "0.212", "steps": "400", "parameters": str(PARAMETERS), "data": "news", "test": "test2016",
    "sentences": "1000", "beam": "4", "alpha": "0.6", "bleu": "35.43", "bleu_signature": "nrefs:1|case:mixed|bleu",
    "bleu_lowercase": "36.0", "bleu_lowercase_signature": "nrefs:1|case:lc", "bleu_compound_split": "35.5",
    "chrf": "58.61", "chrf_signature": "nrefs:1|case:mixed|chrf", "exact_match": "5.0",
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return saved_model(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


@pytest.fixture
def trained(folder) -> Path:
    """The folder as `train` leaves it."""
    recipe = {"source_language": "en", "target_language": "de", "data": "/home/somebody/corpora/news", "train": ["a"],
              "dataset": None, "max_length": 128}  # fmt: skip
    identity = {"preset": "base", "label_smoothing": 0.1, "initial_weights": "/home/somebody/runs/zero"}
    (folder / "run.json").write_text(json.dumps({"command": COMMAND, "recipe": recipe, "identity": identity}))
    lines: list[dict[str, Any]] = []
    for step in range(100, 500, 100):
        clock = {"seconds": step * 1.9, "cpu_seconds": step * 1.88}
        lines.append({"step": step, "loss": 5 - step / 200, "tokens": step * 1000, **clock})
        lines.append({"event": "validation", "step": step, "validation_loss": 4.5 - step / 250, **clock})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "checkpoints" / "step-400").mkdir(parents=True)
    state = {"progress": {"step": 400, "tokens": 400_000, "seconds": 766.8, "cpu_seconds": 763.2}}
    (folder / "checkpoints" / "step-400" / "trainer_state.json").write_text(json.dumps(state))
    return folder


@pytest.fixture
def hub(monkeypatch) -> Iterator[HubServer]:
    """A Hub, and this process as one whose user has logged in there."""
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
        yield server
    assert not server.unknown


def push(*arguments: object) -> None:
    main(["push", *map(str, arguments)])


def refusal(capsys, *arguments: object, code: int = 2) -> str:
    """The one line with which a push is refused."""
    with pytest.raises(SystemExit) as stopped:
        push(*arguments)
    error = capsys.readouterr().err.strip()
    assert stopped.value.code == code, error
    assert error.startswith("error: ") and "\n" not in error
    return error


def written(out: Path) -> set[str]:
    return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}


def rows(path: Path, *changes: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows({**ROW, **change} for change in changes)
    return path


# ---- what a repository holds -------------------------------------------------------------------------------------


def test_a_folder_is_what_would_be_uploaded(hub, folder, tmp_path):
    push(folder, REPO, "--to-folder", tmp_path / "out", "--no-pictures")
    assert not hub.log  # no network
    assert written(tmp_path / "out") == FILES
    push(folder, REPO, "--yes", "--no-pictures")
    assert hub.files(REPO) == {name: (tmp_path / "out" / name).read_bytes() for name in FILES}
    assert len(hub.repos[REPO].history()) == 2


def test_the_configuration_names_every_class_and_nothing_else_changes(folder, tmp_path):
    push(folder, REPO, "--to-folder", tmp_path / "out", "--no-pictures")
    before, after = (json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "out"))
    assert after.pop("auto_map") == AUTO_MAP
    assert set(AUTO_MAP) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    (task,) = after.pop("custom_pipelines").items()
    assert task[0] == "translation" and task[1]["impl"].endswith(VaswaniTransformerTranslationPipeline.__name__)
    assert after == before
    assert not hasattr(AutoConfig.from_pretrained(tmp_path / "out"), "custom_pipelines")  # the package has its own
    for reference in (*AUTO_MAP.values(), task[1]["impl"]):
        module, name = reference.split(".")
        assert f"class {name}(" in (tmp_path / "out" / f"{module}.py").read_text()


def test_a_pushed_folder_can_be_pushed_again(folder, tmp_path):
    push(folder, REPO, "--to-folder", tmp_path / "one", "--no-pictures")
    push(tmp_path / "one", REPO, "--to-folder", tmp_path / "two", "--no-pictures")
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_weights_in_several_files_travel_with_their_index(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    trained_model().save_pretrained(folder, max_shard_size="60KB")
    shards = {path.name for path in folder.glob("model-*.safetensors")}
    assert len(shards) > 1
    push(folder, REPO, "--to-folder", tmp_path / "out", "--no-pictures")
    assert written(tmp_path / "out") == FILES - {"model.safetensors"} | shards | {"model.safetensors.index.json"}
    Translator.from_pretrained(tmp_path / "out", device="cpu")


def test_the_rest_of_the_folder_stays_here(trained, tmp_path, hub, capsys):
    push(trained, REPO, "--no-pictures")
    output = capsys.readouterr().out
    assert "stays here: checkpoints/, metrics.jsonl, run.json" in output
    assert "nothing has been sent; --yes sends it" in output
    assert not hub.repos
    for name in FILES:
        assert re.search(rf"^new +[\d,]+  {re.escape(name)}$", output, re.MULTILINE), name


def test_onnx_travels_beside_the_model(folder, tmp_path):
    (folder / "onnx").mkdir()
    shutil.copy(folder / "config.json", folder / "onnx")
    shutil.copy(folder / "tokenizer.json", folder / "onnx")
    (folder / "onnx" / "model.onnx").write_bytes(b"a graph")
    (folder / "onnx" / "notes.txt").write_text("mine")
    push(folder, REPO, "--to-folder", tmp_path / "out", "--no-pictures")
    onnx = {"onnx/model.onnx", "onnx/config.json", "onnx/tokenizer.json"}
    assert written(tmp_path / "out") == FILES | onnx
    assert f'hf_hub_download("{REPO}", "onnx/model.onnx")' in (tmp_path / "out" / "README.md").read_text()


def test_another_models_onnx_is_refused(folder, tmp_path, capsys):
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "model.onnx").write_bytes(b"a graph")
    config = json.loads((folder / "config.json").read_text()) | {"d_model": 64}
    (tmp_path / "exported" / "config.json").write_text(json.dumps(config))
    error = refusal(capsys, folder, REPO, "--onnx", tmp_path / "exported", "--to-folder", tmp_path / "out")
    assert "is not this model's: d_model differ" in error
    assert not (tmp_path / "out").exists()


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_by_the_tensors_name(folder, capsys, value):
    tensors = load_file(folder / "model.safetensors")
    name = "model.decoder.layers.1.cross_attn.v_proj.weight"
    tensors[name][3, 5] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    error = refusal(capsys, folder, REPO, code=3)
    assert name in error and ("NaN" if value != value else "infinity") in error


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "model.pt", "optimizer.pkl", "last.ckpt", "a.pth", "deep/er/training_args.bin", "OLD.BIN",
     "scaler.joblib", "weights.dat", "no-suffix", "onnx/model.onnx_data"],
)  # fmt: skip
def test_a_folder_with_pickles_is_refused_by_their_names(folder, capsys, name):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    torch.save({}, folder / name)
    assert f"holds pickles ({name})" in refusal(capsys, folder, REPO)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_under_another_name_is_known_by_its_content(folder, capsys, protocol):
    (folder / "model.safetensors").write_bytes(pickle.dumps({"weights": [1.0, 2.0]}, protocol))
    assert "holds pickles (model.safetensors)" in refusal(capsys, folder, REPO)


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x80\x02 no pickle", b"PK\x03\x04 no archive", b"\0" * 100])
def test_weights_that_are_none_are_named(folder, capsys, content):
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors is not a whole safetensors file" in refusal(capsys, folder, REPO, code=3)


def test_a_folder_without_a_model_is_refused(tmp_path, capsys):
    assert "there is no such folder" in refusal(capsys, tmp_path / "no", REPO)
    assert "there is no config.json in it" in refusal(capsys, tmp_path, REPO)
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    assert "model_type is 'marian'" in refusal(capsys, tmp_path, REPO)


@pytest.mark.parametrize(("missing", "code"), [("model.safetensors", 3), ("tokenizer.json", 2)])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(folder, capsys, missing, code):
    (folder / missing).unlink()
    assert missing in refusal(capsys, folder, REPO, code=code)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-owner"], "it must be owner/name"),
        ([REPO, "--revision", "a..b"], "no name for a branch"),
        ([REPO, "--tag", "a b"], "no name for a branch or a tag"),
        ([REPO, "--message", " "], "--message is empty"),
        ([REPO, "--yes", "--to-folder", "x"], "give one of them"),
        ([REPO, "--license", "My License"], "is no name of a licence"),
        ([REPO, "--example", " "], "--example is empty"),
        ([REPO, "--onnx", "nowhere"], "there is no such folder"),
        ([REPO, "--results", "nowhere.csv"], "nowhere.csv: no such file"),
    ],
)
def test_wrong_arguments_are_refused(folder, capsys, arguments, says):
    assert says in refusal(capsys, folder, *arguments)


def test_a_folder_that_holds_something_is_not_written_to(folder, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert "is not empty" in refusal(capsys, folder, REPO, "--to-folder", tmp_path / "out")


def test_a_file_with_an_access_token_is_refused(folder, capsys):
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"auth": WRITE_TOKEN}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    error = refusal(capsys, folder, REPO, "--no-pictures")
    assert "tokenizer_config.json holds an access token" in error and WRITE_TOKEN not in error


def test_a_private_model_does_not_go_where_everybody_sees_it(hub, folder, capsys):
    hub.create(REPO)
    error = refusal(capsys, folder, REPO, "--private", "--yes", "--no-pictures")
    assert "exists and everybody sees it" in error and hub.files(REPO) == {}


def test_the_command_waits_for_a_silent_hub_only_so_long(hub, folder, monkeypatch):
    monkeypatch.setattr(remote, "SILENCE", 0.5)
    hub.create(REPO)
    hub.faults.append(Fault("GET", f"/api/models/{REPO}", silent=True))
    push(folder, REPO, "--yes", "--no-pictures")
    assert "model.safetensors" in hub.files(REPO)


# ---- the card ----------------------------------------------------------------------------------------------------


def card_of(out: Path) -> ModelCard:
    return ModelCard.load(out / "README.md")


def test_a_card_without_results_says_so(folder, tmp_path):
    push(folder, REPO, "--to-folder", tmp_path / "out", "--no-pictures")
    card = card_of(tmp_path / "out")
    data: Any = card.data
    assert data.eval_results is None and data.license is None and data.language is None
    assert "This model has not been evaluated" in card.text
    assert "How this model was trained is not recorded" in card.text
    assert "has named no licence" in card.text


def test_the_card_says_what_the_records_say(hub, trained, tmp_path):
    results = rows(tmp_path / "results.csv", {}, {"command": "another"}, {"hours": "0.9"}, {"parameters": "7"})
    options = ["--results", results, "--license", "cc-by-4.0", "--example", "The house | is small."]
    push(trained, REPO, "--to-folder", tmp_path / "out", *options)
    card = card_of(tmp_path / "out")
    answer = get_session().post(f"{hub.url}/api/validate-yaml", json={"content": card.content, "repoType": "model"})
    assert answer.json() == {"errors": [], "warnings": []}

    data: Any = card.data
    assert data.language == ["en", "de"] and data.pipeline_tag == "translation" and data.license == "cc-by-4.0"
    assert data.library_name == "transformers"
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
        "2 cores of a test",
        "2.9000 at the end, 2.9000 at its lowest",
        "no sentence had more than 128 tokens",
        "| The house \\| is small. | " + translation.replace("|", "\\|"),
        "label_smoothing: 0.1",
        "commit abc1234",
        "not a mean over seeds",
        "English to German",
    ):
        assert says in card.text, says
    assert "    python -m training --config demo --data news --output-dir=one\n" in card.text
    assert "/home/somebody" not in card.content
    assert {"attention.png", "training_curve.png"} <= written(tmp_path / "out")
    assert "](attention.png)" in card.text and "](training_curve.png)" in card.text


@pytest.mark.parametrize("packed", [False, True])
def test_the_example_is_a_short_sentence_of_the_validation_text(trained, tmp_path, packed):
    text = "This has many more words than anybody would like to see in a table of two columns.\nA short one here.\n"
    (tmp_path / "data").mkdir()
    if packed:
        (tmp_path / "data" / "held-out.en.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (tmp_path / "data" / "held-out.en").write_text(text)
    run = json.loads((trained / "run.json").read_text())
    run["recipe"] |= {"data": str(tmp_path / "data"), "validation": ["held-out"]}
    (trained / "run.json").write_text(json.dumps(run))
    push(trained, REPO, "--to-folder", tmp_path / "out", "--no-pictures")
    translation = Translator.from_pretrained(trained, device="cpu").translate("A short one here.")[0]
    assert f"| A short one here. | {translation}" in card_of(tmp_path / "out").text
    assert str(tmp_path) not in card_of(tmp_path / "out").content


def test_every_number_of_the_card_comes_from_somewhere(trained, tmp_path):
    """Change what a number is read from, and it changes; nothing stays that only the card knows."""
    push(trained, REPO, "--to-folder", tmp_path / "one", "--no-pictures", "--results", rows(tmp_path / "a.csv", {}))
    change = {
        "bleu": "12.34",
        "chrf": "23.45",
        "sentences": "77",
        "beam": "5",
        "alpha": "1.4",
        "hardware": "another one",
    }
    push(trained, REPO, "--to-folder", tmp_path / "two", "--no-pictures", "--results", rows(tmp_path / "b.csv", change))
    one, two = ((tmp_path / out / "README.md").read_text() for out in ("one", "two"))
    for card, values in ((one, ROW), (two, ROW | change)):
        cells = " | ".join(values[key] for key in ("sentences", "beam", "alpha", "bleu", "chrf"))
        assert f"| news, test2016 | {cells} | 2026-11-21, commit abc1234 |" in card
        assert f"* hardware: {values['hardware']}" in card and f"value: {values['bleu']}" in card
    for key in ("bleu", "chrf", "hardware"):
        assert ROW[key] in one and ROW[key] not in two, key


def test_a_model_of_small_letters_is_judged_by_small_letters(trained, tmp_path):
    """In cased text its score says little of it: 7.4 BLEU where it has 40."""
    folder = Path(shutil.copytree(trained, tmp_path / "small"))
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"recipe": run["recipe"] | {"lowercase": True}}))
    push(folder, REPO, "--to-folder", tmp_path / "out", "--no-pictures", "--results", rows(tmp_path / "a.csv", {}))
    card: Any = card_of(tmp_path / "out")
    assert [(result.metric_type, result.metric_value) for result in card.data.eval_results] == [("bleu", 36.0)]
    assert card.data.eval_results[0].metric_args == {"signature": "nrefs:1|case:lc"}
    assert ROW["bleu"] not in card.text and ROW["chrf"] not in card.text
    assert "Small letters in and out" in card.text


def test_a_published_row_may_leave_out_where_things_were(trained, tmp_path):
    row = {"command": "python -m training --config demo --output-dir runs/one"}
    push(trained, REPO, "--to-folder", tmp_path / "out", "--no-pictures", "--results", rows(tmp_path / "a.csv", row))
    data: Any = card_of(tmp_path / "out").data
    assert [result.metric_value for result in data.eval_results] == [35.43, 58.61]


@pytest.mark.parametrize(
    "change", [{"steps": "401"}, {"hours": "0.2"}, {"cpu_hours": "0.1"}, {"parameters": "9"}, {"command": "other"}]
)
def test_another_models_results_are_not_this_ones(trained, tmp_path, capsys, change):
    error = refusal(capsys, trained, REPO, "--no-pictures", "--results", rows(tmp_path / "results.csv", change))
    assert "has no row of this model" in error


def test_a_table_that_is_none_of_results_is_refused(trained, tmp_path, capsys):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    assert "it has no column date" in refusal(capsys, trained, REPO, "--results", tmp_path / "table.csv")
    error = refusal(
        capsys, trained, REPO, "--no-pictures", "--results", rows(tmp_path / "results.csv", {"bleu": "n/a"})
    )
    assert "bleu 'n/a'; it must be a number" in error


def test_a_converted_model_says_where_it_comes_from(folder, tmp_path):
    record = {"toolkit": "fairseq", "file": "checkpoint_best.pt", "options": {"source_lang": "fr", "target_lang": "en"}}
    (folder / "conversion.json").write_text(json.dumps(record))
    (folder / "CONVERSION.md").write_text("# Converted from fairseq\n\n* A note on its tokens.\n")
    push(folder, REPO, "--to-folder", tmp_path / "out", "--no-pictures")
    card = card_of(tmp_path / "out")
    assert "converted from a checkpoint of fairseq, `checkpoint_best.pt`" in card.text
    assert "* A note on its tokens." in card.text and "French to English" in card.text
    data: Any = card.data
    assert data.language == ["fr", "en"]


def test_the_card_that_is_there_can_be_kept(hub, folder):
    hub.create(REPO, **{"README.md": b"---\nlicense: mit\n---\n\nMine.\n"})
    push(folder, REPO, "--yes", "--keep-card", "--no-pictures")
    assert hub.files(REPO)["README.md"].endswith(b"Mine.\n") and set(hub.files(REPO)) == FILES


# ---- a user's shell ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_front_door_pushes_and_tells_no_secret(folder, tmp_path):
    """With the real clock: a Hub that is slow, then one that fails, and no token in any output or file."""
    with HubServer() as hub:
        environment = os.environ | {
            "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": WRITE_TOKEN, "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        outputs = []

        def run(*options: str, code: int = 0) -> str:
            command = [sys.executable, "-m", "vaswani_transformer", "push", str(folder), REPO, *options]
            result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
            assert result.returncode == code, result.stderr
            outputs.append(result.stdout + result.stderr)
            return result.stdout + result.stderr

        assert "would be created" in run()
        hub.faults.append(Fault("POST", "/commit/", status=429, headers={"Retry-After": "1"}, message="too fast"))
        hub.faults.append(Fault("PUT", "/lfs/", reset_after=500))
        assert "status 429 (too fast); attempt 2 of 5 in 1 s" in run("--yes", "--tag", "v1")
        assert set(hub.files(REPO)) >= FILES
        assert "nothing to change" in run()
        hub.faults.append(Fault("POST", "/api/models", status=403, times=99, message="no"))
        (folder / "generation_config.json").write_text('{"num_beams": 5}')
        assert "you may not write" in run("--yes", "--debug", code=4)
        hub.faults.clear()
        assert f"{hub.url}/{REPO}/commit/" in run("--yes")
        assert not hub.unknown
    assert not any(WRITE_TOKEN in output or "X-Amz-Signature" in output for output in outputs)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or WRITE_TOKEN.encode() not in path.read_bytes(), path
