"""Texts are cut at the ends of their sentences. The page's sentences.js is tested with the same examples."""

import functools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import in_node, node
from conftest import one_fast_in
from hypothesis import example, given, settings
from hypothesis import strategies as st
from saved_model import ENGLISH
from tokenizers import Regex, normalizers
from transformers import PreTrainedTokenizerFast

from training import demo_corpus
from vaswani_transformer import SearchSettings, TorchTranslator
from vaswani_transformer.sentences_vaswani_transformer import (
    LINE_BREAKS,
    choose_cleaning,
    clean_text,
    cleans_itself,
    join_texts,
    sentence_spans,
    source_limit,
    split_text,
)
from vaswani_transformer.tokenization import make_normalizer, train_tokenizer
from vaswani_transformer.translator import Hypothesis

# By language; a bar marks where a sentence, or what is copied between two, ends. ¦ stands for the bar of a table, and ¬
# begins what is copied although it has words.
CASES = json.loads((Path(__file__).parent / "fixtures" / "sentences.json").read_text(encoding="utf-8"))
EXAMPLES = [[piece.replace("¦", "|") for piece in case.split("|")] for cases in CASES.values() for case in cases]
EXAMPLE_TEXTS = ["".join(pieces).replace("¬", "") for pieces in EXAMPLES]


def sentences(text: str) -> list[str]:
    return [text[start:stop] for start, stop in sentence_spans(text)]


def encode(text: str) -> tuple[list[int], list[int]]:
    """Return a token for each character, and 2 for </s>."""
    return [ord(letter) for letter in text] + [2], [*range(len(text)), len(text)]


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids[:-1]))


def is_copied(piece: str) -> Any:
    return (
        piece.lstrip().startswith("¬")
        or re.fullmatch("</?[a-z][a-z0-9]* ?/?>(<p>)?", piece)
        or re.fullmatch(r"\s*\w{1,2}[.)] ", piece)
        or "```\n" in piece
        or not any(letter.isalpha() for letter in piece)
    )


def test_texts_of_many_languages_are_cut_at_sentence_ends_only() -> None:
    """The full stop of an abbreviation is sometimes also that of the sentence, so a few cases may differ."""
    assert len(CASES) > 50 and len(EXAMPLES) > 800
    expected = [[piece for piece in pieces if not is_copied(piece)] for pieces in EXAMPLES]
    wrong = [
        (found, want) for text, want in zip(EXAMPLE_TEXTS, expected, strict=True) if (found := sentences(text)) != want
    ]
    assert len(wrong) <= len(EXAMPLES) // 300, wrong


@pytest.mark.parametrize("text", ["www.Example.com", "README.md", "U.S.A.", "3.14", "Node.Js", "a.B.c", "z.B. Two"])
def test_names_and_numbers_stay_whole(text: str) -> None:
    assert sentences(f"We saw {text} there") == [f"We saw {text} there"]


@pytest.mark.parametrize("invisible", ["\u200b\u200b", "\u200f ", "\ufeff\n", "\xad  "])
def test_an_invisible_character_hides_no_sentence_end(invisible: str) -> None:
    assert sentences(f"A man.{invisible}Two dogs.") == ["A man.", "Two dogs."]


def test_whole_lines_are_cut_at_line_breaks_only() -> None:
    text = "One. Two.\n\n- Three. Four.\r\n"
    lines = sentence_spans(text, split_sentences=False)
    assert [text[start:stop] for start, stop in lines] == ["One. Two.", "Three. Four."]


# Persian and Hindi words and emoji are spelled with joiners; in Latin script they are invisible.
CLEANED = {
    "\ufeffA\xa0man\u202f in\t\tan\r\n": "A man in an",
    "s\xado\u200bf\u2060t\u200c\u200d": "soft",
    "e\u0301 \u202bb\u202c\x00\x1b": "e\u0301 b",
    "\u0645\u06cc\u200c\u0631\u0648\u0645": "\u0645\u06cc\u200c\u0631\u0648\u0645",
    "\u0915\u094d\u200d\u0937": "\u0915\u094d\u200d\u0937",
    "👩\u200d🚀 and ❤\ufe0f": "👩\u200d🚀 and ❤",
    "\u3000 \u3164\n": "",
}


@pytest.mark.parametrize("text", CLEANED)
def test_invisible_characters_are_dropped_and_white_space_is_one_space(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned == CLEANED[text] == clean_text(cleaned)
    assert tokenizer().backend_tokenizer.normalizer.normalize_str(text) == cleaned


@given(
    st.text(st.sampled_from(sorted(set("".join(CLEANED)) | set(" \xa0a👩"))) | st.characters(exclude_categories=["Cs"]))
)
def test_the_tokenizer_cleans_a_text_like_the_translator(text: str) -> None:
    assert tokenizer().backend_tokenizer.normalizer.normalize_str(text) == clean_text(text)


def test_the_own_steps_clean_a_text_whatever_follows_them() -> None:
    own: Any = make_normalizer(lowercase=True, keep_invisible=False)
    assert cleans_itself(own)
    assert cleans_itself(normalizers.Sequence([*list(own), normalizers.Prepend("_")]))
    assert not cleans_itself(normalizers.Sequence([normalizers.Prepend("_"), *list(own)]))  # its _ is not a space
    assert not cleans_itself(normalizers.Sequence(list(own)[1:]))
    assert not cleans_itself(make_normalizer(lowercase=False, keep_invisible=True))
    assert not cleans_itself(normalizers.Strip()) and not cleans_itself(None)


def test_a_converted_tokenizer_keeps_what_its_normalizer_decides() -> None:
    text = " a\xa0b\xadc\u200bd "
    as_toolkit = normalizers.Sequence([normalizers.Replace("\u200b", " "), normalizers.Replace(Regex(" {2,}"), " ")])
    assert choose_cleaning(as_toolkit)(text) == "a bc\u200bd"
    assert choose_cleaning(normalizers.Lowercase())(text) == "a bcd"
    assert choose_cleaning(make_normalizer(lowercase=True, keep_invisible=True))(text) == text.strip()
    assert choose_cleaning(make_normalizer(lowercase=True, keep_invisible=False)) is clean_text


INVISIBLE_CHANGES: dict[str, Callable[[str], str]] = {
    "line feed": lambda text: f"{text}\n",
    "CRLF": lambda text: f"{text}\r\n",
    "four spaces": lambda text: f"    {text}",
    "no-break spaces": lambda text: text.replace(" ", "\xa0"),
    "tabs": lambda text: text.replace(" ", "\t"),
    "byte order mark": lambda text: f"\ufeff{text}",
    "soft hyphens": lambda text: text.replace("ou", "o\xadu"),
    "directions": lambda text: f"\u202a{text}\u202c",
}


@pytest.mark.parametrize("change", INVISIBLE_CHANGES)
def test_a_change_that_nobody_sees_changes_no_translation(translator: TorchTranslator, change: str) -> None:
    """The ends of the text are those of the translation."""
    text, changed = " ".join(ENGLISH), INVISIBLE_CHANGES[change](" ".join(ENGLISH))
    (expected,), (found,) = translator.translate(text), translator.translate(changed)
    assert " ".join(found.split()) == " ".join(expected.split())
    assert found.endswith("\r\n") == changed.endswith("\r\n") and found.startswith("   ") == changed.startswith("   ")


def test_what_has_no_word_is_copied(translator: TorchTranslator) -> None:
    for text in ("---", "🙂", "👩\u200d🚀❤\ufe0f", " \n\t", "* * *\n\n|---|:-:|\n", "===\r\n", "3.50", "00:01,5 --> ٣"):
        assert translator.find_hypotheses(text)[0] == [Hypothesis(text, 0.0, [])]
    one, two = translator.translate(ENGLISH[:2])
    text = f"- {ENGLISH[0]}\n\n---\r\n* {ENGLISH[1]} 🙂\n"
    assert translator.translate(text) == [f"- {one}\n\n---\r\n* {two} 🙂\n"]
    best = translator.find_hypotheses(text, num_return_sequences=3)[0]
    assert len(best) == 3 and all(each.text.endswith(" 🙂\n") for each in best)


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
@example(text="¡¹ : 0", limit=8, by_sentence=False)
def test_the_parts_and_what_is_copied_make_up_the_text(coder, text: str, limit: int, by_sentence: bool) -> None:
    parts = list(split_text(text, limit, coder[0], by_sentence))
    assert all(len(part.ids) <= limit for part in parts)
    assert all(coder[1](part.ids) == part.text == part.text.strip() for part in parts if part.ids)
    assert all(part.ids for part in parts[:-1])
    whole = "".join(part.copied + part.text for part in parts)
    assert clean_text(whole) == clean_text(text)
    lines = [clean_text(line) for line in re.split(f"[{LINE_BREAKS}]", whole)]
    assert lines == [clean_text(line) for line in re.split(f"[{LINE_BREAKS}]", text)]


@pytest.mark.parametrize(
    "text",
    one_fast_in(
        6,
        [
            "a. " * 10**5,
            "." * 10**5 + "a",
            "a" + ". " * 10**5 + "b",
            '"' * 10**5,
            "a" * 10**5,
            "a.B" * 30000,
            "```a\n" * 20000,
            "<br " * 20000,
            "| " * 50000 + "a",
            "。a" * 40000,
            "[x] " * 30000 + "a",
            "[ ] " * 100000 + "a",
            "<i>" * 30000 + "a",
            "<i>a. " * 20000,
            "a *b. " * 20000,
            "|a|" * 20000 + "\n",
            "![a](b)" * 10000 + "c",
            "<!-- " * 20000,
        ],
    ),
)
def test_the_text_is_encoded_in_linear_time(text: str) -> None:
    encoded = 0

    def count(window: str) -> tuple[list[int], list[int]]:
        nonlocal encoded
        encoded += len(window)
        return encode(window)

    assert list(split_text(text, 100, count, split_sentences=True))
    assert encoded <= 20 * len(text)


def page_texts() -> list[str]:
    """Return random characters, sentences of the demo corpus, and mixtures of their words with unusual ones."""
    generator = random.Random(1)
    pieces = (
        "a B é ß . ! ? … Two ** [1] ; ա : ۔ ہے <br> | ``` - \u200d \xad ، । 。 ！ 「 」 1 12 z.B Dr U.S etc the The "
    )
    pieces += "der Mai \n \r\n \u3000 \" ' “ ” „ » ( ) - 🙂 𝒜 "
    pieces += "<i> </i> {\\an8} [x] (a) II. ii) ~~~ ```` ` _ ~ \\ --a -o -I www.a.b /a/b ![a](b) a@b.de 00:01,500 --> "
    pieces += "． ５ \ue000 § <!-- --> Tel str by |a |a| > WEBVTT $ <img> [a]: //b ~~~~\n [!N] "
    pieces += "எம். ஜி. है. हा. 5 г. km. Płk. trh. 5. 3. = 1️⃣ 😀 .👍 <g id='1'> </g> <x/> იყო. ดร. ”他说。 ។ល។ །"
    choices = [*pieces.split(" "), " ", " ", " ", ". "]
    texts = list(EXAMPLE_TEXTS)
    texts += ["".join(generator.choices(choices, k=generator.randrange(40))) for _ in range(1000)]
    unusual = "🙂 👩🏽‍🚀🇩🇪 𝒜𝒷𝒸 e\u0301u\u0308 Z\u0351\u036b\u0343a\u0334 Straßenbahnhaltestellenschild".split(" ")
    unusual += ["ab" * 200, "x" * 999, "-" * 2000, "ü🙂" * 50, "ε\u0301你好。「はい」" * 20, " " * 300]
    corpus = [text for _, *pair in demo_corpus.load("validation")[:300] for text in pair]
    for number, sentence in enumerate(corpus):
        words = " ".join([sentence, *generator.choices(corpus, k=number % 4)]).replace(".", ",").split(" ")
        words += generator.choices(unusual, k=number % 3)
        texts += [sentence, " ".join(generator.sample(words, len(words)))]
        splice = generator.choice([", ", "., ", "; ", ",  ", " : "])
        texts.append(splice.join(one.rstrip(".") for one in [sentence, *generator.choices(corpus, k=number % 5)]))
    return texts


@pytest.mark.parametrize(
    ("limit", "step"), [(8, 4), *(pytest.param(limit, 1, marks=pytest.mark.slow) for limit in (8, 12, 20, 40, 1000))]
)
def test_the_page_finds_the_same_sentences(limit: int, step: int, tmp_path: Path) -> None:
    """step: every step-th of the texts"""
    tokenizer().save_pretrained(tmp_path)
    texts = page_texts()[::step]
    parts = [split_text(text, limit, encode_bpe) for text in texts]
    expected = [[[piece.text, piece.copied] for piece in row] for row in parts]
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
    ("Ein Mann geht.", ", ", "zwei Hunde laufen.", "Ein Mann geht, zwei Hunde laufen."),
    ("So …", "; ", "ja.", "So …; ja."),
    ("Ein Mann geht.", " : ", "zwei Hunde laufen.", "Ein Mann geht : zwei Hunde laufen."),
    ("Ein Mann geht.", " :) ", "Zwei Hunde laufen.", "Ein Mann geht. :) Zwei Hunde laufen."),
    ("一个人走。", " : ", "两只狗跑。", "一个人走：两只狗跑。"),
    ("一个人走。", ", ", "两只狗跑。", "一个人走，两只狗跑。"),
    ("Ein Mann geht.", "., ", "Zwei Hunde laufen.", "Ein Mann geht., Zwei Hunde laufen."),
]


def test_a_space_joins_translations_only_in_languages_that_have_it() -> None:
    page = Path(__file__).parents[1] / "hub" / "space-static" / "sentences.js"
    calls = f"{json.dumps([parts for *parts, _ in JOINED])}.map((parts) => joinedTexts(...parts))"
    program = f"import {{ joinedTexts }} from '{page.as_uri()}'; console.log(JSON.stringify({calls}))"
    expected = [text for *_, text in JOINED]
    assert [join_texts(*parts) for *parts, _ in JOINED] == expected
    assert json.loads(node("--input-type=module", "--eval", program).stdout) == expected


def test_a_comma_at_a_cut_is_copied(translator: TorchTranslator) -> None:
    """A part that ends in a comma is like no sentence of the training text."""
    text = ", ".join(sentence.rstrip(".") for sentence in ENGLISH)
    pieces = list(split_text(text, 12, translator._encode))
    assert "".join(piece.copied + piece.text for piece in pieces) == text
    assert not any(piece.text.endswith(",") for piece in pieces)
    assert any(piece.copied == ", " for piece in pieces)
    assert all(piece.ids == translator._encode(piece.text)[0] for piece in pieces)


@pytest.mark.parametrize("splice", [", ", "; ", "., "])
def test_sentences_that_a_comma_joins_are_translated_one_by_one(splice: str) -> None:
    """In a text that is too long only, and not at names."""
    sentences = ["A man in a coat, hat and scarf walks", "Two black dogs run on the beach", "The old boat lies there"]
    sentences += ["Ein alter Mann, der lacht, sitzt im Garten", "Several readers of the Times, The Guardian, and books"]
    pieces = list(split_text(splice.join(sentences), 100, encode))
    assert [piece.text for piece in pieces] == sentences
    assert [piece.copied for piece in pieces] == ["", *[splice] * 4]
    assert len(list(split_text(splice.join(sentences[:2]), 300, encode))) == 1
    assert "Yes, The" in next(split_text(splice.join(["Yes, The old man sleeps", *sentences]), 100, encode)).text


def test_every_sentence_of_a_text_is_translated(translator: TorchTranslator) -> None:
    one_by_one = translator.translate([ENGLISH[0], ENGLISH[1]])
    text = f"{ENGLISH[0]}\n\n {ENGLISH[1]}"
    assert translator.translate([text]) == ["\n\n ".join(one_by_one)]
    text = f"{ENGLISH[0]} {ENGLISH[1]}"
    (whole,) = split_text(text, 256, translator._encode, split_sentences=False)
    ((tokens,),) = translator._open_search(SearchSettings(4, 0.6), False, False).run([whole.ids]).sequences
    assert translator.translate([text], split_sentences=False) == [translator._decode(tokens)]


def test_the_recorded_length_of_the_training_limits_the_parts(
    translator: TorchTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator, "trained_length", 12)
    text = " ".join(ENGLISH).replace(".", ",")
    limit = source_limit(None, translator.trained_length, None)
    parts = [part.ids for part in split_text(text, limit, translator._encode)]
    assert len(parts) > 1 and all(len(ids) <= 12 for ids in parts)
    assert source_limit(None, None, None) == 128 and source_limit(None, 300, 100) == 100
    assert source_limit(None, None, 1000) == 128
    assert [source_limit(None, trained, None, split_sentences=False) for trained in (12, 300)] == [128, 300]
