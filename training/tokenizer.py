"""Load the tokenizers of a recipe, or train one on its text."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import move_files, temporary_path
from vaswani_transformer.errors import InputError
from vaswani_transformer.hub_files import find_folder
from vaswani_transformer.loading import load_tokenizer
from vaswani_transformer.model_folder import ModelFolder, weight_files
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.tokenization import train_tokenizer

from .parallel_text import ParallelText, fingerprints, refuse_changed, text_lines
from .recipe import TokenizerSettings


def load_tokenizers(
    settings: TokenizerSettings,
    initial_weights: str | None,
    output: Path,
    texts: list[ParallelText],
    say: Callable[[str], None],
) -> tuple[Any, Any]:
    """Load the tokenizer and, if the languages have separate vocabularies, the target's (else None).

    They are those of the settings, of initial_weights, or of `output`; that of `output` is trained if missing.
    Raises InputError, before the text is read, if initial_weights is no model of this package or an ONNX export, or has
    separate vocabularies and there is one tokenizer.
    """
    model = None if initial_weights is None else ModelFolder(find_folder(initial_weights))
    before = None if model is None else model.path
    if before:
        weight_files(before)  # which refuses an ONNX export
    folder = Path(settings.tokenizer) if settings.tokenizer is not None else before or output
    if folder == output and not (output / "tokenizer.json").is_file():
        say(f"training a tokenizer of {settings.vocab_size} tokens on {' + '.join(text.name for text in texts)}")
        save_new_tokenizer(settings, output, texts)
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"tokenizer: {folder} has no tokenizer.json; train one with `vaswani-transformer tokenizer`")
    separate = folder != output and (folder / TARGET_TOKENIZER).is_dir()
    if model is not None and model.has_two_vocabularies and not separate:
        raise InputError(
            f"tokenizer: the languages of the model in {before} have separate vocabularies, but {folder} has one "
            f"tokenizer; put the target's into {folder / TARGET_TOKENIZER}"
        )
    tokenizer = load_for_training(folder, of_targets=not separate)
    if settings.lowercase and tokenizer.decode(tokenizer("A")["input_ids"], skip_special_tokens=True).strip() != "a":
        raise InputError(f"lowercase: the tokenizer in {folder} keeps capitals; train one with `tokenizer --lowercase`")
    if before and folder != before and (before / "tokenizer.json").is_file():
        if tokenizer.get_vocab() != load_tokenizer(before).get_vocab():
            say(f"warning: the tokenizer in {folder} differs from the one that {before} was trained with")
    return tokenizer, load_for_training(folder / TARGET_TOKENIZER, of_targets=True) if separate else None


def save_new_tokenizer(settings: TokenizerSettings, output: Path, texts: list[ParallelText]) -> None:
    """Train a tokenizer on the texts and save it in `output`; its files appear when they are complete.

    Raises InputError if the texts change meanwhile, such as those of a program that has not finished writing them.
    """
    before = fingerprints(texts)
    tokenizer = train_tokenizer(text_lines(texts), settings.vocab_size, lowercase=settings.lowercase)
    refuse_changed(texts, before)
    with temporary_path(output / "tokenizer") as temporary:
        tokenizer.save_pretrained(temporary)
        # tokenizer.json last: the others exist if it does.
        names = sorted(os.listdir(temporary), key=lambda name: name == "tokenizer.json")
        move_files(names, temporary, output)


def load_for_training(folder: Path, of_targets: bool) -> Any:
    """Load a tokenizer.  of_targets: raise InputError if it does not append </s>"""
    tokenizer = load_tokenizer(folder)
    if of_targets and tokenizer("a")["input_ids"][-1:] != [tokenizer.eos_token_id]:
        raise InputError(
            f"tokenizer: {folder / 'tokenizer.json'} does not append {tokenizer.eos_token} "
            f"({tokenizer.eos_token_id}), so the model would not learn to stop; add it to the post_processor"
        )
    return tokenizer


def sizes_and_ids(tokenizer: Any, target_tokenizer: Any) -> tuple[int, int | None, dict[str, int | None]]:
    """Return the arguments of `model_config` that come from the tokenizers: sizes, and ids of control tokens.

    target_tokenizer: None if both languages share one
    Decoding starts with <s>, or with <pad> if the tokenizer has no <s>, as in T5 and Marian. Raises InputError if two
    tokenizers pad with different ids.
    """
    target = tokenizer if target_tokenizer is None else target_tokenizer
    if tokenizer.pad_token_id != target.pad_token_id:
        raise InputError(
            f"tokenizer: the source's pad_token_id is {tokenizer.pad_token_id}, the target's {target.pad_token_id}; "
            "the model needs the same for both"
        )
    start = target.pad_token_id if target.bos_token_id is None else target.bos_token_id
    ids = {
        "bos_token_id": target.bos_token_id,
        "pad_token_id": target.pad_token_id,
        "eos_token_id": target.eos_token_id,
        "decoder_start_token_id": start,
    }
    return len(tokenizer), None if target_tokenizer is None else len(target_tokenizer), ids


def tokenizer_sha256(tokenizer: Any) -> str:
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
