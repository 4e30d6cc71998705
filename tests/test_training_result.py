"""The results of a run: the model, its checkpoints, its log and its curve."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from disks import flip_a_bit
from saved_model import ENGLISH, GERMAN, change_json, trained_model, trained_tokenizer
from training_runs import COMPILED, SMALL, STEPS, assert_same_losses, records_of, weights

from hub.provenance import Provenance
from training.batches import batch_by_length
from training.checkpoints import list_checkpoints
from training.corpus import read_corpora
from training.final_model import write_model_folder
from training.metrics import measure_bleu
from training.model import Network
from training.processes import make_accelerator
from training.recipe import load_recipe
from training.schedule import total_steps
from training.scores import corpus_bleu
from vaswani_transformer import TorchTranslator, Translator
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.options import locate_model


def test_the_model_is_the_average_of_the_last_checkpoints(uninterrupted):
    folder, _ = uninterrupted(1)
    code = {path.name for path in (Path(__file__).parents[1] / "vaswani_transformer").glob("*_vaswani_transformer.py")}
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", *code):
        assert (folder / name).is_file()
    checkpoints = [weights(folder / f"checkpoints/step-{step}") for step in (20, 24)]
    for name, value in weights(folder).items():
        torch.testing.assert_close(value, (checkpoints[0][name] + checkpoints[1][name]) / 2, atol=1e-7, rtol=1e-6)
    translator = Translator.from_pretrained(folder)
    assert len(translator.translate(["abc", "hgf"])) == 2
    lengths = [np.fromfile(path, np.int32) for path in folder.glob("corpus/*/source.lengths")]
    training = sorted(max(lengths, key=len))  # the training corpus is the largest
    assert translator.trained_length == training[math.ceil(0.99 * (len(training) - 1))]


def test_altered_weights_are_refused(uninterrupted, tmp_path):
    """A flipped bit in the weights changes translations without any other sign; settings may be edited."""
    shutil.copytree(uninterrupted(1)[0], tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "corpus"))
    change_json(tmp_path / "model/generation_config.json", num_beams=2)
    assert Translator.from_pretrained(tmp_path / "model").search.num_beams == 2
    flip_a_bit(tmp_path / "model/model.safetensors")
    with pytest.raises(BrokenFileError, match="model.safetensors has been altered .its sha256 differs from manifest"):
        Translator.from_pretrained(tmp_path / "model")


def test_another_model_in_the_folder_differs_from_the_checksums(uninterrupted, tmp_path):
    folder = shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    model = TorchTranslator.from_pretrained(folder).model
    model.save_pretrained(folder)  # the same weights
    TorchTranslator.from_pretrained(folder)
    model.lm_head.weight.data.mul_(2)
    model.save_pretrained(folder)
    with pytest.raises(BrokenFileError, match="has been altered .* or remove manifest.json if the change was intended"):
        TorchTranslator.from_pretrained(folder)


def test_a_run_logs_speed_and_draws_a_curve(uninterrupted):
    folder, _ = uninterrupted(1)
    records = records_of(folder)
    shares = [record["product_share"] for record in records if "product_share" in record]
    assert len(shares) == STEPS // SMALL["log_every"] and all(0 < share < 2 for share in shares)
    stalls = {r["step"]: r["stall_seconds"] for r in records if r.get("event") == "checkpoint"}
    validated = {record["step"] for record in records if record.get("event") == "validation"}
    assert {5, 10, 15, 20, 24} <= stalls.keys() <= {5, 10, 15, 20, 24} | validated
    assert all(stall > 0 for stall in stalls.values())
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_last_checkpoints_and_the_best_are_kept(uninterrupted):
    folder, _ = uninterrupted(1)
    root = folder / "checkpoints"
    best = (root / "best").read_text().strip()
    losses = {r["validation_loss"]: f"step-{r['step']}" for r in records_of(folder) if r.get("event") == "validation"}
    assert best == losses[min(losses)]
    assert {path.name for path in root.iterdir() if path.is_dir()} == {"step-15", "step-20", "step-24", best}
    assert (root / "latest").read_text() == "step-24\n"


@pytest.mark.parametrize("pointer", ["latest", "best"])
def test_a_checkpoint_that_a_run_points_at_is_a_model(pointer, uninterrupted):
    root = uninterrupted(1)[0] / "checkpoints"
    folder = root / (root / pointer).read_text().strip()
    assert Translator.from_pretrained(root / pointer).folder == folder
    assert locate_model(str(root / pointer)) == folder


@pytest.mark.parametrize("name", ["..", "step-7", "", "step-24/../step-24", "x" * 10**6])
def test_a_pointer_to_no_checkpoint_is_not_followed(name, tmp_path, uninterrupted):
    root = shutil.copytree(uninterrupted(1)[0], tmp_path / "run") / "checkpoints"
    (root / "best").write_text(name)
    with pytest.raises(InputError, match=r"checkpoints/best is a file; give the folder"):
        Translator.from_pretrained(root / "best")


def test_a_finished_run_is_repeated_unchanged_or_extended(start, tmp_path, uninterrupted):
    shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    before = weights(tmp_path / "run")
    start().ends()
    after = weights(tmp_path / "run")
    assert all(torch.equal(before[name], after[name]) for name in before)
    start(max_steps=STEPS + 5).ends()  # without a decay, the run may be extended
    assert (tmp_path / f"run/checkpoints/step-{STEPS + 5}").is_dir()


@pytest.mark.parametrize("limits", [{}, {"max_steps": STEPS + 5, "max_tokens": 1}])
def test_a_finished_run_keeps_the_record_of_how_it_was_trained(start, tmp_path, uninterrupted, limits):
    """The card and rows of results quote it."""
    folder = shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    before = (folder / "run.json").read_bytes()
    keys = {"learning_rate": 0.1, "allow_changed": True} | limits
    start(**keys).ends(0, "resuming a changed run: learning_rate", "stays as it is")
    assert (folder / "run.json").read_bytes() == before


def test_the_recipe_of_an_interrupted_change_is_not_that_of_the_model(start, tmp_path, uninterrupted):
    """The model in the folder was trained before, with another recipe."""
    folder = shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    assert Provenance(folder, "", [], {}).recipe["learning_rate"] != 0.1
    start(learning_rate=0.1, allow_changed=True, max_steps=STEPS + 5, fault=("term", 2)).ends(143)
    assert (folder / "checkpoints" / f"step-{STEPS}").is_dir() and (folder / "model.safetensors").is_file()
    assert Provenance(folder, "", [], {}).run == {}


def test_a_model_of_other_checkpoints_with_the_same_names_is_replaced(start, tmp_path, uninterrupted):
    """As after the last steps of a run were trained again with another learning rate."""
    folder = shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    shutil.rmtree(folder / f"checkpoints/step-{STEPS}")
    start(learning_rate=0.1, allow_changed=True).ends(0, f"{folder}: the model, the average of step-20, step-24")
    checkpoints = [weights(folder / f"checkpoints/step-{step}") for step in (20, 24)]
    for name, value in weights(folder).items():
        torch.testing.assert_close(value, (checkpoints[0][name] + checkpoints[1][name]) / 2, atol=1e-7, rtol=1e-6)


def test_a_finished_run_keeps_edited_settings(start, tmp_path, uninterrupted):
    folder = shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    change_json(folder / "generation_config.json", num_beams=2)
    start().ends(0, "the average of step-20, step-24, is complete and stays as it is")
    assert Translator.from_pretrained(folder).search.num_beams == 2
    (folder / "config.json").unlink()  # incomplete: written again
    shutil.rmtree(folder / "checkpoints/step-20")
    start().ends(0, "warning: step-20 should be part of the model", f"{folder}: the model, the average of step-15")
    assert (folder / "config.json").is_file()


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("generation_config.json", {"num_beams": -1}, "generation_config.json: num_beams is -1"),
        ("config.json", {"d_model": 32}, "run/config.json: d_model is 16 in "),
    ],
)
def test_a_finished_run_whose_settings_would_not_load_is_no_success(
    start, tmp_path, uninterrupted, file, fields, message
):
    folder = shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    change_json(folder / file, **fields)
    said = start().ends(3, message, "Remove the file, and the command writes it again")
    assert "stays as it is" not in said
    (folder / file).unlink()
    start().ends()
    Translator.from_pretrained(folder)


def test_training_learns(start, tmp_path):
    """The letters are random: a model that ignores the source reaches ln 8 = 2.08 per letter at best."""
    start(
        max_steps=150, micro_batches=1, tokens_per_step=400, average_last=1, validate_every=150, save_every=150,
        learning_rate=3e-3, warmup_steps=40, decay_share=0.5, label_smoothing=0.0, vocab_size=262,
        model={**SMALL["model"], "dropout": 0.0, "d_model": 64}, bleu_every=150,
    ).ends()  # fmt: skip
    (validation,) = [record for record in records_of(tmp_path / "run") if "validation_loss" in record]
    assert validation["validation_loss"] < 1.7 and 0 <= validation["validation_bleu"] <= 100


@pytest.mark.parametrize(
    ("limit", "last"),
    [
        ({"max_tokens": 2000}, range(2, 8)),
        ({"patience": 1, "learning_rate": 1e-12}, range(5, STEPS)),  # too small to improve
    ],
    ids=["tokens", "patience"],
)
def test_a_limit_ends_the_run_with_a_model(start, tmp_path, limit, last):
    start(**limit).ends()
    newest = (tmp_path / "run/checkpoints/latest").read_text().strip()
    assert int(newest.removeprefix("step-")) in last and (tmp_path / "run/model.safetensors").is_file()


def test_fractions_of_an_epoch_are_rounded_up():
    batching = batch_by_length(np.full(8, 4, np.int32), np.full(8, 6, np.int32), 20)  # four steps an epoch
    recipes = [load_recipe(None, {"max_steps": "null", "max_epochs": epochs}) for epochs in ("0.3", "1", "1.6")]
    assert [total_steps(recipe, batching.steps_per_epoch) for recipe in recipes] == [2, 4, 7]


def test_fine_tuning_starts_from_the_given_weights(start, tmp_path, uninterrupted):
    folder, _ = uninterrupted(1)
    keys = {"initial_weights": str(folder), "tokenizer": str(folder), "max_steps": 1, "average_last": 1}
    start("tuned", learning_rate=1e-9, gradient_checkpointing=True, trackers=["tensorboard"], **keys).ends()
    assert list((tmp_path / "tuned").rglob("events.out.tfevents*"))
    tuned = weights(tmp_path / "tuned")
    for name, value in weights(folder).items():
        torch.testing.assert_close(tuned[name], value, atol=1e-8, rtol=0)


@pytest.mark.parametrize("end", ["\n", " \r\n"])
def test_validation_bleu_ignores_line_ends_and_reads_the_text_once(tmp_path, end):
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        for name in ("train", "val"):
            (tmp_path / f"{name}.{language}").write_bytes("".join(line + end for line in lines).encode())
    translator = TorchTranslator(trained_model(), trained_tokenizer())
    expected = corpus_bleu(translator.translate(ENGLISH), GERMAN, False)
    keys = {"data": str(tmp_path), "vocab_size": "300", "max_length": "100"}
    settings = load_recipe(None, keys).settings()
    corpora = read_corpora(settings.text, settings.tokenizer, None, tmp_path, lambda _: None, sentences=True)
    for path in tmp_path.glob("val.*"):
        path.unlink()
    network = Network(translator.model, settings.optimizer, Accelerator(cpu=True))
    found = measure_bleu(network, corpora._replace(tokenizer=translator.tokenizer), lowercase=False)
    assert found == {"validation_bleu": pytest.approx(expected)}


@pytest.mark.slow
@pytest.mark.timeout(900)  # inductor's C++ compiler
def test_a_compiled_run_has_the_same_losses(start, tmp_path):
    """Dropout is off, since its masks differ. The compiler prints no warning about recompilation."""
    keys = {"max_steps": 6, "model": {**SMALL["model"], "dropout": 0.0}}
    compiled = {"eager": {"variables": dict(COMPILED)}, "inductor": {"compile": "yes"}}
    for output, ways in {**compiled, "plain": {}}.items():
        process = start(output, **ways, **keys)
        assert process.wait(600) == 0 and "recompile" not in process.said(), process.said()
        assert ("compiled by" in process.said()) == (output != "plain") == (f"compiled by {output}" in process.said())
    for output in compiled:
        assert_same_losses(tmp_path / output, tmp_path / "plain")


def test_a_missing_or_unknown_tracker_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("training.processes.get_available_trackers", lambda: [])
    with pytest.raises(UnavailableError, match="tensorboard is not installed"):
        make_accelerator(None, ["tensorboard"], tmp_path, {})
    with pytest.raises(InputError, match="trackers: 'foo' is unknown to Accelerate; known: all, aim, tensorboard, "):
        make_accelerator(None, ["foo"], tmp_path, {})


def test_a_wrong_state_of_the_models_last_checkpoint_is_named(tmp_path, uninterrupted):
    """A run resumes from a later checkpoint if a signal ended it between two regular ones."""
    folder = shutil.copytree(uninterrupted(1)[0], tmp_path / "run")
    last = list_checkpoints(folder / "checkpoints")[0]
    change_json(last / "trainer_state.json", progress={"step": 1})
    with pytest.raises(BrokenFileError, match=r"trainer_state.json: progress: tokens is missing"):
        write_model_folder([last], folder)
