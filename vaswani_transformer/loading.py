"""Load model and tokenizer from a folder, and validate every file before a weight is used.

transformers fills missing tensors with random numbers and only logs it. Here a folder loads exactly as it was saved,
or an error names the file, field or tensor. No code from the folder runs: `auto_map` is ignored, and pickled weights
are not opened.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from .configuration_vaswani_transformer import VaswaniTransformerConfig
from .errors import BrokenFileError, InputError, UnavailableError, one_line
from .model_folder import (
    INDEX,
    WEIGHTS,
    check_readable,
    check_special_tokens,
    read_config,
    read_generation_config,
    read_json_object,
    read_tokenizer,
    verify_manifest,
)
from .modeling_vaswani_transformer import VaswaniTransformerForConditionalGeneration, target_vocab_size
from .text_vaswani_transformer import TARGET_TOKENIZER

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

# Entries of generation_config.json that generate() applies and Translator and ONNX do not, with their neutral values.
UNSUPPORTED_SETTINGS = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "constraints": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "max_new_tokens": None,
    "max_time": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "penalty_alpha": 0.0,
    "renormalize_logits": False,
    "repetition_penalty": 1.0,
    "sequence_bias": None,
    "stop_strings": None,
    "token_healing": False,
    "watermarking_config": None,
}


def load_model(
    folder: str | Path, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
) -> VaswaniTransformerForConditionalGeneration:
    """Load the model of a folder in eval mode. dtype None: as it was saved.

    Raises InputError if the folder holds another kind of model, BrokenFileError naming the file, and the field or
    the tensors, if something in it is missing, truncated, not finite or inconsistent.
    """
    folder = Path(folder)
    config = load_config(folder)
    check_weights(folder, config)
    verify_manifest(folder)
    check_generation_config(folder, config)
    device, dtype = as_device(device), as_dtype(dtype)
    bars_wanted = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = VaswaniTransformerForConditionalGeneration.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True, use_safetensors=True
        )
    except (ValueError, KeyError) as error:  # e.g. a dtype that is not floating-point
        raise BrokenFileError(f"{folder / 'config.json'}: {one_line(str(error))}") from error
    finally:
        if bars_wanted:
            logging.enable_progress_bar()
    if infinite := [name for name, tensor in model.named_parameters() if not tensor.isfinite().all()]:
        as_type = "" if dtype == "auto" else f" as {dtype}"
        raise BrokenFileError(
            f"{weights_or_index(folder)} has NaN or infinite values{as_type} in {enumerated(infinite)}; "
            "copy the file again, or use an earlier checkpoint"
        )
    return model.eval().to(device)  # pyright: ignore[reportArgumentType] (wrapped by transformers' decorator)


def load_config(folder: Path) -> VaswaniTransformerConfig:
    """Load config.json. Raises BrokenFileError naming the field whose type or value is wrong, and InputError."""
    path = folder / "config.json"
    fields = read_config(path)
    if fields.get("quantization_config") is not None:
        raise InputError(f"{path}: quantization_config is set; only unquantised weights are supported")
    # transformers would read weights from a file of any name given here, even outside the folder.
    fields.pop("transformers_weights", None)
    try:
        config = VaswaniTransformerConfig.from_dict(fields)
    except Exception as error:  # strict dataclasses raise various types
        raise BrokenFileError(f"{path}: {one_line(str(error))}") from error
    check_special_tokens(path, config.to_dict(), ("decoder_start_token_id", "pad_token_id", "eos_token_id"))
    return config


def check_weights(folder: Path, config: VaswaniTransformerConfig) -> None:
    """Check names and shapes of the saved tensors against config.json. Raises BrokenFileError naming the tensors."""
    found = {name: shape for file in weight_files(folder) for name, shape in tensor_shapes(file).items()}
    where = weights_or_index(folder)
    try:
        with torch.device("meta"):
            model = VaswaniTransformerForConditionalGeneration(config)
    except (ValueError, KeyError) as error:  # unknown names in config.json, e.g. of an attention implementation
        raise BrokenFileError(f"{folder / 'config.json'}: {one_line(str(error))}") from error
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = model.all_tied_weights_keys  # one copy of a tied matrix is enough
    present = {tied.get(name, name) for name in found}
    if missing := [name for name in expected if tied.get(name, name) not in present]:
        raise BrokenFileError(f"{where} lacks {enumerated(missing)}, which config.json requires")
    if unknown := [name for name in found if name not in expected]:
        raise BrokenFileError(f"{where} has {enumerated(unknown)}, which the architecture in config.json does not have")
    for name, shape in found.items():
        if shape != expected[name]:
            raise BrokenFileError(f"{where} has {name} {shape} where config.json gives {expected[name]}")


def weights_or_index(folder: Path) -> Path:
    """Return the file that lists all tensors: model.safetensors, or the index of several files."""
    return folder / (WEIGHTS if (folder / WEIGHTS).exists() else INDEX)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder.

    Raises InputError if there are only pickles, BrokenFileError if files are missing or outside the folder.
    """
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / INDEX).exists():
        pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
        if pickles:
            raise InputError(
                f"{folder}: the weights are only available as {enumerated(pickles)}, a pickle, which can run any code "
                f"when it is opened; if you trust it, convert it to {WEIGHTS}: safetensors.torch.save_file("
                "{n: t.clone() for n, t in torch.load(file, weights_only=True).items()}, target)"
            )
        raise BrokenFileError(f"{folder / WEIGHTS}: no such file; the folder has a config.json but no weights")
    path = folder / INDEX
    file_of_tensor = read_json_object(path).get("weight_map")
    if not isinstance(file_of_tensor, dict) or not all(isinstance(name, str) for name in file_of_tensor.values()):
        raise BrokenFileError(f"{path}: weight_map must map the name of each tensor to a file name")
    # Files in the Hub's cache are links to its folder of blobs.
    inside = folder.resolve()
    if inside.parent.name == "snapshots":
        inside = inside.parent.parent
    files = []
    for name in sorted(set(file_of_tensor.values())):
        file = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not file.resolve().is_relative_to(inside):
            raise BrokenFileError(f"{path}: {name!r} is outside the model folder and is not read")
        if not file.is_file():
            raise BrokenFileError(f"{file}: no such file, but {INDEX} names it")
        files.append(file)
    return files


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes from a safetensors file's header. Raises BrokenFileError if the file is incomplete."""
    check_readable(file)
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        size = f"{file.stat().st_size:,} bytes"
        raise BrokenFileError(
            f"{file} is not a complete safetensors file ({size}: {error}); copy or download it again"
        ) from None


def check_generation_config(folder: Path, config: VaswaniTransformerConfig) -> None:
    """Check generation_config.json, if there is one. Raises BrokenFileError naming the entry."""
    path = folder / "generation_config.json"
    settings = read_generation_config(path, target_vocab_size(config))
    try:
        GenerationConfig.from_dict(settings or {})
    except Exception as error:  # its validation raises various types
        raise BrokenFileError(f"{path}: {one_line(str(error))}") from error


def refuse_unsupported_settings(model: VaswaniTransformerForConditionalGeneration, folder: Path) -> None:
    """Raise InputError naming a setting that generate() applies and Translator and ONNX do not."""
    settings, config, path = model.generation_config, model.config, folder / "generation_config.json"
    for field in ("decoder_start_token_id", "pad_token_id", "eos_token_id"):
        value, known = getattr(settings, field), getattr(config, field)
        if value is not None and value not in (known, [known]):
            raise InputError(
                f"{path}: {field} is {value}, but {known} in config.json: generate() reads the first value, Translator "
                "and ONNX the second; set both to the same value"
            )
    offset, max_length = getattr(settings, "max_source_length_offset", None), settings.max_length
    if offset is None and max_length is not None:
        raise InputError(
            f"{path}: max_length is {max_length}, which generate() applies and Translator and ONNX do not; set instead "
            "max_source_length_offset, the number of tokens that an output may have beyond its source (paper: 50)"
        )
    for field, neutral in UNSUPPORTED_SETTINGS.items():
        value = getattr(settings, field, None)
        if value is not None and value != neutral:
            raise InputError(
                f"{path}: {field} is {value!r}, which generate() applies and Translator and ONNX do not; "
                f"set it to {json.dumps(neutral)}, or call generate()"
            )


def load_tokenizer(
    folder: str | Path, config: VaswaniTransformerConfig | None = None, target: bool = False
) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder. With a config, check that its ids fit the model's vocabulary.

    target: whether the folder holds the decoder's tokenizer, whose ids are compared with decoder_vocab_size
    Raises BrokenFileError naming tokenizer.json or tokenizer_config.json, and InputError, see `read_tokenizer`.
    """
    folder = Path(folder)
    size_field = "decoder_vocab_size" if target else "vocab_size"
    read_tokenizer(folder, getattr(config, size_field, None), size_field)
    settings_path = folder / "tokenizer_config.json"
    settings = read_json_object(settings_path)
    length = settings.get("model_max_length")
    if not isinstance(length, int | float | None) or isinstance(length, bool):
        raise BrokenFileError(f"{settings_path}: model_max_length is {length!r}; it must be a number")
    try:
        # Not AutoTokenizer, which may run code from the folder; a plain tokenizer.json needs none.
        loaded = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers does not document which
        raise BrokenFileError(f"{settings_path}: {type(error).__name__}: {one_line(str(error))}") from error
    for field in ("pad_token_id", "eos_token_id"):
        value = getattr(loaded, field)
        if value is None and field == "eos_token_id" and (folder / TARGET_TOKENIZER).is_dir():
            continue  # OpenNMT-py's sources have no </s>; the target tokenizer has one
        expected = getattr(config, field, value)
        if value is None or value != expected:
            token = field.removesuffix("_id")
            known = "" if config is None else f", but config.json has {expected}"
            raise BrokenFileError(f"{settings_path}: {token} is {settings.get(token)!r}; {field} is {value}{known}")
    return loaded


def as_dtype(dtype: str | torch.dtype | None) -> str | torch.dtype:
    """Return a torch dtype for the weights, or "auto" (as saved) for None. Raises InputError for another name."""
    if dtype is None:
        return "auto"
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if chosen not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        raise InputError(f"dtype {dtype!r} is not one of float32, bfloat16, float16, float64")
    return chosen


def as_device(device: str | torch.device | None) -> torch.device:
    """Return a torch device; for None, CUDA, Apple's GPU or the CPU. Raises InputError or UnavailableError."""
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError(f"device {device!r} is unknown to torch; examples are cpu, cuda and cuda:1") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UnavailableError(f"device {device!r}: torch sees {torch.cuda.device_count()} CUDA devices here")
    return chosen


def enumerated(names: Iterable[str]) -> str:
    """Join the first names of a list, and say how many more there are."""
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
