"""Three tutorials whose code many projects have copied.

harvardnlp's Annotated Transformer: pre-norm layers with final norms, the paper's sinusoids. Its LayerNorm divides by
the unbiased standard deviation plus 1e-6. sqrt((n - 1) / n) is folded into the weight; ignoring the 1e-6 changes
logits by about 1e-6.

Ben Trevett's bentrevett/pytorch-seq2seq: post-norm layers without a final norm, learned positions, embeddings times
sqrt(d_model), biases in every projection.

Umar Jamil's hkproj/pytorch-transformer: as the Annotated Transformer, without biases in attention; its first versions
have these biases, and norms with one weight and one bias for all dimensions.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from vaswani_transformer.errors import InputError
from vaswani_transformer.files import check_readable, read_json_object
from vaswani_transformer.tokenizer_files import tokenizer_errors

from ..checkpoint_files import load_checkpoint
from ..layout import DECODER_POSITIONS, ENCODER_POSITIONS, OUTPUT, OUTPUT_BIAS, SOURCE, TARGET
from ..options import STACKS, Options, Reasons
from ..rename import expand_layers, expand_table, infer_sizes, select_weights
from ..toolkit import Description
from ..vocabulary import SIDES, Vocabulary, order_tokens, read_both_sides
from .torch_nn_transformer import (
    SOURCE_TEMPLATE,
    SPECIAL_TOKENS,
    find_module_weights,
    read_word_lists,
    register_module_reader,
)

HEADS = 8  # in all of them


def describe(
    path: Path,
    reasons: Reasons,
    first_weight: str,
    fc1: str,
    heads: str,
    read_vocabulary: Callable[[Path, Mapping[str, Tensor], Mapping[str, Any]], Vocabulary] | None = None,
) -> Description:
    """Describe a state_dict, its vocabulary and, if there is one, its config.json, except for the rules of the names.

    first_weight: a matrix with d_model columns;  fc1: see `infer_sizes`
    heads: the tutorial's name of the number of heads, which config.json may give, as it may give `dropout`
    read_vocabulary: reads it from a folder, for these tensors and the content of config.json; default: word lists
    """
    file = path.with_name("config.json")
    options = Options(read_json_object(file) if file.exists() else {}, reasons)
    assumptions = []
    if heads not in options:
        options[heads] = HEADS
        assumptions.append(
            f"No config.json with `{heads}` is next to the checkpoint: {HEADS} heads, as in the tutorial."
        )
    tensors = select_weights(find_module_weights(load_checkpoint(path), first_weight), reasons)
    d_model = tensors[first_weight].shape[1]
    config = {"d_model": d_model, **options.read_heads(heads, d_model), **options.read_rates(0.1, "dropout")}
    reasons.raise_if_any()
    config |= infer_sizes(tensors, fc1)
    files = [file] if file.exists() else []
    read = read_vocabulary or (lambda folder, *_: read_word_lists(folder))
    vocabulary = read(path.parent, tensors, options)
    return Description(tensors, [], config, vocabulary, assumptions=assumptions, files=files)


def convert_norms(description: Description, weight: str) -> None:
    """Fold the unbiased standard deviation of pre-norm layers into the weights of their norms.

    weight: how the names of these weights end
    """
    config, tensors = description.config, description.tensors
    config |= {"norm_position": "pre", "layer_norm_eps": 1e-12}
    correction = ((config["d_model"] - 1) / config["d_model"]) ** 0.5
    tensors |= {name: (t.double() * correction).float() for name, t in tensors.items() if name.endswith(weight)}


# ---- the Annotated Transformer ---------------------------------------------------------------------------------------

ANNOTATED = "encoder.layers.0.self_attn.linears.0.weight"
ANNOTATED_LAYER = {
    "self_attn.linears.{0,1,2,3}.{weight,bias}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
    "src_attn.linears.{0,1,2,3}.{weight,bias}": "cross_attn.{q,k,v,out}_proj.{weight,bias}",
    "feed_forward.w_{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
}
ANNOTATED_NORMS = {
    "encoder": {"sublayer.{0,1}.norm.{a_2,b_2}": "{self_attn,feed_forward}_norm.{weight,bias}"},
    "decoder": {"sublayer.{0,1,2}.norm.{a_2,b_2}": "{self_attn,cross_attn,feed_forward}_norm.{weight,bias}"},
}


@register_module_reader("annotated-transformer", ANNOTATED)
def read_annotated_transformer(path: Path, reasons: Reasons) -> Description:
    """Describe a state_dict of the notebook's EncoderDecoder."""
    description = describe(path, reasons, ANNOTATED, "feed_forward.w_1.weight", "h")
    convert_norms(description, ".a_2")
    layers = {stack: ANNOTATED_LAYER | norms for stack, norms in ANNOTATED_NORMS.items()}
    description.rules = [
        *expand_table({"src_embed.0.lut.weight": SOURCE, "tgt_embed.0.lut.weight": TARGET}),
        *expand_table({"generator.proj.{weight,bias}": "lm_head.{weight,bias}"}),
        *expand_layers(description.config, "{encoder,decoder}.layers.#.", layers, "{encoder,decoder}.norm.{a_2,b_2}"),
    ]
    return description


# ---- pytorch-seq2seq -------------------------------------------------------------------------------------------------

SEQ2SEQ = "encoder.layers.0.self_attention.fc_q.weight"
SEQ2SEQ_EMBEDDINGS = {
    "encoder.tok_embedding.weight": SOURCE,
    "decoder.tok_embedding.weight": TARGET,
    "encoder.pos_embedding.weight": ENCODER_POSITIONS,
    "decoder.pos_embedding.weight": DECODER_POSITIONS,
    "decoder.fc_out.weight": OUTPUT,
    "decoder.fc_out.bias": OUTPUT_BIAS,
}
SEQ2SEQ_LAYER = {
    "self_attention.fc_{q,k,v,o}.{weight,bias}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
    "encoder_attention.fc_{q,k,v,o}.{weight,bias}": "cross_attn.{q,k,v,out}_proj.{weight,bias}",
    "positionwise_feedforward.fc_{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
    "{self_attn,enc_attn,ff}_layer_norm.{weight,bias}": "{self_attn,cross_attn,feed_forward}_norm.{weight,bias}",
}


@register_module_reader("pytorch-seq2seq", SEQ2SEQ)
def read_pytorch_seq2seq(path: Path, reasons: Reasons) -> Description:
    """Describe a state_dict of the tutorial's Seq2Seq."""
    description = describe(path, reasons, SEQ2SEQ, "positionwise_feedforward.fc_1.weight", "n_heads")
    description.config |= {"norm_position": "post", "layer_norm_eps": 1e-5}
    layers = dict.fromkeys(STACKS, SEQ2SEQ_LAYER)
    description.rules = expand_table(SEQ2SEQ_EMBEDDINGS)
    description.rules += expand_layers(description.config, "{encoder,decoder}.layers.#.", layers)
    return description


# ---- pytorch-transformer ---------------------------------------------------------------------------------------------

BLOCKS = "encoder.layers.0.self_attention_block.w_q.weight"
BLOCKS_EMBEDDINGS = {
    "src_embed.embedding.weight": SOURCE,
    "tgt_embed.embedding.weight": TARGET,
    "projection_layer.proj.weight": OUTPUT,
    "projection_layer.proj.bias": OUTPUT_BIAS,
}
BLOCKS_LAYER = {
    "self_attention_block.w_{q,k,v,o}.{weight,bias}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
    "feed_forward_block.linear_{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
}
BLOCKS_CROSS = {"w_{q,k,v,o}.{weight,bias}": "cross_attn.{q,k,v,out}_proj.{weight,bias}"}
BLOCKS_NORMS = {
    "encoder": {"residual_connections.{0,1}.norm.{alpha,bias}": "{self_attn,feed_forward}_norm.{weight,bias}"},
    "decoder": {
        "residual_connections.{0,1,2}.norm.{alpha,bias}": "{self_attn,cross_attn,feed_forward}_norm.{weight,bias}"
    },
}


@register_module_reader("pytorch-transformer", BLOCKS)
def read_pytorch_transformer(path: Path, reasons: Reasons) -> Description:
    """Describe a state_dict of the tutorial's Transformer."""
    description = describe(path, reasons, BLOCKS, "feed_forward_block.linear_1.weight", "h", read_tokenizers)
    config, tensors = description.config, description.tensors
    for name, tensor in list(tensors.items()):
        if ".norm." in name and tensor.numel() == 1:
            tensors[name] = tensor.repeat(config["d_model"])
    convert_norms(description, ".norm.alpha")
    names = (f"{name}_attention_block." for name in ("cross", "source", "src"))  # of different versions
    cross = next((name for name in names if f"decoder.layers.0.{name}w_q.weight" in tensors), "cross_attention_block.")
    layers = {stack: BLOCKS_LAYER | norms for stack, norms in BLOCKS_NORMS.items()}
    layers["decoder"] |= {cross + theirs: ours for theirs, ours in BLOCKS_CROSS.items()}
    rules = expand_layers(config, "{encoder,decoder}.layers.#.", layers, "{encoder,decoder}.norm.{alpha,bias}")
    has_biases = BLOCKS.replace(".weight", ".bias") in tensors
    rules = [rule for rule in rules if has_biases or not rule.ours.endswith("_proj.bias")]
    description.rules = expand_table(BLOCKS_EMBEDDINGS) + rules
    return description


def read_tokenizers(folder: Path, tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> Vocabulary:
    """Read tokenizer_LANGUAGE.json of both languages, as the tutorial saves them; word lists if there are none.

    The source's is that of `lang_src` in config.json, or the one with as many tokens as its embedding has rows.
    """
    files = [file for file in sorted(folder.glob("tokenizer_*.json")) if file.name != "tokenizer_config.json"]
    if not files:
        return read_word_lists(folder)
    tokens = {file: order_tokens(open_tokenizer(file).get_vocab(), file) for file in files}
    rows = [len(tensors.get(name, ())) for name in list(BLOCKS_EMBEDDINGS)[:2]]
    languages = [options.get(name) for name in ("lang_src", "lang_tgt")]

    def fit(pair: Sequence[Path]) -> bool:
        names = [file.stem.removeprefix("tokenizer_") for file in pair]
        are_named = all(language in (None, name) for language, name in zip(languages, names, strict=True))
        return are_named and [len(tokens[file]) for file in pair] == rows

    pairs = list(filter(fit, permutations(files, 2) if len(files) > 1 else [(files[0], files[0])]))
    if len(pairs) != 1:
        sizes = ", ".join(f"{file.name} has {len(tokens[file])} tokens" for file in files)
        raise InputError(
            f"{folder}: {sizes}, the embeddings have {rows[0]} and {rows[1]} rows; name the languages of source and "
            'target in config.json, as {"lang_src": "en", "lang_tgt": "it"}'
        )
    vocabulary = read_both_sides(pairs[0], tokens.__getitem__, SPECIAL_TOKENS, source_template=SOURCE_TEMPLATE)
    for side, file in zip(SIDES, pairs[0], strict=True):
        vocabulary.tokenizers[side] = vocabulary.add_post_processor(open_tokenizer(file), side)
    return vocabulary


def open_tokenizer(file: Path) -> Tokenizer:
    """Read a file of the tokenizers library. Raises BrokenFileError."""
    check_readable(file)
    with tokenizer_errors(file):
        return Tokenizer.from_file(str(file))
