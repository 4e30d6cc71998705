"""tensor2tensor: a TensorFlow checkpoint with hparams.json and a subword vocabulary. TensorFlow is not needed.

What differs from the paper and is absorbed: sinusoids concatenated with exponent i / (d_model/2 - 1); the decoder
starts with a zero vector; the embedding is saved in 16 pieces; target_space_embedding[id] is added to every input of
the encoder, which then has an embedding of its own, E + v / sqrt(d_model).
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer.errors import BrokenFileError, InputError

from ..converted import OUTPUT, SOURCE, TARGET, Converted
from ..layout import base_of_concatenated
from ..refuse import Reasons
from ..rename import Rule, Tensors, for_layers
from ..subwords import read_subwords, subword_tokenizer
from ..tensorflow_bundle import TYPES, Bundle
from ..vocabulary import Vocabulary, new_name

NAME = "tensor2tensor"
TARGET_SPACE = 0  # SpaceID.GENERIC, the default of text problems

ALLOWED: dict[str, tuple] = {
    "pos": ("timing", "emb"),
    "split_targets_chunk_length": (0,),
    "ffn_layer": ("dense_relu_dense", "conv_hidden_relu"),
    "norm_type": ("layer",),
    "self_attention_type": ("dot_product",),
    "attention_variables_3d": (False,),
    "multiply_embedding_mode": ("sqrt_depth", ""),
    "num_area_layers": (0,),
    "proximity_bias": (False,),
    "causal_decoder_self_attention": (True,),
    "unidirectional_encoder": (False,),
    "position_features": ("",),
    "factored_logits": (False,),
    "hard_attention_k": (0,),
    "gumbel_noise_weight": (0.0,),
    "prepend_mode": ("none",),
    "scheduled_sampling_method": ("parallel", "sequential"),
}
# layer_preprocess_sequence, layer_postprocess_sequence -> where the norm is
NORM_POSITIONS = {("none", "dan"): "post", ("none", "an"): "post", ("n", "da"): "pre", ("n", "a"): "pre"}
# Written by the trainer, not weights of the model.
NOT_WEIGHTS = (
    r"(.*/)?(training|losses_avg|train_stats|optimize|OptimizeLoss|learning_rate|metrics)/.*",
    r"(.*/)?global_step",
    r".*/(Adam|Adam_1|Momentum|Adafactor|vr|vc|v|m)(_\d+)?",
    r"(.*/)?beta[12]_power(_\d+)?",
)
EMBEDDING = re.compile(r".*symbol_modality_(\d+)_(\d+)/(shared|input_emb|target_emb|softmax)/weights_(\d+)")


def attention(theirs: str, ours: str) -> list[Rule]:
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output_transform": "out_proj"}
    return [
        Rule(f"{theirs}/multihead_attention/{name}/kernel", f"{ours}.{own}.weight", transposed=True)
        for name, own in names.items()
    ]


def norm(theirs: str, ours: str, scope: str) -> list[Rule]:
    return [
        Rule(f"{theirs}/{scope}/layer_norm/layer_norm_{part}", f"{ours}.{own}")
        for part, own in (("scale", "weight"), ("bias", "bias"))
    ]


def feed_forward(theirs: str, ours: str) -> list[Rule]:
    return [
        rule
        for name, own in (("conv1", "fc1"), ("conv2", "fc2"))
        for rule in (
            Rule(f"{theirs}/{name}/kernel", f"{ours}.{own}.weight", transposed=True),
            Rule(f"{theirs}/{name}/bias", f"{ours}.{own}.bias"),
        )
    ]


def rules(encoder_layers: int, decoder_layers: int, pre: bool) -> list[Rule]:
    scope = "layer_prepostprocess" if pre else "layer_postprocess"
    theirs, ours = "encoder/layer_{n}", "model.encoder.layers.{n}"
    encoder = [
        *attention(f"{theirs}/self_attention", f"{ours}.self_attn"),
        *norm(f"{theirs}/self_attention", f"{ours}.self_attn_norm", scope),
        *feed_forward(f"{theirs}/ffn", f"{ours}.feed_forward"),
        *norm(f"{theirs}/ffn", f"{ours}.feed_forward_norm", scope),
    ]
    theirs, ours = "decoder/layer_{n}", "model.decoder.layers.{n}"
    decoder = [
        *attention(f"{theirs}/self_attention", f"{ours}.self_attn"),
        *norm(f"{theirs}/self_attention", f"{ours}.self_attn_norm", scope),
        *attention(f"{theirs}/encdec_attention", f"{ours}.cross_attn"),
        *norm(f"{theirs}/encdec_attention", f"{ours}.cross_attn_norm", scope),
        *feed_forward(f"{theirs}/ffn", f"{ours}.feed_forward"),
        *norm(f"{theirs}/ffn", f"{ours}.feed_forward_norm", scope),
    ]
    final = [rule for stack in ("encoder", "decoder") for rule in norm(stack, f"model.{stack}.final_norm", scope)]
    return for_layers(encoder, encoder_layers) + for_layers(decoder, decoder_layers) + (final if pre else [])


def checkpoints(folder: Path) -> list[Path]:
    return list(folder.glob("*.index"))


def recognise(path: Path) -> bool:
    return path.suffix == ".index"


def read(path: Path, reasons: Reasons) -> Converted:
    bundle = Bundle(path)
    options = read_hparams(path.parent)
    reasons.only(options, ALLOWED, "hparams.{} is {}")
    order = (options.get("layer_preprocess_sequence", "none"), options.get("layer_postprocess_sequence", "dan"))
    if order not in NORM_POSITIONS:
        reasons.option(
            f"hparams.layer_preprocess_sequence {order[0]!r} with layer_postprocess_sequence {order[1]!r} "
            "(can be converted: 'none' with 'dan', 'n' with 'da')"
        )
    sizes = ("hidden_size", "filter_size", "num_heads", "num_hidden_layers")
    reasons.sizes(options, sizes, "hparams.{} is {}")
    for name, entry in bundle.entries.items():
        if entry.dtype not in TYPES and not any(re.fullmatch(pattern, name) for pattern in NOT_WEIGHTS):
            reasons.option(f"variable {name} is of TensorFlow's type {entry.dtype}")
    if reasons.options:
        reasons.refuse()
    d_model, pre = options["hidden_size"], NORM_POSITIONS[order] == "pre"
    layers = [options.get(f"num_{stack}_layers") or options["num_hidden_layers"] for stack in ("encoder", "decoder")]

    names = [name for name in bundle.entries if not any(re.fullmatch(pattern, name) for pattern in NOT_WEIGHTS)]
    mark = "encoder/layer_0/self_attention/multihead_attention/q/kernel"
    body = next((name.removesuffix(mark) for name in names if name.endswith(mark)), None)
    if body is None:
        raise InputError(f"{path} has no Transformer: it lacks a variable .../{mark}")
    tensors = Tensors({name.removeprefix(body): torch.from_numpy(bundle.tensor(name)) for name in names}, reasons)
    ours: dict[str, Tensor] = {}
    tables = take_embeddings(tensors, d_model, reasons)
    shared = tables.get("shared")
    for name, kind in ((SOURCE, "input_emb"), (TARGET, "target_emb"), (OUTPUT, "softmax")):
        table = tables.get(kind, shared)
        if table is None and kind == "target_emb":
            table = tables.get("input_emb")  # shared_embedding
        if table is None:
            reasons.fault(f"tensor symbol_modality_*/{kind}/weights_0 is missing")
        else:
            ours[name] = table
    reasons.refuse_if_any()
    if not options.get("multiply_embedding_mode", "sqrt_depth"):
        for name in (SOURCE, TARGET):  # the model multiplies by sqrt(d_model)
            ours[name] = ours[name] / d_model**0.5
    notes: list[str] = []
    if "target_space_embedding/kernel" in tensors:
        spaces = tensors.take("target_space_embedding/kernel", None, d_model)
        if spaces is not None:
            ours[SOURCE] = (ours[SOURCE].double() + spaces[TARGET_SPACE].double() / d_model**0.5).float()
            notes.append(
                f"target_space_embedding[{TARGET_SPACE}], the default of text problems, is in the encoder's embedding."
            )
    positions: dict[str, Any] = {"position_base": base_of_concatenated(d_model)}
    learned = options.get("pos") == "emb"  # Table 3 (E)
    if learned:
        for stack, side in (("encoder", "inputs"), ("decoder", "targets")):
            table = tensors.take(f"{side}_positional_embedding", None, d_model)
            if table is not None:
                ours[f"model.{stack}.positional_encoding.table.weight"] = table
                positions = {"position_embedding_type": "learned", "max_position_embeddings": len(table)}
    tensors.rename(rules(layers[0], layers[1], pre), ours)
    tensors.nothing_may_be_left()
    reasons.refuse_if_any()

    heads = options["num_heads"]
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
            "encoder_ffn_dim": options["filter_size"],
            "decoder_ffn_dim": options["filter_size"],
            "d_k": options["attention_key_channels"] // heads if options.get("attention_key_channels") else None,
            "d_v": options["attention_value_channels"] // heads if options.get("attention_value_channels") else None,
            "dropout": float(options.get("layer_prepostprocess_dropout", 0.1)),
            "attention_dropout": float(options.get("attention_dropout", 0.0)),
            "activation_dropout": float(options.get("relu_dropout", 0.0)),
            **positions,
            "norm_position": NORM_POSITIONS[order],
            "layer_norm_eps": float(options.get("norm_epsilon", 1e-6)),
        },
        tensors=ours,
        vocabulary=vocabulary,
        concatenated=not learned,
        notes=notes,
        originals=[*originals, path.with_name("hparams.json")],
    )


def read_hparams(folder: Path) -> dict[str, Any]:
    file = folder / "hparams.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; the number of heads is in no variable") from None
    except ValueError as error:
        raise BrokenFileError(f"{file} is not whole JSON ({error}); copy it again") from None
    if isinstance(content, str):  # some versions save the JSON as a JSON string
        content = json.loads(content)
    if not isinstance(content, dict):
        raise BrokenFileError(f"{file} holds no hparams")
    return content


def take_embeddings(tensors: Tensors, d_model: int, reasons: Reasons) -> dict[str, Tensor]:
    """kind -> (vocabulary, d_model), put together from its pieces."""
    pieces: dict[str, dict[int, Tensor]] = {}
    for name in list(tensors.left):
        found = EMBEDDING.fullmatch(name)
        if found:
            pieces.setdefault(found.group(3), {})[int(found.group(4))] = tensors.left.pop(name)
    tables = {}
    for kind, by_number in pieces.items():
        if sorted(by_number) != list(range(len(by_number))) or any(t.shape[-1] != d_model for t in by_number.values()):
            reasons.fault(f"the pieces weights_0 to weights_{max(by_number)} of {kind} are not complete")
            continue
        tables[kind] = torch.cat([by_number[number] for number in range(len(by_number))])
    return tables


def read_vocabulary(folder: Path, rows: list[int], notes: list[str]) -> tuple[Vocabulary, list[Path]]:
    """vocab.*.subwords: one for both sides, or one a side that its size tells."""
    files = sorted(file for file in folder.glob("vocab.*") if file.is_file())
    by_size = {len(pieces): (file, pieces) for file in files if (pieces := read_subwords(file))}
    # vocab_divisor pads the matrix beyond the file.
    chosen = [max((size for size in by_size if size <= count), default=None) for count in rows]
    if None in chosen or (len(files) > 1 and chosen[0] == chosen[1] and rows[0] != rows[1]):
        notes.append("There is no tokenizer: no vocab.*.subwords of the right size. Ids are tensor2tensor's.")
        tokens = [["<pad>_", "<EOS>_", *(f"token{id}" for id in range(2, count))] for count in rows]
        return Vocabulary(*tokens, pad=0, eos=1, unknown=None), []
    sides = []
    for size, count in zip(chosen, rows, strict=True):
        pieces = list(by_size[int(size or 0)][1])
        while len(pieces) < count:
            pieces.append(new_name(f"<unused{len(pieces)}>", pieces))
        sides.append(pieces)
    if sides[0] == sides[1]:
        sides[1] = sides[0]
    vocabulary = Vocabulary(sides[0], sides[1], pad=0, eos=1, unknown=None)
    vocabulary.source_tokenizer = subword_tokenizer(vocabulary, "source")
    vocabulary.target_tokenizer = subword_tokenizer(vocabulary, "target")
    return vocabulary, list(dict.fromkeys(by_size[int(size or 0)][0] for size in chosen))
