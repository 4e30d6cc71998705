"""A model's folder -> the files of its repository, checked: weights, configuration, code, tokenizers, ONNX.

Names are those in the repository; a file is a path on this disk, or bytes where it is written here. Whatever else the
folder holds (checkpoints, the tokenised corpus, logs) stays where it is.
"""

import fnmatch
import json
import math
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

import vaswani_transformer
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.loading import INDEX, PICKLES, WEIGHTS, enumerated, load_config, tensor_shapes, weight_files
from vaswani_transformer.model_folder import read_json_object
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.translator import Translator

Files = dict[str, Path | bytes]

CODE = (
    "configuration_vaswani_transformer.py",
    "modeling_vaswani_transformer.py",
    "pipeline_vaswani_transformer.py",
    "text_vaswani_transformer.py",
)
# transformers' own registration writes the entry of the saved class alone, and AutoModel then fails.
AUTO_MAP = {
    "AutoConfig": "configuration_vaswani_transformer.VaswaniTransformerConfig",
    "AutoModel": "modeling_vaswani_transformer.VaswaniTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_vaswani_transformer.VaswaniTransformerForConditionalGeneration",
}
CUSTOM_PIPELINES = {
    "translation": {
        "impl": "pipeline_vaswani_transformer.VaswaniTransformerTranslationPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
        "type": "text",
    }
}
PICKLE_NAMES = (*PICKLES, "*.pickle", "*.joblib", "*.dill")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
ONNX = "onnx"  # where transformers.js and Optimum look
ONNX_FILES = ("*.onnx", "*.onnx_data", "*.onnx.data", "*.json", "README.md")
# What a push writes; of these names, a file that a later push does not write is deleted.
OURS = (
    "README.md",
    "config.json",
    "generation_config.json",
    "*.safetensors",
    INDEX,
    *CODE,
    *TOKENIZER_FILES,
    f"{TARGET_TOKENIZER}/*",
    f"{ONNX}/*",
    f"{ONNX}/{TARGET_TOKENIZER}/*",
    "attention.png",
    "training_curve.png",
)

# Entries of config.json that say nothing about the model itself.
NOT_THE_MODELS = {"transformers_version", "architectures", "auto_map", "custom_pipelines", "dtype"}
ACCESS_TOKEN = re.compile(rb"\bhf_[A-Za-z0-9]{16,}")
TEXT = (".json", ".md", ".py")


def model_files(folder: Path, onnx: Path | None = None) -> tuple[Files, Translator]:
    """The files of the repository without its card and pictures, and the model itself, on the CPU.

    onnx: a folder that `export onnx` wrote; None for `onnx` in the model's folder, where there is one
    Raises InputError for a folder that holds no model, or pickles; BrokenFileError naming the file, the field or the
    tensor that is wrong: a weight that is no finite number among them.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no model: there is no config.json in it")
    refuse_pickles(folder)
    load_config(folder)
    for file in weight_files(folder):
        refuse_weights_that_are_not_finite(file)
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder} has no tokenizer.json; a model that is published needs its tokenizer")
    translator = Translator.from_pretrained(folder, device="cpu")

    files: Files = {"config.json": json_bytes(config_for_the_hub(folder))}
    if (folder / "generation_config.json").is_file():
        files["generation_config.json"] = folder / "generation_config.json"
    else:
        files["generation_config.json"] = translator.model.generation_config.to_json_string().encode()
    for file in weight_files(folder):
        files[file.relative_to(folder).as_posix()] = file
    if WEIGHTS not in files:
        files[INDEX] = folder / INDEX
    for name in CODE:
        files[name] = Path(vaswani_transformer.__file__).parent / name
    for name in TOKENIZER_FILES:
        files[name] = folder / name
        if (folder / TARGET_TOKENIZER).is_dir():
            files[f"{TARGET_TOKENIZER}/{name}"] = folder / TARGET_TOKENIZER / name
    files |= onnx_files(folder, onnx)
    return files, translator


def refuse_pickles(folder: Path) -> None:
    """Raises InputError naming the files, wherever they lie in the folder and whatever they are called."""
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if is_pickle(path))
    if found:
        raise InputError(
            f"{folder} holds pickles ({enumerated(found)}), which can run any code when they are opened; "
            "move them elsewhere: safetensors alone are published"
        )


def is_pickle(path: Path) -> bool:
    """By its name, or by its content: protocol 2 and later, bare or in the archive that torch.save writes."""
    if not path.is_file():
        return False
    if any(fnmatch.fnmatchcase(path.name.lower(), pattern) for pattern in PICKLE_NAMES):
        return True
    with path.open("rb") as stream:
        start = stream.read(2)
        if start == b"PK":
            try:
                with zipfile.ZipFile(path) as archive:
                    return any(name.endswith(".pkl") for name in archive.namelist())
            except (zipfile.BadZipFile, NotImplementedError, ValueError):
                return False
        if start[:1] != b"\x80" or start[1:2] not in b"\x02\x03\x04\x05":
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"."  # STOP


def refuse_weights_that_are_not_finite(file: Path) -> None:
    """Raises BrokenFileError naming the first tensor with a NaN or an infinity, or a file that is not whole."""
    names = tensor_shapes(file)
    with safe_open(file, framework="pt") as tensors:
        for name in names:
            tensor = tensors.get_tensor(name)
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                wrong = tensor[~torch.isfinite(tensor)].flatten()
                kind = "NaN" if math.isnan(wrong[0]) else "infinity"
                raise BrokenFileError(
                    f"{file}: {name} has {kind} among its weights ({wrong.numel():,} of {tensor.numel():,} are not "
                    "finite); take an earlier checkpoint"
                )


def config_for_the_hub(folder: Path) -> dict[str, Any]:
    """config.json with what lets a process without the package find the code."""
    config = read_json_object(folder / "config.json")
    config.pop("_name_or_path", None)
    return config | {
        "architectures": ["VaswaniTransformerForConditionalGeneration"],
        "auto_map": AUTO_MAP,
        "custom_pipelines": CUSTOM_PIPELINES,
    }


def onnx_files(folder: Path, onnx: Path | None) -> Files:
    """The exported model, under `onnx/`. Raises InputError if it is another model's."""
    if onnx is None:
        onnx = folder / ONNX
        if not onnx.is_dir():
            return {}
    if not onnx.is_dir():
        raise InputError(f"--onnx {onnx}: there is no such folder")
    refuse_pickles(onnx)
    if not any(onnx.glob("*.onnx")):
        raise InputError(f"{onnx} holds no .onnx file; `vaswani-transformer export onnx` writes one")
    if (onnx / "config.json").is_file():
        ours, theirs = load_config(folder).to_dict(), load_config(onnx).to_dict()
        different = sorted(key for key in ours if key not in NOT_THE_MODELS and ours[key] != theirs.get(key))
        if different:
            raise InputError(
                f"{onnx / 'config.json'} is not this model's: {enumerated(different)} differ from "
                f"{folder / 'config.json'}; export the model again"
            )
    if (onnx / "tokenizer.json").is_file() and (
        (onnx / "tokenizer.json").read_bytes() != (folder / "tokenizer.json").read_bytes()
    ):
        raise InputError(f"{onnx / 'tokenizer.json'} is not this model's; export the model again")
    found = sorted({path for pattern in ONNX_FILES for path in onnx.glob(pattern)})
    files: Files = {f"{ONNX}/{path.name}": path for path in found}
    if (onnx / TARGET_TOKENIZER).is_dir():
        files |= {f"{ONNX}/{TARGET_TOKENIZER}/{name}": onnx / TARGET_TOKENIZER / name for name in TOKENIZER_FILES}
    return files


def refuse_secrets(files: Files) -> None:
    """Raises InputError naming a text file in which an access token of the Hub stands."""
    for name, content in files.items():
        if name.endswith(TEXT):
            text = content if isinstance(content, bytes) else content.read_bytes()
            if ACCESS_TOKEN.search(text):
                raise InputError(f"{name} holds an access token of the Hub (hf_...); nobody but you should have it")


def left_behind(folder: Path, files: Files) -> list[str]:
    """What lies in the folder and is not published, by its name there."""
    taken = {name.split("/")[0] for name in files}
    names = (path.name + ("/" if path.is_dir() else "") for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(name for name in names if name.rstrip("/") not in taken)


def json_bytes(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()
