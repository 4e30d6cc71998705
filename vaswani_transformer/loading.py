"""A trained model's folder -> model and tokenizer, with every file checked before a weight is used.

transformers fills a tensor that the file lacks with random numbers and says so in a log. Here a folder either loads
as it was saved or is refused by the name of the file, field or tensor. No code from the folder runs: `auto_map` is
not looked at, and pickled weights are not opened.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from .configuration_vaswani_transformer import VaswaniTransformerConfig
from .errors import BrokenFileError, InputError, UnavailableError, one_line
from .model_folder import read_json_object
from .modeling_vaswani_transformer import MAX_BEAMS, VaswaniTransformerForConditionalGeneration
from .text_translator import LENGTH_PENALTIES
from .text_vaswani_transformer import TARGET_TOKENIZER

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
MODEL_FILES = ["config.json", "generation_config.json", "*.safetensors", INDEX, "*tokenizer*.json"]

# generation_config.json: what a search could be asked for without being absurd. None is always allowed.
GENERATION_LIMITS = {
    "num_beams": (1, MAX_BEAMS),
    "num_return_sequences": (1, MAX_BEAMS),
    "max_length": (1, 1_000_000),
    "max_new_tokens": (1, 1_000_000),
    "min_length": (0, 1_000_000),
    "min_new_tokens": (0, 1_000_000),
    "max_source_length_offset": (1, 1_000_000),
    "length_penalty": LENGTH_PENALTIES,
}


# Settings of generate() that give other translations, and the value with which they do not.
SEARCHES_OTHERWISE = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "constraints": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "dola_layers": None,
    "early_stopping": "never",
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


def find_folder(folder_or_repo: str | Path, revision: str | None = None) -> Path:
    """The model's folder: the given one, or that of a Hub repository `owner/name`, fetched if it is not cached."""
    folder = Path(folder_or_repo)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(f"{folder} is a file; give the folder that holds config.json and {WEIGHTS}")
    parent_is_a_folder = folder.parent != Path() and folder.parent.is_dir()
    if parent_is_a_folder or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder_or_repo), re.ASCII):
        raise InputError(f"{folder}: there is no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return Path(snapshot_download(str(folder_or_repo), revision=revision, allow_patterns=MODEL_FILES))
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise InputError(f"{folder}: there is no such folder, and the Hub has no such repository ({error})") from None
    except Exception as error:  # the network fails in the ways of four libraries
        raise UnavailableError(
            f"{folder}: there is no such folder, and the Hub could not be asked ({type(error).__name__}: {error})"
        ) from error


def load_model(
    folder: str | Path, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
) -> VaswaniTransformerForConditionalGeneration:
    """The model of a folder, in eval mode. dtype None: as it was saved.

    Raises InputError if the folder holds another kind of model, BrokenFileError naming the file, and the field or
    the tensors, if something in it is missing, truncated or does not fit.
    """
    folder = Path(folder)
    config = load_config(folder)
    checked_blueprint(folder, config)
    check_generation_config(folder, config)
    device, dtype = checked_device(device), checked_dtype(dtype)
    bars_wanted = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = VaswaniTransformerForConditionalGeneration.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True, use_safetensors=True
        )
    except (ValueError, KeyError) as error:  # what is left: names of functions, such as the attention's
        raise BrokenFileError(f"{folder / 'config.json'}: {one_line(str(error))}") from error
    finally:
        if bars_wanted:
            logging.enable_progress_bar()
    return model.eval().to(device)  # pyright: ignore[reportArgumentType]


def load_config(folder: Path) -> VaswaniTransformerConfig:
    """config.json. Raises BrokenFileError naming the field whose type or value is wrong."""
    path = folder / "config.json"
    fields = read_json_object(path)
    kind = fields.get("model_type")
    if kind != VaswaniTransformerConfig.model_type:
        raise InputError(
            f"{path}: model_type is {kind!r}; this program reads {VaswaniTransformerConfig.model_type!r} only"
        )
    if fields.get("quantization_config") is not None:
        raise InputError(f"{path}: quantization_config is set; this program reads unquantised weights only")
    # transformers would follow this entry to a file of any name; the weights are model.safetensors.
    fields.pop("transformers_weights", None)
    try:
        config = VaswaniTransformerConfig.from_dict(fields)
    except Exception as error:  # strict dataclasses raise their own kinds, later transformers may raise others
        raise BrokenFileError(f"{path}: {one_line(str(error))}") from error
    for field in ("decoder_start_token_id", "pad_token_id", "eos_token_id"):
        id = getattr(config, field)
        size = target_vocabulary(config) if field == "decoder_start_token_id" else config.vocab_size
        if id is None or not 0 <= id < size:
            raise BrokenFileError(f"{path}: {field} is {id}; ids go from 0 to {size - 1} (vocab_size)")
    return config


def checked_blueprint(folder: Path, config: VaswaniTransformerConfig) -> VaswaniTransformerForConditionalGeneration:
    """The model without its weights, to which names and shapes of the tensors on disk fit. Raises BrokenFileError."""
    files = weight_files(folder)
    found = {name: shape for file in files for name, shape in tensor_shapes(file).items()}
    where = folder / (WEIGHTS if len(files) == 1 else INDEX)

    # Layers first: a model is only built, without memory, when its size is known to be no fantasy.
    for stack in ("encoder", "decoder"):
        layers = getattr(config, f"{stack}_layers")
        present = {int(n) for name in found for n in re.findall(rf"\b{stack}\.layers\.(\d+)\.", name)}
        lacking = [f"model.{stack}.layers.{n}.*" for n in range(layers) if n not in present]
        if lacking:
            raise BrokenFileError(
                f"{where} lacks {enumerated(lacking)}: config.json says {stack}_layers {layers}, "
                f"the file has {len(present)}"
            )
    try:
        with torch.device("meta"):
            model = VaswaniTransformerForConditionalGeneration(config)
    except (ValueError, KeyError) as error:
        raise BrokenFileError(f"{folder / 'config.json'}: {one_line(str(error))}") from error
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    twins = model.all_tied_weights_keys  # tied matrices: one present copy is enough
    present_sources = {twins.get(name, name) for name in found}

    missing = [name for name in expected if twins.get(name, name) not in present_sources]
    unknown = [name for name in found if name not in expected]
    misshapen = [
        f"{name} {found[name]} where config.json gives {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if missing:
        raise BrokenFileError(f"{where} lacks {enumerated(missing)}, which config.json asks for")
    if unknown:
        raise BrokenFileError(f"{where} has {enumerated(unknown)}, for which config.json has no place")
    if misshapen:
        raise BrokenFileError(f"{where} has {enumerated(misshapen)}")
    return model


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder; an index may not name any outside it."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / INDEX).exists():
        pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
        if pickles:
            raise InputError(
                f"{folder}: the weights are only there as {enumerated(pickles)}, a pickle, which can run any code when "
                f"it is opened; convert it to {WEIGHTS} where you trust it: "
                "safetensors.torch.save_file("
                "{n: t.clone() for n, t in torch.load(file, weights_only=True).items()}, target)"
            )
        raise BrokenFileError(f"{folder / WEIGHTS}: no such file; the folder has a config.json but no weights")
    path = folder / INDEX
    places = read_json_object(path).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise BrokenFileError(f"{path}: weight_map must say for each tensor which file holds it")
    # Files of the Hub's cache are links into its folder of blobs.
    inside = folder.resolve()
    if inside.parent.name == "snapshots":
        inside = inside.parent.parent
    files = []
    for name in sorted(set(places.values())):
        file = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not file.resolve().is_relative_to(inside):
            raise BrokenFileError(f"{path}: {name!r} leaves the model's folder; such an index is not followed")
        if not file.is_file():
            raise BrokenFileError(f"{file}: no such file, but {INDEX} names it")
        files.append(file)
    return files


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file, from its header. Raises BrokenFileError if the file is not whole."""
    str(file).encode()  # UnicodeEncodeError for a name that safetensors does not take: errors.py says it better
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        size = f"{file.stat().st_size:,} bytes"
        raise BrokenFileError(
            f"{file} is not a whole safetensors file ({size}: {error}); copy or fetch it again"
        ) from None


def check_generation_config(folder: Path, config: VaswaniTransformerConfig) -> None:
    """generation_config.json, where there is one. Raises BrokenFileError naming an absurd entry."""
    path = folder / "generation_config.json"
    if not path.exists():
        return
    fields = read_json_object(path)
    for field, (least, most) in GENERATION_LIMITS.items():
        value = fields.get(field)
        kinds = (int, float) if field == "length_penalty" else int
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
            raise BrokenFileError(f"{path}: {field} is {value!r}; it must lie between {least} and {most}")
    for field, value in fields.items():
        ids = value if isinstance(value, list) else [value]
        if not field.endswith(("_token_id", "suppress_tokens")) or value is None:
            continue
        if not all(type(token) is int and 0 <= token < target_vocabulary(config) for token in ids):
            raise BrokenFileError(
                f"{path}: {field} is {value!r}; ids go from 0 to {target_vocabulary(config) - 1} (config.json)"
            )
    try:
        GenerationConfig.from_dict(fields)
    except Exception as error:  # its validation raises several kinds
        raise BrokenFileError(f"{path}: {one_line(str(error))}") from error


def own_search(model: VaswaniTransformerForConditionalGeneration) -> tuple[int, float]:
    """Beam size and alpha with which the model's generate() searches when nothing is asked for."""
    # What its generation_config.json leaves out is transformers' own, greedy search and 1.0; a model without that file
    # has the paper's, written out.
    beams, alpha = model.generation_config.num_beams, model.generation_config.length_penalty
    return 1 if beams is None else beams, 1.0 if alpha is None else alpha


def check_search(model: VaswaniTransformerForConditionalGeneration, folder: Path) -> None:
    """Raises InputError naming what the generation config says, generate() does and the search in tensors does not."""
    settings, config, path = model.generation_config, model.config, folder / "generation_config.json"
    for field in ("decoder_start_token_id", "pad_token_id", "eos_token_id"):
        value, known = getattr(settings, field), getattr(config, field)
        if value is not None and value not in (known, [known]):
            raise InputError(
                f"{path}: {field} is {value}, in config.json {known}: generate() follows the one, the "
                "search of Translator and ONNX the other; make them agree"
            )
    for field, neutral in SEARCHES_OTHERWISE.items():
        value = getattr(settings, field, None)
        if field == "early_stopping" and value is None and own_search(model)[0] > 1:
            value = False  # generate()'s own
        if value is not None and value != neutral:
            raise InputError(
                f"{path}: {field} is {value!r}, which generate() follows and the search of Translator "
                f"and ONNX does not have; make it {json.dumps(neutral)}, or call generate()"
            )


def load_tokenizer(
    folder: str | Path, config: VaswaniTransformerConfig | None = None, target: bool = False
) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder. With a config, its ids are checked to lie in the model's vocabulary.

    target: the decoder's vocabulary, where it is not the encoder's
    Raises BrokenFileError naming tokenizer.json or tokenizer_config.json.
    """
    folder = Path(folder)
    path, settings_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    read_json_object(path)
    settings = read_json_object(settings_path)
    str(path).encode()  # UnicodeEncodeError for a name that tokenizers does not take: errors.py says it better
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises bare Exceptions
        raise BrokenFileError(f"{path} is not a tokenizer ({error}); copy or fetch it again") from None
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if config is not None:
        field, size = ("decoder_vocab_size", target_vocabulary(config)) if target else ("vocab_size", config.vocab_size)
        if largest >= size:
            raise BrokenFileError(
                f"{path} has ids up to {largest}, but config.json has {field} {size}: "
                "tokenizer and model do not belong together"
            )
    try:
        # Not AutoTokenizer: a plain tokenizer.json needs no code that the folder might name.
        loaded = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers does not say which
        raise BrokenFileError(f"{settings_path}: {type(error).__name__}: {one_line(str(error))}") from error
    for field in ("pad_token_id", "eos_token_id"):
        id = getattr(loaded, field)
        if id is None and field == "eos_token_id" and (folder / TARGET_TOKENIZER).is_dir():
            continue  # OpenNMT-py's sources have no </s>; the other tokenizer's translations have
        wanted = getattr(config, field, id)
        if id is None or id != wanted:
            raise BrokenFileError(
                f"{settings_path}: {field} is {id}"
                + (f", but config.json has {wanted}" if config is not None else "")
                + f"; {field.removesuffix('_id')} is {settings.get(field.removesuffix('_id'))!r}"
            )
    return loaded


def target_vocabulary(config: VaswaniTransformerConfig) -> int:
    """How many tokens the decoder knows."""
    return config.vocab_size if config.decoder_vocab_size is None else config.decoder_vocab_size


def checked_dtype(dtype: str | torch.dtype | None) -> str | torch.dtype:
    """A torch dtype for the weights; None stays what the file has. Raises InputError for anything that is none."""
    if dtype is None:
        return "auto"
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if chosen not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        raise InputError(f"dtype {dtype!r} is not one of float32, bfloat16, float16, float64")
    return chosen


def checked_device(device: str | torch.device | None) -> torch.device:
    """The device asked for; None: CUDA, then Apple's GPU, then the CPU. Raises InputError or UnavailableError."""
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError(f"device {device!r} is not one that torch knows; cpu and cuda are, cuda:1 too") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UnavailableError(f"device {device!r}: torch sees {torch.cuda.device_count()} CUDA devices here")
    return chosen


def enumerated(names: Iterable[str], shown: int = 4) -> str:
    """The first names of a list and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest
