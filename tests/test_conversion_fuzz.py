"""Converting a damaged checkpoint ends with a model or with a one-line error, and leaves nothing half written.

Bytes are cut, changed and moved; options and tensors inside pickles, YAML and JSON get values of every other kind.
"""

import contextlib
import io
import json
import pickle
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from golden import FIXTURES, change_marians_options

from conversion.__main__ import main
from conversion.checkpoint_files import load_checkpoint

NOT_READ = {"expected.npz", "printed.npz", "inputs.txt", "beams.jsonl", "README.md", "version", "args.yaml"}
FOLDERS = sorted(
    file.parent
    for root in (FIXTURES, FIXTURES / "variants")
    for file in root.glob("*/*")
    if file.stem in ("expected", "printed")
)
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


# torch and numpy warn about damaged content; this test checks only the result.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 1600), marks=pytest.mark.slow)])
def test_damaged_checkpoints_convert_or_are_refused(seeds: range):
    refusals = 0
    for seed in seeds:
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(shutil.copytree(chance.choice(FOLDERS), Path(place) / "checkpoint"))
            file = chance.choice(sorted(file for file in folder.iterdir() if file.name not in NOT_READ))
            chance.choice([spoil_bytes, spoil_content])(file, chance)
            printed = io.StringIO()
            try:
                with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
                    main([str(folder), str(folder.parent / "out")])
            except SystemExit as stop:
                refusals += 1
                message = f"seed {seed}: {printed.getvalue()}"
                assert stop.code in (2, 3) or (stop.code == 1 and "log-probabilities differ" in message), message
                assert printed.getvalue().startswith("error: ") and message.count("\n") == 1, message
                assert len(message) < 20_000
                assert [path.name for path in folder.parent.iterdir()] == [folder.name], message
    assert 0 < refusals < len(seeds)
