"""Uses of a converted model: fine-tuning, ONNX, the Translator; with one vocabulary and with two."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from conftest import write_lines
from golden import Golden, converted, golden, opus_folder
from safetensors.torch import load_file
from saved_model import ENGLISH, GERMAN, change_json
from test_conversion_multilingual import m2m100_tokenizer, nllb_tokenizer, random_model
from training_child import TrainingProcess
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100ForConditionalGeneration,
    MarianMTModel,
    MarianTokenizer,
    pipeline,
)

from conversion.__main__ import main
from conversion.onnx.export import export_single_folder
from training.average import main as average
from training.recipe import load_recipe
from training.tokenizer import load_tokenizers
from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError
from vaswani_transformer.languages import read_languages
from vaswani_transformer.loading import load_config

# fairseq: a joint vocabulary; the others have one for each side, OpenNMT-py's source without </s>.
NAMES = ["fairseq", "marian-prenorm", "opennmt-py"]


def fine_tuned(checkpoint: Golden, tmp_path: Path, **keys: Any) -> Path:
    """Fine-tune on the sentences of the toolkit; return the model folder."""
    for language, lines in zip(("en", "de"), checkpoint.texts, strict=True):
        write_lines(tmp_path / f"train.{language}", lines[:-1])
    flags = {
        "data": str(tmp_path),
        "validation": ["train"],
        "output_dir": str(tmp_path / "tuned"),
        "initial_weights": str(checkpoint.folder),
        "tokens_per_step": 400,
        "micro_batches": 1,
        "max_length": 60,
        "warmup_steps": 1,
        "max_epochs": None,
        "average_last": 1,
        "mixed_precision": "no",
    }
    process = TrainingProcess(flags | keys, tmp_path / "log")
    assert process.wait() == 0, process.said()
    return tmp_path / "tuned"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_fine_tuning_starts_from_the_converted_model(name: str, tmp_path: Path):
    """Configuration, both tokenizers and every weight come from the converted folder."""
    checkpoint = converted(name)
    tuned = fine_tuned(checkpoint, tmp_path, learning_rate=1e-12, max_steps=1, validate_every=None, validation=[])
    before, after = load_config(checkpoint.folder).to_dict(), load_config(tuned).to_dict()
    assert {**after, "_attn_implementation": None} == {**before, "_attn_implementation": None}
    ours, theirs = load_file(checkpoint.folder / "model.safetensors"), load_file(tuned / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for weight in ours:
        torch.testing.assert_close(theirs[weight], ours[weight], atol=1e-9, rtol=0)
    for side in ("source", "target"):
        tokenizer = Golden(checkpoint.checkpoint, tuned).tokenizer(side)
        assert tokenizer.backend_tokenizer.to_str() == checkpoint.tokenizer(side).backend_tokenizer.to_str()
    translators = [Translator.from_pretrained(folder, device="cpu") for folder in (checkpoint.folder, tuned)]
    assert translators[0].translate(checkpoint.texts[0]) == translators[1].translate(checkpoint.texts[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_fine_tuning_improves_the_score(name: str, tmp_path: Path):
    checkpoint = converted(name)
    keys = {"learning_rate": 1e-3, "max_steps": 20, "validate_every": 10, "model": {"dropout": 0.0}}
    tuned = fine_tuned(checkpoint, tmp_path, label_smoothing=0.0, **keys)
    records = [json.loads(line) for line in (tuned / "metrics.jsonl").read_text().splitlines()]
    losses = [record["validation_loss"] for record in records if "validation_loss" in record]
    sources, targets = (lines[:-1] for lines in checkpoint.texts)
    before, after = (
        sum(score.total for score in Translator.from_pretrained(folder, device="cpu").score(sources, targets))
        for folder in (checkpoint.folder, tuned)
    )
    assert after > before and losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("two_vocabularies", [False, True])
def test_a_fine_tuned_model_of_opus_mt_returns_to_plain_transformers(two_vocabularies: bool, tmp_path: Path):
    """MarianMTModel and MarianTokenizer load it, and find the same tokens, or with beam search others that score less.

    transformers drops a finished hypothesis that is not among the best `num_beams` of its step.
    """
    pytest.importorskip("sentencepiece")
    theirs = opus_folder(tmp_path / "theirs", [">>deu<<", ">>nld<<"], two_vocabularies)
    main([str(theirs), str(tmp_path / "ours")])
    checkpoint = Golden(theirs, tmp_path / "ours")
    keys = {"learning_rate": 1e-3, "max_steps": 5, "validate_every": None, "validation": [], "length_penalty": 0.0}
    tuned = fine_tuned(checkpoint, tmp_path, **keys)
    main([str(tuned), str(tmp_path / "back"), "--to", "hf-marian"])

    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / "back"))
    assert before.keys() == after.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(changed) > len(before) // 2
    marian: Any = MarianMTModel.from_pretrained(tmp_path / "back", local_files_only=True).eval()
    tokenizer: Any = MarianTokenizer.from_pretrained(tmp_path / "back")
    translator = Translator.from_pretrained(tuned, device="cpu")
    for source in checkpoint.texts[0]:
        batch = tokenizer(f">>deu<< {source}", return_tensors="pt")
        for beams in (1, 4):
            options = {"num_beams": beams, "length_penalty": 0.0, "max_new_tokens": 30}
            expected = marian.generate(**batch, **options)[0, 1:].tolist()
            ((best,),) = translator.find_hypotheses(source, target_language="deu", split_sentences=False, **options)
            text = tokenizer.decode(expected, skip_special_tokens=True)
            if beams == 1 or best.tokens == expected:
                assert (best.tokens, best.text) == (expected, text)
            else:
                log_probabilities = marian(**batch, labels=torch.tensor([expected])).logits.log_softmax(-1)[0]
                chosen = log_probabilities.gather(-1, torch.tensor(expected)[:, None])
                assert best.score > chosen.sum().item() + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["m2m100", "nllb"])
def test_a_fine_tuned_m2m100_or_nllb_returns_to_plain_transformers(kind: str, tmp_path: Path):
    """Its tokenizer then puts the converted pair's language in front of sources, not the one that it had before."""
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    tokenizer = nllb_tokenizer() if kind == "nllb" else m2m100_tokenizer(theirs, "bpe")
    source, target = ("deu_Latn", "eng_Latn") if kind == "nllb" else ("fr", "de")  # the tokenizer has the reverse
    rows = len(tokenizer) if kind == "nllb" else max(tokenizer.lang_code_to_id.values()) + 9
    model = random_model("m2m_100", vocab_size=rows, max_position_embeddings=200)
    model.save_pretrained(theirs)
    tokenizer.save_pretrained(theirs)
    pairs = [f"{german}\t{english}" for german, english in zip(GERMAN, ENGLISH, strict=False)]
    write_lines(theirs / "inputs.txt", pairs)
    main([str(theirs), str(tmp_path / "ours"), "--source-language", source, "--target-language", target])
    keys = {"learning_rate": 1e-3, "max_steps": 5, "validate_every": None, "validation": []}
    tuned = fine_tuned(Golden(theirs, tmp_path / "ours"), tmp_path, **keys)
    main([str(tuned), str(back), "--to", "hf-prenorm"])

    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, back))
    assert before.keys() == after.keys()
    assert len([name for name in before if not torch.equal(before[name], after[name])]) > len(before) // 2
    plain: Any = M2M100ForConditionalGeneration.from_pretrained(back, local_files_only=True).eval()
    loaded: Any = AutoTokenizer.from_pretrained(back, local_files_only=True)
    assert loaded.src_lang == source
    translator = Translator.from_pretrained(tuned, device="cpu")
    for text in GERMAN:
        batch = loaded(text, return_tensors="pt")
        expected = plain.generate(**batch, num_beams=1, max_new_tokens=12)[0, 1:].tolist()
        ((best,),) = translator.find_hypotheses(text, num_beams=1, max_new_tokens=12, split_sentences=False)
        assert best.tokens == expected and expected[0] == loaded.convert_tokens_to_ids(
            target if kind == "nllb" else f"__{target}__"
        )


def test_the_average_of_a_converted_model_keeps_its_languages_and_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And so does the average of the checkpoints of its fine-tuning, which lie in the folder of their run."""
    theirs = opus_folder(tmp_path / "theirs", [], False)
    change_json(theirs / "tokenizer_config.json", source_lang="fi", target_lang="sv")
    run = tmp_path / "run"
    main([str(theirs), str(run)])
    checkpoint = run / "checkpoints/step-1"
    shutil.copytree(run, checkpoint, ignore=shutil.ignore_patterns("conversion.json", "CONVERSION.md", "original"))
    (run / "run.json").write_text("{}")
    monkeypatch.chdir(run / "checkpoints")
    for model, name in ((str(run), "model"), ("step-1", "checkpoint")):
        average([model, "--output", str(tmp_path / name)])
        assert read_languages(tmp_path / name) == ("fi", "sv")
        main([str(tmp_path / name), str(tmp_path / f"{name}-back"), "--to", "hf-marian"])
        before, after = (load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / f"{name}-back"))
        assert before.keys() == after.keys() and all(torch.equal(before[weight], after[weight]) for weight in before)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "fairseq-learned", "fairseq-relu-squared", "tensor2tensor"])
def test_exported_converted_models_translate_as_torch(name: str, tmp_path: Path):
    tokenizer = Translator.from_pretrained(converted(name).folder, device="cpu").tokenizer
    words = [token for token in tokenizer.get_vocab() if token.isalnum()][:8]
    texts = [" ".join(words[:length]) for length in (1, 3, 8)] + ["unheard-of </s>"]
    check_export(converted(name).folder, tmp_path / "onnx", texts)


@pytest.mark.slow
@pytest.mark.parametrize("two_vocabularies", [False, True])
@pytest.mark.parametrize("codes", [[], [">>deu<<", ">>nld<<"]])
def test_exported_models_of_opus_mt_translate_as_torch(codes: list[str], two_vocabularies: bool, tmp_path: Path):
    folder = opus_folder(tmp_path / "theirs", codes, two_vocabularies)
    main([str(folder), str(tmp_path / "ours")])
    texts = Golden(folder, tmp_path / "ours").texts[0] + ["“Straße” 漢字 </s> e\u0301", "ö", "Two. Sentences."]
    check_export(tmp_path / "ours", tmp_path / "onnx", texts, **({"target_language": "nld"} if codes else {}))


def check_export(folder: Path, out: Path, texts: list[str], **language: str) -> None:
    """Export a model folder and compare the best translations of both backends: tokens, text and scores."""
    pytest.importorskip("onnxruntime")
    from conversion.onnx.export import export_single_folder

    export_single_folder(folder, out)
    torchs = Translator.from_pretrained(folder, device="cpu")
    graphs = Translator.from_pretrained(out, device="cpu", backend="onnx", threads=1)
    options: Any = {"num_return_sequences": 2, **language}
    found, expected = graphs.find_hypotheses(texts, **options), torchs.find_hypotheses(texts, **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert [(h.tokens, h.text) for h in ours] == [(h.tokens, h.text) for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)


def test_a_source_vocabulary_without_eos_translates():
    """OpenNMT-py 1 and 2 have <s> and </s> only in the target vocabulary."""
    translator = Translator.from_pretrained(converted("opennmt-py-2-separate").folder, device="cpu")
    assert translator.tokenizer.eos_token is None
    (score,) = translator.score("src0 src1", "tgt0")
    assert len(score.tokens) == 2  # the word and </s>
    (translation,) = translator.translate("src0 src1")
    assert translation


def search_of(folder: Path) -> dict:
    settings = json.loads((folder / "generation_config.json").read_text())
    names = ("num_beams", "length_penalty", "early_stopping", "extra_length", "max_new_tokens", "suppress_tokens")
    names += ("no_repeat_ngram_size",)
    return {name: settings[name] for name in names if name in settings}


def test_settings_of_the_search_come_along(tmp_path: Path, capsys):
    theirs = shutil.copytree(golden("hf-marian"), tmp_path / "theirs")
    change_json(
        theirs / "generation_config.json",
        num_beams=6, length_penalty=0.8, max_length=33, bad_words_ids=[[61], [5], [7, 8]], no_repeat_ngram_size=3,
        renormalize_logits=True, suppress_tokens=[9],
    )  # fmt: skip
    main([str(theirs), str(tmp_path / "ours")])
    assert search_of(tmp_path / "ours") == {
        **{"num_beams": 6, "length_penalty": 0.8, "early_stopping": False, "max_new_tokens": 32},
        "no_repeat_ngram_size": 3,
        "suppress_tokens": [5, 9, 61],
    }
    said = capsys.readouterr().out
    assert "The search here does not have the checkpoint's renormalize_logits True, bad_words_ids [7, 8]." in said
    assert (
        "search: beam_search=transformers, num_beams=6, length_penalty=0.8, early_stopping=False, max_new_tokens=32"
        in said
    )
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    assert translator.search.num_beams == 6 and translator.search.max_new_tokens == 32
    paper = {"num_beams": 4, "length_penalty": 0.6, "early_stopping": "never", "extra_length": 50}
    main([str(theirs), str(tmp_path / "paper"), "--paper-search"])
    assert search_of(tmp_path / "paper") == paper | {"suppress_tokens": [61]}


def test_settings_come_along_without_a_number_of_beams(tmp_path: Path):
    """transformers saves no num_beams of 1, as in the files of NLLB-200. min_length counts the start token."""
    theirs = shutil.copytree(golden("hf-marian"), tmp_path / "theirs")
    ids = {name: id for name, id in json.loads((theirs / "config.json").read_text()).items() if name.endswith("_id")}
    settings = ids | {"max_length": 33, "min_length": 6, "forced_bos_token_id": 5, "bad_words_ids": [[61], [7]]}
    (theirs / "generation_config.json").write_text(json.dumps(settings))
    config = json.loads((theirs / "config.json").read_text())
    config.pop("num_beams", None)
    (theirs / "config.json").write_text(json.dumps(config))
    main([str(theirs), str(tmp_path / "ours")])
    found = json.loads((tmp_path / "ours" / "generation_config.json").read_text())
    assert (found["num_beams"], found["length_penalty"], found["early_stopping"]) == (4, 1.0, False)
    assert (found["max_new_tokens"], found["min_new_tokens"], found["forced_bos_token_id"]) == (32, 5, 5)
    assert found["suppress_tokens"] == [7, 61] and "extra_length" not in found
    model: Any = MarianMTModel.from_pretrained(theirs, local_files_only=True).eval()
    ours = Translator.from_pretrained(tmp_path / "ours", device="cpu").model
    batch: dict[str, Any] = {"input_ids": torch.tensor([[5, 9, 7, 0]]), "attention_mask": torch.ones(1, 4).long()}
    expected, tokens = (each.generate(**batch, num_beams=1)[0, 1:].tolist() for each in (model, ours))
    assert tokens == expected and expected[0] == 5 and len(expected) > 5


def test_marian_generates_unk_only_if_it_is_allowed(tmp_path: Path):
    theirs = Path(shutil.copytree(golden("marian"), tmp_path / "theirs"))
    main([str(theirs), str(tmp_path / "ours")])
    translator: Any = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    unknown = translator.tokenizer.unk_token_id
    assert unknown in search_of(tmp_path / "ours")["suppress_tokens"]
    with torch.no_grad():  # the best token everywhere
        translator.model.lm_head.bias[unknown] = 100
    ((hypothesis,),) = translator.find_hypotheses([translator.tokenizer.decode([5, 6])], max_new_tokens=5)
    assert hypothesis.tokens and unknown not in hypothesis.tokens
    with (theirs / "model.npz.decoder.yml").open("a") as file:
        file.write("\nallow-unk: true\n")
    main([str(theirs), str(tmp_path / "allowed")])
    assert unknown not in search_of(tmp_path / "allowed")["suppress_tokens"]


def test_joeynmts_settings_come_along(tmp_path: Path):
    theirs = shutil.copytree(golden("joeynmt"), tmp_path / "theirs")
    config = yaml.safe_load((theirs / "config.yaml").read_text())
    config["testing"] |= {"beam_size": 6, "beam_alpha": 0.8, "max_output_length": 33, "generate_unk": False}
    (theirs / "config.yaml").write_text(yaml.safe_dump(config))
    main([str(theirs), str(tmp_path / "ours")])
    found = search_of(tmp_path / "ours")
    assert (found["num_beams"], found["length_penalty"], found["max_new_tokens"]) == (6, 0.8, 33)
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    assert translator.tokenizer.unk_token_id in found["suppress_tokens"]
    config["testing"] = {"beam_size": 1, "alpha": -1, "max_output_length": -1}  # its values for switched off
    (theirs / "config.yaml").write_text(yaml.safe_dump(config))
    main([str(theirs), str(tmp_path / "greedy")])
    found = search_of(tmp_path / "greedy")
    assert found["extra_length"] == 50 and "max_new_tokens" not in found
    assert Translator.from_pretrained(tmp_path / "greedy", device="cpu").search.num_beams == 1


@pytest.mark.parametrize("name", ["joeynmt", "fairseq-old"])  # two vocabularies of the same size, and of different ones
def test_a_model_with_two_vocabularies_is_not_used_with_one_tokenizer(name: str, tmp_path: Path):
    """As Trainer saves it: the tokenizer of the sources would decode the translations to other words."""
    main([str(golden(name)), str(tmp_path / "ours")])
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "saved")
    AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "saved")
    for use in (Translator.from_pretrained, lambda folder: export_single_folder(folder, tmp_path / "onnx")):
        with pytest.raises(InputError, match="separate vocabularies .*saved/target_tokenizer/tokenizer.json"):
            use(tmp_path / "saved")
    with pytest.raises(ValueError, match="separate vocabularies"):
        cast(Any, pipeline)("translation", model=str(tmp_path / "saved"), device="cpu")
    with pytest.raises(InputError, match="tokenizer: .* separate vocabularies, but .* has one tokenizer"):
        load_tokenizers(load_recipe(None, {}), str(tmp_path / "saved"), tmp_path / "run", [], print)


@pytest.mark.parametrize("space", [" ", "▁"])
def test_characters_of_joeynmt_are_joined_without_spaces(space: str, tmp_path: Path):
    """JoeyNMT 2 writes the space as ▁."""
    theirs = shutil.copytree(golden("joeynmt"), tmp_path / "theirs")
    config = yaml.safe_load((theirs / "config.yaml").read_text())
    for side in ("src", "trg"):
        config["data"][side]["level"] = "char"
        words = (theirs / f"{side}_vocab.txt").read_text(encoding="utf-8").splitlines()
        special, letters = words[:4], [space, *(chr(ord("a") + n) for n in range(len(words) - 5))]
        write_lines(theirs / f"{side}_vocab.txt", [*special, *letters])
    (theirs / "config.yaml").write_text(yaml.safe_dump(config))
    main([str(theirs), str(tmp_path / "ours")])
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    ids = translator.tokenizer("bad cab")["input_ids"]
    assert ids == [special.index("</s>") if id is None else 4 + id for id in (2, 1, 4, 0, 3, 1, 2, None)]
    assert translator.target_tokenizer.decode(ids, skip_special_tokens=True) == "bad cab"


def test_eoles_settings_come_along(tmp_path: Path):
    theirs = shutil.copytree(golden("eole"), tmp_path / "theirs")
    inference = {"beam_size": 3, "length_penalty": "wu", "alpha": 0.7, "max_length": 40, "block_ngram_repeat": 2}
    change_json(theirs / "config.json", inference=inference)
    main([str(theirs), str(tmp_path / "ours")])
    found = search_of(tmp_path / "ours")
    assert (found["num_beams"], found["length_penalty"], found["max_new_tokens"]) == (3, 0.7, 40)
    assert found["no_repeat_ngram_size"] == 2


def test_marians_settings_come_along(tmp_path: Path):
    theirs = shutil.copytree(golden("marian"), tmp_path / "theirs")
    decoder = theirs / "model.npz.decoder.yml"
    decoder.write_text(decoder.read_text().replace("normalize: 0", "normalize: 0.6"))
    main([str(theirs), str(tmp_path / "ours")])
    found = search_of(tmp_path / "ours")
    assert (found["num_beams"], found["length_penalty"], found["extra_length"]) == (12, 0.6, 50)
    assert "word-penalty" not in (tmp_path / "ours/CONVERSION.md").read_text()
    decoder.write_text(decoder.read_text().replace("word-penalty: 0", "word-penalty: 0.2"))
    main([str(theirs), str(tmp_path / "with-penalty")])
    notes = (tmp_path / "with-penalty/CONVERSION.md").read_text()
    assert "* The search here does not have the checkpoint's word-penalty 0.2." in notes
