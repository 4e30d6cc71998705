"""Random models of each toolkit with other sizes and options than the fixtures', and the logits that it computed.

Those of installed frameworks are made here; the others are in fixtures/variants, with the scripts that made them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import padded
from golden import FIXTURES, Golden
from torch import Tensor, nn
from transformers import FSMTConfig, FSMTForConditionalGeneration, MarianConfig, MarianMTModel

from conversion.__main__ import main
from conversion.layout import PAPER
from conversion.toolkits import marian
from vaswani_transformer.loading import load_model

SENTENCES = [[5, 9, 7, 11, 3], [8, 4, 3], [6, 10, 12, 12, 9, 5, 3]]
TARGETS = torch.tensor([[2, 5, 6, 11, 7], [2, 4, 4, 9, 10], [2, 12, 5, 8, 4]])


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """Make every parameter random, including norms and biases, so that a swapped one is detected."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape)
                parameter.copy_(1 + 0.2 * noise if "norm" in name and name.endswith("weight") else 0.3 * noise)
    return module.eval()


def difference(folder: Path, batch: dict[str, Tensor], theirs: Tensor) -> float:
    with torch.inference_mode():
        ours = load_model(folder, device="cpu")(**batch, decoder_input_ids=TARGETS).logits
    return (ours[..., : theirs.shape[-1]] - theirs).abs().max().item()


def write_words(file: Path, special: list[str], count: int) -> None:
    file.write_text("".join(f"{word}\n" for word in [*special, *(f"w{n}" for n in range(count - len(special)))]))


VARIANTS = sorted(file.parent.name for file in (FIXTURES / "variants").glob("*/expected.npz"))


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_have_their_toolkits_logits(name: str, tmp_path: Path):
    folder = FIXTURES / "variants" / name
    main([str(folder), str(tmp_path / "ours")])
    with np.load(folder / "expected.npz") as expected:
        variant = Golden(name, folder, tmp_path / "ours", dict(expected), [])
    theirs = torch.from_numpy(variant.expected["logits"])
    ours = variant.logits(variant.expected["tgt_in_ids"])[..., : theirs.shape[-1]]
    assert theirs.std() > 0.3
    assert (ours - theirs).abs().max().item() <= 1e-5


@pytest.mark.parametrize("name", sorted(file.parent.name for file in (FIXTURES / "variants").glob("*/printed.npz")))
def test_variants_of_marian_have_the_printed_scores(name: str, tmp_path: Path):
    folder = FIXTURES / "variants" / name
    main([str(folder), str(tmp_path / "ours")])
    variant = Golden(name, folder, tmp_path / "ours", {}, [])
    start = variant.model.config.decoder_start_token_id
    source_tokenizer, target_tokenizer = variant.tokenizer(), variant.tokenizer("target")
    with np.load(folder / "printed.npz") as printed:
        for row, words, scores in zip(printed["rows"], printed["words"], printed["word_scores"], strict=True):
            source = source_tokenizer(str(printed["sources"][row]), return_tensors="pt")["input_ids"]
            scores = scores[~np.isnan(scores)]
            # At the longest length that it was told a hypothesis ends without </s>.
            target = target_tokenizer(str(words), return_tensors="pt")["input_ids"][:, : len(scores)]
            decoder_input = torch.cat((torch.tensor([[start]]), target[:, :-1]), dim=1)
            with torch.inference_mode():
                logits = variant.model(input_ids=source, decoder_input_ids=decoder_input).logits
            ours = logits.double().log_softmax(-1).gather(-1, target[..., None])[0, :, 0].numpy()
            assert np.abs(ours - scores).max() <= 2e-5, (words, ours, scores)  # five digits


@pytest.mark.parametrize(
    ("version", "expected"),
    [("v1.9.0", "quick_gelu"), ("v1.11.14 5c", "quick_gelu"), ("v1.12.0", "gelu"), ("2.0", "gelu"), (None, "gelu")],
)
def test_marians_gelu_depends_on_its_version(version: str | None, expected: str):
    assert marian.activation({"transformer-ffn-activation": "gelu", "version": version}) == expected


class TutorialTransformer(nn.Module):
    """The module of torch's translation tutorial."""

    def __init__(self, source: int, target: int, d_model: int, tied: bool, learned: bool, **options):
        super().__init__()
        self.transformer = nn.Transformer(d_model, dropout=0.0, batch_first=True, **options)
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

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        table = self.positions.weight if self.learned else self.get_buffer("pos_embedding")
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.transformer(
            self.src_tok_emb(source) * self.scale + table[: source.shape[1]],
            self.tgt_tok_emb(target) * self.scale + table[: target.shape[1]],
            tgt_mask=causal,
            src_key_padding_mask=torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf),
            memory_key_padding_mask=torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf),
        )
        return self.generator(states)


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
def test_variants_of_torch_transformers(options: dict, tmp_path: Path):
    sizes = {"source": 13, "target": 13, "d_model": 16, "tied": False, "learned": False, "nhead": 4}
    sizes |= {"num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 24} | options
    model = randomised(TutorialTransformer(**sizes))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    special = ["<unk>", "<pad>", "<bos>", "<eos>"]
    write_words(tmp_path / "vocab.src.txt", special, sizes["source"])
    write_words(tmp_path / "vocab.tgt.txt", special, sizes["target"])
    main([str(tmp_path), str(tmp_path / "ours")])
    batch = padded(SENTENCES)
    with torch.inference_mode():
        theirs = model(batch["input_ids"], batch["attention_mask"], TARGETS)
    assert difference(tmp_path / "ours", batch, theirs) <= 1e-5


SIZES: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "max_position_embeddings": 32,
}  # fmt: skip


def marian_of_transformers(**changes: Any) -> MarianMTModel:
    settings: dict[str, Any] = SIZES | {"vocab_size": 17, "pad_token_id": 13, "decoder_start_token_id": 13}
    settings |= {"eos_token_id": 0, "forced_eos_token_id": None} | changes
    model = MarianMTModel(MarianConfig(**settings))
    randomised(model)
    model.get_buffer("final_logits_bias").normal_()
    return model


def converted_difference(model: torch.nn.Module, folder: Path, pad: int = 1) -> float:
    """Convert a model, saved in folder/theirs; return the largest difference between the logits of the two."""
    main([str(folder / "theirs"), str(folder / "ours")])
    batch = padded(SENTENCES, pad=pad)
    with torch.inference_mode():
        theirs = model(**batch, decoder_input_ids=TARGETS, use_cache=False).logits
    return difference(folder / "ours", batch, theirs)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("activation", ["swish", "relu", "gelu"])
def test_marian_models_of_transformers(shared: bool, activation: str, tmp_path: Path):
    model = marian_of_transformers(
        decoder_vocab_size=17 if shared else 14,
        share_encoder_decoder_embeddings=shared,
        activation_function=activation,
        scale_embedding=shared,
    )
    model.save_pretrained(tmp_path / "theirs")
    assert converted_difference(model, tmp_path, pad=13) <= 1e-5


def test_missing_settings_of_marian_models_have_defaults(tmp_path: Path):
    model = marian_of_transformers()
    model.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    said = json.loads(path.read_text())
    del said["scale_embedding"], said["activation_function"]
    path.write_text(json.dumps(said))
    assert converted_difference(model, tmp_path, pad=13) <= 1e-5


@pytest.mark.parametrize("tied", [True, False])
def test_fsmt_models_of_transformers(tied: bool, tmp_path: Path):
    sizes: dict[str, Any] = SIZES | {
        "src_vocab_size": 17,
        "tgt_vocab_size": 17 if tied else 14,
        "tie_word_embeddings": tied,
    }
    config = FSMTConfig(langs=["en", "de"], activation_function="relu", **sizes)
    model = FSMTForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("embed_positions" not in name)
    randomised(model)
    with torch.no_grad():
        for embedding in (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens):
            embedding.weight[1] = 0
    model.save_pretrained(tmp_path / "theirs")
    assert converted_difference(model, tmp_path) <= 1e-5
