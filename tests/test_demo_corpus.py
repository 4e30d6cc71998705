"""The embedded corpus: its split, its spelling, and the command that writes it as files."""

import re
from collections import Counter
from pathlib import Path

import pytest

from training.demo_corpus import SPLITS, load
from training.demo_corpus.__main__ import main

ROWS = [row for split in SPLITS for row in load(split)]


def test_about_20000_unique_pairs_in_three_splits():
    sources = [english for _, english, _ in ROWS]
    assert 19_500 <= len(set(sources)) == len(sources) <= 20_500  # so no test source is a training source either
    for split, sizes, least in (
        ("train", (17_000, 20_000), 1000),
        ("validation", (400, 600), 15),
        ("test", (850, 1150), 40),
    ):
        kinds = Counter(kind for kind, _, _ in load(split))
        assert sizes[0] <= kinds.total() <= sizes[1]
        assert set(kinds) == {kind for kind, _, _ in ROWS} and min(kinds.values()) >= least
    with pytest.raises(ValueError, match="train, validation, test"):
        load("valid")


def test_words_of_the_test_set_occur_in_training():
    """The split holds out combinations, not words."""
    trained = {word for _, english, _ in load("train") for word in re.findall(r"[a-zü]+", english.lower())}
    tested = {word for _, english, _ in load("test") for word in re.findall(r"[a-zü]+", english.lower())}
    assert len(tested) > 300
    assert tested <= trained


def test_the_command_writes_parallel_files(tmp_path: Path, capsys):
    main([str(tmp_path / "corpus")])
    assert "9 files" in capsys.readouterr().out
    for split in SPLITS:
        paths = [tmp_path / "corpus" / f"{split}.{suffix}" for suffix in ("kinds", "en", "de")]
        columns = [path.read_text(encoding="utf-8").splitlines() for path in paths]
        assert list(zip(*columns, strict=True)) == load(split)
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_instead_of_a_folder_is_refused(refused, tmp_path: Path):
    (tmp_path / "corpus").write_text("mine")
    assert "is not a folder" in refused(main, [tmp_path / "corpus"])
    assert (tmp_path / "corpus").read_text() == "mine"
