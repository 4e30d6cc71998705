"""tensor2tensor's models of other forms than the fixture: its functions on checkpoints that are written here.

tensor2tensor needs TensorFlow 1, which can no longer be installed. The functions below follow its source
(common_attention.py, common_layers.py, transformer_layers.py) and use its variables.
"""

import json
import math
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

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

    def variable(self, name: str) -> Tensor:
        return torch.from_numpy(self.variables[name]).double()

    def table(self, kind: int) -> Tensor:
        return torch.cat([self.variable(f"{self.tables[kind]}/weights_{n}") for n in range(4)])

    def norm(self, name: str, x: Tensor) -> Tensor:
        norm = f"{name}/{self.scope}/layer_norm/layer_norm"
        scale, bias = self.variable(f"{norm}_scale"), self.variable(f"{norm}_bias")
        return F.layer_norm(x, x.shape[-1:], scale, bias, self.hparams["norm_epsilon"])

    def attention(self, name: str, x: Tensor, memory: Tensor, causal: bool) -> Tensor:
        heads, name = self.hparams["num_heads"], f"{name}/multihead_attention"
        q, k, v = (
            (states @ self.variable(f"{name}/{part}/kernel")).unflatten(-1, (heads, -1)).transpose(0, 1)
            for part, states in (("q", x), ("k", memory), ("v", memory))
        )
        context = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1).flatten(1)
        return context @ self.variable(f"{name}/output_transform/kernel")

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        inner = F.relu(x @ self.variable(f"{name}/conv1/kernel") + self.variable(f"{name}/conv1/bias"))
        return inner @ self.variable(f"{name}/conv2/kernel") + self.variable(f"{name}/conv2/bias")

    def positions(self, length: int, side: str) -> Tensor:
        if self.hparams["pos"] == "emb":
            return self.variable(f"{BODY}{side}_positional_embedding")[:length]
        half = self.hparams["hidden_size"] // 2
        scales = torch.exp(torch.arange(half).double() * -(math.log(10000.0) / (half - 1)))
        angles = torch.arange(length)[:, None] * scales
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    def stack(self, stack: str, x: Tensor, memory: Tensor | None) -> Tensor:
        pre = self.hparams["layer_preprocess_sequence"] == "n"

        def sublayer(name: str, function: Callable[[Tensor], Tensor]) -> Tensor:
            return x + function(self.norm(name, x)) if pre else self.norm(name, x + function(x))

        for n in range(self.hparams[f"num_{stack}_layers"] or self.hparams["num_hidden_layers"]):
            layer = f"{BODY}{stack}/layer_{n}"
            attention = partial(self.attention, f"{layer}/self_attention", causal=memory is not None)
            x = sublayer(f"{layer}/self_attention", lambda y, attention=attention: attention(y, y))
            if memory is not None:
                name = f"{layer}/encdec_attention"
                x = sublayer(name, partial(self.attention, name, memory=memory, causal=False))
            x = sublayer(f"{layer}/ffn", partial(self.feed_forward, f"{layer}/ffn"))
        return self.norm(f"{BODY}{stack}", x) if pre else x

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        """target: the tokens before each position; a zero vector is before the first."""
        scale = self.hparams["hidden_size"] ** 0.5 if self.hparams["multiply_embedding_mode"] else 1.0
        space = self.variable(f"{BODY}target_space_embedding/kernel")[0]
        x = self.table(0)[source] * scale + space + self.positions(len(source), "inputs")
        y = F.pad(self.table(1)[target] * scale, (0, 0, 1, 0))
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
def test_variants_have_tensor2tensors_logits(changes: dict, sizes: tuple[int, int], tmp_path: Path):
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
        assert (ours[0, :, : sizes[1]] - expected).abs().max() <= 1e-5
