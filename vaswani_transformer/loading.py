"""Load the model and the tokenizers of a folder with torch.

transformers fills missing tensors with random numbers and only logs it. Here a folder loads exactly as it was saved,
or an error names the file, field or tensor. No code from the folder runs: `auto_map` is ignored, pickled weights are
not opened, and adapters are refused.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from .configuration_vaswani_transformer import VaswaniTransformerConfig
from .errors import BrokenFileError, InputError, UnavailableError, name_in_errors, one_line
from .files import check_readable
from .model_folder import ModelFolder, enumerate_names, find_weights, verify_manifest, weight_files
from .modeling_vaswani_transformer import VaswaniTransformerForConditionalGeneration
from .sentences_vaswani_transformer import TARGET_TOKENIZER
from .tokenizer_files import read_tokenizer, read_tokenizer_settings

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # in which the model can compute


def load_model(
    folder: ModelFolder | str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> VaswaniTransformerForConditionalGeneration:
    """Load the model of a folder in eval mode. dtype None: as it was saved.

    Raises InputError if the folder holds another kind of model, BrokenFileError naming the file, and the field or
    the tensors, if something in it is missing, truncated, not finite or inconsistent.
    """
    folder = folder if isinstance(folder, ModelFolder) else ModelFolder(folder)
    device, dtype = as_device(device), as_dtype(dtype)
    config, files = load_config(folder), weight_files(folder.path)
    verify_manifest(folder.path)
    try:
        with torch.device("meta"):
            model = VaswaniTransformerForConditionalGeneration(config)
    except (ValueError, KeyError) as error:  # unknown names in config.json, e.g. of an attention implementation
        raise BrokenFileError(f"{folder.path / 'config.json'}: {one_line(str(error))}") from error
    if folder.generation_config:
        model.generation_config = load_generation_config(folder)
    weights: dict[str, Tensor] = {}
    for file in files:
        tensors = load_tensors(file)
        if twice := weights.keys() & tensors.keys():
            raise BrokenFileError(f"{file} holds {enumerate_names(sorted(twice))}, which another file holds as well")
        if device.type == "cpu":  # else the tensors stay the mapped file, which may be overwritten or become shorter
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        weights |= tensors
    assign_weights(model, weights, find_weights(folder.path))
    if dtype is not None:
        model.to(dtype)  # pyright: ignore[reportArgumentType] (wrapped by transformers' decorator)
    if len(kinds := sorted({str(tensor.dtype).removeprefix("torch.") for tensor in model.parameters()})) > 1:
        raise BrokenFileError(
            f"{find_weights(folder.path)} has tensors of {' and '.join(kinds)}; choose one for all, such as "
            f"dtype={kinds[-1]!r}"
        )
    if infinite := [name for name, tensor in model.named_parameters() if not tensor.isfinite().all()]:
        as_type = "" if dtype is None else f" as {dtype}"
        raise BrokenFileError(
            f"{find_weights(folder.path)} has NaN or infinite values{as_type} in {enumerate_names(infinite)}; "
            "copy the file again, or use an earlier checkpoint"
        )
    config._name_or_path, config.dtype = str(folder.path), model.dtype
    return model.eval().to(device)  # pyright: ignore[reportArgumentType]


def load_config(folder: ModelFolder | str | Path) -> VaswaniTransformerConfig:
    """Load config.json as a configuration. Raises BrokenFileError naming the field whose type or value is wrong.

    transformers would also take others of its fields from the file, such as parts of another model, and the settings of
    a call.
    """
    folder = folder if isinstance(folder, ModelFolder) else ModelFolder(folder)
    known = VaswaniTransformerConfig.__annotations__.keys() | VaswaniTransformerConfig.attribute_map
    try:
        return VaswaniTransformerConfig.from_dict(
            {name: value for name, value in folder.config.items() if name in known}
        )
    except Exception as error:  # strict dataclasses raise various types
        raise BrokenFileError(f"{folder.path / 'config.json'}: {one_line(str(error))}") from error


def load_generation_config(folder: ModelFolder) -> GenerationConfig:
    """Load generation_config.json as transformers reads it. Raises BrokenFileError naming the entry."""
    try:
        return GenerationConfig.from_dict(dict(folder.generation_config))
    except Exception as error:  # its validation raises various types
        raise BrokenFileError(f"{folder.path / 'generation_config.json'}: {one_line(str(error))}") from error


def assign_weights(model: VaswaniTransformerForConditionalGeneration, weights: dict[str, Tensor], where: Path) -> None:
    """Give a model on the meta device its weights. Raises BrokenFileError naming the tensors that do not fit.

    where: the file to name
    """
    expected, tied = model.state_dict(), model.all_tied_weights_keys
    for name, original in tied.items():  # one copy of a tied matrix is enough, under any of its names
        if name in weights and weights.setdefault(original, weights[name]).shape == weights[name].shape:
            if not torch.equal(weights[name], weights[original]):  # transformers would not tie them
                raise BrokenFileError(
                    f"{where} has different values in {name} and {original}, which config.json ties; set "
                    "tie_word_embeddings or share_encoder_decoder_embeddings to false there, or remove one of them"
                )
            del weights[name]
    if missing := [name for name in expected if name not in weights and name not in tied]:
        raise BrokenFileError(f"{where} lacks {enumerate_names(missing)}, which config.json requires")
    if unknown := [name for name in weights if name not in expected]:
        raise BrokenFileError(
            f"{where} has {enumerate_names(unknown)}, which the architecture in config.json does not have"
        )
    for name, tensor in weights.items():
        found, wanted = tuple(tensor.shape), tuple(expected[name].shape)
        if found != wanted:
            raise BrokenFileError(f"{where} has {name} {found} where config.json gives {wanted}")
        if tensor.dtype not in DTYPES:
            raise BrokenFileError(f"{where} has {name} as {tensor.dtype}; weights are {', '.join(map(str, DTYPES))}")
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()


def load_tensors(file: Path) -> dict[str, Tensor]:
    """Load a safetensors file. Raises BrokenFileError if it is incomplete."""
    check_readable(file)
    try:
        with name_in_errors(file):
            return load_file(file)
    except (SafetensorError, OSError) as error:
        size = f"{file.stat().st_size:,} bytes"
        raise BrokenFileError(
            f"{file} is not a complete safetensors file ({size}: {error}); copy or download it again"
        ) from None


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder, without its model.

    Raises BrokenFileError naming tokenizer.json or tokenizer_config.json, and InputError, see `read_tokenizer`.
    """
    return wrap_tokenizer(read_tokenizer(Path(folder)), Path(folder))


def wrap_tokenizer(
    tokenizer: Tokenizer, folder: Path, config: VaswaniTransformerConfig | None = None
) -> PreTrainedTokenizerFast:
    """Return a tokenizer that was read from a folder in the class of transformers, which then reads no file itself.

    Raises BrokenFileError if tokenizer_config.json has no pad_token or eos_token, or another one than the config.
    """
    path, settings = folder / "tokenizer_config.json", read_tokenizer_settings(folder)
    loaded = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings)
    loaded.name_or_path = str(folder)
    for field in ("pad_token_id", "eos_token_id"):
        value = getattr(loaded, field)
        if value is None and field == "eos_token_id" and (folder / TARGET_TOKENIZER).is_dir():
            continue  # OpenNMT-py's sources have no </s>; the target tokenizer has one
        expected = getattr(config, field, value)
        if value is None or value != expected:
            token = field.removesuffix("_id")
            known = "" if config is None else f", but config.json has {expected}"
            raise BrokenFileError(f"{path}: {token} is {settings.get(token)!r}; {field} is {value}{known}")
    return loaded


def as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Return a torch dtype for the weights, or None for None. Raises InputError for another name."""
    chosen = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    if chosen not in (None, *DTYPES):
        raise InputError(f"dtype {dtype!r} is not one of float32, bfloat16, float16, float64")
    return chosen  # pyright: ignore[reportReturnType]


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
        found = torch.cuda.device_count()
        raise UnavailableError(f"device {device!r}: torch {torch.__version__} sees {found} CUDA devices here; use cpu")
    there = {"cpu", "cuda", getattr(torch.accelerator.current_accelerator(check_available=True), "type", "cpu")}
    if chosen.type not in there:
        raise UnavailableError(f"device {device!r}: torch has no such device here; use cpu or leave it out")
    return chosen
