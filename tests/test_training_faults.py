"""Errors in the recipe, the disk and the gradients are reported in one line."""

import contextlib
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import one_fast_in, wait_until
from disks import file_size_limit, not_removable, shared_folder
from safetensors.torch import load_file
from training_runs import ROOT, SMALL, assert_bit_identical, options_of, records_of, weights

from training.corpus import read_corpora
from training.recipe import load_recipe
from training.report import Reporter
from training.run_folder import claim_output, copy_conversion, describe_run, lock_run, remove_run
from vaswani_transformer.errors import BrokenFileError, UnavailableError
from vaswani_transformer.training_run import read_curves


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (1e30, "10 steps in a row had a loss or gradient that is not finite"),
        (3e38, "contains NaN or infinity, so it is not saved"),  # Adam overflows on finite gradients
    ],
)
def test_nan_and_infinity_are_never_saved(start, tmp_path, rate, message):
    said = start(learning_rate=rate, warmup_steps=1, save_every=1, validate_every=None, validation=[]).ends(2)
    assert message in said and not (tmp_path / "run/model.safetensors").exists()
    for path in (tmp_path / "run/checkpoints").glob("step-*/*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())


def test_a_first_run_with_own_text_is_advised(start, text, tmp_path):
    (tmp_path / "own").mkdir()
    for name in ("train.en", "train.de"):
        shutil.copy(text / name, tmp_path / "own")
    keys = {"data": str(tmp_path / "own"), "model": {**SMALL["model"], "encoder_ffn_dim": 4096}, "warmup_steps": 100}
    start(**keys, max_steps=3, save_every=1, validate_every=3, average_last=3, keep=3).ends(
        0,
        "no validation text val: every 50th training pair is held out, at most 2,000",
        "the learning rate rises for 100 steps (warmup_steps), but the run has 3",
        "the model will average checkpoints of the last 2 of 3 steps (average_last, save_every)",
        "parameters are too many for 118 pairs; fine-tune an existing model (--initial_weights), add pairs,",
        "step 1/3  ",
        "step 3: validation loss",
    )


def test_an_unknown_model_field_is_named_before_anything_is_read(start, tmp_path):
    start(**{"model.dropuot": 0.1}, data=str(tmp_path / "nowhere")).ends(
        2, "unknown config field 'dropuot'; did you mean 'dropout'?"
    )
    assert not (tmp_path / "run").exists()


def test_steps_without_finite_gradients_are_skipped_and_counted(start, tmp_path):
    start(fault=("nan", 4 * 2 + 1), max_steps=6, validation=[], validate_every=None).ends(
        0, "step 3: the gradient is not finite, step skipped"
    )
    (record,) = [record for record in records_of(tmp_path / "run") if "skipped_steps" in record]
    assert record["skipped_steps"] == 1
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


def test_a_full_disk_leaves_the_previous_checkpoint(start, tmp_path, uninterrupted):
    start(fault=("term", 4 * 4 + 2)).ends(143)
    start(fault=("file size", 20_000)).ends(4, "step-5 cannot be written", "free); the previous one is intact")
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("step-*")] == ["step-4"]
    start().ends()
    # The checkpoint of step 4 has not replaced a regular one.
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


@pytest.mark.slow
def test_keep_going_survives_a_failed_checkpoint(start, tmp_path, uninterrupted):
    said = start(fault=("disk full", 1), keep_going=True).ends()
    assert re.search(r"step-5 cannot be written: No space left on device \(about \d+ bytes.*; training continues", said)
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")
    start("none", fault=("file size", 20_000), keep_going=True, max_steps=6).ends(
        4, "no checkpoint could be written, so there is no model"
    )


def test_a_read_only_folder_is_refused_before_training(start):
    said = start(output_dir="/proc/run").ends(4)  # root ignores permissions, but /proc has no such folder
    assert "output_dir /proc/run cannot be written: " in said and "step" not in said


def test_a_second_run_on_the_same_folder_is_refused(start):
    first = start(max_steps=100_000, validate_every=None, validation=[])
    wait_until(lambda: "step 6/" in first.said())
    second = start(max_steps=100_000, validate_every=None, validation=[])
    assert second.wait() == 2
    assert f"is in use by process {first.ranks[0].pid} on " in second.said()
    assert first.ranks[0].is_alive()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"micro_batches": 3, "processes": 2}, "1 process running, 2 requested"),
        pytest.param(
            {"mixed_precision": "fp16"},
            "mixed_precision fp16 needs a GPU",
            marks=pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has a GPU"),
        ),
        ({"model": {"d_model": 15}}, "`d_model` is 15"),
        ({"preset": "huge"}, "preset 'huge' is not one of base"),
        ({"vocab_size": 100_000}, "vocab_size 100000 is larger than the texts support"),
        ({"tokenizer": "nowhere"}, "nowhere has no tokenizer.json"),
        (
            {"model": {**SMALL["model"], "position_embedding_type": "learned", "max_position_embeddings": 20}},
            "max_length is 40, but the model has only 20 learned positions (model.max_position_embeddings); lower",
        ),
        ({"max_hours": 1e-9}, "ended the run before its first step"),
    ],
)
def test_wrong_input_is_a_one_line_error_before_training(start, keys, message):
    process = start(**keys)
    assert process.wait() in (2, 4)
    (line,) = [line for line in process.said().splitlines() if line.startswith("error")]
    assert message in line and "Traceback" not in process.said() and "step 6" not in process.said()


@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        ("ACCELERATE_MIXED_PRECISION", "FP16", 2, "ACCELERATE_MIXED_PRECISION is 'FP16'; it must be no, bf16 or fp16"),
        ("ACCELERATE_MIXED_PRECISION", "", 2, "ACCELERATE_MIXED_PRECISION is ''; it must be no, bf16 or fp16"),
        ("ACCELERATE_TORCH_DEVICE", "toaster", 4, "a variable (ACCELERATE_TORCH_DEVICE=toaster;"),
        ("ACCELERATE_TORCH_DEVICE", "meta", 4, "ACCELERATE_TORCH_DEVICE is meta; torch has no such device here"),
        ("ACCELERATE_USE_CPU", "maybe", 2, "a variable (ACCELERATE_USE_CPU=maybe;"),
    ],
)
def test_a_wrong_variable_of_accelerate_is_named_before_training(start, name, value, code, message):
    process = start(variables={name: value})
    assert process.wait() == code
    (line,) = process.said().splitlines()
    assert line.startswith("error: ") and message in line


@pytest.mark.parametrize(
    ("file", "code", "message"),
    [
        ("run/thesis.txt", 2, "is not empty (thesis.txt) and holds no training run"),
        ("run/run.json", 3, "run.json is not the record of a training run"),
        ("run", 2, "is not a folder"),
    ],
)
def test_a_folder_without_a_run_is_not_touched(start, tmp_path, file, code, message):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text('{"mine": 1}')
    start(overwrite=True).ends(code, message)
    assert (tmp_path / file).read_text() == '{"mine": 1}'


def test_the_recorded_command_works_outside_a_clone(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["training/__main__.py", "--config", "demo", "--output_dir", "my run"])
    command = describe_run(load_recipe("demo"))["command"]
    assert command == "vaswani-transformer train --config demo --output_dir 'my run'"


def test_overwrite_checks_the_new_run_before_removing_the_old(start, tmp_path):
    start(vocab_size=100_000).ends(2)
    # Nothing has been trained there, so the recipe may change.
    start(max_steps=6, test=["nowhere"]).ends(0, "nowhere.en: no such file", "training continues")
    trained = weights(tmp_path / "run")
    for keys, message in (
        ({"data": "nowhere"}, "there is no folder nowhere"),
        ({"validation": "other"}, "no such file"),
        ({"initial_weights": str(tmp_path / "run")}, "run, which a new run removes; move it, or choose another"),
        ({"model": {"d_model": 15}}, "`d_model` is 15"),
    ):
        start(max_steps=6, overwrite=True, **keys).ends(2, message)
        assert weights(tmp_path / "run").keys() == trained.keys()
        assert (tmp_path / "run/checkpoints/latest").read_text() == "step-6\n"


def test_overwrite_does_not_keep_checkpoints_that_it_cannot_remove():
    """Those of another user, such as root in a container, would be resumed."""
    with shared_folder() as folder:
        for name in ("train.en", "train.de", "val.en", "val.de"):
            (folder / name).write_text("text\n")
        settings = load_recipe(None, {"data": str(folder)}).settings()
        output = folder / "run"
        checkpoint = output / "checkpoints/step-5"
        checkpoint.mkdir(parents=True)
        (output / "run.json").write_text("{}")
        message = f"^{output}/checkpoints cannot be removed: Permission denied; ask its owner"
        with not_removable(output / "checkpoints"), pytest.raises(UnavailableError, match=message):
            remove_run(output, settings)
        assert checkpoint.is_dir() and (output / "run.json").is_file()
        remove_run(output, settings)
        assert not list(output.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one line\n", "test.en has 1 lines, "),
        (b"\xff\n" * 2, "test.en line 1: byte 0xff at column 1 is not UTF-8"),
        (b"\n\n", "none of 2 pairs can be used"),
    ],
)
def test_an_unusable_test_text_is_a_warning(text, tmp_path, content, message):
    shutil.copytree(text, tmp_path / "text")
    (tmp_path / "text/test.en").write_bytes(content)
    (tmp_path / "text/test.de").write_text("a\nb\n")
    keys = {"data": str(tmp_path / "text"), "test": "test", "vocab_size": "270"}
    said, settings = [], load_recipe(None, keys).settings()
    corpora = read_corpora(settings.text, settings.tokenizer, None, tmp_path, said.append)
    assert len(corpora.training) == 120 and corpora.validation is not None
    (warning,) = [line for line in said if line.startswith("warning")]
    assert message in warning and "; training continues and does not check" in warning
    assert said.index(warning) < len(said) - 1  # before the training text is read


def test_a_nan_loss_is_null_in_the_log(tmp_path):
    reporter = Reporter(True)
    reporter.start(tmp_path, None, 0, 9)
    reporter.write({"event": "validation", "step": 1, "validation_loss": float("nan")})
    assert records_of(tmp_path) == [{"event": "validation", "step": 1, "validation_loss": None}]
    assert read_curves(tmp_path / "metrics.jsonl")["validation_loss"] == {}


@pytest.mark.parametrize("name", one_fast_in(2, ["metrics.jsonl", ".lock", "checkpoints", "corpus"]))
def test_a_link_in_a_received_run_is_not_followed(start, tmp_path, name):
    start(max_steps=6).ends()
    own, target = tmp_path / "run" / name, tmp_path / "target"
    if own.is_dir():
        own.rename(target)
    else:
        target.write_text("precious, no line end")
        own.unlink()
    before = {path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()}
    own.symlink_to(target)
    start(max_steps=9).ends(3, f"{own} is a symbolic link")
    assert {path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()} == before
    if target.is_file():
        own.unlink()
        own.hardlink_to(target)
        start(max_steps=9).ends()
        assert target.read_text() == "precious, no line end" and own.read_bytes() and own.stat().st_nlink == 1


@pytest.mark.parametrize("name", ["checkpoints/step-8", "checkpoints/latest", "corpus/0123456789abcdef"])
def test_a_link_within_a_received_run_creates_no_folder_elsewhere(text, tmp_path, name):
    """`step-8` would appear where the link leads to, when it is saved."""
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    recipe = load_recipe("tiny", {"data": str(text), "output_dir": str(tmp_path / "run")})
    with pytest.raises(BrokenFileError, match=f"run/{name} is a symbolic link"):
        claim_output(tmp_path / "run", describe_run(recipe), recipe.settings(), pytest.fail)


@pytest.mark.parametrize("name", ["CONVERSION.md", "original", "original/vocab.json"])
def test_fine_tuning_copies_nothing_that_links_in_a_received_model_lead_to(tmp_path, name):
    secret, model, output = tmp_path / "secret", tmp_path / "model", tmp_path / "run"
    (secret if name == "original" else tmp_path).mkdir(exist_ok=True)
    (secret / "key" if name == "original" else secret).write_text("secret")
    (model / name).parent.mkdir(parents=True)
    (model / name).symlink_to(secret)
    output.mkdir()
    with pytest.raises(BrokenFileError, match=f"model/{name}.* leads to .*secret.*, outside the folder"):
        copy_conversion(model, output)
    assert not any(output.iterdir())


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_a_named_pipe_in_a_received_run_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(BrokenFileError, match=f"{name} is not a regular file; remove it"):
        Reporter(True).start(tmp_path, None, 0, 9)
        lock_run(tmp_path, pytest.fail)


@pytest.mark.slow
def test_a_run_works_without_locks_permissions_and_fsync_of_folders(text, tmp_path, uninterrupted, poor_file_system):
    command = [sys.executable, "-m", "training"]
    command += options_of(SMALL | {"data": str(text), "output_dir": str(tmp_path / "run")})
    environment = os.environ | {"LD_PRELOAD": str(poor_file_system), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert f"{tmp_path / 'run'} is on a file system without locks; do not start a second run" in ended.stderr
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("call", range(10, 500, 35))
def test_a_run_goes_on_after_any_change_of_a_file_has_failed(text, tmp_path, uninterrupted, full_for_one_call, call):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "training", *options_of(SMALL | {"data": str(text), "output_dir": str(run)})]
    variables = {"OMP_NUM_THREADS": "1", "LD_PRELOAD": str(full_for_one_call), "FAILING": str(run), "CALL": str(call)}
    failed = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=200)
    assert f"failed: {run}" in failed.stderr and "Traceback" not in failed.stderr
    errors = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    if failed.returncode:  # 0: a temporary folder could not be removed
        assert failed.returncode == 4 and len(errors) == 1 and "No space left on device" in errors[0]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=200)
    assert_bit_identical(uninterrupted(1)[0], run)


@pytest.mark.parametrize("state", ["full", "closed"])
def test_an_unwritable_stderr_does_not_end_training(start, tmp_path, state):
    start(fault=("stderr", state), max_steps=2).ends()
    assert (tmp_path / "run/model.safetensors").is_file()


@pytest.mark.parametrize("keep_going", [True, False])
def test_a_full_disk_leaves_complete_lines_in_the_log(tmp_path, capsys, keep_going):
    """Files are limited to 100 bytes; the first line has 60."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("0" * 59 + "\n" + "half a line")
    reporter = Reporter(True, keep_going=keep_going)
    reporter.start(tmp_path, None, 0, 9)
    with contextlib.nullcontext() if keep_going else pytest.raises(UnavailableError) as raised, file_size_limit(100):
        reporter.write({"event": "validation", "step": 1, "validation_loss": 1.25})
    assert path.read_text() == "0" * 59 + "\n"
    said = capsys.readouterr().err if raised is None else str(raised.value)
    assert f"{path} cannot be written: File too large (60 bytes needed" in said
