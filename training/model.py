"""Create the model of a recipe, new or pretrained."""

import dataclasses
import reprlib
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.loading import load_config, load_generation_config
from vaswani_transformer.model_folder import ModelFolder, find_folder, verify_manifest
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size

from . import machine
from .dropout import use_byte_dropout
from .recipe import Recipe, nearest
from .tensors import restore_model

# Config fields that decide which weights a model has, and their shapes.
SHAPE_FIELDS = (
    "vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "d_k", "d_v", "encoder_ffn_dim",
    "decoder_ffn_dim", "position_embedding_type", "max_position_embeddings", "encoder_final_norm", "decoder_final_norm",
    "attention_bias", "output_bias", "share_encoder_decoder_embeddings", "tie_word_embeddings",
)  # fmt: skip


def check_model_fields(recipe: Recipe) -> None:
    """Raise InputError for a key of `model` that is not a config field."""
    known = [field.name for field in dataclasses.fields(VaswaniTransformerConfig)]
    for key in recipe.model:
        if key not in known:
            raise InputError(f"model: unknown config field {key!r}{nearest(key, known)}")


def model_config(
    recipe: Recipe,
    vocabulary: int,
    target_vocabulary: int | None = None,
    ids: dict[str, int | None] | None = None,
) -> VaswaniTransformerConfig:
    """Return the config of the preset or of initial_weights, with the recipe's overrides.

    vocabulary, target_vocabulary: sizes of the tokenizers; None if both languages share one.
    ids: the config fields for control tokens. Raises InputError naming the field.
    """
    check_model_fields(recipe)
    sizes: dict[str, Any] = {"vocab_size": vocabulary, **(ids or {})}
    if target_vocabulary is not None:
        sizes |= {"decoder_vocab_size": target_vocabulary, "share_encoder_decoder_embeddings": False}
    before = None if recipe.initial_weights is None else load_config(find_folder(recipe.initial_weights)).to_dict()
    try:
        if before is not None:
            # The embedding may have more rows than the tokenizer has tokens.
            config = VaswaniTransformerConfig.from_dict(before | recipe.model)
        else:
            config = VaswaniTransformerConfig.from_preset(recipe.preset, **(sizes | recipe.model))
    except StrictDataclassError as error:
        raise InputError(_wrong_type(recipe, str(error))) from error
    except (ValueError, TypeError) as error:
        raise InputError(f"model: {' '.join(str(error).split())}") from error
    if before is not None:
        _check_shapes(recipe, before, config)
    for field, size, wanted in (
        ("vocab_size", config.vocab_size, vocabulary),
        ("decoder_vocab_size", target_vocab_size(config), target_vocabulary or vocabulary),
    ):
        if size < wanted:
            raise InputError(f"model: {field} is {size}, the tokenizer has {wanted} tokens")
    for field in ("pad_token_id", "eos_token_id"):
        if ids is not None and getattr(config, field) != ids[field]:
            raise InputError(f"model: {field} is {getattr(config, field)}, in the tokenizer {ids[field]}")
    positions = config.learned_positions
    if positions is not None and positions < recipe.max_length:
        raise InputError(
            f"max_length is {recipe.max_length}, the model has {positions} learned positions "
            "(model.max_position_embeddings)"
        )
    return config


def _check_shapes(recipe: Recipe, before: dict[str, Any], config: VaswaniTransformerConfig) -> None:
    """Raise InputError if the recipe changes a field that the shapes of initial_weights depend on."""
    changed = [
        f"model.{field} is {getattr(config, field)}, must be {before[field]}"
        for field in SHAPE_FIELDS
        if field in recipe.model and getattr(config, field) != before[field]
    ]
    if changed:
        raise InputError(
            f"{'; '.join(changed)}: the weights of {recipe.initial_weights} have these sizes; --model '{{}}' keeps them"
        )


def _wrong_type(recipe: Recipe, error: str) -> str:
    """Return huggingface_hub's error about the type of a config field in one short line."""
    for field in dataclasses.fields(VaswaniTransformerConfig):
        if field.name in recipe.model and f"field '{field.name}'" in error:
            kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
            kinds = kind.replace(" | ", " or ").replace("None", "null")
            return f"model.{field.name} is {reprlib.repr(recipe.model[field.name])}, must be {kinds}"
    return f"model: {' '.join(error.split())}"


def make_model(
    recipe: Recipe, config: VaswaniTransformerConfig, device: torch.device, mean_length: float
) -> tuple[VaswaniTransformerForConditionalGeneration, dict[str, Any]]:
    """Create the model with random weights, or with those of initial_weights, which must have the same shapes.

    mean_length: mean sentence length in tokens
    Returns the model and the choices made for this device.
    """
    precision = machine.set_up_process(recipe.matmul_precision, device)
    attention = machine.choose_attention(recipe.attention, device, mean_length)
    config._attn_implementation = attention
    machine.seed_torch(recipe.seed)
    try:
        model = VaswaniTransformerForConditionalGeneration(config)
    except ImportError as error:
        raise UnavailableError(f"attention: {attention} is not installed; use --attention sdpa") from error
    if recipe.initial_weights is not None:
        folder = find_folder(recipe.initial_weights)
        verify_manifest(folder)
        restore_model(model, folder)
        source = ModelFolder(folder)
        if source.generation_config:
            model.generation_config = load_generation_config(source)
    if recipe.length_penalty is not None:
        model.generation_config.length_penalty = recipe.length_penalty
    if recipe.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    byte_dropout = use_byte_dropout(recipe, model, device)
    return model, {"matmul_precision": precision, "attention": attention, "byte_dropout": byte_dropout}
