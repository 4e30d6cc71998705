"""Two tutorials whose code many projects have copied.

harvardnlp's Annotated Transformer: pre-norm layers with final norms, the paper's sinusoids. Its LayerNorm divides by
the unbiased standard deviation plus 1e-6. sqrt((n - 1) / n) is folded into the weight; ignoring the 1e-6 changes
logits by about 1e-6.

Ben Trevett's bentrevett/pytorch-seq2seq: post-norm layers without a final norm, learned positions, embeddings times
sqrt(d_model), biases in every projection.
"""

from pathlib import Path

from vaswani_transformer.model_folder import read_json_object

from ..checkpoint_files import load_checkpoint
from ..layout import DECODER_POSITIONS, ENCODER_POSITIONS, OUTPUT, OUTPUT_BIAS, SOURCE, TARGET
from ..options import STACKS, Options, Reasons
from ..rename import expand_layers, expand_table, infer_sizes, select_weights
from ..toolkit import Description, register_reader
from .torch_nn_transformer import TORCH_FILES, find_weights, read_word_lists

HEADS = 8  # in both tutorials


def describe(path: Path, reasons: Reasons, first_weight: str, fc1: str, heads: str) -> Description:
    """Describe a state_dict, its word lists and, if there is one, its config.json, except for the rules of the names.

    first_weight: a matrix with d_model columns;  fc1: see `infer_sizes`
    heads: the tutorial's name of the number of heads, which config.json may give, as it may give `dropout`
    """
    file = path.with_name("config.json")
    options = Options(read_json_object(file) if file.exists() else {}, reasons)
    assumptions = []
    if heads not in options:
        options[heads] = HEADS
        assumptions.append(
            f"No config.json with `{heads}` is next to the checkpoint: {HEADS} heads, as in the tutorial."
        )
    tensors = select_weights(find_weights(load_checkpoint(path), first_weight), reasons)
    d_model = tensors[first_weight].shape[1]
    config = {"d_model": d_model, **options.read_heads(heads, d_model), **options.read_rates(0.1, "dropout")}
    reasons.raise_if_any()
    config |= infer_sizes(tensors, fc1)
    files = [file] if file.exists() else []
    return Description(tensors, [], config, read_word_lists(path.parent), assumptions=assumptions, files=files)


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


@register_reader(
    "annotated-transformer",
    TORCH_FILES,
    packages=["__main__"],
    recognise_content=lambda content: bool(find_weights(content, ANNOTATED)),
)
def read_annotated_transformer(path: Path, reasons: Reasons) -> Description:
    """Describe a state_dict of the notebook's EncoderDecoder."""
    description = describe(path, reasons, ANNOTATED, "feed_forward.w_1.weight", "h")
    config, tensors = description.config, description.tensors
    config |= {"norm_position": "pre", "layer_norm_eps": 1e-12}
    correction = ((config["d_model"] - 1) / config["d_model"]) ** 0.5  # of the unbiased standard deviation
    tensors |= {name: (t.double() * correction).float() for name, t in tensors.items() if name.endswith(".a_2")}
    layers = {stack: ANNOTATED_LAYER | norms for stack, norms in ANNOTATED_NORMS.items()}
    description.rules = [
        *expand_table({"src_embed.0.lut.weight": SOURCE, "tgt_embed.0.lut.weight": TARGET}),
        *expand_table({"generator.proj.{weight,bias}": "lm_head.{weight,bias}"}),
        *expand_layers(config, "{encoder,decoder}.layers.#.", layers, "{encoder,decoder}.norm.{a_2,b_2}"),
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


@register_reader(
    "pytorch-seq2seq",
    TORCH_FILES,
    packages=["__main__"],
    recognise_content=lambda content: bool(find_weights(content, SEQ2SEQ)),
)
def read_pytorch_seq2seq(path: Path, reasons: Reasons) -> Description:
    """Describe a state_dict of the tutorial's Seq2Seq."""
    description = describe(path, reasons, SEQ2SEQ, "positionwise_feedforward.fc_1.weight", "n_heads")
    description.config |= {"norm_position": "post", "layer_norm_eps": 1e-5}
    layers = dict.fromkeys(STACKS, SEQ2SEQ_LAYER)
    description.rules = expand_table(SEQ2SEQ_EMBEDDINGS)
    description.rules += expand_layers(description.config, "{encoder,decoder}.layers.#.", layers)
    return description
