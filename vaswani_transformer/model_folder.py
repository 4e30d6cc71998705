"""The files of a model folder: their names, and the checks that need neither torch nor transformers.

`loading.py` (torch) and `onnx_translator.py` (ONNX Runtime) share them.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .atomic import atomic_file
from .errors import BrokenFileError, InputError, UnavailableError, one_line
from .search_settings import LENGTH_PENALTIES, MAX_BEAMS, NO_MAXIMUM

if TYPE_CHECKING:  # imported where it is used, so that --help is fast
    from tokenizers import Tokenizer

MODEL_TYPE = "vaswani_transformer"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"  # of an adapter that PEFT saved; its weights are in adapter_model.safetensors
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
# Glob patterns of the files that Translator reads.
MODEL_FILES = ("config.json", "generation_config.json", ADAPTER, "*.safetensors", INDEX, "*tokenizer*.json")
# The code in every saved and published model, so that it loads without this package: transformers copies the files that
# relative imports in configuration_vaswani_transformer.py name.
CODE_FILES = tuple(sorted(path.name for path in Path(__file__).parent.glob("*_vaswani_transformer.py")))
ONNX = "onnx"  # the folder that transformers.js and Optimum read
EXPORT_RECORD = "export.json"  # in an ONNX folder: its precision, and the hash of the weights that were exported
CONVERSION_NOTES = "CONVERSION.md"  # in a model that was converted from another toolkit
MANIFEST = "manifest.json"  # size and sha256 of a checkpoint's files, or of a model's weights and tokenizer
OPTIMIZER = "optimizer.safetensors"

# Allowed ranges in generation_config.json; null is always allowed. max_source_length limits sources, and
# max_source_length_offset outputs: to the tokens of their source and this many more.
LENGTHS = ("max_length", "max_new_tokens", "max_source_length", "max_source_length_offset")
GENERATION_LIMITS = (
    dict.fromkeys(("num_beams", "num_return_sequences"), (1, MAX_BEAMS))
    | dict.fromkeys(LENGTHS, (1, NO_MAXIMUM))
    | dict.fromkeys(("min_length", "min_new_tokens", "stopping_lookahead"), (0, NO_MAXIMUM))
    | {"length_penalty": LENGTH_PENALTIES}
)


def local_folder(folder_or_repo: str | Path, revision: str | None = None, files: Sequence[str] = MODEL_FILES) -> Path:
    """Return a model folder: the given one, or the local copy of the Hub repository `owner/name`, downloaded if needed.

    files: glob patterns of the files to download
    Raises InputError if neither exists, UnavailableError if the Hub cannot be reached.
    """
    folder = Path(folder_or_repo)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(f"{folder} is a file; give the folder that holds config.json and {WEIGHTS}")
    parent_exists = folder.parent != Path() and folder.parent.is_dir()
    if parent_exists or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder_or_repo), re.ASCII):
        raise InputError(f"{folder}: no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return Path(snapshot_download(str(folder_or_repo), revision=revision, allow_patterns=list(files)))
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise InputError(f"{folder}: no such folder, and no such repository on the Hub ({error})") from None
    except Exception as error:  # network errors come from four libraries
        reason = f"{type(error).__name__}: {error}"
        raise UnavailableError(f"{folder}: no such folder, and the Hub cannot be reached ({reason})") from error


def read_json_object(path: Path, *objects: str) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises BrokenFileError naming the file and the position of the error.

    objects: fields that must be objects as well, if they are there
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BrokenFileError(f"{path}: no such file") from None
    except OSError as error:
        raise BrokenFileError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else one_line(str(error))
        reason = "it is empty" if path.stat().st_size == 0 else reason
        raise BrokenFileError(f"{path} is not valid JSON: {reason}; copy or download it again") from None
    if not isinstance(content, dict):
        raise BrokenFileError(f"{path} holds a {type(content).__name__}; it must hold an object")
    for field in objects:
        if not isinstance(content.get(field, {}), dict):
            raise BrokenFileError(f"{path}: {field} is a {type(content[field]).__name__}; it must be an object")
    return content


def check_readable(path: Path) -> None:
    """Raise BrokenFileError if a file cannot be opened; safetensors would call it missing, ONNX Runtime damaged."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise BrokenFileError(f"{path} cannot be read: {error.strerror}") from None


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; the file replaces an older one only when it is complete and on disk."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def verify_manifest(folder: Path, optimizer: bool = False) -> bool:
    """Compare the files with manifest.json, and return whether there is one.

    This reads the weights a second time, at about 1.5 GB/s: 0.2 s for the 260 MB of the base model.
    optimizer: also check the optimizer's state, which only training reads
    Raises BrokenFileError naming the first file that is missing, truncated or altered.
    """
    if not (folder / MANIFEST).exists():
        return False
    manifest = read_json_object(folder / MANIFEST)
    if "files" not in manifest:
        return False  # another program's file
    try:
        entries = [(str(entry["name"]), entry["size"], entry["sha256"]) for entry in manifest["files"]]
    except (TypeError, KeyError) as error:
        raise BrokenFileError(f"{folder / MANIFEST} is not a manifest") from error
    for name, size, sha256 in entries:
        path = folder / name
        if name == OPTIMIZER and not optimizer:
            continue
        if not path.is_file():
            raise BrokenFileError(f"{path} is missing, but {MANIFEST} lists it")
        if path.stat().st_size != size:
            raise BrokenFileError(f"{path} has {path.stat().st_size} bytes; {MANIFEST} lists {size}; copy it again")
        if file_sha256(path) != sha256:
            raise BrokenFileError(
                f"{path} has been altered (its sha256 differs from {MANIFEST}); copy it again, or remove {MANIFEST} "
                "if the change was intended"
            )
    return True


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(*paths: Path) -> str:
    """Return a hash over the hashes of the files, in this order."""
    return hashlib.sha256(b"".join(bytes.fromhex(file_sha256(path)) for path in paths)).hexdigest()


def read_config(path: Path) -> dict[str, Any]:
    """Read config.json. Raises InputError if it or its folder is not that of such a model, and BrokenFileError."""
    refuse_adapter(path.parent)
    weights = [file for pattern in ("*.safetensors*", "*.onnx") for file in path.parent.glob(pattern)]
    if not (path.exists() or path.is_symlink() or weights):
        raise InputError(no_config(path.parent))
    config = read_json_object(path)
    if config.get("model_type") != MODEL_TYPE:
        raise InputError(f"{path}: model_type is {config.get('model_type')!r}; only {MODEL_TYPE!r} is supported")
    return config


def refuse_adapter(folder: Path) -> None:
    """Raise InputError if PEFT has saved an adapter in the folder.

    Beside a model, transformers would apply the adapter to the weights after all checks, if PEFT is installed.
    """
    path = folder / ADAPTER
    if not path.is_file():
        return
    fields = read_json_object(path)
    base, method = fields.get("base_model_name_or_path") or "BASE_MODEL", fields.get("peft_type")
    if (folder / "config.json").exists():
        raise InputError(
            f"{path}: the folder holds both a model and a {method} adapter (of {base!r}), which transformers applies "
            f"where PEFT is installed; move {ADAPTER} and adapter_model.safetensors out of the folder, or merge the "
            "adapter: PeftModel.merge_and_unload()"
        )
    loaded = f"PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained({base!r}), {str(folder)!r})"
    remedy = f"merge it into {base!r} and copy the tokenizer: {loaded}.merge_and_unload().save_pretrained(NEW_FOLDER)"
    if "num_virtual_tokens" in fields:  # prompt learning changes no weights
        remedy = f"it cannot be merged into {base!r}; load it with PEFT: {loaded}"
    raise InputError(f"{folder} holds a {method} adapter of PEFT, not a model; {remedy}")


def no_config(folder: Path) -> str:
    """Return the error about a folder without config.json and weights; it names folders within that may be meant."""
    if (folder / "run.json").is_file():
        names = [config.parent.name for config in folder.glob("checkpoints/step-*/config.json")]
        steps = [int(step) for name in names if (step := name.removeprefix("step-")).isdecimal()]  # not step-5.broken
        remedy = f", or give a checkpoint of it, {folder / 'checkpoints' / f'step-{max(steps)}'}" if steps else ""
        return f"{folder} is an unfinished run; resume its training{remedy}"
    models = sorted(str(config.parent) for config in folder.glob("*/config.json"))
    return f"{folder} has no config.json; give {' or '.join(models[:3]) or 'the folder of a model'}"


def check_special_tokens(path: Path, config: dict[str, Any], fields: tuple[str, ...]) -> None:
    """Check that fields of config.json are ids within the vocabulary. Raises BrokenFileError naming the field."""
    for field in fields:
        size_field = "vocab_size"
        if field == "decoder_start_token_id" and config.get("decoder_vocab_size"):
            size_field = "decoder_vocab_size"
        value, size = config.get(field), config[size_field]
        if type(value) is not int or not 0 <= value < size:
            raise BrokenFileError(f"{path}: {field} is {value!r}; ids go from 0 to {size - 1} ({size_field})")


def read_generation_config(path: Path, target_vocabulary: int) -> dict[str, Any] | None:
    """Read generation_config.json, or return None if there is no such file. Raises BrokenFileError naming the entry."""
    if not path.exists():
        return None
    settings = read_json_object(path)
    for field, value in settings.items():
        if value is None:
            continue
        if field in GENERATION_LIMITS:
            least, most = GENERATION_LIMITS[field]
            kinds, rule = ((int, float), "a number") if field == "length_penalty" else ((int,), "an integer")
            if type(value) not in kinds or not least <= value <= most:
                raise BrokenFileError(f"{path}: {field} is {value!r}; it must be {rule} between {least} and {most}")
        elif field == "early_stopping" and not (isinstance(value, bool) or value == "never"):
            raise BrokenFileError(
                f'{path}: early_stopping is {value!r}; it must be "never", true or false; a number belongs in '
                'stopping_lookahead, beside "never"'
            )
        elif field.endswith(("_token_id", "suppress_tokens")):
            most = target_vocabulary - 1
            ids = value if isinstance(value, list) else [value]
            if not all(type(token) is int and 0 <= token <= most for token in ids):
                raise BrokenFileError(f"{path}: {field} is {value!r}; ids go from 0 to {most} (config.json)")
    return settings


def read_tokenizer(folder: Path, vocabulary: int | None = None, size_field: str = "vocab_size") -> "Tokenizer":
    """Read tokenizer.json and check that its ids are below `vocabulary`. Raises BrokenFileError.

    size_field: the field of config.json that `vocabulary` comes from
    Raises InputError if the folder is that of a converted model whose checkpoint had no vocabulary.
    """
    from tokenizers import Tokenizer

    path, notes = folder / "tokenizer.json", folder / CONVERSION_NOTES
    if notes.exists() and not path.exists():
        raise InputError(
            f"{folder} has no tokenizer.json: the converted checkpoint came without the files of its vocabulary "
            f"(see {notes}); put them beside it and convert it again"
        )
    read_json_object(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers raises Exception, and for a panic in Rust a subclass of BaseException
        raise BrokenFileError(f"{path} is not a tokenizer ({error}); copy or download it again") from None
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if vocabulary is not None and largest >= vocabulary:
        raise BrokenFileError(
            f"{path} has ids up to {largest}, but config.json has {size_field} {vocabulary}: "
            "tokenizer and model do not belong together"
        )
    return tokenizer
