"""harvardnlp's Annotated Transformer: pre-norm layers with final norms, the paper's sinusoids.

Its LayerNorm divides by the unbiased standard deviation plus 1e-6. sqrt((n - 1) / n) goes into the weight; what is left
of the 1e-6 changes a logit by some 1e-6.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object

from ..converted import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Converted
from ..layout import interleaved_sinusoids
from ..refuse import Reasons
from ..rename import Rule, Tensors, for_layers, with_bias
from ..unpickle import load_checkpoint
from ..word_lists import read_vocabulary

NAME = "annotated-transformer"
EPSILON = 1e-12
NOTEBOOK_HEADS = 8


def attention(theirs: str, ours: str) -> list[Rule]:
    projections = ("q_proj", "k_proj", "v_proj", "out_proj")
    return [rule for i, name in enumerate(projections) for rule in with_bias(f"{theirs}.linears.{i}", f"{ours}.{name}")]


def norm(theirs: str, ours: str) -> list[Rule]:
    return [Rule(f"{theirs}.a_2", f"{ours}.weight"), Rule(f"{theirs}.b_2", f"{ours}.bias")]


def feed_forward(theirs: str, ours: str) -> list[Rule]:
    return [*with_bias(f"{theirs}.w_1", f"{ours}.fc1"), *with_bias(f"{theirs}.w_2", f"{ours}.fc2")]


ENCODER_LAYER = [
    *attention("encoder.layers.{n}.self_attn", "model.encoder.layers.{n}.self_attn"),
    *norm("encoder.layers.{n}.sublayer.0.norm", "model.encoder.layers.{n}.self_attn_norm"),
    *feed_forward("encoder.layers.{n}.feed_forward", "model.encoder.layers.{n}.feed_forward"),
    *norm("encoder.layers.{n}.sublayer.1.norm", "model.encoder.layers.{n}.feed_forward_norm"),
]
DECODER_LAYER = [
    *attention("decoder.layers.{n}.self_attn", "model.decoder.layers.{n}.self_attn"),
    *norm("decoder.layers.{n}.sublayer.0.norm", "model.decoder.layers.{n}.self_attn_norm"),
    *attention("decoder.layers.{n}.src_attn", "model.decoder.layers.{n}.cross_attn"),
    *norm("decoder.layers.{n}.sublayer.1.norm", "model.decoder.layers.{n}.cross_attn_norm"),
    *feed_forward("decoder.layers.{n}.feed_forward", "model.decoder.layers.{n}.feed_forward"),
    *norm("decoder.layers.{n}.sublayer.2.norm", "model.decoder.layers.{n}.feed_forward_norm"),
]


def checkpoints(folder: Path) -> list[Path]:
    return list(folder.glob("*.pt"))


def recognise(checkpoint: Any) -> bool:
    return isinstance(checkpoint, dict) and "encoder.layers.0.self_attn.linears.0.weight" in checkpoint


def read(path: Path, reasons: Reasons) -> Converted:
    weights = load_checkpoint(path)
    if not recognise(weights):
        raise InputError(f"{path} is not of the Annotated Transformer: it lacks encoder.layers.0.self_attn.linears.0")
    file = path.with_name("config.json")
    options = read_json_object(file) if file.exists() else {}
    tensors = Tensors(weights, reasons)
    notes = []
    heads = options.get("h")
    d_model = weights["encoder.norm.a_2"].numel() if "encoder.norm.a_2" in weights else 0
    if heads is None:
        heads = NOTEBOOK_HEADS
        notes.append(f"No config.json with `h` beside the checkpoint: {heads} heads, as in the notebook.")
    if not isinstance(heads, int) or heads < 1 or d_model % heads:
        reasons.option(f"h is {heads!r}, d_model {d_model}")
    layers = [
        len({name.split(".")[2] for name in weights if name.startswith(f"{stack}.layers.")})
        for stack in ("encoder", "decoder")
    ]

    ours: dict[str, Tensor] = {}
    for name, theirs in ((SOURCE, "src_embed"), (TARGET, "tgt_embed")):
        embedding = tensors.take(f"{theirs}.0.lut.weight", None, d_model)
        if embedding is not None:
            ours[name] = embedding
        table = tensors.left.pop(f"{theirs}.1.pe", None)
        if table is not None:
            table = table.reshape(-1, table.shape[-1])[:256]
            if not torch.allclose(table.double(), interleaved_sinusoids(*table.shape), atol=1e-3):
                reasons.fault(f"tensor {theirs}.1.pe is not the paper's table")
    tensors.rename(for_layers(ENCODER_LAYER, layers[0]) + norm("encoder.norm", "model.encoder.final_norm"), ours)
    tensors.rename(for_layers(DECODER_LAYER, layers[1]) + norm("decoder.norm", "model.decoder.final_norm"), ours)
    tensors.rename([Rule("generator.proj.weight", OUTPUT), Rule("generator.proj.bias", OUTPUT_BIAS)], ours)
    tensors.nothing_may_be_left()
    for name in [name for name in ours if "norm" in name and name.endswith(".weight")]:
        ours[name] = (ours[name].double() * ((d_model - 1) / d_model) ** 0.5).float()
    reasons.refuse_if_any()

    rows = [len(ours[name]) for name in (SOURCE, TARGET)]
    vocabulary, originals = read_vocabulary(path.parent, rows, notes)
    return Converted(
        toolkit=NAME,
        path=path,
        config={
            "d_model": d_model,
            "encoder_layers": layers[0],
            "decoder_layers": layers[1],
            "encoder_attention_heads": heads,
            "decoder_attention_heads": heads,
            "encoder_ffn_dim": len(ours["model.encoder.layers.0.feed_forward.fc1.bias"]),
            "decoder_ffn_dim": len(ours["model.decoder.layers.0.feed_forward.fc1.bias"]),
            "dropout": float(options.get("dropout", 0.1)),
            "attention_dropout": float(options.get("dropout", 0.1)),
            "activation_dropout": float(options.get("dropout", 0.1)),
            "norm_position": "pre",
            "layer_norm_eps": EPSILON,
            "attention_bias": True,
        },
        tensors=ours,
        vocabulary=vocabulary,
        notes=notes,
        originals=[*originals, *([file] if file.exists() else [])],
    )
