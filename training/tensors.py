"""The weights and Adam's moments as safetensors files, by the names of the parameters."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vaswani_transformer.atomic import UMASK
from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.model_folder import OPTIMIZER, WEIGHTS

from . import fsdp


def copies(tensors: Mapping[str, torch.Tensor], keep: bool = True) -> dict[str, torch.Tensor]:
    """Copy the tensors, unsharded, to this process's memory, so that training may change the originals.

    keep: False on processes that only contribute their shards (FSDP); returns {}
    """
    kept = {}
    for name, tensor in tensors.items():
        unsharded = fsdp.unsharded(tensor.detach())  # one at a time: a GPU need not hold all of them
        if keep:
            kept[name] = unsharded.to("cpu", copy=True).contiguous()
    return kept


def not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Return the name of a tensor that contains NaN or infinity."""
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
    path.chmod(0o666 & ~UMASK)  # safetensors creates files that only their owner can read


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Load a safetensors file. Raises BrokenFileError that names it."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise BrokenFileError(f"{path} is not a complete safetensors file ({error})") from error


def restore_model(model: torch.nn.Module, folder: Path) -> None:
    """Load a folder's weights into the model. Raises BrokenFileError unless names and shapes are the same."""
    path = folder / WEIGHTS
    tensors = load_tensors(path)
    parameters = dict(model.named_parameters())  # tied ones once, as in the file
    _check_names(parameters, tensors, path)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{tuple(tensors[name].shape)}, must be {tuple(parameter.shape)}"
                raise BrokenFileError(f"{path}: {name} has shape {shapes}")
            parameter.copy_(fsdp.sharded_like(tensors[name], parameter))


def restore_optimizer(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path, stepped: bool = True
) -> None:
    """Load a checkpoint's moments and step counts into the optimizer.

    stepped: False if Adam had not taken a step (with fp16, the first gradients may all be infinite)
    """
    path = folder / OPTIMIZER
    tensors = load_tensors(path)
    if not tensors and not stepped:
        return
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parameters}
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        if name not in states:
            raise BrokenFileError(f"{path}: {full_name} belongs to no parameter of the model")
        # Adam's step count moves to the device too, because the optimizer is fused.
        shape = () if key == "step" else parameters[name].shape
        if tensor.shape != shape:
            raise BrokenFileError(f"{path}: {full_name} has shape {tuple(tensor.shape)}, must be {tuple(shape)}")
        states[name][key] = fsdp.sharded_like(tensor, parameters[name])
    _check_names([f"{key}/{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in parameters], tensors, path)
    for name, parameter in parameters.items():
        optimizer.state[parameter] = states[name]


def _check_names(expected: Iterable[str], found: Iterable[str], path: Path) -> None:
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or extra:
        parts = [f"{verb} {', '.join(names[:5])}" for verb, names in (("lacks", missing), ("has", extra)) if names]
        raise BrokenFileError(f"{path} does not fit the model: it {' and '.join(parts)}")
