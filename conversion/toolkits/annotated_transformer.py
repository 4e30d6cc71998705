"""harvardnlp's Annotated Transformer: pre-norm layers with final norms, the paper's sinusoids.

Its LayerNorm divides by the unbiased standard deviation plus 1e-6. sqrt((n - 1) / n) is folded into the weight;
ignoring the 1e-6 changes logits by about 1e-6.
"""

from pathlib import Path
from typing import Any

from vaswani_transformer.model_folder import read_json_object

from ..checkpoint_files import load_checkpoint
from ..layout import SOURCE, TARGET
from ..options import Options, Reasons
from ..rename import expand_layers, expand_table, infer_sizes, select_weights
from ..toolkit import Description, register_reader
from .torch_nn_transformer import TORCH_FILES, read_word_lists

EPSILON = 1e-12
NOTEBOOK_HEADS = 8
FIRST_WEIGHT = "encoder.layers.0.self_attn.linears.0.weight"

NORM = "{a_2,b_2}"
PROJECTIONS = "linears.{0,1,2,3}.{weight,bias}"
COMMON = {
    f"self_attn.{PROJECTIONS}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
    f"src_attn.{PROJECTIONS}": "cross_attn.{q,k,v,out}_proj.{weight,bias}",
    "feed_forward.w_{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
}
LAYERS = {
    "encoder": COMMON | {f"sublayer.{{0,1}}.norm.{NORM}": "{self_attn,feed_forward}_norm.{weight,bias}"},
    "decoder": COMMON | {f"sublayer.{{0,1,2}}.norm.{NORM}": "{self_attn,cross_attn,feed_forward}_norm.{weight,bias}"},
}


@register_reader(
    "annotated-transformer",
    TORCH_FILES,
    packages=["__main__"],
    recognise_content=lambda content: FIRST_WEIGHT in content,
)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a state_dict and, if it is there, a config.json with `h` and `dropout`."""
    weights = load_checkpoint(path)
    file = path.with_name("config.json")
    options = Options(read_json_object(file) if file.exists() else {}, reasons)
    assumptions = []
    if "h" not in options:
        options["h"] = NOTEBOOK_HEADS
        assumptions.append(
            f"No config.json with `h` is next to the checkpoint: {NOTEBOOK_HEADS} heads, as in the notebook."
        )
    tensors = select_weights(weights, reasons)
    config: dict[str, Any] = {"d_model": tensors[FIRST_WEIGHT].shape[1]}
    config |= options.read_heads("h", config["d_model"])
    reasons.raise_if_any()
    config |= infer_sizes(tensors, "feed_forward.w_1.weight") | options.read_rates(0.1, "dropout")
    config |= {"norm_position": "pre", "layer_norm_eps": EPSILON}

    correction = ((config["d_model"] - 1) / config["d_model"]) ** 0.5  # of the unbiased standard deviation
    tensors |= {name: (t.double() * correction).float() for name, t in tensors.items() if name.endswith(".a_2")}
    rules = [
        *expand_table({"src_embed.0.lut.weight": SOURCE, "tgt_embed.0.lut.weight": TARGET}),
        *expand_table({"generator.proj.{weight,bias}": "lm_head.{weight,bias}"}),
        *expand_layers(config, "{encoder,decoder}.layers.#.", LAYERS, f"{{encoder,decoder}}.norm.{NORM}"),
    ]
    vocabulary = read_word_lists(path.parent)
    files = [file] if file.exists() else []
    return Description(tensors, rules, config, vocabulary, assumptions=assumptions, files=files)
