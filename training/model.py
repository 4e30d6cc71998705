"""Create the tokenizers and the model of a recipe, new or pretrained."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.atomic import move_files, temporary_path
from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.loading import check_generation_config, load_config, load_tokenizer
from vaswani_transformer.model_folder import local_folder, verify_manifest
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.tokenization import train_tokenizer

from . import machine
from .dropout import use_byte_dropout
from .parallel_text import ParallelText, text_lines
from .recipe import Recipe, nearest
from .tensors import restore_model


def load_or_train_tokenizer(recipe: Recipe, output: Path, texts: list[ParallelText], say: Callable[[str], None]) -> Any:
    """Load the tokenizer of the recipe, of initial_weights, or of output_dir; train that of output_dir if missing."""
    folder = tokenizer_folder(recipe, output)
    if folder == output and not (output / "tokenizer.json").is_file():
        say(f"training a tokenizer of {recipe.vocab_size} tokens on {' + '.join(text.name for text in texts)}")
        save_new_tokenizer(recipe, output, texts)
    elif folder != output and "vocab_size" in recipe.model_fields_set:
        say(f"vocab_size {recipe.vocab_size} has no effect: the tokenizer in {folder} is used")
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"tokenizer: {folder} has no tokenizer.json; train one with `vaswani-transformer tokenizer`")
    tokenizer = load_for_training(folder, of_targets=not (folder / TARGET_TOKENIZER).is_dir())
    if recipe.lowercase and tokenizer.decode(tokenizer("A")["input_ids"], skip_special_tokens=True).strip() != "a":
        raise InputError(f"lowercase: the tokenizer in {folder} keeps capitals; train one with `tokenizer --lowercase`")
    before = recipe.initial_weights and local_folder(recipe.initial_weights)
    if before and folder != before and (before / "tokenizer.json").is_file():
        if tokenizer.get_vocab() != load_tokenizer(before).get_vocab():
            say(f"warning: the tokenizer in {folder} differs from the one that {before} was trained with")
    return tokenizer


def save_new_tokenizer(recipe: Recipe, output: Path, texts: list[ParallelText]) -> None:
    """Train a tokenizer on the texts and save it in output_dir; its files appear when they are complete."""
    tokenizer = train_tokenizer(
        text_lines(texts), recipe.vocab_size, split_digits=recipe.split_digits, lowercase=recipe.lowercase
    )
    with temporary_path(output / "tokenizer") as temporary:
        tokenizer.save_pretrained(temporary)
        # tokenizer.json last: the others exist if it does.
        names = sorted(os.listdir(temporary), key=lambda name: name == "tokenizer.json")
        move_files(names, temporary, output)


def load_target_tokenizer(recipe: Recipe, output: Path) -> Any:
    """Load the target tokenizer, if the languages have separate vocabularies; else return None."""
    folder = tokenizer_folder(recipe, output) / TARGET_TOKENIZER
    if not folder.is_dir() or folder.parent == output:
        return None
    return load_for_training(folder, of_targets=True)


def load_for_training(folder: Path, of_targets: bool) -> Any:
    """Load a tokenizer without truncation and padding, which tokenizer files from the Hub may enable.

    of_targets: raise InputError if it does not append </s>
    """
    tokenizer = load_tokenizer(folder)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    if of_targets and tokenizer("a")["input_ids"][-1:] != [tokenizer.eos_token_id]:
        raise InputError(
            f"tokenizer: {folder / 'tokenizer.json'} does not append {tokenizer.eos_token} "
            f"({tokenizer.eos_token_id}), so the model would not learn to stop; add it to the post_processor"
        )
    return tokenizer


def sizes_and_ids(tokenizer: Any, target_tokenizer: Any) -> tuple[int, int | None, dict[str, int | None]]:
    """Return the arguments of `model_config` that come from the tokenizers: sizes, and ids of control tokens.

    target_tokenizer: None if both languages share one
    Decoding starts with <s>, or with <pad> if the tokenizer has no <s>, as in T5 and Marian. Raises InputError if two
    tokenizers pad with different ids.
    """
    target = tokenizer if target_tokenizer is None else target_tokenizer
    if tokenizer.pad_token_id != target.pad_token_id:
        raise InputError(
            f"tokenizer: the source's pad_token_id is {tokenizer.pad_token_id}, the target's {target.pad_token_id}; "
            "the model needs the same for both"
        )
    start = target.pad_token_id if target.bos_token_id is None else target.bos_token_id
    ids = {
        "bos_token_id": target.bos_token_id,
        "pad_token_id": target.pad_token_id,
        "eos_token_id": target.eos_token_id,
        "decoder_start_token_id": start,
    }
    return len(tokenizer), None if target_tokenizer is None else len(target_tokenizer), ids


def tokenizer_folder(recipe: Recipe, output: Path) -> Path:
    if recipe.tokenizer is not None:
        return Path(recipe.tokenizer)
    return output if recipe.initial_weights is None else local_folder(recipe.initial_weights)


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
    try:
        if recipe.initial_weights is not None:
            # The embedding may have more rows than the tokenizer has tokens.
            before = load_config(local_folder(recipe.initial_weights)).to_dict()
            config = VaswaniTransformerConfig.from_dict(before | recipe.model)
        else:
            config = VaswaniTransformerConfig.from_preset(recipe.preset, **(sizes | recipe.model))
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise InputError(f"model: {' '.join(str(error).split())}") from error
    for field, size, wanted in (
        ("vocab_size", config.vocab_size, vocabulary),
        ("decoder_vocab_size", target_vocab_size(config), target_vocabulary or vocabulary),
    ):
        if size < wanted:
            raise InputError(f"model: {field} is {size}, the tokenizer has {wanted} tokens")
    for field in ("pad_token_id", "eos_token_id"):
        if ids is not None and getattr(config, field) != ids[field]:
            raise InputError(f"model: {field} is {getattr(config, field)}, in the tokenizer {ids[field]}")
    positions = config.max_position_embeddings
    if positions is not None and positions < recipe.max_length:
        raise InputError(
            f"max_length is {recipe.max_length}, the model has {positions} learned positions "
            "(model.max_position_embeddings)"
        )
    return config


def make_model(
    recipe: Recipe, config: VaswaniTransformerConfig, device: torch.device, mean_length: float
) -> tuple[VaswaniTransformerForConditionalGeneration, dict[str, Any]]:
    """Create the model with random weights, or with those of initial_weights, which must have the same shapes.

    mean_length: mean sentence length in tokens
    Returns the model and the choices made for this device.
    """
    if device.type == "cpu":
        machine.keep_freed_memory()
    if device.type == "cuda":
        machine.disable_cudnn_attention()
    precision = machine.set_matmul_precision(recipe.matmul_precision, device)
    attention = machine.choose_attention(recipe.attention, device, mean_length)
    config._attn_implementation = attention
    machine.seed_torch(recipe.seed)
    try:
        model = VaswaniTransformerForConditionalGeneration(config)
    except ImportError as error:
        raise UnavailableError(f"attention: {attention} is not installed; use --attention sdpa") from error
    if recipe.initial_weights is not None:
        folder = local_folder(recipe.initial_weights)
        verify_manifest(folder)
        restore_model(model, folder)
        if (folder / "generation_config.json").is_file():
            check_generation_config(folder, config)
            model.generation_config = GenerationConfig.from_pretrained(folder)
    if recipe.length_penalty is not None:
        model.generation_config.length_penalty = recipe.length_penalty
    if recipe.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    byte_dropout = use_byte_dropout(recipe, model, device)
    return model, {"matmul_precision": precision, "attention": attention, "byte_dropout": byte_dropout}
