"""training/translate.py: translates a corpus in shards, with several processes, and resumes."""

import json
import os
import random
import shutil

import pytest
from conftest import write_lines
from saved_model import ENGLISH, GERMAN, saved_model
from training.translate import _files_of
from training.translate import main as translate
from training_child import TrainingProcess

from vaswani_transformer import Translator
from vaswani_transformer.model_folder import files_sha256

LINES = 47
SHARD = 5


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a model and a text, and the translation of each line by itself."""
    folder = tmp_path_factory.mktemp("translate")
    saved_model(folder / "model")
    choose = random.Random(0)
    words = " ".join(ENGLISH + GERMAN).split()
    lines = [" ".join(choose.choices(words, k=choose.randint(0, 6))) for _ in range(LINES)]
    write_lines(folder / "text", lines)
    expected = Translator.from_pretrained(folder / "model", device="cpu").translate(lines, split_sentences=False)
    assert len(set(expected)) > 5
    return folder, expected


def words_of(values):
    values = dict(values)
    return [str(values.pop("model")), *(word for key, value in values.items() for word in (f"--{key}", str(value)))]


@pytest.fixture
def start(work, tmp_path):
    running = []

    def run(ranks: int = 1, fault=None, **flags) -> TrainingProcess:
        values = {"model": work[0] / "model", "input": work[0] / "text", "output": tmp_path / "out"}
        words = words_of(values | {"shard-lines": SHARD} | flags)
        running.append(TrainingProcess(words, tmp_path / f"{len(running)}.log", ranks, fault, "translate"))
        return running[-1]

    yield run
    for process in running:
        process.kill()


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_line_is_translated_in_order(start, work, tmp_path, ranks):
    start(ranks).ends()
    assert lines_of(tmp_path / "out") == work[1]
    assert not (tmp_path / "out.shards").exists()


def test_a_killed_translation_resumes_with_missing_shards(start, work, tmp_path):
    assert start(fault=("kill", 16)).wait() == -9
    done = sorted(path.name for path in (tmp_path / "out.shards").glob("shard-*") if ".tmp" not in path.name)
    assert 0 < len(done) < LINES // SHARD and not (tmp_path / "out").exists()
    start(**{"num-beams": 1}).ends(2, "shards of another translation (num_beams was 4, is 1)")
    said = start(ranks=2).ends()
    assert "lines 1 to 5 translated" not in said
    assert lines_of(tmp_path / "out") == work[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"length-penalty": 1}, "length_penalty was 0.6, is 1.0"),
        ({"dtype": "bfloat16"}, "dtype was None, is bfloat16"),
        ({"input": "other"}, "input was "),
        ({"model": "changed"}, "model was "),
    ],
)
def test_shards_of_another_text_model_or_search_are_refused(work, tmp_path, monkeypatch, refused, flags, message):
    model, text, folder = work[0] / "model", work[0] / "text", tmp_path / "out.shards"
    about = {"shard_lines": SHARD, "num_beams": 4, "length_penalty": 0.6, "dtype": None}
    about |= {"input": files_sha256(text), "model": files_sha256(*_files_of(model))}
    folder.mkdir()
    (folder / "about.json").write_text(json.dumps(about))
    (folder / "shard-0000000").write_text(json.dumps(["stale"] * SHARD))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_text(text.read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    shutil.copytree(model, "changed")
    settings = tmp_path / "changed/generation_config.json"
    settings.write_text(settings.read_text().replace('"extra_length": 50', '"extra_length": 5'))
    values = {"model": model, "input": text, "output": "out", "shard-lines": SHARD} | flags
    error = refused(translate, words_of(values))
    assert "holds shards of another translation" in error and message in error


def test_invalid_settings_are_refused_before_anything_is_written(start, tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for flags, message in (
        ({"output": tmp_path / "folder"}, "folder is a folder; give the name of a file"),
        ({"num-beams": 100_000}, "num_beams is 100000; it must lie between 1 and 1000"),
        ({"input": tmp_path / "pipe"}, "pipe is not a regular file"),
    ):
        start(**flags).ends(2, message)
    assert not (tmp_path / "out.shards").exists()


def test_a_translation_without_shards_can_be_restarted(start, work, tmp_path):
    (tmp_path / "out.shards").mkdir()
    (tmp_path / "out.shards/about.json").write_text('{"num_beams": 9}')
    start().ends()
    assert lines_of(tmp_path / "out") == work[1]


def test_a_truncated_shard_is_named(start, work, tmp_path):
    assert start(fault=("kill", 16)).wait() == -9
    shard = tmp_path / "out.shards/shard-0000000"
    shard.write_text(shard.read_text()[:-3])
    start().ends(3, "shard-0000000 is damaged")
    assert not (tmp_path / "out").exists()
    shard.unlink()
    start().ends()
    assert lines_of(tmp_path / "out") == work[1]


def test_files_of_unknown_origin_are_not_touched(start, work, tmp_path):
    folder = tmp_path / "out.shards"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    start().ends()
    assert [path.name for path in folder.iterdir()] == ["notes"]
    (folder / "shard-00").write_text("mine")
    start().ends(2, "so its origin is unknown")
    assert (folder / "shard-00").read_text() == "mine"
