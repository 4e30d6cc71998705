"""training/bpe_dropout.py: other cuts of the same text, the same for a seed; without dropout the library's own."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from training.bpe_dropout import BpeDropout
from training.corpus import load_corpus, parallel_texts
from training.recipe import Recipe
from vaswani_transformer.errors import InputError
from vaswani_transformer.tokenization import train_tokenizer

LINES = ["The house is small.", "I see a dog.", "Das Häuschen ist klein.", "Ich sehe Hunde, 12 Hunde."]
TOKENIZERS = {
    case: train_tokenizer(LINES * 3, 300, lowercase=case == "small letters", split_digits=case == "single digits")
    for case in ("plain", "small letters", "single digits")
}


def backend_of(case: str) -> Tokenizer:
    backend = TOKENIZERS[case].backend_tokenizer
    backend.encode_special_tokens = True
    return backend


@pytest.mark.parametrize("case", TOKENIZERS)
@settings(deadline=None, max_examples=150)
@given(text=st.text() | st.sampled_from([*LINES, "</s> a<pad>", " two  blanks ", "\u00a0ﬁ\u0301", "👩‍👩‍👧"]))
def test_without_dropout_the_ids_are_the_librarys(case, text):
    backend = backend_of(case)
    assert BpeDropout(backend, 0).encode_batch([text], "any") == [backend.encode(text).ids]


@given(text=st.text(), share=st.floats(0, 0.99), seed=st.text(max_size=5))
@settings(deadline=None, max_examples=150)
def test_whatever_is_dropped_the_text_stays(text, share, seed):
    backend = backend_of("plain")
    plain, (ids,) = backend.encode(text).ids, BpeDropout(backend, share).encode_batch([text], seed)
    assert backend.decode(ids) == backend.decode(plain)
    assert ids[-1] == plain[-1] == TOKENIZERS["plain"].eos_token_id and len(ids) >= len(plain)


def test_one_merge_is_passed_over_as_often_as_asked():
    """Of "ab" in a BPE of one merge: (1 - share) of the draws; of "abc" in one of two, by algorithm 1."""
    tokenizer = train_tokenizer(["ab"], 260)
    dropper = BpeDropout(tokenizer.backend_tokenizer, 0.3)
    draws = 20_000

    def frequencies(word, ranks):
        dropper.ranks = ranks
        dice = random.Random("1")
        return Counter(" ".join(dropper.cut(word, dice)) for _ in range(draws))

    def near(count, probability):
        return abs(count - draws * probability) < 5 * math.sqrt(draws * probability * (1 - probability))

    assert near(frequencies("ab", {("a", "b"): 0})["ab"], 0.7)
    # a b c: ab+c with .7, then abc with .7; without ab, which stays possible after bc, b+c with .3 * .7.
    found = frequencies("abc", {("a", "b"): 0, ("b", "c"): 1, ("ab", "c"): 2})
    assert near(found["abc"], 0.7 * 0.7) and near(found["ab c"], 0.7 * 0.3)
    assert near(found["a bc"], 0.3 * 0.7) and near(found["a b c"], 0.3 * 0.3)


def corpus_of(folder, **keys):
    for language in ("en", "de"):
        (folder / f"train.{language}").write_text("\n".join(LINES * 5) + "\n", encoding="utf-8")
    recipe = Recipe(data=str(folder), train=["train"], **keys)
    said: list[str] = []
    texts = parallel_texts(recipe, ["train"])

    def load(cache="cache", training=True):
        return load_corpus(texts, TOKENIZERS["plain"], recipe, folder / cache, said.append, training=training)

    return load, said


def test_the_corpus_holds_every_pair_so_many_times(tmp_path):
    load, said = corpus_of(tmp_path, bpe_dropout=0.5, segmentations=4)
    plain, four = load(training=False), load()
    assert len(plain) == 20 and len(four) == 80 and "80 kept in 4 segmentations" in said[-1]
    first = four.sources(np.arange(20), 0)[0]
    assert np.array_equal(first, plain.sources(np.arange(20), 0)[0])  # the first is the tokenizer's own
    backend = backend_of("plain")
    cuts = [tuple(row[real]) for row, real in zip(*four.targets(np.arange(2, 80, 20), 0), strict=True)]
    assert len({backend.decode(list(cut)) for cut in cuts}) == 1 and len(set(cuts)) > 2
    assert set(four.pair_hashes) == set(plain.pair_hashes)


def test_a_seed_gives_the_same_corpus_and_another_seed_another(tmp_path):
    keys = {"bpe_dropout": 0.5, "segmentations": 3}
    hashes = [corpus_of(tmp_path, **keys, seed=seed)[0](cache).sha256 for seed, cache in ((1, "a"), (1, "b"), (2, "a"))]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_cut_that_gets_too_long_is_counted(tmp_path):
    load, said = corpus_of(tmp_path, bpe_dropout=0.9, segmentations=2, max_length=14)
    plain, two = load(training=False), load()
    assert len(plain) < len(two) < 2 * len(plain) and "in segmentation 1" in said[-1]
    assert two.source_lengths.max() <= 14


def test_another_kind_of_tokenizer_is_named():
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, "<unk>")))
    with pytest.raises(InputError, match=r"bpe_dropout: the tokenizer \(WordLevel\) must be a byte-level BPE"):
        BpeDropout(words.backend_tokenizer, 0.1)
