"""The files of a model's repository: weights, configuration, code, tokenizers, ONNX.

A file is a path on disk, or bytes if it is written here; its key is its name in the repository. Everything else in the
folder (checkpoints, the tokenised corpus, logs) is left behind.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vaswani_transformer
from vaswani_transformer.configuration_vaswani_transformer import AUTO_MAP, CUSTOM_PIPELINES
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import enumerated, load_config, weight_files
from vaswani_transformer.model_folder import INDEX, ONNX, WEIGHTS, read_json_object
from vaswani_transformer.onnx_translator import graph_name
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.translator import Translator

from .safety import refuse_links_outside, refuse_pickles

Files = dict[str, Path | bytes]

CODE = (
    "configuration_vaswani_transformer.py",
    "modeling_vaswani_transformer.py",
    "pipeline_vaswani_transformer.py",
    "text_vaswani_transformer.py",
)
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = ("tokenizer.json", TOKENIZER_CONFIG)
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    INDEX,
    *TOKENIZER_FILES,
    f"{TARGET_TOKENIZER}/*",
)
ONNX_FILES = ("*.onnx", "*.onnx_data", "*.onnx.data", "*.json", "README.md")
# The names that pushes write. A push deletes files with these names that it does not write again.
PUBLISHED_NAMES = (
    "README.md",
    *MODEL_FILES,
    *CODE,
    f"{ONNX}/*",
    f"{ONNX}/{TARGET_TOKENIZER}/*",
    "attention.png",
    "training_curve.png",
)
# Fields of config.json that may differ between a model and its export.
METADATA_FIELDS = {"transformers_version", "architectures", "auto_map", "custom_pipelines", "dtype"}


def model_files(folder: Path, onnx: Sequence[str] = ()) -> tuple[Files, Translator]:
    """Return the repository's files except card and pictures, and the model itself, on the CPU.

    onnx: folders of the exported model, each with its precision (int8=FOLDER) if it is a variant; `onnx` in the model's
        folder, if it exists, takes the place of a folder without a precision
    Raises InputError, BrokenFileError naming the file, the field or the tensor that is wrong.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} contains no model: there is no config.json in it")
    refuse_links_outside(folder, MODEL_FILES)
    load_config(folder)
    weights = weight_files(folder)
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder} has no tokenizer.json; a published model needs its tokenizer")
    translator = Translator.from_pretrained(folder, device="cpu")

    files: Files = {"config.json": json_bytes(config_for_the_hub(folder))}
    if (folder / "generation_config.json").is_file():
        files["generation_config.json"] = folder / "generation_config.json"
    else:
        files["generation_config.json"] = translator.model.generation_config.to_json_string().encode()
    files |= {file.relative_to(folder).as_posix(): file for file in weights}
    if WEIGHTS not in files:
        files[INDEX] = folder / INDEX
    files |= {name: Path(vaswani_transformer.__file__).parent / name for name in CODE}
    files |= tokenizer_files(folder)
    if (folder / TARGET_TOKENIZER).is_dir():
        files |= {
            f"{TARGET_TOKENIZER}/{name}": file for name, file in tokenizer_files(folder / TARGET_TOKENIZER).items()
        }
    plain = [option for option in onnx if "=" not in option]
    if not plain and (folder / ONNX).is_dir():
        refuse_links_outside(folder, [f"{ONNX}/{pattern}" for pattern in ONNX_FILES])
        plain = [str(folder / ONNX)]
    for exported in plain:
        files |= onnx_files(folder, Path(exported))
    for precision, _, exported in (option.partition("=") for option in onnx if "=" in option):
        files = onnx_files(folder, Path(exported), precision) | files
    return files, translator


def config_for_the_hub(folder: Path) -> dict[str, Any]:
    """Return config.json with the entries that let transformers find the code without this package."""
    config = read_json_object(folder / "config.json")
    config.pop("_name_or_path", None)
    return config | {
        "architectures": ["VaswaniTransformerForConditionalGeneration"],
        "auto_map": AUTO_MAP,
        "custom_pipelines": CUSTOM_PIPELINES,
    }


def tokenizer_files(folder: Path) -> Files:
    """Return a tokenizer's files, under the class name that transformers 4 and transformers.js know as well."""
    settings = read_json_object(folder / TOKENIZER_CONFIG) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    return {"tokenizer.json": folder / "tokenizer.json", TOKENIZER_CONFIG: json_bytes(settings)}


def onnx_files(folder: Path, onnx: Path, precision: str | None = None) -> Files:
    """Return the exported model's files, under `onnx/`. Raises InputError if it is another model's.

    precision: that of a variant, whose model.onnx is published as model_PRECISION.onnx; its README.md is not
    """
    graph = graph_name(precision)
    if not onnx.is_dir():
        raise InputError(f"--onnx {onnx}: no such folder")
    refuse_links_outside(onnx, (*ONNX_FILES, f"{TARGET_TOKENIZER}/*"))
    if not any(onnx.glob("*.onnx")):
        raise InputError(f"{onnx} contains no .onnx file; `vaswani-transformer export onnx` writes one")
    check_same_model(folder, onnx)
    paths = sorted({path for pattern in ONNX_FILES for path in onnx.glob(pattern)})
    refuse_pickles(paths)
    files: Files = {path.name: path for path in paths}
    if precision is not None:
        if "model.onnx" not in files or "model.onnx.data" in files:
            raise InputError(f"--onnx {precision}={onnx}: a variant is one file, model.onnx, without model.onnx.data")
        files = {name: file for name, file in files.items() if name.endswith(".json")} | {graph: onnx / "model.onnx"}
    if TOKENIZER_CONFIG in files:
        files[TOKENIZER_CONFIG] = tokenizer_files(onnx)[TOKENIZER_CONFIG]
    if (onnx / TARGET_TOKENIZER).is_dir():
        files |= {f"{TARGET_TOKENIZER}/{name}": file for name, file in tokenizer_files(onnx / TARGET_TOKENIZER).items()}
    return {f"{ONNX}/{name}": file for name, file in files.items()}


def check_same_model(folder: Path, onnx: Path) -> None:
    """Raise InputError if configuration or tokenizer of the exported model are not those of the model."""
    if (onnx / "config.json").is_file():
        config, exported = load_config(folder).to_dict(), load_config(onnx).to_dict()
        names = config.keys() - METADATA_FIELDS
        different = sorted(name for name in names if config[name] != exported.get(name))
        if different:
            raise InputError(
                f"{onnx / 'config.json'} is another model's: {enumerated(different)} differ from "
                f"{folder / 'config.json'}; export the model again"
            )
    tokenizers = [place / "tokenizer.json" for place in (folder, onnx)]
    if tokenizers[1].is_file() and tokenizers[0].read_bytes() != tokenizers[1].read_bytes():
        raise InputError(f"{tokenizers[1]} differs from {tokenizers[0]}; export the model again")


def left_behind(folder: Path, files: Files) -> list[str]:
    """Return the names of files in the folder that are not published."""
    published = {name.split("/")[0] for name in files}
    names = (path.name + ("/" if path.is_dir() else "") for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(name for name in names if name.rstrip("/") not in published)


def json_bytes(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()
