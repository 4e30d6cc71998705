"""The record of a run: its progress, one value of the log for every step, and the figure."""

import json

import numpy as np
import pytest

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.training_run import (
    curve_figure,
    format_hours,
    read_curves,
    read_progress,
    read_run,
    read_training,
)

RECORDS = [
    {"step": 10, "loss": 5.0, "tokens_per_second": 1.0},
    {"event": "validation", "step": 10, "validation_loss": 4.5},
    {"step": 20, "loss": 9.0},
    {"event": "checkpoint", "step": 10, "stall_seconds": 0.1},
    {"event": "resume", "step": 10},
    {"step": 20, "loss": 4.0},
    {"event": "validation", "step": 20, "validation_loss": 3.5, "validation_bleu": 12.5},
]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return tmp_path


def test_a_repeated_step_counts_once(run):
    assert read_curves(run / "metrics.jsonl") == {
        "loss": {10: 5.0, 20: 4.0},
        "validation_loss": {10: 4.5, 20: 3.5},
        "validation_bleu": {20: 12.5},
    }


def test_the_picture_has_the_curves_of_the_log(run):
    losses, bleu = curve_figure(read_curves(run / "metrics.jsonl")).axes
    lines = [*losses.lines, *bleu.lines]
    drawn = [list(zip(*map(np.asarray, line.get_data()), strict=True)) for line in lines]
    assert drawn == [[(10, 5.0), (20, 4.0)], [(10, 4.5), (20, 3.5)], [(20, 12.5)]]


def test_a_last_line_that_a_killed_run_left_incomplete_is_ignored(run):
    log, complete = (run / "metrics.jsonl").read_bytes(), read_curves(run / "metrics.jsonl")
    for part in (b"{", b'{"step": 30, "lo', b'{"step": 30, "loss": "\xc3'):
        (run / "metrics.jsonl").write_bytes(log + part)
        assert read_curves(run / "metrics.jsonl") == complete


def test_an_invalid_log_is_reported_by_line(run):
    with pytest.raises(InputError, match="no such file"):
        read_curves(run / "nowhere" / "metrics.jsonl")
    log = (run / "metrics.jsonl").read_bytes()
    for line in (b'{"step": 30, "lo', b'{"step": 30, "loss": "\xff"}', b"[1]", b"[" * 100_000):
        (run / "metrics.jsonl").write_bytes(log + line + b"\n")
        with pytest.raises(BrokenFileError, match=r"metrics\.jsonl line 8 is not a record"):
            read_curves(run / "metrics.jsonl")
    with pytest.raises(InputError, match="no loss yet"):
        curve_figure({"loss": {}, "validation_loss": {}, "validation_bleu": {}})


def test_the_progress_and_the_environment_are_in_the_manifest_of_the_model(run):
    assert read_training(run) == {"progress": {}, "environment": {}} and read_run(run) == {}
    progress, environment = {"step": 9, "tokens": 5, "seconds": 2.0, "cpu_seconds": 3}, {"device": "cpu"}
    (run / "manifest.json").write_text(json.dumps({"files": [], "progress": progress, "environment": environment}))
    assert read_training(run) == {"progress": progress, "environment": environment}
    assert read_progress(run) == progress
    (run / "run.json").write_text('{"recipe": []}')
    with pytest.raises(BrokenFileError, match="recipe is a list"):
        read_run(run)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"step": "30", "loss": 4.0}', "line 8: step is '30'; it must be an integer of 0 or more"),
        ('{"step": 1.5, "loss": 4.0}', "line 8: step is 1.5; it must be an integer"),
        ('{"loss": 4.0}', "line 8: step is missing; it must be an integer"),
        ('{"step": 30, "loss": "4.0"}', "line 8: loss is '4.0'; it must be a number of 0 or more"),
        ('{"step": 30, "validation_bleu": [1]}', r"line 8: validation_bleu is \[1\]; it must be a number"),
    ],
)
def test_a_wrong_type_in_the_log_is_named(run, line, message):
    with (run / "metrics.jsonl").open("a") as log:
        log.write(line + "\n")
    with pytest.raises(BrokenFileError, match=f"metrics.jsonl {message}"):
        read_curves(run / "metrics.jsonl")


def test_a_wrong_type_in_a_manifest_or_a_record_is_named(run):
    for progress, message in (
        ({"step": "9"}, "step is '9'; it must be an integer of 0 or more"),
        ({"step": 9, "tokens": 1, "seconds": None}, "seconds is None; it must be a number"),
        ({"step": 9, "tokens": 1, "seconds": 1.0}, "cpu_seconds is missing; it must be a number"),
        ({"step": 9, "seconds": 1.0, "cpu_seconds": 1.0, "tokens": -1}, "tokens is -1; it must be an integer"),
    ):
        (run / "manifest.json").write_text(json.dumps({"progress": progress}))
        with pytest.raises(BrokenFileError, match=f"manifest.json: {message}"):
            read_progress(run)
    for record, message in (({"command": 5}, "command is 5; it must be a string"), ({"fixed_keys": 1}, "fixed_keys")):
        (run / "run.json").write_text(json.dumps(record))
        with pytest.raises(BrokenFileError, match=f"run.json: {message}"):
            read_run(run)


def test_hours_have_three_digits():
    assert format_hours(5400) == "1.5" and format_hours(1) == "0.0"
