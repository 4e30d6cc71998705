"""Convert in either direction: find the checkpoint, convert it, write the folder, print a summary."""

import shutil
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import (
    BrokenFileError,
    InputError,
    UnavailableError,
    escape_controls,
    one_line,
    out_of_memory,
)
from vaswani_transformer.files import check_readable
from vaswani_transformer.languages_vaswani_transformer import find_language
from vaswani_transformer.loading import load_model
from vaswani_transformer.model_folder import CONVERTIBLE_TYPES, MODEL_TYPE, SWITCHES, enumerate_names
from vaswani_transformer.search_vaswani_transformer import SearchSettings
from vaswani_transformer.torch_translator import TorchTranslator

from .build import build_model, save_model, set_search
from .checkpoint_files import create_folder, load_checkpoint, may_be_torch_save
from .compare import compare_tokenizers, compare_with_toolkit
from .folder import OurModel
from .options import Options, Reasons
from .sentencepiece_model import SentencePieceModel
from .toolkit import Description, Reader
from .toolkits import READERS, WRITERS
from .toolkits.hugging_face import find_model_type

# Printed if they differ from the paper's model.
SETTINGS = *SWITCHES, *"max_position_embeddings d_k d_v share_encoder_decoder_embeddings tie_word_embeddings".split()
SEARCH = ("beam_search", *(field.name for field in fields(SearchSettings)))
NO_LANGUAGES_NOTE = (
    "The model has many languages, whose tokens are unknown without the vocabulary. Put the source's id in front of "
    "sources as in its toolkit, and give generate() the target's as forced_bos_token_id."
)
READ_MODELS = "MarianMTModel (OPUS-MT), FSMT, M2M-100, NLLB, Pegasus and Blenderbot"


def import_checkpoint(
    path: Path,
    out: Path,
    name: str | None = None,
    logits: Path | None = None,
    paper_search: bool = False,
    source_language: str | None = None,
    target_language: str | None = None,
) -> None:
    """Convert a checkpoint of another toolkit to a model folder at `out`, which must be new.

    name: the name of the checkpoint's toolkit, None to recognise it
    logits: see `compare_with_toolkit`
    paper_search: keep the paper's settings of the search instead of the checkpoint's
    source_language, target_language: see `fix_languages`
    """
    reader, file = recognise_checkpoint(path, name)
    with create_folder(out) as folder, torch.inference_mode():
        description, model = read_model(reader, file)
        forced = fix_languages(description, file, source_language, target_language)
        try:
            set_search(model, forced if paper_search else description.search | forced)
        except (ValueError, TypeError) as error:
            raise BrokenFileError(
                f"{file} has settings of the search that are not supported ({error}); --paper-search ignores them"
            ) from None
        save_model(description, model, folder, reader.name, file)
        check_result(folder, file)
        checks = [compare_with_toolkit(description, model, reader.name, file, logits)]
        checks += compare_tokenizers(description.vocabulary)
    print(f"{reader.name}: {model.num_parameters():,} parameters")
    print(f"settings that differ from the paper's: {list_differences_from_paper(model.config)}")
    settings = model.generation_config.to_diff_dict()
    print(f"search: {', '.join(f'{name}={settings[name]}' for name in SEARCH if settings.get(name) is not None)}")
    for note in description.all_notes():
        print(f"note: {escape_controls(note)}")
    print(*map(escape_controls, checks), sep="\n")


def fix_languages(description: Description, file: Path, source: str | None, target: str | None) -> dict[str, Any]:
    """Set the languages of a model that has their tokens at fixed places; return the setting of the search for them.

    file: the checkpoint, for errors
    source, target: any code or name of theirs, see `find_language`
    Raises InputError if one is missing or unknown, or if the model has no such tokens.
    """
    in_source, known = description.in_source, description.vocabulary.languages
    given = {"--source-language": source, "--target-language": target}
    if in_source is None or not known:
        if any(value is not None for value in given.values()):
            why = "this model's languages are not chosen here;"
            if in_source is not None:
                why = "the files of its tokenizer are missing or have no tokens of languages; add tokenizer.json, or"
            raise InputError(f"{file}: {why} leave out {' and '.join(given)}")
        if in_source is not None:
            description.notes = [*description.notes, NO_LANGUAGES_NOTE]
        return {}
    needed = ("--source-language", "--target-language") if in_source == "source" else ("--target-language",)
    for option, value in given.items():
        position = find_language([*known], value) if value else None
        if position is not None:
            given[option] = [*known][position]
        elif value is not None or option in needed:
            what = f"has no language {value!r}" if value else "has many languages, and a converted model has one pair"
            raise InputError(f"{file} {what}; convert it with {option}: {', '.join(known)}")
    source, target = given.values()
    tokens = {"source": known.get(source or ""), "target": known[str(target)], "": None}
    description.vocabulary.set_languages(tokens[in_source], tokens["target"])
    description.kept |= {"source_lang": source, "target_lang": target}  # as `languages.read_languages` reads them
    return {"forced_bos_token_id": description.vocabulary.target.index(tokens["target"])}


def import_tokenizer(path: Path, out: Path) -> None:
    """Convert a SentencePiece model to a tokenizer at `out`, which must be new, for the recipe key `tokenizer`."""
    vocabulary = SentencePieceModel.read(path).make_vocabulary()
    with create_folder(out) as folder:
        vocabulary.wrap_tokenizer("target").save_pretrained(folder)
    print(f"sentencepiece: {len(vocabulary.target):,} pieces")
    print(*map(escape_controls, compare_tokenizers(vocabulary)), sep="\n")


def check_result(folder: Path, checkpoint: Path) -> None:
    """Load the written folder as its users will. Raises BrokenFileError if it is refused.

    checkpoint: the file to name
    """
    try:
        if (folder / "tokenizer.json").exists():
            TorchTranslator.from_pretrained(folder, device="cpu", local_files_only=True)
        else:  # the notes say that the checkpoint came without its vocabulary
            load_model(folder, device="cpu")
    except (InputError, BrokenFileError) as error:
        reason = str(error).replace(f"{folder}/", "")  # a temporary name
        raise BrokenFileError(f"{checkpoint} cannot be converted: its model would be refused ({reason})") from None


def export_checkpoint(path: Path, out: Path, name: str) -> None:
    """Convert a model folder to a checkpoint of the toolkit `name` in the folder `out`, which must be new."""
    if name not in WRITERS:
        raise InputError(f"--to {name}: not a format that can be written; known formats: {', '.join(WRITERS)}")
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; --to takes a model folder of this project")
    folder = OurModel(path)
    options = Options(folder.config.to_dict(), Reasons(f"{path} (to {name})"))
    with create_folder(out) as new, torch.inference_mode():
        options.require({"d_k": (None,), "d_v": (None,)})  # d_model / heads
        try:
            notes = WRITERS[name](folder, new, options) or []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError | BrokenFileError):
                raise
            raise BrokenFileError(
                f"{path}: conversion.json or generation_config.json is damaged or does not fit {name} "
                f"({type(error).__name__}: {one_line(str(error))[:200]}); convert the checkpoint again"
            ) from error
        forced, rows = folder.model.generation_config.forced_bos_token_id, folder.rows["target"]
        if forced is not None and forced >= rows:
            options.reasons.add_setting(
                f"forced_bos_token_id of generation_config.json is {forced}; the ids go up to {rows - 1}"
            )
        options.reasons.raise_if_any()  # the folder is deleted
        if forced is not None and not name.startswith("hf-"):  # transformers has the same setting
            token = repr(folder.tokens()[1][forced]) if folder.has_tokenizer() else "token"
            notes = [*notes, f"Translations begin with {token} (id {forced}), which {name} must be given as a prefix."]
        if folder.toolkit == name and folder.originals.is_dir():  # the vocabularies, byte for byte
            for file in sorted(folder.originals.iterdir()):
                shutil.copyfile(file, new / file.name)
    print(f"{name}: {folder.model.num_parameters():,} parameters")
    for note in notes:
        print(f"note: {escape_controls(note)}")


def recognise_checkpoint(path: Path, name: str | None) -> tuple[Reader, Path]:
    """Return the reader and the file of a checkpoint; a folder must contain exactly one.

    name: the name of the toolkit, None to recognise it

    Raises InputError if there is no such toolkit, or the folder contains no checkpoint or several.
    """
    if name is not None and name not in READERS:
        raise InputError(f"--from {name}: not a format that can be read; known formats: {', '.join(READERS)}")
    readers = [READERS[name]] if name else list(READERS.values())
    expected = name or f"a known format ({', '.join(READERS)})"
    if path.is_dir():
        path = find_only_checkpoint(path, readers, expected)
    elif not path.exists():
        index = path.with_name(path.name + ".index")  # TensorFlow's users name a checkpoint by its prefix
        if not index.exists():
            raise InputError(f"{path}: no such file or folder; give a checkpoint, or owner/name on the Hub")
        path = index
    check_readable(path)
    if name and readers[0].recognise_file:
        return readers[0], path  # whatever the file's name; `read` reports a file of another toolkit
    for reader in readers:
        if reader.recognise_file and reader.recognise_file(path):
            return reader, path
    is_readable = may_be_torch_save(path) or path.suffix == ".safetensors"
    content = load_checkpoint(path) if name or is_readable else None
    for reader in readers:
        if reader.recognise_content and isinstance(content, dict) and reader.recognise_content(content):
            return reader, path
    refuse_other_models(path.parent)
    raise InputError(f"{path} is not a checkpoint of {expected}{explain_content(path, content)}")


def explain_content(path: Path, content: Any) -> str:
    """Return what the file has instead of a Transformer with an encoder and a decoder, for an error.

    content: what torch or safetensors read from the file; None if it is neither
    """
    if path.suffix == ".onnx":
        return ": it is an ONNX file, which has no names of weights; convert the checkpoint that it was exported from"
    if names := find_names(content):
        return f": its tensors have the names of no known model ({enumerate_names(names)})"
    return "; give a model folder, or the folder or file of a checkpoint"


def find_names(content: Any) -> list[str]:
    """Return the names of the tensors in a checkpoint, or in the first dictionary in it that has any."""
    if not isinstance(content, dict):
        return []
    names = [str(name) for name, value in content.items() if isinstance(value, torch.Tensor)]
    return names or next(filter(None, map(find_names, content.values())), [])


def refuse_other_models(folder: Path) -> None:
    """Raise InputError for a folder with a model of a known other architecture."""
    if (file := next(folder.glob("*.intgemm*.bin*"), None)) is not None:
        raise InputError(
            f"{file} cannot be converted: it is a quantised student of Bergamot or Firefox, whose decoder is an SSRU, "
            "no self-attention; convert the model.npz of its teacher"
        )
    for place in (folder, folder / "model"):  # the second in Argos Translate's packages
        if (place / "model.bin").exists() and (file := next(place.glob("*_vocabulary.*"), None)) is not None:
            raise InputError(
                f"{file} cannot be converted: it is of CTranslate2, which runs models of other toolkits; convert the "
                "checkpoint that it was made from"
            )
    kind = find_model_type(folder / "config.json")
    if kind not in (None, MODEL_TYPE, *CONVERTIBLE_TYPES):
        raise InputError(
            f"{folder} cannot be converted: config.json describes a model of type {kind!r}; of transformers' models, "
            f"{READ_MODELS} can be converted"
        )


def find_only_checkpoint(folder: Path, readers: Iterable[Reader], expected: str) -> Path:
    """Return the only file in the folder that may be a checkpoint for one of the readers."""
    found = sorted({file for reader in readers for file in list_preferred_files(folder, reader)})
    candidates = list({file.resolve(): file for file in found}.values())  # JoeyNMT links best.ckpt to a checkpoint
    if not candidates and find_model_type(folder / "config.json") == MODEL_TYPE:
        raise InputError(f"{folder} is already a model folder; --to FORMAT converts it to {', '.join(WRITERS)}")
    if not candidates:
        refuse_other_models(folder)
        raise InputError(
            f"{folder}: no file in this folder has the name of a checkpoint of {expected}; give the path of the file"
        )
    if len(candidates) > 1:
        names = enumerate_names(file.name for file in candidates)
        raise InputError(f"{folder} contains {len(candidates)} checkpoints ({names}); give the path of one of them")
    return candidates[0]


def list_preferred_files(folder: Path, reader: Reader) -> list[Path]:
    """Return the files that match the first of a toolkit's patterns that any checkpoint matches."""
    for pattern in reader.files:
        files = [file for file in folder.glob(pattern) if file.is_file()]
        if reader.recognise_file:
            files = [file for file in files if reader.recognise_file(file)]
        elif pattern == "*.safetensors":  # which other programs write beside their own configuration
            files = [file for file in files if recognises_names(reader, file)]
        if files:
            return files
    return []


def recognises_names(reader: Reader, file: Path) -> bool:
    """Return whether a toolkit's checkpoint may be in a safetensors file, from the names in its header."""
    try:
        with safe_open(file, "pt") as opened:
            names = opened.keys()
    except (SafetensorError, OSError):
        return False
    return reader.recognise_content is not None and reader.recognise_content(dict.fromkeys(names))


def read_model(reader: Reader, file: Path) -> tuple[Description, Model]:
    """Read a checkpoint as a model. Raises InputError or BrokenFileError with all reasons against the conversion."""
    reasons = Reasons(file)
    try:
        description = reader.read(file, reasons)
        description.vocabulary.check_special_ids(file)
        return description, build_model(description, reasons)
    except (InputError, BrokenFileError, UnavailableError):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        # Any other exception means a damaged or foreign file. Earlier reasons usually explain it, so report them first.
        # --debug shows where it happened.
        reasons.raise_if_any()
        message = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise BrokenFileError(
            f"{file} or a file next to it is damaged or not from {reader.name} ({message})"
        ) from error


def list_differences_from_paper(config: Any) -> str:
    """Return the fields of a configuration that differ from the paper's model, for the summary."""
    default = type(config)()
    different = {name: getattr(config, name) for name in SETTINGS if getattr(config, name) != getattr(default, name)}
    return ", ".join(f"{name}={value}" for name, value in different.items()) or "none"
