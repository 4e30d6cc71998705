"""JoeyNMT 2: a .ckpt with config.yaml and the vocabularies beside it. The paper's sinusoids; no output bias."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer.errors import BrokenFileError, InputError

from ..converted import OUTPUT, SOURCE, TARGET, Converted
from ..layout import interleaved_sinusoids
from ..refuse import Reasons, shown
from ..rename import Rule, Tensors, for_layers, with_bias
from ..segmentation import set_tokenizers
from ..unpickle import load_checkpoint
from ..vocabulary import Vocabulary, find_file, read_words
from .marian import read_yaml

NAME = "joeynmt"
EPSILON = 1e-6
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "tanh": "tanh", "relu6": "relu6"}
ALLOWED: dict[str, tuple] = {
    "type": ("transformer",),
    "activation": tuple(ACTIVATIONS),
    "layer_norm": ("pre", "post"),
    "alpha": (1.0, 1),  # the weight of the residual (DeepNet)
}


def attention(theirs: str, ours: str) -> list[Rule]:
    names = {"q_layer": "q_proj", "k_layer": "k_proj", "v_layer": "v_proj", "output_layer": "out_proj"}
    return [rule for name, own in names.items() for rule in with_bias(f"{theirs}.{name}", f"{ours}.{own}")]


def feed_forward(theirs: str, ours: str) -> list[Rule]:
    return [
        *with_bias(f"{theirs}.layer_norm", f"{ours}.feed_forward_norm"),
        *with_bias(f"{theirs}.pwff_layer.0", f"{ours}.feed_forward.fc1"),
        *with_bias(f"{theirs}.pwff_layer.3", f"{ours}.feed_forward.fc2"),
    ]


ENCODER_LAYER = [
    *attention("encoder.layers.{n}.src_src_att", "model.encoder.layers.{n}.self_attn"),
    *with_bias("encoder.layers.{n}.layer_norm", "model.encoder.layers.{n}.self_attn_norm"),
    *feed_forward("encoder.layers.{n}.feed_forward", "model.encoder.layers.{n}"),
]
DECODER_LAYER = [
    *attention("decoder.layers.{n}.trg_trg_att", "model.decoder.layers.{n}.self_attn"),
    *with_bias("decoder.layers.{n}.x_layer_norm", "model.decoder.layers.{n}.self_attn_norm"),
    *attention("decoder.layers.{n}.src_trg_att", "model.decoder.layers.{n}.cross_attn"),
    *with_bias("decoder.layers.{n}.dec_layer_norm", "model.decoder.layers.{n}.cross_attn_norm"),
    *feed_forward("decoder.layers.{n}.feed_forward", "model.decoder.layers.{n}"),
]


def checkpoints(folder: Path) -> list[Path]:
    return list(folder.glob("*.ckpt"))


def recognise(checkpoint: Any) -> bool:
    return isinstance(checkpoint, dict) and isinstance(checkpoint.get("model_state"), dict)


def read(path: Path, reasons: Reasons) -> Converted:
    checkpoint = load_checkpoint(path)
    if not recognise(checkpoint):
        raise InputError(f"{path} is not of JoeyNMT: it lacks `model_state`")
    file = find_file(path.parent, "config.yaml", "*.yaml")
    if file is None:
        raise InputError(f"{path}: no config.yaml beside it: the number of heads is not known")
    config = read_yaml(file)
    model = config.get("model")
    if not isinstance(model, dict):
        raise BrokenFileError(f"{file}: it has no `model`")
    sides = {side: model.get(side) or {} for side in ("encoder", "decoder")}
    tensors = Tensors(checkpoint["model_state"], reasons)

    # Before 2.0 layers were always pre-norm, with a final norm, and the option did not exist. Left out since, it means
    # pre-norm in the encoder, post-norm in the decoder, and no final norm in either.
    final = {side: f"{side}.layer_norm.weight" in tensors for side in sides}
    default = {"encoder": "pre", "decoder": "pre" if final["decoder"] else "post"}
    norms = [options.get("layer_norm", default[side]) for side, options in sides.items()]
    for side, options in sides.items():
        reasons.only(options, ALLOWED, f"{side}.{{}}: {{}}")
        reasons.sizes(options, ("num_layers", "num_heads", "hidden_size", "ff_size"), f"{side}.{{}}: {{}}")
        embeddings = options.get("embeddings") or {}
        if embeddings.get("embedding_dim", options.get("hidden_size")) != options.get("hidden_size"):
            reasons.option(
                f"{side}.embeddings.embedding_dim {shown(embeddings['embedding_dim'])} is not "
                f"{side}.hidden_size {shown(options.get('hidden_size'))}"
            )
    encoder, decoder = sides["encoder"], sides["decoder"]
    for name in ("hidden_size", "activation"):
        if encoder.get(name) != decoder.get(name):
            reasons.option(f"encoder.{name} is {shown(encoder.get(name))}, decoder.{name} {shown(decoder.get(name))}")
    if norms[0] != norms[1]:
        reasons.option(
            f"encoder.layer_norm is {shown(norms[0])}, decoder.layer_norm {shown(norms[1])} (where they are left out, "
            "JoeyNMT 2 means pre in the encoder and post in the decoder)"
        )
    if reasons.options:
        reasons.refuse()
    d_model = encoder["hidden_size"]

    ours: dict[str, Tensor] = {}
    for name, theirs, options in ((SOURCE, "src_embed", encoder), (TARGET, "trg_embed", decoder)):
        embedding = tensors.take(f"{theirs}.lut.weight", None, d_model)
        if embedding is not None:
            # The model multiplies by sqrt(d_model).
            scaled = (options.get("embeddings") or {}).get("scale", False)
            ours[name] = embedding if scaled else embedding.float() / d_model**0.5
            if theirs == "trg_embed" and model.get("tied_softmax"):
                ours[OUTPUT] = embedding
    for stack in ("encoder", "decoder"):
        table = tensors.left.pop(f"{stack}.pe.pe", None)
        if table is not None:
            table = table.reshape(-1, table.shape[-1])[:256]
            if not torch.allclose(table.double(), interleaved_sinusoids(*table.shape), atol=1e-3):
                reasons.fault(f"tensor {stack}.pe.pe is not the paper's table")
    tensors.rename(for_layers(ENCODER_LAYER, encoder["num_layers"]), ours)
    tensors.rename(for_layers(DECODER_LAYER, decoder["num_layers"]), ours)
    for stack in sides:
        if final[stack]:
            tensors.rename(with_bias(f"{stack}.layer_norm", f"model.{stack}.final_norm"), ours)
    if "decoder.output_layer.weight" in tensors or OUTPUT not in ours:
        output = tensors.take("decoder.output_layer.weight", None, d_model)
        if output is not None:
            ours[OUTPUT] = output
    tensors.nothing_may_be_left()

    notes: list[str] = []
    vocabulary, originals = read_vocabulary(path.parent, config.get("data") or {}, notes)
    return Converted(
        toolkit=NAME,
        path=path,
        config={
            "d_model": d_model,
            "encoder_layers": encoder["num_layers"],
            "decoder_layers": decoder["num_layers"],
            "encoder_attention_heads": encoder["num_heads"],
            "decoder_attention_heads": decoder["num_heads"],
            "encoder_ffn_dim": encoder["ff_size"],
            "decoder_ffn_dim": decoder["ff_size"],
            "activation_function": ACTIVATIONS[encoder.get("activation", "relu")],
            "dropout": float(encoder.get("dropout", 0.1)),
            "attention_dropout": float(encoder.get("dropout", 0.1)),
            "activation_dropout": float(encoder.get("dropout", 0.1)),
            "norm_position": norms[0],
            "encoder_final_norm": final["encoder"],
            "decoder_final_norm": final["decoder"],
            "layer_norm_eps": EPSILON,
            "attention_bias": True,
        },
        tensors=ours,
        vocabulary=vocabulary,
        notes=notes,
        originals=[*originals, file],
    )


def read_vocabulary(folder: Path, data: Mapping[str, Any], notes: list[str]) -> tuple[Vocabulary, list[Path]]:
    """src_vocab.txt and trg_vocab.txt; the special symbols are in the configuration."""
    sides = {side: options_of_side(data, side) for side in ("src", "trg")}
    files = []
    for side, options in sides.items():
        named = Path(str(options.get("voc_file", "")))
        file = find_file(folder, *([named.name] if named.name else []), f"{side}_vocab.txt", "vocab.txt")
        if file is None:
            raise InputError(f"{folder}: {side}_vocab.txt is missing beside the checkpoint")
        files.append(file)
    source, target = (read_words(file) for file in files)
    if source == target:
        target = source
    special = data.get("special_symbols") or {}
    default = {"unk": ("<unk>", 0), "pad": ("<pad>", 1), "bos": ("<s>", 2), "eos": ("</s>", 3)}
    ids = {}
    for name, (token, _) in default.items():
        token = special.get(f"{name}_token", token)
        places = [tokens.index(token) if token in tokens else None for tokens in (source, target)]
        if places[0] is None or places[0] != places[1]:
            raise InputError(f"{token} has the ids {places[0]} and {places[1]} in {files[0].name} and {files[1].name}")
        ids[name] = places[0]
    vocabulary = Vocabulary(
        source, target, eos=ids["eos"], unknown=ids["unk"], bos=ids["bos"], pad=ids["pad"], start=ids["bos"]
    )
    if any(options.get("level") == "char" for options in sides.values()):
        notes.append("There is no tokenizer: the vocabulary is of characters. Ids are JoeyNMT's.")
        return vocabulary, list(dict.fromkeys(files))
    for side, options in sides.items():
        if options.get("lowercase"):
            notes.append(f"data.{side}.lowercase is on: lower-case the texts before the tokenizer sees them.")
    languages = (sides["src"].get("lang"), sides["trg"].get("lang"))
    originals = set_tokenizers(vocabulary, folder, languages, notes)
    return vocabulary, [*dict.fromkeys(files), *originals]


def options_of_side(data: Mapping[str, Any], side: str) -> dict[str, Any]:
    """What the configuration says of one side; JoeyNMT 1 has a language there, and the rest once for both."""
    options = data.get(side) or {}
    if isinstance(options, dict):
        return options
    both = {name: data[name] for name in ("level", "lowercase") if name in data}
    return both | {"lang": str(options), "voc_file": data.get(f"{side}_vocab", "")}
