"""Whatever a checkpoint's files hold, converting ends with a model or with one line, and leaves nothing half written.

Bytes are cut, turned over and moved; options and tensors inside pickles, YAML and JSON get values of every other kind.
"""

import contextlib
import io
import json
import pickle
import random
import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from golden import FIXTURES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conversion.__main__ import main
from conversion.unpickle import load_checkpoint

NOT_READ = {"expected.npz", "printed.npz", "inputs.txt", "beams.jsonl", "README.md", "version", "args.yaml"}
FOLDERS = sorted(
    file.parent
    for root in (FIXTURES, FIXTURES / "variants")
    for file in root.glob("*/*")
    if file.stem in ("expected", "printed")
)
STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    3,
    10**5,
    10**9,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "transformer",
    "ä" * 300,
    [],
    [None],
    {},
    {"a": {"b": []}},
    [[[[[]]]]],
]


def outcome(folder: Path) -> None:
    """Convert a copy that has been spoilt. It may succeed; if not, one line must say why."""
    out, printed = folder.parent / "out", io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            main([str(folder), str(out)])
    except SystemExit as stop:
        message = printed.getvalue()
        assert stop.code in (2, 3), message
        assert message.startswith("error: ") and message.count("\n") == 1, message
        assert len(message) < 20_000
        assert [path.name for path in folder.parent.iterdir()] == [folder.name], message


def spoil_bytes(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    kind = chance.choice(["cut", "turn", "zeros", "insert", "move"])
    place = chance.randrange(min(len(data), chance.choice([100, 3000, 10**9])) or 1)
    if kind == "cut":
        del data[place:]
    elif kind == "turn":
        data[place : place + 1] = bytes([chance.randrange(256)])
    elif kind == "zeros":
        length = chance.choice([1, 8, 200])
        data[place : place + length] = b"\0" * length
    elif kind == "insert":
        data[place:place] = chance.randbytes(chance.choice([1, 5, 50]))
    else:
        data = data[place:] + data[:place]
    file.write_bytes(bytes(data))


def strange_tensor(tensor: torch.Tensor, chance: random.Random) -> Any:
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
    """The nested content with one value, somewhere, of another kind, or gone."""
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
    if file.suffix == ".json":
        file.write_text(json.dumps(spoil_value(json.loads(file.read_text()), chance)))
    elif file.suffix in (".yml", ".yaml"):
        file.write_text(yaml.safe_dump(spoil_value(yaml.safe_load(file.read_text()), chance)))
    elif file.suffix == ".npz":
        with np.load(file) as archive:
            arrays: dict[str, Any] = dict(archive)
        options = yaml.safe_load(arrays["special:model.yml"].tobytes().split(b"\0")[0])
        text = yaml.safe_dump(spoil_value(options, chance)).encode()
        arrays["special:model.yml"] = np.frombuffer(text, dtype=np.int8)
        np.savez(file, allow_pickle=False, **arrays)
    elif file.suffix in (".pt", ".ckpt", ".best"):
        content = load_checkpoint(file)
        spoilt = file.with_suffix(".spoilt")
        try:
            torch.save(spoil_value(content, chance), spoilt)
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):  # shells and sparse tensors
            shutil.copyfile(file, spoilt)
        spoilt.replace(file)


def spoil_and_convert(seed: int, spoil: Callable[[Path, random.Random], None]) -> None:
    chance = random.Random(seed)
    original = chance.choice(FOLDERS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(original, Path(place) / "checkpoint"))
        files = sorted(file for file in folder.iterdir() if file.name not in NOT_READ)
        spoil(chance.choice(files), chance)
        outcome(folder)


# torch and numpy warn of what they are handed; what counts is what a user sees.
pytestmark = [pytest.mark.filterwarnings("ignore")]
SETTINGS: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=30, **SETTINGS)
@given(seed=st.integers(0, 2**32))
def test_spoilt_bytes_end_in_a_model_or_in_one_line(seed: int):
    spoil_and_convert(seed, spoil_bytes)


@settings(max_examples=30, **SETTINGS)
@given(seed=st.integers(0, 2**32))
def test_strange_values_end_in_a_model_or_in_one_line(seed: int):
    spoil_and_convert(seed, spoil_content)


@pytest.mark.slow
@settings(max_examples=800, **SETTINGS)
@given(seed=st.integers(0, 2**32))
def test_spoilt_bytes_end_in_a_model_or_in_one_line_at_length(seed: int):
    spoil_and_convert(seed, spoil_bytes)


@pytest.mark.slow
@settings(max_examples=800, **SETTINGS)
@given(seed=st.integers(0, 2**32))
def test_strange_values_end_in_a_model_or_in_one_line_at_length(seed: int):
    spoil_and_convert(seed, spoil_content)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> Callable[[Path], str]:
    def refuse(path: Path) -> str:
        with pytest.raises(SystemExit) as stop:
            main([str(path), str(tmp_path / "out")])
        assert stop.value.code in (2, 3) and not (tmp_path / "out").exists()
        return capsys.readouterr().err

    return refuse


@pytest.mark.parametrize("name", ["model.npz", "model.pt"])
def test_a_file_that_would_unpack_to_gigabytes_is_refused(name: str, tmp_path: Path, refused):
    with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in ("special:model.yml.npy", "model/data.pkl"):
            with archive.open(part, "w", force_zip64=True) as stream:
                for _ in range(64):
                    stream.write(bytes(1 << 20))
    assert (tmp_path / name).stat().st_size < 1 << 20
    assert "would unpack to" in refused(tmp_path / name)


def test_a_shape_that_no_memory_holds_is_refused(tmp_path: Path, refused):
    """The header of an array says 10^15 numbers; the file ends after it."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 1000000), }"
    header = header.ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("Wemb.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    assert "model.npz is not a complete .npz file" in refused(tmp_path / "model.npz")


def test_a_tensor_larger_than_its_file_is_refused(tmp_path: Path, refused):
    folder = Path(shutil.copytree(FIXTURES / "variants" / "fairseq-untied", tmp_path / "checkpoint"))
    content = load_checkpoint(folder / "checkpoint_best.pt")
    content["model"]["encoder.embed_tokens.weight"] = torch.ones(1).expand(10**9, 8)
    torch.save(content, tmp_path / "spoilt.pt")
    (tmp_path / "spoilt.pt").replace(folder / "checkpoint_best.pt")
    message = refused(folder)
    assert "tensor encoder.embed_tokens.weight is of shape (1000000000, 8), more than its file holds" in message


def test_a_joeynmt_model_that_leaves_layer_norm_out_has_the_toolkit_s_defaults(tmp_path: Path, refused):
    """JoeyNMT 2.3, encoders.py line 208 and decoders.py line 537: pre in the encoder, post in the decoder."""
    folder = Path(shutil.copytree(FIXTURES / "variants" / "joeynmt-post", tmp_path / "checkpoint"))
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(re.sub(r"\n +layer_norm: \w+", "", text))
    assert "encoder.layer_norm: 'pre' and decoder.layer_norm: 'post' differ" in refused(folder)


def test_yaml_that_grows_without_end_stays_a_short_message(tmp_path: Path, refused):
    """Each line refers to the one before nine times: written out, the last has 10^9 words."""
    folder = Path(shutil.copytree(FIXTURES / "variants" / "joeynmt-post", tmp_path / "checkpoint"))
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
    text = "\n".join(lines) + "\nmodel: {encoder: {type: *a9, num_layers: *a9}, decoder: {type: *a9}}\n"
    (folder / "config.yaml").write_text(text)
    message = refused(folder)
    assert "encoder.type: " in message and len(message) < 5000
