"""Models with several target languages: the language token of a text stands in front of each of its sentences."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from browser import node
from conftest import read_rows, write_lines
from golden import Golden, converted, opus_folder
from saved_model import ENGLISH, GERMAN, SIZES
from tiny_models import make_lively
from tokenizers import Tokenizer

from conversion.__main__ import main as convert
from conversion.segmentation import build_bpe_tokenizer, build_word_tokenizer
from conversion.vocabulary import Vocabulary
from training.scores import scores
from vaswani_transformer import Translator
from vaswani_transformer.cli import main
from vaswani_transformer.errors import InputError
from vaswani_transformer.sentences_vaswani_transformer import LanguageTokens, clean_text, split_text
from vaswani_transformer.tokenization import train_tokenizer

SYMBOLS = ["<2de>", "<2fr>", "__bel_Latn__"]
# What toolkits write, and the language that it names.
SPELLINGS = {
    ">>deu<<": "deu", ">>bel_Latn<<": "bel_Latn", ">>zh-CN<<": "zh-CN", "<2de>": "de", "<2zh-Hant>": "zh-Hant",
    "__de__": "de", "__zh_CN__": "zh_CN", "[de_DE]": "de_DE", "de_DE": "de_DE", "deu_Latn": "deu_Latn",
}  # fmt: skip
OTHERS = ["<br>", "<unk>", "__NUM__", "{name}", "DE", "de", "snake_case", ">>", "<2>", "⟦1⟧"]
TWO = "The house is small. The cat is cold."


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(GERMAN + ENGLISH, SIZES["vocab_size"], symbols=SYMBOLS)


@pytest.fixture(scope="module")
def multilingual(tokenizer, tmp_path_factory) -> Path:
    """The folder of a model that translates differently for each token."""
    folder = tmp_path_factory.mktemp("multilingual")
    model = make_lively(1, vocab_size=SIZES["vocab_size"])
    model.generation_config.update(num_beams=2, max_new_tokens=12)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def translator(multilingual) -> Any:
    return Translator.from_pretrained(multilingual, device="cpu")


def pieces(tokenizer: Any, text: str, language: str | None = None) -> list[tuple[str, str]]:
    """Return what is copied in front of each sentence, and its tokens as text."""

    def encode(part: str) -> tuple[list[int], list[int]]:
        found = tokenizer(part, return_offsets_mapping=True)
        return found["input_ids"], [start for start, _ in found["offset_mapping"]]

    languages = LanguageTokens(tokenizer.backend_tokenizer)
    cut = split_text(text, 60, encode, True, clean_text, languages, language)
    return [(piece.copied, tokenizer.decode(piece.ids, skip_special_tokens=True)) for piece in cut]


def test_language_tokens_are_recognised_as_toolkits_write_them():
    tokenizer = train_tokenizer(GERMAN + ENGLISH, 300, symbols=[*SPELLINGS, *OTHERS[:1], *OTHERS[2:4], *OTHERS[6:]])
    languages = LanguageTokens(tokenizer.backend_tokenizer)
    assert dict(zip(languages.tokens, languages.names, strict=True)) == SPELLINGS
    for token, name in SPELLINGS.items():
        assert languages.find(token) == token and languages.find(name) in SPELLINGS


@pytest.mark.parametrize(
    ("tokens", "language", "found"),
    [
        ([">>deu<<", ">>fra<<"], "fr", 1),
        ([">>deu<<", ">>fra<<"], "French", 1),
        ([">>de<<", ">>fr<<"], "fra", 1),
        ([">>fr_BE<<", ">>fr<<"], "fr", 1),
        ([">>fr_BE<<", ">>fr<<"], "fr-BE", 0),
        (["__ro__", "__mo__"], "ron", 0),
        ([">>zho_Hans<<", ">>zho_Hant<<"], "zh", 0),
        ([">>zho_Hans<<", ">>zho_Hant<<"], "zh-Hant", 1),
        ([">>zho_Hans<<", ">>zho_Hant<<"], "zh-TW", None),
        ([">>deu<<", ">>nld<<"], "", None),
    ],
)
def test_a_language_is_found_by_each_of_its_codes(tokens, language, found):
    languages = LanguageTokens(train_tokenizer(GERMAN + ENGLISH, 300, symbols=tokens).backend_tokenizer)
    if found is None:
        with pytest.raises(ValueError, match=f"target_language is '{language}'; the model has {languages.names[0]}, "):
            languages.find(language)
    else:
        assert languages.find(language) == tokens[found]


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("<2de> One. Two.", None, [("", "<2de> One."), (" ", "<2de> Two.")]),
        ("One. Two.", "fr", [("", "<2fr> One."), (" ", "<2fr> Two.")]),
        ("One. Two.", "<2fr>", [("", "<2fr> One."), (" ", "<2fr> Two.")]),
        ("<2de>One. Two.", "fr", [("", "<2de>One."), (" ", "<2de>Two.")]),
        (
            "  <2de> One.\n\n<2fr>  - Two. Six\n",
            None,
            [("  ", "<2de> One."), ("\n\n- ", "<2fr> Two."), (" ", "<2fr> Six"), ("\n", "")],
        ),
        ("One.\n__bel_Latn__ Two.", "de", [("", "<2de> One."), ("\n", "__bel_Latn__ Two.")]),
        ("See <2de> here.", "fr", [("", "<2fr> See <2de> here.")]),
        ("One. Two.", "", [("", "One."), (" ", "Two.")]),
        ("* * *\n", None, [("* * *\n", "")]),
        ("<2de>", None, [("", "")]),
        ("", None, [("", "")]),
    ],
)  # fmt: skip
def test_the_token_of_a_text_is_in_front_of_every_sentence(tokenizer, text, language, expected):
    assert pieces(tokenizer, text, language) == expected


def test_the_static_page_takes_tokens_alike():
    languages = LanguageTokens(train_tokenizer(GERMAN + ENGLISH, 300, symbols=[*SPELLINGS, "<br>"]).backend_tokenizer)
    lines = [
        "<2de> One.",
        "  <2de>One.",
        "__de__  One",
        "One.",
        ">>deu<<",
        "",
        "<2d> x",
        "[de_DE] x",
        "de_DE x",
        "See <2de>",
    ]
    expected = [[list(reversed(part)) for part in languages.split(line, "<2fr> ")][-1] for line in lines]
    page = Path(__file__).parents[1] / "hub" / "space-static" / "sentences.js"
    script = f"""
import {{ languageTokens, takeLanguage }} from {json.dumps(page.as_uri())};
const tokens = languageTokens({json.dumps([*SPELLINGS, *OTHERS])});
const taken = {json.dumps(lines)}.map((line) => takeLanguage(line, tokens, "<2fr>"));
console.log(JSON.stringify([tokens, taken.map(({{ prefix, rest }}) => [prefix, rest])]));"""
    done = node("--input-type=module", "-e", script)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [list(SPELLINGS), expected]


def test_the_token_counts_in_the_limit_of_a_sentence(translator):
    text = "<2de> " + "small house " * 20
    cut = split_text(text, 10, translator._encode, True, clean_text, translator.languages)
    ids = [piece.ids for piece in cut if piece.ids]
    token = translator.tokenizer.convert_tokens_to_ids("<2de>")
    assert len(ids) > 3 and all(row[0] == token and row.count(token) == 1 and len(row) <= 10 for row in ids)


def test_every_way_of_giving_the_language_translates_alike(translator, multilingual):
    """Translator and pipeline, with the token in the text or given apart; whole texts are their sentences, joined."""
    pipeline: Any = transformers.pipeline
    piped = pipeline("translation", model=str(multilingual), device="cpu")
    found = {}
    for token, language in zip(SYMBOLS, ("German", "fra", "be_Latn"), strict=True):
        parts = translator.translate([f"{token} {part}" for part in TWO.split(" The ")], split_sentences=False)
        assert parts[0] == translator.translate("The house is small.", target_language=language)[0]
        expected = translator.translate(TWO, target_language=language)
        assert translator.translate([f"{token} {TWO}"]) == translator.translate(TWO, target_language=token) == expected
        sentences = [f"{token} The house is small.", f"{token} The cat is cold."]
        assert " ".join(translator.translate(sentences)) == expected[0]
        for arguments in ({"target_language": language}, {"tgt_lang": token}):
            assert piped(TWO, **arguments)[0]["translation_text"] == expected[0]
        assert piped(f"{token} {TWO}")[0]["translation_text"] == expected[0]
        source = translator.score([sentences[0]], ["Das Haus."])
        assert translator.score(["The house is small."], ["Das Haus."], target_language=language) == source
        found[token] = expected[0]
    assert len(set(found.values())) > 1, "the model ignores the token"
    fixed = pipeline("translation", model=str(multilingual), device="cpu", target_language="fr")
    assert fixed(TWO)[0]["translation_text"] == found["<2fr>"]


@pytest.mark.slow
def test_onnx_files_take_the_language_as_text_and_as_ids(multilingual, translator, tokenizer, tmp_path):
    main(["export", "onnx", str(multilingual), str(tmp_path / "onnx"), "--text"])
    expected = translator.translate(TWO, target_language="fr")
    onnx = Translator.from_pretrained(tmp_path / "onnx", backend="onnx", device="cpu")
    assert onnx.translate(TWO, target_language="fr") == onnx.translate(f"<2fr> {TWO}") == expected
    with pytest.raises(InputError, match="text 1 has no language token"):
        onnx.translate(TWO)
    import onnxruntime

    sentences = [f"<2fr> {part}" for part in ("The house is small.", "The cat is cold.")]
    session: Any = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model_text.onnx"))
    assert " ".join(session.run(["translations"], {"text": np.array(sentences, object)})[0]) == expected[0]
    bare = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    ids = np.array([bare.encode(sentences[0]).ids])
    assert ids[0, 0] == tokenizer.convert_tokens_to_ids("<2fr>")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    sequences = session.run(["sequences"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    assert bare.decode(sequences[0, 0]) == translator.translate(sentences[:1])[0]
    page = (tmp_path / "onnx" / "README.md").read_text(encoding="utf-8")
    assert 'tokenizer.encode("<2de> The house is small.")' in page and "<2fr>" in page


def test_a_missing_or_unknown_language_is_an_error_that_lists_them(translator, multilingual):
    pipeline: Any = transformers.pipeline
    piped = pipeline("translation", model=str(multilingual), device="cpu")
    listed = "no language token, which this model needs: begin it with <2de>, <2fr>, __bel_Latn__, or give --target"
    for call, named in (
        (lambda: translator.translate(["<2de> a", "b"]), "^text 2 has "),
        (lambda: translator.score(["b"], ["a"]), "^source 1 has "),
        (lambda: piped(["b"]), "^the text 'b' has "),
    ):
        with pytest.raises(ValueError, match=named + listed):
            call()
    for call in (translator.translate, piped):
        with pytest.raises(ValueError, match="target_language is 'es'; the model has de, fr, bel_Latn"):
            call("b", target_language="es")
    assert translator.translate(["* * *", ""]) == ["* * *", ""]  # nothing to translate
    without, tagged = (pieces(translator.tokenizer, "b", language) for language in ("", "de"))
    assert (without, tagged) == ([("", "b")], [("", "<2de> b")]) and translator.translate("b", target_language="")


def test_a_model_without_language_tokens_takes_no_language(model_folder):
    with pytest.raises(InputError, match="target_language is 'de', but the model has one target language; leave it"):
        Translator.from_pretrained(model_folder, device="cpu").translate("a", target_language="de")


def test_commands_take_the_language(multilingual, translator, tmp_path, capsys, refused):
    text = write_lines(tmp_path / "text.en", ["<2de> The cat is cold.", TWO])
    expected = [*translator.translate("<2de> The cat is cold."), *translator.translate(TWO, target_language="fr")]
    options = [str(multilingual), "--device", "cpu"]
    capsys.readouterr()
    main(["translate", *options, "--input", str(text), "--target-language", "fr"])
    assert capsys.readouterr().out.splitlines() == expected
    line = refused(main, ["translate", *options, "--input", text, "--chunk-lines", "1"], 2, f"{expected[0]}\n")
    assert line.startswith("error: line 2 has no language token, which this model needs: begin it with <2de>, ")
    words = ["--source", str(text), "--target", str(text), "--target-language", "fr"]
    main(["score", *options, *words])
    for language in ("fr", "de"):
        words = ["--source", str(text), "--reference", str(text), "--record", str(tmp_path / "results.csv")]
        main(["evaluate", *options, *words, "--target-language", {"fr": "French"}.get(language, language)])
        assert f"text to {language}, beam 2" in capsys.readouterr().out
    assert [row["test"] for row in read_rows(tmp_path / "results.csv")] == ["text to fr", "text to de"]
    picture = str(tmp_path / "plot.png")
    main(["plot", "attention", options[0], "--source", "cat", "--target-language", "fr", "--output", picture])
    assert refused(main, ["plot", "attention", options[0], "--source", "cat", "--output", picture])
    capsys.readouterr()
    main(["doctor", options[0]])
    assert "needs a language token (--target-language): de, fr, bel_Latn" in capsys.readouterr().out
    (multilingual / "README.md").write_text("---\nlanguage: [en, no]\n---\n")
    main(["doctor", options[0]])
    assert "translates from en to no, as its files record" in capsys.readouterr().out


def test_a_score_is_tokenised_by_the_rules_of_the_target_language(multilingual, tmp_path, capsys):
    """Of three tokens for Moses, `l ' homme`, French and English have two."""
    source = write_lines(tmp_path / "source", [TWO])
    for language, code, other in (("de", "de", "en"), ("<2fr>", "fr", "de")):
        options = [str(multilingual), "--device", "cpu", "--target-language", language]
        main(["translate", *options, "--input", str(source), "--no-split-sentences"])
        translations = capsys.readouterr().out.splitlines()
        references = [f"l'homme {line}" for line in translations]
        texts = ["--source", str(source), "--reference", str(write_lines(tmp_path / "reference", references))]
        main(["evaluate", *options, *texts, "--json"])
        found = json.loads(capsys.readouterr().out)["bleu_tokenised"]
        assert found == scores(translations, references, language=code)["bleu_tokenised"]
        assert found != scores(translations, references, language=other)["bleu_tokenised"]


@pytest.mark.parametrize("token", [">>bel_Latn<<", "<2de>", "__de__", "de_DE", "[de_DE]"])
@pytest.mark.parametrize("kind", ["words", "pieces"])
def test_converted_tokenizers_keep_language_tokens_whole(kind, token):
    words = ["<s>", "<pad>", "</s>", "<unk>", *(["lo@@", "w", token] if kind == "pieces" else ["lo", "w", token])]
    vocabulary = Vocabulary(words, words, eos=2, unknown=3, bos=0, pad=1, start=0)
    if kind == "words":
        tokenizer = build_word_tokenizer(vocabulary, "source")
    else:
        tokenizer = build_bpe_tokenizer(vocabulary, "source", [("l", "o"), ("w", "</w>")])
    for text in (f"{token} lo w", f"{token}lo w"):
        assert tokenizer.encode(text).ids[0] == words.index(token) and tokenizer.encode(text).ids[-1] == 2
    assert LanguageTokens(tokenizer).tokens == [token]


@pytest.mark.parametrize("two_vocabularies", [False, True])
def test_models_of_opus_mt_have_their_languages(two_vocabularies, tmp_path):
    folder = opus_folder(tmp_path / "theirs", [">>bel_Latn<<", ">>deu<<"], two_vocabularies)
    convert([str(folder), str(tmp_path / "ours")])
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    assert translator.languages.names == ["bel_Latn", "deu"]
    source = Golden(folder, tmp_path / "ours").texts[0][0]
    assert translator.translate(source, target_language="deu") == translator.translate(f">>deu<< {source}")


def test_models_without_such_tokens_have_none():
    for name in ("hf-marian", "fairseq"):
        assert LanguageTokens(converted(name).tokenizer().backend_tokenizer).tokens == []
