"""Ben Trevett's tutorial bentrevett/pytorch-seq2seq, whose code many projects have copied.

Post-norm layers without a final norm, learned positions, embeddings times sqrt(d_model), biases in every projection.
"""

from pathlib import Path
from typing import Any

from vaswani_transformer.model_folder import read_json_object

from ..checkpoint_files import load_checkpoint
from ..layout import DECODER_POSITIONS, ENCODER_POSITIONS, OUTPUT, OUTPUT_BIAS, SOURCE, TARGET
from ..options import Options, Reasons
from ..rename import expand_layers, expand_table, infer_sizes, select_weights
from ..toolkit import Description, register_reader
from .torch_nn_transformer import TORCH_FILES, find_state_dict, read_word_lists

EPSILON = 1e-5
TUTORIAL_HEADS = 8
FIRST_WEIGHT = "encoder.layers.0.self_attention.fc_q.weight"

EMBEDDINGS = {
    "encoder.tok_embedding.weight": SOURCE,
    "decoder.tok_embedding.weight": TARGET,
    "encoder.pos_embedding.weight": ENCODER_POSITIONS,
    "decoder.pos_embedding.weight": DECODER_POSITIONS,
    "decoder.fc_out.weight": OUTPUT,
    "decoder.fc_out.bias": OUTPUT_BIAS,
}
PROJECTIONS = "fc_{q,k,v,o}.{weight,bias}"
COMMON = {
    f"self_attention.{PROJECTIONS}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
    f"encoder_attention.{PROJECTIONS}": "cross_attn.{q,k,v,out}_proj.{weight,bias}",
    "positionwise_feedforward.fc_{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
    "{self_attn,ff}_layer_norm.{weight,bias}": "{self_attn,feed_forward}_norm.{weight,bias}",
}
LAYERS = {"encoder": COMMON, "decoder": COMMON | {"enc_attn_layer_norm.{weight,bias}": "cross_attn_norm.{weight,bias}"}}


def recognise(content: dict[str, Any]) -> bool:
    return any(isinstance(name, str) and name.endswith(FIRST_WEIGHT) for name in find_state_dict(content))


@register_reader("pytorch-seq2seq", TORCH_FILES, packages=["__main__"], recognise_content=recognise)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a state_dict, its word lists and, if it is there, a config.json with `n_heads` and `dropout`."""
    weights = find_state_dict(load_checkpoint(path))
    prefix = next(name for name in weights if name.endswith(FIRST_WEIGHT)).removesuffix(FIRST_WEIGHT)
    weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    file = path.with_name("config.json")
    options = Options(read_json_object(file) if file.exists() else {}, reasons)
    assumptions = []
    if "n_heads" not in options:
        options["n_heads"] = TUTORIAL_HEADS
        assumptions.append(
            f"No config.json with `n_heads` is next to the checkpoint: {TUTORIAL_HEADS} heads, as in the tutorial."
        )
    tensors = select_weights(weights, reasons)
    config: dict[str, Any] = {"d_model": tensors[FIRST_WEIGHT].shape[1]}
    config |= options.read_heads("n_heads", config["d_model"])
    reasons.raise_if_any()
    config |= infer_sizes(tensors, "positionwise_feedforward.fc_1.weight") | options.read_rates(0.1, "dropout")
    config |= {"norm_position": "post", "layer_norm_eps": EPSILON}
    rules = expand_table(EMBEDDINGS) + expand_layers(config, "{encoder,decoder}.layers.#.", LAYERS)
    files = [file] if file.exists() else []
    return Description(tensors, rules, config, read_word_lists(path.parent), assumptions=assumptions, files=files)
