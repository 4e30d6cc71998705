"""model_text.onnx: tokens and texts are those of the package tokenizers, and translations those of model.onnx."""

import contextlib
import dataclasses
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from saved_model import ENGLISH, GERMAN, already_exported, change_json, trained_tokenizer, untrained_model
from searches import session_of
from text_graphs import LETTERS, Halves
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from conversion.onnx.__main__ import main
from conversion.onnx.export import export_single_folder
from conversion.onnx.graph_builder import GraphBuilder
from conversion.onnx.tokenizer import add_tokenizer, load_text_tokenizer
from conversion.onnx.tokenizer.bpe import SPELLING, ByteLevelBPE
from conversion.onnx.verify_text import EDGE_CASES
from vaswani_transformer import SearchSettings
from vaswani_transformer.errors import InputError, ProofError
from vaswani_transformer.onnx_translator import OnnxTranslator, graph_inputs
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER, clean_text, sentence_spans
from vaswani_transformer.tokenization import train_tokenizer

pytestmark = pytest.mark.timeout(1200)  # an export takes 20 seconds of an idle processor, and minutes of a busy one
SYMBOLS = ["<2de>", "<2de", "__NUM__", "⟦1⟧", "{Sd}", "'s'", "日", "a<2", "__"]
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "small letters, single digits": {"lowercase": True, "split_digits": True},
    "symbols": {"symbols": SYMBOLS},
    "symbols in small letters": {"symbols": SYMBOLS, "lowercase": True},
}


def halves_of(folder: Path, tokenizer: PreTrainedTokenizerFast) -> Halves:
    tokenizer.save_pretrained(folder)
    return Halves(folder)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Halves]:
    texts = [*ENGLISH, *GERMAN, "1987 " * 9, "it's we'll 's 1 22 333 日本日本 🙂🙂 a  b   c"] * 2
    tokenizers = {name: train_tokenizer(texts, 310, **changes) for name, changes in CASES.items()}
    return {name: halves_of(tmp_path_factory.mktemp("tokenizer"), tokenizer) for name, tokenizer in tokenizers.items()}


@pytest.mark.parametrize("case", CASES)
def test_tokens_equal_those_of_tokenizers_in_any_batch(halves: dict[str, Halves], case: str) -> None:
    """Covers awkward texts, batches of empty texts, and random texts of the relevant characters."""
    halves[case].check_ids([*EDGE_CASES, *ENGLISH, *GERMAN, "1987, 19871987"])
    assert (len(halves[case].tokenizer.encode("1987").ids) < 5) != CASES[case].get("split_digits", False)
    halves[case].check_ids([""])
    halves[case].check_ids(["", "", ""])
    chance = random.Random(0)
    for longest in (2, 4, 8, 30):
        letters = [*LETTERS, *SYMBOLS, "__num__"]
        texts = ["".join(chance.choices(letters, k=chance.randint(0, longest))) for _ in range(100)]
        halves[case].check_ids(texts)


def test_invalid_bytes_are_replaced_as_in_tokenizers(halves: dict[str, Halves]) -> None:
    """Covers incomplete characters, invalid first bytes, surrogates, and code points beyond Unicode."""
    plain = halves["plain"]
    ids = {byte: cast(int, plain.tokenizer.token_to_id(SPELLING[byte])) for byte in range(256)}
    edges = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF]
    edges += [0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
    plain.check_texts([[ids[a], ids[b]] for a in edges for b in edges])
    chance = random.Random(0)
    for length in (1, 3, 4, 5, 9):
        rows = [
            [chance.choice([ids[chance.choice(edges)]] * 3 + [chance.randrange(plain.size)]) for _ in range(length)]
            for _ in range(200)
        ]
        plain.check_texts(rows)
    assert plain.second.run(None, {"ids": np.zeros((2, 0), np.int64)})[0].tolist() == ["", ""]


@pytest.mark.parametrize(
    ("products", "merges", "in_order"),
    [
        # Two ways to `abc`, and a merge that needs it ranks between them.
        (["bc", "abca", "abc", "ab"], [["b", "c"], ["abc", "a"], ["a", "bc"], ["a", "b"]], False),
        (["aa", "ab", "aaa", "aaaa"], [["a", "a"], ["a", "b"], ["aa", "a"], ["aa", "aa"]], True),
        (["ca", "abc", "ab", "aa"], [["a", "a"], ["a", "b"], ["ab", "c"], ["c", "a"]], True),
    ],
)
def test_merges_follow_rank_then_position(
    tmp_path: Path, products: list[str], merges: list[list[str]], in_order: bool
) -> None:
    content = json.loads(trained_tokenizer().backend_tokenizer.to_str())
    spellings = ["<s>", "<pad>", "</s>", "<unk>", *SPELLING.values(), *products]
    content["model"]["vocab"] = {spelling: id for id, spelling in enumerate(spellings)}
    content["model"]["merges"] = merges
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        pad_token="<pad>",
        eos_token="</s>",
        split_special_tokens=True,
    )
    halves = halves_of(tmp_path, tokenizer)
    assert ByteLevelBPE.read(tmp_path).is_in_order() == in_order
    halves.check_ids(["abcabc", "abcabcabc", "aabcbcabca", "ababc", "a" * 30, "aaa aaaab"])
    chance = random.Random(0)
    for letters in ("abc", "aab", "aa "):
        halves.check_ids(["".join(chance.choices(letters, k=chance.randint(1, 14))) for _ in range(300)])


def test_contractions_are_separate_words(tmp_path: Path) -> None:
    forms = ["'s", "'t", "'m", "'d", "'re", "'ve", "'ll"]
    tokenizer = train_tokenizer([f"x{form} x{form}y" for form in forms] * 9, 271)
    halves_of(tmp_path, tokenizer).check_ids([f"x{form} x{form}y '{form}" for form in forms])
    assert all(len(tokenizer(form)["input_ids"]) == 2 for form in forms)


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
RUNS_OF_DIGITS = {"type": "Digits", "individual_digits": False}
# A change of tokenizer.json or tokenizer_config.json, and its name in the error.
UNSUPPORTED: list[tuple[list[str], Any, str]] = [
    (["normalizer"], {"type": "NFKC"}, "normalizer NFKC"),
    (
        ["normalizer", "normalizers"],
        [{"type": "Strip", "strip_left": True, "strip_right": True}],
        "normalizer Sequence",
    ),
    (["model"], {"type": "WordLevel", "vocab": {}}, "model WordLevel"),
    (["model", "dropout"], 0.1, "model.dropout 0.1"),
    (["model", "unk_token"], "<unk>", 'model.unk_token "<unk>"'),
    (["model", "continuing_subword_prefix"], "##", 'model.continuing_subword_prefix "##"'),
    (["model", "end_of_word_suffix"], "</w>", 'model.end_of_word_suffix "</w>"'),
    (["model", "byte_fallback"], True, "model.byte_fallback true"),
    (["model", "ignore_merges"], True, "model.ignore_merges true"),
    (["model", "vocab"], {"a": 0}, "without 255 of the 256 bytes"),
    (["pre_tokenizer"], BYTE_LEVEL | {"add_prefix_space": True}, "pre_tokenizer"),
    (["pre_tokenizer", "use_regex"], False, "pre_tokenizer"),
    (["pre_tokenizer"], {"type": "Sequence", "pretokenizers": [RUNS_OF_DIGITS, BYTE_LEVEL]}, "pre_tokenizer"),
    (["decoder"], {"type": "Metaspace"}, "decoder Metaspace"),
    (["post_processor"], None, "post_processor"),
    (["post_processor", "special_tokens", "</s>", "ids"], [2, 2], "post_processor"),
    (["added_tokens"], [{"id": 2, "content": "zz", "special": False, "lstrip": True}], "'zz' with lstrip"),
    (["added_tokens"], [{"id": 2, "content": "zz", "special": False, "rstrip": True}], "'zz' with rstrip"),
    (["split_special_tokens"], False, "split_special_tokens"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an untrained model."""
    untrained_model().save_pretrained(tmp_path / "model")
    trained_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("keys", "value", "named"), UNSUPPORTED, ids=str)
def test_unsupported_tokenizers_are_refused_by_name(folder: Path, keys: list[str], value: Any, named: str) -> None:
    load_text_tokenizer(folder)
    path = folder / ("tokenizer_config.json" if keys == ["split_special_tokens"] else "tokenizer.json")
    part = content = json.loads(path.read_text())
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="tokenizer.json: --text needs ") as error:
        load_text_tokenizer(folder)
    assert named in str(error.value)


def test_a_sequence_of_one_step_equals_the_step(folder: Path) -> None:
    expected, path = ByteLevelBPE.read(folder), folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [content["pre_tokenizer"]]}
    path.write_text(json.dumps(content))
    assert ByteLevelBPE.read(folder) == expected


def test_an_unsupported_tokenizer_is_a_one_line_error_before_the_export(folder: Path, refused: Any) -> None:
    change_json(folder / "tokenizer.json", pre_tokenizer=None)
    error = refused(main, [folder, folder.parent / "out", "--text"])
    assert "--text needs a byte-level BPE" in error and "pre_tokenizer null" in error and error.count("\n") == 1
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def echo() -> onnx.ModelProto:
    """The single graph's inputs and outputs; the translation is the source, its score the number of its tokens."""
    op = GraphBuilder("echo.")
    op.Unsqueeze("input_ids", [1], name="sequences")
    op.Cast(op.ReduceSum("attention_mask", [1]), to=TensorProto.FLOAT, name="scores")
    settings = graph_inputs(SearchSettings(1, 0.6), repetition=True)
    defaults = [numpy_helper.from_array(value, name) for name, value in settings.items()]
    inputs = [helper.make_tensor_value_info(name, 7, ["batch", "source"]) for name in ("input_ids", "attention_mask")]
    inputs += [helper.make_tensor_value_info(value.name, value.data_type, []) for value in defaults]
    kinds = {"sequences": TensorProto.INT64, "scores": TensorProto.FLOAT}
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    return op.model("echo", inputs, outputs, defaults)


def test_text_survives_a_search_that_copies_its_source(folder: Path) -> None:
    """Byte-level BPE loses nothing of a cleaned text, with both halves around a graph that changes no id."""
    complete = add_tokenizer(echo(), load_text_tokenizer(folder), untrained_model())
    onnx.checker.check_model(complete)
    session = session_of(complete)
    assert [value.name for value in session.get_inputs()] == ["text"]
    optional = [value.name for value in session.get_overridable_initializers()]
    assert sorted(optional) == sorted(set(vars(SearchSettings())) - {"num_return_sequences"})
    texts = [*EDGE_CASES, *ENGLISH, *GERMAN]
    translations, scores = session.run(["translations", "scores"], {"text": np.array(texts, object)})
    blank = [not any(letter.isalnum() for letter in text) for text in texts]
    expected = [text if is_blank else clean_text(text) for text, is_blank in zip(texts, blank, strict=True)]
    assert translations.tolist() == expected
    lengths = [len(row) for row in trained_tokenizer()(texts)["input_ids"]]
    assert scores.tolist() == [0 if empty else length for length, empty in zip(lengths, blank, strict=True)]


def test_translations_have_the_words_of_the_target_vocabulary(folder: Path) -> None:
    """The graph around the tokenizers changes no id."""
    train_tokenizer(GERMAN * 9, 300).save_pretrained(folder / TARGET_TOKENIZER)
    session = session_of(add_tokenizer(echo(), load_text_tokenizer(folder), untrained_model()))
    target = Tokenizer.from_file(str(folder / TARGET_TOKENIZER / "tokenizer.json"))
    expected = target.decode_batch(trained_tokenizer()(ENGLISH)["input_ids"])
    assert session.run(["translations"], {"text": np.array(ENGLISH, object)})[0].tolist() == expected != ENGLISH


# ---- with a search ---------------------------------------------------------------------------------------------


def translated(folder: Path, texts: list[str], **settings: Any) -> tuple[list[str], list[float]]:
    session = session_of(str(folder / "model_text.onnx"))
    changed = {name: value for name, value in graph_inputs(SearchSettings(**settings)).items() if name in settings}
    inputs = changed | {"text": np.array(texts, object)}
    translations, scores = session.run(["translations", "scores"], inputs)
    return translations.tolist(), scores.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int8-weights"])
def test_both_files_give_the_same_translations(exported: Path, tmp_path: Path, precision: str) -> None:
    """Uses other settings than the check of the export, and checks that weights are stored once."""
    out, sentences = tmp_path / "out", tmp_path / "sentences.txt"
    sentences.write_text("\n".join([*ENGLISH, "", *GERMAN]), encoding="utf-8")
    with contextlib.nullcontext() if precision == "fp16" else already_exported(exported / "onnx"):
        report = export_single_folder(exported / "model", out, precision, text=True, sentences=sentences)
    assert f"{len(EDGE_CASES) + 9} texts by model_text.onnx" in report
    texts = [*ENGLISH, *(text[start:stop] for text in EDGE_CASES for start, stop in sentence_spans(text)), *GERMAN]
    reference = OnnxTranslator.from_pretrained(out)
    for beams, alpha in ((1, 0.6), (2, 2.0), (4, 0.6)):
        translations, scores = translated(out, texts, num_beams=beams, length_penalty=alpha)
        settings = {"num_beams": beams, "length_penalty": alpha, "split_sentences": False}
        rows = reference.find_hypotheses(texts, **settings)
        assert translations == [row[0].text for row in rows]
        assert scores == pytest.approx([row[0].score for row in rows], abs=1e-5)
    shortest, _ = translated(out, ENGLISH, max_new_tokens=3)
    assert all(reference.tokenizer.encode(text).ids[:-1][3:] == [] for text in shortest)
    longer = (out / "model_text.onnx").stat().st_size - (out / "model.onnx").stat().st_size
    assert 0 < longer < 200_000


@pytest.mark.slow
def test_the_code_in_the_text_readme_runs(exported: Path, tmp_path: Path) -> None:
    """It runs with onnxruntime and numpy, and without this package."""
    out = tmp_path / "out"
    with already_exported(exported / "onnx"):
        main([str(exported / "model"), str(out), "--text"])
    (*_, example) = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    ending = "import sys; assert not {'torch', 'tokenizers', 'transformers', 'vaswani_transformer'} & set(sys.modules)"
    words = [sys.executable, "-I", "-c", example + ending]
    done = subprocess.run(words, cwd=out, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    (expected,) = OnnxTranslator.from_pretrained(out).translate("The house is small. Hello!\n\n---\n\nGoodbye.")
    assert done.stdout == f"{expected}\n"


@pytest.mark.slow
def test_an_export_with_wrong_texts_leaves_no_files(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer is lowercase, and the graph keeps capitals."""
    folder = shutil.copytree(exported / "model", tmp_path / "model")
    train_tokenizer([*ENGLISH, *GERMAN], 300, lowercase=True).save_pretrained(folder)
    read = ByteLevelBPE.read
    monkeypatch.setattr(ByteLevelBPE, "read", lambda folder: dataclasses.replace(read(folder), lowercase=False))
    wrong = pytest.raises(ProofError, match="texts differ, the first: 'The house is small.'")
    with already_exported(exported / "onnx"), wrong:
        export_single_folder(folder, tmp_path / "out", text=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("changes", [{}, {"lowercase": True, "split_digits": True}], ids=str)
def test_every_unicode_character_has_the_tokens_of_tokenizers(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Each stands between a letter and a number, after one space, and between two spaces and a full stop."""
    halves = halves_of(tmp_path, train_tokenizer([*ENGLISH, *GERMAN], 300, **changes))
    characters = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]
    texts = [
        " ".join(f"a{character}1 {character}  {character}." for character in characters[first : first + 40])
        for first in range(0, len(characters), 40)
    ]
    for first in range(0, len(texts), 64):
        halves.check_ids(texts[first : first + 64])
