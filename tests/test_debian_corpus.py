"""`examples/debian_corpus`: pairs from the structure of each source, and a test set apart from the training text."""

import gzip
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "debian_corpus"


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """The programs import each other, as scripts of one folder do."""
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for name in [name for name, module in sys.modules.items() if str(FOLDER) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


class Packages:
    """Packages that are already there."""

    def __init__(self, folders: list[Path], descriptions: dict[str, str] | None = None):
        self.folders, self.descriptions = folders, descriptions or {}

    def unpack(self, *names: str) -> list[Path]:
        return self.folders

    def read_descriptions(self, language: str) -> list[str]:
        return self.descriptions[language].splitlines(keepends=True)


def unpacked(folders: list[Path], descriptions: dict[str, str] | None = None) -> Any:
    return Packages(folders, descriptions)


RECORD = """\
Package: ls
Description-md5: 1f3a
Description-{}: {}
 {}
 {}
 .
 {}
{}
"""


def test_paragraphs_of_a_description_correspond():
    import descriptions

    english = RECORD.format("en", "lists files", "It lists", "all files.", "It is small.", "")
    german = RECORD.format("de", "zeigt Dateien an", "Es zeigt alle", "Dateien an.", "Es ist klein.", "")
    assert list(descriptions.read_pairs(unpacked([], {"en": english, "de": german}), "de")) == [
        ("lists files", "zeigt Dateien an"),
        ("It lists all files.", "Es zeigt alle Dateien an."),
        ("It is small.", "Es ist klein."),
    ]
    shorter = german.replace(" .\n", "")
    assert list(descriptions.read_pairs(unpacked([], {"en": english, "de": shorter}), "de")) == [
        ("lists files", "zeigt Dateien an")
    ]
    assert not list(descriptions.read_pairs(unpacked([], {"en": english, "de": german.replace("1f3a", "77")}), "de"))


def test_paragraphs_with_the_same_id_correspond(tmp_path):
    import office_help

    for language, text in (("en-US", "Click <b>OK</b>."), ("de", "Klicken Sie auf <b>OK</b>.")):
        path = tmp_path / f"usr/share/libreoffice/help/{language}/text/a.html"
        path.parent.mkdir(parents=True)
        path.write_text(f'<p id="par_1">{text}</p><p id="{language}">x</p><pre id="c">code</pre><p>nothing</p>')
    assert list(office_help.read_pairs(unpacked([tmp_path, tmp_path]), "de")) == [("Click OK.", "Klicken Sie auf OK.")]


PAGE = r"""
.TH CAT 1 "{}"
.SH {}
cat \- {}
.SH DESCRIPTION
.TP
.BR \-n ", " \-\-number
{}
.PP
See
.BR less (1).
"""


def test_blocks_of_a_manual_page_correspond(tmp_path):
    import manual_pages

    for folder, words in (
        ("man1", ("x", "NAME", "print files", "number all lines")),
        ("de/man1", ("y", "BEZEICHNUNG", "Dateien ausgeben", "alle Zeilen \\fInummerieren\\fP")),
    ):
        path = tmp_path / "usr/share/man" / folder / "cat.1.gz"
        path.parent.mkdir(parents=True)
        page = PAGE.format(*words) + (".SH ÜBERSETZUNG\nvon Anna\n" if "de" in folder else "")
        path.write_bytes(gzip.compress(page.encode()))
    assert list(manual_pages.read_pairs(unpacked([tmp_path]), "de")) == [
        ("NAME", "BEZEICHNUNG"),
        ("cat - print files", "cat - Dateien ausgeben"),
        ("DESCRIPTION", "DESCRIPTION"),
        ("-n, --number", "-n, --number"),
        ("number all lines", "alle Zeilen nummerieren"),
        ("See less(1).", "See less(1)."),
    ]


def test_entries_of_the_dictionary_correspond(tmp_path):
    import dictionary

    path = tmp_path / "usr/share/trans/de-en"
    path.parent.mkdir(parents=True)
    path.write_text(
        "# a comment\n"
        "Spiel {n} [sport] | auf dem Spiel stehen; gefährdet sein | Es steht viel auf dem Spiel. :: "
        "game; match | to be at stake [fig.] | Much is at stake.\n"
        "uneven :: one | two\n"
    )
    pairs = list(dictionary.read_pairs(unpacked([tmp_path]), "de"))
    assert pairs == [("to be at stake", "auf dem Spiel stehen"), ("Much is at stake.", "Es steht viel auf dem Spiel.")]
    assert [dictionary.is_sentence(*pair) for pair in pairs] == [False, True]


def test_bad_pairs_are_counted_by_reason():
    import clean

    dropped: Counter[str] = Counter()
    good = ("The house  is small.", "Das Haus ist klein.")
    bad = [("Two words", "Zwei Wörter"), ("Read the file %s now", "Lesen Sie die Datei %s"), ("a b c", "a b c")]
    bad += [("one two three " * 30, "eins zwei drei"), ("1 2 3 4 5 abc", "1 2 3 4 5 xyz")]
    assert list(clean.clean([good, *bad, good], dropped)) == [("The house is small.", "Das Haus ist klein.")]
    assert dropped == {
        "short": 1, "placeholders": 1, "not translated": 1, "lengths": 1, "few letters": 1, "repeated": 1
    }  # fmt: skip


def test_sentences_are_paired_where_both_texts_have_equally_many():
    import clean

    both = ("It is cold. We stay here.", "Es ist kalt. Wir bleiben hier.")
    one = ("It is cold. We stay here.", "Es ist kalt, wir bleiben hier.")
    assert list(clean.cut_into_sentences([both, one])) == [
        ("It is cold.", "Es ist kalt."), ("We stay here.", "Wir bleiben hier."), one
    ]  # fmt: skip


def test_no_pair_of_the_training_text_has_the_template_of_a_test_pair():
    import clean

    languages = [f"This package contains the localization in language{i} ." for i in range(300)]
    others = [f"{'word ' * (i % 60 + 4)}other{i} ." for i in range(60)]
    pairs = [(english, english.upper()) for english in languages + others]
    parts = clean.split({"descriptions": pairs}, 20)
    assert {name: len(members) for name, members in parts.items()} == {"test": 20, "val": 20, "train": 320}
    assert not any("localization" in pair[0] for name in ("test", "val") for _, pair in parts[name])
    shuffled = clean.split({"descriptions": pairs[::-1]}, 20)
    assert set(shuffled["test"]) == set(parts["test"])
