"""Runs of several processes: DDP, FSDP, and their launchers."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_until
from safetensors.torch import load_file
from saved_model import trained_tokenizer
from training_runs import (
    FSDP,
    ROOT,
    SMALL,
    STEPS,
    assert_bit_identical,
    assert_same_losses,
    kill_and_resume,
    launch,
    options_of,
    records_of,
)

from training import fsdp
from training.machine import has_bfloat16
from vaswani_transformer import Translator
from vaswani_transformer.errors import UnavailableError


def test_losses_do_not_depend_on_the_number_of_processes(uninterrupted):
    """Data, dropout and rates are the same; only sums over processes round differently."""
    assert_same_losses(uninterrupted(1)[0], uninterrupted(2)[0])


@pytest.mark.slow
def test_more_processes_than_micro_batches_share_them(start, tmp_path):
    """Without dropout, the same pairs in a step give the same loss."""
    keys = {"micro_batches": 1, "tokens_per_step": 120, "max_steps": 12, "learning_rate": 1e-3, "save_every": 12}
    keys |= {"model": {**SMALL["model"], "dropout": 0.0}, "average_last": 1}
    for ranks in (1, 2):
        start(f"run{ranks}", ranks=ranks, **keys).ends()
    one, two = ([r for r in records_of(tmp_path / f"run{ranks}") if "loss" in r] for ranks in (1, 2))
    assert len(one) == len(two) == 2
    for a, b in zip(one, two, strict=True):
        assert a["tokens"] == b["tokens"] and a["loss"] == pytest.approx(b["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("of_others", "message"),
    [
        ({"learning_rate": 0.02}, r"learning_rate is 0\.01 on rank 0 and 0\.02 on rank 1"),
        ({"data": "other"}, r"corpus sha256 is \w{64} on rank 0 and \w{64} on rank 1"),
        pytest.param(
            {"tokenizer": "tokenizer"},
            r"tokenizer sha256 is \w{64} on rank 0 and \w{64} on rank 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"mixed_precision": "bf16"},
            "mixed_precision is no on rank 0 and bf16 on rank 1",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(not has_bfloat16(), reason="without products of bfloat16, both train in float32"),
            ],
        ),
    ],
)
def test_processes_with_different_files_or_recipes_all_end(start, text, tmp_path, of_others, message):
    """Without the check, each process would train to the end, on its own text."""
    trained_tokenizer().save_pretrained(tmp_path / "tokenizer")
    shutil.copytree(text, tmp_path / "other")
    for path in (tmp_path / "other").glob("train.*"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:80]))
    keys = {key: str(tmp_path / value) if key in ("data", "tokenizer") else value for key, value in of_others.items()}
    process = start(ranks=2, of_others=keys, max_steps=3)
    for rank in process.ranks:
        rank.join(100)
        assert rank.exitcode == 2, process.said()
    assert re.search(f"error: rank [01]: the processes differ: .*{message}", process.said()), process.said()
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.slow
def test_processes_with_different_checkpoints_all_end(start, tmp_path):
    """On hosts whose folders of the same name are on different disks."""
    keys = {"ranks": 2, "max_steps": 3, "average_last": 1}
    for output, seed in (("run", 1), ("other", 2)):
        start(output, seed=seed, **keys).ends()
    for disk, found in ((tmp_path / "other/checkpoints", r"\w{64}"), (tmp_path / "empty", "missing")):
        process = start(**keys | {"max_steps": 6}, fault=("other disk", str(disk)))
        for rank in process.ranks:
            rank.join(100)
            assert rank.exitcode == 2, process.said()
        expected = rf"the processes differ: sha256 of step-3/manifest.json is \w{{64}} on rank 0 and {found} on rank 1"
        assert re.search(expected, process.said()), process.said()


@pytest.mark.slow
def test_fsdp_has_the_losses_and_files_of_ddp(uninterrupted):
    split, copied = uninterrupted(2, FSDP)[0], uninterrupted(2)[0]
    numbers = r"([\d,]+) parameters.*weights split by FSDP \(([\d,]+) here\)"
    found = re.search(numbers, (split.parent / "log").read_text(), re.DOTALL)
    assert found is not None and found[1] == "9,696" and found[2] == "4,848"  # all matrices have an even number of rows
    assert_same_losses(split, copied, 1e-5)
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = (load_file(folder / f"checkpoints/step-{STEPS}" / name) for folder in (split, copied))
        assert {key: value.shape for key, value in one.items()} == {key: value.shape for key, value in other.items()}
    assert {path.name for path in split.iterdir()} == {path.name for path in copied.iterdir()}


@pytest.mark.slow
def test_a_killed_fsdp_run_ends_with_the_same_bits(start, tmp_path, uninterrupted):
    kill_and_resume(start, tmp_path, *uninterrupted(2, FSDP), kills=6, seed=2, processes=2, variables=dict(FSDP))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "keys"),
    [
        (2, {"micro_batches": 3, "max_gradient_norm": 0.5, "bleu_every": STEPS}),  # two for one rank, one for the other
        (3, {"tokens_per_step": 799, "micro_batches": 1, "model": {**SMALL["model"], "d_model": 18}}),  # uneven shards
        (2, {"gradient_checkpointing": True, "mixed_precision": "bf16"}),
        (2, {"model": {**SMALL["model"], "tie_word_embeddings": False, "position_embedding_type": "learned"}}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)
def test_fsdp_has_the_losses_of_ddp_with_other_recipes(start, tmp_path, ranks, keys):
    for name, variables in (("ddp", None), ("fsdp", dict(FSDP))):
        start(name, ranks=ranks, variables=variables, **keys).ends()
    tolerance = 1e-2 if "mixed_precision" in keys else 1e-4
    assert_same_losses(tmp_path / "ddp", tmp_path / "fsdp", tolerance)
    ddp, fsdp = ([r.get("validation_bleu") for r in records_of(tmp_path / name)] for name in ("ddp", "fsdp"))
    assert ddp == fsdp and any(bleu is not None for bleu in ddp) == ("bleu_every" in keys)


@pytest.mark.slow
def test_a_run_resumes_with_and_without_fsdp(start, tmp_path, uninterrupted):
    """By one process, two with FSDP, two with DDP, two with FSDP, and one again."""
    fifth = {1: 20, 2: 10}  # backward passes until the end of the fifth step; DDP makes one more before the first
    for step, ranks, split in ((5, 1, False), (10, 2, True), (15, 2, False), (20, 2, True)):
        backward = fifth[ranks] + (ranks == 2 and not split)
        variables = dict(FSDP) if split else None
        said = start(ranks=ranks, variables=variables, fault=("term", backward), allow_changed=True).ends(
            143, f"saved step {step}"
        )
    assert "weights was split by FSDP, is None" in said
    start(allow_changed=True).ends(0, "resuming from step-20", "resuming a changed run: processes was 2, is 1")
    folders = (uninterrupted(2)[0], tmp_path / "run")
    one, other = (next(r for r in reversed(records_of(folder)) if "validation_loss" in r) for folder in folders)
    assert one["step"] == other["step"] == STEPS
    assert one["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-3)
    assert Translator.from_pretrained(tmp_path / "run").translate(["abc"])


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FSDP_OFFLOAD_PARAMS", "true", "fsdp_offload_params is not supported"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "INDUCTOR is not supported with FSDP; use --dynamo_backend no"),
    ],
)
def test_unsupported_fsdp_settings_are_named(monkeypatch, variable, value, message):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnavailableError, match=message):
        fsdp.pop_request()
    assert not fsdp.pop_request()  # Accelerate must not see it


def test_deepspeed_is_refused(start, tmp_path):
    start(variables={"ACCELERATE_USE_DEEPSPEED": "true"}).ends(4, "DeepSpeed is not supported")
    accumulating = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}  # by which Accelerate would divide the gradients
    start(variables=accumulating).ends(
        4, "gradient_accumulation_steps is 4; remove it, and set the recipe's micro_batches"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "variables"),
    [(["--multi_gpu"], ()), (["--config_file", str(ROOT / "training/accelerate/fsdp.yaml")], FSDP)],
    ids=["DDP", "FSDP"],
)
def test_accelerate_launch_runs_two_processes(text, tmp_path, uninterrupted, options, variables):
    launcher = launch(text, tmp_path, *options)
    assert launcher.wait(200) == 0, (tmp_path / "log").read_text()
    assert "2 processes on cpu" in (tmp_path / "log").read_text()
    assert_bit_identical(uninterrupted(2, variables)[0], tmp_path / "run")


@pytest.mark.slow
def test_a_launcher_that_starts_too_few_processes_is_detected(text, tmp_path):
    launcher = launch(text, tmp_path, "--cpu")
    assert launcher.wait(200) != 0
    expected = "1 process running, more requested; without GPUs, start them with `vaswani-transformer train --processes"
    assert expected in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_leftovers_of_another_launcher_are_named(start):
    said = start(variables={"WORLD_SIZE": "4", "RANK": "2"}).ends(2, "unset those of another launcher): Tried to")
    assert "a variable (WORLD_SIZE=4 RANK=2" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_waits_for_others_in_vain_names_them_and_can_be_stopped(start, number):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    process = start(variables=variables)
    wait_until(lambda: "waiting for" in process.said())
    assert f"(WORLD_SIZE=2 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}); to train in one" in process.said()
    assert process.said().endswith("unset WORLD_SIZE RANK MASTER_ADDR MASTER_PORT\n")
    os.kill(process.ranks[0].pid, number)
    assert process.wait() == -number


def test_a_taken_port_of_another_launcher_is_named(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        variables = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        said = f"MASTER_PORT={port}; unset those of another launcher"
        start(variables=variables).ends(4, said, "address already in use")


@pytest.mark.slow
def test_a_single_process_may_run_where_the_cluster_sets_an_address(text, tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "node7")
    launcher = launch(text, tmp_path, "--cpu", "--num_processes", "1", max_steps=6)
    assert launcher.wait(200) == 0, (tmp_path / "log").read_text()
    assert "1 process on cpu" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_two_hosts_equal_two_processes_on_one_host(text, tmp_path):
    """Both hosts are this machine, each with its own launcher."""
    keys = {"max_steps": 8, "save_every": 4, "validation": [], "validate_every": None}
    one, two = (tmp_path / name for name in ("one", "two"))
    running = []
    for folder, hosts in ((one, 1), (two, 2)):
        folder.mkdir()
        config = ["--config_file", str(ROOT / f"training/accelerate/{'two_hosts' if hosts == 2 else 'one_host'}.yaml")]
        for number in range(hosts):
            words = ["--machine_rank", str(number), "--main_process_ip", "127.0.0.1", "--num_machines", "2"]
            running.append(launch(text, folder, *config, *(words if hosts == 2 else []), **keys))
        assert [process.wait(240) for process in running] == [0] * len(running), (folder / "log").read_text()
    a, b = (load_file(folder / "run/model.safetensors") for folder in (one, two))
    assert a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def descendants(process: int) -> list[int]:
    found = [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return found + [further for child in found for further in descendants(child)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "rank", "code", "last"),
    [
        (signal.SIGTERM, None, 143, r"SIGTERM: saved step \d+; run the same command again to resume"),
        (signal.SIGINT, None, 130, r"SIGINT: saved step \d+; run the same command again to resume"),
        (signal.SIGKILL, 0, 137, r"error: rank 0: ended by SIGKILL; .*"),
        (signal.SIGKILL, 1, 137, r"error: rank 1: ended by SIGKILL; .*"),
        (None, 0, 2, r"error: rank \d: \d+ steps in a row had a loss or gradient that is not finite.*"),  # in all ranks
    ],
)
def test_the_end_of_several_processes_is_one_line(text, tmp_path, number, rank, code, last):
    keys = {"max_steps": 100_000, "validation": [], "validate_every": None, "processes": 2, "save_every": 100_000}
    if number is None:
        keys |= {"learning_rate": 1e30}
    options = SMALL | {"data": str(text), "output_dir": str(tmp_path / "run")} | keys
    log = tmp_path / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "vaswani_transformer", "train", *options_of(options)]
        launcher = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
    ranks = {}
    try:
        if number is not None:
            wait_until(lambda: "step 6/" in log.read_text() or launcher.poll() is not None)
            for process in descendants(launcher.pid):
                if found := re.search(r"\0RANK=(\d+)", Path(f"/proc/{process}/environ").read_text()):
                    ranks[int(found[1])] = process
            os.kill(launcher.pid if rank is None else ranks[rank], number)
        assert launcher.wait(200) == code, log.read_text()
    finally:
        launcher.kill()
    lines = log.read_text().splitlines()
    assert re.fullmatch(last, lines[-1]) and "error" not in "".join(lines[:-1]), log.read_text()
    assert not any(Path(f"/proc/{process}").exists() for process in ranks.values())


@pytest.mark.slow
def test_processes_wait_for_the_text_longer_than_for_each_other(start):
    start(ranks=2, fault=("slow text", 30), max_steps=6).ends()


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_run(start):
    process = start(ranks=2, fault=("hang", 15), max_steps=6)
    assert process.wait() not in (0, -signal.SIGKILL)
    (error,) = [line for line in process.said().splitlines() if "error:" in line]
    assert "15000ms" in error


@pytest.mark.slow
def test_the_model_is_released_before_the_process_group(start):
    """If DDP freed the group, Python could deadlock with one of its threads."""
    said = start(ranks=2, fault=("threads", 0), max_steps=6).ends()
    (threads,) = [line for line in said.splitlines() if line.startswith("threads:")]
    assert "python" in threads and "gloo" not in threads
