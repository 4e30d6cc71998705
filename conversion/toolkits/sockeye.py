"""Sockeye 3: params.*, `config` and the vocabularies. Concatenated sinusoids with the paper's exponent.

Keys and values are in one matrix, interleaved by head; in self-attention the queries precede them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from ..checkpoint_files import load_checkpoint, may_be_torch_save, read_yaml, require_file
from ..layout import CONCATENATED, OUTPUT, OUTPUT_BIAS, POSITIONS, SOURCE, TARGET
from ..options import STACKS, Options, Reasons, flatten_options
from ..rename import Rule, expand_layers, expand_table, find_first, select_weights
from ..segmentation import add_tokenizers
from ..toolkit import Description, explain_penalty, register_reader
from ..vocabulary import SIDES, Vocabulary, read_both_sides, read_token_ids

EPSILON = 1e-6
ACTIVATIONS = {"relu": "relu", "swish1": "silu", "gelu": "gelu"}
OFF = (
    "config_length_task lhuc neural_vocab_selection "
    "config_{encoder,decoder}.{block_prepended_cross_attention,use_glu,use_lhuc}"
)
SUPPORTED: dict[str, tuple] = {
    "dtype": ("float32", "float16", "bfloat16"),
    "config_{encoder,decoder}.act_type": tuple(ACTIVATIONS),
    "config_{encoder,decoder}.decoder_type": ("transformer",),
    "config_{encoder,decoder}.positional_embedding_type": ("fixed", "learned"),
}
SIZES = {
    "config_encoder.model_size": "d_model",
    "config_{encoder,decoder}.num_layers": "{encoder,decoder}_layers",
    "config_{encoder,decoder}.attention_heads": "{encoder,decoder}_attention_heads",
    "config_{encoder,decoder}.feed_forward_num_hidden": "{encoder,decoder}_ffn_dim",
}
DROPOUT = [f"config_encoder.dropout_{place}" for place in ("prepost", "attention", "act")]
# Operations before and after a sub-layer, see `Options.read_norm_position`; `r` is the residual.
NORM_POSITIONS = {("n", "r"): "pre", ("", "rn"): "post"}
SPECIAL_TOKENS = {"pad": ["<pad>"], "unknown": ["<unk>"], "bos": ["<s>"], "eos": ["</s>"]}

# After `split_projections`.
FEED_FORWARD = {"ff.ff{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}"}
PROJECTIONS = {
    "encoder": FEED_FORWARD | {"self_attention.ff_{q,k,v,out}.weight": "self_attn.{q,k,v,out}_proj.weight"},
    "decoder": FEED_FORWARD
    | {"{autoregr_layer,enc_attention}.ff_{q,k,v,out}.weight": "{self_attn,cross_attn}.{q,k,v,out}_proj.weight"},
}
NORMS = {  # after `pre_` or `post_`
    "encoder": {"{self_attention,ff}.layer_norm.{weight,bias}": "{self_attn,feed_forward}_norm.{weight,bias}"},
    "decoder": {
        "{autoregr_layer,enc_attention,ff}.layer_norm.{weight,bias}": (
            "{self_attn,cross_attn,feed_forward}_norm.{weight,bias}"
        )
    },
}


def make_layer_rules(config: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of the layers and of the final norms of pre-norm models."""
    prefix = f"{config['norm_position']}_"
    layers = {
        stack: names | {prefix + theirs: ours for theirs, ours in NORMS[stack].items()}
        for stack, names in PROJECTIONS.items()
    }
    final_norm = "{encoder,decoder}.final_process.layer_norm.{weight,bias}"
    return expand_layers(config, "{encoder,decoder}.layers.#.", layers, final_norm)


def recognise(path: Path) -> bool:
    return path.name.startswith("params.") and may_be_torch_save(path)


@register_reader("sockeye", ["params.best", "params.*"], packages=["sockeye"], recognise_file=recognise)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a params.* file and the `config` next to it."""
    file = require_file(path.parent, "config", remedy="; copy it from the training run: it has the number of heads")
    options = Options(flatten_options(read_yaml(file, loader=ConfigLoader)), reasons)
    config = options.read_sizes(SIZES)
    config["norm_position"] = check_options(options, config["d_model"], reasons)
    reasons.raise_if_any()

    tensors = select_weights(load_checkpoint(path), reasons, r"traced_.*")
    for stack in STACKS:
        split_projections(tensors, stack, config["d_model"], config[f"{stack}_attention_heads"])
    config |= options.read_rates(0.0, *DROPOUT) | {
        "activation_function": ACTIVATIONS[options.get("config_encoder.act_type", "relu")],
        "layer_norm_eps": EPSILON,
    }
    outputs = ["output_layer.weight"]
    if "softmax" in str(options.get("weight_tying_type")):
        outputs.append("embedding_target.embedding.weight")
    rules = [
        *expand_table({"embedding_source.embedding.weight": SOURCE, "embedding_target.embedding.weight": TARGET}),
        Rule(find_first(tensors, *outputs), OUTPUT),
        Rule("output_layer.bias", OUTPUT_BIAS),
        *make_layer_rules(config),
    ]
    if options["config_encoder.positional_embedding_type"] == "learned":
        rules += expand_table({"{encoder,decoder}.pos_embedding.weight": POSITIONS})
    note = explain_penalty("Sockeye", "log P / ((beta + L) / (beta + 1))^alpha, by default with beta 0 and alpha 1")
    vocabulary = read_vocabulary(path.parent)
    return Description(tensors, rules, config, vocabulary, CONCATENATED, notes=[note], files=[file])


class ConfigLoader(yaml.SafeLoader):
    """Load Sockeye's tagged mappings (`!TransformerConfig`) as plain mappings."""


ConfigLoader.add_multi_constructor("!", lambda loader, suffix, node: loader.construct_mapping(node, deep=True))
ConfigLoader.add_constructor("tag:yaml.org,2002:python/tuple", ConfigLoader.construct_sequence)


def check_options(options: Options, d_model: int, reasons: Reasons) -> str | None:
    """Add to the reasons the options that the model cannot represent; return the position of the norm."""
    options.require(SUPPORTED, OFF)
    for name in ("model_size", "act_type", "positional_embedding_type"):
        options.require_equal(f"config_encoder.{name}", f"config_decoder.{name}")
    encoder = options.read_norm_position("config_encoder.{preprocess,postprocess}_sequence", NORM_POSITIONS)
    decoder = options.read_norm_position("config_decoder.{preprocess,postprocess}_sequence", NORM_POSITIONS)
    if encoder != decoder:
        reasons.add_setting("encoder and decoder have different norm positions")
    for side in SIDES:
        part = f"config_embed_{side}"
        if options.get(f"{part}.num_factors", 1) != 1 or options.get(f"{part}.factor_configs"):
            reasons.add_setting(f"{part} has {side} factors")
        options.require_equal(f"{part}.num_embed", "config_encoder.model_size", missing=d_model)
    return encoder


def split_projections(tensors: dict[str, Tensor], stack: str, d_model: int, heads: int) -> None:
    """Split ff_in (queries, then keys and values) and ff_kv into ff_q, ff_k and ff_v.

    Keys and values are interleaved by head: (heads * 2 * d_k, d_model) is head 0 keys, head 0 values, head 1 keys, ...
    """
    for name in [name for name in tensors if name.startswith(stack)]:
        module, _, last = name.rpartition(".ff_")
        if last == "in.weight":
            matrix = tensors.pop(name)
            tensors[f"{module}.ff_q.weight"], keys_values = matrix[:d_model], matrix[d_model:]
        elif last == "kv.weight":
            keys_values = tensors.pop(name)
        else:
            continue
        by_head = keys_values.unflatten(0, (heads, 2, -1))
        for part, letter in enumerate("kv"):
            tensors[f"{module}.ff_{letter}.weight"] = by_head[:, part].flatten(0, 1)


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read vocab.src.0.json and vocab.trg.0.json."""
    files = [require_file(folder, f"vocab.{side}.0.json") for side in ("src", "trg")]
    return add_tokenizers(read_both_sides(files, read_token_ids, SPECIAL_TOKENS), folder)
