"""Texts are cut at the ends of their sentences. The page's sentences.js is tested with the same examples."""

import functools
import json
import random
from pathlib import Path

import pytest
from browser import in_node, node
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_model import ENGLISH
from transformers import PreTrainedTokenizerFast

from training import demo_corpus
from vaswani_transformer import SearchSettings, TorchTranslator
from vaswani_transformer.sentences_vaswani_transformer import join_texts, sentence_spans, source_limit, split_text
from vaswani_transformer.tokenization import train_tokenizer

# A bar marks where a sentence, or the white space between two, ends.
EXAMPLES = json.loads((Path(__file__).parent / "fixtures" / "sentences.json").read_text(encoding="utf-8"))


def sentences(text: str) -> list[str]:
    return [text[start:stop] for start, stop in sentence_spans(text)]


def encode(text: str) -> tuple[list[int], list[int]]:
    """Return a token for each character, and 2 for </s>."""
    return [ord(letter) for letter in text] + [2], [*range(len(text)), len(text)]


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids[:-1]))


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_text_is_cut_at_sentence_ends_only(example: str) -> None:
    pieces = example.split("|")
    text = "".join(pieces)
    expected = [piece for piece in pieces if not piece.isspace()]
    assert sentences(text) == expected


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Train a tokenizer with words, such as " December", whose beginnings have more tokens, and with a long token."""
    pairs = [pair for _, *pair in demo_corpus.load("train")[:3000]]
    return train_tokenizer([*(text for pair in pairs for text in pair), *["-" * 64] * 999], 700)


def encode_bpe(text: str) -> tuple[list[int], list[int]]:
    encoding = tokenizer()(text, return_offsets_mapping=True, verbose=False)
    return encoding["input_ids"], [start for start, _ in encoding["offset_mapping"]]


def decode_bpe(ids: list[int]) -> str:
    return str(tokenizer().decode(ids, skip_special_tokens=True))


texts = st.text(st.sampled_from("aBé .!?…。」\n\"')1一-ü🙂"), max_size=400) | st.text()


@pytest.mark.parametrize("coder", [(encode, decode), (encode_bpe, decode_bpe)], ids=["letters", "byte-level BPE"])
@settings(deadline=None)
@given(text=texts, limit=st.integers(8, 30), by_sentence=st.booleans())
def test_parts_and_separators_concatenate_to_the_text(coder, text: str, limit: int, by_sentence: bool) -> None:
    parts = list(split_text(text, limit, coder[0], by_sentence))
    pieces = [(separator, coder[1](ids)) for ids, separator in parts]
    assert all(len(ids) <= limit for ids, _ in parts)
    assert "".join(separator + piece for separator, piece in pieces).strip() == text.strip()
    assert not any(separator.strip() or piece[0].isspace() for separator, piece in pieces[1:])


@pytest.mark.parametrize("text", ["a. " * 10**5, "." * 10**5 + "a", "a" + ". " * 10**5 + "b", '"' * 10**5, "a" * 10**5])
def test_the_text_is_encoded_in_linear_time(text: str) -> None:
    encoded = 0

    def count(window: str) -> tuple[list[int], list[int]]:
        nonlocal encoded
        encoded += len(window)
        return encode(window)

    assert list(split_text(text, 100, count, sentences=True))
    assert encoded <= 12 * len(text)


def page_texts() -> list[str]:
    """Return random characters, sentences of the demo corpus, and mixtures of their words with unusual ones."""
    generator = random.Random(1)
    pieces = "a B é ß . ! ? … 。 ！ 「 」 1 12 z.B Dr U.S etc the The der Mai \n \r\n \u3000 \" ' “ ” „ » ( ) - 🙂 𝒜"
    choices = [*pieces.split(" "), " ", " ", " ", ". "]
    texts = ["".join(example.split("|")) for example in EXAMPLES]
    texts += ["".join(generator.choices(choices, k=generator.randrange(40))) for _ in range(1000)]
    unusual = "🙂 👩🏽‍🚀🇩🇪 𝒜𝒷𝒸 e\u0301u\u0308 Z\u0351\u036b\u0343a\u0334 Straßenbahnhaltestellenschild".split(" ")
    unusual += ["ab" * 200, "x" * 999, "-" * 2000, "ü🙂" * 50, "ε\u0301你好。「はい」" * 20, " " * 300]
    corpus = [text for _, *pair in demo_corpus.load("validation")[:300] for text in pair]
    for number, sentence in enumerate(corpus):
        words = " ".join([sentence, *generator.choices(corpus, k=number % 4)]).replace(".", ",").split(" ")
        words += generator.choices(unusual, k=number % 3)
        texts += [sentence, " ".join(generator.sample(words, len(words)))]
    return texts


@pytest.mark.parametrize("limit", [8, 12, 20, 40, 1000])
def test_the_page_finds_the_same_sentences(limit: int, tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    texts = page_texts()
    parts = [split_text(text, limit, encode_bpe) for text in texts]
    expected = [[[decode_bpe(ids), separator] for ids, separator in row] for row in parts]
    found = in_node("sentences.mjs", {"texts": texts, "limit": limit}, tmp_path)
    for text, mine, theirs in zip(texts, expected, found, strict=True):
        assert theirs == mine, text


JOINED = [
    ("Hello.", "", "Goodbye.", "Hello. Goodbye."),
    ("“Hello!”", "", "“Goodbye.”", "“Hello!” “Goodbye.”"),
    ("„Wo?“", "", "Hier …", "„Wo?“ Hier …"),
    ("So …", "", "Yes.", "So … Yes."),
    ("Hello.", "\n", "Goodbye.", "Hello.\nGoodbye."),
    ("Hello.", "", "", "Hello."),
    ("", "", "Hello.", "Hello."),
    ("a long wo", "", "rd", "a long word"),
    ("你好。", "", "再见。", "你好。再见。"),
    ("「はい。」", "", "「いいえ！」", "「はい。」「いいえ！」"),
    ("她说……", "", "再见。", "她说……再见。"),
]


def test_a_space_joins_translations_only_in_languages_that_have_it() -> None:
    page = Path(__file__).parents[1] / "hub" / "space-static" / "sentences.js"
    calls = f"{json.dumps([parts for *parts, _ in JOINED])}.map((parts) => joinedTexts(...parts))"
    program = f"import {{ joinedTexts }} from '{page.as_uri()}'; console.log(JSON.stringify({calls}))"
    expected = [text for *_, text in JOINED]
    assert [join_texts(*parts) for *parts, _ in JOINED] == expected
    assert json.loads(node("--input-type=module", "--eval", program).stdout) == expected


def test_every_sentence_of_a_text_is_translated(translator: TorchTranslator) -> None:
    one_by_one = translator.translate([ENGLISH[0], ENGLISH[1]])
    text = f"{ENGLISH[0]}\n\n {ENGLISH[1]}"
    assert translator.translate([text]) == ["\n\n ".join(one_by_one)]
    ((whole, _),) = split_text(text, 256, translator._encode, sentences=False)
    (((expected,),),) = translator._search([[whole]], SearchSettings(4, 0.6))
    assert translator.translate([text], split_sentences=False) == [expected.text]


def test_the_longest_training_sentence_limits_the_parts(
    translator: TorchTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator, "trained_length", 12)
    text = " ".join(ENGLISH).replace(".", ",")
    limit = source_limit(None, translator.trained_length, None)
    parts = [ids for ids, _ in split_text(text, limit, translator._encode)]
    assert len(parts) > 1 and all(len(ids) <= 12 for ids in parts)
    assert source_limit(None, None, None) == 256 and source_limit(None, 300, 100) == 100
    assert source_limit(None, None, 1000) == 256
