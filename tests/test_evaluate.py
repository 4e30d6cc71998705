"""The parts of `evaluate`: scores equal those of sacreBLEU and the paper's script; rows are complete."""

import json
import sys

import pytest
import sacrebleu
import torch
from conftest import read_rows, write_lines
from disks import file_size_limit
from saved_model import ENGLISH, saved_model

from training.checkpoints import write_manifest
from training.evaluate import EvaluationText, main
from training.result_row import append_row, append_rows, commit, hardware
from training.scores import corpus_bleu, format_scores, scores, split_compounds, tokenise_by_moses
from vaswani_transformer import Translator, __version__
from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.files import files_sha256
from vaswani_transformer.model_folder import hash_weights
from vaswani_transformer.tokenization import train_tokenizer
from vaswani_transformer.training_run import RESULT_COLUMNS

TRANSLATIONS = ["The rich-text editor is here .", "A dog runs.", "Two well-known men sit on a bench."]
REFERENCES = ["The rich-text editor is there.", "a dog runs.", "Two well-known men are sitting on a bench."]


def test_bleu_and_chrf_equal_sacrebleu_with_signatures():
    result = scores(TRANSLATIONS, REFERENCES)
    assert result["bleu"] == sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES], force=True).score
    lowercase = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES], lowercase=True, force=True).score
    assert result["bleu_lowercase"] == lowercase > result["bleu"]
    assert result["exact_match"] == 0  # one line differs only in case
    assert result["chrf"] == sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES]).score
    assert result["chrf_plus_plus"] == sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES], word_order=2).score
    assert "tok:13a" in result["bleu_signature"] and "case:lc" in result["bleu_lowercase_signature"]
    assert f"version:{sacrebleu.__version__}" in result["chrf_signature"]


def test_tokenised_bleu_matches_the_moses_scripts():
    # tokenizer.perl -l fr cuts after an apostrophe, -l en before it; the scripts turn quotes into plain ones first.
    assert tokenise_by_moses(["L’homme « à » l'Eau."], "fr") == ["l&apos; homme &quot; à &quot; l&apos; eau ."]
    assert tokenise_by_moses(["It's the Man's dog,"], "en") == ["it &apos;s the man &apos;s dog ,"]
    assert tokenise_by_moses(["z.B. rich-text"], "de") == ["z.b. rich-text"]
    found = scores(["L'Arbre est assis sur un banc."], ["L'homme est assis sur un banc."], language="fr")
    by_hand = ["l' arbre est assis sur un banc ."], [["l' homme est assis sur un banc ."]]
    assert found["bleu_tokenised"] == sacrebleu.corpus_bleu(*by_hand, tokenize="none", force=True).score
    assert found["bleu_tokenised"] != found["bleu_lowercase"]  # there the article is part of the word


def test_other_scores_do_not_need_sacremoses(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    result = scores(TRANSLATIONS, REFERENCES)
    assert result["bleu_tokenised"] is None and result["bleu"] > 0
    assert "pip install sacremoses" in format_scores(result)


def test_compounds_are_split_like_get_ende_bleu_sh():
    # perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g', the line of tensor2tensor's script
    assert split_compounds("a rich-text format.") == "a rich ##AT##-##AT## text format ."
    assert split_compounds("from A - Z") == "from A - Z"
    result = scores(TRANSLATIONS, REFERENCES)
    # Correct compounds count as three words each.
    assert result["bleu_compound_split"] > result["bleu"]


def test_perfect_translations_score_100_for_each_kind():
    result = scores(REFERENCES, REFERENCES)
    for name in (
        "bleu",
        "bleu_lowercase",
        "bleu_tokenised",
        "bleu_compound_split",
        "chrf",
        "chrf_plus_plus",
        "exact_match",
    ):
        assert result[name] == pytest.approx(100)
    result = scores(TRANSLATIONS[:1] + REFERENCES[1:], REFERENCES, ["x", "x", "y"])
    assert result["exact_match"] == pytest.approx(200 / 3)
    assert {kind: part["exact_match"] for kind, part in result["by_kind"].items()} == {"x": 50, "y": 100}
    assert result["by_kind"]["y"] == result["by_kind"]["y"] | {"sentences": 1, "bleu": pytest.approx(100)}
    assert result["by_kind"]["x"]["bleu"] == corpus_bleu(TRANSLATIONS[:1] + REFERENCES[1:2], REFERENCES[:2])


@pytest.fixture
def model_folder(tmp_path, tiny_model):
    tokenizer = train_tokenizer(REFERENCES * 3, 280)
    tiny_model(vocab_size=280).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    write_lines(tmp_path / "s", TRANSLATIONS)
    write_lines(tmp_path / "r", REFERENCES)
    return tmp_path


def evaluate(folder, *words):
    files = (folder / "model", "--source", folder / "s", "--reference", folder / "r")
    main([*map(str, files), "--num-beams", "2", *words])


def test_the_command_translates_scores_and_records(model_folder, capsys):
    (model_folder / "model/run.json").write_text(json.dumps({"command": "vaswani-transformer train --config x"}))
    table, written = model_folder / "results.csv", model_folder / "out.txt"
    progress = {"step": 7, "tokens": 9, "seconds": 5400.0, "cpu_seconds": 9000.0}
    write_manifest(model_folder / "model", [model_folder / "model/model.safetensors"], progress=progress)
    evaluate(model_folder, "--json", "--record", str(table), "--hypotheses", str(written))
    result = json.loads(capsys.readouterr().out)
    expected = scores(written.read_text().splitlines(), REFERENCES)
    assert {key: result[key] for key in expected} == expected
    evaluate(model_folder, "--record", str(table))
    said = capsys.readouterr().out
    assert expected["bleu_signature"] in said and said.startswith("s, beam 2, length penalty 0.6\n")
    row, again = read_rows(table)
    assert row == again and tuple(row) == RESULT_COLUMNS
    assert row["bleu_signature"] == expected["bleu_signature"] and row["parameters"].isdigit()
    assert row["weights_sha256"] == files_sha256(model_folder / "model/model.safetensors")
    expected = {"beam": "2", "sentences": "3", "hours": "1.5", "cpu_hours": "2.5", "steps": "7"}
    assert row == row | expected | {"command": "vaswani-transformer train --config x"}
    (model_folder / "model/manifest.json").unlink()  # the weights may not be those of the run
    evaluate(model_folder, "--record", str(table))
    row = read_rows(table)[-1]
    assert row == row | {"hours": "", "cpu_hours": "", "steps": "", "command": ""}


def test_each_kind_of_sentence_has_scores_and_a_row(model_folder, capsys):
    write_lines(model_folder / "kinds", ["help", "manual", "help"])
    table = model_folder / "results.csv"
    evaluate(model_folder, "--kinds", str(model_folder / "kinds"), "--record", str(table))
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said[-2:]] == [["help", "2"], ["manual", "1"]]
    whole, *parts = read_rows(table)
    assert [(row["test"], row["sentences"]) for row in (whole, *parts)] == [
        ("s", "3"),
        ("s, help", "2"),
        ("s, manual", "1"),
    ]
    assert all(row["weights_sha256"] == whole["weights_sha256"] and not row["chrf"] for row in parts)
    write_lines(model_folder / "kinds", ["help"])
    with pytest.raises(SystemExit, match="2"):
        evaluate(model_folder, "--kinds", str(model_folder / "kinds"))
    assert "has 1 lines, but the text has 3 sentences" in capsys.readouterr().err


def test_hardware_is_that_of_the_evaluation(monkeypatch):
    """With `--device cpu` the GPUs of the machine do nothing, and an evaluation uses one of them at most."""
    cpu = hardware(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "H100")
    assert hardware() == "8 x H100" and hardware(torch.device("cuda")) == "1 x H100"
    assert hardware(torch.device("cpu")) == cpu


def test_weights_that_change_during_the_evaluation_are_not_recorded(model_folder, tiny_model):
    """As when a training run writes its final model meanwhile."""
    before = hash_weights(model_folder / "model")
    tiny_model(1, vocab_size=280).save_pretrained(model_folder / "model")
    text, result = EvaluationText("s", "", TRANSLATIONS, REFERENCES), scores(TRANSLATIONS, REFERENCES)
    with pytest.raises(InputError, match="changed during the evaluation; evaluate them again"):
        append_row(model_folder / "t.csv", model_folder / "model", text, result, torch.device("cpu"), before)
    assert not (model_folder / "t.csv").exists()


def test_rows_are_appended_whole_and_on_lines_of_their_own(tmp_path):
    """An editor may leave out the last line break; on a full disk the file stays as it was."""
    table, row = tmp_path / "t.csv", {"date": "today", "bleu": "30"}
    append_rows(table, list(row), [row])
    table.write_bytes(table.read_bytes().rstrip())
    append_rows(table, list(row), [row, row])
    assert read_rows(table) == [row] * 3
    before = table.read_bytes()
    with file_size_limit(len(before) + 20), pytest.raises(UnavailableError, match="t.csv cannot be written"):
        append_rows(table, list(row), [row] * 3)
    assert table.read_bytes() == before


def test_length_penalty_and_reference_language_are_applied(tmp_path, capsys):
    saved_model(tmp_path / "model")
    (tmp_path / "s").write_text("\n".join(ENGLISH))
    translator = Translator.from_pretrained(tmp_path / "model", device="cpu")
    expected = translator.translate(ENGLISH, length_penalty=-1.0)
    assert expected != translator.translate(ENGLISH)
    references = [f"{line} L'homme." for line in expected]
    (tmp_path / "r.de").write_text("\n".join(references))
    written = tmp_path / "out"
    files = ["--source", str(tmp_path / "s"), "--reference", str(tmp_path / "r.de"), "--hypotheses", str(written)]
    main([str(tmp_path / "model"), *files, "--length-penalty", "-1", "--json"])
    assert written.read_text().splitlines() == expected
    found = json.loads(capsys.readouterr().out)["bleu_tokenised"]
    assert found == scores(expected, references, language="de")["bleu_tokenised"]
    assert found != scores(expected, references, language="en")["bleu_tokenised"]
    # A name without a language: it is that of the model's run.
    (tmp_path / "r.de").rename(tmp_path / "r.txt")
    (tmp_path / "model/run.json").write_text('{"recipe": {"source_language": "en", "target_language": "deu"}}')
    files[3] = str(tmp_path / "r.txt")
    main([str(tmp_path / "model"), *files, "--length-penalty", "-1", "--json"])
    assert json.loads(capsys.readouterr().out)["bleu_tokenised"] == found


def test_the_test_set_defaults_to_that_of_the_run(model_folder, capsys):
    for name, count in (("held_out", 1), ("final", 2)):
        for language in ("xx", "yy"):
            write_lines(model_folder / f"{name}.{language}", REFERENCES[:count])
    recipe = {"data": str(model_folder), "source_language": "xx", "target_language": "yy"}
    recipe |= {"train": ["train"], "validation": ["held_out"], "test": ["final"]}
    (model_folder / "model/run.json").write_text(json.dumps({"recipe": recipe}))
    main([str(model_folder / "model"), "--num-beams", "1", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["test"], result["sentences"]) == ("final", 2)


def test_held_out_pairs_are_evaluated_if_there_is_no_other_text(model_folder, capsys):
    for language in ("xx", "yy"):
        write_lines(model_folder / f"train.{language}", [f"{n}" for n in range(100)])
    recipe = {"data": str(model_folder), "source_language": "xx", "target_language": "yy"}
    (model_folder / "model/run.json").write_text(json.dumps({"recipe": recipe}))
    words = [str(model_folder / "model"), "--num-beams", "1", "--json"]
    main(words)
    result = json.loads(capsys.readouterr().out)
    assert (result["test"], result["sentences"]) == ("train (held out)", 2)


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("t", "t.yy", "1\n" * 100),
        ("t.tsv", "t.tsv", "a\tc\nb\td\n"),
        ("t.csv", "t.csv", "xx,yy\na,c\n"),
        ("t.jsonl", "t.jsonl", '{"xx": "a", "yy": "c"}\n'),
        ("t.tmx", "t.tmx", '<tmx><tu><tuv lang="xx"><seg>a</seg></tuv><tuv lang="yy"><seg>c</seg></tuv></tu></tmx>'),
    ],
)
def test_translations_do_not_replace_the_text_of_a_recipe(model_folder, refused, name, file, content):
    for other in ("t.xx", "train.xx", "train.yy"):
        write_lines(model_folder / other, [f"{n}" for n in range(100)])
    text = model_folder / file
    text.write_text(content)
    recipe = {"data": str(model_folder), "source_language": "xx", "target_language": "yy"}
    (model_folder / "model/run.json").write_text(json.dumps({"recipe": recipe | {"test": [name]}}))
    before = text.read_bytes()
    assert f"is the same file as {text}" in refused(main, [model_folder / "model", "--hypotheses", text])
    assert text.read_bytes() == before
    (model_folder / "model/run.json").write_text(json.dumps({"recipe": recipe}))  # whose training text is held out
    for text in (model_folder / "train.xx", model_folder / "train.yy"):
        assert f"is the same file as {text}" in refused(main, [model_folder / "model", "--hypotheses", text])


def test_pairs_without_a_text_are_not_scored(model_folder, capsys, refused):
    """An empty source has an empty translation, which would be an exact match."""
    write_lines(model_folder / "t.jsonl", ['{"en": "a b", "de": "c"}', '{"en": null, "de": null}', "", '{"en": "a"}'])
    recipe = {"data": str(model_folder), "test": ["t.jsonl"]}
    (model_folder / "model/run.json").write_text(json.dumps({"recipe": recipe}))
    assert "key 'de' is missing" in refused(main, [model_folder / "model"])
    rows = [{"en": "a b", "de": "c"}, {"en": None, "de": None}, None, {"en": "", "de": " "}, {"en": "a", "de": ""}]
    lines = [json.dumps(row) for row in rows]
    write_lines(model_folder / "t.jsonl", lines)
    main([str(model_folder / "model"), "--json"])
    assert json.loads(capsys.readouterr().out)["sentences"] == 1
    write_lines(model_folder / "t.jsonl", lines[1:])
    assert "t.jsonl: no pair has a text in both languages; a score" in refused(main, [model_folder / "model"])


def test_blank_lines_of_two_files_are_translated_but_not_scored(model_folder, capsys):
    """They may separate documents; each line has its translation and its kind."""
    for name, lines in (("s", TRANSLATIONS), ("r", REFERENCES), ("kinds", ["x", "y", "z"])):
        write_lines(model_folder / name, [lines[0], "", *lines[1:], ""])
    written = model_folder / "out"
    evaluate(model_folder, "--json", "--kinds", str(model_folder / "kinds"), "--hypotheses", str(written))
    result, lines = json.loads(capsys.readouterr().out), written.read_text().splitlines()
    assert len(lines) == 5 and lines[1] == lines[4] == ""
    assert result["sentences"] == 3 and [*result["by_kind"]] == ["x", "y", "z"]
    assert result["bleu"] == pytest.approx(scores([lines[0], *lines[2:4]], REFERENCES)["bleu"])


def test_a_damaged_record_of_the_run_is_named(model_folder, refused):
    (model_folder / "model/run.json").write_text('{"recipe": null}')
    assert "run.json: recipe is a NoneType; it must be an object" in refused(main, [model_folder / "model"], 3)
    for key, value in (("data", ["x"]), ("dataset", {"a": 1}), ("source_language", None)):
        (model_folder / "model/run.json").write_text(json.dumps({"recipe": {key: value}}))
        error = refused(main, [model_folder / "model"], 3)
        assert f"run.json: recipe: {key} is {value!r}; it must be a valid string" in error


def test_tokenised_text_is_also_scored_as_written():
    """Moses would split `&apos;s` into four tokens, which would count as four matches."""
    translations, references = ["it &apos;s a big old dog"], ["it &apos;s a big old cat"]
    result = scores(translations, references)
    assert result["bleu_as_written"] == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    assert result["bleu_tokenised"] is None or result["bleu_tokenised"] > result["bleu_as_written"]


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("new.csv", ["--dtype", "bfloat16"], "use it without --dtype and --backend"),
        ("results.csv", [], "results.csv: its columns are not date,"),
        ("no/where.csv", [], "no/where.csv: give the name of a file in an existing folder"),
        ("model", [], "model: give the name of a file in an existing folder"),
        ("model/model.safetensors", [], "model.safetensors: its columns are not date,"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_before_translating(model_folder, refused, name, words, message):
    table = write_lines(model_folder / "results.csv", ["date,bleu", "2026-01-01,30"])
    files = [model_folder / "model", "--source", model_folder / "s", "--reference", model_folder / "r"]
    assert message in refused(main, [*files, "--record", model_folder / name, *words])
    assert table.read_text() == "date,bleu\n2026-01-01,30\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["nowhere", "--config", "paper_base_en_de", "--data", "none"], "nowhere: no such folder"),  # before the text
        (["model"], "has no run.json; pass --config RECIPE"),
        (["model", "--source", "s"], "give both --source and --reference, or neither"),
        (
            ["model", "--source", "r", "--reference", "two"],
            "r has 3 lines, two has 2: line n of one must be the translation of line n",
        ),
        (["model", "--source", "two", "--reference", "blank"], "blank has no text; a score needs sentences"),
        (["model", "--source", "blank", "--reference", "two"], "blank has no text; a score needs sentences"),
        (
            ["model", "--source", "first", "--reference", "second"],
            "no line has a text in both first and second; line n",
        ),
        (["./nowhere"], "./nowhere: no such folder\n"),
        (
            ["model", "--source", "s", "--reference", "r", "--hypotheses", "r"],
            "--hypotheses r is the same file as r; give another name",
        ),
        (["model", "--source", "s", "--reference", "r", "--record", "/dev/null"], "give the name of a file"),
        (["model", "--source", "s", "--reference", "r", "--test", "x"], "use them without --config, --data and --test"),
        (["empty", "--source", "s", "--reference", "r", "--record", "t.csv"], "empty has no config.json"),
        (["model", "--config", "demoo"], "did you mean 'demo'"),
        (["model", "--config", "demo", "--hypotheses", "no/where"], "no/where: the folder no does not exist"),
        (["model", "--config", "paper_base_en_de", "--data", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_wrong_arguments_are_one_line_errors(model_folder, arguments, message, refused, monkeypatch):
    monkeypatch.chdir(model_folder)
    (model_folder / "empty").mkdir()
    (model_folder / "two").write_text("one\ntwo\n")
    (model_folder / "blank").write_text("\n \n")
    (model_folder / "first").write_text("one\n\n")
    (model_folder / "second").write_text("\ntwo\n")
    assert message in refused(main, arguments)


def test_without_git_the_version_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == __version__
