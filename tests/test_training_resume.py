"""Runs that are stopped or killed at any instant resume to the same bits."""

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from training_runs import (
    COMPILED,
    ROOT,
    SMALL,
    assert_bit_identical,
    kill_and_resume,
    options_of,
    records_of,
    wait_until,
)


@pytest.mark.parametrize("processes", [1, 2])
def test_two_kills_end_with_the_same_bits(start, tmp_path, uninterrupted, processes):
    kill_and_resume(start, tmp_path, *uninterrupted(processes), kills=2, seed=1, processes=processes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_fifty_kills_end_with_the_same_bits(start, tmp_path, uninterrupted, seed):
    kill_and_resume(start, tmp_path, *uninterrupted(1), kills=5, seed=100 + seed, processes=1)


@pytest.mark.parametrize(("fault", "code"), [("term", 143), ("int", 130)])
def test_a_signal_saves_and_the_same_command_resumes(start, tmp_path, uninterrupted, fault, code):
    process = start(fault=(fault, 4 * 7 + 2))  # In the middle of the accumulation of step 8.
    assert process.wait() == code, process.said()
    assert (tmp_path / "run/checkpoints/latest").read_text() == "step-7\n"
    assert "saved step 7; run the same command again to resume" in process.said()
    (tmp_path / "run/tokenizer.json").write_bytes(b"")  # a power cut
    process = start()
    assert process.wait() == 0 and "resuming from step-7" in process.said()
    assert "run/tokenizer.json was missing or damaged; restored from step-7" in process.said()
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


def test_a_validation_postponed_by_a_signal_runs_on_resume(start, tmp_path, uninterrupted):
    process = start(fault=("term", 4 * 6))  # In the last micro-batch of step 6, after which it validates.
    assert process.wait() == 143, process.said()
    assert "saved step 6" in process.said() and "validation loss" not in process.said()
    process = start()
    assert process.wait() == 0, process.said()
    validations = [
        [(record["step"], record["validation_loss"]) for record in records_of(folder) if "validation_loss" in record]
        for folder in (tmp_path / "run", uninterrupted(1)[0])
    ]
    assert validations[0] == validations[1] and [step for step, _ in validations[0]] == [6, 12, 18, 24]
    best = [(folder / "checkpoints/best").read_text() for folder in (tmp_path / "run", uninterrupted(1)[0])]
    assert best[0] == best[1]
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


@pytest.mark.slow
def test_three_processes_sum_in_the_same_order_after_resuming(start, tmp_path, uninterrupted):
    """The sum of three floats depends on their order, which DDP fixes in its first backward pass."""
    process = start(ranks=3, fault=("term", 14))
    assert process.wait() == 143, process.said()
    process = start(ranks=3)
    assert process.wait() == 0 and "resuming from step-7" in process.said()
    assert_bit_identical(uninterrupted(3)[0], tmp_path / "run")


@pytest.mark.slow
def test_a_second_signal_ends_the_run_at_once(start, tmp_path):
    process = start(fault=("term twice", 4 * 6 + 2))
    assert process.wait() == 143 and "saved" not in process.said()
    assert (tmp_path / "run/checkpoints/latest").read_text() in ("step-5\n", "step-6\n")  # 6 if it was the best


def test_a_signal_ends_a_run_while_it_reads_text(start, tmp_path):
    """A billion lines in a file of a megabyte take minutes to read."""
    (tmp_path / "text").mkdir()
    for name in ("train.en.gz", "train.de.gz"):
        (tmp_path / "text" / name).write_bytes(gzip.compress(b"a\n" * 1_000_000) * 1000)
    process = start(data=str(tmp_path / "text"), validation=[], validate_every=None)
    wait_until(lambda: "training a tokenizer" in process.said(), process)
    os.kill(process.ranks[0].pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_a_corrupt_newest_checkpoint_is_named_and_skipped(start, tmp_path, uninterrupted):
    assert start(fault=("term", 4 * 11 + 2)).wait() == 143
    newest = tmp_path / "run/checkpoints/step-11/optimizer.safetensors"
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 1
    newest.write_bytes(raw)
    process = start()
    assert process.wait() == 0
    assert "step-11/optimizer.safetensors has been altered" in process.said()
    assert "resuming from step-10" in process.said()
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


def test_the_average_excludes_a_damaged_checkpoint(start, tmp_path, uninterrupted):
    shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    (tmp_path / "run/model.safetensors").unlink()
    older = tmp_path / "run/checkpoints/step-20"
    (older / "config.json").write_text("{}")
    process = start()
    assert process.wait() == 0, process.said()
    assert "step-20/config.json has 2 bytes" in process.said() and "the average of step-" in process.said()
    assert (tmp_path / "run/model.safetensors").is_file() and not older.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"progress": {}}, "lacks 'step'; the run cannot be resumed exactly"),
        ({"progress": None}, "trainer_state.json: progress is a NoneType; it must be an object"),
        ({"identity": []}, "trainer_state.json: identity is a list; it must be an object"),
        ({"environment": "cpu"}, "trainer_state.json: environment is a str; it must be an object"),
    ],
)
def test_an_incomplete_state_is_not_resumed(start, tmp_path, changes, message):
    """It is refused even if the manifest matches."""
    assert start(fault=("term", 4 * 4 + 2)).wait() == 143
    folder = tmp_path / "run/checkpoints/step-4"
    state = json.loads((folder / "trainer_state.json").read_text()) | changes
    (folder / "trainer_state.json").write_text(json.dumps(state))
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["files"]:
        raw = (folder / entry["name"]).read_bytes()
        entry |= {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    process = start()
    assert process.wait() == 3 and message in process.said()


@pytest.mark.slow
def test_a_changed_tokenizer_is_refused(start, tmp_path):
    assert start(fault=("term", 4 * 4 + 2)).wait() == 143
    path = tmp_path / "run/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["merges"].pop()
    path.write_text(json.dumps(tokenizer))
    process = start()
    assert process.wait() == 2 and "tokenizer sha256 was" in process.said()


def test_changes_of_recipe_text_and_processes_are_refused(start, text, tmp_path):
    assert start(fault=("term", 4 * 4 + 2)).wait() == 143
    process = start(seed=2, warmup_steps=6)
    assert process.wait() == 2
    assert "seed was 1, is 2; warmup_steps was 5, is 6" in process.said()
    other = tmp_path / "text"
    other.mkdir()
    for path in text.iterdir():
        (other / path.name).write_text(path.read_text().replace("a", "b").replace("A", "B"))
    process = start(data=str(other))
    assert process.wait() == 2 and "corpus sha256 was" in process.said()
    process = start(ranks=2)
    assert process.wait() == 2 and "processes was 1, is 2" in process.said()
    process = start(ranks=2, allow_changed=True, max_steps=6)
    assert process.wait() == 0 and "resuming a changed run: processes was 1, is 2" in process.said()


@pytest.mark.slow
def test_a_compiled_run_resumes_to_the_same_bits(start, tmp_path, uninterrupted):
    whole = uninterrupted(1, COMPILED)[0]
    process = start(fault=("term", 4 * 7 + 2), variables=dict(COMPILED))
    assert process.wait() == 143 and "compiled by eager" in process.said(), process.said()
    process = start(variables=dict(COMPILED))
    assert process.wait() == 0 and "resuming from step-7" in process.said(), process.said()
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
