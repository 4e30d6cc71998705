"""A model folder: the names of its files, and what torch and ONNX Runtime read of them alike.

Everything here needs neither torch nor transformers. `loading.py` and `onnx_translator.py` add the weights, and use the
settings and tokenizers that were read and checked here; transformers and PEFT read none of the files themselves.
"""

import json
import os
import reprlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .errors import BrokenFileError, InputError
from .files import check_inside, check_readable, file_sha256, files_sha256, read_json_object
from .search_vaswani_transformer import (
    SearchSettings,
    is_beam_search_of_transformers,
    refuse_settings_of_generate,
)
from .sentences_vaswani_transformer import TARGET_TOKENIZER
from .tokenizer_files import TOKENIZER_FILES, read_tokenizer

if TYPE_CHECKING:  # imported where it is used, so that --help is fast
    from tokenizers import Tokenizer

MODEL_TYPE = "vaswani_transformer"
CONVERTIBLE_TYPES = ("marian", "fsmt", "m2m_100", "pegasus", "blenderbot")  # of transformers, which `convert` reads
# Those of VaswaniTransformerConfig; a config.json may leave them out.
DEFAULT_CONFIG = {"vocab_size": 37000, "decoder_start_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
DEFAULT_CONFIG |= {"decoder_layers": 6, "decoder_attention_heads": 8}
# Fields of the configuration, besides sizes, that cards and `convert` compare with the paper's.
SWITCHES = (
    "position_embedding_type", "position_base", "position_offset", "norm_position", "encoder_final_norm",
    "decoder_final_norm", "layer_norm_eps", "attention_bias", "output_bias", "activation_function",
)  # fmt: skip
SIZES = (
    "vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads",
    "decoder_attention_heads", "d_k", "d_v", "encoder_ffn_dim", "decoder_ffn_dim",
)  # fmt: skip
# Entries of config.json that determine, with the weights, what a model computes: exports and averages compare them.
FIXED_ENTRIES = *SIZES, "max_position_embeddings", *SWITCHES, "decoder_start_token_id", "pad_token_id", "eos_token_id"
LARGEST_SIZE = 10_000_000  # of a vocabulary, or of learned positions
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
ADAPTER = "adapter_config.json"  # of an adapter that PEFT saved; its weights are in adapter_model.safetensors
SETTINGS_FILES = (
    "config.json",
    "generation_config.json",
    *TOKENIZER_FILES,
    *(f"{TARGET_TOKENIZER}/{name}" for name in TOKENIZER_FILES),
)
MODEL_FILES = (*SETTINGS_FILES, "*.safetensors", INDEX)  # of a complete model, as glob patterns
# The code in every saved and published model, so that it loads without this package: transformers copies the files that
# relative imports in configuration_vaswani_transformer.py name. It may import torch, transformers and huggingface_hub.
CODE_FILES = tuple(sorted(path.name for path in Path(__file__).parent.glob("*_vaswani_transformer.py")))
ONNX = "onnx"  # the folder that transformers.js and Optimum read
# In an ONNX folder: its precision, and hashes of the exported weights, the graphs, the files of the graphs' weights and
# the tokenizers.
EXPORT_RECORD = "export.json"
CARD = "README.md"  # the card of a published model
# In a model that was converted from another toolkit: what converting it back needs; the toolkit's files, in a folder.
CONVERSION_RECORD, ORIGINALS = "conversion.json", "original"
# The logit, in such a model, of a token that the toolkit does not have: its probability is 0 in float32, but a
# label-smoothed loss stays finite in every precision.
NEVER = -100.0
MANIFEST = "manifest.json"  # size and sha256 of a checkpoint's files, or of a model's weights and tokenizer
OPTIMIZER = "optimizer.safetensors"


class AlignmentHead(NamedTuple):
    """A head of the decoder's cross-attention by which words are aligned; see alignment_heads.py."""

    layer: int  # from 0, as `head`
    head: int
    offset: int  # 0: at the step that predicts a token; 1: at the next one, which reads it

    def __str__(self) -> str:
        """Return the head with the numbers of the pictures, from 1."""
        return f"layer {self.layer + 1} head {self.head + 1}, {('predicting', 'reading')[self.offset]} the word"


class ModelFolder:
    """A model folder whose settings have been checked. Its tokenizers are read when they are first used.

    config: the content of config.json.  generation_config: that of generation_config.json, {} if there is none
    The special ids of config.json must lie in the vocabulary (`read_config`) and be those of generation_config.json
    (`refuse_other_ids`); texts must end in its </s> (`_check_end`); `wrap_tokenizer` of loading.py, for torch, compares
    those of tokenizer_config.json.
    Raises InputError if it is not the folder of a model of this kind, BrokenFileError naming the file and the field.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = read_config(self.path / "config.json")
        file = self.path / "generation_config.json"
        self.generation_config = read_generation_config(file, self.config) if os.path.lexists(file) else {}

    @cached_property
    def search(self) -> SearchSettings:
        """The default settings of the search: those of generation_config.json, or the paper's.

        Raises BrokenFileError for a setting that is out of range, InputError for one that only `generate()` applies.
        """
        given, file = self.generation_config, self.path / "generation_config.json"
        try:
            refuse_other_ids(given, self.config)
            refuse_settings_of_generate(given)
        except ValueError as error:
            raise InputError(f"{file}: {error}") from None
        try:
            return SearchSettings.from_generation_config(given) if given else SearchSettings()
        except (ValueError, TypeError) as error:
            raise BrokenFileError(f"{file}: {error}") from None

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer, or that of the sources. Raises BrokenFileError."""
        tokenizer = read_tokenizer(self.path, self.config["vocab_size"])
        if not self.has_target_tokenizer:  # sources of OpenNMT-py have no </s>
            self._check_end(tokenizer, self.path)
        return tokenizer

    @cached_property
    def target_tokenizer(self) -> "Tokenizer":
        """The tokenizer of the decoder's vocabulary if it has its own, else `tokenizer`.

        Raises BrokenFileError, and InputError if it has its own and the folder has one tokenizer.
        """
        folder = self.path / TARGET_TOKENIZER
        if self.has_target_tokenizer:
            target = read_tokenizer(folder, self.config["decoder_vocab_size"], "decoder_vocab_size")
            self._check_end(target, folder)
            return target
        if self.has_two_vocabularies:
            read_tokenizer(self.path)  # raises for a folder that has none at all
            raise InputError(
                f"{self.path}: the languages have separate vocabularies (config.json); the model needs a second "
                f"tokenizer for its translations: {folder / 'tokenizer.json'}"
            )
        return self.tokenizer

    @property
    def has_two_vocabularies(self) -> bool:
        """Whether the decoder needs a tokenizer of its own, as in VaswaniTransformerConfig."""
        config = self.config
        return config.get("separate_vocabularies", False) or config["decoder_vocab_size"] != config["vocab_size"]

    @property
    def has_target_tokenizer(self) -> bool:
        return os.path.lexists(self.path / TARGET_TOKENIZER)

    def _check_end(self, tokenizer: "Tokenizer", folder: Path) -> None:
        """Raise BrokenFileError unless sentences end in the model's </s>."""
        end = self.config["eos_token_id"]
        if tokenizer.encode("a").ids[-1:] != [end]:
            raise BrokenFileError(
                f"{folder / 'tokenizer.json'} does not end a sentence with token {end} (eos_token_id of config.json)"
            )


def refuse_other_ids(settings: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise ValueError if generation_config.json has other special ids than config.json, which the search uses.

    settings, config: the contents of the files
    """
    for field in ("decoder_start_token_id", "pad_token_id", "eos_token_id"):
        value, known = settings.get(field), config[field]
        if value is not None and json.dumps(value) not in (f"{known}", f"[{known}]"):  # 2.0 is no id
            raise ValueError(
                f"{field} is {value}, but {known} in config.json: generate() reads the first value, Translator and "
                "ONNX the second; set both to the same value"
            )


def find_weights(folder: Path) -> Path:
    """Return the file that lists all tensors: model.safetensors, or the index of several files."""
    return folder / (WEIGHTS if os.path.lexists(folder / WEIGHTS) else INDEX)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder.

    Raises InputError if there are only pickles, BrokenFileError if files are missing, unreadable or outside the folder,
    or if there are both model.safetensors and the parts of a model.
    """
    if os.path.lexists(folder / WEIGHTS):
        check_readable(folder / WEIGHTS)
        # save_pretrained() leaves an older file beside the several that it writes, and transformers then reads that.
        if parts := sorted(file.name for file in folder.glob("model-*-of-*.safetensors")):
            raise BrokenFileError(
                f"{folder} holds two models, {WEIGHTS} and {enumerate_names(parts)}; remove the files of one of them"
            )
        return [folder / WEIGHTS]
    if not os.path.lexists(folder / INDEX):
        pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
        if pickles:
            raise InputError(
                f"{folder}: the weights are only available as {enumerate_names(pickles)}, a pickle, which can run any "
                f"code when it is opened; if you trust it, convert it to {WEIGHTS}: safetensors.torch.save_file("
                "{n: t.clone() for n, t in torch.load(file, weights_only=True).items()}, target)"
            )
        if any(folder.glob("*.onnx")):
            raise InputError(
                f'{folder} holds an ONNX export, which translates with --backend onnx (backend="onnx" in Python); for '
                "anything else, give the model folder that it was exported from"
            )
        raise BrokenFileError(f"{folder / WEIGHTS}: no such file; the folder has a config.json but no weights")
    path = folder / INDEX
    file_of_tensor = read_json_object(path).get("weight_map")
    names: list[Any] = list(file_of_tensor.values()) if isinstance(file_of_tensor, dict) else [None]
    if not all(isinstance(name, str) and name.isprintable() and len(name) < 256 for name in names):
        raise BrokenFileError(f"{path}: weight_map must map the name of each tensor to a file name")
    files = []
    for name in sorted(set(names)):
        file = folder / name
        check_inside(file, folder)
        if not file.is_file():
            raise BrokenFileError(f"{file}: no such file, but {INDEX} names it")
        check_readable(file)
        files.append(file)
    return files


def hash_weights(folder: Path) -> str:
    """Return the hash of a model's weights, by which rows of results and exports name it. Raises as `weight_files`."""
    read_config(folder / "config.json")  # names a folder that is no model's
    return files_sha256(*weight_files(folder))


def enumerate_names(names: Iterable[str]) -> str:
    """Join the first names of a list, and say how many more there are."""
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def check_graph(graph: Path) -> bool:
    """Return whether an ONNX file is known to be the one that was exported; False if no record says so.

    Raises BrokenFileError if it is another file, or none of the exported ones, or its model has other weights now, or
    a tokenizer beside it is another one.
    """
    record = graph.with_name(EXPORT_RECORD)
    fields = read_json_object(record, "graphs", "tokenizers") if os.path.lexists(record) else {}
    exported, model = fields.get("graphs", {}), graph.parent.parent if graph.parent.name == ONNX else graph.parent
    if fields.get("weights_sha256"):
        weights = []
        with suppress(InputError, BrokenFileError):  # a folder may have the graphs alone
            weights = weight_files(model)
        if weights and fields["weights_sha256"] != files_sha256(*weights):
            raise BrokenFileError(
                f"{graph} was exported from other weights than {find_weights(model)}; export the model again"
            )
    if exported and graph.name not in exported:
        raise BrokenFileError(
            f"{graph} is not one of the files of {record} ({enumerate_names(exported)}), so its weights are unknown; "
            f"export the model again, or remove {EXPORT_RECORD} if the graph has the weights of this model"
        )
    files = {graph.with_name(name): exported.get(name) for name in (graph.name, f"{graph.name}.data")}
    tokenizers = {graph.parent / name: digest for name, digest in fields.get("tokenizers", {}).items()}
    files |= {file: digest for file, digest in tokenizers.items() if file.exists()}  # it may be that of the model
    for file, digest in files.items():
        if digest is not None and not (file.is_file() and digest == file_sha256(file)):
            raise BrokenFileError(
                f"{file} is not the file that was exported with {record} (another sha256); export the model again, or "
                f"remove {EXPORT_RECORD} if the change was intended"
            )
    return graph.name in exported


def choose_backend(folder: Path) -> Literal["torch", "onnx"]:
    """Return "onnx" for a folder with a graph and no weights that torch reads."""
    has_weights = any(folder.glob("*.safetensors*"))
    return "onnx" if any(folder.glob("model*.onnx")) and not has_weights else "torch"


def verify_manifest(folder: Path, needed: Iterable[str] = (WEIGHTS,)) -> bool:
    """Compare the files with manifest.json, and return whether there is one.

    This reads the weights a second time, at about 1.5 GB/s: 0.2 s for the 260 MB of the base model.
    needed: the files that it must list; the optimizer's state is compared only if it is one of them
    Raises BrokenFileError naming the first file that is missing, truncated, altered or not listed.
    """
    if not os.path.lexists(folder / MANIFEST):
        return False
    manifest = read_json_object(folder / MANIFEST)
    if "files" not in manifest:
        return False  # another program's file
    if not isinstance(manifest["files"], list):
        raise BrokenFileError(f"{folder / MANIFEST}: files is a {type(manifest['files']).__name__}; it must be a list")
    for number, entry in enumerate(manifest["files"]):
        for field, kind in (("name", str), ("size", int), ("sha256", str)):
            found = entry.get(field) if isinstance(entry, dict) else entry
            if not isinstance(found, kind):
                raise BrokenFileError(f"{folder / MANIFEST}: {field} of files[{number}] is {found!r}")
        name, size, sha256 = entry["name"], entry["size"], entry["sha256"]
        path = folder / name
        if name == OPTIMIZER and name not in needed:
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
    if missing := sorted(set(needed) - {entry["name"] for entry in manifest["files"]}):
        raise BrokenFileError(f"{folder / MANIFEST} does not list {', '.join(missing)}; copy it again")
    return True


def read_config(path: Path) -> dict[str, Any]:
    """Read config.json and check what every runtime needs: sizes and special ids.

    Raises InputError if it or its folder is not that of such a model, BrokenFileError naming the field.
    """
    refuse_adapter(path.parent)
    weights = [file for pattern in ("*.safetensors*", "*.onnx") for file in path.parent.glob(pattern)]
    if not (path.exists() or path.is_symlink() or weights):
        raise InputError(explain_missing_config(path.parent))
    config = DEFAULT_CONFIG | read_json_object(path)
    if config.get("model_type") != MODEL_TYPE:
        found = config.get("model_type")
        remedy = f"; convert it: vaswani-transformer convert {path.parent} NEW_FOLDER"
        remedy = remedy if found in CONVERTIBLE_TYPES else ""
        raise InputError(f"{path}: model_type is {found!r}; only {MODEL_TYPE!r} is supported{remedy}")
    if config.get("quantization_config") is not None:
        raise InputError(f"{path}: quantization_config is set; only unquantised weights are supported")
    if config.get("position_embedding_type") != "learned":
        config["max_position_embeddings"] = None  # sinusoids have no maximum; converted files may still name one
    if config.get("decoder_vocab_size") is None:
        config["decoder_vocab_size"] = config["vocab_size"]
    sizes = ("vocab_size", "decoder_vocab_size", "max_position_embeddings", "decoder_layers", "decoder_attention_heads")
    for field in sizes:
        value = config.get(field)
        has_no_maximum = value is None and field == "max_position_embeddings"
        if not has_no_maximum and (type(value) is not int or not 1 <= value <= LARGEST_SIZE):
            raise BrokenFileError(f"{path}: {field} is {value!r}; it must be an integer between 1 and {LARGEST_SIZE}")
    if type(separate := config.get("separate_vocabularies", False)) is not bool:
        raise BrokenFileError(f"{path}: separate_vocabularies is {separate!r}; it must be true or false")
    for field in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        size_field = "decoder_vocab_size" if field == "decoder_start_token_id" else "vocab_size"
        value, size = config[field], config[size_field]
        if type(value) is not int or not 0 <= value < size:
            raise BrokenFileError(f"{path}: {field} is {value!r}; ids go from 0 to {size - 1} ({size_field})")
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


def explain_missing_config(folder: Path) -> str:
    """Return the error about a folder without config.json and weights; it names folders within that may be meant."""
    if (folder / "run.json").is_file():
        names = [config.parent.name for config in folder.glob("checkpoints/step-*/config.json")]
        steps = [int(step) for name in names if (step := name.removeprefix("step-")).isdecimal()]  # not step-5.broken
        remedy = f", or give a checkpoint of it, {folder / 'checkpoints' / f'step-{max(steps)}'}" if steps else ""
        return f"{folder} is an unfinished run; resume its training{remedy}"
    models = sorted(str(config.parent) for config in folder.glob("*/config.json"))
    return f"{folder} has no config.json; give {' or '.join(models[:3]) or 'the folder of a model'}"


def read_generation_config(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Read generation_config.json. Raises BrokenFileError naming the entry.

    config: the content of config.json beside it
    """
    settings = read_json_object(path)
    suppressed, forced = settings.get("suppress_tokens") or [], settings.get("forced_bos_token_id")
    length, largest = settings.get("max_source_length"), config["decoder_vocab_size"] - 1
    ids = f"ids go from 0 to {largest} (config.json)"

    def is_id(value: Any) -> bool:
        return type(value) is int and 0 <= value <= largest

    rules = {
        "suppress_tokens": (isinstance(suppressed, list) and all(map(is_id, suppressed)), ids),
        "forced_bos_token_id": (forced is None or is_id(forced), ids),
        "early_stopping": (
            type(settings.get("early_stopping")) is not int,
            'here it must be "never", true or false, as transformers requires; a number is an argument of each call',
        ),
        "max_source_length": (
            length is None or (type(length) is int and 1 <= length <= LARGEST_SIZE), "it must be an integer above 0"
        ),
    }  # fmt: skip
    for field, (holds, rule) in rules.items():
        if not holds:
            raise BrokenFileError(f"{path}: {field} is {reprlib.repr(settings[field])}; {rule}")
    if forced is not None and forced in (*suppressed, config.get("eos_token_id"), config.get("pad_token_id")):
        raise BrokenFileError(
            f"{path}: forced_bos_token_id is {forced}, which suppress_tokens forbids, ends a text or is padding; "
            "correct one of the two, or set it to null"
        )
    try:
        is_beam_search_of_transformers(settings.get("beam_search"))
        parse_alignment_heads(settings, config)
    except ValueError as error:
        raise BrokenFileError(f"{path}: {error}") from None
    return settings


def parse_alignment_heads(settings: Mapping[str, Any], config: Mapping[str, Any]) -> list[AlignmentHead] | None:
    """Return alignment_heads of generation_config.json, None if there are none. Raises ValueError.

    config: the content of config.json
    """
    value, layers, heads = settings.get("alignment_heads"), config["decoder_layers"], config["decoder_attention_heads"]
    if value is None:
        return None

    def is_head(entry: Any) -> bool:
        is_list = isinstance(entry, list | tuple) and len(entry) == 3 and all(type(number) is int for number in entry)
        return is_list and all(0 <= number < most for number, most in zip(entry, (layers, heads, 2), strict=True))

    if not isinstance(value, list) or not value or not all(map(is_head, value)):
        raise ValueError(
            f"alignment_heads is {reprlib.repr(value)}; each entry must be [layer, head, offset], with layers 0 to "
            f"{layers - 1}, heads 0 to {heads - 1} and offsets 0 and 1 (`choose-heads` writes it)"
        )
    return [AlignmentHead(*entry) for entry in value]
