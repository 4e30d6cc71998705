"""MarianNMT: model.npz, with its configuration inside, and the vocabularies that decoder.yml names.

What differs from the paper and is absorbed: sinusoids concatenated with exponent i / (d_model/2 - 1) (Hugging Face's
and CTranslate2's converters take 2i / d_model); the decoder starts with a zero vector; matrices stored as (in, out);
biases in the attention and the output.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import BrokenFileError, InputError

from ..converted import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Converted
from ..layout import base_of_concatenated, concatenated
from ..origin import Origin
from ..refuse import Reasons, shown
from ..rename import Rule, Tensors, for_layers, write
from ..sentencepiece import CONTROL, UNKNOWN, SentencePieceModel
from ..unpickle import check_archive
from ..vocabulary import Vocabulary, new_name, read_words

NAME = "marian"
CONFIG = "special:model.yml"
EPSILON = 1e-6

ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}

ALLOWED: dict[str, tuple] = {
    "type": ("transformer",),
    "input-types": ([],),
    "factors-dim-emb": (0,),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("",),
    "right-left": (False,),
    "ulr": (False,),
    "guided-alignment": ("none",),
    "transformer-no-projection": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-pool": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-tied-layers": ([],),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("default", ""),
    "transformer-alibi-trainable": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-ffn-activation": tuple(ACTIVATIONS),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("", "n", "dn", "nd", "d"),
}
# preprocess, postprocess -> where the norm is; `d`, which does nothing after training, left out
NORM_POSITIONS = {("", "an"): "post", ("n", "a"): "pre"}


def linear(theirs: str, weight: str, bias: str, ours: str) -> list[Rule]:
    return [
        Rule(f"{theirs}_{weight}", f"{ours}.weight", transposed=True),
        Rule(f"{theirs}_{bias}", f"{ours}.bias", row=True),
    ]


def norm(theirs: str, ours: str, suffix: str = "") -> list[Rule]:
    return [
        Rule(f"{theirs}_ln_scale{suffix}", f"{ours}.weight", row=True),
        Rule(f"{theirs}_ln_bias{suffix}", f"{ours}.bias", row=True),
    ]


def attention(theirs: str, ours: str) -> list[Rule]:
    projections = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    return [
        rule
        for letter, name in projections.items()
        for rule in linear(theirs, f"W{letter}", f"b{letter}", f"{ours}.{name}")
    ]


def rules(encoder_layers: int, decoder_layers: int, pre: bool) -> list[Rule]:
    """The layers of both stacks, which Marian counts from 1."""
    suffix = "_pre" if pre else ""
    encoder = [
        *attention("encoder_l{n}_self", "model.encoder.layers.{n}.self_attn"),
        *norm("encoder_l{n}_self_Wo", "model.encoder.layers.{n}.self_attn_norm", suffix),
        *linear("encoder_l{n}_ffn", "W1", "b1", "model.encoder.layers.{n}.feed_forward.fc1"),
        *linear("encoder_l{n}_ffn", "W2", "b2", "model.encoder.layers.{n}.feed_forward.fc2"),
        *norm("encoder_l{n}_ffn_ffn", "model.encoder.layers.{n}.feed_forward_norm", suffix),
    ]
    decoder = [
        *attention("decoder_l{n}_self", "model.decoder.layers.{n}.self_attn"),
        *norm("decoder_l{n}_self_Wo", "model.decoder.layers.{n}.self_attn_norm", suffix),
        *attention("decoder_l{n}_context", "model.decoder.layers.{n}.cross_attn"),
        *norm("decoder_l{n}_context_Wo", "model.decoder.layers.{n}.cross_attn_norm", suffix),
        *linear("decoder_l{n}_ffn", "W1", "b1", "model.decoder.layers.{n}.feed_forward.fc1"),
        *linear("decoder_l{n}_ffn", "W2", "b2", "model.decoder.layers.{n}.feed_forward.fc2"),
        *norm("decoder_l{n}_ffn_ffn", "model.decoder.layers.{n}.feed_forward_norm", suffix),
    ]
    return for_layers(encoder, encoder_layers, first=1) + for_layers(decoder, decoder_layers, first=1)


def checkpoints(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.npz") if not file.name.endswith(".optimizer.npz") and recognise(file)]


def recognise(path: Path) -> bool:
    if path.suffix != ".npz" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return True  # a broken one is named by `read`
    return any(name.startswith(("special:", "encoder_l1_", "Wemb", "decoder_l1_")) for name in names)


def read(path: Path, reasons: Reasons) -> Converted:
    arrays = load(path)
    raw = arrays.pop(CONFIG, None)
    text = raw.tobytes().split(b"\0")[0].decode("utf-8", errors="replace") if raw is not None else None
    beside = path.with_name(path.name + ".yml")
    if text is None and not beside.exists():
        raise InputError(f"{path}: no {CONFIG} inside and no {beside.name} beside it: the number of heads is not known")
    options = yaml_mapping(text, path) if text is not None else read_yaml(beside)

    reasons.only(options, ALLOWED, "--{} {}")
    written = [options.get(f"transformer-{name}", "") for name in ("preprocess", "postprocess")]
    before, after = (value.replace("d", "") if isinstance(value, str) else "unknown" for value in written)
    order = (before, after)
    if order not in NORM_POSITIONS:
        reasons.option(
            f"--transformer-preprocess {shown(written[0])} with --transformer-postprocess {shown(written[1])} "
            "(can be converted: '' with 'dan', 'n' with 'da')"
        )
    sizes = ("dim-emb", "enc-depth", "dec-depth", "transformer-heads", "transformer-dim-ffn")
    reasons.sizes(options, sizes, "--{} {}")
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            reasons.option(f"tensor {name} is {array.dtype}: a quantised model")
            break
    if reasons.options:
        reasons.refuse()
    d_model, pre = options["dim-emb"], NORM_POSITIONS[order] == "pre"

    tensors = Tensors({name: torch.from_numpy(array) for name, array in arrays.items()}, reasons)
    del arrays
    ours: dict[str, Tensor] = {}
    positions: dict[str, Any] = {"position_base": base_of_concatenated(d_model)}
    # Marian 1.12 takes --transformer-train-position-embeddings, but keeps the sinusoids in a translation model.
    learned = "Wpos" in tensors
    joint = tensors.take("Wemb", None, d_model) if "Wemb" in tensors else None
    source = joint if joint is not None else tensors.take("encoder_Wemb", None, d_model)
    target = joint if joint is not None else tensors.take("decoder_Wemb", None, d_model)
    if "decoder_ff_logit_out_Wt" in tensors:
        output = tensors.take("decoder_ff_logit_out_Wt", None, d_model)
    elif options.get("tied-embeddings") or options.get("tied-embeddings-all"):
        output = target
    else:
        output = tensors.take("decoder_ff_logit_out_W", d_model, None)
        output = None if output is None else output.T
    for name, tensor in ((SOURCE, source), (TARGET, target), (OUTPUT, output)):
        if tensor is not None:
            ours[name] = tensor
    if learned:
        table = tensors.take("Wpos", None, d_model)
        if table is not None:
            positions = {"position_embedding_type": "learned", "max_position_embeddings": len(table)}
            for stack in ("encoder", "decoder"):
                ours[f"model.{stack}.positional_encoding.table.weight"] = table
        for name in (SOURCE, TARGET):  # not scaled with learned positions; the model multiplies by sqrt(d_model)
            if name in ours:
                ours[name] = ours[name] / d_model**0.5
    tensors.rename(rules(options["enc-depth"], options["dec-depth"], pre), ours)
    top = "n" in options.get("transformer-postprocess-top", "")
    if top:
        for stack in ("encoder", "decoder"):
            tensors.rename(norm(f"{stack}_top", f"model.{stack}.final_norm"), ours)
    if not options.get("output-omit-bias"):
        bias = tensors.take("decoder_ff_logit_out_b", 1, None)
        if bias is not None:
            ours[OUTPUT_BIAS] = bias.reshape(-1)
    tensors.nothing_may_be_left()

    notes = [
        "Marian ranks hypotheses by log P / L^normalize; generate() by log P / ((5 + L) / 6)^alpha, so that the same "
        "hypotheses may come in another order."
    ]
    if pre:
        notes.append(
            "A pre-norm model of Marian is two functions. This is the one that it was trained as, where keys and "
            "values of the decoder's self-attention come from the normalised input. Marian's own step-wise decoder "
            "takes them from the un-normalised input from the second step on, which can change its translations."
        )
    rows = [len(ours[name]) if name in ours else 0 for name in (SOURCE, TARGET)]
    vocabulary, originals = read_vocabulary(path, options, rows, notes)
    return Converted(
        toolkit=NAME,
        path=path,
        config={
            "d_model": d_model,
            "encoder_layers": options["enc-depth"],
            "decoder_layers": options["dec-depth"],
            "encoder_attention_heads": options["transformer-heads"],
            "decoder_attention_heads": options["transformer-heads"],
            "encoder_ffn_dim": options["transformer-dim-ffn"],
            "decoder_ffn_dim": options.get("transformer-decoder-dim-ffn") or options["transformer-dim-ffn"],
            "activation_function": activation(options),
            "dropout": float(options.get("transformer-dropout", 0.0)),
            "attention_dropout": float(options.get("transformer-dropout-attention", 0.0)),
            "activation_dropout": float(options.get("transformer-dropout-ffn", 0.0)),
            **positions,
            "norm_position": NORM_POSITIONS[order],
            "encoder_final_norm": top,
            "decoder_final_norm": top,
            "layer_norm_eps": EPSILON,
            "attention_bias": True,
        },
        tensors=ours,
        vocabulary=vocabulary,
        concatenated=not learned,
        notes=notes,
        originals=originals,
        options={"model_yml": text},
    )


def activation(options: Mapping[str, Any]) -> str:
    """Ours. The gelu of Marian before 1.12 is x * sigmoid(1.702 x)."""
    name = ACTIVATIONS[options.get("transformer-ffn-activation", "swish")]
    version = re.match(r"v?(\d+)\.(\d+)", str(options.get("version", "")))
    if name == "gelu" and version and (int(version[1]), int(version[2])) < (1, 12):
        return "quick_gelu"
    return name


def load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file. Raises BrokenFileError if it is not whole; never opens a pickle."""
    check_archive(path)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, KeyError, NotImplementedError) as error:
        size = path.stat().st_size
        raise BrokenFileError(f"{path} is not a whole .npz file ({size:,} bytes: {error}); copy it again") from None


def read_yaml(file: Path) -> dict[str, Any]:
    """A configuration as a mapping. Raises BrokenFileError if it is none."""
    try:
        return yaml_mapping(file.read_text(encoding="utf-8"), file)
    except UnicodeDecodeError as error:
        raise BrokenFileError(f"{file} is not UTF-8 ({error}); copy it again") from None


def yaml_mapping(text: str, where: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BrokenFileError(f"{where}: its configuration is not YAML ({error})") from None
    if not isinstance(content, dict):
        raise BrokenFileError(f"{where}: its configuration is a {type(content).__name__}, not a mapping")
    return content


def read_vocabulary(
    path: Path, options: Mapping[str, Any], rows: list[int], notes: list[str]
) -> tuple[Vocabulary, list[Path]]:
    """The vocabularies that decoder.yml, or the training's configuration, names."""
    decoder = path.with_name(path.name + ".decoder.yml")
    names = options.get("vocabs") or []
    if decoder.exists():
        names = read_yaml(decoder).get("vocabs") or names
    if not isinstance(names, list):
        raise BrokenFileError(f"{decoder}: `vocabs` is {shown(names)}, not a list of files")
    files = [path.parent / Path(str(name)).name for name in names]
    if len(files) == 1:
        files *= 2
    if len(files) != 2 or not all(file.exists() for file in files):
        missing = ", ".join(file.name for file in files if not file.exists()) or "`vocabs` in decoder.yml"
        notes.append(f"There is no tokenizer: {missing} is missing. Ids are Marian's.")
        tokens = [["</s>", "<unk>", *(f"token{id}" for id in range(2, count))] for count in rows]
        return Vocabulary(*tokens, eos=0, unknown=1), []
    pieces = [SentencePieceModel.read(file) if file.suffix == ".spm" else None for file in files]
    sides = [
        [piece for piece, _, _ in model.pieces] if model else read_tokens(file, count)
        for file, model, count in zip(files, pieces, rows, strict=True)
    ]
    ids = []
    for file, tokens, model in zip(files, sides, pieces, strict=True):
        if model:
            kinds = [kind for _, _, kind in model.pieces]
            unknown = kinds.index(UNKNOWN) if UNKNOWN in kinds else -1
            end = next((id for id, kind in enumerate(kinds) if kind == CONTROL and tokens[id] == "</s>"), -1)
        else:
            end, unknown = (tokens.index(word) if word in tokens else -1 for word in ("</s>", "<unk>"))
        if end < 0 or unknown < 0:
            raise BrokenFileError(f"{file}: the vocabulary lacks {'</s>' if end < 0 else '<unk>'}")
        ids.append((end, unknown))
    if ids[0] != ids[1]:
        raise InputError(f"{files[0].name} and {files[1].name} give </s> and <unk> different ids: {ids[0]}, {ids[1]}")
    if files[0] == files[1]:
        sides[1] = sides[0]
    vocabulary = Vocabulary(*sides, eos=ids[0][0], unknown=ids[0][1])
    tokenizers = [
        model.tokenizer(vocabulary, side) if model else vocabulary.words(side)
        for side, model in zip(("source", "target"), pieces, strict=True)
    ]
    vocabulary.source_tokenizer, vocabulary.target_tokenizer = tokenizers
    originals = list(dict.fromkeys(files))
    return vocabulary, [*originals, decoder] if decoder.exists() else originals


def read_tokens(file: Path, rows: int) -> list[str]:
    """A vocabulary as YAML or JSON (token: id), or a token a line, cut where --dim-vocabs cut it."""
    if file.suffix == ".fsv":
        raise InputError(f"{file}: a factored vocabulary cannot be converted")
    if file.suffix not in (".yml", ".yaml", ".json"):
        return read_words(file)[:rows]
    try:
        # Every token as it is written: `null`, `1.5` and `yes` are words here.
        mapping = yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        by_id = {int(id): str(token) for token, id in mapping.items()}
    except (yaml.YAMLError, ValueError, AttributeError, TypeError) as error:
        raise BrokenFileError(f"{file} is not a vocabulary of token: id ({error})") from None
    tokens: list[str] = []
    for id in range(min(max(by_id, default=-1) + 1, rows)):
        tokens.append(by_id.get(id) or new_name(f"<unused{id}>", tokens))
    return tokens


# ---- the way back ------------------------------------------------------------------------------------------------


def write_back(model: VaswaniTransformerForConditionalGeneration, origin: Origin, out: Path, reasons: Reasons) -> None:
    """model.npz with its vocabularies. Raises all reasons why it cannot be one."""
    config, state = model.config, model.state_dict()
    learned = config.position_embedding_type == "learned"
    pre = config.norm_position == "pre"
    if learned:
        tables = [state[f"model.{stack}.positional_encoding.table.weight"] for stack in ("encoder", "decoder")]
        if not torch.equal(*tables):
            reasons.option("encoder and decoder have different learned positions: Marian has one table")
        reasons.option("learned positions: Marian does not scale its embeddings with them")
    elif abs(config.position_base / base_of_concatenated(config.d_model) - 1) > 1e-9:
        reasons.option(f"position_base {config.position_base:g}: Marian's sinusoids have another")
    if config.position_offset:
        reasons.option(f"position_offset {config.position_offset}: Marian counts from 0")
    if config.layer_norm_eps != EPSILON:
        reasons.option(f"layer_norm_eps {config.layer_norm_eps:g}: Marian has {EPSILON:g}")
    if state[TARGET][config.decoder_start_token_id].any():
        reasons.option("the decoder's first token has an embedding: Marian starts with a zero vector")
    if config.encoder_attention_heads != config.decoder_attention_heads:
        reasons.option("encoder and decoder have different numbers of heads: Marian has one")
    if config.encoder_final_norm != config.decoder_final_norm:
        reasons.option("one stack has a final norm: Marian has both or none")
    if config.activation_function not in (*ACTIVATIONS.values(), "quick_gelu"):
        reasons.option(f"activation_function {config.activation_function!r}: Marian has {', '.join(ACTIVATIONS)}")
    for size in ("d_k", "d_v"):
        if getattr(config, size) is not None:
            reasons.option(f"{size} {getattr(config, size)}: Marian has d_model / heads")
    if origin.toolkit != NAME:
        reasons.option("the vocabulary is not one of Marian's: only what came from Marian can go back to it")
    reasons.refuse_if_any()

    ours = origin.tensors_with_toolkit_rows(model, reasons, allow_output_bias=True)
    if not config.attention_bias:
        ours |= origin.zero_attention_biases(model)
    ours = concatenated(ours, config.d_model)
    tensors: dict[str, Tensor] = {}
    if config.share_encoder_decoder_embeddings:
        tensors["Wemb"] = ours[SOURCE]
    else:
        tensors |= {"encoder_Wemb": ours[SOURCE], "decoder_Wemb": ours[TARGET]}
    if not config.tie_word_embeddings:
        tensors["decoder_ff_logit_out_W"] = ours[OUTPUT].T
    all_rules = rules(config.encoder_layers, config.decoder_layers, pre)
    if config.encoder_final_norm:
        for stack in ("encoder", "decoder"):
            all_rules += norm(f"{stack}_top", f"model.{stack}.final_norm")
    tensors |= write(all_rules, ours)
    text = yaml_mapping(origin.options["model_yml"], origin.folder) if origin.options.get("model_yml") else {}
    if not text.get("output-omit-bias"):
        tensors["decoder_ff_logit_out_b"] = ours[OUTPUT_BIAS].reshape(1, -1)
    arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}
    yml = (origin.options.get("model_yml") or "").encode("utf-8")
    padded = yml + b"\0" * (-(len(yml) + 1) % 256 + 1)  # Marian aligns its items
    arrays[CONFIG] = np.frombuffer(padded, dtype=np.int8)
    np.savez(out / "model.npz", allow_pickle=False, **arrays)
    origin.copy_originals(out)
