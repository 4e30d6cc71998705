"""Foreign tokenizers, the model configured for them, and the numbers of each training step."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import one_fast_in, write_lines
from safetensors.torch import load_file
from saved_model import ENGLISH, GERMAN, change_json, saved_model, trained_tokenizer
from tokenizers import Tokenizer, processors
from training_runs import records_of

from training.corpus import load_corpus
from training.estimate import estimate, format_estimate
from training.model import model_config
from training.parallel_text import open_texts
from training.recipe import Recipe, load_recipe
from training.tokenizer import load_tokenizers, sizes_and_ids
from training.train import train
from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import load_model
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.tokenization import train_tokenizer
from vaswani_transformer.training_run import read_run

SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
SMALL = {"preset": "base", "model": SIZES, "max_length": 60, "tokens_per_step": 480, "micro_batches": 1, "max_steps": 2}
SMALL |= {"validation": [], "average_last": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with text in both languages and a tokenizer."""
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        write_lines(tmp_path / f"train.{language}", lines * 3)
    trained_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return tmp_path


def recipe_of(folder: Path, **keys: Any) -> Recipe:
    files = {"data": str(folder), "tokenizer": str(folder / "tokenizer"), "output_dir": str(folder / "run")}
    return load_recipe(None, {key: json.dumps(value) for key, value in (SMALL | files | keys).items()})


def loaded(recipe: Recipe, said: list[str] | None = None) -> tuple[Any, Any]:
    texts = open_texts(recipe, recipe.train)
    say = (said if said is not None else []).append
    return load_tokenizers(recipe, recipe.initial_weights, Path(recipe.output_dir), texts, say)


def changed(folder: Path, change: Any) -> None:
    """Apply `change` to tokenizer.json."""
    path = str(folder / "tokenizer/tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    change(tokenizer)
    tokenizer.save(path)


def exchange_ids(folder: Path) -> None:
    """Swap the ids of <pad> and <s>, so that 0 is padding, as in T5 and Marian; drop bos_token."""
    path = folder / "tokenizer/tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["<pad>"], vocabulary["<s>"] = vocabulary["<s>"], vocabulary["<pad>"]
    for token in content["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    path.write_text(json.dumps(content), encoding="utf-8")
    change_json(folder / "tokenizer/tokenizer_config.json", bos_token=None)


def test_the_model_uses_the_tokenizers_special_ids(folder):
    exchange_ids(folder)
    train(recipe_of(folder))
    translator = Translator.from_pretrained(folder / "run", device="cpu")
    config = translator.model.config
    assert (config.pad_token_id, config.eos_token_id) == (0, 2)
    assert (config.bos_token_id, config.decoder_start_token_id) == (None, 0)
    assert len(translator.translate(ENGLISH)) == len(ENGLISH)


def test_special_ids_that_contradict_the_tokenizer_are_refused(folder):
    recipe = recipe_of(folder, model=SIZES | {"eos_token_id": 5})
    with pytest.raises(InputError, match="eos_token_id is 5, but 2 in the tokenizer; leave eos_token_id out"):
        model_config(recipe, *sizes_and_ids(*loaded(recipe)))


def test_a_tokenizer_that_does_not_fit_the_initial_weights_is_refused(folder):
    saved_model(folder / "model")
    recipe = recipe_of(folder, initial_weights=str(folder / "model"), model={})
    changed(folder, lambda tokenizer: tokenizer.add_tokens(["<x>"]))
    message = r"vocab_size is 300, but the tokenizer has 301 tokens; use the tokenizer of the weights, or .*\(301\)$"
    with pytest.raises(InputError, match=message):
        model_config(recipe, *sizes_and_ids(*loaded(recipe)))
    with pytest.raises(InputError, match="is 2, but 5 in the tokenizer; use the tokenizer of the weights$"):
        model_config(recipe, 300, None, {"pad_token_id": 1, "eos_token_id": 5})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dropout", "abc", "^model: .*dropout.*'abc'"),
        ("d_model", 2.5, "^model: .*d_model.*2.5"),
        ("d_k", "many", "^model: .*d_k.*'many'"),
    ],
)
def test_a_config_field_of_another_type_is_named(field, value, message):
    with pytest.raises(InputError, match=message):
        model_config(load_recipe(None, {f"model.{field}": json.dumps(value)}), 300)


def test_tokenizers_with_different_pad_ids_are_refused(folder):
    shutil.copytree(folder / "tokenizer", folder / TARGET_TOKENIZER)
    exchange_ids(folder)
    shutil.move(folder / TARGET_TOKENIZER, folder / "tokenizer")
    recipe = recipe_of(folder)
    with pytest.raises(InputError, match="the source's pad_token_id is 0, the target's 1"):
        sizes_and_ids(*loaded(recipe))


def test_a_tokenizer_without_an_end_token_is_refused(folder):
    changed(folder, lambda tokenizer: setattr(tokenizer, "post_processor", processors.ByteLevel()))
    with pytest.raises(InputError, match=r"tokenizer.json does not append </s> \(2\)"):
        loaded(recipe_of(folder))


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: tokenizer.enable_truncation(5),
        lambda tokenizer: tokenizer.enable_padding(length=40, pad_id=1, pad_token="<pad>"),
    ],
    ids=["truncation", "padding"],
)
def test_truncation_and_padding_in_tokenizer_json_are_ignored(folder, change):
    def lengths() -> list[list[int]]:
        recipe = recipe_of(folder)
        texts = open_texts(recipe, ["train"])
        corpus = load_corpus(texts, loaded(recipe)[0], recipe, folder / "cache", lambda _: None)
        return [list(corpus.source_lengths), list(corpus.target_lengths)]

    before = lengths()
    changed(folder, change)
    assert lengths() == before


def test_lowercase_requires_a_lowercase_tokenizer(folder):
    with pytest.raises(InputError, match="lowercase: the tokenizer in .* keeps capitals"):
        loaded(recipe_of(folder, lowercase=True))
    shutil.rmtree(folder / "tokenizer")
    train_tokenizer(ENGLISH + GERMAN, 290, lowercase=True).save_pretrained(folder / "tokenizer")
    assert len(loaded(recipe_of(folder, lowercase=True))[0]) == 290


def test_fine_tuning_with_another_tokenizer_warns(folder):
    saved_model(folder / "model")
    said: list[str] = []
    loaded(recipe_of(folder, initial_weights=str(folder / "model")), said)
    assert said == []
    train_tokenizer(GERMAN, 270).save_pretrained(folder / "tokenizer")
    loaded(recipe_of(folder, initial_weights=str(folder / "model")), said)
    assert len(said) == 1 and "differs from the one that" in said[0]


@pytest.mark.parametrize(
    ("toolkit", "message"),
    [
        ("hf-marian", "model_type is 'marian'; .*; convert it: vaswani-transformer convert .*/hf-marian NEW_FOLDER"),
        ("fairseq", "fairseq has no config.json; give the folder of a model"),
    ],
)
@pytest.mark.parametrize("tokenizer", [None, "tokenizer"])
def test_initial_weights_of_another_toolkit_must_be_converted(folder, toolkit, message, tokenizer):
    weights = str(Path(__file__).parent / "fixtures" / toolkit)
    recipe = recipe_of(folder, initial_weights=weights, tokenizer=tokenizer and str(folder / tokenizer))
    with pytest.raises(InputError, match=message):
        loaded(recipe)


def test_an_onnx_export_as_initial_weights_is_refused_before_the_text_is_read(folder, exported):
    for run in (train, lambda recipe: estimate(recipe, 0)):
        with pytest.raises(InputError, match="holds an ONNX export, .* give the model folder that it was exported"):
            run(recipe_of(folder, initial_weights=str(exported / "onnx"), model={}))
    assert not (folder / "run/corpus").exists()


def test_sizes_other_than_those_of_the_initial_weights_are_named(folder):
    saved_model(folder / "model")
    recipe = recipe_of(folder, initial_weights=str(folder / "model"), model={"d_model": 16, "dropout": 0.3})
    message = (
        r"^initial_weights: .*model.safetensors: .* has shape .*32\).*; it must be .*16\); --model '{}' keeps the sizes"
    )
    with pytest.raises(InputError, match=message):
        train(recipe)
    kept = recipe.model_copy(update={"model": {"dropout": 0.3, "norm_position": "pre", "d_model": 32}})
    assert model_config(kept, 300).dropout == 0.3


@pytest.mark.parametrize(("alpha", "expected"), one_fast_in(2, [(1.2, 1.2), (None, 0.6)]))
def test_the_model_defaults_to_the_length_penalty_of_the_recipe(folder, alpha, expected):
    train(recipe_of(folder, length_penalty=alpha))
    assert Translator.from_pretrained(folder / "run").search.length_penalty == expected


def test_a_maximum_of_positions_is_refused_for_sinusoids(folder):
    with pytest.raises(InputError, match="max_position_embeddings is 512, but sinusoids have no maximum"):
        estimate(recipe_of(folder, model=SIZES | {"max_position_embeddings": 512}), seconds=0)
    learned = {"max_position_embeddings": 512, "position_embedding_type": "learned"}
    assert estimate(recipe_of(folder, model=SIZES | learned), seconds=0)["parameters"] > 512 * 16


def test_a_finished_run_keeps_its_length_penalty(folder):
    train(recipe_of(folder))
    with pytest.raises(InputError, match="holds a run that differs: length_penalty was None, is 1.2"):
        train(recipe_of(folder, length_penalty=1.2))


def test_the_tokenizer_is_trained_on_the_text_of_the_run_that_begins(folder):
    """Not on that of a start that ended before the first step, as after Ctrl-C and a look at the text."""
    keys = {"tokenizer": None, "vocab_size": 266, "max_length": 100}
    with pytest.raises(InputError, match="ended the run before its first step"):
        train(recipe_of(folder, **keys, max_hours=0))
    before = (folder / "run/tokenizer.json").read_bytes()
    for language in ("en", "de"):
        write_lines(folder / f"train.{language}", [f"xyzxyz {number} qqq" for number in range(20)])
    train(recipe_of(folder, **keys))
    assert (folder / "run/tokenizer.json").read_bytes() != before
    assert "xyz" in Tokenizer.from_file(str(folder / "run/tokenizer.json")).encode("xyz").tokens


@pytest.mark.parametrize("command", [train, lambda recipe: estimate(recipe, seconds=0)], ids=["train", "plan"])
def test_a_value_that_no_model_has_is_refused_before_the_text_is_read(folder, command):
    with pytest.raises(InputError, match="model: config field `dropout` is 3; it must be at least 0 and less than 1"):
        command(recipe_of(folder, data="nowhere", model={"dropout": 3}))


def test_the_plan_accepts_a_smaller_target_vocabulary(folder):
    train_tokenizer(GERMAN, 270).save_pretrained(folder / "tokenizer" / TARGET_TOKENIZER)
    plan = estimate(recipe_of(folder), seconds=0.01)
    assert plan["vocabulary"] == 300 and plan["tokens_per_second"] > 0


def test_the_plan_names_the_micro_batches_that_its_memory_is_for(folder):
    one, two = (estimate(recipe_of(folder, micro_batches=number), seconds=0) for number in (1, 2))
    assert one["memory_bytes"] > two["memory_bytes"]
    assert "per process, with 1 micro-batch per step" in format_estimate(one)
    assert "per process, with 2 micro-batches per step" in format_estimate(two)
    recomputed = estimate(recipe_of(folder, micro_batches=2, gradient_checkpointing=True), seconds=0)
    assert recomputed["memory_bytes"] == two["memory_bytes"]  # an upper limit
    assert "2 micro-batches per step; gradient_checkpointing needs less" in format_estimate(recomputed)
    assert "gradient_checkpointing" not in format_estimate(two)
    limited = format_estimate(estimate(recipe_of(folder, max_hours=2, max_tokens=5000), seconds=0))
    assert "max_hours 2.0, max_tokens 5,000: not counted here, although the run may end there" in limited
    assert "limits" not in format_estimate(one)


def test_the_plan_for_a_dataset_on_the_hub_has_the_vocabulary_of_the_weights(folder):
    saved_model(folder / "model")
    keys = {"initial_weights": str(folder / "model"), "model": {}, "data": None, "dataset": "owner/name"}
    plan = estimate(recipe_of(folder, **keys), seconds=0)
    assert plan["vocabulary"] == 300 and plan["pairs"] is None


def test_the_plan_checks_the_model_before_it_reads_the_text_and_keeps_a_named_cache(folder):
    keys = {"cache": str(folder / "cache")}
    with pytest.raises(InputError, match="vocab_size is 20, but the tokenizer has 300 tokens; leave vocab_size out"):
        estimate(recipe_of(folder, **keys, model={"vocab_size": 20}), seconds=0)
    assert not (folder / "cache").exists()
    estimate(recipe_of(folder, **keys), seconds=0)
    assert len(list((folder / "cache").iterdir())) == 1


# --- steps ---------------------------------------------------------------------------------------------------------


def test_training_steps_equal_plain_torch(folder):
    """The whole text is one micro-batch, so the order does not matter; no number is a default."""
    saved_model(folder / "model")
    numbers: dict[str, Any] = {"adam_beta1": 0.5, "adam_beta2": 0.7, "adam_epsilon": 1e-3, "max_gradient_norm": 0.3}
    numbers |= {"warmup_steps": 2, "learning_rate_factor": 0.2, "decay_share": 0.5, "max_steps": 3}
    numbers |= {"label_smoothing": 0.3, "tokens_per_step": 8000, "log_every": 1}
    train(recipe_of(folder, initial_weights=str(folder / "model"), model={}, **numbers))
    model: Any = load_model(folder / "model", device="cpu").train()
    batch: Any = trained_tokenizer()(ENGLISH, text_target=GERMAN, return_tensors="pt", padding=True)
    batch["labels"][batch["labels"] == 1] = -100
    adam = torch.optim.Adam(model.parameters(), betas=(0.5, 0.7), eps=1e-3)
    records = [record for record in records_of(folder / "run") if "gradient_norm" in record]
    for step, record in enumerate(records, start=1):
        loss = model(**batch, label_smoothing=0.3).loss
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        assert norm > 0.6  # so that it is clipped
        rate = 0.2 * 32**-0.5 * min(step**-0.5, step * 2**-1.5) * min(1, (4 - step) / 1.5)
        adam.param_groups[0]["lr"] = rate
        perplexity = model(**batch).loss.exp().item()
        adam.step()
        assert record["loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert record["perplexity"] == pytest.approx(perplexity, rel=1e-4)
        assert record["gradient_norm"] == pytest.approx(norm.item(), rel=1e-3)
        assert record["learning_rate"] == pytest.approx(rate)
    assert len(records) == 3
    trained = load_file(folder / "run/model.safetensors")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(trained[name], parameter.detach(), atol=1e-5, rtol=1e-4)


def test_the_validation_loss_equals_forced_decoding(folder):
    """Forced decoding masks padding, divides by target tokens, and uses neither dropout nor smoothing."""
    train(recipe_of(folder, validation=["train"], model=SIZES | {"dropout": 0.3}, max_steps=1, label_smoothing=0.3))
    (record,) = [record for record in records_of(folder / "run") if "validation_loss" in record]
    forced = Translator.from_pretrained(folder / "run", device="cpu").score(ENGLISH, GERMAN)
    expected = -sum(each.total for each in forced) / sum(len(each.tokens) for each in forced)
    assert record["validation_loss"] == pytest.approx(expected, rel=1e-5)


def losses_of(folder: Path, name: str, **keys: Any) -> list[float]:
    """Return the losses of a run whose learning rate is 0."""
    keys = {"learning_rate": 0, "log_every": 1, "max_steps": 3} | keys
    train(recipe_of(folder, output_dir=str(folder / name), **keys))
    return [record["loss"] for record in records_of(folder / name) if "loss" in record]


def test_every_micro_batch_draws_new_dropout(folder):
    """The text repeats one pair, so all micro-batches are equal and losses differ only by dropout."""
    for language, line in (("en", ENGLISH[0]), ("de", GERMAN[0])):
        write_lines(folder / f"one.{language}", [line] * 6)
    keys = {"model": SIZES | {"dropout": 0.3}, "train": ["one"]}
    one = losses_of(folder, "run of one", **keys)
    two = losses_of(folder, "run of two", tokens_per_step=960, micro_batches=2, max_steps=1, **keys)
    assert len(set(one)) == 3 and two[0] != pytest.approx(one[0], rel=1e-6)


@pytest.mark.slow
def test_the_seed_determines_weights_and_order(folder):
    """Without dropout and with a rate of 0, losses depend only on the weights and the order."""
    keys = {"model": SIZES | {"dropout": 0.0}, "tokens_per_step": 120}
    once, again = (losses_of(folder, name, **keys) for name in ("once", "again"))
    assert once == again
    keys["model"] = {}
    assert once != losses_of(folder, "other", seed=2, initial_weights=str(folder / "once"), **keys)
    assert read_run(folder / "other")["earlier_training"]["step"] == 3
