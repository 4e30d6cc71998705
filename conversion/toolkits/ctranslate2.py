"""Out to CTranslate2, with our table of positions instead of the one that its own converters write.

Marian's sinusoids are wrong in CTranslate2's converter for Marian; here the table is the model's. Sources are fed as
our tokenizer gives them: the special tokens are in them already.
"""

from pathlib import Path
from typing import Any

import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration, sinusoidal_positional_encoding
from vaswani_transformer.errors import UnavailableError

from ..converted import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET
from ..origin import Origin
from ..refuse import Reasons

NAME = "ctranslate2"
POSITIONS = 2048  # CTranslate2 needs a table; its own converters write as many rows

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


def write_back(model: VaswaniTransformerForConditionalGeneration, origin: Origin, out: Path, reasons: Reasons) -> None:
    """A folder that ctranslate2.Translator loads. Raises all reasons why it cannot be one."""
    try:
        from ctranslate2.specs import common_spec, transformer_spec
    except ImportError:
        raise UnavailableError("ctranslate2 is not installed: pip install ctranslate2") from None
    config = model.config
    for stack in ("encoder", "decoder"):
        if (config.norm_position == "pre") != bool(getattr(config, f"{stack}_final_norm")):
            reasons.option(f"{stack}_final_norm: CTranslate2 has a final norm with pre-norm layers and with them alone")
    for size in ("d_k", "d_v"):
        if getattr(config, size) is not None:
            reasons.option(f"{size} {getattr(config, size)}: CTranslate2 has d_model / heads")
    if config.activation_function not in ACTIVATIONS:
        reasons.option(f"activation_function {config.activation_function!r}: CTranslate2 has {', '.join(ACTIVATIONS)}")
    if not origin.has_tokenizer():
        reasons.option("there is no tokenizer to write the vocabularies from")
    reasons.refuse_if_any()

    state = {name: tensor.detach().float() for name, tensor in model.state_dict().items()}
    activation = getattr(common_spec.Activation, ACTIVATIONS[config.activation_function])
    pre = config.norm_position == "pre"
    encoder: Any = transformer_spec.TransformerEncoderSpec(
        config.encoder_layers, config.encoder_attention_heads, pre_norm=pre, activation=activation
    )
    decoder: Any = transformer_spec.TransformerDecoderSpec(
        config.decoder_layers, config.decoder_attention_heads, pre_norm=pre, activation=activation
    )
    spec = transformer_spec.TransformerSpec(encoder, decoder)

    encoder.scale_embeddings = decoder.scale_embeddings = True
    encoder.embeddings[0].weight = state[SOURCE].numpy()
    encoder.position_encodings.encodings = positions(model, state, "encoder").numpy()
    for n, layer in enumerate(encoder.layer):
        name = f"model.encoder.layers.{n}"
        set_self_attention(layer.self_attention, state, f"{name}.self_attn")
        set_feed_forward(layer.ffn, state, name)
    decoder.embeddings.weight = state[TARGET].numpy()
    decoder.position_encodings.encodings = positions(model, state, "decoder").numpy()
    for n, layer in enumerate(decoder.layer):
        name = f"model.decoder.layers.{n}"
        set_self_attention(layer.self_attention, state, f"{name}.self_attn")
        set_cross_attention(layer.attention, state, f"{name}.cross_attn")
        set_feed_forward(layer.ffn, state, name)
    if pre:
        set_norm(encoder.layer_norm, state, "model.encoder.final_norm")
        set_norm(decoder.layer_norm, state, "model.decoder.final_norm")
    decoder.projection.weight = state[OUTPUT].numpy()
    if OUTPUT_BIAS in state:
        decoder.projection.bias = state[OUTPUT_BIAS].numpy()

    origin.options["source_tokens"], origin.options["target_tokens"] = len(state[SOURCE]), len(state[TARGET])
    source, target = origin.tokens()
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    assert isinstance(config.eos_token_id, int)
    settings: Any = spec.config
    settings.decoder_start_token = target[config.decoder_start_token_id]
    settings.bos_token = target[config.decoder_start_token_id]
    settings.eos_token = target[config.eos_token_id]
    settings.unk_token = next((token for token in ("<unk>", "<UNK>") if token in target), target[0])
    settings.layer_norm_epsilon = config.layer_norm_eps
    settings.add_source_bos = settings.add_source_eos = False
    spec.validate()
    spec.optimize()
    spec.save(str(out))


def positions(model: VaswaniTransformerForConditionalGeneration, state: dict, stack: str) -> torch.Tensor:
    config = model.config
    if config.position_embedding_type == "learned":
        return state[f"model.{stack}.positional_encoding.table.weight"][config.position_offset :]
    return sinusoidal_positional_encoding(
        torch.arange(POSITIONS) + config.position_offset, config.d_model, config.position_base
    )


def set_self_attention(spec: Any, state: dict, name: str) -> None:
    """One matrix for queries, keys and values."""
    set_linear(spec.linear[0], state, *(f"{name}.{part}_proj" for part in "qkv"))
    set_linear(spec.linear[1], state, f"{name}.out_proj")
    set_norm(spec.layer_norm, state, f"{name}_norm")


def set_cross_attention(spec: Any, state: dict, name: str) -> None:
    """One matrix for keys and values."""
    set_linear(spec.linear[0], state, f"{name}.q_proj")
    set_linear(spec.linear[1], state, f"{name}.k_proj", f"{name}.v_proj")
    set_linear(spec.linear[2], state, f"{name}.out_proj")
    set_norm(spec.layer_norm, state, f"{name}_norm")


def set_feed_forward(spec: Any, state: dict, name: str) -> None:
    set_linear(spec.linear_0, state, f"{name}.feed_forward.fc1")
    set_linear(spec.linear_1, state, f"{name}.feed_forward.fc2")
    set_norm(spec.layer_norm, state, f"{name}.feed_forward_norm")


def set_linear(spec: Any, state: dict, *names: str) -> None:
    """The matrices below one another."""
    spec.weight = torch.cat([state[f"{name}.weight"] for name in names]).numpy()
    if f"{names[0]}.bias" in state:
        spec.bias = torch.cat([state[f"{name}.bias"] for name in names]).numpy()


def set_norm(spec: Any, state: dict, name: str) -> None:
    spec.gamma, spec.beta = state[f"{name}.weight"].numpy(), state[f"{name}.bias"].numpy()
