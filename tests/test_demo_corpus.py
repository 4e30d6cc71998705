"""The embedded corpus: its split and its spelling."""

import re
from collections import Counter

import pytest

from training.demo_corpus import SPLITS, load

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
