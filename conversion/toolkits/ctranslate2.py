"""Write CTranslate2 models.

The position table is the model's: CTranslate2's own Marian converter uses the exponent 2i / d_model. Give the
translator source tokens with special tokens, as our tokenizer returns them.
"""

from pathlib import Path
from typing import Any

import torch

from vaswani_transformer import sinusoidal_positional_encoding

from ..folder import OurModel
from ..layout import OUTPUT, OUTPUT_BIAS, POSITIONS, SOURCE, TARGET
from ..options import STACKS, Options, expand
from ..toolkit import register_writer

TABLE_ROWS = 2048  # CTranslate2 needs a table; its Marian converter writes as many rows

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
}


@register_writer("ctranslate2")
def write_checkpoint(folder: OurModel, out: Path, options: Options) -> None:
    """Write a folder that ctranslate2.Translator loads."""
    from ctranslate2.specs import common_spec, transformer_spec

    config, reasons = folder.config, options.reasons
    pre = config.norm_position == "pre"
    options.require({"{encoder,decoder}_final_norm": (pre,), "activation_function": tuple(ACTIVATIONS)})
    if not folder.has_tokenizer():
        reasons.add_setting("there is no tokenizer to write the vocabularies from")
    reasons.raise_if_any()

    state = {name: tensor.detach().float() for name, tensor in folder.model.state_dict().items()}
    activation = getattr(common_spec.Activation, ACTIVATIONS[config.activation_function])
    encoder: Any = transformer_spec.TransformerEncoderSpec(
        config.encoder_layers, config.encoder_attention_heads, pre_norm=pre, activation=activation
    )
    decoder: Any = transformer_spec.TransformerDecoderSpec(
        config.decoder_layers, config.decoder_attention_heads, pre_norm=pre, activation=activation
    )
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    encoder.embeddings[0].weight, decoder.embeddings.weight = state[SOURCE].numpy(), state[TARGET].numpy()
    for stack, part, positions in zip(STACKS, (encoder, decoder), expand(POSITIONS), strict=True):
        part.scale_embeddings = True
        part.position_encodings.encodings = make_position_table(config, state.get(positions)).numpy()
        for n, layer in enumerate(part.layer):
            name = f"model.{stack}.layers.{n}"
            set_attention(layer.self_attention, state, f"{name}.self_attn", ["qkv"])
            if stack == "decoder":
                set_attention(layer.attention, state, f"{name}.cross_attn", ["q", "kv"])
            set_linear(layer.ffn.linear_0, state, f"{name}.feed_forward.fc1")
            set_linear(layer.ffn.linear_1, state, f"{name}.feed_forward.fc2")
            set_norm(layer.ffn.layer_norm, state, f"{name}.feed_forward_norm")
        if pre:
            set_norm(part.layer_norm, state, f"model.{stack}.final_norm")
    decoder.projection.weight = state[OUTPUT].numpy()
    if OUTPUT_BIAS in state:
        decoder.projection.bias = state[OUTPUT_BIAS].numpy()

    set_vocabularies(spec, folder)
    spec.validate()
    spec.optimize()
    spec.save(str(out))


def set_vocabularies(spec: Any, folder: OurModel) -> None:
    """Set the vocabularies, with a token for every row, and the special tokens."""
    folder.keep_all_rows()
    config = folder.config
    source, target = folder.tokens()
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    settings = spec.config
    settings.decoder_start_token = settings.bos_token = target[config.decoder_start_token_id]
    settings.eos_token = target[config.eos_token_id]
    settings.unk_token = next((token for token in ("<unk>", "<UNK>") if token in target), target[0])
    settings.layer_norm_epsilon = config.layer_norm_eps
    settings.add_source_bos = settings.add_source_eos = False


def make_position_table(config: Any, learned: torch.Tensor | None) -> torch.Tensor:
    """Return the table without the rows before the first position. learned: the model's table, if it has one"""
    if learned is not None:
        return learned[config.position_offset :]
    positions = torch.arange(TABLE_ROWS) + config.position_offset
    return sinusoidal_positional_encoding(positions, config.d_model, config.position_base)


def set_attention(spec: Any, state: dict, name: str, inputs: list[str]) -> None:
    """Set the projections and the norm. inputs: the input projections in each matrix, e.g. ["q", "kv"]"""
    for linear, parts in zip(spec.linear, [*inputs, ["out"]], strict=True):
        set_linear(linear, state, *(f"{name}.{part}_proj" for part in parts))
    set_norm(spec.layer_norm, state, f"{name}_norm")


def set_linear(spec: Any, state: dict, *names: str) -> None:
    """Concatenate the projections along the output axis."""
    spec.weight = torch.cat([state[f"{name}.weight"] for name in names]).numpy()
    if f"{names[0]}.bias" in state:
        spec.bias = torch.cat([state[f"{name}.bias"] for name in names]).numpy()


def set_norm(spec: Any, state: dict, name: str) -> None:
    spec.gamma, spec.beta = state[f"{name}.weight"].numpy(), state[f"{name}.bias"].numpy()
