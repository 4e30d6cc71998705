"""Hugging Face's MarianMTModel. Its sinusoids are not Marian's: concatenated, but with exponent 2i / d_model.

They are reproduced as they are, since a converted model is only as good as the function that it computes; convert
Marian's own model.npz to have Marian's function.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken
from torch import Tensor

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.model_folder import read_json_object

from ..converted import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Converted
from ..layout import concatenated, concatenated_sinusoids
from ..origin import Origin
from ..refuse import Reasons
from ..rename import Tensors, write
from ..sentencepiece import SentencePieceModel
from ..vocabulary import Vocabulary
from . import hugging_face

NAME = "hf-marian"
EPSILON = 1e-5  # torch's default
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "swish", "quick_gelu")

ALLOWED: dict[str, tuple] = {
    "static_position_embeddings": (True,),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "add_final_layer_norm": (False,),
    "activation_function": ACTIVATIONS,
    "quantization_config": (None,),
}
LANGUAGE_CODE = re.compile(r">>.+<<")


def checkpoints(folder: Path) -> list[Path]:
    return [folder / "config.json"] if hugging_face.model_type_of(folder) == "marian" else []


def recognise(path: Path) -> bool:
    return hugging_face.model_type_of(path) == "marian"


def read(path: Path, reasons: Reasons) -> Converted:
    options, weights = hugging_face.load(path)
    reasons.sizes(options, hugging_face.SIZES)
    reasons.only(options, ALLOWED)
    if reasons.options:
        reasons.refuse()
    d_model = options["d_model"]

    tensors = Tensors(weights, reasons)
    ours: dict[str, Tensor] = {}
    shared = tensors.take("model.shared.weight", None, d_model) if "model.shared.weight" in tensors else None
    for name, theirs in ((SOURCE, "model.encoder.embed_tokens.weight"), (TARGET, "model.decoder.embed_tokens.weight")):
        tensor = tensors.take(theirs, None, d_model) if theirs in tensors or shared is None else shared
        if tensor is not None:
            ours[name] = tensor
    for stack in ("encoder", "decoder"):  # older versions save the table
        table = tensors.left.pop(f"model.{stack}.embed_positions.weight", None)
        if table is not None and not hugging_face.is_table(
            table, concatenated_sinusoids(len(table), d_model, shifted=False)
        ):
            reasons.option(
                f"model.{stack}.embed_positions.weight is not the table of MarianSinusoidalPositionalEmbedding"
            )
    tensors.rename(hugging_face.rules(options["encoder_layers"], options["decoder_layers"]), ours)
    output = tensors.take("lm_head.weight", None, d_model) if "lm_head.weight" in tensors else ours.get(TARGET)
    if output is not None:
        ours[OUTPUT] = output
    bias = tensors.take("final_logits_bias", 1, None)
    if bias is not None:
        ours[OUTPUT_BIAS] = bias.reshape(-1)
    tensors.nothing_may_be_left()
    if not options.get("scale_embedding", False):
        for name in (SOURCE, TARGET):  # the model multiplies by sqrt(d_model)
            if name in ours:
                ours[name] = ours[name].float() / d_model**0.5

    notes = [
        "transformers ranks hypotheses by log P / L^length_penalty; generate() by log P / ((5 + L) / 6)^alpha, so that "
        "the same hypotheses may come in another order.",
        "The sinusoids are those of Hugging Face's MarianMTModel, which differ from Marian's own.",
        "MarianTokenizer normalises punctuation where sacremoses is installed; tokenizer.json does not.",
    ]
    rows = [len(ours[name]) if name in ours else 0 for name in (SOURCE, TARGET)]
    vocabulary, originals = read_vocabulary(path.parent, options, rows, notes)
    return Converted(
        toolkit=NAME,
        path=path,
        config=hugging_face.sizes(options)
        | {
            "activation_function": hugging_face.activation(options.get("activation_function", "gelu")),
            "layer_norm_eps": EPSILON,
            "attention_bias": True,
        },
        tensors=ours,
        vocabulary=vocabulary,
        concatenated=True,
        notes=notes,
        originals=originals,
        options={"config": options, "scale_embedding": bool(options.get("scale_embedding", False))},
    )


def read_vocabulary(
    folder: Path, options: Mapping[str, Any], rows: list[int], notes: list[str]
) -> tuple[Vocabulary, list[Path]]:
    """vocab.json gives the ids, source.spm and target.spm the pieces."""
    ids = {"eos": options.get("eos_token_id", 0), "pad": options.get("pad_token_id"), "unknown": 1}
    start = options.get("decoder_start_token_id", ids["pad"])
    file, other = folder / "vocab.json", folder / "target_vocab.json"
    files = [file, other if other.exists() else file]
    if not file.exists():
        notes.append("There is no tokenizer: vocab.json is missing. Ids are the checkpoint's.")
        tokens = [[f"token{id}" for id in range(count)] for count in rows]
        return Vocabulary(tokens[0], tokens[1], start=start, **ids), []
    sides = [tokens_of(read_json_object(file), file) for file in files]
    if files[0] == files[1]:
        sides[1] = sides[0]
    if "<unk>" in sides[0]:
        ids["unknown"] = sides[0].index("<unk>")
    vocabulary = Vocabulary(sides[0], sides[1], start=start, **ids)
    settings = folder / "tokenizer_config.json"
    kept = [*dict.fromkeys(files), *([settings] if settings.exists() else [])]
    found = {}
    for side in ("source", "target"):
        model = folder / f"{side}.spm"
        if not model.exists():
            notes.append(f"There is no {side} tokenizer: {model.name} is missing.")
            continue
        kept.append(model)
        found[side] = SentencePieceModel.read(model).tokenizer(vocabulary, side)
        tokens = vocabulary.source if side == "source" else vocabulary.target
        codes = [AddedToken(token, normalized=False) for token in tokens if LANGUAGE_CODE.fullmatch(token)]
        found[side].add_tokens(codes)
    vocabulary.source_tokenizer, vocabulary.target_tokenizer = found.get("source"), found.get("target")
    return vocabulary, kept


def tokens_of(mapping: Mapping[str, Any], file: Path) -> list[str]:
    """The tokens by id of a vocab.json."""
    if sorted(mapping.values(), key=str) != sorted(range(len(mapping)), key=str):
        raise BrokenFileError(f"{file}: its ids are not 0 to {len(mapping) - 1}, each once")
    return sorted(mapping, key=lambda token: mapping[token])


# ---- the way back ------------------------------------------------------------------------------------------------


def write_back(model: VaswaniTransformerForConditionalGeneration, origin: Origin, out: Path, reasons: Reasons) -> None:
    """A folder that MarianMTModel.from_pretrained loads. Raises all reasons why it cannot be one."""
    config = model.config
    if config.position_embedding_type != "sinusoidal":
        reasons.option("learned positions: MarianMTModel has sinusoids")
    elif config.position_base != 10000 or config.position_offset:
        reasons.option(
            f"position_base {config.position_base:g} and position_offset {config.position_offset}: "
            "MarianMTModel has 10000 and 0"
        )
    if config.norm_position != "post" or config.encoder_final_norm or config.decoder_final_norm:
        reasons.option("norm_position or a final norm: MarianMTModel has post-norm layers without a final norm")
    if config.layer_norm_eps != EPSILON:
        reasons.option(f"layer_norm_eps {config.layer_norm_eps:g}: MarianMTModel has {EPSILON:g}")
    for size in ("d_k", "d_v"):
        if getattr(config, size) is not None:
            reasons.option(f"{size} {getattr(config, size)}: MarianMTModel has d_model / heads")
    tie = config.tie_word_embeddings
    if not tie:
        reasons.option("the output layer has a matrix of its own: MarianMTModel ties it to the decoder's embedding")
    reasons.refuse_if_any()

    same = origin.toolkit == NAME
    if not same:
        origin.options.pop("source_tokens", None)  # a start or padding symbol that was added is needed here as well
        origin.options.pop("target_tokens", None)
    ours = origin.tensors_with_toolkit_rows(model, reasons, allow_output_bias=True)
    if not config.attention_bias:
        ours |= origin.zero_attention_biases(model)
    ours = concatenated(ours, config.d_model)
    if same and not origin.options.get("scale_embedding", True):
        reasons.option("the embeddings were divided by sqrt(d_model) when they were converted")
        reasons.refuse()
    tensors: dict[str, Tensor] = {}
    if config.share_encoder_decoder_embeddings:
        tensors["model.shared.weight"] = ours[SOURCE]
    else:
        tensors |= {
            "model.encoder.embed_tokens.weight": ours[SOURCE],
            "model.decoder.embed_tokens.weight": ours[TARGET],
        }
    tensors |= write(hugging_face.rules(config.encoder_layers, config.decoder_layers), ours)
    tensors["final_logits_bias"] = ours.get(OUTPUT_BIAS, torch.zeros(len(ours[TARGET]))).reshape(1, -1)
    save_file(origin.in_saved_dtype(tensors), out / "model.safetensors", metadata={"format": "pt"})
    names = "d_model encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads encoder_ffn_dim "
    names += "decoder_ffn_dim dropout attention_dropout activation_dropout activation_function eos_token_id "
    names += "bos_token_id pad_token_id decoder_start_token_id share_encoder_decoder_embeddings"
    options = origin.options["config"] if same else {name: getattr(config, name) for name in names.split()}
    if not same:
        options |= {
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "is_encoder_decoder": True,
            "vocab_size": len(ours[SOURCE]),
            "decoder_vocab_size": len(ours[TARGET]),
            "max_position_embeddings": 1024,
            "scale_embedding": True,
            "static_position_embeddings": True,
            "tie_word_embeddings": True,
            "forced_eos_token_id": None,
        }
        if origin.has_tokenizer():  # MarianTokenizer needs SentencePiece; AutoTokenizer takes the plain file as well
            for name in ("tokenizer.json", "tokenizer_config.json"):
                (out / name).write_bytes((origin.folder / name).read_bytes())
    (out / "config.json").write_text(json.dumps(options, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    unspeakable = {config.pad_token_id, config.decoder_start_token_id}
    generation = {
        "bad_words_ids": [[id] for id in sorted(id for id in unspeakable if id not in (None, config.eos_token_id))],
        "num_beams": 4,
        "max_length": 512,
        **{f"{name}_token_id": getattr(config, f"{name}_token_id") for name in ("eos", "pad", "decoder_start")},
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    if same:
        origin.copy_originals(out)
