"""A damaged model folder is translated with, exported and published, or refused in one line; never anything else."""

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from damage import spoil_bytes, spoil_content
from saved_model import ENGLISH

from hub.__main__ import repository_files
from vaswani_transformer import OnnxTranslator, TorchTranslator
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError

SEARCH: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 12}
RECORDS = {
    "run.json": {"command": "train", "recipe": {"data": "text", "train": ["train"]}, "fixed_keys": {"seed": 1}},
    "conversion.json": {"toolkit": "fairseq", "checkpoint": "model.pt"},
}
LONGEST = 10  # seconds


def uses(folder: Path) -> dict[str, Any]:
    """Return what each use of the folder gives, or the error with which it refuses it."""
    calls = {
        "torch": lambda: TorchTranslator.from_pretrained(folder, device="cpu").translate(ENGLISH[:2], **SEARCH),
        "onnx": lambda: OnnxTranslator.from_pretrained(folder, device="cpu").translate(ENGLISH[:2], **SEARCH),
        "push": lambda: {
            name: content if isinstance(content, bytes) else content.sha256
            for name, content in repository_files(
                folder, "me/model", onnx=[], results=[], stated={"license": "mit"}, example=None, pictures=False
            ).items()
        },
    }
    found: dict[str, Any] = {}
    for name, call in calls.items():
        began = time.monotonic()
        try:
            found[name] = call()
        except (InputError, BrokenFileError, UnavailableError) as error:
            found[name] = error
            assert str(error) and "\n" not in str(error)
        assert time.monotonic() - began < LONGEST, name
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 3000), marks=pytest.mark.slow)])
def test_damaged_folders_are_used_or_refused(seeds: range, exported: Path, tmp_path: Path, capfd) -> None:
    whole = shutil.copytree(exported / "model", tmp_path / "whole")
    shutil.copytree(exported / "onnx", whole / "onnx")
    for name, content in RECORDS.items():
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
        (whole / name).write_text(json.dumps(content))
    (whole / "metrics.jsonl").write_text('{"step": 9, "seconds": 6.0, "tokens": 5, "loss": 4.0}\n' * 3)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.suffix != ".py")
    expected = uses(whole)
    assert not [error for error in expected.values() if isinstance(error, Exception)]
    refusals = 0
    for seed in seeds:
        chance = random.Random(seed)
        folder = shutil.copytree(whole, tmp_path / "model")
        file, spoil = chance.choice(files), chance.choice([spoil_bytes, spoil_content])
        try:
            spoil(folder / file, chance)
        except ValueError:  # metrics.jsonl is no JSON file
            continue
        found = uses(folder)
        refusals += any(isinstance(result, Exception) for result in found.values())
        assert "panicked" not in capfd.readouterr().err, f"seed {seed}: {file}"
        # export.json has their hashes; torch alone reads no hash
        if file.suffix in (".safetensors", ".onnx") or str(file) == "onnx/tokenizer.json":
            for name in ("onnx", "push"):
                assert isinstance(found[name], Exception) or found[name] == expected[name], f"seed {seed}: {name}"
        shutil.rmtree(folder)
    assert 0 < refusals < len(seeds)
