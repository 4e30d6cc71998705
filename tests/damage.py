"""Damages files: bytes are cut, changed and moved; values inside JSON, YAML and checkpoints get another kind."""

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from golden import change_marians_options

from conversion.checkpoint_files import load_checkpoint

STRANGE: list[Any] = [None, True, -1, 0, 1, 3, 10**5, 10**9, 10**30, 1.5, float("nan"), float("inf")]
STRANGE += ["", "transformer", "ä" * 300, [], [None], {}, {"a": {"b": []}}, [[[[[]]]]]]


def spoil_bytes(file: Path, chance: random.Random) -> None:
    """Cut the file, or change, insert or move some of its bytes."""
    data = file.read_bytes()
    place = chance.randrange(min(len(data), chance.choice([100, 3000, 10**9])) or 1)
    before, after, length = data[:place], data[place:], chance.choice([1, 8, 200])
    changed = before + chance.randbytes(1) + after[1:]
    zeros, inserted = before + bytes(length) + after[length:], before + chance.randbytes(length) + after
    file.write_bytes(chance.choice([before, changed, zeros, inserted, after + before]))


def strange_tensor(tensor: torch.Tensor, chance: random.Random) -> Any:
    """Return a value of another shape, type or layout. The forms are functions, because some of them are large."""
    forms: list[Callable[[], Any]] = [
        lambda: tensor.int(),
        lambda: tensor.half(),
        lambda: tensor.flatten()[:1].expand(10**6, 10**6),
        lambda: tensor.flatten(),
        lambda: tensor[:0],
        lambda: tensor * float("nan"),
        lambda: tensor.to_sparse(),
        lambda: torch.tensor(1.0),
        lambda: torch.complex(tensor.float(), tensor.float()),
        lambda: tensor.T.contiguous(),
        lambda: "a tensor",
        lambda: None,
    ]
    return chance.choice(forms)()


def spoil_value(content: Any, chance: random.Random) -> Any:
    """Return the nested content with one value removed or replaced by a value of another kind."""
    if isinstance(content, torch.Tensor):
        return strange_tensor(content, chance)
    inside = content if isinstance(content, dict) else getattr(content, "__dict__", None)
    if isinstance(inside, dict) and inside and chance.random() < 0.97:
        key = chance.choice(list(inside))
        if chance.random() < 0.1:
            del inside[key]
        else:
            inside[key] = spoil_value(inside[key], chance)
        return content
    if isinstance(content, list) and content and chance.random() < 0.7:
        place = chance.randrange(len(content))
        content[place] = spoil_value(content[place], chance)
        return content
    return chance.choice(STRANGE)


def spoil_content(file: Path, chance: random.Random) -> None:
    if file.suffix in (".json", ".yml", ".yaml"):
        load, dump = (json.loads, json.dumps) if file.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
        file.write_text(dump(spoil_value(load(file.read_text()), chance)))
    elif file.suffix == ".npz":
        change_marians_options(file, lambda options: spoil_value(options, chance))
    elif file.suffix in (".pt", ".ckpt", ".best"):
        content = load_checkpoint(file)
        spoilt = file.with_suffix(".spoilt")
        try:
            torch.save(spoil_value(content, chance), spoilt)
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):  # stubs and sparse tensors
            shutil.copyfile(file, spoilt)
        spoilt.replace(file)
