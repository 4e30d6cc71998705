"""model_text.onnx of models with SentencePiece tokenizers, OPUS-MT above all: tokens and texts are the library's."""

import functools
import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from browser import NODE_MODULES, in_node
from conftest import one_fast_in
from golden import SHARED, converted, golden, opus_folder, train_sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from saved_model import ENGLISH, GERMAN
from text_graphs import LETTERS, Halves, session_with

from conversion.__main__ import main as convert
from conversion.onnx.__main__ import main as export
from conversion.onnx.graph_builder import GraphBuilder
from conversion.onnx.tokenizer import load_text_tokenizer
from conversion.onnx.tokenizer.trie import build_sparse_table, build_trie
from conversion.onnx.verify_text import EDGE_CASES
from conversion.sentencepiece_model import NORMAL, USER_DEFINED, SentencePieceModel
from conversion.vocabulary import Vocabulary
from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError
from vaswani_transformer.sentences_vaswani_transformer import sentence_spans

pytestmark = pytest.mark.timeout(1200)  # an export takes 20 seconds of an idle processor, and minutes of a busy one
CODES = [">>deu<<", ">>de<<", ">>nld<<"]
KINDS = ["pair", "language tokens", "two vocabularies", "normalised", "trained"]
# Letters around marks, in graphemes of all lengths; what NFKC replaces; parts of tokens.
PARTS = [
    *LETTERS,
    *(
        "e\u0301",
        "e\u0301\u0323",
        "A\u030a\u0301",
        "\u212b\u0301",
        "\u0344",
        "½\ufe0f",
        "か\u3099",
        "क\u093c",
        "ᄒ",
        "ᅡ",
    ),
    *("™", "ﬁ", "Ａ", "ﷺ", "…", "\u0600", "\u3000", "\r\n", "  ", "ö", "ß", "“", "▁", "<", ">"),
    *("</s>", "<unk>", "<pad>", "<s>", ">>", "<<", ">>deu<<", ">>nld<< ", ">>de<<\u2003", "<br>"),
]


def save_tokenizer(folder: Path, model: SentencePieceModel, target: SentencePieceModel, codes: list[str]) -> None:
    """Save the tokenizer of a SentencePiece model in a joint vocabulary with that of another one."""
    own = [piece for piece, *_ in (*model.pieces, *target.pieces) if piece not in ("<s>", "</s>", "<unk>")]
    tokens = list(dict.fromkeys(["</s>", "<unk>", "<pad>", *codes, *own]))
    vocabulary = Vocabulary(tokens, tokens, eos=0, unknown=1, pad=2)
    vocabulary.tokenizers["source"] = model.build_tokenizer(vocabulary, "source")
    vocabulary.wrap_tokenizer("source").save_pretrained(folder)


def make_folder(kind: str, folder: Path) -> Path:
    if kind in ("pair", "normalised"):
        return converted({"pair": "hf-marian", "normalised": "marian-spm"}[kind]).folder
    if kind != "trained":
        two = kind == "two vocabularies"
        convert([str(opus_folder(folder / "theirs", [] if two else CODES, two)), str(folder / "model")])
        return folder / "model"
    models: list[SentencePieceModel] = []
    for side, texts in (("source", ENGLISH), ("target", GERMAN)):
        options = {"vocab_size": 90, "hard_vocab_limit": False, "user_defined_symbols": ["<br>", "small"]}
        train_sentencepiece(texts * 20, folder / f"{side}.spm", **options)
        models.append(SentencePieceModel.read(folder / f"{side}.spm"))
    save_tokenizer(folder / "model", models[0], models[1], CODES)
    return folder / "model"


@functools.cache
def normalised() -> Halves:
    """A tokenizer with SentencePiece's own normalisation, nmt_nfkc."""
    return Halves(make_folder("normalised", Path()))


@pytest.fixture(scope="module", params=one_fast_in(3, KINDS))
def halves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Halves:
    return Halves(make_folder(request.param, tmp_path_factory.mktemp("sentencepiece")))


def test_tokens_equal_those_of_tokenizers_in_any_batch(halves: Halves) -> None:
    """Covers awkward texts, batches of empty texts, and random texts of the relevant characters."""
    texts = [*EDGE_CASES, *ENGLISH, *GERMAN, *PARTS]
    halves.check_ids([*texts, *(f"{code} {text}" for code in CODES for text in texts)])
    halves.check_ids([""])
    halves.check_ids(["", "", ""])
    chance = random.Random(0)
    for longest in (2, 4, 8, 30):
        halves.check_ids(["".join(chance.choices(PARTS, k=chance.randint(0, longest))) for _ in range(200)])
    own = [piece.replace("▁", " ") for piece in sorted(halves.tokenizer.get_vocab())]
    halves.check_ids(["".join(chance.choices(own, k=chance.randint(1, 9))) for _ in range(200)])


def test_texts_equal_those_of_tokenizers(halves: Halves) -> None:
    chance = random.Random(0)
    for length in (1, 2, 7):
        halves.check_texts([[chance.randrange(halves.size) for _ in range(length)] for _ in range(300)])
    halves.check_texts([[0] * 3, [1] * 3])


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=4))
def test_any_text_has_the_tokens_of_tokenizers(texts: list[str]) -> None:
    normalised().check_ids(texts)


@pytest.mark.slow
def test_real_texts_have_the_tokens_of_tokenizers(halves: Halves) -> None:
    files = sorted((SHARED.parent / "data").glob("*/test*.gz"))
    if not files:
        pytest.skip("the developers' corpora are not here")
    for file in files:
        lines = gzip.decompress(file.read_bytes()).decode().split("\n")[:200]
        for first in range(0, len(lines), 32):
            halves.check_ids(lines[first : first + 32])


@pytest.mark.slow
def test_every_character_has_the_tokens_of_tokenizers() -> None:
    """Each stands between two letters, before and after an accent, and after a space."""
    characters = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]
    texts = [
        " ".join(f"a{character}b {character}\u0301e\u0301{character}." for character in characters[first : first + 10])
        for first in range(0, len(characters), 10)
    ]
    for first in range(0, len(texts), 256):
        normalised().check_ids(texts[first : first + 256])


SCORES = {
    "float32": {"▁": -2.0, "a": -1.0, "b": -1.5, "aa": -2.0, "ab": -2.5, "▁a": -3.0, "aab": -3.0, "b▁a": -3.5},
    "float64": {"▁": -0.1, "a": -1.1, "b": -0.3, "aa": -2.2, "ab": -1.4, "▁ab": -1.5, "aab": -2.5, "bab": -1.7},
    "a piece of many words": {"▁": -1.0, "a": -1.0, "b": -1.0, "a▁b▁a": -0.5, "▁b▁a▁b▁a▁b": -0.25},
    "symbols": {"▁": -1.0, "a": -3.0, "b": -3.5, "ab": -2.0, "ba": -2.5},
}


@pytest.mark.parametrize("name", one_fast_in(2, SCORES))
def test_equally_good_pieces_are_chosen_as_in_tokenizers(name: str, tmp_path: Path) -> None:
    """Scores that tie in many ways, at the ends of words and inside them, and runs of unknown characters."""
    pieces = [(piece, score, NORMAL) for piece, score in SCORES[name].items()]
    if name == "symbols":
        pieces.append(("bb", 0.0, USER_DEFINED))
    model = SentencePieceModel(tmp_path / "spm.model", pieces)
    save_tokenizer(tmp_path, model, SentencePieceModel(tmp_path / "spm.model", [("é", -1.0, NORMAL)]), [])
    halves = Halves(tmp_path)
    chance = random.Random(0)
    for letters in ("ab", "aab  ", "a b", "abéz ", "aaz"):
        halves.check_ids(["".join(chance.choices(letters, k=chance.randint(1, 14))) for _ in range(300)])


def test_a_table_has_its_entries_and_no_others() -> None:
    chance = random.Random(0)
    keys = {(chance.randrange(30) ** 2 // 30, chance.randrange(50) ** 2 // 50) for _ in range(400)}
    entries = {key: number for number, key in enumerate(sorted(keys))}
    op = GraphBuilder("table.")
    value, exists = build_sparse_table(entries, 30, 50).look_up(op, "row", "column")
    inputs = {name: (TensorProto.INT32, ["n"]) for name in ("row", "column")}
    session = session_with(op, inputs, {"value": (value, TensorProto.INT32), "exists": (exists, TensorProto.BOOL)})
    rows, columns = (grid.reshape(-1) for grid in np.mgrid[:30, :50].astype(np.int32))
    values, found = session.run(None, {"row": rows, "column": columns})
    expected = [entries.get((row, column)) for row, column in zip(rows.tolist(), columns.tolist(), strict=True)]
    assert [value if is_found else None for value, is_found in zip(values, found, strict=True)] == expected


def test_the_longest_string_is_found_at_each_character() -> None:
    op = GraphBuilder("trie.")
    text = "aabcabcd"
    length, number = build_trie([("a", 3), ("abc", 5), ("bc", 7), ("abcd!", 9)]).find_longest(op, "codes", "is_text")
    inputs = {"codes": (TensorProto.INT32, ["n"]), "is_text": (TensorProto.BOOL, ["n"])}
    outputs: dict[str, tuple[str, int]] = {
        "lengths": (length, TensorProto.INT64),
        "numbers": (number, TensorProto.INT32),
    }
    codes, is_text = np.array([ord(letter) for letter in text], np.int32), np.arange(len(text)) != 5
    lengths, numbers = session_with(op, inputs, outputs).run(None, {"codes": codes, "is_text": is_text})
    assert lengths.tolist() == [1, 3, 2, 0, 1, 0, 0, 0]
    assert [number for number, length in zip(numbers, lengths, strict=True) if length] == [3, 5, 7, 3]


# A change of tokenizer.json or tokenizer_config.json, and its name in the error.
TOKEN = {"id": 0, "content": ">>deu<<", "special": False, "normalized": False, "rstrip": True}
UNSUPPORTED: list[tuple[list[str], Any, str]] = [
    (["normalizer"], None, "normalizer without ▁"),
    (["normalizer"], {"type": "NFKC"}, 'normalizer {"type": "NFKC"}'),
    (["pre_tokenizer"], {"type": "Metaspace", "replacement": "▁"}, 'pre_tokenizer {"type": "Metaspace"'),
    (["pre_tokenizer", "behavior"], "Removed", "pre_tokenizer"),
    (["pre_tokenizer", "pattern"], {"Regex": "a|b"}, "pre_tokenizer"),
    (["model", "byte_fallback"], True, "model.byte_fallback true"),
    (["model", "unk_id"], None, "model.unk_id null"),
    (["model", "type"], "BPE", "needs a byte-level BPE"),
    (["decoder"], {"type": "Metaspace", "replacement": "▁"}, "decoder Metaspace"),
    (["post_processor"], None, "post_processor None"),
    (["added_tokens"], [TOKEN | {"normalized": True}], "'>>deu<<' that is normalized"),
    (["added_tokens"], [TOKEN | {"lstrip": True}], "'>>deu<<' with lstrip"),
    (["added_tokens"], [TOKEN, TOKEN | {"content": ">>nl<<", "rstrip": False}], "with rstrip and without it"),
    (["split_special_tokens"], False, "split_special_tokens"),
]


@pytest.mark.parametrize(("keys", "value", "named"), UNSUPPORTED, ids=str)
def test_unsupported_tokenizers_are_refused_by_name(keys: list[str], value: Any, named: str, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((converted("hf-marian").folder / name).read_bytes())
    load_text_tokenizer(tmp_path)
    path = tmp_path / ("tokenizer_config.json" if keys == ["split_special_tokens"] else "tokenizer.json")
    part = content = json.loads(path.read_text(encoding="utf-8"))
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match="tokenizer.json: --text needs ") as error:
        load_text_tokenizer(tmp_path)
    assert named in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pair", "language tokens", "two vocabularies"])
def test_a_checkpoint_becomes_one_file_that_translates_texts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by the code in its README."""
    checkpoint, codes = golden("hf-marian"), CODES if kind == "language tokens" else []
    if kind != "pair":
        checkpoint = opus_folder(tmp_path / "theirs", codes, kind == "two vocabularies")
    export([str(checkpoint), str(tmp_path / "onnx"), "--text"])
    convert([str(checkpoint), str(tmp_path / "torch")])
    texts = [*ENGLISH, *(text[start:stop] for text in EDGE_CASES for start, stop in sentence_spans(text)), *GERMAN]
    texts = [f"{CODES[number % 3]} {text}" if codes else text for number, text in enumerate(texts)]
    session: Any = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model_text.onnx"))
    translations, scores = session.run(["translations", "scores"], {"text": np.array(texts, object)})
    for backend in ("torch", "onnx"):
        reference = Translator.from_pretrained(tmp_path / backend, backend=backend, device="cpu")
        rows = reference.find_hypotheses(texts, split_sentences=False)
        assert translations.tolist() == [best.text for best, *_ in rows]
        assert scores == pytest.approx([best.score for best, *_ in rows], abs=1e-4)
    if NODE_MODULES.is_dir():  # onnxruntime-web ends a text at U+0000
        given = [text for text in texts if "\0" not in text]
        found = in_node("translate_text.mjs", {"texts": given, "num_beams": 4}, tmp_path / "onnx")["translations"]
        assert found == [best for text, best in zip(texts, translations.tolist(), strict=True) if "\0" not in text]
    (*_, example) = re.findall(r"```python\n(.*?)```", (tmp_path / "onnx/README.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path / "onnx")
    capsys.readouterr()
    exec(example, {})
    options = {"target_language": CODES[0]} if codes else {}
    text = "The house is small. Hello!\n\n---\n\nGoodbye."
    assert capsys.readouterr().out == f"{reference.translate(text, **options)[0]}\n"
