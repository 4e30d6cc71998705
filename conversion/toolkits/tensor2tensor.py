"""tensor2tensor: a TensorFlow checkpoint with hparams.json and a subword vocabulary, read without TensorFlow.

Differences from the paper: concatenated sinusoids with the exponent i / (d_model/2 - 1); the decoder starts with a zero
vector; the embedding is saved in 16 shards; target_space_embedding[id] is added to every input of the encoder, so it
becomes part of the encoder's embedding: E + v / sqrt(d_model).
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.lines import read_lines
from vaswani_transformer.model_folder import enumerate_names

from ..checkpoint_files import require_file
from ..layout import OUTPUT, POSITIONS, SOURCE, TARGET, TENSOR2TENSOR
from ..options import STACKS, Options, Reasons
from ..protobuf import TYPES, Bundle
from ..rename import Rule, expand_layers, expand_table, find_first, select_weights
from ..toolkit import Description, count_embeddings, register_reader
from ..vocabulary import SIDES, Vocabulary, find_unused_name, number_tokens

TARGET_SPACE = 0  # SpaceID.GENERIC, the default of text problems

OFF = (
    "attention_variables_3d proximity_bias unidirectional_encoder factored_logits split_targets_chunk_length "
    "num_area_layers position_features hard_attention_k gumbel_noise_weight"
)
SUPPORTED: dict[str, tuple] = {
    "pos": ("timing", "emb"),
    "ffn_layer": ("dense_relu_dense", "conv_hidden_relu"),
    "norm_type": ("layer",),
    "self_attention_type": ("dot_product",),
    "multiply_embedding_mode": ("sqrt_depth", ""),
    "causal_decoder_self_attention": (True,),
    "prepend_mode": ("none",),
    "scheduled_sampling_method": ("parallel", "sequential"),
}
SIZES = {
    "hidden_size": "d_model",
    "num_{encoder,decoder}_layers": "{encoder,decoder}_layers",
    "num_heads": "{encoder,decoder}_attention_heads",
    "filter_size": "{encoder,decoder}_ffn_dim",
}
# Operations before and after a sub-layer, see `Options.read_norm_position`.
NORM_POSITIONS = {("none", "an"): "post", ("n", "a"): "pre"}
# Variables of the trainer.
IGNORED = (
    r"(.*/)?(training|losses_avg|train_stats|optimize|OptimizeLoss|learning_rate|metrics)/.*",
    r"(.*/)?global_step",
    r".*/(Adam|Adam_1|Momentum|Adafactor|vr|vc|v|m)(_\d+)?",
    r"(.*/)?beta[12]_power(_\d+)?",
)
EMBEDDING = re.compile(r".*symbol_modality_\d+_\d+/(shared|input_emb|target_emb|softmax)/weights_(\d+)")
FIRST_QUERY = "encoder/layer_0/self_attention/multihead_attention/q/kernel"
TARGET_SPACES = "target_space_embedding/kernel"
EMBEDDINGS = {"input_emb": SOURCE, "target_emb": TARGET, "softmax": OUTPUT}
# Where a matrix is saved if it is not saved by itself.
SHARED_AS = {"input_emb": ("shared",), "target_emb": ("shared", "input_emb"), "softmax": ("shared",)}

PROJECTIONS = {
    "self_attention/multihead_attention/{q,k,v,output_transform}/kernel": "self_attn.{q,k,v,out}_proj.weight",
    "encdec_attention/multihead_attention/{q,k,v,output_transform}/kernel": "cross_attn.{q,k,v,out}_proj.weight",
    "ffn/conv{1,2}/{kernel,bias}": "feed_forward.fc{1,2}.{weight,bias}",
}
NORMS = {
    "self_attention/": "self_attn_norm.{weight,bias}",
    "encdec_attention/": "cross_attn_norm.{weight,bias}",
    "ffn/": "feed_forward_norm.{weight,bias}",
}
PRE_NORM = "layer_prepostprocess/layer_norm/layer_norm_{scale,bias}"
POST_NORM = "layer_postprocess/layer_norm/layer_norm_{scale,bias}"

WORD, OTHER = r"[\p{L}\p{N}]", r"[^\p{L}\p{N}\x{E000}]"
BOUNDARY, BACKSLASH = "\ue000", "\ue001"  # private use characters, which texts do not contain

# Each character outside the alphabet needs a rule, so there are rules only for European scripts and punctuation.
ESCAPED_AS_NUMBERS = (range(0x00, 0x250), range(0x370, 0x530), range(0x2010, 0x2060), range(0x20A0, 0x20C0))


def make_layer_rules(config: dict[str, Any]) -> list[Rule]:
    """Return the rules of the layers and of the final norms of pre-norm models."""
    norm = PRE_NORM if config["norm_position"] == "pre" else POST_NORM
    layers = dict.fromkeys(STACKS, PROJECTIONS | {theirs + norm: ours for theirs, ours in NORMS.items()})
    return expand_layers(config, "{encoder,decoder}/layer_#/", layers, "{encoder,decoder}/" + norm, transposed=True)


@register_reader("tensor2tensor", ["*.index"], recognise_file=lambda path: path.suffix == ".index")
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a checkpoint's .index and the hparams.json next to it."""
    bundle = Bundle(path)
    names = [name for name in bundle.entries if not any(re.fullmatch(pattern, name) for pattern in IGNORED)]
    body = next((name.removesuffix(FIRST_QUERY) for name in names if name.endswith(FIRST_QUERY)), None)
    if body is None:
        raise InputError(
            f"{path} contains no Transformer of tensor2tensor: there is no variable .../{FIRST_QUERY} among "
            f"{enumerate_names(names)}; checkpoints of OpenNMT-tf and Keras cannot be converted"
        )
    options = Options(read_hparams(path.parent), reasons)
    options.require(SUPPORTED, OFF)
    for stack in STACKS:
        options[f"num_{stack}_layers"] = options.get(f"num_{stack}_layers") or options.get("num_hidden_layers")
    config = options.read_sizes(SIZES)
    options.setdefault("layer_preprocess_sequence", "none")
    options.setdefault("layer_postprocess_sequence", "dan")
    config["norm_position"] = options.read_norm_position("layer_{preprocess,postprocess}_sequence", NORM_POSITIONS)
    for name in names:
        if bundle.entries[name].dtype not in TYPES:
            reasons.add_setting(f"variable {name} has TensorFlow's type {bundle.entries[name].dtype}")
    reasons.raise_if_any()

    weights = {name.removeprefix(body): torch.from_numpy(bundle.read_tensor(name)) for name in names}
    tensors = select_weights(weights, reasons)
    join_embeddings(tensors, config["d_model"], reasons)
    separate_embeddings(tensors)
    options.setdefault("layer_prepostprocess_dropout", 0.1)
    config |= options.read_rates(0.0, "layer_prepostprocess_dropout", "attention_dropout", "relu_dropout")
    config["layer_norm_eps"] = options.get("norm_epsilon", 1e-6)
    for field, name in (("d_k", "attention_key_channels"), ("d_v", "attention_value_channels")):
        channels = options.get(name) or config["d_model"]  # of all heads; 0 is the default
        config[field] = None if channels == config["d_model"] else channels // options["num_heads"]
    rules = expand_table(EMBEDDINGS) + make_layer_rules(config)
    if options.get("pos") == "emb":  # Table 3 (E)
        rules += expand_table({"{inputs,targets}_positional_embedding": POSITIONS})
    scaled = bool(options.get("multiply_embedding_mode", "sqrt_depth"))
    notes = add_target_space(tensors, config["d_model"] ** 0.5 if scaled else 1.0)
    vocabulary = read_vocabulary(path.parent, count_embeddings(tensors, rules))
    unscaled = () if scaled else (SOURCE, TARGET)
    files = [path.with_name("hparams.json")]
    return Description(tensors, rules, config, vocabulary, TENSOR2TENSOR, unscaled=unscaled, notes=notes, files=files)


def read_hparams(folder: Path) -> dict[str, Any]:
    """Read hparams.json. Raises InputError if it is missing, BrokenFileError if it is damaged."""
    file = require_file(
        folder, "hparams.json", remedy="; copy it from the training run: no variable records the number of heads"
    )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return json.loads(content) if isinstance(content, str) else content  # some versions save JSON in a JSON string
    except (ValueError, RecursionError) as error:
        raise BrokenFileError(f"{file} is not valid JSON ({error}); copy it again") from None


def join_embeddings(tensors: dict[str, Tensor], d_model: int, reasons: Reasons) -> None:
    """Join the shards of each embedding to (vocabulary, d_model), named by its kind: `shared`, `input_emb`, ..."""
    shards: dict[str, dict[int, Tensor]] = {}
    for match in filter(None, map(EMBEDDING.fullmatch, list(tensors))):
        shards.setdefault(match[1], {})[int(match[2])] = tensors.pop(match[0])
    for kind, by_number in shards.items():
        if sorted(by_number) != list(range(len(by_number))) or any(t.shape[-1] != d_model for t in by_number.values()):
            reasons.add_fault(f"the shards weights_0 to weights_{max(by_number)} of {kind} are not complete")
        else:
            tensors[kind] = torch.cat([by_number[number] for number in range(len(by_number))])


def separate_embeddings(tensors: dict[str, Tensor]) -> None:
    """Give the source, the target and the output a matrix each, which may be the same tensor."""
    names = {kind: find_first(tensors, kind, *others) for kind, others in SHARED_AS.items()}
    matrices = {kind: tensors[name] for kind, name in names.items() if name in tensors}
    for name in names.values():
        tensors.pop(name, None)
    tensors |= matrices


def add_target_space(tensors: dict[str, Tensor], scale: float) -> list[str]:
    """Add the embedding of the target space to the source's; return notes."""
    spaces = tensors.pop(TARGET_SPACES, None)
    if spaces is None or "input_emb" not in tensors:
        return []
    tensors["input_emb"] = (tensors["input_emb"].double() + spaces[TARGET_SPACE].double() / scale).float()
    return [f"target_space_embedding[{TARGET_SPACE}], the default of text problems, is in the encoder's embedding."]


def read_vocabulary(folder: Path, rows: list[int]) -> Vocabulary:
    """Read vocab.*.subwords: one file for both sides, or one for each, chosen by its size."""
    files = sorted(file for file in folder.glob("vocab.*") if file.is_file())
    by_size = {len(pieces): (file, pieces) for file in files if (pieces := read_subwords(file))}
    # vocab_divisor pads the matrix beyond the file.
    chosen = [max((size for size in by_size if size <= count), default=0) for count in rows]
    if not all(chosen) or (len(files) > 1 and chosen[0] == chosen[1] and rows[0] != rows[1]):
        why = "no vocab.*.subwords has the right size. Ids are tensor2tensor's"
        return number_tokens(["<pad>_", "<EOS>_"], rows, why, pad=0, eos=1, unknown=None)
    sides = []
    for size, count in zip(chosen, rows, strict=True):
        pieces = list(by_size[size][1])
        while len(pieces) < count:
            pieces.append(find_unused_name(f"<unused{len(pieces)}>", pieces))
        sides.append(pieces)
    files = list(dict.fromkeys(by_size[size][0] for size in chosen))
    vocabulary = Vocabulary(sides[0], sides[1], pad=0, eos=1, unknown=None, files=files)
    for side in SIDES:
        vocabulary.tokenizers[side] = build_subword_tokenizer(vocabulary, side)
    return vocabulary


def read_subwords(path: Path) -> list[str]:
    """Read the pieces by id. Each line is a piece in quotes."""
    pieces = []
    for number, line in enumerate(read_lines(path), start=1):
        line = line.strip()
        if len(line) < 2 or line[0] != line[-1] or line[0] not in "'\"":
            raise BrokenFileError(f"{path} line {number}: {line!r} is not a piece in quotes")
        pieces.append(line[1:-1])
    return pieces


def build_subword_tokenizer(vocabulary: Vocabulary, side: str) -> Tokenizer:
    """Return the tokenizer of one side, with the ids of the vocabulary's file.

    Text is split between alphanumeric and other characters, and a single space between two words is dropped. Every
    token gets a final `_` and is split, from the left, into the longest pieces of the vocabulary. Characters outside
    the alphabet are written as `\\number;`.
    """
    pieces = vocabulary.tokens(side)
    alphabet = {letter for piece in pieces for letter in piece}
    numbers = [
        (chr(code), rf"\{code};")
        for block in ESCAPED_AS_NUMBERS
        for code in block
        if chr(code) not in alphabet and (chr(code).isprintable() or code < 0x20)
    ]
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary.ids(side),
            unk_token=vocabulary.special_tokens(side)["pad_token"],
            continuing_subword_prefix="",
            max_input_chars_per_word=1_000_000,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"(?<={WORD}) (?={WORD})"), BOUNDARY),
            normalizers.Replace(Regex(f"(?<={WORD})(?={OTHER})|(?<={OTHER})(?={WORD})"), BOUNDARY),
            normalizers.Replace("\\", "\\\\"),
            normalizers.Replace("_", "\\u"),
            *(normalizers.Replace(letter, number) for letter, number in numbers),
            normalizers.Replace(BOUNDARY, "_" + BOUNDARY),
            normalizers.Replace(Regex(r"(?<=[\s\S])\z"), "_"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(BOUNDARY, "removed")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Fuse(),
            decoders.Replace("\\\\", BACKSLASH),
            *(decoders.Replace(number, letter) for letter, number in numbers),
            decoders.Replace(Regex(rf"(?<={WORD})(?<!\\u)_(?={WORD})"), " "),  # a literal `_` is not part of a word
            decoders.Replace("_", ""),
            decoders.Replace("\\u", "_"),
            decoders.Replace(BACKSLASH, "\\"),
        ]
    )
    return vocabulary.add_post_processor(tokenizer, side)
