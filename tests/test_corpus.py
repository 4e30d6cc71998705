"""The tokenised text of a recipe: nothing is lost, and errors name the file and line."""

import copy
import gzip
import json
import re
import subprocess
import sys
from itertools import chain

import datasets
import numpy as np
import pytest
from conftest import ENVIRONMENT
from disks import not_removable, shared_folder
from hub_server import Blob, Commit, HubServer
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from saved_model import change_json
from tokenizers.normalizers import Sequence
from transformers import AutoTokenizer

from training.corpus import FILES, count_overlap, load_corpus, open_corpus
from training.parallel_text import (
    ParallelText,
    count_pairs,
    holds_out_validation,
    open_texts,
    open_training_and_validation,
    text_lines,
)
from training.recipe import load_recipe
from training.tokenizer import load_for_training, load_tokenizers
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.sentences_vaswani_transformer import clean_text
from vaswani_transformer.tokenization import train_tokenizer

ENGLISH = ["The house is small.", "I see a dog.", "We have two houses.", "It is late."]
GERMAN = ["Das Haus ist klein.", "Ich sehe einen Hund.", "Wir haben zwei Häuser.", "Es ist spät."]
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))
ROWS = [{"en": english, "de": german} for english, german in PAIRS]
NESTED = [{"translation": row} for row in ROWS]
REVERSE = {"source_language": "de", "target_language": "en"}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer((ENGLISH + GERMAN) * 3, 280)


@pytest.fixture
def recipe_for(tmp_path):
    """recipe_for(**keys) -> a recipe that reads tmp_path and translates English to German."""

    def make(**keys):
        flags = {"data": str(tmp_path), "max_length": 60, "tokens_per_step": 400, "micro_batches": 1} | keys
        return load_recipe(None, {key: json.dumps(value) for key, value in flags.items()})

    return make


@pytest.fixture
def load(tmp_path, tokenizer, recipe_for):
    """load(name, **keys) -> (the corpus, the messages printed while it is made)."""

    def run(name="train", **keys):
        said = []
        recipe = recipe_for(**keys)
        return load_corpus(open_texts(recipe, [name]), tokenizer, recipe, tmp_path / "cache", said.append), said

    return run


@pytest.fixture
def load_dataset(tmp_path, load):
    """load_dataset(folder, split="train", **keys) -> the corpus of a dataset."""

    def run(folder, split="train", **keys):
        return load(split, data=None, dataset=str(tmp_path / folder), **keys)[0]

    return run


def write(folder, name, lines, end="\n", start=b"", last_end=True):
    raw = start + end.join(lines).encode() + (end.encode() if last_end else b"")
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)


def write_both(folder, english=ENGLISH, german=GERMAN, name="train", **how):
    write(folder, f"{name}.en", english, **how)
    write(folder, f"{name}.de", german, **how)


def texts_of(corpus, tokenizer):
    """Return the decoded pairs of a corpus."""
    pairs = []
    for i in range(len(corpus)):
        sides = [side(np.array([i]), 1) for side in (corpus.sources, corpus.targets)]
        pairs.append(tuple(tokenizer.decode(ids[0], skip_special_tokens=True) for ids, _ in sides))
    return pairs


def test_padding_and_mask_match_sentence_lengths(tmp_path, load, tokenizer):
    write_both(tmp_path)
    corpus, said = load()
    assert texts_of(corpus, tokenizer) == PAIRS and "4 pairs read, 4 kept" in said[0]
    ids, real = corpus.targets(np.array([2, 3]), 1)
    assert real.sum(1).tolist() == corpus.target_lengths[[2, 3]].tolist()
    assert (ids[~real] == 1).all()
    for row, mask, text in zip(ids, real, GERMAN[2:], strict=True):
        assert row[mask].tolist() == tokenizer(text)["input_ids"]
        assert row[mask][-1] == 2  # </s>


CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(CHARACTERS, CHARACTERS), min_size=1, max_size=8))
def test_any_unicode_text_survives_but_for_what_is_cleaned(tmp_path_factory, tokenizer, pairs):
    folder = tmp_path_factory.mktemp("any")
    pairs = [tuple(re.sub("[\r\n]", " ", side) for side in pair) for pair in pairs]
    write_both(folder, [english for english, _ in pairs], [german for _, german in pairs])
    recipe = load_recipe(None, {"data": json.dumps(str(folder))})
    expected = [pair for pair in (tuple(map(clean_text, pair)) for pair in pairs) if all(pair)]
    # A file without a pair is refused, and NUL in the first line may be mistaken for UTF-16.
    assume(expected and "\0" not in "".join(pairs[0]))
    corpus = load_corpus(open_texts(recipe, ["train"]), tokenizer, recipe, folder / "cache", lambda _: None)
    assert texts_of(corpus, tokenizer) == expected


@pytest.mark.parametrize(
    "pair", [("a </s> b <pad>", "<s> c"), ("a\u2028b\x0bc\x85d\x1ef", "g\u202eh\x00i")], ids=["tokens", "lines"]
)
def test_control_tokens_and_characters_are_ordinary_text(tmp_path, load, tokenizer, pair):
    write_both(tmp_path, [pair[0]], [pair[1]])
    corpus, _ = load()
    assert texts_of(corpus, tokenizer) == [tuple(map(clean_text, pair))]
    assert (corpus.source_ids == 2).sum() == 1


def test_texts_are_cleaned_for_the_tokenizers_of_others(tmp_path, tokenizer, recipe_for):
    """As the Translator cleans them: a tokenizer without a normalizer would learn invisible characters."""
    other = copy.deepcopy(tokenizer)
    other.backend_tokenizer.normalizer = Sequence([])
    write_both(tmp_path, ["The\u00ad\xa0 cat.", "a dog"], ["Die\u200b  Katze.", "ein Hund"])
    recipe = recipe_for()
    corpora = [
        load_corpus(open_texts(recipe, ["train"]), each, recipe, tmp_path / str(number), lambda _: None)
        for number, each in enumerate((tokenizer, other))
    ]
    for corpus in corpora:
        assert texts_of(corpus, tokenizer) == [("The cat.", "Die Katze."), ("a dog", "ein Hund")]


@pytest.mark.parametrize("add", ["add_tokens", "add_special_tokens"])
def test_tokens_that_transformers_adds_are_trained_whole(tmp_path, tokenizer, recipe_for, add):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    changed = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    getattr(changed, add)(["<2de>"] if add == "add_tokens" else {"additional_special_tokens": ["<2de>"]})
    changed.save_pretrained(tmp_path / "tokenizer")
    write_both(tmp_path, ["<2de> a </s> b"], ["c"])
    recipe, loaded = recipe_for(), load_for_training(tmp_path / "tokenizer", of_targets=True)
    corpus = load_corpus(open_texts(recipe, ["train"]), loaded, recipe, tmp_path / "cache", lambda _: None)
    assert corpus.source_ids[0] == len(loaded) - 1 == changed.convert_tokens_to_ids("<2de>")
    assert (corpus.source_ids == 2).sum() == 1 and texts_of(corpus, loaded) == [("<2de> a </s> b", "c")]


@pytest.mark.parametrize(
    "how",
    [{"end": "\r\n"}, {"start": b"\xef\xbb\xbf"}, {"last_end": False}],
    ids=["CRLF", "byte order mark", "no final newline"],
)
def test_line_ends_and_byte_order_marks_are_ignored(tmp_path, load, how):
    write_both(tmp_path)
    plain, _ = load()
    write_both(tmp_path, **how)
    assert load()[0].sha256 == plain.sha256


def test_every_format_gives_the_same_corpus(tmp_path, load, load_dataset):
    write_both(tmp_path)
    plain, _ = load()
    write(tmp_path, "zipped.en.gz", ENGLISH)
    write(tmp_path, "zipped.de.gz", GERMAN)
    write(tmp_path, "pairs.tsv", [f"{e}\t{g}\tkind" for e, g in PAIRS])
    write(tmp_path, "nested.jsonl.gz", [json.dumps(row) for row in NESTED])
    write(tmp_path, "flat.jsonl", [json.dumps(row, ensure_ascii=False) for row in ROWS])
    for name in ("zipped", "pairs.tsv", "nested.jsonl.gz", "flat.jsonl", "train.{language}", "train.en,train.de"):
        assert load(name)[0].sha256 == plain.sha256, name
    datasets.DatasetDict({"train": datasets.Dataset.from_list(NESTED)}).save_to_disk(str(tmp_path / "nested"))
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "flat"))
    assert load_dataset("nested").sha256 == load_dataset("flat").sha256 == plain.sha256


def test_wrong_columns_and_splits_of_a_dataset_are_named(tmp_path, load_dataset, recipe_for):
    datasets.DatasetDict({"train": datasets.Dataset.from_list(NESTED)}).save_to_disk(str(tmp_path / "nested"))
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "flat"))
    with pytest.raises(InputError, match="no column 'fr'; available: en, de"):
        load_dataset("flat", target_language="fr")
    with pytest.raises(InputError, match="no split 'dev'; splits: train"):
        load_dataset("nested", "dev")
    with pytest.raises(InputError, match="dataset_config: .*nested was made by save_to_disk and has no configurations"):
        load_dataset("nested", dataset_config="de-en")
    with pytest.raises(InputError, match="dataset_revision: .*nested is a folder, and only the Hub has revisions"):
        load_dataset("nested", dataset_revision="main")
    twice = recipe_for(data=None, dataset=str(tmp_path / "flat"), train=["one", "two"])
    with pytest.raises(InputError, match="has only split None, not 'one'"):  # both would be the same text
        open_texts(twice, twice.train)
    with pytest.raises(InputError, match="has only split .*, not 'dev'"):  # not the training text again
        open_texts(recipe_for(data=None, dataset=str(tmp_path / "flat"), train=["train"]), ["dev"])
    datasets.Dataset.from_list([{"en": "a", "de": 3}, {"en": "b", "de": 4}]).save_to_disk(str(tmp_path / "numbers"))
    with pytest.raises(InputError, match="row 1: 'de' is int; it must be text"):
        load_dataset("numbers")


def test_a_dataset_on_the_hub_is_read_at_its_revision(tmp_path):
    code = """if True:
        import sys
        from training.parallel_text import open_texts, read_sentences
        from training.recipe import load_recipe
        for revision in sys.argv[1:]:
            keys = {"data": "null", "dataset": "owner/name", "dataset_revision": revision, "train": "train"}
            recipe = load_recipe(None, keys)
            print(*read_sentences(open_texts(recipe, recipe.train)))
    """
    with HubServer() as hub:
        commits = hub.create("owner/name").main
        for text in (b'{"en": "old", "de": "alt"}\n', b'{"en": "new", "de": "neu"}\n'):
            commits.append(Commit("", commits[0].files | {"train.jsonl": Blob(text)}))
        environment = ENVIRONMENT | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
        words = [sys.executable, "-c", code, commits[1].id, "null"]
        printed = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == ["['old'] ['alt']", "['new'] ['neu']"]


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_all_splits_are_read_at_one_commit(tmp_path, monkeypatch, streaming):
    """Else the owner of a dataset could move pairs from the validation text to the training text in between."""
    code = """if True:
        import sys
        from training.parallel_text import open_training_and_validation, read_sentences
        from training.recipe import load_recipe
        keys = {"data": "null", "dataset": "owner/name", "train": "train", "validation": "validation"}
        recipe = load_recipe(None, keys | {"streaming": sys.argv[1]})
        for texts in open_training_and_validation(recipe.settings().text):
            print(*read_sentences(texts))
    """
    with HubServer() as hub:
        commits = hub.create("owner/name").main
        splits = [f"{name}.jsonl" for name in ("train", "validation")]
        for text in (b'{"en": "old", "de": "alt"}\n', b'{"en": "new", "de": "neu"}\n'):
            commits.append(Commit("", commits[0].files | dict.fromkeys(splits, Blob(text))))
        newest = commits.pop()

        def move(method: str, path: str) -> None:
            if path.endswith("dataset_infos.json") and commits[-1] is not newest:  # the commit has been chosen
                commits.append(newest)

        monkeypatch.setattr(hub, "next_fault", move)
        environment = ENVIRONMENT | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
        words = [sys.executable, "-c", code, streaming]
        printed = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == ["['old'] ['alt']"] * 2


def test_a_streamed_dataset_is_not_copied_to_disk(tmp_path, load, load_dataset, monkeypatch):
    copies = tmp_path / "copies"
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", copies)
    write_both(tmp_path)
    plain, _ = load()
    for name, lines in (("flat", ROWS), ("nested", NESTED)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "train.jsonl", [json.dumps(line) for line in lines])
        assert load_dataset(name, streaming=True).sha256 == plain.sha256
        assert not list(copies.rglob("*.arrow"))
        with pytest.raises(InputError, match="'fr'; available: en, de"):
            load_dataset(name, streaming=True, target_language="fr")
        with pytest.raises(InputError, match="no split 'dev'; splits: train"):
            load_dataset(name, "dev", streaming=True)
    # A changed file is a new corpus.
    write(tmp_path / "flat", "train.jsonl", [json.dumps(line) for line in ROWS[:2]])
    assert len(load_dataset("flat", streaming=True)) == 2
    # Without streaming there is a copy; otherwise the assertions above could not fail.
    load_dataset("flat")
    assert list(copies.rglob("*.arrow"))


def test_an_interrupted_stream_is_a_one_line_error(tmp_path, load_dataset):
    (tmp_path / "broken").mkdir()
    write(tmp_path / "broken", "train.jsonl", [json.dumps(ROWS[0])] * 5 + ['{"en": "two", "de'])
    with pytest.raises(UnavailableError, match=r"dataset .*broken, split train, cannot be read: \S"):
        load_dataset("broken", streaming=True)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("card", "rows", "message"),
    [
        ("configs: [", [ROWS[0]], "cannot be loaded: while parsing a flow"),
        ("configs: [5]", [ROWS[0]], "cannot be loaded: argument of type 'int' is not "),
        ("dataset_info: {features: 5}", [ROWS[0]], "cannot be loaded: Expected a dict or a list"),
        ("pretty_name: a", [], "cannot be loaded: StopIteration"),
        ("pretty_name: a", [ROWS[0], {"en": "two", "fr": "deux"}], "cannot be (loaded|read): (Couldn't cast|.*schema)"),
        ("pretty_name: a", [{"translation": "eins", "en": "one"}], "no column 'de'; available: translation, en"),
        ("pretty_name: a", [{"translation": ["one", "eins"]}], "no column 'en'; available: translation"),
    ],
)
def test_a_dataset_with_unexpected_files_is_a_one_line_error(
    tmp_path, load_dataset, monkeypatch, streaming, card, rows, message
):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "copies")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/README.md").write_text(f"---\n{card}\n---\n")
    for number, row in enumerate(rows or [""]):
        (tmp_path / "set" / f"train-{number}.jsonl").write_text(row and json.dumps(row))
    with pytest.raises((InputError, UnavailableError), match=message):
        load_dataset("set", streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["image", "audio"])
@pytest.mark.parametrize("nested", [False, True])
def test_pictures_and_sounds_of_a_dataset_are_not_read(
    tmp_path, load, load_dataset, monkeypatch, kind, streaming, nested
):
    """Their decoders may not be installed, and would open whatever file or address a row names."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "copies")
    write_both(tmp_path)
    plain, _ = load()
    (tmp_path / "set").mkdir()
    types = {"translation": "{translation: {languages: [en, de]}}"} if nested else {"en": "string", "de": "string"}
    columns = "".join(f"  - {{name: {name}, dtype: {type}}}\n" for name, type in (types | {"at": kind}).items())
    (tmp_path / "set/README.md").write_text(f"---\ndataset_info:\n  features:\n{columns}---\n")
    rows = NESTED if nested else ROWS
    write(tmp_path / "set", "train.jsonl", [json.dumps(row | {"at": "http://127.0.0.1:1/file"}) for row in rows])
    assert load_dataset("set", streaming=streaming).sha256 == plain.sha256


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_with_other_languages_and_types_are_read(tmp_path, load, load_dataset, monkeypatch, streaming):
    """datasets keeps objects of several kinds as JSON, which must not become the text."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "copies")
    write_both(tmp_path)
    plain, _ = load()
    (tmp_path / "set").mkdir()
    rows = [{"translation": row | ({"fr": "un", "es": {"a": 1}} if n else {"es": 5})} for n, row in enumerate(ROWS)]
    write(
        tmp_path / "set", "train.jsonl", [json.dumps(row | {"about": row} if n else row) for n, row in enumerate(rows)]
    )
    assert load_dataset("set", streaming=streaming).sha256 == plain.sha256


@pytest.mark.parametrize("kind", ["pandas", "arrow", "numpy"])
@pytest.mark.parametrize("rows", [ROWS, NESTED])
def test_the_format_that_a_dataset_was_saved_with_does_not_matter(tmp_path, load, load_dataset, kind, rows):
    write_both(tmp_path)
    plain, _ = load()
    saved = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
    saved.with_format(kind, columns=list(rows[0])).save_to_disk(str(tmp_path / "set"))
    assert load_dataset("set").sha256 == plain.sha256


def test_the_cache_distinguishes_translation_directions(tmp_path, load):
    """Covers a file, a dataset and the embedded corpus."""
    write(tmp_path, "pairs.jsonl", [json.dumps(row) for row in ROWS])
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "flat"))
    dataset = {"data": None, "dataset": str(tmp_path / "flat")}
    for name, keys in (("pairs.jsonl", {}), ("train", dataset), ("test", {"data": "embedded"})):
        there, _ = load(name, **keys)
        back, _ = load(name, **keys, **REVERSE)
        assert list(there.source_lengths) == list(back.target_lengths) != list(back.source_lengths)


def test_the_cache_distinguishes_the_languages_of_a_table_whose_rows_name_them(tmp_path, load):
    """The rows of English would be trained on as French."""
    write(tmp_path, "t.csv", ["source,target,source_lang", "a b,c d,en", "e f,g h,en"])
    assert len(load("t.csv")[0]) == 2
    with pytest.raises(InputError, match="source_lang is 'en', but the recipe's language there is 'fr'"):
        load("t.csv", source_language="fr")


def test_the_cache_distinguishes_tokenizers(tmp_path, tokenizer, recipe_for):
    write_both(tmp_path)
    recipe = recipe_for()
    texts, other = open_texts(recipe, ["train"]), train_tokenizer(GERMAN * 3, 270)
    made = {
        load_corpus(texts, source, recipe, tmp_path / "cache", lambda _: None, target).sha256
        for source, target in ((tokenizer, None), (other, None), (tokenizer, other))
    }
    assert len(made) == 3


def test_several_corpora_are_concatenated(tmp_path, tokenizer, recipe_for):
    write_both(tmp_path)
    write(tmp_path, "more.tsv", ["one\teins"])
    recipe = recipe_for(train=["train", "more.tsv"])
    texts = open_texts(recipe, recipe.train)
    corpus = load_corpus(texts, tokenizer, recipe, tmp_path / "cache", lambda _: None)
    assert texts_of(corpus, tokenizer) == [*PAIRS, ("one", "eins")]
    assert count_pairs(texts) == 5
    assert list(text_lines(texts)) == [*chain(*PAIRS), "one", "eins"]


def test_a_dataset_whose_files_were_replaced_does_not_come_from_the_cache(tmp_path, load_dataset):
    """Its state.json still has the fingerprint of the other text."""
    for name, rows in (("set", ROWS), ("other", ROWS[::-1])):
        datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(str(tmp_path / name))
    before = load_dataset("set").sha256
    (file,) = (tmp_path / "other/train").glob("*.arrow")
    file.replace(tmp_path / "set/train" / file.name)
    assert load_dataset("set").sha256 != before


def test_only_an_unchanged_corpus_comes_from_the_cache(tmp_path, load):
    write_both(tmp_path)
    first, _ = load()
    again, said = load()
    assert said == [] and again.sha256 == first.sha256
    write_both(tmp_path, [*ENGLISH[:-1], "It is early."])
    changed, said = load()
    assert len(said) == 1 and changed.sha256 != first.sha256
    assert len(load(max_length=20)[1]) == 1


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_cache_is_named_and_tokenised_again(tmp_path, load, name, damage):
    write_both(tmp_path)
    corpus, _ = load()
    (folder,) = (tmp_path / "cache").iterdir()
    raw = bytearray((folder / name).read_bytes())
    raw[1] ^= 1
    (folder / name).write_bytes(raw if damage == "flip" else raw[:2])
    with pytest.raises(BrokenFileError, match=f"{name} has been altered"):
        open_corpus(folder)
    again, said = load()
    assert again.sha256 == corpus.sha256
    assert f"{name} has been altered" in said[0] and "tokenising again" in said[0]
    assert load()[1] == []


def test_a_damaged_cache_that_is_a_link_is_tokenised_again(tmp_path, load):
    """And what the link leads to is kept."""
    write_both(tmp_path)
    load()
    (folder,) = (tmp_path / "cache").iterdir()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    (folder / "corpus.json").unlink()
    assert len(load()[0]) == len(PAIRS)
    assert not folder.is_symlink() and (tmp_path / "elsewhere/source.ids").is_file()


def test_a_damaged_cache_that_cannot_be_removed_is_named(tokenizer, recipe_for):
    """That of another user: the text was tokenised again and again."""
    with shared_folder() as shared:
        write_both(shared)
        recipe = recipe_for(data=str(shared))

        def load():
            return load_corpus(open_texts(recipe, ["train"]), tokenizer, recipe, shared / "cache", print)

        load()
        (folder,) = (shared / "cache").iterdir()
        (folder / "source.ids").write_bytes(b"x")
        message = f"^{folder} cannot be removed: Permission denied; ask its owner"
        with not_removable(folder), pytest.raises(UnavailableError, match=message):
            load()


def test_a_cache_with_fewer_pairs_than_it_records_is_tokenised_again(tmp_path, load):
    """The record comes from one process and the files from another, if both wrote the same folder."""
    write_both(tmp_path)
    load()
    (folder,) = (tmp_path / "cache").iterdir()
    about = json.loads((folder / "corpus.json").read_text())
    change_json(folder / "corpus.json", pairs=about["pairs"] + 1)
    with pytest.raises(BrokenFileError, match=r"source.lengths has 16 bytes, not the 5 int32s of corpus.json"):
        open_corpus(folder)
    corpus, said = load()
    assert len(corpus) == 4 and "tokenising again" in said[0]


def test_two_runs_that_find_the_same_damage_tokenise_once(tmp_path, tokenizer, recipe_for, load):
    """The second run has read the damaged cache when the first one replaces it, and must not remove the new one."""
    write_both(tmp_path)
    load()
    (folder,) = (tmp_path / "cache").iterdir()
    (folder / "source.ids").write_bytes(b"")
    first, second = [], []

    def say(line):
        second.append(line)
        if "altered" in line:
            first.append(load())

    recipe = recipe_for()
    corpus = load_corpus(open_texts(recipe, ["train"]), tokenizer, recipe, tmp_path / "cache", say)
    ((of_first, said),) = first
    assert ["tokenising again" in line for line in said] == [True, False]
    assert len(second) == 1 and corpus.sha256 == of_first.sha256


def test_a_text_that_grows_while_it_is_read_is_refused(tmp_path, tokenizer, recipe_for):
    write_both(tmp_path)
    recipe = recipe_for(vocab_size=280)
    (text,) = open_texts(recipe, ["train"])

    def pairs():
        write_both(tmp_path, [*text_lines([text])] * 2, [*text_lines([text])] * 2)
        yield from text.pairs()

    growing, said = ParallelText(text.name, pairs, text.fingerprint), []
    changed = "train: the text changed while it was being read; run the command again"
    with pytest.raises(InputError, match=changed):
        load_corpus([growing], tokenizer, recipe, tmp_path / "cache", said.append)
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(InputError, match=changed):
        load_tokenizers(recipe.settings().tokenizer, None, tmp_path, [growing], said.append)
    assert not (tmp_path / "tokenizer.json").exists()


def test_the_columns_of_a_table_follow_the_languages(tmp_path, load, tokenizer):
    """A header or the file's name gives the order of the columns; otherwise the source is first."""
    rows = [f"{english}\t{german}" for english, german in PAIRS]
    write(tmp_path, "named.tsv", ["en\tde", *rows])
    write(tmp_path, "train.en-de.tsv", rows)
    write(tmp_path, "plain.tsv", rows)
    for name in ("named.tsv", "train.en-de.tsv"):
        assert texts_of(load(name)[0], tokenizer) == PAIRS
        assert texts_of(load(name, **REVERSE)[0], tokenizer) == [pair[::-1] for pair in PAIRS]
    assert texts_of(load("plain.tsv", **REVERSE)[0], tokenizer) == PAIRS


def test_a_part_is_held_out_without_validation_text(tmp_path):
    numbers = range(1, 121)
    write_both(tmp_path, [f"{number} en" for number in numbers], [f"{number} de" for number in numbers])
    recipe = load_recipe(None, {"data": str(tmp_path)})
    parts = open_training_and_validation(recipe)
    assert holds_out_validation(recipe)
    train, held_out = (list(text.pairs()) for (text,) in parts)
    assert [number for number, *_ in held_out] == [50, 100]
    assert sorted(train + held_out) == [(number, f"{number} en", f"{number} de") for number in numbers]
    texts = (*parts[0], *parts[1], *open_texts(recipe, ["train"]))
    assert len({text.fingerprint() for text in texts}) == 3
    (tmp_path / "val.en").write_text("a\n")
    with pytest.raises(InputError, match="val.de: no such file"):
        open_training_and_validation(recipe)
    (tmp_path / "val.de").write_text("a\n")
    assert not holds_out_validation(recipe)


def test_overlap_counts_shared_test_pairs(tmp_path, load):
    """Repetitions in the training text do not count."""
    write_both(tmp_path, ENGLISH * 3, GERMAN * 3)
    write_both(tmp_path, [ENGLISH[1], "New.", ENGLISH[0]], [GERMAN[1], "Neu.", "Etwas anderes."], name="test")
    assert count_overlap(load()[0], load("test")[0]) == 1


# --- dropped pairs and errors ------------------------------------------------------------------------------------


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("english", "german", "keys", "kept", "said"),
    [
        (["", "x", " \t", ""] * 2, ["y", "", "z", ""] * 2, {}, 4, "dropped 8 empty (lines 5, 6, 7, 8, 9, ...)"),
        (["word " * 100, "a"], ["b", "Wort " * 100], {}, 4, "dropped 2 too long (lines 5, 6)"),
        (["x" * 10_000_000], ["y"], {}, 4, "dropped 1 too long (lines 5)"),
        # Without </s> the targets are two and three times as long as the sources.
        (["x", "x"], ["yz", "yzx"], {"max_length_ratio": 2}, 5, "dropped 1 length ratio (lines 6)"),
        (["a"] * 9000 + [""], ["b"] * 9000 + ["b"], {}, 9004, "dropped 1 empty (lines 9005)"),  # in the second chunk
    ],
    ids=["empty", "long", "ten million characters", "ratio", "second chunk"],
)
def test_dropped_pairs_are_counted_and_named_by_line(tmp_path, load, english, german, keys, kept, said):
    write_both(tmp_path, ENGLISH + english, GERMAN + german)
    corpus, (report,) = load(**keys)
    assert len(corpus) == kept and said in report
    assert f"{4 + len(english)} pairs read, {kept} kept" in report


def test_a_sentence_of_max_length_tokens_is_kept(tmp_path, load, tokenizer):
    write_both(tmp_path)
    longest = max(len(tokenizer(text)["input_ids"]) for text in (*ENGLISH, *GERMAN))
    assert len(load(max_length=longest)[0]) == 4
    assert len(load(max_length=longest - 1)[0]) < 4


def test_files_of_different_length_are_refused_with_counts(tmp_path, load):
    write_both(tmp_path, english=ENGLISH * 5000, german=GERMAN * 5000 + ["Zu viel."])
    with pytest.raises(InputError, match=r"train\.en has 20000 lines, .*train\.de has 20001"):
        load()
    assert not list((tmp_path / "cache").glob("*"))


def test_invalid_utf8_is_reported_by_line_and_column(tmp_path, load):
    write_both(tmp_path)
    (tmp_path / "train.de").write_bytes(b"Das Haus\n" + b"Ein H\xff\n" + b"gut\nja\n")
    with pytest.raises(InputError, match=r"train\.de line 2: byte 0xff at column 6 is not UTF-8"):
        load()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_utf16_is_recognised(tmp_path, load, encoding):
    write_both(tmp_path)
    (tmp_path / "train.en").write_bytes("\n".join(ENGLISH).encode(encoding))
    with pytest.raises(InputError, match="train.en line 1: not UTF-8, looks like UTF-16"):
        load()


@pytest.mark.parametrize(
    ("lines", "message"), [([], "train.en is empty"), (["", ""], r"none of 2 pairs can be used; dropped 2 empty")]
)
def test_a_corpus_without_usable_pairs_is_refused(tmp_path, load, lines, message):
    write_both(tmp_path, lines, lines, last_end=bool(lines))
    with pytest.raises(InputError, match=message):
        load()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"translation": {"en": "a"}}', r"line 2: key 'de' is missing; keys there: en"),
        ('{"translation": {"en": "a", "de": 3}}', r"line 2: 'de' is int"),
        ('{"translation": {"en": ["a"], "de": "b"}}', r"line 2: 'en' is list"),
        ('{"translation": {"en": "a", "de": "b"', r"line 2: not JSON"),
        ('{"translation": {"en": "a", "de": "\\ud800"}}', r"line 2: 'de': the lone surrogate '\\ud800' at character 1"),
        ('["a", "b"]', r"line 2: must be {\"translation\": {...}}, found list; write one object"),
        ("[", r"line 2: not JSON \(Expecting value: column 2.*; write one object on each line; of an array: jq"),
    ],
)
def test_json_errors_name_line_and_key(tmp_path, load, line, message):
    write(tmp_path, "p.jsonl", ['{"translation": {"en": "a", "de": "b"}}', line])
    with pytest.raises(InputError, match=message):
        load("p.jsonl")


def test_a_file_in_place_of_its_folder_is_explained(tmp_path, load):
    write(tmp_path, "p.tsv", ["a\tb"])
    with pytest.raises(InputError, match=f"use --data {re.escape(str(tmp_path))} --train p.tsv$"):
        load("train", data=str(tmp_path / "p.tsv"))


@pytest.mark.parametrize(("name", "corpus"), [("mine.en", "mine"), ("mine.de.gz", "mine"), ("en", "{language}")])
def test_one_of_two_files_in_place_of_their_name_is_explained(tmp_path, load, name, corpus):
    (tmp_path / name).write_bytes(b"a\n")
    with pytest.raises(InputError, match=f"use --data {re.escape(str(tmp_path))} --train {re.escape(corpus)}$"):
        load("train", data=str(tmp_path / name))
    with pytest.raises(InputError, match=re.escape(f"{name} is one of two files; give {corpus}, which names both")):
        load(name)


def test_a_table_row_without_a_target_is_named_by_line(tmp_path, load):
    write(tmp_path, "p.tsv", ["a\tb"] * 9000 + ["one"])
    with pytest.raises(InputError, match=r"p\.tsv line 9001: 1 column"):
        load("p.tsv")


@pytest.mark.parametrize(
    ("keys", "name", "message"),
    [
        ({}, "train", re.escape("/train.en: no such file (nor train.en.gz)")),
        ({"data": None}, "train", re.escape("train.en: no such file (nor train.en.gz); give --data FOLDER")),
        ({"data": "nowhere"}, "train", "there is no folder nowhere"),
        ({}, "/dev/null,train.de", "/dev/null is a pipe or a device, which cannot be read several times"),
        ({}, "/dev/null", "^/dev/null is a pipe or a device"),  # as `<(paste a b)` is
        ({"data": "embedded", "target_language": "fr"}, "test", r"is English and German \(en, de\), not en to fr"),
    ],
)
def test_text_that_cannot_be_found_is_named(load, keys, name, message):
    with pytest.raises(InputError, match=message):
        load(name, **keys)
