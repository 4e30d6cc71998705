"""OpenNMT-py 3 (and 1, 2 where the options are there): pre-norm layers, a final norm on both stacks.

The paper's sinusoids, or "SinusoidalConcat", tensor2tensor's. The source has no </s>. The output has a bias.
"""

import argparse
import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import InputError

from ..converted import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Converted
from ..layout import base_of_concatenated, concatenated, concatenated_sinusoids, interleaved_sinusoids
from ..origin import Origin
from ..refuse import Reasons, shown
from ..rename import Rule, Tensors, for_layers, with_bias, write
from ..segmentation import set_tokenizers
from ..unpickle import load_checkpoint
from ..vocabulary import Vocabulary
from .hugging_face import load_safetensors

NAME = "opennmt-py"
BLANK, BOS, EOS, UNK = "<blank>", "<s>", "</s>", "<unk>"
EMBEDDING = "{}.embeddings.make_embedding.emb_luts.0.weight"
POSITIONS = "{}.embeddings.make_embedding.pe.pe"

# With "silu" and "gated-gelu" the feed-forward network has a gate.
ALLOWED: dict[str, tuple] = {
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "position_encoding": (True,),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat", None),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "max_relative_positions": (0,),
    "relative_positions_buckets": (0,),
    "layer_norm": ("standard",),
    "pos_ffn_activation_fn": ("relu", "gelu"),
    "num_kv": (0,),
    "multiquery": (False,),
    "sliding_window": (0,),
    "num_experts": (0,),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "aan_useffn": (False,),
    "n_src_feats": (0,),
    "copy_attn": (False,),
    "coverage_attn": (False,),
    "lambda_align": (0, 0.0),
    "generator_function": ("softmax",),
    "quant_type": ("",),
    "lora_layers": ([],),
}


def attention(theirs: str, ours: str, bias: bool) -> list[Rule]:
    names = {"linear_query": "q_proj", "linear_keys": "k_proj", "linear_values": "v_proj", "final_linear": "out_proj"}
    rules = [rule for name, own in names.items() for rule in with_bias(f"{theirs}.{name}", f"{ours}.{own}")]
    return [rule for rule in rules if bias or rule.theirs.endswith("weight")]


def feed_forward(theirs: str, ours: str, bias: bool) -> list[Rule]:
    rules = [
        *with_bias(f"{theirs}.w_1", f"{ours}.feed_forward.fc1"),
        *with_bias(f"{theirs}.w_2", f"{ours}.feed_forward.fc2"),
    ]
    rules = [rule for rule in rules if bias or rule.theirs.endswith("weight")]
    return rules + with_bias(f"{theirs}.layer_norm", f"{ours}.feed_forward_norm")


def rules(encoder_layers: int, decoder_layers: int, qkv_bias: bool, ffn_bias: bool) -> list[Rule]:
    encoder = [
        *attention("encoder.transformer.{n}.self_attn", "model.encoder.layers.{n}.self_attn", qkv_bias),
        *with_bias("encoder.transformer.{n}.layer_norm", "model.encoder.layers.{n}.self_attn_norm"),
        *feed_forward("encoder.transformer.{n}.feed_forward", "model.encoder.layers.{n}", ffn_bias),
    ]
    layer = "decoder.transformer_layers.{n}"
    decoder = [
        *attention(f"{layer}.self_attn", "model.decoder.layers.{n}.self_attn", qkv_bias),
        *with_bias(f"{layer}.layer_norm_1", "model.decoder.layers.{n}.self_attn_norm"),
        *attention(f"{layer}.context_attn", "model.decoder.layers.{n}.cross_attn", qkv_bias),
        *with_bias(f"{layer}.layer_norm_2", "model.decoder.layers.{n}.cross_attn_norm"),
        *feed_forward(f"{layer}.feed_forward", "model.decoder.layers.{n}", ffn_bias),
    ]
    return [
        *for_layers(encoder, encoder_layers),
        *with_bias("encoder.layer_norm", "model.encoder.final_norm"),
        *for_layers(decoder, decoder_layers),
        *with_bias("decoder.layer_norm", "model.decoder.final_norm"),
    ]


def checkpoints(folder: Path) -> list[Path]:
    return list(folder.glob("*.pt"))


def recognise(checkpoint: Any) -> bool:
    return (
        isinstance(checkpoint, dict)
        and {"opt", "vocab"} <= checkpoint.keys()
        and hasattr(checkpoint["opt"], "__dict__")
        and all(isinstance(checkpoint.get(name, {}), dict) for name in ("model", "generator"))
    )


def read(path: Path, reasons: Reasons) -> Converted:
    checkpoint = load_checkpoint(path)
    if not recognise(checkpoint):
        raise InputError(f"{path} is not of OpenNMT-py: it lacks `opt` or `vocab`")
    options = dict(vars(checkpoint["opt"]))

    reasons.only(options, ALLOWED, "--{} {}")
    d_model = options.get("hidden_size", options.get("rnn_size", options.get("enc_rnn_size")))
    layers = [options.get(f"{stack}_layers", options.get("layers")) for stack in ("enc", "dec")]
    sizes = {"hidden_size": d_model, "enc_layers": layers[0], "dec_layers": layers[1]}
    sizes |= {name: options.get(name) for name in ("heads", "transformer_ff")}
    reasons.sizes(sizes, sizes, "--{} {}")
    for name in ("src_word_vec_size", "tgt_word_vec_size", "enc_hid_size", "dec_hid_size"):
        if options.get(name, d_model) != d_model:
            reasons.option(f"--{name.replace('_', '-')} {shown(options[name])} is not --hidden-size {d_model}")
    if reasons.options:
        reasons.refuse()
    assert isinstance(d_model, int) and isinstance(layers[0], int) and isinstance(layers[1], int)

    weights, generator_weights = weights_of(checkpoint, path)
    tensors = Tensors(weights, reasons)
    tensors.ignore(r"decoder\.transformer_layers\.\d+\.mask")  # OpenNMT-py 1
    ours: dict[str, Tensor] = {}
    is_concatenated = options.get("position_encoding_type") == "SinusoidalConcat"
    for stack, name in (("encoder", SOURCE), ("decoder", TARGET)):
        embedding = tensors.take(EMBEDDING.format(stack), None, d_model)
        if embedding is not None:
            ours[name] = embedding
        table = tensors.left.pop(POSITIONS.format(stack), None)
        if table is not None:
            formula = concatenated_sinusoids if is_concatenated else interleaved_sinusoids
            if not torch.allclose(table[:256, 0].double(), formula(len(table[:256]), d_model), atol=1e-3):
                reasons.fault(
                    f"tensor {POSITIONS.format(stack)} is not the table of {options['position_encoding_type']}"
                )
    qkv_bias = "encoder.transformer.0.self_attn.linear_query.bias" in tensors
    ffn_bias = "encoder.transformer.0.feed_forward.w_1.bias" in tensors
    tensors.rename(rules(layers[0], layers[1], qkv_bias, ffn_bias), ours)
    tensors.nothing_may_be_left()
    generator = Tensors({name.removeprefix("0."): tensor for name, tensor in generator_weights.items()}, reasons)
    generator.rename([Rule("weight", OUTPUT), Rule("bias", OUTPUT_BIAS)], ours)
    generator.nothing_may_be_left()
    if not ffn_bias:  # the paper's feed-forward network has biases
        add_zero_biases(ours)

    dropout = options.get("dropout", [0.1])
    attention_dropout = options.get("attention_dropout", [0.1])
    notes = [
        "OpenNMT-py's `wu` penalty counts <s> as well: ((5 + L + 1) / 6)^alpha; generate() counts L alone.",
        "The source has no </s>.",
    ]
    rows = [len(ours[name]) if name in ours else 0 for name in (SOURCE, TARGET)]
    vocabulary, originals = read_vocabulary(path.parent, checkpoint.get("vocab"), options, rows, notes)
    return Converted(
        toolkit=NAME,
        path=path,
        config={
            "d_model": d_model,
            "encoder_layers": layers[0],
            "decoder_layers": layers[1],
            "encoder_attention_heads": options["heads"],
            "decoder_attention_heads": options["heads"],
            "encoder_ffn_dim": options["transformer_ff"],
            "decoder_ffn_dim": options["transformer_ff"],
            "activation_function": options.get("pos_ffn_activation_fn", "relu"),
            "dropout": float(dropout[-1] if isinstance(dropout, list) else dropout),
            "attention_dropout": float(
                attention_dropout[-1] if isinstance(attention_dropout, list) else attention_dropout
            ),
            "position_base": base_of_concatenated(d_model) if is_concatenated else 10000.0,
            "norm_position": "pre",
            "layer_norm_eps": float(options.get("norm_eps", 1e-6)),
            "attention_bias": qkv_bias,
        },
        tensors=ours,
        vocabulary=vocabulary,
        concatenated=is_concatenated,
        notes=notes,
        originals=originals,
        options={
            "position_encoding_type": options.get("position_encoding_type"),
            "add_ffnbias": ffn_bias,
            "src_vocab": vocabulary.source,
            "tgt_vocab": vocabulary.target,
            "decoder_start_token": vocabulary.target[vocabulary.start] if vocabulary.start is not None else BOS,
        },
    )


def weights_of(checkpoint: Mapping[str, Any], path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The model's and the generator's tensors: in the checkpoint or, with --save_format safetensors, beside it."""
    if checkpoint.get("model"):
        return checkpoint["model"], checkpoint.get("generator") or {}
    files = sorted(path.parent.glob(f"{glob.escape(path.stem)}*.safetensors"))
    if not files:
        raise InputError(f"{path} holds no weights, and there is no {path.stem}.safetensors beside it")
    found = {name: tensor for file in files for name, tensor in load_safetensors(file).items()}
    generator = {name.removeprefix("generator."): t for name, t in found.items() if name.startswith("generator.")}
    return {name: t for name, t in found.items() if not name.startswith("generator.")}, generator


def add_zero_biases(ours: dict[str, Tensor]) -> None:
    """Biases of the feed-forward networks that do nothing."""
    for name in [name for name in ours if name.endswith((".fc1.weight", ".fc2.weight"))]:
        ours.setdefault(name.removesuffix("weight") + "bias", torch.zeros(ours[name].shape[0]))


def read_vocabulary(
    folder: Path, found: Any, options: Mapping[str, Any], rows: list[int], notes: list[str]
) -> tuple[Vocabulary, list[Path]]:
    """The vocabularies inside the checkpoint. Those of OpenNMT-py 1 and 2 give <s> and </s> to the target alone."""
    found = dict(found) if isinstance(found, list) else found
    source, target = (tokens_of(found.get(side)) if isinstance(found, dict) else None for side in ("src", "tgt"))
    if source is None or target is None:
        notes.append("There is no tokenizer: the checkpoint's vocabulary is of no known kind. Ids are OpenNMT-py's.")
        special = [UNK, BLANK, BOS, EOS]
        tokens = [special + [f"token{id}" for id in range(4, count)] for count in rows]
        return Vocabulary(*tokens, unknown=0, pad=1, bos=2, start=2, eos=3, ends=False), []
    if source == target:
        target = source
    start = found.get("decoder_start_token", BOS)
    for side, tokens, needed in (("src", source, {UNK, BLANK}), ("tgt", target, {UNK, BLANK, start, EOS})):
        missing = [token for token in needed if token not in tokens]
        if missing:
            raise InputError(f"the {side} vocabulary lacks {', '.join(sorted(missing))}")
    shared = [[tokens.index(token) for token in (UNK, BLANK)] for tokens in (source, target)]
    if shared[0] != shared[1]:
        raise InputError(f"src and tgt give <unk> and <blank> different ids: {shared[0]} and {shared[1]}")
    (unknown, pad), eos, bos = shared[0], target.index(EOS), target.index(start)
    vocabulary = Vocabulary(
        source,
        target,
        eos=eos,
        unknown=unknown,
        bos=bos,
        pad=pad,
        start=bos,
        ends=False,
        source_has_symbols=source[eos : eos + 1] == [EOS] and source[bos : bos + 1] == [start],
    )
    languages = (options.get("src_lang") or None, options.get("tgt_lang") or None)
    return vocabulary, set_tokenizers(vocabulary, folder, languages, notes)


def tokens_of(found: Any) -> list[str] | None:
    """One side's tokens by id: a list, or the `itos` of torchtext's Vocab inside its Field; None: neither."""
    fields = getattr(found, "fields", found)
    if isinstance(fields, list) and len(fields) == 1 and isinstance(fields[0], tuple):  # of a TextMultiField
        found = fields[0][-1]
    found = getattr(found, "vocab", found)
    tokens = getattr(found, "itos", found)
    return tokens if isinstance(tokens, list) and tokens and all(isinstance(t, str) for t in tokens) else None


# ---- the way back ------------------------------------------------------------------------------------------------


def write_back(model: VaswaniTransformerForConditionalGeneration, origin: Origin, out: Path, reasons: Reasons) -> None:
    """A released checkpoint of OpenNMT-py 3.5. Raises all reasons why it cannot be one."""
    config = model.config
    if config.norm_position != "pre" or not (config.encoder_final_norm and config.decoder_final_norm):
        reasons.option("post-norm layers or no final norm: OpenNMT-py has pre-norm layers with final norms")
    is_concatenated = False
    if config.position_embedding_type != "sinusoidal":
        reasons.option("learned positions: OpenNMT-py has sinusoids")
    elif config.position_base != 10000:
        is_concatenated = True
        if abs(config.position_base / base_of_concatenated(config.d_model) - 1) > 1e-9:
            reasons.option(f"position_base {config.position_base:g}: OpenNMT-py's sinusoids have another")
    if config.position_offset:
        reasons.option(f"position_offset {config.position_offset}: OpenNMT-py counts from 0")
    if config.encoder_attention_heads != config.decoder_attention_heads:
        reasons.option("encoder and decoder have different numbers of heads: OpenNMT-py has one")
    if config.encoder_ffn_dim != config.decoder_ffn_dim:
        reasons.option("encoder_ffn_dim and decoder_ffn_dim differ: OpenNMT-py has one")
    if config.activation_function not in ("relu", "gelu"):
        reasons.option(f"activation_function {config.activation_function!r}: OpenNMT-py has relu and gelu")
    for size in ("d_k", "d_v"):
        if getattr(config, size) is not None:
            reasons.option(f"{size} {getattr(config, size)}: OpenNMT-py has d_model / heads")
    same = origin.toolkit == NAME
    if not same:
        origin.options.pop("source_tokens", None)  # a start or padding symbol that was added is needed here as well
        origin.options.pop("target_tokens", None)
        if not origin.has_tokenizer():
            reasons.option("there is no tokenizer to write the vocabularies from")
        elif UNK not in origin.tokens()[0]:
            reasons.option("the vocabulary has no <unk>: OpenNMT-py needs one")
    ours = origin.tensors_with_toolkit_rows(model, reasons, allow_output_bias=True)
    reasons.refuse_if_any()

    if is_concatenated:
        ours = concatenated(ours, config.d_model)
    encoding = "SinusoidalConcat" if is_concatenated else "SinusoidalInterleaved"
    formula = concatenated_sinusoids if is_concatenated else interleaved_sinusoids
    ffn_bias = bool(origin.options.get("add_ffnbias", True)) or any(
        tensor.any() for name, tensor in ours.items() if name.endswith((".fc1.bias", ".fc2.bias"))
    )
    tensors: dict[str, Tensor] = {}
    table = formula(5000, config.d_model).float()[:, None]
    for stack, name in (("encoder", SOURCE), ("decoder", TARGET)):
        tensors[EMBEDDING.format(stack)], tensors[POSITIONS.format(stack)] = ours[name], table
    layers = (config.encoder_layers, config.decoder_layers)
    tensors |= write(rules(*layers, config.attention_bias, ffn_bias), ours)
    bias = ours.get(OUTPUT_BIAS, torch.zeros(len(ours[OUTPUT])))
    if same:
        vocabulary = {"src": origin.options["src_vocab"], "tgt": origin.options["tgt_vocab"]}
        vocabulary["decoder_start_token"] = origin.options["decoder_start_token"]
    else:
        source, target = origin.tokens()
        vocabulary = {"src": named(source, model), "tgt": named(target, model), "decoder_start_token": BOS}
    vocabulary["data_task"] = "seq2seq"
    options = argparse.Namespace(
        model_task="seq2seq",
        model_type="text",
        data_task="seq2seq",
        encoder_type="transformer",
        decoder_type="transformer",
        enc_layers=config.encoder_layers,
        dec_layers=config.decoder_layers,
        hidden_size=config.d_model,
        enc_hid_size=config.d_model,
        dec_hid_size=config.d_model,
        word_vec_size=config.d_model,
        src_word_vec_size=config.d_model,
        tgt_word_vec_size=config.d_model,
        heads=config.encoder_attention_heads,
        transformer_ff=config.encoder_ffn_dim,
        pos_ffn_activation_fn=config.activation_function,
        position_encoding=True,
        position_encoding_type=encoding,
        self_attn_type="scaled-dot",
        max_relative_positions=0,
        layer_norm="standard",
        norm_eps=config.layer_norm_eps,
        add_qkvbias=config.attention_bias,
        add_ffnbias=ffn_bias,
        share_vocab=vocabulary["src"] == vocabulary["tgt"],
        share_embeddings=config.share_encoder_decoder_embeddings,
        share_decoder_embeddings=config.tie_word_embeddings,
        dropout=[config.dropout],
        attention_dropout=[config.attention_dropout],
        generator_function="softmax",
        copy_attn=False,
        lambda_align=0.0,
        n_src_feats=0,
        model_dtype="fp32",
    )
    saved = origin.in_saved_dtype(tensors | {"generator": ours[OUTPUT], "generator bias": bias})
    generator = {"weight": saved.pop("generator"), "bias": saved.pop("generator bias")}
    checkpoint = {"model": saved, "generator": generator, "vocab": vocabulary, "opt": options}
    with (out / "model_release.pt").open("wb") as file:  # by its name torch would not say why it cannot be written
        torch.save(checkpoint, file)
    if same:
        origin.copy_originals(out)


def named(tokens: list[str], model: VaswaniTransformerForConditionalGeneration) -> list[str]:
    """The tokens with OpenNMT-py's names for the special ones."""
    config, tokens = model.config, list(tokens)
    assert isinstance(config.eos_token_id, int) and config.pad_token_id is not None
    for id, name in ((config.decoder_start_token_id, BOS), (config.eos_token_id, EOS), (config.pad_token_id, BLANK)):
        tokens[id] = name
    return tokens
