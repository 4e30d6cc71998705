"""The model of a recipe, new or pretrained, and the network: the model with its loss and optimizer on all processes."""

import dataclasses
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError, one_line
from vaswani_transformer.hub_files import find_folder
from vaswani_transformer.loading import load_config, load_generation_config
from vaswani_transformer.model_folder import NEVER, ModelFolder, hash_weights, verify_manifest
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size

from . import fsdp, machine
from .loss import TrainingLoss
from .recipe import HardwareSettings, ModelSettings, OptimizerSettings, nearest
from .tensors import cpu_copies, restore_model

FIELDS_OF_TOKENIZERS = {
    "vocab_size", "decoder_vocab_size", "separate_vocabularies", "share_encoder_decoder_embeddings",
    "bos_token_id", "decoder_start_token_id", "pad_token_id", "eos_token_id",
}  # fmt: skip


def check_model_fields(settings: ModelSettings) -> None:
    """Raise InputError for a key of `model` that is not a config field, and for a value that is always wrong.

    Call it first: `model_config` needs the tokenizer, and reading the text may take an hour.
    """
    known = [field.name for field in dataclasses.fields(VaswaniTransformerConfig)]
    for key in settings.model:
        if key not in known:
            raise InputError(f"model: unknown config field {key!r}{nearest(key, known)}")
    if settings.initial_weights is None:
        with name_field():
            fields = {key: value for key, value in settings.model.items() if key not in FIELDS_OF_TOKENIZERS}
            VaswaniTransformerConfig.from_preset(settings.preset, **fields)


def model_config(
    settings: ModelSettings,
    vocabulary: int,
    target_vocabulary: int | None = None,
    ids: dict[str, int | None] | None = None,
) -> VaswaniTransformerConfig:
    """Return the config of the preset or of initial_weights, with the recipe's overrides.

    vocabulary, target_vocabulary: sizes of the tokenizers; None if both languages share one.
    ids: the config fields for control tokens. Raises InputError naming the field.
    """
    sizes: dict[str, Any] = {"vocab_size": vocabulary, **(ids or {})}
    if target_vocabulary is not None:
        sizes |= {"decoder_vocab_size": target_vocabulary, "separate_vocabularies": True}
        sizes |= {"share_encoder_decoder_embeddings": False}
    before = None if settings.initial_weights is None else load_config(find_folder(settings.initial_weights)).to_dict()
    with name_field():
        if before is not None:
            # The embedding may have more rows than the tokenizer has tokens.
            config = VaswaniTransformerConfig.from_dict(before | settings.model)
        else:
            config = VaswaniTransformerConfig.from_preset(settings.preset, **(sizes | settings.model))
    positions = settings.model.get("max_position_embeddings")
    if positions is not None and config.learned_positions is None:  # the config of ported code may have it
        raise InputError(
            f"model: max_position_embeddings is {positions}, but sinusoids have no maximum; leave it out, or set "
            "position_embedding_type to learned"
        )
    own_tokenizer = "use the tokenizer of the weights"  # whose config differs, where the recipe gives no field
    for field, size, wanted in (
        ("vocab_size", config.vocab_size, vocabulary),
        ("decoder_vocab_size", target_vocab_size(config), target_vocabulary or vocabulary),
    ):
        if size < wanted:
            remedy = f"{own_tokenizer}, or first extend them: model.resize_token_embeddings({wanted})"
            remedy = f"leave {field} out" if field in settings.model else remedy
            raise InputError(f"model: {field} is {size}, but the tokenizer has {wanted} tokens; {remedy}")
    for field in ("pad_token_id", "eos_token_id"):
        if ids is not None and (value := getattr(config, field)) != ids[field]:
            remedy = f"leave {field} out" if field in settings.model else own_tokenizer
            raise InputError(f"model: {field} is {value}, but {ids[field]} in the tokenizer; {remedy}")
    return config


@contextmanager
def name_field() -> Iterator[None]:
    """Raise InputError for an error of a configuration, which names the field."""
    try:
        yield
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise InputError(f"model: {one_line(str(error))}") from error


def check_positions(config: VaswaniTransformerConfig, max_length: int) -> None:
    """Raise InputError if the model has too few learned positions for sentences of max_length tokens."""
    positions = config.learned_positions
    if positions is not None and positions < max_length:
        raise InputError(
            f"max_length is {max_length}, but the model has only {positions} learned positions "
            "(model.max_position_embeddings); lower max_length"
        )


def make_model(
    settings: ModelSettings,
    hardware: HardwareSettings,
    config: VaswaniTransformerConfig,
    device: torch.device,
    seed: int,
    mean_length: float,
) -> tuple[VaswaniTransformerForConditionalGeneration, dict[str, Any]]:
    """Create the model with random weights, or with those of initial_weights, which must have the same shapes.

    mean_length: mean sentence length in tokens
    Returns the model and the choices made for this device.
    """
    precision = machine.set_up_process(hardware.matmul_precision, device)
    attention = machine.choose_attention(hardware.attention, device, mean_length)
    config._attn_implementation = attention
    machine.seed_torch(seed)
    try:
        model = VaswaniTransformerForConditionalGeneration(config)
    except ImportError as error:
        raise UnavailableError(f"attention: {attention} is not installed; use --attention sdpa") from error
    if settings.initial_weights is not None:
        folder = find_folder(settings.initial_weights)
        verify_manifest(folder)
        try:
            restore_model(model, folder)
        except BrokenFileError as error:
            raise InputError(f"initial_weights: {error}; --model '{{}}' keeps the sizes of these weights") from error
        bias = model.lm_head.bias
        if bias is not None and set(bias.tolist()) == {0.0, NEVER}:
            # A conversion added it to exclude tokens that the toolkit lacks. Most toolkits also lack such a bias, and a
            # model with a trained one could not be converted back.
            bias.register_hook(torch.zeros_like)
        source = ModelFolder(folder)
        if source.generation_config:
            model.generation_config = load_generation_config(source)
    if settings.length_penalty is not None:
        model.generation_config.length_penalty = settings.length_penalty
    if hardware.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if device.type == "cpu":
        use_byte_dropout(model)
    return model, {"matmul_precision": precision, "attention": attention}


def initial_weights_sha256(settings: ModelSettings) -> dict[str, str]:
    """Return the hash of the weights to start from, by name; {} if there are none."""
    if settings.initial_weights is None:
        return {}
    return {"initial_weights sha256": hash_weights(find_folder(settings.initial_weights))}


def record_trained_length(
    model: VaswaniTransformerForConditionalGeneration, lengths: npt.NDArray[np.integer[Any]]
) -> None:
    """Record the length of source that the model has learned, in tokens: translators split longer sentences.

    It is the 99th percentile: a model translates the few longest sentences of its training text badly. A fine-tuned
    model keeps the length of its earlier training if that is longer.

    lengths: of the source sentences
    """
    generation_config: Any = model.generation_config
    before_tuning = getattr(generation_config, "max_source_length", None) or 0
    length = int(np.percentile(lengths, 99, method="higher"))
    generation_config.max_source_length = max(before_tuning, length)


# ---- dropout on a CPU --------------------------------------------------------------------------------------------


class ByteDropout(nn.Dropout):
    """Dropout whose mask takes one random byte per element; the rate is rounded to 1/256.

    torch's CPU dropout draws a double per element, which takes longer than the matrix products of a small model.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        kept = 256 - round(self.p * 256)
        if not self.training or kept == 256:
            return input
        if kept == 0 or torch.compiler.is_compiling():  # a rate above 0.998; the compiler fuses torch's own
            return super().forward(input)
        return _ByteDropout.apply(input, kept)  # type: ignore[no-any-return]


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, kept):
        words = torch.empty((input.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        random = words.view(torch.uint8)[: input.numel()].view(input.shape)
        # uint8, because torch multiplies by bool four times more slowly.
        mask = torch.lt(random, kept, out=random)
        ctx.save_for_backward(mask)
        ctx.scale = 256 / kept
        return (input * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, *gradients):
        (mask,) = ctx.saved_tensors
        return (gradients[0] * mask).mul_(ctx.scale), None


def use_byte_dropout(model: nn.Module) -> None:
    """Replace every nn.Dropout of the model. Saved weights stay the same."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, ByteDropout(child.p))


# ---- the network -------------------------------------------------------------------------------------------------


class Network:
    """The model with its loss and optimizer, on the processes of a run.

    module: the model and its loss, inside DDP or FSDP if there are several processes
    """

    def __init__(
        self,
        model: VaswaniTransformerForConditionalGeneration,
        settings: OptimizerSettings,
        accelerator: Accelerator,
        shard_weights: bool = False,
    ):
        """shard_weights: use FSDP instead of DDP"""
        self.model, self.accelerator = model, accelerator
        module = TrainingLoss(model, settings.label_smoothing)
        if shard_weights:
            fsdp.shard(module, accelerator.device, accelerator.num_processes)
        # Section 5.3: Adam with beta1 0.9, beta2 0.98, epsilon 1e-9.
        optimizer = torch.optim.Adam(
            model.parameters(),
            lr=0.0,  # set before every step
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_epsilon,
            fused=accelerator.device.type in ("cpu", "cuda"),
        )
        # evaluation_mode: Accelerate leaves out DDP but keeps the autocast of mixed precision.
        self.module: nn.Module = accelerator.prepare_model(module, not shard_weights, evaluation_mode=shard_weights)
        self.optimizer = cast(AcceleratedOptimizer, accelerator.prepare_optimizer(optimizer))

    def unsharded_model(self) -> VaswaniTransformerForConditionalGeneration:
        """Return a model to translate with; with FSDP, a copy on the main process, gathered from all processes."""
        if not fsdp.is_sharded(self.module):
            return self.model
        main = self.accelerator.is_main_process
        weights = cpu_copies(dict(self.model.named_parameters()), keep=main)
        if not main:
            return self.model
        model = VaswaniTransformerForConditionalGeneration(self.model.config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
        model.generation_config = self.model.generation_config
        return model.to(self.accelerator.device).eval()

    def release(self) -> None:
        """Free the module before the process group is destroyed.

        DDP holds a reference to the group. If it held the last one, Python would free the group while holding the GIL
        and wait forever for a gloo thread that needs it.
        """
        self.accelerator.free_memory()
        del self.module, self.optimizer
        gc.collect()
