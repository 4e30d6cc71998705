"""Collects the files to publish: weights, configuration, code, tokenizers and ONNX exports.

`Files` maps a name in the repository to a local path, or to bytes generated here. Other files in the folder
(checkpoints, the tokenised corpus, logs) are not uploaded. Access tokens are refused, and ONNX files of another model
or of other weights, as after more training.
"""

import json
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import SpaceCard
from transformers import GenerationConfig

import vaswani_transformer
from vaswani_transformer.atomic import atomic_folder
from vaswani_transformer.configuration_vaswani_transformer import AUTO_MAP, CUSTOM_PIPELINES, VaswaniTransformerConfig
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import enumerate_names, load_config, weight_files
from vaswani_transformer.model_folder import (
    CODE_FILES,
    EXPORT_RECORD,
    INDEX,
    MODEL_FILES,
    ONNX,
    WEIGHTS,
    check_graph,
    check_inside,
    files_sha256,
    plain_tokenizer,
    read_config,
    read_json_object,
    read_tokenizer_settings,
)
from vaswani_transformer.onnx_translator import PRECISIONS, onnx_file_name
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.torch_translator import TorchTranslator

Files = dict[str, Path | bytes]

SPACE = Path(__file__).with_name("space")

ONNX_FILES = ("*.onnx", "*.onnx_data", "*.onnx.data", "README.md")
# Names of files that a push can write. A push deletes such files from the repository if it does not write them.
MANAGED_NAMES = (
    "README.md",
    *MODEL_FILES,
    *CODE_FILES,
    f"{ONNX}/*",
    f"{ONNX}/{TARGET_TOKENIZER}/*",
    "attention.png",
    "training_curve.png",
)
SECRETS = re.compile(
    rb"\bhf_(?:[a-z]+_)*[A-Za-z0-9]{16,}|\bapi_org_[A-Za-z]{16,}"  # the Hub: user, OAuth and JWT; organisations
    rb"|\bgh[a-z]_[A-Za-z0-9]{36}|\bgithub_pat_\w{22,}"
    rb"|\bAKIA[0-9A-Z]{16}\b|\bsk-[A-Za-z0-9_-]{40,}"  # AWS; OpenAI and Anthropic
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
TEXT_SUFFIXES = (".json", ".md", ".py")
# Entries of JSON files that are published. Others could name code, which transformers runs with trust_remote_code, or
# files. The entries by which transformers finds our own code are added.
CONFIG_ENTRIES = frozenset(VaswaniTransformerConfig().to_dict()) - {"auto_map", "custom_pipelines", "_name_or_path"}
GENERATION_ENTRIES = frozenset(GenerationConfig().to_dict()) | {"extra_length", "max_source_length"}
EXPORT_ENTRIES = frozenset({"precision", "weights_sha256", "graphs"})
# Fields of config.json that may differ between a model and its export.
METADATA_FIELDS = {"transformers_version", "architectures", "auto_map", "custom_pipelines", "dtype"}


def collect_model_files(folder: Path, onnx: Sequence[str] = ()) -> tuple[Files, TorchTranslator]:
    """Return the files of the repository except card and plots, and the model itself, on the CPU.

    onnx: folders of the exported model; those of other precisions as PRECISION=FOLDER, such as int8=FOLDER. Without a
        plain FOLDER, `onnx` in the model folder is published if it exists
    Raises InputError, BrokenFileError naming the invalid file, field or tensor.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    read_config(folder / "config.json")
    refuse_links(folder)
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder} has no tokenizer.json; give the folder of a model with its tokenizer")
    translator = TorchTranslator.from_pretrained(folder, device="cpu")

    files: Files = {"config.json": encode_json(make_config_for_the_hub(folder))}
    generation = folder / "generation_config.json"
    written = translator.model.generation_config.to_json_string().encode()
    files[generation.name] = select_entries(generation, GENERATION_ENTRIES) if generation.is_file() else written
    files |= {file.relative_to(folder).as_posix(): file for file in weight_files(folder)}
    if WEIGHTS not in files:
        files[INDEX] = folder / INDEX
    files |= {name: Path(vaswani_transformer.__file__).parent / name for name in CODE_FILES}
    files |= collect_tokenizer_files(folder)

    exports = parse_exports(onnx)
    if None not in exports and (folder / ONNX).is_dir():
        exports[None] = folder / ONNX
    for precision, variant in exports.items():
        if precision is not None:
            files |= collect_variant_files(folder, variant, precision)
    if None in exports:  # last, so that its configuration and tokenizer replace those of a variant
        files |= collect_onnx_files(folder, exports[None])
    return files, translator


def parse_exports(options: Sequence[str]) -> dict[str | None, Path]:
    """Return the folders of `--onnx` by precision; None for model.onnx. Raises InputError if two have the same."""
    exports: dict[str | None, Path] = {}
    for option in options:
        precision, equals, folder = option.partition("=")
        if not equals or precision not in PRECISIONS:
            precision, folder = None, option
        if precision in exports:
            kind = f"{precision}=" if precision else "a folder without a precision"
            raise InputError(f"--onnx {option}: {kind} was given twice; name the others as in int8=FOLDER")
        exports[precision] = Path(folder)
    return exports


def make_config_for_the_hub(folder: Path) -> dict[str, Any]:
    """Return config.json with the entries by which transformers finds the code without this package."""
    config = read_json_object(folder / "config.json")
    return {name: config[name] for name in config if name in CONFIG_ENTRIES} | {
        "architectures": ["VaswaniTransformerForConditionalGeneration"],
        "auto_map": AUTO_MAP,
        "custom_pipelines": CUSTOM_PIPELINES,
    }


def select_entries(path: Path, published: Collection[str]) -> bytes:
    """Return a JSON file with its published entries alone."""
    content = read_json_object(path)
    return encode_json({name: content[name] for name in content if name in published})


def collect_tokenizer_files(folder: Path) -> Files:
    """Return the files of both tokenizers, without truncation and padding, and with the entries that are read here.

    The class name is one that transformers 4 and transformers.js also know.
    """
    files: Files = {}
    for place in ("", f"{TARGET_TOKENIZER}/"):
        tokenizer, config = f"{place}tokenizer.json", f"{place}tokenizer_config.json"
        if (folder / tokenizer).is_file():
            files[tokenizer] = plain_tokenizer(folder / tokenizer)
        if (folder / config).is_file():  # optional in an ONNX folder
            fields = read_tokenizer_settings(folder / place)
            files[config] = encode_json(fields | {"tokenizer_class": "PreTrainedTokenizerFast"})
    return files


def collect_onnx_files(folder: Path, onnx: Path) -> Files:
    """Return the files of an exported model, under `onnx/`. Raises InputError if they belong to another model."""
    if not onnx.is_dir():
        named = f"; the precisions before = are {', '.join(PRECISIONS)}" if "=" in str(onnx) else ""
        raise InputError(f"--onnx {onnx}: no such folder{named}")
    if not any(onnx.glob("*.onnx")):
        raise InputError(f"{onnx} contains no .onnx file; `vaswani-transformer export onnx` writes one")
    refuse_links(onnx)
    check_same_model(folder, onnx)
    files: Files = {path.name: path for pattern in ONNX_FILES for path in sorted(onnx.glob(pattern))}
    settings = {
        "config.json": CONFIG_ENTRIES,
        "generation_config.json": GENERATION_ENTRIES,
        EXPORT_RECORD: EXPORT_ENTRIES,
    }
    files |= {
        name: select_entries(onnx / name, published) for name, published in settings.items() if (onnx / name).is_file()
    }
    return {f"{ONNX}/{name}": file for name, file in (files | collect_tokenizer_files(onnx)).items()}


def collect_variant_files(folder: Path, onnx: Path, precision: str) -> Files:
    """Return the files of a variant: its model.onnx is published as model_PRECISION.onnx, and its README.md is not."""
    published = f"{ONNX}/{onnx_file_name(precision)}"
    files = collect_onnx_files(folder, onnx)
    graph = files.pop(f"{ONNX}/model.onnx", None)
    if graph is None or f"{ONNX}/model.onnx.data" in files:
        raise InputError(f"--onnx {precision}={onnx}: a variant is one file, model.onnx, without model.onnx.data")
    return {name: file for name, file in files.items() if name.endswith(".json")} | {published: graph}


def list_unpublished(folder: Path, files: Files) -> list[str]:
    """Return the names of files in the folder that are not published."""
    published = {name.split("/")[0] for name in files}
    names = (path.name + ("/" if path.is_dir() else "") for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(name for name in names if name.rstrip("/") not in published)


def measure_size(file: Path | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def write_folder(files: Files, out: Path) -> None:
    """Write the files to a new folder, which appears only when it is complete."""
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as unfinished:
        for name, file in files.items():
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, bytes):
                path.write_bytes(file)
            else:
                shutil.copyfile(file, path)


def encode_json(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()


def collect_space_files(repo: str, model: str, revision: str | None) -> Files:
    """Return the files of the Space `repo`, which loads `model` at a commit or tag (None: the newest)."""
    files: Files = {path.name: path for path in SPACE.iterdir() if path.is_file()}
    card = SpaceCard.load(SPACE / "README.md")
    card.data["title"], card.data["models"] = repo.split("/")[1], [model]
    files["README.md"] = str(card).encode()
    files["model.json"] = encode_json({"id": model, "revision": revision})
    return files


# ---- checks ------------------------------------------------------------------------------------------------------


def refuse_secrets(files: Files) -> None:
    """Raise InputError naming a text file that contains an access token or a private key."""
    for name, content in files.items():
        if name.endswith(TEXT_SUFFIXES):
            text = content if isinstance(content, bytes) else content.read_bytes()
            if SECRETS.search(text):
                raise InputError(f"{name} contains an access token or a private key; remove it before publishing")


def refuse_links(folder: Path) -> None:
    """Raise BrokenFileError if a file that may be published is a link to a file outside the folder."""
    for place in (folder, folder / ONNX, folder / TARGET_TOKENIZER):
        check_inside(place, folder)
        for path in place.glob("*"):
            if not path.is_dir():  # such as a folder of texts
                check_inside(path, folder)


def check_same_model(folder: Path, onnx: Path) -> None:
    """Raise InputError if the exported model has other weights, settings, or another configuration or tokenizer."""
    if (onnx / "config.json").is_file():
        config, exported = load_config(folder).to_dict(), load_config(onnx).to_dict()
        names = config.keys() - METADATA_FIELDS
        different = sorted(name for name in names if config[name] != exported.get(name))
        if different:
            raise InputError(
                f"{onnx / 'config.json'} belongs to another model than {folder / 'config.json'}: they differ in "
                f"{enumerate_names(different)}; export the model again"
            )
    tokenizers = [place / "tokenizer.json" for place in (folder, onnx)]
    if tokenizers[1].is_file() and plain_tokenizer(tokenizers[0]) != plain_tokenizer(tokenizers[1]):
        raise InputError(f"{tokenizers[1]} differs from {tokenizers[0]}; export the model again")
    settings = [place / "generation_config.json" for place in (folder, onnx)]
    if all(path.is_file() for path in settings):  # an export of a model without the file has the defaults
        before, now = ({**read_json_object(path), "transformers_version": None} for path in settings)
        different = sorted(name for name in before | now if before.get(name) != now.get(name))
        if different:
            raise InputError(
                f"{settings[1]} and {settings[0]} differ in {enumerate_names(different)}; export the model again"
            )
    for graph in onnx.glob("*.onnx"):
        check_graph(graph)
    if (onnx / EXPORT_RECORD).is_file():
        exported = str(read_json_object(onnx / EXPORT_RECORD).get("weights_sha256"))
        weights = files_sha256(*weight_files(folder))
        if exported != weights:
            raise InputError(
                f"{onnx} was exported from other weights (sha256 {exported[:12]}) than those of {folder} "
                f"({weights[:12]}); export the model again"
            )
