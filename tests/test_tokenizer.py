"""The tokenizer: lossless for any cleaned text, special tokens that users cannot type, a plain folder."""

import bz2
import functools
import gzip
import json
import weakref
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_model import ENGLISH, GERMAN
from training_child import in_new_process
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.lines import read_lines
from vaswani_transformer.loading import load_tokenizer
from vaswani_transformer.sentences_vaswani_transformer import clean_text
from vaswani_transformer.tokenization import train_tokenizer
from vaswani_transformer.tokenizer_files import read_tokenizer

CONTROL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
# A corpus that contains special tokens typed by users.
TEXTS = [*GERMAN, *ENGLISH, "Kauf 12 Äpfel für 3,50 €!", *["a </s> b </s></s><pad>"] * 20]

SQUARES = gzip.compress("".join(f"{i * i}\n" for i in range(999)).encode())

any_text = st.text(st.characters(exclude_categories=["Cs"]))
awkward_text = st.text(
    st.sampled_from("  \n\r\t\xad\u200b\u200c\x00\ufeff\u0301\u200d\u2028äÄß🙂👩🏽日ﷺ<>/sapdunk.'12")
)
with_control_tokens = st.lists(st.sampled_from([*CONTROL_TOKENS, " ", "a", "<", "</", "s>"])).map("".join)


@pytest.fixture(scope="module", params=[False, True], ids=["digits together", "digits split"])
def tokenizer(request, tmp_path_factory) -> PreTrainedTokenizerFast:
    """Return a trained tokenizer, saved and loaded without code of this package."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(TEXTS, 290, split_digits=request.param).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@settings(max_examples=200, deadline=None)
@given(text=any_text | awkward_text | with_control_tokens)
def test_decoding_returns_exactly_the_cleaned_text(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == clean_text(text)
    assert ids[-1] == 2 and all(token >= 4 for token in ids[:-1]), "a special token that is typed is text"
    assert tokenizer.encode(text) == tokenizer(text_target=text)["input_ids"] == ids


@settings(max_examples=100, deadline=None)
@given(text=any_text | awkward_text)
def test_a_tokenizer_that_keeps_invisible_characters_strips_only_the_ends(text):
    tokenizer = keeping_tokenizer()
    kept = text.strip("".join(chr(code) for code in SPACES_OF_UNICODE))
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == kept


@functools.cache
def keeping_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 290, keep_invisible=True)


# Characters with the property White_Space (Unicode, PropList.txt).
SPACES_OF_UNICODE = [
    *range(9, 14),
    32,
    0x85,
    0xA0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
]


def test_special_tokens_have_the_ids_of_the_model(tokenizer):
    assert tokenizer.convert_tokens_to_ids(CONTROL_TOKENS) == [0, 1, 2, 3]
    assert [getattr(tokenizer, f"{name}_token_id") for name in ("bos", "pad", "eos", "unk")] == [0, 1, 2, 3]


def test_a_pair_of_texts_is_one_sentence(tokenizer):
    one, two = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("a b", " c"))
    assert tokenizer("a b", " c")["input_ids"] == [*one, *two, tokenizer.eos_token_id]


def test_no_merge_produces_a_special_token(tmp_path):
    # A merge into the frequent text "</s>" would end a sentence.
    trained = train_tokenizer(["</s> <pad> <s> <unk>"] * 1000, 264)
    trained.save_pretrained(tmp_path)
    merges = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"]
    assert merges and not {"".join(pair) for pair in merges} & set(CONTROL_TOKENS)


def test_the_saved_folder_needs_no_code_and_round_trips(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "once")
    settings = json.loads((tmp_path / "once" / "tokenizer_config.json").read_text())
    assert settings["split_special_tokens"] is True and settings["clean_up_tokenization_spaces"] is False
    assert settings["model_max_length"] == 1024 and "auto_map" not in settings
    AutoTokenizer.from_pretrained(tmp_path / "once", trust_remote_code=False).save_pretrained(tmp_path / "twice")
    once, twice = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("once", "twice"))
    assert once == twice


def test_split_digits_makes_every_digit_a_token():
    together, split = (train_tokenizer(["aa 12 12"] * 50, 261, split_digits=flag) for flag in (False, True))
    assert together.tokenize("12") == ["12"]
    assert split.tokenize("x1200 12") == ["x", "1", "2", "0", "0", "Ġ", "1", "2"]


def test_a_lowercase_tokenizer_lowercases_its_input(tmp_path):
    texts = ["Ein Mann, ein Äpfelchen", "ein mann, ein äpfelchen"] * 5
    small, large = (train_tokenizer(texts, 270, lowercase=flag) for flag in (True, False))
    assert all(letter not in token for token in small.get_vocab() if len(token) > 1 for letter in "EMÄ")
    small.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    for text in ("Ein Mann, EIN ÄPFELCHEN </S>", "Straße"):
        assert loaded(text)["input_ids"] == loaded(text.lower())["input_ids"]
        assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text.lower()
        assert large.decode(large(text)["input_ids"], skip_special_tokens=True) == text


# Placeholders, tags and language codes of real corpora, and texts around them.
SYMBOLS = ["<2de>", ">>deu<<", "__NUM__", "⟦1⟧", "{name}", "<br/>", "__NUM__2"]
SYMBOL_TEXTS = [
    ("<2de> The house is small.", ["<2de>"]),
    (">>deu<< The house is small.", [">>deu<<"]),
    ("I have __NUM__ houses and__NUM__2.", ["__NUM__", "__NUM__2"]),
    ("Dear {name} {name},<br/>see ⟦1⟧", ["{name}", "{name}", "<br/>", "⟦1⟧"]),
    ("a </s> b <pad><2de", []),
]


@pytest.mark.parametrize("lowercase", [False, True])
def test_symbols_stay_whole_and_control_tokens_stay_text(tmp_path, lowercase):
    trained = train_tokenizer([*TEXTS, *["<2de> house"] * 50], 300, lowercase=lowercase, symbols=SYMBOLS)
    assert len(trained) == 300
    assert not any(part in token for token in trained.get_vocab() if token not in SYMBOLS for part in ("2de", "<2"))
    trained.save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False), load_tokenizer(tmp_path)):
        for text, expected in SYMBOL_TEXTS:
            ids = loaded(text)["input_ids"]
            tokens = loaded.convert_ids_to_tokens(ids)
            change = str.lower if lowercase else str
            assert [t for t in tokens if t in map(change, SYMBOLS)] == [*map(change, expected)] and ids.count(2) == 1
            assert loaded.decode(ids, skip_special_tokens=True) == change(text)


@pytest.mark.parametrize("add", ["add_tokens", "add_special_tokens"])
def test_tokens_that_transformers_adds_stay_whole(tmp_path, add):
    train_tokenizer(TEXTS, 290).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    if add == "add_tokens":
        tokenizer.add_tokens(SYMBOLS)
    else:
        tokenizer.add_special_tokens({"additional_special_tokens": SYMBOLS})
    tokenizer.save_pretrained(tmp_path)
    loaded, bare = load_tokenizer(tmp_path), read_tokenizer(tmp_path)
    loaded.save_pretrained(tmp_path / "again")
    again = AutoTokenizer.from_pretrained(tmp_path / "again", trust_remote_code=False)
    for text, expected in SYMBOL_TEXTS:
        ids = loaded(text)["input_ids"]
        assert [token for token in loaded.convert_ids_to_tokens(ids) if token in SYMBOLS] == expected
        assert bare.encode(text).ids == again(text)["input_ids"] == ids and ids.count(2) == 1
        assert loaded.decode(ids, skip_special_tokens=True) == bare.decode(ids) == text
    (tmp_path / "tokenizer_config.json").unlink()  # as in folders with an ONNX file
    alone = read_tokenizer(tmp_path)
    for text in ("a </s> b <pad>", "<2de> The house", ">>deu<< The house"):
        assert alone.encode(text).ids == loaded(text)["input_ids"]


@pytest.mark.parametrize("symbol", ["", " ", "</s>", "a", "<é>", "\udc80"])
def test_impossible_symbols_are_refused(symbol):
    with pytest.raises(InputError, match="symbol "):
        train_tokenizer(TEXTS, 290, symbols=["<2de>", symbol])


def test_symbols_count_towards_the_size():
    with pytest.raises(InputError, match="4 special tokens, 2 symbols and 256 bytes need 262"):
        train_tokenizer(TEXTS, 261, symbols=["<2de>", "<2fr>"])


def test_the_worked_example_of_sennrich_et_al():
    # "low" x 5, "lower" x 2, "newest" x 6, "widest" x 3: merges es, est, lo, low (without end-of-word marks).
    words = [word for word, count in [("low", 5), ("lower", 2), ("newest", 6), ("widest", 3)] for _ in range(count)]
    vocabulary = train_tokenizer(words, 264).get_vocab()
    assert {token for token, id in vocabulary.items() if id >= 260} == {"es", "est", "lo", "low"}


def test_training_options_reach_the_tokenizer():
    texts = ["abab cdcdcd", *GERMAN]
    with pytest.raises(InputError, match="pairs that occur at least 9 times"):
        train_tokenizer(texts, 270, min_frequency=9)
    assert len(train_tokenizer(texts, 350, min_frequency=1)) == 350


def test_training_streams_texts_without_keeping_them():
    class Line(str):
        """A str that allows weak references."""

    def stream():
        for number in range(20_000):
            line = Line(f"the same words, again and again {number}")
            alive.add(line)
            yield line
            counts.append(len(alive))

    alive: weakref.WeakSet[Line] = weakref.WeakSet()
    counts: list[int] = []
    assert len(train_tokenizer(stream(), 270)) == 270
    assert len(counts) == 20_000 and max(counts) <= 2


def train_and_save(folder: Path) -> None:
    train_tokenizer(TEXTS * 3, 300).save_pretrained(folder)


@pytest.mark.slow
def test_training_is_deterministic_across_processes(tmp_path):
    train_and_save(tmp_path / "one")
    in_new_process(train_and_save, tmp_path / "two")
    one, two = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("one", "two"))
    assert one == two


def test_lines_are_read_without_line_ends(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffÄpfel \t\r\n\r\n b\r\r\nzwei\u2028Zeilen".encode())
    assert list(read_lines(tmp_path / "text")) == ["Äpfel \t", "", " b\r", "zwei\u2028Zeilen"]


def test_impossible_vocabulary_sizes_are_refused_with_the_limit():
    with pytest.raises(InputError, match="need 260"):
        train_tokenizer(TEXTS, 259)
    with pytest.raises(InputError, match="5000.* at most") as refused:
        train_tokenizer(TEXTS, 5000)
    enough = int(str(refused.value).rsplit(maxsplit=1)[-1])
    assert len(train_tokenizer(TEXTS, enough)) == enough


@pytest.mark.parametrize(
    "texts, named", [([], "no text"), (["", ""], "no text"), (["a", "\udc80"], "text 2.*surrogate")]
)
def test_a_corpus_without_text_is_refused(texts, named):
    with pytest.raises(InputError, match=named):
        train_tokenizer(texts, 300)


@pytest.mark.parametrize(
    "content, named",
    [
        (b"fine\nb\xe4d\n", r"corpus line 2: byte 0xe4 at column 2 is not UTF-8.*CP1252"),
        ("\ufefffine".encode("utf-16-le"), r"corpus line 1: not UTF-8, looks like UTF-16; convert it: iconv -f UTF-16"),
        ("fine\n".encode("utf-16-be"), r"corpus line 1: not UTF-8, looks like UTF-16"),
        (gzip.compress(b"fine\n", mtime=0), r"corpus is compressed by gzip; decompress it, or compress it by gzip"),
        (bz2.compress(b"fine\n", 1), r"corpus is compressed by bzip2"),
        (b"PK\3\4\n", r"corpus is a workbook or a zip archive, not text; export it in UTF-8 with a sentence on"),
        (b"one\rtwo\rthree\r", r"corpus has 2 carriage returns and no line feed; convert it: tr"),
    ],
)
def test_text_that_would_be_read_wrongly_is_refused(tmp_path, content, named):
    (tmp_path / "corpus").write_bytes(content)
    with pytest.raises(InputError, match=named):
        list(read_lines(tmp_path / "corpus"))


def test_the_name_of_a_gene_is_no_magic_number(tmp_path):
    (tmp_path / "corpus").write_text("PAR1 is a receptor.\n")
    assert list(read_lines(tmp_path / "corpus")) == ["PAR1 is a receptor."]


@pytest.mark.parametrize(
    "content",
    [b"", b"A man.\n", b"\x1f\x8b\x08\x00rest", SQUARES[:10] + b"\xff" * 4 + SQUARES[14:]],
    ids=["empty", "text", "cut", "wrong"],
)
def test_broken_gzip_files_are_named(tmp_path, content):
    (tmp_path / "text.gz").write_bytes(content)
    with pytest.raises(BrokenFileError, match=r"text\.gz is not a complete gzip file \([^\[\]]+\)"):
        list(read_lines(tmp_path / "text.gz"))


def test_a_million_letters_in_one_line_train_and_encode():
    line = "abcdefgh" * 125_000
    trained = train_tokenizer([line], 265)
    assert trained.decode(trained(line, verbose=False)["input_ids"], skip_special_tokens=True) == line
