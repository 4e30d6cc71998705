"""training/checkpoints.py: a checkpoint is complete or absent, and damage is detected."""

import dataclasses
import errno
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from disks import flip_a_bit, not_removable, shared_folder
from safetensors.torch import load_file
from saved_model import change_json
from training_runs import ROOT

from training import checkpoints, tensors
from training.average import find_records
from training.average import main as average
from training.final_model import average_weights, write_model
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.files import write_json
from vaswani_transformer.languages import read_languages
from vaswani_transformer.loading import load_model
from vaswani_transformer.model_folder import CODE_FILES, verify_manifest

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}


def write_step(number: float):
    def write(folder):
        for name in ("model.safetensors", tensors.OPTIMIZER):
            tensors.save_tensors({key: value * number for key, value in TENSORS.items()}, folder / name)
        write_json(folder / checkpoints.STATE, {"step": number})

    return write


@pytest.fixture
def root(tmp_path):
    """Checkpoints of steps 10, 20 and 30."""
    for step in (10, 20, 30):
        checkpoints.save_checkpoint(tmp_path / "checkpoints", step, write_step(step))
    return tmp_path / "checkpoints"


def names(folders):
    return [folder.name for folder in folders]


def test_the_newest_checkpoint_is_found_even_if_latest_is_stale(root):
    (root / "latest").write_text("step-20\n")
    assert checkpoints.newest_intact(root, pytest.fail) == root / "step-30"
    assert (root / "latest").read_text() == "step-30\n"
    torch.testing.assert_close(tensors.load_tensors(root / "step-30/model.safetensors")["a"], TENSORS["a"] * 30)


def test_a_pointer_that_is_no_text_is_replaced(root):
    (root / "latest").write_bytes(b"\xff\xfe")
    assert checkpoints.newest_intact(root, pytest.fail) == root / "step-30"
    assert (root / "latest").read_text() == "step-30\n"


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: bytes([raw[0] ^ 1]) + raw[1:]])
def test_a_flipped_bit_and_truncation_are_detected_in_every_file(root, damage):
    for path in (root / "step-30").iterdir():
        intact = path.read_bytes()
        path.write_bytes(damage(intact))
        with pytest.raises(BrokenFileError, match=path.name):
            verify_manifest(root / "step-30", checkpoints.RESUMED_FILES)
        path.write_bytes(intact)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "files is a dict; it must be a list"),
        ([5], r"name of files\[0\] is 5"),
        ([{"name": "a", "size": "5", "sha256": ""}], r"size of files\[0\] is '5'"),
        ([{"name": "a", "size": 5}], r"sha256 of files\[0\] is None"),
    ],
)
def test_a_wrong_type_in_a_manifest_is_named(root, files, message):
    change_json(root / "step-30/manifest.json", files=files)
    with pytest.raises(BrokenFileError, match=f"step-30/manifest.json: {message}"):
        verify_manifest(root / "step-30")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "trainer_state.json"])
def test_a_manifest_vouches_for_every_file_that_is_resumed(root, name):
    path = root / "step-30/manifest.json"
    listed = json.loads(path.read_text())["files"]
    change_json(path, files=[entry for entry in listed if entry["name"] != name])
    with pytest.raises(BrokenFileError, match=f"step-30/manifest.json does not list {name}"):
        verify_manifest(root / "step-30", checkpoints.RESUMED_FILES)


def test_a_damaged_checkpoint_is_moved_aside_and_named(root):
    (root / "step-30/model.safetensors").write_bytes(b"short")
    said = []
    assert checkpoints.newest_intact(root, said.append) == root / "step-20"
    assert "step-30/model.safetensors has 5 bytes; manifest.json lists" in said[0] and "falling back" in said[0]
    assert names(checkpoints.list_checkpoints(root)) == ["step-20", "step-10"] and (root / "step-30.broken").is_dir()
    for step in (10, 20):
        (root / f"step-{step}/trainer_state.json").unlink()
    for _ in range(2):  # retrying does not start from step 0
        with pytest.raises(BrokenFileError, match="all 3 checkpoints are damaged; start again with --overwrite true"):
            checkpoints.newest_intact(root, said.append)
    for folder in root.glob("*.broken"):
        shutil.rmtree(folder)
    with pytest.raises(BrokenFileError, match="step-20 is missing; restore it"):
        checkpoints.newest_intact(root, said.append)


def test_checkpoints_of_another_user_are_not_called_damaged():
    """As after a run in a container, where the user was root."""
    with shared_folder() as root:
        for step in (10, 20):
            checkpoints.save_checkpoint(root, step, write_step(step))
        with not_removable(root / "step-10"), pytest.raises(UnavailableError, match="step-10 cannot be removed: Perm"):
            checkpoints.prune(root, keep=1, every=10)
        (root / "step-20/manifest.json").chmod(0)
        with (
            not_removable(root / "step-20"),
            pytest.raises(UnavailableError, match="manifest.json: Permission denied; ask"),
        ):
            checkpoints.newest_intact(root, print)
        (root / "step-20/manifest.json").chmod(0o600)
        assert checkpoints.newest_intact(root, print) == root / "step-20"
        assert names(checkpoints.list_checkpoints(root)) == ["step-20", "step-10"]


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_a_damaged_checkpoint_is_moved_nowhere_else(root, tmp_path, kind):
    """`shutil.move` would move it into the folder that a link in a received run leads to."""
    aside, elsewhere = root / "step-30.broken", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "folder":
        aside.mkdir()
    elif kind == "link":
        aside.symlink_to(elsewhere)
    else:
        aside.write_text("a file")
    (root / "step-30/model.safetensors").write_bytes(b"short")
    assert checkpoints.newest_intact(root, lambda _: None) == root / "step-20"
    assert not any(elsewhere.iterdir()) and (aside / "model.safetensors").is_file() and not aside.is_symlink()


def test_a_full_disk_leaves_the_previous_checkpoint(root, monkeypatch):
    """Every call that changes the disk fails once. Kills: test_training_resume.py."""
    error = OSError(errno.ENOSPC, "No space left on device")
    for number in itertools.count(1):
        shutil.rmtree(root / "step-40", ignore_errors=True)
        calls = itertools.count(1)
        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "mkdir"):
                patch.setattr(os, name, failing_at(number, calls, getattr(os, name), error))
            try:
                checkpoints.save_checkpoint(root, 40, write_step(40))
            except UnavailableError as raised:
                assert "No space left on device" in str(raised) and "step-40" in str(raised)
        newest = checkpoints.newest_intact(root, pytest.fail)
        assert newest is not None and newest in (root / "step-30", root / "step-40") and not list(root.glob(".*"))
        assert (root / "latest").read_text() == f"{newest.name}\n"
        assert verify_manifest(root / "step-30", checkpoints.RESUMED_FILES)
        if next(calls) <= number:  # every call has failed once
            assert number > 6 and newest == root / "step-40"
            return


def failing_at(number, calls, function, error):
    def run(*arguments):
        if next(calls) == number:
            raise error
        return function(*arguments)

    return run


def test_moments_that_do_not_fit_the_model_are_refused(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer, path = torch.optim.Adam(model.parameters()), tmp_path / tensors.OPTIMIZER
    tensors.save_tensors(tensors.optimizer_tensors(model, optimizer), path)
    # With fp16 the first gradients may all be infinite, which leaves Adam without moments.
    tensors.restore_optimizer(model, optimizer, tmp_path, steps_taken=0)
    assert not optimizer.state
    with pytest.raises(BrokenFileError, match="optimizer.safetensors does not fit the model: it lacks exp_avg/bias"):
        tensors.restore_optimizer(model, optimizer, tmp_path, steps_taken=1)
    tensors.save_tensors({"step/bias": torch.tensor(1.0)}, path)
    with pytest.raises(BrokenFileError, match=r"optimizer.safetensors does not fit the model: it lacks exp_avg/bias"):
        tensors.restore_optimizer(model, optimizer, tmp_path, steps_taken=1)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    tensors.save_tensors(tensors.optimizer_tensors(model, optimizer) | {"exp_avg/bias": torch.zeros(1)}, path)
    with pytest.raises(BrokenFileError, match=r"exp_avg/bias has shape \(1,\); it must be \(2,\)"):
        tensors.restore_optimizer(model, optimizer, tmp_path, steps_taken=1)
    whole = tensors.optimizer_tensors(model, optimizer)
    tensors.save_tensors(whole | {"exp_avg/bias": torch.zeros(2, dtype=torch.int8)}, path)
    with pytest.raises(BrokenFileError, match=r"exp_avg/bias is torch.int8; it must be a floating-point type"):
        tensors.restore_optimizer(model, optimizer, tmp_path, steps_taken=1)
    tensors.save_tensors(whole | {"exp_avg/bias": torch.zeros(2, dtype=torch.float64)}, path)
    with pytest.raises(BrokenFileError, match=r"exp_avg/bias is torch.float64; it must be torch.float32"):
        tensors.restore_optimizer(model, optimizer, tmp_path, steps_taken=1)
    tensors.save_tensors(whole, path)
    with pytest.raises(BrokenFileError, match=r"step/weight is 1, but the checkpoint has taken 900 steps"):
        tensors.restore_optimizer(model, optimizer, tmp_path, steps_taken=900)
    tensors.restore_optimizer(model, optimizer, tmp_path, steps_taken=1)


SCALER = {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 7}


def test_the_scale_of_an_fp16_run_is_restored_or_missed(tmp_path):
    scaler = torch.amp.GradScaler("cpu")
    checkpoints.restore_scaler(scaler, {"gradient_scaler": SCALER}, tmp_path)
    assert scaler.state_dict() == SCALER
    for saved, message in (
        (None, "gradient_scaler is None; an fp16 run needs its scale"),
        ({}, "gradient_scaler: scale is missing; it must be a number of 0 or more"),
        (SCALER | {"scale": "8"}, "gradient_scaler: scale is '8'; it must be a number of 0 or more"),
    ):
        with pytest.raises(BrokenFileError, match=f"^{tmp_path}: {message}$"):
            checkpoints.restore_scaler(scaler, {"gradient_scaler": saved}, tmp_path)


def test_every_field_of_the_progress_is_needed(tmp_path):
    whole = dataclasses.asdict(checkpoints.Progress(step=3, tokens=40))
    assert checkpoints.Progress.read(whole, tmp_path) == checkpoints.Progress(step=3, tokens=40)
    for field in whole:
        with pytest.raises(BrokenFileError, match=f"^{tmp_path}: progress: {field} is missing; it must be"):
            checkpoints.Progress.read({name: value for name, value in whole.items() if name != field}, tmp_path)
        with pytest.raises(BrokenFileError, match=f"^{tmp_path}: progress: {field} is '3'; it must be"):
            checkpoints.Progress.read(whole | {field: "3"}, tmp_path)


def test_a_full_disk_is_refused_before_anything_is_written(root):
    with pytest.raises(UnavailableError, match="about 1000000000000000000 bytes needed"):
        checkpoints.save_checkpoint(root, 40, lambda _: pytest.fail("written"), bytes_needed=10**18)


def test_pruning_keeps_regular_newest_and_best_checkpoints(root):
    for step in (40, 41):
        checkpoints.save_checkpoint(root, step, write_step(step))
    checkpoints.write_pointer(root / "best", "step-10")
    checkpoints.prune(root, keep=2, every=10)
    assert names(checkpoints.list_checkpoints(root)) == ["step-41", "step-40", "step-30", "step-10"]
    checkpoints.save_checkpoint(root, 50, write_step(50))
    checkpoints.prune(root, keep=2, every=10)
    assert names(checkpoints.list_checkpoints(root)) == ["step-50", "step-40", "step-10"]


IN_LAYERS = """
import sys
from pathlib import Path
from training.checkpoints import newest_intact, prune
root = Path(sys.argv[1])
prune(root, keep=0, every=10)
print([path.name for path in root.glob("step-*")])
(root / "step-30/manifest.json").unlink()
try:
    newest_intact(root, lambda _: None)
except ValueError:
    print([path.name for path in root.glob("step-*")])
"""


@pytest.mark.slow
def test_checkpoints_in_the_layer_of_a_container_image_are_removed_and_set_aside(root, tmp_path):
    """They belong to the image: the overlay file system cannot rename their folders."""
    folders = [tmp_path / name for name in ("upper", "work", "merged")]
    for folder in folders:
        folder.mkdir()
    upper, work, merged = folders
    mount = f"mount -t overlay overlay -o userxattr,lowerdir={root},upperdir={upper},workdir={work} {merged}"
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*unshare, mount], capture_output=True).returncode:
        pytest.skip("this system mounts no overlay")
    command = f'{mount} && exec "$0" -c "$1" {merged}'
    ended = subprocess.run(
        [*unshare, command, sys.executable, IN_LAYERS], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert ended.stdout == "['step-30']\n['step-30.broken']\n", ended.stderr


def test_weights_of_another_model_are_refused(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(BrokenFileError, match=r"lacks model\.decoder\.layers\.3"):
        tensors.restore_model(tiny_model(decoder_layers=4), tmp_path)
    with pytest.raises(BrokenFileError, match=r"has shape \(30, 16\); it must be \(31, 16\)"):
        tensors.restore_model(tiny_model(vocab_size=31), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BrokenFileError, match=r"model\.safetensors is not a complete safetensors file"):
        tensors.restore_model(tiny_model(), tmp_path)


# --- averaging -----------------------------------------------------------------------------------------------------


def test_bfloat16_weights_are_averaged_in_float64(tmp_path):
    folders = []
    for number, value in enumerate((1.0, 1.0, 1.0078125, 1.0078125, 1.0078125)):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        tensors.save_tensors({"a": torch.full((3,), value, dtype=torch.bfloat16)}, folders[-1] / "model.safetensors")
    expected = torch.tensor((2 + 3 * 1.0078125) / 5).to(torch.bfloat16)
    assert average_weights(folders)["a"].tolist() == [expected.item()] * 3


@pytest.fixture
def fails(tmp_path, refused):
    """fails(code, message, *arguments): the average command ends with this error, and writes no model."""

    def run(code, message, *arguments):
        assert message in refused(average, [*arguments, "--output", tmp_path / "model"], code)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]

    return run


@pytest.fixture
def models(tiny_model, tmp_path):
    """Checkpoints of a model, of steps 10, 20 and 30, in the folder of its run."""
    for step in (10, 20, 30):
        checkpoints.save_checkpoint(tmp_path / "checkpoints", step, tiny_model(step).save_pretrained)
    return tmp_path / "checkpoints"


def test_the_average_command_writes_a_model_folder(models, tiny_model, tmp_path, capsys, refused):
    arguments = [str(tmp_path), "--output", str(tmp_path / "model"), "--last", "2"]
    average(arguments)
    assert "the average of step-20, step-30" in capsys.readouterr().out
    assert read_languages(tmp_path / "model") is None
    recipe = {"save_every": 10, "source_language": "en", "target_language": "de"}
    (tmp_path / "run.json").write_text(json.dumps({"recipe": recipe}))
    checkpoints.save_checkpoint(models, 25, tiny_model(25).save_pretrained)  # a new best one between two of these
    average([str(tmp_path), "--output", str(tmp_path / "regular"), "--last", "2"])
    assert "the average of step-20, step-30" in capsys.readouterr().out
    assert read_languages(tmp_path / "regular") == ("en", "de")
    assert "is not empty; give the name of a new folder" in refused(average, arguments)
    several = [models / "step-20", models / "step-30", "--last", "2", "--output", tmp_path / "two"]
    assert "--last 2 counts the checkpoints of one run" in refused(average, several)
    found = load_model(tmp_path / "model", "cpu").model.shared.weight
    expected = (tiny_model(20).model.shared.weight + tiny_model(30).model.shared.weight) / 2
    torch.testing.assert_close(found, expected)


def test_the_best_checkpoint_can_be_averaged(models, tmp_path, capsys, fails):
    checkpoints.write_pointer(models / "best", "step-20")
    fails(2, "step-20 is given twice", *sorted(models.iterdir()))  # as by checkpoints/*
    average([str(models / "best"), str(models / "step-30"), "--output", str(tmp_path / "model")])
    assert "the average of step-20, step-30" in capsys.readouterr().out


def test_models_in_several_files_are_averaged(models, tiny_model, tmp_path):
    tiny_model(40).save_pretrained(tmp_path / "parts", max_shard_size="5KB")
    assert len([*(tmp_path / "parts").glob("*.safetensors")]) > 1
    average([str(models / "step-20"), str(tmp_path / "parts"), "--output", str(tmp_path / "model")])
    found = load_model(tmp_path / "model", "cpu").model.shared.weight
    torch.testing.assert_close(found, (tiny_model(20).model.shared.weight + tiny_model(40).model.shared.weight) / 2)


def test_a_checkpoint_does_not_count_twice(models, fails):
    (models / "last").symlink_to("step-30")
    fails(2, "last is given twice, and would count twice", models / "step-30", models / "step-20", models / "last")


@pytest.mark.parametrize("last", [torch.float32, torch.bfloat16])
def test_the_precision_of_an_average_is_that_in_its_config(models, tiny_model, tmp_path, last):
    """transformers loads a model in the precision that config.json names."""
    for step, dtype in ((40, torch.float32 if last == torch.bfloat16 else torch.bfloat16), (50, last)):
        checkpoints.save_checkpoint(models, step, tiny_model(step).to(dtype).save_pretrained)
    average([str(models / "step-40"), str(models / "step-50"), "--output", str(tmp_path / "model")])
    assert load_file(tmp_path / "model/model.safetensors")["model.shared.weight"].dtype == last
    assert json.loads((tmp_path / "model/config.json").read_text())["dtype"] == str(last).removeprefix("torch.")


def test_the_averaged_folder_has_both_tokenizers(root, tmp_path):
    files = ["tokenizer.json", "target_tokenizer/tokenizer.json", "target_tokenizer/tokenizer_config.json"]
    for name in files:
        for step in (20, 30):
            (root / f"step-{step}" / name).parent.mkdir(exist_ok=True)
            (root / f"step-{step}" / name).write_text(f'{{"{name}": 1}}')
    write_model([root / "step-20", root / "step-30"], tmp_path)
    assert [(tmp_path / name).read_text() for name in files] == [f'{{"{name}": 1}}' for name in files]


@pytest.mark.parametrize("words", [[".", "--last", "2"], ["checkpoints/step-20"]])  # the run, or a folder
def test_a_damaged_checkpoint_is_not_averaged(models, tmp_path, fails, words):
    flip_a_bit(models / "step-20/model.safetensors")
    fails(3, "step-20/model.safetensors has been altered", tmp_path / words[0], *words[1:])


def test_checkpoints_of_different_models_are_not_averaged(root):
    checkpoints.save_checkpoint(
        root, 40, lambda folder: tensors.save_tensors({"a": TENSORS["a"]}, folder / "model.safetensors")
    )
    with pytest.raises(InputError, match="must have the tensors of .*/step-10; different: b"):
        average_weights([root / "step-10", root / "step-40"])


@pytest.mark.parametrize("first", ['{"step": 10}', None])
def test_models_with_different_tokenizers_are_not_averaged(models, fails, first):
    folders = [models / f"step-{step}" for step in (10, 20)]
    (folders[1] / "tokenizer.json").write_text('{"step": 20}')
    if first is not None:
        (folders[0] / "tokenizer.json").write_text(first)
    difference, where = ("is missing, but there is", "") if first is None else ("differs from", " in step")
    expected = f"{folders[0]}/tokenizer.json {difference} {folders[1]}/tokenizer.json{where}; such models"
    fails(2, f"error: {expected} cannot be averaged\n", *folders)


def test_models_of_different_architectures_are_not_averaged(models, fails):
    """Their tensors have the same names and shapes."""
    folders = [models / f"step-{step}" for step in (20, 30)]
    for folder, position in zip(folders, ("pre", "post"), strict=True):
        change_json(folder / "config.json", norm_position=position, dropout=0.1)
        (folder / "manifest.json").unlink()
    fails(2, f"{folders[0]}/config.json differs from {folders[1]}/config.json in norm_position; such", *folders)
    change_json(folders[0] / "config.json", norm_position="post", dropout=0.2)
    write_model(folders, models.parent)


@pytest.mark.parametrize(
    ("entry", "values"),
    [("forced_bos_token_id", (5, 6)), ("suppress_tokens", ([0], [0, 5])), ("beam_search", (None, "transformers"))],
)
def test_models_with_different_outputs_are_not_averaged(models, fails, entry, values):
    """Other settings of the search are defaults, and those of the last one are taken."""
    folders = [models / f"step-{step}" for step in (20, 30)]
    files = [folder / "generation_config.json" for folder in folders]
    for file, value, beams in zip(files, values, (8, 2), strict=True):
        change_json(file, **{entry: value, "num_beams": beams})
        file.with_name("manifest.json").unlink()
    fails(2, f"{files[0]} differs from {files[1]} in {entry}; such models cannot be averaged", *folders)
    change_json(files[0], **{entry: values[1]})
    write_model(folders, models.parent)
    assert json.loads((models.parent / "generation_config.json").read_text())["num_beams"] == 2


def test_the_languages_of_a_checkpoint_are_those_of_its_run_whatever_its_path(tmp_path, monkeypatch):
    (tmp_path / "run" / "checkpoints" / "step-20").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "run" / "checkpoints" / "step-20")
    for path in (".", "../step-20", "../../checkpoints/step-30"):
        assert find_records(Path(path)) == tmp_path / "run"


def test_models_of_other_languages_are_not_averaged(models, fails, capsys):
    """One tokenizer serves several languages. The card of one names them, the record of its run those of another."""
    folders = [models / f"step-{step}" for step in (20, 30)]
    recipe = {"source_language": "en", "target_language": "de"}
    (folders[0] / "run.json").write_text(json.dumps({"recipe": recipe}))
    (folders[1] / "README.md").write_text("---\nlanguage: [en, fr]\ntags: [vaswani_transformer]\n---\n")
    fails(2, f"{folders[0]} translates en to de, but {folders[1]} en to fr; such models cannot be averaged", *folders)
    # The whole language and that of a region, whichever comes first.
    (folders[1] / "README.md").write_text("---\nlanguage: [eng, de-AT]\ntags: [vaswani_transformer]\n---\n")
    for number, order in enumerate((folders, folders[::-1])):
        average([*map(str, order), "--output", str(models.parent / f"model-{number}")])
        assert f"the average of {order[0].name}, {order[1].name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensor: tensor * math.nan, "has NaN or infinite values in model.shared.weight"),
        (torch.Tensor.int, "as torch.int32; weights are torch.float32"),
    ],
)
def test_weights_that_no_command_could_load_are_not_averaged(models, fails, change, message):
    folder, file = models / "step-30", models / "step-30/model.safetensors"
    tensors.save_tensors({name: change(tensor) for name, tensor in load_file(file).items()}, file)
    (folder / "manifest.json").unlink()
    fails(3, message, models / "step-20", folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("adapter_config.json", "{}", "the folder holds both a model and a"),
        ("config.json", '{"model_type": "bert"}', "model_type is 'bert'"),
    ],
)
def test_folders_of_other_models_are_not_averaged(models, fails, name, content, message):
    (models / "step-30" / name).write_text(content)
    (models / "step-30/manifest.json").unlink()
    fails(2, message, models / "step-20", models / "step-30")


def test_an_average_has_no_code_of_others_and_nothing_that_a_link_leads_to(models, tmp_path, fails):
    secret = tmp_path / "checkpoints/secret"
    secret.write_text('{"length_penalty": 1.0}')
    (models / "step-30/modeling_other.py").write_text("import os")
    average([str(models / "step-30"), "--output", str(tmp_path / "model")])
    assert {path.name for path in (tmp_path / "model").glob("*.py")} == set(CODE_FILES)
    shutil.rmtree(tmp_path / "model")
    (models / "step-30/generation_config.json").unlink()
    (models / "step-30/generation_config.json").symlink_to(secret)
    (models / "step-30/manifest.json").unlink()
    fails(3, f"generation_config.json leads to {secret}, outside the folder", models / "step-30")


def test_weights_have_the_permissions_of_other_files(tmp_path):
    """safetensors creates files that only their owner can read."""
    folder = tmp_path / "step-1"
    folder.mkdir()
    tensors.save_tensors(TENSORS, folder / "model.safetensors")
    (folder / "other").touch()
    assert (folder / "model.safetensors").stat().st_mode == (folder / "other").stat().st_mode
