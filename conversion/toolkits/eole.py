"""Eole, the successor of OpenNMT-py: a folder with config.json, vocab.json and model.*.safetensors.

Its translation models have OpenNMT-py's architecture under other names. config.json has only the settings that differ
from the defaults of the version that wrote it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.files import read_json_object

from ..checkpoint_files import load_shards
from ..layout import OUTPUT, OUTPUT_BIAS, PAPER, POSITIONS, SOURCE, TARGET, TENSOR2TENSOR
from ..options import STACKS, Options, Reasons, flatten_options
from ..rename import Rule, expand_layers, expand_table, find_first, select_weights
from ..segmentation import add_tokenizers
from ..toolkit import Description, register_reader
from ..vocabulary import Vocabulary, join_sides
from .opennmt_py import RATES, read_tokens

EPSILON, OLD_EPSILON = 1e-5, 1e-6
EPSILON_ASSUMED = (
    f"config.json has no `norm_eps`: {EPSILON:g}, as in current versions of eole. For a model of a version before 0.3, "
    f'add "norm_eps": {OLD_EPSILON:g} to `model` in the config.json next to the checkpoint and convert it again.'
)
NOTES = [
    "eole ranks hypotheses by log P / L^alpha or, with `length_penalty: wu`, by log P / ((5 + L + 1) / 6)^alpha, "
    "generate() by log P / ((5 + L) / 6)^alpha: their order can differ.",
    "The source has no </s>.",
]
INTERLEAVED = "SinusoidalInterleaved"  # the default
SINUSOIDS = {INTERLEAVED: PAPER, "SinusoidalConcat": TENSOR2TENSOR}
LEARNED = "Learned"  # then embeddings are not scaled
# Settings of a stack that must be the same in both, with eole's defaults.
SAME_IN_BOTH = {"mlp_activation_fn": "relu", "norm_eps": EPSILON, "head_dim": None}
PLACES = ("", "encoder.", "decoder.", "embeddings.")  # of a setting inside `model`
OFF = (
    "parallel_residual shared_layer_norm ffn_layernorm query_norm key_norm value_norm num_experts sliding_window "
    "relative_positions_buckets q_gating attn_scaling aan_useffn coverage_attn adapter normalize"
).split()
SUPPORTED: dict[str, tuple] = {
    "layer_norm": ("standard", "standardFP32"),
    "position_encoding_type": (*SINUSOIDS, LEARNED),
    "mlp_activation_fn": ("relu", "gelu", "silu"),
    "encoder_layer_style": ("standard",),
    "final_encoder_layer_norm": (True,),
}
SIZES = {
    "hidden_size": "d_model",
    "{encoder,decoder}.layers": "{encoder,decoder}_layers",
    "{encoder,decoder}.heads": "{encoder,decoder}_attention_heads",
    "{encoder,decoder}.transformer_ff": "{encoder,decoder}_ffn_dim",
}
SEARCH = {
    "beam_size": "num_beams",
    "max_length": "max_new_tokens",
    "min_length": "min_new_tokens",
    "block_ngram_repeat": "no_repeat_ngram_size",
}
EMBEDDINGS = {"src_emb.embeddings.weight": SOURCE, "tgt_emb.embeddings.weight": TARGET, "generator.weight": OUTPUT}
PROJECTIONS = "{linear_query,linear_keys,linear_values,final_linear}.{weight,bias}"
COMMON = {
    f"self_attn.{PROJECTIONS}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
    "mlp.{gate_up_proj,down_proj}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
    "{input,post_attention}_layernorm.{weight,bias}": "{self_attn,feed_forward}_norm.{weight,bias}",
}
LAYERS = {
    "encoder": COMMON,
    "decoder": COMMON
    | {
        f"context_attn.{PROJECTIONS}": "cross_attn.{q,k,v,out}_proj.{weight,bias}",
        "precontext_layernorm.{weight,bias}": "cross_attn_norm.{weight,bias}",
    },
}
IGNORED = r"decoder\.transformer_layers\.\d+\.layer_scalar"  # a factor of other architectures that is 1 here


def recognise(path: Path) -> bool:
    if path.name != "config.json":
        return False
    try:
        model = read_json_object(path).get("model")
    except BrokenFileError:
        return False
    return isinstance(model, dict) and "architecture" in model


@register_reader("eole", ["config.json"], recognise_file=recognise)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a folder; path: its config.json"""
    content = read_json_object(path, "model", "training", "inference")
    options = Options(flatten_options(content["model"] | {"training": content.get("training")}), reasons)
    options.require({"architecture": ("transformer",)})
    options.require({place + name: values for place in PLACES for name, values in SUPPORTED.items()})
    options.require({}, " ".join(place + name for place in PLACES for name in OFF))
    eps_is_known = any(place + "norm_eps" in options for place in PLACES)
    for place in PLACES:
        for name, same in (("heads_kv", "heads"), ("layer_types", "")):
            if options.get(place + name) not in (None, options.get(place + same)):
                reasons.add_setting(f"{options.show(place + name)} (not supported)")
    for stack in STACKS:  # settings of `model` apply to both stacks
        for name in ("layers", "heads", "transformer_ff", "hidden_size", *SAME_IN_BOTH):
            options.setdefault(f"{stack}.{name}", options.get(name, SAME_IN_BOTH.get(name)))
        options.require_equal(f"{stack}.hidden_size", "hidden_size")
    for name in SAME_IN_BOTH:
        options.require_equal(f"encoder.{name}", f"decoder.{name}")
    config = options.read_sizes(SIZES)
    reasons.raise_if_any()

    files = sorted(path.parent.glob("model*.safetensors"))
    if not files:
        raise InputError(f"{path.parent}: model.00.safetensors is missing next to config.json")
    tensors = select_weights(load_shards(files), reasons, IGNORED)
    config |= options.read_rates(0.1, *(f"training.{name}" for name in RATES)) | {
        "activation_function": options["encoder.mlp_activation_fn"],
        "norm_position": "pre",
        "layer_norm_eps": options["encoder.norm_eps"],
        "d_k": options["encoder.head_dim"],
        "d_v": options["encoder.head_dim"],
    }
    source, target, output = EMBEDDINGS
    # Shared matrices are saved once.
    shared = [*([source] if options.get("share_embeddings") else []), target]
    shared += [output] if options.get("share_decoder_embeddings") else []
    rules = [
        Rule(find_first(tensors, name, *(shared if name in shared else [])), ours) for name, ours in EMBEDDINGS.items()
    ]
    if options.get("generator_bias", True):
        rules.append(Rule("generator.bias", OUTPUT_BIAS))
    encoding = options.get("embeddings.position_encoding_type", options.get("position_encoding_type", INTERLEAVED))
    if encoding == LEARNED:
        rules += expand_table({"{src,tgt}_emb.pe.weight": POSITIONS})
        config["position_offset"] = options.get("embeddings.position_shift") or 0
    layers = expand_layers(
        config, "{encoder,decoder}.transformer_layers.#.", LAYERS, "{encoder,decoder}.layer_norm.{weight,bias}"
    )
    kinds = {name_kind(name) for name in tensors}
    biases = ("_proj.bias", ".fc1.bias", ".fc2.bias")  # each kind may be absent
    rules += [rule for rule in layers if name_kind(rule.theirs) in kinds or not rule.ours.endswith(biases)]
    return Description(
        tensors,
        rules,
        config,
        read_vocabulary(path.parent),
        SINUSOIDS.get(encoding, PAPER),
        unscaled=(SOURCE, TARGET) if encoding == LEARNED else (),
        notes=NOTES,
        assumptions=[] if eps_is_known else [EPSILON_ASSUMED],
        search=read_search(content.get("inference", {})),
    )


def name_kind(tensor: str) -> str:
    """Return a tensor's name without the number of its layer."""
    return re.sub(r"\.\d+\.", ".", tensor)


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read vocab.json, which has the tokens of both sides and the names of the special tokens."""
    file = folder / "vocab.json"
    content = read_json_object(file, "specials")
    source, target = (read_tokens(content.get(side)) for side in ("src", "tgt"))
    if source is None or target is None:
        raise BrokenFileError(f"{file}: `src` and `tgt` must be lists of tokens")
    given = content.get("specials", {})
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<blank>"}
    start, end, unknown, pad = (given.get(name) or default for name, default in names.items())
    start = content.get("decoder_start_token") or start
    vocabulary = join_sides(source, target, start, end, unknown, pad, f"`src` and `tgt` of {file}")
    return add_tokenizers(vocabulary, folder)


def read_search(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `inference` for our generation_config.json. eole's defaults do not count as settings."""
    search = {ours: settings[theirs] for theirs, ours in SEARCH.items() if settings.get(theirs)}
    if "beam_size" in settings:
        search["length_penalty"] = 0.0 if settings.get("length_penalty") == "none" else settings.get("alpha", 1.0)
    return search
