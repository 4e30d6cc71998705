"""Sockeye 3: params.*, `config` and the vocabularies. Sinusoids concatenated, with the paper's exponent.

Keys and values are saved in one matrix, interleaved by head; in self-attention the queries come before them.
"""

import json
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.model_folder import read_json_object

from ..converted import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Converted
from ..layout import concatenated_sinusoids
from ..refuse import Reasons, shown
from ..rename import Rule, Tensors, for_layers, with_bias
from ..segmentation import set_tokenizers
from ..unpickle import is_pickled, load_checkpoint
from ..vocabulary import Vocabulary, find_file
from .hf_marian import tokens_of
from .hugging_face import is_table

NAME = "sockeye"
EPSILON = 1e-6
ACTIVATIONS = {"relu": "relu", "swish1": "silu", "gelu": "gelu"}

ALLOWED_STACK: dict[str, tuple] = {
    "act_type": tuple(ACTIVATIONS),
    "decoder_type": ("transformer",),
    "block_prepended_cross_attention": (False,),
    "positional_embedding_type": ("fixed", "learned"),
    "use_glu": (False,),
    "use_lhuc": (False,),
}
ALLOWED: dict[str, tuple] = {
    "config_length_task": (None,),
    "lhuc": (False,),
    "neural_vocab_selection": (None,),
    "dtype": ("float32", "float16", "bfloat16"),
}
# preprocess, postprocess -> where the norm is; `d` is dropout, `r` the residual
NORM_POSITIONS = {("n", "dr"): "pre", ("n", "r"): "pre", ("", "drn"): "post", ("", "rn"): "post"}


def norms(theirs: str, pre: bool, before: str, after: str, ours: str) -> list[Rule]:
    return with_bias(f"{theirs}.{before if pre else after}.layer_norm", ours)


def rules(encoder_layers: int, decoder_layers: int, pre: bool) -> list[Rule]:
    """What is a renaming; the matrices of queries, keys and values are not."""
    theirs, ours = "encoder.layers.{n}", "model.encoder.layers.{n}"
    encoder = [
        Rule(f"{theirs}.self_attention.ff_out.weight", f"{ours}.self_attn.out_proj.weight"),
        *norms(theirs, pre, "pre_self_attention", "post_self_attention", f"{ours}.self_attn_norm"),
        *with_bias(f"{theirs}.ff.ff1", f"{ours}.feed_forward.fc1"),
        *with_bias(f"{theirs}.ff.ff2", f"{ours}.feed_forward.fc2"),
        *norms(theirs, pre, "pre_ff", "post_ff", f"{ours}.feed_forward_norm"),
    ]
    theirs, ours = "decoder.layers.{n}", "model.decoder.layers.{n}"
    decoder = [
        Rule(f"{theirs}.autoregr_layer.ff_out.weight", f"{ours}.self_attn.out_proj.weight"),
        *norms(theirs, pre, "pre_autoregr_layer", "post_autoregr_layer", f"{ours}.self_attn_norm"),
        Rule(f"{theirs}.enc_attention.ff_out.weight", f"{ours}.cross_attn.out_proj.weight"),
        Rule(f"{theirs}.enc_attention.ff_q.weight", f"{ours}.cross_attn.q_proj.weight"),
        *norms(theirs, pre, "pre_enc_attention", "post_enc_attention", f"{ours}.cross_attn_norm"),
        *with_bias(f"{theirs}.ff.ff1", f"{ours}.feed_forward.fc1"),
        *with_bias(f"{theirs}.ff.ff2", f"{ours}.feed_forward.fc2"),
        *norms(theirs, pre, "pre_ff", "post_ff", f"{ours}.feed_forward_norm"),
    ]
    final = [
        rule
        for stack in ("encoder", "decoder")
        for rule in with_bias(f"{stack}.final_process.layer_norm", f"model.{stack}.final_norm")
    ]
    return for_layers(encoder, encoder_layers) + for_layers(decoder, decoder_layers) + (final if pre else [])


def checkpoints(folder: Path) -> list[Path]:
    """params.best, else the others; two names of one file are one."""
    files = [file for file in folder.glob("params.*") if recognise(file)]
    best = [file for file in files if file.name == "params.best"]
    return best or list({file.resolve(): file for file in files}.values())


def recognise(path: Path) -> bool:
    return path.name.startswith("params.") and (path.parent / "config").is_file() and is_pickled(path)


def read(path: Path, reasons: Reasons) -> Converted:
    file = path.with_name("config")
    if not file.is_file():
        raise InputError(f"{path}: Sockeye's `config` is not beside it: the number of heads is not known")
    options = read_config(file)
    weights = load_checkpoint(path)
    if not isinstance(weights, dict):
        raise BrokenFileError(f"{path} does not hold tensors")

    reasons.only(options, ALLOWED, "{}: {}")
    stacks = [options.get(f"config_{stack}") or {} for stack in ("encoder", "decoder")]
    orders = []
    for stack, config in zip(("encoder", "decoder"), stacks, strict=True):
        reasons.only(config, ALLOWED_STACK, f"config_{stack}.{{}}: {{}}")
        order = (config.get("preprocess_sequence", ""), config.get("postprocess_sequence", ""))
        orders.append(NORM_POSITIONS.get(order))
        if orders[-1] is None:
            reasons.option(
                f"config_{stack}.preprocess_sequence {shown(order[0])} with postprocess_sequence {shown(order[1])} "
                "(can be converted: 'n' with 'dr', '' with 'drn')"
            )
        sizes = ("model_size", "num_layers", "attention_heads", "feed_forward_num_hidden")
        reasons.sizes(config, sizes, f"config_{stack}.{{}}: {{}}")
    for name in ("model_size", "act_type", "positional_embedding_type"):
        if stacks[0].get(name) != stacks[1].get(name):
            reasons.option(
                f"config_encoder.{name} is {shown(stacks[0].get(name))}, config_decoder's {shown(stacks[1].get(name))}"
            )
    if orders[0] != orders[1]:
        reasons.option("encoder and decoder have their norms in different places")
    for side in ("source", "target"):
        embedding = options.get(f"config_embed_{side}") or {}
        if embedding.get("num_factors", 1) != 1 or embedding.get("factor_configs"):
            reasons.option(f"config_embed_{side} has {side} factors")
        if embedding.get("num_embed", stacks[0].get("model_size")) != stacks[0].get("model_size"):
            reasons.option(f"config_embed_{side}.num_embed {shown(embedding['num_embed'])} is not the model_size")
    if reasons.options:
        reasons.refuse()
    (encoder, decoder), pre = stacks, orders[0] == "pre"
    d_model = encoder["model_size"]

    tensors = Tensors(weights, reasons)
    tensors.ignore(r"traced_.*")
    ours: dict[str, Tensor] = {}
    for name, theirs in ((SOURCE, "embedding_source"), (TARGET, "embedding_target")):
        embedding = tensors.take(f"{theirs}.embedding.weight", None, d_model)
        if embedding is not None:
            ours[name] = embedding
    positions: dict[str, Any] = {}
    learned = encoder["positional_embedding_type"] == "learned"
    tables = [tensors.take(f"{stack}.pos_embedding.weight", None, d_model) for stack in ("encoder", "decoder")]
    if learned and tables[0] is not None and tables[1] is not None:
        rows = min(len(tables[0]), len(tables[1]))  # the shorter of the two limits holds for both
        positions = {"position_embedding_type": "learned", "max_position_embeddings": rows}
        ours["model.encoder.positional_encoding.table.weight"] = tables[0][:rows]
        ours["model.decoder.positional_encoding.table.weight"] = tables[1][:rows]
    for stack, table in zip(("encoder", "decoder"), tables, strict=True):
        if not learned and table is not None:
            if not is_table(table, concatenated_sinusoids(len(table), d_model, shifted=False)):
                reasons.fault(f"tensor {stack}.pos_embedding.weight is not Sockeye's table")
    for n in range(encoder["num_layers"]):
        name = f"model.encoder.layers.{n}.self_attn"
        split_self_attention(tensors, f"encoder.layers.{n}.self_attention", name, encoder["attention_heads"], ours)
    for n in range(decoder["num_layers"]):
        layer, heads = f"model.decoder.layers.{n}", decoder["attention_heads"]
        split_self_attention(tensors, f"decoder.layers.{n}.autoregr_layer", f"{layer}.self_attn", heads, ours)
        fused = tensors.take(f"decoder.layers.{n}.enc_attention.ff_kv.weight", 2 * d_model, d_model)
        if fused is not None:
            split_by_head(fused, f"{layer}.cross_attn", heads, ours)
    tensors.rename(rules(encoder["num_layers"], decoder["num_layers"], pre), ours)
    if "output_layer.weight" in tensors or "softmax" not in shown(options.get("weight_tying_type")):
        tensors.rename([Rule("output_layer.weight", OUTPUT)], ours)
    elif TARGET in ours:
        ours[OUTPUT] = ours[TARGET]
    tensors.rename([Rule("output_layer.bias", OUTPUT_BIAS)], ours)
    tensors.nothing_may_be_left()

    notes = [
        "Sockeye ranks hypotheses by log P / ((beta + L) / (beta + 1))^alpha, by default with beta 0 and alpha 1; "
        "generate() by log P / ((5 + L) / 6)^alpha, so that the same hypotheses may come in another order."
    ]
    vocabulary, originals = read_vocabulary(path.parent, notes)
    return Converted(
        toolkit=NAME,
        path=path,
        config={
            "d_model": d_model,
            "encoder_layers": encoder["num_layers"],
            "decoder_layers": decoder["num_layers"],
            "encoder_attention_heads": encoder["attention_heads"],
            "decoder_attention_heads": decoder["attention_heads"],
            "encoder_ffn_dim": encoder["feed_forward_num_hidden"],
            "decoder_ffn_dim": decoder["feed_forward_num_hidden"],
            "activation_function": ACTIVATIONS[encoder.get("act_type", "relu")],
            "dropout": float(encoder.get("dropout_prepost", 0.0)),
            "attention_dropout": float(encoder.get("dropout_attention", 0.0)),
            "activation_dropout": float(encoder.get("dropout_act", 0.0)),
            **positions,
            "norm_position": orders[0],
            "layer_norm_eps": EPSILON,
        },
        tensors=ours,
        vocabulary=vocabulary,
        concatenated=not learned,
        notes=notes,
        originals=[*originals, file],
    )


def split_self_attention(tensors: Tensors, theirs: str, ours: str, heads: int, found: dict[str, Tensor]) -> None:
    """ff_in: queries, then keys and values interleaved by head."""
    fused = tensors.take(f"{theirs}.ff_in.weight", None, None)
    if fused is not None:
        d_model = fused.shape[1]
        found[f"{ours}.q_proj.weight"] = fused[:d_model]
        split_by_head(fused[d_model:], ours, heads, found)


def split_by_head(fused: Tensor, ours: str, heads: int, found: dict[str, Tensor]) -> None:
    """(heads * 2 * d_k, d_model): head 0 keys, head 0 values, head 1 keys, ..."""
    by_head = fused.unflatten(0, (heads, 2, -1))
    for part, name in enumerate(("k_proj", "v_proj")):
        found[f"{ours}.{name}.weight"] = by_head[:, part].flatten(0, 1)


class ConfigLoader(yaml.SafeLoader):
    """Sockeye tags its mappings with the names of its classes; here they are mappings."""


def _mapping(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict:
    return loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else {}


def _sequence(loader: yaml.SafeLoader, node: yaml.Node) -> list:
    return loader.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else []


ConfigLoader.add_multi_constructor("!", _mapping)
ConfigLoader.add_constructor("tag:yaml.org,2002:python/tuple", _sequence)


def read_config(file: Path) -> dict[str, Any]:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), ConfigLoader)  # a SafeLoader: builds plain values
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BrokenFileError(f"{file} is not a configuration of Sockeye ({error})") from None
    if not isinstance(content, dict):
        raise BrokenFileError(f"{file} is not a configuration of Sockeye")
    return content


def read_vocabulary(folder: Path, notes: list[str]) -> tuple[Vocabulary, list[Path]]:
    """vocab.src.0.json and vocab.trg.0.json."""
    files = [find_file(folder, f"vocab.{side}.0.json") for side in ("src", "trg")]
    if files[0] is None or files[1] is None:
        raise InputError(f"{folder}: vocab.src.0.json and vocab.trg.0.json are needed beside the parameters")
    found = [file for file in files if file]
    source, target = (tokens_of(read_json_object(file), file) for file in found)
    if source == target:
        target = source
    symbols = ["<pad>", "<unk>", "<s>", "</s>"]
    for file, tokens in zip(found, (source, target), strict=True):
        if tokens[:4] != symbols:
            raise InputError(f"{file}: ids 0 to 3 are {json.dumps(tokens[:4])}, Sockeye's are {json.dumps(symbols)}")
    vocabulary = Vocabulary(source, target, pad=0, unknown=1, bos=2, start=2, eos=3)
    originals = set_tokenizers(vocabulary, folder, (None, None), notes)
    return vocabulary, [*dict.fromkeys(found), *originals]
