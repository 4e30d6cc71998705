"""Formats of parallel text: the right columns and languages, and no pair lost or invented without a report."""

import bz2
import csv
import gzip
import json
import lzma
import subprocess
import sys
import tracemalloc

import datasets
import pandas
import pytest
from conftest import ENVIRONMENT
from saved_model import ENGLISH, GERMAN

from training.corpus import load_corpus
from training.parallel_text import (
    FIRST_LETTER,
    WHOLE,
    change_case,
    open_texts,
    open_training_and_validation,
    read_sentences,
)
from training.recipe import load_recipe
from vaswani_transformer.errors import InputError
from vaswani_transformer.languages_vaswani_transformer import find_language
from vaswani_transformer.tokenization import train_tokenizer

PAIRS = [("A man sleeps.", "Ein Mann schläft."), ('He says "yes".', 'Er sagt "ja".')]


@pytest.fixture
def read(tmp_path):
    """read(name, content, **keys) -> the pairs of a file with this content."""

    def run(name, content, **keys):
        raw = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        recipe = load_recipe(None, {"data": str(tmp_path)} | {key: json.dumps(value) for key, value in keys.items()})
        return list(zip(*read_sentences(open_texts(recipe, [name])), strict=True))

    return run


@pytest.fixture
def report(tmp_path):
    """report(name, **keys) -> what is said while the corpus is tokenised."""
    tokenizer = train_tokenizer([*ENGLISH, *GERMAN], 270)

    def run(name, **keys):
        recipe = load_recipe(None, {"data": str(tmp_path)} | {key: json.dumps(value) for key, value in keys.items()})
        said = []
        load_corpus(open_texts(recipe, [name]), tokenizer, recipe, tmp_path / "cache", said.append)
        return said[0]

    return run


# --- headers and columns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    ["en\tde", "EN\tDE", "English\tGerman", "en_US\tde-DE", "eng\tdeu", "Englisch\ten\tde", " en \t de ", "src\ttgt",
     "\ten\tde", "source_text\ttarget_text", "text_en\ttext_de",
     "English sentence\tGerman sentence", '"en"\t"de"', "id\ten\tde", "id\tEnglish\tid\tGerman", "score\ten\tde",
     "en\tde\t", "\ten\tde\tsplit"],
)  # fmt: skip
def test_a_header_names_the_columns(read, header):
    names = header.split("\t")
    wanted = [
        next(i for i, n in enumerate(names) if n.strip(' "').lower().removeprefix("text_")[:2] in codes)
        for codes in (("en", "sr", "so"), ("de", "ge", "tg", "ta"))
    ]
    if header.startswith("Englisch"):  # no code and no English name
        wanted = [1, 2]
    rows = []
    for number, pair in enumerate(PAIRS):
        cells = [str(number)] * len(names)
        cells[wanted[0]], cells[wanted[1]] = pair
        rows.append("\t".join(cells))
    assert read("p.tsv", "\n".join([header, *rows, ""])) == PAIRS
    if "src" not in header and "source" not in header:
        backwards = read("p.tsv", "\n".join([header, *rows, ""]), source_language="de", target_language="en")
        assert backwards == [pair[::-1] for pair in PAIRS]


@pytest.mark.parametrize(
    ("names", "language", "found"),
    [
        (["de", "en"], "en", 1), (["en-GB", "en"], "en", 1), (["en-US", "en-GB"], "en", 0), (["EN_us"], "en", 0),
        (["en"], "en-US", None), (["en-GB"], "en-US", None), (["en-gb", "EN-US"], "en-US", 1), (["Deutsch"], "de", 0),
        (["fra", "fre"], "fr", 0), (["Portuguese", "pt-BR"], "pt-BR", 1), (["zh-Hans-CN"], "zh", 0),
        (["tok"], "tok", 0), (["end", "den"], "en", None), (["English text"], "en", 0), ([""], "en", None),
        (["yue"], "zh", None),
    ],
)  # fmt: skip
def test_languages_are_found_by_code_region_and_name(names, language, found):
    assert find_language(names, language) == found


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("{i}\tA man.\tEin Mann.", 1),  # a pandas index
        ("12{i}\tA man.\t77{i}\tEin Mann.", 1),  # Tatoeba: id en id de
        ("1.0{i}\tA man.\tEin Mann.", 1),  # a score, as in WikiMatrix and CCMatrix
        ("A man.\t0.9{i}\tEin Mann.", 2),
        ("https://a.org/\thttps://a.org/de\tA man.\tEin Mann.", 1),  # ParaCrawl
        ("eng\tdeu\tA man.\tEin Mann.", 1),  # Tatoeba Challenge
        ("sent_{i}\tA man.\tEin Mann.", 1),
        ("news\tA man no. {i}.\tEin Mann {i}.", 1),  # a domain
        ("3f2504e0-4f89-{i}\tA man.\tEin Mann.", 1),
    ],
)
@pytest.mark.parametrize("name", ["p.tsv", "p.csv"])
def test_columns_without_text_are_refused_by_name(read, row, column, name):
    text = "".join(row.format(i=i) + "\n" for i in range(9)).replace("\t", "\t" if name == "p.tsv" else ",")
    with pytest.raises(InputError, match=rf"{name}: column {column} has no text \(.*name the columns in a first line"):
        read(name, text)


def test_a_header_without_a_language_is_refused(read):
    with pytest.raises(InputError, match="p.tsv line 1: no column 'de'; columns: id, en, fr"):
        read("p.tsv", "id\ten\tfr\n1\ta\tb\n")
    # The first line of a dictionary is no header.
    assert read("p.tsv", "one\teins\nno\tnein\n") == [("one", "eins"), ("no", "nein")]


def test_sources_with_several_translations_are_text(read):
    rows = [("A man.", f"Ein Mann {number}.", "news") for number in range(9)] + [("Dogs.", "Hunde.", "web")]
    assert read("p.tsv", "".join("\t".join(row) + "\n" for row in rows)) == [row[:2] for row in rows]


@pytest.mark.parametrize("content", ["0,1\nA man.,Ein Mann.\n", ",0,1\n0,A man.,Ein Mann.\n"])
def test_the_numbered_header_of_pandas_is_no_pair(read, content):
    with pytest.raises(InputError, match="p.csv"):
        read("p.csv", content)


@pytest.mark.parametrize("delimiter", [";", "\t"])
@pytest.mark.parametrize("header", ["", "sep={}\n", "Source{}Target\n", "SEP={0}\nde{0}en\n"])
def test_csv_files_of_spreadsheets_are_read(read, delimiter, header):
    pairs = [("A man, old.", "Ein Mann, alt."), ("A dog.", "Ein Hund.")]
    rows = [pair[::-1] if "de" in header else pair for pair in pairs]
    assert read("p.csv", header.format(delimiter) + "".join(delimiter.join(row) + "\n" for row in rows)) == pairs


def test_a_file_of_another_format_is_named(read):
    with pytest.raises(InputError, match="p.json is in no format that training reads by its name: NAME.tsv"):
        read("p.json", '[{"en": "A man.", "de": "Ein Mann."}]')


def test_numbers_are_text_if_a_header_says_so(read):
    assert read("p.tsv", "en\tde\n12\tzwölf\n7\tsieben\n") == [("12", "zwölf"), ("7", "sieben")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id\tsentence1\tsentence2\n1\tA man.\tEin Mann.\n", "line 1: no column 'en'; columns: id, sentence1"),
        ("text_en\ttext_fr\nA man.\tUn homme.\n", "line 1: no column 'de'; columns: text_en, text_fr"),
        ("translation\toriginal\nEin Mann.\tA man.\n", "line 1: no column 'en'; .* such as en TAB de"),
        ("en\ten\tde\n1\tA man.\tEin Mann.\n", "line 1: two columns are called en"),
        ("en\tde\nA man.\tEin Mann.\nde\ten\nDie Sonne.\tThe sun.\n", "line 3: a header with another order of columns"),
        ("# from a dictionary\t2024\nde\ten\nEin Mann.\tA man.\n", r"line 2: a header with another order .*\(de, en\)"),
        ("src_lang\ttgt_lang\tsrc\ttgt\nen\tde\tA man.\tEin Mann.\nde\ten\tDie Sonne.\tThe sun.\n",
         "line 3: src_lang is 'de', but the recipe's language there is 'en'"),
    ],
)  # fmt: skip
def test_no_column_is_taken_for_another(read, content, message):
    with pytest.raises(InputError, match=f"p.tsv {message}"):
        read("p.tsv", content)


@pytest.mark.parametrize("header", ["Language 1,Language 2", "lang_a,lang_b", "text.en,text.fr", "segment-a,segment-b"])
def test_labels_without_the_languages_are_no_pair(read, header):
    with pytest.raises(InputError, match="p.csv line 1: no column '(en|de)'; columns: "):
        read("p.csv", f"{header}\nA man.,Ein Mann.\n")


@pytest.mark.parametrize("row", ["{code}\t{en}\t{de}", "eng\t{en}\tdeu\t{de}", "{en}\t{code}\t{de}"])
def test_codes_of_letters_are_no_text(read, row):
    """Though each has a form that a word may have, a column of one word beside sentences is none."""
    rows = [
        row.format(code=code, en="Two dogs run.", de=f"Zwei Hunde {code}.") for code in ("abc", "fad", "ab1", "c", "d")
    ]
    with pytest.raises(InputError, match="p.tsv: column [12] has no text .*; name the columns in a first line"):
        read("p.tsv", "\n".join(rows))
    words = [("no", "nein"), ("dog", "Hund"), ("ant", "Ameise"), ("a", "ein"), ("by", "von der Seite her")]
    assert read("p.tsv", "".join(f"{en}\t{de}\tA1\n" for en, de in words)) == words


def test_the_header_of_joined_tables_is_no_pair(report, tmp_path):
    (tmp_path / "p.tsv").write_text("en\tde\na b\tc d\nen\tde\ne f\tg h\n")
    said = report("p.tsv")
    assert "3 pairs read, 2 kept" in said and "dropped 1 missing (lines 3)" in said


@pytest.mark.parametrize("row", ["A man.\tstands.\tEin Mann.", "A man."])
def test_a_row_with_other_columns_is_refused_by_line(read, row):
    with pytest.raises(InputError, match=r"p.tsv line 2: \d columns?, but the first line has 2; .* must be in quotes"):
        read("p.tsv", f"a b\tc d\n{row}\n")


# --- quotes --------------------------------------------------------------------------------------------------------


BROKEN = [("A man\nsleeps.", "Ein Mann\nschläft."), ("a\tb", "c, d; e"), *PAIRS]
JOINED = [("A man sleeps.", "Ein Mann schläft."), ("a\tb", "c, d; e"), *PAIRS]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize(("name", "separator"), [("p.tsv", "\t"), ("p.csv", ","), ("p.csv", ";"), ("p.csv.gz", ",")])
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table_of_pandas_is_read_as_it_was_written(read, quoting, name, separator, index, end):
    frame = pandas.DataFrame(BROKEN, columns=["en", "de"])
    text = frame.to_csv(sep=separator, index=index, quoting=quoting, lineterminator=end)
    assert read(name, text) == JOINED
    assert read(name, "\ufeff" + text) == JOINED


@pytest.mark.parametrize(
    "lines",
    [
        ['"I will go.\t"Ich gehe.', 'Then he left."\tDann ging er."'],
        ['"Yes."\t"Ja."', 'He said "no".\tEr sagte "nein".'],
        ['"Yes," he said. "No."\t"Ja", sagte er. "Nein."', "a b\tc d"],
        ['"Yes."\t"Ja."', "a b\tc d"],
        ['5" disk\t5"-Diskette', '""\tZwei Striche'],
    ],
)
def test_quotes_of_a_table_without_quoting_are_text(read, lines):
    assert read("p.tsv", "\n".join([*lines, ""])) == [tuple(line.split("\t")) for line in lines]


def test_quotes_of_a_csv_file_that_do_not_fit_are_refused_by_line(read):
    for text, line in (('a b,c d\n"e" f,g h\n', 2), ('a b,c d\ne f,"g h\ni,j\n', 2)):
        with pytest.raises(InputError, match=f"p.csv line {line}: its quotes do not fit together"):
            read("p.csv", text)


# --- blank lines, null and line breaks -----------------------------------------------------------------------------


def test_blank_texts_and_line_breaks_mean_the_same_in_every_format(tmp_path, report):
    """The pairs: one with a line break inside, one without a target, one of white space, one of nothing, one good."""
    rows = [("a\nb", "c\r\nd"), ("e", None), (" ", " "), (None, None), ("f g", "h i")]
    plain = [[(text or "").replace("\r\n", "\r").replace("\n", "\r") for text in row] for row in rows]
    for side, language in enumerate(("en", "de")):  # a carriage return: a line feed would end the line
        (tmp_path / f"two.{language}").write_bytes("".join(f"{row[side]}\n" for row in plain).encode())
    objects = [json.dumps({"en": en, "de": de}) if en or de else "" for en, de in rows]
    (tmp_path / "p.jsonl").write_text("".join(f"{line}\n" for line in objects))
    frame = pandas.DataFrame(rows, columns=["en", "de"])
    frame.to_csv(tmp_path / "p.csv", index=False)
    frame.to_csv(tmp_path / "p.tsv", index=False, sep="\t")
    datasets.Dataset.from_list([{"en": en, "de": de} for en, de in rows]).save_to_disk(str(tmp_path / "set"))
    for name, keys in (
        ("two", {}), ("p.jsonl", {}), ("p.csv", {}), ("p.tsv", {}),
        ("train", {"data": None, "dataset": str(tmp_path / "set")}),
    ):  # fmt: skip
        said = report(name, **keys)
        assert "5 pairs read, 2 kept" in said, name
        assert sum(int(part.split()[1]) for part in said.split("; ") if part.startswith("dropped")) == 3, name


@pytest.mark.parametrize(("name", "delimiter"), [("p.tsv", "\t"), ("p.csv", ",")])
def test_blank_lines_around_a_table_are_no_pairs_and_no_header(read, name, delimiter):
    rows = [delimiter.join(pair) for pair in (("en", "de"), ("a b", "c d"), ("", ""), ("e", "f"))]
    assert read(name, "\n".join(["", " ", *rows, "", ""])) == [("a b", "c d"), ("e", "f")]
    for blank in ("\n", " \n\n"):
        with pytest.raises(InputError, match=f"{name} line 1: 0 columns, expected source"):
            read(name, blank)


def test_a_number_in_a_dataset_is_no_empty_text(tmp_path):
    datasets.Dataset.from_list([{"en": "a", "de": 0}]).save_to_disk(str(tmp_path / "set"))
    recipe = load_recipe(None, {"dataset": str(tmp_path / "set")})
    with pytest.raises(InputError, match="row 1: 'de' is int; it must be text"):
        read_sentences(open_texts(recipe, ["train"]))


def test_the_language_of_a_row_may_be_a_label(tmp_path):
    """datasets stores the number of a ClassLabel, from 0; -1 is none."""
    features = datasets.Features(
        {"source": datasets.Value("string"), "target": datasets.Value("string")}
        | {"source_lang": datasets.ClassLabel(names=["en", "fr"])}
    )

    def read(*labels):
        rows = [{"source": "a", "target": "b", "source_lang": label} for label in labels]
        datasets.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "set"))
        return read_sentences(open_texts(load_recipe(None, {"dataset": str(tmp_path / "set")}), ["train"]))

    assert read("en", None, -1) == (["a"] * 3, ["b"] * 3)
    with pytest.raises(InputError, match="row 2: source_lang is 'fr', but the recipe's language there is 'en'"):
        read("en", "fr")


@pytest.mark.parametrize(
    "keys",
    [
        ("English", "DE"),
        ("source", "target"),
        ("src", "tgt"),
        ("text_en", "text_de"),
        ("translation.en", "translation.de"),
    ],
)
def test_keys_and_columns_may_be_names_of_languages_or_roles(tmp_path, read, keys):
    rows = [dict(zip(keys, pair, strict=True)) for pair in PAIRS]
    assert read("p.jsonl", "".join(json.dumps(row) + "\n" for row in rows)) == PAIRS
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "set"))
    recipe = load_recipe(None, {"dataset": str(tmp_path / "set")})
    assert list(zip(*read_sentences(open_texts(recipe, ["train"])), strict=True)) == PAIRS


def test_a_pair_that_is_null_is_missing_in_json_and_datasets(tmp_path, report):
    rows = [{"translation": {"en": "a b", "de": "c d"}}, {"translation": None}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "set"))
    for name, keys in (("p.jsonl", {}), ("train", {"data": None, "dataset": str(tmp_path / "set")})):
        assert "2 pairs read, 1 kept" in report(name, **keys)


@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.jsonl"])
def test_a_text_of_a_million_letters_is_dropped_in_every_format(tmp_path, report, name):
    frame = pandas.DataFrame([("x" * 1_000_000, "a"), ("b c", "d e")], columns=["en", "de"])
    if name == "p.jsonl":
        frame.to_json(tmp_path / name, orient="records", lines=True)
    else:
        frame.to_csv(tmp_path / name, index=False, sep="," if name == "p.csv" else "\t")
    assert "2 pairs read, 1 kept" in report(name)


def test_spaces_around_quoted_cells_are_no_text(read):
    assert read("p.csv", 'en, de\n"A man, old", "Ein Mann, alt"\n') == [("A man, old", "Ein Mann, alt")]


@pytest.mark.parametrize(
    ("compress", "kind"), [(gzip.compress, "gzip"), (lzma.compress, "xz"), (bz2.compress, "bzip2")]
)
def test_compressed_text_without_its_suffix_is_named(read, compress, kind):
    for name in ("p.tsv", "p.csv", "p.jsonl"):
        with pytest.raises(InputError, match=f"{name} is compressed by {kind}; decompress it"):
            read(name, compress(b"en\tde\na b\tc d\n"))


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"PK\3\4", "a workbook or a zip archive"), (b"\xd0\xcf\x11\xe0", "a workbook"), (b"PAR1\x15", "Parquet")],
)
def test_a_file_that_is_no_text_is_named(read, start, kind):
    with pytest.raises(InputError, match=f"p.csv is {kind}, not text; export it .* for `train` as CSV or"):
        read("p.csv", start + b"\0\0\n\xff")


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.jsonl", "p.csv.gz"])
def test_carriage_returns_alone_end_no_line(read, name):
    with pytest.raises(InputError, match=f"{name} has 2 carriage returns and no line feed; convert it: tr"):
        read(name, "en,de\ra b,c d\re f,g h\r")
    if "csv" in name:  # inside a text, they are white space as in other formats
        assert read(name, "en,de\r\na\rb,c d\n") == [("a b", "c d")]


def test_copies_of_the_source_are_reported(tmp_path):
    """The same file for both languages, or a memory in which nothing has been translated."""
    too_long = "x" * 260  # in tokens, not yet in characters
    (tmp_path / "a.txt").write_text(f"one two\nthree\n{too_long}\nfour five\n")
    tokenizer, said = train_tokenizer([*ENGLISH, *GERMAN], 270), []
    recipe = load_recipe(None, {"data": str(tmp_path)})
    load_corpus(open_texts(recipe, ["a.txt,a.txt"]), tokenizer, recipe, tmp_path / "cache", said.append)
    assert "source and target are the same text in 3 of 3 pairs (lines 1, 2, 4)" in said[1]


# --- capitals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "language", "capitals", "title"),
    [
        ("Two dogs run.", "en", "TWO DOGS RUN.", "Two Dogs Run."),
        ("A man's “big” (old) dog", "en", "A MAN'S “BIG” (OLD) DOG", "A Man's “Big” (Old) Dog"),
        ("die Straße über Österreich", "de", "DIE STRASSE ÜBER ÖSTERREICH", "Die Straße Über Österreich"),
        ("c'est l'été", "fr", "C'EST L'ÉTÉ", "C'est L'été"),
        ("iyi bir ışık", "tr", "İYİ BİR IŞIK", "İyi Bir Işık"),
        ("мир дому", "ru", "МИР ДОМУ", "Мир Дому"),
        ("<2de> see {name} at https://a.org or a_b@c.de", "en", "<2de> SEE {name} AT https://a.org OR a_b@c.de",
         "<2de> See {name} At https://a.org Or a_b@c.de"),
        ("日本語", "ja", "日本語", "日本語"),
    ],
)  # fmt: skip
def test_sentences_are_written_in_capitals(text, language, capitals, title):
    assert [change_case(text, part, language) for part in (WHOLE, FIRST_LETTER)] == [capitals, title]


def test_a_share_of_the_training_pairs_has_copies_in_capitals(tmp_path):
    lines = [f"word {number} of many" for number in range(4000)]
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("\n".join([*lines, "日本", ""]))
        (tmp_path / f"val.{language}").write_text("\n".join([*lines, ""]))
    plain, recipe = (load_recipe(None, {"data": str(tmp_path), "capitals": share}) for share in ("0", "0.1"))
    (text,), (validation,) = open_training_and_validation(recipe)
    sources, targets = read_sentences([text])
    assert sources == targets and {*sources} >= {*lines} and len(read_sentences([validation])[0]) == 4000
    for change in (str.upper, str.title):
        copies = {*sources} & {change(line) for line in lines}
        assert 340 <= len(copies) <= 460  # the binomial's mean of 400 +- 3 standard deviations
    assert len(sources) == 4001 + len([line for line in sources if line not in lines and line != "日本"])
    assert read_sentences([text])[0] == sources
    keys = {"capitals": "0.1", "train": "train.en,train.de", "validation": "[]", "source_language": "tr"}
    other = load_recipe(None, {"data": str(tmp_path), **keys})
    same = other.model_copy(update={"source_language": "en"})
    (with_dotted_i,), (with_i,) = (open_training_and_validation(each)[0] for each in (other, same))
    assert with_dotted_i.fingerprint() != with_i.fingerprint()
    (unchanged,), _ = open_training_and_validation(plain)
    assert unchanged.fingerprint() != text.fingerprint() and read_sentences([unchanged])[0] == [*lines, "日本"]


# --- TMX -----------------------------------------------------------------------------------------------------------

HEADER = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n'
HEADER += (
    '<header creationtool="OmegaT" segtype="sentence" o-tmf="OmegaT TMX" adminlang="EN-US" srclang="en-US"/>\n<body>'
)


def unit(**segments):
    variants = (f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>' for code, text in segments.items())
    return f"<tu><prop type='file'>a.docx</prop>{''.join(variants)}</tu>\n"


def tmx(*units, start=HEADER):
    return start + "".join(units) + "</body></tmx>"


@pytest.mark.parametrize("name", ["p.en.gz", "p.tsv.gz", "p.csv.gz", "p.jsonl.gz", "p.tmx.gz"])
def test_a_small_file_that_expands_to_gigabytes_without_a_line_break_is_refused(tmp_path, name):
    """The whole line, here of 60 MB, is never in memory."""
    begin, end = (b"<tmx><body><tu><tuv lang='en'><seg>", b"</seg>") if "tmx" in name else (b"", b"\n")
    with gzip.GzipFile(tmp_path / name, "wb", compresslevel=1) as file:
        file.write(begin)
        for _ in range(60):
            file.write(b"a" * 1_000_000)
        file.write(end)
    (tmp_path / "p.de").write_text("a\n")
    recipe = load_recipe(None, {"data": str(tmp_path)})
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=rf"{name} line 1.* (longer|more) than 20,000,000 (bytes|characters); "):
            read_sentences(open_texts(recipe, [name.removesuffix(".en.gz")]))
        assert tracemalloc.get_traced_memory()[1] < 150_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["m.tmx", "m.tmx.gz"])
def test_a_translation_memory_is_read(read, name):
    content = tmx(
        unit(en_US="A &amp; B &lt;c&gt;", de_DE="Ä&#10;&#x1F600;"), unit(de_DE="zwei", fr="deux", en_US="two")
    )
    assert read(name, content) == [("A & B <c>", "Ä 😀"), ("two", "zwei")]
    assert read(name, content, source_language="fr", target_language="de") == [("deux", "zwei")]


@pytest.mark.parametrize(
    ("segment", "plain", "kept"),
    [  # the examples of the TMX 1.4b specification, and of OmegaT and Trados
        ('The <bpt i="1" x="1">&lt;b&gt;</bpt>big<ept i="1">&lt;/b&gt;</ept> dog.', "The big dog.",
         "The <b>big</b> dog."),
        ('<ph x="1">&lt;img/&gt;</ph>Start', "Start", "<img/>Start"),
        ('one<ph x="1">&lt;br/&gt;</ph>two', "one two", "one<br/>two"),
        ("one<br/>two <x/>three", "one two three", "one two three"),
        ('You have <ph>%d</ph> messages.', "You have messages.", "You have %d messages."),
        ('Elephants<ph type="fnote">{\\footnote <sub>An <hi>animal</hi>.</sub>}</ph>.', "Elephants.",
         "Elephants{\\footnote An animal.}."),
        ('Mixed <it pos="begin">[i]</it>text<ut>{x}</ut> <hi type="term">here</hi>', "Mixed text here",
         "Mixed [i]text{x} here"),
        ("two\n      lines", "two lines", "two lines"),
    ],
)  # fmt: skip
def test_formatting_codes_are_dropped_or_kept(read, segment, plain, kept):
    content = tmx(unit(en=segment, de="x y"))
    assert read("m.tmx", content) == [(plain, "x y")]
    assert read("m.tmx", content, keep_codes=True) == [(kept, "x y")]


def test_units_without_a_text_are_counted_by_line(tmp_path, report):
    units = [
        unit(en="one", de="eins"),
        unit(en="two", fr="deux"),
        unit(en="<ph>x</ph>", de="drei"),
        unit(en="a", de=""),
    ]
    (tmp_path / "m.tmx").write_text(tmx(*units))
    said = report("m.tmx")
    assert "4 pairs read, 1 kept" in said
    assert "dropped 2 empty (lines 7, 8); dropped 1 missing (lines 6)" in said


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "windows-1252", "iso-8859-1"])
def test_the_encoding_is_the_declared_one(read, encoding):
    content = tmx(unit(en="cafe", de="Häuser")).replace('"UTF-8"', f'"{encoding.removesuffix("-sig")}"')
    assert read("m.tmx", content.encode(encoding)) == [("cafe", "Häuser")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tmx(unit(en="a", fr="b")), "m.tmx: no unit has a text in 'de'; languages there: en, fr"),
        (tmx(), "m.tmx has no translation units"),
        (tmx(unit(en="a", de="b"))[:-20], r"m.tmx line 5: (no element found|unclosed token), so the file is not"),
        ("<xliff version='1.2'/>", "m.tmx: the file's root is <xliff>, not <tmx>"),
        (tmx(unit(en="a&nbsp;b", de="c")), "m.tmx line 5: .* refers to the entity 'nbsp'"),
        ('<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + tmx(unit(en="&a;", de="b"), start="<tmx><body>"),
         "m.tmx line 1: the file declares the entity 'a', which is not expanded"),
        ('<!DOCTYPE tmx [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>' + tmx(unit(en="&b;", de="b"), start="<tmx><body>"),
         "m.tmx line 1: the file declares the entity 'a'"),
        ("", "m.tmx line 1: no element found"),
    ],
)  # fmt: skip
def test_faults_of_a_translation_memory_are_named(read, content, message):
    with pytest.raises(InputError, match=message):
        read("m.tmx", content)


COUNT = """
import resource, sys
from training.parallel_text import count_pairs, open_texts
from training.recipe import load_recipe
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = count_pairs(open_texts(load_recipe(None, {"data": sys.argv[1]}), ["m.tmx.gz"]))
print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_a_large_translation_memory_needs_no_memory(tmp_path):
    """300 MB of XML in 20 MB of memory."""
    units = "".join(unit(en=f"Sentence {i} of many.", de=f"Satz {i} von vielen.") for i in range(10_000))
    with gzip.open(tmp_path / "m.tmx.gz", "wt", compresslevel=1) as file:
        file.write(HEADER)
        for _ in range(200):
            file.write(units)
        file.write("</body></tmx>")
    command = [sys.executable, "-c", COUNT, str(tmp_path)]
    count, megabytes = map(int, subprocess.check_output(command, env=ENVIRONMENT, text=True).split())
    assert count == 2_000_000 and megabytes < 20
