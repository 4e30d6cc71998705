"""A state_dict of torch.nn.Transformer inside somebody's module; the sizes in a config.json beside it.

torch puts a final norm on both stacks, post-norm too. What is around nn.Transformer is the user's: embeddings, output
and positions are found by their names, and times sqrt(d_model) is assumed, as in torch's translation tutorial.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object

from ..converted import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Converted
from ..layout import base_of_concatenated, concatenated_sinusoids, interleaved_sinusoids
from ..refuse import Reasons
from ..rename import Rule, Tensors, for_layers, with_bias
from ..unpickle import load_checkpoint
from ..word_lists import read_vocabulary

NAME = "torch-nn-transformer"
MARK = "encoder.layers.0.self_attn.in_proj_weight"
SOURCE_NAME = re.compile(r"(src|source|enc|input|in_).*emb|emb.*(src|source|enc)|^src")
TARGET_NAME = re.compile(r"(tgt|trg|target|dec|output).*emb|emb.*(tgt|trg|target|dec)|^tgt|^trg")
ALLOWED: dict[str, tuple] = {"activation": ("relu", "gelu"), "batch_first": (True, False), "norm_first": (True, False)}


def layer(stack: str, bias: bool) -> list[Rule]:
    theirs, ours = f"{stack}.layers.{{n}}", f"model.{stack}.layers.{{n}}"
    norms = ["self_attn_norm", "feed_forward_norm"]
    if stack == "decoder":
        norms.insert(1, "cross_attn_norm")
    rules = [
        *with_bias(f"{theirs}.self_attn.out_proj", f"{ours}.self_attn.out_proj"),
        *with_bias(f"{theirs}.linear1", f"{ours}.feed_forward.fc1"),
        *with_bias(f"{theirs}.linear2", f"{ours}.feed_forward.fc2"),
        *(rule for i, name in enumerate(norms, 1) for rule in with_bias(f"{theirs}.norm{i}", f"{ours}.{name}")),
    ]
    if stack == "decoder":
        rules += with_bias(f"{theirs}.multihead_attn.out_proj", f"{ours}.cross_attn.out_proj")
    return [rule for rule in rules if bias or rule.theirs.endswith("weight")]


def checkpoints(folder: Path) -> list[Path]:
    return [*folder.glob("*.pt"), *folder.glob("*.pth")]


def recognise(checkpoint: Any) -> bool:
    return isinstance(checkpoint, dict) and any(
        isinstance(name, str) and name.endswith(MARK) for name in state_dict_of(checkpoint)
    )


def state_dict_of(checkpoint: dict) -> dict:
    """The state_dict itself, or under one of the names that people save it by."""
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(checkpoint.get(name), dict):
            return checkpoint[name]
    return checkpoint


def read(path: Path, reasons: Reasons) -> Converted:
    weights = load_checkpoint(path)
    if not recognise(weights):
        raise InputError(f"{path} has no nn.Transformer: it lacks a tensor {MARK}")
    weights = state_dict_of(weights)
    prefix = next(name for name in weights if name.endswith(MARK)).removesuffix(MARK)
    weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    file = path.with_name("config.json")
    if not file.exists():
        raise InputError(
            f'{path}: the number of heads is in no tensor; put {{"nhead": ...}} into a config.json beside it'
        )
    options = read_json_object(file)
    reasons.only(options, ALLOWED)
    heads = options.get("nhead", options.get("num_heads"))
    d_model = weights[MARK].shape[1]
    if not isinstance(heads, int) or heads < 1 or d_model % heads:
        reasons.option(f"nhead is {heads!r}, d_model {d_model}")
    for name, value in (("d_model", d_model),):
        if options.get(name, value) != value:
            reasons.option(f"{name} is {options[name]}, the tensors have {value}")
    reasons.refuse_if_any()

    tensors = Tensors(weights, reasons)
    bias = "encoder.layers.0.linear1.bias" in tensors
    layers = [
        len({name.split(".")[2] for name in weights if name.startswith(f"{stack}.layers.")})
        for stack in ("encoder", "decoder")
    ]
    ours: dict[str, Tensor] = {}
    finals = []
    for stack, count in zip(("encoder", "decoder"), layers, strict=True):
        for n in range(count):
            split_projections(tensors, f"{stack}.layers.{n}.self_attn", f"model.{stack}.layers.{n}.self_attn", ours)
            if stack == "decoder":
                name = f"{stack}.layers.{n}.multihead_attn"
                split_projections(tensors, name, f"model.{stack}.layers.{n}.cross_attn", ours)
        tensors.rename(for_layers(layer(stack, bias), count), ours)
        finals.append(f"{stack}.norm.weight" in tensors)
        if finals[-1]:
            norm = with_bias(f"{stack}.norm", f"model.{stack}.final_norm")
            tensors.rename([rule for rule in norm if bias or rule.theirs.endswith("weight")], ours)
    if not bias:  # bias=False: the model's norms and feed-forward networks have them
        for name in [name for name in ours if name.endswith(".weight") and ("norm" in name or ".fc" in name)]:
            ours[name.removesuffix("weight") + "bias"] = torch.zeros(ours[name].shape[0])

    notes = ["Embeddings are taken times sqrt(d_model), as in torch's translation tutorial."]
    positions, concatenated = take_positions(tensors, d_model, ours, notes, reasons)
    take_embeddings(tensors, d_model, ours, reasons)
    tensors.nothing_may_be_left()
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
            "encoder_ffn_dim": len(ours["model.encoder.layers.0.feed_forward.fc1.weight"]),
            "decoder_ffn_dim": len(ours["model.decoder.layers.0.feed_forward.fc1.weight"]),
            "activation_function": options.get("activation", "relu"),
            "dropout": float(options.get("dropout", 0.1)),
            "attention_dropout": float(options.get("dropout", 0.1)),
            "activation_dropout": float(options.get("dropout", 0.1)),
            **positions,
            "norm_position": "pre" if options.get("norm_first") else "post",
            "encoder_final_norm": finals[0],
            "decoder_final_norm": finals[1],
            "layer_norm_eps": float(options.get("layer_norm_eps", 1e-5)),
            "attention_bias": bias,
        },
        tensors=ours,
        vocabulary=vocabulary,
        concatenated=concatenated,
        notes=notes,
        originals=[*originals, file],
    )


def split_projections(tensors: Tensors, theirs: str, ours: str, found: dict[str, Tensor]) -> None:
    """in_proj: queries, keys and values in one matrix."""
    for kind in ("weight", "bias"):
        name = f"{theirs}.in_proj_{kind}"
        if kind == "bias" and name not in tensors:
            continue
        fused = tensors.take(name)
        if fused is not None:
            for part, piece in zip("qkv", fused.chunk(3), strict=True):
                found[f"{ours}.{part}_proj.{kind}"] = piece


def take_positions(
    tensors: Tensors, d_model: int, ours: dict[str, Tensor], notes: list[str], reasons: Reasons
) -> tuple[dict[str, Any], bool]:
    """The fields of the configuration for the tables that are there, and whether they concatenate."""
    names = [
        name
        for name, tensor in tensors.left.items()
        if re.search(r"pos|(^|[._])pe($|[._])", name.lower()) and tensor.shape[-1] == d_model and tensor.dim() >= 2
    ]
    tables = {name: tensors.left.pop(name).reshape(-1, d_model) for name in names}
    if not tables:
        notes.append("No table of positions is saved: the paper's sinusoids are taken.")
        return {}, False
    forms = (
        (interleaved_sinusoids, {}, False, {}),
        (concatenated_sinusoids, {"shifted": False}, True, {}),
        (concatenated_sinusoids, {"shifted": True}, True, {"position_base": base_of_concatenated(d_model)}),
    )
    for formula, arguments, concatenated, fields in forms:
        if all(
            torch.allclose(table[:256].double(), formula(len(table[:256]), d_model, **arguments), atol=1e-3)
            for table in tables.values()
        ):
            return fields, concatenated
    if len(tables) > 2:
        reasons.option(f"more than two tables of positions: {', '.join(tables)}")
        reasons.refuse()
    # Learned: one table for both stacks, or the source's and the target's.
    by_side = sorted(tables, key=lambda name: bool(TARGET_NAME.search(name.lower())))
    rows = min(map(len, tables.values()))
    for stack, name in zip(("encoder", "decoder"), (by_side[0], by_side[-1]), strict=True):
        ours[f"model.{stack}.positional_encoding.table.weight"] = tables[name][:rows]
    return {"position_embedding_type": "learned", "max_position_embeddings": rows}, False


def take_embeddings(tensors: Tensors, d_model: int, ours: dict[str, Tensor], reasons: Reasons) -> None:
    """What is left: embeddings of source and target, or one for both, and the output layer, by their names."""
    matrices = [name for name, tensor in tensors.left.items() if tensor.dim() == 2 and tensor.shape[1] == d_model]
    embeddings = [name for name in matrices if "emb" in name.lower() or "lut" in name.lower()]
    outputs = [name for name in matrices if name not in embeddings]
    source = [name for name in embeddings if SOURCE_NAME.search(name.lower())] or embeddings
    target = [name for name in embeddings if TARGET_NAME.search(name.lower())] or embeddings
    if len(source) != 1 or len(target) != 1 or len(outputs) > 1:
        reasons.option(
            f"embeddings {', '.join(embeddings) or 'none'} and outputs {', '.join(outputs) or 'none'} cannot be told "
            "apart: rename them src_tok_emb, tgt_tok_emb and generator"
        )
        return
    for name, theirs in ((SOURCE, source[0]), (TARGET, target[0])):
        ours[name] = tensors.left[theirs]
    ours[OUTPUT] = tensors.left[outputs[0]] if outputs else ours[TARGET]
    if outputs:
        bias = tensors.left.pop(outputs[0].removesuffix("weight") + "bias", None)
        if bias is not None:
            ours[OUTPUT_BIAS] = bias
    for name in {source[0], target[0], *outputs}:
        del tensors.left[name]
