"""Collects the files to publish: weights, configuration, code, tokenizers and ONNX exports (card.py: card and plots).

`Files` maps a name in the repository to its content, or to a large local file. Other files in the folder (checkpoints,
the tokenised corpus, logs) are not uploaded. Of the published files, only the parts that the package reads are kept:
others may hold notes, folders or passwords of previous owners. Access tokens are refused, and ONNX files of another
model or of other weights, as after more training.
"""

import hashlib
import json
import re
import reprlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Any, cast

from huggingface_hub import SpaceCard
from tokenizers import Tokenizer
from transformers import GenerationConfig

import vaswani_transformer
from vaswani_transformer.atomic import atomic_folder
from vaswani_transformer.configuration_vaswani_transformer import AUTO_MAP, CUSTOM_PIPELINES, VaswaniTransformerConfig
from vaswani_transformer.errors import BrokenFileError, InputError, name_in_errors
from vaswani_transformer.files import check_inside, combine_sha256, file_sha256, read_json_object
from vaswani_transformer.loading import load_config
from vaswani_transformer.model_folder import (
    CODE_FILES,
    EXPORT_RECORD,
    INDEX,
    MODEL_FILES,
    ONNX,
    WEIGHTS,
    ModelFolder,
    check_graph,
    enumerate_names,
    read_config,
    weight_files,
)
from vaswani_transformer.onnx_translator import (
    PRECISIONS,
    built_in_values,
    check_built_in,
    load_session,
    onnx_file_name,
)
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.tokenizer_files import (
    SPECIAL_TOKENS,
    plain_tokenizer,
    read_tokenizer_settings,
    tokenizer_errors,
)
from vaswani_transformer.torch_translator import TorchTranslator
from vaswani_transformer.training_run import check_types


@dataclass(frozen=True)
class StoredFile:
    """A large local file, as it was when it was checked."""

    path: Path
    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "StoredFile":
        return cls(path, path.stat().st_size, file_sha256(path))

    def check_unchanged(self, sha256: str) -> None:
        """Raise InputError unless the content that is published has this hash."""
        if sha256 != self.sha256:
            raise InputError(f"{self.path} changed during the push; run the command again when it is complete")


Files = dict[str, StoredFile | bytes]

SPACE = Path(__file__).with_name("space")

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
    rb"|://[^\s/@:\"'<>`]*:[^\s/@\"'<>`]+@"  # https://user:password@host
)
# Characters that JSON, Markdown and Python write in another way, and white space, where YAML breaks lines.
ESCAPED = re.compile(rb"\\(?:[bfnrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})|\s+", re.IGNORECASE)
# Entries of JSON files that are published. Others could name code, which transformers runs with trust_remote_code, or
# files. The entries by which transformers finds our own code are added.
CONFIG_ENTRIES = {"model_type", "transformers_version"}  # besides the fields of the configuration class
GENERATION_ENTRIES = frozenset(GenerationConfig().to_dict())
GENERATION_ENTRIES |= {"beam_search", "extra_length", "max_source_length", "alignment_heads"}
TENSOR_ENTRIES = {"dtype", "shape", "data_offsets"}  # of a safetensors file's header


def collect_model_files(folder: Path, onnx: Sequence[str] = ()) -> tuple[Files, TorchTranslator, str]:
    """Return the files of the repository except card and plots, the model itself, on the CPU, and its weights' hash.

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
    # Before they are loaded, so that the hash shows whether they change afterwards.
    weights = [StoredFile.of(path) for path in weight_files(folder)]
    weights_sha256 = combine_sha256(file.sha256 for file in weights)
    translator = TorchTranslator.from_pretrained(folder, device="cpu")

    settings = collect_settings(folder)
    dtype = str(translator.model.dtype).removeprefix("torch.")
    # By these entries, transformers finds the code without this package.
    found_by = {"auto_map": AUTO_MAP, "custom_pipelines": CUSTOM_PIPELINES, "dtype": dtype}
    files: Files = {"generation_config.json": translator.model.generation_config.to_json_string().encode(), **settings}
    files["config.json"] = encode_json(json.loads(settings["config.json"]) | found_by)
    files |= collect_weights(folder, weights)
    files |= {name: (Path(vaswani_transformer.__file__).parent / name).read_bytes() for name in CODE_FILES}

    exports = parse_exports(onnx)
    if None not in exports and (folder / ONNX).is_dir():
        exports[None] = folder / ONNX
    for precision, variant in exports.items():
        if precision is not None:
            files |= collect_variant_files(folder, settings, weights_sha256, variant, precision)
    if None in exports:  # last, so that its configuration and tokenizer replace those of a variant
        files |= collect_onnx_files(folder, settings, weights_sha256, exports[None])
    if (record := f"{ONNX}/{EXPORT_RECORD}") in files:
        hashes: dict[str, dict[str, str]] = {"graphs": {}, "tokenizers": {}}
        for name, file in files.items():
            if name.startswith(f"{ONNX}/") and (".onnx" in name or Path(name).name == "tokenizer.json"):
                kind = "graphs" if ".onnx" in name else "tokenizers"
                hashes[kind][name.removeprefix(f"{ONNX}/")] = hash_file(file)
        files[record] = encode_json(json.loads(cast(bytes, files[record])) | hashes)
    return files, translator, weights_sha256


def collect_weights(folder: Path, weights: Sequence[StoredFile]) -> Files:
    """Return the weights, and for several files an index with nothing but their tensors and their size.

    Raises InputError naming an entry of a file's header that this package does not read: the file cannot be published
    without it under the hash that manifests, exports and rows of results have recorded.
    """
    files, file_of_tensor, size = {}, {}, 0
    for file in weights:
        name = file.path.relative_to(folder).as_posix()
        if "/" in name or not name.endswith(".safetensors"):
            raise InputError(f"{folder / INDEX} names {name}; weights are NAME.safetensors beside it")
        tensors = read_tensor_names(file.path)
        files[name] = file
        file_of_tensor |= dict.fromkeys(tensors, name)
        size += sum(tensors.values())
    if WEIGHTS not in files:
        files[INDEX] = encode_json({"metadata": {"total_size": size}, "weight_map": file_of_tensor})
    return files


def read_tensor_names(path: Path) -> dict[str, int]:
    """Return the names and sizes in bytes of a safetensors file's tensors. Raises InputError for further entries."""

    def refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # safetensors and Python read the last of two entries with one name; the first would be published unread.
        if repeated := [name for name, number in Counter(name for name, _ in pairs).items() if number > 1]:
            raise InputError(f"{path}: its header has the entry {repeated[0]!r} twice; save the weights again")
        return dict(pairs)

    with name_in_errors(path), path.open("rb") as file:
        content = file.read(int.from_bytes(file.read(8), "little"))
    header = json.loads(content, object_pairs_hook=refuse_repeated)
    metadata = header.pop("__metadata__", None) or {}
    for entries, known in ((metadata, {"format"}), *((entry, TENSOR_ENTRIES) for entry in header.values())):
        if unknown := sorted(entries.keys() - known):
            raise InputError(
                f"{path}: its header has the entry {unknown[0]!r}, which would be published; save the weights without "
                f"it: safetensors.torch.save_file(safetensors.torch.load_file(file), new_file, {{'format': 'pt'}})"
            )
    if metadata.get("format", "pt") not in ("pt", "np", "tf", "flax", "mlx"):
        raise InputError(f"{path}: its format is {metadata['format']!r:.80}; it must be 'pt'")
    return {name: entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in header.items()}


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


def collect_settings(folder: Path) -> dict[str, bytes]:
    """Return the settings and tokenizers of a model or an export, with the entries that are read here and no others.

    transformers would also apply `return_dict` or a `dtype` of a stranger's config.json; its fields are published as
    the model was checked with them. A tokenizer has no truncation and padding; the name of its class is one that
    transformers 4 and transformers.js also know.
    """
    files: dict[str, bytes] = {}
    if lexists(path := folder / "config.json"):
        content, config = read_json_object(path), load_config(folder).to_dict()
        fields = {name: config[name] for name in VaswaniTransformerConfig.__annotations__}
        fields |= {name: content[name] for name in sorted(CONFIG_ENTRIES) if name in content}
        files[path.name] = encode_json(fields | {"architectures": ["VaswaniTransformerForConditionalGeneration"]})
    if lexists(path := folder / "generation_config.json"):
        content = read_json_object(path)
        files[path.name] = encode_json({name: content[name] for name in content if name in GENERATION_ENTRIES})
    for place in ("", f"{TARGET_TOKENIZER}/"):
        tokenizer, config = f"{place}tokenizer.json", f"{place}tokenizer_config.json"
        if lexists(folder / tokenizer):
            with tokenizer_errors(folder / tokenizer):
                content = plain_tokenizer(folder / tokenizer).decode()
                files[tokenizer] = Tokenizer.from_str(content).to_str(pretty=True).encode()  # without unknown entries
        if lexists(folder / config):  # optional in an ONNX folder
            fields = read_tokenizer_settings(folder / place)
            files[config] = encode_json(fields | {"tokenizer_class": "PreTrainedTokenizerFast"})
    return files


def collect_onnx_files(folder: Path, settings: dict[str, bytes], weights_sha256: str, onnx: Path) -> Files:
    """Return the files of an exported model, under `onnx/`. Raises InputError if they belong to another model.

    settings: those of the model, in `folder`
    """
    if not onnx.is_dir():
        named = f"; the precisions before = are {', '.join(PRECISIONS)}" if "=" in str(onnx) else ""
        raise InputError(f"--onnx {onnx}: no such folder{named}")
    # Not the files `._NAME` that macOS writes beside others on foreign disks.
    graphs = [path for path in sorted(onnx.glob("[!.]*.onnx")) if path.is_file()]
    if not graphs:
        raise InputError(f"{onnx} contains no .onnx file; `vaswani-transformer export onnx` writes one")
    refuse_links(onnx)
    exported = collect_settings(onnx)
    check_same_settings(folder, settings, onnx, exported)
    files: Files = {**exported}
    if lexists(onnx / EXPORT_RECORD):  # `collect_model_files` adds the hashes of all graphs
        files[EXPORT_RECORD] = encode_json(read_export_record(onnx / EXPORT_RECORD, folder, weights_sha256))
    for graph in graphs:
        is_recorded = check_graph(graph)
        files |= collect_graph(graph, ModelFolder(onnx if lexists(onnx / "config.json") else folder))
        if not is_recorded:
            load_session(graph, "cpu", threads=None)  # raises an error if ONNX Runtime cannot
    return {f"{ONNX}/{name}": file for name, file in files.items()}


def collect_graph(path: Path, folder: ModelFolder) -> Files:
    """Return an ONNX file and the files of its weights.

    folder: with the model's settings

    Exporters write folders and stack traces into descriptions and metadata; a file with any is published without them.
    Raises BrokenFileError if it is not an ONNX file or one of other settings, or if weights are missing or elsewhere,
    and InputError if its text has a secret.
    """
    import onnx
    from google.protobuf.message import DecodeError

    content = path.read_bytes()
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        raise BrokenFileError(f"{path} is not an ONNX file ({error}); copy or export it again") from None
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    check_built_in(path, metadata, folder)
    kept = built_in_values(folder.config, folder.generation_config).keys()
    model.ClearField("domain")
    model.DiscardUnknownFields()
    weights: dict[str, list[dict[str, str]]] = {}
    texts: list[bytes] = []
    for part in list_messages(model):
        for name in ("doc_string", "metadata_props"):
            if name in part.DESCRIPTOR.fields_by_name:
                part.ClearField(name)
        if isinstance(part, onnx.TensorProto):
            if entries := {entry.key: entry.value for entry in part.external_data}:
                weights.setdefault(entries.get("location", ""), []).append(entries)
        for field, value in part.ListFields():
            if field.type in (field.TYPE_STRING, field.TYPE_BYTES) and field.name != "raw_data":
                values = [value] if isinstance(value, str | bytes) else value
                texts += (text.encode() if isinstance(text, str) else text for text in values)
    if SECRETS.search(b"\n".join(texts)):
        raise InputError(f"{path} contains an access token, a password or a private key; export the model again")
    onnx.helper.set_model_props(model, {name: value for name, value in metadata.items() if name in kept})
    is_clean = model.ByteSize() == len(content)
    stored = StoredFile(path, len(content), hashlib.sha256(content).hexdigest())
    files: Files = {path.name: stored if is_clean else model.SerializeToString()}
    for name, tensors in sorted(weights.items()):
        if "/" in name or not name.endswith((".onnx_data", ".onnx.data")) or not (path.parent / name).is_file():
            raise BrokenFileError(f"{path}: its weights are in {name!r}; they must be in NAME.onnx.data beside it")
        files[name] = StoredFile.of(path.parent / name)
        refuse_unused_bytes(path.parent / name, tensors)
    return files


def refuse_unused_bytes(path: Path, tensors: Sequence[dict[str, str]]) -> None:
    """Raise InputError if a file of weights has bytes, except zeros for alignment, that belong to none of the tensors.

    tensors: the "offset" and "length" of each; without them, all bytes
    Raises BrokenFileError if one is not a number.
    """
    size = path.stat().st_size
    try:
        begins = [int(tensor.get("offset", 0)) for tensor in tensors]
        lengths = [int(tensor.get("length", size - begin)) for tensor, begin in zip(tensors, begins, strict=True)]
    except ValueError as error:
        raise BrokenFileError(f"{path}: its graph places a tensor wrongly ({error}); export it again") from None
    end = 0
    with name_in_errors(path), path.open("rb") as file:
        for begin, length in sorted([*zip(begins, lengths, strict=True), (size, 0)]):
            file.seek(end)
            while end < begin and (block := file.read(min(begin - end, 1 << 20))):
                if block.count(0) < len(block):
                    raise InputError(
                        f"{path} has bytes from {end:,} on that no tensor of its graph uses and that would be "
                        "published; export the model again"
                    )
                end += len(block)
            end = max(end, begin + length)


def list_messages(message: Any) -> Iterator[Any]:
    """Yield a message of protobuf and all messages inside it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if hasattr(value, "__len__") else [value]:
                yield from list_messages(part)


def collect_variant_files(
    folder: Path, settings: dict[str, bytes], weights_sha256: str, onnx: Path, precision: str
) -> Files:
    """Return the files of a variant: its model.onnx is published as model_PRECISION.onnx.

    Raises InputError if it is not one graph, or was exported with another precision.
    """
    published = f"{ONNX}/{onnx_file_name(precision)}"
    files = collect_onnx_files(folder, settings, weights_sha256, onnx)
    record = json.loads(cast(bytes, files.get(f"{ONNX}/{EXPORT_RECORD}", b"{}")))
    if (exported := record.get("precision")) not in (None, precision):
        raise InputError(f"--onnx {precision}={onnx}: {onnx / EXPORT_RECORD} says that its precision is {exported}")
    graph = files.pop(f"{ONNX}/model.onnx", None)
    if graph is None or f"{ONNX}/model.onnx.data" in files:
        raise InputError(f"--onnx {precision}={onnx}: a variant is one file, model.onnx, without model.onnx.data")
    return {name: file for name, file in files.items() if name.endswith(".json")} | {published: graph}


def list_unpublished(folder: Path, files: Files) -> list[str]:
    """Return the names of files in the folder that are not published."""
    published = {name.split("/")[0] for name in files}
    names = (path.name + ("/" if path.is_dir() else "") for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(name for name in names if name.rstrip("/") not in published)


def measure_size(file: StoredFile | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.size


def hash_file(file: StoredFile | bytes) -> str:
    return hashlib.sha256(file).hexdigest() if isinstance(file, bytes) else file.sha256


def write_folder(files: Files, out: Path) -> None:
    """Write the files to a new folder, which appears only when it is complete."""
    with atomic_folder(out) as unfinished:
        for name, file in files.items():
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, bytes):
                path.write_bytes(file)
            else:
                shutil.copyfile(file.path, path)
                file.check_unchanged(file_sha256(path))


def encode_json(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()


def collect_space_files(repo: str, model: str, revision: str | None) -> Files:
    """Return the files of the Space `repo`, which loads `model` at a commit or tag (None: the newest)."""
    files: Files = {
        path.name: path.read_bytes() for path in SPACE.iterdir() if path.is_file() and not path.name.startswith(".")
    }
    card = SpaceCard.load(SPACE / "README.md")
    card.data["title"], card.data["models"] = repo.split("/")[1], [model]
    files["README.md"] = str(card).encode()
    files["model.json"] = encode_json({"id": model, "revision": revision})
    refuse_secrets(files)
    return files


# ---- checks ------------------------------------------------------------------------------------------------------


def refuse_secrets(files: Files) -> None:
    """Raise InputError naming a file with an access token, a password or a private key.

    The same applies to a setting that is free text, such as a folder or HTML, or has a number that JSON lacks.
    """
    for name, content in files.items():
        if not isinstance(content, bytes):
            continue  # weights and graphs, whose text has been checked
        unescaped = ESCAPED.sub(b" ", content).replace(b"\\", b"")  # a card has hf\_ for hf_
        if SECRETS.search(content) or SECRETS.search(unescaped):
            records = " (from run.json, a checkpoint, conversion.json, CONVERSION.md or the results)"
            raise InputError(
                f"{name} contains an access token, a password or a private key{records * (name == 'README.md')}; "
                "remove it before publishing"
            )
        if name.endswith("config.json"):
            for field, value in json.loads(content).items():
                if field not in SPECIAL_TOKENS and (text := find_text(value)):
                    raise InputError(
                        f"{name}: {field} has the text {text!r:.80}; a setting is a name or a number: remove it before "
                        "publishing"
                    )
                try:
                    json.dumps(value, allow_nan=False)
                except ValueError:
                    raise InputError(
                        f"{name}: {field} is {reprlib.repr(value)}; NaN and Infinity are not JSON, and only Python "
                        "reads them: remove the entry or give a number"
                    ) from None


def find_text(value: Any) -> str | None:
    """Return a string in a value of JSON that is not like the names and versions in settings, or None."""
    if isinstance(value, str):
        return None if re.fullmatch(r"[\w .+-]*", value, re.ASCII) else value
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return next(filter(None, map(find_text, parts)), None)


def refuse_links(folder: Path) -> None:
    """Raise BrokenFileError if a file that may be published is a link to a file outside the folder."""
    for place in (folder, folder / ONNX, folder / TARGET_TOKENIZER):
        check_inside(place, folder)
        for path in place.glob("*"):
            if not path.is_dir():  # such as a folder of texts
                check_inside(path, folder)


def check_same_settings(folder: Path, settings: dict[str, bytes], onnx: Path, exported: dict[str, bytes]) -> None:
    """Raise InputError if an export has another configuration or tokenizer, or other settings, than the model."""
    for name in sorted(settings.keys() & exported.keys()):  # an export of a model without a file has the defaults
        ours, theirs = json.loads(settings[name]), json.loads(exported[name])
        names = sorted((ours | theirs).keys() - {"transformers_version"})
        if different := [entry for entry in names if ours.get(entry) != theirs.get(entry)]:
            raise InputError(
                f"{onnx / name} belongs to another model than {folder / name}: they differ in "
                f"{enumerate_names(different)}; export the model again"
            )


def read_export_record(record: Path, folder: Path, weights_sha256: str) -> dict[str, Any]:
    """Return what is published of export.json. Raises InputError if the model had other weights."""
    types = {"precision": str, "weights_sha256": str}
    fields = check_types(record, read_json_object(record), types)
    if fields.get("precision") not in (None, "fp32", *PRECISIONS):
        raise BrokenFileError(f"{record}: precision is {fields['precision']!r:.80}; export the model again")
    exported = fields.get("weights_sha256") or "not recorded"
    if exported != weights_sha256:
        raise InputError(
            f"{record.parent} was exported from other weights (sha256 {exported[:12]}) than those of {folder} "
            f"({weights_sha256[:12]}); export the model again"
        )
    return {name: fields[name] for name in types if name in fields}
