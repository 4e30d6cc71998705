"""tensor2tensor's models of other forms than the fixture: its functions on checkpoints that are written here.

tensor2tensor needs TensorFlow 1, which can no longer be installed. Its source (common_attention.py, common_layers.py,
transformer_layers.py) differs from the paper in the embeddings below and in the names of its variables.
"""

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy_transformer import Array, NumpyTransformer
from tiny_models import randomise

from conversion.__main__ import main
from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.loading import load_model

BODY, STACKS = "transformer/body/", ("encoder", "decoder")


def varint(number: int) -> bytes:
    rest = b""
    while number >= 0x80:
        rest, number = rest + bytes([number & 0x7F | 0x80]), number >> 7
    return rest + bytes([number])


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Return a LevelDB block without shared key prefixes."""
    body, starts = b"", []
    for key, value in entries:
        starts.append(len(body))
        body += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    return body + b"".join(struct.pack("<I", start) for start in starts) + struct.pack("<I", len(starts))


def write_checkpoint(folder: Path, variables: dict[str, Array]) -> None:
    """Write model.ckpt-1.index and its only shard in the format of TensorFlow's tensor bundle."""
    data, entries = b"", [(b"", b"\x08\x01")]
    for name in sorted(variables):
        array = variables[name].astype("<f4")
        dimensions = b"".join(b"\x12" + varint(len(size)) + size for size in (b"\x08" + varint(n) for n in array.shape))
        entry = b"\x08\x01\x12" + varint(len(dimensions)) + dimensions
        entry += b"\x20" + varint(len(data)) + b"\x28" + varint(array.nbytes)
        entries.append((name.encode(), entry))
        data += array.tobytes()
    table = block(entries)
    index = block([(b"\xff", varint(0) + varint(len(table)))])
    place = len(table) + 5
    footer = varint(0) + varint(0) + varint(place) + varint(len(index))
    footer = footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    (folder / "model.ckpt-1.index").write_bytes(table + b"\0" * 5 + index + b"\0" * 5 + footer)
    (folder / "model.ckpt-1.data-00000-of-00001").write_bytes(data)


# Parts of our names -> tensor2tensor's, replaced in this order.
NAMES = {
    ".layers.": "/layer_",
    ".self_attn.": "/self_attention/multihead_attention/",
    ".cross_attn.": "/encdec_attention/multihead_attention/",
    ".self_attn_norm.": "/self_attention/layer_norm_",
    ".cross_attn_norm.": "/encdec_attention/layer_norm_",
    ".feed_forward_norm.": "/ffn/layer_norm_",
    ".final_norm.": "/layer_norm_",
    ".feed_forward.fc": "/ffn/conv",
    "out_proj.": "output_transform.",
    "_proj.": ".",
    "norm_weight": "norm_scale",
    ".weight": "/kernel",
    ".bias": "/bias",
}


class Tensor2Tensor(NumpyTransformer):
    """The Transformer with tensor2tensor's embeddings and variables."""

    def __init__(self, hparams: dict, source: int, target: int):
        self.hparams, shared = hparams, hparams["shared_embedding_and_softmax_weights"]
        self.pre, learned = hparams["layer_preprocess_sequence"] == "n", hparams["pos"] == "emb"
        heads = hparams["num_heads"]
        config = VaswaniTransformerConfig(
            vocab_size=source,
            decoder_vocab_size=target,
            d_model=hparams["hidden_size"],
            **{f"{stack}_layers": hparams[f"num_{stack}_layers"] or hparams["num_hidden_layers"] for stack in STACKS},
            **{f"{stack}_attention_heads": heads for stack in STACKS},
            **{f"{stack}_ffn_dim": hparams["filter_size"] for stack in STACKS},
            d_k=hparams["attention_key_channels"] // heads or None,
            d_v=hparams["attention_value_channels"] // heads or None,
            norm_position="pre" if self.pre else "post",
            layer_norm_eps=hparams["norm_epsilon"],
            position_embedding_type="learned" if learned else "sinusoidal",
            max_position_embeddings=hparams["max_length"] if learned else None,
            share_encoder_decoder_embeddings=shared,
            tie_word_embeddings=shared,
        )
        super().__init__(randomise(VaswaniTransformerForConditionalGeneration(config)))
        self.spaces = np.random.default_rng(0).normal(size=(32, config.d_model)).astype(np.float32)

    def embed(self, side: str, tokens: Sequence[int]) -> Array:
        """The target space is added to the source; a zero vector comes before the target."""
        d_model = self.hparams["hidden_size"]
        scale = d_model**0.5 if self.hparams["multiply_embedding_mode"] else 1.0
        x = self.weights[f"model.{side}.embed_tokens.weight"][list(tokens)] * scale
        x = x + self.spaces[0] if side == "encoder" else np.pad(x, ((1, 0), (0, 0)))
        if self.hparams["pos"] == "emb":
            return x + self.weights[f"model.{side}.positional_encoding.table.weight"][: len(x)]
        half = d_model // 2
        scales = np.exp(np.arange(half) * -(math.log(10000.0) / (half - 1)))
        angles = np.arange(len(x))[:, None] * scales
        return x + np.concatenate((np.sin(angles), np.cos(angles)), axis=1)

    def variables(self) -> dict[str, Array]:
        scope = f"/layer_{'prepostprocess' if self.pre else 'postprocess'}/layer_norm/layer_norm_"
        found = {"global_step": np.zeros(()), f"{BODY}target_space_embedding/kernel": self.spaces}
        for name, weight in self.weights.items():
            if ".layers." in name or ".final_norm." in name:
                for ours, theirs in NAMES.items():
                    name = name.replace(ours, theirs)
                name = BODY + name.removeprefix("model.").replace("/layer_norm_", scope)
                found[name] = weight.T if name.endswith("kernel") else weight
        for ours, theirs in (("encoder", "inputs"), ("decoder", "targets")):
            if self.hparams["pos"] == "emb":
                table = self.weights[f"model.{ours}.positional_encoding.table.weight"]
                found[f"{BODY}{theirs}_positional_embedding"] = table
        tables = {"input_emb": "model.encoder.embed_tokens", "target_emb": "model.decoder.embed_tokens"}
        for kind, name in (tables | {"softmax": "lm_head"}).items():
            table = self.weights[f"{name}.weight"]
            kind = "shared" if self.hparams["shared_embedding_and_softmax_weights"] else kind
            place = f"transformer/symbol_modality_{len(table)}_{table.shape[1]}/{kind}"
            found |= {f"{place}/weights_{n}": piece for n, piece in enumerate(np.array_split(table, 4))}
        return found


HPARAMS = {
    "hidden_size": 8,
    "filter_size": 20,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "num_encoder_layers": 0,
    "num_decoder_layers": 0,
    "attention_key_channels": 0,
    "attention_value_channels": 0,
    "layer_preprocess_sequence": "none",
    "layer_postprocess_sequence": "dan",
    "norm_epsilon": 1e-6,
    "multiply_embedding_mode": "sqrt_depth",
    "shared_embedding_and_softmax_weights": True,
    "pos": "timing",
    "max_length": 11,
}
PRE = {"layer_preprocess_sequence": "n", "layer_postprocess_sequence": "da"}
UNTIED = {"shared_embedding_and_softmax_weights": False}


def convert(theirs: Tensor2Tensor, folder: Path) -> VaswaniTransformerForConditionalGeneration:
    write_checkpoint(folder, theirs.variables())
    (folder / "hparams.json").write_text(json.dumps(theirs.hparams))
    main([str(folder), str(folder / "ours")])
    return load_model(folder / "ours", device="cpu")


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        (PRE | UNTIED, (19, 14)),
        (PRE | {"num_encoder_layers": 1, "num_decoder_layers": 3, "norm_epsilon": 1e-3}, (14, 14)),
        (UNTIED | {"attention_key_channels": 12, "attention_value_channels": 20}, (14, 17)),
        ({"multiply_embedding_mode": ""}, (15, 15)),
        ({"pos": "emb"}, (14, 14)),
    ],
    ids=["prenorm-untied", "depths", "d_k-d_v", "unscaled", "learned-positions"],
)
def test_variants_have_tensor2tensors_logits(changes: dict, sizes: tuple[int, int], tmp_path: Path):
    theirs = Tensor2Tensor(HPARAMS | changes, *sizes)
    model = convert(theirs, tmp_path)
    start = model.config.decoder_start_token_id
    for source, target in (([5, 9, 7, 11, 1], [4, 6, 11]), ([8, 1], [12, 2, 5, 7, 3])):
        with torch.inference_mode():
            ours = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[start, *target]])).logits
        expected = theirs.logits(theirs.encode(source), target)
        assert np.abs(ours[0, :, : sizes[1]].numpy() - expected).max() <= 1e-5


def test_explicit_default_channels_are_the_default(tmp_path: Path):
    """Otherwise d_k would be a setting that no other format supports."""
    channels = {f"attention_{name}_channels": HPARAMS["hidden_size"] for name in ("key", "value")}
    config = convert(Tensor2Tensor(HPARAMS | channels, 14, 14), tmp_path).config
    assert (config.d_k, config.d_v) == (None, None)
