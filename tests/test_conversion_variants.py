"""Random models of torch and transformers with other sizes and options than the fixtures', and their logits."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from golden import converted, golden, refusal
from safetensors.torch import load_file, save_file, save_model
from saved_model import change_json
from tiny_models import padded, randomise
from torch import Tensor, nn
from transformers import AutoTokenizer, FSMTConfig, FSMTForConditionalGeneration, MarianConfig, MarianMTModel

from conversion.__main__ import main
from conversion.checkpoint_files import load_checkpoint
from conversion.layout import PAPER
from conversion.toolkits import marian
from vaswani_transformer.loading import load_model
from vaswani_transformer.sentences_vaswani_transformer import LanguageTokens

SENTENCES = [[5, 9, 7, 11, 3], [8, 4, 3], [6, 10, 12, 12, 9, 5, 3]]
TARGETS = torch.tensor([[2, 5, 6, 11, 7], [2, 4, 4, 9, 10], [2, 12, 5, 8, 4]])


def difference(folder: Path, batch: dict[str, Tensor], theirs: Tensor) -> float:
    with torch.inference_mode():
        ours = load_model(folder, device="cpu")(**batch, decoder_input_ids=TARGETS).logits
    return (ours[..., : theirs.shape[-1]] - theirs).abs().max().item()


@pytest.mark.parametrize(
    ("version", "expected"),
    [("v1.9.0", "quick_gelu"), ("v1.11.14 5c", "quick_gelu"), ("v1.12.0", "gelu"), ("2.0", "gelu"), (None, "gelu")],
)
def test_marians_gelu_depends_on_its_version(version: str | None, expected: str):
    assert marian.choose_activation({"transformer-ffn-activation": "gelu", "version": version}) == expected


def test_fairseqs_languages_are_tokens_after_the_dictionary():
    """translation_multi_simple_epoch appends them to the dictionaries when it loads them."""
    tokenizer = AutoTokenizer.from_pretrained(converted("fairseq-languages").folder)
    assert tokenizer("__fr__ w4 w5").input_ids == [16, 4, 5, 2]
    assert LanguageTokens(tokenizer.backend_tokenizer).names == ["de", "en", "fr"]


class TutorialTransformer(nn.Module):
    """The module of torch's translation tutorial."""

    def __init__(self, source=13, target=13, d_model=16, tied=False, learned=False, nhead=4, **options: Any):
        super().__init__()
        self.transformer = nn.Transformer(d_model, nhead, dropout=0.0, batch_first=True, **options)
        self.src_tok_emb = nn.Embedding(source, d_model)
        self.tgt_tok_emb = nn.Embedding(target, d_model)
        self.generator = nn.Linear(d_model, target, bias=options.get("bias", True))
        if tied:
            self.tgt_tok_emb.weight = self.generator.weight
        if learned:
            self.positions = nn.Embedding(32, d_model)
        else:
            self.register_buffer("pos_embedding", PAPER.table(32, d_model).float())
        self.scale, self.learned = d_model**0.5, learned
        randomise(self)

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        table = self.positions.weight if self.learned else self.get_buffer("pos_embedding")
        padding = torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf)
        states = self.transformer(
            self.src_tok_emb(source) * self.scale + table[: source.shape[1]],
            self.tgt_tok_emb(target) * self.scale + table[: target.shape[1]],
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.generator(states)

    def save(self, folder: Path, **config: Any) -> None:
        """Write the state_dict, config.json and the word lists."""
        torch.save(self.state_dict(), folder / "model.pt")
        (folder / "config.json").write_text(json.dumps(config))
        for side, table in (("src", self.src_tok_emb), ("tgt", self.tgt_tok_emb)):
            words = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"w{n}" for n in range(table.num_embeddings - 4))]
            (folder / f"vocab.{side}.txt").write_text("\n".join(words) + "\n")


# torch warns that these options have no faster path.
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "options",
    [
        {"norm_first": True, "activation": "gelu"},
        {"bias": False},
        {"tied": True, "nhead": 2},
        {"learned": True, "num_encoder_layers": 1, "num_decoder_layers": 3},
        {"source": 19, "target": 13, "layer_norm_eps": 1e-3},
    ],
    ids=str,
)
def test_variants_have_the_logits_of_torch(options: dict, tmp_path: Path):
    options = {"nhead": 4, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 24} | options
    model = TutorialTransformer(**options)
    model.save(tmp_path, **options)
    main([str(tmp_path), str(tmp_path / "ours")])
    batch = padded(SENTENCES)
    with torch.inference_mode():
        theirs = model(batch["input_ids"], batch["attention_mask"], TARGETS)
    assert difference(tmp_path / "ours", batch, theirs) <= 1e-5


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_options_beside_a_state_dict_do_not_make_it_fairseqs(tmp_path: Path):
    """Training scripts save {"model": ..., "args": ...}, as fairseq does, and some modules are an nn.Transformer."""
    model = TutorialTransformer(num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=8)
    model.save(tmp_path, nhead=4)
    weights = {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items()}
    torch.save({"model": weights, "args": argparse.Namespace(lr=0.1)}, tmp_path / "model.pt")
    main([str(tmp_path), str(tmp_path / "ours")])
    assert json.loads((tmp_path / "ours" / "conversion.json").read_text())["toolkit"] == "torch-nn-transformer"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "name", ["torch-nn-transformer", "annotated-transformer", "pytorch-seq2seq", "pytorch-transformer"]
)
def test_tutorials_weights_may_be_in_a_trainers_checkpoint(name: str, tmp_path: Path):
    """As DataParallel names them, beside the state of an optimizer."""
    theirs = shutil.copytree(golden(name), tmp_path / "theirs")
    (file,) = theirs.glob("*.pt*")
    saved = load_checkpoint(file)
    weights = {f"module.{name}": tensor.clone() for name, tensor in saved.get("model_state_dict", saved).items()}
    torch.save({"epoch": 3, "model_state_dict": weights, "optimizer": {"state": {0: {}}}}, file)
    main([str(theirs), str(tmp_path / "ours")])
    expected = load_file(converted(name).folder / "model.safetensors")
    for name, tensor in load_file(tmp_path / "ours" / "model.safetensors").items():
        assert torch.equal(tensor, expected[name])


def test_languages_of_tokenizers_are_told_by_their_sizes_or_by_name(tmp_path: Path, refused):
    theirs = shutil.copytree(golden("pytorch-transformer"), tmp_path / "theirs")
    (theirs / "tokenizer_en.json").rename(theirs / "tokenizer_zz.json")  # the sizes differ
    main([str(theirs), str(tmp_path / "sizes")])
    expected = Path(converted("pytorch-transformer").folder / "tokenizer.json").read_text()
    assert (tmp_path / "sizes" / "tokenizer.json").read_text() == expected

    file = theirs / "tmodel_19.pt"
    state = {name: tensor.clone() for name, tensor in load_checkpoint(file)["model_state_dict"].items()}
    state["src_embed.embedding.weight"] = state["tgt_embed.embedding.weight"]
    torch.save(state, file)
    shutil.copy(theirs / "tokenizer_it.json", theirs / "tokenizer_zz.json")
    message = refusal(refused, theirs, tmp_path / "ours")
    assert "tokenizer_it.json has 14 tokens, tokenizer_zz.json has 14 tokens" in message
    assert 'name the languages of source and target in config.json, as {"lang_src": "en"' in message
    change_json(theirs / "config.json", lang_src="zz", lang_tgt="it")
    main([str(theirs), str(tmp_path / "ours")])


@pytest.mark.parametrize(
    "content", ["{", "{}", "[]", '{"model": {"type": "WordLevel", "vocab": {"a": 7}, "unk_token": "a"}}']
)
def test_a_broken_tokenizer_of_a_tutorial_is_named(content: str, tmp_path: Path, refused):
    theirs = shutil.copytree(golden("pytorch-transformer"), tmp_path / "theirs")
    (theirs / "tokenizer_it.json").write_text(content)
    assert "tokenizer_it.json" in refusal(refused, theirs, tmp_path / "ours", code=3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_module_may_come_as_safetensors_with_a_vocabulary_of_characters_in_json(tmp_path: Path, capsys):
    """As PyTorchModelHubMixin saves it; a vocabulary of characters needs no token for others."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    TutorialTransformer(num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=8).save(theirs, nhead=4)
    save_file(load_checkpoint(theirs / "model.pt"), theirs / "model.safetensors")
    characters = ["<PAD>", "<SOS>", "<EOS>", " ", "\n", *"abcdefgh"]
    for side in ("src", "tgt"):
        (theirs / f"vocab.{side}.txt").unlink()
    (theirs / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(characters)}))
    (theirs / "model.pt").unlink()
    main([str(theirs), str(tmp_path / "ours")])
    assert "log-probabilities of 40 tokens differ from torch-nn-transformer's by at most" in capsys.readouterr().out
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    text = "abc fed\nha"
    assert tokenizer(text).input_ids == [1, *map(characters.index, text), 2]
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert tokenizer("aXb").input_ids == [1, 5, 0, 6, 2]


SIZES: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "max_position_embeddings": 32,
}  # fmt: skip


def save_and_compare(model: Any, folder: Path, pad: int, *left_out: str, max_shard_size: str = "50GB") -> float:
    """Convert a random model of transformers; return the largest difference between the logits of the two.

    left_out: settings that are removed from its config.json
    """
    model.save_pretrained(folder / "theirs", max_shard_size=max_shard_size)
    file = folder / "theirs" / "config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in settings.items() if name not in left_out}))
    main([str(folder / "theirs"), str(folder / "ours")])
    batch = padded(SENTENCES, pad=pad)
    with torch.inference_mode():
        theirs = model(**batch, decoder_input_ids=TARGETS, use_cache=False).logits
    return difference(folder / "ours", batch, theirs)


@pytest.mark.parametrize("activation", ["swish", "relu", "gelu", None])
@pytest.mark.parametrize("shared", [True, False])
def test_marian_models_have_the_logits_of_transformers(shared: bool, activation: str | None, tmp_path: Path):
    """None: the settings that have defaults are left out."""
    settings: dict[str, Any] = SIZES | {
        "vocab_size": 17,
        "decoder_vocab_size": 17 if shared else 14,
        "share_encoder_decoder_embeddings": shared,
        "pad_token_id": 13,
        "decoder_start_token_id": 13,
        "eos_token_id": 0,
        "forced_eos_token_id": None,
    }
    if activation:
        settings |= {"activation_function": activation, "scale_embedding": shared}
    model = MarianMTModel(MarianConfig(**settings))
    randomise(model)
    model.get_buffer("final_logits_bias").normal_()
    left_out = () if activation else ("activation_function", "scale_embedding")
    assert save_and_compare(model, tmp_path, 13, *left_out) <= 1e-5


def test_weights_of_transformers_may_be_in_several_files(tmp_path: Path):
    model = MarianMTModel(MarianConfig(**SIZES, vocab_size=17, pad_token_id=13, decoder_start_token_id=13))
    randomise(model)
    assert save_and_compare(model, tmp_path, 13, max_shard_size="9KB") <= 1e-5
    assert len(list((tmp_path / "theirs").glob("model-*.safetensors"))) > 1


@pytest.mark.parametrize("tied", [True, False])
def test_fsmt_models_have_the_logits_of_transformers(tied: bool, tmp_path: Path):
    sizes = SIZES | {"src_vocab_size": 17, "tgt_vocab_size": 17 if tied else 14, "tie_word_embeddings": tied}
    model = FSMTForConditionalGeneration(FSMTConfig(langs=["en", "de"], activation_function="relu", **sizes))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("embed_positions" not in name)
    randomise(model)
    with torch.no_grad():
        for embedding in (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens):
            embedding.weight[1] = 0
    assert save_and_compare(model, tmp_path, 1) <= 1e-5


def eole_folder(folder: Path, tensors: dict[str, Tensor] | None = None, name: str = "eole", **options: Any) -> Path:
    """Return a copy of a checkpoint of eole, with other options of the model and other tensors if they are given."""
    shutil.copytree(golden(name), folder)
    settings = json.loads((folder / "config.json").read_text())
    for option, value in options.items():
        *part, option = option.split("__")
        place = settings["model"][part[0]] if part else settings["model"]
        place[option] = value
    (folder / "config.json").write_text(json.dumps(settings))
    if tensors is not None:
        save_file(tensors, folder / "model.00.safetensors")
    return folder


def same_weights(folder: Path, other: Path) -> bool:
    found, expected = (load_file(path / "model.safetensors") for path in (folder, other))
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        ({"share_embeddings": True}, {"tgt_emb.embeddings.weight": "src_emb.embeddings.weight"}),
        ({"share_decoder_embeddings": True}, {"generator.weight": "tgt_emb.embeddings.weight"}),
    ],
)
def test_eole_saves_matrices_once_that_its_options_share(options: dict, copies: dict, tmp_path: Path, refused):
    tensors = load_file(golden("eole") / "model.00.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if name not in copies}
    all_of_them = kept | {name: kept[copy].clone() for name, copy in copies.items()}
    main([str(eole_folder(tmp_path / "all", all_of_them)), str(tmp_path / "expected")])
    main([str(eole_folder(tmp_path / "kept", kept, **options)), str(tmp_path / "ours")])
    assert same_weights(tmp_path / "ours", tmp_path / "expected")
    (missing,) = copies
    message = refusal(refused, eole_folder(tmp_path / "lost", kept), tmp_path / "out", code=3)
    assert f"tensor {missing} is missing" in message


@pytest.mark.parametrize("missing", ["generator.bias", "decoder.transformer_layers.1.self_attn.linear_keys.bias"])
def test_a_missing_bias_of_eole_is_no_zero(missing: str, tmp_path: Path, refused):
    tensors = load_file(golden("eole-biases") / "model.00.safetensors")
    del tensors[missing]
    message = refusal(refused, eole_folder(tmp_path / "theirs", tensors, "eole-biases"), tmp_path / "out", code=3)
    assert f"tensor {missing} is missing" in message


def test_the_positions_of_eole_are_those_of_its_table(tmp_path: Path, refused):
    """Until version 0.5, which saved the tables; an option of `model` is also the embeddings'."""
    kind = "SinusoidalConcat"
    folder = eole_folder(tmp_path / "other", embeddings__position_encoding_type=kind, position_encoding_type=kind)
    assert "unexpected tensor src_emb.pe.pe" in refusal(refused, folder, tmp_path / "out", code=3)
    tensors = {name: t for name, t in load_file(folder / "model.00.safetensors").items() if not name.endswith("pe.pe")}
    save_file(tensors, folder / "model.00.safetensors")
    main([str(folder), str(tmp_path / "expected")])
    settings = json.loads((folder / "config.json").read_text())
    for part in ("embeddings", "encoder", "decoder"):
        settings["model"][part].pop("position_encoding_type")
    (folder / "config.json").write_text(json.dumps(settings))
    main([str(folder), str(tmp_path / "ours")])
    assert same_weights(tmp_path / "ours", tmp_path / "expected")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tied_matrices_of_a_module_may_be_saved_once(tmp_path: Path):
    """As PyTorchModelHubMixin saves them: under the first name, with the others in the metadata."""
    model = TutorialTransformer(tied=True, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=8)
    model.save(tmp_path, nhead=4)
    (tmp_path / "model.pt").unlink()
    save_model(model, str(tmp_path / "model.safetensors"))
    assert "tgt_tok_emb.weight" not in load_file(tmp_path / "model.safetensors")
    main([str(tmp_path), str(tmp_path / "ours")])
    batch = padded(SENTENCES)
    with torch.inference_mode():
        theirs = model(batch["input_ids"], batch["attention_mask"], TARGETS)
    assert difference(tmp_path / "ours", batch, theirs) <= 1e-5


@pytest.mark.parametrize("name", ["joeynmt", "opennmt-py", "sockeye", "annotated-transformer"])
def test_tables_of_sinusoids_may_be_rounded_to_bfloat16(name: str, tmp_path: Path):
    theirs = shutil.copytree(golden(name), tmp_path / "theirs")
    (file,) = (file for suffix in ("*.pt", "*.ckpt", "params.best") for file in theirs.glob(suffix))
    content = load_checkpoint(file)
    for part in (content, *(content.get(key, {}) for key in ("model", "generator", "model_state"))):
        part |= {key: value.bfloat16() for key, value in part.items() if torch.is_tensor(value)}
    torch.save(content, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)
    main([str(theirs), str(tmp_path / "ours")])
    found, expected = (load_file(path / "model.safetensors") for path in (tmp_path / "ours", converted(name).folder))
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[key], expected[key], rtol=2**-8, atol=1e-3) for key in expected)
