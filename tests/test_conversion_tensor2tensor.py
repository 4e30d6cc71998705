"""tensor2tensor's models of other forms than the fixture: its own functions in numpy on checkpoints written here.

TensorFlow 1 is what tensor2tensor needs and what nobody can install any more. The functions below are those of its
source (common_attention.py, common_layers.py, transformer_layers.py), on its own variables.
"""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from conversion.__main__ import main
from vaswani_transformer.loading import load_model

Array = np.ndarray
BODY = "transformer/body/"


def varint(number: int) -> bytes:
    rest = b""
    while number >= 0x80:
        rest, number = rest + bytes([number & 0x7F | 0x80]), number >> 7
    return rest + bytes([number])


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """A block of LevelDB in which no key shares letters with the one before."""
    body, starts = b"", []
    for key, value in entries:
        starts.append(len(body))
        body += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    return body + b"".join(struct.pack("<I", start) for start in starts) + struct.pack("<I", len(starts))


def write_checkpoint(folder: Path, variables: dict[str, Array]) -> None:
    """model.ckpt-1.index and its one shard, as TensorFlow's tensor bundle has them."""
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


class Tensor2Tensor:
    """The variables of a Transformer, and its logits for one sentence."""

    def __init__(self, hparams: dict, source: int, target: int, seed: int = 0):
        self.hparams, self.random = hparams, np.random.default_rng(seed)
        self.variables: dict[str, Array] = {}
        d_model, pre = hparams["hidden_size"], hparams["layer_preprocess_sequence"] == "n"
        self.scope = "layer_prepostprocess" if pre else "layer_postprocess"
        keys, values = hparams["attention_key_channels"], hparams["attention_value_channels"]
        for stack, kinds in (("encoder", ["self"]), ("decoder", ["self", "encdec"])):
            for n in range(hparams[f"num_{stack}_layers"] or hparams["num_hidden_layers"]):
                layer = f"{BODY}{stack}/layer_{n}"
                for kind in kinds:
                    name = f"{layer}/{kind}_attention"
                    for part, size in (("q", keys), ("k", keys), ("v", values)):
                        self.add(f"{name}/multihead_attention/{part}/kernel", d_model, size or d_model)
                    self.add(f"{name}/multihead_attention/output_transform/kernel", values or d_model, d_model)
                    self.add_norm(name, d_model)
                for part, *shape in (
                    ("conv1", d_model, hparams["filter_size"]),
                    ("conv2", hparams["filter_size"], d_model),
                ):
                    self.add(f"{layer}/ffn/{part}/kernel", *shape)
                    self.add(f"{layer}/ffn/{part}/bias", shape[1])
                self.add_norm(f"{layer}/ffn", d_model)
            if pre:
                self.add_norm(f"{BODY}{stack}", d_model)
        self.add(f"{BODY}target_space_embedding/kernel", 32, d_model)
        if hparams["pos"] == "emb":
            self.add(f"{BODY}inputs_positional_embedding", hparams["max_length"], d_model)
            self.add(f"{BODY}targets_positional_embedding", hparams["max_length"], d_model)
        shared = hparams["shared_embedding_and_softmax_weights"]
        self.tables = []
        for kind, size in (("input_emb", source), ("target_emb", target), ("softmax", target)):
            place = f"transformer/symbol_modality_{size}_{d_model}/{'shared' if shared else kind}"
            self.tables.append(place)
            for shard in range(4):
                rows = size // 4 + (shard < size % 4)
                if f"{place}/weights_{shard}" not in self.variables:
                    self.add(f"{place}/weights_{shard}", rows, d_model)

    def add(self, name: str, *shape: int) -> None:
        self.variables[name] = (0.4 * self.random.normal(size=shape)).astype(np.float32)

    def add_norm(self, name: str, d_model: int) -> None:
        norm = f"{name}/{self.scope}/layer_norm/layer_norm"
        self.add(f"{norm}_scale", d_model)
        self.variables[f"{norm}_scale"] += 1
        self.add(f"{norm}_bias", d_model)

    def table(self, kind: int) -> Array:
        return np.concatenate([self.variables[f"{self.tables[kind]}/weights_{n}"] for n in range(4)]).astype(float)

    def norm(self, name: str, x: Array) -> Array:
        norm = f"{name}/{self.scope}/layer_norm/layer_norm"
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.hparams["norm_epsilon"])
        return normed * self.variables[f"{norm}_scale"] + self.variables[f"{norm}_bias"]

    def attention(self, name: str, x: Array, memory: Array, causal: bool) -> Array:
        heads, name = self.hparams["num_heads"], f"{name}/multihead_attention"
        q, k, v = (
            (of @ self.variables[f"{name}/{part}/kernel"]).reshape(len(of), heads, -1).transpose(1, 0, 2)
            for part, of in (("q", x), ("k", memory), ("v", memory))
        )
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(0, 2, 1)
        if causal:
            scores = scores + np.triu(np.full(scores.shape[1:], -1e9), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        context = weights / weights.sum(-1, keepdims=True) @ v
        return context.transpose(1, 0, 2).reshape(len(x), -1) @ self.variables[f"{name}/output_transform/kernel"]

    def feed_forward(self, name: str, x: Array) -> Array:
        inner = np.maximum(x @ self.variables[f"{name}/conv1/kernel"] + self.variables[f"{name}/conv1/bias"], 0)
        return inner @ self.variables[f"{name}/conv2/kernel"] + self.variables[f"{name}/conv2/bias"]

    def positions(self, length: int, side: str) -> Array:
        if self.hparams["pos"] == "emb":
            return self.variables[f"{BODY}{side}_positional_embedding"][:length]
        half = self.hparams["hidden_size"] // 2
        scales = np.exp(np.arange(half) * -(np.log(10000.0) / (half - 1)))
        angles = np.arange(length)[:, None] * scales[None]
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    def stack(self, stack: str, x: Array, memory: Array | None) -> Array:
        pre = self.hparams["layer_preprocess_sequence"] == "n"

        def sublayer(name: str, x: Array, function) -> Array:
            return x + function(self.norm(name, x)) if pre else self.norm(name, x + function(x))

        for n in range(self.hparams[f"num_{stack}_layers"] or self.hparams["num_hidden_layers"]):
            name = f"{BODY}{stack}/layer_{n}"
            own = f"{name}/self_attention"
            x = sublayer(own, x, lambda y, own=own: self.attention(own, y, y, memory is not None))
            if memory is not None:
                cross = f"{name}/encdec_attention"
                x = sublayer(cross, x, lambda y, cross=cross: self.attention(cross, y, memory, False))
            x = sublayer(f"{name}/ffn", x, lambda y, name=name: self.feed_forward(f"{name}/ffn", y))
        return self.norm(f"{BODY}{stack}", x) if pre else x

    def logits(self, source: list[int], target: list[int]) -> Array:
        """target: the tokens before each position; a zero vector is before the first."""
        scale = self.hparams["hidden_size"] ** 0.5 if self.hparams["multiply_embedding_mode"] else 1.0
        space = self.variables[f"{BODY}target_space_embedding/kernel"][0]
        x = self.table(0)[source] * scale + space + self.positions(len(source), "inputs")
        y = np.concatenate([np.zeros((1, x.shape[1])), self.table(1)[target] * scale])
        y = self.stack("decoder", y + self.positions(len(y), "targets"), self.stack("encoder", x, None))
        return y @ self.table(2).T


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
def test_variants_have_the_logits_of_tensor2tensors_functions(changes: dict, sizes: tuple[int, int], tmp_path: Path):
    theirs = Tensor2Tensor(HPARAMS | changes, *sizes)
    write_checkpoint(tmp_path, theirs.variables | {"global_step": np.zeros(())})
    (tmp_path / "hparams.json").write_text(json.dumps(theirs.hparams))
    main([str(tmp_path), str(tmp_path / "ours")])
    model = load_model(tmp_path / "ours", device="cpu")
    start = model.config.decoder_start_token_id
    for source, target in (([5, 9, 7, 11, 1], [4, 6, 11]), ([8, 1], [12, 2, 5, 7, 3])):
        with torch.inference_mode():
            ours = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[start, *target]])).logits
        expected = theirs.logits(source, target)
        assert np.abs(ours[0, :, : sizes[1]].numpy() - expected).max() <= 1e-5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pos": "asymmetric_timing"}, "hparams.pos is 'asymmetric_timing'"),
        ({"self_attention_type": "dot_product_relative"}, "hparams.self_attention_type is 'dot_product_relative'"),
        ({"layer_preprocess_sequence": "n", "layer_postprocess_sequence": "dan"}, "layer_preprocess_sequence 'n' with"),
    ],
)
def test_other_hparams_are_refused_in_their_own_words(changes: dict, reason: str, tmp_path: Path, capsys):
    theirs = Tensor2Tensor(HPARAMS, 14, 14)
    write_checkpoint(tmp_path, theirs.variables)
    (tmp_path / "hparams.json").write_text(json.dumps(theirs.hparams | changes))
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path), str(tmp_path / "ours")])
    assert stop.value.code == 2 and reason in capsys.readouterr().err
