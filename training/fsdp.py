"""FSDP: weights, gradients and Adam's moments sharded over the processes, for models too large for one GPU.

`accelerate launch --config_file training/accelerate/fsdp.yaml` requests it. Accelerate's own FSDP is inactive without
GPUs and saves sharded weights. Here torch's `fully_shard` is applied directly, on GPUs and CPUs alike, and checkpoints
hold unsharded tensors, so that a run can be resumed with or without FSDP.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from accelerate import Accelerator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vaswani_transformer.errors import UnavailableError

from .loss import TrainingLoss

UNSUPPORTED = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed is not supported; use training/accelerate/fsdp.yaml to shard the weights",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM is not supported; use training/accelerate/fsdp.yaml",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism_config is not supported; remove it",
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params is not supported; remove it",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing: use the recipe's gradient_checkpointing instead",
}


def pop_request() -> bool:
    """Return whether FSDP is configured, and hide the request from Accelerate. Call it before Accelerator().

    Raises UnavailableError for settings that would otherwise be ignored without a warning.
    """
    requested = os.environ.pop("ACCELERATE_USE_FSDP", "").lower() in ("true", "1")
    for variable, remedy in UNSUPPORTED.items():
        concerns_run = requested or not variable.startswith("FSDP_")
        if concerns_run and os.environ.get(variable, "").lower() in ("true", "1"):
            raise UnavailableError(f"Accelerate's configuration: {remedy}")
    if (steps := os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")) != "1":  # which divides the gradients
        raise UnavailableError(
            f"Accelerate's configuration: gradient_accumulation_steps is {steps}; remove it, and set the recipe's "
            "micro_batches, whose gradients are accumulated"
        )
    compiler = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no")
    if requested and compiler.lower() not in ("", "no"):
        raise UnavailableError(f"dynamo_backend {compiler} is not supported with FSDP; use --dynamo_backend no")
    return requested


def shard(module: TrainingLoss, device: torch.device, processes: int) -> None:
    """Shard every parameter over the processes by rows; each layer is gathered only while it computes.

    Parameters outside the layers (the embeddings, which are also the output matrix) stay gathered from the start of the
    forward pass to the end of the backward pass. Gradients are averaged over processes, as with DDP.
    """
    mesh = init_device_mesh(device.type, (processes,))
    model = module.model.model
    for layer in (*model.encoder.layers, *model.decoder.layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)


def is_sharded(module: torch.nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def local_parameters(module: torch.nn.Module) -> int:
    """Return the number of parameters that this process holds."""
    return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in module.parameters())


@contextmanager
def accumulate(accelerator: Accelerator, module: torch.nn.Module, last: bool) -> Iterator[None]:
    """Accumulate the gradients of a backward pass locally; the last one of a step reduces them over processes."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    with nullcontext() if last else accelerator.no_sync(module):
        yield


def reshard(module: torch.nn.Module) -> None:
    """Free the outermost parameters, which a forward pass without a backward pass leaves gathered."""
    if isinstance(module, FSDPModule):
        module.reshard()


def unshard(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a sharded tensor; all processes must call this together. Plain tensors are returned unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Move a full tensor to the parameter's device and shard it in the same way, without communication.

    Scalars (Adam's step count) are replicated.
    """
    tensor = tensor.to(parameter.device)
    if not isinstance(parameter, DTensor) or tensor.dim() == 0:
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
