"""Pre-norm models of transformers, and models whose translations begin with the token of their language."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import one_fast_in
from golden import converted, golden, refusal, train_sentencepiece
from saved_model import ENGLISH, GERMAN, change_json
from tiny_models import padded, randomise
from transformers import (
    AutoTokenizer,
    BlenderbotConfig,
    BlenderbotForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    NllbTokenizer,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PegasusTokenizer,
)
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_LANGUAGE_CODES

from conversion.__main__ import main
from conversion.checkpoint_files import load_checkpoint
from conversion.sentencepiece_model import SentencePieceModel
from conversion.toolkits import hugging_face_prenorm
from vaswani_transformer import Translator
from vaswani_transformer.languages import read_languages
from vaswani_transformer.loading import load_model
from vaswani_transformer.model_folder import CONVERTIBLE_TYPES, NEVER

SIZES: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "max_position_embeddings": 32,
}  # fmt: skip
M2M100, NLLB = ["--source-language", "de", "--target-language", "fr"], ["eng_Latn", "deu_Latn"]
CLASSES: dict[str, Any] = {
    "m2m_100": (M2M100Config, M2M100ForConditionalGeneration),
    "pegasus": (PegasusConfig, PegasusForConditionalGeneration),
    "blenderbot": (BlenderbotConfig, BlenderbotForConditionalGeneration),
}


def random_model(kind: str, **changes: Any) -> Any:
    config, model = CLASSES[kind]
    return with_random_bias(randomise(model(config(**SIZES | {"vocab_size": 40} | changes))))


def with_random_bias(model: Any) -> Any:
    if hasattr(model, "final_logits_bias"):
        model.get_buffer("final_logits_bias").normal_(generator=torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize(
    "changes",
    one_fast_in(2, [
        {}, {"scale_embedding": True, "activation_function": "relu"}, {"scale_embedding": False, "dropout": 0.3},
        {"tie_word_embeddings": False, "activation_function": "silu"},
    ]),
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", CLASSES)
def test_logits_equal_those_of_transformers(kind: str, changes: dict, tmp_path: Path):
    model = random_model(kind, **changes)
    model.save_pretrained(tmp_path / "theirs")
    main([str(tmp_path / "theirs"), str(tmp_path / "ours")])
    batch = padded([[5, 9, 7, 11, 2], [8, 4, 2], [6, 10, 12, 12, 9, 5, 2]], pad=model.config.pad_token_id)
    batch["decoder_input_ids"] = torch.tensor([[2, 5, 6, 11, 7], [2, 4, 4, 9, 10], [2, 12, 5, 8, 4]])
    with torch.inference_mode():
        theirs = model(**batch, use_cache=False).logits
        ours = load_model(tmp_path / "ours", device="cpu")(**batch).logits
    assert theirs.std() > 0.3
    assert (ours[..., : theirs.shape[-1]] - theirs).abs().max() <= 1e-5
    if model.config.scale_embedding:
        written_back(tmp_path / "ours", model)
    notes = (tmp_path / "ours" / "CONVERSION.md").read_text()
    assert "There is no tokenizer: there is no tokenizer.json; save it with AutoTokenizer" in notes
    assert ("The model has many languages, whose tokens are unknown" in notes) == (kind == "m2m_100")


def written_back(ours: Path, theirs: Any) -> Path:
    """Convert a folder back and compare with transformers' model bit by bit; return the folder."""
    back = ours.parent / "back"
    main([str(ours), str(back), "--to", "hf-prenorm"])
    loaded, report = type(theirs).from_pretrained(back, local_files_only=True, output_loading_info=True)
    assert not any(name for name in report["missing_keys"] if "embed_positions" not in name)
    assert not report["unexpected_keys"] and not report["mismatched_keys"]
    used = {name: tensor for name, tensor in loaded.state_dict().items() if name != "model.shared.weight"}
    expected = theirs.state_dict()  # without tied embeddings, the shared one is nobody's
    assert len(used) == len(expected) - 1 and all(torch.equal(tensor, expected[name]) for name, tensor in used.items())
    return back


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sinusoids_of_pegasus_that_were_trained_or_rounded_are_kept(dtype: torch.dtype, tmp_path: Path):
    """transformers 5 trains them with the other weights, and saves them in their type."""
    model = random_model("pegasus", scale_embedding=True)
    if dtype == torch.float32:
        model.model.decoder.embed_positions.weight.data += 0.01
    model.to(dtype).save_pretrained(tmp_path / "theirs")
    main([str(tmp_path / "theirs"), str(tmp_path / "ours")])
    written_back(tmp_path / "ours", model)
    batch = padded([[5, 9, 7, 11, 2], [8, 4, 2]], pad=model.config.pad_token_id)
    batch["decoder_input_ids"] = torch.tensor([[2, 5, 6, 11, 7], [2, 4, 4, 9, 10]])
    with torch.inference_mode():
        theirs = model.float()(**batch, use_cache=False).logits
        ours = load_model(tmp_path / "ours", device="cpu")(**batch).logits
    assert (ours - theirs).abs().max() <= 1e-5


def test_each_class_is_known_to_commands_that_take_a_repository():
    assert hugging_face_prenorm.CLASSES.keys() == CLASSES.keys() <= set(CONVERTIBLE_TYPES)


def test_files_of_transformers_4_have_tables_and_tied_matrices(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """As facebook/m2m100_418M and NLLB: a pickle, with what transformers 5 no longer saves."""
    model = random_model("m2m_100")
    model.save_pretrained(tmp_path / "theirs")
    main([str(tmp_path / "theirs"), str(tmp_path / "new")])
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for stack in ("encoder", "decoder"):
        weights[f"model.{stack}.embed_tokens.weight"] = weights["model.shared.weight"]
        weights[f"model.{stack}.embed_positions.weights"] = getattr(model.model, stack).embed_positions.weights
    (tmp_path / "theirs" / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "theirs" / "pytorch_model.bin")
    capfd.readouterr()
    main([str(tmp_path / "theirs"), str(tmp_path / "old")])
    assert "UNEXPECTED" not in "".join(capfd.readouterr())  # from the model of transformers
    new, old = (load_model(tmp_path / name, device="cpu").state_dict() for name in ("new", "old"))
    assert new.keys() == old.keys() and all(torch.equal(new[name], old[name]) for name in new)


def m2m100_tokenizer(folder: Path, kind: str) -> Any:
    """A tokenizer of pieces of English and German, in the files of facebook/m2m100_418M."""
    folder.mkdir()
    options = {"vocab_size": 120, "hard_vocab_limit": False, "model_type": kind}
    train_sentencepiece((ENGLISH + GERMAN) * 10, folder / "sentencepiece.bpe.model", **options)
    pieces = [piece for piece, *_ in SentencePieceModel.read(folder / "sentencepiece.bpe.model").pieces]
    tokens = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *pieces[:-5]])
    (folder / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(tokens)}))
    files: dict[str, Any] = {
        "vocab_file": str(folder / "vocab.json"),
        "spm_file": str(folder / "sentencepiece.bpe.model"),
    }
    return M2M100Tokenizer(**files, src_lang="de", tgt_lang="fr")


def nllb_tokenizer() -> Any:
    """A tokenizer of letters and a few merges, as tokenizer.json."""
    letters = sorted(set("".join(ENGLISH + GERMAN)) - {" "})
    merges = [("t", "h"), ("▁", "th"), ("e", "r"), ("▁", "d"), ("▁d", "er")]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", *letters, *(a + b for a, b in merges)]
    vocab = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    options: dict[str, Any] = {"vocab": vocab, "merges": merges}
    return NllbTokenizer(**options, src_lang="eng_Latn", tgt_lang="deu_Latn")


@pytest.mark.parametrize("which", ["m2m100 unigram", "m2m100 bpe", "nllb"])
def test_multilingual_models_translate_as_in_transformers(which: str, tmp_path: Path):
    theirs = tmp_path / "theirs"
    tokenizer = nllb_tokenizer() if which == "nllb" else m2m100_tokenizer(theirs, which.split()[1])
    source, target = NLLB if which == "nllb" else ["de", "fr"]
    rows = len(tokenizer) if which == "nllb" else max(tokenizer.lang_code_to_id.values()) + 9
    model = random_model("m2m_100", vocab_size=rows, max_position_embeddings=200)
    model.save_pretrained(theirs)
    tokenizer.save_pretrained(theirs)
    codes = ["en", "German"] if which == "nllb" else ["deu", "fr"]
    main([str(theirs), str(tmp_path / "ours"), "--source-language", codes[0], "--target-language", codes[1]])
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    assert translator.languages.tokens == []
    assert read_languages(tmp_path / "ours") == (source, target)  # for cards and servers
    forced = tokenizer.convert_tokens_to_ids(target if which == "nllb" else f"__{target}__")
    for text in ENGLISH + GERMAN:
        ids, labels = tokenizer(text)["input_ids"], tokenizer(text_target=text)["input_ids"]
        found = translator.tokenizer(text)["input_ids"], translator.target_tokenizer(text)["input_ids"]
        assert [[id if id < rows else 3 for id in row] for row in found] == [ids, labels], text  # 3: <unk>
        decoded = translator.target_tokenizer.decode(labels, skip_special_tokens=True)
        assert decoded == tokenizer.decode(labels[1:], skip_special_tokens=True)
        batch = tokenizer(text, return_tensors="pt")
        expected = model.generate(**batch, forced_bos_token_id=forced, num_beams=1, max_new_tokens=12)[0, 1:].tolist()
        (hypothesis,) = translator.find_hypotheses([text], num_beams=1, max_new_tokens=12, split_sentences=False)[0]
        assert hypothesis.tokens == expected and expected[0] == forced
        words = [id for id in expected[1:] if "_" not in tokenizer.convert_ids_to_tokens(id)]  # no language
        assert hypothesis.text == tokenizer.decode(words, skip_special_tokens=True)
    back = written_back(tmp_path / "ours", model)
    loaded = AutoTokenizer.from_pretrained(back, local_files_only=True)
    assert loaded(ENGLISH)["input_ids"] == [tokenizer(text)["input_ids"] for text in ENGLISH]
    for text in ("deu_Latn a", "__fr__ b", "</s> c", "日 x"):  # a language's token or </s> in a text is text
        ids = translator.tokenizer(text)["input_ids"]
        assert [ids[0], ids[-1]] == tokenizer("a")["input_ids"][:: len(tokenizer("a")["input_ids"]) - 1]
        assert not {forced, 2} & set(ids[1:-1])


@pytest.mark.parametrize("toolkit", ["hf-prenorm", "hf-marian"])
def test_a_token_that_the_toolkit_lacks_is_not_written(toolkit: str, tmp_path: Path, refused):
    """Tokens that were added to the converted model are cut off if it cannot generate them."""
    if toolkit == "hf-prenorm":
        random_model("pegasus").save_pretrained(tmp_path / "theirs")
    else:
        shutil.copytree(golden("hf-marian"), tmp_path / "theirs")
    rows = json.loads((tmp_path / "theirs/config.json").read_text())["vocab_size"]
    main([str(tmp_path / "theirs"), str(tmp_path / "ours")])
    model = load_model(tmp_path / "ours", device="cpu")
    model.resize_token_embeddings(rows + 9)
    model.save_pretrained(tmp_path / "ours")
    message = refused(main, [tmp_path / "ours", tmp_path / "back", "--to", toolkit], 2)
    lost = f"counts {rows} target tokens; 9 more that the model can generate, from id {rows} on, would be lost"
    assert lost in message
    model.lm_head.bias.data[rows:] = NEVER
    model.save_pretrained(tmp_path / "ours")
    if toolkit == "hf-marian":  # the other one also refuses this model for its embeddings
        change_json(tmp_path / "ours/generation_config.json", forced_bos_token_id=rows + 8)
        message = refused(main, [tmp_path / "ours", tmp_path / "back", "--to", toolkit], 2)
        assert f"forced_bos_token_id of generation_config.json is {rows + 8}; the ids go up to {rows - 1}" in message
        suppressed = [5, rows, rows + 8]
        change_json(tmp_path / "ours/generation_config.json", forced_bos_token_id=None, suppress_tokens=suppressed)
        main([str(tmp_path / "ours"), str(tmp_path / "back"), "--to", toolkit])
        assert json.loads((tmp_path / "back/generation_config.json").read_text())["bad_words_ids"] == [[5]]


@pytest.mark.parametrize("records_ids", [False, True])
def test_nllb_has_its_tokenizer_without_tokenizer_json(records_ids: bool, tmp_path: Path):
    """transformers 4 saved NllbTokenizer as a SentencePiece model: fairseq's ids are one more, then come the languages.
    From version 4.34 on, tokenizer_config.json has the ids, here with a language that a user has added."""
    sentencepiece = pytest.importorskip("sentencepiece")
    theirs = tmp_path / "theirs"
    random_model("m2m_100", vocab_size=400, max_position_embeddings=200).save_pretrained(theirs)
    options = {"vocab_size": 120, "hard_vocab_limit": False, "model_type": "bpe"}
    train_sentencepiece((ENGLISH + GERMAN) * 10, theirs / "sentencepiece.bpe.model", **options)
    pieces = sentencepiece.SentencePieceProcessor(str(theirs / "sentencepiece.bpe.model"))
    first = pieces.get_piece_size() + 1
    ids = {language: first + n for n, language in enumerate(NLLB_LANGUAGE_CODES)}
    settings: dict[str, Any] = {"tokenizer_class": "NllbTokenizer"}
    if records_ids:
        mask = first + len(ids)
        ids["gsw_Latn"] = mask + 1
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        added = {**dict(enumerate(special)), **{id: token for token, id in ids.items()}, mask: "<mask>"}
        settings["added_tokens_decoder"] = {id: {"content": token, "special": True} for id, token in added.items()}
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    target = "gsw_Latn" if records_ids else "zul_Latn"
    main([str(theirs), str(tmp_path / "ours"), "--source-language", "eng_Latn", "--target-language", target])
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    forced: Any = translator.model.generation_config
    assert forced.forced_bos_token_id == ids[target]
    for text in [*ENGLISH, *GERMAN, "日 x"]:
        found = [id + 1 if id else 3 for id in pieces.encode(text)]
        assert translator.tokenizer(text)["input_ids"] == [ids["eng_Latn"], *found, 2], text


def test_a_tokenizer_without_languages_is_named(tmp_path: Path, refused):
    random_model("m2m_100").save_pretrained(tmp_path / "theirs")
    message = refusal(refused, *M2M100, tmp_path / "theirs", tmp_path / "ours")
    assert "its tokenizer are missing or have no tokens of languages" in message


def test_tokens_without_an_embedding_are_text(tmp_path: Path):
    """A tokenizer may have tokens that were added to it later, such as <mask>, and that no model has seen."""
    tokenizer = nllb_tokenizer()
    rows = tokenizer.convert_tokens_to_ids("eng_Latn") + 1
    random_model("m2m_100", vocab_size=rows, max_position_embeddings=200).save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    main([str(tmp_path / "theirs"), str(tmp_path / "ours"), "--source-language", "eng_Latn", "--target-language",
          "ace_Arab"])  # fmt: skip
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    assert max(translator.tokenizer("zul_Latn a <mask>")["input_ids"]) < rows


def test_the_languages_must_be_chosen(tmp_path: Path, refused):
    tokenizer = nllb_tokenizer()
    random_model("m2m_100", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    for given, said in [
        ([], "many languages, and a converted model has one pair; convert it with --source-language: ace_Arab, "),
        (["--source-language", "eng_Latn"], "has one pair; convert it with --target-language: ace_Arab"),
        (["--source-language", "xx"], "has no language 'xx'; convert it with --source-language: ace_Arab"),
    ]:
        assert said in refusal(refused, tmp_path / "theirs", tmp_path / "ours", *given)
    random_model("pegasus").save_pretrained(tmp_path / "pegasus")
    message = refusal(refused, tmp_path / "pegasus", tmp_path / "ours", "--target-language", "de")
    assert "this model's languages are not chosen here; leave out --source-language and --target-language" in message


def test_another_tokenizer_of_m2m100_is_refused(tmp_path: Path, refused):
    """SMALL-100 has the target's language in front of sources."""
    random_model("m2m_100").save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer_config.json").write_text('{"tokenizer_class": "SMALL100Tokenizer"}')
    assert "has SMALL100Tokenizer, whose languages stand" in refusal(refused, tmp_path / "theirs", tmp_path / "ours")


def test_pegasus_has_its_tokenizer(tmp_path: Path):
    tokens = [("<pad>", 0.0), ("</s>", 0.0), ("<mask_1>", 0.0), ("<mask_2>", 0.0), ("<unk>", 0.0)]
    tokens += [("▁", -2.0), ("▁the", -3.0), *((letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyzDT.")]
    tokenizer = PegasusTokenizer(vocab=tokens, offset=0)
    model = random_model("pegasus", vocab_size=len(tokenizer), max_position_embeddings=200)
    model.generation_config.update(num_beams=2, length_penalty=0.8, max_length=20)
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    main([str(tmp_path / "theirs"), str(tmp_path / "ours")])
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    assert (translator.search.num_beams, translator.search.max_new_tokens) == (2, 19)
    for text in ENGLISH[:8]:
        ids = tokenizer(text)["input_ids"]
        assert translator.tokenizer(text)["input_ids"] == ids
        assert translator.target_tokenizer.decode(ids, skip_special_tokens=True) == tokenizer.decode(
            ids, skip_special_tokens=True
        )


@pytest.mark.parametrize(
    ("options", "source", "first"),
    [
        ({"decoder_langtok": True}, None, []),
        ({"decoder_langtok": True, "encoder_langtok": "src"}, "en", ["<__en__>"]),
        ({"decoder_langtok": True, "encoder_langtok": "tgt"}, None, ["<__fr__>"]),
        ({"langtoks": {"main": ["tgt", "tgt"]}}, None, ["<__fr__>"]),
    ],
    ids=str,
)
def test_fairseqs_translations_begin_with_their_language(
    options: dict, source: str | None, first: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """translation_multi_simple_epoch gives the search the target's token as prefix_tokens, and puts a token in front of
    sources with --encoder-langtok."""
    theirs = Path(shutil.copytree(golden("fairseq-languages"), tmp_path / "theirs"))
    checkpoint = load_checkpoint(golden("fairseq-languages") / "checkpoint_best.pt")
    vars(checkpoint["cfg"]["model"]).update({"encoder_langtok": None, **options})
    torch.save(checkpoint, theirs / "checkpoint_best.pt")
    given = ["--target-language", "fr", *(["--source-language", source] if source else [])]
    main([str(theirs), str(tmp_path / "ours"), *given, "--logits", str(theirs / "expected.npz")])
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    ids = translator.tokenizer("w4 w5")["input_ids"]
    assert translator.tokenizer.convert_ids_to_tokens(ids) == [*first, "w4", "w5", "</s>"]
    (french,) = converted("fairseq-languages").tokenizer()("__fr__")["input_ids"][:1]
    (hypothesis,) = translator.find_hypotheses(["w4 w5"])[0]
    assert hypothesis.tokens[0] == french and "fr" not in hypothesis.text
    assert translator.target_tokenizer("w4")["input_ids"][0] == french
    assert read_languages(tmp_path / "ours") == (("en", "fr") if source else None)
    main(["--to", "fairseq", str(tmp_path / "ours"), str(tmp_path / "back")])
    (token,) = translator.target_tokenizer.convert_ids_to_tokens([french])
    assert f"note: Translations begin with {token!r} (id {french}), which fairseq" in capsys.readouterr().out
    assert f"{token} " in (tmp_path / "back" / "dict.tgt.txt").read_text()
    check_dictionaries(tmp_path / "back")


def check_dictionaries(folder: Path) -> None:
    """Check that the written dictionaries have a token for each embedding."""
    written = load_checkpoint(folder / "checkpoint_best.pt")
    for language in (written["args"].source_lang, written["args"].target_lang):
        dictionary = (folder / f"dict.{language}.txt").read_text().splitlines()
        assert 4 + len(dictionary) == len(written["model"]["decoder.embed_tokens.weight"])  # 4: <s> to <unk>


def test_fairseqs_models_whose_sources_begin_with_a_language_are_written(tmp_path: Path):
    """Their own dictionaries lack the tokens of the languages."""
    main(["--to", "fairseq", str(converted("fairseq-languages").folder), str(tmp_path / "back")])
    check_dictionaries(tmp_path / "back")


def test_a_source_language_is_checked_though_no_token_names_it(tmp_path: Path, refused):
    theirs = Path(shutil.copytree(golden("fairseq-languages"), tmp_path / "theirs"))
    checkpoint = load_checkpoint(golden("fairseq-languages") / "checkpoint_best.pt")
    vars(checkpoint["cfg"]["model"]).update({"encoder_langtok": "tgt", "decoder_langtok": True})
    torch.save(checkpoint, theirs / "checkpoint_best.pt")
    given = ["--source-language", "klingon", "--target-language", "fr"]
    message = refusal(refused, theirs, tmp_path / "ours", *given)
    assert "has no language 'klingon'; convert it with --source-language: de, en, fr" in message
