"""What the two toolkits of transformers share: a folder with config.json and weights, and the names of the layers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.model_folder import read_json_object

from ..rename import Rule, for_layers
from ..unpickle import load_checkpoint
from . import fairseq

SIZES = ("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
SIZES += ("encoder_ffn_dim", "decoder_ffn_dim")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def model_type_of(path: Path) -> str | None:
    """`model_type` in the config.json of a folder, or of the folder of a file."""
    file = path / "config.json" if path.is_dir() else path.with_name("config.json")
    if path.is_file() and path.name not in ("config.json", *WEIGHTS) or not file.exists():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return content.get("model_type") if isinstance(content, dict) else None


def load(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the weights beside it; a pickle's code never runs."""
    folder = path.parent
    options = read_json_object(folder / "config.json")
    for name in WEIGHTS:
        file = folder / name
        if not file.exists():
            continue
        if file.suffix == ".bin":
            tensors = load_checkpoint(file)
        else:
            tensors = load_safetensors(file)
        if not isinstance(tensors, dict) or not all(torch.is_tensor(tensor) for tensor in tensors.values()):
            raise BrokenFileError(f"{file} does not hold tensors alone")
        return options, tensors
    raise InputError(f"{folder}: there are no weights in it ({' or '.join(WEIGHTS)})")


def load_safetensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file. Raises BrokenFileError if it is not whole."""
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise BrokenFileError(f"{file} is not a whole safetensors file ({error}); copy it again") from None


def rules(encoder_layers: int, decoder_layers: int) -> list[Rule]:
    """fairseq's names behind `model.`."""
    layers = for_layers(fairseq.ENCODER_LAYER, encoder_layers) + for_layers(fairseq.DECODER_LAYER, decoder_layers)
    return [replace(rule, theirs="model." + rule.theirs) for rule in layers]


def sizes(options: dict[str, Any]) -> dict[str, Any]:
    """The fields that have the same names in the configuration of ours."""
    rates = {name: float(options.get(name, 0.0)) for name in ("dropout", "attention_dropout", "activation_dropout")}
    return {name: options.get(name) for name in SIZES} | rates


def is_table(table: Tensor, expected: Tensor) -> bool:
    """Whether a saved table of positions is the one of the formula, up to the rounding of float32."""
    return table.shape == expected.shape and bool(torch.allclose(table.double(), expected, atol=1e-3, rtol=0))


def activation(name: str) -> str:
    return "silu" if name == "swish" else name
