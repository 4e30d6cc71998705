"""training/checkpoint.py: a checkpoint is whole or it is not there, and what is not whole is found out."""

import errno
import json
import os
import shutil
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training import checkpoint
from training.average import average_weights, write_model_folder
from training.average import main as average
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}


def write_step(number: float):
    def write(folder):
        checkpoint.save_tensors({name: value * number for name, value in TENSORS.items()}, folder / "model.safetensors")
        checkpoint.write_json(folder / checkpoint.STATE, {"step": number})

    return write


@pytest.fixture
def root(tmp_path):
    """Checkpoints of the steps 10, 20 and 30."""
    for step in (10, 20, 30):
        checkpoint.save_checkpoint(tmp_path / "checkpoints", step, write_step(step))
    return tmp_path / "checkpoints"


def names(folders):
    return [folder.name for folder in folders]


def test_the_newest_checkpoint_holds_what_was_written(root):
    newest = checkpoint.newest_whole(root, pytest.fail)
    assert newest is not None and newest == root / "step-30" and (root / "latest").read_text() == "step-30\n"
    torch.testing.assert_close(checkpoint.load_tensors(newest / "model.safetensors")["a"], TENSORS["a"] * 30)
    manifest = json.loads((newest / "manifest.json").read_text())
    assert {e["name"] for e in manifest["files"]} == {"model.safetensors", "trainer_state.json"}
    for entry in manifest["files"]:
        assert entry["size"] == (newest / entry["name"]).stat().st_size


def test_a_new_folder_has_no_checkpoint(tmp_path):
    assert checkpoint.newest_whole(tmp_path / "nothing", pytest.fail) is None


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_and_any_cut_is_found(data, tmp_path_factory):
    folder = checkpoint.save_checkpoint(tmp_path_factory.mktemp("c"), 1, write_step(1))
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    if path.name == checkpoint.MANIFEST:
        # A manifest may be altered without losing its meaning (white space, the step): then all is as it says.
        try:
            checkpoint.verify(folder)
        except BrokenFileError as error:
            assert str(folder) in str(error)
        else:
            assert json.loads(raw)["files"]
        return
    with pytest.raises(BrokenFileError, match=path.name):
        checkpoint.verify(folder)


def test_a_broken_checkpoint_is_moved_aside_and_named(root):
    (root / "step-30/model.safetensors").write_bytes(b"short")
    said = []
    assert checkpoint.newest_whole(root, said.append) == root / "step-20"
    assert "step-30/model.safetensors has 5 bytes" in said[0] and "falling back" in said[0]
    assert names(checkpoint.checkpoints(root)) == ["step-20", "step-10"] and (root / "step-30.broken").is_dir()
    for step in (10, 20):
        (root / f"step-{step}/trainer_state.json").unlink()
    for _ in range(2):  # What a supervisor does: the same again, and it does not begin anew.
        with pytest.raises(BrokenFileError, match="none of 3 checkpoints is whole; start again with --overwrite true"):
            checkpoint.newest_whole(root, said.append)
    for folder in root.glob("*.broken"):
        shutil.rmtree(folder)
    with pytest.raises(BrokenFileError, match="step-30 is gone; put it back"):
        checkpoint.newest_whole(root, said.append)


def test_what_a_killed_process_left_is_never_taken_for_a_checkpoint(root):
    shutil.copytree(root / "step-30", root / "step-40.tmp-123")
    assert names(checkpoint.checkpoints(root)) == ["step-30", "step-20", "step-10"]
    checkpoint.remove_unfinished(root)
    assert not (root / "step-40.tmp-123").exists() and (root / "step-30").is_dir()


def test_what_is_half_written_does_not_become_a_checkpoint(root):
    """Killed before its manifest was there, or with a file that is not whole."""
    for name, file in (("step-40.tmp-1", "manifest.json"), ("step-50.tmp-1", "model.safetensors")):
        shutil.copytree(root / "step-30", root / name)
        (root / name / file).unlink()
    checkpoint.remove_unfinished(root)
    assert names(checkpoint.checkpoints(root)) == ["step-30", "step-20", "step-10"] and not list(root.glob("*.tmp-*"))


class Calls:
    """Of several functions, counted together; the one of number `wrong` raises instead."""

    def __init__(self, wrong: int, error: BaseException):
        self.wrong, self.error, self.made = wrong, error, 0

    def counting(self, function):
        def run(*arguments, **keywords):
            self.made += 1
            if self.made == self.wrong:
                raise self.error
            return function(*arguments, **keywords)

        return run


def test_the_same_step_saved_again_is_never_without_a_whole_checkpoint(root, monkeypatch):
    """A kill at every call that changes the disk; there is no other checkpoint to fall back to."""
    for step in (10, 20):
        shutil.rmtree(root / f"step-{step}")
    kills = 0

    class Killed(BaseException):
        """Not an error: nobody cleans up after it."""

    for number in range(1, 100):
        calls = Calls(number, Killed())
        with monkeypatch.context() as patch:
            for module, name in ((os, "fsync"), (os, "replace"), (os, "mkdir"), (os, "unlink"), (shutil, "rmtree")):
                patch.setattr(module, name, calls.counting(getattr(module, name)))
            try:
                checkpoint.save_checkpoint(root, 30, write_step(30))
            except Killed:
                kills += 1
        checkpoint.remove_unfinished(root)
        assert checkpoint.newest_whole(root, pytest.fail) == root / "step-30"
        assert not list(root.glob("*.tmp-*"))
        if calls.made < number:
            break
    assert kills > 10


def test_every_file_is_on_the_disk_before_the_checkpoint_has_its_name(tmp_path, monkeypatch):
    """What a power cut would leave: a name that is on the disk stands for files that are."""
    events: list[Any] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: events.append(os.fstat(file).st_ino) or fsync(file))
    monkeypatch.setattr(os, "replace", lambda old, new: events.append(str(new)) or replace(old, new))
    made = checkpoint.save_checkpoint(tmp_path, 1, write_step(1))
    before = events[: events.index(str(made))]
    assert {path.name for path in made.iterdir() if path.stat().st_ino not in before} == set()
    assert tmp_path.stat().st_ino in events[events.index(str(made)) :]


def test_an_optimizer_that_never_stepped_is_restored_as_such(tmp_path):
    """fp16's first gradients may all be infinite: Adam has no moments when the run is stopped then."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint.save_tensors(checkpoint.optimizer_tensors(model, optimizer), tmp_path / checkpoint.OPTIMIZER)
    checkpoint.restore_optimizer(model, optimizer, tmp_path)
    assert not optimizer.state


def test_a_write_that_fails_at_any_point_leaves_the_previous_checkpoint(root, monkeypatch):
    """Every call that changes the disk fails once; after each failure step 30 is whole and nothing is left over."""
    failures = 0
    for number in range(1, 100):
        calls = Calls(number, OSError(errno.ENOSPC, "No space left on device"))
        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "mkdir"):
                patch.setattr(os, name, calls.counting(getattr(os, name)))
            try:
                checkpoint.save_checkpoint(root, 40, write_step(40))
            except UnavailableError as error:
                failures += 1
                assert "No space left on device" in str(error) and "step-40" in str(error)
            if calls.made < number:
                break  # Nothing is left that could fail.
        assert checkpoint.newest_whole(root, pytest.fail) in (root / "step-30", root / "step-40")
        checkpoint.verify(root / "step-30")
        assert not list(root.glob("step-*.tmp-*"))
    assert failures > 5 and checkpoint.newest_whole(root, pytest.fail) == root / "step-40"


def test_a_full_disk_is_refused_before_anything_is_written(root):
    with pytest.raises(UnavailableError, match="about 1000000000000000000 bytes needed"):
        checkpoint.save_checkpoint(root, 40, lambda _: pytest.fail("written"), bytes_needed=10**18)


def test_pruning_keeps_the_regular_ones_the_newest_and_the_best(root):
    for step in (40, 41):
        checkpoint.save_checkpoint(root, step, write_step(step))
    checkpoint.mark_best(root, 10)
    checkpoint.prune(root, keep=2, every=10)
    assert names(checkpoint.checkpoints(root)) == ["step-41", "step-40", "step-30", "step-10"]
    checkpoint.save_checkpoint(root, 50, write_step(50))
    checkpoint.prune(root, keep=2, every=10)
    assert names(checkpoint.checkpoints(root)) == ["step-50", "step-40", "step-10"]


def test_a_folder_is_locked_until_its_process_lets_go(tmp_path):
    held = checkpoint.lock_run(tmp_path / "run")
    with pytest.raises(InputError, match=f"in use by process {os.getpid()} on "):
        checkpoint.lock_run(tmp_path / "run")
    held.close()
    checkpoint.lock_run(tmp_path / "run").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        checkpoint.lock_run(tmp_path / "file")


def test_model_and_optimizer_come_back_bit_for_bit(tiny_model, tmp_path):
    def train(model, optimizer, steps):
        for step in range(steps):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.tensor([[5, 6, 2]]), labels=torch.tensor([[7, 2]])).loss.backward()
            optimizer.step()

    model = tiny_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    train(model, optimizer, 3)
    model.save_pretrained(tmp_path)
    checkpoint.save_tensors(checkpoint.optimizer_tensors(model, optimizer), tmp_path / checkpoint.OPTIMIZER)
    train(model, optimizer, 2)
    other = tiny_model(seed=1)
    optimizer = torch.optim.Adam(other.parameters(), lr=1e-2, fused=True)
    checkpoint.restore_model(other, tmp_path)
    checkpoint.restore_optimizer(other, optimizer, tmp_path)
    for step in range(2):
        torch.manual_seed(step)
        optimizer.zero_grad()
        other(torch.tensor([[5, 6, 2]]), labels=torch.tensor([[7, 2]])).loss.backward()
        optimizer.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_infinity_of_either_sign_is_found():
    for value in (torch.inf, -torch.inf, torch.nan):
        assert checkpoint.not_finite({"a": torch.ones(2), "b": torch.tensor([0.0, value])}) == "b"
    assert checkpoint.not_finite({"a": torch.ones(2), "empty": torch.ones(0)}) is None


def test_weights_of_another_model_are_refused_by_name(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(BrokenFileError, match=r"lacks model\.decoder\.layers\.3"):
        checkpoint.restore_model(tiny_model(decoder_layers=4), tmp_path)
    with pytest.raises(BrokenFileError, match=r"is \(30, 16\), the model's is \(31, 16\)"):
        checkpoint.restore_model(tiny_model(vocab_size=31), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BrokenFileError, match=r"model\.safetensors is not a whole safetensors file"):
        checkpoint.restore_model(tiny_model(), tmp_path)


# --- averaging -----------------------------------------------------------------------------------------------------


def test_the_average_is_the_mean_of_every_tensor(root):
    averaged = average_weights([root / "step-10", root / "step-30"])
    for name, value in TENSORS.items():
        torch.testing.assert_close(averaged[name], value * 20)


def test_weights_of_bfloat16_are_averaged_without_its_rounding(tmp_path):
    folders = []
    for number, value in enumerate((1.0, 1.0, 1.0078125, 1.0078125, 1.0078125)):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        checkpoint.save_tensors({"a": torch.full((3,), value, dtype=torch.bfloat16)}, folders[-1] / "model.safetensors")
    expected = torch.tensor((2 + 3 * 1.0078125) / 5).to(torch.bfloat16)
    assert average_weights(folders)["a"].tolist() == [expected.item()] * 3


def test_the_average_command_makes_a_model_folder_of_the_last_checkpoints(root, tmp_path, capsys):
    average([str(tmp_path), "--output", str(tmp_path / "model"), "--last", "2"])
    assert "the average of step-20, step-30" in capsys.readouterr().out
    torch.testing.assert_close(
        checkpoint.load_tensors(tmp_path / "model/model.safetensors")["b"], torch.full((4,), 25.0)
    )
    with pytest.raises(SystemExit) as stop:
        average([str(tmp_path), "--output", str(tmp_path / "model")])
    assert stop.value.code == 2 and "exists; name a new folder" in capsys.readouterr().err


def test_the_averaged_folder_has_both_tokenizers(root, tmp_path):
    files = ["tokenizer.json", "target_tokenizer/tokenizer.json", "target_tokenizer/tokenizer_config.json"]
    for name in files:
        (root / "step-30" / name).parent.mkdir(exist_ok=True)
        (root / "step-30" / name).write_text(f'"{name}"')
    write_model_folder([root / "step-20", root / "step-30"], tmp_path / "model")
    assert [(tmp_path / "model" / name).read_text() for name in files] == [f'"{name}"' for name in files]


def test_a_damaged_checkpoint_is_not_averaged(root, tmp_path, capsys):
    state = root / "step-20/model.safetensors"
    raw = bytearray(state.read_bytes())
    raw[-1] ^= 1
    state.write_bytes(raw)
    with pytest.raises(SystemExit) as stop:
        average([str(tmp_path), "--output", str(tmp_path / "model"), "--last", "2"])
    assert stop.value.code == 3 and "step-20/model.safetensors has been altered" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_checkpoints_of_different_models_are_not_averaged(root, tmp_path):
    (tmp_path / "other").mkdir()
    checkpoint.save_tensors({"a": TENSORS["a"]}, tmp_path / "other/model.safetensors")
    with pytest.raises(InputError, match="has not the tensors of .*: b"):
        write_model_folder([root / "step-10", tmp_path / "other"], tmp_path / "model")
    assert not list((tmp_path / "model").iterdir())


# --- in the background ---------------------------------------------------------------------------------------------


def test_what_is_written_in_the_background_is_the_state_of_the_moment_it_began(tmp_path):
    saving, may_write = checkpoint.Background(), threading.Event()
    tensors = {name: value.clone() for name, value in TENSORS.items()}
    copied = checkpoint.copies(tensors)

    def write():
        assert may_write.wait(60)
        checkpoint.save_checkpoint(tmp_path, 1, lambda folder: checkpoint.save_tensors(copied, folder / "a"))

    saving.start(write)
    saving.raise_if_failed()  # Returns at once: it is still writing.
    for tensor in tensors.values():
        tensor.zero_()  # Training goes on.
    may_write.set()
    saving.wait()
    for name, value in checkpoint.load_tensors(tmp_path / "step-1" / "a").items():
        assert torch.equal(value, TENSORS[name])


def test_a_failure_in_the_background_is_raised_once_and_by_the_next_save_at_the_latest(tmp_path):
    def fail():
        raise UnavailableError("disk full")

    done = []
    for ask in (checkpoint.Background.wait, lambda saving: saving.start(lambda: done.append(1))):
        saving = checkpoint.Background()
        saving.start(fail)
        with pytest.raises(UnavailableError, match="disk full"):
            ask(saving)
        saving.wait()
        saving.start(lambda: done.append(2))
        saving.wait()
    assert done == [2, 2]


def test_weights_may_be_read_by_whom_every_other_file_may(tmp_path):
    """safetensors makes its files for their owner alone, and a model that another user trained would not load."""
    checkpoint.save_tensors(TENSORS, tmp_path / "model.safetensors")
    (tmp_path / "other").touch()
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
