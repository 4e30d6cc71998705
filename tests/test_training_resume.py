"""Runs that are stopped or killed at any instant resume to the same bits."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import one_fast_in, wait_until
from disks import flip_a_bit
from safetensors.torch import save_file
from saved_model import change_json
from training_child import TrainingProcess
from training_runs import (
    COMPILED,
    ROOT,
    SMALL,
    assert_bit_identical,
    kill_and_resume,
    options_of,
    records_of,
    write_in_capitals,
)

from training.checkpoints import write_manifest


@pytest.fixture(scope="module")
def run_of_four_steps(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    options = SMALL | {"data": str(text), "output_dir": str(folder / "run")}
    TrainingProcess(options, folder / "log", fault=("term", 4 * 4 + 2)).ends(143)
    return folder / "run"


@pytest.fixture
def stopped(run_of_four_steps, tmp_path):
    """The checkpoint of a run that was stopped after four steps; `start` resumes it."""
    shutil.copytree(run_of_four_steps, tmp_path / "run")
    return tmp_path / "run/checkpoints/step-4"


@pytest.mark.parametrize(
    ("processes", "kills", "seed"),
    one_fast_in(12, [(2, 2, 1), (1, 2, 1), *((1, 5, seed) for seed in range(100, 110))]),
)
def test_kills_end_with_the_same_bits(start, tmp_path, uninterrupted, processes, kills, seed):
    kill_and_resume(start, tmp_path, *uninterrupted(processes), kills=kills, seed=seed, processes=processes)


@pytest.mark.parametrize(("fault", "code"), one_fast_in(3, [("term", 143), ("int", 130), ("hup", 129)]))
def test_a_signal_saves_and_the_same_command_resumes(start, tmp_path, uninterrupted, fault, code):
    said = start(fault=(fault, 4 * 7 + 2)).ends(code)  # In the middle of the accumulation of step 8.
    assert (tmp_path / "run/checkpoints/latest").read_text() == "step-7\n"
    assert "saved step 7; run the same command again to resume" in said
    start().ends(0, "resuming from step-7")
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


def test_a_validation_postponed_by_a_signal_runs_on_resume(start, tmp_path, uninterrupted):
    said = start(fault=("term", 4 * 6)).ends(143)  # In the last micro-batch of step 6, after which it validates.
    assert "saved step 6" in said and "validation loss" not in said
    start().ends()
    whole, run = uninterrupted(1)[0], tmp_path / "run"
    one, other = (
        [(r["step"], r["validation_loss"]) for r in records_of(folder) if "validation_loss" in r]
        for folder in (whole, run)
    )
    assert one == other and [step for step, _ in one] == [6, 12, 18, 24]
    assert (whole / "checkpoints/best").read_text() == (run / "checkpoints/best").read_text()
    assert_bit_identical(whole, run)


@pytest.mark.slow
def test_three_processes_sum_in_the_same_order_after_resuming(start, tmp_path, uninterrupted):
    """The sum of three floats depends on their order, which DDP fixes in its first backward pass."""
    start(ranks=3, fault=("term", 14)).ends(143)
    start(ranks=3).ends(0, "resuming from step-7")
    assert_bit_identical(uninterrupted(3)[0], tmp_path / "run")


@pytest.mark.slow
def test_a_second_signal_ends_the_run_at_once(start, tmp_path):
    said = start(fault=("term twice", 4 * 6 + 2)).ends(143)
    assert "saved" not in said
    assert (tmp_path / "run/checkpoints/latest").read_text() in ("step-5\n", "step-6\n")  # 6 if it was the best


def test_a_signal_ends_a_run_while_it_reads_text(start, tmp_path):
    """A billion lines in a file of a megabyte take minutes to read."""
    (tmp_path / "text").mkdir()
    for name in ("train.en.gz", "train.de.gz"):
        (tmp_path / "text" / name).write_bytes(gzip.compress(b"a\n" * 1_000_000) * 1000)
    process = start(data=str(tmp_path / "text"), validation=[], validate_every=None)
    wait_until(lambda: "training a tokenizer" in process.said())
    os.kill(process.ranks[0].pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_a_corrupt_newest_checkpoint_is_named_and_skipped(start, tmp_path, uninterrupted):
    start(fault=("term", 4 * 11 + 2)).ends(143)
    flip_a_bit(tmp_path / "run/checkpoints/step-11/optimizer.safetensors")
    start().ends(0, "step-11/optimizer.safetensors has been altered", "resuming from step-10")
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


def test_the_average_excludes_a_damaged_checkpoint(start, tmp_path, uninterrupted):
    shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    (tmp_path / "run/model.safetensors").unlink()
    older = tmp_path / "run/checkpoints/step-20"
    (older / "config.json").write_text("{}")
    start().ends(0, "step-20/config.json has 2 bytes", "the average of step-")
    assert (tmp_path / "run/model.safetensors").is_file() and not older.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"progress": {"steps": 4}}, "progress has an unknown field steps"),
        pytest.param({"progress": {}}, "progress: step is missing; it must be an integer", marks=pytest.mark.slow),
        ({"progress": None}, "progress is a NoneType; it must be an object"),
        ({"fingerprint": []}, "fingerprint is a list; it must be an object"),
        ({"fingerprint": {"micro_batches": "4"}}, "fingerprint: micro_batches is '4'; it must be an integer above 0"),
        ({"environment": "cpu"}, "environment is a str; it must be an object"),
        ({"environment": {"mixed_precision": 16}}, "environment: mixed_precision is 16; it must be no, fp8, fp16"),
    ],
)
def test_an_incomplete_state_is_not_resumed(stopped, start, changes, message):
    """It is refused even if the manifest matches."""
    change_json(stopped / "trainer_state.json", **changes)
    write_manifest(stopped, [path for path in stopped.iterdir() if path.name != "manifest.json"])
    start().ends(3, f"step-4/trainer_state.json: {message}")


def test_moments_are_not_replaced_by_zeros(stopped, start):
    save_file({}, stopped / "optimizer.safetensors")
    write_manifest(stopped, [path for path in stopped.iterdir() if path.name != "manifest.json"])
    start().ends(3, "step-4/optimizer.safetensors does not fit the model: it lacks exp_avg/")


def test_a_checkpoint_under_the_name_of_another_is_not_resumed(stopped, start):
    stopped.rename(stopped.with_name("step-5"))
    start().ends(3, "step-5/trainer_state.json: progress: step is 4; rename the folder to step-4")


def test_the_time_left_does_not_depend_on_the_machine_before(stopped, start):
    progress = json.loads((stopped / "trainer_state.json").read_text())["progress"]
    change_json(stopped / "trainer_state.json", progress=progress | {"seconds": 1e6})
    write_manifest(stopped, [path for path in stopped.iterdir() if path.name != "manifest.json"])
    said = start(max_steps=12).ends(0, "resuming from step-4")
    assert re.search(r"step 5/12  \d\.\d\d s per step\n", said)
    assert re.search(r"step 6/12 .* 0:0\d:\d\d left\n", said)


def test_changes_of_recipe_text_tokenizer_and_processes_are_refused(start, text, tmp_path):
    start(fault=("term", 4 * 4 + 2)).ends(143)
    record = (tmp_path / "run/run.json").read_text()
    start(seed=2, warmup_steps=6).ends(2, "seed was 1, is 2; warmup_steps was 5, is 6")
    model = {**SMALL["model"], "dropout": 0.3, "d_k": None}
    start(model=model).ends(2, "differs: model.d_k was unset, is None; model.dropout was 0.2, is 0.3. Restore")
    shutil.copytree(text, tmp_path / "text")
    for path in (tmp_path / "text").iterdir():
        path.write_text(path.read_text().replace("a", "b").replace("A", "B"))
    start(data=str(tmp_path / "text")).ends(2, "corpus sha256 was")
    saved = (tmp_path / "run/tokenizer.json").read_text()
    tokenizer = json.loads(saved)
    tokenizer["model"]["merges"].pop()
    (tmp_path / "run/tokenizer.json").write_text(json.dumps(tokenizer))
    start().ends(2, "tokenizer sha256 was")
    (tmp_path / "run/tokenizer.json").write_text(saved)
    start(ranks=2).ends(2, "processes was 1, is 2")
    assert (tmp_path / "run/run.json").read_text() == record
    start(ranks=2, allow_changed=True, max_steps=6).ends(0, "resuming a changed run: processes was 1, is 2")


def test_a_checkpoint_of_another_run_is_refused(stopped, start, tmp_path):
    start(output="other", seed=2, max_steps=6).ends(0)
    other = tmp_path / "other/checkpoints/step-6"
    shutil.copytree(other, stopped.with_name("step-6"))
    start().ends(
        2,
        "holds a run that differs: recipe.seed was 2, is 1. Restore it, choose another output_dir, resume anyway with",
    )
    shutil.rmtree(stopped.with_name("step-6"))
    start(max_steps=6).ends(0, f"resuming from {stopped.name}")


def test_a_finished_run_without_checkpoints_does_not_start_again(start, tmp_path):
    start(max_steps=5).ends(0)
    before = (tmp_path / "run/model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run/checkpoints")
    start(max_steps=6).ends(3, "run/checkpoints has no checkpoint, but the run has written", "--overwrite true")
    assert (tmp_path / "run/model.safetensors").read_bytes() == before
    start(max_steps=6, overwrite=True).ends(0)
    assert (tmp_path / "run/model.safetensors").read_bytes() != before


def test_another_validation_text_is_refused_or_begins_with_its_own_best_loss(stopped, start, tmp_path):
    progress = json.loads((stopped / "trainer_state.json").read_text())["progress"]
    change_json(stopped / "trainer_state.json", progress=progress | {"best_loss": 0.1, "best_step": 2})
    write_manifest(stopped, [path for path in stopped.iterdir() if path.name != "manifest.json"])
    write_in_capitals(tmp_path, "other", ["abcdefgh", "ha"])
    keys = {"validation": [str(tmp_path / "other")], "max_steps": 6}
    start(**keys).ends(2, "differs: validation sha256 was")
    start(**keys, allow_changed=True).ends(0, "resuming a changed run: validation sha256 was")
    assert (tmp_path / "run/checkpoints/best").read_text() == "step-6\n"


def test_a_changed_config_of_the_initial_weights_is_refused(start, tmp_path):
    """Of a folder that was edited, or of a repository on the Hub that has moved."""
    start("weights", max_steps=5, average_last=1).ends(0)
    keys = {"initial_weights": str(tmp_path / "weights"), "model": {}, "average_last": 1}
    start(**keys, fault=("term", 4 * 4 + 2)).ends(143)
    change_json(tmp_path / "weights/config.json", dropout=0.6, activation_function="gelu")
    message = "config.activation_function was relu, is gelu; config.dropout was 0.2, is 0.6"
    start(**keys).ends(2, f"run holds a run that differs: {message}. Restore it")
    start(**keys, allow_changed=True, max_steps=6).ends(0, f"resuming a changed run: {message}")


@pytest.mark.slow
def test_a_compiled_run_resumes_to_the_same_bits(start, tmp_path, uninterrupted):
    whole = uninterrupted(1, COMPILED)[0]
    start(fault=("term", 4 * 7 + 2), variables=dict(COMPILED)).ends(143, "compiled by eager")
    start(variables=dict(COMPILED)).ends(0, "resuming from step-7")
    assert_bit_identical(whole, tmp_path / "run")


@pytest.mark.slow
def test_clock_locale_and_paths_do_not_change_the_bits(text, tmp_path, uninterrupted):
    """A jumping clock, the C locale, another time zone, spaces and letters in paths, no home folder."""
    folder = tmp_path / "ein Ordner für 語"
    folder.mkdir()
    shutil.copytree(text, folder / "text ü")
    options = SMALL | {"data": "text ü", "output_dir": "run ß"}
    jumps = (
        "import itertools, sys, time; real, years = time.time, itertools.cycle((0, 30, -20)); "
        "time.time = lambda: real() + next(years) * 3e7; "
        "from training.__main__ import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", jumps, *options_of(options)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": "/proc/nowhere", "TZ": "Asia/Kathmandu"}
    environment |= {"LC_ALL": "C", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=200)
    assert result.returncode == 0, result.stderr.decode()
    assert_bit_identical(uninterrupted(1)[0], folder / "run ß")
