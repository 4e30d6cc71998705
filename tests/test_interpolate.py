"""training/interpolate.py: choose the n-best translation closest to the reference of each line."""

import re
from pathlib import Path

import pytest
from conftest import write_lines

from training.interpolate import main

REFERENCES = ["A dog runs.", "Two men sit on a bench.", "no"]
HYPOTHESES = [
    ["a cat runs.", "A dog runs.", "A dog."],
    ["Two men sit.", "Two men sat on the bench.", "Two men sit on the bench."],
    ["", "yes", "never"],  # equal scores
]


def table(hypotheses: list[list[str]]) -> str:
    rows = [(number, text) for number, texts in enumerate(hypotheses, start=1) for text in texts]
    return "".join(f"{number}\t{-0.1 * row:.6f}\t{text}\n" for row, (number, text) in enumerate(rows))


def closest(folder: Path, hypotheses: list[list[str]], references: list[str], *flags: str) -> list[str]:
    (folder / "n-best.tsv").write_text(table(hypotheses), encoding="utf-8")
    write_lines(folder / "reference", references)
    words = [str(folder / "n-best.tsv"), "--reference", str(folder / "reference"), "--output", str(folder / "out")]
    main([*words, *flags])
    return (folder / "out").read_text(encoding="utf-8").split("\n")[:-1]


def test_the_first_of_the_closest_translations_is_chosen(tmp_path):
    assert closest(tmp_path, HYPOTHESES, REFERENCES) == ["A dog runs.", "Two men sit on the bench.", ""]


def test_the_closest_translation_of_several_models_is_chosen(tmp_path):
    for name, hypotheses in (("a", [["a dog."], ["yes", "no no"]]), ("b", [["a cat.", "A dog runs."], ["never"]])):
        (tmp_path / name).write_text(table(hypotheses))
    (tmp_path / "reference").write_text("A dog runs.\nno no\n")
    files = [str(tmp_path / name) for name in "ab"]
    main([*files, "--reference", str(tmp_path / "reference"), "--output", str(tmp_path / "out")])
    assert (tmp_path / "out").read_text() == "A dog runs.\nno no\n"


def test_case_is_ignored_only_with_lowercase(tmp_path):
    hypotheses, references = [["a dog runs.", "A DOG barks."]], ["A DOG RUNS."]
    assert closest(tmp_path, hypotheses, references) == ["A DOG barks."]
    assert closest(tmp_path, hypotheses, references, "--lowercase") == ["a dog runs."]


@pytest.mark.parametrize(
    "written, references, said",
    [
        ("1\t-0.5\ta dog\n1 -0.6 a dog\n", 1, "n-best.tsv line 2: expected line number TAB score"),
        ("one\t-0.5\ta dog\n", 1, "n-best.tsv line 1: expected line number TAB score"),
        ("1\t-0.5\ta dog\n3\t-0.5\ta dog\n", 3, "expected translations of line 2, found line 3"),
        ("1\t-0.5\ta\n2\t-0.5\tb\n1\t-0.6\tc\n", 3, "expected translations of line 3, found line 1"),
        ("1\t-0.5\ta dog\n", 2, "reference has a line 2, .*n-best.tsv ends before; they must be parallel"),
        ("1\t-0.5\ta dog\n2\t-0.5\ta dog\n", 1, "n-best.tsv has a line 2, .*reference ends before"),
    ],
)
def test_invalid_lists_are_named_and_nothing_is_written(tmp_path, refused, written, references, said):
    (tmp_path / "n-best.tsv").write_text(written)
    (tmp_path / "reference").write_text("a dog\n" * references)
    words = [tmp_path / "n-best.tsv", "--reference", tmp_path / "reference", "--output", tmp_path / "o"]
    assert re.search(said, refused(main, words))
    assert not (tmp_path / "o").exists()
