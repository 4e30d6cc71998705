"""Tokenizers of converted models, compared with the libraries and algorithms that they come from."""

import json
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import one_fast_in
from golden import Golden, converted, golden, opus_folder, refusal, train_sentencepiece
from safetensors.torch import load_file
from saved_model import ENGLISH, GERMAN
from tokenizers import Tokenizer
from transformers import MarianMTModel, MarianTokenizer, PreTrainedTokenizerFast

from conversion.__main__ import main
from conversion.convert import import_tokenizer
from conversion.segmentation import find_sentencepiece, read_codes
from conversion.sentencepiece_model import SentencePieceModel
from conversion.toolkits import hugging_face, marian
from conversion.toolkits.tensor2tensor import build_subword_tokenizer
from conversion.vocabulary import SIDES, Vocabulary, select_needed
from training.tokenizer import load_for_training, sizes_and_ids
from vaswani_transformer import Translator
from vaswani_transformer.errors import InputError
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER, LanguageTokens

TEXTS = [*GERMAN, *ENGLISH, "  zwei  Räume ", "ﬁne ① Ωmega 漢字 x", "", "naïve—test…", "a b"]


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_models_give_the_librarys_pieces(kind: str, byte_fallback: bool, tmp_path: Path):
    content = train_sentencepiece(
        (GERMAN + ENGLISH) * 20,
        tmp_path / "vocab.spm",
        vocab_size=70 + 256 * byte_fallback,
        model_type=kind,
        eos_id=0,
        unk_id=1,
        bos_id=-1,
        byte_fallback=byte_fallback,
        character_coverage=0.98,
    )
    theirs = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=content)
    ours = SentencePieceModel.read(tmp_path / "vocab.spm")
    tokens = [piece for piece, _, _ in ours.pieces]
    tokenizer = ours.build_tokenizer(Vocabulary(tokens, tokens, eos=0, unknown=1), "source")
    for text in TEXTS:
        ids = theirs.encode(text)
        assert tokenizer.encode(text).ids == [*ids, 0], text
        if 1 not in ids:
            assert tokenizer.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("ids", [{}, {"pad_id": 1, "bos_id": 0, "unk_id": 3}, {"bos_id": -1}])  # {}: SentencePiece's
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_sentencepiece_model_alone_becomes_a_tokenizer_to_train_with(
    kind: str, ids: dict[str, int], tmp_path: Path, capsys
):
    sentencepiece = pytest.importorskip("sentencepiece")
    content = train_sentencepiece(
        (GERMAN + ENGLISH) * 20, tmp_path / "my.model", vocab_size=100, model_type=kind, hard_vocab_limit=False, **ids
    )
    main([str(tmp_path / "my.model"), str(tmp_path / "mine")])
    assert "target tokens equal SentencePiece's" in capsys.readouterr().out
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    ours = load_for_training(tmp_path / "mine", of_targets=True)
    for text in TEXTS:
        assert ours(text)["input_ids"] == [*theirs.encode(text), theirs.eos_id()], text
    size, _, special = sizes_and_ids(ours, None)
    assert size == theirs.vocab_size() + (theirs.pad_id() < 0) + (theirs.bos_id() < 0)
    assert sorted(map(ours.convert_ids_to_tokens, special.values())) == ["</s>", "<pad>", "<s>", "<s>"]


def test_options_for_models_are_refused_for_a_sentencepiece_model(tmp_path: Path, refused):
    (tmp_path / "my.model").touch()
    for options in (["--target-language", "de"], ["--paper-search"]):
        error = refused(main, [tmp_path / "my.model", tmp_path / "mine", *options])
        assert "becomes a tokenizer; leave out --paper-search, --source-language and --target-language" in error


def test_a_sentencepiece_model_without_an_end_is_refused(tmp_path: Path):
    pytest.importorskip("sentencepiece")
    train_sentencepiece(GERMAN * 20, tmp_path / "my.model", vocab_size=100, hard_vocab_limit=False, eos_id=-1)
    with pytest.raises(InputError, match=r"my.model has no piece </s>"):
        import_tokenizer(tmp_path / "my.model", tmp_path / "mine")


@pytest.mark.parametrize("symbols", [["<2de>", "<2nl>"], ["▁<2de>"], ["__NUM__", "ab", "abc", "c"]])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_user_defined_symbols_stay_whole(kind: str, symbols: list[str], tmp_path: Path):
    content = train_sentencepiece(
        (GERMAN + ENGLISH) * 20, tmp_path / "spm.model", vocab_size=100, model_type=kind, hard_vocab_limit=False,
        user_defined_symbols=symbols, eos_id=0, unk_id=1, bos_id=-1,
    )  # fmt: skip
    theirs = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=content)
    ours = SentencePieceModel.read(tmp_path / "spm.model")
    tokens = [*(piece for piece, _, _ in ours.pieces), "▁naïve—test…", "▁Dog"]  # the last are of the other side
    tokenizer = ours.build_tokenizer(Vocabulary(tokens, tokens, eos=0, unknown=1), "source")
    symbol = symbols[0].removeprefix("▁")
    for text in [
        *TEXTS,
        "Dog",
        *(text for word in TEXTS for text in (f"{symbol} {word}", f"{word}{symbol}abcab{word}")),
    ]:
        ids = theirs.encode(text)
        assert tokenizer.encode(text).ids == [*ids, 0], text
        if 1 not in ids:
            assert tokenizer.decode(ids) == theirs.decode(ids)
    has_languages = symbol == "<2de>"
    assert LanguageTokens(tokenizer).tokens == ([token.removeprefix("▁") for token in symbols] if has_languages else [])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("token", [">>deu<<", "<2de>", "__de__", "de_DE", "[de_DE]", "deu_Latn"])
def test_a_language_token_adds_no_space_to_its_text(token: str, kind: str, tmp_path: Path):
    """The toolkit's users put it in front of the pieces. This model keeps all spaces of a text."""
    content = train_sentencepiece(
        (GERMAN + ENGLISH) * 20, tmp_path / "spm.model", vocab_size=100, model_type=kind, hard_vocab_limit=False,
        remove_extra_whitespaces=False, eos_id=0, unk_id=1, bos_id=-1,
    )  # fmt: skip
    theirs = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=content)
    ours = SentencePieceModel.read(tmp_path / "spm.model")
    tokens = [*(piece for piece, _, _ in ours.pieces), token]
    tokenizer = ours.build_tokenizer(Vocabulary(tokens, tokens, eos=0, unknown=1), "source")
    for text in ENGLISH:
        assert tokenizer.encode(f"{token} {text}").ids == [len(tokens) - 1, *theirs.encode(text), 0], text


def test_a_typed_control_symbol_is_text():
    for name in ("marian", "marian-spm", "fairseq", "sockeye", "tensor2tensor", "hf-fsmt"):
        checkpoint = converted(name)
        eos = checkpoint.model.config.eos_token_id
        for typed in ("</s>", "a </s> b", "<EOS>", "<pad> </s>"):
            ids = checkpoint.tokenizer()(typed)["input_ids"]
            assert ids.count(eos) == 1 and ids[-1] == eos, (name, typed)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("codes", [[], [">>deu<<", ">>a<<"]])
@pytest.mark.parametrize("two_vocabularies", one_fast_in(2, [True, False]))
def test_models_of_opus_mt_keep_their_ids(codes: list[str], two_vocabularies: bool, tmp_path: Path):
    """Codes of target languages, which are no pieces of SentencePiece, and vocabularies for each side."""
    pytest.importorskip("sentencepiece")
    folder = opus_folder(tmp_path / "theirs", codes, two_vocabularies)
    main([str(folder), str(tmp_path / "ours")])
    main([str(tmp_path / "ours"), str(tmp_path / "back"), "--to", "hf-marian"])
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    marian, back = (MarianTokenizer.from_pretrained(path) for path in (folder, tmp_path / "back"))
    # With separate vocabularies, MarianTokenizer takes any text in >> << for a code, known or not.
    source, target = (folder / "inputs.txt").read_text(encoding="utf-8").split("\n")[0].split("\t")
    for code in ["", *(f"{code} " for code in codes if not two_vocabularies)]:
        ids, labels = marian(code + source)["input_ids"], marian(text_target=code + target)["input_ids"]
        assert translator.tokenizer(code + source)["input_ids"] == back(code + source)["input_ids"] == ids
        assert translator.target_tokenizer(code + target)["input_ids"] == labels
        assert back(text_target=code + target)["input_ids"] == labels
        decoded = translator.target_tokenizer.decode(labels, skip_special_tokens=True)
        assert decoded == marian.decode(labels, skip_special_tokens=True) == code + target
    theirs, ours = load_file(folder / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in theirs)


# The letters of a source that the other side has, alone, in runs, between known letters; and what neither has.
ODD = [
    *(
        "ö",
        "öß",
        "öö a",
        "aö b",
        "a ö",
        "“a”",
        "“ß",
        "ẞ",
        "-ßHutß.",
        "日ö",
        "日本 ö日",
        "x日y",
        "日\u200d ö",
        "½ﬁ①",
        "e\u0301ö",
    ),
    *("", " ", "  a  b ", "a\n\nöb", "</ö", "<ö", "ö>", "▁ö", "ö▁", "üä", "Ä", "Äp", "▁für", "zwölf", "möchten für"),
]


def joint_vocabulary(
    folder: Path, target: list[str], codes: list[str], two_vocabularies: bool, **options: Any
) -> Vocabulary:
    """Write the tokenizer's files of a MarianMTModel from English; return the vocabulary that is read from them.

    options: of SentencePiece's training
    """
    folder.mkdir()
    pieces = []
    for side, texts in (("source", ENGLISH), ("target", target)):
        options = {"vocab_size": 90, "hard_vocab_limit": False} | options
        train_sentencepiece(texts * 20, folder / f"{side}.spm", **options)
        own = SentencePieceModel.read(folder / f"{side}.spm").pieces
        pieces.append([piece for piece, *_ in own if piece not in ("<s>", "</s>", "<unk>")])
    names = ["vocab.json", "target_vocab.json"] if two_vocabularies else ["vocab.json"]
    for name, own in zip(names, pieces if two_vocabularies else [pieces[0] + pieces[1]], strict=True):
        tokens = list(dict.fromkeys(["</s>", "<unk>", "<pad>", *codes, *own, "“"]))
        (folder / name).write_text(json.dumps({token: id for id, token in enumerate(tokens)}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": two_vocabularies}))
    return hugging_face.read_marian_vocabulary(folder, {"eos_token_id": 0, "pad_token_id": 2}, [0, 0])


def in_greek(text: str) -> str:
    return "".join(chr(ord(c) - ord("a") + ord("α")) if "a" <= c <= "z" else c for c in text)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize(
    ("script", "options", "two_vocabularies", "codes"),
    one_fast_in(
        8,
        (
            (script, options, two_vocabularies, codes)
            for script, options in (
                ("latin", {}),
                ("greek", {}),
                ("latin", {"model_type": "bpe"}),
                ("greek", {"model_type": "bpe"}),
                ("greek", {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True}),
            )
            for two_vocabularies in (False, True)
            for codes in ([], [">>bel_Latn<<", ">>deu<<"])
        ),
    ),
)
def test_characters_of_the_other_side_have_marians_ids(
    script: str, options: dict, two_vocabularies: bool, codes: list[str], tmp_path: Path
):
    target = GERMAN if script == "latin" else [in_greek(text) for text in GERMAN]
    vocabulary = joint_vocabulary(tmp_path / "theirs", target, codes, two_vocabularies, **options)
    generator = random.Random(0)
    pieces = [piece.replace("▁", " ") for piece in dict.fromkeys(vocabulary.source + vocabulary.target)]
    pieces = [piece for piece in pieces if piece not in ("</s>", "<unk>", "<pad>", *codes)] + ["日", "“", " "]
    texts = [*TEXTS, *GERMAN, *target, *ODD, *map(in_greek, ODD)]
    texts += ["".join(generator.choices(pieces, k=generator.randint(1, 8))) for _ in range(300)]
    marian = MarianTokenizer.from_pretrained(tmp_path / "theirs")
    found = 0
    for side, theirs in (("source", marian(texts)), ("target", marian(text_target=texts))):
        tokenizer = vocabulary.wrap_tokenizer(side)
        for text, ids in zip(texts, theirs["input_ids"], strict=True):
            assert [vocabulary.without_alias(id, side) for id in tokenizer(text)["input_ids"]] == ids, (side, text)
            tokens = marian.convert_ids_to_tokens(ids)
            own = SentencePieceModel.read(tmp_path / "theirs" / f"{side}.spm").pieces
            found += any(token not in [piece for piece, *_ in own] for token in tokens)
            if side == "target" and 1 not in ids:
                decoded = str(tokenizer.decode(ids[:-1])).strip()
                assert decoded == marian.decode(ids[:-1], use_source_tokenizer=False), text
    assert two_vocabularies or "byte_fallback" in options or found > 100  # texts that this is about


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_language_tokens_that_sentencepiece_knows_stand_alone(tmp_path: Path):
    """MarianTokenizer takes a language token off the text before SentencePiece adds a space to it."""
    codes = [">>deu<<", ">>nld<<"]
    vocabulary = joint_vocabulary(tmp_path / "theirs", GERMAN, codes, False, user_defined_symbols=codes)
    marian = MarianTokenizer.from_pretrained(tmp_path / "theirs")
    for text in (">>nld<< The dog runs.", ">>deu<<Dog", "The dog"):
        assert vocabulary.wrap_tokenizer("source")(text)["input_ids"] == marian(text)["input_ids"], text


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("two_vocabularies", [False, True])
def test_tokens_that_users_added_stay_whole(two_vocabularies: bool, tmp_path: Path):
    """After `add_tokens`, with embeddings of a round number of rows."""
    pytest.importorskip("sentencepiece")
    folder = opus_folder(tmp_path / "theirs", [">>deu<<"], two_vocabularies)
    marian = MarianTokenizer.from_pretrained(folder)
    marian.add_tokens([">>nds<<", "<br>"])
    model: Any = MarianMTModel.from_pretrained(folder)
    for resize in (model.resize_token_embeddings, *([model.resize_decoder_token_embeddings] * two_vocabularies)):
        resize(80)
    assert len(marian) < 80
    model.save_pretrained(folder)
    marian.save_pretrained(folder)
    main([str(folder), str(tmp_path / "ours")])
    main([str(tmp_path / "ours"), str(tmp_path / "back"), "--to", "hf-marian"])
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    assert translator.languages.names == ["deu", "nds"]
    back = MarianTokenizer.from_pretrained(tmp_path / "back")
    source = (folder / "inputs.txt").read_text(encoding="utf-8").split("\t")[0]
    for text in (source, f">>nds<< {source}", f"{source} <br> {source}", f"{source}<br>{source}<br>"):
        ids = marian(text)["input_ids"]
        assert translator.tokenizer(text)["input_ids"] == back(text)["input_ids"] == ids, text
        labels = marian(text_target=text)["input_ids"]
        assert translator.target_tokenizer(text)["input_ids"] == labels, text
    theirs, ours = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in theirs)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"treat_whitespace_as_suffix": True}, r"its pieces end in spaces \(treat_whitespace_as_suffix\)"),
        ({"denormalization_rule_tsv": "rules"}, r"it changes decoded text by rules \(denormalization_rule_tsv\)"),
    ],
)
def test_what_a_tokenizer_json_cannot_represent_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: dict[str, Any], message: str
):
    monkeypatch.chdir(tmp_path)
    Path("rules").write_text("65\t78\n")  # x for e
    options = {"vocab_size": 90, "hard_vocab_limit": False, **option}
    train_sentencepiece((GERMAN + ENGLISH) * 20, tmp_path / "spm.model", **options)
    model = SentencePieceModel.read(tmp_path / "spm.model")
    tokens = [piece for piece, *_ in model.pieces]
    with pytest.raises(InputError, match=message):
        model.build_tokenizer(Vocabulary(tokens, tokens, eos=2, unknown=0), "source")


def test_one_of_two_tokenizers_is_not_taken_for_both(tmp_path: Path):
    folder = opus_folder(tmp_path / "theirs", [], two_vocabularies=True)
    (folder / "target.spm").unlink()
    main([str(folder), str(tmp_path / "ours")])
    assert "There is no target tokenizer: target.spm is missing." in (tmp_path / "ours/CONVERSION.md").read_text()
    with pytest.raises(InputError, match="has no tokenizer.json"):
        Translator.from_pretrained(tmp_path / "ours", device="cpu")


def segmented(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """Apply Algorithm 1 of Sennrich et al. (2016): merge the pair that was learned first, everywhere."""
    pieces = [*word[:-1], word[-1] + "</w>"]
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges)))}
    while True:
        pairs = [pair for pair in zip(pieces, pieces[1:], strict=False) if pair in ranks]
        if not pairs:
            return pieces
        best, merged, at = min(pairs, key=ranks.__getitem__), [], 0
        while at < len(pieces):
            if tuple(pieces[at : at + 2]) == best:
                merged.append(pieces[at] + pieces[at + 1])
                at += 2
            else:
                merged.append(pieces[at])
                at += 1
        pieces = merged


@pytest.mark.parametrize(("name", "codes"), [("fairseq", "bpecodes"), ("fairseq-old", "bpecodes.src")])
def test_bpe_codes_segment_like_the_algorithm(name: str, codes: str):
    checkpoint = converted(name)
    merges = read_codes(checkpoint.checkpoint / codes)
    tokenizer = checkpoint.tokenizer()
    words = (checkpoint.checkpoint / "dict.src.txt").read_text(encoding="utf-8").splitlines()
    ids = {line.split()[0]: id for id, line in enumerate(words, start=4)}
    generator, toolkits_size = random.Random(0), 4 + len(words)
    for _ in range(300):
        word = "".join(generator.choice("aiklmostxenubdg") for _ in range(generator.randint(1, 9)))
        pieces = [piece.removesuffix("</w>") if "</w>" in piece else piece + "@@" for piece in segmented(word, merges)]
        wanted = [ids.get(piece, 3) for piece in pieces]
        found = tokenizer(word)["input_ids"][:-1]
        # A piece that the dictionary lacks is <unk> to fairseq: here a later token with <unk>'s embedding.
        assert [id if id < toolkits_size else 3 for id in found] == wanted, word
    embeddings = checkpoint.model.state_dict()["model.encoder.embed_tokens.weight"]
    for alias in range(toolkits_size, len(embeddings)):
        assert embeddings[alias].equal(embeddings[3])


def test_fairseqs_flag_gives_a_token_its_later_id(tmp_path: Path):
    """As in fairseq's `Dictionary.add_symbol`; </s> and <unk> keep the ids with which the model was trained."""
    theirs = shutil.copytree(golden("fairseq-old"), tmp_path / "theirs")
    lines = (theirs / "dict.src.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("t@@ ")
    lines[-3:] = [f"{token} 1 #fairseq:overwrite" for token in ("</s>", "<unk>", "t@@")]
    (theirs / "dict.src.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    main([str(theirs), str(tmp_path / "ours")])
    tokenizer, before = PreTrainedTokenizerFast.from_pretrained(tmp_path / "ours"), converted("fairseq-old").tokenizer()
    last = 3 + len(lines)
    ids = before("tx")["input_ids"]
    assert 4 in ids and tokenizer("tx")["input_ids"] == [last if id == 4 else id for id in ids]
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id) == (2, 3)
    main(["--to", "fairseq", str(tmp_path / "ours"), str(tmp_path / "back")])
    assert (tmp_path / "back/dict.src.txt").read_bytes() == (theirs / "dict.src.txt").read_bytes()


def escaped_subwords(text: str, pieces: list[str]) -> list[int]:
    """tensor2tensor's encoder, from its description: tokens at the border of letters and digits, longest match."""
    tokens, start = [], 0
    for at in range(1, len(text) + 1):
        if at == len(text) or text[at].isalnum() != text[at - 1].isalnum():
            if text[start:at] != " " or start == 0 or at == len(text):
                tokens.append(text[start:at])
            start = at
    alphabet, ids = {letter for piece in pieces for letter in piece}, []
    for token in tokens:
        token = token.replace("\\", "\\\\").replace("_", "\\u")
        rest = "".join(c if c in alphabet and c != "\n" else f"\\{ord(c)};" for c in token) + "_"
        while rest:
            longest = max((piece for piece in pieces if rest.startswith(piece)), key=len)
            ids.append(pieces.index(longest))
            rest = rest[len(longest) :]
    return ids


def test_subwords_equal_those_of_tensor2tensor():
    letters = [*"\\_u;0123456789abcdefgh ,.ü", "ab", "abc_", "he", "_", ", ", "ch"]
    pieces = ["<pad>_", "<EOS>_", *dict.fromkeys(letters)]
    vocabulary = Vocabulary(pieces, pieces, pad=0, eos=1, unknown=None)
    tokenizer = build_subword_tokenizer(vocabulary, "source")
    texts = ["abc abc", "ab, cd.  ef", " a", "a ", "x y_z \\ ü é", "ab\ncd", "9.5 a_b", "q", "...", "hache, beach"]
    for text in texts:
        found = tokenizer.encode(text).ids
        assert found == [*escaped_subwords(text, pieces), 1], text
        assert tokenizer.decode(found[:-1]) == text, text


@pytest.mark.parametrize(("name", "file"), [("fairseq-old", "bpecodes.src"), ("joeynmt-sentencepiece", "spm.model")])
def test_a_segmentation_of_another_model_is_refused(name: str, file: str, tmp_path: Path, refused):
    theirs = shutil.copytree(golden(name), tmp_path / "theirs")
    other = golden("fairseq-old") / "bpecodes.tgt" if "codes" in file else golden("hf-marian") / "target.spm"
    shutil.copy(other, theirs / file)
    message = refusal(refused, theirs, tmp_path / "ours")
    assert re.search(rf"{file} makes only \d+ of the \d+ longer tokens of the source vocabulary; replace it", message)


def test_sentencepiece_models_are_found_by_language(tmp_path: Path) -> None:
    """ "en" is in "sentencepiece", and "de" in "model"."""
    pieces = {}
    for language, text in (("de", "der Hund und die Katze"), ("en", "the dog and the cat")):
        file = tmp_path / f"sentencepiece.{language}.model"
        train_sentencepiece([text] * 50, file, vocab_size=20, hard_vocab_limit=False)
        pieces[language] = [piece for piece, *_ in SentencePieceModel.read(file).pieces]
    (tmp_path / "truecase.model").write_text("not of SentencePiece")
    for language in ("de", "en"):
        found = find_sentencepiece(tmp_path, language, pieces["de"] + pieces["en"])  # one vocabulary for both
        assert found is not None and found.path.name == f"sentencepiece.{language}.model"
        found = find_sentencepiece(tmp_path, "src", pieces[language])  # no name says it: the pieces do
        assert found is not None and found.path.name == f"sentencepiece.{language}.model"


def test_marians_vocabularies_are_cut_at_the_models_rows(tmp_path: Path):
    (tmp_path / "v.txt").write_text("</s>\n<unk>\na\nb\n")
    (tmp_path / "v.yml").write_text("</s>: 0\n<unk>: 1\na: 2\nb: 3\n")
    for name in ("v.txt", "v.yml"):
        assert marian.read_tokens(tmp_path / name, 3) == ["</s>", "<unk>", "a"]


@pytest.mark.parametrize("form", ['"{}": {}', "'{}': {}", "{}: {}"], ids=["double", "single", "plain"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_marians_vocabularies_may_have_any_character(form: str, end: str, tmp_path: Path):
    """Vocabularies of crawled text, such as OPUS-MT's, have control characters and Unicode's line breaks unescaped."""
    odd = [
        *map(chr, range(1, 9)),
        *map(chr, range(11, 32)),
        *map(chr, range(127, 160)),
        *"\u2028\u2029\ufeff\uffff\xad",
    ]
    odd.remove("\r")  # at the end of a line, Marian drops it
    tokens = ["</s>", "<unk>", *odd, *(f"▁a{character}b" for character in odd), "🙂", "▁null", "▁日"]
    lines = [form.format(token, id) for id, token in enumerate(tokens)]
    (tmp_path / "v.yml").write_bytes("".join(line + end for line in lines).encode())
    assert marian.read_tokens(tmp_path / "v.yml", len(tokens)) == tokens
    (tmp_path / "v.txt").write_bytes("".join(token + end for token in tokens).encode())
    assert marian.read_tokens(tmp_path / "v.txt", len(tokens)) == tokens


def test_marians_vocabularies_may_escape_characters(tmp_path: Path):
    text = r"""{"</s>": 0, "<unk>": 1, "\u2028": 2, "\"": 3, "\\": 4, "\u00e4": 5, "\t": 6}"""
    for name in ("v.yml", "v.json"):
        (tmp_path / name).write_text(text)
        assert marian.read_tokens(tmp_path / name, 9) == ["</s>", "<unk>", "\u2028", '"', "\\", "ä", "\t"]


def test_marians_vocabularies_must_agree_on_special_ids(tmp_path: Path):
    (tmp_path / "a.txt").write_text("</s>\n<unk>\na\n")
    (tmp_path / "b.txt").write_text("<unk>\n</s>\nb\n")
    with pytest.raises(InputError, match=r"a\.txt and b\.txt give </s> and <unk> different ids"):
        marian.read_vocabulary(tmp_path / "model.npz", {"vocabs": ["a.txt", "b.txt"]}, [3, 3])


def test_hf_marian_finds_its_unknown_token(tmp_path: Path):
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "a": 1, "<unk>": 2, "<pad>": 3}))
    vocabulary = hugging_face.read_marian_vocabulary(tmp_path, {"eos_token_id": 0, "pad_token_id": 3}, [4, 4])
    assert (vocabulary.unknown, vocabulary.pad_id, vocabulary.start_id) == (2, 3, 3)


def test_a_checkpoint_of_marians_training_has_the_vocabularies_of_its_run(tmp_path: Path):
    """Marian writes a .decoder.yml beside model.npz, but none beside model.iter5000.npz."""
    theirs = Path(shutil.copytree(golden("marian-prenorm"), tmp_path / "theirs"))
    shutil.copyfile(theirs / "model.npz", theirs / "model.iter5000.npz")
    main([str(theirs / "model.iter5000.npz"), str(tmp_path / "ours")])
    ours, expected = Golden(theirs, tmp_path / "ours"), converted("marian-prenorm")
    for side, texts in zip(SIDES, ours.texts, strict=True):
        assert ours.tokenizer(side)(texts)["input_ids"] == expected.tokenizer(side)(texts)["input_ids"]
    assert ours.model.generation_config.num_beams == expected.model.generation_config.num_beams == 12


def make_opus_archive(folder: Path, theirs: str, pieces: Sequence[str]) -> Path:
    """Return a folder with the files of OPUS-MT's archives, without the models that segment texts."""
    folder.mkdir()
    name, vocab = "opus.transformer-align.model1.npz.best-perplexity.npz", "opus.vocab.yml"
    shutil.copyfile(golden(theirs) / "model.npz", folder / name)
    lines = [f"{json.dumps(piece)}: {id}\n" for id, piece in enumerate(pieces)]
    (folder / vocab).write_text("".join(lines), encoding="utf-8")
    settings = f"models: [{name}]\nvocabs: [{vocab}, {vocab}]\nbeam-size: 6\nnormalize: 1\n"
    (folder / "decoder.yml").write_text(settings, encoding="utf-8")
    return folder


def test_texts_are_segmented_as_the_scripts_of_opus_mts_archives_do(tmp_path: Path):
    """Their vocabulary is a YAML file of SentencePiece's pieces, and the two models are next to it."""
    model = golden("marian-spm") / "vocab.spm"
    archive = make_opus_archive(
        tmp_path / "theirs", "marian-spm", [piece for piece, *_ in SentencePieceModel.read(model).pieces]
    )
    for side in SIDES:
        shutil.copyfile(model, archive / f"{side}.spm")
    main([str(archive), str(tmp_path / "ours")])
    expected = converted("marian-spm")
    ours = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "ours" / "tokenizer.json"))
    assert ours(expected.texts[0]).input_ids == expected.tokenizer()(expected.texts[0]).input_ids
    settings = json.loads((tmp_path / "ours" / "generation_config.json").read_text())
    assert (settings["num_beams"], settings["length_penalty"]) == (6, 1)


def test_each_side_of_opus_mts_archives_has_its_codes(tmp_path: Path):
    words = ["a@@", "b", "ab", "cd", *(chr(0x4E00 + n) for n in range(40))]  # as many as the fixture's vocabulary
    archive = make_opus_archive(tmp_path / "theirs", "marian", ["</s>", "<unk>", *words])
    (archive / "source.bpe").write_text("#version: 0.2\na b</w>\n")
    (archive / "target.bpe").write_text("#version: 0.2\nc d</w>\n")
    main([str(archive), str(tmp_path / "ours")])
    ours, theirs = tmp_path / "ours" / "tokenizer.json", tmp_path / "ours" / TARGET_TOKENIZER / "tokenizer.json"
    assert Tokenizer.from_file(str(ours)).encode("ab").ids == [4, 0]
    assert Tokenizer.from_file(str(theirs)).encode("ab").ids == [2, 3, 0]


def test_joeynmt_takes_only_pieces_of_the_vocabulary():
    """It calls SetVocabulary on SentencePiece's model, and BPE of subword-nmt with the vocabulary."""
    checkpoint = converted("joeynmt-sentencepiece")
    tokenizer, size = checkpoint.tokenizer(), len((checkpoint.checkpoint / "src_vocab.txt").read_text().splitlines())
    rows = [json.loads(line) for line in (checkpoint.checkpoint / "pieces.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 60
    for row in rows:
        found = tokenizer(row["text"])["input_ids"]
        assert [id if id < size else tokenizer.unk_token_id for id in found] == row["ids"], row["text"]


def test_merges_that_make_no_known_piece_are_left_out():
    merges = [("a", "b"), ("ab", "c</w>"), ("d", "e</w>"), ("x", "y")]
    assert select_needed(merges, ["abc</w>", "x", "y"]) == merges[:2]


def test_joeynmts_defaults_of_the_search():
    """JoeyNMT 2.3, config.py lines 392 and 423, and search.py line 127: no separator, no language is generated."""
    settings: Any = converted("joeynmt-sentencepiece").model.generation_config
    assert (settings.num_beams, settings.min_new_tokens) == (1, 1)
    assert settings.suppress_tokens == [1, 2, 4, 5, 6]  # <pad>, <s>, <sep>, <de>, <en>
    settings = converted("joeynmt-1-separate").model.generation_config
    assert settings.min_new_tokens is None
