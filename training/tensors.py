"""Save and load weights and Adam's moments as safetensors, keyed by parameter name."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from vaswani_transformer.atomic import set_mode
from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.loading import load_tensors
from vaswani_transformer.model_folder import OPTIMIZER, WEIGHTS

from . import fsdp


def cpu_copies(tensors: Mapping[str, torch.Tensor], keep: bool = True) -> dict[str, torch.Tensor]:
    """Copy the tensors, unsharded, to CPU memory, so that training may change the originals.

    keep: False on processes that only contribute their shards (FSDP); returns {}
    """
    kept = {}
    for name, tensor in tensors.items():
        unsharded = fsdp.unshard(tensor.detach())  # one at a time, to save GPU memory
        if keep:
            kept[name] = unsharded.to("cpu", copy=True).contiguous()
    return kept


def not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Return the name of the first tensor with NaN or infinity, or None."""
    for name, tensor in tensors.items():
        if tensor.numel() and not all(math.isfinite(end) for end in tensor.aminmax()):
            return name
    return None


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's state as {"exp_avg/model.shared.weight": tensor, ...}."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{key}/{names[parameter]}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    # safetensors creates files that only their owner can read; the folder's mode follows the umask.
    set_mode(path, path.parent.stat().st_mode & 0o666)


def restore_model(model: torch.nn.Module, folder: Path) -> None:
    """Load a folder's weights into the model. Raises BrokenFileError unless names and shapes are the same."""
    parameters = dict(model.named_parameters())  # tied ones once, as in the file
    tensors = load_tensors(folder / WEIGHTS)
    _check_fit(folder / WEIGHTS, tensors, {name: parameter.shape for name, parameter in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(fsdp.shard_like(tensors[name], parameter))


def restore_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path, steps_taken: int) -> None:
    """Load a checkpoint's moments and step counts into the optimizer.

    steps_taken: those that the checkpoint's progress has counted. With 0, there may be no moments: with fp16, the first
        gradients may all be infinite
    Raises BrokenFileError unless the file fits the model and these steps.
    """
    path = folder / OPTIMIZER
    tensors = load_tensors(path)
    if not tensors and steps_taken == 0:
        return
    parameters = dict(model.named_parameters())
    keys = ("step", "exp_avg", "exp_avg_sq")
    _check_fit(
        path,
        tensors,
        {f"{key}/{name}": torch.Size() if key == "step" else p.shape for key in keys for name, p in parameters.items()},
    )
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise BrokenFileError(f"{path}: {name} is {tensor.dtype}; it must be torch.float32")
    for name in parameters:
        if (found := float(tensors[f"step/{name}"])) != steps_taken:
            raise BrokenFileError(
                f"{path}: step/{name} is {found:g}, but the checkpoint has taken {steps_taken} steps; the file belongs "
                "to another checkpoint"
            )
    for name, parameter in parameters.items():
        # Adam's step count moves to the device too, because the optimizer is fused.
        optimizer.state[parameter] = {key: fsdp.shard_like(tensors[f"{key}/{name}"], parameter) for key in keys}


def _check_fit(path: Path, tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Raise BrokenFileError unless the tensors of a file have these names and shapes."""
    missing, extra = sorted(shapes.keys() - tensors), sorted(tensors.keys() - shapes)
    if missing or extra:
        parts = [f"{verb} {', '.join(names[:5])}" for verb, names in (("lacks", missing), ("has", extra)) if names]
        raise BrokenFileError(f"{path} does not fit the model: it {' and '.join(parts)}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise BrokenFileError(f"{path}: {name} has shape {tuple(tensors[name].shape)}; it must be {tuple(shape)}")
        if not tensors[name].is_floating_point():
            raise BrokenFileError(f"{path}: {name} is {tensors[name].dtype}; it must be a floating-point type")
