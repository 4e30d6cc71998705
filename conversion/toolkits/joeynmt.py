"""JoeyNMT 1 and 2: a .ckpt, config.yaml and the vocabularies. The paper's sinusoids; no output bias."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaswani_transformer.lines import read_lines

from ..checkpoint_files import load_checkpoint, read_yaml, require_file
from ..layout import OUTPUT, SOURCE, TARGET
from ..options import STACKS, Options, Reasons, flatten_options
from ..rename import Rule, expand_layers, expand_table, find_first, select_weights
from ..segmentation import CHARACTER, build_pattern_tokenizer, find_tokenizer
from ..toolkit import Description, register_reader
from ..vocabulary import SIDES, Vocabulary, read_both_sides

EPSILON = 1e-6
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "tanh": "tanh", "relu6": "relu6"}
SUPPORTED: dict[str, tuple] = {
    "{encoder,decoder}.type": ("transformer",),
    "{encoder,decoder}.activation": tuple(ACTIVATIONS),
    "{encoder,decoder}.layer_norm": ("pre", "post"),
    "{encoder,decoder}.alpha": (1.0,),  # the weight of the residual (DeepNet)
}
SIZES = {
    "encoder.hidden_size": "d_model",
    "{encoder,decoder}.num_layers": "{encoder,decoder}_layers",
    "{encoder,decoder}.num_heads": "{encoder,decoder}_attention_heads",
    "{encoder,decoder}.ff_size": "{encoder,decoder}_ffn_dim",
}
# Our name of an id -> the option with the token, and its default.
SPECIAL_TOKENS = {
    "unknown": ("unk_token", "<unk>"),
    "pad": ("pad_token", "<pad>"),
    "bos": ("bos_token", "<s>"),
    "eos": ("eos_token", "</s>"),
}
SEARCH = {
    "max_output_length": "max_new_tokens",
    "min_output_length": "min_new_tokens",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
}
# JoeyNMT 2's defaults if `layer_norm` is missing, without a final norm. Before 2.0 the option did not exist: layers
# were pre-norm, with a final norm.
DEFAULT_NORMS = {"encoder": "pre", "decoder": "post"}

PROJECTIONS = "{q,k,v,output}_layer.{weight,bias}"
FEED_FORWARD = {
    "feed_forward.layer_norm.{weight,bias}": "feed_forward_norm.{weight,bias}",
    "feed_forward.pwff_layer.{0,3}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
}
LAYERS = {
    "encoder": {
        f"src_src_att.{PROJECTIONS}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
        "layer_norm.{weight,bias}": "self_attn_norm.{weight,bias}",
        **FEED_FORWARD,
    },
    "decoder": {
        f"trg_trg_att.{PROJECTIONS}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
        "x_layer_norm.{weight,bias}": "self_attn_norm.{weight,bias}",
        f"src_trg_att.{PROJECTIONS}": "cross_attn.{q,k,v,out}_proj.{weight,bias}",
        "dec_layer_norm.{weight,bias}": "cross_attn_norm.{weight,bias}",
        **FEED_FORWARD,
    },
}


@register_reader(
    "joeynmt", ["*.ckpt"], packages=["joeynmt"], recognise_content=lambda content: "model_state" in content
)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a .ckpt file and the config.yaml next to it."""
    checkpoint = load_checkpoint(path)
    file = require_file(
        path.parent, "config.yaml", "*.yaml", remedy="; copy it from the training run: it has the number of heads"
    )
    settings = read_yaml(file, "model", "data", "testing")
    model = settings.get("model", {})
    tensors = select_weights(checkpoint["model_state"], reasons)
    final_norms = {stack: f"{stack}.layer_norm.weight" in tensors for stack in STACKS}
    options = Options(flatten_options(model), reasons)
    norm_positions = DEFAULT_NORMS | ({"decoder": "pre"} if final_norms["decoder"] else {})
    for stack, position in norm_positions.items():
        options.setdefault(f"{stack}.layer_norm", position)
    options.require(SUPPORTED)
    reasons.raise_if_any()
    config = options.read_sizes(SIZES)
    for name, default in (("hidden_size", None), ("activation", "relu"), ("layer_norm", None)):
        options.require_equal(f"encoder.{name}", f"decoder.{name}", missing=default)
    for stack in STACKS:
        options.require_equal(f"{stack}.embeddings.embedding_dim", f"{stack}.hidden_size", missing=config["d_model"])
    reasons.raise_if_any()

    config |= options.read_rates(0.1, "encoder.dropout") | {
        "activation_function": ACTIVATIONS[options.get("encoder.activation", "relu")],
        "norm_position": options["encoder.layer_norm"],
        "encoder_final_norm": final_norms["encoder"],
        "decoder_final_norm": final_norms["decoder"],
        "layer_norm_eps": EPSILON,
    }
    outputs = ["decoder.output_layer.weight", *(["trg_embed.lut.weight"] if model.get("tied_softmax") else [])]
    rules = [
        *expand_table({"src_embed.lut.weight": SOURCE, "trg_embed.lut.weight": TARGET}),
        Rule(find_first(tensors, *outputs), OUTPUT),
        *expand_layers(config, "{encoder,decoder}.layers.#.", LAYERS, "{encoder,decoder}.layer_norm.{weight,bias}"),
    ]
    embeddings = zip((SOURCE, TARGET), STACKS, strict=True)
    unscaled = tuple(name for name, stack in embeddings if not options.get(f"{stack}.embeddings.scale", False))
    data = settings.get("data", {})
    vocabulary = read_vocabulary(path.parent, data)
    search = read_search(settings.get("testing", {}), data, vocabulary)
    return Description(tensors, rules, config, vocabulary, unscaled=unscaled, files=[file], search=search)


def read_search(testing: Mapping[str, Any], data: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the settings in `testing` for our generation_config.json. JoeyNMT switches off those from 0 down."""
    if not testing:
        return {}
    alpha = testing.get("alpha", testing.get("beam_alpha", 0))  # `alpha` before JoeyNMT 2
    search: dict[str, Any] = {"num_beams": testing.get("beam_size", 1), "length_penalty": max(alpha, 0)}
    if is_version_2(data):
        testing = {"min_output_length": 1, **testing}
    search |= {ours: testing[theirs] for theirs, ours in SEARCH.items() if testing.get(theirs, 0) > 0}
    special = data.get("special_symbols") or {}
    never = [special.get("sep_token"), *(special.get("lang_tags") or [])]
    if not testing.get("generate_unk", True):
        never.append(vocabulary.special_tokens("target")["unk_token"])
    search["suppress_tokens"] = [vocabulary.target.index(token) for token in never if token in vocabulary.target]
    return search


def is_version_2(data: Mapping[str, Any]) -> bool:
    """Return whether the configuration is JoeyNMT 2's, which has a mapping for each side, not only its language."""
    return isinstance(data.get("src"), dict)


def read_vocabulary(folder: Path, data: Mapping[str, Any]) -> Vocabulary:
    """Read src_vocab.txt and trg_vocab.txt; the configuration names the special tokens."""
    sides = {side: read_side(data, side) for side in ("src", "trg")}
    names = [Path(str(options.get("voc_file") or f"{side}_vocab.txt")).name for side, options in sides.items()]
    files = [
        require_file(folder, name, f"{side}_vocab.txt", "vocab.txt") for side, name in zip(sides, names, strict=True)
    ]
    special = data.get("special_symbols") or {}
    tokens = {id: [special.get(name, token)] for id, (name, token) in SPECIAL_TOKENS.items()}
    # JoeyNMT 1 reads texts that subword-nmt or SentencePiece has segmented without knowing the vocabulary.
    vocabulary = read_both_sides(files, read_lines, tokens, splits_pieces=is_version_2(data))
    for side, name, options in zip(SIDES, sides, sides.values(), strict=True):
        if options.get("level") == "char":
            vocabulary.tokenizers[side] = build_pattern_tokenizer(vocabulary, side, CHARACTER)
        else:
            vocabulary.tokenizers[side] = find_tokenizer(vocabulary, side, folder, options.get("lang") or name)
        if options.get("lowercase"):
            vocabulary.notes.append(f"data.{name}.lowercase is on: convert texts to lower case before the tokenizer.")
        if (options.get("tokenizer_cfg") or {}).get("pretokenizer", "none") != "none":
            vocabulary.notes.append(f"data.{name} has a pretokenizer: tokenize texts with sacremoses first.")
        if options.get("normalize"):
            vocabulary.notes.append(
                f"data.{name}.normalize is on: before the tokenizer, apply NFKC to texts, replace curly quotes by "
                "straight ones, and join runs of spaces."
            )
    if special.get("lang_tags"):
        vocabulary.notes.append("JoeyNMT's prompts (src_prompt, trg_prompt) are left out: texts begin without a tag.")
    vocabulary.files = list(dict.fromkeys(vocabulary.files))
    return vocabulary


def read_side(data: Mapping[str, Any], side: str) -> dict[str, Any]:
    """Return the options of one side. JoeyNMT 1 has only its language there, and the other options for both sides."""
    options = data.get(side) or {}
    if isinstance(options, dict):
        return options
    both = {name: data[name] for name in ("level", "lowercase") if name in data}
    return both | {"lang": str(options), "voc_file": data.get(f"{side}_vocab", "")}
