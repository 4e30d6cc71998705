"""`translate` of a file: in parts, resumed after an interruption."""

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from conftest import wait_until, write_lines
from disks import file_size_limit
from saved_model import ENGLISH, GERMAN, saved_model

from vaswani_transformer import Translator
from vaswani_transformer.atomic import machine_id
from vaswani_transformer.cli import main
from vaswani_transformer.doubts import Doubt, find_reasons
from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import read_lines
from vaswani_transformer.translate_file import claim_parts, translate_file
from vaswani_transformer.translate_lines import append_report, split_into_chunks
from vaswani_transformer.unwrap import Copied, unwrap_lines

LINES = 47
PART = 5


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a model and a text, and the translation of each line by itself."""
    folder = tmp_path_factory.mktemp("translate")
    saved_model(folder / "model")
    choose = random.Random(0)
    words = " ".join(ENGLISH + GERMAN).split()
    lines = [" ".join(choose.choices(words, k=choose.randint(0, 6))) for _ in range(LINES)]
    write_lines(folder / "text", lines)
    expected = Translator.from_pretrained(folder / "model", device="cpu").translate(lines)
    assert len(set(expected)) > 5
    return folder, expected


@pytest.fixture
def words(work, tmp_path):
    """words(option=value, ...) -> the command line."""

    def words(**options) -> list[str]:
        values = {"model": work[0] / "model", "input": work[0] / "text", "output": tmp_path / "out", "device": "cpu"}
        values |= {"chunk-lines": PART} | options
        return [
            "translate",
            str(values.pop("model")),
            *(word for key, value in values.items() for word in (f"--{key}", str(value))),
        ]

    return words


@pytest.fixture
def start(words):
    running = []

    def run(**options) -> subprocess.Popen:
        command = [sys.executable, "-m", "vaswani_transformer", *words(**options)]
        running.append(subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.wait()


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_workers_keep_the_order_and_finish_what_precedes_an_error(words, work, tmp_path, refused):
    main(words(workers=2, **{"batch-tokens": 60}))
    assert lines_of(tmp_path / "out") == work[1]
    assert not (tmp_path / "out.parts").exists()
    (tmp_path / "out").unlink()
    lines = lines_of(work[0] / "text")
    long = write_lines(tmp_path / "long", [*lines[: 2 * PART], "x" * 1000])
    error = refused(main, words(input=long, workers=2, **{"max-characters": 500}))
    assert f"line {2 * PART + 1} has 1,000 characters" in error
    assert sorted(path.name[:12] for path in (tmp_path / "out.parts").glob("part-*")) == [
        "part-0000000",
        "part-0000001",
    ]


def test_a_killed_translation_resumes_with_the_missing_parts(start, words, work, tmp_path, refused):
    parts = tmp_path / "out.parts"
    process = start(**{"batch-tokens": 1})  # slow
    wait_until(lambda: len([*parts.glob("part-*")]) > 1)
    process.kill()
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    assert 1 < len(done) < LINES // PART + 1 and not (tmp_path / "out").exists()
    error = refused(main, words(**{"num-beams": 1}))
    assert "holds parts of another translation (num_beams was 4, is 1)" in error
    (parts / "notes").write_text("mine")
    (parts / f".{min(done).name}.{machine_id()}-1.tmp").mkdir()  # as of a process that was killed just after part 0
    main(words())
    assert lines_of(tmp_path / "out") == work[1]
    assert [path.name for path in parts.iterdir()] == ["notes"], "files of others stay"


def test_parts_of_another_text_model_or_search_are_refused(words, work, tmp_path, monkeypatch, refused):
    model, text, folder = work[0] / "model", work[0] / "text", tmp_path / "out.parts"
    with monkeypatch.context() as patch:
        patch.setattr("vaswani_transformer.translate_file.join_parts", lambda *_: None)  # as if it had been killed
        main(words())
    assert len([*folder.glob("part-*")]) == 10
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_text(text.read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    shutil.copytree(model, "changed")
    settings = tmp_path / "changed/generation_config.json"
    settings.write_text(settings.read_text().replace('"extra_length": 50', '"extra_length": 5'))
    for option, value, message in (
        ("length-penalty", 1, "length_penalty was 0.6, is 1.0"),
        ("dtype", "bfloat16", "dtype was None, is bfloat16"),
        ("input", "other", "input was "),
        ("model", "changed", "model was "),
        ("chunk-lines", 6, "chunk_lines was 5, is 6"),
        ("report", "doubtful", "report was None, is doubtful"),
        ("warn-ratio", 0.5, "warn_ratio was None, is 0.5"),
    ):
        error = refused(main, words(**{option: value}))
        assert "holds parts of another translation" in error and message in error


def test_any_function_may_translate_the_parts(tmp_path):
    """As in examples/ray, where tasks of a cluster translate them."""

    def translate(chunks: Iterator[tuple[int, str]]) -> Generator[list[bytes]]:
        for number, letters in chunks:
            yield [f"{number}{letter}\n".encode() for letter in letters]

    text = write_lines(tmp_path / "text", ["a", "b", "c"])
    translate_file(translate, enumerate(["ab", "c"]), text, tmp_path / "out", {})
    assert lines_of(tmp_path / "out") == ["0a", "0b", "1c"]


@pytest.mark.parametrize("changed", ["a\nb\n", "a\nb\nc\nd\n", "a\nb\nx\n"])
def test_a_text_that_changes_while_it_is_translated_is_refused(tmp_path, changed):
    """The output would be the translation of neither text."""
    text = write_lines(tmp_path / "text", ["a", "b", "c"])

    def translate(chunks: Iterator[list[str]]) -> Generator[list[bytes]]:
        for lines in chunks:
            yield [f"{line}\n".encode() for line in lines]
            text.write_text(changed)

    with pytest.raises(InputError, match="text was changed while it was translated; remove .*out.parts"):
        translate_file(translate, split_into_chunks(read_lines(text), 1), text, tmp_path / "out", {})
    assert not (tmp_path / "out").exists()


def test_parts_of_what_a_text_was_for_a_while_are_not_used(tmp_path):
    """After the refusal, a user may restore the text instead of removing the parts."""
    text, content = tmp_path / "text", "".join(f"{number}\n" for number in range(20_000))  # more than is read ahead

    def translate(during: str, chunks: Iterator[list[str]]) -> Generator[list[bytes]]:
        for lines in chunks:
            yield [f"{line}\n".encode() for line in lines]
            if lines[0] == "0":
                text.write_text(during)

    for during in (content.replace("9", "8"), content):
        text.write_text(content)
        with suppress(InputError):
            chunks = split_into_chunks(read_lines(text), 1000)
            translate_file(partial(translate, during), chunks, text, tmp_path / "out", {})
    assert (tmp_path / "out").read_text() == content
    assert {path.name for path in tmp_path.iterdir()} == {"out", "text"}


def test_a_second_translation_to_one_file_is_refused(words, work, tmp_path, refused):
    """Parts of two texts or models would be joined. Before the first is complete, nothing else tells them apart."""
    with claim_parts(tmp_path / "out.parts", {}):
        message = refused(main, words())
        assert "out.parts is in use by another process; wait for it, or choose another --output" in message
    main(words())
    assert lines_of(tmp_path / "out") == work[1]


def test_invalid_settings_are_refused_before_anything_is_written(words, tmp_path, refused):
    (tmp_path / "folder").mkdir()
    for options, message in (
        ({"output": tmp_path / "folder"}, "folder is a folder; give the name of a file"),
        ({"output": tmp_path / "missing" / "out"}, "does not exist"),
        ({"num-beams": 100_000}, "num_beams is 100000; it must lie between 1 and 1000"),
    ):
        assert message in refused(main, words(**options))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_without_parts_can_be_used(words, work, tmp_path):
    (tmp_path / "out.parts").mkdir()
    (tmp_path / "out.parts/about.json").write_text('{"num_beams": 9}')
    main(words())
    assert lines_of(tmp_path / "out") == work[1]


def test_truncated_parts_are_translated_again(words, work, tmp_path, monkeypatch):
    folder = tmp_path / "out.parts"
    with monkeypatch.context() as patch:
        patch.setattr("vaswani_transformer.translate_file.join_parts", lambda *_: None)  # as if it had been killed
        main(words())
        parts = sorted(folder.glob("part-*"))
        before = [(part.read_bytes(), part.stat().st_mtime_ns) for part in parts]
        sizes = {1: 0, 4: 10, 5: -8, 8: -1}  # nothing, the header, all of the text, all but a byte
        for number, size in sizes.items():
            parts[number].write_bytes(before[number][0][:size])
        main(words())
    after = [(part.read_bytes(), part.stat().st_mtime_ns) for part in parts]
    assert [one[0] for one in after] == [one[0] for one in before]
    assert [n for n in range(len(parts)) if after[n] != before[n]] == [*sizes]
    main(words())
    assert lines_of(tmp_path / "out") == work[1]


def test_a_tab_is_copied_unless_it_would_begin_a_column(words, tmp_path):
    write_lines(tmp_path / "text", ["\t1.", "\tA man rides."])
    main(words(input=tmp_path / "text"))
    assert [line[:1] for line in lines_of(tmp_path / "out")] == ["\t", "\t"]
    main([*words(input=tmp_path / "text"), "--scores"])
    assert [len(line.split("\t")) for line in lines_of(tmp_path / "out")] == [2, 2]


def test_parts_of_unknown_origin_are_not_touched(words, tmp_path, refused):
    folder = tmp_path / "out.parts"
    folder.mkdir()
    (folder / "part-00").write_text("mine")
    assert "so its origin is unknown" in refused(main, words())
    assert (folder / "part-00").read_text() == "mine"
    assert not (folder / "about.json").exists()


# Hard-wrapped texts as mail programs, README files and books have them, and their lines without the wraps.
WRAPPED = [
    ("A man rides\na red bike.\n\nTwo dogs run.", ["A man rides a red bike.", "", "Two dogs run."]),
    ("- A man\n  rides.\n- Two dogs.", ["- A man rides.", "- Two dogs."]),
    ("# Title\nText that\ngoes on.", ["# Title", "Text that goes on."]),
    ("A well-\nknown man", ["A well-known man"]),
    ("A sen\xad\ntence.", ["A sentence."]),
    ("1. One\n   more.\n2. Two.", ["1. One more.", "2. Two."]),
    ("Text.\n---\nMore\ntext.", ["Text.", "---", "More text."]),
    ("| a | b |\n|---|---|\n| c | d |", ["| a | b |", "|---|---|", "| c | d |"]),
    ("今天天气\n很好。", ["今天天气很好。"]),
    (
        "LS(1)    User Commands    LS(1)\n\nNAME\n    ls - list\nSYNOPSIS\n    ls [file]\nTEXT\n"
        "    one two three four five\n    six.",
        [
            "LS(1)    User Commands    LS(1)",
            "",
            "NAME",
            "    ls - list",
            "SYNOPSIS",
            "    ls [file]",
            "TEXT",
            "    one two three four five six.",
        ],
    ),
    ("* one two\n  three\nlong line of text\nmore", ["* one two three", "long line of text more"]),
    ("> quoted\n> lines\n>\n> > other\n\n\nEnd.", ["> quoted lines", ">", "> > other", "", "", "End."]),
    ("Anna wrote:\n> Are you\n> there?\nYes.", ["Anna wrote:", "> Are you there?", "Yes."]),
    ("> [!NOTE]\n> Read\n> it.", ["> [!NOTE]", "> Read it."]),
    (">>> one = 1\n>>> one\nTrue", [">>> one = 1", ">>> one", "True"]),
    ("A line  \nbroken\\\nby\nhand", ["A line  ", "broken\\", "by hand"]),
    (
        "Type:\n\n    cd folder/one\n    make\n    make install\n\nThe end\nis near.",
        ["Type:", "", "    cd folder/one\n    make\n    make install", "", "The end is near."],
    ),
    (
        "    A longer line of text\n    goes on below the first,\n    and ends.",
        ["    A longer line of text goes on below the first, and ends."],
    ),
    ("$ cd folder\n$ make", ["$ cd folder", "$ make"]),
    ("Title\n~~~~~\n\nOne\ntwo.\n\nNext\n~~~~", ["Title", "~~~~~", "", "One two.", "", "Next", "~~~~"]),
    ("It is by\nJ. Smith and\nz. B. others.", ["It is by J. Smith and z. B. others."]),
    ("From: a@b.de\nSubject: Two\nlines", ["From: a@b.de", "Subject: Two lines"]),
    ("00:05.000 --> 00:08.000 align:start\nA dog\nruns.", ["00:05.000 --> 00:08.000 align:start", "A dog runs."]),
    ("[a]: http://b.de\n[c]: http://d.de", ["[a]: http://b.de", "[c]: http://d.de"]),
    ("Term\n: Its\n  meaning", ["Term", ": Its meaning"]),
    ("[10:15] A: The\ndog.\n2026-11-24 10:20 It\nbarks.", ["[10:15] A: The dog.", "2026-11-24 10:20 It barks."]),
    (
        "-v, --verbose   Print more\n-q              Print nothing",
        ["-v, --verbose   Print more", "-q              Print nothing"],
    ),
    ("It ends at (2106-02-07\n06:28:16 UTC)", ["It ends at (2106-02-07 06:28:16 UTC)"]),
    ("[window]\nThe dog\nruns", ["[window]", "The dog runs"]),
    ("[MUSIC]\nANNA: Go\naway!", ["[MUSIC]", "ANNA: Go away!"]),
    ("~~~\nnever\nclosed", ["~~~", "never closed"]),
    (
        "<details>\n<summary>A\nb</summary>\nText\n</details>",
        ["<details>", "<summary>A b</summary>", "Text", "</details>"],
    ),
    (
        f"A{' line' * 12}\nof text.\n\nAnna Smith\n5 Example Street\n10115 Berlin\n\nWhen it rains,\nthe dog sleeps.",
        [
            f"A{' line' * 12} of text.",
            "",
            "Anna Smith",
            "5 Example Street",
            "10115 Berlin",
            "",
            "When it rains, the dog sleeps.",
        ],
    ),
    ("title = A dog\nwidth=640\ndog.name: Rex", ["title = A dog", "width=640", "dog.name: Rex"]),
    ('{\n"ok": "Yes",\n"no": "No"\n}', ["{", '"ok": "Yes",', '"no": "No"', "}"]),
    ('msgid "A dog"\nmsgstr[0] ""', ['msgid "A dog"', 'msgstr[0] ""']),
    ("id;name;size\n1;a cat;2\n2;a dog, big;3", ["id;name;size", "1;a cat;2", "2;a dog, big;3"]),
    (
        "It is red, blue, green\nand 1,000 times, often,\nlight.",
        ["It is red, blue, green and 1,000 times, often, light."],
    ),
    ("A <b\n>big</b\n> dog\nruns.", ["A <b >big</b > dog runs."]),
    ("A hat ....... 12\nA dog ...... 30", ["A hat ....... 12", "A dog ...... 30"]),
    ("(가) 하나\n나) 둘", ["(가) 하나", "나) 둘"]),
    ("Name\tSize\nA dog\tbig", ["Name\tSize", "A dog\tbig"]),
    (
        "Shall I compare thee to a summer’s day?\nThou art more lovely and more temperate:\n"
        "Rough winds do shake the darling buds of May,\nAnd summer’s lease hath all too short a date;",
        [
            "Shall I compare thee to a summer’s day?",
            "Thou art more lovely and more temperate:",
            "Rough winds do shake the darling buds of May,",
            "And summer’s lease hath all too short a date;",
        ],
    ),
    (
        "YOU RECEIVE A COPY OF THE\nLICENSE AS IT\nIS, WITHOUT ANY WARRANTY.",
        ["YOU RECEIVE A COPY OF THE LICENSE AS IT IS, WITHOUT ANY WARRANTY."],
    ),
    (
        "You receive a copy of the General\nLicense of the\n[Free](http://a.de) Foundation.",
        ["You receive a copy of the General License of the [Free](http://a.de) Foundation."],
    ),
    (
        "The program is found in\n/usr/bin/dog/a\nand a longer line of text is here",
        ["The program is found in /usr/bin/dog/a and a longer line of text is here"],
    ),
    ("Comment: From\n http://a.de", ["Comment: From http://a.de"]),
    ("It prints\n%s and a mail of Anna\n<anna@a.de> here.", ["It prints %s and a mail of Anna <anna@a.de> here."]),
    ("Das Haus ist so klein wie\nEin Hund in seiner Hütte.", ["Das Haus ist so klein wie Ein Hund in seiner Hütte."]),
    ("In New-\nYork is a 5-\nyear plan.", ["In New-York is a 5-year plan."]),
    ("Of pre-\nand post-war Ein-\nund Ausgang", ["Of pre- and post-war Ein- und Ausgang"]),
    ("The begin¬\nning", ["The beginning"]),
    ("한국어 문장이\n있습니다.", ["한국어 문장이 있습니다."]),
    ("・項目\n・二つ\n１．三つ", ["・項目", "・二つ", "１．三つ"]),
    ("The dog.\n% A comment\nIt\nruns.", ["The dog.", "% A comment", "It runs."]),
    ("\\section{A dog}\nIt\nruns.\n\\item One\n  more.", ["\\section{A dog}", "It runs.", "\\item One more."]),
    ("; About\n= Title\nIt\nruns.", ["; About", "= Title", "It runs."]),
    ("of dogs.\n§ 2 Terms\n1.1 A dog\nruns.\n1.2 It", ["of dogs.", "§ 2 Terms 1.1 A dog runs.", "1.2 It"]),
    ("It costs\n3.50 euros.", ["It costs 3.50 euros."]),
    ("<anna> hi\n<bob> hello", ["<anna> hi", "<bob> hello"]),
    (
        "As you read in this long line\nhttp://b.de is new.\n\nYours, Anna\nhttp://a.de",
        ["As you read in this long line http://b.de is new.", "", "Yours, Anna", "http://a.de"],
    ),
    (
        f"|{'x' * 90}|\n\nA book by somebody whose title\n    is long.",
        [f"|{'x' * 90}|", "", "A book by somebody whose title is long."],
    ),
]


@pytest.mark.parametrize("text, expected", WRAPPED)
def test_the_lines_of_a_paragraph_are_joined(text, expected):
    assert list(unwrap_lines(text.split("\n"))) == expected


# Documents, and what of them is copied.
COPIED = [
    ("---\ntitle: A dog\n\ntags: [a]\n---\nA dog\nruns.", ["---\ntitle: A dog\n\ntags: [a]\n---"]),
    ("+++\ntitle = 'A dog'\n+++\nA dog.", ["+++\ntitle = 'A dog'\n+++"]),
    ("---\nA dog runs.\n---\nIt\nbarks.", []),  # rules around a paragraph
    ("---\ntitle: never closed", []),
    (
        "WEBVTT\n\nNOTE\nA comment\n\nSTYLE\n::cue {\n}\n\nThe dog\n00:01.000 --> 00:04.000\nA dog\nruns.",
        ["NOTE\nA comment", "STYLE\n::cue {\n}", "The dog"],
    ),
    ("## Install\n\n    make\n\n    if (x) {\n\treturn\n    }\n\nText.", ["    make\n\n    if (x) {\n\treturn\n    }"]),
    (
        "1. Type this::\n\n        make -j 2 all tests and more\n\n   Then\nwait.",
        ["        make -j 2 all tests and more"],
    ),
    ("Anna said:\n\n    The dog runs.\n\n    it barks and barks and barks\n\nYes.", []),  # a quotation
    ("It prints:\n\n    name: of the file\n    size: in bytes", []),
    ("It can:\n\n    read files,\n    write files.", []),
    ("The output\n\n    lpstat is here", []),  # nothing announces code
    ("```\ncode\n```\n> ~~~\n> code\n> ~~~", ["```\ncode\n```", "> ~~~\n> code\n> ~~~"]),
    ("<pre class='a'>\ncode\n\n</pre>\nText <pre>code</pre>\nand text", ["<pre class='a'>\ncode\n\n</pre>"]),
    ("It is\n$$\nx = 1\n$$\nand $$y$$\nruns.", ["$$\nx = 1\n$$"]),
    ("<STYLE>\na {}\n</STYLE>\n<pre>\nnever closed", ["<STYLE>\na {}\n</STYLE>", "<pre>"]),
    ("Let\n\\begin{align*}\nx = 1\n\\end{align*}\nbe.", ["\\begin{align*}\nx = 1\n\\end{align*}"]),
    ("A\n<!-- a\nnote -->\ndog <!-- b -->\nruns.", ["<!-- a\nnote -->"]),
    (
        ".. note::\n\n   A note\n   goes on.\n\n.. code-block:: c\n   :x: y\n\n   Run();\n\nA text.",
        [".. note::", ".. code-block:: c\n   :x: y\n\n   Run();"],
    ),
    ("", []),
]


@pytest.mark.parametrize("text, expected", COPIED)
def test_code_and_what_programs_read_is_copied(text, expected):
    """And nothing of a document is lost."""
    lines = list(unwrap_lines(text.split("\n")))
    assert [line for line in lines if isinstance(line, Copied)] == expected
    assert " ".join(lines).split() == text.split()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
def test_a_report_on_a_full_disk_is_named():
    with pytest.raises(OSError, match="/dev/full"):
        append_report(Path("/dev/full"), [Doubt(0, "reason", "source", "translation")], [1])


def test_a_report_on_a_full_disk_ends_with_a_whole_line(tmp_path):
    """The lines of the resumed translation follow."""
    path, doubts = tmp_path / "report", [Doubt(0, "reason", "source", "translation")]
    append_report(path, doubts, [1])
    line = path.read_bytes()
    with file_size_limit(len(line) + 5), pytest.raises(OSError, match=re.escape(str(path))):
        append_report(path, doubts, [2])
    assert path.read_bytes() == line


def test_numbers_and_code_are_not_joined_with_the_text_around_them():
    """As in subtitles, whose times are copied, and in a README."""
    subtitles = ["1", "00:00:01,000 --> 00:00:04,000", "A dog runs", "in the snow.", ""]
    code = ["The command is", "```", "run the", "", "program", "```", "and no", "other."]
    assert list(unwrap_lines(subtitles + code)) == [
        *subtitles[:2], "A dog runs in the snow.", "", "The command is", "```\nrun the\n\nprogram\n```", "and no other."
    ]  # fmt: skip


def test_code_in_a_document_is_copied(words, work, tmp_path):
    """The numbers in the report are those of the output's lines, also in later chunks."""
    code, long = ["````", "The house is small.", "```", "", "````"], " ".join(ENGLISH).replace(".", ",")
    write_lines(tmp_path / "text", [long, *code, "The house", "is small.", "", long])
    arguments = words(input=tmp_path / "text", report=tmp_path / "report", **{"chunk-lines": 2})
    main([*arguments, "--unwrap", "--max-source-length", "20"])
    translator = Translator.from_pretrained(work[0] / "model", device="cpu")
    one, two = translator.translate([long, "The house is small."], max_source_length=20)
    assert lines_of(tmp_path / "out") == [one, *code, two, "", one]
    rows = [line.split("\t") for line in lines_of(tmp_path / "report")]
    assert {number for number, reason, *_ in rows if "split" in reason} == {"1", "9"}
    main([*arguments, "--unwrap", "--max-source-length", "20", "--scores"])  # each text has one line
    rows = [line.split("\t") for line in lines_of(tmp_path / "report")][len(rows) :]
    assert len(lines_of(tmp_path / "out")) == 5
    assert {number for number, reason, *_ in rows if "split" in reason} == {"1", "5"}


def test_a_long_line_behind_code_is_named_by_its_number(words, tmp_path, capsys):
    write_lines(tmp_path / "text", ["```", "code", "```", "x" * 100])
    with pytest.raises(SystemExit):
        main([*words(input=tmp_path / "text"), "--unwrap", "--max-characters", "50"])
    assert "line 4 has 100 characters" in capsys.readouterr().err


def test_a_wrapped_text_gives_a_line_for_each_paragraph(words, work, tmp_path):
    write_lines(tmp_path / "text", ["The house", "is small.", "", "---", "The cat."])
    main([*words(input=tmp_path / "text"), "--unwrap"])
    expected = Translator.from_pretrained(work[0] / "model", device="cpu").translate(
        ["The house is small.", "The cat."]
    )
    assert lines_of(tmp_path / "out") == [expected[0], "", "---", expected[1]]


@pytest.mark.parametrize(
    "translation, text, is_cut, ratio, reasons",
    [
        ([5, 6, 7, 8, 9, 10, 2], "a", False, 0.5, []),
        ([5, 6, 2], "a", False, 0.5, ["the translation has 0.33 times as many tokens as the source"]),
        ([5, 6, 2], "a", False, None, []),
        ([2], " ", False, 0.5, ["the translation is empty"]),
        ([5, 6] * 5 + [2], "a", False, None, ["the translation repeats itself"]),
        ([5, 6] * 4 + [2], "a", False, None, []),
        ([5, 6, 7, 2], "a", True, None, ["a part of a long sentence that was split"]),
    ],
)
def test_doubtful_translations_are_named(translation, text, is_cut, ratio, reasons):
    assert find_reasons([11, 12, 13, 14, 15, 16, 2], translation, "b", text, is_cut, ratio) == reasons


@pytest.mark.parametrize(
    "source, translation, missing",
    [
        ("%s of %d files", "%d Dateien von %s", []),
        ("%s of %s files", "%s Dateien", ["%s"]),
        ("%(name)s has {0} of {count}", "{0} von {count}", ["%(name)s"]),
        ("%1$s, %5.2f, %lu, %-10s", "%1$s", ["%-10s", "%5.2f", "%lu"]),
        ("File %1: ${HOME}, {}, @PREFIX@", "Datei", ["${HOME}", "%1", "@PREFIX@", "{}"]),
        ("It is 100% sure, 5 % of a@b.org {", "Es ist sicher", []),
    ],
)
def test_lost_placeholders_are_named(source, translation, missing):
    reasons = find_reasons([5, 6, 2], [5, 7, 2], source, translation, False, None)
    assert reasons == [f"the translation lacks {name}" for name in missing]


def test_a_loop_that_the_source_has_is_no_doubt():
    assert find_reasons([5] * 6 + [2], [7] * 6 + [2], "ha ha ha ha ha ha", "ha ha ha ha ha ha", False, None) == []


def test_a_report_lists_doubtful_translations_and_changes_none(words, tmp_path, capsys, refused):
    lines = [ENGLISH[0], "---", " ".join(ENGLISH).replace(".", "").replace(",", "")]
    write_lines(tmp_path / "text", lines)
    options = words(input=tmp_path / "text") + ["--max-source-length", "20"]
    main([*options, "--report", str(tmp_path / "report")])
    rows = [row.split("\t") for row in lines_of(tmp_path / "report")]
    assert {row[0] for row in rows if "split" in row[1]} == {"3"}
    assert " ".join(row[2] for row in rows if "split" in row[1]) == lines[2]
    assert "a part of a long sentence that was split (" in capsys.readouterr().err
    with_report = lines_of(tmp_path / "out")
    main(options)
    assert lines_of(tmp_path / "out") == with_report
    missing = str(tmp_path / "missing" / "report")
    assert f"{missing}: No such file or directory" in refused(main, [*options, "--report", missing])
