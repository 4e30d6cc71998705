"""Which tokenizer a run trains with, and the model that belongs to it: tokenizers of other people's making."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from saved_model import ENGLISH, GERMAN, saved_model, trained_tokenizer
from tokenizers import Tokenizer, processors

from training.corpus import load_corpus, parallel_texts
from training.model import control_ids, load_or_train_tokenizer, load_target_tokenizer, model_config
from training.plan import make_plan
from training.recipe import Recipe, load_recipe
from training.train import train
from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError
from vaswani_transformer.texts import TARGET_TOKENIZER
from vaswani_transformer.tokenization import train_tokenizer

SMALL = {"preset": "base", "max_length": 60, "tokens_per_step": 480, "micro_batches": 1, "max_steps": 2}
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Text of both languages, and a tokenizer."""
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / f"train.{language}").write_text("".join(f"{line}\n" for line in lines * 3), encoding="utf-8")
    trained_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return tmp_path


def recipe_of(folder: Path, **keys: Any) -> Recipe:
    files = {"data": str(folder), "tokenizer": str(folder / "tokenizer"), "output_dir": str(folder / "run")}
    values = SMALL | {"model": SIZES, "validation": [], "average_last": 1} | files | keys
    return load_recipe(None, {key: json.dumps(value) for key, value in values.items()})


def loaded(recipe: Recipe, said: list[str] | None = None) -> Any:
    texts = parallel_texts(recipe, recipe.train)
    return load_or_train_tokenizer(recipe, Path(recipe.output_dir), texts, (said if said is not None else []).append)


def changed(folder: Path, change: Any) -> None:
    """tokenizer.json as `change` leaves it"""
    path = str(folder / "tokenizer/tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    change(tokenizer)
    tokenizer.save(path)


def exchange_ids(folder: Path) -> None:
    """<pad> and <s> exchange their ids, so that 0 pads, as in T5 and Marian; there is no <s> in the settings."""
    path = folder / "tokenizer/tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["<pad>"], vocabulary["<s>"] = vocabulary["<s>"], vocabulary["<pad>"]
    for token in content["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    path.write_text(json.dumps(content), encoding="utf-8")
    settings = folder / "tokenizer/tokenizer_config.json"
    settings.write_text(json.dumps({k: v for k, v in json.loads(settings.read_text()).items() if k != "bos_token"}))


def test_a_tokenizer_s_ids_are_the_model_s(folder: Path) -> None:
    exchange_ids(folder)
    train(recipe_of(folder))
    translator = Translator.from_pretrained(folder / "run", device="cpu")
    config = translator.model.config
    assert (config.pad_token_id, config.eos_token_id) == (0, 2)
    assert (config.bos_token_id, config.decoder_start_token_id) == (None, 0)
    assert len(translator.translate(ENGLISH)) == len(ENGLISH)


def test_ids_that_a_recipe_says_otherwise_are_refused(folder: Path) -> None:
    tokenizer = loaded(recipe_of(folder))
    recipe = recipe_of(folder, model=SIZES | {"eos_token_id": 5})
    with pytest.raises(InputError, match="eos_token_id is 5, in the tokenizer 2"):
        model_config(recipe, len(tokenizer), None, control_ids(tokenizer))


def test_texts_without_an_end_are_refused(folder: Path) -> None:
    changed(folder, lambda tokenizer: setattr(tokenizer, "post_processor", processors.ByteLevel()))
    with pytest.raises(InputError, match=r"tokenizer.json does not end a text in </s> \(2\)"):
        loaded(recipe_of(folder))


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: tokenizer.enable_truncation(5),
        lambda tokenizer: tokenizer.enable_padding(length=40, pad_id=1, pad_token="<pad>"),
    ],
    ids=["truncation", "padding"],
)
def test_texts_are_neither_cut_nor_padded_whatever_tokenizer_json_says(folder: Path, change: Any) -> None:
    lengths = []
    for step in (lambda tokenizer: None, change):
        changed(folder, step)
        recipe = recipe_of(folder)
        corpus = load_corpus(
            parallel_texts(recipe, ["train"]), loaded(recipe), recipe, folder / "cache", lambda _: None
        )
        lengths.append([list(corpus.source_lengths), list(corpus.target_lengths)])
    assert lengths[0] == lengths[1]


def test_a_tokenizer_that_keeps_capitals_is_not_one_of_small_letters(folder: Path) -> None:
    with pytest.raises(InputError, match="lowercase: the tokenizer in .* keeps capitals"):
        loaded(recipe_of(folder, lowercase=True))
    shutil.rmtree(folder / "tokenizer")
    train_tokenizer(ENGLISH + GERMAN, 290, lowercase=True).save_pretrained(folder / "tokenizer")
    assert len(loaded(recipe_of(folder, lowercase=True))) == 290


def test_tuning_on_another_tokenizer_is_warned_of(folder: Path) -> None:
    saved_model(folder / "model")
    said: list[str] = []
    loaded(recipe_of(folder, initial_weights=str(folder / "model")), said)
    assert said == []
    train_tokenizer(GERMAN, 270).save_pretrained(folder / "tokenizer")
    loaded(recipe_of(folder, initial_weights=str(folder / "model")), said)
    (warning,) = said
    assert "is not the one that" in warning


def test_a_smaller_vocabulary_of_the_target_s_is_planned_for(folder: Path) -> None:
    train_tokenizer(GERMAN, 270).save_pretrained(folder / "tokenizer" / TARGET_TOKENIZER)
    plan = make_plan(recipe_of(folder), seconds=0.01)
    assert plan["vocabulary"] == 300 and plan["tokens_per_second"] > 0


def test_two_tokenizers_that_pad_differently_are_refused(folder: Path) -> None:
    (folder / "tokenizer" / TARGET_TOKENIZER).mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "tokenizer" / name, folder / "tokenizer" / TARGET_TOKENIZER / name)
    exchange_ids(folder)
    recipe = recipe_of(folder)
    with pytest.raises(InputError, match="pad_token_id is 0 in the source's and 1 in the target's"):
        control_ids(loaded(recipe), load_target_tokenizer(recipe, Path(recipe.output_dir)))
