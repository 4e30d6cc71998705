"""The training program as it is used: whole runs in processes of their own, interrupted, killed, resumed."""

import gzip
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from saved_model import ENGLISH, GERMAN, trained_model, trained_tokenizer
from training_child import TrainingProcess

from training import fsdp, machine
from training.batches import plan_batches
from training.recipe import load_recipe
from training.report import Reporter
from training.scores import corpus_bleu
from training.train import GO_ON, LIMIT_REACHED, Progress, Run, make_accelerator, total_steps
from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.pictures import curves_of

ROOT = Path(__file__).parent.parent
STEPS = 24
# Five steps an epoch: every run crosses several epochs, accumulates, validates, prunes and averages.
SMALL = {
    "preset": "base",
    "model": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "dropout": 0.2,
    },
    "vocab_size": 270,
    "max_length": 40,
    "tokens_per_step": 800,
    "micro_batches": 4,
    "learning_rate": 0.01,
    "warmup_steps": 5,
    "max_steps": STEPS,
    "save_every": 5,
    "keep": 2,
    "average_last": 2,
    "validate_every": 6,
    "log_every": 6,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Pairs whose target is the source's letters in capitals."""
    folder = tmp_path_factory.mktemp("text")
    generator = random.Random(0)
    for name, count in (("train", 120), ("val", 20)):
        lines = ["".join(generator.choice("abcdefgh") for _ in range(generator.randint(2, 14))) for _ in range(count)]
        (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{name}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    return folder


@pytest.fixture
def start(text, tmp_path):
    """start(output=..., ranks=1, fault=None, variables=None, **keys) -> a running TrainingProcess"""
    running = []

    def run(output: str = "run", ranks: int = 1, fault=None, variables=None, **keys) -> TrainingProcess:
        flags = SMALL | {"data": str(text), "output_dir": str(tmp_path / output)} | keys
        process = TrainingProcess(flags, tmp_path / f"{output}.log", ranks, fault, variables=variables)
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_bit_identical(one: Path, other: Path) -> None:
    """The model folders' weights, and the newest checkpoints' weights and moments."""
    names = ["model.safetensors"] + [
        f"checkpoints/step-{STEPS}/{name}" for name in ("model.safetensors", "optimizer.safetensors")
    ]
    for name in names:
        a, b = load_file(one / name), load_file(other / name)
        assert a.keys() == b.keys() and len(a) > 5
        for key in a:
            assert torch.equal(a[key], b[key]), f"{name}: {key}"


@pytest.fixture(scope="module")
def uninterrupted(text, tmp_path_factory):
    """uninterrupted(processes) -> the folder of a run that nothing disturbed, and the seconds it took."""
    made = {}

    def run(processes: int, variables: tuple[tuple[str, str], ...] = ()) -> tuple[Path, float]:
        key = (processes, variables)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"uninterrupted-{processes}")
            flags = SMALL | {"data": str(text), "output_dir": str(folder / "run")}
            TrainingProcess({"max_steps": 0}, folder / "imports").wait()  # The first one waits for the imports.
            started = time.monotonic()
            process = TrainingProcess(flags, folder / "log", processes, variables=dict(variables))
            assert process.wait() == 0, process.said()
            made[key] = folder / "run", time.monotonic() - started
        return made[key]

    return run


# --- killed at any instant ---------------------------------------------------------------------------------------


def kill_and_go_on(
    start, tmp_path, reference: Path, seconds: float, kills: int, seed: int, processes: int, variables=None
) -> None:
    """Kill a run `kills` times, by turns at a random instant and inside a random change to the disk, go on each
    time, and compare. A run that ends before it is killed is compared too, and another one begins."""
    generator = random.Random(seed)
    hits = 0
    while hits < kills:
        fault = ("kill", generator.randint(1, 150)) if hits % 2 else None
        process = start(ranks=processes, fault=fault, variables=variables)
        if fault is None:
            time.sleep(generator.uniform(0.1, 0.5 * seconds))
            process.kill()
        if process.wait() == -9:
            hits += 1
            continue
        assert process.wait() == 0, process.said()
        assert_bit_identical(reference, tmp_path / "run")
        shutil.rmtree(tmp_path / "run")
    process = start(ranks=processes, variables=variables)
    assert process.wait() == 0, process.said()
    assert_bit_identical(reference, tmp_path / "run")
    leftovers = [p.name for p in (tmp_path / "run").rglob("*") if ".tmp-" in p.name]
    assert leftovers == []


def test_a_run_killed_five_times_ends_with_the_same_bits(start, tmp_path, uninterrupted):
    kill_and_go_on(start, tmp_path, *uninterrupted(1), kills=5, seed=0, processes=1)


def test_two_processes_killed_end_with_the_same_bits(start, tmp_path, uninterrupted):
    kill_and_go_on(start, tmp_path, *uninterrupted(2), kills=2, seed=1, processes=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_fifty_kills_end_with_the_same_bits(start, tmp_path, uninterrupted, seed):
    kill_and_go_on(start, tmp_path, *uninterrupted(1), kills=5, seed=100 + seed, processes=1)


@pytest.mark.parametrize(("fault", "code"), [("term", 143), ("int", 130)])
def test_a_signal_saves_and_leaves_and_the_same_command_goes_on(start, tmp_path, uninterrupted, fault, code):
    process = start(fault=(fault, 4 * 7 + 2))  # In the middle of the accumulation of step 8.
    assert process.wait() == code, process.said()
    assert (tmp_path / "run/checkpoints/latest").read_text() == "step-7\n"
    assert "saved step 7; the same command goes on from there" in process.said()
    process = start()
    assert process.wait() == 0 and "going on from step-7" in process.said()
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


def test_a_validation_that_a_signal_put_off_is_made_up_for(start, tmp_path, uninterrupted):
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
def test_three_processes_add_up_in_the_same_order_after_a_stop(start, tmp_path, uninterrupted):
    """The sum of two numbers has no order; that of three has, and DDP's first one of a process was another."""
    process = start(ranks=3, fault=("term", 14))
    assert process.wait() == 143, process.said()
    process = start(ranks=3)
    assert process.wait() == 0 and "going on from step-7" in process.said()
    assert_bit_identical(uninterrupted(3)[0], tmp_path / "run")


@pytest.mark.slow
def test_a_second_signal_ends_the_run_at_once_and_nothing_is_lost(start, tmp_path):
    process = start(fault=("term twice", 4 * 6 + 2))
    assert process.wait() == 143 and "saved" not in process.said()
    assert (tmp_path / "run/checkpoints/latest").read_text() in ("step-5\n", "step-6\n")  # 6, where it was the best.


def test_a_corrupt_newest_checkpoint_is_named_and_the_one_before_it_used(start, tmp_path, uninterrupted):
    assert start(fault=("term", 4 * 11 + 2)).wait() == 143
    newest = tmp_path / "run/checkpoints/step-11/optimizer.safetensors"
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 1
    newest.write_bytes(raw)
    process = start()
    assert process.wait() == 0
    assert "step-11/optimizer.safetensors has been altered" in process.said()
    assert "going on from step-10" in process.said()
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


def test_a_damaged_older_checkpoint_is_left_out_of_the_average_by_name(start, tmp_path):
    assert start().wait() == 0
    (tmp_path / "run/model.safetensors").unlink()
    older = tmp_path / "run/checkpoints/step-20"
    (older / "config.json").write_text("{}")
    process = start()
    assert process.wait() == 0, process.said()
    assert "step-20/config.json has 2 bytes" in process.said() and "the average of step-" in process.said()
    assert (tmp_path / "run/model.safetensors").is_file() and not older.exists()


def assert_same_losses(one: Path, other: Path, tolerance: float = 1e-3) -> None:
    records = [records_of(folder) for folder in (one, other)]
    assert any("validation_loss" in record for record in records[0])
    for a, b in zip(*records, strict=True):
        assert a["step"] == b["step"] and a.get("tokens") == b.get("tokens")
        for key in ("loss", "validation_loss", "gradient_norm"):
            assert (key in a) == (key in b)
            if key in a:
                assert a[key] == pytest.approx(b[key], rel=tolerance)


def test_another_number_of_processes_sees_the_same_data(uninterrupted):
    """Sums over processes round differently; data, dropout and rates are the same, so the losses agree."""
    assert_same_losses(uninterrupted(1)[0], uninterrupted(2)[0])


def test_more_processes_than_micro_batches_share_each_and_see_the_same_data(start, tmp_path):
    """Nothing random in the model: whoever has the same pairs in a step has the same losses."""
    keys = {"micro_batches": 1, "tokens_per_step": 120, "max_steps": 12, "learning_rate": 1e-3, "save_every": 12}
    keys |= {"model": {**SMALL["model"], "dropout": 0.0}, "average_last": 1}
    for ranks in (1, 2):
        process = start(f"run{ranks}", ranks=ranks, **keys)
        assert process.wait() == 0, process.said()
    one, two = ([r for r in records_of(tmp_path / f"run{ranks}") if "loss" in r] for ranks in (1, 2))
    assert len(one) == len(two) == 2
    for a, b in zip(one, two, strict=True):
        assert a["tokens"] == b["tokens"] and a["loss"] == pytest.approx(b["loss"], rel=1e-4)


# --- compiled ------------------------------------------------------------------------------------------------------

COMPILED = (("ACCELERATE_DYNAMO_BACKEND", "eager"),)  # What `accelerate launch --dynamo_backend eager` sets.


@pytest.mark.slow
def test_a_compiled_run_that_is_stopped_goes_on_to_the_same_bits(start, tmp_path, uninterrupted):
    whole = uninterrupted(1, COMPILED)[0]
    process = start(fault=("term", 4 * 7 + 2), variables=dict(COMPILED))
    assert process.wait() == 143 and "compiled by eager" in process.said(), process.said()
    process = start(variables=dict(COMPILED))
    assert process.wait() == 0 and "going on from step-7" in process.said(), process.said()
    assert_bit_identical(whole, tmp_path / "run")


@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_one_that_is_not(start, tmp_path):
    """Without dropout, which each draws in a way of its own; the compiler and its limit on new sizes say nothing."""
    keys = {"max_steps": 6, "model": {**SMALL["model"], "dropout": 0.0}}
    for output, variables in (("compiled", dict(COMPILED)), ("plain", None)):
        process = start(output, variables=variables, **keys)
        assert process.wait() == 0 and "recompile" not in process.said(), process.said()
    assert_same_losses(tmp_path / "compiled", tmp_path / "plain")


# --- FSDP ----------------------------------------------------------------------------------------------------------

FSDP = (("ACCELERATE_USE_FSDP", "true"),)  # What `accelerate launch` sets by training/accelerate/fsdp.yaml.


def test_fsdp_has_the_losses_of_ddp_and_writes_the_same_files(uninterrupted):
    split, copied = uninterrupted(2, FSDP)[0], uninterrupted(2)[0]
    numbers = r"([\d,]+) parameters.*weights split by FSDP \(([\d,]+) here\)"
    found = re.search(numbers, (split.parent / "log").read_text(), re.DOTALL)
    assert found is not None and found[1] == "9,696" and found[2] == "4,848"  # Every matrix has an even number of rows.
    assert_same_losses(split, copied, 1e-5)
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = (load_file(folder / f"checkpoints/step-{STEPS}" / name) for folder in (split, copied))
        assert {key: value.shape for key, value in one.items()} == {key: value.shape for key, value in other.items()}
    assert {path.name for path in split.iterdir()} == {path.name for path in copied.iterdir()}


@pytest.mark.slow
def test_fsdp_killed_ends_with_the_same_bits(start, tmp_path, uninterrupted):
    kill_and_go_on(start, tmp_path, *uninterrupted(2, FSDP), kills=6, seed=2, processes=2, variables=dict(FSDP))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "keys"),
    [
        (2, {"micro_batches": 3, "max_gradient_norm": 0.5, "bleu_every": STEPS}),  # One has two, the other one.
        (3, {"tokens_per_step": 799, "micro_batches": 1, "model": {**SMALL["model"], "d_model": 18}}),  # Uneven parts.
        (2, {"gradient_checkpointing": True, "mixed_precision": "bf16"}),
        (2, {"model": {**SMALL["model"], "tie_word_embeddings": False, "position_embedding_type": "learned"}}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)
def test_fsdp_has_the_losses_of_ddp_whatever_the_recipe(start, tmp_path, ranks, keys):
    for name, variables in (("ddp", None), ("fsdp", dict(FSDP))):
        process = start(name, ranks=ranks, variables=variables, **keys)
        assert process.wait() == 0, process.said()
    tolerance = 1e-2 if "mixed_precision" in keys else 1e-4
    assert_same_losses(tmp_path / "ddp", tmp_path / "fsdp", tolerance)
    ddp, fsdp = ([r.get("validation_bleu") for r in records_of(tmp_path / name)] for name in ("ddp", "fsdp"))
    assert ddp == fsdp and any(bleu is not None for bleu in ddp) == ("bleu_every" in keys)


@pytest.mark.slow
def test_a_run_goes_on_with_fsdp_without_it_and_in_one_process(start, tmp_path, uninterrupted):
    for step, ranks, variables in ((5, 2, None), (10, 2, dict(FSDP)), (15, 2, None), (20, 2, dict(FSDP))):
        backward = 9 if variables else 10  # In the fifth step from there; DDP makes one more before the first.
        process = start(ranks=ranks, variables=variables, fault=("term", backward))
        assert process.wait() == 143 and f"saved step {step}" in process.said(), process.said()
    assert "weights was split by FSDP, is None" in process.said()
    process = start(allow_changed=True)
    assert process.wait() == 0 and "going on from step-20" in process.said(), process.said()
    folders = (uninterrupted(2)[0], tmp_path / "run")
    one, other = (next(r for r in reversed(records_of(folder)) if "validation_loss" in r) for folder in folders)
    assert one["step"] == other["step"] == STEPS
    assert one["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-3)
    assert Translator.from_pretrained(tmp_path / "run").translate(["abc"])


def test_what_fsdp_does_not_do_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "true")
    with pytest.raises(UnavailableError, match="fsdp_offload_params is not offered"):
        fsdp.take_request()
    assert not fsdp.take_request()  # Accelerate must not see it, so it is taken away.
    monkeypatch.delenv("FSDP_OFFLOAD_PARAMS")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    with pytest.raises(
        UnavailableError, match="dynamo_backend INDUCTOR is not offered with FSDP; use --dynamo_backend no"
    ):
        fsdp.take_request()


def test_deepspeed_is_refused_by_name(start, tmp_path):
    process = start(variables={"ACCELERATE_USE_DEEPSPEED": "true"})
    assert process.wait() == 4 and "DeepSpeed, which is not offered" in process.said()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_shipped_file_for_fsdp_runs_two_processes(text, tmp_path, uninterrupted):
    result = launch(text, tmp_path, "--config_file", str(ROOT / "training/accelerate/fsdp.yaml"))
    assert result.returncode == 0, result.stderr
    assert "2 processes on cpu" in result.stdout + result.stderr
    assert_bit_identical(uninterrupted(2, FSDP)[0], tmp_path / "run")


# --- what a run leaves ---------------------------------------------------------------------------------------------


def test_the_run_leaves_a_model_folder_that_is_the_average_of_the_last_checkpoints(uninterrupted):
    folder, _ = uninterrupted(1)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (folder / name).is_file()
    checkpoints = [weights(folder / f"checkpoints/step-{step}") for step in (20, 24)]
    for name, value in weights(folder).items():
        torch.testing.assert_close(value, (checkpoints[0][name] + checkpoints[1][name]) / 2, atol=1e-7, rtol=1e-6)
    translations = Translator.from_pretrained(folder).translate(["abc", "hgf"])
    assert len(translations) == 2


def test_the_run_logs_its_speed_and_its_stalls_and_draws_its_curve(uninterrupted):
    folder, _ = uninterrupted(1)
    records = records_of(folder)
    speeds = [record["mfu"] for record in records if "mfu" in record]
    assert len(speeds) == STEPS // SMALL["log_every"] and all(0 < mfu < 1 for mfu in speeds)
    stalls = {r["step"]: r["stall_seconds"] for r in records if r.get("event") == "checkpoint"}
    validated = {record["step"] for record in records if record.get("event") == "validation"}
    assert {5, 10, 15, 20, 24} <= stalls.keys() <= {5, 10, 15, 20, 24} | validated
    assert all(0 < stall < 5 for stall in stalls.values())
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_last_checkpoints_and_the_best_are_kept(uninterrupted):
    folder, _ = uninterrupted(1)
    root = folder / "checkpoints"
    best = (root / "best").read_text().strip()
    losses = {}
    for record in records_of(folder):
        if record.get("event") == "validation" and record["step"] in (5, 10, 15, 20, 24):
            losses[record["step"]] = record["validation_loss"]
    assert best == f"step-{min(losses, key=lambda step: losses[step])}"
    kept = {path.name for path in root.iterdir() if path.is_dir()}
    assert kept == {"step-15", "step-20", "step-24", best}
    assert (root / "latest").read_text() == "step-24\n"


def test_a_finished_run_stays_as_it_is(start, tmp_path, uninterrupted):
    assert start().wait() == 0
    before = weights(tmp_path / "run")
    process = start()
    assert process.wait() == 0
    after = weights(tmp_path / "run")
    assert all(torch.equal(before[name], after[name]) for name in before)
    process = start(max_steps=STEPS + 5)  # Without a decay, training may go on longer.
    assert process.wait() == 0 and (tmp_path / f"run/checkpoints/step-{STEPS + 5}").is_dir()


def test_training_learns(start, tmp_path):
    """Capitals of random letters: whoever does not read the source is at ln 8 = 2.08 a letter at best."""
    process = start(
        max_steps=150, micro_batches=1, tokens_per_step=400, average_last=1, validate_every=150, save_every=150,
        learning_rate=3e-3, warmup_steps=40, decay_share=0.5, label_smoothing=0.0, vocab_size=262,
        model={**SMALL["model"], "dropout": 0.0, "d_model": 64}, bleu_every=150,
    )  # fmt: skip
    assert process.wait() == 0, process.said()
    (validation,) = [record for record in records_of(tmp_path / "run") if "validation_loss" in record]
    assert validation["validation_loss"] < 1.7 and 0 <= validation["validation_bleu"] <= 100


@pytest.mark.parametrize(
    ("limit", "last"),
    [
        ({"max_tokens": 2000}, range(2, 8)),
        ({"max_cpu_seconds": 0.05}, range(1, STEPS)),
        ({"max_epochs": 2.0}, range(6, 7)),
        ({"patience": 1, "learning_rate": 1e-12}, range(5, STEPS)),  # Nothing improves by so little.
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_a_limit_ends_the_run_with_a_model(start, tmp_path, limit, last):
    process = start(**limit)
    assert process.wait() == 0, process.said()
    newest = (tmp_path / "run/checkpoints/latest").read_text().strip()
    assert int(newest.removeprefix("step-")) in last and (tmp_path / "run/model.safetensors").is_file()


def test_a_part_of_an_epoch_is_rounded_up():
    plan = plan_batches(np.full(8, 4, np.int32), np.full(8, 6, np.int32), 20)  # four steps an epoch
    recipes = [load_recipe(None, {"max_steps": "null", "max_epochs": epochs}) for epochs in ("0.3", "1", "1.6")]
    assert [total_steps(recipe, plan) for recipe in recipes] == [2, 4, 7]


@pytest.mark.parametrize(("before", "code"), [(3590.0, GO_ON), (3601.0, LIMIT_REACHED)])
def test_hours_count_over_all_parts_of_a_run(before, code):
    run = SimpleNamespace(
        recipe=load_recipe(None, {"max_hours": "1"}),
        progress=Progress(),
        total_steps=9,
        wall_seconds_before=before,
        began=time.perf_counter(),
        signals=SimpleNamespace(received=None),
        accelerator=SimpleNamespace(num_processes=1),
    )
    assert Run._agreed_code(cast(Run, run)) == code


def test_fine_tuning_starts_from_the_given_weights(start, tmp_path, uninterrupted):
    folder, _ = uninterrupted(1)
    keys = {"initial_weights": str(folder), "tokenizer": str(folder), "max_steps": 1, "average_last": 1}
    process = start("tuned", learning_rate=1e-9, gradient_checkpointing=True, trackers=["tensorboard"], **keys)
    assert process.wait() == 0, process.said()
    assert list((tmp_path / "tuned").rglob("events.out.tfevents*"))
    tuned = weights(tmp_path / "tuned")
    for name, value in weights(folder).items():
        torch.testing.assert_close(tuned[name], value, atol=1e-8, rtol=0)


# --- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (1e30, "3 steps in a row had a loss or gradient that is not finite"),
        (3e38, "holds values that are not finite, so it is not saved"),  # Adam makes them of gradients that are.
    ],
)
def test_what_is_not_finite_never_reaches_a_checkpoint(start, tmp_path, rate, message):
    process = start(
        learning_rate=rate, warmup_steps=1, max_bad_steps=3, save_every=1, validate_every=None, validation=[]
    )
    assert process.wait() == 2
    assert message in process.said() and not (tmp_path / "run/model.safetensors").exists()
    for path in (tmp_path / "run/checkpoints").glob("step-*/*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())


def test_one_step_that_is_not_finite_is_skipped_and_counted(start, tmp_path):
    process = start(fault=("nan", 4 * 2 + 1), max_steps=6, validation=[], validate_every=None)
    assert process.wait() == 0 and "step 3: the gradient is not finite, step skipped" in process.said()
    (record,) = [record for record in records_of(tmp_path / "run") if "skipped_steps" in record]
    assert record["skipped_steps"] == 1
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


def test_steps_that_are_not_finite_count_in_a_row_only():
    run = SimpleNamespace(
        progress=Progress(),
        recipe=load_recipe(None, {"max_bad_steps": "2"}),
        accelerator=SimpleNamespace(mixed_precision="no"),
        reporter=Reporter(False),
    )
    for finite in (False, True, False, True, False):
        Run._count_skipped(cast(Run, run), finite)
    assert run.progress.skipped_steps == 3
    with pytest.raises(InputError, match="2 steps in a row"):
        Run._count_skipped(cast(Run, run), False)


@pytest.mark.slow
def test_a_state_that_is_not_whole_is_no_ground_for_going_on(start, tmp_path):
    """Also where its manifest has been made to fit: nothing is guessed."""
    assert start(fault=("term", 4 * 4 + 2)).wait() == 143
    folder = tmp_path / "run/checkpoints/step-4"
    state = json.loads((folder / "trainer_state.json").read_text())
    del state["progress"]
    (folder / "trainer_state.json").write_text(json.dumps(state))
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["files"]:
        raw = (folder / entry["name"]).read_bytes()
        entry |= {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    process = start()
    assert process.wait() == 3 and "lacks 'progress'; it cannot be resumed exactly" in process.said()


@pytest.mark.slow
def test_a_changed_tokenizer_is_refused_by_name(start, tmp_path):
    assert start(fault=("term", 4 * 4 + 2)).wait() == 143
    path = tmp_path / "run/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["merges"].pop()
    path.write_text(json.dumps(tokenizer))
    process = start()
    assert process.wait() == 2 and "tokenizer sha256 was" in process.said()


def test_a_changed_recipe_corpus_or_world_is_refused_by_name(start, text, tmp_path):
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
    process = start(ranks=2, allow_changed=True)
    assert process.wait() == 0 and "going on with a changed run: processes was 1, is 2" in process.said()


def test_the_disk_that_is_full_leaves_the_previous_checkpoint_and_names_the_file(start, tmp_path, uninterrupted):
    assert start(fault=("term", 4 * 4 + 2)).wait() == 143
    process = start(fault=("file size", 20_000))
    assert process.wait() == 4
    assert "step-5 cannot be written" in process.said() and "free); the previous one is intact" in process.said()
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("step-*")] == ["step-4"]
    assert start().wait() == 0
    # The stop at step 4 has moved no other checkpoint: the same bits as without any of it.
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")


@pytest.mark.slow
def test_a_run_may_go_on_without_a_checkpoint_that_could_not_be_written(start, tmp_path, uninterrupted):
    process = start(fault=("disk full", 1), keep_going=True)
    assert process.wait() == 0
    assert re.search(r"step-5 cannot be written: No space left on device \(about \d+ bytes.*; going on", process.said())
    assert_bit_identical(uninterrupted(1)[0], tmp_path / "run")
    process = start("none", fault=("file size", 20_000), keep_going=True, max_steps=6)
    assert process.wait() == 4 and "no checkpoint could be written, so there is no model" in process.said()


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(start, tmp_path):
    (tmp_path / "run").mkdir()
    process = start(fault=("read-only", str(tmp_path / "run")))
    assert process.wait() == 4, process.said()
    assert f"output_dir {tmp_path / 'run'} cannot be written: " in process.said() and "step" not in process.said()


def test_a_second_run_on_the_same_folder_is_refused_by_name(start):
    first = start(max_steps=100_000, validate_every=None, validation=[])
    deadline = time.monotonic() + 60
    while "step 6/" not in first.said():
        assert time.monotonic() < deadline and first.ranks[0].is_alive(), first.said()
        time.sleep(0.05)
    second = start(max_steps=100_000, validate_every=None, validation=[])
    assert second.wait() == 2
    assert f"is in use by process {first.ranks[0].pid} on " in second.said()
    assert first.ranks[0].is_alive()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"micro_batches": 3, "processes": 2}, "1 process running, 2 requested"),
        ({"model": {"d_modell": 16}}, "unknown config field 'd_modell'; did you mean 'd_model'?"),
        ({"model": {"d_model": 15}}, "`d_model` is 15"),
        ({"preset": "huge"}, "preset 'huge' is not one of base"),
        ({"vocab_size": 100_000}, "vocab_size 100000 is larger than the texts give"),
        ({"tokenizer": "nowhere"}, "nowhere has no tokenizer.json"),
        (
            {"model": {**SMALL["model"], "position_embedding_type": "learned", "max_position_embeddings": 20}},
            "max_length is 40, the model has 20 learned positions",
        ),
        ({"max_hours": 1e-9}, "ended the run before its first step"),
    ],
)
def test_wrong_input_is_one_line_before_the_first_step(start, keys, message):
    process = start(**keys)
    assert process.wait() in (2, 4)
    (line,) = [line for line in process.said().splitlines() if line.startswith("error")]
    assert message in line
    assert "Traceback" not in process.said() and "step 6" not in process.said()


def test_a_signal_ends_a_run_that_still_reads_its_text(start, tmp_path):
    """A thousand million lines in a file of a megabyte: minutes of reading."""
    (tmp_path / "text").mkdir()
    for name in ("train.en.gz", "train.de.gz"):
        (tmp_path / "text" / name).write_bytes(gzip.compress(b"a\n" * 1_000_000) * 1000)
    process = start(data=str(tmp_path / "text"), validation=[], validate_every=None)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run").is_dir():
        assert time.monotonic() < deadline and process.ranks[0].is_alive(), process.said()
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.ranks[0].pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_a_validation_that_is_no_number_is_null_in_the_log_and_never_the_best(tmp_path):
    reporter = Reporter(True)
    reporter.start(tmp_path, None, 0, 9)
    reporter.write({"event": "validation", "step": 1, "validation_loss": float("nan")})
    assert records_of(tmp_path) == [{"event": "validation", "step": 1, "validation_loss": None}]
    assert curves_of(tmp_path / "metrics.jsonl")["validation_loss"] == {}


@pytest.mark.parametrize("end", ["\n", " \r\n"])
def test_bleu_during_training_is_that_of_the_text_without_its_line_ends(tmp_path, end):
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / f"val.{language}").write_bytes("".join(line + end for line in lines).encode())
    recipe = load_recipe(None, {"data": str(tmp_path)})
    run = cast(Run, SimpleNamespace(recipe=recipe, tokenizer=trained_tokenizer(), target_tokenizer=None))
    translations = Translator(trained_model(), trained_tokenizer()).translate(ENGLISH)
    assert Run._bleu(run, trained_model()) == pytest.approx(corpus_bleu(translations, GERMAN, False))


def test_a_folder_that_is_not_ours_is_left_alone(start, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.txt").write_text("mine")
    process = start(overwrite=True)
    assert process.wait() == 2 and "is not empty (thesis.txt)" in process.said()
    assert (tmp_path / "run/thesis.txt").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    process = start(output="file")
    assert process.wait() == 2 and "is not a folder" in process.said()


def test_nothing_is_removed_before_it_is_known_that_another_run_can_begin(start, tmp_path):
    assert start(vocab_size=100_000).wait() == 2
    process = start(max_steps=6)  # Nothing has been trained there: the corrected recipe is no other run.
    assert process.wait() == 0, process.said()
    trained = weights(tmp_path / "run")
    for keys, message in (
        ({"data": "nowhere"}, "there is no folder nowhere"),
        ({"validation": "other"}, "no such file"),
        ({"initial_weights": str(tmp_path / "run")}, "lies in output_dir"),
        ({"model": {"d_model": 15}}, "`d_model` is 15"),
    ):
        process = start(max_steps=6, overwrite=True, **keys)
        assert process.wait() == 2 and message in process.said()
        assert weights(tmp_path / "run").keys() == trained.keys()
        assert (tmp_path / "run/checkpoints/latest").read_text() == "step-6\n"


def test_who_reads_the_log_may_go_away():
    said = "from training.report import Reporter as R; input(); r = R(True); r.say('a'); r.say('b'); print('goes on')"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", said]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stderr.close()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.read() == "goes on\n" and process.wait() == 0


def test_a_log_that_cannot_be_written_ends_no_training(text, tmp_path):
    flags = SMALL | {"data": str(text), "output_dir": str(tmp_path / "run"), "max_steps": 2}
    command = [sys.executable, "-m", "training"]
    command += [word for key, value in flags.items() for word in (f"--{key}", json.dumps(value))]
    with Path("/dev/full").open("wb") as full:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, cwd=ROOT, env=environment, stderr=full, timeout=200)
    assert result.returncode == 0 and (tmp_path / "run/model.safetensors").is_file()


def test_a_full_disk_leaves_whole_lines_in_the_log_and_is_named(tmp_path):
    """No file may grow beyond 100 bytes; the first line has 60."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("0" * 59 + "\n" + "half a line")
    write = (
        "import resource, sys; from pathlib import Path; from training.report import Reporter\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "reporter = Reporter(True, keep_going=sys.argv[2] == 'yes')\n"
        "reporter.start(Path(sys.argv[1]), None, 0, 9)\n"
        "reporter.write({'event': 'validation', 'step': 1, 'validation_loss': 1.25})"
    )
    for keep_going, code in (("yes", 0), ("no", 1)):
        command = [sys.executable, "-c", write, str(tmp_path), keep_going]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert result.returncode == code and path.read_text() == "0" * 59 + "\n"
        assert f"{path} cannot be written: File too large (60 bytes needed" in result.stderr


def launch_command(text: Path, tmp_path: Path, *how: str, **keys) -> list[str]:
    """`accelerate launch ... -m training` with the small recipe, as a user types it."""
    flags = SMALL | {"data": str(text), "output_dir": str(tmp_path / "run")} | keys
    command = [sys.executable, "-m", "accelerate.commands.launch", *how, "--num_processes", "2", "--num_machines", "1"]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "training"]
    return command + [word for key, value in flags.items() for word in (f"--{key}", json.dumps(value))]


def launch(text: Path, tmp_path: Path, *how: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = launch_command(text, tmp_path, *how)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_takes_all_down_within_a_minute_and_is_named(text, tmp_path, rank):
    command = launch_command(text, tmp_path, "--multi_gpu", max_steps=100_000, validation=[], validate_every=None)
    log = tmp_path / "log"
    with log.open("wb") as file:
        launcher = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 150
        while "step 6/" not in log.read_text():
            assert time.monotonic() < deadline and launcher.poll() is None, log.read_text()
            time.sleep(0.1)
        ranks = {}
        for process in children(launcher.pid):
            if found := re.search(r"\0RANK=(\d+)", Path(f"/proc/{process}/environ").read_text()):
                ranks[int(found[1])] = process
        assert sorted(ranks) == [0, 1]
        os.kill(ranks[rank], signal.SIGKILL)
        assert launcher.wait(60) != 0
    finally:
        launcher.kill()
    assert f"rank      : {rank}" in log.read_text() and "Signal 9 (SIGKILL)" in log.read_text(), log.read_text()
    assert not any(Path(f"/proc/{process}").exists() for process in ranks.values())


@pytest.mark.slow
def test_ddp_is_not_the_last_to_hold_the_group_of_processes(start):
    """Freed by it, the group waits for a thread of its own, which at times waits for Python: for ever."""
    process = start(ranks=2, fault=("threads", 0), max_steps=6)
    assert process.wait() == 0
    (threads,) = [line for line in process.said().splitlines() if line.startswith("threads:")]
    assert "python" in threads and "gloo" not in threads


@pytest.mark.slow
def test_clock_locale_time_zone_and_place_change_nothing(text, tmp_path, uninterrupted):
    """A clock that jumps by years, the C locale, another time zone, blanks and letters in paths, no home folder."""
    folder = tmp_path / "ein Ordner für 語"
    folder.mkdir()
    shutil.copytree(text, folder / "text ü")
    flags = SMALL | {"data": "text ü", "output_dir": "run ß"}
    jumps = (
        "import itertools, sys, time; real, years = time.time, itertools.cycle((0, 30, -20)); "
        "time.time = lambda: real() + next(years) * 3e7; "
        "from training.__main__ import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", jumps]
    command += [word for key, value in flags.items() for word in (f"--{key}", json.dumps(value, ensure_ascii=False))]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": "/proc/nowhere", "TZ": "Asia/Kathmandu"}
    environment |= {"LC_ALL": "C", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=200)
    assert result.returncode == 0, result.stderr.decode()
    assert_bit_identical(uninterrupted(1)[0], folder / "run ß")


def test_accelerate_launch_runs_two_processes(text, tmp_path, uninterrupted):
    result = launch(text, tmp_path, "--multi_gpu")
    assert result.returncode == 0, result.stderr
    assert_bit_identical(uninterrupted(2)[0], tmp_path / "run")


@pytest.mark.slow
def test_the_launcher_that_starts_one_process_of_two_is_caught(text, tmp_path):
    result = launch(text, tmp_path, "--cpu")
    assert result.returncode != 0
    assert (
        "1 process running, more requested; without GPUs, start them with `accelerate launch --multi_gpu"
        in result.stderr
    )


@pytest.mark.parametrize("wanted", [None, 2])
def test_too_few_processes_are_refused(monkeypatch, wanted):
    """A launcher that starts one of two processes sets only the address of the others."""
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    machine.refuse_too_few_processes(wanted, running=2)
    if wanted is None:
        machine.refuse_too_few_processes(None, running=1)
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UnavailableError, match=f"1 process running, {wanted or 'more'} requested"):
        machine.refuse_too_few_processes(wanted, running=1)


def test_a_tracker_that_is_not_installed_is_said_and_not_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("training.train.get_available_trackers", lambda: [])
    with pytest.raises(UnavailableError, match="tensorboard is not installed"):
        make_accelerator(load_recipe("demo", {"trackers": "[tensorboard]"}), tmp_path)
