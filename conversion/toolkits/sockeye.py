"""Sockeye 3: params.*, `config` and the vocabularies. Concatenated sinusoids with the paper's exponent.

Keys and values are joined in one matrix, interleaved by head; in self-attention the queries precede them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from ..checkpoint_files import load_checkpoint, may_be_torch_save, read_yaml, required_file
from ..description import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Description, penalty_note
from ..layout import CONCATENATED, POSITIONS
from ..options import Options, flattened
from ..reasons import Reasons
from ..rename import STACKS, Rule, checked_tensors, first_present, rules_of, stack_rules
from ..segmentation import with_tokenizers
from ..vocabulary import SIDES, Vocabulary, common_ids, read_token_ids

FILES = ["params.best", "params.*"]
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
SIZES = (
    "config_encoder.model_size",
    "config_{stack}.num_layers",
    "config_{stack}.attention_heads",
    "config_{stack}.feed_forward_num_hidden",
)
DROPOUT = [f"config_encoder.dropout_{place}" for place in ("prepost", "attention", "act")]
# Operations before and after a sub-layer, see `Options.norm_position`; `r` is the residual.
NORM_POSITIONS = {("n", "r"): "pre", ("", "rn"): "post"}
SPECIAL_TOKENS = {"pad": ["<pad>"], "unknown": ["<unk>"], "bos": ["<s>"], "eos": ["</s>"]}

# Names of Sockeye's sub-layers -> ours.
SUBLAYERS = {
    "encoder": {"self_attention": "self_attn"},
    "decoder": {"autoregr_layer": "self_attn", "enc_attention": "cross_attn"},
}


def layers(config: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of the layers, after `split_projections`, and of the final norms of pre-norm models."""
    position = config["norm_position"]
    names = {}
    for stack, sublayers in SUBLAYERS.items():
        names[stack] = {
            "ff.ff{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
            f"{position}_ff.layer_norm.{{weight,bias}}": "feed_forward_norm.{weight,bias}",
        }
        for theirs, ours in sublayers.items():
            names[stack][f"{theirs}.ff_{{q,k,v,out}}.weight"] = f"{ours}.{{q,k,v,out}}_proj.weight"
            names[stack][f"{position}_{theirs}.layer_norm.{{weight,bias}}"] = f"{ours}_norm.{{weight,bias}}"
    return stack_rules(config, "{stack}.layers.{n}.", names, "{stack}.final_process.layer_norm.{weight,bias}")


def recognise(path: Path) -> bool:
    return path.name.startswith("params.") and may_be_torch_save(path)


def read(path: Path, reasons: Reasons) -> Description:
    """Describe a params.* file and the `config` next to it."""
    file = required_file(path.parent, "config", remedy="; copy it from the training run: it has the number of heads")
    options = Options(flattened(read_yaml(file, ConfigLoader)), reasons, "{}: {}")
    config = options.sizes(SIZES)
    config["norm_position"] = check_options(options, config["d_model"], reasons)
    reasons.raise_if_any()

    tensors = checked_tensors(load_checkpoint(path), reasons, r"traced_.*")
    for stack in STACKS:
        split_projections(tensors, stack, config["d_model"], config[f"{stack}_attention_heads"])
    config |= options.rates(0.0, *DROPOUT) | {
        "activation_function": ACTIVATIONS[options.get("config_encoder.act_type", "relu")],
        "layer_norm_eps": EPSILON,
    }
    outputs = ["output_layer.weight"]
    if "softmax" in str(options.get("weight_tying_type")):
        outputs.append("embedding_target.embedding.weight")
    rules = [
        *rules_of({"embedding_source.embedding.weight": SOURCE, "embedding_target.embedding.weight": TARGET}),
        Rule(first_present(tensors, *outputs), OUTPUT),
        Rule("output_layer.bias", OUTPUT_BIAS),
        *layers(config),
    ]
    if options["config_encoder.positional_embedding_type"] == "learned":
        rules += rules_of({"{encoder,decoder}.pos_embedding.weight": POSITIONS})
    note = penalty_note("Sockeye", "log P / ((beta + L) / (beta + 1))^alpha, by default with beta 0 and alpha 1")
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
    encoder = options.norm_position("config_encoder.{preprocess,postprocess}_sequence", NORM_POSITIONS)
    decoder = options.norm_position("config_decoder.{preprocess,postprocess}_sequence", NORM_POSITIONS)
    if encoder != decoder:
        reasons.unsupported("encoder and decoder have different norm positions")
    for side in SIDES:
        part = f"config_embed_{side}"
        if options.get(f"{part}.num_factors", 1) != 1 or options.get(f"{part}.factor_configs"):
            reasons.unsupported(f"{part} has {side} factors")
        options.require_equal(f"{part}.num_embed", "config_encoder.model_size", missing=d_model)
    return encoder


def split_projections(tensors: dict[str, Tensor], stack: str, d_model: int, heads: int) -> None:
    """Split ff_in (queries, then keys and values) and ff_kv into ff_q, ff_k and ff_v.

    Keys and values are interleaved by head: (heads * 2 * d_k, d_model) is head 0 keys, head 0 values, head 1 keys, ...
    """
    for name in [name for name in tensors if name.startswith(stack)]:
        module, _, last = name.rpartition(".ff_")
        if last == "in.weight":
            joined = tensors.pop(name)
            tensors[f"{module}.ff_q.weight"], keys_values = joined[:d_model], joined[d_model:]
        elif last == "kv.weight":
            keys_values = tensors.pop(name)
        else:
            continue
        by_head = keys_values.unflatten(0, (heads, 2, -1))
        for part, letter in enumerate("kv"):
            tensors[f"{module}.ff_{letter}.weight"] = by_head[:, part].flatten(0, 1)


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read vocab.src.0.json and vocab.trg.0.json."""
    files = [required_file(folder, f"vocab.{side}.0.json") for side in ("src", "trg")]
    source, target = (read_token_ids(file) for file in files)
    ids = common_ids(source, target, SPECIAL_TOKENS, f"{files[0].name} and {files[1].name}")
    return with_tokenizers(Vocabulary(source, target, start=ids["bos"], files=files, **ids), folder)
