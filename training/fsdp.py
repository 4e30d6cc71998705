"""FSDP: weights, gradients and Adam's moments split over the processes, for models that are large for one GPU.

`accelerate launch --config_file training/accelerate/fsdp.yaml` asks for it. Accelerate's own way forgets it where there
are no GPUs and saves weights in pieces; here torch's `fully_shard` is applied directly, the same on GPUs and CPUs, and
checkpoints hold whole tensors: a run may go on with or without FSDP.
"""

import os

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vaswani_transformer.errors import UnavailableError

from .loss import TrainingLoss

SWITCH = "ACCELERATE_USE_FSDP"
# What Accelerate's configuration can ask of FSDP and would change what a run needs or does.
NOT_DONE = {
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params is not offered; leave it out",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing is the recipe's gradient_checkpointing here",
}


def take_request() -> bool:
    """Whether Accelerate was configured for FSDP; from now on it does not know. Before an Accelerator is made.

    Raises UnavailableError for a setting that would otherwise be passed over in silence.
    """
    if os.environ.pop(SWITCH, "").lower() not in ("true", "1"):
        return False
    for variable, remedy in NOT_DONE.items():
        if os.environ.get(variable, "").lower() in ("true", "1"):
            raise UnavailableError(f"Accelerate's configuration: {remedy}")
    if (compiler := os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no")).lower() not in ("", "no"):
        raise UnavailableError(f"dynamo_backend {compiler} is not offered with FSDP; use --dynamo_backend no")
    return True


def split(module: TrainingLoss, device: torch.device, processes: int) -> None:
    """Split every parameter over the processes by rows: a layer is whole only while it computes.

    What lies outside the layers (the embeddings, which are the output matrix too) is whole from the start of a forward
    pass to the end of its backward pass. Gradients are the mean over processes, as with DDP.
    """
    mesh = init_device_mesh(device.type, (processes,))
    model = module.model.model
    for layer in (*model.encoder.layers, *model.decoder.layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)


def is_split(module: torch.nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def held(module: torch.nn.Module) -> int:
    """How many of the module's parameters lie in this process."""
    return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in module.parameters())


def sum_in_backward(module: torch.nn.Module, wanted: bool) -> None:
    """Whether the next backward pass sums over processes; until then each gathers its own gradients."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(wanted)


def split_again(module: torch.nn.Module) -> None:
    """After a forward pass without a backward pass, which leaves the outermost parameters whole."""
    if isinstance(module, FSDPModule):
        module.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that the processes hold in parts, on every process; each must ask. Any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A whole tensor on the parameter's device, split as it is: each process keeps its part, nothing is sent.

    A tensor without dimensions (Adam's count of steps) every process holds.
    """
    tensor = tensor.to(parameter.device)
    if not isinstance(parameter, DTensor) or tensor.dim() == 0:
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
