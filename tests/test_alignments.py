"""Word alignments: which words of a source a translation comes from, by the attention of chosen heads."""

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from saved_model import ENGLISH, GERMAN, change_json, trained_tokenizer
from tiny_models import tiny_config
from tokenizers import Tokenizer, processors

from benchmarks.alignments import error_rate
from vaswani_transformer import TorchTranslator, Translator, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.alignment_heads import (
    AlignmentHead,
    Reference,
    choose_heads,
    compute_references,
    default_heads,
    read_references,
    shift_steps,
)
from vaswani_transformer.alignments import (
    decoded_spans,
    find_links,
    format_links,
    letter_places,
    letter_words,
    share_tokens,
    token_spans,
)
from vaswani_transformer.attention_maps import eager_copy
from vaswani_transformer.cli import main
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.tokenization import train_tokenizer

ODD_TEXTS = [
    "The house is small.",
    "  The\thouse \u00a0is  small.  Why does the cat not sleep?\u2003",
    "The\u200b house\u00ad is sm\u200ball. \u200b",
    "The house is small.Why does the cat sleep? \U0001f389 The house.",
    "- **The house** is small.\n\n2. The road is clear!\r\n---\n| The cat | sleeps |",
    "\u2022 \U0001f389",
    "The house\u2028is small.",
    "家は小さい。猫は眠る。",
    "",
    " \t ",
]


# ---- words and tokens ------------------------------------------------------------------------------------------------


@given(st.text(alphabet=st.sampled_from("ab. \t\n\x1c\x85\xa0\u200b\u2800\u3000ü"), max_size=30))
def test_words_are_those_of_split(text: str) -> None:
    found = [""] * len(text.split())
    for word, place in zip(letter_words(text), letter_places(text), strict=True):
        found[word] += text[place]
    assert found == text.split()


@given(st.text(alphabet=st.sampled_from("Das Haus für zwölf, \U0001f389家.!"), max_size=30))
@settings(deadline=None)
@example("für zwölf \U0001f389\U0001f389 Äpfel")
def test_tokens_have_the_same_words_when_they_are_decoded_as_when_they_are_encoded(text: str) -> None:
    """A character such as ü may have several tokens, the first of which decode to nothing."""
    tokenizer: Any = trained_tokenizer()
    encoding = tokenizer.backend_tokenizer.encode(text)
    decoded = tokenizer.decode(encoding.ids, skip_special_tokens=True)
    if not decoded:
        return
    spans = decoded_spans(lambda ids: tokenizer.decode(ids, skip_special_tokens=True), encoding.ids)
    assert token_spans(encoding)[-1] is None and spans[-1] is None  # </s>
    expected = share_tokens(token_spans(encoding), text, letter_words(text))
    np.testing.assert_allclose(share_tokens(spans, decoded, letter_words(decoded)), expected)


def test_the_language_with_which_a_translation_begins_belongs_to_no_word() -> None:
    """As `forced_bos_token_id` of multilingual models, whose tokenizers put it in front of given translations."""
    tokenizer = Tokenizer.from_str(trained_tokenizer().backend_tokenizer.to_str())
    tokenizer.add_special_tokens(["<__de__>"])
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<__de__>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing("<__de__> $A </s>", special_tokens=ids)
    encoding = tokenizer.encode("Das Haus")
    spans = decoded_spans(tokenizer.decode, encoding.ids)
    assert spans == token_spans(encoding) and spans[0] is spans[-1] is None


def test_a_token_over_several_words_is_shared_by_their_characters() -> None:
    shares = share_tokens([(0, 6), (6, 7), (7, 8), None], "ab cde f", letter_words("ab cde f"))
    np.testing.assert_allclose(shares, [[0.4, 0.6, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]])


def test_tokens_of_a_language_in_front_of_a_sentence_belong_to_no_word() -> None:
    tokenizer: Any = train_tokenizer(GERMAN + ENGLISH, 290, symbols=[">>deu<<"])
    text, prefix = "The house", ">>deu<< "
    spans = token_spans(tokenizer.backend_tokenizer.encode(prefix + text), prefix)
    assert spans[0] is None and spans[-1] is None
    places = {place for span in spans if span for place in range(*span)}
    assert places >= set(range(len(text))) - {3} and max(places) < len(text)


# ---- translations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ODD_TEXTS)
@pytest.mark.parametrize("split", [True, False])
def test_alignments_index_the_words_of_text_and_translation(
    translator: TorchTranslator, text: str, split: bool
) -> None:
    (hypotheses,) = translator.find_hypotheses(
        text, alignments=True, num_return_sequences=3, split_sentences=split, max_new_tokens=20
    )
    for hypothesis in hypotheses:
        assert hypothesis.alignment is not None
        assert len(hypothesis.alignment) == len(hypothesis.text.split())
        for words in hypothesis.alignment:
            assert set(words) <= set(range(len(text.split())))
            assert list(words.values()) == sorted(words.values(), reverse=True)
            assert 0 < sum(words.values()) < 1 + 1e-6
        targets = [target for _, target in hypothesis.links]
        assert targets == sorted(set(targets))


def test_every_hypothesis_is_that_of_a_search_without_alignments(translator: TorchTranslator) -> None:
    plain = translator.find_hypotheses(ENGLISH, num_return_sequences=3)
    aligned = translator.find_hypotheses(ENGLISH, num_return_sequences=3, alignments=True)
    for before, after in zip(plain, aligned, strict=True):
        assert [(h.text, h.score, h.tokens) for h in before] == [(h.text, h.score, h.tokens) for h in after]
        assert all(h.alignment is None and h.attention is None for h in before)
        assert all(h.attention is None for h in after)
    with pytest.raises(InputError, match="alignments=True"):
        plain[0][0].links  # noqa: B018


def test_copied_words_align_with_themselves(translator: TorchTranslator) -> None:
    text = "--- \n  * The house is small.\t\U0001f389 \u2022\n2. The road is clear!\n=== ==="
    ((best,),) = translator.find_hypotheses(text, alignments=True)
    source, target = list[str](text.split()), best.text.split()
    copied = ["---", "*", "\U0001f389", "\u2022", "2.", "==="]
    for word in copied:
        places = [place for place, found in enumerate(target) if found == word]
        assert len(places) == source.count(word), word
        for place in places:
            assert best.alignment is not None
            ((origin, probability),) = best.alignment[place].items()
            assert source[origin] == word and probability == 1
    assert max(dict(best.links).keys()) == len(source) - 1


def test_each_sentence_aligns_with_its_own_words(translator: TorchTranslator) -> None:
    first, second = "The house is small.", "Why does the tired cat not sleep?"
    ((one,), (two,), (both,)) = translator.find_hypotheses([first, second, f"{first}  {second}"], alignments=True)
    assert one.alignment and two.alignment and both.alignment
    moved = [{word + 4: probability for word, probability in words.items()} for words in two.alignment]
    assert len(both.alignment) == len(one.alignment) + len(moved)
    for found, expected in zip(both.alignment, one.alignment + moved, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)


def test_forced_decoding_aligns_as_the_search_does(translator: TorchTranslator) -> None:
    found = [best for best, *_ in translator.find_hypotheses(ENGLISH, alignments=True)]
    forced = translator.align(ENGLISH, [hypothesis.text for hypothesis in found])
    same = 0
    for hypothesis, alignment, target in zip(found, forced, GERMAN, strict=True):
        if hypothesis.text == target:  # of the same tokens
            assert hypothesis.alignment == [pytest.approx(words, abs=1e-5) for words in alignment]
            same += 1
    assert same
    assert translator.align([""], ["Ja"]) == [[{}]] and translator.align([], []) == []
    with pytest.raises(InputError, match="each source needs its translation"):
        translator.align(["a"], [])


def test_probabilities_are_the_attention_that_transformers_returns(translator: TorchTranslator) -> None:
    """Every word is one token here, so the weights need no sums."""
    model, tokenizer = translator.model, translator.tokenizer
    source, target = "H e l l o", "D a s"
    batch: Any = tokenizer([source], text_target=[target], return_tensors="pt")
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    own = [i for i, token in enumerate(tokens) if token not in ("Ġ", "</s>")]
    assert len(own) == 5
    with torch.no_grad():
        attentions = eager_copy(model)(**batch, output_attentions=True).cross_attentions
    assert len(attentions) == 2
    expected = attentions[1][0].mean(0).numpy()  # the default of two layers: the last one
    (alignment,) = translator.align([source], [target])
    labels = tokenizer.convert_ids_to_tokens(batch["labels"][0].tolist())
    for word, letter in enumerate("Das"):
        rows = [i for i, label in enumerate(labels) if label.endswith(letter)][:1]
        assert len(rows) == 1
        if labels[rows[0]] == letter and labels[rows[0] - 1] == "Ġ":
            rows.insert(0, rows[0] - 1)
        weights = expected[rows].mean(axis=0)
        for source_word, place in enumerate(own):
            first = place - 1 if tokens[place - 1] == "Ġ" else place
            assert alignment[word][source_word] == pytest.approx(weights[first : place + 1].sum(), abs=1e-5)


# ---- the choice of heads ---------------------------------------------------------------------------------------------


def test_the_error_rate_is_that_of_och_and_ney() -> None:
    """AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)"""
    reference = Reference({(0, 0), (1, 1)}, {(0, 0), (1, 1), (2, 1)})
    assert error_rate([[(0, 0), (1, 1)]], [reference]) == 0
    assert error_rate([[(0, 0), (2, 1)]], [reference]) == pytest.approx(1 - 3 / 4)
    assert error_rate([[(5, 5)]], [reference]) == 1


def test_a_word_that_attends_most_to_the_end_has_no_link() -> None:
    assert find_links([{3: 0.5, 1: 0.2}, {1: 0.3, 0: 0.3}, {}, {0: 1.0}]) == [(3, 0), (0, 3)]
    assert format_links([(3, 0), (0, 3)]) == "3-0 0-3"


def test_steps_are_shifted_by_the_offset() -> None:
    attention = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(shift_steps(attention, 0), attention)
    np.testing.assert_array_equal(shift_steps(attention, 1), attention[[1, 2, 2]])


def test_by_default_the_last_layer_but_one_predicts() -> None:
    assert [{head.layer for head in default_heads(layers, 2)} for layers in (1, 2, 3, 6)] == [{0}, {1}, {1}, {4}]
    assert default_heads(6, 2) == [(4, 0, 0), (4, 1, 0)]


def test_heads_that_complete_each_other_are_chosen() -> None:
    """One head knows the first word, another one the second; a third one is never right."""
    eye = np.eye(2)
    sure = np.array([[1.0, 0.0], [0.4, 0.6]])
    heads = np.stack([1 - eye, 1 - eye, np.array([[0.9, 0.0], [0.6, 0.4]]), 1 - eye, 1 - eye, sure - 0.05])
    other = np.stack([1 - eye, 1 - eye, np.array([[0.6, 0.4], [0.0, 0.9]]), 1 - eye, 1 - eye, 1 - eye])
    reference = Reference({(0, 0), (1, 1)}, {(0, 0), (1, 1)})
    found = choose_heads([heads], [reference], (3, 1))
    assert found.heads == [(2, 0, 1)] and found.rate == 0
    assert found.single[AlignmentHead(1, 0, 0)] == 0.5 and found.single[AlignmentHead(0, 0, 0)] == 1
    halves = np.stack([np.array([[0.7, 0.3], [0.6, 0.4]]), np.array([[0.6, 0.4], [0.3, 0.7]])])
    wrong = np.stack([1 - eye, 1 - eye])
    both = choose_heads([np.concatenate([halves, wrong]) * 0.9, other[:4] * 0.9], [reference] * 2, (2, 1))
    assert set(both.heads) >= {(0, 0, 1)} and both.rate < 1
    with pytest.raises(InputError, match="no sure link"):
        choose_heads([heads], [Reference(set(), {(0, 0)})], (3, 1))


def random_words(generator: random.Random, texts: int) -> list[str]:
    """Return texts of different two-letter words."""
    words = [f"{a}{b}" for a in "bdfgklmn" for b in "aeiou"]
    return [" ".join(generator.sample(words, generator.randint(2, 7))) for _ in range(texts)]


@pytest.fixture(scope="module")
def copying() -> TorchTranslator:
    """A model that has learned to copy words, each of which is one token, and its chosen heads."""
    texts = random_words(random.Random(0), 3200)
    tokenizer: Any = train_tokenizer(texts, 310)
    sizes = {"vocab_size": len(tokenizer), "d_model": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dropout": 0.0}
    torch.manual_seed(0)
    model: Any = VaswaniTransformerForConditionalGeneration(tiny_config(**sizes, encoder_layers=1, decoder_layers=2))
    adam = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    for start in [*range(0, len(texts), 32)] * 3:
        chosen = texts[start : start + 32]
        batch = tokenizer(chosen, text_target=chosen, return_tensors="pt", padding=True)
        batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
        adam.zero_grad()
        model(**batch).loss.backward()
        adam.step()
    return TorchTranslator(model, tokenizer)


@pytest.mark.slow
def test_a_model_that_copies_aligns_each_word_with_itself(copying: TorchTranslator) -> None:
    texts = random_words(random.Random(1), 60)
    references = [Reference(links, links) for links in ({(i, i) for i in range(len(t.split()))} for t in texts)]
    chosen = copying.choose_heads(texts[:30], texts[:30], references[:30])
    assert chosen.rate < 0.1
    assert max(chosen.single.values()) > 0.5  # other heads, or the other step, do not align
    alignments = copying.align(texts[:30], texts[:30])
    assert error_rate(map(find_links, alignments), references[:30]) == pytest.approx(chosen.rate)
    found = [best for best, *_ in copying.find_hypotheses(texts[30:], alignments=True)]
    assert sum(best.text == text for best, text in zip(found, texts[30:], strict=True)) >= 25
    assert error_rate([best.links for best in found], references[30:]) < 0.1


@pytest.mark.slow
def test_the_ibm_model_chooses_heads_without_a_reference(copying: TorchTranslator) -> None:
    texts = random_words(random.Random(2), 200)
    references = compute_references(texts, texts)
    expected = [Reference(links, links) for links in ({(i, i) for i in range(len(t.split()))} for t in texts)]
    assert error_rate([reference.sure for reference in references], expected) < 0.1
    assert copying.choose_heads(texts, texts, references).rate < 0.15


# ---- files and commands ----------------------------------------------------------------------------------------------


def test_chosen_heads_stay_with_the_model(folder: Path, tmp_path: Path) -> None:
    change_json(folder / "generation_config.json", alignment_heads=[[1, 0, 1], [0, 1, 0]])
    translator = TorchTranslator.from_pretrained(folder)
    assert translator.alignment_heads == [AlignmentHead(1, 0, 1), AlignmentHead(0, 1, 0)]
    translator.model.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text(encoding="utf-8"))
    assert saved["alignment_heads"] == [[1, 0, 1], [0, 1, 0]]
    assert TorchTranslator(translator.model, translator.tokenizer).alignment_heads == translator.alignment_heads


@pytest.mark.parametrize(
    "value", ["last", [], [1, 0, 0], [[2, 0, 0]], [[0, 2, 0]], [[0, 0, 2]], [[0, 0]], [[0, 0.0, 0]]]
)
def test_heads_that_the_model_does_not_have_are_refused(folder: Path, value: object) -> None:
    change_json(folder / "generation_config.json", alignment_heads=value)
    with pytest.raises(
        BrokenFileError, match=r"generation_config.json: alignment_heads is .*layers 0 to 1, heads 0 to 1"
    ):
        Translator.from_pretrained(folder)


def test_chosen_heads_are_recorded_beside_the_other_settings(folder: Path, tmp_path: Path, capfd) -> None:
    lines = {"source": ENGLISH, "target": GERMAN, "links": ["0-0 1-1 2-2 3p3"] * len(ENGLISH)}
    for name, content in lines.items():
        (tmp_path / name).write_text("\n".join(content) + "\n", encoding="utf-8")
    path = folder / "generation_config.json"
    before = json.loads(path.read_text(encoding="utf-8"))
    arguments = [str(folder), "--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    main(["choose-heads", *arguments, "--reference", str(tmp_path / "links")])
    rates = re.findall(
        r"^layer \d head \d, (?:predicting|reading) the word: error rate (.*)$", capfd.readouterr().out, re.M
    )
    assert len(rates) == 8 and rates == sorted(rates)
    after = json.loads(path.read_text(encoding="utf-8"))
    assert after.pop("alignment_heads") and after == before
    main(["align", *arguments])
    printed = capfd.readouterr().out.splitlines()
    assert len(printed) == len(ENGLISH) and all(re.fullmatch(r"(\d+-\d+( |$))*", line) for line in printed)
    path.unlink()  # the search must keep its defaults
    search = TorchTranslator.from_pretrained(folder).search
    main(["choose-heads", *arguments, "--reference", str(tmp_path / "links")])
    assert TorchTranslator.from_pretrained(folder).search == search


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0-0"], "has 1 lines, the texts 2"),
        (["0-0", "0-0 x"], "line 2: 'x' is not a link; write SOURCE-TARGET"),
        (["0-0", "2-0"], "line 2: 2-0 names words from 0 to 1 and 0"),
    ],
)
def test_broken_references_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    (tmp_path / "links").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=message):
        read_references(tmp_path / "links", ["a", "a b"], ["a b", "a"])


def test_possible_links_are_read(tmp_path: Path) -> None:
    (tmp_path / "links").write_text("0-0 1p1\n\n")
    assert read_references(tmp_path / "links", ["a b", ""], ["c d", ""]) == [
        Reference({(0, 0)}, {(0, 0), (1, 1)}),
        Reference(set(), set()),
    ]


def test_translate_prints_an_alignment_for_each_line(model_folder: Path, tmp_path: Path, capfd) -> None:
    lines = [text.replace("\n", " ").replace("\r", " ") for text in ODD_TEXTS]
    (tmp_path / "in").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = ["translate", str(model_folder), "--input", str(tmp_path / "in"), "--max-new-tokens", "20"]
    main([*arguments, "--alignments"])
    rows = [row.split("\t") for row in capfd.readouterr().out.split("\n")[:-1]]
    assert [len(row) for row in rows] == [2] * len(lines)
    for line, (text, links) in zip(lines, rows, strict=True):
        pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
        assert all(source < len(line.split()) and target < len(text.split()) for source, target in pairs)
        assert bool(pairs) == bool(line.split())
    main([*arguments, "--alignments", "--n-best", "2"])
    rows = [row.split("\t") for row in capfd.readouterr().out.split("\n")[:-1]]
    assert {len(row) for row in rows} == {4} and {row[0] for row in rows} == {str(i) for i in range(1, len(lines) + 1)}
    main([*arguments, "--alignments", "--scores"])
    assert {len(row.split("\t")) for row in capfd.readouterr().out.split("\n")[:-1]} == {3}


def test_parts_without_alignments_are_not_resumed_with_them(model_folder: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "in").write_text("\n".join([*ENGLISH, "x" * 1000]) + "\n", encoding="utf-8")
    files = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    arguments = ["translate", str(model_folder), *files, "--chunk-lines", "2", "--max-characters", "500"]
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "line 5 has 1,000 characters" in capfd.readouterr().err
    assert [*(tmp_path / "out.parts").glob("part-*")]
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--alignments"])
    assert "alignments was False, is True" in capfd.readouterr().err
