"""Code shared by hf_marian.py and hf_fsmt.py. Both keep fairseq's tensor names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.model_folder import read_json_object

from ..checkpoint_files import load_checkpoint, required_file
from ..description import Description, Forward, forward_of, penalty_note
from ..options import RATES, Options
from ..reasons import Reasons
from ..rename import Rule, checked_tensors, stack_rules
from .fairseq import EPSILON, LAYER

SIZES = ("d_model", "{stack}_layers", "{stack}_attention_heads", "{stack}_ffn_dim")
OFF = "normalize_before normalize_embedding add_final_layer_norm quantization_config"
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "swish", "quick_gelu")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
PENALTY_NOTE = penalty_note("transformers", "log P / L^length_penalty")


def model_type_of(path: Path) -> str | None:
    """Return `model_type` from config.json, which is the path or next to it."""
    file = path.with_name("config.json")
    if path.name not in ("config.json", *WEIGHTS) or not file.exists():
        return None
    try:
        return read_json_object(file).get("model_type")
    except BrokenFileError:
        return None


def read_model(
    path: Path, reasons: Reasons, activation: str, **supported: tuple
) -> tuple[Options, dict[str, Tensor], dict[str, Any]]:
    """Return the options, the weights, and the fields of our configuration that both toolkits share.

    activation: the default of `activation_function`
    supported: the values that options must have
    """
    options = Options(read_json_object(path.with_name("config.json")), reasons)
    file = required_file(path.parent, *WEIGHTS)
    weights = load_checkpoint(file)
    options.require({"activation_function": ACTIVATIONS, **supported}, OFF)
    config = options.sizes(SIZES)
    reasons.raise_if_any()
    config |= options.rates(0.0, *RATES)
    name = options.get("activation_function", activation)
    config |= {"activation_function": "silu" if name == "swish" else name}
    return options, checked_tensors(weights, reasons), config | {"layer_norm_eps": EPSILON}


def layers(config: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of the layers: fairseq's names after `model.`."""
    return stack_rules(config, "model.{stack}.layers.{n}.", LAYER)


def reference(model_class: type[PreTrainedModel], description: Description) -> Forward:
    """Load the folder with transformers. model_class: the class of its model"""
    folder = description.path.parent
    return forward_of(model_class.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval())
