"""The tokenised text of a recipe: nothing is lost, and errors name the file and line."""

import gzip
import json
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from training.corpus import load_corpus, open_corpus, overlap
from training.parallel_text import parallel_texts, text_lines, train_and_validation_texts
from training.recipe import load_recipe
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.tokenization import train_tokenizer

ENGLISH = ["The house is small.", "I see a dog.", "We have two houses.", "It is late."]
GERMAN = ["Das Haus ist klein.", "Ich sehe einen Hund.", "Wir haben zwei Häuser.", "Es ist spät."]
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))
ROWS = [{"en": english, "de": german} for english, german in PAIRS]


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
        return load_corpus(parallel_texts(recipe, [name]), tokenizer, recipe, tmp_path / "cache", said.append), said

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


def test_a_corpus_decodes_to_its_text(tmp_path, load, tokenizer):
    write_both(tmp_path)
    corpus, said = load()
    assert texts_of(corpus, tokenizer) == PAIRS
    assert "4 pairs read, 4 kept" in said[0]


def test_padding_and_mask_match_sentence_lengths(tmp_path, load, tokenizer):
    write_both(tmp_path)
    corpus, _ = load()
    ids, real = corpus.targets(np.array([2, 3]), 1)
    assert real.sum(1).tolist() == corpus.target_lengths[[2, 3]].tolist()
    assert (ids[~real] == 1).all()
    for row, mask, text in zip(ids, real, GERMAN[2:], strict=True):
        assert row[mask].tolist() == tokenizer(text)["input_ids"]
        assert row[mask][-1] == 2  # </s>


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)] * 2),
        min_size=1,
        max_size=8,
    )
)
def test_any_unicode_text_survives(tmp_path_factory, tokenizer, pairs):
    folder = tmp_path_factory.mktemp("any")
    pairs = [tuple(side.replace("\n", " ") for side in pair) for pair in pairs]
    write_both(folder, [english for english, _ in pairs], [german for _, german in pairs])
    recipe = load_recipe(None, {"data": json.dumps(str(folder))})
    expected = [tuple(side.removeprefix("\ufeff") if i == 0 else side for side in pair) for i, pair in enumerate(pairs)]
    expected = [(e.strip(), g.strip()) for e, g in expected if e.strip() and g.strip()]
    # A file without a pair is refused, and NUL in the first line may be mistaken for UTF-16.
    assume(expected and "\0" not in "".join(pairs[0]))
    corpus = load_corpus(parallel_texts(recipe, ["train"]), tokenizer, recipe, folder / "cache", lambda _: None)
    assert texts_of(corpus, tokenizer) == expected


def test_control_tokens_in_the_text_are_ordinary_text(tmp_path, load, tokenizer):
    write_both(tmp_path, ["a </s> b <pad>"], ["<s> c"])
    corpus, _ = load()
    assert texts_of(corpus, tokenizer) == [("a </s> b <pad>", "<s> c")]
    assert (corpus.source_ids == 2).sum() == 1


@pytest.mark.parametrize(
    "how",
    [{"end": "\r\n"}, {"start": b"\xef\xbb\xbf"}, {"last_end": False}],
    ids=["CRLF", "byte order mark", "no final newline"],
)
def test_line_ends_and_byte_order_marks_are_ignored(tmp_path, load, how):
    write_both(tmp_path)
    plain, _ = load()
    write_both(tmp_path, **how)
    other, _ = load()
    assert other.sha256 == plain.sha256


def test_every_format_gives_the_same_corpus(tmp_path, load):
    write_both(tmp_path)
    plain, _ = load()
    write(tmp_path, "zipped.en.gz", ENGLISH)
    write(tmp_path, "zipped.de.gz", GERMAN)
    write(tmp_path, "pairs.tsv", [f"{e}\t{g}\tkind" for e, g in PAIRS])
    write(tmp_path, "nested.jsonl.gz", [json.dumps({"translation": row}) for row in ROWS])
    write(tmp_path, "flat.jsonl", [json.dumps(row, ensure_ascii=False) for row in ROWS])
    for name in ("zipped", "pairs.tsv", "nested.jsonl.gz", "flat.jsonl", "train.{language}", "train.en,train.de"):
        assert load(name)[0].sha256 == plain.sha256, name


def test_a_saved_dataset_gives_the_same_corpus(tmp_path, load, recipe_for):
    import datasets

    write_both(tmp_path)
    plain, _ = load()
    made = datasets.DatasetDict({"train": datasets.Dataset.from_list([{"translation": row} for row in ROWS])})
    made.save_to_disk(str(tmp_path / "nested"))
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "flat"))
    assert load("train", data=None, dataset=str(tmp_path / "nested"))[0].sha256 == plain.sha256
    assert load("train", data=None, dataset=str(tmp_path / "flat"))[0].sha256 == plain.sha256
    with pytest.raises(InputError, match="no column 'fr'; available: en, de"):
        load("train", data=None, dataset=str(tmp_path / "flat"), target_language="fr")
    with pytest.raises(InputError, match="no split 'dev'; splits: train"):
        load("dev", data=None, dataset=str(tmp_path / "nested"))
    with pytest.raises(InputError, match="is one split .*, without 'dev'"):  # not the training text again
        parallel_texts(recipe_for(data=None, dataset=str(tmp_path / "flat"), train=["train"]), ["dev"])
    datasets.Dataset.from_list([{"en": "a", "de": 3}, {"en": "b", "de": 4}]).save_to_disk(str(tmp_path / "numbers"))
    with pytest.raises(InputError, match="row 1: 'de' holds int, must be text"):
        load("train", data=None, dataset=str(tmp_path / "numbers"))


def test_a_streamed_dataset_is_not_copied_to_disk(tmp_path, load, monkeypatch):
    copies = tmp_path / "copies"
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", copies)
    write_both(tmp_path)
    plain, _ = load()
    for name, lines in (("flat", ROWS), ("nested", [{"translation": row} for row in ROWS])):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "train.jsonl", [json.dumps(line) for line in lines])
        keys = {"data": None, "dataset": str(tmp_path / name)}
        assert load("train", **keys, streaming=True)[0].sha256 == plain.sha256
        assert not list(copies.rglob("*.arrow"))
        with pytest.raises(InputError, match="'fr'; available: en, de"):
            load("train", **keys, streaming=True, target_language="fr")
        with pytest.raises(InputError, match="no split 'dev'; splits: train"):
            load("dev", **keys, streaming=True)
    # A changed file is a new corpus.
    write(tmp_path / "flat", "train.jsonl", [json.dumps(line) for line in ROWS[:2]])
    assert len(load("train", data=None, dataset=str(tmp_path / "flat"), streaming=True)[0]) == 2
    # Without streaming there is a copy; otherwise the assertions above could not fail.
    load("train", data=None, dataset=str(tmp_path / "flat"))
    assert list(copies.rglob("*.arrow"))


def test_an_interrupted_stream_is_a_one_line_error(tmp_path, load):
    whole = json.dumps({"en": "one", "de": "eins"})
    (tmp_path / "broken").mkdir()
    write(tmp_path / "broken", "train.jsonl", [whole] * 5 + ['{"en": "two", "de'])
    with pytest.raises(UnavailableError, match=r"dataset .*broken, split train, cannot be read: \S"):
        load("train", data=None, dataset=str(tmp_path / "broken"), streaming=True)


def test_the_cache_distinguishes_translation_directions(tmp_path, load):
    """Covers a file, a dataset and the embedded corpus."""
    import datasets

    write(tmp_path, "pairs.jsonl", [json.dumps(row) for row in ROWS])
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "flat"))
    dataset = {"data": None, "dataset": str(tmp_path / "flat")}
    for name, keys in (("pairs.jsonl", {}), ("train", dataset), ("test", {"data": "embedded"})):
        there, _ = load(name, **keys)
        back, _ = load(name, **keys, source_language="de", target_language="en")
        assert list(there.source_lengths) == list(back.target_lengths) != list(back.source_lengths)


def test_the_cache_distinguishes_tokenizers(tmp_path, tokenizer, recipe_for):
    write_both(tmp_path)
    recipe = recipe_for()
    texts, other = parallel_texts(recipe, ["train"]), train_tokenizer(GERMAN * 3, 270)
    made = {
        load_corpus(texts, source, recipe, tmp_path / "cache", lambda _: None, target).sha256
        for source, target in ((tokenizer, None), (other, None), (tokenizer, other))
    }
    assert len(made) == 3


def test_the_embedded_corpus_is_english_and_german(recipe_for):
    with pytest.raises(InputError, match=r"is English and German \(en, de\), not en to fr"):
        parallel_texts(recipe_for(data="embedded", target_language="fr"), ["test"])


def test_several_corpora_are_concatenated(tmp_path, tokenizer, recipe_for):
    write_both(tmp_path)
    write(tmp_path, "more.tsv", ["one\teins"])
    recipe = recipe_for(train=["train", "more.tsv"])
    texts = parallel_texts(recipe, recipe.train)
    corpus = load_corpus(texts, tokenizer, recipe, tmp_path / "cache", lambda _: None)
    assert texts_of(corpus, tokenizer)[-1] == ("one", "eins") and len(corpus) == 5
    assert list(text_lines(texts)) == [*ENGLISH, *GERMAN, "one", "eins"]


def test_only_an_unchanged_corpus_comes_from_the_cache(tmp_path, load):
    write_both(tmp_path)
    first, _ = load()
    again, said = load()
    assert said == [] and again.sha256 == first.sha256
    write_both(tmp_path, [*ENGLISH[:-1], "It is early."])
    changed, said = load()
    assert len(said) == 1 and changed.sha256 != first.sha256
    assert len(load(max_length=20)[1]) == 1
    assert not list((tmp_path / "cache").glob("*.tmp-*"))


@pytest.mark.parametrize("name", ["source.ids", "target.ids", "source.lengths", "target.lengths", "pairs.hash"])
@pytest.mark.parametrize(("damage", "message"), [("cut", "has been altered"), ("flip", "has been altered")])
def test_a_damaged_cache_is_named_and_tokenised_again(tmp_path, load, name, damage, message):
    write_both(tmp_path)
    corpus, _ = load()
    (folder,) = (tmp_path / "cache").iterdir()
    raw = bytearray((folder / name).read_bytes())
    raw[1] ^= 1
    (folder / name).write_bytes(raw if damage == "flip" else raw[:2])
    with pytest.raises(BrokenFileError, match=f"{name} {message}"):
        open_corpus(folder)
    again, said = load()
    assert again.sha256 == corpus.sha256 and f"{name} {message}" in said[0] and "tokenising again" in said[0]
    assert (again.source_ids == load()[0].source_ids).all()


def test_the_columns_of_a_table_follow_the_languages(tmp_path, load, tokenizer):
    """A header or the file's name gives the order of the columns; otherwise the source is first."""
    rows = [f"{english}\t{german}" for english, german in PAIRS]
    reverse = {"source_language": "de", "target_language": "en"}
    write(tmp_path, "named.tsv", ["en\tde", *rows])
    write(tmp_path, "train.en-de.tsv", rows)
    write(tmp_path, "plain.tsv", rows)
    for name in ("named.tsv", "train.en-de.tsv"):
        assert texts_of(load(name)[0], tokenizer) == PAIRS
        assert texts_of(load(name, **reverse)[0], tokenizer) == [pair[::-1] for pair in PAIRS]
    assert texts_of(load("plain.tsv", **reverse)[0], tokenizer) == PAIRS


# --- errors in the text ------------------------------------------------------------------------------------------


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
    corpus, said = load(encoding_errors="skip")
    assert len(corpus) == 3 and "dropped 1 not UTF-8 (lines 2)" in said[0]
    with pytest.raises(InputError, match="line 2: byte 0xff"):  # The cached corpus has other settings.
        load()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_utf16_is_recognised(tmp_path, load, encoding):
    write_both(tmp_path)
    (tmp_path / "train.en").write_bytes("\n".join(ENGLISH).encode(encoding))
    with pytest.raises(InputError, match="train.en line 1: not UTF-8, looks like UTF-16"):
        load()


def test_empty_sides_are_dropped_and_reported_by_line(tmp_path, load, tokenizer):
    english, german = [*ENGLISH, "", "x", " \t", ""] * 2, [*GERMAN, "y", "", "z", ""] * 2
    write_both(tmp_path, english, german)
    corpus, said = load()
    assert len(corpus) == 8
    assert "16 pairs read, 8 kept" in said[0] and "dropped 8 empty (lines 5, 6, 7, 8, 13, ...)" in said[0]


@pytest.mark.parametrize(
    ("lines", "message"), [([], "train.en is empty"), (["", ""], r"none of 2 pairs can be used; dropped 2 empty")]
)
def test_a_corpus_without_usable_pairs_is_refused(tmp_path, load, lines, message):
    write_both(tmp_path, lines, lines, last_end=bool(lines))
    with pytest.raises(InputError, match=message):
        load()


def test_sentences_beyond_max_length_are_dropped_and_counted(tmp_path, load):
    write_both(tmp_path, [*ENGLISH, "word " * 100, "a"], [*GERMAN, "b", "Wort " * 100])
    corpus, said = load()
    assert len(corpus) == 4 and "dropped 2 too long (lines 5, 6)" in said[0]
    assert corpus.source_lengths.max() <= 60


def test_a_sentence_of_max_length_tokens_is_kept(tmp_path, load, tokenizer):
    write_both(tmp_path)
    longest = max(len(tokenizer(text)["input_ids"]) for text in (*ENGLISH, *GERMAN))
    assert len(load(max_length=longest)[0]) == 4
    assert len(load(max_length=longest - 1)[0]) < 4


def test_the_length_ratio_excludes_the_end_token(tmp_path, load):
    """Without </s> the targets are two and three times as long as the sources."""
    write_both(tmp_path, ["x", "x"], ["yz", "yzx"])
    corpus, said = load(max_length_ratio=2)
    assert corpus.target_lengths.tolist() == [3] and "dropped 1 length ratio (lines 2)" in said[0]


@pytest.mark.timeout(20)
def test_a_line_of_ten_million_characters_is_dropped_quickly(tmp_path, load):
    write_both(tmp_path, [*ENGLISH, "x" * 10_000_000], [*GERMAN, "y"])
    corpus, said = load()
    assert len(corpus) == 4 and "dropped 1 too long (lines 5)" in said[0]


def test_only_newlines_end_a_line(tmp_path, load, tokenizer):
    write_both(tmp_path, ["a\u2028b\x0bc\x85d\re\x1ef"], ["g\u202eh\x00i"])
    assert texts_of(load()[0], tokenizer) == [("a\u2028b\x0bc\x85d\re\x1ef", "g\u202eh\x00i")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"translation": {"en": "a"}}', r"line 2: key 'de' is missing; keys there: en"),
        ('{"translation": {"en": "a", "de": null}}', r"line 2: 'de' is null, must be text"),
        ('{"translation": {"en": "a", "de": 3}}', r"line 2: 'de' is int"),
        ('{"translation": {"en": ["a"], "de": "b"}}', r"line 2: 'en' is list"),
        ('{"translation": {"en": "a", "de": "b"', r"line 2: not JSON"),
        ('["a", "b"]', r"line 2: must be {\"translation\": {...}}, found list"),
        ('{"translation": {"en": "a\\ud800", "de": "b"}}', r"line 2: 'en' has a lone surrogate U\+D800 at character 2"),
        ("[" * 100_000, r"line 2: not JSON"),
        ('{"en": "a", "de": ' + "1" * 5000 + "}", r"line 2: not JSON"),
    ],
)
def test_json_errors_name_line_and_key(tmp_path, load, line, message):
    write(tmp_path, "p.jsonl", ['{"translation": {"en": "a", "de": "b"}}', line])
    with pytest.raises(InputError, match=message):
        load("p.jsonl")


def test_a_part_is_held_out_without_validation_text(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("".join(f"{number} {language}\n" for number in range(1, 121)))
    recipe = load_recipe(None, {"data": str(tmp_path)})
    parts = train_and_validation_texts(recipe)
    assert parts[2]
    train, held_out = (
        [
            (number, pair)
            for chunk in text.chunks()
            for number, pair in enumerate(zip(chunk.sources, chunk.targets, strict=True), chunk.first_line)
        ]
        for (text,) in parts[:2]
    )
    assert [number for number, _ in held_out] == [50, 100]
    assert sorted(train + held_out) == [(number, (f"{number} en", f"{number} de")) for number in range(1, 121)]
    assert len({text.fingerprint() for text in (*parts[0], *parts[1], *parallel_texts(recipe, ["train"]))}) == 3
    (tmp_path / "val.en").write_text("a\n")
    with pytest.raises(InputError, match="val.de: no such file"):
        train_and_validation_texts(recipe)
    (tmp_path / "val.de").write_text("a\n")
    assert train_and_validation_texts(recipe)[2] is False


@pytest.mark.parametrize("name", ["pairs.csv", "-"])
def test_formats_that_are_not_read_are_named(tmp_path, name):
    with pytest.raises(InputError, match="is not a text that can be read: NAME for .* not CSV, and not stdin"):
        parallel_texts(load_recipe(None, {"data": str(tmp_path)}), [name])


def test_line_numbers_are_right_beyond_the_first_chunk(tmp_path, load):
    lines = ["a"] * 9000
    write_both(tmp_path, [*lines, "", *lines], [*lines, "b", *lines])
    assert "dropped 1 empty (lines 9001)" in load()[1][0]
    write(tmp_path, "p.tsv", ["a\tb"] * 9000 + ["one"])
    with pytest.raises(InputError, match=r"p\.tsv line 9001: 1 column"):
        load("p.tsv")


def test_a_truncated_gzip_file_is_named(tmp_path, load):
    write(tmp_path, "train.en.gz", ENGLISH * 100)
    write(tmp_path, "train.de.gz", GERMAN * 100)
    path = tmp_path / "train.de.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BrokenFileError, match=r"train\.de\.gz is not a complete gzip file"):
        load()


def test_missing_text_is_named(tmp_path, load):
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'train.en'}: no such file (nor train.en.gz)")):
        load()
    with pytest.raises(InputError, match="there is no folder"):
        load(data=str(tmp_path / "nowhere"))


def test_overlap_counts_shared_test_pairs(tmp_path, load):
    """Repetitions in the training text do not count."""
    write_both(tmp_path, ENGLISH * 3, GERMAN * 3)
    write_both(tmp_path, [ENGLISH[1], "New.", ENGLISH[0]], [GERMAN[1], "Neu.", "Etwas anderes."], name="test")
    assert overlap(load()[0], load("test")[0]) == 1
