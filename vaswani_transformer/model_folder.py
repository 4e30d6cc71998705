"""A model folder: the names of its files, and what torch and ONNX Runtime read of them alike.

Everything here needs neither torch nor transformers. `loading.py` and `onnx_translator.py` add the weights, and use the
settings and tokenizers that were read and checked here; transformers and PEFT read none of the files themselves.
"""

import base64
import hashlib
import json
import os
import re
import reprlib
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .atomic import atomic_file
from .errors import BrokenFileError, InputError, name_in_errors, one_line
from .search_vaswani_transformer import SearchSettings, refuse_settings_of_generate
from .sentences_vaswani_transformer import LANGUAGE_TOKEN, TARGET_TOKENIZER

if TYPE_CHECKING:  # imported where it is used, so that --help is fast
    from tokenizers import Tokenizer

MODEL_TYPE = "vaswani_transformer"
CONVERTIBLE_TYPES = ("marian", "fsmt")  # of transformers, which `convert` reads
# Those of VaswaniTransformerConfig; a config.json may leave them out.
DEFAULT_CONFIG = {"vocab_size": 37000, "decoder_start_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
DEFAULT_CONFIG |= {"decoder_layers": 6, "decoder_attention_heads": 8}
# Entries of config.json that determine, with the weights, what a model computes.
FIXED_ENTRIES = (
    "vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
    "d_k", "d_v", "encoder_ffn_dim", "decoder_ffn_dim", "activation_function", "position_embedding_type",
    "position_base", "position_offset", "max_position_embeddings", "norm_position", "encoder_final_norm",
    "decoder_final_norm", "layer_norm_eps", "attention_bias", "output_bias", "decoder_start_token_id", "pad_token_id",
    "eos_token_id",
)  # fmt: skip
LARGEST_SIZE = 10_000_000  # of a vocabulary, or of learned positions
RARE_TEXT = "\u0378 \u4dc0 \U0001fae0"  # an unassigned character, a hexagram and an emoji
MOST_TOKENS_OF_A_LETTER = 100  # the letter itself, and what a post-processor puts around each sentence
MOST_LETTERS_OF_A_LETTER = 10_000  # by all steps of a tokenizer; SentencePiece's normalisation may make 18
# Steps of tokenizers that may double each letter, besides those with a text to insert. A second ByteLevel encodes what
# the first has made; the others insert a space everywhere if the text that they replace is empty.
DOUBLING = ("ByteLevel", "BPEDecoder", "CTC")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
ADAPTER = "adapter_config.json"  # of an adapter that PEFT saved; its weights are in adapter_model.safetensors
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SETTINGS_FILES = (
    "config.json",
    "generation_config.json",
    *TOKENIZER_FILES,
    *(f"{TARGET_TOKENIZER}/{name}" for name in TOKENIZER_FILES),
)
MODEL_FILES = (*SETTINGS_FILES, "*.safetensors", INDEX)  # of a complete model, as glob patterns
# The code in every saved and published model, so that it loads without this package: transformers copies the files that
# relative imports in configuration_vaswani_transformer.py name.
CODE_FILES = tuple(sorted(path.name for path in Path(__file__).parent.glob("*_vaswani_transformer.py")))
ONNX = "onnx"  # the folder that transformers.js and Optimum read
EXPORT_RECORD = "export.json"  # in an ONNX folder: its precision, and hashes of the exported weights and the graphs
CARD = "README.md"  # the card of a published model
# In a model that was converted from another toolkit: notes for its users; what converting it back needs; the toolkit's
# files, in a folder.
CONVERSION_NOTES, CONVERSION_RECORD, ORIGINALS = "CONVERSION.md", "conversion.json", "original"
MANIFEST = "manifest.json"  # size and sha256 of a checkpoint's files, or of a model's weights and tokenizer
OPTIMIZER = "optimizer.safetensors"
# Entries of tokenizer_config.json that are read and published. Others name files or code, or add tokens that
# tokenizer.json and the model do not have.
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
SIDES = ("left", "right")
# Escaped half of a character, which UTF-8 cannot encode without the other half.
LONE_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
# Each with a test of its value, and what the value must be.
TOKENIZER_SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{name: (lambda value: isinstance(value, str), "a string") for name in SPECIAL_TOKENS},
    **{name: (lambda value: value in SIDES, "left or right") for name in ("padding_side", "truncation_side")},
    **{
        name: (lambda value: isinstance(value, bool), "true or false")
        for name in ("clean_up_tokenization_spaces", "split_special_tokens")
    },
    "model_max_length": (lambda value: type(value) in (int, float) and value > 0, "a number above 0"),
    "model_input_names": (
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value), "a list of strings"
    ),
}  # fmt: skip


class AlignmentHead(NamedTuple):
    """A head of the decoder's cross-attention by which words are aligned; see alignments.py."""

    layer: int  # from 0, as `head`
    head: int
    offset: int  # 0: at the step that predicts a token; 1: at the next one, which reads it

    def __str__(self) -> str:
        """Return the head with the numbers of the pictures, from 1."""
        return f"layer {self.layer + 1} head {self.head + 1}, {('predicting', 'reading')[self.offset]} the word"


class ModelFolder:
    """A model folder whose settings have been checked. Its tokenizers are read when they are first used.

    config: the content of config.json.  generation_config: that of generation_config.json, {} if there is none
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
        for field in ("decoder_start_token_id", "pad_token_id", "eos_token_id"):
            value, known = given.get(field), self.config[field]
            if value is not None and json.dumps(value) not in (f"{known}", f"[{known}]"):  # 2.0 is no id
                raise InputError(
                    f"{file}: {field} is {value}, but {known} in config.json: generate() reads the first value, "
                    "Translator and ONNX the second; set both to the same value"
                )
        try:
            refuse_settings_of_generate(given)
        except ValueError as error:
            raise InputError(f"{file}: {error}") from None
        try:
            return SearchSettings.from_generation_config(given) if given else SearchSettings()
        except (ValueError, TypeError) as error:
            raise BrokenFileError(f"{file}: {error}") from None

    @property
    def vocab_size(self) -> int:
        return self.config["vocab_size"]

    @property
    def decoder_vocab_size(self) -> int:
        return self.config.get("decoder_vocab_size") or self.vocab_size

    @property
    def suppressed(self) -> list[int]:
        """The tokens that no translation has. Without generation_config.json they are those of a new model."""
        if self.generation_config:
            return sorted(set(self.generation_config.get("suppress_tokens") or []))
        special = {self.config["pad_token_id"], self.config["decoder_start_token_id"]}
        return sorted(special - {self.config["eos_token_id"]})

    @property
    def trained_length(self) -> int | None:
        """The tokens of the longest source sentence of the training, if that is known."""
        return self.generation_config.get("max_source_length")

    @property
    def alignment_heads(self) -> list[AlignmentHead] | None:
        """The heads by which words are aligned, if they have been chosen."""
        return parse_alignment_heads(self.generation_config, self.config)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer, or that of the sources. Raises BrokenFileError."""
        tokenizer = read_tokenizer(self.path, self.vocab_size)
        if not self.has_target_tokenizer:  # sources of OpenNMT-py have no </s>
            self._check_end(tokenizer, self.path)
        return tokenizer

    @cached_property
    def target_tokenizer(self) -> "Tokenizer":
        """The tokenizer of the decoder's vocabulary if it has its own, else `tokenizer`.

        Raises BrokenFileError, and InputError if the vocabularies differ and there is one tokenizer.
        """
        folder = self.path / TARGET_TOKENIZER
        if self.has_target_tokenizer:
            target = read_tokenizer(folder, self.decoder_vocab_size, "decoder_vocab_size")
            self._check_end(target, folder)
            return target
        if self.decoder_vocab_size != self.vocab_size:
            raise InputError(
                f"{self.path}: the model has {self.vocab_size} source and {self.decoder_vocab_size} target tokens; it "
                f"needs a second tokenizer for its translations: {folder / 'tokenizer.json'}"
            )
        return self.tokenizer

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


def read_json_object(path: Path, *objects: str) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises BrokenFileError naming the file and the position of the error.

    objects: fields that must be objects as well, if they are there
    """
    check_readable(path)
    try:
        with name_in_errors(path):
            text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        if LONE_SURROGATE.search(text):  # or a pair
            json.dumps(content, ensure_ascii=False).encode()
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


def check_inside(file: Path, folder: Path) -> None:
    """Raise BrokenFileError if a name or a symbolic link leads out of the folder, and does not stay in a Hub cache."""
    inside, target = Path(os.path.realpath(folder)), Path(os.path.realpath(file))  # resolve() raises for a loop
    for parent in inside.parents:
        if parent.name == "snapshots":  # its files are links to the folder of blobs beside it
            inside = parent.parent
    if not target.is_relative_to(inside):
        raise BrokenFileError(f"{file} leads to {target}, outside the folder, and is not read")


def find_weights(folder: Path) -> Path:
    """Return the file that lists all tensors: model.safetensors, or the index of several files."""
    return folder / (WEIGHTS if os.path.lexists(folder / WEIGHTS) else INDEX)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder.

    Raises InputError if there are only pickles, BrokenFileError if files are missing, unreadable or outside the folder.
    """
    if os.path.lexists(folder / WEIGHTS):
        check_readable(folder / WEIGHTS)
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
            raise InputError(f'{folder} holds an ONNX export; read it with backend="onnx" (--backend onnx)')
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


def enumerate_names(names: Iterable[str]) -> str:
    """Join the first names of a list, and say how many more there are."""
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def check_graph(graph: Path) -> bool:
    """Return whether an ONNX file is known to be the one that was exported; False if no record says so.

    Raises BrokenFileError if it is another file, or its model has other weights now.
    """
    record = graph.with_name(EXPORT_RECORD)
    fields = read_json_object(record, "graphs") if os.path.lexists(record) else {}
    exported, model = fields.get("graphs", {}), graph.parent.parent
    if graph.parent.name == ONNX and fields.get("weights_sha256"):
        weights = []
        with suppress(InputError, BrokenFileError):  # a folder may have the graphs alone
            weights = weight_files(model)
        if weights and fields["weights_sha256"] != files_sha256(*weights):
            raise BrokenFileError(
                f"{graph} was exported from other weights than {find_weights(model)}; export the model again"
            )
    if graph.name in exported and exported[graph.name] != file_sha256(graph):
        raise BrokenFileError(
            f"{graph} is not the graph that was exported with {record} (another sha256); export the model again, or "
            f"remove {EXPORT_RECORD} if the change was intended"
        )
    return graph.name in exported


def choose_backend(folder: Path) -> Literal["torch", "onnx"]:
    """Return "onnx" for a folder with a graph and no weights that torch reads."""
    has_weights = any(folder.glob("*.safetensors*"))
    return "onnx" if any(folder.glob("model*.onnx")) and not has_weights else "torch"


def check_readable(path: Path) -> None:
    """Raise BrokenFileError if a file cannot be opened; safetensors would call it missing, ONNX Runtime damaged.

    Reading a named pipe would wait for a writer, and a device such as /dev/zero may have no end.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise BrokenFileError(f"{path} is not a regular file and is not read; copy or download the file again")
        path.open("rb").close()
    except FileNotFoundError:
        what = "a link to a file that does not exist" if path.is_symlink() else "no such file"
        raise BrokenFileError(f"{path}: {what}") from None
    except OSError as error:
        raise BrokenFileError(f"{path} cannot be read: {error.strerror}") from None


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; the file replaces an older one only when it is complete and on disk."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


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


def file_sha256(path: Path) -> str:
    with name_in_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(*paths: Path) -> str:
    """Return a hash over the hashes of the files, in this order."""
    return combine_sha256(map(file_sha256, paths))


def combine_sha256(hashes: Iterable[str]) -> str:
    return hashlib.sha256(b"".join(map(bytes.fromhex, hashes))).hexdigest()


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
        remedy = f"; convert it: vaswani-transformer convert {path.parent} NEW_FOLDER" * (found in CONVERTIBLE_TYPES)
        raise InputError(f"{path}: model_type is {found!r}; only {MODEL_TYPE!r} is supported{remedy}")
    if config.get("quantization_config") is not None:
        raise InputError(f"{path}: quantization_config is set; only unquantised weights are supported")
    if config.get("position_embedding_type") != "learned":
        config["max_position_embeddings"] = None  # sinusoids have no maximum; converted files may still name one
    sizes = ("vocab_size", "decoder_vocab_size", "max_position_embeddings", "decoder_layers", "decoder_attention_heads")
    for field in sizes:
        value = config.get(field)
        is_missing = value is None and field in ("decoder_vocab_size", "max_position_embeddings")
        if not is_missing and (type(value) is not int or not 1 <= value <= LARGEST_SIZE):
            raise BrokenFileError(f"{path}: {field} is {value!r}; it must be an integer between 1 and {LARGEST_SIZE}")
    for field in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        size_field = "vocab_size"
        if field == "decoder_start_token_id" and config.get("decoder_vocab_size"):
            size_field = "decoder_vocab_size"
        value, size = config.get(field), config[size_field]
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
    largest = (config.get("decoder_vocab_size") or config["vocab_size"]) - 1
    suppressed = settings.get("suppress_tokens") or []
    if not isinstance(suppressed, list) or not all(
        type(token) is int and 0 <= token <= largest for token in suppressed
    ):
        raise BrokenFileError(
            f"{path}: suppress_tokens is {reprlib.repr(suppressed)}; ids go from 0 to {largest} (config.json)"
        )
    if type(settings.get("early_stopping")) is int:
        raise BrokenFileError(
            f'{path}: early_stopping is {settings["early_stopping"]}; here it must be "never", true or false, as '
            "transformers requires; a number is an argument of each call"
        )
    length = settings.get("max_source_length")
    if length is not None and (type(length) is not int or not 1 <= length <= LARGEST_SIZE):
        raise BrokenFileError(f"{path}: max_source_length is {length!r}; it must be an integer above 0")
    try:
        parse_alignment_heads(settings, config)
    except ValueError as error:
        raise BrokenFileError(f"{path}: {error}") from None
    return settings


def parse_alignment_heads(settings: dict[str, Any], config: Mapping[str, Any]) -> list[AlignmentHead] | None:
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


def read_tokenizer(folder: Path, vocabulary: int | None = None, size_field: str = "vocab_size") -> "Tokenizer":
    """Read tokenizer.json, and set it up as transformers does with tokenizer_config.json.

    vocabulary: the size that its ids must be below;  size_field: the field of config.json that it comes from
    Raises BrokenFileError, and InputError for a converted model whose checkpoint came without its vocabulary.
    """
    from tokenizers import Tokenizer

    path, notes = folder / "tokenizer.json", folder / CONVERSION_NOTES
    if notes.exists() and not path.exists():
        raise InputError(
            f"{folder} has no tokenizer.json: the converted checkpoint came without the files of its vocabulary "
            f"(see {notes}); put them beside it and convert it again"
        )
    settings = read_tokenizer_settings(folder)
    check_readable(path)
    with tokenizer_errors(path):
        tokenizer = Tokenizer.from_file(str(path))
        check_growth(path, tokenizer)
        control = {settings.get(name) for name in SPECIAL_TOKENS}
        if any(t.special and t.content not in control for t in tokenizer.get_added_tokens_decoder().values()):
            content = json.loads(tokenizer.to_str())
            if keep_symbols(content, settings):
                tokenizer = Tokenizer.from_str(json.dumps(content))
        # transformers saves truncation and padding as its last call set them, and applies neither after loading.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        ids = tokenizer.encode("a").ids  # a pre-tokenizer or post-processor may panic here
        tokenizer.encode(RARE_TEXT)  # fails without a token for unknown text
        known = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
        tokenizer.decode(known)  # a decoder may panic, too
    for name in SPECIAL_TOKENS:
        if name in settings and tokenizer.token_to_id(settings[name]) is None:
            file = folder / "tokenizer_config.json"
            raise BrokenFileError(f"{file}: {name} is {settings[name]!r:.80}, which tokenizer.json does not have")
    if len(ids) > MOST_TOKENS_OF_A_LETTER:
        raise BrokenFileError(f"{path} makes {len(ids):,} tokens of one letter; its post_processor adds too many")
    # Those of a post-processor are not necessarily in the vocabulary.
    largest = max([*known, *ids], default=-1)
    if vocabulary is not None and largest >= vocabulary:
        raise BrokenFileError(
            f"{path} has ids up to {largest}, but config.json has {size_field} {vocabulary}: "
            "tokenizer and model do not belong together"
        )
    # Special tokens in a user's text are plain text, also without tokenizer_config.json, as in some ONNX folders.
    tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", not settings))
    return tokenizer


def check_growth(path: Path, tokenizer: "Tokenizer") -> None:
    """Raise BrokenFileError naming the step by which a short text would fill the memory.

    A step multiplies what an earlier one has inserted only if it matches a letter of it, which the escapes of a toolkit
    do not do.
    """
    for names in (("normalizer", "pre_tokenizer"), ("decoder",)):
        most = floor = 1.0  # the most letters that any letter has become, and one that no step has inserted
        inserted: dict[str, float] = {}  # the same for the letters of inserted texts
        for name in names:
            part = getattr(tokenizer, name)
            for step in [] if part is None else list_steps(json.loads(part.__getstate__())):
                text = step.get("content", step.get("prepend")) if step["type"] in ("Replace", "Prepend") else None
                matched = "" if text is None else step.get("pattern", {}).get("String", "")
                before = max((inserted.get(letter, floor) for letter in matched), default=most)
                after = before * measure_growth(step, text, matched)
                most = max(most, after)
                if most > MOST_LETTERS_OF_A_LETTER:
                    raise BrokenFileError(
                        f"{path}: {name} may make {most:,.0f} letters of one, with its step {step['type']} "
                        f"{reprlib.repr(text or '')}; at most {MOST_LETTERS_OF_A_LETTER:,} are supported: shorten or "
                        "remove the step"
                    )
                if text is None:  # it may turn an inserted letter into any other
                    floor, inserted = most, {}
                else:
                    inserted |= {letter: max(inserted.get(letter, floor), after) for letter in text}


def measure_growth(step: dict[str, Any], text: str | None, matched: str) -> float:
    """Return the largest number of letters that a step of a tokenizer makes of one.

    text: what the step inserts, if it is given.  matched: what it replaces; "" for a place or a regular expression
    """
    if text is not None:
        return max(1, len(text) / len(matched) if matched else 1 + len(text))
    if step["type"] == "Precompiled":  # of SentencePiece: the size of a trie, the trie, texts that end in a zero
        charsmap = base64.b64decode(step["precompiled_charsmap"])
        return max(map(len, charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")), default=1)
    return 2 if step["type"] in DOUBLING else 1


def list_steps(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part of a tokenizer, those of a sequence one by one."""
    if part["type"] != "Sequence":
        yield part
    for steps in part.values() if part["type"] == "Sequence" else ():
        if isinstance(steps, list):
            for step in steps:
                yield from list_steps(step)


@contextmanager
def tokenizer_errors(path: Path) -> Iterator[None]:
    """Raise errors and panics of the tokenizers library as BrokenFileError."""
    try:
        with silence_stderr():
            yield
    except (KeyboardInterrupt, SystemExit, BrokenFileError):
        raise
    except BaseException as error:  # tokenizers raises Exception, and for a panic in Rust a subclass of BaseException
        read_json_object(path)  # which says more about a file that is missing, or no JSON
        raise BrokenFileError(
            f"{path} is not a tokenizer ({one_line(str(error))}); copy or download it again"
        ) from None


@contextmanager
def silence_stderr() -> Iterator[None]:
    """Discard what code outside of Python prints on stderr: where Rust panics, it does so besides raising an error."""
    try:
        kept = os.dup(2)
    except OSError:  # closed
        yield
        return
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def keep_symbols(content: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Make added tokens of tokenizer.json, except control tokens, stay whole in any text. Return whether any changed.

    `add_special_tokens` of transformers adds tags and language codes as special tokens, which `split_special_tokens`
    would split like a typed </s>. Symbols that are not special are found in the normalised text, as `train_tokenizer`
    adds them.
    """
    control = {settings[name] for name in SPECIAL_TOKENS if name in settings}
    if not control:  # no tokenizer_config.json
        special = (token["content"] for token in content.get("added_tokens", []) if token["special"])
        control = {token for token in special if not LANGUAGE_TOKEN.fullmatch(token)}
    control |= set(find_texts(content.get("post_processor")))  # [CLS]
    changed = False
    for token in content.get("added_tokens", []):
        if token["special"] and token["content"] not in control:
            token |= {"special": False, "normalized": True}
            changed = True
    return changed


def find_texts(part: Any) -> Iterator[str]:
    """Yield all strings and keys in a part of a JSON file."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict | list):
        for inner in part:
            yield from find_texts(inner)
        if isinstance(part, dict):
            yield from find_texts(list(part.values()))


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read the entries of tokenizer_config.json that are used, {} if there is no such file. Raises BrokenFileError."""
    path = folder / "tokenizer_config.json"
    if not os.path.lexists(path):
        return {}
    content = read_json_object(path)
    settings = {name: content[name] for name in TOKENIZER_SETTINGS if content.get(name) is not None}
    for name, value in settings.items():
        if name in SPECIAL_TOKENS and isinstance(value, dict):  # an AddedToken, as older transformers saved it
            value = settings[name] = value.get("content")
        fits, kind = TOKENIZER_SETTINGS[name]
        if not fits(value):
            raise BrokenFileError(f"{path}: {name} is {reprlib.repr(value)}; it must be {kind}")
    return settings


def plain_tokenizer(path: Path) -> bytes:
    """Return the content of tokenizer.json without truncation and padding, which `Tokenizer.from_file` would apply."""
    content = read_json_object(path) | {"truncation": None, "padding": None}
    return json.dumps(content, indent=2, ensure_ascii=False).encode()  # formatted as tokenizers does
