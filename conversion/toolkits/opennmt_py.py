"""OpenNMT-py 3, and 1 and 2 with the same options: pre-norm layers and a final norm on both stacks.

The sinusoids are the paper's or, with "SinusoidalConcat", tensor2tensor's. Sources have no </s>. The output has a bias.
"""

import argparse
import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vaswani_transformer.errors import InputError

from ..checkpoint_files import load_checkpoint, load_shards, save_pickle
from ..folder import OurModel
from ..layout import OUTPUT, OUTPUT_BIAS, PAPER, SOURCE, TARGET, TENSOR2TENSOR
from ..options import Options, Reasons, expand, map_fields
from ..rename import Rule, expand_layers, expand_table, rename_to_theirs, select_weights
from ..segmentation import add_tokenizers
from ..toolkit import Description, count_embeddings, register_reader, register_writer
from ..vocabulary import Vocabulary, join_sides, number_tokens

BLANK, BOS, EOS, UNK = "<blank>", "<s>", "</s>", "<unk>"
POSITION_TABLES = expand("{encoder,decoder}.embeddings.make_embedding.pe.pe")
TABLE_ROWS = 5000

NOTES = [
    "OpenNMT-py's `wu` penalty counts <s> as well: ((5 + L + 1) / 6)^alpha; generate() counts only L.",
    "The source has no </s>.",
]
SOURCE_END_NOTE = (
    f"The sources of this model end in {EOS}, which OpenNMT-py does not add: segment the source text with the model's "
    f"tokenizer, and write ` {EOS}` at the end of each line."
)
# By position_encoding_type, which versions 1 and 2 do not have.
SINUSOIDS = {"SinusoidalInterleaved": PAPER, "SinusoidalConcat": TENSOR2TENSOR, None: PAPER}
OFF = (
    "multiquery parallel_residual shared_layer_norm aan_useffn coverage_attn relative_positions_buckets num_kv "
    "sliding_window num_experts quant_type lora_layers"
)
# Options with the value that is written; most support no other. Alignment adds a loss for a head, but no computation.
FIXED: dict[str, Any] = {
    **dict.fromkeys(("encoder_type", "decoder_type"), "transformer"),
    **dict.fromkeys(("max_relative_positions", "n_src_feats"), 0),
    "model_task": "seq2seq",
    "model_type": "text",
    "position_encoding": True,
    "self_attn_type": "scaled-dot",
    "layer_norm": "standard",
    "copy_attn": False,
    "lambda_align": 0.0,
    "generator_function": "softmax",
}
# Options of the training that OpenNMT-py also reads when it loads a model, in written files.
READ_WHEN_LOADED: dict[str, Any] = {
    "optim": "adam",
    "param_init": 0.0,
    "param_init_glorot": True,
    "parallel_mode": "data_parallel",
    "world_size": 1,
    "use_ckpting": [],
    **dict.fromkeys(("freeze_encoder", "freeze_decoder", "freeze_word_vecs_enc", "freeze_word_vecs_dec"), False),
}
SUPPORTED = {name: (value,) for name, value in FIXED.items() if name != "lambda_align"} | {
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "position_encoding_type": tuple(SINUSOIDS),
    "pos_ffn_activation_fn": ("relu", "gelu"),
}
RATES = ("dropout", "attention_dropout", "dropout")  # of sub-layers, attention weights and activations
SIZES = {
    "hidden_size": "d_model",
    "{enc,dec}_layers": "{encoder,decoder}_layers",
    "heads": "{encoder,decoder}_attention_heads",
    "transformer_ff": "{encoder,decoder}_ffn_dim",
}
# The names of sizes in older versions.
OLD_NAMES = {"hidden_size": ("rnn_size", "enc_rnn_size"), "enc_layers": ("layers",), "dec_layers": ("layers",)}

EMBEDDINGS = {
    "encoder.embeddings.make_embedding.emb_luts.0.weight": SOURCE,
    "decoder.embeddings.make_embedding.emb_luts.0.weight": TARGET,
    "generator.{weight,bias}": "lm_head.{weight,bias}",
}
FEATURES = "encoder.embeddings.make_embedding.emb_luts.1.weight"
PROJECTIONS = "{linear_query,linear_keys,linear_values,final_linear}.{weight,bias}"
COMMON = {
    f"self_attn.{PROJECTIONS}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
    "feed_forward.w_{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
    "feed_forward.layer_norm.{weight,bias}": "feed_forward_norm.{weight,bias}",
}
LAYERS = {
    "encoder": COMMON | {"layer_norm.{weight,bias}": "self_attn_norm.{weight,bias}"},
    "decoder": COMMON
    | {
        f"context_attn.{PROJECTIONS}": "cross_attn.{q,k,v,out}_proj.{weight,bias}",
        "layer_norm_{1,2}.{weight,bias}": "{self_attn,cross_attn}_norm.{weight,bias}",
    },
}
PREFIX = "{encoder.transformer,decoder.transformer_layers}.#."


def make_rules(config: Mapping[str, Any], feed_forward_bias: bool) -> list[Rule]:
    """Return the rules of all tensors, without those of biases that the model does not have."""
    rules = expand_table(EMBEDDINGS) + expand_layers(
        config, PREFIX, LAYERS, "{encoder,decoder}.layer_norm.{weight,bias}"
    )
    absent = [] if config["attention_bias"] else ["_proj.bias"]
    absent += [] if feed_forward_bias else [".fc1.bias", ".fc2.bias"]
    return [rule for rule in rules if not rule.ours.endswith(tuple(absent))]


@register_reader(
    "opennmt-py",
    ["*.pt"],
    packages=["onmt", "torchtext"],
    recognise_content=lambda content: {"opt", "vocab"} <= content.keys(),
)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a .pt file, whose tensors may be in .safetensors files next to it."""
    checkpoint = load_checkpoint(path)
    options = Options(vars(checkpoint["opt"]), reasons, as_flags=True)
    options.require(SUPPORTED, OFF)
    for name, old_names in OLD_NAMES.items():
        options.setdefault(name, next((options[old] for old in old_names if old in options), None))
    config = options.read_sizes(SIZES)
    for name in ("src_word_vec_size", "tgt_word_vec_size", "enc_hid_size", "dec_hid_size"):
        options.require_equal(name, "hidden_size", missing=config["d_model"])
    reasons.raise_if_any()

    tensors = select_weights(read_weights(checkpoint, path), reasons, r"decoder\.transformer_layers\.\d+\.mask")
    if FEATURES in tensors:  # versions before 3 have no n_src_feats
        reasons.add_setting("its source tokens have features, such as case, with an embedding of their own")
        reasons.raise_if_any()
    feed_forward_bias = "encoder.transformer.0.feed_forward.w_1.bias" in tensors
    config |= options.read_rates(0.1, *RATES) | {
        "activation_function": options.get("pos_ffn_activation_fn", "relu"),
        "norm_position": "pre",
        "layer_norm_eps": options.get("norm_eps", 1e-6),
        "attention_bias": "encoder.transformer.0.self_attn.linear_query.bias" in tensors,
    }
    rules = make_rules(config, feed_forward_bias)
    vocabulary = read_vocabulary(path.parent, checkpoint.get("vocab"), options, count_embeddings(tensors, rules))
    encoding = options.get("position_encoding_type")
    kept = {
        "position_encoding_type": encoding,
        "add_ffnbias": feed_forward_bias,
        "src_vocab": vocabulary.source,
        "tgt_vocab": vocabulary.target,
        "decoder_start_token": vocabulary.target[vocabulary.start_id],
    }
    return Description(tensors, rules, config, vocabulary, SINUSOIDS[encoding], notes=NOTES, kept=kept)


def read_weights(checkpoint: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the tensors of the model and, as generator.weight and .bias, of the output layer.

    They are in the checkpoint or, with --save_format safetensors, in files next to it.
    """
    if checkpoint.get("model"):  # in versions 1 and 2, the generator's names begin with `0.`
        generator = checkpoint.get("generator") or {}
        return checkpoint["model"] | {f"generator.{name.removeprefix('0.')}": t for name, t in generator.items()}
    files = sorted(path.parent.glob(f"{glob.escape(path.stem)}.*safetensors"))  # not those of step 100 for step 10
    if not files:
        raise InputError(f"{path} contains no weights, and {path.stem}.safetensors is not next to it")
    return {name.replace("generator.0.", "generator."): tensor for name, tensor in load_shards(files).items()}


def read_vocabulary(folder: Path, content: Any, options: Mapping[str, Any], rows: list[int]) -> Vocabulary:
    """Return the vocabularies in the checkpoint. In OpenNMT-py 1 and 2 only the target has <s> and </s>."""
    content = dict(content) if isinstance(content, list) else content
    source, target = (read_tokens(content.get(side)) if isinstance(content, dict) else None for side in ("src", "tgt"))
    if source is None or target is None:
        why = "the checkpoint's vocabulary has an unknown format. Ids are OpenNMT-py's"
        ids = {"unknown": 0, "pad": 1, "bos": 2, "start": 2, "eos": 3}
        return number_tokens([UNK, BLANK, BOS, EOS], rows, why, **ids)
    start = content.get("decoder_start_token", BOS)
    vocabulary = join_sides(source, target, start, EOS, UNK, BLANK, "the checkpoint's vocabularies")
    return add_tokenizers(vocabulary, folder, (options.get("src_lang"), options.get("tgt_lang")))


def read_tokens(vocabulary: Any) -> list[str] | None:
    """Return one side's tokens by id: a list, or the `itos` of torchtext's Vocab inside its Field; else None."""
    fields = getattr(vocabulary, "fields", vocabulary)
    if isinstance(fields, list) and len(fields) == 1 and isinstance(fields[0], tuple):  # a TextMultiField
        vocabulary = fields[0][-1]
    vocabulary = getattr(vocabulary, "vocab", vocabulary)
    tokens = getattr(vocabulary, "itos", vocabulary)
    return tokens if isinstance(tokens, list) and tokens and all(isinstance(t, str) for t in tokens) else None


# ---- from our model to OpenNMT-py --------------------------------------------------------------------------------


@register_writer("opennmt-py")
def write_checkpoint(folder: OurModel, out: Path, options: Options) -> list[str]:
    """Write a released checkpoint of OpenNMT-py 3.5. Return a note if sources need `</s>`, which it does not add."""
    config, reasons = folder.config, options.reasons
    options.require(
        {
            "norm_position": ("pre",),
            "{encoder,decoder}_final_norm": (True,),
            "position_embedding_type": ("sinusoidal",),
            "position_base": (10000.0, TENSOR2TENSOR.base(config.d_model)),
            "position_offset": (0,),
            "decoder_attention_heads": (config.encoder_attention_heads,),
            "decoder_ffn_dim": (config.encoder_ffn_dim,),
            "activation_function": ("relu", "gelu"),
        }
    )
    if folder.toolkit != "opennmt-py":
        folder.keep_all_rows()
        if not folder.has_tokenizer():
            reasons.add_setting("there is no tokenizer to write the vocabularies from")
        elif UNK not in folder.tokens()[0]:
            reasons.add_setting("the vocabulary has no <unk>, which OpenNMT-py needs")
    encoding = "SinusoidalInterleaved" if config.position_base == 10000 else "SinusoidalConcat"
    positions = SINUSOIDS[encoding]
    ours = folder.tensors(positions)
    reasons.raise_if_any()

    # Biases that the checkpoint did not have are zeros here, unless they were trained since.
    feed_forward_bias = bool(folder.kept.get("add_ffnbias", True)) or any(
        tensor.any() for name, tensor in ours.items() if name.endswith((".fc1.bias", ".fc2.bias"))
    )
    ours.setdefault(OUTPUT_BIAS, torch.zeros(len(ours[OUTPUT])))
    table = positions.table(TABLE_ROWS, config.d_model).float()[:, None]
    rules = make_rules(config.to_dict(), feed_forward_bias)
    tensors = dict.fromkeys(POSITION_TABLES, table) | rename_to_theirs(rules, ours)
    tensors = folder.in_saved_dtype(tensors)
    generator = {name: tensors.pop(f"generator.{name}") for name in ("weight", "bias")}
    vocabulary = make_vocabulary(folder)
    settings = make_options(config)
    settings |= {"position_encoding_type": encoding, "add_ffnbias": feed_forward_bias}
    settings["share_vocab"] = vocabulary["src"] == vocabulary["tgt"]
    content = {"model": tensors, "generator": generator, "vocab": vocabulary, "opt": argparse.Namespace(**settings)}
    save_pickle(content, out / "model_release.pt")
    has_end = folder.has_tokenizer() and folder.tokenizer("source").encode("a").ids[-1:] == [config.eos_token_id]
    return [SOURCE_END_NOTE] if has_end else []


def make_vocabulary(folder: OurModel) -> dict[str, Any]:
    """Return the original vocabularies, or ours with OpenNMT-py's names for the special tokens."""
    if folder.toolkit == "opennmt-py":
        source, target, start = (folder.kept[name] for name in ("src_vocab", "tgt_vocab", "decoder_start_token"))
    else:
        config, start = folder.config, BOS
        source, target = folder.tokens()
        for tokens in (source, target):
            tokens[config.decoder_start_token_id] = BOS
            tokens[config.eos_token_id] = EOS
            tokens[config.pad_token_id] = BLANK
    return {"src": source, "tgt": target, "decoder_start_token": start, "data_task": "seq2seq"}


def make_options(config: Any) -> dict[str, Any]:
    """Return OpenNMT-py's options for a model of ours."""
    also_d_model = ("enc_hid_size", "dec_hid_size", "word_vec_size", "src_word_vec_size", "tgt_word_vec_size")
    return {
        **FIXED,
        "data_task": "seq2seq",
        **{theirs: getattr(config, ours) for ours, theirs in map_fields(SIZES).items()},
        **dict.fromkeys(also_d_model, config.d_model),
        "pos_ffn_activation_fn": config.activation_function,
        "norm_eps": config.layer_norm_eps,
        "add_qkvbias": config.attention_bias,
        "share_embeddings": config.share_encoder_decoder_embeddings,
        "share_decoder_embeddings": config.tie_word_embeddings,
        "dropout": [config.dropout],
        "attention_dropout": [config.attention_dropout],
        "model_dtype": "fp32",
        **READ_WHEN_LOADED,
    }
