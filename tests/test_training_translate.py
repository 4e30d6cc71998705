"""training/translate.py: translates a corpus in shards, with several processes, and resumes."""

import json
import os
import random
import shutil

import pytest
from saved_model import ENGLISH, GERMAN, saved_model
from training_child import TrainingProcess

from training.parallel_text import files_sha256
from training.translate import _files_of
from training.translate import main as translate
from vaswani_transformer import Translator

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
    (folder / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    expected = Translator.from_pretrained(folder / "model", device="cpu").translate(lines, split_sentences=False)
    assert len(set(expected)) > 5
    return folder, expected


@pytest.fixture
def start(work, tmp_path):
    running = []

    def run(ranks: int = 1, fault=None, **flags) -> TrainingProcess:
        folder, _ = work
        values = {"input": folder / "text", "output": tmp_path / "out", "shard-lines": SHARD} | flags
        model = values.pop("model", folder / "model")
        words = [str(model), *(word for key, value in values.items() for word in (f"--{key}", str(value)))]
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


def test_shards_depend_on_every_model_file(start, work, tmp_path):
    shutil.copytree(work[0] / "model", tmp_path / "model")
    words = {"model": tmp_path / "model"}
    assert start(fault=("kill", 16), **words).wait() == -9
    settings = tmp_path / "model/generation_config.json"
    settings.write_text(settings.read_text().replace('"max_source_length_offset": 50', '"max_source_length_offset": 5'))
    start(**words).ends(2, "holds shards of another translation (model was ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--length-penalty", "1"], "length_penalty was 0.6, is 1.0"),
        (["--dtype", "bfloat16"], "dtype was None, is bfloat16"),
        (["--input", "other"], "input was "),
    ],
)
def test_shards_of_another_text_or_search_are_refused(work, tmp_path, monkeypatch, capsys, flags, said):
    model, text, folder = work[0] / "model", work[0] / "text", tmp_path / "out.shards"
    about = {"shard_lines": SHARD, "num_beams": 4, "length_penalty": 0.6, "dtype": None}
    about |= {"input": files_sha256(text), "model": files_sha256(*_files_of(model))}
    folder.mkdir()
    (folder / "about.json").write_text(json.dumps(about))
    (folder / "shard-0000000").write_text(json.dumps(["stale"] * SHARD))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_text(text.read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    words = [str(model), "--input", str(text), "--output", str(tmp_path / "out"), "--shard-lines", str(SHARD), *flags]
    with pytest.raises(SystemExit) as stop:
        translate(words)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "holds shards of another translation" in error and said in error


def test_invalid_outputs_and_settings_are_refused_early(start, work, tmp_path):
    (tmp_path / "folder").mkdir()
    start(output=tmp_path / "folder").ends(2, "folder is a folder; give the name of a file")
    start(**{"num-beams": 100_000}).ends(2, "num_beams is 100000; it must lie between 1 and 1000")
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


def test_a_pipe_as_input_is_refused(work, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemExit) as stop:
        translate([str(work[0] / "model"), "--input", str(tmp_path / "pipe"), "--output", str(tmp_path / "out")])
    assert stop.value.code == 2 and "pipe is not a regular file" in capsys.readouterr().err


def test_files_of_unknown_origin_are_not_touched(start, work, tmp_path):
    folder = tmp_path / "out.shards"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    start().ends()
    assert [path.name for path in folder.iterdir()] == ["notes"]
    (folder / "shard-00").write_text("mine")
    start().ends(2, "so its origin is unknown")
    assert (folder / "shard-00").read_text() == "mine"
