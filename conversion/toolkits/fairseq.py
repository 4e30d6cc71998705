"""fairseq: 0.12 (`cfg` with a model Namespace) and the layout of 0.6 to 0.9 (`args` Namespace, `decoder.embed_out`).

What differs from the paper and is absorbed: sinusoids concatenated with exponent i / (d_model/2 - 1), counted from
padding_idx + 1 = 2; biases in the attention; LayerNorm's epsilon 1e-5; the decoder starts with </s>.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import InputError

from ..converted import OUTPUT, SOURCE, TARGET, Converted
from ..layout import base_of_concatenated, concatenated
from ..origin import Origin
from ..refuse import Reasons, shown
from ..rename import Rule, Tensors, for_layers, with_bias, write
from ..segmentation import find_sentencepiece
from ..unpickle import load_checkpoint
from ..vocabulary import Vocabulary, find_file, read_codes, read_counted_words

NAME = "fairseq"
BOS, PAD, EOS, UNK = "<s>", "<pad>", "</s>", "<unk>"  # ids 0 to 3, not in the dictionary's file
OFFSET = 2  # padding_idx + 1
EPSILON = 1e-5  # torch's default

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "swish": "silu",
    "tanh": "tanh",
    "relu_squared": "relu2",
    "linear": "linear",
}

# What the model can be; options that a version does not know are as if off.
ALLOWED: dict[str, tuple] = {
    "adaptive_softmax_cutoff": (None,),
    "adaptive_input": (False,),
    "no_token_positional_embeddings": (False,),
    "no_cross_attention": (False,),
    "cross_self_attention": (False,),
    "layernorm_embedding": (False,),
    "encoder_layers_to_keep": (None,),
    "decoder_layers_to_keep": (None,),
    "activation_fn": tuple(ACTIVATIONS),
    "char_inputs": (False,),
    "quant_noise_scalar": (0, 0.0),
    "alignment_heads": (None, 0),
    "base_layers": (0, None),
}


def attention(theirs: str, ours: str) -> list[Rule]:
    return [
        rule
        for part in ("q_proj", "k_proj", "v_proj", "out_proj")
        for rule in with_bias(f"{theirs}.{part}", f"{ours}.{part}")
    ]


ENCODER_LAYER = [
    *attention("encoder.layers.{n}.self_attn", "model.encoder.layers.{n}.self_attn"),
    *with_bias("encoder.layers.{n}.self_attn_layer_norm", "model.encoder.layers.{n}.self_attn_norm"),
    *with_bias("encoder.layers.{n}.fc1", "model.encoder.layers.{n}.feed_forward.fc1"),
    *with_bias("encoder.layers.{n}.fc2", "model.encoder.layers.{n}.feed_forward.fc2"),
    *with_bias("encoder.layers.{n}.final_layer_norm", "model.encoder.layers.{n}.feed_forward_norm"),
]
DECODER_LAYER = [
    *attention("decoder.layers.{n}.self_attn", "model.decoder.layers.{n}.self_attn"),
    *with_bias("decoder.layers.{n}.self_attn_layer_norm", "model.decoder.layers.{n}.self_attn_norm"),
    *attention("decoder.layers.{n}.encoder_attn", "model.decoder.layers.{n}.cross_attn"),
    *with_bias("decoder.layers.{n}.encoder_attn_layer_norm", "model.decoder.layers.{n}.cross_attn_norm"),
    *with_bias("decoder.layers.{n}.fc1", "model.decoder.layers.{n}.feed_forward.fc1"),
    *with_bias("decoder.layers.{n}.fc2", "model.decoder.layers.{n}.feed_forward.fc2"),
    *with_bias("decoder.layers.{n}.final_layer_norm", "model.decoder.layers.{n}.feed_forward_norm"),
]
# fairseq 0.6 numbered the norms of a layer.
OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def checkpoints(folder: Path) -> list[Path]:
    return list(folder.glob("*.pt"))


def recognise(checkpoint: Any) -> bool:
    """Whether what a pickle holds is a checkpoint of fairseq."""
    return (
        isinstance(checkpoint, dict)
        and isinstance(checkpoint.get("model"), dict)
        and any(name.startswith("decoder.layers.0.") for name in checkpoint["model"])
        and (checkpoint.get("cfg") is not None or checkpoint.get("args") is not None)
    )


def read(path: Path, reasons: Reasons) -> Converted:
    checkpoint = load_checkpoint(path)
    if not recognise(checkpoint):
        raise InputError(f"{path} is not a Transformer of fairseq: it lacks `model` with `decoder.layers.0`, or `args`")
    options = options_of(checkpoint)

    reasons.only(options, ALLOWED, "--{} {}")
    sizes = ("encoder_embed_dim", "encoder_layers", "decoder_layers", "encoder_attention_heads")
    sizes += ("decoder_attention_heads", "encoder_ffn_embed_dim", "decoder_ffn_embed_dim")
    reasons.sizes(options, sizes, "--{} {}")
    d_model = options.get("encoder_embed_dim")
    for name in ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim"):
        if options.get(name, d_model) not in (d_model, None):
            reasons.option(f"--{name.replace('_', '-')} {shown(options[name])} is not --encoder-embed-dim {d_model}")
    for name in ("learned_pos", "normalize_before"):
        if bool(options.get(f"encoder_{name}")) != bool(options.get(f"decoder_{name}")):
            flag = name.replace("_", "-")
            reasons.option(f"--encoder-{flag} and --decoder-{flag} differ")
    if reasons.options:
        reasons.refuse()
    assert isinstance(d_model, int)

    tensors = Tensors(checkpoint["model"], reasons)
    tensors.ignore(
        r"(en|de)coder\.version",
        r"(en|de)coder\.embed_positions\.(_float_tensor|weights)",
        # 0.12 saves copies of an encoder layer's weights as they were before training.
        r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)",
    )
    split_old_layers(tensors.left, d_model)
    ours: dict[str, Tensor] = {}
    learned = bool(options.get("encoder_learned_pos"))
    positions: dict[str, Any] = {"position_base": base_of_concatenated(d_model), "position_offset": OFFSET}

    embedding = tensors.take("encoder.embed_tokens.weight", None, d_model)
    if embedding is not None:
        ours[SOURCE] = embedding
    if learned:
        tables = [tensors.take(f"{stack}.embed_positions.weight", None, d_model) for stack in ("encoder", "decoder")]
        if tables[0] is not None and tables[1] is not None:
            rows = min(len(tables[0]), len(tables[1]))  # the shorter of the two limits holds for both
            ours["model.encoder.positional_encoding.table.weight"] = tables[0][:rows]
            ours["model.decoder.positional_encoding.table.weight"] = tables[1][:rows]
            positions = {"position_embedding_type": "learned", "max_position_embeddings": rows - OFFSET}
            positions["position_offset"] = OFFSET
    tensors.rename(for_layers(ENCODER_LAYER, options["encoder_layers"]), ours)
    encoder_final_norm = "encoder.layer_norm.weight" in tensors
    if encoder_final_norm:
        tensors.rename(with_bias("encoder.layer_norm", "model.encoder.final_norm"), ours)

    embedding = tensors.take("decoder.embed_tokens.weight", None, d_model)
    if embedding is not None:
        ours[TARGET] = embedding
    tensors.rename(for_layers(DECODER_LAYER, options["decoder_layers"]), ours)
    decoder_final_norm = "decoder.layer_norm.weight" in tensors
    if decoder_final_norm:
        tensors.rename(with_bias("decoder.layer_norm", "model.decoder.final_norm"), ours)
    if "decoder.output_projection.weight" in tensors:
        output = tensors.take("decoder.output_projection.weight", None, d_model)
    elif "decoder.embed_out" in tensors:
        output = tensors.take("decoder.embed_out", None, d_model)
    elif options.get("share_decoder_input_output_embed") or options.get("share_all_embeddings"):
        output = embedding
    else:
        output = tensors.take("decoder.output_projection.weight")
    if output is not None:
        ours[OUTPUT] = output
    tensors.nothing_may_be_left()
    if options.get("no_scale_embedding") and SOURCE in ours and TARGET in ours:
        for name in (SOURCE, TARGET):  # the model multiplies by sqrt(d_model)
            ours[name] = ours[name].float() / d_model**0.5

    notes = [
        "fairseq ranks hypotheses by log P / L^lenpen; generate() by log P / ((5 + L) / 6)^alpha, so that the same "
        "hypotheses may come in another order.",
        "Texts must be prepared as the training texts were (usually Moses' tokenizer) before the tokenizer sees them.",
    ]
    rows = [len(ours[name]) if name in ours else 0 for name in (SOURCE, TARGET)]
    vocabulary, originals = read_vocabulary(path.parent, options, rows, notes)
    return Converted(
        toolkit=NAME,
        path=path,
        config={
            "d_model": d_model,
            "encoder_layers": options["encoder_layers"],
            "decoder_layers": options["decoder_layers"],
            "encoder_attention_heads": options["encoder_attention_heads"],
            "decoder_attention_heads": options["decoder_attention_heads"],
            "encoder_ffn_dim": options["encoder_ffn_embed_dim"],
            "decoder_ffn_dim": options["decoder_ffn_embed_dim"],
            "activation_function": ACTIVATIONS[options.get("activation_fn") or "relu"],
            "dropout": float(options.get("dropout", 0.1)),
            "attention_dropout": float(options.get("attention_dropout", 0.0)),
            "activation_dropout": float(options.get("activation_dropout", options.get("relu_dropout", 0.0)) or 0.0),
            **positions,
            "norm_position": "pre" if options.get("encoder_normalize_before") else "post",
            "encoder_final_norm": encoder_final_norm,
            "decoder_final_norm": decoder_final_norm,
            "layer_norm_eps": EPSILON,
            "attention_bias": True,
        },
        tensors=ours,
        vocabulary=vocabulary,
        concatenated=not learned,
        notes=notes,
        originals=originals,
        options={name: options.get(name) for name in ("arch", "source_lang", "target_lang")},
    )


def options_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the model, from `cfg` (0.10 and later) or `args`."""
    cfg = checkpoint.get("cfg")
    cfg = vars(cfg) if hasattr(cfg, "__dict__") else cfg or {}
    options: dict[str, Any] = {}
    for part in (checkpoint.get("args"), cfg.get("task"), cfg.get("model")):
        options |= vars(part) if hasattr(part, "__dict__") else part or {}
    for stack in ("encoder", "decoder", "quant_noise"):  # fairseq-hydra-train nests them
        nested = options.pop(stack, None)
        if isinstance(nested, dict):
            options |= {f"{stack}_{name}": value for name, value in nested.items()}
    return options


def split_old_layers(tensors: dict[str, Tensor], d_model: int) -> None:
    """fairseq 0.6 to 0.8: one matrix for queries, keys and values, and norms with numbers, under the names of 0.12."""
    for name in list(tensors):
        path, _, last = name.rpartition(".")
        if last in ("in_proj_weight", "in_proj_bias") and path.endswith("_attn"):
            kind = last.removeprefix("in_proj_")
            for part, piece in zip("qkv", tensors.pop(name).split(d_model), strict=False):
                tensors[f"{path}.{part}_proj.{kind}"] = piece
        elif ".layer_norms." in name:
            layer, _, number = path.partition(".layer_norms.")
            norms = OLD_NORMS[name.split(".")[0]]
            if number.isdigit() and int(number) < len(norms):
                tensors[f"{layer}.{norms[int(number)]}.{last}"] = tensors.pop(name)


def read_vocabulary(
    folder: Path, options: Mapping[str, Any], rows: list[int], notes: list[str]
) -> tuple[Vocabulary, list[Path]]:
    """The dictionaries beside the checkpoint, and the codes where there are some."""
    languages = [options.get("source_lang"), options.get("target_lang")]
    files = [find_file(folder, f"dict.{language}.txt", "dict.txt") for language in languages]
    special = [BOS, PAD, EOS, UNK]
    if None in files:
        missing = " and ".join(f"dict.{lang}.txt" for lang, file in zip(languages, files, strict=True) if file is None)
        notes.append(f"There is no tokenizer: {missing} is not beside the checkpoint. Ids are fairseq's.")
        tokens = [special + [f"token{id}" for id in range(4, count)] for count in rows]
        return Vocabulary(*tokens, eos=2, unknown=3, bos=0, pad=1, start=2), []
    tokens = [special + read_counted_words(file) for file in files if file]
    vocabulary = Vocabulary(*tokens, eos=2, unknown=3, bos=0, pad=1, start=2)
    originals = [file for file in files if file]
    for side, language in zip(("source", "target"), languages, strict=True):
        codes = find_file(folder, f"bpecodes.{language}", f"*codes*.{language}", "bpecodes", "*codes*", "code")
        model = find_sentencepiece(folder, str(language), vocabulary.source if side == "source" else vocabulary.target)
        has_bpe_pieces = any(token.endswith("@@") for token in vocabulary.source + vocabulary.target)
        if codes and has_bpe_pieces:
            tokenizer = vocabulary.bpe(side, read_codes(codes))
            originals.append(codes)
        elif model:
            tokenizer = model.tokenizer(vocabulary, side)
            originals.append(model.path)
        else:
            tokenizer = vocabulary.words(side)
            if has_bpe_pieces:
                notes.append(
                    f"No BPE codes beside the checkpoint: the {side} tokenizer takes segmented text (`a@@ b`)."
                )
        if side == "source":
            vocabulary.source_tokenizer = tokenizer
        else:
            vocabulary.target_tokenizer = tokenizer
    return vocabulary, list(dict.fromkeys(originals))


# ---- the way back ------------------------------------------------------------------------------------------------


def write_back(model: VaswaniTransformerForConditionalGeneration, origin: Origin, out: Path, reasons: Reasons) -> None:
    """A checkpoint of fairseq 0.12, and its dictionaries. Raises all reasons why it cannot be one."""
    config = model.config
    learned = config.position_embedding_type == "learned"
    if not learned and abs(config.position_base / base_of_concatenated(config.d_model) - 1) > 1e-9:
        reasons.option(f"position_base {config.position_base:g}: fairseq's sinusoids have another")
    if config.position_offset != OFFSET:
        reasons.option(f"position_offset {config.position_offset}: fairseq counts from {OFFSET}")
    if config.layer_norm_eps != EPSILON:
        reasons.option(f"layer_norm_eps {config.layer_norm_eps:g}: fairseq has {EPSILON:g}")
    ids = (config.bos_token_id, config.pad_token_id, config.eos_token_id, config.decoder_start_token_id)
    if ids != (0, 1, 2, 2):
        reasons.option(
            f"ids of start, <pad>, </s> and the decoder's first token are {ids}: fairseq has (0, 1, 2, 2); it starts "
            "the decoder with </s>"
        )
    if config.activation_function not in ACTIVATIONS.values():
        reasons.option(f"activation_function {config.activation_function!r}: fairseq has {', '.join(ACTIVATIONS)}")
    if config.norm_position == "post" and (config.encoder_final_norm or config.decoder_final_norm):
        reasons.option("a final norm on top of post-norm layers: fairseq has none")
    if config.norm_position == "pre" and not config.encoder_final_norm:
        reasons.option("encoder_final_norm is off: fairseq's pre-norm encoder has one")
    for size in ("d_k", "d_v"):
        if getattr(config, size) is not None:
            reasons.option(f"{size} {getattr(config, size)}: fairseq has d_model / heads")
    ours = origin.tensors_with_toolkit_rows(model, reasons, allow_output_bias=False)
    dictionaries = [find_file(origin.originals, f"dict.{lang}.txt") for lang in origin.languages()]
    if None in dictionaries and not origin.has_tokenizer():
        reasons.option("there is no tokenizer to write the dictionaries from")
    reasons.refuse_if_any()

    if not config.attention_bias:
        ours |= origin.zero_attention_biases(model)
    if not learned:
        ours = concatenated(ours, config.d_model)
    tensors = {"encoder.version": torch.tensor([3.0]), "encoder.embed_tokens.weight": ours[SOURCE]}
    if learned:
        for stack in ("encoder", "decoder"):
            tensors[f"{stack}.embed_positions.weight"] = ours[f"model.{stack}.positional_encoding.table.weight"]
    else:
        for stack in ("encoder", "decoder"):
            tensors[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    rules = for_layers(ENCODER_LAYER, config.encoder_layers) + for_layers(DECODER_LAYER, config.decoder_layers)
    for stack in ("encoder", "decoder"):
        if getattr(config, f"{stack}_final_norm"):
            rules += with_bias(f"{stack}.layer_norm", f"model.{stack}.final_norm")
    tensors |= write(rules, ours)
    tensors["decoder.version"] = torch.tensor([3.0])
    tensors["decoder.embed_tokens.weight"] = ours[TARGET]
    tensors["decoder.output_projection.weight"] = ours[OUTPUT]
    languages = origin.languages()
    activation = next(name for name, ours in ACTIVATIONS.items() if ours == config.activation_function)
    options = argparse.Namespace(
        _name="transformer",
        arch="transformer",
        task="translation",
        source_lang=languages[0],
        target_lang=languages[1],
        encoder_embed_dim=config.d_model,
        decoder_embed_dim=config.d_model,
        decoder_input_dim=config.d_model,
        decoder_output_dim=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.encoder_attention_heads,
        decoder_attention_heads=config.decoder_attention_heads,
        encoder_ffn_embed_dim=config.encoder_ffn_dim,
        decoder_ffn_embed_dim=config.decoder_ffn_dim,
        activation_fn=activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        encoder_normalize_before=config.norm_position == "pre",
        decoder_normalize_before=config.norm_position == "pre",
        no_decoder_final_norm=config.norm_position == "pre" and not config.decoder_final_norm,
        encoder_learned_pos=learned,
        decoder_learned_pos=learned,
        max_source_positions=config.max_position_embeddings or 1024,
        max_target_positions=config.max_position_embeddings or 1024,
        share_all_embeddings=config.share_encoder_decoder_embeddings and config.tie_word_embeddings,
        share_decoder_input_output_embed=config.tie_word_embeddings,
        no_scale_embedding=False,
        adaptive_softmax_cutoff=None,
        adaptive_input=False,
        no_token_positional_embeddings=False,
        no_cross_attention=False,
        cross_self_attention=False,
        layernorm_embedding=False,
    )
    checkpoint = {
        "args": None,
        "cfg": {
            "model": options,
            "task": {"_name": "translation", "source_lang": languages[0], "target_lang": languages[1]},
        },
        "model": origin.in_saved_dtype(tensors),
        "optimizer_history": [],
        "extra_state": {},
    }
    with (out / "checkpoint_best.pt").open("wb") as file:  # by its name torch would not say why it cannot be written
        torch.save(checkpoint, file)
    if origin.toolkit == NAME:
        origin.copy_originals(out)
    if None in dictionaries:
        write_vocabulary(origin, out)


def write_vocabulary(origin: Origin, out: Path) -> None:
    """The dictionaries, and where the tokenizer is subword-nmt's, its codes."""
    for side, language, tokens in zip(("source", "target"), origin.languages(), origin.tokens(), strict=True):
        tokens = tokens[4:]
        model = json.loads(origin.tokenizer(side).to_str())["model"]
        if model.get("end_of_word_suffix") == "</w>":
            tokens = [token.removesuffix("</w>") if token.endswith("</w>") else f"{token}@@" for token in tokens]
            codes = "".join(f"{left} {right}\n" for left, right in model["merges"])
            (out / f"bpecodes.{language}").write_text(f"#version: 0.2\n{codes}", encoding="utf-8")
        lines = "".join(f"{token} 1\n" for token in tokens)
        (out / f"dict.{language}.txt").write_text(lines, encoding="utf-8")
